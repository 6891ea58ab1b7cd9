//! Packs inside the running wasm.
//!
//! `kvroute pack --wasm` adds a data segment with a pack file to the finished wasm, and a second one that writes
//! its address and length into [`KVROUTE_PACKS`]. In the plain wasm, and natively, the descriptor stays zero.

/// Says where the packs lie: magic, address, length. Exported, so that the tool finds its address in the wasm.
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor {
    /// [`DESCRIPTOR_MAGIC`]: tells our wasm from others, and this layout from later ones.
    pub magic: u64,
    /// Address of the pack file in linear memory.
    pub address: u32,
    /// Its length; 0 for none.
    pub length: u32,
}

/// What the descriptor begins with.
pub const DESCRIPTOR_MAGIC: u64 = u64::from_le_bytes(*b"KVRPACK\x01");
/// The name under which the descriptor is exported.
pub const DESCRIPTOR_EXPORT: &str = "KVROUTE_PACKS";

/// The descriptor itself.
#[used]
#[unsafe(no_mangle)]
pub static KVROUTE_PACKS: Descriptor = Descriptor { magic: DESCRIPTOR_MAGIC, address: 0, length: 0 };

/// The pack file inside this wasm; empty when there is none.
pub fn embedded() -> &'static [u8] {
    // The segments are written after linking: a plain read would be folded to the zeros above.
    // SAFETY: the pointer is that of a live static.
    let descriptor = unsafe { std::ptr::read_volatile(&raw const KVROUTE_PACKS) };
    if descriptor.length == 0 || descriptor.magic != DESCRIPTOR_MAGIC || !cfg!(target_family = "wasm") {
        return &[];
    }
    // SAFETY: `kvroute pack --wasm` put `length` initialised bytes at `address`, above everything that the linker
    // laid out and below the pages that the allocator gets from memory.grow; nothing ever writes there.
    unsafe { std::slice::from_raw_parts(descriptor.address as usize as *const u8, descriptor.length as usize) }
}
