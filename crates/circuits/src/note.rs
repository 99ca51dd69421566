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
                "what waits takes {} at the link's rate, more than {}: a circuit is worth requesting",
                duration_text(*work),
                duration_text(*threshold)
            ),
            Note::Wanted => write!(f, "a circuit is wanted"),
            Note::Requested { key, mbit } => write!(f, "{mbit} Mbit/s are requested as {key}"),
            Note::Refused { mbit, detail } => write!(f, "{mbit} Mbit/s were refused: {detail}"),
            Note::Unanswered { within } => {
                write!(f, "there was no answer within {} s: the request is cancelled", within.as_secs())
            }
            Note::Granted { key, mbit, expires: Some(at) } => write!(f, "{key} has {mbit} Mbit/s until {at}"),
            Note::Granted { key, mbit, expires: None } => write!(f, "{key} has {mbit} Mbit/s"),
            Note::GrantedTooLate { key } => write!(f, "{key} was granted too late and was released"),
            Note::Orphan { key } => {
                write!(f, "the provider holds {key}, which nobody wants: it is released")
            }
            Note::EndpointsSilent { within } => {
                write!(f, "the circuit's ends did not answer within {} s: it is not used", within.as_secs())
            }
            Note::InUse { mbit, best_effort: None } => {
                write!(f, "its ends answer: transfers go by the circuit of {mbit} Mbit/s")
            }
            Note::InUse { mbit, best_effort: Some(plain) } => write!(
                f,
                "its ends answer: transfers go by the circuit of {mbit} Mbit/s, not by the best-effort path, \
                    which carried {}",
                units::rate(*plain)
            ),
            Note::TransfersFailing { failed, of, within } => write!(
                f,
                "{failed} of {of} transfers failed on the circuit within {} min, more than beside it: it is \
                    no longer used",
                within.as_secs() / 60
            ),
            Note::SlowerThanBestEffort { circuit, best_effort: plain } => write!(
                f,
                "it carries {:.1} Mbit/s, the best-effort path carried {:.1} Mbit/s before: it is no longer \
                    used",
                circuit * 8e-6,
                plain * 8e-6
            ),
            Note::Lost { detail } => write!(f, "the circuit has ended before its time: {detail}"),
            Note::Expires => {
                write!(f, "the circuit is about to expire: transfers return to the best-effort path")
            }
            Note::Idle { work, threshold } => write!(
                f,
                "what waits takes {}, less than {}: the circuit is released",
                duration_text(*work),
                duration_text(*threshold)
            ),
            Note::NoLongerWanted => write!(f, "the circuit is no longer wanted: it is released"),
            Note::CoolingDown { until } => write!(f, "no circuit is requested on this link until {until}"),
            Note::Restored { .. } => write!(f, "the circuit of the previous run stays in use"),
            Note::Leftover { key } => write!(f, "{key}, left by the previous run, is released"),
            Note::TornDown { key } => write!(f, "{key} is released"),
            Note::OrderAccepted { by, mbit, until, .. } => {
                write!(f, "{by} requests a circuit of {mbit} Mbit/s until {until}")
            }
            Note::OrderSatisfied { mbit, .. } => {
                write!(f, "a circuit of {mbit} Mbit/s exists or is requested already: it serves this request")
            }
            Note::OrderFailed { .. } => write!(f, "the requested circuit is not available"),
            Note::OrderFailedBefore { .. } => {
                write!(f, "the requested circuit was not available before the restart")
            }
            Note::OrderExpired { .. } => write!(f, "the time for which a circuit was requested is over"),
            Note::OrderWithdrawn { .. } => write!(f, "the request for a circuit is withdrawn"),
            Note::OrderReplaced { .. } => write!(f, "another request replaces it"),
            Note::RenewingForWork { work, expires } => write!(
                f,
                "the circuit expires at {expires}, and what waits takes {}: another is worth requesting",
                duration_text(*work)
            ),
            Note::RenewingForDemand { expires } => {
                write!(f, "the circuit expires at {expires}, and is wanted for longer: another is requested")
            }
            Note::Replacement(note) => write!(f, "for its replacement: {note}"),
            Note::ReplacementInUse { key } => write!(f, "{key} takes its place"),
            Note::Released { by, key, .. } => write!(f, "{by} releases {key}"),
            Note::NothingToRelease { key, .. } => {
                write!(f, "{key} is not there any more: nothing is released")
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
