//! Probes of the paths between agents, observations of these paths by transfers, and traffic counters of the
//! sites' uplinks. They are parts of reports and replies, and may be lost: the next one tells the same.

use std::net::{IpAddr, SocketAddr};

use longhaul_model::{AgentId, SiteName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// Probe results in one report; further ones wait for the next.
pub const PROBES_MAX: usize = 64;
/// Interfaces in one report.
pub const UPLINKS_MAX: usize = 16;
/// Sources in one report.
pub const PATHS_MAX: usize = 64;

/// A peer that the agent shall probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProbeAsked {
    /// Id of the peer.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Addresses `host:port` of its data port, best first.
    pub addresses: Vec<String>,
}

/// Result of probing one peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeResult {
    /// Id of the peer.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Time of the probe.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// One entry for each address family of the peer.
    pub ways: Vec<ProbedWay>,
    /// Why nothing could be probed: none of the peer's names has an address. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Path to a peer over one address family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbedWay {
    /// Address and port that were probed.
    #[schema(value_type = String)]
    pub address: SocketAddr,
    /// Result of connecting.
    pub reach: Reach,
    /// Round-trip times in microseconds, each of a connection from another source port.
    #[serde(default)]
    pub rtts_us: Vec<u32>,
    /// Largest IP packet that arrives, in bytes; absent if unknown.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// True if larger packets are dropped silently (path MTU black hole).
    #[serde(default)]
    pub black_hole: bool,
    /// Routers in order, the peer last if it answered; `null` for each that did not answer.
    #[serde(default)]
    #[schema(value_type = Vec<Option<String>>)]
    pub hops: Vec<Option<IpAddr>>,
    /// What could not be determined, and why.
    #[serde(default)]
    pub unknown: Vec<String>,
}

impl ProbedWay {
    /// The shortest round-trip time in microseconds.
    pub fn rtt_us(&self) -> Option<u32> {
        self.rtts_us.iter().copied().min()
    }

    /// `IPv4` or `IPv6`.
    pub fn family(&self) -> &'static str {
        if self.address.is_ipv6() { "IPv6" } else { "IPv4" }
    }
}

/// Result of connecting to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The connection was accepted.
    Answers,
    /// The connection was refused: no process listens on the port.
    Refused,
    /// Nothing came back: packets are lost on the path.
    Silent,
    /// The probing host has no route to the address.
    NoRoute,
}

impl Reach {
    /// A phrase to follow the name of a peer.
    pub fn words(self) -> &'static str {
        match self {
            Reach::Answers => "answers",
            Reach::Refused => "refuses: nobody listens there",
            Reach::Silent => "is silent: packets are swallowed on the way",
            Reach::NoRoute => "has no route from here",
        }
    }
}

/// Traffic of a network interface that is an uplink of the site, over `seconds`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkSample {
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    /// End of the interval.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Rate into the site in bytes per second.
    pub into_bytes_per_s: f64,
    /// Rate out of the site in bytes per second.
    pub out_bytes_per_s: f64,
    /// Capacity in bytes per second; absent if neither the driver nor the configuration tells it.
    #[serde(default)]
    pub capacity_bytes_per_s: Option<f64>,
}

/// Path properties observed by transfers from one source over `seconds`, as counted by the sending kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PathSample {
    /// Agent that sent the data.
    #[schema(value_type = formats::AgentId)]
    pub source: AgentId,
    /// End of the interval.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Whether the streams used IPv6; absent if the source dialled.
    #[serde(default)]
    pub ipv6: Option<bool>,
    /// TCP streams observed.
    pub streams: u32,
    /// Bytes sent, without retransmissions.
    pub bytes: u64,
    /// Packets sent, without retransmissions.
    pub packets: u64,
    /// Packets retransmitted.
    pub resent: u64,
    /// Shortest round-trip time, in microseconds.
    pub rtt_us: u32,
    /// What limited the streams at the end, if that tells something about the path.
    #[serde(default)]
    pub limit: Option<PathLimit>,
}

/// What limits the rate of TCP streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PathLimit {
    /// The source reads its files too slowly.
    Application,
    /// The receive window of the target.
    ReceiveWindow,
    /// The send buffer of the source.
    SendBuffer,
    /// The congestion window, and so the network.
    Congestion,
}

/// Latest probe of one site's agent by another's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeView {
    /// Site of the agent that probed.
    #[schema(value_type = formats::SiteName)]
    pub from: SiteName,
    /// Host of the agent that probed.
    pub from_host: String,
    /// Site of the agent that was probed.
    #[schema(value_type = formats::SiteName)]
    pub to: SiteName,
    /// Host of the agent that was probed.
    pub to_host: String,
    /// Time of the probe.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// One entry for each address family of the peer.
    pub ways: Vec<ProbedWay>,
    /// Why nothing could be probed; absent otherwise.
    pub fault: Option<String>,
    /// Since when the peer cannot be reached; absent if it can.
    #[schema(value_type = Option<String>)]
    pub unreachable_since: Option<Timestamp>,
    /// What stands out, a sentence each.
    pub remarks: Vec<String>,
}

/// Summary of the latest probe over a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProbeShort {
    /// Time of the probe.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Since when the peer cannot be reached; absent if it can.
    #[schema(value_type = Option<String>)]
    pub unreachable_since: Option<Timestamp>,
    /// True if large packets are dropped silently.
    pub black_hole: bool,
}

/// A network interface that is an uplink of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkView {
    /// The site.
    #[schema(value_type = formats::SiteName)]
    pub site: SiteName,
    /// Host with the interface.
    pub host: String,
    /// Latest sample of its traffic.
    pub sample: UplinkSample,
}
