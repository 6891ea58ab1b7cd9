//! Meets the workers of an Envoy. A connection belongs to one of them, so each request takes a new one, and who gets it is
//! Envoy's choice: what a worker said counts for a while, until it is met again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::facts::plain;
use crate::look::{SECRET_HEADER, STATE_PATH, WorkerState};

/// What a worker said that has not been met again since.
const KEPT: Duration = Duration::from_secs(10);
/// Requests for each worker at most, as long as there is one that was not met: where none is known yet, so many that of 64
/// workers one is missed in 100,000 looks, and afterwards fewer, since the next look meets others.
const AT_FIRST: usize = 16;
const AGAIN: usize = 3;

/// The workers of one Envoy that were met.
#[derive(Debug, Default)]
pub struct Workers {
    /// By slot; a worker without one has had no request yet.
    met: BTreeMap<Option<u32>, (Instant, WorkerState)>,
}

impl Workers {
    /// Meets them again, at the listener of the admin instance. The client must not keep connections.
    pub async fn meet(&mut self, client: &reqwest::Client, gateway: &str, secret: &str) -> Result<()> {
        let begun = Instant::now();
        self.forget();
        let each = if self.met.is_empty() { AT_FIRST } else { AGAIN };
        let url = format!("{}{STATE_PATH}", gateway.trim_end_matches('/'));
        let mut tries = 1;
        while tries > 0 {
            tries -= 1;
            let answer = client.get(&url).header(SECRET_HEADER, secret).send().await;
            let answer = answer.map_err(|error| anyhow::anyhow!("{url}: {}", plain(&error)))?;
            if answer.status() == 401 {
                bail!("{url}: 401, the secret is not the gateway's");
            }
            let text = answer.text().await?;
            let state: WorkerState =
                serde_json::from_str(&text).with_context(|| format!("{url}: no admin instance there"))?;
            let live = state.live_slots.clone();
            let first = self.met.values().all(|(at, _)| *at < begun);
            self.met.insert(state.slot, (Instant::now(), state));
            self.met.retain(|slot, _| match slot {
                Some(slot) => live.contains(slot),
                None => live.is_empty(),
            });
            if first {
                tries = live.len() * each;
            }
            let met = |slot: &u32| self.met.get(&Some(*slot)).is_some_and(|(at, _)| *at >= begun);
            if live.iter().all(met) {
                break;
            }
        }
        Ok(())
    }

    /// Takes away what is old.
    pub fn forget(&mut self) {
        self.met.retain(|_, (at, _)| at.elapsed() < KEPT);
    }

    /// What they said last, and how long ago.
    pub fn states(&self) -> impl Iterator<Item = (Duration, &WorkerState)> {
        self.met.values().map(|(at, state)| (at.elapsed(), state))
    }
}
