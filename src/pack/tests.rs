//! Packs: written, read, refused.

use std::path::{Path, PathBuf};

use serde_json::json;
use wasm_encoder::{
    ConstExpr, CustomSection, DataSection, ExportKind, ExportSection, GlobalSection, GlobalType, MemorySection,
    MemoryType, Module, ValType,
};

use super::build::{BuildOptions, SourceOptions, build, merge};
use super::embedded::{DESCRIPTOR_EXPORT, DESCRIPTOR_MAGIC};
use super::{Pack, container, wasm};

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("kvroute-pack-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn put(self, file: &str, content: impl AsRef<[u8]>) -> Dir {
        std::fs::write(self.0.join(file), content).unwrap();
        self
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tokenizer small enough to write down: bytes "a", "b", the merge "ab", `<s>` in front.
fn tiny_tokenizer() -> String {
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [3], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    })
    .to_string()
}

fn model(name: &str) -> Dir {
    Dir::new(name)
        .put("tokenizer.json", tiny_tokenizer())
        .put("tokenizer_config.json", r#"{"chat_template": "{{ messages[0].content }}", "bos_token": "<s>"}"#)
        .put("config.json", r#"{"model_type": "tiny", "architectures": ["TinyForCausalLM"]}"#)
}

/// A pack over the tiny tokenizer, whose template prints the first message.
pub fn pack_named(name: &str) -> Vec<u8> {
    build(&model(name).0, &BuildOptions { name: Some(name.into()), ..Default::default() }).unwrap()
}

fn refused(dir: &Path) -> String {
    build(dir, &BuildOptions::default()).unwrap_err().0
}

#[test]
fn a_pack_gives_back_what_the_directory_said() {
    let pack = Pack::parse(pack_named("one")).unwrap().remove(0);
    assert_eq!(pack.name(), "one");
    assert_eq!(pack.template_source().model_type.as_deref(), Some("tiny"));
    assert_eq!(pack.template_source().special_tokens["bos_token"], "<s>");
    assert_eq!(pack.meta().specials.prefix, [3]);
    let tokenizer = pack.tokenizer().unwrap();
    assert_eq!(tokenizer.clone().encode("ab<s>ba", false).unwrap(), [2, 3, 1, 0]);
    assert_eq!(tokenizer.encode("ab<s>ba", true).unwrap(), [3, 2, 3, 1, 0]);
}

#[test]
fn several_packs_in_one_file() {
    let merged = merge(&[pack_named("m1"), pack_named("m2")]).unwrap();
    let names: Vec<_> = Pack::parse(merged).unwrap().iter().map(|p| p.name().to_owned()).collect();
    assert_eq!(names, ["m1", "m2"]);
    let twice = merge(&[pack_named("m3"), pack_named("m3")]).unwrap_err();
    assert!(twice.0.contains("\"m3\"") && twice.0.contains("--name"), "{twice}");
}

#[test]
fn the_fingerprint_follows_the_files() {
    let fingerprint =
        |dir: &Dir| Pack::parse(build(&dir.0, &Default::default()).unwrap()).unwrap()[0].fingerprint().to_owned();
    let (a, b) = (model("fp"), model("fp2"));
    assert_eq!(fingerprint(&a), fingerprint(&b));
    let b = b.put("chat_template.jinja", "other");
    assert_ne!(fingerprint(&a), fingerprint(&b));
}

#[test]
fn damaged_cut_and_newer_packs_are_refused() {
    let file = pack_named("damaged");
    for at in 0..file.len() {
        let mut broken = file.clone();
        broken[at] ^= 0x10;
        assert!(Pack::parse(broken).is_err(), "byte {at}");
        assert!(Pack::parse(file[..at].to_vec()).is_err(), "cut at {at}");
    }
    let mut newer = file.clone();
    newer[8] = container::FORMAT as u8 + 1;
    assert!(Pack::parse(newer).unwrap_err().0.contains("newer"));
    assert!(Pack::parse(b"hello".to_vec()).unwrap_err().0.contains("not a pack"));
    assert!(Pack::parse(file[..file.len() - 1].to_vec()).unwrap_err().0.contains("cut"));
}

#[test]
fn directories_that_cannot_be_followed_are_refused_by_name() {
    let none = Dir::new("none");
    assert!(refused(&none.0).contains("tokenizer.json: missing"));
    let model_file = Dir::new("sp").put("tokenizer.model", "x");
    assert!(refused(&model_file.0).contains("only tokenizer.model is there"));
    let tekken = model("tekken").put("tekken.json", "{}").put("consolidated.safetensors", "");
    assert!(refused(&tekken.0).contains("Mistral"));
    let own = model("v32").put("config.json", r#"{"architectures": ["DeepseekV32ForCausalLM"]}"#);
    assert!(refused(&own.0).contains("DeepSeek V3.2"));
    let garbage = model("garbage").put("tokenizer.json", "{");
    assert!(refused(&garbage.0).contains("tokenizer.json"));
    let garbage = model("garbage2").put("tokenizer_config.json", "[");
    assert!(refused(&garbage.0).contains("tokenizer_config.json: not JSON"));
    assert!(refused(Path::new("/no/such/directory")).contains("not a directory"));
}

#[test]
fn a_base_model_needs_the_flag() {
    let base = model("base").put("tokenizer_config.json", "{}");
    assert!(refused(&base.0).contains("--allow-no-template"));
    let source = SourceOptions { allow_no_template: true, ..Default::default() };
    let file = build(&base.0, &BuildOptions { name: None, source }).unwrap();
    assert!(Pack::parse(file).unwrap()[0].template_source().chat_template.is_none());
    // Harmony is rendered by code: no template needed.
    let source = SourceOptions { model_type: Some("gpt_oss".into()), ..Default::default() };
    assert!(build(&base.0, &BuildOptions { name: None, source }).is_ok());
}

/// A module with a memory of two pages and the descriptor at 1032.
fn module(magic: u64) -> Vec<u8> {
    let mut module = Module::new();
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 2, maximum: None, memory64: false, shared: false, page_size_log2: None });
    module.section(&memories);
    let mut globals = GlobalSection::new();
    let constant = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
    globals.global(constant, &ConstExpr::i32_const(7)).global(constant, &ConstExpr::i32_const(1032));
    module.section(&globals);
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0).export(DESCRIPTOR_EXPORT, ExportKind::Global, 1);
    exports.export("proxy_on_log", ExportKind::Func, 0).export("proxy_on_delete", ExportKind::Func, 0);
    module.section(&exports);
    let mut data = DataSection::new();
    let bytes: Vec<u8> = [[9; 8], magic.to_le_bytes(), [0; 8]].concat();
    data.active(0, &ConstExpr::i32_const(1024), bytes);
    module.section(&data);
    module.section(&CustomSection { name: "kvroute.unused".into(), data: b"proxy_on_done\nproxy_on_log".into() });
    module.finish()
}

#[test]
fn packs_go_into_the_filter_and_are_replaced() {
    let plain = module(DESCRIPTOR_MAGIC);
    assert_eq!(wasm::extract(&plain).unwrap(), None);
    let (first, second) = (pack_named("w1"), pack_named("w2"));
    let packed = wasm::embed(&plain, &first).unwrap();
    assert_eq!(wasm::extract(&packed).unwrap(), Some(&first[..]));
    let again = wasm::embed(&packed, &second).unwrap();
    assert_eq!(wasm::extract(&again).unwrap(), Some(&second[..]));
    assert_eq!(again, wasm::embed(&plain, &second).unwrap());
}

#[test]
fn the_packed_filter_has_room_and_a_descriptor() {
    let pack = vec![5; 70_000];
    let packed = wasm::embed(&module(DESCRIPTOR_MAGIC), &pack).unwrap();
    let (mut pages, mut last, mut exports) = (0, None, Vec::new());
    for payload in wasmparser::Parser::new(0).parse_all(&packed) {
        match payload.unwrap() {
            wasmparser::Payload::MemorySection(s) => pages = s.into_iter().next().unwrap().unwrap().initial,
            wasmparser::Payload::ExportSection(s) => exports = s.into_iter().map(|e| e.unwrap().name).collect(),
            wasmparser::Payload::DataSection(s) => last = s.into_iter().last().map(|s| s.unwrap().data.to_vec()),
            _ => {}
        }
    }
    assert_eq!(pages, 4);
    assert_eq!(exports, ["memory", DESCRIPTOR_EXPORT, "proxy_on_delete"], "callbacks without use cost a call each");
    let expected = [&DESCRIPTOR_MAGIC.to_le_bytes()[..], &131_072u32.to_le_bytes(), &70_000u32.to_le_bytes()].concat();
    assert_eq!(last, Some(expected));
}

#[test]
fn other_wasm_is_refused() {
    for (bytes, why) in [
        (module(1), "another layout"),
        (Module::new().finish(), "no memory"),
        (b"\0asmjunk".to_vec(), "damaged"),
        (b"hello".to_vec(), "not a wasm"),
    ] {
        let error = wasm::embed(&bytes, &[]).unwrap_err();
        assert!(error.0.contains(why), "{error}");
    }
}
