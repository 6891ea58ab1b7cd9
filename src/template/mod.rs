//! Conversation to prompt text, byte for byte what jinja2 in transformers gives.

mod source;

pub use source::{ChatTemplates, TemplateSource};
