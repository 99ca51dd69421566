//! Notes on what was done and why, with the numbers.

use std::fmt;
use std::time::Duration;

use longhaul_model::{CircuitOrderId, Timestamp, units};

use crate::RequestKey;

/// One decision or event of a lifecycle, for people.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// The pending work exceeds the threshold.
    WorthRequesting {
        work: Duration,
        threshold: Duration,
    },
    Wanted,
    Requested {
        key: RequestKey,
        mbit: u64,
    },
    Refused {
        mbit: u64,
        detail: String,
    },
    /// No answer within the timeout.
    Unanswered {
        within: Duration,
    },
    Granted {
        key: RequestKey,
        mbit: u64,
        expires: Option<Timestamp>,
    },
    /// Granted after the request was given up.
    GrantedTooLate {
        key: RequestKey,
    },
    /// The provider holds a reservation that is in no ledger.
    Orphan {
        key: RequestKey,
    },
    EndpointsSilent {
        within: Duration,
    },
    InUse {
        mbit: u64,
        /// Rate of the best-effort path before, in bytes per second, if measured.
        best_effort: Option<f64>,
    },
    TransfersFailing {
        failed: usize,
        of: usize,
        within: Duration,
    },
    /// Rates in bytes per second.
    SlowerThanBestEffort {
        circuit: f64,
        best_effort: f64,
    },
    Lost {
        detail: String,
    },
    Expires,
    /// Little work is left.
    Idle {
        work: Duration,
        threshold: Duration,
    },
    NoLongerWanted,
    CoolingDown {
        until: Timestamp,
    },
    Restored {
        key: RequestKey,
        mbit: u64,
        since: Timestamp,
        expires: Option<Timestamp>,
    },
    /// A reservation of an earlier run, requested and not used, is torn down.
    Leftover {
        key: RequestKey,
    },
    TornDown {
        key: RequestKey,
    },
    /// A person ordered a circuit regardless of the work.
    OrderAccepted {
        order: CircuitOrderId,
        by: String,
        mbit: u64,
        until: Timestamp,
    },
    /// A circuit that exists or is requested already satisfies the order.
    OrderSatisfied {
        order: CircuitOrderId,
        mbit: u64,
    },
    /// The order failed; the note before says why.
    OrderFailed {
        order: CircuitOrderId,
    },
    /// The order failed in an earlier run, which could not report it.
    OrderFailedBefore {
        order: CircuitOrderId,
    },
    OrderExpired {
        order: CircuitOrderId,
    },
    OrderWithdrawn {
        order: CircuitOrderId,
    },
    /// Another order replaced it.
    OrderReplaced {
        order: CircuitOrderId,
    },
    /// It expires while enough work is left for another.
    RenewingForWork {
        work: Duration,
        expires: Timestamp,
    },
    /// It expires while somebody wants it for longer.
    RenewingForDemand {
        expires: Timestamp,
    },
    /// A note about the replacement.
    Replacement(Box<Note>),
    /// The replacement is the present circuit now.
    ReplacementInUse {
        key: RequestKey,
    },
    /// A person released it.
    Released {
        order: CircuitOrderId,
        by: String,
        key: RequestKey,
    },
    /// The circuit that a person wants to release does not exist.
    NothingToRelease {
        order: CircuitOrderId,
        key: RequestKey,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::WorthRequesting { work, threshold } => write!(
                f,
                "what waits takes {} at the link's rate, more than {}: a circuit is worth asking for",
                duration_text(*work),
                duration_text(*threshold)
            ),
            Note::Wanted => write!(f, "a circuit is wanted"),
            Note::Requested { key, mbit } => write!(f, "{mbit} Mbit/s are asked for as {key}"),
            Note::Refused { mbit, detail } => write!(f, "{mbit} Mbit/s were refused: {detail}"),
            Note::Unanswered { within } => {
                write!(f, "there was no answer within {} s: the request is cancelled", within.as_secs())
            }
            Note::Granted { key, mbit, expires: Some(at) } => write!(f, "{key} has {mbit} Mbit/s until {at}"),
            Note::Granted { key, mbit, expires: None } => write!(f, "{key} has {mbit} Mbit/s"),
            Note::GrantedTooLate { key } => write!(f, "{key} is granted too late, and given back"),
            Note::Orphan { key } => {
                write!(f, "{key} is held by the provider and wanted by nobody: it is given back")
            }
            Note::EndpointsSilent { within } => {
                write!(f, "the circuit's ends did not answer within {} s: it is not used", within.as_secs())
            }
            Note::InUse { mbit, best_effort: None } => {
                write!(f, "its ends answer: transfers go by the circuit of {mbit} Mbit/s")
            }
            Note::InUse { mbit, best_effort: Some(plain) } => write!(
                f,
                "its ends answer: transfers go by the circuit of {mbit} Mbit/s, and not the plain way, which \
                    carried {}",
                units::rate(*plain)
            ),
            Note::TransfersFailing { failed, of, within } => write!(
                f,
                "{failed} of {of} transfers failed on the circuit within {} min, more than beside it: it is \
                    left",
                within.as_secs() / 60
            ),
            Note::SlowerThanBestEffort { circuit, best_effort: plain } => write!(
                f,
                "it carries {:.1} Mbit/s, the plain way carried {:.1} Mbit/s before: it is left",
                circuit * 8e-6,
                plain * 8e-6
            ),
            Note::Lost { detail } => write!(f, "the circuit has ended before its time: {detail}"),
            Note::Expires => write!(f, "the circuit is about to expire: transfers go the plain way again"),
            Note::Idle { work, threshold } => write!(
                f,
                "what waits takes {}, less than {}: the circuit is given back",
                duration_text(*work),
                duration_text(*threshold)
            ),
            Note::NoLongerWanted => write!(f, "the circuit is not wanted any more: it is given back"),
            Note::CoolingDown { until } => write!(f, "no circuit is asked for on this link until {until}"),
            Note::Restored { .. } => write!(f, "the circuit of the run before is used on"),
            Note::Leftover { key } => write!(f, "{key}, left by the run before, is given back"),
            Note::TornDown { key } => write!(f, "{key} is given back"),
            Note::OrderAccepted { by, mbit, until, .. } => {
                write!(f, "{by} requests a circuit of {mbit} Mbit/s until {until}")
            }
            Note::OrderSatisfied { mbit, .. } => {
                write!(
                    f,
                    "there is one of {mbit} Mbit/s already, or it is asked for: it serves for the request"
                )
            }
            Note::OrderFailed { .. } => write!(f, "what was requested cannot be had"),
            Note::OrderFailedBefore { .. } => {
                write!(f, "what was requested could not be had before the restart")
            }
            Note::OrderExpired { .. } => write!(f, "the time for which a circuit was requested is over"),
            Note::OrderWithdrawn { .. } => write!(f, "the request for a circuit is withdrawn"),
            Note::OrderReplaced { .. } => write!(f, "another request stands in its place"),
            Note::RenewingForWork { work, expires } => write!(
                f,
                "the circuit expires at {expires}, and what waits takes {}: another is worth asking for",
                duration_text(*work)
            ),
            Note::RenewingForDemand { expires } => {
                write!(f, "the circuit expires at {expires}, and is wanted for longer: another is asked for")
            }
            Note::Replacement(note) => write!(f, "for the circuit that is to follow: {note}"),
            Note::ReplacementInUse { key } => write!(f, "{key} takes its place"),
            Note::Released { by, key, .. } => write!(f, "{by} gives {key} back"),
            Note::NothingToRelease { key, .. } => {
                write!(f, "{key} is not there any more: nothing is given back")
            }
        }
    }
}

pub(crate) fn duration_text(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        0.0..120.0 => format!("{seconds:.1} s"),
        120.0..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}
