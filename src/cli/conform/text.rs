//! Reports for people: each failure with the place of its first difference, the totals last.

use super::{Outcome, Report};
use crate::blocks::TokenId;
use crate::cli::table::{Paint, harmless, table};
use crate::conform::{Difference, TextDifference, TokenDifference, Totals, Verdict};

/// All reports.
pub fn reports(reports: &[Report], paint: Paint) -> String {
    let mut out = String::new();
    for report in reports {
        let title = format!("{} ({})", report.name, report.place);
        let mut title = Some(format!("{}\n", paint.bold(&title)));
        for note in &report.notes {
            out.extend(title.take());
            out.push_str(&format!("  note: {}\n", harmless(note)));
        }
        for outcome in report.outcomes.iter().filter(|outcome| is_shown(outcome)) {
            out.extend(title.take());
            out.push_str(&one(outcome, paint));
        }
        if title.is_none() {
            out.push('\n');
        }
    }
    out.push_str(&totals(reports));
    out
}

/// An engine's refusal is no news, unless nothing else came of it.
fn is_shown(outcome: &Outcome) -> bool {
    !matches!(outcome.verdict, Some(Verdict::EngineRefused { .. }))
}

fn one(outcome: &Outcome, paint: Paint) -> String {
    let what = match &outcome.verdict {
        None => "not checkable here".to_owned(),
        Some(Verdict::Refused(reason)) => format!("no key: {}: {}", reason.reason, harmless(&reason.detail)),
        Some(Verdict::Limit(reason)) => format!("no key, a limit of kvroute: {}", harmless(&reason.detail)),
        Some(Verdict::Differs(_)) => "differs".to_owned(),
        Some(Verdict::EngineRefused { status }) => format!("the engine answered {status}"),
        Some(Verdict::Identical) => "identical".to_owned(),
    };
    let mut out = format!("  {}  {}  {what}\n", paint.bold(&harmless(&outcome.name)), outcome.endpoint);
    if let Some(Verdict::Differs(Difference { text, tokens })) = &outcome.verdict {
        match text {
            Some(difference) => out.push_str(&text_difference(difference, paint)),
            None => out.push_str("    text    equal, or not known\n"),
        }
        if let Some(difference) = tokens {
            out.push_str(&token_difference(difference, paint));
        }
    }
    if let Some(note) = &outcome.note {
        out.push_str(&format!("    {}\n", harmless(note)));
    }
    out
}

/// Both sides on one line each, after what they share, and a mark under the first place that differs.
fn sides(before: &str, expected: &str, got: &str, paint: Paint) -> String {
    let side = |name: &str, rest: &str| format!("      {name:<8}  {before}{rest}\n");
    let indent = " ".repeat(before.chars().count());
    format!("{}{}      {:<8}  {indent}{}\n", side("engine", expected), side("kvroute", got), "", paint.mark("^"))
}

/// Line breaks are spelled out.
fn text_difference(d: &TextDifference, paint: Paint) -> String {
    let sides = sides(&spelled(&d.before), &spelled(&d.expected), &spelled(&d.got), paint);
    format!("    text    at byte {} (line {}, column {})\n{sides}", d.byte, d.line, d.column)
}

fn token_difference(d: &TokenDifference, paint: Paint) -> String {
    // A blank after what both have, where there is anything.
    let before: String = d.before.iter().map(|id| format!("{id} ")).collect();
    let rest = |list: &[TokenId]| if list.is_empty() { "(ends)".to_owned() } else { ids(list) };
    let sides = sides(&before, &rest(&d.expected), &rest(&d.got), paint);
    format!("    tokens  at {} (block {}), of {} and {}\n{sides}", d.index, d.block, d.expected_total, d.got_total)
}

fn ids(list: &[TokenId]) -> String {
    list.iter().map(TokenId::to_string).collect::<Vec<String>>().join(" ")
}

fn spelled(text: &str) -> String {
    harmless(&text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t"))
}

/// All reports together.
pub fn sum(reports: &[Report]) -> Totals {
    reports.iter().fold(Totals::default(), |a, report| {
        let b = report.totals;
        Totals {
            cases: a.cases + b.cases,
            identical: a.identical + b.identical,
            engine_refused: a.engine_refused + b.engine_refused,
            limits: a.limits + b.limits,
            not_checkable: a.not_checkable + b.not_checkable,
            failed: a.failed + b.failed,
        }
    })
}

fn totals(reports: &[Report]) -> String {
    let headers = ["", "by", "identical", "engine refused", "known limit", "not checkable", "failed"];
    let row = |name: &str, place: &str, t: Totals| {
        let counts = [t.identical, t.engine_refused, t.limits, t.not_checkable, t.failed];
        let mut row = vec![name.to_owned(), place.to_owned()];
        row.extend(counts.map(|count| count.to_string()));
        row
    };
    let rows = reports.iter().map(|report| row(&report.name, report.place, report.totals));
    let mut out = format!("{}\n", table(&headers, 2, rows).trim_fmt());
    for place in ["pack", "gateway"] {
        let here: Vec<&Report> = reports.iter().filter(|report| report.place == place).collect();
        if !here.is_empty() {
            let (cases, failed) = here.iter().fold((0, 0), |(c, f), r| (c + r.totals.cases, f + r.totals.failed));
            out.push_str(&format!("conform by {place}: {cases} cases, {failed} failed\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Reason;

    fn report(outcomes: Vec<Outcome>) -> Report {
        let mut totals = Totals::default();
        outcomes.iter().for_each(|outcome| totals.count(outcome.verdict.as_ref()));
        Report { name: "qwen3".into(), place: "pack", totals, outcomes, notes: Vec::new() }
    }

    fn outcome(verdict: Option<Verdict>) -> Outcome {
        Outcome { name: "case".into(), endpoint: "/v1/completions".into(), verdict, note: None }
    }

    #[test]
    fn a_failure_shows_both_sides_and_the_place_between() {
        let text = TextDifference {
            byte: 3,
            line: 2,
            column: 2,
            before: "a\nb".into(),
            expected: "cd\x1b".into(),
            got: "x".into(),
        };
        let tokens = TokenDifference {
            index: 17,
            block: 1,
            expected_total: 18,
            got_total: 17,
            before: vec![7, 8],
            expected: vec![9],
            got: vec![],
        };
        let verdict = Verdict::Differs(Difference { text: Some(text), tokens: Some(tokens) });
        let out = reports(&[report(vec![outcome(Some(verdict))])], Paint::plain());
        let expected = "qwen3 (pack)\n  case  /v1/completions  differs\n    text    at byte 3 (line 2, column 2)\n      engine    a\\nbcd\\u{1b}\n      kvroute   a\\nbx\n                    ^\n    tokens  at 17 (block 1), of 18 and 17\n      engine    7 8 9\n      kvroute   7 8 (ends)\n                    ^\n\n";
        assert!(out.starts_with(expected), "{out}");
        assert!(out.ends_with("conform by pack: 1 cases, 1 failed\n"), "{out}");
    }

    #[test]
    fn refusals_are_named_and_the_engines_own_only_counted() {
        let reason = |detail: &str| Reason { reason: "unsupported".into(), detail: detail.into() };
        let list = vec![
            outcome(Some(Verdict::Refused(reason("nobody knows")))),
            outcome(Some(Verdict::Limit(reason("known")))),
            outcome(Some(Verdict::EngineRefused { status: 400 })),
            Outcome { note: Some("no endpoint".into()), ..outcome(None) },
        ];
        let out = reports(&[report(list)], Paint::plain());
        assert!(out.contains("no key: unsupported: nobody knows\n"), "{out}");
        assert!(out.contains("a limit of kvroute: known\n"), "{out}");
        assert!(out.contains("not checkable here\n    no endpoint\n"), "{out}");
        assert!(!out.contains("400"), "{out}");
        assert!(out.ends_with("conform by pack: 4 cases, 1 failed\n"), "{out}");
    }

    #[test]
    fn where_all_is_well_there_are_only_totals() {
        let out = reports(&[report(Vec::new())], Paint::plain());
        assert!(out.trim_start().starts_with("by"), "{out}");
    }
}
