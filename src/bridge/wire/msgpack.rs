//! A MessagePack reader that takes what the decoder wants and skips the rest, without building values.
//!
//! Bounds checked, no recursion, and no allocation by a length that the bytes only claim.

/// Why bytes could not be read as what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The bytes end first, or a byte is no MessagePack.
    Broken,
    /// A value of another type stands here.
    Type,
}

/// The type of the next value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Bool,
    /// Any integer.
    Int,
    /// A float.
    Float,
    /// A string.
    Str,
    /// Bytes.
    Bin,
    /// An array.
    Array,
    /// A map.
    Map,
    /// An extension type.
    Ext,
}

/// Takes values off the front of a buffer. A failed call other than for [`Bad::Broken`] leaves the place as it was.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Bad> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(Bad::Broken)?;
        self.rest = tail;
        Ok(head)
    }

    fn be(&mut self, n: usize) -> Result<u64, Bad> {
        Ok(self.take(n)?.iter().fold(0, |v, b| v << 8 | u64::from(*b)))
    }

    /// The type of the next value.
    pub fn kind(&self) -> Result<Kind, Bad> {
        Ok(match *self.rest.first().ok_or(Bad::Broken)? {
            0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff => Kind::Int,
            0x80..=0x8f | 0xde | 0xdf => Kind::Map,
            0x90..=0x9f | 0xdc | 0xdd => Kind::Array,
            0xa0..=0xbf | 0xd9..=0xdb => Kind::Str,
            0xc0 => Kind::Nil,
            0xc2 | 0xc3 => Kind::Bool,
            0xc4..=0xc6 => Kind::Bin,
            0xca | 0xcb => Kind::Float,
            0xc7..=0xc9 | 0xd4..=0xd8 => Kind::Ext,
            0xc1 => return Err(Bad::Broken),
        })
    }

    fn expect(&self, kind: Kind) -> Result<u8, Bad> {
        if self.kind()? == kind { self.rest.first().copied().ok_or(Bad::Broken) } else { Err(Bad::Type) }
    }

    /// Takes a `nil`, if one is next.
    pub fn nil(&mut self) -> Result<bool, Bad> {
        let nil = self.kind()? == Kind::Nil;
        if nil {
            self.take(1)?;
        }
        Ok(nil)
    }

    /// An integer as its 64 bits, and whether it is negative.
    pub fn int(&mut self) -> Result<(u64, bool), Bad> {
        let tag = self.expect(Kind::Int)?;
        self.take(1)?;
        Ok(match tag {
            0x00..=0x7f => (u64::from(tag), false),
            0xe0..=0xff => (i64::from(tag as i8) as u64, true),
            0xcc => (self.be(1)?, false),
            0xcd => (self.be(2)?, false),
            0xce => (self.be(4)?, false),
            0xcf => (self.be(8)?, false),
            _ => {
                let v = match tag {
                    0xd0 => i64::from(self.be(1)? as i8),
                    0xd1 => i64::from(self.be(2)? as i16),
                    0xd2 => i64::from(self.be(4)? as i32),
                    _ => self.be(8)? as i64,
                };
                (v as u64, v < 0)
            }
        })
    }

    /// An integer from 0 to 2³² − 1.
    pub fn u32(&mut self) -> Result<u32, Bad> {
        let (v, negative) = self.int()?;
        if negative { Err(Bad::Type) } else { u32::try_from(v).map_err(|_| Bad::Type) }
    }

    /// Takes up to `n` integers from 0 to 2³² − 1 in a row; stops before the first value that is something else.
    pub fn u32s(&mut self, n: usize, out: &mut Vec<u32>) -> usize {
        let mut rest = self.rest;
        out.reserve(n.min(rest.len()));
        let mut taken = 0;
        while taken < n {
            let (value, after) = match rest {
                [0xcd, a, b, after @ ..] => (u32::from(u16::from_be_bytes([*a, *b])), after),
                [0xce, a, b, c, d, after @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), after),
                [tag @ 0x00..=0x7f, after @ ..] => (u32::from(*tag), after),
                [0xcc, a, after @ ..] => (u32::from(*a), after),
                _ => break,
            };
            out.push(value);
            (rest, taken) = (after, taken + 1);
        }
        self.rest = rest;
        taken
    }

    /// Takes up to `n` unsigned integers of 64 bits in a row; stops before the first value that is something else.
    pub fn u64s(&mut self, n: usize, mut each: impl FnMut(u64)) -> usize {
        let mut taken = 0;
        while taken < n
            && let Some(([0xcf, value @ ..], after)) = self.rest.split_first_chunk::<9>()
        {
            each(u64::from_be_bytes(*value));
            (self.rest, taken) = (after, taken + 1);
        }
        taken
    }

    /// A number of either kind.
    pub fn f64(&mut self) -> Result<f64, Bad> {
        match self.kind()? {
            Kind::Int => self.int().map(|(v, negative)| if negative { v as i64 as f64 } else { v as f64 }),
            Kind::Float => {
                let tag = self.expect(Kind::Float)?;
                self.take(1)?;
                Ok(if tag == 0xca {
                    f64::from(f32::from_bits(self.be(4)? as u32))
                } else {
                    f64::from_bits(self.be(8)?)
                })
            }
            _ => Err(Bad::Type),
        }
    }

    /// The bytes of a string or of a binary.
    pub fn bytes(&mut self) -> Result<&'a [u8], Bad> {
        let tag = match self.kind()? {
            Kind::Str | Kind::Bin => self.take(1)?[0],
            _ => return Err(Bad::Type),
        };
        let n = match tag {
            0xa0..=0xbf => u64::from(tag & 0x1f),
            0xc4 | 0xd9 => self.be(1)?,
            0xc5 | 0xda => self.be(2)?,
            _ => self.be(4)?,
        };
        self.take(n as usize)
    }

    /// A string.
    pub fn str(&mut self) -> Result<&'a str, Bad> {
        self.expect(Kind::Str)?;
        std::str::from_utf8(self.bytes()?).map_err(|_| Bad::Type)
    }

    /// The start of an array: its length.
    pub fn array(&mut self) -> Result<usize, Bad> {
        let tag = self.expect(Kind::Array)?;
        self.take(1)?;
        self.length(tag, 0x90, 0xdc)
    }

    /// The start of a map: its number of pairs.
    pub fn map(&mut self) -> Result<usize, Bad> {
        let tag = self.expect(Kind::Map)?;
        self.take(1)?;
        self.length(tag, 0x80, 0xde)
    }

    fn length(&mut self, tag: u8, fix: u8, long: u8) -> Result<usize, Bad> {
        let n = if tag == long {
            self.be(2)?
        } else if tag == long + 1 {
            self.be(4)?
        } else {
            u64::from(tag - fix)
        };
        // Every element takes a byte at least.
        if n as usize > self.rest.len() { Err(Bad::Broken) } else { Ok(n as usize) }
    }

    /// Passes over one value, however deep.
    pub fn skip(&mut self) -> Result<(), Bad> {
        let mut left = 1usize;
        while left > 0 {
            if left > self.rest.len() {
                return Err(Bad::Broken);
            }
            left -= 1;
            match self.kind()? {
                Kind::Array => left += self.array()?,
                Kind::Map => left += self.map()? * 2,
                Kind::Str | Kind::Bin => drop(self.bytes()?),
                Kind::Int => drop(self.int()?),
                Kind::Float => drop(self.f64()?),
                Kind::Nil | Kind::Bool => drop(self.take(1)?),
                Kind::Ext => {
                    let n = match self.take(1)?[0] {
                        0xc7 => self.be(1)?,
                        0xc8 => self.be(2)?,
                        0xc9 => self.be(4)?,
                        fixed => 1 << (fixed - 0xd4),
                    };
                    self.take(n as usize + 1)?;
                }
            }
        }
        Ok(())
    }
}
