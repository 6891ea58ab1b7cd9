//! One request of the admin instance: a look inside the router VM that it shares.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, BufferType, MapType};
use serde_json::json;

use super::entry::with_router;
use super::envoy::Envoy;
use super::ingest_http::respond;
use super::look_inside;
use super::router_http::may_explain;
use super::{secret, sys};
use crate::config::Config;
use crate::look::{EXPLAIN_PATH, SECRET_HEADER, STATE_PATH};

/// The largest body that is explained; the model's own bound holds as well.
const MAX_BODY: usize = 64 << 20;

/// See the [module](self).
pub struct AdminHttp {
    host: Envoy,
    config: Rc<Config>,
    /// The path and the time that a body is to be explained for.
    explains: Option<(String, Option<u64>)>,
}

impl AdminHttp {
    /// A new stream.
    pub fn new(host: Envoy, config: Rc<Config>) -> AdminHttp {
        AdminHttp { host, config, explains: None }
    }

    fn state(&self) -> Action {
        match with_router(|router| look_inside::state(router, &self.host)) {
            Some(state) => respond(200, &serde_json::to_value(state).unwrap_or_default()),
            None => respond(503, &json!({"error": "this worker's router is not configured"})),
        }
    }

    fn explain(&self, body_size: usize) -> Action {
        let Some((path, now)) = &self.explains else { return Action::Continue };
        let body = sys::buffer(BufferType::HttpRequestBody, 0, body_size.min(MAX_BODY)).unwrap_or_default();
        match with_router(|router| look_inside::choice(router, &self.host, path, *now, &body)) {
            Some(choice) => respond(200, &serde_json::to_value(choice).unwrap_or_default()),
            None => respond(503, &json!({"error": "this worker's router is not configured"})),
        }
    }
}

impl Context for AdminHttp {}

impl HttpContext for AdminHttp {
    fn on_http_request_headers(&mut self, _headers: usize, end_of_stream: bool) -> Action {
        let header = |name| sys::header(MapType::HttpRequestHeaders, name);
        let target = String::from_utf8(header(":path").unwrap_or_default()).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        if path != STATE_PATH && path != EXPLAIN_PATH {
            return Action::Continue;
        }
        if !secret::opens(header(SECRET_HEADER).as_deref(), &self.config.secret) {
            return respond(401, &json!({"error": "wrong or no x-kvroute-secret"}));
        }
        match (path, header(":method").as_deref(), end_of_stream) {
            (STATE_PATH, Some(b"GET"), _) => self.state(),
            (EXPLAIN_PATH, ..) if !may_explain(&self.config.receipts) => {
                respond(403, &json!({"error": "receipts.allow of this instance does not have your address"}))
            }
            (EXPLAIN_PATH, Some(b"POST"), false) => {
                let asked = |name| query.split('&').find_map(|part| part.strip_prefix(name));
                let path = asked("path=").unwrap_or("/v1/chat/completions").replace("%2F", "/").replace("%2f", "/");
                self.explains = Some((path, asked("now=").and_then(|now| now.parse().ok())));
                Action::Pause
            }
            (EXPLAIN_PATH, _, _) => respond(400, &json!({"error": "POST the body of a request"})),
            _ => respond(400, &json!({"error": "GET the state"})),
        }
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        match (self.explains.is_some(), end_of_stream) {
            (false, _) => Action::Continue,
            (true, false) => Action::Pause,
            (true, true) => self.explain(body_size),
        }
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        if self.explains.is_some() { self.explain(MAX_BODY) } else { Action::Continue }
    }
}
