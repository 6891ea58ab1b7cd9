//! The engines: what each says of itself, against what the filter was told.

use std::collections::BTreeMap;

use super::proxy::Proxy;
use super::{Level, Report};
use crate::bridge::facts::{Facts, Served};
use crate::config::Model;
use crate::request::Version;

/// SGLang's flag for KV events.
const SGLANG_EVENTS: &str = "--kv-events-config '{\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:5557\", \"replay_endpoint\": \"tcp://*:5558\"}'";

/// A replica by its `ip:port`, with what it says of itself.
pub type Engines = BTreeMap<String, Facts>;

/// Asks every replica that Envoy has.
pub async fn look(client: &reqwest::Client, proxy: &Proxy, report: &mut Report) -> Engines {
    let asked = proxy
        .replicas
        .keys()
        .map(|address| async move { (address.clone(), Facts::ask(client, &format!("http://{address}")).await) });
    let mut engines = Engines::new();
    for (address, answer) in futures::future::join_all(asked).await {
        match answer {
            Ok(facts) => {
                judge(&address, &facts, &proxy.config.as_ref().map_or(Vec::new(), |c| c.models.clone()), report);
                let replica = report.replica(&address);
                replica.engine = format!("{} {}", facts.engine.unwrap_or("?"), facts.version.as_deref().unwrap_or("?"));
                replica.models = facts.models.iter().map(|served| served.id.clone()).collect();
                replica.block_size = facts.block_size();
                engines.insert(address, facts);
            }
            Err(why) => {
                let what = format!("the engine does not answer: {why}");
                let consequence =
                    "requests that are sent there fail and are tried elsewhere; what it has cached is lost to them";
                let mend = format!("start it, or take it out of Envoy's cluster and the bridge's replicas ({address})");
                report.add(Level::Error, "engine_unreachable", &address, [&what, consequence, &mend]);
            }
        }
    }
    report.checked.push(format!("{} of {} engines: flags, versions, models", engines.len(), proxy.replicas.len()));
    engines
}

/// One engine.
fn judge(address: &str, facts: &Facts, models: &[Model], report: &mut Report) {
    if facts.prefix_caching() == Some(false) {
        let mend = match facts.engine {
            Some("sglang") => "start it without --disable-radix-cache",
            _ => "start it without --no-enable-prefix-caching (models whose cache cannot be shared have none)",
        };
        let what = "the engine has prefix caching off";
        let why = "it computes every prompt anew: there is nothing to route by";
        report.add(Level::Error, "prefix_caching_off", address, [what, why, mend]);
    }
    if facts.fastokens() == Some(true) {
        let mend = match facts.engine {
            Some("sglang") => "start it without --tokenizer-backend fastokens",
            _ => "start it without VLLM_USE_FASTOKENS in its environment",
        };
        let why = "it splits some texts otherwise than the model's own tokenizer: what is cached of them is not found";
        report.add(Level::Warning, "fastokens", address, ["the engine tokenizes with fastokens", why, mend]);
    }
    if facts.engine == Some("sglang") && facts.reading.is_none() {
        let why =
            "how much it runs, and how large its cache is, is not known: only what was sent there counts as its load";
        let what = "it serves no metrics";
        report.add(Level::Warning, "metrics_off", address, [what, why, "start it with --enable-metrics"]);
    }
    events(address, facts, report);
    if facts.models.is_empty() {
        return;
    }
    let Some(model) = models.iter().find(|model| facts.served(&model.name).is_some()) else {
        let known: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        if !known.is_empty() {
            let what = format!("it serves {}, the filter knows {}", facts.names().join(", "), known.join(", "));
            let why = "requests for its model get no key, or are sent to an engine that answers 404";
            let mend = format!(
                "start it with --served-model-name {}, or give models[].name (and model= of the bridge's --replica) its name",
                known[0]
            );
            report.add(Level::Error, "model_name", address, [&what, why, &mend]);
        }
        return;
    };
    if let Some(size) = facts.block_size().filter(|size| *size != model.block_size) {
        let what =
            format!("its blocks have {size} tokens, models[].block_size of {} is {}", model.name, model.block_size);
        let why = "no block hash of the filter is one of the engine's: its cache is never found";
        let mend = format!(
            "set block_size of model {} to {size}, or start the engine with --block-size {}",
            model.name, model.block_size
        );
        report.add(Level::Error, "block_size", address, [&what, why, &mend]);
    }
    version(address, facts, model, report);
    if let Some(Served { max_model_len: Some(length), .. }) = facts.served(&model.name)
        && model.engine.max_model_len.is_some_and(|told| told != *length)
    {
        let told = model.engine.max_model_len.unwrap_or_default();
        let what =
            format!("its longest prompt is {length} tokens, models[].engine.max_model_len of {} is {told}", model.name);
        let why = "prompts that are cut to the length get other tokens than the engine's";
        let mend = format!("set max_model_len in models[].engine to {length}");
        report.add(Level::Warning, "max_model_len", address, [&what, why, &mend]);
    }
    let unknown: Vec<&str> = facts
        .adapters(&model.name)
        .into_iter()
        .filter(|name| !model.adapters.iter().any(|known| known == name))
        .collect();
    if !unknown.is_empty() {
        let what = format!("it serves the LoRA adapters {}, which the filter does not know", unknown.join(", "));
        let why = "requests for them get no key and go by load alone";
        let mend = format!("add them to models[].adapters of {}", model.name);
        report.add(Level::Warning, "adapters", address, [&what, why, &mend]);
    }
}

fn version(address: &str, facts: &Facts, model: &Model, report: &mut Report) {
    let (Some(engine), Some(version)) = (facts.engine, facts.version.as_deref()) else { return };
    let flags = &model.engine;
    let alike = |a: &str, b: &str| match (Version::parse(a), Version::parse(b)) {
        (Some(a), Some(b)) => (a.0, a.1) == (b.0, b.1),
        _ => true,
    };
    if flags.engine == engine && alike(&flags.version, version) {
        return;
    }
    let what =
        format!("it is {engine} {version}, models[].engine of {} says {} {}", model.name, flags.engine, flags.version);
    let why = "engines change how they render prompts from release to release: some requests may get other tokens";
    let number = Version::parse(version).map_or_else(|| version.to_owned(), |v| v.to_string());
    let mend = format!(
        "set models[].engine to {{\"engine\": \"{engine}\", \"version\": \"{number}\"}} with the other flags it has"
    );
    report.add(Level::Warning, "engine_version", address, [&what, why, &mend]);
}

/// KV events, where the engine tells of them.
fn events(address: &str, facts: &Facts, report: &mut Report) {
    let config = "--kv-events-config '{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://*:5557\", \"replay_endpoint\": \"tcp://*:5558\"}'";
    let why = "what it has cached is not known: it is chosen by what was sent there, or by load";
    if facts.sglang_events() == Some(false) {
        let mend = format!("start it with {SGLANG_EVENTS}");
        report.add(Level::Error, "events_off", address, ["the engine publishes no KV events", why, &mend]);
        return;
    }
    let Some(sources) = &facts.sources else { return };
    let off = sources.values().any(|s| !s.enable_kv_cache_events || s.publisher.as_deref() != Some("zmq"));
    if off || sources.is_empty() {
        let mend = format!("start it with {config}");
        report.add(Level::Error, "events_off", address, ["the engine publishes no KV events", why, &mend]);
        return;
    }
    if sources.values().any(|s| s.replay_endpoint.is_none()) {
        let why = "events that are lost on the way, or were sent before the bridge began, cannot be asked for again";
        let config = if facts.engine == Some("sglang") { SGLANG_EVENTS } else { config };
        let mend = format!("start it with a replay_endpoint: {config}");
        report.add(Level::Warning, "no_replay", address, ["its KV events have no replay endpoint", why, &mend]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::ask::Answer;
    use crate::config::Config;
    use serde_json::json;

    fn healthy() -> (Facts, Vec<Model>) {
        let served = Served { id: "m".into(), parent: None, max_model_len: Some(4096) };
        let source = Answer {
            enable_kv_cache_events: true,
            publisher: Some("zmq".into()),
            endpoint: Some("tcp://*:5557".into()),
            replay_endpoint: Some("tcp://*:5558".into()),
            topic: None,
        };
        let labels = [("block_size", "16"), ("enable_prefix_caching", "True")];
        let facts = Facts {
            engine: Some("vllm"),
            version: Some("0.32.0+cpu".into()),
            models: vec![served],
            cache: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            reading: Some(crate::bridge::scrape::Reading { block_size: Some(16), ..Default::default() }),
            sources: Some([("0".to_owned(), source)].into()),
            server_info: None,
        };
        let config = json!({"role": "router", "secret": "s", "bridge": {"cluster": "b"},
            "models": [{"name": "m", "engine": {"max_model_len": 4096}}]});
        (facts, Config::from_value(&config).unwrap().models)
    }

    fn found(change: impl FnOnce(&mut Facts)) -> Vec<(&'static str, String)> {
        let (mut facts, models) = healthy();
        change(&mut facts);
        let mut report = Report::default();
        judge("r", &facts, &models, &mut report);
        report.findings.into_iter().map(|finding| (finding.id, finding.mend)).collect()
    }

    #[test]
    fn each_flag_that_breaks_routing_is_named_with_its_mend() {
        type Change = Box<dyn FnOnce(&mut Facts)>;
        let source = |change: fn(&mut Answer)| -> Change {
            Box::new(move |facts| change(facts.sources.as_mut().unwrap().get_mut("0").unwrap()))
        };
        let cases: Vec<(Change, &str, &str)> = vec![
            (
                Box::new(|f| drop(f.cache.as_mut().unwrap().insert("enable_prefix_caching".into(), "False".into()))),
                "prefix_caching_off",
                "--no-enable-prefix-caching",
            ),
            (source(|s| s.enable_kv_cache_events = false), "events_off", "\"enable_kv_cache_events\": true"),
            (source(|s| s.publisher = Some("null".into())), "events_off", "\"publisher\": \"zmq\""),
            (source(|s| s.replay_endpoint = None), "no_replay", "replay_endpoint"),
            (Box::new(|f| f.models[0].id = "n".into()), "model_name", "--served-model-name m"),
            (Box::new(|f| f.reading.as_mut().unwrap().block_size = Some(32)), "block_size", "to 32"),
            (Box::new(|f| f.version = Some("0.28.1".into())), "engine_version", "\"version\": \"0.28.1\""),
            (Box::new(|f| f.models[0].max_model_len = Some(8192)), "max_model_len", "to 8192"),
            (
                Box::new(|f| {
                    f.models.push(Served { id: "lora".into(), parent: Some("m".into()), max_model_len: None })
                }),
                "adapters",
                "models[].adapters",
            ),
        ];
        let sglang = |info: serde_json::Value| -> Change {
            Box::new(move |f| {
                let on =
                    json!({"disable_radix_cache": false, "kv_events_config": "{}", "tokenizer_backend": "huggingface"});
                let mut all = on.as_object().unwrap().clone();
                all.extend(info.as_object().unwrap().clone());
                (f.cache, f.sources, f.server_info) = (None, None, Some(all.into()));
            })
        };
        let cases = cases.into_iter().chain([
            (
                Box::new(|f: &mut Facts| f.server_info = Some(json!({"vllm_env": {"VLLM_USE_FASTOKENS": true}})))
                    as Change,
                "fastokens",
                "VLLM_USE_FASTOKENS",
            ),
            (sglang(json!({"disable_radix_cache": true})), "prefix_caching_off", "--no-enable-prefix-caching"),
            (sglang(json!({"kv_events_config": null})), "events_off", "\"publisher\": \"zmq\""),
            (sglang(json!({"tokenizer_backend": "fastokens"})), "fastokens", "without"),
            (
                Box::new(|f: &mut Facts| (f.engine, f.version, f.reading) = (Some("sglang"), None, None)) as Change,
                "metrics_off",
                "--enable-metrics",
            ),
        ]);
        assert_eq!(found(|_| ()), []);
        assert_eq!(found(sglang(json!({}))), []);
        for (change, id, mend) in cases {
            let findings = found(change);
            let [(got, says)] = findings.as_slice() else { panic!("{id}: {findings:?}") };
            assert!(*got == id && says.contains(mend), "{id}: {findings:?}");
        }
    }
}
