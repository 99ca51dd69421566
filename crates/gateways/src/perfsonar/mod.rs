//! perfSONAR's results in every form they come in, as one: [`Measurement`].
//!
//! | form | read by | comes from |
//! | --- | --- | --- |
//! | esmond: metadata, then series per event type | [`esmond`] | archives of versions 3.4 to 4, front of 5 |
//! | documents of an OpenSearch index per test type | [`documents`] | archives of version 5 |
//! | the result of one run, as an archiver sends it | [`push`] | measurement hosts themselves |
//! | pSConfig template: who measures to whom, and how often | [`mesh`] | whoever runs the mesh |
//!
//! [`archive`] reads the first two over HTTP.
//!
//! Units: bits/s stay bits/s as perfSONAR says them, delays are milliseconds, times are UTC.

pub mod archive;
pub mod documents;
pub mod esmond;
pub mod mesh;
pub mod push;
mod spread;

use std::net::IpAddr;
use std::time::Duration;

use longhaul_model::{Fault, Timestamp};
use longhaul_network::advice::Family;
use serde_json::Value;

use crate::lenient::{address, at, number, text};

pub use spread::Spread;

/// What a measurement host sends at once: a throughput test of an hour with all its intervals has a tenth of
/// that.
pub const PUSH_BYTES_MAX: usize = 1 << 20;
/// One page of an archive's answer: 1,000 documents of throughput have about 5 MB.
pub const PAGE_BYTES_MAX: usize = 16 << 20;
/// Measurements of one payload; a page of an archive has 1,000.
pub const MEASUREMENTS_MAX: usize = 20_000;
/// More is no rate of any network.
const BITS_PER_S_MAX: f64 = 1e16;
/// More is no delay on this planet.
const DELAY_MS_MAX: f64 = 600_000.0;
/// Stations of a path that are kept; the time to live has eight bits.
const HOPS_MAX: usize = 255;
const MTU_MIN: u64 = 68;
const MTU_MAX: u64 = 65_535;

/// One result between two hosts, in one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    pub source: Host,
    pub target: Host,
    /// v4 and v6 of one pair of hosts may take different paths.
    pub family: Option<Family>,
    /// When it began.
    pub at: Timestamp,
    pub lasted: Option<Duration>,
    /// The same again has the same: archiving is retried, and archives are read with an overlap.
    pub id: String,
    pub tool: String,
    pub value: Reading,
}

/// One end, as the archive knows it; at least one of the two is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// As the test was configured: what a mapping is made for. In lower case, without a final dot.
    pub name: Option<String>,
    pub address: Option<IpAddr>,
}

/// The measured value.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    Throughput {
        bits_per_s: f64,
        retransmits: Option<u64>,
        streams: Option<u32>,
    },
    /// One way. With a clock error of the order of the delays it tells of their change at best.
    Delay {
        delay: Spread,
        clock_error_ms: Option<f64>,
    },
    RoundTrip {
        rtt: Spread,
    },
    Loss {
        sent: u64,
        lost: u64,
    },
    /// Loss as a share, where the archive keeps no counts.
    LossShare {
        share: f64,
    },
    Path(Path),
    PathMtu {
        mtu: u32,
    },
    /// The test did not work: by itself a sign of trouble at a host or on the path.
    Failed {
        why: String,
    },
}

/// The way packets took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Stations by distance; none for one that did not answer.
    pub hops: Vec<Option<IpAddr>>,
    /// The smallest seen on the way.
    pub mtu: Option<u32>,
    /// Round trip to the last station that answered, in microseconds.
    pub rtt_us: Option<u64>,
}

impl Path {
    /// Addresses by distance, `*` for those that did not answer: another one is another route.
    pub fn signature(&self) -> String {
        let hops = self.hops.iter().map(|hop| hop.map_or_else(|| "*".to_owned(), |hop| hop.to_string()));
        hops.collect::<Vec<_>>().join(",")
    }
}

/// The measurements of one payload, and what was refused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Harvest {
    pub measurements: Vec<Measurement>,
    /// Tests of kinds that we have no use for (DNS, HTTP, …).
    pub unused: u64,
    /// Items that make no sense.
    pub refused: u64,
    /// Why the first of them makes none.
    pub first_fault: Option<Fault>,
}

impl Harvest {
    fn add(&mut self, measurement: Measurement) {
        if self.measurements.len() < MEASUREMENTS_MAX {
            self.measurements.push(measurement);
        } else {
            self.refuse(crate::lenient::wrong(
                "payload",
                &format!("more than {MEASUREMENTS_MAX} measurements"),
            ));
        }
    }

    fn refuse(&mut self, fault: Fault) {
        self.refused += 1;
        self.first_fault.get_or_insert(fault);
    }

    /// Adds what another payload of the same source held.
    pub fn merge(&mut self, other: Harvest) {
        for measurement in other.measurements {
            self.add(measurement);
        }
        self.unused += other.unused;
        self.refused += other.refused;
        if let Some(fault) = other.first_fault {
            self.first_fault.get_or_insert(fault);
        }
    }
}

impl Host {
    /// A name or an address, whichever it is.
    pub fn parse(text: &str) -> Host {
        let text = text.trim().trim_end_matches('.');
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        match bare.parse() {
            Ok(address) => Host { name: None, address: Some(address) },
            Err(_) => {
                Host { name: Some(text.to_ascii_lowercase()).filter(|name| !name.is_empty()), address: None }
            }
        }
    }

    fn is_known(&self) -> bool {
        self.name.is_some() || self.address.is_some()
    }

    /// The other's name or address where this one has none.
    fn or(self, other: Host) -> Host {
        Host { name: self.name.or(other.name), address: self.address.or(other.address) }
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.name, self.address) {
            (Some(name), _) => f.write_str(name),
            (None, Some(address)) => address.fmt(f),
            (None, None) => f.write_str("?"),
        }
    }
}

fn family_of(source: &Host, target: &Host) -> Option<Family> {
    let address = source.address.or(target.address)?;
    Some(if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 })
}

fn family_of_number(value: &Value) -> Option<Family> {
    match number(value)? as i64 {
        4 => Some(Family::Ipv4),
        6 => Some(Family::Ipv6),
        _ => None,
    }
}

/// Tells readings of one run apart in their ids.
fn word(value: &Reading) -> &'static str {
    match value {
        Reading::Throughput { .. } => "throughput",
        Reading::Delay { .. } => "delay",
        Reading::RoundTrip { .. } => "rtt",
        Reading::Loss { .. } | Reading::LossShare { .. } => "loss",
        Reading::Path(_) => "path",
        Reading::PathMtu { .. } => "mtu",
        Reading::Failed { .. } => "failed",
    }
}

/// A host under a key: a name or an address.
fn host(value: Option<&Value>) -> Host {
    value.and_then(text).map(|text| Host::parse(&text)).unwrap_or_default()
}

/// A host as `{"ip": …, "hostname": …}`; the host name falls back on the address.
fn host_pair(value: Option<&Value>) -> Host {
    let Some(value) = value else { return Host::default() };
    let named = host(at(value, "hostname"));
    Host { name: named.name, address: at(value, "ip").and_then(address).or(named.address) }
}

fn bits_per_s(value: &Value) -> Option<f64> {
    number(value).filter(|rate| (0.0..=BITS_PER_S_MAX).contains(rate))
}

fn delay_ms(value: f64) -> Option<f64> {
    (value.is_finite() && value.abs() <= DELAY_MS_MAX).then_some(value)
}

fn mtu(value: &Value) -> Option<u32> {
    crate::lenient::count(value).filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu)).map(|mtu| mtu as u32)
}

/// One probe's answer of a traced path.
struct Station {
    distance: usize,
    address: Option<IpAddr>,
    rtt_ms: Option<f64>,
    mtu: Option<u32>,
}

/// Several probes per distance, in any order.
fn path(stations: impl Iterator<Item = Station>) -> Option<Path> {
    let mut path = Path::default();
    let mut farthest = 0;
    for station in stations {
        let Some(place) = station.distance.checked_sub(1).filter(|place| *place < HOPS_MAX) else { continue };
        if path.hops.len() <= place {
            path.hops.resize(place + 1, None);
        }
        // The first that answers at a distance stands for it: with several ways of equal cost, one is enough.
        if path.hops[place].is_none() {
            path.hops[place] = station.address;
        }
        path.mtu = [path.mtu, station.mtu].into_iter().flatten().min();
        if let Some(rtt) = station.rtt_ms.and_then(delay_ms).filter(|rtt| *rtt >= 0.0)
            && station.distance > farthest
        {
            farthest = station.distance;
            path.rtt_us = Some((rtt * 1e3).round() as u64);
        }
    }
    (!path.hops.is_empty()).then_some(path)
}
