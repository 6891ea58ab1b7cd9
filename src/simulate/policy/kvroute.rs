//! kvroute's own code: the fleet of a router VM, fed with the bytes that a bridge would send.

use std::rc::Rc;

use hashbrown::HashMap;

use super::{Policy, View};
use crate::clock::Time;
use crate::feed::sync::Pull;
use crate::replicas::{Ask, BookingId, Fleet, FleetSettings};
use crate::simulate::feed::{Delivery, MODEL, replica_of};
use crate::simulate::traffic::Call;
use crate::simulate::{Dice, Scenario};

/// See the module.
pub struct Kvroute {
    fleet: Fleet,
    block_size: u32,
    bookings: HashMap<usize, BookingId>,
    pulling: bool,
    dice: Dice,
}

impl Kvroute {
    pub fn new(scenario: &Scenario, mut dice: Dice) -> Self {
        let settings = FleetSettings { policy: scenario.policy.clone(), ..FleetSettings::default() };
        let fleet = Fleet::new(settings, dice.draw());
        Kvroute { fleet, block_size: scenario.block_size, bookings: HashMap::new(), pulling: false, dice }
    }
}

impl Policy for Kvroute {
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize {
        // As the filter does it: match, choose, complete.
        let picked = self.fleet.begin(MODEL, self.block_size).and_then(|mut matching| {
            self.fleet.push_all(&mut matching, call.prompt_chain());
            let ask = Ask { tokens: call.prompt as u64, now: view.now, ..Ask::default() };
            self.fleet.choose(&matching, &ask)
        });
        match picked {
            Ok(pick) => {
                self.bookings.insert(call.id, pick.booking);
                replica_of(&pick.best.address)
            }
            // No key: Envoy's least request.
            Err(_) => {
                let (a, b) = (self.dice.below(view.own.len()), self.dice.below(view.own.len()));
                if view.own[b] < view.own[a] { b } else { a }
            }
        }
    }

    fn first_data(&mut self, call: usize, now: Time) {
        if let Some(booking) = self.bookings.get(&call) {
            self.fleet.first_data(*booking, now);
        }
    }

    fn ended(&mut self, call: usize, now: Time) {
        if let Some(booking) = self.bookings.remove(&call) {
            self.fleet.finish(booking, true, now);
        }
    }

    fn events(&mut self, delivery: Option<&Rc<Delivery>>, now: Time) {
        if let Some(delivery) = delivery {
            self.fleet.on_frame(&delivery.frame, now);
            self.fleet.work(now, &mut || true);
        }
    }

    fn pull(&mut self, now: Time) -> Option<Pull> {
        // The scrub of one that is in step would find nothing.
        let asks = !self.pulling && !self.fleet.synced();
        let pull = if asks { self.fleet.next_pull(now) } else { None };
        self.pulling |= pull.is_some();
        pull
    }

    fn answer(&mut self, frame: &[u8], now: Time) {
        self.pulling = false;
        self.fleet.on_snapshot(frame, now);
        self.fleet.work(now, &mut || true);
    }

    fn tick(&mut self, now: Time) {
        self.fleet.work(now, &mut || true);
        self.fleet.tick(now);
    }
}
