//! The time line of a link's circuits as SVG: the bandwidth booked, the bandwidth used, and the rate that the
//! link had without a circuit before.

use std::time::Duration;

use longhaul_api::circuits::Circuit;
use longhaul_model::{Timestamp, units};
use maud::{Markup, html};

use crate::plot::nice_top;

/// Width of the drawing in its own units; CSS scales it.
const WIDTH: f64 = 1000.0;
/// Height of the drawing in its own units.
const HEIGHT: f64 = 120.0;
/// Bytes per second in one Mbit/s.
const BYTES_PER_S_PER_MBIT: f64 = 125_000.0;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// Spans of the time axis: the shortest that shows all circuits is used, else the last.
const TIME_SPANS: [Duration; 6] = [
    MINUTE.saturating_mul(10),
    HOUR,
    HOUR.saturating_mul(6),
    DAY,
    DAY.saturating_mul(7),
    DAY.saturating_mul(30),
];
/// A short circuit is drawn at least this wide, so that it can be seen.
const BLOCK_WIDTH_MIN: f64 = 3.0;

/// One circuit in the units of the drawing.
struct Block<'a> {
    circuit: &'a Circuit,
    left: f64,
    width: f64,
    booked: f64,
    used: f64,
    plain: f64,
}

/// Draws `circuits`, which may be in any order. Empty if none was granted.
pub fn circuits(circuits: &[&Circuit], now: Timestamp) -> Markup {
    let granted: Vec<&Circuit> = circuits.iter().copied().filter(|one| one.granted.is_some()).collect();
    let Some(span) = span(&granted, now) else { return html! {} };
    let all = granted.iter().flat_map(|one| [booked(one), carried(one), plain(one)]);
    let top = nice_top(all.fold(0.0, f64::max));
    let begin = now - span;
    let blocks: Vec<Block<'_>> = granted.iter().filter_map(|one| block(one, begin, span, top, now)).collect();
    let label = format!(
        "Circuits of the last {}: booked, used, and the rate before without a circuit",
        units::duration(span)
    );
    // Labels are outside the SVG: it is stretched to its frame, and so would be its text.
    html! {
        div.plot.circuits {
            div.scale aria-hidden="true" {
                @for part in [1.0, 0.5, 0.0] { span { (units::rate(top * part)) } }
            }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img"
                aria-label=(label) {
                @for part in [0.0, 0.5, 1.0] {
                    line.grid x1="0" x2=(WIDTH) y1=(number(HEIGHT * part)) y2=(number(HEIGHT * part)) {}
                }
                @for block in &blocks {
                    g {
                        title { (tooltip(block.circuit)) }
                        rect.booked x=(number(block.left)) y=(number(HEIGHT - block.booked))
                            width=(number(block.width)) height=(number(block.booked)) {}
                        rect.used x=(number(block.left)) y=(number(HEIGHT - block.used))
                            width=(number(block.width)) height=(number(block.used)) {}
                        @if block.plain > 0.0 {
                            line.plain x1=(number(block.left)) x2=(number(block.left + block.width))
                                y1=(number(HEIGHT - block.plain)) y2=(number(HEIGHT - block.plain)) {}
                        }
                    }
                }
            }
            div.when { span { (units::duration(span)) " ago" } span { "now" } }
        }
        div.legend.circuits {
            span.booked { "booked" } span.used { "used" } span.plain { "without a circuit, before" }
        }
    }
}

fn number(value: f64) -> String {
    format!("{value:.1}")
}

fn span(granted: &[&Circuit], now: Timestamp) -> Option<Duration> {
    let oldest = granted.iter().filter_map(|one| one.granted).min()?;
    let age = now.since(oldest);
    Some(TIME_SPANS.into_iter().find(|span| *span >= age).unwrap_or(TIME_SPANS[TIME_SPANS.len() - 1]))
}

fn booked(circuit: &Circuit) -> f64 {
    finite(circuit.booked_mbit.unwrap_or(0) as f64 * BYTES_PER_S_PER_MBIT)
}

fn carried(circuit: &Circuit) -> f64 {
    finite(circuit.carried_bytes_per_s().unwrap_or(0.0))
}

fn plain(circuit: &Circuit) -> f64 {
    finite(circuit.plain_bytes_per_s.unwrap_or(0.0))
}

fn finite(rate: f64) -> f64 {
    if rate.is_finite() { rate.max(0.0) } else { 0.0 }
}

fn block<'a>(
    circuit: &'a Circuit,
    begin: Timestamp,
    span: Duration,
    top: f64,
    now: Timestamp,
) -> Option<Block<'a>> {
    let granted = circuit.granted?;
    let ended = circuit.ended.unwrap_or(now).min(now);
    if ended <= begin {
        return None;
    }
    let x =
        |at: Timestamp| WIDTH * (at.since(begin).as_secs_f64() / span.as_secs_f64().max(1.0)).clamp(0.0, 1.0);
    let height = |rate: f64| HEIGHT * (rate / top).clamp(0.0, 1.0);
    let left = x(granted.max(begin)).min(WIDTH - BLOCK_WIDTH_MIN);
    Some(Block {
        circuit,
        left,
        width: (x(ended) - left).max(BLOCK_WIDTH_MIN),
        booked: height(booked(circuit)),
        used: height(carried(circuit)),
        plain: height(plain(circuit)),
    })
}

/// The text shown when the pointer is on a circuit.
fn tooltip(circuit: &Circuit) -> String {
    let mbit = circuit.booked_mbit.unwrap_or(0);
    let rate =
        circuit.carried_bytes_per_s().map(|rate| format!(" at {}", units::rate(rate))).unwrap_or_default();
    let gain = circuit.gain_s().map(|gain| format!(", gained {}", signed_duration(gain))).unwrap_or_default();
    format!(
        "{} Mbit/s booked, carried {}{rate}{gain}",
        units::count(mbit),
        units::bytes(circuit.carried_bytes)
    )
}

/// Time gained, or lost with a minus sign.
pub fn signed_duration(seconds: f64) -> String {
    let span = Duration::try_from_secs_f64(seconds.abs()).unwrap_or(Duration::MAX);
    let sign = if seconds < 0.0 { "−" } else { "" };
    format!("{sign}{}", units::duration(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    fn circuit(granted: Option<i64>, ended: Option<i64>) -> Circuit {
        Circuit {
            id: "x".into(),
            why: String::new(),
            asked: at(0),
            asked_mbit: 800,
            granted: granted.map(at),
            booked_mbit: Some(800),
            expires: None,
            used: granted.map(at),
            carried_bytes: 50_000_000_000,
            carried_s: 1_000.0,
            plain_bytes_per_s: Some(25e6),
            ended: ended.map(at),
            end: None,
        }
    }

    #[test]
    fn heights_are_rates_and_widths_are_times() {
        let one = circuit(Some(0), Some(1_800));
        let block = block(&one, at(0), HOUR, 200e6, at(3_600)).unwrap();
        let near = |one: f64, other: f64| (one - other).abs() < 0.01;
        assert!(near(block.left, 0.0) && near(block.width, WIDTH / 2.0), "{} {}", block.left, block.width);
        assert!(near(block.booked, HEIGHT / 2.0) && near(block.used, HEIGHT / 4.0));
        assert!(near(block.plain, HEIGHT / 8.0));
        let text = circuits(&[&one], at(3_600)).into_string();
        assert!(text.contains("800 Mbit/s booked, carried 50.0 GB at 50.0 MB/s, gained 16 min"), "{text}");
    }

    #[test]
    fn any_report_makes_a_drawing() {
        assert_eq!(circuits(&[&circuit(None, None)], at(0)).into_string(), "", "nothing was granted");
        let mut odd = circuit(Some(100), Some(-100));
        odd.plain_bytes_per_s = Some(f64::INFINITY);
        odd.carried_s = 0.0;
        let old = circuit(Some(-90 * 86_400), Some(-80 * 86_400));
        let text = circuits(&[&odd, &old, &circuit(Some(10), None)], at(50)).into_string();
        assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains("=\"-"), "{text}");
        assert_eq!(
            text.matches("<g>").count(),
            2,
            "circuits that ended before the axis are not drawn: {text}"
        );
    }
}
