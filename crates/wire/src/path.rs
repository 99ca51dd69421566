//! What is measured of the path of a stream, who holds it up, and how many streams the path needs.

use std::time::Duration;

/// What the sending kernel saw of a stream since the report before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    pub interval: Duration,
    pub round_trip: Duration,
    /// Bytes per second; zero if the sender had too little to send to find out.
    pub delivery_rate: u64,
    pub acked_bytes: u64,
    pub segments: u32,
    pub retransmits: u32,
    /// Time with data under way; of it, while the receiver's window, or the sender's buffer, was full.
    pub busy: Duration,
    pub receiver_limited: Duration,
    pub buffer_limited: Duration,
    /// The kernel goes by rate and round trip (BBR), not by losses.
    pub by_rate: bool,
}

/// Who holds a session up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    Network,
    /// Its disk or CPU, its rate limit, or its send buffer.
    Source,
    /// Its disk or CPU, its rate limit, or its receive buffer.
    Target,
}

impl Limit {
    pub fn word(self) -> &'static str {
        match self {
            Limit::Network => "network",
            Limit::Source => "source",
            Limit::Target => "target",
        }
    }
}

/// What holds a session up, as far as the sender's kernel and the receiver can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Nothing else does.
    Network,
    /// The source has nothing to send: it is read too slowly.
    SourceRests,
    /// The send buffer is full.
    SendBuffer,
    /// The receiver's window is full.
    Window,
    /// The receiver asks for less than it could: its disk, or its rate limit.
    TargetHolds,
}

impl Cause {
    pub fn limit(self) -> Limit {
        match self {
            Cause::Network => Limit::Network,
            Cause::SourceRests | Cause::SendBuffer => Limit::Source,
            Cause::Window | Cause::TargetHolds => Limit::Target,
        }
    }
}

/// A share of the time from which on a thing counts as the cause.
const SHARE: f64 = 0.3;

/// The reports of several streams of one session, added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    interval: f64,
    busy: f64,
    receiver_limited: f64,
    buffer_limited: f64,
    segments: f64,
    retransmits: f64,
    pub delivery_rate: u64,
    pub round_trip: Duration,
}

impl Sum {
    pub fn add(&mut self, report: &PathReport) {
        self.interval += report.interval.as_secs_f64();
        self.busy += report.busy.as_secs_f64();
        self.receiver_limited += report.receiver_limited.as_secs_f64();
        self.buffer_limited += report.buffer_limited.as_secs_f64();
        self.segments += f64::from(report.segments);
        self.retransmits += f64::from(report.retransmits);
        self.delivery_rate = self.delivery_rate.saturating_add(report.delivery_rate);
        self.round_trip = self.round_trip.max(report.round_trip);
    }

    /// `held`: the receiver has asked for less than it could, since its buffers wait for its disk.
    pub fn cause(&self, held: bool) -> Option<Cause> {
        if self.interval == 0.0 {
            return None;
        }
        let unused = self.busy < (1.0 - SHARE) * self.interval;
        Some(if held {
            Cause::TargetHolds
        } else if self.receiver_limited > SHARE * self.interval {
            Cause::Window
        } else if unused {
            Cause::SourceRests
        } else if self.buffer_limited > SHARE * self.interval {
            Cause::SendBuffer
        } else {
            Cause::Network
        })
    }

    pub fn limit(&self, held: bool) -> Option<Limit> {
        self.cause(held).map(Cause::limit)
    }

    /// Whether windows are what binds: more streams have more of them.
    pub fn windows_bind(&self) -> bool {
        self.receiver_limited + self.buffer_limited > SHARE * self.interval && self.interval > 0.0
    }

    /// Share of what was sent that had to be sent again.
    pub fn loss(&self) -> f64 {
        if self.segments > 0.0 { self.retransmits / self.segments } else { 0.0 }
    }
}

/// Streams that a session starts with.
pub const STREAMS_AT_FIRST: usize = 2;
/// On shorter paths one stream fills what two ends can do.
pub const SHORT: Duration = Duration::from_millis(5);
/// Each so much of a round trip is worth a stream more at the start: the windows of all of them open at once.
const ROUND_TRIP_PER_STREAM: Duration = Duration::from_millis(25);
const STREAMS_BY_DISTANCE_MAX: usize = 8;
/// Where less is lost, a stream's window is not what loss decides.
const LOSS_THAT_COUNTS: f64 = 1e-5;
/// More streams are kept if they bring so much more.
const GAIN: f64 = 1.1;
/// As long as the rate looks back, and the windows of new streams take to open.
const TRIAL: Duration = Duration::from_secs(6);
/// After a trial in vain.
const REST: Duration = Duration::from_secs(60);

/// How many a session goes on with once it knows how far the source is.
pub fn streams_by_distance(round_trip: Duration) -> usize {
    let more = round_trip.as_millis() / ROUND_TRIP_PER_STREAM.as_millis();
    (STREAMS_AT_FIRST + more as usize).min(STREAMS_BY_DISTANCE_MAX)
}

/// What a session sees of its path.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub round_trip: Duration,
    /// Payload of all streams, bytes per second.
    pub rate: f64,
    pub limit: Option<Limit>,
    pub windows_bind: bool,
    pub loss: f64,
    /// All streams have owed data without a pause for a while.
    pub busy: bool,
}

/// Decides how many streams a session uses.
#[derive(Clone, Debug)]
pub struct Tuner {
    least: usize,
    most: usize,
    streams: usize,
    measured: bool,
    trial: Option<Trial>,
    next_trial: Duration,
}

#[derive(Clone, Debug)]
struct Trial {
    since: Duration,
    streams_before: usize,
    rate_before: f64,
}

impl Tuner {
    /// `least` is one for each way that is to be used at the same time; `most` counts more.
    pub fn new(least: usize, most: usize) -> Self {
        let most = most.max(1);
        let least = least.clamp(1, most);
        let streams = STREAMS_AT_FIRST.clamp(least, most);
        Tuner { least, most, streams, measured: false, trial: None, next_trial: Duration::ZERO }
    }

    pub fn streams(&self) -> usize {
        self.streams
    }

    pub fn has_measured(&self) -> bool {
        self.measured
    }

    /// Called about once a second.
    pub fn look(&mut self, seen: &Seen, now: Duration) {
        if !self.measured && !seen.round_trip.is_zero() {
            self.measured = true;
            self.streams = streams_by_distance(seen.round_trip).clamp(self.least, self.most);
        }
        if let Some(trial) = &self.trial {
            if now.saturating_sub(trial.since) < TRIAL {
                return;
            }
            let in_vain = seen.busy && seen.rate < GAIN * trial.rate_before;
            if in_vain {
                self.streams = trial.streams_before;
                self.next_trial = now + REST;
            }
            self.trial = None;
        }
        let far = seen.round_trip >= SHORT;
        let worth =
            seen.windows_bind || (seen.limit == Some(Limit::Network) && seen.loss >= LOSS_THAT_COUNTS);
        if far && worth && seen.busy && now >= self.next_trial && self.streams < self.most {
            let (streams_before, rate_before) = (self.streams, seen.rate);
            self.trial = Some(Trial { since: now, streams_before, rate_before });
            let more = if seen.windows_bind { self.streams } else { self.streams.div_ceil(2) };
            self.streams = (self.streams + more).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn second() -> PathReport {
        PathReport { interval: ms(1_000), busy: ms(990), segments: 80_000, ..PathReport::default() }
    }

    #[test]
    fn the_side_that_holds_up_is_named() {
        let of = |report: PathReport, held| {
            let mut sum = Sum::default();
            sum.add(&second());
            sum.add(&report);
            sum.limit(held)
        };
        assert_eq!(Sum::default().limit(true), None);
        assert_eq!(of(second(), false), Some(Limit::Network));
        assert_eq!(of(second(), true), Some(Limit::Target));
        assert_eq!(of(PathReport { receiver_limited: ms(700), ..second() }, false), Some(Limit::Target));
        assert_eq!(of(PathReport { buffer_limited: ms(700), ..second() }, false), Some(Limit::Source));
        assert_eq!(of(PathReport { busy: ms(100), ..second() }, false), Some(Limit::Source));
    }

    fn seen(round_trip: u64, rate: f64, limit: Limit, loss: f64) -> Seen {
        let round_trip = ms(round_trip);
        Seen { round_trip, rate, limit: Some(limit), windows_bind: false, loss, busy: true }
    }

    /// Looks once a second at a path that gives each stream so much, up to so much for all.
    fn settle(tuner: &mut Tuner, round_trip: u64, each: f64, all: f64, loss: f64, from: u64) -> Vec<usize> {
        let look = |second| {
            let rate = (tuner.streams() as f64 * each).min(all);
            tuner.look(&seen(round_trip, rate, Limit::Network, loss), Duration::from_secs(from + second));
            tuner.streams()
        };
        (0..60).map(look).collect()
    }

    #[test]
    fn streams_follow_the_path() {
        // Near: two, whatever is lost.
        assert_eq!(settle(&mut Tuner::new(1, 32), 1, 100.0, 1e9, 1e-3, 0), vec![2; 60]);
        // Far and clean: as many as the distance asks for.
        assert_eq!(settle(&mut Tuner::new(1, 32), 100, 100.0, 1e9, 0.0, 0), vec![6; 60]);
        // Far and lossy: as long as more streams bring more.
        let mut lossy = Tuner::new(1, 32);
        assert_eq!(settle(&mut lossy, 100, 100.0, 1e9, 1e-3, 0).last(), Some(&32));
        let mut narrow = Tuner::new(1, 32);
        let counts = settle(&mut narrow, 100, 100.0, 900.0, 1e-3, 0);
        assert_eq!((counts.last(), counts.iter().max()), (Some(&9), Some(&14)), "{counts:?}");
        // The most is the most, also at the start.
        assert_eq!(settle(&mut Tuner::new(1, 3), 300, 100.0, 1e9, 1e-2, 0), vec![3; 60]);
        assert_eq!(settle(&mut Tuner::new(1, 1), 300, 100.0, 1e9, 1e-2, 0), vec![1; 60]);
        // And the least is the least, up to that.
        assert_eq!(settle(&mut Tuner::new(4, 32), 1, 100.0, 1e9, 0.0, 0), vec![4; 60]);
        assert_eq!(settle(&mut Tuner::new(4, 2), 1, 100.0, 1e9, 0.0, 0), vec![2; 60]);
    }

    #[test]
    fn windows_that_bind_double_the_streams() {
        let mut tuner = Tuner::new(1, 32);
        let bound = Seen { windows_bind: true, ..seen(60, 50.0, Limit::Target, 0.0) };
        tuner.look(&bound, Duration::from_secs(1));
        assert_eq!(tuner.streams(), 8);
        tuner.look(&Seen { rate: 100.0, ..bound }, Duration::from_secs(8));
        assert_eq!(tuner.streams(), 16);
        // A disk that is full gains nothing from streams.
        let mut tuner = Tuner::new(1, 32);
        tuner.look(&seen(60, 50.0, Limit::Source, 1e-2), Duration::from_secs(1));
        assert_eq!(tuner.streams(), 4);
        // Where there was not work for all, nothing is learned.
        let idle = Seen { busy: false, ..seen(60, 50.0, Limit::Network, 1e-2) };
        tuner.look(&idle, Duration::from_secs(9));
        assert_eq!(tuner.streams(), 4);
    }
}
