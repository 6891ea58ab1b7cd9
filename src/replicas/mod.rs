//! The replicas and what a router VM believes of each: membership, trust, load, predictions.
//!
//! * [`members`]: who is there. A replica is an (address, data-parallel rank); it keeps its dense local number and
//!   its column of the [index](crate::index) when another bridge renumbers everything.
//! * [`book`]: the load that this VM put on each replica, request by request, and what the other VMs say of theirs.
//! * [`predict`]: blocks that a replica is about to hold because a request was just sent there: a layer of their
//!   own, so that their expiry never takes away what an event said, nor a removal a prediction.
//! * [`peers`]: the messages by which the VMs of one Envoy tell each other of both.
//! * [`pools`]: which replica prefills for the one that answers.
//! * [`fleet`]: all of it behind one door, which is what the filter and the simulator use.

mod approx;
pub mod book;
mod choice;
pub mod fleet;
mod homes;
pub mod members;
pub mod peers;
pub mod pools;
pub mod predict;
pub mod stats;
mod words;
mod world;

pub use book::BookingId;
pub use fleet::{Ask, Fleet, FleetSettings, Matching, Pick, Target};
#[cfg(not(target_family = "wasm"))]
pub(crate) use homes::Homes;
pub use members::{ReplicaIdx, ReplicaKey, StaticReplica};

#[cfg(test)]
mod tests;
