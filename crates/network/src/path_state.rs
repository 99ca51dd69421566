//! State of one path between two sites: round trip, loss, path MTU (RFC 4821), route, and rates of tests;
//! detects shifts of each. Measured by probes and archives, or read from our own connections.

use std::time::Duration;

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::advice::{self, STREAMS_MAX};
use crate::change::Shift;
use crate::ewma::{LogEwma, SlowEwma};
use crate::observation::{Metric, ObservationError, REORDERING_MAX, SenderLimit};

/// Half-life of a loss measurement: an hour.
const LOSS_HALF_LIFE_S: f64 = 3_600.0;
/// Packets remembered; more would hide a change of the loss.
const PACKETS_MAX: f64 = 1e6;
/// Segment size of a path whose MTU was not measured.
const MSS_BYTES_ASSUMED: u32 = 1_448;
/// Kinds of measurements whose order is tracked, see [`Metric::kind_index`].
const MEASUREMENT_KINDS: usize = 8;
/// A test is an outlier if its rate is off by this factor,
const OUTLIER_RATE_FACTOR: f64 = 2.0;
/// and by so many standard deviations.
const OUTLIER_RATE_SPREADS: f64 = 3.0;
/// Smallest standard deviation assumed for that.
const OUTLIER_RATE_SPREAD_MIN: f64 = 0.15;
/// A round trip is an outlier if it is off by this share,
const OUTLIER_RTT_SHARE: f64 = 0.2;
/// and by so many microseconds.
const OUTLIER_RTT_US: f64 = 5_000.0;
/// So many outlying round trips in a row are a change, even on an unchanged route.
const OUTLIER_RTTS_IN_A_ROW: u8 = 5;
/// An outlier and a route change within this time belong together.
const ROUTE_CHANGE_WINDOW: Duration = Duration::from_secs(12 * 3_600);
/// Weight of an outlier: believed only if it persists.
const OUTLIER_WEIGHT: f64 = 0.1;
/// Packets sent before a change of loss is detected.
const LOSS_SENT_PACKETS_MIN: u64 = 1_000;
/// Packets lost before a change of loss is detected.
const LOSS_LOST_PACKETS_MIN: u64 = 5;
/// Loss that is reported as a change.
const LOSS_SHARE_MIN: f64 = 1e-3;
/// Factor by which the loss must have grown.
const LOSS_INCREASE_MIN: f64 = 10.0;
/// A path flaps after so many transitions,
const FLAPS_MIN: f32 = 4.0;
/// counted with this half-life: three hours.
const FLAPS_HALF_LIFE_S: f32 = 10_800.0;

/// Identifies one route through the network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RouteSignature {
    #[serde(rename = "sum")]
    pub digest: u64,
    pub since: Timestamp,
    /// Digest of the route before, zero if there was none.
    pub before: u64,
    /// Digests of the routers in order, if known.
    pub hops: Box<[u32]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PathState {
    /// Rate of tests, and of transfers known to have used this path.
    pub rate: SlowEwma,
    pub rtt: LogEwma<1_800, 20>,
    sent: f32,
    lost: f32,
    loss_at: Timestamp,
    pub mtu: Option<u32>,
    pub black_hole: bool,
    pub window_bytes: u64,
    pub limits: SenderLimitCounts,
    pub signature: Option<RouteSignature>,
    pub up: Option<bool>,
    /// Newest observation of each kind, in seconds.
    latest: [u32; MEASUREMENT_KINDS],
    /// Deviation of the last test while it may be an outlier.
    #[serde(rename = "odd_rate")]
    outlier_rate: f32,
    #[serde(rename = "odd_rtt_us")]
    outlier_rtt_us: f32,
    #[serde(rename = "odd_rtts")]
    outlier_rtts: u8,
    lossy: bool,
    /// Recent up/down transitions.
    flaps: Flaps,
    pub load: LoadCorrelation,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Flaps {
    times: f32,
    at: Timestamp,
}

/// Exponentially weighted correlation of trouble with our own load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadCorrelation {
    sums: [f32; 6],
}

impl LoadCorrelation {
    fn add(&mut self, load: f64, trouble: bool) {
        let (x, y) = (load.max(0.0).ln_1p() as f32, f32::from(u8::from(trouble)));
        for (sum, more) in self.sums.iter_mut().zip([1.0, x, y, x * x, y * y, x * y]) {
            *sum = *sum * 0.98 + more;
        }
    }

    /// Pearson's coefficient; none where either hardly varied.
    pub(crate) fn correlation(&self) -> Option<f64> {
        let [n, x, y, xx, yy, xy] = self.sums.map(f64::from);
        if n < 8.0 {
            return None;
        }
        let (spread_x, spread_y) = (xx / n - (x / n).powi(2), yy / n - (y / n).powi(2));
        if spread_x < 1e-3 || spread_y < 1e-3 {
            return None;
        }
        Some(((xy / n - x * y / n / n) / (spread_x * spread_y).sqrt()).clamp(-1.0, 1.0))
    }
}

/// How often each limit held a connection back; halved when full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SenderLimitCounts {
    pub counts: [u16; 4],
}

impl SenderLimitCounts {
    fn count(&mut self, limit: SenderLimit) {
        let slot = &mut self.counts[limit as usize];
        *slot = slot.saturating_add(1);
        if self.counts.iter().map(|&count| u32::from(count)).sum::<u32>() > 256 {
            self.counts = self.counts.map(|count| count / 2);
        }
    }

    /// The most frequent limit, with its share.
    pub(crate) fn dominant(&self) -> Option<(SenderLimit, f64)> {
        let all = [
            SenderLimit::Application,
            SenderLimit::ReceiveWindow,
            SenderLimit::SendBuffer,
            SenderLimit::Congestion,
        ];
        let sum: u32 = self.counts.iter().map(|&count| u32::from(count)).sum();
        let (limit, count) = all.into_iter().zip(self.counts).max_by_key(|&(_, count)| count)?;
        (count > 0).then(|| (limit, f64::from(count) / f64::from(sum)))
    }
}

impl PathState {
    /// Rejects an observation that is too much older than the newest of its kind.
    pub(crate) fn check_order(
        &mut self,
        kind: usize,
        at: Timestamp,
        now: Timestamp,
    ) -> Result<(), ObservationError> {
        let Some(latest) = self.latest.get_mut(kind) else { return Ok(()) };
        // A clock that was ahead for a while must not block observations for as long.
        let known = Timestamp::from_seconds(i64::from(*latest)).min(now);
        let behind = known.since(at);
        if behind > REORDERING_MAX {
            return Err(ObservationError::OutOfOrder { behind });
        }
        *latest = u32::try_from(known.max(at).as_micros() / 1_000_000).unwrap_or(0);
        Ok(())
    }

    /// Detects a shift. Call before [`PathState::apply`]; `load` is the number of our transfers on the path.
    pub(crate) fn detect_shift(&mut self, seen: &Metric, load: f64, at: Timestamp) -> Option<Shift> {
        match *seen {
            Metric::Throughput { bytes_per_s, .. } => self.detect_rate_shift(bytes_per_s, at),
            Metric::Rtt { us } => self.detect_rtt_shift(us, at),
            Metric::Loss { sent, lost } => self.detect_loss_shift(sent, lost, load),
            Metric::Mtu { bytes, black_hole } => {
                let before = self.mtu?;
                let changed = before != bytes || black_hole && !self.black_hole;
                changed.then_some(Shift::Mtu { before, after: bytes, black_hole })
            }
            Metric::Reach { up } => self.detect_flapping(up, load, at),
            _ => None,
        }
    }

    fn rerouted_about(&self, at: Timestamp) -> bool {
        let signature = self.signature.as_ref().filter(|signature| signature.before != 0);
        signature.is_some_and(|signature| at.since(signature.since) < ROUTE_CHANGE_WINDOW)
    }

    fn detect_rate_shift(&mut self, bytes_per_s: f64, at: Timestamp) -> Option<Shift> {
        if self.rate.weight_at(at) < 0.3 {
            return None;
        }
        let off = bytes_per_s.ln() - self.rate.mean();
        let spread = self.rate.variance().sqrt().max(OUTLIER_RATE_SPREAD_MIN);
        let before = std::mem::take(&mut self.outlier_rate);
        if off.abs() < OUTLIER_RATE_FACTOR.ln().max(OUTLIER_RATE_SPREADS * spread) {
            return None;
        }
        let again = f64::from(before) * off > 0.0;
        if !again && !self.rerouted_about(at) {
            self.outlier_rate = off as f32;
            return None;
        }
        let shift = Shift::Rate { before: self.rate.mean().exp(), after: bytes_per_s };
        self.rate.restart();
        Some(shift)
    }

    fn detect_rtt_shift(&mut self, us: f64, at: Timestamp) -> Option<Shift> {
        let before_us = self.rtt_us()?;
        let off = (us - before_us).abs();
        if off < OUTLIER_RTT_US || off < OUTLIER_RTT_SHARE * before_us {
            self.outlier_rtts = 0;
            return None;
        }
        self.outlier_rtts = self.outlier_rtts.saturating_add(1);
        self.outlier_rtt_us = us as f32;
        if self.outlier_rtts < OUTLIER_RTTS_IN_A_ROW && !self.rerouted_about(at) {
            return None;
        }
        (self.outlier_rtts, self.outlier_rtt_us) = (0, 0.0);
        self.rtt.restart();
        Some(Shift::RoundTrip { before_us, after_us: us })
    }

    /// Confirms a pending outlier once the route is known to have changed. Call after [`PathState::apply`]
    /// returned the replaced signature.
    pub(crate) fn confirm_outlier(&mut self) -> Option<Shift> {
        let off = std::mem::take(&mut self.outlier_rate);
        if off != 0.0 {
            let before = self.rate.mean().exp();
            let after = (self.rate.mean() + f64::from(off)).exp();
            self.rate.restart();
            self.rate.observe(after, 1.0, self.rate.last());
            return Some(Shift::Rate { before, after });
        }
        if std::mem::take(&mut self.outlier_rtts) > 0 {
            let (before_us, after_us) = (self.rtt_us()?, f64::from(self.outlier_rtt_us));
            self.rtt.restart();
            self.rtt.observe(after_us, 1.0, self.rtt.last());
            return Some(Shift::RoundTrip { before_us, after_us });
        }
        None
    }

    fn detect_loss_shift(&mut self, sent: u64, lost: u64, load: f64) -> Option<Shift> {
        let after = lost as f64 / sent.max(1) as f64;
        self.load.add(load, after >= LOSS_SHARE_MIN);
        if sent < LOSS_SENT_PACKETS_MIN {
            return None;
        }
        let before = self.loss_share()?;
        if self.lossy {
            let clean = after < LOSS_SHARE_MIN / LOSS_INCREASE_MIN;
            self.lossy = !clean;
            return clean.then_some(Shift::Loss { before, after });
        }
        self.lossy =
            lost >= LOSS_LOST_PACKETS_MIN && after >= LOSS_SHARE_MIN && after >= LOSS_INCREASE_MIN * before;
        self.lossy.then_some(Shift::Loss { before, after })
    }

    fn detect_flapping(&mut self, up: bool, load: f64, at: Timestamp) -> Option<Shift> {
        self.load.add(load, !up);
        let before = self.up?;
        if before == up {
            return None;
        }
        let age = at.since(self.flaps.at).as_secs_f32();
        self.flaps = Flaps { times: self.flaps.times * (-age / FLAPS_HALF_LIFE_S).exp2() + 1.0, at };
        if self.flaps.times < FLAPS_MIN {
            return None;
        }
        let times = self.flaps.times.round() as u32;
        self.flaps.times = 0.0;
        Some(Shift::Flapping { times, with_load: self.load.correlation() })
    }

    /// Applies a measurement. Returns the route signature that was replaced, if one was.
    pub(crate) fn apply(&mut self, seen: &Metric, weight: f64, at: Timestamp) -> Option<RouteSignature> {
        match *seen {
            Metric::Rtt { us } => {
                self.rtt.observe(us, weight * if self.outlier_rtts > 0 { OUTLIER_WEIGHT } else { 1.0 }, at);
            }
            Metric::Loss { sent, lost } => self.count_packets(sent as f64, lost as f64, weight, at),
            Metric::Mtu { bytes, black_hole } => {
                self.mtu = Some(bytes);
                self.black_hole = black_hole;
            }
            Metric::Hops(ref hops) => {
                let hops: Vec<u32> = hops.iter().map(|hop| hop.map_or(0, router_digest)).collect();
                let sum = hops.iter().fold(1, |sum, &hop| mix(sum, u64::from(hop)));
                return self.update_signature(sum, hops.into_boxed_slice(), at);
            }
            Metric::PathChecksum(sum) => return self.update_signature(sum, Box::default(), at),
            Metric::Reach { up } => self.up = Some(up),
            Metric::Throughput { bytes_per_s, seconds, .. } => {
                let weight = weight * if self.outlier_rate != 0.0 { OUTLIER_WEIGHT } else { 1.0 };
                self.rate.observe(bytes_per_s, weight * seconds.clamp(1.0, 30.0), at);
            }
            Metric::Summary { bytes_per_s, seconds, .. } => {
                self.rate.observe(bytes_per_s, weight * seconds.clamp(0.0, 60.0), at);
            }
            Metric::Tcp { bytes_sent, bytes_resent, rtt_us, mss_bytes, window_bytes, limit } => {
                let mss = f64::from(mss_bytes.max(1));
                self.rtt.observe(rtt_us, weight, at);
                self.count_packets(bytes_sent as f64 / mss, bytes_resent as f64 / mss, weight, at);
                if limit == Some(SenderLimit::ReceiveWindow) {
                    self.window_bytes = window_bytes;
                }
                if let Some(limit) = limit {
                    self.limits.count(limit);
                }
            }
            Metric::Transfer { .. } | Metric::Uplink { .. } => {}
        }
        None
    }

    fn count_packets(&mut self, sent: f64, lost: f64, weight: f64, at: Timestamp) {
        let fade = (-at.since(self.loss_at).as_secs_f64() / LOSS_HALF_LIFE_S).exp2();
        let sent = sent.min(PACKETS_MAX) * weight;
        let lost = (lost * weight).min(sent);
        let known = f64::from(self.sent) * fade;
        let room = ((PACKETS_MAX - sent).max(0.0) / known.max(1.0)).min(1.0) * fade;
        self.sent = (f64::from(self.sent) * room + sent) as f32;
        self.lost = ((f64::from(self.lost) * room + lost) as f32).min(self.sent);
        self.loss_at = self.loss_at.max(at);
    }

    /// With equal-cost multipath (ECMP), routes alternate: only the replacement of an established signature
    /// is a change, and a return to the previous one is none.
    fn update_signature(&mut self, sum: u64, hops: Box<[u32]>, at: Timestamp) -> Option<RouteSignature> {
        match &mut self.signature {
            Some(known) if known.digest == sum => {
                if !hops.is_empty() {
                    known.hops = hops;
                }
                None
            }
            Some(known) if at < known.since => None,
            known => {
                let old = known.take();
                let before = old.as_ref().map_or(0, |old| old.digest);
                let returns = old.as_ref().is_some_and(|old| old.before == sum);
                *known = Some(RouteSignature { digest: sum, since: at, before, hops });
                if returns { None } else { old }
            }
        }
    }

    /// Whether it answered when last probed, within this time.
    pub(crate) fn answered_within(&self, at: Timestamp, within: Duration) -> bool {
        let seen = self.latest[Metric::Reach { up: true }.kind_index()];
        self.up == Some(true) && at.since(Timestamp::from_seconds(seen.into())) < within
    }

    pub(crate) fn rtt_us(&self) -> Option<f64> {
        self.rtt.has_data().then(|| self.rtt.mean().exp())
    }

    /// Share of packets lost; none before a hundred were sent.
    pub(crate) fn loss_share(&self) -> Option<f64> {
        (self.sent >= 100.0).then(|| f64::from(self.lost / self.sent).clamp(0.0, 1.0))
    }

    pub(crate) fn mss_bytes(&self) -> u32 {
        self.mtu.map_or(MSS_BYTES_ASSUMED, |mtu| mtu.saturating_sub(52).max(16))
    }

    /// Rate limit of one stream by round trip and loss (see [`advice`]); none without either.
    pub(crate) fn loss_limit(&self) -> Option<f64> {
        let loss = self.loss_share().filter(|&loss| loss > 0.0)?;
        Some(advice::cubic_bytes_per_s(self.mss_bytes(), self.rtt_us()? as u64, loss))
    }

    /// Rate limit of one stream by its window.
    pub(crate) fn window_limit(&self) -> Option<f64> {
        (self.window_bytes > 0).then_some(())?;
        Some(self.window_bytes as f64 / (self.rtt_us()? / 1e6))
    }

    /// Rate that no transfer can exceed with the most streams.
    pub(crate) fn rate_max(&self) -> Option<f64> {
        let one = match (self.loss_limit(), self.window_limit()) {
            (Some(loss), Some(window)) => loss.min(window),
            (loss, window) => loss.or(window)?,
        };
        Some(one * f64::from(STREAMS_MAX))
    }

    /// Memory in use.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.signature.as_ref().map_or(0, |signature| signature.hops.len() * size_of::<u32>())
    }

    /// Time of the newest observation.
    pub(crate) fn last(&self) -> u32 {
        self.latest.into_iter().max().unwrap_or(0)
    }

    /// Makes deserialised numbers valid.
    pub(crate) fn sanitized(mut self) -> Self {
        self.rate = self.rate.sanitized();
        self.rtt = self.rtt.sanitized();
        let sound = self.sent.is_finite() && self.lost.is_finite() && self.sent >= 0.0 && self.lost >= 0.0;
        if !sound {
            (self.sent, self.lost) = (0.0, 0.0);
        }
        self.sent = self.sent.min(PACKETS_MAX as f32);
        self.lost = self.lost.min(self.sent);
        self.mtu = self.mtu.filter(|mtu| (68..=65_535).contains(mtu));
        let odd = [self.outlier_rate, self.outlier_rtt_us, self.flaps.times];
        if !odd.iter().chain(&self.load.sums).all(|value| value.is_finite()) {
            (self.outlier_rate, self.outlier_rtts, self.outlier_rtt_us) = (0.0, 0, 0.0);
            (self.flaps, self.load) = (Flaps::default(), LoadCorrelation::default());
        }
        self.outlier_rate = self.outlier_rate.clamp(-40.0, 40.0);
        self.flaps.times = self.flaps.times.clamp(0.0, FLAPS_MIN);
        self.limits.counts = self.limits.counts.map(|count| count.min(256));
        if self
            .signature
            .as_ref()
            .is_some_and(|signature| signature.hops.len() > crate::observation::HOPS_MAX)
        {
            self.signature = None;
        }
        self
    }
}

fn mix(sum: u64, more: u64) -> u64 {
    (sum ^ more).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Digest of a router's address: 32 bits tell the few thousand of a network apart.
pub(crate) fn router_digest(hop: std::net::IpAddr) -> u32 {
    let bits = match hop {
        std::net::IpAddr::V4(v4) => u128::from(v4.to_bits()),
        std::net::IpAddr::V6(v6) => v6.to_bits(),
    };
    let sum = mix(mix(7, bits as u64), (bits >> 64) as u64);
    ((sum >> 32) as u32 ^ sum as u32).max(1)
}
