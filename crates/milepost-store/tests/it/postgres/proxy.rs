//! A bad network: stands between a store and its server, and cuts, delays, repeats and swallows.
//!
//! What happens to a connection is drawn when it is made, from a seed. It works on bytes and, where it must know what is
//! said, on the messages of PostgreSQL's protocol.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::Rng;

/// What can happen to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing.
    Calm,
    /// It is cut in the middle of something that is asked.
    Cut,
    /// Everything takes a while.
    Slow,
    /// An answer is swallowed after the server acted, then it is cut.
    Swallow,
    /// Answers are swallowed and nothing is cut: whoever waits must lose patience.
    Silence,
    /// What appends is sent to the server a second time, as a network with a memory would.
    Repeat,
}

const FATES: [Fate; 6] = [Fate::Calm, Fate::Cut, Fate::Slow, Fate::Swallow, Fate::Silence, Fate::Repeat];

/// How often each [`Fate`] struck.
#[derive(Debug, Default)]
pub struct Struck([AtomicUsize; FATES.len()]);

impl Struck {
    fn note(&self, fate: Fate) {
        self.0[fate as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The fates that never struck.
    pub fn missing(&self) -> Vec<String> {
        let never = FATES.iter().filter(|fate| self.0[**fate as usize].load(Ordering::Relaxed) == 0);
        never.filter(|fate| **fate != Fate::Calm).map(|fate| format!("{fate:?}")).collect()
    }
}

/// A proxy on a port of its own. It ends with the runtime that it was started on.
pub struct Proxy {
    pub port: u16,
    pub struck: Arc<Struck>,
    /// Whether bad things happen.
    is_bad: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts a proxy before the server on a port of this machine. Nothing bad happens yet.
    pub async fn start(server: u16, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (struck, is_bad) = (Arc::<Struck>::default(), Arc::new(AtomicU64::new(0)));
        let (counts, bad) = (Arc::clone(&struck), Arc::clone(&is_bad));
        tokio::spawn(async move {
            let mut rng = Rng::new(seed);
            while let Ok((client, _)) = listener.accept().await {
                let fate = if bad.load(Ordering::Relaxed) > 0 { FATES[rng.below(FATES.len())] } else { Fate::Calm };
                let connection = Connection { fate, rng: Rng::new(rng.next()), server, struck: Arc::clone(&counts) };
                tokio::spawn(connection.serve(client));
            }
        });
        Self { port, struck, is_bad }
    }

    /// Begins or ends the bad time. Connections keep the fate that they have.
    pub fn be_bad(&self, bad: bool) {
        self.is_bad.store(u64::from(bad), Ordering::Relaxed);
    }
}

struct Connection {
    fate: Fate,
    rng: Rng,
    server: u16,
    struck: Arc<Struck>,
}

/// What the two directions of a connection know together.
struct Shared {
    fate: Fate,
    struck: Arc<Struck>,
    /// Answers after which the fate strikes.
    patience: AtomicU64,
    random: Mutex<Rng>,
}

impl Shared {
    async fn dawdle(&self) {
        let ms = self.random.lock().unwrap().below(40) as u64;
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

impl Connection {
    async fn serve(mut self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server)).await else { return };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        // The greeting goes through; then it is a matter of luck.
        let patience = AtomicU64::new(3 + self.rng.below(30) as u64);
        let (fate, struck) = (self.fate, Arc::clone(&self.struck));
        let shared = Shared { fate, struck, patience, random: Mutex::new(self.rng) };
        let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
        // Whichever direction ends, ends both.
        tokio::select! {
            () = ask(from_client, to_server, &shared, self.server) => {}
            () = answer(from_server, to_client, &shared) => {}
        }
    }
}

/// A message of a client: its first has no kind.
async fn message(from: &mut OwnedReadHalf, is_first: bool) -> std::io::Result<Vec<u8>> {
    let head = if is_first { 4 } else { 5 };
    let mut bytes = vec![0; head];
    from.read_exact(&mut bytes).await?;
    let length = u32::from_be_bytes(bytes[head - 4..].try_into().unwrap()) as usize;
    bytes.resize(head + length.saturating_sub(4), 0);
    from.read_exact(&mut bytes[head..]).await?;
    Ok(bytes)
}

async fn ask(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, server: u16) {
    let (mut greeting, mut asked) = (Vec::new(), Vec::new());
    while let Ok(bytes) = message(&mut from, greeting.is_empty()).await {
        if greeting.is_empty() {
            greeting.clone_from(&bytes);
        } else {
            asked.extend_from_slice(&bytes);
        }
        match shared.fate {
            Fate::Slow => {
                shared.struck.note(Fate::Slow);
                shared.dawdle().await;
            }
            Fate::Cut if shared.patience.load(Ordering::Relaxed) == 0 => {
                shared.struck.note(Fate::Cut);
                let half = shared.random.lock().unwrap().below(bytes.len());
                drop(to.write_all(&bytes[..half]).await);
                return;
            }
            _ => {}
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        // `S`: the server acts on what was asked since the last.
        if bytes[0] == b'S' && !greeting.is_empty() {
            let appends = asked.windows(8).any(|window| window == b"append_2" || window == b"extend_2");
            if shared.fate == Fate::Repeat && appends {
                shared.struck.note(Fate::Repeat);
                tokio::spawn(repeat(server, greeting.clone(), std::mem::take(&mut asked)));
            }
            asked.clear();
        }
    }
}

/// Says the same to the server once more, a little later, on a connection of its own.
async fn repeat(server: u16, greeting: Vec<u8>, asked: Vec<u8>) {
    tokio::time::sleep(Duration::from_millis(5)).await;
    let Ok(mut again) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    drop(again.write_all(&[greeting, asked].concat()).await);
    let mut ignored = [0; 4096];
    let listening = async { while again.read(&mut ignored).await.is_ok_and(|read| read > 0) {} };
    drop(tokio::time::timeout(Duration::from_secs(2), listening).await);
}

async fn answer(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else { return };
        let left = shared.patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match shared.fate {
            Fate::Slow => shared.dawdle().await,
            Fate::Swallow if left.is_err() => {
                shared.struck.note(Fate::Swallow);
                shared.dawdle().await;
                return;
            }
            Fate::Silence if left.is_err() => {
                shared.struck.note(Fate::Silence);
                continue;
            }
            _ => {}
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
