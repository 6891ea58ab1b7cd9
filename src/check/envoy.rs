//! The parts of Envoy's configuration that matter here, found wherever they stand.

use super::input::Document;
use super::tree::At;

/// A filter of a chain.
#[derive(Clone, Debug)]
pub struct Filter<'a> {
    /// Its name.
    pub name: String,
    /// Where the list has it.
    pub path: String,
    /// Its type and configuration; `None` where that comes from elsewhere.
    pub message: Option<(&'a str, At<'a>)>,
}

impl<'a> Filter<'a> {
    /// Its configuration, if it is of a type with this end.
    pub fn of_type(&self, end: &str) -> Option<&At<'a>> {
        self.message.as_ref().filter(|(name, _)| name.ends_with(end)).map(|(_, config)| config)
    }
}

/// An HTTP connection manager with the listener around it.
#[derive(Clone, Debug)]
pub struct Manager<'a> {
    /// The manager's own configuration.
    pub at: At<'a>,
    /// The listener, where the input has it.
    pub listener: Option<At<'a>>,
    /// Its filters, in order.
    pub filters: Vec<Filter<'a>>,
}

impl Manager<'_> {
    /// What to call it for people.
    pub fn name(&self) -> String {
        let listener = self.listener.as_ref().and_then(|l| l.text(&["name"]));
        match listener.or_else(|| self.at.text(&["stat_prefix"])) {
            Some(name) => format!("listener {name}"),
            None => "a listener".to_owned(),
        }
    }
}

/// A wasm plugin outside of any chain.
#[derive(Clone, Debug)]
pub struct Plugin<'a> {
    /// What to call it for people.
    pub place: String,
    /// The plugin's configuration (`PluginConfig`).
    pub plugin: At<'a>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Envoy<'a> {
    /// Every HTTP connection manager.
    pub managers: Vec<Manager<'a>>,
    /// Every cluster.
    pub clusters: Vec<At<'a>>,
    /// Wasm filters that stand in no chain: patches, resources of others.
    pub loose: Vec<Plugin<'a>>,
    /// Wasm services of the bootstrap.
    pub services: Vec<Plugin<'a>>,
    /// Whether there is a whole bootstrap: then what is missing is really missing.
    pub is_whole: bool,
    /// Whether more clusters come from a server.
    pub more_clusters: bool,
    /// Where the tags of metrics stand.
    pub stats_config: Option<At<'a>>,
    routes: Vec<At<'a>>,
    extensions: Vec<At<'a>>,
}

impl<'a> Envoy<'a> {
    /// Looks through all documents.
    pub fn of(documents: &'a [Document]) -> Envoy<'a> {
        let mut envoy = Envoy::default();
        for document in documents {
            let root = document.root();
            envoy.is_whole |= root.get("static_resources").is_some() || root.get("dynamic_resources").is_some();
            let cds = root.down(&["dynamic_resources", "cds_config"]);
            envoy.more_clusters |= cds.is_some_and(|cds| cds.get("path_config_source").is_none());
            envoy.stats_config = root.get("stats_config").or(envoy.stats_config);
            envoy.clusters.extend(root.list(&["static_resources", "clusters"]));
            envoy.walk(&root, None, false);
        }
        // Extensions may stand in a later document than the chains that name them.
        for at in 0..envoy.managers.len() {
            let items = envoy.managers[at].at.list(&["http_filters"]);
            envoy.managers[at].filters = items.iter().map(|item| envoy.filter(item)).collect();
        }
        let used: Vec<String> = envoy
            .managers
            .iter()
            .flat_map(|m| &m.filters)
            .filter_map(|f| Some(f.message.as_ref()?.1.path.clone()))
            .collect();
        envoy.loose.retain(|plugin| !used.iter().any(|path| plugin.plugin.path.starts_with(path.as_str())));
        envoy
    }

    fn walk(&mut self, at: &At<'a>, listener: Option<&At<'a>>, in_manager: bool) {
        let mut in_manager = in_manager;
        match at.message() {
            Some((name, message)) if name.ends_with(".HttpConnectionManager") => {
                self.managers.push(Manager { at: message, listener: listener.cloned(), filters: Vec::new() });
                in_manager = true;
            }
            Some((name, message)) if name.ends_with("http.wasm.v3.Wasm") && !in_manager => {
                if let Some(plugin) = message.get("config") {
                    let place = plugin.text(&["name"]).map_or("a wasm filter".into(), |n| format!("wasm filter {n}"));
                    self.loose.push(Plugin { place, plugin });
                }
            }
            Some((name, message)) if name.ends_with(".WasmService") => {
                if let Some(plugin) = message.get("config") {
                    self.services.push(Plugin { place: "bootstrap_extensions".into(), plugin });
                }
            }
            Some((name, message)) if name.ends_with(".cluster.v3.Cluster") => self.clusters.push(message),
            Some((name, message)) if name.ends_with(".RouteConfiguration") => self.routes.push(message),
            Some((name, message)) if name.ends_with(".TypedExtensionConfig") => self.extensions.push(message),
            _ => {}
        }
        let here = at.get("filter_chains").or_else(|| at.get("default_filter_chain")).map(|_| at);
        for child in at.children() {
            self.walk(&child, here.or(listener), in_manager);
        }
    }

    fn filter(&self, item: &At<'a>) -> Filter<'a> {
        let name = item.text(&["name"]).unwrap_or_default().to_owned();
        let own = item.get("typed_config");
        let discovered = || {
            let resource = self.extensions.iter().find(|e| e.text(&["name"]) == Some(&name));
            let default = || item.down(&["config_discovery", "default_config"]);
            resource.and_then(|r| r.get("typed_config")).or_else(default)
        };
        let message = own.or_else(discovered).and_then(|config| config.message());
        Filter { message: message.filter(|_| !item.is_true("disabled")), path: item.path.clone(), name }
    }

    /// The cluster with this name.
    pub fn cluster(&self, name: &str) -> Option<&At<'a>> {
        self.clusters.iter().find(|c| c.text(&["name"]) == Some(name))
    }

    /// The virtual hosts of a manager, from its own route table or one that it names.
    pub fn virtual_hosts(&self, manager: &Manager<'a>) -> Vec<At<'a>> {
        let named = || {
            let name = manager.at.text(&["rds", "route_config_name"])?;
            self.routes.iter().find(|r| r.text(&["name"]) == Some(name)).cloned()
        };
        let table = manager.at.get("route_config").or_else(named);
        table.map(|t| t.list(&["virtual_hosts"])).unwrap_or_default()
    }
}
