//! A body with another `cache_salt`: the salt of the tenant, whom the gateway knows, in the place of the client's.
//!
//! Only these bytes change: the value of every `cache_salt` of the body itself (which one holds where there are
//! several is the parser's affair), or else a field put first. Every other byte stays as the client sent it. The body is
//! not parsed: what is no JSON to an engine may pass here, and is refused there.

use memchr::memchr2;

use crate::nokey::{NoKey, NoKeyReason};

const NAME: &str = "cache_salt";
/// Longer ones no engine takes.
const LONGEST: usize = 1 << 10;

/// The body with the salt of a tenant, as the gateway's header has it.
pub fn of_tenant(body: &[u8], tenant: &[u8]) -> Result<Vec<u8>, NoKeyReason> {
    let bad = |what: &str| NoKeyReason::new(NoKey::BadRequest, format!("cache_salt of the tenant: {what}"));
    let salt = std::str::from_utf8(tenant).ok().filter(|salt| salt.len() <= LONGEST);
    let salt = salt.ok_or_else(|| bad("longer than 1,024 bytes, or no UTF-8"))?;
    salted(body, salt).ok_or_else(|| bad("the body is no JSON object"))
}

/// The body with this salt. `None`: it is no object, or its fields cannot be told apart.
pub fn salted(body: &[u8], salt: &str) -> Option<Vec<u8>> {
    let value = serde_json::to_string(salt).ok()?;
    let open = space(body, 0);
    let places = places(body, open)?;
    let mut out = Vec::with_capacity(body.len().saturating_add(value.len()).saturating_add(NAME.len() + 5));
    let mut from = 0;
    match places.salts.as_slice() {
        [] => {
            from = open.saturating_add(1);
            out.extend_from_slice(body.get(..from)?);
            out.extend_from_slice(format!("\"{NAME}\":{value}").as_bytes());
            if !places.empty {
                out.push(b',');
            }
        }
        salts => {
            for (start, end) in salts {
                out.extend_from_slice(body.get(from..*start)?);
                out.extend_from_slice(value.as_bytes());
                from = *end;
            }
        }
    }
    out.extend_from_slice(body.get(from..)?);
    Some(out)
}

/// What is known of an object.
struct Places {
    empty: bool,
    /// Begin and end of the values of its salts.
    salts: Vec<(usize, usize)>,
}

fn places(body: &[u8], open: usize) -> Option<Places> {
    let mut found = Places { empty: true, salts: Vec::new() };
    let mut at = after(body, open, b'{')?;
    if body.get(at) == Some(&b'}') {
        return ends(body, at).then_some(found);
    }
    found.empty = false;
    loop {
        let key = at;
        at = string(body, key)?;
        let salt = is_salt(body.get(key..at)?);
        at = after(body, space(body, at), b':')?;
        let end = value(body, at)?;
        if salt {
            found.salts.push((at, end));
        }
        at = space(body, end);
        match body.get(at)? {
            b',' => at = space(body, at + 1),
            b'}' => return ends(body, at).then_some(found),
            _ => return None,
        }
    }
}

/// Whether nothing follows the closing brace at `at`.
fn ends(body: &[u8], at: usize) -> bool {
    space(body, at + 1) == body.len()
}

/// Where it goes on after white space.
fn space(body: &[u8], from: usize) -> usize {
    let rest = body.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n')).count()
}

/// Where it goes on after this byte and white space.
fn after(body: &[u8], at: usize, byte: u8) -> Option<usize> {
    (body.get(at) == Some(&byte)).then(|| space(body, at + 1))
}

/// The end of the string that begins at `at`.
fn string(body: &[u8], at: usize) -> Option<usize> {
    if body.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr2(b'"', b'\\', body.get(at..)?)?;
        match body.get(at)? {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

/// The end of the value that begins at `at`.
fn value(body: &[u8], at: usize) -> Option<usize> {
    match body.get(at)? {
        b'"' => string(body, at),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0usize, at);
            loop {
                match body.get(at)? {
                    b'"' => {
                        at = string(body, at)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth = depth.checked_sub(1)?,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let rest = body.get(at..)?;
            let length = rest.iter().position(|b| matches!(b, b',' | b'}' | b' ' | b'\t' | b'\r' | b'\n'))?;
            // A value has at least one byte, and none of these.
            let word = rest.get(..length)?;
            let odd = word.is_empty() || word.iter().any(|b| matches!(b, b'"' | b'{' | b'[' | b']' | b':' | b'\\'));
            (!odd).then_some(at + length)
        }
    }
}

/// Whether a key, quotation marks included, is the salt's, however it is spelled.
fn is_salt(key: &[u8]) -> bool {
    let plain = key.strip_prefix(b"\"").and_then(|key| key.strip_suffix(b"\""));
    plain == Some(NAME.as_bytes())
        || (key.contains(&b'\\') && serde_json::from_slice::<String>(key).is_ok_and(|key| key == NAME))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn text(body: &str, salt: &str) -> Option<String> {
        salted(body.as_bytes(), salt).map(|body| String::from_utf8(body).unwrap())
    }

    #[test]
    fn only_the_salt_changes() {
        for (body, expected) in [
            ("{}", r#"{"cache_salt":"t"}"#),
            (" { } \n", " {\"cache_salt\":\"t\" } \n"),
            (r#"{"model":"m", "n" : 1.50}"#, r#"{"cache_salt":"t","model":"m", "n" : 1.50}"#),
            (r#"{"cache_salt":"mine","n":1}"#, r#"{"cache_salt":"t","n":1}"#),
            (r#"{"n":1, "cache_salt" : null }"#, r#"{"n":1, "cache_salt" : "t" }"#),
            (r#"{"cache_salt":["a",{"b":"}"}],"n":1}"#, r#"{"cache_salt":"t","n":1}"#),
            (r#"{"cache_salt":"a","x":2,"cache_salt":"b"}"#, r#"{"cache_salt":"t","x":2,"cache_salt":"t"}"#),
            (r#"{"cache\u005fsalt":"a\"}"}"#, r#"{"cache\u005fsalt":"t"}"#),
            (
                r#"{"m":[{"cache_salt":"inner"}],"x":"\\","y":"\"cache_salt\":"}"#,
                r#"{"cache_salt":"t","m":[{"cache_salt":"inner"}],"x":"\\","y":"\"cache_salt\":"}"#,
            ),
        ] {
            assert_eq!(text(body, "t").as_deref(), Some(expected), "{body}");
        }
        assert_eq!(text("{}", "a\"\\\u{e9}").unwrap(), "{\"cache_salt\":\"a\\\"\\\\\u{e9}\"}");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in [
            "",
            " ",
            "[]",
            "\"x\"",
            "null",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":}",
            "{\"a\":1",
            "{\"a\":1,",
            "{\"a\":1,}",
            "{\"a\":\"",
            "{\"a\":\"\\\"}",
            "{\"a\":[1}",
            "{\"a\":1}{}",
            "{\"a\":1}x",
            "{a:1}",
            "{\"a\":1 2}",
            "\u{feff}{}",
            "{\"a\":b\"c\"}",
            "{\"a\":1]}",
            "{\0}",
        ] {
            assert_eq!(text(body, "t"), None, "{body}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\\\\\"{}\\[\\],: a]{0,8}".prop_map(Value::from),
        ];
        let name =
            || prop_oneof![Just("cache_salt".to_owned()), any::<String>(), "[\\\\\"{}a]{0,4}".prop_map(String::from)];
        leaf.prop_recursive(3, 32, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((name(), inner), 0..4).prop_map(|all| Value::Object(all.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_is_the_same_object_with_another_salt(value in any_json(), salt in any::<String>(), pretty: bool) {
            let body = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let got = text(&body, &salt);
            let Value::Object(mut fields) = value else {
                prop_assert_eq!(got, None);
                return Ok(());
            };
            fields.insert(NAME.into(), json!(salt));
            let got: Map<String, Value> = serde_json::from_str(&got.unwrap()).unwrap();
            prop_assert_eq!(got, fields);
        }

        #[test]
        fn no_bytes_panic(body in prop::collection::vec(prop_oneof![Just(b'{'), Just(b'}'), Just(b'"'), Just(b':'), Just(b','),
            Just(b'\\'), Just(b'['), Just(b']'), Just(b' '), any::<u8>()], 0..40)) {
            let _ = salted(&body, "t");
        }
    }
}
