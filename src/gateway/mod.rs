//! Envoy, configured for kvroute and run as a child process.
//!
//! [`Gateway`] is what `kvroute up` runs: Envoy and the bridge, until a signal comes or one of them ends.
//! [`Bootstrap`] holds the choices and gives the complete bootstrap as JSON; [`Envoy`] starts a real Envoy on it,
//! waits until it is live, tells its addresses and stops it when dropped:
//!
//! ```no_run
//! use kvroute::gateway::{Bootstrap, Envoy};
//! use serde_json::json;
//!
//! let bootstrap = Bootstrap {
//!     replicas: vec!["127.0.0.1:8001".parse()?, "127.0.0.1:8002".parse()?],
//!     bridge: Some("127.0.0.1:7000".parse()?),
//!     router: json!({"models": [{"name": "qwen3", "block_size": 16}]}),
//!     ..Bootstrap::default()
//! };
//! let envoy = Envoy::start(bootstrap, 2)?;
//! println!("requests to http://{}, the bridge posts to http://{}", envoy.public(), envoy.ingest());
//! # Ok::<(), anyhow::Error>(())
//! ```

mod bootstrap;
mod filter_file;
mod http;
mod process;
mod run;
pub mod supervise;

pub use bootstrap::{Balancing, Bootstrap, Tls, default_wasm};
pub use filter_file::{find_filter, packed_filter};
pub use process::{Envoy, envoy_binary, free_address};
pub use run::{Gateway, envoy_version};

#[cfg(test)]
mod tests;
