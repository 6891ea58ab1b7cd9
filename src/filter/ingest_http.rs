//! One request of the ingest listener: `POST /kvroute/v1/feed`.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, BufferType, MapType};
use serde_json::json;

use super::entry::random;
use super::envoy::Envoy;
use super::host::Host;
use super::{secret, sys};
use crate::config::Config;
use crate::feed::FEED_PATH;
use crate::feed::slots::boot_id;
use crate::feed::slots::ingest::{Answer, IngestLimits, take_batch};
use crate::look::SECRET_HEADER;

/// The largest batch.
const MAX_BATCH: usize = 32 << 20;

/// See the [module](self).
pub struct IngestHttp {
    host: Envoy,
    config: Rc<Config>,
    ours: bool,
}

impl IngestHttp {
    /// A new stream.
    pub fn new(host: Envoy, config: Rc<Config>) -> IngestHttp {
        IngestHttp { host, config, ours: false }
    }

    fn take(&self, body_size: usize) -> Action {
        let frame = sys::buffer(BufferType::HttpRequestBody, 0, body_size.min(MAX_BATCH)).unwrap_or_default();
        let limits = IngestLimits { batches: self.config.limits.max_backlog, ..IngestLimits::default() };
        match take_batch(&self.host, &frame, limits, self.host.now()) {
            Answer::Taken(slots) => {
                let boot = boot_id(&self.host, random()).unwrap_or(0);
                respond(200, &json!({"boot": format!("{boot:016x}"), "slots": slots}))
            }
            Answer::Bad(error) => respond(400, &json!({"error": error.to_string()})),
            Answer::Held { holder, age_ms } => {
                let holder = json!({"term": holder.term, "epoch": format!("{:016x}", holder.id)});
                respond(409, &json!({"holder": holder, "age_ms": age_ms}))
            }
            Answer::Failed => respond(503, &json!({"error": "the host refused"})),
        }
    }
}

/// Answers with JSON.
pub fn respond(status: u32, body: &serde_json::Value) -> Action {
    sys::respond(status, "application/json", body.to_string().as_bytes());
    Action::Pause
}

impl Context for IngestHttp {}

impl HttpContext for IngestHttp {
    fn on_http_request_headers(&mut self, _headers: usize, end_of_stream: bool) -> Action {
        let header = |name| sys::header(MapType::HttpRequestHeaders, name);
        let path = header(":path").unwrap_or_default();
        if path.split(|b| *b == b'?').next() != Some(FEED_PATH.as_bytes()) {
            return Action::Continue;
        }
        if !secret::opens(header(SECRET_HEADER).as_deref(), &self.config.secret) {
            return respond(401, &json!({"error": "wrong or no x-kvroute-secret"}));
        }
        if header(":method").as_deref() != Some(b"POST") || end_of_stream {
            return respond(400, &json!({"error": "POST a batch"}));
        }
        self.ours = true;
        Action::Pause
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        match (self.ours, end_of_stream) {
            (false, _) => Action::Continue,
            (true, false) => Action::Pause,
            (true, true) => self.take(body_size),
        }
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        if self.ours { self.take(MAX_BATCH) } else { Action::Continue }
    }
}
