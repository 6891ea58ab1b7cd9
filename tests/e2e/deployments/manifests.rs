//! Reads the manifests under `envoy/` and does to them what kustomize, istiod and Envoy Gateway do: patches and merges.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// A file below `envoy/`.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy").join(name)
}

/// The YAML documents of a file below `envoy/`.
pub fn documents(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let all = serde_norway::Deserializer::from_str(&text);
    all.map(|d| Value::deserialize(d).unwrap_or_else(|e| panic!("{name}: {e}"))).collect()
}

/// The only document of this kind and name.
pub fn one<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found: Vec<_> = documents.iter().filter(|d| d["kind"] == kind && d["metadata"]["name"] == name).collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found[0]
}

/// What protobuf's merge does: messages field by field, lists appended, all else replaced.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from.iter().cloned()),
        (into, from) => *into = from.clone(),
    }
}

/// One operation of a JSON patch (RFC 6902) at this pointer.
pub fn operate(document: &mut Value, op: &str, pointer: &str, value: Option<&Value>) {
    let (parent, last) = pointer.rsplit_once('/').unwrap_or_else(|| panic!("{pointer:?} is no place in a document"));
    let place = document.pointer_mut(parent).unwrap_or_else(|| panic!("{op} {pointer}: there is no {parent:?}"));
    let missing = format!("{op} {pointer}: there is no such place");
    match (place, op) {
        (Value::Object(map), "add") => _ = map.insert(last.to_owned(), value.unwrap().clone()),
        (Value::Object(map), "replace") => *map.get_mut(last).expect(&missing) = value.unwrap().clone(),
        (Value::Object(map), "remove") => _ = map.remove(last).expect(&missing),
        (Value::Array(list), op) => {
            let index: usize = last.parse().unwrap_or_else(|_| panic!("{op} {pointer}"));
            match op {
                "add" => list.insert(index, value.unwrap().clone()),
                "replace" => *list.get_mut(index).expect(&missing) = value.unwrap().clone(),
                "remove" => _ = list.remove(index),
                _ => panic!("{op} is not known here"),
            }
        }
        _ => panic!("{op} {pointer} is not known here"),
    }
}

/// Makes the objects on the way to the last step of a pointer, where there are none.
pub fn ensure(document: &mut Value, pointer: &str) {
    let mut parents: Vec<&str> = pointer.match_indices('/').skip(1).map(|(end, _)| &pointer[..end]).collect();
    parents.retain(|parent| document.pointer(parent).is_none());
    for parent in parents {
        operate(document, "add", parent, Some(&serde_json::json!({})));
    }
}

/// The pointers that a JSON path of the form `..LIST[?(@.name=='NAME')]` comes to, anywhere in the document.
pub fn locate(document: &Value, path: &str) -> Vec<String> {
    let parts = path.strip_prefix("..").and_then(|p| p.strip_suffix("')]")).and_then(|p| p.split_once("[?(@.name=='"));
    let (list, name) = parts.unwrap_or_else(|| panic!("JSON path {path} is not known here"));
    let mut found = Vec::new();
    walk(document, "", list, name, &mut found);
    found
}

fn walk(at: &Value, pointer: &str, list: &str, name: &str, found: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match at {
        Value::Object(map) => map.iter().map(|(k, v)| (k.replace('~', "~0").replace('/', "~1"), v)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => Vec::new(),
    };
    for (step, child) in children {
        let here = format!("{pointer}/{step}");
        if step == list {
            let items = child.as_array().into_iter().flatten().enumerate();
            found.extend(items.filter(|(_, item)| item["name"] == name).map(|(i, _)| format!("{here}/{i}")));
        }
        walk(child, &here, list, name, found);
    }
}

/// Applies a file of JSON patch operations, as kustomize does.
pub fn kustomize_patch(document: &mut Value, name: &str) {
    for operation in documents(name).remove(0).as_array().unwrap() {
        let (op, path) = (operation["op"].as_str().unwrap(), operation["path"].as_str().unwrap());
        operate(document, op, path, operation.get("value"));
    }
}
