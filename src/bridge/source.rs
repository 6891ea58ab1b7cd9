//! The sockets of one stream: follows the publisher, asks for replays.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use super::replica::Replica;
use super::stream::{Input, Step};
use super::zmtp::{self, Connection, Endpoint, Role};

const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(2);
/// Between two messages of a replay; engines look at the replay socket every 100 ms at least.
const REPLAY_SILENCE: Duration = Duration::from_secs(5);
const REPLAY_TOTAL: Duration = Duration::from_secs(60);
/// An engine whose replay socket fails is not asked for each gap.
const REPLAY_PAUSE: Duration = Duration::from_secs(1);

/// Where the messages come from.
#[derive(Clone, Debug)]
pub struct Source {
    /// Connect there, or listen here.
    pub events: Endpoint,
    /// The engine connects to us.
    pub bind: bool,
    /// Topic prefix.
    pub topic: String,
    /// The engine's replay socket.
    pub replay: Option<Endpoint>,
}

/// Runs until it is aborted.
pub async fn run(source: Source, replica: Arc<Replica>) {
    let mut follower = Follower { source, replica, replay_failed: None };
    if follower.source.bind {
        follower.listen().await;
    } else {
        follower.dial().await;
    }
}

struct Follower {
    source: Source,
    replica: Arc<Replica>,
    replay_failed: Option<Instant>,
}

impl Follower {
    async fn dial(&mut self) {
        let mut delay = FIRST_DELAY;
        loop {
            match zmtp::connect(&self.source.events, Role::Sub).await {
                Ok(connection) => {
                    let since = Instant::now();
                    let end = self.follow(connection).await;
                    // One that ends at once, again and again, is no better than none.
                    if since.elapsed() > MAX_DELAY {
                        delay = FIRST_DELAY;
                    }
                    tracing::debug!("{}: {} ended: {end}", self.replica.spec.name, self.source.events);
                }
                Err(error) => {
                    tracing::debug!("{}: {}: {error}", self.replica.spec.name, self.source.events);
                }
            }
            // Lets the state say that there is no connection.
            self.replica.with(|_, _| ());
            sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    async fn listen(&mut self) {
        let Endpoint::Tcp(address) = self.source.events.clone() else { return };
        loop {
            let listener = match TcpListener::bind(&address).await {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!("{}: cannot listen on {address}: {error}", self.replica.spec.name);
                    sleep(MAX_DELAY).await;
                    continue;
                }
            };
            let mut next = None;
            loop {
                let connection = match next.take() {
                    Some(connection) => connection,
                    None => zmtp::accept(&listener, Role::Sub).await,
                };
                let Ok(connection) = connection else {
                    sleep(FIRST_DELAY).await;
                    continue;
                };
                // A restarted engine may connect before the old connection is known to be dead.
                tokio::select! {
                    _ = self.follow(connection) => {}
                    newer = zmtp::accept(&listener, Role::Sub) => {
                        self.replica.take(Input::Disconnected);
                        next = Some(newer);
                    }
                }
            }
        }
    }

    async fn follow(&mut self, mut connection: Connection) -> std::io::Error {
        if let Err(error) = connection.subscribe(&self.source.topic).await {
            return error;
        }
        self.replica.take(Input::Connected);
        let from = self.replica.with(|stream, _| stream.replay_from());
        self.replay(from).await;
        let end = loop {
            match connection.receive().await {
                Ok(message) => self.message(&message).await,
                Err(error) => break error,
            }
        };
        self.replica.take(Input::Disconnected);
        end
    }

    async fn message(&mut self, message: &[Bytes]) {
        let Some((seq, payload)) = parts(message) else {
            self.replica.take(Input::BadMessage);
            return;
        };
        let replayable =
            self.source.replay.is_some() && self.replay_failed.is_none_or(|at| at.elapsed() > REPLAY_PAUSE);
        let step = self.replica.take(Input::Live { seq, payload, replayable });
        if let Step::Replay(from) = step {
            self.replay(from).await;
            self.replica.take(Input::Live { seq, payload, replayable: false });
        }
    }

    /// Asks for all messages from `from` on, and anew when they show a restart.
    async fn replay(&mut self, from: u64) {
        let Some(endpoint) = self.source.replay.clone() else { return };
        let mut from = Some(from);
        for _ in 0..3 {
            let Some(start) = from.take() else { break };
            self.replica.take(Input::ReplayBegins);
            let (mut again, complete) = match timeout(REPLAY_TOTAL, self.replay_once(&endpoint, start)).await {
                Ok(Ok(again)) => (again, true),
                Ok(Err(error)) => {
                    tracing::warn!("{}: replay from {endpoint} failed: {error}", self.replica.spec.name);
                    (None, false)
                }
                Err(_) => (None, false),
            };
            self.replay_failed = (!complete).then(Instant::now);
            if again.is_none()
                && let Step::Replay(start) = self.replica.take(Input::ReplayEnds { complete })
            {
                again = Some(start);
            }
            from = again;
        }
    }

    async fn replay_once(&self, endpoint: &Endpoint, from: u64) -> std::io::Result<Option<u64>> {
        let mut connection = zmtp::connect(endpoint, Role::Dealer).await?;
        connection.send(&[b"", &from.to_be_bytes()]).await?;
        loop {
            let message = timeout(REPLAY_SILENCE, connection.receive())
                .await
                .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
            match parts(&message) {
                Some((u64::MAX, _)) => return Ok(None),
                Some((seq, payload)) => {
                    let step = self.replica.take(Input::Replayed { seq, payload });
                    if let Step::Replay(start) = step {
                        return Ok(Some(start));
                    }
                }
                None => {
                    self.replica.take(Input::BadMessage);
                }
            }
        }
    }
}

/// Number and payload: the last two frames. Before them a topic may stand, and in replays an empty frame.
fn parts(message: &[Bytes]) -> Option<(u64, &Bytes)> {
    let [.., seq, payload] = message else { return None };
    Some((u64::from_be_bytes(seq[..].try_into().ok()?), payload))
}
