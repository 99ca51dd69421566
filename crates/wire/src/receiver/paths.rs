//! Path measurements of the streams, and the number of streams that follows from them.

use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;

use super::streams::{State, Stream};
use super::{OriginNumber, Receiver, StreamNumber};
use crate::path::{
    BottleneckCause, PathReport, PathSample, PathSummary, ROUND_TRIP_SHORT_MAX, StreamCountTuner,
};
use crate::rate_meter::RATE_WINDOW;

/// Interval at which the number of streams is tuned.
const TUNE_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes requested on a stream beyond its window: a chunk that has almost arrived counts whole, and half of
/// one is in the sender's kernel.
const REQUESTED_BEYOND_WINDOW_BYTES: u64 = 3 * CHUNK_BYTES as u64 / 2;

/// State of a session's path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathSnapshot {
    /// Number of connected streams.
    pub streams: usize,
    /// Zero if unknown.
    pub round_trip: Duration,
    /// The shortest round trip measured, without queueing.
    pub round_trip_min: Duration,
    /// Rate of arriving payload, in bytes per second.
    pub rate: f64,
    /// Delivery rate of all streams together, as the sending kernel sees it; bytes per second.
    pub delivery_rate: u64,
    /// Bytes acknowledged since the session began, as the sending kernels count them.
    pub acked_bytes: u64,
    /// Segments sent since the session began, as the sending kernels count them.
    pub segments: u64,
    /// Segments sent again since the session began.
    pub retransmits: u64,
    /// None if nothing is in flight, or nothing was measured.
    pub cause: Option<BottleneckCause>,
}

/// Traffic of a session's streams since it began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathTotals {
    acked_bytes: u64,
    segments: u64,
    retransmits: u64,
}

impl PathTotals {
    fn add(&mut self, report: &PathReport) {
        self.acked_bytes = self.acked_bytes.saturating_add(report.acked_bytes);
        self.segments = self.segments.saturating_add(report.segments.into());
        self.retransmits = self.retransmits.saturating_add(report.retransmits.into());
    }
}

impl Receiver {
    /// Tunes the number of streams to each source within these bounds.
    pub fn adapt_streams(&mut self, streams_min: usize, streams_max: usize) {
        for origin in self.all_origins() {
            let tuner = StreamCountTuner::new(streams_min, streams_max);
            self.set_streams(origin, tuner.streams());
            self.origin(origin).tuner = Some(tuner);
        }
    }

    /// Sets the number of streams: more are dialled when there is work, surplus ones close when idle.
    fn set_streams(&mut self, origin: OriginNumber, wanted: usize) {
        let wanted = wanted.max(1);
        self.origin(origin).wanted_streams = wanted;
        while self.used_streams_of(origin).count() < wanted {
            let rested = |stream: &Stream| stream.retired && matches!(stream.state, State::Down { .. });
            match self.streams.iter_mut().find(|stream| rested(stream)) {
                Some(stream) => *stream = Stream::new(origin),
                None => self.streams.push(Stream::new(origin)),
            }
        }
    }

    /// Indices of the streams in use. The others close when they have answered.
    pub(super) fn used_streams(&self) -> impl Iterator<Item = usize> {
        self.all_origins().flat_map(|origin| self.used_streams_of(origin))
    }

    fn used_streams_of(&self, origin: OriginNumber) -> impl Iterator<Item = usize> {
        let source = &self.origins[usize::from(origin.0)];
        let most = if source.excluded { 0 } else { source.wanted_streams };
        let is_used = move |stream: &Stream| stream.origin == origin && !stream.retired;
        let places = self.streams.iter().enumerate().filter(move |(_, stream)| is_used(stream));
        places.map(|(place, _)| place).take(most)
    }

    /// Drains a stream: requests nothing more on it and lets it finish; another takes its place at once.
    pub fn drain_stream(&mut self, stream: StreamNumber, now: Duration) {
        let Some(place) = self.streams.get_mut(stream.0 as usize) else { return };
        if matches!(place.state, State::Up(_)) && !place.retired {
            place.retired = true;
            let origin = self.origin_of(stream);
            let wanted = self.origin(origin).wanted_streams;
            self.set_streams(origin, wanted);
            self.handle_timeout(now);
        }
    }

    /// Sets the round trips of the stream as our kernel measured them.
    pub fn set_round_trip(&mut self, stream: StreamNumber, round_trip: Duration, round_trip_min: Duration) {
        if let Some(State::Up(up)) = self.state(stream) {
            up.round_trip = round_trip;
            up.round_trip_min = round_trip_min;
        }
    }

    /// The receive window for a stream whose sender uses BBR: less than what was requested, so that the
    /// sender always has more to send. An application-limited BBR takes the rate that it was given for the
    /// path's, and keeps probing for more: at almost three times the rate, into full queues.
    pub fn receive_window(&self, stream: StreamNumber) -> Option<u64> {
        let up = self.streams.get(stream.0 as usize)?.up()?;
        let bounded =
            up.report?.rate_based && up.round_trip_max() >= ROUND_TRIP_SHORT_MAX && up.slots_max > 0;
        let asked = up.slots_max as u64 * u64::from(CHUNK_BYTES);
        bounded.then(|| asked.saturating_sub(REQUESTED_BEYOND_WINDOW_BYTES).max(asked / 2))
    }

    /// Whether all paths in use are so short that a stream fills them with little in flight.
    pub fn is_short_path(&self) -> bool {
        let mut used = self.all_origins().filter(|origin| self.first_stream_up(*origin).is_some()).peekable();
        used.peek().is_some()
            && used.all(|origin| {
                let nearest = shortest_round_trip(self.streams_of(origin));
                !nearest.is_zero() && nearest < ROUND_TRIP_SHORT_MAX
            })
    }

    pub(super) fn handle_report(&mut self, stream: StreamNumber, report: PathReport) {
        self.totals.add(&report);
        // A window that we restrict ourselves is not the bottleneck.
        let ours = self.receive_window(stream).is_some();
        let receiver_limited = if ours { Duration::ZERO } else { report.receiver_limited };
        let report = PathReport { receiver_limited, ..report };
        if let Some(State::Up(up)) = self.state(stream) {
            up.report = Some(report);
        }
    }

    /// `backpressured`: less is requested than could be, since arrived data waits for our disk.
    pub fn path_snapshot(&mut self, backpressured: bool, now: Duration) -> PathSnapshot {
        let sum = summarize(self.streams.iter());
        let cause = if self.has_work() { sum.cause(backpressured) } else { None };
        let PathTotals { acked_bytes, segments, retransmits } = self.totals;
        PathSnapshot {
            streams: self.streams_up(),
            round_trip: shortest_round_trip(self.streams.iter()),
            round_trip_min: shortest_measured(
                self.streams.iter().filter_map(Stream::up).map(|up| up.round_trip_min),
            ),
            rate: self.rate(None, now),
            delivery_rate: sum.delivery_rate,
            acked_bytes,
            segments,
            retransmits,
            cause,
        }
    }

    pub(super) fn tune(&mut self, now: Duration) {
        self.all_origins().for_each(|origin| self.tune_origin(origin, now));
    }

    fn tune_origin(&mut self, origin: OriginNumber, now: Duration) {
        let Some(mut tuner) = self.origin(origin).tuner.take() else { return };
        let nearest = shortest_round_trip(self.streams_of(origin));
        if now.saturating_sub(self.origin(origin).tuned_at) >= TUNE_INTERVAL
            || !nearest.is_zero() && !tuner.has_measured()
        {
            self.origin(origin).tuned_at = now;
            let sum = summarize(self.streams_of(origin));
            let seen = PathSample {
                round_trip: nearest,
                rate: self.rate(Some(origin), now),
                bottleneck: sum.bottleneck(false),
                window_limited: sum.is_window_limited(),
                loss_share: sum.loss_share(),
                busy: self.all_busy(origin, now),
            };
            tuner.update(&seen, now);
            self.set_streams(origin, tuner.streams());
        }
        self.origin(origin).tuner = Some(tuner);
    }

    /// Rate from one source, or from all.
    fn rate(&mut self, of: Option<OriginNumber>, now: Duration) -> f64 {
        let rate = |stream: &mut Stream| match &mut stream.state {
            State::Up(up) if of.is_none_or(|origin| stream.origin == origin) => up.meter.rate(now),
            _ => 0.0,
        };
        self.streams.iter_mut().map(rate).sum()
    }

    fn all_busy(&self, origin: OriginNumber, now: Duration) -> bool {
        let busy =
            |since: Option<Duration>| since.is_some_and(|since| now.saturating_sub(since) >= RATE_WINDOW);
        let mut up = self.streams_of(origin).filter_map(Stream::up).peekable();
        up.peek().is_some() && up.all(|up| busy(up.busy_since))
    }
}

fn summarize<'a>(streams: impl Iterator<Item = &'a Stream>) -> PathSummary {
    let mut sum = PathSummary::default();
    let reports = streams.filter_map(|stream| stream.up()?.report);
    reports.for_each(|report| sum.add(&report));
    sum
}

/// The shortest current round trip of these streams: longer ones include queueing.
fn shortest_round_trip<'a>(streams: impl Iterator<Item = &'a Stream>) -> Duration {
    shortest_measured(streams.filter_map(Stream::up).map(|up| up.round_trip))
}

/// The shortest of those that were measured.
fn shortest_measured(round_trips: impl Iterator<Item = Duration>) -> Duration {
    round_trips.filter(|round_trip| !round_trip.is_zero()).min().unwrap_or_default()
}
