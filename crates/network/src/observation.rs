//! Observations of the network: one [`Observation`] says what was measured, between which ends, when, by
//! whom, and how sure the mapping of the ends is. All sources of knowledge use this form;
//! [`crate::Knowledge::observe`] accepts or rejects it ([`ObservationError`]).
//!
//! Not here: how archives, probes and counters are read (`gateways`, `agent`), and what is made of it
//! (`knowledge`).

use std::fmt;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, SiteId, StorageId, Timestamp, units};
use serde::{Deserialize, Serialize};

use crate::advice::Family;

/// Clock skew tolerated before an observation counts as from the future.
pub const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(60);
/// Oldest observation accepted: archives repeat their last days when asked again.
pub const OBSERVATION_AGE_MAX: Duration = Duration::from_secs(14 * 86_400);
/// Reordering tolerated within a kind: archivers retry.
pub const REORDERING_MAX: Duration = Duration::from_secs(3_600);
/// Hops on a path; more are a loop.
pub const HOPS_MAX: usize = 64;

/// Faster than any network: the unit is wrong.
const BYTES_PER_S_MAX: f64 = 1e13;
/// Largest round trip: a minute (to the moon and back takes 2.6 s).
const RTT_US_MAX: f64 = 60e6;
/// From the minimum of IPv4 to the largest IP packet.
const MTU_BYTES: std::ops::RangeInclusive<u32> = 68..=65_535;
/// Longest measurement: a month, since no file takes longer.
const DURATION_S_MAX: f64 = 31.0 * 86_400.0;

/// Identifies an observation, so that a duplicate counts once. The same text gives the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObservationId(pub u64);

impl ObservationId {
    /// From whatever identifies it at its origin: a run id with the kind of result, an attempt, a probe's
    /// number.
    pub fn from_parts(parts: &[&str]) -> Self {
        // FNV-1a: stable over versions and machines, and good enough against accidental collisions.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for part in parts {
            for byte in part.bytes().chain([0xff]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        ObservationId(hash)
    }
}

/// One end: its storage if known, its site otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Endpoint {
    Storage(StorageId),
    Site(SiteId),
}

/// Selects one of the paths between two ends; the default is "whichever was used".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PathSelector {
    pub family: Option<Family>,
    /// Number of the circuit, as given by its planner.
    pub circuit: Option<u64>,
}

impl PathSelector {
    pub fn over_family(family: Family) -> Self {
        PathSelector { family: Some(family), circuit: None }
    }
}

/// What was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Path {
        source: Endpoint,
        target: Endpoint,
        #[serde(rename = "way")]
        path: PathSelector,
    },
    /// A site's connection to the wide-area network.
    Uplink { site: SiteId },
}

/// The observer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    OwnTransfer,
    /// One of our agents.
    Probe,
    PerfSonar,
    /// A network provider, or a router of the site.
    Provider,
    /// Another deployment or instance, by name.
    Instance(String),
}

/// How the ends were mapped to sites, in the order of trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// Inferred from similar names or addresses: may be wrong.
    Inferred,
    /// From a directory of sites.
    Imported,
    /// From our own agents, or confirmed by a person.
    Explicit,
}

/// What limited a sender, as counted by its kernel (`tcp_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SenderLimit {
    /// Nothing to send: the source is read too slowly.
    Application,
    /// The receiver's window: small buffers, or slow writes.
    ReceiveWindow,
    SendBuffer,
    /// The congestion window.
    Congestion,
}

/// A measured metric. Rates are bytes per second of payload; other units are in the field's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// A throughput test.
    Throughput {
        bytes_per_s: f64,
        seconds: f64,
        streams: u32,
    },
    Rtt {
        us: f64,
    },
    /// Packets rather than shares, so that samples add up.
    Loss {
        sent: u64,
        lost: u64,
    },
    /// Path MTU; `black_hole` if larger packets vanish without an ICMP message.
    Mtu {
        bytes: u32,
        black_hole: bool,
    },
    /// Routers on the path, in order; none where one did not answer.
    Hops(Vec<Option<std::net::IpAddr>>),
    /// A digest of the route, where the routers are not known.
    PathChecksum(u64),
    Reach {
        up: bool,
    },
    /// Interface counters of a site's uplink, as rates.
    Uplink {
        into_bytes_per_s: f64,
        out_bytes_per_s: f64,
        capacity_bytes_per_s: Option<f64>,
    },
    /// One transferred file, with `alongside` others under way on the same link in the mean.
    Transfer {
        bytes: u64,
        seconds: f64,
        alongside: f64,
    },
    /// Counters of one TCP connection over an interval.
    Tcp {
        bytes_sent: u64,
        bytes_resent: u64,
        rtt_us: f64,
        mss_bytes: u32,
        window_bytes: u64,
        limit: Option<SenderLimit>,
    },
    /// Estimate of another instance: median rate, standard deviation of its logarithm, and what it rests on.
    Summary {
        bytes_per_s: f64,
        spread: f64,
        seconds: f64,
        bytes: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    pub id: ObservationId,
    pub at: Timestamp,
    #[serde(rename = "of")]
    pub subject: Subject,
    #[serde(rename = "seen")]
    pub metric: Metric,
    #[serde(rename = "by")]
    pub origin: Origin,
    pub mapping: Mapping,
}

/// Why an observation was rejected.
#[derive(Clone, Debug, PartialEq)]
pub enum ObservationError {
    Future {
        ahead: Duration,
    },
    TooOld {
        age: Duration,
    },
    /// Much newer ones of its kind were accepted already.
    OutOfOrder {
        behind: Duration,
    },
    Duplicate,
    UnknownSite(SiteId),
    UnknownStorage(StorageId),
    /// A number that no network yields.
    Implausible(String),
}

impl fmt::Display for ObservationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let long = |time: &Duration| units::duration(*time);
        match self {
            ObservationError::Future { ahead } => {
                write!(f, "seen {} in the future: one of the clocks is wrong", long(ahead))
            }
            ObservationError::TooOld { age } => write!(f, "seen {} ago: too old to be useful", long(age)),
            ObservationError::OutOfOrder { behind } => {
                write!(f, "seen {} before newer observations of the same kind", long(behind))
            }
            ObservationError::Duplicate => write!(f, "a duplicate: it was accepted already"),
            ObservationError::UnknownSite(id) => write!(f, "no site has the number {}", id.0),
            ObservationError::UnknownStorage(id) => write!(f, "no storage has the number {}", id.0),
            ObservationError::Implausible(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ObservationError {}

impl From<ObservationError> for Fault {
    fn from(refused: ObservationError) -> Self {
        let code = match refused {
            ObservationError::Future { .. } => FaultCode::ClockSkew,
            ObservationError::UnknownSite(_) | ObservationError::UnknownStorage(_) => FaultCode::NotFound,
            ObservationError::Duplicate => FaultCode::AlreadyExists,
            ObservationError::TooOld { .. }
            | ObservationError::OutOfOrder { .. }
            | ObservationError::Implausible(_) => FaultCode::BadRequest,
        };
        Fault::new(code, format!("an observation was rejected: {refused}")).with_source(refused)
    }
}

impl Observation {
    /// Checks time and ranges.
    pub fn check(&self, now: Timestamp) -> Result<(), ObservationError> {
        let ahead = self.at.since(now);
        if ahead > CLOCK_AHEAD_MAX {
            return Err(ObservationError::Future { ahead });
        }
        let age = now.since(self.at);
        if age > OBSERVATION_AGE_MAX {
            return Err(ObservationError::TooOld { age });
        }
        match (&self.subject, &self.metric) {
            (Subject::Uplink { .. }, Metric::Uplink { .. }) => {}
            (Subject::Path { .. }, Metric::Uplink { .. }) => {
                return implausible("counters of an uplink belong to a site, not to a path");
            }
            (Subject::Uplink { .. }, _) => return implausible("an uplink has only counters"),
            (Subject::Path { source, target, .. }, _) if source == target => {
                return implausible("source and target are the same");
            }
            (Subject::Path { .. }, _) => {}
        }
        self.metric.check()
    }

    /// Weight relative to a second of own transfers. A probe measures hosts near the storages, not the
    /// storages.
    pub fn weight(&self) -> f64 {
        let origin = match self.origin {
            Origin::OwnTransfer => 1.0,
            Origin::Probe => 0.5,
            Origin::PerfSonar | Origin::Provider => 0.4,
            Origin::Instance(_) => 0.3,
        };
        let mapping = match self.mapping {
            Mapping::Explicit => 1.0,
            Mapping::Imported => 0.8,
            Mapping::Inferred => 0.3,
        };
        origin * mapping
    }
}

impl Metric {
    fn check(&self) -> Result<(), ObservationError> {
        match *self {
            Metric::Throughput { bytes_per_s, seconds, streams } => {
                check_rate(bytes_per_s)?;
                check_duration(seconds)?;
                if streams == 0 { implausible("a test without a stream") } else { Ok(()) }
            }
            Metric::Rtt { us } => check_round_trip(us),
            Metric::Loss { sent: 0, .. } => implausible("a loss of no packets"),
            Metric::Loss { sent, lost } if lost > sent => {
                implausible(format!("{lost} packets lost of {sent} sent"))
            }
            Metric::Mtu { bytes, .. } if !MTU_BYTES.contains(&bytes) => {
                implausible(format!("a path MTU of {bytes} bytes"))
            }
            Metric::Hops(ref hops) if hops.is_empty() => implausible("a path without hops"),
            Metric::Hops(ref hops) if hops.len() > HOPS_MAX => {
                implausible(format!("a path of {} hops", hops.len()))
            }
            Metric::Uplink { into_bytes_per_s, out_bytes_per_s, capacity_bytes_per_s } => {
                for value in [into_bytes_per_s, out_bytes_per_s] {
                    // An idle uplink is plausible.
                    if value != 0.0 {
                        check_rate(value)?;
                    }
                }
                capacity_bytes_per_s.map_or(Ok(()), check_rate)
            }
            Metric::Transfer { bytes, seconds, alongside } => {
                check_duration(seconds)?;
                if !alongside.is_finite() || !(0.0..=1e6).contains(&alongside) {
                    return implausible(format!("{alongside} transfers alongside"));
                }
                if bytes > 0 { check_rate(bytes as f64 / seconds) } else { Ok(()) }
            }
            Metric::Tcp { bytes_sent, bytes_resent, rtt_us, mss_bytes, .. } => {
                check_round_trip(rtt_us)?;
                if bytes_resent > bytes_sent {
                    return implausible(format!("{bytes_resent} bytes repeated of {bytes_sent} sent"));
                }
                if MTU_BYTES.contains(&mss_bytes) {
                    Ok(())
                } else {
                    implausible(format!("segments of {mss_bytes} bytes"))
                }
            }
            Metric::Summary { bytes_per_s, spread, seconds, .. } => {
                check_rate(bytes_per_s)?;
                check_duration(seconds)?;
                if (0.0..=10.0).contains(&spread) {
                    Ok(())
                } else {
                    implausible(format!("a spread of {spread}"))
                }
            }
            Metric::Loss { .. }
            | Metric::Mtu { .. }
            | Metric::Hops(_)
            | Metric::PathChecksum(_)
            | Metric::Reach { .. } => Ok(()),
        }
    }

    /// Index of its kind; order is tracked per kind.
    pub(crate) fn kind_index(&self) -> usize {
        match self {
            Metric::Throughput { .. } | Metric::Summary { .. } => 0,
            Metric::Rtt { .. } => 1,
            Metric::Loss { .. } => 2,
            Metric::Mtu { .. } => 3,
            Metric::Hops(_) | Metric::PathChecksum(_) => 4,
            Metric::Reach { .. } => 5,
            Metric::Uplink { .. } => 6,
            Metric::Transfer { .. } | Metric::Tcp { .. } => 7,
        }
    }
}

fn implausible<T>(what: impl Into<String>) -> Result<T, ObservationError> {
    Err(ObservationError::Implausible(what.into()))
}

fn check_rate(bytes_per_s: f64) -> Result<(), ObservationError> {
    if bytes_per_s.is_finite() && bytes_per_s > 0.0 && bytes_per_s <= BYTES_PER_S_MAX {
        return Ok(());
    }
    implausible(format!("a rate of {bytes_per_s} bytes per second"))
}

fn check_duration(seconds: f64) -> Result<(), ObservationError> {
    if seconds.is_finite() && seconds > 0.0 && seconds <= DURATION_S_MAX {
        return Ok(());
    }
    implausible(format!("a time of {seconds} s"))
}

fn check_round_trip(us: f64) -> Result<(), ObservationError> {
    if us.is_finite() && us > 0.0 && us <= RTT_US_MAX {
        Ok(())
    } else {
        implausible(format!("a round trip of {us} µs"))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Knowledge;
    use crate::knowledge::Link;
    use crate::topology::RegionId;
    use proptest::prelude::*;

    pub(crate) fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    pub(crate) fn world() -> Knowledge {
        let mut knowledge = Knowledge::default();
        for site in 1..=4 {
            knowledge.set_site_region(SiteId(site), RegionId(site as u32 / 3));
            knowledge.set_storage_site(StorageId(site), SiteId(site));
        }
        knowledge
    }

    pub(crate) fn between(source: u64, target: u64, number: u64, seconds: i64, seen: Metric) -> Observation {
        Observation {
            id: ObservationId(number),
            at: at(seconds),
            subject: Subject::Path {
                source: Endpoint::Site(SiteId(source)),
                target: Endpoint::Site(SiteId(target)),
                path: PathSelector::over_family(Family::Ipv4),
            },
            metric: seen,
            origin: Origin::PerfSonar,
            mapping: Mapping::Explicit,
        }
    }

    fn test_of(bytes_per_s: f64) -> Metric {
        Metric::Throughput { bytes_per_s, seconds: 25.0, streams: 1 }
    }

    fn link(source: u64, target: u64) -> Link {
        Link { source: StorageId(source), target: StorageId(target) }
    }

    #[test]
    fn a_test_between_sites_updates_the_estimate_of_their_links() {
        let mut knowledge = world();
        let before = knowledge.rate(link(1, 2), at(0));
        for number in 0..3 {
            let seen = between(1, 2, number, number as i64 * 60, test_of(1.0e9));
            knowledge.observe(&seen, at(200)).unwrap();
        }
        let after = knowledge.rate(link(1, 2), at(200));
        assert!(before.bytes_per_s < 2e8 && after.bytes_per_s > 5e8, "{before:?} {after:?}");
        assert_eq!(after.basis, crate::Basis::SitePair);
    }

    #[test]
    fn an_uncertain_mapping_counts_less() {
        let rate = |mapping| {
            let mut knowledge = world();
            knowledge.observe(&between(3, 4, 1, 0, test_of(1e8)), at(0)).unwrap();
            let sure = Observation { mapping, ..between(1, 2, 2, 0, test_of(1.0e9)) };
            knowledge.observe(&sure, at(0)).unwrap();
            knowledge.rate(link(1, 2), at(0)).bytes_per_s
        };
        assert!(rate(Mapping::Explicit) > rate(Mapping::Imported));
        assert!(rate(Mapping::Imported) > rate(Mapping::Inferred));
    }

    #[test]
    fn implausible_observations_are_rejected_with_a_reason() {
        let mut knowledge = world();
        let mut say = |observation: Observation| match knowledge.observe(&observation, at(100_000)) {
            Ok(()) => "taken".to_owned(),
            Err(refused) => refused.to_string(),
        };
        assert_eq!(say(between(1, 2, 1, 100_000, test_of(1e9))), "taken");
        assert_eq!(say(between(1, 2, 1, 100_000, test_of(1e9))), "a duplicate: it was accepted already");
        assert_eq!(say(between(1, 2, 2, 99_000, test_of(1e9))), "taken", "a little late is fine");
        assert!(say(between(1, 2, 3, 50_000, test_of(1e9))).contains("before newer observations"));
        assert!(say(between(1, 2, 4, 100_200, test_of(1e9))).contains("in the future"));
        assert!(say(between(1, 2, 5, -2_000_000, test_of(1e9))).contains("too old"));
        assert_eq!(say(between(1, 9, 6, 100_000, test_of(1e9))), "no site has the number 9");
        for absurd in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e30] {
            assert!(say(between(1, 2, 7, 100_000, test_of(absurd))).starts_with("a rate of"), "{absurd}");
        }
        assert_eq!(
            say(between(1, 2, 8, 100_000, Metric::Mtu { bytes: 9, black_hole: false })),
            "a path MTU of 9 bytes"
        );
        assert!(
            say(between(1, 2, 9, 100_000, Metric::Loss { sent: 5, lost: 6 })).starts_with("6 packets lost")
        );
        assert!(say(between(1, 1, 10, 100_000, test_of(1e9))).contains("the same"));
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_block_observations() {
        let mut knowledge = world();
        let ahead = between(1, 2, 1, 1_000_000, test_of(1e9));
        knowledge.observe(&ahead, at(1_000_000)).unwrap();
        knowledge.observe(&between(1, 2, 2, 10, test_of(1e8)), at(10)).unwrap();
        knowledge.observe(&between(1, 2, 3, 20, test_of(1e8)), at(20)).unwrap();
    }

    fn any_seen() -> impl Strategy<Value = Metric> {
        let number = prop_oneof![any::<f64>(), 1e3..1e10_f64, Just(0.0), Just(f64::NAN)];
        let value = prop_oneof![any::<f64>(), 1e3..1e10_f64];
        let limit = prop_oneof![
            Just(None),
            Just(Some(SenderLimit::ReceiveWindow)),
            Just(Some(SenderLimit::Congestion))
        ];
        prop_oneof![
            (number.clone(), value.clone(), any::<u32>()).prop_map(|(bytes_per_s, seconds, streams)| {
                Metric::Throughput { bytes_per_s, seconds, streams }
            }),
            number.clone().prop_map(|us| Metric::Rtt { us }),
            (any::<u64>(), any::<u64>()).prop_map(|(sent, lost)| Metric::Loss { sent, lost }),
            (any::<u32>(), any::<bool>()).prop_map(|(bytes, black_hole)| Metric::Mtu { bytes, black_hole }),
            proptest::collection::vec(any::<Option<std::net::IpAddr>>(), 0..70).prop_map(Metric::Hops),
            any::<u64>().prop_map(Metric::PathChecksum),
            any::<bool>().prop_map(|up| Metric::Reach { up }),
            (any::<u64>(), number.clone(), value.clone())
                .prop_map(|(bytes, seconds, alongside)| Metric::Transfer { bytes, seconds, alongside }),
            (any::<u64>(), any::<u64>(), value, 60_u32..9_000, any::<u64>(), limit).prop_map(
                |(bytes_sent, bytes_resent, rtt_us, mss_bytes, window_bytes, limit)| Metric::Tcp {
                    bytes_sent,
                    bytes_resent,
                    rtt_us,
                    mss_bytes,
                    window_bytes,
                    limit,
                }
            ),
            (number.clone(), number.clone(), number, any::<u64>()).prop_map(
                |(bytes_per_s, spread, seconds, bytes)| Metric::Summary {
                    bytes_per_s,
                    spread,
                    seconds,
                    bytes
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn any_observation_keeps_estimates_valid(
            all in proptest::collection::vec((any_seen(), 1_u64..6, 1_u64..6, any::<u64>(),
                -3_000_000_i64..200, any::<i64>()), 0..60)
        ) {
            let mut knowledge = world();
            for (seen, source, target, number, seconds, now) in all {
                let observation = between(source, target, number % 50, seconds, seen);
                let _ = knowledge.observe(&observation, at(0));
                let _ = knowledge.observe(&observation, Timestamp(now));
                let estimate = knowledge.rate(link(source, target), at(0));
                prop_assert!(estimate.bytes_per_s.is_finite() && estimate.bytes_per_s > 0.0, "{estimate:?}");
                prop_assert!(estimate.low <= estimate.bytes_per_s && estimate.bytes_per_s <= estimate.high);
            }
            let text = serde_json::to_string(&knowledge).unwrap();
            let again: Knowledge = serde_json::from_str(&text).unwrap();
            for link in [link(1, 2), link(2, 1), link(5, 1)] {
                let (was, is) = (knowledge.rate(link, at(0)), again.rate(link, at(0)));
                prop_assert!((is.bytes_per_s / was.bytes_per_s - 1.0).abs() < 1e-3, "{was:?} {is:?}");
            }
        }
    }
}
