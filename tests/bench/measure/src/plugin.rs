//! In Envoy: measures when the VM starts, and logs the answer as one line.

use std::time::UNIX_EPOCH;

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, RootContext};
use proxy_wasm::types::{BufferType, LogLevel};

use crate::clock::{Clock, Rows};
use crate::spec::Spec;
use crate::{choice, index, rival, templates, tokenizer};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root));
}}

struct Root;

impl Context for Root {}

impl RootContext for Root {
    fn on_vm_start(&mut self, size: usize) -> bool {
        let bytes = hostcalls::get_buffer(BufferType::VmConfiguration, 0, size).ok().flatten().unwrap_or_default();
        let clock = || {
            let now = hostcalls::get_current_time().unwrap_or(UNIX_EPOCH);
            now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
        };
        let answer = match Spec::decode(&bytes) {
            Some(spec) => run(&spec, &clock),
            None => Err("the configuration is no spec".to_owned()),
        };
        let line = match answer {
            Ok(rows) => format!("KVROUTE-MEASURED {}", serde_json::json!(rows)),
            Err(error) => format!("KVROUTE-FAILED {error}"),
        };
        let _ = hostcalls::log(LogLevel::Critical, &line);
        true
    }
}

fn run(spec: &Spec, clock: Clock<'_>) -> Result<Rows, String> {
    match spec.text("what")? {
        "choice" => choice::run(spec, clock),
        "index" => index::run(spec, clock),
        "templates" => templates::run(spec, clock),
        "tokenizer" => tokenizer::run(spec, clock),
        "tokenizers" => rival::run(spec, clock),
        other => Err(format!("nothing is called {other}")),
    }
}
