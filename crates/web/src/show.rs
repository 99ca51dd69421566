//! Small pieces of markup that several pages share: states, progress bars, times, sizes and rates.

use std::time::Duration;

use longhaul_api::native::{Expected, VerifiedCount};
use longhaul_model::percent::encode_component;
use longhaul_model::{Fault, Timestamp, TransferState, units};
use maud::{Markup, html};

/// A state with its symbol, since colour alone must not carry meaning: ● good, ▲ attention, ■ bad.
pub fn state(kind: &str, word: &str) -> Markup {
    let symbol = match kind {
        "good" => "●",
        "warn" => "▲",
        "bad" => "■",
        _ => "○",
    };
    html! { span class={ "state " (kind) } { (symbol) " " (word) } }
}

pub fn transfer_state(value: TransferState) -> Markup {
    match value {
        TransferState::Done => state("good", "done"),
        TransferState::Leased => state("good", "running"),
        TransferState::Waiting => state("idle", "waiting"),
        TransferState::Failed => state("bad", "failed"),
        TransferState::Cancelled => state("idle", "cancelled"),
    }
}

pub fn bar(done: u64, all: u64) -> Markup {
    let percent = percent(done, all);
    html! {
        span.bar {
            progress max="1000"
                value=(if all == 0 { 1000 } else { (done.min(all) as u128 * 1000 / u128::from(all)) as u64 })
                aria-label=(percent) {}
            span.soft { (percent) }
        }
    }
}

/// A share in percent, rounded down so that 100 % means all.
pub fn percent(done: u64, all: u64) -> String {
    let share = if all == 0 { 100 } else { (u128::from(done.min(all)) * 100 / u128::from(all)) as u64 };
    format!("{share} %")
}

/// `14:02:11`, with the date if it is not today's; the exact time on hover.
pub fn time(at: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(at) title=(at) { (clock(at, now)) } }
}

fn clock(at: Timestamp, now: Timestamp) -> String {
    let (text, today) = (at.to_string(), now.to_string());
    match (text.split_once('T'), today.split_once('T')) {
        (Some((day, clock)), Some((this_day, _))) => {
            let clock = clock.get(..8).unwrap_or(clock);
            if day == this_day { clock.to_owned() } else { format!("{day} {clock}") }
        }
        _ => text,
    }
}

pub fn ago(at: Timestamp, now: Timestamp) -> String {
    let passed = now.since(at);
    if passed < Duration::from_secs(1) { "now".into() } else { format!("{} ago", units::duration(passed)) }
}

/// The expected completion, or why there is no estimate.
pub fn expected(value: &Expected, complete: bool, now: Timestamp) -> Markup {
    html! {
        @if complete { (state("good", "complete")) }
        @else if let Some(median) = value.median {
            (time(median, now)) " " span.soft { "in " (units::duration(median.since(now))) }
            @if let Some(stuck) = &value.stuck {
                br;
                (state("bad", &format!("{} cannot come", units::count(stuck.files))))
            }
            @if let Some(ninety) = value.ninety { br; span.soft { "90 %: " (time(ninety, now)) } }
        } @else if let Some(why) = &value.why_none { span.soft { "no estimate: " (why) } }
        @else { span.soft { "no estimate yet" } }
    }
}

pub fn verified(counts: &[VerifiedCount]) -> Markup {
    html! {
        @for (place, count) in counts.iter().enumerate() {
            @if place > 0 { ", " }
            (units::count(count.files)) " " (how(&count.how))
        }
        @if counts.is_empty() { "nothing yet" }
    }
}

fn how(word: &str) -> &str {
    match word {
        "end-to-end" => "verified end to end",
        "readback" => "verified by reading back",
        "wire" => "checked on the wire only",
        "registered" => "registered in place",
        other => other,
    }
}

pub fn fault(value: &Fault) -> Markup {
    html! {
        span.state.bad { "■ " (value.code) } " " (value.to_string())
        " " span.soft { "(blame: " (value.blame) "; " (value.code.next_step()) ")" }
    }
}

/// A number of files: `1 file`, `2,000 files`.
pub fn files(number: u64) -> String {
    units::plural(number, "file", "files")
}

pub fn size(bytes: u64) -> Markup {
    html! { span title={ (units::count(bytes)) " bytes" } { (units::bytes(bytes)) } }
}

pub fn rate(bytes_per_s: f64) -> Markup {
    let bits = bytes_per_s * 8.0 / 1e6;
    html! { span title={ (format!("{bits:.1}")) " Mbit/s" } { (units::rate(bytes_per_s)) } }
}

/// A path segment with everything but unreserved characters encoded, since dataset names contain `/`.
pub fn segment(text: &str) -> String {
    encode_component(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_percent_means_all() {
        assert_eq!(percent(1_999, 2_000), "99 %");
        assert_eq!(percent(2_000, 2_000), "100 %");
        assert_eq!(percent(0, 0), "100 %");
    }

    #[test]
    fn names_cannot_leave_their_segment() {
        assert_eq!(segment("a/b#1?x=<y>"), "a%2Fb%231%3Fx%3D%3Cy%3E");
    }

    #[test]
    fn times_of_another_day_show_the_day() {
        let now = Timestamp::from_seconds(1_763_717_531);
        assert_eq!(clock(now, now), "09:32:11");
        assert_eq!(clock(now + Duration::from_secs(86_400), now), "2025-11-22 09:32:11");
    }
}
