//! A JSON value with the path at which it stands, and Envoy's ways to write a field.

use serde_json::Value;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct At<'a> {
    /// `lds.json: resources[0].name`, say.
    pub path: String,
    /// The value itself.
    pub value: &'a Value,
}

impl<'a> At<'a> {
    /// A field, in Envoy's spelling with underscores or in the camel case of protobuf's JSON. Null is absent.
    pub fn get(&self, name: &str) -> Option<At<'a>> {
        let map = self.value.as_object()?;
        let value = map.get(name).or_else(|| map.get(&camel_case(name))).filter(|v| !v.is_null())?;
        Some(At { path: join(&self.path, name), value })
    }

    /// A field below fields.
    pub fn down(&self, names: &[&str]) -> Option<At<'a>> {
        names.iter().try_fold(self.clone(), |at, name| at.get(name))
    }

    /// The elements of a list below fields; empty where it is absent.
    pub fn list(&self, names: &[&str]) -> Vec<At<'a>> {
        self.down(names).map(|list| list.items()).unwrap_or_default()
    }

    /// The elements of this list.
    pub fn items(&self) -> Vec<At<'a>> {
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(|(i, value)| At { path: format!("{}[{i}]", self.path), value }).collect()
    }

    /// Everything directly below, with its path.
    pub fn children(&self) -> Vec<At<'a>> {
        match self.value {
            Value::Object(map) => map.iter().map(|(name, value)| At { path: join(&self.path, name), value }).collect(),
            _ => self.items(),
        }
    }

    /// A text below fields.
    pub fn text(&self, names: &[&str]) -> Option<&'a str> {
        self.down(names)?.value.as_str()
    }

    /// A number below fields; protobuf's JSON may write it as text.
    pub fn number(&self, names: &[&str]) -> Option<u64> {
        let value = self.down(names)?.value;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    }

    /// Whether a field is true.
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| v.value == &Value::Bool(true))
    }

    /// The message type of an `Any`, without the part before the slash, and the message: a `TypedStruct` is looked
    /// through.
    pub fn message(&self) -> Option<(&'a str, At<'a>)> {
        let name = short(self.text(&["@type"])?);
        if name.ends_with(".TypedStruct") {
            return Some((short(self.text(&["type_url"])?), self.get("value")?));
        }
        Some((name, self.clone()))
    }

    /// Whether it is a message of a type with this end.
    pub fn is_a(&self, end: &str) -> bool {
        self.message().is_some_and(|(name, _)| name.ends_with(end))
    }
}

fn short(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path if path.ends_with(": ") => format!("{path}{name}"),
        path => format!("{path}.{name}"),
    }
}

fn camel_case(name: &str) -> String {
    let mut parts = name.split('_');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut chars = part.chars();
        out.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        out.push_str(chars.as_str());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_spellings_and_paths() {
        let value = json!({"typedConfig": {"vm_config": [{"n": "7"}, {"n": 8}]}, "gone": null});
        let root = At { path: String::new(), value: &value };
        let list = root.list(&["typed_config", "vm_config"]);
        assert_eq!(list[1].path, "typed_config.vm_config[1]");
        assert_eq!([list[0].number(&["n"]), list[1].number(&["n"])], [Some(7), Some(8)]);
        assert!(root.get("gone").is_none());
        let in_file = At { path: "lds.json: ".into(), value: &value };
        assert_eq!(in_file.get("typed_config").unwrap().path, "lds.json: typed_config");
    }

    #[test]
    fn a_typed_struct_is_looked_through() {
        let value = json!({
            "@type": "type.googleapis.com/xds.type.v3.TypedStruct",
            "type_url": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "value": {"config": {"name": "k"}},
        });
        let any = At { path: "f".into(), value: &value };
        assert!(any.is_a("wasm.v3.Wasm"));
        assert_eq!(any.message().unwrap().1.text(&["config", "name"]), Some("k"));
    }
}
