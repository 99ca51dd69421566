//! What agents look at on the ways to each other, and the counters of their sites' uplinks. Both are part of
//! reports and of their replies, and may be lost: the next look tells the same.

use std::net::{IpAddr, SocketAddr};

use longhaul_model::{AgentId, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Looks in one report; more wait for the next.
pub const PROBES_MAX: usize = 64;
/// Interfaces in one report.
pub const UPLINKS_MAX: usize = 16;
/// Sources in one report.
pub const PATHS_MAX: usize = 64;

/// A peer that the agent shall look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProbeAsked {
    #[schema(value_type = String)]
    pub agent: AgentId,
    /// `host:port`, best first.
    pub addresses: Vec<String>,
}

/// What one look at a peer found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeResult {
    /// The one that was looked at.
    #[schema(value_type = String)]
    pub agent: AgentId,
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// One for each address family that the peer has.
    pub ways: Vec<ProbedWay>,
    /// Why nothing could be tried, if so: none of its names has an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// One address family of a peer, as found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbedWay {
    #[schema(value_type = String)]
    pub address: SocketAddr,
    pub reach: Reach,
    /// Round trips of connections from one source port each, in microseconds.
    #[serde(default)]
    pub rtts_us: Vec<u32>,
    /// The largest IP packet that gets there.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Larger ones vanish without a word.
    #[serde(default)]
    pub black_hole: bool,
    /// Routers in order, the peer last if it answered; none where one did not.
    #[serde(default)]
    #[schema(value_type = Vec<Option<String>>)]
    pub hops: Vec<Option<IpAddr>>,
    /// What could not be found out, and why.
    #[serde(default)]
    pub unknown: Vec<String>,
}

impl ProbedWay {
    pub fn rtt_us(&self) -> Option<u32> {
        self.rtts_us.iter().copied().min()
    }

    pub fn family(&self) -> &'static str {
        if self.address.is_ipv6() { "IPv6" } else { "IPv4" }
    }
}

/// What came of dialling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    Answers,
    /// The host says that nobody listens there.
    Refused,
    Silent,
    /// The one who looked has no route to it.
    NoRoute,
}

impl Reach {
    /// After the name of a peer.
    pub fn words(self) -> &'static str {
        match self {
            Reach::Answers => "answers",
            Reach::Refused => "refuses: nobody listens there",
            Reach::Silent => "is silent: packets are swallowed on the way",
            Reach::NoRoute => "has no route from here",
        }
    }
}

/// Traffic of one interface that is an uplink of the site, over `seconds`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkSample {
    pub interface: String,
    #[schema(value_type = String)]
    pub at: Timestamp,
    pub seconds: f64,
    pub into_bytes_per_s: f64,
    pub out_bytes_per_s: f64,
    /// None where neither the driver nor the configuration says.
    #[serde(default)]
    pub capacity_bytes_per_s: Option<f64>,
}

/// What transfers from one source showed of the way from there, over `seconds`, by the account of the sending
/// kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathSample {
    /// Where the data came from.
    #[schema(value_type = String)]
    pub source: AgentId,
    #[schema(value_type = String)]
    pub at: Timestamp,
    pub seconds: f64,
    /// Whether the address that the streams went to was IPv6; none if the source dialled.
    #[serde(default)]
    pub ipv6: Option<bool>,
    pub streams: u32,
    /// Without what was sent again.
    pub bytes: u64,
    pub packets: u64,
    /// Sent again.
    pub resent: u64,
    /// The shortest.
    pub rtt_us: u32,
    /// What held the streams up at the end, if that says something of the way.
    #[serde(default)]
    pub limit: Option<PathLimit>,
}

/// What held streams up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PathLimit {
    /// The source was read too slowly.
    Application,
    ReceiveWindow,
    SendBuffer,
    Congestion,
}

/// What the agents of two sites found on the way between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeView {
    /// The site and host that probed.
    #[schema(value_type = String)]
    pub from: SiteName,
    pub from_host: String,
    /// At whom.
    #[schema(value_type = String)]
    pub to: SiteName,
    pub to_host: String,
    #[schema(value_type = String)]
    pub at: Timestamp,
    pub ways: Vec<ProbedWay>,
    pub fault: Option<String>,
    #[schema(value_type = Option<String>)]
    pub unreachable_since: Option<Timestamp>,
    /// What stands out, a sentence each.
    pub remarks: Vec<String>,
}

/// The last look over a link, in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeShort {
    #[schema(value_type = String)]
    pub at: Timestamp,
    #[schema(value_type = Option<String>)]
    pub unreachable_since: Option<Timestamp>,
    pub black_hole: bool,
}

/// One interface that is a site's uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkView {
    #[schema(value_type = String)]
    pub site: SiteName,
    pub host: String,
    pub sample: UplinkSample,
}
