//! The little of ZMTP 3 that a subscriber needs: NULL mechanism, messages in and out, over TCP or a Unix socket.
//!
//! An own client, because the bridge has to know when a connection ends (the engine may have restarted
//! meanwhile) and must survive any bytes: frames are bounded, and memory grows with the bytes that arrived, not
//! with a length that a peer claims.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::timeout;

/// Largest frame taken: about 5 million tokens.
const MAX_FRAME_BYTES: u64 = 64 << 20;
const MAX_MESSAGE_FRAMES: usize = 16;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What one side of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes published messages.
    Sub,
    /// Publishes.
    Pub,
    /// Asks and takes any number of answers.
    Dealer,
    /// Answers.
    Router,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Sub => "SUB",
            Role::Pub => "PUB",
            Role::Dealer => "DEALER",
            Role::Router => "ROUTER",
        }
    }

    fn fits(self, peer: &[u8]) -> bool {
        match self {
            Role::Sub => matches!(peer, b"PUB" | b"XPUB"),
            Role::Pub => matches!(peer, b"SUB" | b"XSUB"),
            Role::Dealer => matches!(peer, b"ROUTER" | b"REP"),
            Role::Router => matches!(peer, b"DEALER" | b"REQ"),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// One connection after its handshake.
pub struct Connection {
    stream: Box<dyn Stream>,
    buffer: BytesMut,
    /// Frames of the message that is arriving; kept here so that a cancelled [`Connection::receive`] loses nothing.
    frames: Vec<Bytes>,
}

/// An address in ZMQ's spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `tcp://host:port`.
    Tcp(String),
    /// `ipc://path`.
    Ipc(String),
}

impl Endpoint {
    /// Reads `tcp://host:port` or `ipc://path`.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        if let Some(path) = text.strip_prefix("ipc://").filter(|p| !p.is_empty()) {
            return Ok(Endpoint::Ipc(path.to_owned()));
        }
        let authority = text.strip_prefix("tcp://").unwrap_or("");
        match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Endpoint::Tcp(authority.to_owned()))
            }
            _ => Err(format!("{text:?} is no endpoint: write tcp://HOST:PORT or ipc://PATH")),
        }
    }

    /// The endpoint of data-parallel rank `rank`: engines add it to the port.
    pub fn of_rank(&self, rank: u32) -> Endpoint {
        match self {
            Endpoint::Tcp(authority) => {
                let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "0"));
                let port = port.parse::<u16>().unwrap_or(0).wrapping_add(rank as u16);
                Endpoint::Tcp(format!("{host}:{port}"))
            }
            Endpoint::Ipc(path) if rank > 0 => Endpoint::Ipc(format!("{path}_dp{rank}")),
            ipc => ipc.clone(),
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Tcp(authority) => write!(f, "tcp://{authority}"),
            Endpoint::Ipc(path) => write!(f, "ipc://{path}"),
        }
    }
}

fn bad(what: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned())
}

/// Connects and shakes hands.
pub async fn connect(endpoint: &Endpoint, role: Role) -> std::io::Result<Connection> {
    let work = async {
        match endpoint {
            Endpoint::Tcp(authority) => {
                let stream = TcpStream::connect(authority).await?;
                tune(&stream);
                Connection::new(Box::new(stream), role).await
            }
            Endpoint::Ipc(path) => Connection::new(Box::new(UnixStream::connect(path).await?), role).await,
        }
    };
    timeout(HANDSHAKE_TIMEOUT, work).await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
}

/// Takes the next connection and shakes hands.
pub async fn accept(listener: &TcpListener, role: Role) -> std::io::Result<Connection> {
    let (stream, _) = listener.accept().await?;
    tune(&stream);
    let work = Connection::new(Box::new(stream), role);
    timeout(HANDSHAKE_TIMEOUT, work).await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?
}

/// A peer that vanished without a word is noticed within half a minute.
fn tune(stream: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    let _ = stream.set_nodelay(true);
    let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

impl Connection {
    async fn new(stream: Box<dyn Stream>, role: Role) -> std::io::Result<Connection> {
        let mut connection = Connection { stream, buffer: BytesMut::new(), frames: Vec::new() };
        let mut greeting = [0u8; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        connection.stream.write_all(&greeting).await?;
        let peer = connection.take(64).await?;
        if peer[0] != 0xff || peer[9] & 1 != 1 || peer[10] < 3 {
            return Err(bad("peer does not speak ZMTP 3"));
        }
        if &peer[12..17] != b"NULL\0" {
            return Err(bad("peer wants authentication"));
        }
        let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
        ready.extend_from_slice(&(role.name().len() as u32).to_be_bytes());
        ready.extend_from_slice(role.name().as_bytes());
        connection.write(COMMAND, &ready).await?;
        let (flags, body) = connection.frame().await?;
        if flags & COMMAND == 0 || !body.starts_with(b"\x05READY") {
            return Err(bad("peer refused the handshake"));
        }
        match property(&body[6..], b"socket-type") {
            Some(peer) if role.fits(peer) => Ok(connection),
            _ => Err(bad("peer is another type of socket")),
        }
    }

    /// Subscribes to messages whose first frame begins with `topic`.
    pub async fn subscribe(&mut self, topic: &str) -> std::io::Result<()> {
        let mut message = vec![1];
        message.extend_from_slice(topic.as_bytes());
        self.write(0, &message).await
    }

    /// Sends one message.
    pub async fn send(&mut self, frames: &[&[u8]]) -> std::io::Result<()> {
        for (i, frame) in frames.iter().enumerate() {
            self.write(if i + 1 < frames.len() { MORE } else { 0 }, frame).await?;
        }
        Ok(())
    }

    /// The next message; safe to cancel.
    pub async fn receive(&mut self) -> std::io::Result<Vec<Bytes>> {
        loop {
            let (flags, body) = self.frame().await?;
            if flags & COMMAND != 0 {
                if let Some(ping) = body.strip_prefix(b"\x04PING") {
                    let mut pong = b"\x04PONG".to_vec();
                    pong.extend_from_slice(ping.get(2..).unwrap_or(&[]));
                    self.write(COMMAND, &pong).await?;
                }
                continue;
            }
            if self.frames.len() >= MAX_MESSAGE_FRAMES {
                return Err(bad("message of too many frames"));
            }
            self.frames.push(body);
            if flags & MORE == 0 {
                return Ok(std::mem::take(&mut self.frames));
            }
        }
    }

    async fn write(&mut self, flags: u8, body: &[u8]) -> std::io::Result<()> {
        let mut out = Vec::with_capacity(body.len() + 9);
        if body.len() < 256 {
            out.extend_from_slice(&[flags, body.len() as u8]);
        } else {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
        out.extend_from_slice(body);
        self.stream.write_all(&out).await
    }

    async fn frame(&mut self) -> std::io::Result<(u8, Bytes)> {
        self.fill(2).await?;
        let flags = self.buffer[0];
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(bad("bad frame"));
        }
        let (head, length) = if flags & LONG != 0 {
            self.fill(9).await?;
            (9, self.buffer[1..9].iter().fold(0, |v, b| v << 8 | u64::from(*b)))
        } else {
            (2, u64::from(self.buffer[1]))
        };
        if length > MAX_FRAME_BYTES {
            return Err(bad("frame too large"));
        }
        self.fill(head + length as usize).await?;
        let mut frame = self.buffer.split_to(head + length as usize).freeze();
        Ok((flags, frame.split_off(head)))
    }

    async fn take(&mut self, n: usize) -> std::io::Result<Bytes> {
        self.fill(n).await?;
        Ok(self.buffer.split_to(n).freeze())
    }

    /// Reads until `n` bytes stand in the buffer; safe to cancel.
    async fn fill(&mut self, n: usize) -> std::io::Result<()> {
        while self.buffer.len() < n {
            self.buffer.reserve((n - self.buffer.len()).min(256 << 10));
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// A property of a READY command; names ignore case.
fn property<'a>(mut rest: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (n, tail) = rest.split_first()?;
        let (key, tail) = tail.split_at_checked(usize::from(*n))?;
        let (length, tail) = tail.split_first_chunk::<4>()?;
        let (value, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if key.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

    #[tokio::test]
    async fn takes_what_another_implementation_publishes() {
        let mut publisher = PubSocket::new();
        let endpoint = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let endpoint = Endpoint::parse(&endpoint).unwrap();
        let mut connection = connect(&endpoint, Role::Sub).await.unwrap();
        connection.subscribe("kv").await.unwrap();
        let large = vec![7u8; 3 << 20];
        let sender = async {
            // Until the subscription has arrived, messages go nowhere.
            for n in 0u64.. {
                for topic in ["other", "kv"] {
                    let mut message = ZmqMessage::from(topic);
                    message.push_back(n.to_be_bytes().to_vec().into());
                    message.push_back(large.clone().into());
                    publisher.send(message).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let receiver = async {
            let first = connection.receive().await.unwrap();
            let second = connection.receive().await.unwrap();
            for message in [&first, &second] {
                assert_eq!(message.len(), 3);
                assert_eq!(&message[0][..], b"kv");
                assert_eq!(message[2], large);
            }
            let n = |m: &[Bytes]| u64::from_be_bytes(m[1][..].try_into().unwrap());
            assert!(n(&second) > n(&first));
        };
        tokio::select! { _ = sender => unreachable!(), _ = receiver => {} }
    }

    #[tokio::test]
    async fn hostile_bytes_end_the_connection() {
        for bytes in [
            vec![0u8; 64],
            [&greeting()[..], &[COMMAND | LONG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat(),
            [&greeting()[..], &[0xf0, 1, 1]].concat(),
            [&greeting()[..], &[COMMAND, 6], b"\x05READY"].concat(),
            [&greeting()[..], &[COMMAND, 8], b"\x05READY\xff\xff"].concat(),
            greeting(),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
            let server = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.write_all(&bytes).await;
            };
            let (_, result) = tokio::join!(server, connect(&endpoint, Role::Sub));
            assert!(result.is_err());
        }
    }

    fn greeting() -> Vec<u8> {
        let mut greeting = vec![0u8; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        greeting
    }

    #[test]
    fn endpoints() {
        assert_eq!(Endpoint::parse("tcp://a:5557").unwrap().of_rank(2), Endpoint::Tcp("a:5559".into()));
        for bad in ["", "tcp://", "tcp://a", "tcp://:1", "tcp://a:x", "udp://a:1", "ipc://"] {
            assert!(Endpoint::parse(bad).is_err(), "{bad}");
        }
    }
}
