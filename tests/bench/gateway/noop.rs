//! A proxy-wasm filter that does nothing, or nothing but to hold each request until its body is complete: what is left
//! when the work of a filter is taken away.

use std::path::{Path, PathBuf};

use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, Function, FunctionSection, MemorySection, MemoryType, Module, TypeSection,
    ValType,
};

/// Every callback that the SDK of kvroute exports for HTTP: its name, how many numbers it takes, what it answers.
const CALLBACKS: [(&str, usize, Option<i32>); 19] = [
    ("proxy_abi_version_0_2_1", 0, None),
    ("proxy_on_memory_allocate", 1, Some(0)),
    ("proxy_on_vm_start", 2, Some(1)),
    ("proxy_on_configure", 2, Some(1)),
    ("proxy_on_tick", 1, None),
    ("proxy_on_queue_ready", 2, None),
    ("proxy_on_context_create", 2, None),
    ("proxy_on_request_headers", 3, Some(0)),
    ("proxy_on_request_body", 3, Some(0)),
    ("proxy_on_request_trailers", 2, Some(0)),
    ("proxy_on_response_headers", 3, Some(0)),
    ("proxy_on_response_body", 3, Some(0)),
    ("proxy_on_response_trailers", 2, Some(0)),
    ("proxy_on_http_call_response", 5, None),
    ("proxy_on_foreign_function", 3, None),
    ("proxy_on_grpc_close", 3, None),
    ("proxy_on_done", 1, Some(1)),
    ("proxy_on_log", 1, None),
    ("proxy_on_delete", 1, None),
];

/// The callbacks that hold a request, whose last number says whether it is complete.
const HOLD: [&str; 2] = ["proxy_on_request_headers", "proxy_on_request_body"];

/// The module as bytes.
fn module(holds: bool) -> Vec<u8> {
    let (mut types, mut functions, mut exports, mut code) =
        (TypeSection::new(), FunctionSection::new(), ExportSection::new(), CodeSection::new());
    for (index, (name, takes, answer)) in (0..).zip(CALLBACKS) {
        types.ty().function(vec![ValType::I32; takes], answer.map(|_| ValType::I32));
        functions.function(index);
        exports.export(name, ExportKind::Func, index);
        let mut body = Function::new([]);
        if holds && HOLD.contains(&name) {
            // 1 stops, 0 goes on.
            body.instructions().local_get(2).i32_eqz();
        } else if let Some(answer) = answer {
            body.instructions().i32_const(answer);
        }
        body.instructions().end();
        code.function(&body);
    }
    let mut memory = MemorySection::new();
    memory.memory(MemoryType { minimum: 1, maximum: None, memory64: false, shared: false, page_size_log2: None });
    exports.export("memory", ExportKind::Memory, 0);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&memory).section(&exports).section(&code);
    module.finish()
}

/// The module as a file.
pub fn file(holds: bool) -> PathBuf {
    let name = if holds { "hold.wasm" } else { "noop.wasm" };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&out, module(holds)).unwrap();
    out
}
