//! How tables, numbers and marks look on a terminal and in a pipe.

use std::io::{IsTerminal, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table without borders: headers, then rows; every column but the first `left` is aligned to the right.
pub fn table(headers: &[&str], left: usize, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headers.to_vec());
    table.add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if i >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Writes to standard output. Whoever reads it may have seen enough (`| head`): that is no failure.
pub fn show(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Writes a line to standard output, as [`show`] does.
macro_rules! say {
    ($($part:tt)*) => {
        $crate::cli::table::show(&format!("{}\n", format_args!($($part)*)))
    };
}
pub(super) use say;

/// Digits in groups of three.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the unit that leaves few digits.
pub fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        _ => format!("{:.1} MB", n as f64 / 1e6),
    }
}

/// Colours, where standard output is a terminal and nobody said NO_COLOR.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// As the environment wants it.
    pub fn new() -> Self {
        Paint(std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()))
    }

    /// Never.
    pub const fn plain() -> Self {
        Paint(false)
    }

    /// A mark that is not part of the text.
    pub fn mark(self, text: &str) -> String {
        self.with("36", text)
    }

    /// What to look at first.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// What is wrong.
    pub fn bad(self, text: &str) -> String {
        self.with("31;1", text)
    }

    /// What is as it should be.
    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Text of others for a terminal: line breaks and tabs stay, other control characters are spelled out.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                out.extend(c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0, 999, 1000, 1_234_567].map(grouped));
        assert_eq!(["12 B", "1.5 kB", "2.0 MB"], [12, 1_500, 2_000_000].map(bytes));
    }

    #[test]
    fn nothing_reaches_the_terminal_as_a_command() {
        assert_eq!(harmless("a\n\x1b[2J\u{202e}b"), "a\n\\u{1b}[2J\\u{202e}b");
    }
}
