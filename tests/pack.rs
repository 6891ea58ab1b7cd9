//! `kvroute pack` and `kvroute inspect` as a user runs them: what they refuse, and several packs in one file.

use std::path::PathBuf;
use std::process::Command;

use kvroute::pack::container::FORMAT;
use serde_json::{Value, json};
use wasm_encoder::{
    ConstExpr, DataSection, ExportKind, ExportSection, GlobalSection, GlobalType, MemorySection, MemoryType, Module,
    ValType,
};

/// A folder that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("kvroute-pack-cli-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::create_dir_all(self.0.join(name).parent().unwrap()).unwrap();
        std::fs::write(self.0.join(name), content).unwrap();
        self.at(name)
    }

    /// A model directory with these of its files.
    fn model(&self, name: &str, tokenizer: bool, template: bool) -> String {
        let json = json!({"version": "1.0", "added_tokens": [],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}});
        if tokenizer {
            self.put(&format!("{name}/tokenizer.json"), json.to_string());
        }
        let config = if template { json!({"chat_template": "{{ messages[0].content }}"}) } else { json!({}) };
        self.put(&format!("{name}/tokenizer_config.json"), config.to_string());
        self.at(name)
    }

    fn pack(&self, name: &str) -> String {
        let file = self.at(&format!("{name}.pack"));
        assert_eq!(kvroute(&["pack", &self.model(name, true, true), "-o", &file]).0, 0);
        file
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Exit code, standard output, standard error.
fn kvroute(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kvroute")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// What packing says when it refuses: one line. It writes nothing.
fn refused(dir: &Dir, arguments: &[&str]) -> String {
    let out = dir.at("out");
    let (code, stdout, stderr) = kvroute(&[&["pack", "-o", &out], arguments].concat());
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(!std::fs::exists(&out).unwrap() && !std::fs::exists(out + ".tmp").unwrap());
    stderr.trim_end().to_owned()
}

/// As much of the filter as packing looks at, with `magic` where its descriptor begins.
fn filter(magic: &[u8; 8]) -> Vec<u8> {
    let mut module = Module::new();
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 2, maximum: None, memory64: false, shared: false, page_size_log2: None });
    module.section(&memories);
    let mut globals = GlobalSection::new();
    let constant = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
    globals.global(constant, &ConstExpr::i32_const(1024));
    module.section(&globals);
    let mut exports = ExportSection::new();
    exports.export("KVROUTE_PACKS", ExportKind::Global, 0);
    module.section(&exports);
    let mut data = DataSection::new();
    data.active(0, &ConstExpr::i32_const(1024), [&magic[..], &[0; 8]].concat());
    module.section(&data);
    module.finish()
}

const MAGIC: &[u8; 8] = b"KVRPACK\x01";

#[test]
fn directories_without_tokenizer_or_template_are_refused() {
    let dir = Dir::new("directories");
    let said = refused(&dir, &[&dir.model("a", false, true)]);
    assert!(said.contains("a/tokenizer.json: missing: give a Hugging Face model directory"), "{said}");
    let said = refused(&dir, &[&dir.model("b", true, false)]);
    assert!(said.contains("b/tokenizer_config.json: chat_template: missing"), "{said}");
    assert!(said.contains("--allow-no-template"), "{said}");
    std::fs::remove_file(dir.0.join("b/tokenizer_config.json")).unwrap();
    let said = refused(&dir, &[&dir.at("b")]);
    assert!(said.contains("b/tokenizer_config.json: missing; download it with the model"), "{said}");
    assert!(refused(&dir, &[&dir.at("nowhere")]).contains("nowhere: not a directory"));
    let broken = dir.model("c", true, true);
    dir.put("c/chat_template.jinja", "{% for m in messages %}");
    let said = refused(&dir, &[&broken]);
    assert!(
        said.contains("c/chat_template.jinja: the chat template: ")
            && said.contains("end of block (in chat_template:1)"),
        "{said}"
    );
    dir.put("c/chat_template.jinja", "{{ messages[0].content }}\n{{ messages | groupby('role') }}");
    let said = refused(&dir, &[&broken]);
    assert!(said.contains("line 2: the filter 'groupby' is not rendered here"), "{said}");
    let out = dir.at("c.pack");
    let (code, stdout, _) = kvroute(&["pack", &broken, "--allow-no-template", "-o", &out]);
    assert!(code == 0 && stdout.contains("none: chat requests get no key"), "{stdout}");
}

#[test]
fn damaged_and_newer_packs_are_refused() {
    let dir = Dir::new("packs");
    let good = std::fs::read(dir.pack("m")).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let last = good.len() - 1;
    for (name, bytes, why) in [
        ("damaged", changed(last, good[last] ^ 1), "damaged: the checksum does not fit; copy or pack it again"),
        ("cut", good[..last].to_vec(), "cut or padded"),
        ("newer", changed(8, FORMAT as u8 + 1), "is newer than this kvroute reads"),
        ("older", changed(8, FORMAT as u8 - 1), "is too old"),
        ("other", b"hello".to_vec(), "not a pack file"),
    ] {
        let file = dir.put(name, bytes);
        let said = refused(&dir, &["--pack", &file]);
        assert!(said.contains(&format!("{name}: ")) && said.contains(why), "{said}");
        assert_eq!(kvroute(&["inspect", &file]).0, 1);
        let (code, _, stderr) = kvroute(&["explain", "--pack", &file, "/dev/null"]);
        assert!(code == 1 && stderr.contains(why), "{stderr}");
    }
}

#[test]
fn a_wasm_that_is_not_ours_is_refused_before_the_long_work() {
    let dir = Dir::new("wasm");
    let pack = dir.pack("m");
    for (name, bytes, why) in [
        ("text.wasm", b"hello".to_vec(), "not kvroute's filter: not a wasm module"),
        ("empty.wasm", Module::new().finish(), "not kvroute's filter: no memory"),
        ("layout.wasm", filter(b"KVRPACK\x02"), "not kvroute's filter: the descriptor of its packs has another layout"),
        ("cut.wasm", filter(MAGIC)[..40].to_vec(), "damaged wasm"),
    ] {
        let file = dir.put(name, bytes);
        // The directory is not there: the wasm is refused first.
        for arguments in [&["--pack", &pack, "--wasm", &file][..], &["/no/such/directory", "--wasm", &file]] {
            let said = refused(&dir, arguments);
            assert!(said.contains(&format!("{name}: {why}")), "{said}");
        }
    }
    let said = refused(&dir, &["--pack", &pack, "--wasm", &dir.at("gone.wasm")]);
    assert!(said.contains("gone.wasm: No such file"), "{said}");
}

#[test]
fn several_packs_in_one_file_and_in_the_filter() {
    let dir = Dir::new("several");
    let (a, b, c) = (dir.pack("a"), dir.pack("b"), dir.model("c", true, true));
    let names = |file: &str| {
        let (code, stdout, stderr) = kvroute(&["inspect", "--json", file]);
        assert_eq!(code, 0, "{stderr}");
        let value: Value = serde_json::from_str(&stdout).unwrap();
        let packs = value["packs"].as_array().unwrap().iter();
        (value["kind"].as_str().unwrap().to_owned(), packs.map(|p| p["name"].clone()).collect::<Vec<_>>())
    };
    let (wasm, all, packed) = (dir.put("kvroute.wasm", filter(MAGIC)), dir.at("all.pack"), dir.at("all.wasm"));
    assert_eq!(names(&wasm), ("filter".to_owned(), vec![]));
    assert_eq!(kvroute(&["pack", &c, "--pack", &a, "--pack", &b, "-o", &all]).0, 0);
    assert_eq!(names(&all), ("pack".to_owned(), vec![json!("c"), json!("a"), json!("b")]));
    assert_eq!(kvroute(&["pack", "--pack", &all, "--wasm", &wasm, "-o", &packed]).0, 0);
    assert_eq!(names(&packed), ("filter".to_owned(), vec![json!("c"), json!("a"), json!("b")]));
    // Packing again replaces them, also in place.
    assert_eq!(kvroute(&["pack", "--pack", &b, "--wasm", &packed, "-o", &packed]).0, 0);
    assert_eq!(names(&packed), ("filter".to_owned(), vec![json!("b")]));
    let said = refused(&dir, &["--pack", &a, "--pack", &a]);
    assert!(said.contains("two packs have the name \"a\"; give one another --name"), "{said}");
    assert_eq!(kvroute(&["pack", "-o", &all]).0, 2, "nothing to pack");
}

/// A tokenizer over bytes with two merges, whose words are cut by this pattern.
fn byte_tokenizer(pattern: &str) -> String {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..256).filter(|byte| !printable(*byte)).zip(256..);
    let characters: std::collections::HashMap<u32, u32> =
        (0..256).filter(|byte| printable(*byte)).map(|byte| (byte, byte)).chain(others).collect();
    let mut vocab = serde_json::Map::new();
    for byte in 0..256 {
        vocab.insert(char::from_u32(characters[&byte]).unwrap().to_string(), byte.into());
    }
    vocab.extend([("he".to_owned(), 256.into()), ("ll".to_owned(), 257.into())]);
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "e"], ["l", "l"]]},
    })
    .to_string()
}

#[test]
fn a_pipeline_that_is_not_understood_is_said_and_texts_are_compared_with_the_crate() {
    const KNOWN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let dir = Dir::new("verify");
    let texts = [dir.put("a.txt", "hello, hello: 12 \u{e9}\n"), dir.put("b.txt", "  e\u{301} \t\r\n")];
    for (pattern, engine) in [(KNOWN, "compact"), (r"\w+|\W+", "tokenizer.json")] {
        let model = dir.model("m", true, true);
        dir.put("m/tokenizer.json", byte_tokenizer(pattern));
        let out = dir.at("m.pack");
        let (code, said, errors) = kvroute(&["pack", &model, "-o", &out, "--verify", &texts[0], &texts[1]]);
        assert_eq!(code, 0, "{errors}");
        for text in &texts {
            assert!(said.contains(&format!("{text}: ")) && said.contains("all equal to those of the tokenizers crate"));
        }
        assert!(said.contains(&format!("tokenizer    {engine}, ")), "{said}");
        let noted = said.contains(r#"by the tokenizers crate, slower: pre_tokenizer: no scanner for ["\\w+|\\W+"]"#);
        assert_eq!(noted, engine == "tokenizer.json", "{said}");
    }
    let nowhere = dir.at("nowhere.txt");
    let said = refused(&dir, &[&dir.at("m"), "--verify", &nowhere]);
    assert!(said.contains("nowhere.txt"), "{said}");
}
