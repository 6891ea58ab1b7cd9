//! What becomes of a request that was steered: where it really went, its first data, what its answer says was cached, its
//! end.

use std::cmp::Ordering;
use std::rc::Rc;

use super::Router;
use crate::clock::Time;
use crate::filter::host::Host;
use crate::filter::metrics::Counter;
use crate::filter::sse::FirstData;
use crate::filter::usage::Usage;
use crate::replicas::{BookingId, Pick};

/// A request that was steered.
pub(super) struct Flight {
    booking: BookingId,
    /// Its prefill on another replica, until the first data.
    pub(super) prefill: Option<BookingId>,
    address: Rc<str>,
    /// Reads the answer until its first data; `None`: it is there.
    first: Option<FirstData>,
    /// Reads in the answer how much was cached, where somebody can learn from it.
    usage: Option<Usage>,
    served: bool,
}

impl Flight {
    /// Of a request that has just been sent to its pick.
    pub(super) fn of(pick: &Pick) -> Flight {
        Flight {
            booking: pick.booking,
            prefill: pick.prefill.as_ref().map(|prefill| prefill.booking),
            address: pick.best.address.clone(),
            first: Some(FirstData::default()),
            usage: None,
            served: false,
        }
    }
}

/// Of an answer, what a stream should read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Nothing more.
    Nothing,
    /// Its first bytes.
    Head,
    /// All of it.
    All,
}

/// One answer of so many is looked at in any case, for the metrics.
const SAMPLE: u64 = 16;

impl Router {
    /// The stream's answer has begun. `address` is the upstream that gives it.
    pub fn response(&mut self, stream: u32, status: u16, address: &str, streamed: bool, host: &dyn Host) {
        let Some(flight) = self.flights.get_mut(&stream) else {
            return self.shadows.answered(stream, address, host);
        };
        flight.served = status < 400;
        if !address.is_empty() && *address != *flight.address {
            host.count(Counter::Moved, 1);
            self.fleet.moved(flight.booking, address);
        }
        if flight.served && (self.fleet.learns(flight.booking) || flight.booking.0 & (SAMPLE - 1) == 0) {
            flight.usage = Some(Usage::default());
        }
        if !streamed || !flight.served {
            // A whole answer comes when everything is done; an error ends it as well.
            flight.first = None;
            self.fleet.first_data(flight.booking, host.now());
            if let Some(prefill) = flight.prefill.take() {
                self.fleet.prefilled(prefill, flight.served, host.now());
            }
        }
    }

    /// What the stream is to read of its answer.
    pub fn reads(&self, stream: u32) -> Reads {
        match self.flights.get(&stream) {
            Some(flight) if flight.usage.is_some() => Reads::All,
            Some(flight) if flight.first.is_some() => Reads::Head,
            _ => Reads::Nothing,
        }
    }

    /// The next bytes of its answer. `whole`: all that came since the last call.
    pub fn response_data(&mut self, stream: u32, bytes: &[u8], whole: bool, host: &dyn Host) {
        let Some(flight) = self.flights.get_mut(&stream) else { return };
        if let Some(usage) = &mut flight.usage {
            if !whole {
                usage.skip();
            }
            usage.push(bytes);
        }
        if flight.first.as_mut().is_some_and(|first| first.push(bytes)) {
            flight.first = None;
            self.fleet.first_data(flight.booking, host.now());
            if let Some(prefill) = flight.prefill.take() {
                self.fleet.prefilled(prefill, true, host.now());
            }
        }
    }

    /// A steered request has ended: what it came to.
    pub(super) fn landed(&mut self, stream: u32, host: &dyn Host) {
        let Some(flight) = self.flights.remove(&stream) else { return };
        if let Some(at) = self.finishing.iter().position(|f| f.booking == Some(flight.booking))
            && let Some(finishing) = self.finishing.remove(at)
        {
            self.finished(finishing);
        }
        if let Some((prompt, cached)) = flight.usage.as_ref().and_then(Usage::seen)
            && let Some(claimed) = self.fleet.found(flight.booking, prompt, cached)
        {
            host.count(Counter::ClaimsChecked, 1);
            host.count(Counter::ClaimsPromptTokens, prompt);
            host.count(Counter::ClaimsBelievedTokens, claimed);
            host.count(Counter::ClaimsFoundTokens, cached);
            match claimed.cmp(&cached) {
                Ordering::Greater => host.count(Counter::ClaimsOver, 1),
                Ordering::Less => host.count(Counter::ClaimsUnder, 1),
                Ordering::Equal => {}
            }
        }
        self.fleet.finish(flight.booking, flight.served, host.now());
        if let Some(prefill) = flight.prefill {
            self.fleet.prefilled(prefill, false, host.now());
        }
    }

    /// A pick that nothing comes of.
    pub(super) fn undo(&mut self, pick: &Pick, now: Time) {
        self.fleet.finish(pick.booking, false, now);
        if let Some(prefill) = &pick.prefill {
            self.fleet.prefilled(prefill.booking, false, now);
        }
    }
}
