//! One request of the public listener.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, BufferType, MapType};
use serde_json::json;

use super::accounts::EXPLAIN_HEADER;
use super::entry::{Ticker, with_router};
use super::envoy::Envoy;
use super::host::Host;
use super::ingest_http::respond;
use super::metrics::Counter;
use super::models::Setup;
use super::router::{Reads, Submitted};
use super::steer::PREFILL_HEADER;
use super::{secret, sys};
use crate::config::Receipts;
use crate::look::SECRET_HEADER;
use crate::nokey::{NoKey, NoKeyReason};
use crate::request::Api;
use crate::request::salt;

/// Of an answer, what is looked at in one piece for its first data.
const PEEK: usize = 4 << 10;
/// And for the counts of its usage, which stand near its end.
const PIECE: usize = 64 << 10;

/// What Envoy may read off a connection at once. It answers 413 where a filter holds a body and what is held,
/// the piece that just came included, exceeds its buffer limit, so of a body of unknown length only so much is
/// held that one more read still fits.
const ONE_READ: usize = 8 << 20;

/// Room for the salt of a tenant in Envoy's buffer.
const SALT_ROOM: usize = 4 << 10;

/// Whether explain may be asked for from where the stream comes.
pub fn may_explain(receipts: &Receipts) -> bool {
    let peer = || sys::property(&["source", "address"]).unwrap_or_default();
    receipts.allow.is_empty() || std::str::from_utf8(&peer()).is_ok_and(|peer| receipts.allow.have(peer))
}

/// Where the request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It goes through untouched, or has been decided.
    Passing,
    /// Its body is awaited.
    Buffering(Api),
    /// It waits for the choice.
    Held,
}

/// See the [module](self).
pub struct RouterHttp {
    id: u32,
    host: Envoy,
    setup: Rc<Setup>,
    ticker: Ticker,
    phase: Phase,
    length_known: bool,
    /// What the gateway says of the tenant.
    tenant: Option<Vec<u8>>,
    /// The router remembers something of this stream, until it ends.
    known: bool,
}

impl RouterHttp {
    /// A new stream.
    pub fn new(id: u32, host: Envoy, setup: Rc<Setup>, ticker: Ticker) -> RouterHttp {
        RouterHttp { id, host, setup, ticker, phase: Phase::Passing, length_known: false, tenant: None, known: false }
    }

    fn begin(&mut self, end_of_stream: bool) -> Result<Api, NoKeyReason> {
        let header = |name| sys::header(MapType::HttpRequestHeaders, name).unwrap_or_default();
        // HTTP/2 may bring any bytes, in the query too: they must not hide a prompt from the filter.
        let path = header(":path");
        let api = Api::from_path(&String::from_utf8_lossy(&path), &self.setup.config.paths);
        let not_ours = || NoKeyReason::new(NoKey::NotOurPath, "no prompt comes by this path");
        let api = api.filter(|_| header(":method") == b"POST").ok_or_else(not_ours)?;
        if end_of_stream {
            return Err(NoKeyReason::new(NoKey::BadRequest, "there is no body"));
        }
        if let Some(name) = &self.setup.config.tenant_salt.header {
            self.tenant = sys::header(MapType::HttpRequestHeaders, name).filter(|salt| !salt.is_empty());
        }
        let length = header("content-length");
        let length = std::str::from_utf8(&length).ok().and_then(|l| l.trim().parse::<u64>().ok());
        self.length_known = length.is_some();
        self.fits(length.unwrap_or(0))?;
        Ok(api)
    }

    /// Whether the request asks for a receipt and may have one. The secret goes no further.
    fn asks_for_receipt(&self) -> bool {
        let config = &self.setup.config;
        if !config.receipts.explain {
            return false;
        }
        let header = |name| sys::header(MapType::HttpRequestHeaders, name);
        let (asked, given) = (header(EXPLAIN_HEADER), header(SECRET_HEADER));
        for (name, there) in [(EXPLAIN_HEADER, asked.is_some()), (SECRET_HEADER, given.is_some())] {
            if there {
                sys::remove_header(MapType::HttpRequestHeaders, name);
            }
        }
        asked.as_deref() == Some(b"1")
            && secret::opens(given.as_deref(), &config.secret)
            && may_explain(&config.receipts)
    }

    fn fits(&self, bytes: u64) -> Result<(), NoKeyReason> {
        let limits = &self.setup.config.limits;
        let room = if self.must_salt() { SALT_ROOM } else { 0 };
        let headroom = room + if self.length_known { 0 } else { ONE_READ };
        let most = limits.max_inspect_bytes.min(limits.buffer_limit_bytes.saturating_sub(headroom)) as u64;
        if bytes > most || most == 0 {
            let detail =
                format!("{bytes} bytes; held are at most {most}: limits.max_inspect_bytes, limits.buffer_limit_bytes");
            return Err(NoKeyReason::new(NoKey::BodyTooLarge, detail));
        }
        Ok(())
    }

    /// Whether the request must not go on without the salt of its tenant.
    fn must_salt(&self) -> bool {
        self.tenant.is_some() && self.setup.config.tenant_salt.write
    }

    /// The body with the salt of its tenant; written where it must be.
    fn salt(&mut self, body: Vec<u8>, body_size: usize) -> Result<Vec<u8>, NoKeyReason> {
        let Some(tenant) = &self.tenant else { return Ok(body) };
        let salted = salt::of_tenant(&body, tenant)?;
        if self.must_salt() {
            let length = salted.len().to_string();
            let written = sys::set_buffer(BufferType::HttpRequestBody, body_size, &salted)
                && (!self.length_known || sys::set_header(MapType::HttpRequestHeaders, "content-length", &length));
            if !written {
                return Err(NoKeyReason::new(NoKey::HostError, "cache_salt of the tenant: the body cannot be written"));
            }
            // It may go on now, with a key or without.
            self.tenant = None;
        }
        self.host.count(Counter::Salted, 1);
        Ok(salted)
    }

    /// Answers a request whose salt cannot be written.
    fn refuse(&mut self, reason: &NoKeyReason) -> Action {
        let status = match reason.kind {
            NoKey::BodyTooLarge if !self.length_known => 411,
            NoKey::BodyTooLarge => 413,
            NoKey::BadRequest => 400,
            _ => 503,
        };
        self.host.count(Counter::SaltRefused, 1);
        let message = format!("the gateway cannot set cache_salt: {}", reason.detail);
        respond(status, &json!({"error": {"message": message, "type": reason.kind.label(), "code": status}}))
    }

    fn pass(&mut self, reason: &NoKeyReason) -> Action {
        self.phase = Phase::Passing;
        self.known |= self.setup.config.selection.outcome_header.is_some();
        with_router(|router| router.pass(self.id, &self.setup, reason, &self.host));
        if self.must_salt() { self.refuse(reason) } else { Action::Continue }
    }

    /// The body is complete.
    fn submit(&mut self, api: Api, body_size: usize) -> Action {
        let (id, host) = (self.id, self.host);
        let began = host.now();
        self.known = true;
        let setup = self.setup.clone();
        let submitted = with_router(|router| {
            let admitted = router.admit(&setup, body_size, &host);
            let busy = admitted.is_err();
            // What gets no key may still need its salt: that takes a copy or two.
            let copies = host.memory_used().saturating_add(body_size.saturating_mul(3));
            if busy && !(self.must_salt() && copies < setup.config.limits.memory_bytes) {
                return admitted.map(|()| Submitted::Pass);
            }
            let body = sys::buffer(BufferType::HttpRequestBody, 0, body_size)
                .ok_or_else(|| NoKeyReason::new(NoKey::HostError, "the body could not be read"))?;
            let body = self.salt(body, body_size)?;
            admitted?;
            let submitted = router.submit(id, setup, api, body, began, &host);
            if let Some(tick) = router.call_again(&host) {
                self.ticker.every(tick);
            }
            Ok(submitted)
        });
        match submitted {
            Some(Ok(Submitted::Held)) => {
                self.phase = Phase::Held;
                Action::Pause
            }
            Some(Ok(Submitted::Pass)) => {
                self.phase = Phase::Passing;
                Action::Continue
            }
            Some(Err(reason)) => self.pass(&reason),
            None => self.pass(&NoKeyReason::new(NoKey::Internal, "the VM is not configured")),
        }
    }
}

impl Context for RouterHttp {}

/// The stream has ended, in whatever way. Not by `on_done` or `on_log`, which packing takes out.
impl Drop for RouterHttp {
    fn drop(&mut self) {
        if self.known {
            with_router(|router| router.ended(self.id, &self.host));
        }
    }
}

impl HttpContext for RouterHttp {
    fn on_http_request_headers(&mut self, _headers: usize, end_of_stream: bool) -> Action {
        if let Some(name) = &self.setup.config.test.trap_header
            && sys::header(MapType::HttpRequestHeaders, name).is_some()
        {
            core::arch::wasm32::unreachable();
        }
        // Whatever the filters before this one leave: it would make an engine ask any host.
        sys::remove_header(MapType::HttpRequestHeaders, PREFILL_HEADER);
        let asks = self.asks_for_receipt();
        self.known |= asks;
        with_router(|router| {
            router.on_request(&self.host);
            if asks {
                router.accounts.ask(self.id);
            }
        });
        match self.begin(end_of_stream) {
            Ok(api) => {
                self.phase = Phase::Buffering(api);
                // The route must not be chosen before the body was looked at.
                Action::Pause
            }
            Err(reason) => self.pass(&reason),
        }
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        match self.phase {
            Phase::Passing => Action::Continue,
            Phase::Held => Action::Pause,
            Phase::Buffering(api) => match self.fits(body_size as u64) {
                Err(reason) => self.pass(&reason),
                Ok(()) if end_of_stream => self.submit(api, body_size),
                Ok(()) => Action::Pause,
            },
        }
    }

    fn on_http_request_trailers(&mut self, _trailers: usize) -> Action {
        match self.phase {
            Phase::Passing => Action::Continue,
            Phase::Held => Action::Pause,
            // The body ended without saying so.
            Phase::Buffering(api) => self.submit(api, self.setup.config.limits.max_inspect_bytes),
        }
    }

    fn on_http_response_headers(&mut self, _headers: usize, _end_of_stream: bool) -> Action {
        if !self.known {
            return Action::Continue;
        }
        let header = |name| sys::header(MapType::HttpResponseHeaders, name).unwrap_or_default();
        let status = std::str::from_utf8(&header(":status")).ok().and_then(|s| s.parse().ok()).unwrap_or(0);
        let streamed = header("content-type").starts_with(b"text/event-stream");
        let address = sys::property(&["upstream", "address"]).unwrap_or_default();
        let address = std::str::from_utf8(&address).unwrap_or_default();
        let config = &self.setup.config;
        let outcome_header = config.selection.outcome_header.as_deref();
        with_router(|router| {
            router.response(self.id, status, address, streamed, &self.host);
            if let (Some(name), Some(outcome)) = (outcome_header, router.accounts.outcome(self.id)) {
                sys::set_header(MapType::HttpResponseHeaders, name, outcome);
            }
            if config.receipts.explain
                && let Some(receipt) = router.accounts.receipt(self.id)
            {
                sys::set_header(MapType::HttpResponseHeaders, &config.receipts.header, receipt);
            }
        });
        Action::Continue
    }

    fn on_http_response_body(&mut self, body_size: usize, _end_of_stream: bool) -> Action {
        if !self.known {
            return Action::Continue;
        }
        with_router(|router| {
            let (from, size) = match router.reads(self.id) {
                Reads::Nothing => return,
                Reads::Head => (0, body_size.min(PEEK)),
                Reads::All => (body_size.saturating_sub(PIECE), body_size.min(PIECE)),
            };
            if let Some(bytes) = sys::buffer(BufferType::HttpResponseBody, from, size) {
                router.response_data(self.id, &bytes, size == body_size, &self.host);
            }
        });
        Action::Continue
    }
}
