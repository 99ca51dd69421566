//! Decisions of the planner, and their reasons with the numbers.

use std::fmt;
use std::time::Duration;

use longhaul_model::{CommunityName, SiteId, Timestamp, units};
use serde::{Deserialize, Serialize};

use super::SitePair;
use crate::note::duration_text;

/// Identifies one circuit from its request to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BookingId(pub u64);

/// A decision to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Request(BookingRequest),
    /// Release a circuit, or cancel its request.
    Release {
        booking: BookingId,
        pair: SitePair,
        reason: Reason,
    },
}

/// A circuit to request.
#[derive(Clone, Debug, PartialEq)]
pub struct BookingRequest {
    pub booking: BookingId,
    pub pair: SitePair,
    /// Name of the provider.
    pub provider: String,
    pub mbit: u64,
    pub lifetime: Duration,
    /// The circuit it replaces, which is released once the new one is up.
    pub replaces: Option<BookingId>,
    pub reason: Reason,
}

/// Outcome of a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookingEvent {
    /// It is up and in use.
    Established { mbit: u64 },
    /// Refused or unanswered; nothing is held.
    Failed,
    /// It has ended, after carrying so many bytes.
    Ended { carried: u64 },
}

/// Why a circuit is requested, not requested, or released.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The work takes `before` without it and `after` with it; others at its ports lose this share of their
    /// rate.
    Gains {
        bytes: u64,
        before: Duration,
        after: Duration,
        mbit: u64,
        others_lose: f64,
    },
    /// It is about to expire, and enough work is left.
    Renewed {
        bytes: u64,
        left: Duration,
    },
    Resized {
        from_mbit: u64,
        to_mbit: u64,
    },
    /// No pending work has the required priority.
    BelowPriorityFloor {
        highest: u8,
        floor: u8,
    },
    /// The best-effort path is as fast as the circuit.
    BestEffortSuffices {
        plain: f64,
        mbit: u64,
    },
    SavesTooLittle {
        saved: Duration,
        needed: Duration,
        mbit: u64,
    },
    /// The loss of others at its ports exceeds the gain; both in TB·h weighted by priority.
    CostsOthers {
        gain: f64,
        loss: f64,
        mbit: u64,
    },
    Budget {
        community: CommunityName,
        left: f64,
        needed: f64,
    },
    /// The reservable share of a port is exhausted.
    PortFull {
        site: SiteId,
        inward: bool,
        reserved: f64,
        of: f64,
    },
    ProviderFull {
        provider: String,
        circuits: u32,
    },
    ProviderRateLimited {
        provider: String,
        per_hour: u32,
    },
    ProviderSuspended {
        provider: String,
        gained: i64,
        until: Timestamp,
    },
    /// The gain must be confirmed in more consecutive plans.
    AwaitingConfirmation {
        seen: u32,
        of: u32,
    },
    CoolingDown {
        until: Timestamp,
    },
    NoProvider,
    /// Somebody else requested a circuit there.
    HeldElsewhere,
    Idle {
        left: Duration,
        threshold: Duration,
    },
    NoGain {
        gain: f64,
        loss: f64,
    },
    Preempted {
        to: SitePair,
        times: f64,
    },
    Replaced {
        by: BookingId,
    },
    SiteUnreachable {
        site: SiteId,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(&|site| format!("site {site}")))
    }
}

impl Reason {
    /// A sentence for people, with site names.
    pub fn describe(&self, name: &dyn Fn(SiteId) -> String) -> String {
        match self {
            Reason::Gains { bytes, before, after, mbit, others_lose } => format!(
                "{} take {} the plain way and {} with {}; others at its ports lose {:.0} % of their rate",
                size(*bytes),
                duration_text(*before),
                duration_text(*after),
                rate(*mbit),
                others_lose * 100.0
            ),
            Reason::Renewed { bytes, left } => {
                format!("it expires in {}, and {} are still to go", duration_text(*left), size(*bytes))
            }
            Reason::Resized { from_mbit, to_mbit } => {
                format!("{} fit what waits better than {}", rate(*to_mbit), rate(*from_mbit))
            }
            Reason::BelowPriorityFloor { highest, floor } => {
                format!("what waits has priority {highest} of 9, circuits are for {floor} and above")
            }
            Reason::BestEffortSuffices { plain, mbit } => {
                format!("the plain way carries {:.0} Mbit/s, no less than {}", plain * 8e-6, rate(*mbit))
            }
            Reason::SavesTooLittle { saved, needed, mbit } => format!(
                "{} would save {}, less than the {} that make a circuit worth its while",
                rate(*mbit),
                duration_text(*saved),
                duration_text(*needed)
            ),
            Reason::CostsOthers { gain, loss, mbit } => format!(
                "{} would gain {gain:.1} TB·h and cost others at its ports {loss:.1} TB·h, weighted by \
                    priority",
                rate(*mbit)
            ),
            Reason::Budget { community, left, needed } => {
                format!("{community} has {left:.1} Gbit/s·h left of its budget, and it needs {needed:.1}")
            }
            Reason::PortFull { site, inward, reserved, of } => format!(
                "{:.1} of {:.1} Gbit/s {} {} are reserved, and no more may be",
                reserved * 8e-9,
                of * 8e-9,
                if *inward { "into" } else { "out of" },
                name(*site)
            ),
            Reason::ProviderFull { provider, circuits } => {
                let circuits = units::plural((*circuits).into(), "circuit that is", "circuits that are");
                format!("{provider} has no room beside the {circuits} there")
            }
            Reason::ProviderRateLimited { provider, per_hour } => {
                let times = units::plural((*per_hour).into(), "time", "times");
                format!("{provider} was asked {times} within the hour, and is not asked more often")
            }
            Reason::ProviderSuspended { provider, gained, until } => format!(
                "the last circuits of {provider} gained {:.2} TB in all: it is not asked until {until}",
                *gained as f64 * 1e-12
            ),
            Reason::AwaitingConfirmation { seen, of } => {
                format!("worth asking for in {seen} of {of} plans in a row")
            }
            Reason::CoolingDown { until } => format!("no circuit is asked for on this link until {until}"),
            Reason::NoProvider => "no provider reaches both its ends".to_owned(),
            Reason::HeldElsewhere => "it has a circuit that somebody else asked for".to_owned(),
            Reason::Idle { left, threshold } => {
                format!(
                    "what waits takes {} the plain way, less than {}",
                    duration_text(*left),
                    duration_text(*threshold)
                )
            }
            Reason::NoGain { gain, loss } => format!(
                "it gains {gain:.1} TB·h and costs others at its ports {loss:.1} TB·h, weighted by priority"
            ),
            Reason::Preempted { to, times } => format!(
                "the circuit from {} to {} gains {times:.1} times as much in its room",
                name(to.source),
                name(to.target)
            ),
            Reason::Replaced { by } => format!("circuit {} is used in its place", by.0),
            Reason::SiteUnreachable { site } => format!("{} does not answer", name(*site)),
        }
    }
}

fn size(bytes: u64) -> String {
    longhaul_model::units::bytes(bytes)
}

fn rate(mbit: u64) -> String {
    if mbit >= 1000 { format!("{} Gbit/s", mbit as f64 / 1000.0) } else { format!("{mbit} Mbit/s") }
}
