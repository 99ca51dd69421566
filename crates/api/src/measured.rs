//! Measurements by third parties such as perfSONAR, and the mapping from their hosts to sites.

use longhaul_model::{Fault, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// Names the measurement host that sends a request of pScheduler's archiver.
pub const OBSERVER_HEADER: &str = "x-ps-observer";

/// Result of accepting the measurements of one body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MeasurementsTaken {
    /// Measurements accepted.
    pub taken: u64,
    /// Measurements already known, since archivers retry.
    pub repeated: u64,
    /// Measurements between hosts of which at least one has no site; see `GET /api/v1/network/unmapped`.
    pub unmapped: u64,
    /// Measurements within a site, or of kinds that say nothing about a link.
    pub unused: u64,
    /// Measurements refused: malformed, in the future, or too old.
    pub refused: u64,
    /// Why the first of them was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `POST /api/v1/network/hosts`: maps hosts to sites, all or none.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostsChange {
    /// `explicit`, the default, or `imported`: from a directory of sites, which never overrides explicit
    /// entries.
    #[serde(default)]
    #[schema(value_type = Option<formats::HostMapping>)]
    pub mapping: Option<String>,
    /// Entries to add or replace.
    pub hosts: Vec<HostOfSite>,
}

/// A host or network with its site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostOfSite {
    /// Name or address of a host, or a network such as `192.0.2.0/24`.
    pub host: String,
    /// Site that it belongs to.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// `bandwidth`, `latency`, `both` (default), or `storage` for an end point whose domain tells which hosts
    /// are near it.
    #[serde(default)]
    #[schema(value_type = Option<formats::HostRole>)]
    pub role: Option<String>,
    /// `v4` or `v6`: only measurements over that protocol. Absent: both.
    #[serde(default)]
    #[schema(value_type = Option<formats::AddressFamily>)]
    pub family: Option<String>,
}

/// Result of a change of the mapping.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct HostsChanged {
    /// Entries added or replaced.
    pub set: u64,
    /// Entries that existed already.
    pub unchanged: u64,
    /// Imported entries skipped because an explicit entry differs.
    pub kept_explicit: u64,
    /// Sites that do not exist here; their entries were skipped.
    #[schema(value_type = Vec<formats::SiteName>)]
    pub unknown_sites: Vec<SiteName>,
}

/// An entry of the mapping from hosts to sites.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Name or address of a host, or a network.
    pub host: String,
    /// Site that it belongs to.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// `bandwidth`, `latency`, `both` or `storage`.
    pub role: Option<String>,
    /// `v4` or `v6`: only measurements over that protocol. Absent: both.
    pub family: Option<String>,
    /// `explicit` or `imported`.
    pub mapping: String,
    /// Time when the entry was created.
    #[schema(value_type = String)]
    pub created: Timestamp,
}

/// A measurement host without a site, or with an inferred one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UnmappedHost {
    /// Name of the host, as its measurements give it.
    pub host: String,
    /// Its address, if known.
    pub address: Option<String>,
    /// Site that its measurements count for at present; inferred, so it should be confirmed.
    #[schema(value_type = Option<formats::SiteName>)]
    pub inferred: Option<SiteName>,
    /// Why that site was inferred.
    pub because: Option<String>,
    /// Measurements with this host.
    pub measurements: u64,
    /// Time of the first of them.
    #[schema(value_type = String)]
    pub first_seen: Timestamp,
    /// Time of the latest.
    #[schema(value_type = String)]
    pub last_seen: Timestamp,
    /// Measurement host or archive that sent or holds them.
    pub reported_by: String,
}

/// A measurement archive that the service reads.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ArchiveView {
    /// Address of the archive.
    pub url: String,
    /// `esmond`, `opensearch` or `mesh`.
    pub kind: String,
    /// Whether the server's certificate is checked.
    pub verify: bool,
    /// Seconds between two readings.
    pub every_s: u32,
    /// Time of the last reading.
    #[schema(value_type = Option<String>)]
    pub last_read: Option<Timestamp>,
    /// Why the last reading failed; absent if it did not.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    /// Result of the last reading.
    pub found: MeasurementsTaken,
    /// Pairs of a mesh that should have results.
    pub pairs: u64,
    /// Pairs without a result for more than three of their intervals.
    pub silent: u64,
    /// The first hundred silent pairs, longest silent first.
    pub silences: Vec<SilentPair>,
}

/// A pair of a mesh without recent results.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SilentPair {
    /// Source host.
    pub source: String,
    /// Target host.
    pub target: String,
    /// Kind of test, such as `throughput`.
    pub test: String,
    /// Time of the last result, or when the service began to expect one.
    #[schema(value_type = String)]
    pub since: Timestamp,
    /// Interval of the test in seconds.
    pub every_s: u64,
}
