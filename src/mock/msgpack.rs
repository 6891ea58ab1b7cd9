//! The few MessagePack forms that event batches need.

/// An array of `len` values follows.
pub fn array(out: &mut Vec<u8>, len: usize) {
    match len {
        0..16 => out.push(0x90 | len as u8),
        16..0x1_0000 => prefixed(out, 0xdc, &(len as u16).to_be_bytes()),
        _ => prefixed(out, 0xdd, &(len as u32).to_be_bytes()),
    }
}

/// A map of `len` (at most 15) entries follows.
pub fn map(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len < 16);
    out.push(0x80 | len as u8);
}

/// One entry of a map.
pub fn entry(out: &mut Vec<u8>, key: &str, value: impl FnOnce(&mut Vec<u8>)) {
    str(out, key);
    value(out);
}

/// An unsigned integer in its shortest form.
pub fn uint(out: &mut Vec<u8>, v: u64) {
    match v {
        0..0x80 => out.push(v as u8),
        0x80..0x100 => prefixed(out, 0xcc, &[v as u8]),
        0x100..0x1_0000 => prefixed(out, 0xcd, &(v as u16).to_be_bytes()),
        0x1_0000..0x1_0000_0000 => prefixed(out, 0xce, &(v as u32).to_be_bytes()),
        _ => prefixed(out, 0xcf, &v.to_be_bytes()),
    }
}

/// A double.
pub fn float(out: &mut Vec<u8>, v: f64) {
    prefixed(out, 0xcb, &v.to_be_bytes());
}

/// Nothing.
pub fn nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

/// A string.
pub fn str(out: &mut Vec<u8>, v: &str) {
    match v.len() {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..0x100 => prefixed(out, 0xd9, &[len as u8]),
        len @ 0x100..0x1_0000 => prefixed(out, 0xda, &(len as u16).to_be_bytes()),
        len => prefixed(out, 0xdb, &(len as u32).to_be_bytes()),
    }
    out.extend_from_slice(v.as_bytes());
}

/// At most 255 bytes.
pub fn bin(out: &mut Vec<u8>, v: &[u8]) {
    debug_assert!(v.len() < 0x100);
    prefixed(out, 0xc4, &[v.len() as u8]);
    out.extend_from_slice(v);
}

fn prefixed(out: &mut Vec<u8>, marker: u8, bytes: &[u8]) {
    out.push(marker);
    out.extend_from_slice(bytes);
}
