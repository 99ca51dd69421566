//! What the planner decides, and why, with the numbers it rests on.

use std::fmt;
use std::time::Duration;

use longhaul_model::{CommunityName, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use super::Pair;
use crate::note::span;

/// One circuit from its request to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BookingId(pub u64);

#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Request(Request),
    /// To be given back, or cancelled.
    Release {
        booking: BookingId,
        pair: Pair,
        why: Reason,
    },
}

/// A circuit to ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub booking: BookingId,
    pub pair: Pair,
    /// Its name.
    pub provider: String,
    pub mbit: u64,
    pub lifetime: Duration,
    /// Used in place of this one, which is given back once the new one is up.
    pub replaces: Option<BookingId>,
    pub why: Reason,
}

/// What comes of a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It is up and used.
    Established { mbit: u64 },
    /// Refused or unanswered; nothing is held.
    Failed,
    /// Nothing is held any more. So much went over it.
    Ended { carried: u64 },
}

/// Why a circuit is or is not asked for, or given back.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// What counts on the link takes `before` without it, `after` with it; others at its ports keep the rest
    /// of their rate.
    Gains {
        bytes: u64,
        before: Duration,
        after: Duration,
        mbit: u64,
        others_lose: f64,
    },
    /// It is about to expire, and there is enough to do for another.
    Renewed {
        bytes: u64,
        left: Duration,
    },
    Resized {
        from_mbit: u64,
        to_mbit: u64,
    },
    /// Nothing that waits has the priority.
    Floor {
        highest: u8,
        floor: u8,
    },
    /// The plain way carries what the circuit would.
    PlainIsEnough {
        plain: f64,
        mbit: u64,
    },
    TooLittle {
        saved: Duration,
        needed: Duration,
        mbit: u64,
    },
    /// What it would take from others at its ports is worth more; both weighted by priority, in TB hours.
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
    /// The part of a port that may be reserved is.
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
    ProviderAsked {
        provider: String,
        per_hour: u32,
    },
    ProviderOff {
        provider: String,
        gained: i64,
        until: Timestamp,
    },
    /// The gain must be seen in more plans in a row.
    Unsure {
        seen: u32,
        of: u32,
    },
    Rests {
        until: Timestamp,
    },
    NoProvider,
    /// Somebody else asked for a circuit there.
    Held,
    Idle {
        left: Duration,
        threshold: Duration,
    },
    NoGain {
        gain: f64,
        loss: f64,
    },
    GivesWay {
        to: Pair,
        times: f64,
    },
    Replaced {
        by: BookingId,
    },
    Away {
        site: SiteId,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(&|site| format!("site {site}")))
    }
}

impl Reason {
    /// In words, with sites by their names.
    pub fn words(&self, name: &dyn Fn(SiteId) -> String) -> String {
        match self {
            Reason::Gains { bytes, before, after, mbit, others_lose } => format!(
                "{} take {} the plain way and {} with {}; others at its ports lose {:.0} % of their rate",
                size(*bytes),
                span(*before),
                span(*after),
                rate(*mbit),
                others_lose * 100.0
            ),
            Reason::Renewed { bytes, left } => {
                format!("it expires in {}, and {} are still to go", span(*left), size(*bytes))
            }
            Reason::Resized { from_mbit, to_mbit } => {
                format!("{} fit what waits better than {}", rate(*to_mbit), rate(*from_mbit))
            }
            Reason::Floor { highest, floor } => {
                format!("what waits has priority {highest}, circuits are for {floor} and above")
            }
            Reason::PlainIsEnough { plain, mbit } => {
                format!("the plain way carries {:.0} Mbit/s, no less than {}", plain * 8e-6, rate(*mbit))
            }
            Reason::TooLittle { saved, needed, mbit } => format!(
                "{} would save {}, less than the {} that make a circuit worth its while",
                rate(*mbit),
                span(*saved),
                span(*needed)
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
                format!("{provider} has no room beside the {circuits} circuits that are there")
            }
            Reason::ProviderAsked { provider, per_hour } => {
                format!("{provider} was asked {per_hour} times within the hour, and is not asked more often")
            }
            Reason::ProviderOff { provider, gained, until } => format!(
                "the last circuits of {provider} gained {:.2} TB in all: it is not asked until {until}",
                *gained as f64 * 1e-12
            ),
            Reason::Unsure { seen, of } => format!("worth asking for in {seen} of {of} plans in a row"),
            Reason::Rests { until } => format!("no circuit is asked for on this link until {until}"),
            Reason::NoProvider => "no provider reaches both its ends".to_owned(),
            Reason::Held => "it has a circuit that somebody else asked for".to_owned(),
            Reason::Idle { left, threshold } => {
                format!("what waits takes {} the plain way, less than {}", span(*left), span(*threshold))
            }
            Reason::NoGain { gain, loss } => format!(
                "it gains {gain:.1} TB·h and costs others at its ports {loss:.1} TB·h, weighted by priority"
            ),
            Reason::GivesWay { to, times } => format!(
                "the circuit from {} to {} gains {times:.1} times as much in its room",
                name(to.source),
                name(to.target)
            ),
            Reason::Replaced { by } => format!("circuit {} is used in its place", by.0),
            Reason::Away { site } => format!("{} does not answer", name(*site)),
        }
    }
}

fn size(bytes: u64) -> String {
    longhaul_model::units::bytes(bytes)
}

fn rate(mbit: u64) -> String {
    if mbit >= 1000 { format!("{} Gbit/s", mbit as f64 / 1000.0) } else { format!("{mbit} Mbit/s") }
}
