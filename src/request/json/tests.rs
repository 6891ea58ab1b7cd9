use super::*;
use crate::template::python::{repr, to_json};

fn shown(body: &str) -> String {
    match parse(body.as_bytes()) {
        Ok(value) => repr(&value),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn prints_numbers_as_python_does() {
    let cases = [
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "-0.0"),
        ("1.0", "1.0"),
        ("1e3", "1000.0"),
        ("1E-7", "1e-07"),
        ("1e16", "1e+16"),
        ("1e15", "1000000000000000.0"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("1.5e300", "1.5e+300"),
        ("1e22", "1e+22"),
        ("123456789.123", "123456789.123"),
        ("1e400", "inf"),
        ("18446744073709551616", "18446744073709551616"),
        ("-170141183460469231731687303715884105729", "-170141183460469231731687303715884105729"),
    ];
    for (json, python) in cases {
        assert_eq!(shown(json), python, "{json}");
    }
}

#[test]
fn a_key_that_comes_twice_keeps_its_first_place_and_its_last_value() {
    assert_eq!(shown(r#"{"a":1,"b":2,"a":3}"#), "{'a': 3, 'b': 2}");
    let many: Vec<String> = (0..100).chain(0..100).map(|i| format!("\"k{i}\":{i}")).collect();
    let value = parse(format!("{{{}}}", many.join(",")).as_bytes()).unwrap();
    assert_eq!(value.as_map().unwrap().len(), 100);
    assert!(matches!(value.as_map().unwrap().get("k99"), Some(Json::Int(99))));
}

#[test]
fn refuses_what_python_or_the_tokenizer_refuses() {
    let bad = [
        "",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "01",
        "-",
        "1.",
        "1e",
        ".5",
        "+1",
        "NaN",
        "Infinity",
        "-Infinity",
        "nul",
        "\"a",
        "\"\n\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\ud800\"",
        "\"\\udc00\"",
        "\"\\u+123\"",
        "1 2",
        "{1:2}",
        "'a'",
        "\u{feff}\u{feff}1",
    ];
    for json in bad {
        assert!(parse(json.as_bytes()).is_err(), "{json:?}");
    }
    assert!(parse(b"\"\xff\"").is_err());
    assert!(parse(b"\"\xed\xa0\x80\"").is_err());
    assert!(parse("9".repeat(4301).as_bytes()).is_err());
    assert!(parse("9".repeat(4300).as_bytes()).is_ok());
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert!(parse(nested(MAX_DEPTH + 1).as_bytes()).is_err());
    assert!(parse("[".repeat(1_000_000).as_bytes()).is_err());
}

#[test]
fn a_byte_order_mark_and_escapes_are_read() {
    assert_eq!(shown("\u{feff} 1 "), "1");
    let value = parse(br#" "a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u0000z" "#).unwrap();
    assert_eq!(value.as_str().unwrap(), "a\"\\/\u{8}\u{c}\n\r\t\u{e9}\u{1f600}\0z");
}

#[test]
fn every_string_survives_every_alignment() {
    for length in 0..40 {
        for special in ["\\n", "\\\"", "\u{e9}", ""] {
            let body = format!("\"{}{special}{}\"", "x".repeat(length), "y".repeat(40 - length));
            let value = parse(body.as_bytes()).unwrap();
            let expected: String = serde_json::from_str(&body).unwrap();
            assert_eq!(value.as_str().unwrap(), expected);
        }
    }
}

#[test]
fn dumps_as_python_does() {
    let body = r#"{"a":[1,2.5,null,true,"é\u007f\u2028<&>'\u0001"],"b":{},"c":[]}"#;
    let value = parse(body.as_bytes()).unwrap();
    assert_eq!(to_json(&value), "{\"a\": [1, 2.5, null, true, \"é\u{7f}\u{2028}<&>'\\u0001\"], \"b\": {}, \"c\": []}");
}

fn in_one(text: &[u8]) -> Result<String, JsonError> {
    parse(text).map(|value| repr(&value))
}

fn in_steps(text: &[u8], bytes: usize) -> Result<String, JsonError> {
    let mut parsing = Parsing::new(text.to_vec());
    loop {
        if let Some(value) = parsing.step(bytes)? {
            return Ok(repr(&value));
        }
    }
}

#[test]
fn steps_of_any_size_come_to_the_same() {
    let deep = "[".repeat(MAX_DEPTH + 1);
    let texts = [
        r#"{"a": [1, -2.5e3, "x\n\u00e9\ud83d\ude00 end", {"b": {}, "c": [[], [true, false, null]]}], "a": "again"}"#,
        "\u{feff} [\"\u{e9}\", \"plain\", \"\\\"\\\"\\\"\"] ",
        "\"alone\"",
        "12345678901234567890123",
        "{\"k\": \"v\"} x",
        "{\"k\" \"v\"}",
        "{\"k\": 1,}",
        "[1, 2",
        "[1 2]",
        "\"\\ud800\"",
        "\"a\\n\u{1}\"",
        "[NaN]",
        "",
        " ",
        deep.as_str(),
    ];
    for text in texts {
        let whole = in_one(text.as_bytes());
        for bytes in [1, 2, 3, 7, 1000] {
            assert_eq!(in_steps(text.as_bytes(), bytes), whole, "{text:?} by {bytes}");
        }
        // A cut text fails alike.
        for end in (0..text.len()).step_by(3) {
            let cut = &text.as_bytes()[..end];
            assert_eq!(in_steps(cut, 2), in_one(cut), "{cut:?}");
        }
    }
    assert_eq!(in_steps(b"[\"\xff\"]", 1), in_one(b"[\"\xff\"]"));
}

#[test]
fn a_step_does_not_do_everything() {
    let many = format!("[{}1]", "\"text\", ".repeat(10_000));
    let long = format!("[\"{}\"]", "line\\n".repeat(10_000));
    for text in [many, long] {
        let mut parsing = Parsing::new(text.clone().into_bytes());
        let mut steps = 0;
        while parsing.step(1000).unwrap().is_none() {
            steps += 1;
        }
        assert!((50..100).contains(&steps), "{steps} for {} bytes", text.len());
    }
}

#[test]
fn long_arrays_and_large_objects_keep_all_in_order() {
    for length in [1, 15, 16, 17, 63, 64, 65, 66, 300] {
        let list = |item: &dyn Fn(usize) -> String| (0..length).map(item).collect::<Vec<String>>().join(", ");
        let kinds: [&dyn Fn(usize) -> String; 5] = [
            &|i| i.to_string(),
            &|i| format!("'s{i}'"),
            &|i| format!("[{i}, [], {{}}]"),
            &|i| if i % 70 == 69 { "[1]".to_owned() } else { i.to_string() },
            &|i| format!("{{'a': {i}}}"),
        ];
        for item in kinds {
            for python in [format!("[{}]", list(item)), format!("{{{}}}", list(&|i| format!("'k{i}': {}", item(i))))] {
                assert_eq!(shown(&python.replace('\'', "\"")), python);
                // Something after it, so that the next container begins where this one ended.
                let two = format!("[{python}, {python}]");
                assert_eq!(shown(&two.replace('\'', "\"")), two);
            }
        }
    }
}

#[test]
fn a_key_may_come_again_on_either_side_of_the_index() {
    for (first, again) in [(0, 1), (5, 16), (15, 17), (16, 30), (3, 200)] {
        let entry = |at: usize| if at == again { format!("\"k{first}\":-1") } else { format!("\"k{at}\":{at}") };
        let body = format!("{{{}}}", (0..=again).map(entry).collect::<Vec<String>>().join(","));
        let value = parse(body.as_bytes()).unwrap();
        let keys: Vec<String> = value.as_map().unwrap().iter().map(|(key, _)| key.as_str().to_owned()).collect();
        assert_eq!(keys, (0..again).map(|at| format!("k{at}")).collect::<Vec<String>>());
        assert!(matches!(value.as_map().unwrap().get(&format!("k{first}")), Some(Json::Int(-1))));
    }
}

#[test]
fn values_beyond_the_budget_are_refused() {
    let dense = format!("[{}]", vec!["[0]"; 1_000_000].join(","));
    assert_eq!(parse(dense.as_bytes()).unwrap_err().fault, Fault::Memory);
    let ids = format!("[{}]", vec!["12345"; 1_000_000].join(","));
    assert_eq!(parse(ids.as_bytes()).unwrap().as_seq().unwrap().len(), 1_000_000);
    let words = format!("[{}]", vec!["\"a word or two\""; 1_000_000].join(","));
    assert_eq!(parse(words.as_bytes()).unwrap().as_seq().unwrap().len(), 1_000_000);

    budget::begin(budget::Budget::of(0), 0);
    let part = format!("[{}]", vec!["[0]"; 5_000].join(","));
    let taken = (0..100).take_while(|_| parse_part(part.as_bytes()).is_ok()).count();
    assert!((1..20).contains(&taken), "{taken}");
    assert!(budget::check().is_err());
}

#[test]
fn faults_are_told_apart() {
    let fault = |text: &str| parse(text.as_bytes()).unwrap_err().fault;
    assert_eq!(fault("[1"), Fault::Syntax);
    for refused in ["NaN", "-Infinity", "\"\\ud800\"", &"[".repeat(200), &"9".repeat(5000)] {
        assert_eq!(fault(refused), Fault::Refused, "{refused:.20}");
    }
}

#[test]
fn long_strings_are_looked_at_in_steps() {
    for string in ["plain ".repeat(100_000), format!("{}\u{e9}\\n", "late ".repeat(100_000))] {
        let text = format!("{{\"a\": \"{string}\", \"b\": [1]}}");
        let mut parsing = Parsing::new(text.clone().into_bytes());
        let mut steps = 1;
        let value = loop {
            match parsing.step(16 << 10).unwrap() {
                Some(value) => break value,
                None => steps += 1,
            }
        };
        assert_eq!(repr(&value), in_one(text.as_bytes()).unwrap());
        assert!(steps > 500_000 >> 14, "{steps} steps");
    }
}
