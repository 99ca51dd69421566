//! What is known of one path between two sites: its round trip, loss, largest packet, routers, and what tests of it
//! gave. Measured by probes and archives, or read from connections of ours; a rate alone needs none of it.

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::advice::{self, STREAMS_MAX};
use crate::belief::{Fading, Slow};
use crate::observation::{DISORDER, Limit, Refused, Seen};

/// Loss counts half after an hour.
const LOSS_HALF_LIFE_S: f64 = 3_600.0;
/// More packets than this are not remembered, so that a change of loss shows.
const PACKETS_MAX: f64 = 1e6;
/// Assumed for a path whose MTU nobody measured.
const MSS_USUAL: u32 = 1_448;
const KINDS: usize = 8;

/// What tells one way through the network from another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Signature {
    pub sum: u64,
    pub since: Timestamp,
    /// The one before, zero if there was none.
    pub before: u64,
    /// Digests of the routers in order, if those are known.
    pub hops: Box<[u32]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PathState {
    /// Of tests, and of transfers known to have used this way.
    pub rate: Slow,
    pub rtt: Fading<1_800, 20>,
    sent: f64,
    lost: f64,
    loss_at: Timestamp,
    pub mtu: Option<u32>,
    pub black_hole: bool,
    pub window_bytes: u64,
    pub limits: Limits,
    pub signature: Option<Signature>,
    pub up: Option<bool>,
    /// When the newest of each kind was seen, in seconds.
    latest: [u32; KINDS],
}

/// How often each limit held a connection back; fades by halves when it fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limits {
    pub counts: [u16; 4],
}

impl Limits {
    fn count(&mut self, limit: Limit) {
        let slot = &mut self.counts[limit as usize];
        *slot = slot.saturating_add(1);
        if self.counts.iter().map(|&count| u32::from(count)).sum::<u32>() > 256 {
            self.counts = self.counts.map(|count| count / 2);
        }
    }

    /// The one seen most, with its share.
    pub(crate) fn most(&self) -> Option<(Limit, f64)> {
        let all = [Limit::Application, Limit::ReceiveWindow, Limit::SendBuffer, Limit::Congestion];
        let sum: u32 = self.counts.iter().map(|&count| u32::from(count)).sum();
        let (limit, count) = all.into_iter().zip(self.counts).max_by_key(|&(_, count)| count)?;
        (count > 0).then(|| (limit, f64::from(count) / f64::from(sum)))
    }
}

impl PathState {
    /// Bounds how much later than the newest of its kind something may come.
    pub(crate) fn order(&mut self, kind: usize, at: Timestamp, now: Timestamp) -> Result<(), Refused> {
        let Some(latest) = self.latest.get_mut(kind) else { return Ok(()) };
        // A clock that was ahead for a while must not shut the door for as long.
        let known = Timestamp::from_seconds(i64::from(*latest)).min(now);
        let behind = known.since(at);
        if behind > DISORDER {
            return Err(Refused::OutOfOrder { behind });
        }
        *latest = u32::try_from(known.max(at).as_micros() / 1_000_000).unwrap_or(0);
        Ok(())
    }

    /// Takes what a path can show. Returns the signature that was replaced, if one was.
    pub(crate) fn take(&mut self, seen: &Seen, weight: f64, at: Timestamp) -> Option<Signature> {
        match *seen {
            Seen::Rtt { us } => self.rtt.observe(us, weight, at),
            Seen::Loss { sent, lost } => self.loss(sent as f64, lost as f64, weight, at),
            Seen::Mtu { bytes, black_hole } => {
                self.mtu = Some(bytes);
                self.black_hole = black_hole;
            }
            Seen::Hops(ref hops) => {
                let hops: Vec<u32> = hops.iter().map(|hop| hop.map_or(0, digest)).collect();
                let sum = hops.iter().fold(1, |sum, &hop| mix(sum, u64::from(hop)));
                return self.sign(sum, hops.into_boxed_slice(), at);
            }
            Seen::PathChecksum(sum) => return self.sign(sum, Box::default(), at),
            Seen::Reach { up } => self.up = Some(up),
            Seen::Throughput { bytes_per_s, seconds, .. } => {
                self.rate.observe(bytes_per_s, weight * seconds.clamp(1.0, 30.0), at);
            }
            Seen::Summary { bytes_per_s, seconds, .. } => {
                self.rate.observe(bytes_per_s, weight * seconds.clamp(0.0, 60.0), at);
            }
            Seen::Tcp { bytes_sent, bytes_resent, rtt_us, mss_bytes, window_bytes, limit } => {
                let mss = f64::from(mss_bytes.max(1));
                self.rtt.observe(rtt_us, weight, at);
                self.loss(bytes_sent as f64 / mss, bytes_resent as f64 / mss, weight, at);
                if limit == Some(Limit::ReceiveWindow) {
                    self.window_bytes = window_bytes;
                }
                if let Some(limit) = limit {
                    self.limits.count(limit);
                }
            }
            Seen::Transfer { .. } | Seen::Uplink { .. } => {}
        }
        None
    }

    fn loss(&mut self, sent: f64, lost: f64, weight: f64, at: Timestamp) {
        let fade = (-at.since(self.loss_at).as_secs_f64() / LOSS_HALF_LIFE_S).exp2();
        let sent = sent.min(PACKETS_MAX) * weight;
        let lost = (lost * weight).min(sent);
        let total = self.sent * fade + sent;
        let scale = fade
            * if total > PACKETS_MAX { (PACKETS_MAX - sent).max(0.0) / (total - sent).max(1.0) } else { 1.0 };
        self.sent = self.sent * scale + sent;
        self.lost = (self.lost * scale + lost).min(self.sent);
        self.loss_at = self.loss_at.max(at);
    }

    /// A path of several equal ways shows now the one, now the other: only what replaces a signature that stood for a
    /// while is a change, and a return to the one before is none.
    fn sign(&mut self, sum: u64, hops: Box<[u32]>, at: Timestamp) -> Option<Signature> {
        match &mut self.signature {
            Some(known) if known.sum == sum => {
                if !hops.is_empty() {
                    known.hops = hops;
                }
                None
            }
            Some(known) if at < known.since => None,
            known => {
                let old = known.take();
                let before = old.as_ref().map_or(0, |old| old.sum);
                let returns = old.as_ref().is_some_and(|old| old.before == sum);
                *known = Some(Signature { sum, since: at, before, hops });
                if returns { None } else { old }
            }
        }
    }

    pub(crate) fn rtt_us(&self) -> Option<f64> {
        (self.rtt.weight_at(self.rtt.last()) > 0.0).then(|| self.rtt.mean().exp())
    }

    /// Packets lost of those sent; none before a hundred were seen.
    pub(crate) fn loss_share(&self) -> Option<f64> {
        (self.sent >= 100.0).then(|| (self.lost / self.sent).clamp(0.0, 1.0))
    }

    pub(crate) fn mss_bytes(&self) -> u32 {
        self.mtu.map_or(MSS_USUAL, |mtu| mtu.saturating_sub(52).max(16))
    }

    /// Bytes per second of one stream by round trip and loss; none without either.
    pub(crate) fn loss_limit(&self) -> Option<f64> {
        let loss = self.loss_share().filter(|&loss| loss > 0.0)?;
        Some(advice::cubic_bytes_per_s(self.mss_bytes(), self.rtt_us()? as u64, loss))
    }

    /// Bytes per second of one stream by its window.
    pub(crate) fn window_limit(&self) -> Option<f64> {
        (self.window_bytes > 0).then_some(())?;
        Some(self.window_bytes as f64 / (self.rtt_us()? / 1e6))
    }

    /// What no transfer over it can exceed, whatever the streams.
    pub(crate) fn cap(&self) -> Option<f64> {
        let one = match (self.loss_limit(), self.window_limit()) {
            (Some(loss), Some(window)) => loss.min(window),
            (loss, window) => loss.or(window)?,
        };
        Some(one * f64::from(STREAMS_MAX))
    }

    /// When anything was last seen.
    pub(crate) fn last(&self) -> u32 {
        self.latest.into_iter().max().unwrap_or(0)
    }

    /// Numbers read from outside are made sound.
    pub(crate) fn sound(mut self) -> Self {
        self.rate = self.rate.sound();
        self.rtt = self.rtt.sound();
        let sound = self.sent.is_finite() && self.lost.is_finite() && self.sent >= 0.0 && self.lost >= 0.0;
        if !sound {
            (self.sent, self.lost) = (0.0, 0.0);
        }
        self.sent = self.sent.min(PACKETS_MAX);
        self.lost = self.lost.min(self.sent);
        self.mtu = self.mtu.filter(|mtu| (68..=65_535).contains(mtu));
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

/// Of one router: 32 bits are enough to tell the few thousand of a network apart.
fn digest(hop: std::net::IpAddr) -> u32 {
    let bits = match hop {
        std::net::IpAddr::V4(v4) => u128::from(v4.to_bits()),
        std::net::IpAddr::V6(v6) => v6.to_bits(),
    };
    let sum = mix(mix(7, bits as u64), (bits >> 64) as u64);
    ((sum >> 32) as u32 ^ sum as u32).max(1)
}
