//! Sixteen bytes of text at once: which of them are letters, digits, white space, printed, or end a run of JSON text.
//!
//! Each answer has one bit a byte, the first byte the lowest. Only ASCII is told; of other bytes every answer is no.
//! With `simd128` in wasm and SSE2 natively it is some ten instructions; elsewhere, and as the twin that these are
//! tested against, a byte at a time.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use wasm as arch;
#[cfg(target_arch = "x86_64")]
use x86 as arch;

#[cfg(not(any(target_arch = "x86_64", all(target_arch = "wasm32", target_feature = "simd128"))))]
use plain as arch;

/// Sixteen bytes.
#[derive(Clone, Copy)]
pub struct Lanes(arch::Bytes);

impl Lanes {
    /// Sixteen bytes.
    #[inline(always)]
    pub fn of(bytes: &[u8; 16]) -> Self {
        let both = u128::from_le_bytes(*bytes);
        Lanes::new(both as u64, (both >> 64) as u64)
    }

    /// The bytes as they are in memory, in two halves.
    #[inline(always)]
    pub fn new(low: u64, high: u64) -> Self {
        Lanes(arch::new(low, high))
    }

    /// `A` to `Z`, `a` to `z`.
    #[inline(always)]
    pub fn letters(self) -> u32 {
        arch::within(arch::or(self.0, 0x20), b'a', 26)
    }

    /// `A` to `Z`.
    #[inline(always)]
    pub fn upper(self) -> u32 {
        arch::within(self.0, b'A', 26)
    }

    /// `0` to `9`.
    #[inline(always)]
    pub fn digits(self) -> u32 {
        arch::within(self.0, b'0', 10)
    }

    /// Line feed, carriage return.
    #[inline(always)]
    pub fn newlines(self) -> u32 {
        arch::equal(self.0, b'\n') | arch::equal(self.0, b'\r')
    }

    /// `/`.
    #[inline(always)]
    pub fn slashes(self) -> u32 {
        arch::equal(self.0, b'/')
    }

    /// `"`, `\\` and control characters: what a JSON string has no plain byte of.
    #[inline(always)]
    pub fn json_stops(self) -> u32 {
        arch::json_stops(self.0)
    }

    /// Space.
    #[inline(always)]
    pub fn blanks(self) -> u32 {
        arch::equal(self.0, b' ')
    }

    /// Tab.
    #[inline(always)]
    pub fn tabs(self) -> u32 {
        arch::equal(self.0, b'\t')
    }

    /// `'`.
    #[inline(always)]
    pub fn apostrophes(self) -> u32 {
        arch::equal(self.0, b'\'')
    }

    /// What ASCII prints, the space aside: letters, digits, signs.
    #[inline(always)]
    pub fn printed(self) -> u32 {
        arch::within(self.0, 0x21, 0x5e)
    }
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm {
    use core::arch::wasm32::*;

    pub type Bytes = v128;

    #[inline(always)]
    pub fn new(low: u64, high: u64) -> v128 {
        u64x2(low, high)
    }

    #[inline(always)]
    pub fn or(bytes: v128, bit: u8) -> v128 {
        v128_or(bytes, u8x16_splat(bit))
    }

    #[inline(always)]
    pub fn within(bytes: v128, from: u8, count: u8) -> u32 {
        // Signed: one instruction on x86, where an unsigned comparison takes two.
        let moved = i8x16_sub(bytes, i8x16_splat(from.wrapping_add(128) as i8));
        u32::from(i8x16_bitmask(i8x16_lt(moved, i8x16_splat(count.wrapping_sub(128) as i8))))
    }

    #[inline(always)]
    pub fn equal(bytes: v128, byte: u8) -> u32 {
        u32::from(u8x16_bitmask(u8x16_eq(bytes, u8x16_splat(byte))))
    }

    #[inline(always)]
    pub fn json_stops(bytes: v128) -> u32 {
        let marks = v128_or(u8x16_eq(bytes, u8x16_splat(b'"')), u8x16_eq(bytes, u8x16_splat(b'\\')));
        let control = u8x16_eq(u8x16_min(bytes, u8x16_splat(0x1f)), bytes);
        u32::from(u8x16_bitmask(v128_or(marks, control)))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    pub type Bytes = __m128i;

    // SAFETY, of all: every x86-64 has SSE2, and nothing here touches memory.
    #[inline(always)]
    pub fn new(low: u64, high: u64) -> __m128i {
        unsafe { _mm_set_epi64x(high as i64, low as i64) }
    }

    #[inline(always)]
    pub fn or(bytes: __m128i, bit: u8) -> __m128i {
        unsafe { _mm_or_si128(bytes, _mm_set1_epi8(bit as i8)) }
    }

    #[inline(always)]
    pub fn within(bytes: __m128i, from: u8, count: u8) -> u32 {
        unsafe {
            // Signed: there is no unsigned comparison.
            let moved = _mm_sub_epi8(bytes, _mm_set1_epi8(from.wrapping_add(128) as i8));
            _mm_movemask_epi8(_mm_cmplt_epi8(moved, _mm_set1_epi8(count.wrapping_sub(128) as i8))) as u32
        }
    }

    #[inline(always)]
    pub fn equal(bytes: __m128i, byte: u8) -> u32 {
        unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8))) as u32 }
    }

    #[inline(always)]
    pub fn json_stops(bytes: __m128i) -> u32 {
        unsafe {
            let equal = |byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8));
            let control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
            _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(equal(b'"'), equal(b'\\')), control)) as u32
        }
    }
}

#[cfg(any(test, not(any(target_arch = "x86_64", all(target_arch = "wasm32", target_feature = "simd128")))))]
mod plain {
    pub type Bytes = u128;

    pub fn new(low: u64, high: u64) -> u128 {
        u128::from(high) << 64 | u128::from(low)
    }

    pub fn or(bytes: u128, bit: u8) -> u128 {
        bytes | u128::from_le_bytes([bit; 16])
    }

    pub fn within(bytes: u128, from: u8, count: u8) -> u32 {
        bits(bytes, |byte| byte.wrapping_sub(from) < count)
    }

    pub fn equal(bytes: u128, other: u8) -> u32 {
        bits(bytes, |byte| byte == other)
    }

    pub fn json_stops(bytes: u128) -> u32 {
        bits(bytes, |byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))
    }

    fn bits(bytes: u128, is_one: impl Fn(u8) -> bool) -> u32 {
        bytes.to_le_bytes().iter().rev().fold(0, |bits, byte| bits << 1 | u32::from(is_one(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_told_as_the_slow_twin_tells_it() {
        for byte in 0..=255u8 {
            for around in [0, b' ', b'"', b'\\', b'/', b'a', b'Z', b'[', b'{', 0x7f, 0x80, 0xff, byte] {
                for at in [0, 7, 8, 15] {
                    let mut bytes = [around; 16];
                    bytes[at] = byte;
                    let raw: plain::Bytes = u128::from_le_bytes(bytes);
                    let lanes = Lanes::new(raw as u64, (raw >> 64) as u64);
                    let bits = |is_one: fn(u8) -> bool| {
                        (0..16).filter(|at| is_one(bytes[*at])).fold(0, |bits, at| bits | 1 << at)
                    };
                    assert_eq!(lanes.letters(), bits(|b| b.is_ascii_alphabetic()));
                    assert_eq!(lanes.upper(), bits(|b| b.is_ascii_uppercase()));
                    assert_eq!(lanes.digits(), bits(|b| b.is_ascii_digit()));
                    assert_eq!(lanes.blanks(), bits(|b| b == b' '));
                    assert_eq!(lanes.tabs(), bits(|b| b == b'\t'));
                    assert_eq!(lanes.apostrophes(), bits(|b| b == b'\''));
                    assert_eq!(lanes.newlines(), bits(|b| b"\r\n".contains(&b)));
                    assert_eq!(lanes.slashes(), bits(|b| b == b'/'));
                    assert_eq!(lanes.printed(), bits(|b| b.is_ascii_graphic()));
                    assert_eq!(lanes.json_stops(), plain::json_stops(raw));
                    assert_eq!(arch::within(lanes.0, 3, 200), plain::within(raw, 3, 200));
                    assert_eq!(arch::equal(arch::or(lanes.0, 0x11), 0x55), plain::equal(plain::or(raw, 0x11), 0x55));
                }
            }
        }
        assert_eq!(plain::new(1, 2), 2 << 64 | 1);
    }
}
