//! Runs all checks: the peer first, since its round trip determines the buffers that are needed, then this
//! host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_network::advice::{PathShape, STREAMS_DEFAULT};
use serde::Serialize;

use crate::checks::host::KernelProbes;
use crate::checks::{credentials, disk, host, network};
use crate::facts::HostFacts;
use crate::finding::{Finding, Severity};
use crate::peer::{self, Peer};
use crate::tune::{RATE_BYTES_PER_S_ASSUMED, RTT_US_ASSUMED};

/// Path properties given by the caller; the rest is measured or assumed.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathOverrides {
    pub rtt_us: Option<u64>,
    pub rate_bytes_per_s: Option<u64>,
    pub streams: Option<u32>,
}

/// What to examine.
#[derive(Clone, Debug)]
pub struct ExaminationRequest {
    /// Root of `/proc` and `/sys`: `/`, except in tests.
    pub root: PathBuf,
    pub path: PathOverrides,
    pub peer: Option<Peer>,
    pub directories: Vec<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub grid_maps: Vec<PathBuf>,
    /// Timeout of each step that waits for the peer.
    pub timeout: Duration,
}

impl Default for ExaminationRequest {
    fn default() -> Self {
        ExaminationRequest {
            root: PathBuf::from("/"),
            path: PathOverrides::default(),
            peer: None,
            directories: Vec::new(),
            certificate: None,
            key: None,
            grid_maps: Vec::new(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Where a figure of the path comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureSource {
    Assumed,
    #[serde(rename = "asked")]
    Given,
    /// Round trip to the peer, or rate of the fastest interface.
    Measured,
}

/// The path for which buffers are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReferencePath {
    #[serde(flatten)]
    pub path: PathShape,
    pub streams: u32,
    pub rtt_from: FigureSource,
    pub rate_from: FigureSource,
}

impl ReferencePath {
    /// Whether nothing is assumed, so that falling short is a problem.
    pub(crate) fn is_certain(&self) -> bool {
        self.rtt_from != FigureSource::Assumed && self.rate_from != FigureSource::Assumed
    }
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Examination {
    pub path: ReferencePath,
    pub problems: usize,
    pub advice: usize,
    /// Sorted by group.
    pub findings: Vec<Finding>,
}

impl Examination {
    fn new(path: ReferencePath, mut findings: Vec<Finding>) -> Examination {
        findings.sort_by_key(|finding| finding.group);
        let of = |level| findings.iter().filter(|finding| finding.severity == level).count();
        Examination { path, problems: of(Severity::Problem), advice: of(Severity::Advice), findings }
    }
}

/// Examines the host. Changes nothing; writes only in `directories`, and removes what it wrote.
pub fn examine(order: &ExaminationRequest, now: Timestamp) -> Examination {
    let facts = HostFacts::read(&order.root);
    let met = order.peer.as_ref().map(|peer| peer::examine_peer(peer, order.timeout, now));
    let measured_rtt = met.as_ref().and_then(|met| met.rtt_us);
    let used = path_used(&order.path, measured_rtt, facts.fastest_bytes_per_s());
    // A recorded tree has no running kernel to probe.
    let probes = if order.root == Path::new("/") { KernelProbes::run() } else { KernelProbes::default() };
    let mut findings = network::check(&facts, &used);
    findings.extend(host::check(&facts, &probes));
    for directory in &order.directories {
        findings.extend(disk::check(directory, used.path.rate_bytes_per_s));
    }
    findings.extend(credentials::check_key_pair(order.certificate.as_deref(), order.key.as_deref(), now));
    for path in &order.grid_maps {
        findings.extend(credentials::check_grid_map(path));
    }
    findings.extend(met.into_iter().flat_map(|met| met.findings));
    Examination::new(used, findings)
}

fn path_used(asked: &PathOverrides, measured_rtt: Option<u64>, interface: Option<u64>) -> ReferencePath {
    let choose = |asked: Option<u64>, measured: Option<u64>, assumed| match (asked, measured) {
        (Some(value), _) => (value.max(1), FigureSource::Given),
        (None, Some(value)) => (value.max(1), FigureSource::Measured),
        (None, None) => (assumed, FigureSource::Assumed),
    };
    let (rtt_us, rtt_from) = choose(asked.rtt_us, measured_rtt, RTT_US_ASSUMED);
    let (rate_bytes_per_s, rate_from) = choose(asked.rate_bytes_per_s, interface, RATE_BYTES_PER_S_ASSUMED);
    let streams = asked.streams.unwrap_or(STREAMS_DEFAULT).max(1);
    ReferencePath { path: PathShape { rate_bytes_per_s, rtt_us }, streams, rtt_from, rate_from }
}
