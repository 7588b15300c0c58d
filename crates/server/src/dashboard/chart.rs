//! Charts: inline SVG that is made here, from numbers, and goes to the page as it is. Whatever text is in one is
//! escaped here; nothing else in the dashboard makes markup by hand. Widths and colours are the stylesheet's.

use super::text::{hour, number};
use askama::filters::HtmlSafe;
use redrive_core::group::Hour;
use redrive_core::time::{Span, Time};
use std::fmt::{self, Write as _};

/// A finished drawing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Svg(String);

impl fmt::Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl askama::FastWritable for Svg {
    fn write_into(&self, dest: &mut dyn fmt::Write, _: &dyn askama::Values) -> askama::Result<()> {
        Ok(dest.write_str(&self.0)?)
    }
}

impl HtmlSafe for Svg {}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

const HOUR: Span = Span::from_hours(1);

/// The values of the last `n` hours, oldest first, with 0 where nothing happened.
pub(super) fn by_hour(hours: &[Hour], n: u64, now: Time, of: impl Fn(&Hour) -> u64) -> Vec<u64> {
    let index = |at: Time| at.as_millis().unsigned_abs() / HOUR.as_millis();
    let first = (index(now) + 1).saturating_sub(n);
    (first..=index(now)).map(|wanted| hours.iter().filter(|h| index(h.at) == wanted).map(&of).sum()).collect()
}

/// `part` of `whole` as a length of at most `length`. What is little but not nothing is visible.
fn scaled(part: u64, whole: u64, length: u64) -> u64 {
    let exact = part.saturating_mul(length) / whole.max(1);
    exact.max(u64::from(part > 0)).min(length)
}

/// A sparkline without axes; its title says what it shows.
pub(super) fn sparkline(values: &[u64], tone: &str, what: &str) -> Svg {
    let (most, least) =
        (values.iter().copied().max().unwrap_or(0), values.iter().copied().min().unwrap_or(0));
    let title = format!("{what} by hour, last {} h: {} to {}", values.len(), number(least), number(most));
    let mut svg = format!(
        r#"<svg class="spark {tone}" viewBox="0 0 {} 28" preserveAspectRatio="none" role="img" aria-label="{title}"><title>{title}</title>"#,
        values.len() * 10
    );
    // Older bars are paler: a third of them in each path.
    for (age, third) in values.chunks(values.len().div_ceil(3).max(1)).enumerate() {
        let first = age * values.len().div_ceil(3);
        let bar = |(at, value): (usize, &u64)| {
            let height = scaled(*value, most, 26).max(1);
            format!("M{} 28v-{height}h8v{height}z", (first + at) * 10)
        };
        let path: String = third.iter().enumerate().map(bar).collect();
        let _ = write!(svg, r#"<path class="o{}" d="{path}"/>"#, age + 1);
    }
    svg.push_str("</svg>");
    Svg(svg)
}

/// A horizontal bar of parts, each with a class of the stylesheet. The rest of it stays empty.
pub(super) fn bar(parts: &[(u64, &str)], whole: u64, class: &str, label: &str) -> Svg {
    let mut svg = format!(
        r#"<svg class="bar {class}" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{}">"#,
        escape(label)
    );
    let mut x = 0;
    for (part, class) in parts.iter().filter(|(part, _)| *part > 0) {
        let width = scaled(*part, whole, 1_000 - x).max(4).min(1_000 - x);
        let _ = write!(svg, r#"<rect class="{class}" x="{x}" y="0" width="{width}" height="10"/>"#);
        x += width;
    }
    svg.push_str("</svg>");
    Svg(svg)
}

/// Something that happened at a moment, to be marked in a chart.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    /// When.
    pub(super) at: Time,
    /// What.
    pub(super) text: String,
    /// Whether it is an event of a breaker, which is a dot, rather than a marker, which is a line.
    pub(super) is_event: bool,
}

/// A chart of hours: stacked bars, a line, and marks.
pub(super) struct Columns<'a> {
    /// The bars of each series from the bottom up, with the class of its colour. All have the same length.
    pub(super) series: Vec<(&'a str, Vec<u64>)>,
    /// The line.
    pub(super) line: Option<Vec<u64>>,
    /// What to mark.
    pub(super) marks: Vec<Mark>,
    /// The time at the right edge.
    pub(super) now: Time,
    /// What it shows, for people who do not see it.
    pub(super) label: String,
}

const WIDTH: u64 = 960;
const LEFT: u64 = 44;
const TOP: u64 = 18;
const PLOT: u64 = 150;
const MARKS_MAX: usize = 12;

/// A round number at or above `n`, for the top of an axis.
fn round_up(n: u64) -> u64 {
    let mut scale: u64 = 1;
    while scale.saturating_mul(10) <= n {
        scale = scale.saturating_mul(10);
    }
    [1, 2, 4, 5, 10]
        .into_iter()
        .map(|step| scale.saturating_mul(step))
        .find(|top| *top >= n)
        .unwrap_or(n)
        .max(4)
}

impl Columns<'_> {
    /// Draws it.
    pub(super) fn draw(&self) -> Svg {
        let hours = self.series.first().map_or(0, |(_, values)| values.len());
        let total = |at: usize| -> u64 { self.series.iter().filter_map(|(_, values)| values.get(at)).sum() };
        let highest = (0..hours).map(total).max().unwrap_or(0);
        let highest = highest.max(self.line.iter().flatten().copied().max().unwrap_or(0));
        let top = round_up(highest);
        let mut svg = format!(
            r#"<svg class="chart" viewBox="0 0 {WIDTH} {}" role="img" aria-label="{}">"#,
            TOP + PLOT + 22,
            escape(&self.label)
        );
        for part in [0, 1, 2] {
            let (y, value) = (TOP + PLOT - PLOT * part / 2, top * part / 2);
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y}" y2="{y}"/><text x="{}" y="{}" text-anchor="end">{}</text>"#,
                LEFT - 8,
                y + 4,
                number(value)
            );
        }
        let step = (WIDTH - LEFT) / (hours.max(1) as u64);
        self.draw_bars(&mut svg, hours, step, top);
        self.draw_line(&mut svg, step, top);
        self.draw_marks(&mut svg, hours, step);
        for at in (0..hours).filter(|at| (hours - at) % (hours / 6).max(1) == 1 % (hours / 6).max(1)) {
            let x = LEFT + step * (at as u64) + step / 2;
            let when = self.now.minus(HOUR.times((hours - 1 - at) as u64));
            let label = hour(when);
            let label = format!("{}:00", label.get(..2).unwrap_or_default());
            let _ =
                write!(svg, r#"<text x="{x}" y="{}" text-anchor="middle">{label}</text>"#, TOP + PLOT + 16);
        }
        svg.push_str("</svg>");
        Svg(svg)
    }

    fn draw_bars(&self, svg: &mut String, hours: usize, step: u64, top: u64) {
        for at in 0..hours {
            let mut y = TOP + PLOT;
            for (class, values) in &self.series {
                let value = values.get(at).copied().unwrap_or(0);
                if value == 0 {
                    continue;
                }
                let height = scaled(value, top, PLOT).min(y - TOP);
                y -= height;
                let x = LEFT + step * (at as u64) + 2;
                let _ = write!(
                    svg,
                    r#"<rect class="{class}" x="{x}" y="{y}" width="{}" height="{height}"/>"#,
                    step.saturating_sub(4).max(2)
                );
            }
        }
    }

    fn draw_line(&self, svg: &mut String, step: u64, top: u64) {
        let Some(line) = self.line.as_ref().filter(|line| line.iter().any(|value| *value > 0)) else {
            return;
        };
        let point = |(at, value): (usize, &u64)| {
            format!("{},{}", LEFT + step * (at as u64) + step / 2, TOP + PLOT - scaled(*value, top, PLOT))
        };
        // The line is drawn only around hours in which something was closed; elsewhere it would underline the axis.
        let is_drawn = |at: usize| {
            let near = line.get(at.saturating_sub(1)..line.len().min(at + 2)).unwrap_or_default();
            near.iter().any(|value| *value > 0)
        };
        let mut points: Vec<String> = Vec::new();
        for (at, value) in line.iter().enumerate() {
            if is_drawn(at) {
                points.push(point((at, value)));
            }
            if !is_drawn(at) || at + 1 == line.len() {
                if !points.is_empty() {
                    let _ = write!(svg, r#"<polyline class="resolved" points="{}"/>"#, points.join(" "));
                }
                points.clear();
            }
        }
    }

    fn draw_marks(&self, svg: &mut String, hours: usize, step: u64) {
        let width = step * (hours as u64);
        let hour_end = Time::from_millis((self.now.as_millis() / 3_600_000 + 1) * 3_600_000);
        let span = HOUR.times(hours as u64);
        let mut labelled_to = 0;
        let mut marks: Vec<&Mark> = self.marks.iter().take(MARKS_MAX).collect();
        marks.sort_by_key(|mark| mark.at);
        for mark in marks {
            let back = hour_end.since(mark.at).as_millis();
            if mark.at > hour_end || back > span.as_millis() {
                continue;
            }
            let x = LEFT + width - width.saturating_mul(back) / span.as_millis().max(1);
            if mark.is_event {
                let _ = write!(
                    svg,
                    r#"<circle class="event" cx="{x}" cy="{}" r="4"><title>{}</title></circle>"#,
                    TOP + PLOT + 1,
                    escape(&mark.text)
                );
                continue;
            }
            let _ = write!(
                svg,
                r#"<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{}"><title>{}</title></line>"#,
                TOP + PLOT,
                escape(&mark.text)
            );
            let label = super::text::beginning(&mark.text, 22);
            let length = 7 * (label.chars().count() as u64);
            let (from, anchor) =
                if x + length > WIDTH { (x.saturating_sub(length), "end") } else { (x, "start") };
            if from >= labelled_to {
                let _ = write!(
                    svg,
                    r#"<text class="mark-label" x="{x}" y="{}" text-anchor="{anchor}">{}</text>"#,
                    TOP - 6,
                    escape(&label)
                );
                labelled_to = from + length + 8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64) -> Time {
        Time::ZERO.plus(HOUR.times(hours))
    }

    #[test]
    fn hours_without_events_are_empty_columns() {
        let hours = [
            Hour { at: at(5), deaths: 3, failures: 9, closed: 0 },
            Hour { at: at(7), deaths: 1, failures: 1, closed: 2 },
        ];
        assert_eq!(by_hour(&hours, 4, at(8), |h| h.deaths), [3, 0, 1, 0]);
        assert_eq!(by_hour(&hours, 2, at(8), |h| h.closed), [2, 0]);
    }

    #[test]
    fn little_is_visible_and_much_stays_inside() {
        assert_eq!(
            [scaled(0, 10, 100), scaled(1, 1_000_000, 100), scaled(10, 10, 100), scaled(20, 10, 100)],
            [0, 1, 100, 100]
        );
        assert_eq!(
            [round_up(0), round_up(7), round_up(11), round_up(399), round_up(401)],
            [4, 10, 20, 400, 500]
        );
    }

    #[test]
    fn text_in_a_drawing_is_escaped() {
        let mark = Mark { at: at(8), text: "</title><script>x</script>".into(), is_event: false };
        let chart = Columns {
            series: vec![("c1", vec![1, 2, 3])],
            line: None,
            marks: vec![mark],
            now: at(8),
            label: "\"<b>".into(),
        };
        let svg = chart.draw().to_string();
        assert!(!svg.contains("<script>") && !svg.contains("\"<b>"), "{svg}");
        assert!(svg.contains("&lt;script&gt;"));
    }
}
