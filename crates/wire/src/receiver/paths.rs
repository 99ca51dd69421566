//! What is measured of the streams, and how many there are because of it.

use std::time::Duration;

use super::streams::{State, Stream};
use super::{Receiver, StreamNumber};
use crate::meter::WINDOW;
use crate::path::{Limit, PathReport, SHORT, Seen, Sum, Tuner};

/// How often the number of streams is thought over.
const TUNE_EVERY: Duration = Duration::from_secs(1);

/// A session's path as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathView {
    pub streams: usize,
    /// Zero if it was not measured.
    pub round_trip: Duration,
    /// Payload that arrives, bytes per second.
    pub rate: f64,
    /// Of all streams together, as the sending kernel sees it; bytes per second.
    pub delivery_rate: u64,
    /// Since the session began.
    pub retransmits: u64,
    /// None if nothing is under way, or nothing was measured.
    pub limit: Option<Limit>,
}

impl Receiver {
    /// Uses as many streams as the path needs, but not more than that.
    pub fn adapt_streams(&mut self, most: usize) {
        let tuner = Tuner::new(most);
        self.set_streams(tuner.streams());
        self.tuner = Some(tuner);
    }

    /// More are dialled when there is work; fewer close as they come to rest.
    fn set_streams(&mut self, wanted: usize) {
        self.wanted_streams = wanted.max(1);
        while self.used().count() < self.wanted_streams {
            let rested = |stream: &Stream| stream.retired && matches!(stream.state, State::Down { .. });
            match self.streams.iter_mut().find(|stream| rested(stream)) {
                Some(stream) => *stream = Stream::new(),
                None => self.streams.push(Stream::new()),
            }
        }
    }

    /// The places of the streams that are used. The others close when they have answered.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> {
        let places = self.streams.iter().enumerate().filter(|(_, stream)| !stream.retired);
        places.map(|(place, _)| place).take(self.wanted_streams)
    }

    /// Asks for nothing more on a stream, and lets it answer what it was asked for; another takes its place at once.
    pub fn drain(&mut self, stream: StreamNumber, now: Duration) {
        let Some(place) = self.streams.get_mut(stream.0 as usize) else { return };
        if matches!(place.state, State::Up(_)) && !place.retired {
            place.retired = true;
            self.set_streams(self.wanted_streams);
            self.handle_timeout(now);
        }
    }

    /// What our kernel measured of the stream's path.
    pub fn measured(&mut self, stream: StreamNumber, round_trip: Duration) {
        if let Some(State::Up(up)) = self.state(stream) {
            up.round_trip = round_trip;
        }
    }

    /// Whether a stream fills the path with little under way.
    pub fn is_near(&self) -> bool {
        let nearest = self.nearest();
        !nearest.is_zero() && nearest < SHORT
    }

    pub(super) fn reported(&mut self, stream: StreamNumber, report: PathReport) {
        self.retransmits += u64::from(report.retransmits);
        if let Some(State::Up(up)) = self.state(stream) {
            up.report = Some(report);
        }
    }

    /// `held`: less is asked for than could be, since what has arrived waits for our disk.
    pub fn path(&mut self, held: bool, now: Duration) -> PathView {
        let sum = self.sum();
        let limit = if self.has_work() { sum.limit(held) } else { None };
        PathView {
            streams: self.streams_up(),
            round_trip: self.nearest(),
            rate: self.rate(now),
            delivery_rate: sum.delivery_rate,
            retransmits: self.retransmits,
            limit,
        }
    }

    pub(super) fn tune(&mut self, now: Duration) {
        let Some(mut tuner) = self.tuner.take() else { return };
        if now.saturating_sub(self.tuned_at) >= TUNE_EVERY
            || !self.nearest().is_zero() && !tuner.has_measured()
        {
            self.tuned_at = now;
            let sum = self.sum();
            let seen = Seen {
                round_trip: self.nearest(),
                rate: self.rate(now),
                limit: sum.limit(false),
                windows_bind: sum.windows_bind(),
                loss: sum.loss(),
                busy: self.all_busy(now),
            };
            tuner.look(&seen, now);
            self.set_streams(tuner.streams());
        }
        self.tuner = Some(tuner);
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        let reports = self.streams.iter().filter_map(|stream| stream.up()?.report);
        reports.for_each(|report| sum.add(&report));
        sum
    }

    fn rate(&mut self, now: Duration) -> f64 {
        let rate = |stream: &mut Stream| match &mut stream.state {
            State::Up(up) => up.meter.rate(now),
            _ => 0.0,
        };
        self.streams.iter_mut().map(rate).sum()
    }

    /// The shortest round trip that any stream has now: the others stand in queues.
    fn nearest(&self) -> Duration {
        let measured = self.streams.iter().filter_map(Stream::up).map(|up| up.round_trip);
        measured.filter(|round_trip| !round_trip.is_zero()).min().unwrap_or_default()
    }

    fn all_busy(&self, now: Duration) -> bool {
        let busy = |since: Option<Duration>| since.is_some_and(|since| now.saturating_sub(since) >= WINDOW);
        let mut up = self.streams.iter().filter_map(Stream::up).peekable();
        up.peek().is_some() && up.all(|up| busy(up.busy_since))
    }
}
