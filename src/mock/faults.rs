//! What tests can make go wrong, and what they can look up afterwards.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

use serde::Serialize;
use tokio::sync::watch;

/// Requests that are kept for tests to look at.
const KEPT_REQUESTS: usize = 20_000;

/// One request to an API.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SeenRequest {
    /// With its query.
    pub path: String,
    /// Of the received body, in hex.
    pub body_sha256: String,
    /// Length of the received body.
    pub body_bytes: usize,
    /// The headers that have to do with routing.
    pub routing_headers: Vec<(String, String)>,
    /// Status of the answer; 0 while there is none.
    pub status: u16,
    /// Tokens of all its prompts.
    pub prompt_tokens: usize,
    /// As reported in the usage; counts only once the answer is complete.
    pub cached_tokens: usize,
}

/// Sums over all requests since the start or the last [`Faults::forget`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct RequestSums {
    /// To the APIs, refused ones included.
    pub requests: u64,
    /// Answered completely.
    pub completed: u64,
    /// Of completed requests.
    pub prompt_tokens: u64,
    /// Of completed requests.
    pub cached_tokens: u64,
}

#[derive(Debug, Default)]
struct Log {
    // Number of the first kept request.
    base: u64,
    kept: VecDeque<SeenRequest>,
    sums: RequestSums,
}

/// See the module.
#[derive(Debug)]
pub struct Faults {
    fail_next: AtomicU64,
    fail_status: AtomicU16,
    hang_next: AtomicU64,
    health: AtomicU16,
    frozen: watch::Sender<bool>,
    released: watch::Sender<u64>,
    log: Mutex<Log>,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            fail_next: AtomicU64::new(0),
            fail_status: AtomicU16::new(503),
            hang_next: AtomicU64::new(0),
            health: AtomicU16::new(200),
            frozen: watch::channel(false).0,
            released: watch::channel(0).0,
            log: Mutex::default(),
        }
    }
}

impl Faults {
    /// The next requests to an API are answered with this status.
    pub fn fail(&self, requests: u64, status: u16) {
        self.fail_status.store(status, Relaxed);
        self.fail_next.store(requests, Relaxed);
    }

    /// The next requests to an API are read and never answered, until [`Faults::release`].
    pub fn hang(&self, requests: u64) {
        self.hang_next.store(requests, Relaxed);
    }

    /// Lets hanging requests go on.
    pub fn release(&self) {
        self.hang_next.store(0, Relaxed);
        self.released.send_modify(|times| *times += 1);
    }

    /// As if the process stood still: nothing is answered any more, while its connections stay; or it goes on.
    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Waits while it stands still.
    pub async fn while_frozen(&self) {
        let _ = self.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    /// What `/health` answers.
    pub fn set_health(&self, status: u16) {
        self.health.store(status, Relaxed);
    }

    /// See [`Faults::set_health`].
    pub fn health(&self) -> u16 {
        self.health.load(Relaxed)
    }

    /// The status that this request has to fail with, if it has to.
    pub fn take_failure(&self) -> Option<u16> {
        take(&self.fail_next).then(|| self.fail_status.load(Relaxed))
    }

    /// Waits for the release when this request has to hang.
    pub async fn maybe_hang(&self) {
        let mut released = self.released.subscribe();
        if take(&self.hang_next) {
            let _ = released.changed().await;
        }
    }

    /// Notes a request; gives its number for [`Faults::update`].
    pub fn note(&self, request: SeenRequest) -> u64 {
        let mut log = self.log.lock().unwrap();
        log.sums.requests += 1;
        log.kept.push_back(request);
        if log.kept.len() > KEPT_REQUESTS {
            log.kept.pop_front();
            log.base += 1;
        }
        log.base + log.kept.len() as u64 - 1
    }

    /// Changes what was noted.
    pub fn update(&self, number: u64, change: impl FnOnce(&mut SeenRequest)) {
        let mut log = self.log.lock().unwrap();
        let base = log.base;
        if let Some(request) = number.checked_sub(base).and_then(|at| log.kept.get_mut(at as usize)) {
            change(request);
        }
    }

    /// Notes that a request was answered completely.
    pub fn complete(&self, number: u64, prompt_tokens: usize, cached_tokens: usize) {
        self.update(number, |request| request.cached_tokens = cached_tokens);
        let mut log = self.log.lock().unwrap();
        log.sums.completed += 1;
        log.sums.prompt_tokens += prompt_tokens as u64;
        log.sums.cached_tokens += cached_tokens as u64;
    }

    /// The last requests, oldest first.
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.log.lock().unwrap().kept.iter().cloned().collect()
    }

    /// See [`RequestSums`].
    pub fn sums(&self) -> RequestSums {
        self.log.lock().unwrap().sums
    }

    /// Begins the notes anew.
    pub fn forget(&self) {
        let mut log = self.log.lock().unwrap();
        log.base += log.kept.len() as u64;
        log.kept.clear();
        log.sums = RequestSums::default();
    }
}

fn take(counter: &AtomicU64) -> bool {
    counter.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
}
