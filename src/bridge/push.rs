//! Sends the batches to one Envoy: one POST in flight, in order, again until it is taken.
//!
//! An Envoy takes batches from one bridge at a time. Another one's is answered with 409 and the holder; this one
//! waits, and raises its term once the holder has been silent for two seconds. A bridge that was stopped and goes
//! on finds a younger holder and waits as well, so the workers never flip.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::hub::{Hub, Next, Place};
use crate::feed::FEED_PATH;
use crate::feed::slots::SlotReport;
use crate::look::SECRET_HEADER;

const POST_TIMEOUT: Duration = Duration::from_secs(3);
const TAKE_OVER_AFTER_MS: u64 = 2_000;
const MAX_DELAY: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Taken {
    #[serde(default)]
    boot: String,
    #[serde(default)]
    slots: Vec<SlotReport>,
}

#[derive(Deserialize)]
struct Held {
    holder: Holder,
    #[serde(default)]
    age_ms: u64,
}

#[derive(Deserialize)]
struct Holder {
    #[serde(default)]
    term: u64,
}

/// What one Envoy said last.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EnvoyState {
    /// Its ingest URL.
    pub url: String,
    /// This bridge leads there.
    pub leading: bool,
    /// Changes when it restarts.
    pub boot: String,
    /// Its workers.
    pub slots: Vec<SlotReport>,
    /// The last error, empty when there is none.
    pub error: String,
}

/// Counts of one sender.
#[derive(Debug, Default)]
pub struct EnvoyCounts {
    /// Batches taken.
    pub sent: AtomicU64,
    /// POSTs that failed.
    pub failed: AtomicU64,
    /// Batches that were never sent, because the Envoy was away too long.
    pub skipped: AtomicU64,
}

/// One Envoy.
pub struct Envoy {
    url: String,
    secret: String,
    state: Mutex<EnvoyState>,
    leading: AtomicBool,
    /// Counts.
    pub counts: EnvoyCounts,
}

impl Envoy {
    /// The Envoy whose ingest listener is at `url`.
    pub fn new(url: &str, secret: &str) -> Arc<Envoy> {
        let base = url.trim_end_matches('/').to_owned();
        Arc::new(Envoy {
            url: format!("{base}{FEED_PATH}"),
            secret: secret.to_owned(),
            state: Mutex::new(EnvoyState { url: base, ..EnvoyState::default() }),
            leading: AtomicBool::new(false),
            counts: EnvoyCounts::default(),
        })
    }

    /// What it said last.
    pub fn state(&self) -> EnvoyState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, change: impl FnOnce(&mut EnvoyState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let leading = state.leading;
        if self.leading.swap(leading, Ordering::Relaxed) != leading {
            let what = if leading { "leading" } else { "no longer leading" };
            tracing::info!("{}: {what}", state.url);
        }
    }

    fn failed(&self, error: String) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        self.update(|s| {
            if s.error != error {
                tracing::warn!("{}: {error}", s.url);
            }
            s.error = error;
            s.leading = false;
        });
    }

    /// Sends until it is aborted.
    pub async fn run(self: Arc<Self>, hub: Arc<Hub>, client: reqwest::Client) {
        let mut changed = hub.subscribe();
        let mut place = Place::default();
        let mut delay = Duration::from_millis(50);
        loop {
            changed.borrow_and_update();
            let frame = match hub.next(&mut place) {
                Next::Send(frame) => frame,
                Next::Wait(most) => {
                    let _ = timeout(most, changed.changed()).await;
                    continue;
                }
            };
            self.counts.skipped.store(place.skipped, Ordering::Relaxed);
            let post = client
                .post(&self.url)
                .header(SECRET_HEADER, &self.secret)
                .header("content-type", "application/octet-stream")
                .timeout(POST_TIMEOUT)
                .body(frame.bytes.clone());
            let answer = async {
                let response = post.send().await?;
                let status = response.status().as_u16();
                Ok::<_, reqwest::Error>((status, response.bytes().await?))
            };
            let pause = match answer.await {
                Ok((200, body)) => {
                    self.taken(&body, &hub, &mut place);
                    place.advance();
                    delay = Duration::from_millis(50);
                    continue;
                }
                Ok((409, body)) => self.held(&body, &hub),
                Ok((400, body)) => {
                    // It will not be taken later either: leave the hole, the workers pull.
                    self.failed(format!("batch {} refused: {}", frame.seq, text(&body)));
                    place.advance();
                    delay
                }
                Ok((401, _)) => {
                    self.failed("the secret is not the one of its ingest listener".into());
                    MAX_DELAY
                }
                Ok((status, body)) => {
                    self.failed(format!("status {status}: {}", text(&body)));
                    delay
                }
                Err(error) => {
                    self.failed(chain(&error));
                    delay
                }
            };
            sleep(pause).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    fn taken(&self, body: &[u8], hub: &Hub, place: &mut Place) {
        self.counts.sent.fetch_add(1, Ordering::Relaxed);
        let Ok(taken) = serde_json::from_slice::<Taken>(body) else {
            return self.update(|s| s.leading = true);
        };
        self.update(|s| {
            if s.boot != taken.boot && !s.boot.is_empty() {
                tracing::info!("{}: restarted", s.url);
                hub.skip_to_newest(place);
            }
            s.boot = taken.boot;
            s.slots = taken.slots;
            s.leading = true;
            s.error.clear();
        });
    }

    /// Another bridge leads there: how long to wait.
    fn held(&self, body: &[u8], hub: &Hub) -> Duration {
        self.update(|s| s.leading = false);
        let Ok(held) = serde_json::from_slice::<Held>(body) else { return MAX_DELAY };
        if held.age_ms >= TAKE_OVER_AFTER_MS {
            hub.raise_term(held.holder.term);
            return Duration::from_millis(rand::random_range(0..50));
        }
        Duration::from_millis((TAKE_OVER_AFTER_MS - held.age_ms).clamp(20, 500))
    }
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        out.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    out
}
