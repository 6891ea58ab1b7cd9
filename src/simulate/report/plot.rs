//! Plots as SVG: lines over two axes. Colours come from the page.

use std::fmt::Write;

/// One line.
pub struct Line {
    /// What it is.
    pub name: String,
    /// The class that colours it.
    pub class: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A plot.
pub struct Plot {
    /// Under the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// The vertical axis is logarithmic.
    pub log: bool,
    /// The lines, the first one lowest.
    pub lines: Vec<Line>,
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 12.0;

impl Plot {
    /// The SVG element.
    pub fn svg(&self) -> String {
        let all = || self.lines.iter().flat_map(|l| l.points.iter());
        let most = |of: fn(&(f64, f64)) -> f64| all().map(of).fold(0.0, f64::max);
        let (x_most, y_most) = (most(|p| p.0).max(1e-9), most(|p| p.1).max(1e-9));
        let least = all().map(|p| p.1).filter(|y| *y > 0.0).fold(f64::MAX, f64::min).min(y_most);
        let (low, high) = match self.log {
            true => (least.log10().floor(), y_most.log10().ceil().max(least.log10().floor() + 1.0)),
            false => (0.0, nice(y_most)),
        };
        let across = |x: f64| LEFT + x / x_most * (WIDTH - LEFT - RIGHT);
        let up = |y: f64| {
            let y = if self.log { y.max(10f64.powf(low)).log10() } else { y };
            HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - BOTTOM - TOP)
        };
        let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
        let steps = if self.log { (high - low).round() as usize } else { 4 };
        for n in 0..=steps {
            let y = if self.log { 10f64.powf(low + n as f64) } else { high * n as f64 / steps as f64 };
            let at = up(y);
            let _ = write!(out, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
            let _ =
                write!(out, "<text x=\"{:.1}\" y=\"{:.1}\" class=\"end\">{}</text>", LEFT - 6.0, at + 4.0, short(y));
        }
        for n in 0..=4 {
            let x = x_most * n as f64 / 4.0;
            let (at, below) = (across(x), HEIGHT - BOTTOM + 16.0);
            let _ = write!(out, "<text x=\"{at:.1}\" y=\"{below:.1}\" class=\"mid\">{}</text>", short(x));
        }
        let (middle, under) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0);
        let _ = write!(out, "<text x=\"{middle:.1}\" y=\"{under:.1}\" class=\"mid\">{}</text>", escape(&self.x));
        let beside = (HEIGHT - BOTTOM) / 2.0;
        let _ = write!(
            out,
            "<text transform=\"translate(14 {beside:.1}) rotate(-90)\" class=\"mid\">{}</text>",
            escape(&self.y)
        );
        for line in &self.lines {
            let mut d = String::new();
            for (n, (x, y)) in line.points.iter().enumerate() {
                let _ = write!(d, "{}{:.1} {:.1}", if n == 0 { "M" } else { "L" }, across(*x), up(*y));
            }
            let (class, name) = (escape(&line.class), escape(&line.name));
            let _ = write!(out, "<path class=\"line {class}\" d=\"{d}\"><title>{name}</title></path>");
        }
        out + "</svg>"
    }
}

/// The next number above with one digit.
fn nice(x: f64) -> f64 {
    let unit = 10f64.powf(x.log10().floor());
    (x / unit).ceil() * unit
}

fn short(x: f64) -> String {
    match x.abs() {
        a if a >= 1e6 => format!("{}M", trim(x / 1e6)),
        a if a >= 1e4 => format!("{}k", trim(x / 1e3)),
        _ => trim(x),
    }
}

fn trim(x: f64) -> String {
    let text = format!("{x:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stay_inside_and_text_is_escaped() {
        for log in [false, true] {
            let points = (0..50).map(|n| (n as f64, (n * n) as f64)).collect();
            let lines = vec![Line { name: "<a>".into(), class: "c".into(), points }];
            let svg = Plot { x: "share".into(), y: "ms".into(), log, lines }.svg();
            assert!(svg.contains("&lt;a&gt;") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let d = svg.split("line c\" d=\"M").nth(1).unwrap().split('"').next().unwrap();
            for point in d.split('L') {
                let (x, y) = point.split_once(' ').unwrap();
                assert!((0.0..=WIDTH).contains(&x.parse().unwrap()) && (0.0..=HEIGHT).contains(&y.parse().unwrap()));
            }
        }
        assert_eq!([1.5, 12_000.0, 3_000_000.0, 100.0].map(short), ["1.5", "12k", "3M", "100"]);
    }
}
