//! What a model directory holds, and whether kvroute can stand in for the engine's renderer and tokenizer on it.

use std::path::{Path, PathBuf};

use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::PackError;
use crate::template::{ChatTemplates, Template, TemplateSource, own_renderer};

/// Choices of the user about a directory.
#[derive(Clone, Debug, Default)]
pub struct SourceOptions {
    /// A base model: no chat template is fine, and one that cannot be rendered is left out; chat requests get no key.
    pub allow_no_template: bool,
    /// Stands in for `model_type` of `config.json`, as the engine's `--hf-overrides` would.
    pub model_type: Option<String>,
    /// The engine's `--hf-overrides`: fields of `config.json` that it replaces.
    pub hf_overrides: Option<serde_json::Map<String, Value>>,
    /// The engine's `--tokenizer`: the directory with tokenizer and template.
    pub tokenizer: Option<PathBuf>,
}

/// The files of a model directory that decide ids.
#[derive(Debug)]
pub struct ModelDir {
    /// Where it is.
    pub path: PathBuf,
    /// `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// The template and what belongs to it.
    pub template: TemplateSource,
    /// Files read: name and size.
    pub files: Vec<(String, u64)>,
    /// See [`super::Meta::fingerprint`].
    pub fingerprint: String,
}

impl ModelDir {
    /// Reads and judges a directory.
    pub fn read(path: &Path, options: &SourceOptions) -> Result<ModelDir, PackError> {
        let model = path;
        let mut reader = Reader { path, hash: Xxh3::new(), files: Vec::new() };
        if !path.is_dir() {
            return Err(PackError::new(format!("{}: not a directory; give the model's directory", path.display())));
        }
        let mut config = reader.json("config.json")?;
        if let Some(overrides) = &options.hf_overrides {
            let fields = config.get_or_insert_with(|| Value::Object(Default::default()));
            for (name, value) in overrides {
                fields[name.as_str()] = value.clone();
            }
            reader.hash.update(Value::Object(overrides.clone()).to_string().as_bytes());
        }
        refuse_own_renderer(path, config.as_ref())?;
        if let Some(tokenizer) = &options.tokenizer {
            reader.path = tokenizer;
            if !tokenizer.is_dir() {
                return Err(PackError::new(format!("{}: not a directory; give the tokenizer's", tokenizer.display())));
            }
        }
        let path = reader.path;
        refuse_mistral(path)?;
        let Some(tokenizer_json) = reader.bytes("tokenizer.json")? else {
            return Err(no_tokenizer(path));
        };
        let Some(tokenizer_config) = reader.json("tokenizer_config.json")? else {
            return Err(reader.error(
                "tokenizer_config.json",
                "missing; download it with the model: it has the chat template's variables",
            ));
        };
        let mut jinja = reader.text("chat_template.jinja")?;
        if jinja.is_none()
            && let Some(Value::Object(legacy)) = reader.json("chat_template.json")?
        {
            // Processors of older releases keep the template here.
            jinja = legacy.get("chat_template").and_then(Value::as_str).map(str::to_owned);
        }
        let special_map = reader.json("special_tokens_map.json")?;
        let mut template =
            TemplateSource::from_files(&tokenizer_config, jinja.as_deref(), config.as_ref(), special_map.as_ref())
                .map_err(|e| PackError::new(format!("{}: {e}", path.display())))?;
        if let Some(model_type) = &options.model_type {
            template.model_type = Some(model_type.clone());
        }
        template.tokenizer = options.tokenizer.as_ref().map(|dir| dir.display().to_string());
        let harmony = template.model_type.as_deref() == Some("gpt_oss");
        if template.chat_template.is_none() && !harmony && !options.allow_no_template {
            return Err(reader.error(
                "tokenizer_config.json",
                "chat_template: missing, and there is no chat_template.jinja; add the template that the engine is started with, or say --allow-no-template for a base model (chat requests then get no key)",
            ));
        }
        if !harmony && let Err((name, why)) = compiles(template.chat_template.as_ref()) {
            if !options.allow_no_template {
                let file = if jinja.is_some() { "chat_template.jinja" } else { "tokenizer_config.json" };
                let what = format!(
                    "the chat template{name}: {why}; kvroute cannot render it as the engine does. Pack it with --allow-no-template for its completions alone, or where the engine is started with another --chat-template that the filter's configuration has as well"
                );
                return Err(reader.error(file, &what));
            }
            template.chat_template = None;
        }
        if let Some(model_type) = &options.model_type {
            reader.hash.update(model_type.as_bytes());
        }
        let fingerprint = format!("{:032x}", reader.hash.digest128());
        Ok(ModelDir { path: model.into(), tokenizer_json, template, files: reader.files, fingerprint })
    }

    /// What to call the model when the user does not say: the directory's name.
    pub fn default_name(&self) -> Option<String> {
        let full = self.path.canonicalize().ok()?;
        Some(full.file_name()?.to_str()?.to_owned())
    }
}

/// Whether the templates that the engine takes by itself can be rendered; else the name of one, and why not.
fn compiles(templates: Option<&ChatTemplates>) -> Result<(), (String, String)> {
    match templates {
        None => Ok(()),
        Some(ChatTemplates::Single(source)) => Template::compile(source).map(drop).map_err(|e| (String::new(), e)),
        Some(ChatTemplates::Named(list)) => ["default", "tool_use"].into_iter().try_for_each(|name| {
            let compiled = list.get(name).map(|source| Template::compile(source));
            compiled.transpose().map(drop).map_err(|e| (format!(" \"{name}\""), e))
        }),
    }
}

struct Reader<'a> {
    path: &'a Path,
    hash: Xxh3,
    files: Vec<(String, u64)>,
}

impl Reader<'_> {
    fn error(&self, file: &str, text: &str) -> PackError {
        PackError::new(format!("{}: {text}", self.path.join(file).display()))
    }

    fn bytes(&mut self, file: &str) -> Result<Option<Vec<u8>>, PackError> {
        let bytes = match std::fs::read(self.path.join(file)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.error(file, &e.to_string())),
        };
        for part in [file.as_bytes(), &bytes] {
            self.hash.update(&(part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        self.files.push((file.to_owned(), bytes.len() as u64));
        Ok(Some(bytes))
    }

    fn text(&mut self, file: &str) -> Result<Option<String>, PackError> {
        let bytes = self.bytes(file)?;
        bytes.map(|b| String::from_utf8(b).map_err(|_| self.error(file, "not UTF-8; save it as UTF-8"))).transpose()
    }

    fn json(&mut self, file: &str) -> Result<Option<Value>, PackError> {
        let bytes = self.bytes(file)?;
        bytes.map(|b| serde_json::from_slice(&b).map_err(|e| self.error(file, &format!("not JSON: {e}")))).transpose()
    }
}

/// The engine's tokenizer mode "auto" takes Mistral's own tokenizer for such directories, even beside a template.
fn refuse_mistral(path: &Path) -> Result<(), PackError> {
    let names: Vec<String> = std::fs::read_dir(path)
        .map_err(|e| PackError::new(format!("{}: {e}", path.display())))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    match mistral_file(&names) {
        Some(own) => Err(PackError::new(format!(
            "{}: engines use Mistral's own tokenizer and renderer here ({own} with consolidated*.safetensors), which kvroute does not have; start the engine with --tokenizer-mode hf and pack a directory without these files",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// The file of a model by which engines take Mistral's own tokenizer, if they do.
pub fn mistral_file(names: &[String]) -> Option<&String> {
    let consolidated = names.iter().any(|n| n.starts_with("consolidated") && n.ends_with(".safetensors"));
    let own = names.iter().find(|n| *n == "tekken.json" || n.starts_with("tokenizer.model.v"));
    own.filter(|_| consolidated)
}

fn refuse_own_renderer(path: &Path, config: Option<&Value>) -> Result<(), PackError> {
    let architectures = config.and_then(|c| c.get("architectures")).and_then(Value::as_array);
    for architecture in architectures.into_iter().flatten().filter_map(Value::as_str) {
        if let Some(name) = own_renderer(architecture) {
            return Err(PackError::new(format!(
                "{}: architectures: the engine renders {name} ({architecture}) by code of its own, not by a chat template, and kvroute does not have it; route this model without kvroute",
                path.join("config.json").display()
            )));
        }
    }
    Ok(())
}

fn no_tokenizer(path: &Path) -> PackError {
    let own = ["tekken.json", "tokenizer.model", "tiktoken.model", "vocab.json"];
    let found = own.iter().find(|name| path.join(name).exists());
    let mend = match found {
        Some(name) => format!(
            "only {name} is there; save the tokenizer in the Hugging Face \"fast\" form (AutoTokenizer.from_pretrained(…).save_pretrained(…)) and pack that directory"
        ),
        None => "give a Hugging Face model directory with tokenizer.json".to_owned(),
    };
    PackError::new(format!("{}: missing: {mend}", path.join("tokenizer.json").display()))
}
