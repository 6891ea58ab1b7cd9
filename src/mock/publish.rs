//! KV events over ZMQ: a PUB socket, and a ROUTER socket that sends the last batches again.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::Bytes;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::events::{Encoder, Event, Wire};

/// The sequence number of the message that ends a replay.
const END_OF_REPLAY: u64 = u64::MAX;

type Buffer = Mutex<VecDeque<(u64, Bytes)>>;

/// Numbers, publishes and keeps batches.
pub struct Publisher {
    socket: PubSocket,
    encoder: Encoder,
    topic: Bytes,
    next_seq: u64,
    keep: usize,
    buffer: Arc<Buffer>,
    drop_next: u64,
    drop_from_replay: bool,
}

/// Where a `Publisher` can be reached.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Of the PUB socket, `tcp://ip:port`.
    pub events: String,
    /// Of the ROUTER socket.
    pub replay: String,
}

impl Publisher {
    /// Binds both sockets; port 0 takes a free one. Must run inside a tokio runtime, which then serves replays.
    pub async fn bind(
        host: IpAddr,
        ports: (u16, u16),
        encoder: Encoder,
        topic: &str,
        keep: usize,
    ) -> anyhow::Result<(Publisher, Endpoints)> {
        let mut socket = PubSocket::new();
        let events = bind(&mut socket, host, ports.0).await?;
        let mut router = RouterSocket::new();
        let replay = bind(&mut router, host, ports.1).await?;
        let buffer = Arc::new(Buffer::default());
        let topic = Bytes::copy_from_slice(topic.as_bytes());
        tokio::spawn(serve_replays(router, buffer.clone(), (encoder.wire == Wire::Map).then(|| topic.clone())));
        let publisher =
            Publisher { socket, encoder, topic, next_seq: 0, keep, buffer, drop_next: 0, drop_from_replay: false };
        Ok((publisher, Endpoints { events, replay }))
    }

    /// Sends the events of one step as one batch; no events, no batch.
    pub async fn publish(&mut self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let payload = Bytes::from(self.encoder.batch(now, events));
        let seq = self.next_seq;
        self.next_seq += 1;
        let dropped = self.drop_next > 0;
        self.drop_next = self.drop_next.saturating_sub(1);
        if !(dropped && self.drop_from_replay) {
            let mut batches = self.buffer.lock().unwrap();
            batches.push_back((seq, payload.clone()));
            while batches.len() > self.keep {
                batches.pop_front();
            }
        }
        if !dropped {
            let message = message([self.topic.clone(), seq_frame(seq), payload]);
            if let Err(error) = self.socket.send(message).await {
                tracing::warn!("a batch of events could not be sent: {error}");
            }
        }
    }

    /// The next batches get their numbers but do not reach subscribers; nor replays, when `from_replay`.
    pub fn drop_next(&mut self, batches: u64, from_replay: bool) {
        self.drop_next = batches;
        self.drop_from_replay = from_replay;
    }

    /// As after a restart of the engine's process: numbers begin at 0, nothing is there to be replayed.
    pub fn restart(&mut self) {
        self.next_seq = 0;
        self.buffer.lock().unwrap().clear();
    }

    /// The number of the next batch.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }
}

async fn bind(socket: &mut impl Socket, host: IpAddr, port: u16) -> anyhow::Result<String> {
    let wanted = match host {
        IpAddr::V4(ip) => format!("tcp://{ip}:{port}"),
        IpAddr::V6(ip) => format!("tcp://[{ip}]:{port}"),
    };
    let endpoint = socket.bind(&wanted).await.with_context(|| format!("cannot bind {wanted}"))?;
    Ok(endpoint.to_string())
}

/// Answers `[identity, "", first seq]` with one message a batch and an end marker.
async fn serve_replays(mut router: RouterSocket, buffer: Arc<Buffer>, topic: Option<Bytes>) {
    loop {
        let request = match router.recv().await {
            Ok(request) => request.into_vec(),
            Err(_) => {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                continue;
            }
        };
        let (Some(identity), Some(start)) = (request.first(), request.last()) else { continue };
        let Ok(start) = <[u8; 8]>::try_from(start.as_ref()) else { continue };
        let start = u64::from_be_bytes(start);
        let batches: Vec<(u64, Bytes)> =
            buffer.lock().unwrap().iter().filter(|(seq, _)| *seq >= start).cloned().collect();
        let end = [(END_OF_REPLAY, Bytes::new())];
        for (seq, payload) in batches.into_iter().chain(end) {
            let frames = [identity.clone(), Bytes::new()].into_iter().chain(topic.clone());
            if router.send(message(frames.chain([seq_frame(seq), payload]))).await.is_err() {
                break;
            }
        }
    }
}

fn seq_frame(seq: u64) -> Bytes {
    Bytes::copy_from_slice(&seq.to_be_bytes())
}

fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}
