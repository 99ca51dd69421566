//! From perfSONAR's words to those of the network room. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_gateways::perfsonar::{Host, Measurement, Reading};
use longhaul_model::Timestamp;
use longhaul_network::{HOPS_MAX, Metric};

/// A throughput test that does not say how long it was: the shortest that is usual.
const THROUGHPUT_TEST_S_DEFAULT: f64 = 10.0;
/// Payload of a packet of a throughput test whose MTU is not known.
const PAYLOAD_BYTES: f64 = 1_448.0;
/// Packets of a delay test's sample, where only the share that was lost is kept.
const DELAY_TEST_PACKETS_DEFAULT: u64 = 600;
/// One-way delays of the two directions belong together if they are not farther apart.
const DELAY_PAIRING_MAX: Duration = Duration::from_secs(600);
/// Pairs of hosts whose last delay is remembered.
const DELAYS_MAX: usize = 50_000;

/// The last one-way delay of each pair, to be added up with that of the other direction. The error of the two
/// clocks is in one with the opposite sign, so that the sum is right even where neither is.
#[derive(Default)]
pub struct Delays {
    last: BTreeMap<(Host, Host), (Timestamp, f64)>,
}

impl Delays {
    /// None if it says nothing about a link by itself.
    pub fn translate(&mut self, measurement: &Measurement) -> Vec<Metric> {
        match &measurement.value {
            Reading::Throughput { bits_per_s, retransmits, streams } => {
                let seconds = measurement
                    .lasted
                    .map_or(THROUGHPUT_TEST_S_DEFAULT, |lasted| lasted.as_secs_f64().max(1.0));
                throughput(*bits_per_s, *retransmits, *streams, seconds)
            }
            Reading::Delay { delay, .. } => self.round_trip(measurement, delay.median).into_iter().collect(),
            Reading::RoundTrip { rtt } => rtt_ms(rtt.median).into_iter().collect(),
            Reading::Loss { sent, lost } => vec![Metric::Loss { sent: *sent, lost: *lost }],
            Reading::LossShare { share } => {
                let lost = (share * DELAY_TEST_PACKETS_DEFAULT as f64).round() as u64;
                vec![Metric::Loss { sent: DELAY_TEST_PACKETS_DEFAULT, lost }]
            }
            Reading::Path(path) => {
                let hops = path.hops.iter().take(HOPS_MAX).copied().collect();
                let mut seen = vec![Metric::Hops(hops)];
                seen.extend(path.rtt_us.and_then(|us| rtt_ms(us as f64 / 1e3)));
                seen.extend(path.mtu.map(|bytes| Metric::Mtu { bytes, black_hole: false }));
                seen
            }
            Reading::PathMtu { mtu } => vec![Metric::Mtu { bytes: *mtu, black_hole: false }],
            // A test may fail for many reasons that have nothing to do with the path: what counts is the
            // silence of a pair that should have results.
            Reading::Failed { .. } => Vec::new(),
        }
    }

    fn round_trip(&mut self, measurement: &Measurement, median_ms: f64) -> Option<Metric> {
        let (source, target) = (measurement.source.clone(), measurement.target.clone());
        let back = self.last.get(&(target.clone(), source.clone())).copied();
        let known = self.last.contains_key(&(source.clone(), target.clone()));
        if !known && self.last.len() >= DELAYS_MAX {
            self.last.pop_first();
        }
        self.last.insert((source, target), (measurement.at, median_ms));
        let (at, back_ms) = back?;
        let apart = measurement.at.since(at).max(at.since(measurement.at));
        if apart > DELAY_PAIRING_MAX { None } else { rtt_ms(median_ms + back_ms) }
    }
}

fn throughput(bits_per_s: f64, retransmits: Option<u64>, streams: Option<u32>, seconds: f64) -> Vec<Metric> {
    let bytes_per_s = bits_per_s / 8.0;
    let mut seen = vec![Metric::Throughput { bytes_per_s, seconds, streams: streams.unwrap_or(1).max(1) }];
    // What TCP had to send again is evidence of loss, if a rough one.
    let packets = (bytes_per_s * seconds / PAYLOAD_BYTES) as u64;
    if let Some(lost) = retransmits.filter(|_| packets > 0) {
        seen.push(Metric::Loss { sent: packets, lost: lost.min(packets) });
    }
    seen
}

fn rtt_ms(ms: f64) -> Option<Metric> {
    (ms > 0.0).then_some(Metric::Rtt { us: ms * 1e3 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_gateways::perfsonar::{Path, Spread};

    fn measured(from: &str, to: &str, seconds: i64, value: Reading) -> Measurement {
        Measurement {
            source: Host::parse(from),
            target: Host::parse(to),
            family: None,
            at: Timestamp::from_seconds(1_800_000_000 + seconds),
            lasted: Some(Duration::from_secs(25)),
            id: String::new(),
            tool: String::new(),
            value,
        }
    }

    fn delay(ms: f64) -> Reading {
        let delay = Spread { count: 600, min: ms, median: ms, mean: None, p95: None, p99: None, max: ms };
        Reading::Delay { delay, clock_error_ms: None }
    }

    #[test]
    fn rates_are_bytes_and_retransmits_are_loss() {
        let mut delays = Delays::default();
        let value = Reading::Throughput { bits_per_s: 8e9, retransmits: Some(100), streams: None };
        let seen = delays.translate(&measured("a.x", "b.x", 0, value));
        assert_eq!(seen[0], Metric::Throughput { bytes_per_s: 1e9, seconds: 25.0, streams: 1 });
        assert_eq!(seen[1], Metric::Loss { sent: (25e9 / 1_448.0) as u64, lost: 100 });
    }

    #[test]
    fn two_one_way_delays_make_a_round_trip_whatever_the_clocks_say() {
        let mut delays = Delays::default();
        // The clocks differ by 40 ms: one direction seems to go back in time.
        assert!(delays.translate(&measured("a.x", "b.x", 0, delay(74.0))).is_empty());
        assert_eq!(
            delays.translate(&measured("b.x", "a.x", 60, delay(-6.0))),
            [Metric::Rtt { us: 68_000.0 }]
        );
        assert_eq!(
            delays.translate(&measured("a.x", "b.x", 120, delay(75.0))),
            [Metric::Rtt { us: 69_000.0 }]
        );
        assert!(delays.translate(&measured("b.x", "a.x", 2_000, delay(-6.0))).is_empty(), "too far apart");
    }

    #[test]
    fn a_path_says_three_things_and_a_failure_none() {
        let mut delays = Delays::default();
        let path = Path { hops: vec![None; 200], mtu: Some(1500), rtt_us: Some(68_900) };
        let seen = delays.translate(&measured("a.x", "b.x", 0, Reading::Path(path)));
        let [Metric::Hops(hops), Metric::Rtt { us: 68_900.0 }, Metric::Mtu { bytes: 1500, .. }] = &seen[..]
        else {
            panic!("{seen:?}")
        };
        assert_eq!(hops.len(), HOPS_MAX);
        assert!(delays.translate(&measured("a.x", "b.x", 0, Reading::Failed { why: "x".into() })).is_empty());
        let share = delays.translate(&measured("a.x", "b.x", 0, Reading::LossShare { share: 0.01 }));
        assert_eq!(share, [Metric::Loss { sent: 600, lost: 6 }]);
    }
}
