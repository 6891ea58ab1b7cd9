//! Requests of models in shadow mode: what would have been chosen, against what Envoy chose.
//!
//! Nothing is booked and nothing predicted: the load that a shadow would book is not where it says.

use std::rc::Rc;

use hashbrown::HashMap;

use super::host::Host;
use super::metrics::{Counter, Outcome};
use crate::routing::Receipt;

/// A request whose answer has not begun.
struct Shadow {
    pick: Rc<str>,
    /// Tokens that each of the best replicas was expected to have cached.
    matched: Vec<(Rc<str>, u64)>,
}

/// See the [module](self).
#[derive(Default)]
pub struct Shadows {
    streams: HashMap<u32, Shadow>,
}

impl Shadows {
    /// What would have become of a request of so many tokens.
    pub fn decided(&mut self, stream: u32, tokens: u64, receipt: &Receipt, host: &dyn Host) {
        let all = receipt.candidates.iter().map(|c| (Rc::from(c.address.as_str()), c.matched));
        let matched: Vec<(Rc<str>, u64)> = all.collect();
        host.count(Counter::Requests(Outcome::Shadow), 1);
        host.count(Counter::ShadowPromptTokens, tokens);
        host.count(Counter::ShadowMatchedTokens, matched.first().map_or(0, |(_, matched)| *matched));
        self.streams.insert(stream, Shadow { pick: receipt.pick.as_str().into(), matched });
    }

    /// The upstream at `address` answers.
    pub fn answered(&mut self, stream: u32, address: &str, host: &dyn Host) {
        let Some(shadow) = self.streams.remove(&stream) else { return };
        if *shadow.pick == *address {
            host.count(Counter::ShadowSame, 1);
        }
        // Of several ranks at one address the best is listed first, and that is where the engine would look.
        if let Some((_, matched)) = shadow.matched.iter().find(|(at, _)| **at == *address) {
            host.count(Counter::ShadowFoundTokens, *matched);
        }
    }

    /// A stream has ended.
    pub fn ended(&mut self, stream: u32) {
        self.streams.remove(&stream);
    }
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
