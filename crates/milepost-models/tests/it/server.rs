//! A server on loopback that sends exactly the bytes that a test wants, in the pieces that it wants.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with a request.
#[derive(Clone)]
pub enum Act {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Says nothing more, and keeps the connection.
    Hang,
    /// Ends the connection.
    Close,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub head: String,
    pub body: Value,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (own, value) = line.split_once(':')?;
            own.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

pub struct Server {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts one that does `acts(n)` with the n-th request.
    pub async fn start(acts: impl Fn(usize) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (acts, all) = (Arc::new(acts), seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream, acts.clone(), all.clone()));
            }
        });
        Self { url, seen }
    }

    /// One that always does the same.
    pub async fn always(acts: Vec<Act>) -> Self {
        Self::start(move |_| acts.clone()).await
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, acts: Arc<dyn Fn(usize) -> Vec<Act> + Send + Sync>, seen: Arc<Mutex<Vec<Seen>>>) {
    let mut buffer = Vec::new();
    loop {
        let Some(request) = read(&mut stream, &mut buffer).await else { return };
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request);
            seen.len() - 1
        };
        for act in acts(number) {
            match act {
                Act::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Act::Hang => std::future::pending().await,
                Act::Close => return,
            }
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
            let seen = Seen { head, body: Value::Null };
            let length: usize = seen.header("content-length")?.parse().unwrap();
            if buffer.len() >= end + 4 + length {
                let body = serde_json::from_slice(&buffer[end + 4..end + 4 + length]).unwrap();
                buffer.drain(..end + 4 + length);
                return Some(Seen { body, ..seen });
            }
        }
        let mut part = [0u8; 4096];
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => buffer.extend_from_slice(&part[..count]),
        }
    }
}

/// A response of this status, with these further headers (each ending with CRLF) and this body.
pub fn response(status: &str, headers: &str, body: &str) -> Vec<Act> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n");
    vec![Act::Send((head + body).into_bytes())]
}

/// The beginning of a stream.
pub fn stream_head(headers: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n{headers}\r\n").into()
}

/// One piece of a stream: the client sees it as a piece of its own.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A whole stream in these pieces.
pub fn stream(pieces: &[&[u8]]) -> Vec<Act> {
    let mut all = stream_head("");
    pieces.iter().filter(|piece| !piece.is_empty()).for_each(|piece| all.extend(chunk(piece)));
    all.extend(b"0\r\n\r\n");
    vec![Act::Send(all)]
}

/// The beginning of a stream whose connection then ends without a word.
pub fn broken_stream(bytes: &[u8]) -> Vec<Act> {
    vec![Act::Send([stream_head(""), chunk(bytes)].concat()), Act::Close]
}
