//! What Envoy calls. Thin: every decision is made by the modules beside this one.
#![cfg_attr(feature = "library", allow(dead_code))]

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, BufferType, ContextType, LogLevel, MapType};

use super::admin_http::AdminHttp;
use super::envoy::Envoy;
use super::host::{Host, Level};
use super::ingest_http::IngestHttp;
use super::models::Setup;
use super::router::{Cause, IDLE_TICK, Router};
use super::router_http::RouterHttp;
use super::sys;
use crate::config::{Config, Role};
use crate::feed::slots::ingest::janitor;
use crate::pack::{Pack, embedded};

#[cfg(not(feature = "library"))]
proxy_wasm::main! {{
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
    proxy_wasm::set_root_context(|id| Box::new(Root::new(id)));
}}

/// Callbacks that the SDK exports and the filter has no use for, by lines. Envoy calls what is exported, `proxy_on_log`
/// and `proxy_on_done` for every request; a context's end comes as `proxy_on_delete`, too. Packing reads this section
/// and takes them out.
#[used]
#[unsafe(link_section = "kvroute.unused")]
static UNUSED: [u8; 344] = *b"proxy_on_log
proxy_on_done
proxy_on_response_trailers
proxy_on_foreign_function
proxy_on_grpc_receive_initial_metadata
proxy_on_grpc_receive
proxy_on_grpc_receive_trailing_metadata
proxy_on_grpc_close
proxy_on_new_connection
proxy_on_downstream_data
proxy_on_downstream_connection_close
proxy_on_upstream_data
proxy_on_upstream_connection_close";

thread_local! {
    /// The state of this VM. Its root contexts come and go, and may be several at a time.
    static ROUTER: RefCell<Option<Router>> = const { RefCell::new(None) };
}

/// Runs `f` on the state of this VM; `None` before it is configured.
pub fn with_router<T>(f: impl FnOnce(&mut Router) -> T) -> Option<T> {
    ROUTER.with(|cell| cell.try_borrow_mut().ok().and_then(|mut router| router.as_mut().map(f)))
}

/// A random number, other in each VM.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The tick of a root context, which its streams set as well.
#[derive(Clone, Debug, Default)]
pub struct Ticker(Rc<Cell<u32>>);

impl Ticker {
    /// Asks for ticks every so many milliseconds. Called by the root context or one of its streams.
    pub fn every(&self, milliseconds: u32) {
        if self.0.replace(milliseconds) != milliseconds {
            sys::set_tick(milliseconds);
        }
    }
}

struct Root {
    host: Envoy,
    config: Option<Rc<Config>>,
    setup: Option<Rc<Setup>>,
    ticker: Ticker,
    ticked: bool,
}

impl Root {
    fn new(id: u32) -> Root {
        Root { host: Envoy { root: id }, config: None, setup: None, ticker: Ticker::default(), ticked: false }
    }

    fn configure(&mut self) -> Result<(), String> {
        let json = sys::buffer(BufferType::PluginConfiguration, 0, usize::MAX).unwrap_or_default();
        let config = Config::parse(&json).map_err(|e| e.to_string())?;
        if config.role == Role::Router {
            self.setup = Some(configure_router(self.host.root, config.clone())?);
            if let Some(setup) = &self.setup {
                for field in with_router(|router| router.setups.disputed()).unwrap_or_default() {
                    let line =
                        format!("kvroute: {field} differs between listeners that share this VM: the newest holds");
                    self.host.log(Level::Warn, &line);
                }
                for (model, warning) in setup.models.iter().flat_map(|m| m.warnings().iter().map(move |w| (m, w))) {
                    self.host.log(Level::Warn, &format!("kvroute: model {}: {warning}", model.config.name));
                }
            }
        }
        self.config = Some(Rc::new(config));
        // The instance that only checks the configuration never ticks: what must not happen there waits for it.
        self.ticker.every(if self.role() == Some(Role::Router) { 10 } else { 1000 });
        Ok(())
    }

    fn role(&self) -> Option<Role> {
        self.config.as_ref().map(|c| c.role)
    }

    fn turn(&mut self, cause: Cause) {
        if let Some(tick) = with_router(|router| router.turn(cause, &self.host)) {
            self.ticker.every(tick);
        }
    }
}

fn configure_router(root: u32, config: Config) -> Result<Rc<Setup>, String> {
    let packs = match embedded::embedded() {
        [] => Vec::new(),
        bytes => Pack::parse(bytes).map_err(|e| e.to_string())?,
    };
    ROUTER.with(|cell| {
        let mut router = cell.try_borrow_mut().map_err(|_| "the VM is busy".to_owned())?;
        match router.as_mut() {
            Some(router) => router.configure(root, config, &packs).map_err(|e| e.to_string()),
            None => {
                let new = Router::new(root, config, &packs, random()).map_err(|e| e.to_string())?;
                Ok(router.insert(new).setups.newest().clone())
            }
        }
    })
}

impl Context for Root {
    fn on_http_call_response(&mut self, _token: u32, _headers: usize, body_size: usize, _trailers: usize) {
        let status = sys::header(MapType::HttpCallResponseHeaders, ":status").unwrap_or_default();
        let body = match status.as_slice() {
            b"200" => sys::buffer(BufferType::HttpCallResponseBody, 0, body_size),
            _ => None,
        };
        let now = self.host.now();
        with_router(|router| match &body {
            Some(body) => _ = router.fleet.on_snapshot(body, now),
            None => router.fleet.on_pull_failed(now),
        });
        self.turn(Cause::News);
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if self.role() == Some(Role::Router) {
            with_router(|router| router.root_gone(self.host.root));
        }
    }
}

impl RootContext for Root {
    fn on_vm_start(&mut self, _size: usize) -> bool {
        true
    }

    fn on_configure(&mut self, _size: usize) -> bool {
        match self.configure() {
            Ok(()) => true,
            Err(what) => {
                sys::log(LogLevel::Critical, &format!("kvroute: {what}"));
                false
            }
        }
    }

    fn on_tick(&mut self) {
        match self.role() {
            Some(Role::Router) => {
                if !std::mem::replace(&mut self.ticked, true) {
                    with_router(|router| router.link.claim());
                    self.ticker.every(IDLE_TICK);
                }
                if let Some(setup) = self.setup.clone()
                    && with_router(|router| router.tools.tokenizers.warm(&setup)) == Some(true)
                {
                    return; // it took long: everything else in the next turn
                }
                self.turn(Cause::Tick);
            }
            Some(Role::Ingest) => janitor(&self.host, self.host.now()),
            Some(Role::Admin) | None => {}
        }
    }

    fn on_queue_ready(&mut self, _queue: u32) {
        // Announcements go to whoever has the number of the context that registered: any of ours may get them.
        with_router(|router| router.link.announce(&self.host));
        self.turn(Cause::News);
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        match (self.role(), &self.config, &self.setup) {
            (Some(Role::Router), _, Some(setup)) => {
                Some(Box::new(RouterHttp::new(id, self.host, setup.clone(), self.ticker.clone())))
            }
            (Some(Role::Ingest), Some(config), _) => Some(Box::new(IngestHttp::new(self.host, config.clone()))),
            (Some(Role::Admin), Some(config), _) => Some(Box::new(AdminHttp::new(self.host, config.clone()))),
            _ => Some(Box::new(Untouched)),
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// A request that the filter leaves alone.
struct Untouched;

impl Context for Untouched {}

impl HttpContext for Untouched {
    fn on_http_request_headers(&mut self, _headers: usize, _end: bool) -> Action {
        Action::Continue
    }
}
