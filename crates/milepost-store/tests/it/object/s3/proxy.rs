//! Stands between a process and its S3 server: cuts, delays and repeats requests, and loses answers after the server acted.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::Rng;

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    server: AtomicU16,
    rng: Mutex<Rng>,
    /// One request in so many meets a fault.
    one_in: usize,
    met: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// It never arrives.
    Cut,
    /// Half of it arrives.
    Half,
    /// It arrives, the server acts, the answer is lost.
    AnswerLost,
    /// It takes a while.
    Slow,
    /// It arrives twice; the second answer is given.
    Twice,
    /// It arrives, the answer is lost, and it arrives once more, late.
    Late,
}

impl Proxy {
    pub async fn start(server: u16, seed: u64, one_in: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            rng: Mutex::new(Rng::new(seed)),
            one_in,
            met: AtomicU64::new(0),
        });
        let inner = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&inner).serve(client));
            }
        });
        Self { port, shared }
    }

    /// How many faults there were.
    pub fn met(&self) -> u64 {
        self.shared.met.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn fault(&self) -> (Option<Fault>, Duration) {
        let mut rng = self.rng.lock().unwrap();
        let all = [Fault::Cut, Fault::Half, Fault::AnswerLost, Fault::Slow, Fault::Twice, Fault::Late];
        let fault = (rng.below(self.one_in) == 0).then(|| all[rng.below(all.len())]);
        (fault, Duration::from_millis(20 + rng.below(400) as u64))
    }

    /// One request for each connection: the answer says that it is closed.
    async fn serve(self: Arc<Self>, mut client: TcpStream) {
        let Some(request) = read_request(&mut client).await else { return };
        let (fault, pause) = self.fault();
        if fault.is_some() {
            self.met.fetch_add(1, Ordering::SeqCst);
        }
        let answer = match fault {
            Some(Fault::Cut) => return,
            Some(Fault::Half) => {
                self.send(&request[..request.len() / 2], pause).await;
                return;
            }
            Some(Fault::AnswerLost) => {
                self.ask(&request).await;
                return;
            }
            Some(Fault::Late) => {
                self.ask(&request).await;
                drop(client);
                tokio::time::sleep(pause * 2).await;
                self.ask(&request).await;
                return;
            }
            Some(Fault::Slow) => {
                tokio::time::sleep(pause).await;
                self.ask(&request).await
            }
            Some(Fault::Twice) => {
                self.ask(&request).await;
                self.ask(&request).await
            }
            None => self.ask(&request).await,
        };
        if let Some(answer) = answer {
            let _ = client.write_all(&answer).await;
            let _ = client.shutdown().await;
        }
    }

    async fn connect(&self) -> Option<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.server.load(Ordering::SeqCst))).await.ok()
    }

    async fn send(&self, bytes: &[u8], pause: Duration) {
        if let Some(mut server) = self.connect().await {
            let _ = server.write_all(bytes).await;
            tokio::time::sleep(pause).await;
        }
    }

    async fn ask(&self, request: &[u8]) -> Option<Vec<u8>> {
        let mut server = self.connect().await?;
        server.write_all(request).await.ok()?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).await.ok()?;
        (!answer.is_empty()).then_some(answer)
    }
}

/// A whole request, with the wish that the connection be closed after it.
async fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.to_ascii_lowercase().starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    assert!(value("transfer-encoding:").is_none(), "requests of unknown length are not passed on");
    let length: usize = value("content-length:").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < head + length {
        if client.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let kept = text.trim_end().lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let mut request = kept.collect::<Vec<_>>().join("\r\n").into_bytes();
    request.extend_from_slice(b"\r\nConnection: close\r\n\r\n");
    request.extend_from_slice(&bytes[head..head + length]);
    Some(request)
}
