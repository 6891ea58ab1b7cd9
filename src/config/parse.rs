//! The fields of the configuration, with their defaults and bounds.

use serde_json::Value;

use super::read::{Fields, Kind};
use super::{
    Bridge, Config, ConfigError, Limits, Model, Networks, Receipts, Role, Selection, SelectionMode, StaticReplica,
    TenantSalt, TestSwitches,
};
use crate::feed;
use crate::request::ApiPaths;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Config {
    /// Checks a configuration that is JSON already.
    pub fn from_value(value: &Value) -> Result<Config, ConfigError> {
        let mut top = Fields::new("", value)?;
        let roles = [("router", Role::Router), ("ingest", Role::Ingest), ("admin", Role::Admin)];
        let role = top.required_choice("role", &roles)?;
        let mut models = Vec::new();
        for (path, item) in top.list("models")? {
            models.push(model(path, item)?);
        }
        let mut replicas = Vec::new();
        for (path, item) in top.list("replicas")? {
            replicas.push(replica(path, item)?);
        }
        let config = Config {
            role,
            models,
            paths: paths(&mut top)?,
            selection: selection(top.object("selection")?)?,
            policy: top.part("policy")?,
            limits: limits(top.object("limits")?)?,
            tenant_salt: tenant_salt(top.object("tenant_salt")?)?,
            receipts: receipts(top.object("receipts")?)?,
            hash_seed: top.text("hash_seed")?.unwrap_or_default(),
            secret: secret(&mut top)?,
            bridge: bridge(top.object("bridge")?)?,
            replicas,
            test: test_switches(top.object("test")?)?,
        };
        top.finish()?;
        config.check_whole()?;
        Ok(config)
    }

    /// What no single field shows.
    fn check_whole(&self) -> Result<(), ConfigError> {
        let missing_secret =
            || ConfigError::new("secret", "is missing: give the same text to router, ingest, admin and the bridge");
        match self.role {
            Role::Ingest | Role::Admin if self.secret.is_empty() => return Err(missing_secret()),
            Role::Ingest | Role::Admin => return Ok(()),
            Role::Router if self.models.is_empty() => {
                return Err(ConfigError::new("models", "is empty: name at least one model"));
            }
            Role::Router if self.bridge.is_some() && self.secret.is_empty() => return Err(missing_secret()),
            Role::Router if self.bridge.is_none() && self.replicas.is_empty() => {
                let what = "is missing: name the cluster of the bridge, or list \"replicas\" here";
                return Err(ConfigError::new("bridge", what));
            }
            Role::Router => {}
        }
        let mut names: Vec<&str> = Vec::new();
        for (i, model) in self.models.iter().enumerate() {
            let own = std::iter::once((&model.name, "name".to_owned()));
            let aliases = model.aliases.iter().enumerate().map(|(j, name)| (name, format!("aliases[{j}]")));
            let adapters = model.adapters.iter().enumerate().map(|(j, name)| (name, format!("adapters[{j}]")));
            for (name, field) in own.chain(aliases).chain(adapters) {
                if names.contains(&name.as_str()) {
                    let what = format!("\"{name}\" names two models: every name, alias and adapter must be unique");
                    return Err(ConfigError::new(&format!("models[{i}].{field}"), what));
                }
                names.push(name);
            }
        }
        if self.receipts.explain && self.secret.is_empty() {
            return Err(ConfigError::new(
                "receipts.explain",
                "needs a secret: receipts tell of other tenants' prompts",
            ));
        }
        for (i, replica) in self.replicas.iter().enumerate() {
            if !self.models.iter().any(|m| m.name == replica.model) {
                let what = format!("\"{}\" is no name of a model above", replica.model);
                return Err(ConfigError::new(&format!("replicas[{i}].model"), what));
            }
        }
        self.policy.check().map_err(|(field, what)| ConfigError::new(&format!("policy.{field}"), what))?;
        let selection = &self.selection;
        if selection.mode == SelectionMode::StatefulSession && selection.header == selection.fallback_header {
            return Err(ConfigError::new("selection.fallback_header", "must differ from selection.header"));
        }
        if self.limits.max_inspect_bytes > self.limits.max_job_bytes {
            return Err(ConfigError::new("limits.max_job_bytes", "must be at least limits.max_inspect_bytes"));
        }
        let limits = &self.limits;
        let parts = [limits.index_bytes, limits.max_job_bytes, limits.prompt_memory_bytes];
        if parts.into_iter().fold(0, usize::saturating_add) > limits.memory_bytes {
            let what = "must be at least limits.index_bytes + limits.max_job_bytes + limits.prompt_memory_bytes";
            return Err(ConfigError::new("limits.memory_bytes", what));
        }
        Ok(())
    }
}

fn paths(top: &mut Fields<'_>) -> Result<ApiPaths, ConfigError> {
    let paths: ApiPaths = top.part("paths")?;
    let lists = [
        ("chat_completions", &paths.chat_completions),
        ("completions", &paths.completions),
        ("messages", &paths.messages),
        ("responses", &paths.responses),
    ];
    for (name, list) in lists {
        if list.iter().any(String::is_empty) {
            return Err(top.error(&format!("paths.{name}"), "must not hold an empty text: give the end of a path"));
        }
    }
    Ok(paths)
}

/// The secret, or what the environment variable holds that `secret_env` names.
fn secret(top: &mut Fields<'_>) -> Result<String, ConfigError> {
    let (text, variable) = (top.text("secret")?, top.text("secret_env")?);
    // It travels as a header's value, and the bridge reads its own without the white space around it.
    let fits = |text: &str| text.trim() == text && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    if text.as_deref().is_some_and(|text| !fits(text)) {
        return Err(top.error("secret", "must be visible ASCII without spaces around it: it is sent as a header"));
    }
    let Some(variable) = variable else { return Ok(text.unwrap_or_default()) };
    if text.is_some() {
        return Err(top.error("secret_env", "stands beside \"secret\": keep one of the two"));
    }
    match std::env::var(&variable) {
        Ok(value) if !value.trim().is_empty() => Ok(value.trim().to_owned()),
        // Only Envoy's VM is given the variable: a check elsewhere takes it for granted.
        _ if !cfg!(target_family = "wasm") => Ok(format!("the value of {variable}")),
        _ => Err(unset_secret(&variable)),
    }
}

/// That the environment variable with the secret is not there.
pub fn unset_secret(variable: &str) -> ConfigError {
    let mend = "set it for Envoy and name it in vm_config.environment_variables.host_env_keys";
    ConfigError::new("secret_env", format!("\"{variable}\" is not set in the VM: {mend}"))
}

fn model(path: String, value: &Value) -> Result<Model, ConfigError> {
    let mut f = Fields::new(path, value)?;
    let name = f.required_text("name")?;
    let model = Model {
        pack: f.text("pack")?.unwrap_or_else(|| name.clone()),
        aliases: names(&mut f, "aliases")?,
        adapters: names(&mut f, "adapters")?,
        block_size: u32::try_from(f.whole("block_size", 16, 1, 4096)?).unwrap_or(16),
        engine: f.part("engine")?,
        enabled: f.flag("enabled", true)?,
        shadow: f.flag("shadow", false)?,
        rollout_percent: f.number("rollout_percent", 100.0, 0.0, 100.0)?,
        name,
    };
    f.finish()?;
    Ok(model)
}

fn names(f: &mut Fields<'_>, field: &'static str) -> Result<Vec<String>, ConfigError> {
    let mut out = Vec::new();
    let list = f.list(field)?;
    f.note(field, || (Kind::Texts, Some(Vec::<Value>::new().into())), false);
    for (path, name) in list {
        match name {
            Value::String(s) if !s.is_empty() => out.push(s.clone()),
            _ => return Err(ConfigError::new(&path, "must be a string that is not empty")),
        }
    }
    Ok(out)
}

fn replica(path: String, value: &Value) -> Result<StaticReplica, ConfigError> {
    let mut f = Fields::new(path, value)?;
    let address = f.required_text("address")?;
    if address.parse::<std::net::SocketAddr>().is_err() {
        let what = format!("\"{address}\" must be ip:port as Envoy's cluster resolves it, not a host name");
        return Err(f.error("address", what));
    }
    let replica = StaticReplica {
        address,
        model: f.required_text("model")?,
        rank: u32::try_from(f.whole("rank", 0, 0, 4096)?).unwrap_or(0),
        role: f.choice("role", &feed::role::Role::ALL.map(|role| (role.label(), role)))?,
        capacity_blocks: f.whole("capacity_blocks", 0, 0, u64::MAX)?,
    };
    f.finish()?;
    Ok(replica)
}

fn selection(fields: Option<Fields<'_>>) -> Result<Selection, ConfigError> {
    let empty = Value::Object(serde_json::Map::new());
    let mut f = match fields {
        Some(f) => f,
        None => Fields::new("selection", &empty)?,
    };
    let modes = [("stateful_session", SelectionMode::StatefulSession), ("override_host", SelectionMode::OverrideHost)];
    let mode = f.choice("mode", &modes)?;
    let header = match mode {
        SelectionMode::StatefulSession => "x-kvroute-replica",
        SelectionMode::OverrideHost => "x-gateway-destination-endpoint",
    };
    let outcome_header = f.optional_header("outcome_header")?;
    let session_header = f.optional_header("session_header")?;
    let selection = Selection {
        mode,
        header: f.header("header", header)?,
        fallback_header: f.header("fallback_header", "x-kvroute-fallback")?,
        outcome_header,
        session_header,
    };
    f.finish()?;
    Ok(selection)
}

fn limits(fields: Option<Fields<'_>>) -> Result<Limits, ConfigError> {
    let empty = Value::Object(serde_json::Map::new());
    let mut f = match fields {
        Some(f) => f,
        None => Fields::new("limits", &empty)?,
    };
    let limits = Limits {
        max_inspect_bytes: f.whole("max_inspect_bytes", 4 * MIB, KIB, 64 * MIB)? as usize,
        buffer_limit_bytes: f.whole("buffer_limit_bytes", MIB, KIB, 1024 * MIB)? as usize,
        max_job_bytes: f.whole("max_job_bytes", 128 * MIB, MIB, 512 * MIB)? as usize,
        max_jobs: f.whole("max_jobs", 64, 1, 10_000)? as usize,
        time_budget_ms: f.whole("time_budget_ms", 100, 1, 60_000)?,
        finish_budget_ms: f.whole("finish_budget_ms", 250, 0, 60_000)?,
        slice_ms: f.number("slice_ms", 1.0, 0.05, 100.0)?,
        index_bytes: f.whole("index_bytes", 256 * MIB, MIB, 768 * MIB)? as usize,
        prompt_memory_bytes: f.whole("prompt_memory_bytes", 32 * MIB, 0, 512 * MIB)? as usize,
        memory_bytes: f.whole("memory_bytes", 768 * MIB, 16 * MIB, 1000 * MIB)? as usize,
        max_backlog: f.whole("max_backlog", 4096, 16, 1_000_000)?,
    };
    f.finish()?;
    Ok(limits)
}

fn tenant_salt(fields: Option<Fields<'_>>) -> Result<TenantSalt, ConfigError> {
    let Some(mut f) = fields else { return Ok(TenantSalt::default()) };
    let header = f.optional_header("header")?;
    let salt = TenantSalt { header, write: f.flag("write", false)? };
    if salt.write && salt.header.is_none() {
        return Err(f.error("header", "is missing: name the header whose value is to be written"));
    }
    f.finish()?;
    Ok(salt)
}

fn receipts(fields: Option<Fields<'_>>) -> Result<Receipts, ConfigError> {
    let empty = Value::Object(serde_json::Map::new());
    let mut f = match fields {
        Some(f) => f,
        None => Fields::new("receipts", &empty)?,
    };
    let list = f.list("allow")?;
    f.note("allow", || (Kind::Texts, Some(Vec::<Value>::new().into())), false);
    let allow = Networks::read(&list)?;
    let receipts = Receipts {
        explain: f.flag("explain", false)?,
        allow,
        header: f.header("header", "x-kvroute-receipt")?,
        sample: f.number("sample", 0.0, 0.0, 1.0)?,
        filter_state: f.flag("filter_state", false)?,
    };
    f.finish()?;
    Ok(receipts)
}

fn bridge(fields: Option<Fields<'_>>) -> Result<Option<Bridge>, ConfigError> {
    let Some(mut f) = fields else { return Ok(None) };
    let bridge = Bridge { cluster: f.required_text("cluster")?, timeout_ms: f.whole("timeout_ms", 2000, 10, 60_000)? };
    f.finish()?;
    Ok(Some(bridge))
}

fn test_switches(fields: Option<Fields<'_>>) -> Result<TestSwitches, ConfigError> {
    let Some(mut f) = fields else { return Ok(TestSwitches::default()) };
    let trap_header = f.optional_header("trap_header")?;
    f.finish()?;
    Ok(TestSwitches { trap_header })
}
