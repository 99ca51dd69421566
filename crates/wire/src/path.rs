//! Measurements of a stream's path, its bottleneck, and the number of parallel streams that it needs (hill
//! climbing).

use std::time::Duration;

/// TCP statistics of a stream from the sending kernel, since the previous report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReport {
    /// Time that the report covers.
    pub interval: Duration,
    /// Smoothed round trip.
    pub round_trip: Duration,
    /// Bytes per second; zero if the sender had too little to send to measure it.
    pub delivery_rate: u64,
    /// Bytes acknowledged in the interval.
    pub acked_bytes: u64,
    /// Segments sent in the interval, with retransmits.
    pub segments: u32,
    /// Segments sent again in the interval.
    pub retransmits: u32,
    /// Time with unacknowledged data.
    pub busy: Duration,
    /// Part of the busy time in which the receiver's window was full.
    pub receiver_limited: Duration,
    /// Part of the busy time in which the sender's buffer was full.
    pub buffer_limited: Duration,
    /// The kernel uses rate-based congestion control (BBR), not a loss-based one.
    pub rate_based: bool,
}

/// Which side limits a session's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bottleneck {
    /// The network path: its capacity, loss or TCP windows.
    Network,
    /// The source's disk, CPU, rate limit or send buffer.
    Source,
    /// The target's disk, CPU, rate limit or receive buffer.
    Target,
}

impl Bottleneck {
    /// Word for the limiting side in the API and in logs.
    pub fn word(self) -> &'static str {
        match self {
            Bottleneck::Network => "network",
            Bottleneck::Source => "source",
            Bottleneck::Target => "target",
        }
    }
}

/// What limits a session's rate, as far as the sender's kernel and the receiver can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BottleneckCause {
    /// The path: nothing else is the cause.
    Network,
    /// The source has nothing to send: it reads too slowly.
    SourceIdle,
    /// The send buffer is full.
    SendBuffer,
    /// The receiver's TCP window is full.
    ReceiveWindow,
    /// Backpressure: the receiver requests less than it could, because of its disk or its rate limit.
    TargetBackpressure,
}

impl BottleneckCause {
    /// The side that the cause belongs to.
    pub fn bottleneck(self) -> Bottleneck {
        match self {
            BottleneckCause::Network => Bottleneck::Network,
            BottleneckCause::SourceIdle | BottleneckCause::SendBuffer => Bottleneck::Source,
            BottleneckCause::ReceiveWindow | BottleneckCause::TargetBackpressure => Bottleneck::Target,
        }
    }
}

/// From this share of the time on a condition counts as the cause.
const CAUSE_TIME_SHARE_MIN: f64 = 0.3;

/// Sum of the latest reports of several streams of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathSummary {
    interval: f64,
    busy: f64,
    receiver_limited: f64,
    buffer_limited: f64,
    segments: f64,
    retransmits: f64,
    /// Delivery rate of all streams together, in bytes per second.
    pub delivery_rate: u64,
    /// Longest round trip of the streams.
    pub round_trip: Duration,
}

impl PathSummary {
    /// Adds the latest report of one more stream.
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

    /// `backpressured`: the receiver requests less than it could, since its buffers wait for its disk.
    pub fn cause(&self, backpressured: bool) -> Option<BottleneckCause> {
        if self.interval == 0.0 {
            return None;
        }
        let unused = self.busy < (1.0 - CAUSE_TIME_SHARE_MIN) * self.interval;
        Some(if backpressured {
            BottleneckCause::TargetBackpressure
        } else if self.receiver_limited > CAUSE_TIME_SHARE_MIN * self.interval {
            BottleneckCause::ReceiveWindow
        } else if unused {
            BottleneckCause::SourceIdle
        } else if self.buffer_limited > CAUSE_TIME_SHARE_MIN * self.interval {
            BottleneckCause::SendBuffer
        } else {
            BottleneckCause::Network
        })
    }

    /// The side that limits the rate; none while too little was measured.
    pub fn bottleneck(&self, backpressured: bool) -> Option<Bottleneck> {
        self.cause(backpressured).map(BottleneckCause::bottleneck)
    }

    /// Whether TCP windows are the limit: more streams have more of them.
    pub fn is_window_limited(&self) -> bool {
        self.receiver_limited + self.buffer_limited > CAUSE_TIME_SHARE_MIN * self.interval
            && self.interval > 0.0
    }

    /// Share of the sent segments that were retransmitted.
    pub fn loss_share(&self) -> f64 {
        if self.segments > 0.0 { self.retransmits / self.segments } else { 0.0 }
    }
}

/// Number of streams that a session starts with: the second covers the pauses of the first.
pub const STREAMS_INITIAL: usize = 2;
/// Below this round trip one stream fills whatever the two ends can do.
pub const ROUND_TRIP_SHORT_MAX: Duration = Duration::from_millis(5);
/// One more stream at the start for each multiple of this round trip: the windows of all of them open in
/// parallel.
const ROUND_TRIP_PER_EXTRA_STREAM: Duration = Duration::from_millis(25);
/// Most streams at the start: further ones have to prove their worth in a trial.
const STREAMS_BY_DISTANCE_MAX: usize = 8;
/// Below this loss, a stream's window is not limited by loss.
const LOSS_SHARE_MIN: f64 = 1e-5;
/// More streams are kept if they raise the rate by this factor.
const TRIAL_GAIN_MIN: f64 = 1.1;
/// Duration of a trial: the averaging window of the rate, and the time in which new streams open their
/// windows.
const TRIAL_DURATION: Duration = Duration::from_secs(6);
/// Pause after a trial without gain.
const TRIAL_PAUSE: Duration = Duration::from_secs(60);

/// The number of streams to continue with, once the distance of the source is known.
pub fn streams_by_distance(round_trip: Duration) -> usize {
    let more = round_trip.as_millis() / ROUND_TRIP_PER_EXTRA_STREAM.as_millis();
    (STREAMS_INITIAL + more as usize).min(STREAMS_BY_DISTANCE_MAX)
}

/// A session's view of its path at one time.
#[derive(Clone, Copy, Debug)]
pub struct PathSample {
    /// Shortest round trip of the streams; 0 if unknown.
    pub round_trip: Duration,
    /// Payload of all streams, in bytes per second.
    pub rate: f64,
    /// What limits the rate, as far as known.
    pub bottleneck: Option<Bottleneck>,
    /// Whether TCP windows are the limit.
    pub window_limited: bool,
    /// Share of segments that were retransmitted, 0 to 1.
    pub loss_share: f64,
    /// All streams have owed data continuously for a while.
    pub busy: bool,
}

/// Tunes the number of streams of a session by hill climbing: add some, keep them if the rate rises.
#[derive(Clone, Debug)]
pub struct StreamCountTuner {
    streams_min: usize,
    streams_max: usize,
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

impl StreamCountTuner {
    /// `streams_min` is one for each network path to be used in parallel; `streams_max` wins over it.
    pub fn new(streams_min: usize, streams_max: usize) -> Self {
        let most = streams_max.max(1);
        let least = streams_min.clamp(1, most);
        let streams = STREAMS_INITIAL.clamp(least, most);
        StreamCountTuner {
            streams_min: least,
            streams_max: most,
            streams,
            measured: false,
            trial: None,
            next_trial: Duration::ZERO,
        }
    }

    /// Number of streams to use now.
    pub fn streams(&self) -> usize {
        self.streams
    }

    /// Whether the round trip is known, which sets the initial number.
    pub fn has_measured(&self) -> bool {
        self.measured
    }

    /// Call it about once a second.
    pub fn update(&mut self, seen: &PathSample, now: Duration) {
        if !self.measured && !seen.round_trip.is_zero() {
            self.measured = true;
            self.streams = streams_by_distance(seen.round_trip).clamp(self.streams_min, self.streams_max);
        }
        if let Some(trial) = &self.trial {
            if now.saturating_sub(trial.since) < TRIAL_DURATION {
                return;
            }
            let in_vain = seen.busy && seen.rate < TRIAL_GAIN_MIN * trial.rate_before;
            if in_vain {
                self.streams = trial.streams_before;
                self.next_trial = now + TRIAL_PAUSE;
            }
            self.trial = None;
        }
        let far = seen.round_trip >= ROUND_TRIP_SHORT_MAX;
        let worth = seen.window_limited
            || (seen.bottleneck == Some(Bottleneck::Network) && seen.loss_share >= LOSS_SHARE_MIN);
        if far && worth && seen.busy && now >= self.next_trial && self.streams < self.streams_max {
            let (streams_before, rate_before) = (self.streams, seen.rate);
            self.trial = Some(Trial { since: now, streams_before, rate_before });
            let more = if seen.window_limited { self.streams } else { self.streams.div_ceil(2) };
            self.streams = (self.streams + more).min(self.streams_max);
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
    fn the_bottleneck_is_named() {
        let of = |report: PathReport, held| {
            let mut sum = PathSummary::default();
            sum.add(&second());
            sum.add(&report);
            sum.bottleneck(held)
        };
        assert_eq!(PathSummary::default().bottleneck(true), None);
        assert_eq!(of(second(), false), Some(Bottleneck::Network));
        assert_eq!(of(second(), true), Some(Bottleneck::Target));
        assert_eq!(of(PathReport { receiver_limited: ms(700), ..second() }, false), Some(Bottleneck::Target));
        assert_eq!(of(PathReport { buffer_limited: ms(700), ..second() }, false), Some(Bottleneck::Source));
        assert_eq!(of(PathReport { busy: ms(100), ..second() }, false), Some(Bottleneck::Source));
    }

    fn sample(round_trip: u64, rate: f64, limit: Bottleneck, loss: f64) -> PathSample {
        let round_trip = ms(round_trip);
        PathSample {
            round_trip,
            rate,
            bottleneck: Some(limit),
            window_limited: false,
            loss_share: loss,
            busy: true,
        }
    }

    /// Samples once a second a path that gives each stream `each`, and `all` in total.
    fn settle(
        tuner: &mut StreamCountTuner,
        round_trip: u64,
        each: f64,
        all: f64,
        loss: f64,
        from: u64,
    ) -> Vec<usize> {
        let look = |second| {
            let rate = (tuner.streams() as f64 * each).min(all);
            tuner.update(
                &sample(round_trip, rate, Bottleneck::Network, loss),
                Duration::from_secs(from + second),
            );
            tuner.streams()
        };
        (0..60).map(look).collect()
    }

    #[test]
    fn the_stream_count_follows_the_path() {
        // A short path: two, whatever the loss.
        assert_eq!(settle(&mut StreamCountTuner::new(1, 32), 1, 100.0, 1e9, 1e-3, 0), vec![2; 60]);
        // Long and clean: as many as the distance suggests.
        assert_eq!(settle(&mut StreamCountTuner::new(1, 32), 100, 100.0, 1e9, 0.0, 0), vec![6; 60]);
        // Long and lossy: more as long as they raise the rate.
        let mut lossy = StreamCountTuner::new(1, 32);
        assert_eq!(settle(&mut lossy, 100, 100.0, 1e9, 1e-3, 0).last(), Some(&32));
        let mut narrow = StreamCountTuner::new(1, 32);
        let counts = settle(&mut narrow, 100, 100.0, 900.0, 1e-3, 0);
        assert_eq!((counts.last(), counts.iter().max()), (Some(&9), Some(&14)), "{counts:?}");
        // The maximum holds from the start.
        assert_eq!(settle(&mut StreamCountTuner::new(1, 3), 300, 100.0, 1e9, 1e-2, 0), vec![3; 60]);
        assert_eq!(settle(&mut StreamCountTuner::new(1, 1), 300, 100.0, 1e9, 1e-2, 0), vec![1; 60]);
        // So does the minimum, up to the maximum.
        assert_eq!(settle(&mut StreamCountTuner::new(4, 32), 1, 100.0, 1e9, 0.0, 0), vec![4; 60]);
        assert_eq!(settle(&mut StreamCountTuner::new(4, 2), 1, 100.0, 1e9, 0.0, 0), vec![2; 60]);
    }

    #[test]
    fn full_windows_double_the_streams() {
        let mut tuner = StreamCountTuner::new(1, 32);
        let bound = PathSample { window_limited: true, ..sample(60, 50.0, Bottleneck::Target, 0.0) };
        tuner.update(&bound, Duration::from_secs(1));
        assert_eq!(tuner.streams(), 8);
        tuner.update(&PathSample { rate: 100.0, ..bound }, Duration::from_secs(8));
        assert_eq!(tuner.streams(), 16);
        // A busy disk gains nothing from more streams.
        let mut tuner = StreamCountTuner::new(1, 32);
        tuner.update(&sample(60, 50.0, Bottleneck::Source, 1e-2), Duration::from_secs(1));
        assert_eq!(tuner.streams(), 4);
        // Nothing is learned while some streams had no work.
        let idle = PathSample { busy: false, ..sample(60, 50.0, Bottleneck::Network, 1e-2) };
        tuner.update(&idle, Duration::from_secs(9));
        assert_eq!(tuner.streams(), 4);
    }
}
