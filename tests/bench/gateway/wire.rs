//! A client that costs little, and what a process has used.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// One keep-alive connection that speaks just enough HTTP/1.1, so that the client costs little.
pub struct Wire {
    stream: tokio::net::TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub async fn connect(at: SocketAddr) -> Wire {
        let stream = tokio::net::TcpStream::connect(at).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Wire { stream, buffer: Vec::with_capacity(1 << 16) }
    }

    /// Sends a request as it stands and gives the body of the answer, which must be a good one.
    pub async fn ask(&mut self, request: &[u8]) -> &[u8] {
        let (good, answer) = self.answer(request).await;
        assert!(good, "{}", String::from_utf8_lossy(answer));
        answer
    }

    /// Whether the answer is good, and its body, which must have a length.
    pub async fn answer(&mut self, request: &[u8]) -> (bool, &[u8]) {
        self.send(request).await;
        self.receive().await
    }

    /// Sends a part of a request.
    pub async fn send(&mut self, part: &[u8]) {
        self.stream.write_all(part).await.unwrap();
    }

    /// Whether the answer to what was sent is good, and its body, which must have a length.
    pub async fn receive(&mut self) -> (bool, &[u8]) {
        self.buffer.clear();
        loop {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the connection was closed");
            let Some(head) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.buffer[..head]).unwrap().to_ascii_lowercase();
            let length =
                text.lines().find_map(|l| l.strip_prefix("content-length: ")).expect("an answer with a length");
            let length: usize = length.trim().parse().unwrap();
            while self.buffer.len() < head + 4 + length {
                assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the answer was cut off");
            }
            return (text.starts_with("http/1.1 200"), &self.buffer[head + 4..head + 4 + length]);
        }
    }
}

/// A POST as it goes over the wire.
pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// CPU time of all threads of a process.
pub fn cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanos = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}
