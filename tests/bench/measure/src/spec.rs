//! What to measure on: named pieces of bytes, one after the other.

/// `count u32 ‖ (name length u32 ‖ name ‖ length u32 ‖ bytes)…`
#[derive(Debug, Default)]
pub struct Spec(Vec<(String, Vec<u8>)>);

impl Spec {
    /// Adds a piece.
    pub fn push(&mut self, name: &str, bytes: impl Into<Vec<u8>>) {
        self.0.push((name.to_owned(), bytes.into()));
    }

    /// A piece.
    pub fn bytes(&self, name: &str) -> Result<&[u8], String> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, bytes)| &bytes[..]).ok_or_else(|| format!("the spec has no {name}"))
    }

    /// A piece that is text.
    pub fn text(&self, name: &str) -> Result<&str, String> {
        std::str::from_utf8(self.bytes(name)?).map_err(|error| format!("{name}: {error}"))
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = (self.0.len() as u32).to_le_bytes().to_vec();
        for (name, bytes) in &self.0 {
            for part in [name.as_bytes(), bytes] {
                out.extend_from_slice(&(part.len() as u32).to_le_bytes());
                out.extend_from_slice(part);
            }
        }
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Option<Spec> {
        let (count, mut rest) = bytes.split_first_chunk::<4>()?;
        let mut part = || -> Option<&[u8]> {
            let (len, more) = rest.split_first_chunk::<4>()?;
            let (part, more) = more.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = more;
            Some(part)
        };
        let mut spec = Spec::default();
        for _ in 0..u32::from_le_bytes(*count) {
            let name = String::from_utf8(part()?.to_vec()).ok()?;
            spec.0.push((name, part()?.to_vec()));
        }
        Some(spec)
    }
}
