//! The scavenger against a simulated bottleneck: a drop-tail queue with competing traffic.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const STEP: Duration = Duration::from_millis(1);

/// A simulated path, in steps of a millisecond. Bytes wait in one queue, pass at the link rate and arrive
/// half a round trip later; their acknowledgement, which opens the window, takes as long.
struct World {
    now: u64,
    bytes_per_ms: f64,
    round_trip_ms: u64,
    queue_bytes_max: f64,
    queue: f64,
    ours: Flow,
    scavenger: Scavenger,
    others: Vec<Flow>,
    /// Delays of requests of 10 kB, from the request to the last byte, in ms.
    request_delays_ms: Vec<f64>,
    arrived: f64,
    arrived_of_others: f64,
}

/// A sender with a window.
struct Flow {
    window: f64,
    under_way: f64,
    queued: f64,
    /// Arrivals to come, by time.
    path: VecDeque<(u64, f64)>,
    /// Acknowledgements to come, by time.
    acks: VecDeque<(u64, f64)>,
    cut_at: u64,
}

impl Flow {
    fn new() -> Flow {
        Flow {
            window: 15_000.0,
            under_way: 0.0,
            queued: 0.0,
            path: VecDeque::new(),
            acks: VecDeque::new(),
            cut_at: 0,
        }
    }
}

fn take_due(list: &mut VecDeque<(u64, f64)>, now: u64) -> f64 {
    let mut sum = 0.0;
    while list.front().is_some_and(|(at, _)| *at <= now) {
        sum += list.pop_front().map_or(0.0, |(_, bytes)| bytes);
    }
    sum
}

impl World {
    fn new(mbit: f64, round_trip_ms: u64) -> World {
        let bytes_per_ms = mbit * 125.0;
        World {
            now: 0,
            bytes_per_ms,
            round_trip_ms,
            queue_bytes_max: (bytes_per_ms * round_trip_ms as f64).max(256_000.0),
            queue: 0.0,
            ours: Flow::new(),
            scavenger: Scavenger::new(Duration::ZERO),
            others: Vec::new(),
            request_delays_ms: Vec::new(),
            arrived: 0.0,
            arrived_of_others: 0.0,
        }
    }

    fn queueing_ms(&self) -> f64 {
        self.queue / self.bytes_per_ms
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.step();
        }
    }

    /// Adds a competing flow with a full window.
    fn add_competitor(&mut self) {
        let window = self.bytes_per_ms * self.round_trip_ms as f64;
        self.others.push(Flow { window, ..Flow::new() });
    }

    fn step(&mut self) {
        self.now += 1;
        let (now, half) = (self.now, self.round_trip_ms / 2);
        // The bottleneck serves each flow in proportion to its queue.
        let passed = (self.bytes_per_ms / self.queue.max(self.bytes_per_ms)).min(1.0);
        for flow in std::iter::once(&mut self.ours).chain(&mut self.others) {
            let out = flow.queued * passed;
            flow.queued -= out;
            self.queue -= out;
            flow.path.push_back((now + half, out));
            let acked = take_due(&mut flow.acks, now);
            flow.under_way -= acked;
        }
        let here = take_due(&mut self.ours.path, now);
        self.ours.acks.push_back((now + half, here));
        self.arrived += here;
        self.scavenger.add_received(here as u64);
        for flow in &mut self.others {
            let here = take_due(&mut flow.path, now);
            flow.acks.push_back((now + half, here));
            self.arrived_of_others += here;
        }
        if now % 20 == 0 {
            let sample = self.round_trip_ms as f64 + self.queueing_ms();
            self.scavenger.add_round_trip(Duration::from_secs_f64(sample / 1e3));
            self.ours.window = self.scavenger.window(now as u32 * STEP) as f64;
        }
        self.reno();
        for flow in std::iter::once(&mut self.ours).chain(&mut self.others) {
            let sent = (flow.window - flow.under_way).max(0.0).min(self.queue_bytes_max - self.queue);
            flow.under_way += sent;
            flow.queued += sent;
            self.queue += sent;
        }
        if now % 97 == 0 {
            let own = 10_000.0 / self.bytes_per_ms;
            self.request_delays_ms.push(self.round_trip_ms as f64 + self.queueing_ms() + own);
        }
    }

    /// Competitors run Reno: one segment more per round trip, half at a full queue.
    fn reno(&mut self) {
        let full = self.queue >= 0.99 * self.queue_bytes_max;
        let round_trip = self.round_trip_ms as f64 + self.queueing_ms();
        for flow in &mut self.others {
            if full && self.now > flow.cut_at + round_trip as u64 {
                flow.window /= 2.0;
                flow.cut_at = self.now;
            } else if !full {
                flow.window += 30_000.0 / round_trip;
            }
        }
    }

    /// Share of the bottleneck that our flow used within this many ms.
    fn share(&mut self, ms: u64) -> f64 {
        let before = self.arrived;
        self.run(ms);
        (self.arrived - before) / (ms as f64 * self.bytes_per_ms)
    }

    fn requests_p95(&mut self) -> f64 {
        self.request_delays_ms.sort_by(f64::total_cmp);
        self.request_delays_ms[self.request_delays_ms.len() * 95 / 100]
    }
}

const PATHS: [(f64, u64); 6] =
    [(100.0, 20), (200.0, 20), (100.0, 50), (200.0, 50), (1_000.0, 100), (20.0, 10)];

/// The goal of the design: 95 % of the path when alone, and a 10 kB request at most 1.3 times as slow as on
/// an idle path.
#[test]
fn alone_it_fills_the_path_without_adding_delay() {
    for (mbit, round_trip) in PATHS {
        let mut world = World::new(mbit, round_trip);
        world.run(5_000);
        world.request_delays_ms.clear();
        let share = world.share(60_000);
        assert!(share >= 0.95, "{share} of {mbit} Mbit/s at {round_trip} ms");
        let idle = round_trip as f64 + 10_000.0 / world.bytes_per_ms;
        let ratio = world.requests_p95() / idle;
        assert!(ratio <= 1.3, "{ratio} at {mbit} Mbit/s, {round_trip} ms");
    }
}

#[test]
fn it_yields_to_others_and_recovers() {
    for (mbit, round_trip) in PATHS {
        let mut world = World::new(mbit, round_trip);
        world.run(10_000);
        world.add_competitor();
        world.run(10_000);
        let share = world.share(30_000);
        assert!(share <= 0.2, "{share} beside another, {mbit} Mbit/s at {round_trip} ms");
        world.others.clear();
        world.queue = world.ours.queued;
        world.run(5_000);
        let share = world.share(20_000);
        assert!(share >= 0.93, "{share} afterwards, {mbit} Mbit/s at {round_trip} ms");
    }
}

/// The base delay of a path that no longer exists is forgotten.
#[test]
fn a_path_that_became_longer_is_filled_again() {
    let mut world = World::new(100.0, 20);
    world.run(30_000);
    world.round_trip_ms = 40;
    world.run(80_000);
    let share = world.share(20_000);
    assert!(share >= 0.9, "{share}");
}

/// One segment at a time, acknowledged late: less than the used share of a tiny window.
#[test]
fn a_tiny_window_grows_again() {
    let mut law = Scavenger::new(Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut look = |round_trip_ms: u64, bytes: u64| {
        now += Duration::from_millis(80);
        law.add_round_trip(Duration::from_millis(round_trip_ms));
        law.add_received(bytes);
        law.window(now)
    };
    look(40, 60_000);
    let smallest = (0..100).map(|_| look(200, 1_448)).min();
    assert_eq!(smallest, Some(WINDOW_BYTES_MIN));
    let grown = (0..125).map(|_| look(41, 1_448)).max();
    assert!(grown > Some(32 << 10), "{grown:?} after ten seconds");
}

#[test]
fn an_unused_window_does_not_grow() {
    let mut law = Scavenger::new(Duration::ZERO);
    for ms in (20..60_000).step_by(20) {
        law.add_round_trip(Duration::from_millis(20));
        law.add_received(100);
        assert!(law.window(Duration::from_millis(ms)) <= WINDOW_BYTES_INITIAL as u64);
    }
}

proptest! {
    /// For any samples the window stays within its bounds, and a standing queue makes it small.
    #[test]
    fn the_window_is_bounded_and_shrinks_under_a_standing_queue(
        samples in proptest::collection::vec((0u64..3_000_000, 0u64..100_000_000, 0u64..200), 1..300),
    ) {
        let mut law = Scavenger::new(Duration::ZERO);
        let mut now = Duration::ZERO;
        for (round_trip, bytes, later) in samples {
            now += Duration::from_millis(later);
            law.add_round_trip(Duration::from_micros(round_trip));
            law.add_received(bytes);
            let window = law.window(now);
            prop_assert!((WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&window));
        }
        law.add_round_trip(Duration::from_millis(1));
        for _ in 0..80 {
            now += Duration::from_millis(200);
            law.add_round_trip(Duration::from_millis(100));
            law.add_received(1 << 30);
            law.window(now);
        }
        prop_assert!(law.window(now) <= 64 << 10, "{}", law.window(now));
    }
}
