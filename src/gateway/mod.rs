//! Envoy, configured for kvroute and run as a child process.
//!
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
mod http;
mod process;

pub use bootstrap::{Balancing, Bootstrap, Tls, default_wasm};
pub use process::{Envoy, envoy_binary, free_address};

#[cfg(test)]
mod tests;
