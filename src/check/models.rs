//! The models of a router against their packs.

use super::{Findings, Level};
use crate::config::{Config, Role};
use crate::filter::models::Model;
use crate::pack::Pack;
use crate::request::Renderer;
use crate::template::TemplateSource;

/// Checks what `on_configure` would do with the packs, and what it would warn of. Without packs only what needs
/// none is checked.
pub fn check(config: &Config, packs: Option<&[Pack]>, place: &str, path: &str, findings: &mut Findings) {
    if config.role != Role::Router {
        return;
    }
    for (i, model) in config.models.iter().enumerate() {
        let field = format!("models[{i}]");
        let below = if path.is_empty() { field.clone() } else { path.to_owned() };
        if !model.enabled {
            let what = format!("{field} \"{}\" is switched off: its requests get no key", model.name);
            findings.add(Level::Note, place, &below, what, "");
            continue;
        }
        let warnings = match packs {
            Some(packs) => Model::new(model.clone(), packs, &field).map(|m| m.warnings().to_vec()),
            None => without_pack(model, &field),
        };
        match warnings {
            Err(e) => {
                let below = if path.is_empty() { e.path.clone() } else { below };
                findings.add(Level::Error, place, &below, e.to_string(), "");
            }
            Ok(warnings) => {
                for warning in warnings {
                    findings.add(Level::Warning, place, &below, format!("model {}: {warning}", model.name), "");
                }
            }
        }
    }
    if packs.is_none() {
        let what = "the models' packs were not looked at";
        findings.add(Level::Note, place, path, what, "name the packed wasm or a pack with --pack");
    }
    for (i, pack) in packs.into_iter().flatten().enumerate() {
        if !config.models.iter().any(|m| m.enabled && m.pack == pack.name()) {
            let what = format!("pack {i}, \"{}\", is used by no model: it only takes memory in every VM", pack.name());
            findings.add(Level::Note, place, path, what, "leave it out of the wasm");
        }
    }
}

fn without_pack(model: &crate::config::Model, field: &str) -> Result<Vec<String>, crate::config::ConfigError> {
    let mut flags = model.engine.clone();
    // It may name a template of the pack.
    flags.chat_template = flags.chat_template.filter(|text| text.contains(['{', '}', '\n']));
    let renderer = Renderer::new(TemplateSource::default(), &flags);
    let renderer = renderer.map_err(|what| crate::filter::models::cannot_follow(field, &what))?;
    Ok(renderer.warnings().to_vec())
}
