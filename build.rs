//! Exports the descriptor of the embedded packs from the filter (see src/pack/embedded.rs).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_FAMILY").is_ok_and(|family| family == "wasm") {
        println!("cargo::rustc-cdylib-link-arg=--export=KVROUTE_PACKS");
    }
}
