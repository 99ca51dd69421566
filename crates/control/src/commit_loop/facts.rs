//! What agents report, from the protocol's types to the catalog's.

use longhaul_api::agent::{Entry, Fact, LeftOut, LeftOutReason};
use longhaul_catalog::{
    AttemptTimes, LeftOutRow, ReportItem, ReportedCheck, ReportedFact, ReportedFile, ReportedOutcome,
};
use longhaul_model::{SiteName, Timestamp};

/// `site` is the agent's, by its certificate.
pub fn items(entries: Vec<Entry>, site: &SiteName, now: Timestamp) -> Vec<ReportItem> {
    let item = |entry: Entry| ReportItem { sequence: entry.sequence, fact: fact(entry.fact, site, now) };
    entries.into_iter().map(item).collect()
}

fn fact(fact: Fact, site: &SiteName, now: Timestamp) -> ReportedFact {
    match fact {
        Fact::Decided { decisions } => ReportedFact::DoorDecisions(
            decisions.into_iter().map(|said| longhaul_identity::from_door(said, site, now)).collect(),
        ),
        Fact::Outcome(outcome) => ReportedFact::Outcome(ReportedOutcome {
            attempt: outcome.attempt,
            epoch: outcome.epoch,
            fault: outcome.fault,
            digests: outcome.digests,
            verification: outcome.verification,
            already_there: outcome.already_there,
            bytes_moved: outcome.bytes_moved,
            bytes_resent: outcome.bytes_resent,
            executor: outcome.executor,
            times: AttemptTimes {
                received: outcome.times.received,
                started: outcome.times.started,
                first_byte: outcome.times.first_byte,
                last_byte: outcome.times.last_byte,
                committed: outcome.times.committed,
            },
        }),
        Fact::Scanned { task, found, left_out } => ReportedFact::Scanned {
            task,
            found: found
                .into_iter()
                .map(|file| ReportedFile {
                    lfn: file.lfn,
                    size: file.size,
                    digests: file.digests,
                    origin: file.origin,
                })
                .collect(),
            left_out: left_out.into_iter().map(left_out_row).collect(),
        },
        Fact::Checked { task, files } => ReportedFact::Checked {
            task,
            files: files.into_iter().map(|file| ReportedCheck { lfn: file.lfn, fault: file.fault }).collect(),
        },
        Fact::TaskDone { task, fault } => ReportedFact::TaskDone { task, fault },
    }
}

fn left_out_row(left_out: LeftOut) -> LeftOutRow {
    LeftOutRow { path: left_out.path, reason: reason_word(left_out.reason), detail: left_out.detail }
}

/// The word under which the catalog stores a reason.
pub fn reason_word(reason: LeftOutReason) -> String {
    match serde_json::to_value(reason) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
