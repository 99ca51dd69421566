//! Measurements that others make, and which site their hosts belong to.

use longhaul_model::{Fault, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Names the measurement host that sends, in requests of pScheduler's archiver.
pub const OBSERVER_HEADER: &str = "x-ps-observer";

/// What became of the measurements of one body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MeasurementsTaken {
    pub taken: u64,
    /// Known already: archiving is retried.
    pub repeated: u64,
    /// Between hosts of which at least one has no site: see `GET /api/v1/network/unmapped`.
    pub unmapped: u64,
    /// Between hosts of one site, or of kinds that say nothing about a link.
    pub unused: u64,
    /// Without sense, from the future, too old.
    pub refused: u64,
    /// Why the first of them was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `POST /api/v1/network/hosts`: all or none are written.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostsChange {
    /// `explicit`, the default, or `imported`: from a directory of sites, which never changes what was said
    /// explicitly.
    #[serde(default)]
    pub mapping: Option<String>,
    pub hosts: Vec<HostOfSite>,
}

/// A host or network, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostOfSite {
    /// Name or address of a host, or a network such as `192.0.2.0/24`.
    pub host: String,
    #[schema(value_type = String)]
    pub site: SiteName,
    /// `bandwidth`, `latency` or `both`, the default; `storage` for an end point whose domain tells whose
    /// hosts are near.
    #[serde(default)]
    pub role: Option<String>,
    /// `v4` or `v6`: only what was measured over it. Absent: both.
    #[serde(default)]
    pub family: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct HostsChanged {
    pub set: u64,
    pub unchanged: u64,
    /// An import said otherwise; what was said explicitly stays.
    pub kept_explicit: u64,
    /// There are no such sites here: their entries were left out.
    #[schema(value_type = Vec<String>)]
    pub unknown_sites: Vec<SiteName>,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    pub host: String,
    #[schema(value_type = String)]
    pub site: SiteName,
    pub role: Option<String>,
    pub family: Option<String>,
    /// `explicit` or `imported`.
    pub mapping: String,
    #[schema(value_type = String)]
    pub created: Timestamp,
}

/// A measurement host without a site, or with one that is only inferred.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UnmappedHost {
    pub host: String,
    pub address: Option<String>,
    /// What its measurements count for now, if its site was inferred: it should be confirmed.
    #[schema(value_type = Option<String>)]
    pub inferred: Option<SiteName>,
    /// Why that site.
    pub because: Option<String>,
    pub measurements: u64,
    #[schema(value_type = String)]
    pub first_seen: Timestamp,
    #[schema(value_type = String)]
    pub last_seen: Timestamp,
    /// The measurement host or archive that sent or holds them.
    pub reported_by: String,
}

/// An archive that is read, and how that goes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ArchiveView {
    pub url: String,
    /// `esmond`, `opensearch` or `mesh`.
    pub kind: String,
    /// Whether the server's certificate is checked.
    pub verify: bool,
    pub every_s: u32,
    #[schema(value_type = Option<String>)]
    pub last_read: Option<Timestamp>,
    /// Why the last reading failed, if it did.
    #[schema(value_type = Option<Object>)]
    pub fault: Option<Fault>,
    /// What the last reading found.
    pub found: MeasurementsTaken,
    /// Pairs of a mesh that should have results, and those without any for more than three of their
    /// intervals.
    pub pairs: u64,
    pub silent: u64,
    /// The first hundred, longest silent first.
    pub silences: Vec<SilentPair>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SilentPair {
    pub source: String,
    pub target: String,
    pub test: String,
    #[schema(value_type = String)]
    pub since: Timestamp,
    pub every_s: u64,
}
