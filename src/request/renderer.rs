//! The request path's entry: a parsed body, and the renderer of one model.

use super::field::bad;
use super::json::budget::{self, Budget};
use super::json::{self, Fault, Json, JsonError, JsonMap};
use super::sglang::Sglang;
use super::vllm::Vllm;
use super::{Api, EngineFlags, Prepared};
use crate::nokey::{NoKey, NoKeyReason};
use crate::template::TemplateSource;

/// A parsed request body.
#[derive(Debug)]
pub struct Body {
    root: Json,
    bytes: usize,
    /// What is left for the values of JSON within its strings.
    left: Budget,
}

impl Body {
    /// Parses a request body.
    pub fn parse(bytes: &[u8]) -> Result<Body, NoKeyReason> {
        let mut left = Budget::of(bytes.len());
        match json::parse_within(bytes, &mut left) {
            Ok(root @ Json::Map(_)) => Ok(Body { root, bytes: bytes.len(), left }),
            Ok(_) => Err(bad("the body is no object")),
            Err(error) => Err(no_json(error)),
        }
    }

    /// All of it.
    pub(super) fn root(&self) -> &Json {
        &self.root
    }

    /// Takes a request body that is parsed in steps.
    pub fn parsing(bytes: Vec<u8>) -> json::Parsing {
        json::Parsing::new(bytes)
    }

    /// Parses about `max_bytes` more of it. `None`: there is more to come.
    pub fn step(parsing: &mut json::Parsing, max_bytes: usize) -> Result<Option<Body>, NoKeyReason> {
        match parsing.step(max_bytes) {
            Ok(None) => Ok(None),
            Ok(Some(root @ Json::Map(_))) => Ok(Some(Body { root, bytes: parsing.bytes(), left: parsing.left() })),
            Ok(Some(_)) => Err(bad("the body is no object")),
            Err(error) => Err(no_json(error)),
        }
    }

    /// The model that the request names.
    pub fn model(&self) -> Option<&str> {
        self.map().get("model")?.as_str()
    }

    fn map(&self) -> &JsonMap {
        // `parse` makes no other.
        self.root.as_map().unwrap_or(const { &JsonMap::EMPTY })
    }
}

fn no_json(error: JsonError) -> NoKeyReason {
    let kind = if error.fault == Fault::Memory { NoKey::BodyTooLarge } else { NoKey::NotJson };
    NoKeyReason::new(kind, error.what)
}

/// Renders the requests of one model. Compiled once per model and VM.
#[derive(Debug)]
pub struct Renderer {
    engine: Engine,
    warnings: Vec<String>,
}

#[derive(Debug)]
enum Engine {
    Vllm(Box<Vllm>),
    Sglang(Box<Sglang>),
}

impl Renderer {
    /// Compiles the templates of `source` for an engine with these `flags`. An error says what the engine or the
    /// template needs that cannot be rendered exactly here.
    pub fn new(source: TemplateSource, flags: &EngineFlags) -> Result<Renderer, String> {
        let (engine, warnings) = match flags.engine.as_str() {
            "vllm" => {
                let (engine, warnings) = Vllm::new(source, flags)?;
                (Engine::Vllm(Box::new(engine)), warnings)
            }
            "sglang" => {
                let (engine, warnings) = Sglang::new(source, flags)?;
                (Engine::Sglang(Box::new(engine)), warnings)
            }
            other => return Err(format!("engine: \"{other}\" is neither \"vllm\" nor \"sglang\"")),
        };
        Ok(Renderer { engine, warnings })
    }

    /// Whether chats are rendered by code (gpt-oss with vLLM), not by a template.
    pub fn is_harmony(&self) -> bool {
        matches!(&self.engine, Engine::Vllm(engine) if engine.is_harmony())
    }

    /// What an operator should know of this model: a template that prints the date or the time, an engine
    /// version that was not proven.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The prompt that the engine would tokenize for this request. `now_unix_seconds` is the wall clock, for
    /// templates that print the date.
    pub fn prepare(&self, api: Api, body: &Body, now_unix_seconds: u64) -> Result<Prepared, NoKeyReason> {
        budget::begin(body.left, body.bytes);
        match &self.engine {
            Engine::Vllm(engine) => engine.prepare(api, body.map(), now_unix_seconds),
            Engine::Sglang(engine) => engine.prepare(api, body.map(), now_unix_seconds),
        }
    }
}
