//! SVG plots: the rate over the last minutes, and the phases of an attempt. Each has its numbers as text.

use std::time::Duration;

use longhaul_api::agent::AttemptTimes;
use longhaul_model::{Timestamp, units};
use maud::{Markup, html};

/// Width of the drawing in its own units; CSS scales it.
const WIDTH: f64 = 1000.0;
/// Height of the drawing in its own units: as many as CSS gives it pixels.
const HEIGHT: f64 = 150.0;

/// Goodput over time, oldest first, the newest at the right edge.
pub fn rates(values: &[f64], step_s: u32) -> Markup {
    let values: Vec<f64> = values.iter().map(|v| if v.is_finite() { v.max(0.0) } else { 0.0 }).collect();
    let top = nice_top(values.iter().copied().fold(0.0, f64::max));
    let x = |place: usize| WIDTH * place as f64 / (values.len().max(2) - 1) as f64;
    let y = |value: f64| HEIGHT - HEIGHT * value / top;
    let line: Vec<String> =
        values.iter().enumerate().map(|(at, v)| format!("{:.1},{:.1}", x(at), y(*v))).collect();
    let area = format!("0,{HEIGHT} {} {WIDTH},{HEIGHT}", line.join(" "));
    let span = Duration::from_secs(values.len() as u64 * u64::from(step_s));
    let peak = values.iter().copied().fold(0.0, f64::max);
    // Labels are outside the SVG: it is stretched to its frame, and so would be its text.
    html! {
        div.plot {
            div.scale aria-hidden="true" {
                @for part in [1.0, 0.5, 0.0] { span { (units::rate(top * part)) } }
            }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img"
                aria-label={ "Rate over the last " (units::duration(span)) ", peak " (units::rate(peak)) } {
                @for part in [0.0, 0.5, 1.0] {
                    line.grid x1="0" x2=(WIDTH) y1=(y(top * part)) y2=(y(top * part)) {}
                }
                @if values.len() > 1 {
                    polygon.area points=(area) {}
                    polyline.line points=(line.join(" ")) {}
                }
            }
            div.when {
                span { (units::duration(span)) " ago" } span { "peak " (units::rate(peak)) } span { "now" }
            }
        }
    }
}

/// The top of an axis: `peak` rounded up to 1, 2 or 5 times a power of ten.
pub fn nice_top(peak: f64) -> f64 {
    if peak <= 0.0 || peak.is_nan() {
        return 1e6;
    }
    let power = 10f64.powf(peak.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|top| *top >= peak)
        .unwrap_or(10.0 * power)
}

/// One phase of an attempt: its name, its class in the style sheet, and how long it took.
pub struct Phase {
    pub name: &'static str,
    pub class: &'static str,
    pub duration: Duration,
}

/// The phases that have started, in order; the last one may still be running.
pub fn phases(times: &AttemptTimes, waited: Duration, now: Timestamp) -> Vec<Phase> {
    let mut list = vec![Phase { name: "waited", class: "wait", duration: waited }];
    let marks = [
        ("at the agent", "wait", Some(times.received), times.started),
        ("first byte", "open", times.started, times.first_byte),
        ("data", "data", times.first_byte, times.last_byte),
        ("verify and commit", "commit", times.last_byte, times.committed),
    ];
    for (name, class, begun, ended) in marks {
        if let Some(begun) = begun.filter(|at| at.0 > 0) {
            list.push(Phase { name, class, duration: ended.unwrap_or(now).since(begun) });
        }
    }
    list
}

pub fn phase_bars(phases: &[Phase]) -> Markup {
    let total: f64 = phases.iter().map(|phase| phase.duration.as_secs_f64()).sum::<f64>().max(1e-9);
    let mut at = 0.0;
    let mut rows = Vec::new();
    for phase in phases {
        let width = WIDTH * phase.duration.as_secs_f64() / total;
        rows.push((at, width.max(1.0), phase));
        at += width;
    }
    html! {
        svg.phases viewBox="0 0 1000 22" preserveAspectRatio="none" height="22" role="img"
            aria-label="Where the time went" {
            @for (x, width, phase) in &rows {
                rect class=(phase.class) x=(format!("{x:.1}")) y="0" width=(format!("{width:.1}"))
                    height="22" {
                    title { (phase.name) " " (units::duration(phase.duration)) }
                }
            }
        }
        div.legend {
            @for phase in phases { span { (phase.name) " " b { (units::duration(phase.duration)) } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_values_still_make_a_plot() {
        for values in [vec![], vec![f64::NAN], vec![1.0], vec![-1.0, f64::INFINITY, 5e9]] {
            let text = rates(&values, 1).into_string();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
        assert_eq!(nice_top(612e6), 1e9);
        assert_eq!(nice_top(150e6), 200e6);
    }

    #[test]
    fn phases_follow_the_marks() {
        let at = Timestamp::from_seconds;
        let times = AttemptTimes {
            received: at(10),
            started: Some(at(11)),
            first_byte: Some(at(12)),
            last_byte: None,
            committed: None,
        };
        let list = phases(&times, Duration::from_secs(3), at(20));
        let names: Vec<_> = list.iter().map(|phase| (phase.name, phase.duration.as_secs())).collect();
        assert_eq!(names, [("waited", 3), ("at the agent", 1), ("first byte", 1), ("data", 8)]);
    }
}
