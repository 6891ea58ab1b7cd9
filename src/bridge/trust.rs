//! How far the events of one stream can be trusted: a pure state machine. Times are milliseconds of any clock.
//!
//! | state | reason |
//! |---|---|
//! | exact | `complete`: every event since the engine's start, or since it cleared its cache, was seen |
//! | catching up | `starting`, `replaying`; `joined_late`: what was stored before is unknown and no replay told it; `gap`: messages were lost for good, and blocks from before are unconfirmed; `gap_outlived`: those are gone, but blocks of the gap are unknown |
//! | stale | `disconnected`, `silent` (tokens are computed, nothing is announced), or what its cache says of itself |
//! | no events | `no_endpoint`, `unreachable`, `never_published` (it serves, and has not published once), `block_size_mismatch` |

use crate::feed::record::Trust;

/// A source that was never reached is given up for now after so long.
const UNREACHABLE_AFTER: u64 = 10_000;
/// A connection that ended is awaited so long before the state says so.
const DISCONNECTED_AFTER: u64 = 1_000;
/// So long may an engine serve and say nothing.
const SILENT_AFTER: u64 = 20_000;
/// Uncached tokens that must have made blocks, as many as this times the block size.
const SILENT_BLOCKS: u64 = 64;

/// What is missing of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Missing {
    /// Not known yet.
    #[default]
    Unknown,
    Nothing,
    /// What came before it was joined.
    Past,
    /// Something in between, not repaired.
    Gap,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct TrustMachine {
    has_endpoint: bool,
    started: u64,
    connected: bool,
    ever_connected: bool,
    disconnected_at: u64,
    replaying: bool,
    missing: Missing,
    published: bool,
    /// Since when the engine serves without a word; its counters then.
    quiet: Option<(u64, u64)>,
    silent: bool,
    tokens: Option<u64>,
}

/// What an engine's metrics say about its traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Requests in its batch.
    pub running: u32,
    /// Prompt tokens that were not in its cache, counted up.
    pub uncached_tokens: u64,
    /// Prompt tokens of all kinds, counted up.
    pub tokens: u64,
}

/// What the cache knows of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheFacts {
    /// See [`super::cache::Cache::not_exact`].
    pub not_exact: Option<&'static str>,
    /// The engine's block size is not the configured one.
    pub refused: bool,
    /// Blocks known only from before a gap.
    pub unconfirmed: bool,
    /// Tokens per block.
    pub block_size: u32,
}

impl TrustMachine {
    /// A stream that begins at `now`; without an endpoint there is none.
    pub fn new(has_endpoint: bool, now: u64) -> Self {
        TrustMachine {
            has_endpoint,
            started: now,
            connected: false,
            ever_connected: false,
            disconnected_at: now,
            replaying: false,
            missing: Missing::Unknown,
            published: false,
            quiet: None,
            silent: false,
            tokens: None,
        }
    }

    /// There is an endpoint after all: the engine named it.
    pub fn announced(&mut self, now: u64) {
        if !self.has_endpoint {
            (self.has_endpoint, self.started) = (true, now);
        }
    }

    /// The connection came up.
    pub fn connected(&mut self) {
        (self.connected, self.ever_connected) = (true, true);
    }

    /// The connection ended.
    pub fn disconnected(&mut self, now: u64) {
        if self.connected {
            self.disconnected_at = now;
        }
        (self.connected, self.replaying) = (false, false);
    }

    /// Missed messages are being asked for.
    pub fn replay_begins(&mut self) {
        self.replaying = true;
    }

    /// The replay is over, whatever it gave.
    pub fn replay_ends(&mut self) {
        self.replaying = false;
    }

    /// A message was applied.
    pub fn message(&mut self) {
        (self.published, self.silent, self.quiet) = (true, false, None);
    }

    /// Every message since the engine's start is known, or the engine cleared its cache.
    pub fn complete(&mut self) {
        self.missing = Missing::Nothing;
    }

    /// The first message that was seen is not the first one of the stream, and nothing told the rest. It counts as well
    /// where a replay had said that there is nothing yet: that was before the messages which are missing.
    pub fn joined_late(&mut self) {
        if self.missing != Missing::Gap {
            self.missing = Missing::Past;
        }
    }

    /// Messages were lost for good.
    pub fn gap(&mut self) {
        self.missing = Missing::Gap;
    }

    /// The engine began anew.
    pub fn restarted(&mut self) {
        (self.missing, self.published, self.silent, self.quiet) = (Missing::Unknown, false, false, None);
        self.tokens = None;
    }

    /// Whether events that told of blocks are missing.
    pub fn partial(&self) -> bool {
        self.missing != Missing::Nothing
    }

    /// Whether anything is missing, for a checkpoint: 0 nothing, 1 the past, 2 a gap.
    pub fn save(&self) -> u8 {
        match self.missing {
            Missing::Nothing => 0,
            Missing::Past | Missing::Unknown => 1,
            Missing::Gap => 2,
        }
    }

    /// Goes on from a checkpoint.
    pub fn restore(&mut self, missing: u8) {
        self.published = true;
        self.missing = match missing {
            0 => Missing::Nothing,
            1 => Missing::Past,
            _ => Missing::Gap,
        };
    }

    /// A reading of the engine's metrics.
    pub fn traffic(&mut self, traffic: Traffic, block_size: u32, now: u64) {
        let before = self.tokens.replace(traffic.tokens);
        let serves = traffic.running > 0 || before.is_some_and(|b| traffic.tokens > b);
        let (since, base) = match self.quiet {
            Some((since, base)) if traffic.uncached_tokens >= base => (since, base),
            _ if serves || before.is_none() => (now, traffic.uncached_tokens),
            _ => return,
        };
        let computed = traffic.uncached_tokens - base;
        // Repeated prompts announce nothing, so only computed tokens prove silence of one that has published, and its
        // time counts from when there are enough of them.
        let blocks = SILENT_BLOCKS * u64::from(block_size.max(1));
        let since = if self.published && computed < blocks { now } else { since };
        self.quiet = Some((since, base));
        let proven = if self.published { computed >= blocks } else { serves || computed > 0 };
        if proven && now.saturating_sub(since) >= SILENT_AFTER {
            self.silent = true;
        }
    }

    /// The state, and why.
    pub fn trust(&self, facts: CacheFacts, now: u64) -> (Trust, &'static str) {
        if facts.refused {
            return (Trust::NoEvents, "block_size_mismatch");
        }
        if !self.has_endpoint {
            return (Trust::NoEvents, "no_endpoint");
        }
        if !self.ever_connected && now.saturating_sub(self.started) >= UNREACHABLE_AFTER {
            return (Trust::NoEvents, "unreachable");
        }
        if self.silent {
            return if self.published { (Trust::Stale, "silent") } else { (Trust::NoEvents, "never_published") };
        }
        if self.ever_connected && !self.connected && now.saturating_sub(self.disconnected_at) >= DISCONNECTED_AFTER {
            return (Trust::Stale, "disconnected");
        }
        if self.replaying {
            return (Trust::CatchingUp, "replaying");
        }
        match self.missing {
            Missing::Gap if facts.unconfirmed => (Trust::CatchingUp, "gap"),
            Missing::Gap => (Trust::CatchingUp, "gap_outlived"),
            Missing::Unknown => (Trust::CatchingUp, "starting"),
            Missing::Past => (Trust::CatchingUp, "joined_late"),
            Missing::Nothing => match facts.not_exact {
                Some(reason) => (Trust::Stale, reason),
                None => (Trust::Exact, "complete"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> CacheFacts {
        CacheFacts { block_size: 16, ..CacheFacts::default() }
    }

    fn served(tokens: u64) -> Traffic {
        Traffic { running: 1, uncached_tokens: tokens, tokens }
    }

    #[test]
    fn from_start_to_exact_and_back() {
        let mut t = TrustMachine::new(true, 0);
        assert_eq!(t.trust(facts(), 0), (Trust::CatchingUp, "starting"));
        assert_eq!(t.trust(facts(), 10_000), (Trust::NoEvents, "unreachable"));
        t.connected();
        t.replay_begins();
        assert_eq!(t.trust(facts(), 11_000), (Trust::CatchingUp, "replaying"));
        t.replay_ends();
        t.complete();
        assert_eq!(t.trust(facts(), 11_000), (Trust::Exact, "complete"));
        t.disconnected(12_000);
        assert_eq!(t.trust(facts(), 12_500), (Trust::Exact, "complete"));
        assert_eq!(t.trust(facts(), 13_000), (Trust::Stale, "disconnected"));
        t.connected();
        t.gap();
        assert_eq!(t.trust(CacheFacts { unconfirmed: true, ..facts() }, 0), (Trust::CatchingUp, "gap"));
        assert_eq!(t.trust(facts(), 0), (Trust::CatchingUp, "gap_outlived"));
        t.joined_late();
        assert_eq!(t.trust(facts(), 0), (Trust::CatchingUp, "gap_outlived"));
        t.complete();
        assert_eq!(t.trust(facts(), 0).0, Trust::Exact);
        t.joined_late();
        assert_eq!(t.trust(facts(), 0), (Trust::CatchingUp, "joined_late"));
        t.complete();
        assert_eq!(t.trust(CacheFacts { refused: true, ..facts() }, 0).1, "block_size_mismatch");
    }

    #[test]
    fn an_endpoint_that_the_engine_names_counts() {
        let mut t = TrustMachine::new(false, 0);
        assert_eq!(t.trust(facts(), 50_000), (Trust::NoEvents, "no_endpoint"));
        t.announced(50_000);
        assert_eq!(t.trust(facts(), 50_000), (Trust::CatchingUp, "starting"));
    }

    #[test]
    fn an_engine_that_serves_and_never_publishes_is_noticed_within_30_seconds() {
        let mut t = TrustMachine::new(true, 0);
        t.connected();
        t.complete();
        let noticed = (0..).map(|s| s * 1000).find(|now| {
            t.traffic(served(now / 10), 16, *now);
            t.trust(facts(), *now) == (Trust::NoEvents, "never_published")
        });
        assert!(noticed <= Some(30_000), "{noticed:?}");
        t.message();
        assert_eq!(t.trust(facts(), 40_000).0, Trust::Exact);
    }

    #[test]
    fn silence_needs_computed_tokens_once_it_has_published() {
        let mut t = TrustMachine::new(true, 0);
        t.connected();
        t.complete();
        t.message();
        // Only hits: tokens flow, none is computed.
        for s in 0..100u64 {
            t.traffic(Traffic { running: 1, uncached_tokens: 500, tokens: s * 1000 }, 16, s * 1000);
        }
        assert_eq!(t.trust(facts(), 100_000).0, Trust::Exact);
        for s in 100..130u64 {
            t.traffic(served(1_000_000 + s * 1000), 16, s * 1000);
            // What it computes after all the hits may still be told: since the last of them, at 99.
            assert!(s >= 119 || t.trust(facts(), s * 1000).0 == Trust::Exact, "{s}");
        }
        assert_eq!(t.trust(facts(), 130_000), (Trust::Stale, "silent"));
        // An idle engine may be silent.
        let mut idle = TrustMachine::new(true, 0);
        idle.connected();
        idle.complete();
        for s in 0..100u64 {
            idle.traffic(Traffic { running: 0, uncached_tokens: 7, tokens: 7 }, 16, s * 1000);
        }
        assert_eq!(idle.trust(facts(), 100_000).0, Trust::Exact);
    }
}
