//! Curves as SVG: what moved when, and which part of the datasets was there when. Plain lines on a grid,
//! readable on light and dark pages.

use std::fmt::Write as _;

use crate::report::Report;

const WIDTH: f64 = 900.0;
/// Height of the frame, if the names of the lines need no more.
const HEIGHT_MIN: f64 = 320.0;
const NAME_HEIGHT: f64 = 20.0;
const LEFT: f64 = 76.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 190.0;
const COLOURS: [&str; 10] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b08000", "#56b4e9", "#7f3fbf", "#8c564b", "#5f7f1f",
    "#7f7f7f",
];

/// One line: its name and points.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Goodput over time, one line for each report.
pub fn goodput(reports: &[Report]) -> String {
    let lines = reports.iter().map(|report| {
        let width = report.curve.width as f64 / 1e6;
        let points = report.curve.bytes.iter().enumerate();
        let points = points.map(|(bin, bytes)| ((bin as f64 + 0.5) * width, bytes / width / 1e6)).collect();
        Line { name: report.summary.strategy.clone(), points }
    });
    chart("moved, MB/s", &lines.collect::<Vec<_>>())
}

/// Part of the datasets that was there, over time.
pub fn datasets(reports: &[Report]) -> String {
    let lines = reports.iter().map(|report| {
        let mut ends = report.dataset_ends.clone();
        ends.sort_unstable_by(f32::total_cmp);
        let step = (ends.len() / 1_000).max(1);
        let count = ends.len().max(1) as f64;
        let points = ends.iter().enumerate().filter(|(at, _)| at % step == 0 || at + 1 == ends.len());
        let mut points: Vec<(f64, f64)> =
            points.map(|(at, end)| (f64::from(*end), (at + 1) as f64 / count * 100.0)).collect();
        points.insert(0, (0.0, 0.0));
        Line { name: report.summary.strategy.clone(), points }
    });
    chart("datasets complete, %", &lines.collect::<Vec<_>>())
}

/// Lines over time in seconds.
pub fn chart(title: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let height = HEIGHT_MIN.max(TOP + BOTTOM + NAME_HEIGHT * lines.len() as f64);
    let right = points().map(|point| point.0).fold(1.0, f64::max);
    let top = nice(points().map(|point| point.1).fold(1e-9, f64::max));
    let (unit, seconds) = time_unit(right);
    let across = |x: f64| LEFT + x / right * (WIDTH - LEFT - RIGHT);
    let up = |y: f64| height - BOTTOM - y / top * (height - BOTTOM - TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-weight=\"bold\" fill=\"#222222\">{title}</text>\n"
    );
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let y = up(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555555\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            short(value)
        );
    }
    let step = nice(right / seconds / 6.0) * seconds;
    let mut at = 0.0;
    while at <= right * 1.0001 {
        let x = across(at);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
            height - BOTTOM + 18.0,
            short(at / seconds)
        );
        at += step;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555555\">{unit}</text>",
        WIDTH - RIGHT,
        height - 6.0
    );
    for (place, line) in lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let dashes = if place < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
        let points: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across(*x), up(*y))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" \
                stroke-linejoin=\"round\"{dashes} points=\"{}\"/>",
            points.join(" ")
        );
        let y = TOP + 6.0 + NAME_HEIGHT * place as f64;
        let x = WIDTH - RIGHT + 14.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" \
                stroke-width=\"3\"{dashes}/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#222222\">{}</text>",
            x + 18.0,
            x + 24.0,
            y + 4.0,
            line.name
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn time_unit(right: f64) -> (&'static str, f64) {
    match right {
        right if right > 3.0 * 86_400.0 => ("days", 86_400.0),
        right if right > 3.0 * 3_600.0 => ("hours", 3_600.0),
        right if right > 300.0 => ("minutes", 60.0),
        _ => ("seconds", 1.0),
    }
}

/// The next of 1, 2, 2.5, 5, 10, …
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-12).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let step = steps.into_iter().find(|step| step * power >= value * (1.0 - 1e-9)).unwrap_or(10.0);
    step * power
}

/// Without needless digits.
fn short(value: f64) -> String {
    let text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!(nice(0.7), 1.0);
        assert_eq!(nice(11.0), 20.0);
        assert_eq!(nice(240.0), 250.0);
        assert_eq!(short(2.50), "2.5");
        assert_eq!(short(1000.0), "1000");
    }

    #[test]
    fn every_line_is_drawn_within_the_frame() {
        let lines = [
            Line { name: "one".into(), points: vec![(0.0, 0.0), (100.0, 7.0)] },
            Line { name: "none".into(), points: vec![] },
        ];
        let svg = chart("title", &lines);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">one<") && svg.contains("76.0,280.0") && svg.ends_with("</svg>\n"));
    }
}
