//! Generated text on which a compact tokenizer is compared with the crate: what pre-tokenizers, normalizers and
//! merges trip over. Nothing here is quoted; words are made up from each script's letters.

/// A small generator of pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// One of a list.
    pub fn pick<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }
}

/// Ranges of code points of scripts and of troublemakers.
const RANGES: &[(u32, u32)] = &[
    (0x20, 0x7e),
    (0x41, 0x5a),
    (0x61, 0x7a),
    (0x61, 0x7a),
    (0x30, 0x39),
    (0x00, 0x20),
    (0x7f, 0xa0),
    (0xa1, 0x17f),
    (0x180, 0x24f),
    (0x2b0, 0x36f),
    (0x370, 0x3ff),
    (0x400, 0x52f),
    (0x530, 0x5ff),
    (0x600, 0x6ff),
    (0x900, 0x97f),
    (0x980, 0xdff),
    (0xe00, 0xeff),
    (0x1000, 0x109f),
    (0x10a0, 0x10ff),
    (0x1100, 0x11ff),
    (0x1ab0, 0x1aff),
    (0x1c80, 0x1c90),
    (0x1e00, 0x1fff),
    (0x2000, 0x206f),
    (0x2070, 0x218f),
    (0x2190, 0x27ff),
    (0x2580, 0x2583),
    (0x3000, 0x30ff),
    (0x3400, 0x34ff),
    (0x4e00, 0x9fff),
    (0xa640, 0xa7ff),
    (0xac00, 0xd7a3),
    (0xe000, 0xe010),
    (0xf900, 0xfaff),
    (0xfb00, 0xfdff),
    (0xfe00, 0xffff),
    (0x10000, 0x1ffff),
    (0x1f1e6, 0x1f64f),
    (0x20000, 0x323af),
    (0xe0000, 0xe01ef),
    (0x10fff0, 0x10ffff),
];

const PIECES: &[&str] = &[
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\t",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{b}",
    "'s",
    "'S",
    "'ſ",
    "'t",
    "'RE",
    "'ll",
    "'Ve",
    "'",
    "''",
    "\"",
    "```",
    "//",
    "/*",
    "->",
    "=>",
    "!=",
    "::",
    "...",
    "--",
    "----",
    "<",
    ">",
    "</",
    "<|",
    "|>",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ";",
    ":",
    "_",
    "__",
    "$",
    "%",
    "1",
    "12",
    "123",
    "1234",
    "12345678",
    "0x1F",
    "3.14",
    "½",
    "²",
    "Ⅷ",
    "٣",
    "e\u{301}",
    "a\u{30a}\u{327}",
    "\u{301}",
    "\u{1100}\u{1161}\u{11a8}",
    "한",
    "ﬁ",
    "Å",
    "Ω",
    "K",
    "👨\u{200d}👩\u{200d}👧",
    "🏳\u{fe0f}\u{200d}🌈",
    "🇩🇪",
    "\u{200b}",
    "\u{feff}",
    "\u{fffd}",
    "\u{ffff}",
    "\u{e000}",
    "\0",
    "\u{1}",
    "\u{7f}",
    "▁",
    "▁▁",
    "Ġ",
    "中文",
    "日本語です",
    "カタカナ",
    "ひらがな",
    "Hello",
    "WORLD",
    "camelCase",
    "HTTPServer",
    "snake_case",
    "don't",
    "I'll",
    "ªº",
    "ʰ",
    "Dž",
    "ǅ",
    "ß",
    "İ",
    "ı",
    ".com",
    ".Net",
    "#tag",
    "@name",
    "\\n",
    "\\u00e9",
    "é",
    "ñ",
    "नमस्ते",
    "สวัสดี",
    "مرحبا",
    "שלום",
    "Привет",
    "Γειά",
    "ア・イ",
    "\u{30d5}\u{3098}",
    "は\u{309b}ー",
    "ⴀ",
    "Ⴀ",
    "𝒜",
    "𐐀",
    "㐀",
    "𠀀",
];

/// About `bytes` bytes of text of one seed. `specials` are mixed in.
pub fn text(random: &mut Random, bytes: usize, specials: &[String]) -> String {
    let mut out = String::new();
    let style = random.below(8);
    while out.len() < bytes {
        match (style, random.below(10)) {
            (0, _) => words(random, &mut out),
            (1, _) => code(random, &mut out),
            (2, 0..7) => characters(random, &mut out),
            (3, 0..8) => {
                let piece = random.pick(PIECES);
                (0..1 + random.below(4)).for_each(|_| out.push_str(piece));
            }
            (4, 0..3) => runs(random, &mut out),
            (5, _) => base64(random, &mut out),
            (_, 0..5) => out.push_str(random.pick(PIECES)),
            (_, 5) => characters(random, &mut out),
            (_, 6) if !specials.is_empty() => {
                let special = &specials[random.below(specials.len())];
                // Sometimes only a part of it.
                let cut = if random.below(4) == 0 { random.below(special.len() + 1) } else { special.len() };
                out.push_str(special.get(..cut).unwrap_or(special));
            }
            _ => words(random, &mut out),
        }
    }
    out
}

fn characters(random: &mut Random, out: &mut String) {
    let (from, to) = RANGES[random.below(RANGES.len())];
    for _ in 0..1 + random.below(12) {
        out.extend(char::from_u32(from + random.below((to - from + 1) as usize) as u32));
    }
}

fn words(random: &mut Random, out: &mut String) {
    const SCRIPTS: &[(u32, u32)] = &[
        (0x61, 0x7a),
        (0x61, 0x7a),
        (0x430, 0x44f),
        (0x3b1, 0x3c9),
        (0x5d0, 0x5ea),
        (0x627, 0x64a),
        (0x905, 0x94d),
        (0xe01, 0xe3a),
        (0x4e00, 0x9fa5),
        (0xac00, 0xd7a3),
        (0x3041, 0x3096),
        (0xe0, 0xff),
    ];
    let (from, to) = SCRIPTS[random.below(SCRIPTS.len())];
    for _ in 0..3 + random.below(9) {
        for at in 0..1 + random.below(9) {
            let c = char::from_u32(from + random.below((to - from + 1) as usize) as u32).unwrap();
            match at == 0 && random.below(5) == 0 {
                true => out.extend(c.to_uppercase()),
                false => out.push(c),
            }
        }
        out.push_str(random.pick(&[" ", " ", " ", " ", ", ", ". ", "\n", "-", "'s ", "? ", " («", "» ", "\r\n"]));
    }
}

fn code(random: &mut Random, out: &mut String) {
    let depth = random.below(6);
    (0..depth).for_each(|_| out.push_str(random.pick(&["    ", "  ", "\t"])));
    for _ in 0..1 + random.below(6) {
        out.push_str(random.pick(&[
            "let", "fn", "return", "self.", "value", "if", "for i in", "\"key\":", "null", "x1", "Foo::new", "map",
            "i32", "0xff", "1_000", "==", "=", "(", ")", "{", "}", "[0]", ";", ",", "#", "//", "<div>", "&amp;", "\\t",
            "$PATH", "%d",
        ]));
        out.push_str(random.pick(&["", " ", " "]));
    }
    out.push_str(random.pick(&["\n", "\n", "\r\n", "\n\n", ";\n"]));
}

fn runs(random: &mut Random, out: &mut String) {
    let c = random
        .pick(&[" ", "\n", "\t", "a", "A", "1", "=", "-", "é", "中", "\u{301}", "\u{a0}", "\r", "/", "'", "▁", "😀"]);
    (0..random.below(90)).for_each(|_| out.push_str(c));
}

fn base64(random: &mut Random, out: &mut String) {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    (0..76).for_each(|_| out.push(char::from(ALPHABET[random.below(64)])));
    out.push_str(random.pick(&["\n", "", "==\n"]));
}

/// Every code point of `points` in the contexts that decide how a character is classed.
pub fn contexts(points: impl Iterator<Item = char>) -> String {
    let mut out = String::new();
    for c in points {
        for (before, after) in
            [("", " "), ("a", "a"), (" ", " "), ("1", "1"), (".", "."), ("\n", "x"), ("A", "b"), ("'", "s")]
        {
            out.push_str(before);
            out.push(c);
            out.push_str(after);
        }
        out.push('\n');
    }
    out
}
