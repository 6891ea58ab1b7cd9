//! One instance of the filter: what it is, and what can be wrong with it alone.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::envoy::{Filter, Manager, Plugin};
use super::tree::At;
use super::{Findings, InstanceSummary, Level, ModelSummary, models};
use crate::config::{Config, ConfigError, Role};
use crate::pack::{Pack, PackError, wasm};

/// See the module.
#[derive(Debug)]
pub struct Instance<'a> {
    /// The listener and filter for people.
    pub place: String,
    /// Where it stands in its chain.
    pub index: usize,
    /// Envoy's `PluginConfig`.
    pub plugin: At<'a>,
    /// The configuration as the filter reads it.
    pub config: Result<Config, ConfigError>,
    /// The raw text of the configuration.
    pub text: Vec<u8>,
    /// The VM that it runs in.
    pub vm: Vm,
    /// What is in its wasm file, where that can be read here.
    file: File,
}

/// What makes two instances share a VM (all of it) or shared data and queues (the id).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vm {
    /// `vm_id`
    pub id: String,
    /// `vm_config.configuration`, as text.
    pub configuration: String,
    /// The code: a file name, or another source as JSON.
    pub code: String,
}

#[derive(Debug)]
enum File {
    /// Not there, or not a local file.
    Unknown,
    /// The filter, with these packs.
    Ours(Vec<Pack>),
    /// The filter, with packs that cannot be read.
    Broken(PackError),
    /// Something else.
    Foreign(PackError),
}

impl<'a> Instance<'a> {
    /// The instance that a filter of a chain is, if it is kvroute's.
    pub fn in_chain(manager: &Manager<'a>, index: usize, filter: &Filter<'a>) -> Option<Instance<'a>> {
        let plugin = filter.of_type("http.wasm.v3.Wasm")?.get("config")?;
        let place = format!("{}, filter {}", manager.name(), filter.name);
        Instance::new(place, index, plugin, &filter.name)
    }

    /// The instance that a plugin outside of any chain is, if it is kvroute's.
    pub fn outside(plugin: &Plugin<'a>) -> Option<Instance<'a>> {
        Instance::new(plugin.place.clone(), 0, plugin.plugin.clone(), "")
    }

    fn new(place: String, index: usize, plugin: At<'a>, name: &str) -> Option<Instance<'a>> {
        let code = plugin.down(&["vm_config", "code"]);
        let filename = plugin.text(&["vm_config", "code", "local", "filename"]);
        let file = filename.map_or(File::Unknown, read);
        let text = plugin.get("configuration").map(|any| text_of(&any)).unwrap_or_default();
        let vm = Vm {
            id: plugin.text(&["vm_config", "vm_id"]).unwrap_or_default().to_owned(),
            configuration: plugin
                .down(&["vm_config", "configuration"])
                .map(|any| String::from_utf8_lossy(&text_of(&any)).into_owned())
                .unwrap_or_default(),
            code: filename.map_or_else(|| code.map(|c| c.value.to_string()).unwrap_or_default(), str::to_owned),
        };
        let base = filename.and_then(|f| Path::new(f).file_name()).map(|f| f.to_string_lossy()).unwrap_or_default();
        let named = [name, plugin.text(&["name"]).unwrap_or_default(), &vm.id, &base];
        let named = named.iter().any(|n| n.to_ascii_lowercase().contains("kvroute"));
        let has_role = serde_json::from_slice::<Value>(&text).is_ok_and(|v| v.get("role").is_some());
        let ours = match &file {
            File::Ours(_) | File::Broken(_) => true,
            File::Foreign(_) | File::Unknown => named || has_role,
        };
        let config = Config::parse(&text);
        ours.then_some(Instance { place, index, plugin, config, text, vm, file })
    }

    /// Its role, where its configuration is right.
    pub fn role(&self) -> Option<Role> {
        self.config.as_ref().ok().map(|c| c.role)
    }

    /// The configuration of a router.
    pub fn router(&self) -> Option<&Config> {
        self.config.as_ref().ok().filter(|c| c.role == Role::Router)
    }

    /// Its secret, where it stands in the configuration.
    pub fn secret(&self) -> Option<&str> {
        let secret = self.config.as_ref().ok().map(|c| c.secret.as_str());
        secret.filter(|secret| !secret.is_empty() && self.secret_variable().is_none())
    }

    /// The environment variable that has its secret.
    fn secret_variable(&self) -> Option<String> {
        let value: Value = serde_json::from_slice(&self.text).ok()?;
        value.get("secret_env").and_then(Value::as_str).map(str::to_owned)
    }

    /// For the report.
    pub fn summary(&self) -> InstanceSummary {
        let vm = format!("{}/{}", self.vm.id, self.vm.configuration);
        let wasm = Some(self.vm.code.clone()).filter(|code| !code.is_empty());
        summary(&self.place, &self.plugin.path, Some(vm), wasm, self.config.as_ref().ok())
    }

    /// What is wrong with it alone.
    pub fn check(&self, packs: Option<&[Pack]>, findings: &mut Findings) {
        self.check_plugin(findings);
        self.check_vm(findings);
        let (place, path) = (self.place.as_str(), self.configuration_path());
        match &self.config {
            Err(e) => findings.add(Level::Error, place, &path, e.to_string(), ""),
            Ok(config) => {
                self.check_secret_variable(findings);
                let own = match &self.file {
                    File::Ours(packs) => Some(packs.as_slice()),
                    _ => None,
                };
                models::check(config, packs.or(own), place, &path, findings);
            }
        }
    }

    fn configuration_path(&self) -> String {
        format!("{}.configuration", self.plugin.path)
    }

    fn check_plugin(&self, findings: &mut Findings) {
        let plugin = &self.plugin;
        let mut add = |level, field: &str, what: &str, mend: &str| {
            findings.add(level, &self.place, &format!("{}.{field}", plugin.path), what, mend);
        };
        if !plugin.is_true("allow_on_headers_stop_iteration") {
            let what = "allow_on_headers_stop_iteration is not true: a request that the filter holds never gets its body and hangs";
            add(Level::Error, "allow_on_headers_stop_iteration", what, "set it to true (Envoy 1.35 or newer knows it)");
        }
        let policy = plugin.text(&["failure_policy"]).unwrap_or(match plugin.is_true("fail_open") {
            true => "FAIL_OPEN",
            false => "FAIL_CLOSED",
        });
        let mend = "set failure_policy: FAIL_RELOAD";
        match policy {
            "FAIL_RELOAD" => {
                if plugin.down(&["reload_config", "backoff", "base_interval"]).is_none() {
                    let what = "reload_config.backoff.base_interval is Envoy's default of 1 s: so long a worker answers 503 after a fault of its VM";
                    add(Level::Note, "reload_config", what, "set it to 0.2s");
                }
            }
            "FAIL_OPEN" => {
                let what = "failure_policy is FAIL_OPEN: after a fault of its VM a worker routes no more until Envoy is started again";
                add(Level::Warning, "failure_policy", what, mend);
            }
            _ => {
                let what = "failure_policy is FAIL_CLOSED (Envoy's default): after a fault of its VM a worker answers every request 503 until Envoy is started again";
                add(Level::Warning, "failure_policy", what, mend);
            }
        }
    }

    fn check_vm(&self, findings: &mut Findings) {
        let path = format!("{}.vm_config", self.plugin.path);
        let mut add = |level, field: &str, what: String, mend: &str| {
            findings.add(level, &self.place, &format!("{path}.{field}"), what, mend);
        };
        let runtime = self.plugin.text(&["vm_config", "runtime"]).unwrap_or_default();
        if runtime != "envoy.wasm.runtime.v8" {
            let what =
                format!("runtime is \"{runtime}\": Envoy's release binaries have no other than V8 for wasm files");
            add(Level::Error, "runtime", what, "set runtime: envoy.wasm.runtime.v8");
        }
        if self.vm.code.is_empty() {
            add(Level::Error, "code", "there is no code".into(), "name the wasm file in code.local.filename");
        }
        let code = &self.vm.code;
        match &self.file {
            File::Foreign(e) | File::Broken(e) => add(Level::Error, "code.local.filename", format!("{code}: {e}"), ""),
            File::Ours(packs) if self.role() == Some(Role::Ingest) && !packs.is_empty() => {
                let what = format!("{code} has packs, and each VM gets a copy of them, though ingest needs none");
                add(Level::Warning, "code.local.filename", what, "give ingest the plain kvroute.wasm");
            }
            _ => {}
        }
    }

    /// The filter can see a variable of Envoy's environment only where the VM is given it.
    fn check_secret_variable(&self, findings: &mut Findings) {
        let Some(name) = self.secret_variable() else { return };
        let name = name.as_str();
        let variables = self.plugin.down(&["vm_config", "environment_variables"]);
        let given = variables.is_some_and(|v| {
            v.list(&["host_env_keys"]).iter().any(|key| key.value == name)
                || v.down(&["key_values", name])
                    .is_some_and(|value| value.value.as_str().is_some_and(|v| !v.trim().is_empty()))
        });
        if !given {
            let error = crate::config::unset_secret(name);
            findings.add(Level::Error, &self.place, &self.configuration_path(), error.to_string(), "");
        }
    }
}

/// A line of the report.
pub fn summary(
    place: &str,
    path: &str,
    vm: Option<String>,
    wasm: Option<String>,
    config: Option<&Config>,
) -> InstanceSummary {
    let models = config.into_iter().filter(|c| c.role == Role::Router).flat_map(|c| &c.models);
    InstanceSummary {
        place: place.to_owned(),
        path: path.to_owned(),
        role: config.map(|c| match c.role {
            Role::Router => "router",
            Role::Ingest => "ingest",
            Role::Admin => "admin",
        }),
        vm,
        wasm,
        models: models
            .map(|m| ModelSummary {
                name: m.name.clone(),
                aliases: m.aliases.clone(),
                pack: m.pack.clone(),
                block_size: m.block_size,
                engine: format!("{} {}", m.engine.engine, m.engine.version),
                enabled: m.enabled,
                shadow: m.shadow,
                rollout_percent: m.rollout_percent,
            })
            .collect(),
    }
}

/// What the filter gets of an `Any`: the text, the bytes, or the structure as JSON.
fn text_of(any: &At<'_>) -> Vec<u8> {
    let value = any.get("value").map(|v| v.value);
    match (any.text(&["@type"]).unwrap_or_default(), value) {
        (_, None) => Vec::new(),
        (name, Some(Value::String(text))) if name.ends_with(".BytesValue") => STANDARD.decode(text).unwrap_or_default(),
        (_, Some(Value::String(text))) => text.clone().into_bytes(),
        (_, Some(other)) => other.to_string().into_bytes(),
    }
}

fn read(name: &str) -> File {
    let Ok(bytes) = std::fs::read(PathBuf::from(name)) else { return File::Unknown };
    let packs = match wasm::extract(&bytes) {
        Err(e) => return File::Foreign(e),
        Ok(packs) => packs.map(<[u8]>::to_vec),
    };
    match packs.map_or(Ok(Vec::new()), Pack::parse) {
        Ok(packs) => File::Ours(packs),
        Err(e) => File::Broken(e),
    }
}
