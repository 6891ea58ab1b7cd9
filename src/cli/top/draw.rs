//! A view as lines of styled text, for a width. The screen shows them, and so does `--once`.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::view::{Count, Health, Replica, Requests, View, Worker};
use crate::cli::state;
use crate::cli::table::{grouped, harmless};
use crate::look::Decision;

/// More problems than this would push the replicas off the screen.
const PROBLEMS: usize = 8;
const GAP: &str = "  ";

/// Styles, with colour or without.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    /// Colours may be used.
    pub colour: bool,
}

impl Palette {
    fn health(self, health: Health) -> Style {
        let style = match health {
            Health::Bad => Style::new().add_modifier(Modifier::BOLD),
            Health::Good | Health::Fair => Style::new(),
        };
        match (self.colour, health) {
            (false, _) => style,
            (true, Health::Good) => style.fg(Color::Green),
            (true, Health::Fair) => style.fg(Color::Yellow),
            (true, Health::Bad) => style.fg(Color::Red),
        }
    }

    fn quiet(self) -> Style {
        if self.colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }
}

/// The whole view.
pub fn lines(view: &View, width: u16, palette: Palette) -> Vec<Line<'static>> {
    let width = usize::from(width.max(20));
    let mut out = problems(view, width, palette);
    out.push(Line::default());
    requests(&view.requests, width, palette, &mut out);
    out.push(Line::default());
    out.extend(workers(&view.workers, width, palette));
    out.push(Line::default());
    out.extend(replicas(&view.replicas, width, palette));
    if !view.decisions.is_empty() {
        out.push(Line::default());
        out.extend(decisions(&view.decisions, width, palette));
    }
    out
}

/// The same as plain text.
pub fn text(lines: &[Line<'_>]) -> String {
    let line = |line: &Line<'_>| {
        let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        format!("{}\n", text.trim_end())
    };
    lines.iter().map(line).collect()
}

fn problems(view: &View, width: usize, palette: Palette) -> Vec<Line<'static>> {
    if view.problems.is_empty() {
        return vec![Line::styled("nothing is wrong", palette.health(Health::Good))];
    }
    let shown = view.problems.iter().take(PROBLEMS).map(|problem| {
        let mark = if problem.health == Health::Bad { "!!" } else { " !" };
        let text = one_line(&format!("{mark} {}: {}", problem.place, problem.what));
        Line::styled(cut(&text, width), palette.health(problem.health))
    });
    let mut out: Vec<Line> = shown.collect();
    if view.problems.len() > PROBLEMS {
        out.push(Line::raw(format!("   and {} more", view.problems.len() - PROBLEMS)));
    }
    out
}

fn requests(requests: &Requests, width: usize, palette: Palette, out: &mut Vec<Line<'static>>) {
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let window = match requests.window_seconds {
        Some(seconds) => format!("last {seconds:.0} s {}", percent(requests.recent_hit_share)),
        None => "since Envoy's start".to_owned(),
    };
    let head = [
        format!("{}{}", grouped(requests.all.total), rate(&requests.all)),
        format!("hit share {} ({window})", percent(requests.hit_share)),
        format!("moved by Envoy {}", grouped(requests.moved.total)),
    ];
    out.extend(wrapped("requests", head, width, palette));
    out.extend(wrapped("outcomes", requests.outcomes.iter().map(count), width, palette));
    out.extend(wrapped("decided by", requests.picks.iter().map(count), width, palette));
}

fn count(count: &Count) -> String {
    format!("{} {}{}", harmless(&count.label), grouped(count.total), rate(count))
}

fn rate(count: &Count) -> String {
    count.per_second.map_or(String::new(), |rate| format!(" ({rate:.1}/s)"))
}

/// A title, and parts beside it on as many lines as they need.
fn wrapped(title: &str, parts: impl IntoIterator<Item = String>, width: usize, palette: Palette) -> Vec<Line<'static>> {
    let indent = 12;
    let mut rows: Vec<String> = Vec::new();
    for part in parts {
        let part = cut(&part, width.saturating_sub(indent));
        match rows.last_mut() {
            Some(row) if indent + length(row) + 3 + length(&part) <= width => {
                row.push_str("   ");
                row.push_str(&part);
            }
            _ => rows.push(part),
        }
    }
    if rows.is_empty() {
        rows.push("none yet".into());
    }
    let title = |i: usize| format!("{:indent$}", if i == 0 { title } else { "" });
    let line = |(i, row)| Line::from(vec![Span::styled(title(i), palette.quiet()), Span::raw(row)]);
    rows.into_iter().enumerate().map(line).collect()
}

/// A column: its header, whether it is aligned to the left, and how soon it is given up where there is no room; 0:
/// never.
struct Column(&'static str, bool, u8);

fn workers(workers: &[Worker], width: usize, palette: Palette) -> Vec<Line<'static>> {
    if workers.is_empty() {
        return vec![Line::raw("no worker is known")];
    }
    let columns = [
        Column("worker", true, 0),
        Column("under way", false, 4),
        Column("blocks", false, 2),
        Column("index full", false, 5),
        Column("behind", false, 3),
        Column("lag ms", false, 1),
        Column("feed", true, 6),
    ];
    let rows = workers.iter().map(|worker| {
        let cells = vec![
            worker.slot.map_or("no slot".to_owned(), |slot| slot.to_string()),
            grouped(worker.jobs),
            grouped(worker.blocks),
            format!("{:.0} %", worker.index_share * 100.0),
            grouped(worker.behind),
            worker.lag_ms.map_or("-".to_owned(), grouped),
            one_line(&worker.feed),
        ];
        (worker.health, cells)
    });
    table(&columns, rows.collect(), 6, width, palette)
}

fn replicas(replicas: &[Replica], width: usize, palette: Palette) -> Vec<Line<'static>> {
    if replicas.is_empty() {
        return vec![Line::raw("no replica is known")];
    }
    let columns = [
        Column("replica", true, 0),
        Column("trust", true, 0),
        Column("blocks", false, 1),
        Column("capacity", false, 8),
        Column("booked", false, 3),
        Column("to prefill", false, 7),
        Column("running", false, 2),
        Column("waiting", false, 4),
        Column("in use", false, 5),
        Column("event s", false, 6),
        Column("restarts", false, 9),
        Column("gaps", false, 10),
        Column("model", true, 11),
    ];
    let rows = replicas.iter().map(|replica| {
        let trust = match (replica.healthy, &replica.silent, replica.trust.as_str()) {
            (Some(false), ..) => format!("unhealthy, {}", replica.trust),
            (_, Some(_), trust @ ("exact" | "catching_up")) => format!("no answer, {trust}"),
            _ => state::trust(&replica.trust, &replica.trust_reason),
        };
        let capacity = if replica.capacity_blocks == 0 { "?".to_owned() } else { grouped(replica.capacity_blocks) };
        let mut cells = vec![
            one_line(&state::address(&replica.address, replica.rank)),
            one_line(&trust),
            grouped(replica.blocks),
            capacity,
        ];
        cells.extend(state::load(&replica.load));
        cells.push(replica.event_age_ms.map_or("-".to_owned(), |ms| format!("{:.1}", ms as f64 / 1e3)));
        cells.extend([grouped(replica.restarts), grouped(replica.gaps), one_line(&replica.model)]);
        (replica.health, cells)
    });
    table(&columns, rows.collect(), 1, width, palette)
}

fn decisions(decisions: &[Decision], width: usize, palette: Palette) -> Vec<Line<'static>> {
    let columns = [
        Column("last decisions", true, 0),
        Column("ago s", false, 3),
        Column("prompt", false, 2),
        Column("cached", false, 1),
        Column("by", true, 4),
        Column("to", true, 0),
        Column("model", true, 5),
    ];
    let rows = decisions.iter().map(|decision| {
        let tokens = |n: u64| if decision.pick.is_some() { grouped(n) } else { "-".to_owned() };
        let cells = vec![
            one_line(&decision.outcome),
            format!("{:.1}", decision.age_ms as f64 / 1e3),
            tokens(decision.prompt_tokens),
            tokens(decision.matched_tokens),
            one_line(decision.reason.as_deref().unwrap_or("-")),
            one_line(decision.pick.as_deref().unwrap_or("least request")),
            one_line(&decision.model),
        ];
        (Health::Good, cells)
    });
    table(&columns, rows.collect(), columns.len(), width, palette)
}

/// Rows under headers, `marked` in the colour of its row's health; columns for which there is no room are left out.
fn table(
    columns: &[Column],
    rows: Vec<(Health, Vec<String>)>,
    marked: usize,
    width: usize,
    palette: Palette,
) -> Vec<Line<'static>> {
    let wide = |i: usize| {
        let cells = rows.iter().filter_map(|(_, cells)| cells.get(i)).map(|cell| length(cell));
        cells.chain([length(columns[i].0)]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(wide).collect();
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let total = |kept: &[usize]| kept.iter().map(|i| widths[*i] + GAP.len()).sum::<usize>().saturating_sub(GAP.len());
    while total(&kept) > width {
        let Some(at) = kept.iter().copied().filter(|i| columns[*i].2 > 0).max_by_key(|i| columns[*i].2) else { break };
        kept.retain(|i| *i != at);
    }
    let cell = |i: usize, text: &str| {
        let padding = " ".repeat(widths[i].saturating_sub(length(text)));
        if columns[i].1 { format!("{text}{padding}{GAP}") } else { format!("{padding}{text}{GAP}") }
    };
    let header: String = kept.iter().map(|i| cell(*i, columns[*i].0)).collect();
    let mut out = vec![Line::styled(header, palette.quiet())];
    for (health, cells) in &rows {
        // Where the column that says it is left out, the first one is marked.
        let marked = if kept.contains(&marked) { marked } else { 0 };
        let span = |i: &usize| {
            let style = if *i == marked { palette.health(*health) } else { Style::new() };
            Span::styled(cell(*i, cells.get(*i).map_or("", String::as_str)), style)
        };
        out.push(Line::from(kept.iter().map(span).collect::<Vec<_>>()));
    }
    out
}

fn length(text: &str) -> usize {
    text.chars().count()
}

fn cut(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Text of others on a line of its own.
fn one_line(text: &str) -> String {
    harmless(text).replace(['\n', '\t'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::view::Problem;

    const PLAIN: Palette = Palette { colour: false };

    fn view() -> View {
        let replica = |address: &str, health, trust: &str, reason: &str, blocks| Replica {
            address: address.into(),
            model: "m".into(),
            health,
            healthy: Some(true),
            trust: trust.into(),
            trust_reason: reason.into(),
            blocks,
            ..Replica::default()
        };
        let count = |label: &str, total| Count { label: label.into(), total, per_second: Some(total as f64 / 10.0) };
        View {
            problems: vec![Problem { health: Health::Bad, place: "10.0.0.2:1".into(), what: "stale:\nsilent".into() }],
            requests: Requests {
                all: count("all", 1234),
                outcomes: vec![count("routed", 1200), count("too_short", 34)],
                hit_share: Some(0.5),
                ..Requests::default()
            },
            workers: vec![Worker { slot: Some(0), feed: "synced, heard of 3 ms ago".into(), ..Worker::default() }],
            replicas: vec![
                replica("10.0.0.1:1", Health::Good, "exact", "complete", 12_345),
                replica("10.0.0.2:1", Health::Bad, "stale", "silent", 7),
            ],
            ..View::default()
        }
    }

    #[test]
    fn columns_are_aligned_and_trust_has_its_reason() {
        let text = text(&lines(&view(), 120, PLAIN));
        assert!(text.starts_with("!! 10.0.0.2:1: stale: silent\n"), "{text}");
        assert!(text.contains("requests    1,234 (123.4/s)   hit share 50.0 %"), "{text}");
        assert!(text.contains("outcomes    routed 1,200 (120.0/s)   too_short 34 (3.4/s)\n"), "{text}");
        assert!(text.contains("10.0.0.1:1  exact          12,345  "), "{text}");
        assert!(text.contains("10.0.0.2:1  stale: silent       7  "), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_the_screen_and_trust_stays() {
        for width in [30u16, 40, 60, 80, 200] {
            let lines = lines(&view(), width, PLAIN);
            for line in &lines {
                assert!(text(std::slice::from_ref(line)).trim_end().chars().count() <= usize::from(width), "{line:?}");
            }
            assert!(text(&lines).contains("stale: silent"), "{width}");
        }
    }

    #[test]
    fn without_colour_nothing_is_coloured() {
        let coloured = |colour| {
            let lines = lines(&view(), 100, Palette { colour });
            lines.iter().any(|line| line.style.fg.is_some() || line.spans.iter().any(|span| span.style.fg.is_some()))
        };
        assert!(coloured(true) && !coloured(false));
    }

    #[test]
    fn text_of_others_is_no_command_to_the_terminal() {
        let mut view = view();
        view.replicas[0].model = "\x1b[2J".into();
        view.requests.outcomes[0].label = "\x1b]0;x".into();
        assert!(!text(&lines(&view, 200, PLAIN)).contains('\x1b'));
    }
}
