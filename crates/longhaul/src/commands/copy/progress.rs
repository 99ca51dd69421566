//! Progress of `longhaul copy`: a bar on a terminal, a line every few seconds otherwise, events with
//! `--json`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_copy::{Progress, Stop, Totals};
use longhaul_model::Timestamp;
use longhaul_model::units;

use super::events::Event;
use crate::clock;
use crate::commands::{Context, words};
use crate::output::Format;
use crate::progress::{Measure, ProgressBoard, REPAINT_INTERVAL, lines};
use crate::time_format;

/// The current rate is averaged over about this time.
const RATE_WINDOW: Duration = Duration::from_secs(3);
/// Time between two progress events of `--json`.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Displays progress in a thread until it is stopped.
pub struct ProgressPainter {
    stop: Stop,
    thread: Option<std::thread::JoinHandle<ProgressBoard>>,
}

impl ProgressPainter {
    pub fn start(context: &Context, progress: &Arc<Progress>) -> ProgressPainter {
        let stop = Stop::default();
        let output = context.output;
        let json = output.format == Format::Json;
        let mut board = ProgressBoard::new(output.error, output.quiet || json);
        let (progress, ended) = (progress.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut rate = RateMeter::default();
            let every = if json { EVENT_INTERVAL } else { REPAINT_INTERVAL };
            while !ended.wait(every) {
                let (totals, note) = (progress.totals(), progress.note());
                let now = clock::now();
                if json {
                    // If this fails, so does the summary, which reports it.
                    let _ = output.json_line(&rate.event(&totals, &note, Instant::now(), now));
                    continue;
                }
                let measure = rate.measure(&totals, &note, Instant::now(), now);
                let width = board.terminal().width();
                let shown = lines(&[("copy", measure.clone())], width);
                board.show(now, &shown, || measure.plain("copy"));
            }
            board
        });
        ProgressPainter { stop, thread: Some(thread) }
    }

    pub fn stop(mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take()
            && let Ok(mut board) = thread.join()
        {
            board.clear();
        }
    }
}

/// Current and average rate, from byte counts over time.
#[derive(Default)]
struct RateMeter {
    begun: Option<Instant>,
    samples: std::collections::VecDeque<(Instant, u64)>,
}

/// Bytes per second, and the expected end.
struct RateReading {
    now: f64,
    average: f64,
    done_at: Option<Timestamp>,
}

impl RateMeter {
    /// Counts what moves, not what existed before, so that a resumed copy does not start with a jump.
    fn sample(&mut self, totals: &Totals, at: Instant, now: Timestamp) -> RateReading {
        let moved = totals.bytes_moved;
        let begun = *self.begun.get_or_insert(at);
        self.samples.push_back((at, moved));
        while self.samples.len() > 2 && self.samples.front().is_some_and(|(old, _)| at - *old > RATE_WINDOW) {
            self.samples.pop_front();
        }
        let per_second = |bytes: u64, over: Duration| {
            if over.is_zero() { 0.0 } else { bytes as f64 / over.as_secs_f64() }
        };
        let (first_at, first) = self.samples.front().copied().unwrap_or((at, moved));
        let rate_now = per_second(moved.saturating_sub(first), at - first_at);
        let left =
            totals.bytes.saturating_sub(totals.bytes_done + totals.bytes_running + totals.bytes_skipped);
        let end = || now + Duration::from_secs_f64((left as f64 / rate_now).min(1e9));
        let done_at = (totals.listed && rate_now > 0.0).then(end);
        RateReading { now: rate_now, average: per_second(moved, at - begun), done_at }
    }

    fn event<'a>(&mut self, totals: &'a Totals, note: &'a str, at: Instant, now: Timestamp) -> Event<'a> {
        let pace = self.sample(totals, at, now);
        let (bytes_per_s, bytes_per_s_average, done_at) = (pace.now, pace.average, pace.done_at);
        Event::Progress { at: now, bytes_per_s, bytes_per_s_average, done_at, note, totals }
    }

    fn measure(&mut self, totals: &Totals, note: &str, at: Instant, now: Timestamp) -> Measure {
        let pace = self.sample(totals, at, now);
        let end = match pace.done_at {
            Some(end) => format!("done {}", time_format::expected(end, now)),
            None if totals.listed && totals.bytes_moved == 0 => "starting".to_owned(),
            None if totals.listed => "stalled".to_owned(),
            None => "listing".to_owned(),
        };
        let mut notes = Vec::new();
        if totals.retries > 0 {
            notes.push(words::retries(totals.retries));
        }
        if totals.bytes_resent > 0 {
            notes.push(format!("re-sent {}", units::bytes(totals.bytes_resent)));
        }
        if totals.files_failed > 0 {
            notes.push(format!("{} failed", units::count(totals.files_failed)));
        }
        notes.extend((!note.is_empty()).then(|| note.to_owned()));
        Measure {
            files_done: totals.files_done + totals.files_skipped,
            files: totals.listed.then_some(totals.files),
            bytes_done: totals.bytes_done + totals.bytes_running + totals.bytes_skipped,
            bytes: totals.listed.then_some(totals.bytes),
            rate_now: pace.now,
            rate_average: pace.average,
            end,
            left: pace.done_at.and_then(|end| time_format::time_left(end, now)).unwrap_or_default(),
            notes: notes.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_moves() {
        let mut rate = RateMeter::default();
        let at = Instant::now();
        let now = "2026-11-21T14:02:11Z".parse().unwrap();
        let mut totals = Totals { bytes: 100_000_000, files: 2, listed: true, ..Totals::default() };
        // Half of it was copied by an earlier command.
        totals.bytes_running = 50_000_000;
        assert_eq!(rate.measure(&totals, "", at, now).end, "starting");
        totals.bytes_running += 10_000_000;
        totals.bytes_moved = 10_000_000;
        totals.bytes_resent = 7;
        let measure = rate.measure(&totals, "", at + Duration::from_secs(1), now);
        assert_eq!((measure.rate_now, measure.rate_average, measure.bytes_done), (10e6, 10e6, 60_000_000));
        assert!(measure.left == "4.0 s" && measure.notes.contains("re-sent 7 B"), "{measure:?}");
        let measure = rate.measure(&totals, "", at + Duration::from_secs(9), now);
        assert_eq!(measure.end, "stalled");
    }
}
