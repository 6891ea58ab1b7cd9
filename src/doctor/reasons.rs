//! The labels of filter and bridge, with why they matter and what to do.

/// A reason why a request got no key; `None` where that is how it should be.
pub fn no_key(outcome: &str) -> Option<(&'static str, &'static str)> {
    Some(match outcome {
        "unknown_model" => (
            "clients ask for a name that the filter does not know: those requests go by load alone",
            "add the name to models[].aliases, or the adapter to models[].adapters",
        ),
        "model_off" => ("their model is switched off: they go by load alone", "set models[].enabled to true"),
        "body_too_large" => (
            "long prompts, which gain most, go by load alone",
            "raise per_connection_buffer_limit_bytes of the listener, limits.buffer_limit_bytes and limits.max_inspect_bytes",
        ),
        "busy" => (
            "the filter had no room for them: they go by load alone",
            "raise limits.max_job_bytes and limits.max_jobs, or give Envoy more workers",
        ),
        "time_budget" => (
            "there was no time to tokenize them: they go by load alone",
            "give Envoy more processor time, or raise limits.time_budget_ms",
        ),
        "template_error" | "unsupported" | "bad_request" | "not_json" => (
            "the filter cannot follow them: they go by load alone",
            "kvroute explain with one of these bodies says why; models[].engine must have the engine's flags",
        ),
        "no_feed" | "no_replica" => (
            "the filter knew no replica for them: they go by load alone",
            "see that the bridge runs and follows replicas of this model",
        ),
        "host_error" | "internal" | "tokenizer_error" => {
            ("the filter failed on them: they go by load alone", "Envoy's log has a line for each kind")
        }
        _ => return None,
    })
}

/// A reason for which a replica's events are not trusted in full: how bad that is, why it matters, what to do.
pub fn trust(reason: &str) -> Option<(crate::check::Level, &'static str, &'static str)> {
    use crate::check::Level::{Error, Note, Warning};
    let blind = "what it has cached is not known: it is chosen by what was sent there, or by load";
    let half = "its older blocks are not known: matches there are missed until it has computed anew";
    Some(match reason {
        "complete" => return None,
        "no_endpoint" => (
            Error,
            blind,
            "start the engine with --kv-events-config (vLLM 0.32 and newer tell the bridge where they publish); with an older one add kv= to the bridge's --replica",
        ),
        "unreachable" => (
            Error,
            blind,
            "the bridge cannot connect to its kv endpoint: correct kv= of the bridge's --replica, and let the bridge through to that port",
        ),
        "never_published" => (
            Error,
            blind,
            "it serves and publishes nothing: check enable_kv_cache_events and publisher \"zmq\" in its --kv-events-config, and topic= and kv= of the bridge's --replica",
        ),
        "block_size_mismatch" => (
            Error,
            blind,
            "give models[].block_size, and block-size= of the bridge's --replica, the engine's --block-size",
        ),
        "disconnected" => (
            Error,
            "its events have stopped: what is believed of its cache gets old",
            "see whether the engine runs, and what lies between it and the bridge",
        ),
        "silent" => (
            Error,
            "it computes and announces nothing: what is believed of its cache is wrong",
            "check that prefix caching is on and enable_kv_cache_events true; start the engine again",
        ),
        "joined_late" => {
            (Note, half, "give the engine replay_endpoint in --kv-events-config, and run the bridge with --checkpoint")
        }
        "gap" | "gap_outlived" => {
            (Warning, half, "events were lost for good: give the engine replay_endpoint, and the bridge processor time")
        }
        "starting" | "replaying" | "syncing" => {
            (Note, "it has just begun: matches are missed for a moment", "ask again in some seconds")
        }
        "bridge_quiet" | "bridge_silent" => (
            Error,
            "the worker hears nothing of the bridge: what it believes gets old",
            "see whether the bridge runs and reaches the ingest listener",
        ),
        "not_in_the_feed" => (Error, blind, "add it to the bridge's replicas"),
        _ => (
            Warning,
            "its cache cannot be followed exactly: matches there count less",
            "see `kvroute state` and README, \"What is believed of a cache\"",
        ),
    })
}
