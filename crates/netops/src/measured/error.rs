//! Why a measurement of an agent is refused. The first reason goes back to the agent.

use std::time::Duration;

use super::uplinks::UPLINKS_MAX;

/// A measurement that is stale, malformed or of an agent whose measurements do not count.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MeasurementError {
    // ---- any measurement ----
    #[error("it is {} s in the future", .0.as_secs())]
    Future(Duration),
    #[error("it is {} s old", .0.as_secs())]
    TooOld(Duration),
    #[error("it is not newer than what is known")]
    NotNewer,
    #[error("it is of an agent that is none")]
    UnknownAgent,

    // ---- probes ----
    #[error("it is of an agent that is none, or of the same site")]
    UnknownOrLocalPeer,
    #[error("{0} ways: at most one for each address family")]
    FamilyTwice(usize),
    #[error("more round trips or routers than a look can find")]
    TooDetailed,
    #[error("an answer has a round trip, and silence has none")]
    ReachContradictsRtts,

    // ---- uplinks ----
    #[error("more than {UPLINKS_MAX} interfaces")]
    TooManyInterfaces,
    #[error("no name of an interface")]
    BadInterfaceName,
    #[error("{interface}: rates that no network has")]
    ImplausibleRate { interface: String },

    // ---- counters of paths ----
    #[error("{0} s of transfers: between two looks are seconds to minutes")]
    ImplausiblePeriod(f64),
}
