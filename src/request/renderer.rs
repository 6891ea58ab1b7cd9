//! The request path's entry: a parsed body, and the renderer of one model.

use super::{Api, EngineFlags, Prepared};
use crate::nokey::{NoKey, NoKeyReason};
use crate::template::TemplateSource;

/// A parsed request body.
#[derive(Debug)]
pub struct Body {
    json: serde_json::Value,
}

impl Body {
    /// Parses a request body.
    pub fn parse(bytes: &[u8]) -> Result<Body, NoKeyReason> {
        let json =
            serde_json::from_slice(bytes).map_err(|error| NoKeyReason::new(NoKey::NotJson, error.to_string()))?;
        Ok(Body { json })
    }

    /// The model that the request names.
    pub fn model(&self) -> Option<&str> {
        self.json.get("model")?.as_str()
    }
}

/// Renders the requests of one model. Compiled once per model and VM.
#[derive(Debug)]
pub struct Renderer {}

impl Renderer {
    /// Compiles the templates of `source` for an engine with these `flags`. An error says what the engine or the
    /// template needs that cannot be rendered exactly here.
    pub fn new(_source: TemplateSource, _flags: &EngineFlags) -> Result<Renderer, String> {
        Ok(Renderer {})
    }

    /// What an operator should know of this model: a template that prints the date or the time, an engine
    /// version that was not proven.
    pub fn warnings(&self) -> &[String] {
        &[]
    }

    /// The prompt that the engine would tokenize for this request. `now_unix_seconds` is the wall clock, for
    /// templates that print the date.
    pub fn prepare(&self, _api: Api, _body: &Body, _now_unix_seconds: u64) -> Result<Prepared, NoKeyReason> {
        Err(NoKeyReason::new(NoKey::Unsupported, "not built yet"))
    }
}
