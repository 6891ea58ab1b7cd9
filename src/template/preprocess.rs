//! Rewrites a template's source where the template engine reads it otherwise than Jinja2 does.
//!
//! | source | becomes | why |
//! |---|---|---|
//! | `\r\n`, `\r` | `\n` | Jinja2 normalises newlines, also inside literals |
//! | `{% generation %}` … `{% endgeneration %}` | a call block | transformers' own statement; it renders its body |
//! | `{% raw %}` | `{% raw +%}` | Jinja2's trim_blocks leaves the newline after the *begin* of a raw block |
//! | `{{ 'a' + EXPR }}` | `{{ 'a' }}{{ (EXPR)\|__str }}` | so that long texts are not copied for each `+`; with a literal in it, a sum is one of strings or an error |
//! | `{% for x in EXPR %}` | `{% for x in (EXPR)\|__iter %}` | Python refuses to iterate none and numbers, and knows the length of a string |
//!
//! Comments, string literals and the bodies of raw blocks are left alone.

/// The function that the generation block calls.
pub const GENERATION: &str = "__generation";
/// The filter on what a loop iterates.
pub const ITER: &str = "__iter";
/// The filter on what must be a string.
pub const STRING: &str = "__str";

/// The rewritten source. Without `for_rendering`, loops stay as they are (for looking at the syntax tree).
pub fn preprocess(source: &str, for_rendering: bool) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut scanner = Scanner { rest: &source, out: String::with_capacity(source.len() + 256), for_rendering };
    scanner.run();
    scanner.out
}

struct Scanner<'a> {
    rest: &'a str,
    out: String,
    for_rendering: bool,
}

impl<'a> Scanner<'a> {
    /// Copies `len` bytes to the output.
    fn copy(&mut self, len: usize) {
        let (head, tail) = self.rest.split_at_checked(len).unwrap_or((self.rest, ""));
        self.out.push_str(head);
        self.rest = tail;
    }

    fn run(&mut self) {
        while let Some(start) = next_tag(self.rest) {
            self.copy(start);
            if self.rest.starts_with("{#") {
                let end = self.rest.find("#}").map_or(self.rest.len(), |at| at + 2);
                self.copy(end);
            } else if self.rest.starts_with("{{") {
                self.expression();
            } else {
                self.statement();
            }
        }
        self.copy(self.rest.len());
    }

    fn expression(&mut self) {
        let end = tag_end(self.rest, "}}");
        let tag = self.rest.get(..end).unwrap_or(self.rest);
        let parts = if self.for_rendering { Statement::marks(tag, "{{", "}}") } else { None };
        let terms = parts.and_then(|(open, body, close)| Some((open, terms(body)?, close)));
        let Some((open, terms, close)) = terms else {
            return self.copy(end);
        };
        let last = terms.len().saturating_sub(1);
        for (at, term) in terms.iter().enumerate() {
            let open = if at == 0 { open } else { "{{" };
            let close = if at == last { close } else { "}}" };
            let printed = match is_literal(term) {
                true => format!("{open} {term} {close}"),
                false => format!("{open} ({term})|{STRING} {close}"),
            };
            self.out.push_str(&printed);
        }
        self.rest = self.rest.get(end..).unwrap_or_default();
    }

    fn statement(&mut self) {
        let end = tag_end(self.rest, "%}");
        let tag = self.rest.get(..end).unwrap_or(self.rest);
        let Some(parts) = Statement::split(tag) else {
            return self.copy(end);
        };
        match parts.word {
            "raw" if parts.after.trim().is_empty() => {
                let close = if parts.close == "%}" { "+%}" } else { parts.close };
                self.out.push_str(&format!("{} raw {close}", parts.open));
                self.rest = self.rest.get(end..).unwrap_or_default();
                let body = raw_end(self.rest);
                self.copy(body);
            }
            "generation" if parts.after.trim().is_empty() => {
                self.out.push_str(&format!("{} call {GENERATION}() {}", parts.open, parts.close));
                self.rest = self.rest.get(end..).unwrap_or_default();
            }
            "endgeneration" if parts.after.trim().is_empty() => {
                self.out.push_str(&format!("{} endcall {}", parts.open, parts.close));
                self.rest = self.rest.get(end..).unwrap_or_default();
            }
            "for" if self.for_rendering => match loop_range(parts.after) {
                Some((from, to)) => {
                    let cut = |range: Option<&'a str>| range.unwrap_or_default();
                    let (head, iterated, tail) =
                        (cut(parts.after.get(..from)), cut(parts.after.get(from..to)), cut(parts.after.get(to..)));
                    let Statement { open, close, .. } = parts;
                    self.out.push_str(&format!("{open} for{head} ({iterated})|{ITER} {tail}{close}"));
                    self.rest = self.rest.get(end..).unwrap_or_default();
                }
                None => self.copy(end),
            },
            _ => self.copy(end),
        }
    }
}

/// The parts of `{%- word after -%}`.
struct Statement<'a> {
    open: &'a str,
    word: &'a str,
    after: &'a str,
    close: &'a str,
}

impl<'a> Statement<'a> {
    /// How a tag begins, what is in it, how it ends.
    fn marks(tag: &'a str, begin: &str, end: &str) -> Option<(&'a str, &'a str, &'a str)> {
        let marked = |c: Option<char>| matches!(c, Some('-' | '+'));
        let inner = tag.strip_prefix(begin)?.strip_suffix(end)?;
        let open = tag.get(..2 + usize::from(marked(inner.chars().next())))?;
        let close = tag.get(tag.len() - 2 - usize::from(marked(inner.chars().next_back()))..)?;
        Some((open, tag.get(open.len()..tag.len().checked_sub(close.len())?)?, close))
    }

    fn split(tag: &'a str) -> Option<Statement<'a>> {
        let (open, body, close) = Statement::marks(tag, "{%", "%}")?;
        let trimmed = body.trim_start();
        let word_end = trimmed.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(trimmed.len());
        Some(Statement { open, word: trimmed.get(..word_end)?, after: trimmed.get(word_end..)?, close })
    }
}

/// Where the next comment, expression or statement begins.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len()).find(|at| matches!(bytes.get(*at..*at + 2), Some(b"{%" | b"{{" | b"{#")))
}

/// The length of the tag at the start of `text`, its end included; strings and brackets are passed over.
fn tag_end(text: &str, end: &str) -> usize {
    let mut depth = 0usize;
    let mut tokens = Tokens { text, at: 2 };
    loop {
        let rest = text.get(tokens.at..).unwrap_or_default();
        if depth == 0 && rest.starts_with(end) {
            return tokens.at + end.len();
        }
        match tokens.next() {
            Some(Token::Open) => depth += 1,
            Some(Token::Close) => depth = depth.saturating_sub(1),
            Some(_) => {}
            None => return text.len(),
        }
    }
}

/// The length of a raw block's body, its end tag included.
fn raw_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find("{%")).map(|at| at + from) {
        let tag = text.get(at..).unwrap_or_default();
        let inner = tag.get(2..).unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
        if let Some(after) = inner.strip_prefix("endraw")
            && let Some(close) = after.trim_start().trim_start_matches(['-', '+']).strip_prefix("%}")
        {
            return text.len() - close.len();
        }
        from = at + 2;
    }
    text.len()
}

/// The terms of a sum of which one is a string literal: then all must be strings. `None`: it is no such sum.
fn terms(text: &str) -> Option<Vec<&str>> {
    let mut depth = 0usize;
    let (mut out, mut from) = (Vec::new(), 0);
    let mut tokens = Tokens { text, at: 0 };
    loop {
        let start = tokens.at;
        match tokens.next() {
            Some(Token::Open) => depth += 1,
            Some(Token::Close) => depth = depth.checked_sub(1)?,
            // What binds weaker than a sum, and the exponents of numbers.
            Some(Token::Word("if" | "else" | "or" | "and" | "not" | "in" | "is")) if depth == 0 => return None,
            Some(Token::Word(word)) if depth == 0 && word.starts_with(|c: char| c.is_ascii_digit()) => return None,
            Some(Token::Other) if depth == 0 => match text.get(start..tokens.at)? {
                "+" => {
                    out.push(text.get(from..start)?.trim());
                    from = tokens.at;
                }
                "-" | "*" | "/" | "%" | "~" | "=" | "!" | "<" | ">" | "," | ":" => return None,
                _ => {}
            },
            Some(_) => {}
            None => break,
        }
    }
    out.push(text.get(from..)?.trim());
    (out.len() > 1 && out.iter().all(|term| !term.is_empty()) && out.iter().any(|term| is_literal(term))).then_some(out)
}

/// Whether an expression is one string literal.
fn is_literal(term: &str) -> bool {
    let mut tokens = Tokens { text: term, at: 0 };
    term.starts_with(['\'', '"']) && tokens.next().is_some() && tokens.at == term.len() && term.len() > 1
}

/// From where to where in ` TARGET in EXPR [if COND] [recursive]` the expression reaches.
fn loop_range(text: &str) -> Option<(usize, usize)> {
    let mut depth = 0usize;
    let mut from = None;
    let mut tokens = Tokens { text, at: 0 };
    loop {
        let start = tokens.at;
        match tokens.next() {
            Some(Token::Open) => depth += 1,
            Some(Token::Close) => depth = depth.saturating_sub(1),
            Some(Token::Word(word)) if depth == 0 => match (word, from) {
                ("in", None) => from = Some(tokens.at),
                ("if" | "recursive", Some(from)) => return Some((from, start)),
                _ => {}
            },
            Some(_) => {}
            None => return Some((from?, text.len())),
        }
    }
}

enum Token<'a> {
    Open,
    Close,
    Word(&'a str),
    Other,
}

/// Just enough of the expression syntax to pass over strings and brackets.
struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let rest = self.text.get(self.at..)?;
        let c = rest.chars().next()?;
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if is_word(c) {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            self.at += len;
            return rest.get(..len).map(Token::Word);
        }
        self.at += c.len_utf8();
        match c {
            '(' | '[' | '{' => Some(Token::Open),
            ')' | ']' | '}' => Some(Token::Close),
            '\'' | '"' => {
                let mut escaped = false;
                for (offset, inner) in rest.char_indices().skip(1) {
                    if escaped {
                        escaped = false;
                    } else if inner == '\\' {
                        escaped = true;
                    } else if inner == c {
                        self.at += offset;
                        return Some(Token::Other);
                    }
                }
                self.at = self.text.len();
                Some(Token::Other)
            }
            _ => Some(Token::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_only_what_is_a_statement() {
        let cases = [
            ("a\r\nb\rc", "a\nb\nc"),
            ("{%- generation -%}x{% endgeneration +%}", "{%- call __generation() -%}x{% endcall +%}"),
            ("{# {% generation %} #}{{ '{% generation %}' }}", "{# {% generation %} #}{{ '{% generation %}' }}"),
            ("{% raw %}\n{% generation %}{% endraw %}", "{% raw +%}\n{% generation %}{% endraw %}"),
            ("{%- raw -%} {{ x }} {%- endraw -%}y", "{%- raw -%} {{ x }} {%- endraw -%}y"),
            ("{% for m in messages %}", "{% for m in ( messages )|__iter %}"),
            ("{%- for a, b in x.items() if a in y -%}", "{%- for a, b in ( x.items() )|__iter if a in y -%}"),
            ("{% for x in [1 if a else 2] recursive %}", "{% for x in ( [1 if a else 2] )|__iter recursive %}"),
            ("{% for x in y['%}'] %}", "{% for x in ( y['%}'] )|__iter %}"),
            ("{{ {'a': {'b': 1}} }}{% format %}", "{{ {'a': {'b': 1}} }}{% format %}"),
            ("{{- 'a' + b.c + '\\n' -}}", "{{- 'a' }}{{ (b.c)|__str }}{{ '\\n' -}}"),
            ("{{ x|trim + \"+\" }}", "{{ (x|trim)|__str }}{{ \"+\" }}"),
            ("{{ f('a' + b) + 'c' }}", "{{ (f('a' + b))|__str }}{{ 'c' }}"),
            ("{{ a + b }}{{ 'a' + b if c }}{{ 'a' + b == c }}", "{{ a + b }}{{ 'a' + b if c }}{{ 'a' + b == c }}"),
            ("{{ 'a' + b ~ c }}{{ 'a' + 1e+5 }}{{ 'a' + }}", "{{ 'a' + b ~ c }}{{ 'a' + 1e+5 }}{{ 'a' + }}"),
            ("{{ 'a' + b, 'c' }}{{ ('a' + b) }}", "{{ 'a' + b, 'c' }}{{ ('a' + b) }}"),
            ("{% set x = \"it's\" %}{% raw %}", "{% set x = \"it's\" %}{% raw +%}"),
        ];
        for (source, expected) in cases {
            assert_eq!(preprocess(source, true), expected);
        }
        assert_eq!(preprocess("{% for m in messages %}", false), "{% for m in messages %}");
        for cut in [
            "{%",
            "{{ 'a",
            "{% raw %} {%",
            "{% for x in",
            "{#",
            "{%-%}",
            "{%+",
            "{% for %}",
            "{{-}}",
            "{{ 'a' +",
            "{{+",
        ] {
            preprocess(cut, true);
        }
    }
}
