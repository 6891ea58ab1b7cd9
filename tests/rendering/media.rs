//! Images, audio and video: the text before the first of them still routes, and no block may reach into it.

use std::rc::Rc;

use kvroute::explain::{Model, explain};
use kvroute::nokey::NoKey;
use kvroute::request::{Api, Body, EngineFlags, Renderer};
use kvroute::tokenizer::hf::HfTokenizer;
use serde_json::{Value, json};

use crate::{NOW, prepare, renderer, text};

/// Prints parts as a vision model's template does: text as it is, media as a mark.
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}\
    {{ p.text if p.type == 'text' else '[' + p.type + ']' }}{% endfor %}{% endfor %}";
/// Knows strings only.
const STRINGS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

fn media() -> [Value; 6] {
    [
        json!({"type": "image_url", "image_url": {"url": "data:,x"}}),
        json!({"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}),
        json!({"type": "audio_url", "audio_url": {"url": "x"}}),
        json!({"type": "video_url", "video_url": {"url": "x"}}),
        json!({"image_url": "x"}),
        json!({"type": "image_embeds", "image_embeds": "x"}),
    ]
}

fn t(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn of(template: &str, parts: Vec<Value>) -> Result<(String, bool), NoKey> {
    let body = json!({"messages": [
        {"role": "system", "content": "sys"}, {"role": "user", "content": parts}, {"role": "assistant", "content": "yes"}]});
    let prepared = prepare(&renderer(template, &EngineFlags::default()), Api::ChatCompletions, &body);
    prepared.map(|p| (p.open_ended, text(p))).map(|(open, text)| (text, open)).map_err(|reason| reason.kind)
}

#[test]
fn the_text_ends_before_the_first_part_that_is_none() {
    for part in media() {
        let first = vec![part.clone(), t("one"), t("two")];
        let middle = vec![t("one"), part.clone(), t("two")];
        let last = vec![t("one"), t("two"), part.clone()];
        let twice = vec![t("one"), part.clone(), t("two"), part.clone()];
        for (parts, expected) in [
            (first.clone(), "<system>sys<user>"),
            (middle.clone(), "<system>sys<user>one"),
            (last.clone(), "<system>sys<user>onetwo"),
            (twice, "<system>sys<user>one"),
        ] {
            assert_eq!(of(PARTS, parts), Ok((expected.to_owned(), true)), "{part}");
        }
        // In the string format the placeholders stand before the texts of their message.
        for parts in [first, middle, last] {
            assert_eq!(of(STRINGS, parts), Ok(("<system>sys<user>".to_owned(), true)), "{part}");
        }
    }
    assert_eq!(of(PARTS, vec![t("one")]), Ok(("<system>sys<user>one<assistant>yes".to_owned(), false)));
}

#[test]
fn text_that_a_template_moves_for_media_is_not_taken_for_certain() {
    // What stands before the part depends on its kind: only what is common counts.
    let counts = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}\
        {{ p.text if p.type == 'text' else 'Picture: [' + p.type + ']' }}{% endfor %}{% endfor %}";
    let parts = vec![t("one"), media()[0].clone()];
    assert_eq!(of(counts, parts), Ok(("<system>sys<user>one".to_owned(), true)));
    let drops = "{% for m in messages %}{% for p in m.content %}{{ 'x' }}{% endfor %}{% endfor %}";
    assert_eq!(of(drops, vec![media()[0].clone()]), Err(NoKey::Unsupported));
}

#[test]
fn other_apis_and_truncation() {
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}});
    let body = json!({"messages": [{"role": "user", "content": [t("look"), image]}]});
    let vision = renderer(PARTS, &EngineFlags::default());
    let prepared = prepare(&vision, Api::Messages, &body).unwrap();
    assert_eq!((prepared.open_ended, text(prepared).as_str()), (true, "<user>look"));
    let input = json!([{"role": "user", "content": [
        {"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "x"}]}]);
    let prepared = prepare(&vision, Api::Responses, &json!({"input": input})).unwrap();
    assert_eq!((prepared.open_ended, text(prepared).as_str()), (true, "<user>look"));
    // The end of such a prompt is not known, so it cannot be cut there.
    let mut cut =
        json!({"messages": [{"role": "user", "content": [t("look"), media()[0]]}], "truncate_prompt_tokens": 3});
    assert_eq!(prepare(&vision, Api::ChatCompletions, &cut).unwrap_err().kind, NoKey::Unsupported);
    cut["truncation_side"] = "right".into();
    assert!(prepare(&vision, Api::ChatCompletions, &cut).is_ok());
}

#[test]
fn the_key_ends_at_the_block_before() {
    // Tokens "a", "b" and "ab": the last letter before the part may become another token with what follows.
    let json = json!({
        "version": "1.0", "added_tokens": [],
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    });
    let tokenizer = Rc::new(HfTokenizer::from_json(json.to_string().as_bytes(), Default::default()).unwrap());
    let template = "{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' else 'b' }}{% endfor %}{% endfor %}";
    let source = crate::source(template);
    let renderer = Renderer::new(source, &EngineFlags::default()).unwrap();
    let model = Model {
        name: "m",
        lora: None,
        renderer: &renderer,
        tokenizer,
        specials_in_front: 0,
        block_size: 2,
        hash_seed: "",
    };
    let hashes = |parts: Value| {
        let body = json!({"messages": [{"role": "user", "content": parts}]}).to_string();
        let got = explain(&model, Api::ChatCompletions, &Body::parse(body.as_bytes()).unwrap(), NOW);
        (got.token_ids, got.block_hashes, got.open_ended)
    };
    let image = &media()[0];
    // "abababa" is ab ab ab a; with the part's "b" behind it is ab ab ab ab.
    let (ids, open, is_open) = hashes(json!([t("abababa"), image]));
    assert_eq!((ids, open.len(), is_open), (vec![2, 2, 2, 0], 1, true));
    let (whole_ids, whole, _) = hashes(json!([t("abababab")]));
    assert_eq!((whole_ids, &whole[..1]), (vec![2, 2, 2, 2], open.as_slice()));
    // An even number of whole tokens before it: the last of them is held back as well.
    assert_eq!(hashes(json!([t("abab"), image])).1.len(), 0);
    assert_eq!(hashes(json!([t("ababab"), image])).1, whole[..1]);
}
