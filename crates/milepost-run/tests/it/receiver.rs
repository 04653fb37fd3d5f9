//! The outside world: a real HTTP server that counts what reaches it, by path and key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Seen = Arc<Mutex<Vec<(String, String)>>>;

pub struct Receiver {
    pub url: String,
    seen: Seen,
}

impl Receiver {
    pub async fn start() -> Self {
        Self::at("127.0.0.1:0").await
    }

    pub async fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Seen::default();
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&kept)));
            }
        });
        Self { url, seen }
    }

    /// How often each path was reached, and under how many keys.
    pub fn counts(&self) -> BTreeMap<String, (usize, usize)> {
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (path, key) in self.seen.lock().unwrap().iter() {
            keys.entry(path.clone()).or_default().push(key.clone());
        }
        let distinct = |mut keys: Vec<String>| {
            keys.sort();
            keys.dedup();
            keys.len()
        };
        keys.into_iter().map(|(path, keys)| (path, (keys.len(), distinct(keys)))).collect()
    }
}

async fn serve(mut stream: TcpStream, seen: Seen) {
    let (mut read, mut part) = (Vec::new(), [0u8; 4096]);
    let end = loop {
        let Ok(count) = stream.read(&mut part).await else { return };
        if count == 0 {
            return;
        }
        read.extend_from_slice(&part[..count]);
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).into_owned();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let key = head.lines().find_map(|line| line.strip_prefix("idempotency-key: ")).unwrap_or_default().to_owned();
    // From here on it has happened, whether or not anybody hears of it.
    seen.lock().unwrap().push((path.clone(), key));
    if path.starts_with("/lost") {
        return;
    }
    let mut parts = path.split('/').skip(1);
    if parts.next() == Some("status") {
        let status = parts.next().unwrap_or_default();
        let answer =
            format!("HTTP/1.1 {status} So\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes()).await;
        return;
    }
    let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{\"ok\":true}";
    // The one who asked may have been killed.
    let _ = stream.write_all(answer.as_bytes()).await;
}
