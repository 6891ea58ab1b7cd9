//! The configuration of a running Envoy, by its admin interface's `/config_dump`.

use serde_json::{Value, json};

use super::input::Document;
use super::{Report, envoy, envoy_configuration};
use crate::config::{Config, Role};

/// The configuration and what it comes to.
#[derive(Debug)]
pub struct Live {
    /// What is wrong with it.
    pub report: Report,
    /// Every router, with where it sends.
    pub routers: Vec<LiveRouter>,
    /// The listener of ingest, by its name.
    pub ingest: Option<String>,
    /// The listener of admin, by its name.
    pub admin: Option<String>,
    /// The secret of ingest, where it stands in the configuration.
    pub secret: Option<String>,
}

/// A router.
#[derive(Clone, Debug)]
pub struct LiveRouter {
    /// The name of its listener.
    pub listener: String,
    /// The clusters of its routes.
    pub clusters: Vec<String>,
    /// What it was told.
    pub config: Config,
}

/// Judges what `/config_dump` answered.
pub fn check(dump: &Value) -> Live {
    let documents = documents(dump);
    let (mut findings, envoy) = (super::Findings::default(), envoy::Envoy::of(&documents));
    let instances = envoy_configuration(&documents, None, &mut findings);
    findings.0.sort_by_key(|f| f.level);
    let mut live = Live {
        report: Report { kind: "envoy", instances, findings: findings.0 },
        routers: Vec::new(),
        ingest: None,
        admin: None,
        secret: None,
    };
    for manager in &envoy.managers {
        let listener = manager.listener.as_ref().and_then(|l| l.text(&["name"])).unwrap_or_default().to_owned();
        for (index, filter) in manager.filters.iter().enumerate() {
            let Some(one) = super::Instance::in_chain(manager, index, filter) else { continue };
            match one.role() {
                Some(Role::Ingest) => {
                    live.ingest.get_or_insert(listener.clone());
                    live.secret = live.secret.take().or_else(|| one.secret().map(str::to_owned));
                }
                Some(Role::Admin) => {
                    live.admin.get_or_insert(listener.clone());
                }
                Some(Role::Router) => {
                    let hosts = envoy.virtual_hosts(manager);
                    let routes = hosts.iter().flat_map(|host| host.list(&["routes"]));
                    let mut clusters: Vec<String> =
                        routes.filter_map(|route| Some(route.text(&["route", "cluster"])?.to_owned())).collect();
                    clusters.dedup();
                    let Some(config) = one.router().cloned() else { continue };
                    live.routers.push(LiveRouter { listener: listener.clone(), clusters, config });
                }
                None => {}
            }
        }
    }
    live
}

/// The bootstrap, and what servers and files have given besides.
fn documents(dump: &Value) -> Vec<Document> {
    let mut documents = Vec::new();
    for part in dump["configs"].as_array().into_iter().flatten() {
        let list = |name: &str| part[name].as_array().into_iter().flatten();
        let mut add = |prefix: &str, value: &Value| {
            documents.push(Document { prefix: format!("{prefix}: "), value: json!({"resources": [value]}) });
        };
        let kind = part["@type"].as_str().unwrap_or_default().rsplit('.').next().unwrap_or_default();
        match kind {
            "BootstrapConfigDump" => {
                // Its files were read by Envoy, which has their content below.
                let mut bootstrap = part["bootstrap"].clone();
                if let Some(dynamic) = bootstrap.get_mut("dynamic_resources") {
                    *dynamic = json!({});
                }
                documents.push(Document { prefix: "bootstrap: ".into(), value: bootstrap });
            }
            "ListenersConfigDump" => {
                list("dynamic_listeners").for_each(|l| add("listeners", &l["active_state"]["listener"]));
            }
            "ClustersConfigDump" => {
                list("dynamic_active_clusters").for_each(|c| add("clusters", &c["cluster"]));
            }
            "RoutesConfigDump" => {
                list("dynamic_route_configs").for_each(|r| add("routes", &r["route_config"]));
            }
            "EcdsConfigDump" => list("ecds_filters").for_each(|f| add("extensions", &f["ecds_filter"])),
            _ => {}
        }
    }
    documents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Level;
    use crate::gateway::Bootstrap;

    fn any(kind: &str, mut value: Value) -> Value {
        value["@type"] = format!("type.googleapis.com/envoy.{kind}").into();
        value
    }

    /// A dump as Envoy writes it, of a bootstrap with what is dynamic in it.
    fn dump(bootstrap: &Bootstrap) -> Value {
        let dir = std::path::Path::new("/d");
        let mut configs = vec![any("admin.v3.BootstrapConfigDump", json!({"bootstrap": bootstrap.to_json(dir)}))];
        for (name, content) in bootstrap.dynamic_files(dir, 1).into_iter().filter(|_| bootstrap.dynamic) {
            let resources = content["resources"].as_array().unwrap().iter();
            configs.push(match name {
                "lds.json" => {
                    let listeners: Vec<Value> = resources.map(|l| json!({"active_state": {"listener": l}})).collect();
                    any("admin.v3.ListenersConfigDump", json!({"dynamic_listeners": listeners}))
                }
                _ => {
                    let filters: Vec<Value> = resources.map(|f| json!({"ecds_filter": f})).collect();
                    any("admin.v3.EcdsConfigDump", json!({"ecds_filters": filters}))
                }
            });
        }
        json!({"configs": configs})
    }

    #[test]
    fn what_is_static_and_what_is_dynamic_are_the_same() {
        for dynamic in [false, true] {
            let bootstrap = Bootstrap {
                dynamic,
                wasm: "/nowhere/model.wasm".into(),
                replicas: vec!["127.0.0.1:8001".parse().unwrap()],
                bridge: Some("127.0.0.1:7070".parse().unwrap()),
                buffer_limit: Some(16 << 20),
                router: json!({"models": [{"name": "m"}]}),
                ..Bootstrap::default()
            };
            let live = check(&dump(&bootstrap));
            // The wasm is not there.
            let findings: Vec<_> = live.report.findings.iter().filter(|f| f.level != Level::Note).collect();
            assert_eq!(findings, Vec::<&crate::check::Finding>::new());
            assert_eq!(
                (live.ingest.as_deref(), live.admin.as_deref()),
                (Some("kvroute_ingest"), Some("kvroute_ingest"))
            );
            assert_eq!(live.secret.as_deref(), Some("kvroute-secret"));
            let [router] = live.routers.as_slice() else { panic!("{:?}", live.routers) };
            assert_eq!(
                (router.listener.as_str(), router.clusters.as_slice()),
                ("public", &["replicas".to_owned()][..])
            );
            assert_eq!(router.config.models[0].name, "m");
        }
    }
}
