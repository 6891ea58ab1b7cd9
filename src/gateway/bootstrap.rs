//! The Envoy bootstrap, as JSON.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::filter::accounts::EXPLAIN_HEADER;
use crate::filter::steer::PREFILL_HEADER;
use crate::look::SECRET_HEADER;
use crate::request::ApiPaths;

/// How the public listener picks a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// By kvroute, and by least request where it gives no key.
    Kvroute,
    /// All that stands around the filter for it, but not the filter: to measure what the filter itself costs.
    WithoutFilter,
    /// Envoy's round robin, without the filter.
    RoundRobin,
    /// Envoy's least request, without the filter.
    LeastRequest,
}

/// The choices behind a bootstrap. Listeners take a free port where the port is 0.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// How replicas are picked.
    pub balancing: Balancing,
    /// The filter, with packs: runs in the router and admin instances.
    pub wasm: PathBuf,
    /// The plain filter for the ingest instance, `None`: the same as `wasm`. Data segments are copied into every
    /// VM, so the packs are left out of it.
    pub ingest_wasm: Option<PathBuf>,
    /// Where clients connect. More than one: listeners that share the VMs.
    pub public: Vec<SocketAddr>,
    /// Where the bridge posts, and where `state` and `explain` answer.
    pub ingest: SocketAddr,
    /// Envoy's own admin interface.
    pub admin: SocketAddr,
    /// The replicas.
    pub replicas: Vec<SocketAddr>,
    /// The bridge's snapshot server; `None`: no feed, replicas must stand in `router`.
    pub bridge: Option<SocketAddr>,
    /// For a bridge on another host; `None`: it is on this one.
    pub tls: Option<Tls>,
    /// Shared by router, ingest, admin and bridge.
    pub secret: String,
    /// The environment variable of Envoy that has the secret; `None`: it stands in the configuration.
    pub secret_env: Option<String>,
    /// The router's plugin configuration; `role`, `secret` and `bridge` are filled in where absent.
    pub router: Value,
    /// The same for the public listeners after the first one, where theirs differ.
    pub others: Vec<Value>,
    /// How long a listener or a connection that is to go may still finish what it has, in seconds.
    pub drain_time_s: u32,
    /// Path of the active health check; `None`: no health checks.
    pub health_path: Option<String>,
    /// `per_connection_buffer_limit_bytes` of the public listeners; `None`: Envoy's default of 1 MiB.
    pub buffer_limit: Option<u32>,
    /// Retries of a request on the next candidates.
    pub retries: u32,
    /// Longest wait for a response, in seconds; 0: no bound.
    pub route_timeout_s: u32,
    /// Envoy measures how long the turns of its event loops take.
    pub dispatcher_stats: bool,
    /// Listeners by LDS and the router's configuration by ECDS, from files that [`super::Envoy::update`] rewrites.
    pub dynamic: bool,
    /// A proxy-wasm module to stand where the filter would, with [`Balancing::WithoutFilter`]: to measure what any
    /// filter costs.
    pub in_place: Option<PathBuf>,
    /// Further fields for the cluster of the replicas (`outlier_detection`, say); they replace the own ones.
    pub cluster: Value,
}

/// Certificates between Envoy and a bridge on another host (`envoy/mtls.yaml`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Where the bridge posts.
    pub ingest: SocketAddr,
    /// The CA that signed the bridge's certificate, in PEM.
    pub ca: PathBuf,
    /// Envoy's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The name in the bridge's certificate.
    pub bridge_name: String,
}

impl Tls {
    fn context(&self) -> Value {
        let file = |path: &Path| json!({"filename": path});
        json!({
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "tls_certificates": [{"certificate_chain": file(&self.cert), "private_key": file(&self.key)}],
            "validation_context": {
                "trusted_ca": file(&self.ca),
                "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": self.bridge_name}}],
            },
        })
    }

    /// For the ingest listener: the bridge must show its certificate.
    pub fn downstream(&self) -> Value {
        let message = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
        let config = json!({"require_client_certificate": true, "common_tls_context": self.context()});
        json!({"name": "envoy.transport_sockets.tls", "typed_config": typed(message, config)})
    }

    /// For the cluster of the bridge: Envoy shows its own.
    pub fn upstream(&self) -> Value {
        let message = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        let config = json!({"sni": self.bridge_name, "common_tls_context": self.context()});
        json!({"name": "envoy.transport_sockets.tls", "typed_config": typed(message, config)})
    }
}

impl Default for Bootstrap {
    fn default() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Bootstrap {
            balancing: Balancing::Kvroute,
            wasm: default_wasm(),
            ingest_wasm: None,
            public: vec![any],
            ingest: any,
            admin: any,
            replicas: Vec::new(),
            bridge: None,
            tls: None,
            secret: "kvroute-secret".into(),
            secret_env: None,
            router: json!({}),
            others: Vec::new(),
            drain_time_s: 600,
            health_path: Some("/health".into()),
            buffer_limit: None,
            dispatcher_stats: false,
            retries: 2,
            route_timeout_s: 0,
            dynamic: false,
            in_place: None,
            cluster: json!({}),
        }
    }
}

/// The filter as `cargo build --release --lib --target wasm32-wasip1` leaves it, or the file that `KVROUTE_WASM` names.
pub fn default_wasm() -> PathBuf {
    if let Some(path) = std::env::var_os("KVROUTE_WASM") {
        return path.into();
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    target.join("wasm32-wasip1/release/kvroute.wasm")
}

const HCM: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const WASM: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";
/// Headers that steer or ask, and that a client must not send.
const STRIPPED: [&str; 6] = [
    "x-kvroute-replica",
    "x-kvroute-fallback",
    "x-gateway-destination-endpoint",
    "x-data-parallel-rank",
    PREFILL_HEADER,
    EXPLAIN_HEADER,
];
/// The shared data and queues of all instances stand under this id.
const VM_ID: &str = "kvroute";
/// Name of the bridge's cluster.
const BRIDGE: &str = "kvroute_bridge";

/// `value` as protobuf `Any` of this type.
fn typed(name: &str, mut value: Value) -> Value {
    value["@type"] = format!("type.googleapis.com/{name}").into();
    value
}

fn address(a: SocketAddr) -> Value {
    json!({"socket_address": {"address": a.ip().to_string(), "port_value": a.port()}})
}

fn path_source(dir: &Path, file: &str) -> Value {
    json!({"resource_api_version": "V3", "path_config_source": {"path": dir.join(file)}})
}

impl Bootstrap {
    /// The complete bootstrap. `dir` holds the files of the dynamic parts.
    pub fn to_json(&self, dir: &Path) -> Value {
        let mut clusters = vec![self.replica_cluster()];
        if let Some(bridge) = self.bridge {
            let mut fields = json!({"connect_timeout": "1s"});
            if let Some(tls) = &self.tls {
                fields["transport_socket"] = tls.upstream();
            }
            clusters.push(cluster(BRIDGE, &[bridge], fields));
        }
        let mut bootstrap = json!({
            "node": {"id": "kvroute", "cluster": "kvroute"},
            "admin": {"address": address(self.admin)},
            "static_resources": {"clusters": clusters},
            "stats_config": {"stats_tags": stats_tags()},
            // Envoy warns at every start without a bound.
            "overload_manager": {"resource_monitors": [{
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": typed("envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig", json!({"max_active_downstream_connections": 50000})),
            }]},
        });
        if self.dispatcher_stats {
            bootstrap["enable_dispatcher_stats"] = true.into();
        }
        if self.dynamic {
            bootstrap["dynamic_resources"] = json!({"lds_config": path_source(dir, "lds.json")});
        } else {
            bootstrap["static_resources"]["listeners"] = self.listeners(dir).into();
        }
        bootstrap
    }

    /// The files of the dynamic parts: name and content.
    pub fn dynamic_files(&self, dir: &Path, version: u64) -> Vec<(&'static str, Value)> {
        let resources = |resources: Vec<Value>| json!({"version_info": version.to_string(), "resources": resources});
        let listeners = self.listeners(dir).into_iter();
        let listeners = listeners.map(|l| typed("envoy.config.listener.v3.Listener", l)).collect();
        let filter = json!({"name": "kvroute", "typed_config": self.router_filter()});
        vec![
            ("ecds.json", resources(vec![typed("envoy.config.core.v3.TypedExtensionConfig", filter)])),
            ("lds.json", resources(listeners)),
        ]
    }

    /// The router's plugin configuration with what the gateway knows filled in.
    pub fn router_config(&self) -> Value {
        self.filled(self.router.clone())
    }

    fn filled(&self, mut config: Value) -> Value {
        if let Some(limit) = self.buffer_limit
            && config["limits"]["buffer_limit_bytes"].is_null()
        {
            config["limits"]["buffer_limit_bytes"] = limit.into();
        }
        let mut fill = |name: &str, value: Value| {
            if config[name].is_null() {
                config[name] = value;
            }
        };
        fill("role", "router".into());
        let (field, secret) = self.secret_field();
        fill(field, secret);
        if self.bridge.is_some() {
            fill("bridge", json!({"cluster": BRIDGE}));
        }
        config
    }

    /// How the filter is told the secret: the field of its configuration, and what stands there.
    fn secret_field(&self) -> (&'static str, Value) {
        match &self.secret_env {
            Some(variable) => ("secret_env", variable.clone().into()),
            None => ("secret", self.secret.clone().into()),
        }
    }

    fn listeners(&self, dir: &Path) -> Vec<Value> {
        let mut listeners: Vec<Value> =
            self.public.iter().enumerate().map(|(i, at)| self.public_listener(i, *at, dir)).collect();
        if self.balancing == Balancing::Kvroute {
            listeners.push(self.ingest_listener());
            if let Some(tls) = &self.tls {
                let mut outside = self.ingest_listener();
                outside["name"] = "kvroute_ingest_tls".into();
                outside["address"] = address(tls.ingest);
                outside["filter_chains"][0]["transport_socket"] = tls.downstream();
                listeners.push(outside);
            }
        }
        listeners
    }

    fn public_listener(&self, index: usize, at: SocketAddr, dir: &Path) -> Value {
        let name = if index == 0 { "public".to_owned() } else { format!("public_{index}") };
        let router = json!({"name": "envoy.filters.http.router", "typed_config": typed("envoy.extensions.filters.http.router.v3.Router", json!({}))});
        let filters = match self.balancing {
            Balancing::Kvroute => {
                let own = index.checked_sub(1).and_then(|i| self.others.get(i));
                let strip = strip_filter(own.unwrap_or(&self.router));
                let kvroute = if let Some(own) = own {
                    let filter = self.wasm_filter("router", &self.wasm, "router", &self.filled(own.clone()));
                    json!({"name": "kvroute", "typed_config": filter})
                } else if self.dynamic {
                    json!({"name": "kvroute", "config_discovery": {
                        "config_source": path_source(dir, "ecds.json"),
                        "type_urls": [format!("type.googleapis.com/{WASM}")],
                    }})
                } else {
                    json!({"name": "kvroute", "typed_config": self.router_filter()})
                };
                vec![strip, kvroute, session_filter(), router]
            }
            Balancing::WithoutFilter => {
                let other = |wasm| json!({"name": "other", "typed_config": self.wasm_filter("other", wasm, "other", &json!({}))});
                let other = self.in_place.iter().map(|wasm| other(wasm));
                [strip_filter(&self.router)].into_iter().chain(other).chain([session_filter(), router]).collect()
            }
            _ => vec![router],
        };
        let action = json!({"cluster": "replicas", "timeout": format!("{}s", self.route_timeout_s)});
        let mut routes = vec![json!({"match": {"prefix": "/"}, "route": action})];
        if self.balancing == Balancing::Kvroute {
            let config = index.checked_sub(1).and_then(|i| self.others.get(i)).unwrap_or(&self.router);
            // What cannot be a prompt does not enter the filter's VM.
            let prompts = json!({
                "match": {
                    "safe_regex": {"regex": prompt_paths(config)},
                    "headers": [{"name": ":method", "string_match": {"exact": "POST"}}],
                },
                "route": action,
            });
            routes[0]["typed_per_filter_config"] =
                json!({"kvroute": typed("envoy.config.route.v3.FilterConfig", json!({"disabled": true}))});
            routes.insert(0, prompts);
        }
        let mut host = json!({
            // Removing the fallback header here would blind the override_host policy; it goes upstream.
            "request_headers_to_remove": ["x-kvroute-replica", EXPLAIN_HEADER, SECRET_HEADER],
            "routes": routes,
        });
        if self.retries > 0 {
            host["retry_policy"] = json!({
                "retry_on": "connect-failure,refused-stream,reset-before-request,gateway-error",
                "num_retries": self.retries,
                "host_selection_retry_max_attempts": 5,
                "retry_host_predicate": [{
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": typed("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate", json!({})),
                }],
            });
        }
        let mut listener = listener(&name, at, host, filters);
        if let Some(limit) = self.buffer_limit {
            listener["per_connection_buffer_limit_bytes"] = limit.into();
        }
        listener
    }

    fn ingest_listener(&self) -> Value {
        let wasm = self.ingest_wasm.as_ref().unwrap_or(&self.wasm);
        let (field, secret) = self.secret_field();
        let config = |role: &str| json!({"role": role, field: secret});
        let not_found = json!({"match": {"prefix": "/"}, "direct_response": {"status": 404}});
        let filters = vec![
            json!({"name": "kvroute_ingest", "typed_config": self.wasm_filter("ingest", wasm, "ingest", &config("ingest"))}),
            json!({"name": "kvroute_admin", "typed_config": self.wasm_filter("admin", &self.wasm, "router", &config("admin"))}),
            json!({"name": "envoy.filters.http.router", "typed_config": typed("envoy.extensions.filters.http.router.v3.Router", json!({}))}),
        ];
        let mut listener = listener("kvroute_ingest", self.ingest, json!({"routes": [not_found]}), filters);
        listener["per_connection_buffer_limit_bytes"] = (64 << 20).into();
        listener
    }

    fn router_filter(&self) -> Value {
        self.wasm_filter("router", &self.wasm, "router", &self.router_config())
    }

    fn wasm_filter(&self, root_id: &str, wasm: &Path, vm: &str, config: &Value) -> Value {
        let text = |s: String| typed("google.protobuf.StringValue", json!({"value": s}));
        let mut plugin = json!({
            "name": format!("kvroute_{root_id}"),
            "root_id": root_id,
            // Without it a paused request never gets its body and hangs.
            "allow_on_headers_stop_iteration": true,
            "failure_policy": "FAIL_RELOAD",
            "reload_config": {"backoff": {"base_interval": "0.2s"}},
            "vm_config": {
                "vm_id": VM_ID,
                "runtime": "envoy.wasm.runtime.v8",
                "code": {"local": {"filename": wasm}},
                "configuration": text(vm.to_owned()),
            },
            // By lines: people read it, too.
            "configuration": text(format!("{config:#}")),
        });
        if let Some(variable) = &self.secret_env {
            plugin["vm_config"]["environment_variables"] = json!({"host_env_keys": [variable]});
        }
        typed(WASM, json!({"config": plugin}))
    }

    fn replica_cluster(&self) -> Value {
        let policy = |name: &str, message: &str, config: Value| {
            json!({"policies": [{"typed_extension_config": {
                "name": format!("envoy.load_balancing_policies.{name}"),
                "typed_config": typed(&format!("envoy.extensions.load_balancing_policies.{name}.v3.{message}"), config),
            }}]})
        };
        let least_request = policy("least_request", "LeastRequest", json!({}));
        let policy = match self.balancing {
            Balancing::RoundRobin => policy("round_robin", "RoundRobin", json!({})),
            Balancing::LeastRequest => least_request,
            Balancing::Kvroute | Balancing::WithoutFilter => {
                let sources = json!([{"header": "x-kvroute-fallback"}]);
                let config = json!({"override_host_sources": sources, "fallback_policy": least_request});
                policy("override_host", "OverrideHost", config)
            }
        };
        let mut fields = json!({
            "connect_timeout": "1s",
            "load_balancing_policy": policy,
            "outlier_detection": {
                "consecutive_5xx": 5,
                "interval": "2s",
                "base_ejection_time": "10s",
                "max_ejection_percent": 50,
                "successful_active_health_check_uneject_host": false,
            },
            "circuit_breakers": {"thresholds": [{"max_connections": 10000, "max_pending_requests": 10000, "max_requests": 10000, "max_retries": 1000}]},
        });
        if let Some(path) = &self.health_path {
            fields["health_checks"] = json!([{
                "timeout": "1s",
                "interval": "1s",
                // 60 s by default, which delays the first detection.
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": path},
            }]);
        }
        if let (Some(fields), Some(more)) = (fields.as_object_mut(), self.cluster.as_object()) {
            fields.extend(more.clone());
        }
        cluster("replicas", &self.replicas, fields)
    }
}

/// A regular expression of Envoy's for the paths by which prompts come to a router: those that end as its
/// configuration says, and those with escapes, which it looks at itself.
fn prompt_paths(router: &Value) -> String {
    let paths: ApiPaths = serde_json::from_value(router["paths"].clone()).unwrap_or_default();
    let ends: Vec<String> = paths.ends().map(regex::escape).collect();
    format!(".*%.*|.*({})/?", ends.join("|"))
}

/// `host`: the fields of its one virtual host.
fn listener(name: &str, at: SocketAddr, mut host: Value, filters: Vec<Value>) -> Value {
    host["name"] = "all".into();
    host["domains"] = json!(["*"]);
    let manager = json!({
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [host]},
        "http_filters": filters,
    });
    json!({
        "name": name,
        "address": address(at),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": typed(HCM, manager),
        }]}],
    })
}

fn cluster(name: &str, hosts: &[SocketAddr], fields: Value) -> Value {
    let endpoints: Vec<Value> = hosts.iter().map(|h| json!({"endpoint": {"address": address(*h)}})).collect();
    let mut cluster = fields;
    cluster["name"] = name.into();
    cluster["type"] = "STATIC".into();
    cluster["load_assignment"] = json!({"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]});
    cluster
}

/// Runs before kvroute, so that a client cannot steer even while the VM is down.
fn strip_filter(router: &Value) -> Value {
    let remove = |names: &[&str]| names.iter().map(|n| json!({"remove": n})).collect::<Vec<_>>();
    let stripped: Vec<&str> = match router["receipts"]["explain"].as_bool() {
        // The filter asks for the secret, and takes both headers away itself.
        Some(true) => STRIPPED.into_iter().filter(|name| *name != EXPLAIN_HEADER).collect(),
        _ => STRIPPED.into(),
    };
    let mutations = json!({"mutations": {
        "request_mutations": remove(&stripped),
        // stateful_session answers with the replica's address where another one was chosen.
        "response_mutations": remove(&["x-kvroute-replica"]),
    }});
    let config = typed("envoy.extensions.filters.http.header_mutation.v3.HeaderMutation", mutations);
    json!({"name": "strip_selection_headers", "typed_config": config})
}

fn session_filter() -> Value {
    let state = typed(
        "envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState",
        json!({"name": "x-kvroute-replica"}),
    );
    let session = json!({"session_state": {"name": "envoy.http.stateful_session.header", "typed_config": state}});
    let config = typed("envoy.extensions.filters.http.stateful_session.v3.StatefulSession", session);
    json!({"name": "envoy.filters.http.stateful_session", "typed_config": config})
}

/// Makes labels of the parts of the names of kvroute's metrics.
fn stats_tags() -> Value {
    let tag = |name: &str| json!({"tag_name": name, "regex": format!(r"^wasmcustom\.kvroute_\w+?(\.{name}\.(\w+))")});
    json!([tag("outcome"), tag("reason"), tag("slot")])
}
