//! A stand-in for an inference engine, good enough to judge routing by.

pub mod events;
mod msgpack;
mod pool;
pub mod scheduler;

pub use pool::FreeOrder;
