//! One direction of one path as a model: packets come in at a time, wait for the rate, are on the way for the
//! delay, and go out. Time is given to it in nanoseconds; it has no clock, no device and no thread.
//!
//! A packet is in one of two queues. Those *waiting* are before the rate, and their bytes are bounded (tail
//! drop). Those *on the way* have begun to pass the rate, and have a time to go out. Random loss strikes
//! after the rate: a lost packet has used the link. A super-packet goes out in one piece, when its last
//! segment would.

use std::collections::VecDeque;
use std::ops::Range;

use super::config::{Change, Counters, PathConfig};
use super::packet::{self, PACKET_MAX, Shape};
use crate::Random;

/// A default queue is not smaller than this: a few super-packets.
const QUEUE_BYTES_MIN: u64 = 256 << 10;
/// Held at most in one direction, waiting and on the way: 1.7 GB/s at 300 ms. A path without a rate would
/// otherwise be bounded by nothing but the windows of the connections on it.
const HELD_BYTES_MAX: u64 = 256 << 20;
const REST_NS_MAX: u64 = 500_000;
/// Memory is taken in pieces of this size and used again, the warmest first.
const SLAB_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Line {
    delay_ns: u64,
    /// None is no limit.
    bytes_per_s: Option<f64>,
    queue_bytes_given: Option<u64>,
    queue_bytes: u64,
    cut: bool,
    /// Larger packets vanish.
    packet_bytes_max: Option<u32>,
    losses: Losses,
    /// When the link has finished what it began.
    link_free_ns: u64,
    waiting: VecDeque<BufferedPacket>,
    waiting_bytes: u64,
    on_the_way: VecDeque<BufferedPacket>,
    held_bytes: u64,
    slabs: Slabs,
    counters: Counters,
}

impl Line {
    /// `number` tells lines of the same configuration apart: each loses other packets.
    pub(super) fn new(config: &PathConfig, number: u64) -> Line {
        let mut line = Line {
            delay_ns: one_way_ns(config.rtt_ms),
            bytes_per_s: config.rate_mbit.map(bytes_per_s),
            queue_bytes_given: config.queue_bytes,
            queue_bytes: 0,
            cut: false,
            packet_bytes_max: None,
            losses: Losses::new(config.loss, config.seed ^ (number << 32)),
            link_free_ns: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            on_the_way: VecDeque::new(),
            held_bytes: 0,
            slabs: Slabs::new(),
            counters: Counters::default(),
        };
        line.size_queue();
        line
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::RttMs(rtt_ms) => self.delay_ns = one_way_ns(rtt_ms),
            Change::RateMbit(rate) => self.bytes_per_s = rate.map(bytes_per_s),
            Change::Loss(loss) => self.losses.change(loss),
            Change::BlackHole(bytes) => self.packet_bytes_max = bytes,
            Change::Cut | Change::CutOneWay(_) => self.cut(),
            Change::Restore => self.cut = false,
        }
        self.size_queue();
    }

    /// Where the next packet, with its offload header, is to be put before [`Line::arrive`].
    pub(super) fn space(&mut self) -> &mut [u8] {
        self.slabs.space()
    }

    /// The first `length` bytes of [`Line::space`] came in.
    pub(super) fn arrive(&mut self, now_ns: u64, length: usize) {
        self.pass_rate(now_ns);
        let shape = Shape::from_packet(&self.slabs.space()[..length]);
        let bytes = shape.wire_bytes(0..shape.segments);
        if self.counters.first_in_ns == 0 {
            self.counters.first_in_ns = now_ns;
        }
        self.counters.super_packets += 1;
        if self.cut {
            self.counters.packets_cut += u64::from(shape.segments);
            self.counters.bytes_cut += bytes;
            return;
        }
        if self.packet_bytes_max.is_some_and(|most| shape.wire_bytes(0..1) > most.into()) {
            self.counters.packets_lost += u64::from(shape.segments);
            self.counters.bytes_lost += bytes;
            return;
        }
        let accepted = shape.segments_within(self.room());
        let accepted_bytes = shape.wire_bytes(0..accepted);
        self.counters.packets_overflowed += u64::from(shape.segments - accepted);
        self.counters.bytes_overflowed += bytes - accepted_bytes;
        if accepted == 0 {
            return;
        }
        let parts = self.losses.strike(&shape, accepted, &mut self.counters);
        let (slab, at) = self.slabs.claim(length);
        let held =
            BufferedPacket { slab, at, length, shape, parts, wire_bytes: accepted_bytes, time_ns: now_ns };
        self.held_bytes += held.wire_bytes;
        self.counters.bytes_held_max = self.counters.bytes_held_max.max(self.held_bytes);
        self.waiting_bytes += held.wire_bytes;
        self.waiting.push_back(held);
        self.pass_rate(now_ns);
    }

    /// Gives `output` every packet whose time has come, as headers and payload (or all in the first). It says
    /// whether the packet was taken.
    pub(super) fn deliver(&mut self, now_ns: u64, mut output: impl FnMut(&[u8], &[u8]) -> bool) {
        self.pass_rate(now_ns);
        while self.on_the_way.front().is_some_and(|held| held.time_ns <= now_ns) {
            let Some(held) = self.on_the_way.pop_front() else { return };
            let packet = self.slabs.packet(&held);
            for range in held.parts.ranges(&held.shape) {
                let taken = if range == (0..held.shape.segments) {
                    output(packet, &[])
                } else {
                    let (headers, payload) = packet::part(packet, &held.shape, range.clone());
                    output(headers.as_slice(), payload)
                };
                self.counters.went_out(&held.shape, range, taken);
            }
            self.counters.last_out_ns = now_ns;
            self.counters.was_late(now_ns - held.time_ns);
            self.let_go(&held);
        }
    }

    /// When [`Line::deliver`] has something to do, unless something arrives before.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let begins = || self.waiting.front().map(|held| held.time_ns.max(self.link_free_ns));
        self.on_the_way.front().map(|held| held.time_ns).or_else(begins)
    }

    /// How long nobody needs to look here after having looked: what comes and goes in that time is handled
    /// together. Each look costs a wake-up; one for each packet and acknowledgement took half as much CPU
    /// again at 1 Gbit/s. A hundredth of the delay is below what a real path varies by.
    pub(super) fn rest_ns(&self) -> u64 {
        (self.delay_ns / 100).min(REST_NS_MAX)
    }

    /// What waits and whose turn at the rate has come, is on the way. Times are those of the model, however
    /// late the call.
    fn pass_rate(&mut self, now_ns: u64) {
        while let Some(held) = self.waiting.front() {
            let begins_ns = held.time_ns.max(self.link_free_ns);
            if begins_ns > now_ns {
                return;
            }
            let Some(mut held) = self.waiting.pop_front() else { return };
            let took_ns = self.bytes_per_s.map_or(0.0, |rate| (held.wire_bytes as f64 / rate * 1e9).ceil());
            self.link_free_ns = begins_ns + took_ns as u64;
            self.waiting_bytes -= held.wire_bytes;
            // After a change of the delay nothing overtakes what went before: the queue's order holds before
            // its times.
            held.time_ns = self.link_free_ns + self.delay_ns;
            self.on_the_way.push_back(held);
        }
    }

    /// Bytes of the wire that can be taken now.
    fn room(&self) -> u64 {
        let queue = self.queue_bytes.saturating_sub(self.waiting_bytes);
        queue.min(HELD_BYTES_MAX.saturating_sub(self.held_bytes))
    }

    fn size_queue(&mut self) {
        let product = |rate: f64| (rate * 2.0 * self.delay_ns as f64 / 1e9) as u64;
        let default = || self.bytes_per_s.map_or(HELD_BYTES_MAX, |rate| product(rate).max(QUEUE_BYTES_MIN));
        self.queue_bytes = self.queue_bytes_given.unwrap_or_else(default);
    }

    fn cut(&mut self) {
        self.cut = true;
        while let Some(held) = self.on_the_way.pop_front().or_else(|| self.waiting.pop_front()) {
            for range in held.parts.ranges(&held.shape) {
                self.counters.packets_cut += u64::from(range.end - range.start);
                self.counters.bytes_cut += held.shape.wire_bytes(range);
            }
            self.let_go(&held);
        }
        self.waiting_bytes = 0;
    }

    fn let_go(&mut self, held: &BufferedPacket) {
        self.held_bytes -= held.wire_bytes;
        let empty = self.on_the_way.is_empty() && self.waiting.is_empty();
        self.slabs.let_go(held.slab, empty);
    }
}

impl Counters {
    fn was_late(&mut self, late_ns: u64) {
        self.late_ns_sum += late_ns;
        self.late_ns_max = self.late_ns_max.max(late_ns);
    }

    fn went_out(&mut self, shape: &Shape, range: Range<u32>, taken: bool) {
        let packets = u64::from(range.end - range.start);
        let bytes = shape.wire_bytes(range);
        if taken {
            self.packets_carried += packets;
            self.bytes_carried += bytes;
        } else {
            self.packets_refused += packets;
            self.bytes_refused += bytes;
        }
    }
}

fn one_way_ns(rtt_ms: f64) -> u64 {
    (rtt_ms / 2.0 * 1e6).round() as u64
}

fn bytes_per_s(rate_mbit: f64) -> f64 {
    rate_mbit * 1e6 / 8.0
}

/// A packet in memory.
#[derive(Debug)]
struct BufferedPacket {
    slab: u64,
    at: usize,
    length: usize,
    shape: Shape,
    parts: Parts,
    /// What it takes of queue and rate.
    wire_bytes: u64,
    /// While it waits: when it came. On the way: when it is due.
    time_ns: u64,
}

/// Which segments of a packet arrive.
#[derive(Debug)]
enum Parts {
    All,
    Some(Vec<Range<u32>>),
}

impl Parts {
    fn ranges(&self, shape: &Shape) -> impl Iterator<Item = Range<u32>> {
        let (all, some) = match self {
            Parts::All => (Some(0..shape.segments), [].as_slice()),
            Parts::Some(ranges) => (None, ranges.as_slice()),
        };
        all.into_iter().chain(some.iter().cloned())
    }
}

/// Independent losses of single packets.
#[derive(Debug)]
struct Losses {
    probability: f64,
    random: Random,
    /// Packets that will pass before the next lost one.
    pass: u64,
}

impl Losses {
    fn new(probability: f64, seed: u64) -> Losses {
        let mut losses = Losses { probability, random: Random::new(seed), pass: 0 };
        losses.draw();
        losses
    }

    fn change(&mut self, probability: f64) {
        self.probability = probability;
        self.draw();
    }

    /// One random number per loss instead of one per packet: the gaps between losses are distributed
    /// geometrically.
    fn draw(&mut self) {
        self.pass = match self.probability {
            never if never <= 0.0 => u64::MAX,
            always if always >= 1.0 => 0,
            probability => {
                let uniform = ((self.random.word() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
                (uniform.ln() / (-probability).ln_1p()) as u64
            }
        };
    }

    fn strike(&mut self, shape: &Shape, accepted: u32, counters: &mut Counters) -> Parts {
        if self.pass >= u64::from(accepted) {
            self.pass -= u64::from(accepted);
            return if accepted == shape.segments {
                Parts::All
            } else {
                Parts::Some(std::iter::once(0..accepted).collect())
            };
        }
        let mut ranges = Vec::new();
        let mut start = 0;
        while self.pass < u64::from(accepted - start) {
            let lost = start + self.pass as u32;
            if start < lost {
                ranges.push(start..lost);
            }
            counters.packets_lost += 1;
            counters.bytes_lost += shape.wire_bytes(lost..lost + 1);
            start = lost + 1;
            self.draw();
        }
        self.pass -= u64::from(accepted - start);
        if start < accepted {
            ranges.push(start..accepted);
        }
        Parts::Some(ranges)
    }
}

/// Memory for packets that leave in the order in which they came.
#[derive(Debug)]
struct Slabs {
    /// Those in use, the oldest first; packets are added to the last.
    used: VecDeque<Box<[u8]>>,
    /// The number of the first of `used`.
    first: u64,
    /// Where the free part of the last begins.
    free_at: usize,
    spare: Vec<Box<[u8]>>,
}

impl Slabs {
    fn new() -> Slabs {
        Slabs { used: VecDeque::from([slab()]), first: 0, free_at: 0, spare: Vec::new() }
    }

    fn space(&mut self) -> &mut [u8] {
        if SLAB_BYTES - self.free_at < PACKET_MAX {
            self.used.push_back(self.spare.pop().unwrap_or_else(slab));
            self.free_at = 0;
        }
        let last = self.used.len() - 1;
        &mut self.used[last][self.free_at..]
    }

    fn claim(&mut self, length: usize) -> (u64, usize) {
        let at = self.free_at;
        // Packets begin at cache lines.
        self.free_at = (at + length).next_multiple_of(64).min(SLAB_BYTES);
        (self.first + self.used.len() as u64 - 1, at)
    }

    fn packet(&self, held: &BufferedPacket) -> &[u8] {
        &self.used[(held.slab - self.first) as usize][held.at..held.at + held.length]
    }

    /// The oldest packet is gone, which lay in slab `number`. When nothing is held, the same memory is used
    /// from its start.
    fn let_go(&mut self, number: u64, empty: bool) {
        while self.first < number || (empty && self.used.len() > 1) {
            self.spare.extend(self.used.pop_front());
            self.first += 1;
        }
        if empty {
            self.free_at = 0;
        }
    }
}

fn slab() -> Box<[u8]> {
    vec![0; SLAB_BYTES].into_boxed_slice()
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
