//! The choice: a cost for each replica, in tokens of prefill, and the replicas in the order of it.
//!
//! *In*: one [`Candidate`] per replica (matched tokens, load, trust) and the [`Policy`]. *Out*: a ranking, and on
//! request the [`Receipt`] that shows how it came about. Pure arithmetic: the same input and seed give the same
//! ranking, any input gives finite costs, more load never raises a rank and more matched blocks never lower it.
//!
//! ```
//! use kvroute::routing::{Candidate, Policy, Request, rank};
//! let policy = Policy::default();
//! let warm = Candidate { matched: 4096.0, ..Candidate::default() };
//! let cold = Candidate::default();
//! let request = Request { tokens: 5000.0, seed: 1, ..Request::default() };
//! assert_eq!(rank(&policy, &request, &[cold, warm], 1)[0].candidate, 1);
//! ```

mod cost;
mod policy;
mod receipt;
mod wants;

pub use cost::{Candidate, Request, Scored, last_token_cap, rank};
pub use policy::Policy;
pub use receipt::{CandidateReceipt, Line, Mode, PrefillReceipt, Reason, Receipt, Spent};
pub use wants::{Lesson, Wants, taught};

#[cfg(test)]
mod tests;
