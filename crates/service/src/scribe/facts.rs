//! What agents report, from the protocol's types to the catalog's.

use longhaul_api::agent::{Entry, Fact, LeftOut};
use longhaul_catalog::{
    AttemptTimes, LeftOutRow, ReportItem, ReportedCheck, ReportedFact, ReportedFile, ReportedOutcome,
};

pub fn items(entries: Vec<Entry>) -> Vec<ReportItem> {
    entries.into_iter().map(|entry| ReportItem { sequence: entry.sequence, fact: fact(entry.fact) }).collect()
}

fn fact(fact: Fact) -> ReportedFact {
    match fact {
        Fact::Outcome(outcome) => ReportedFact::Outcome(ReportedOutcome {
            attempt: outcome.attempt,
            epoch: outcome.epoch,
            fault: outcome.fault,
            digests: outcome.digests,
            verification: outcome.verification,
            already_there: outcome.already_there,
            bytes_moved: outcome.bytes_moved,
            bytes_resent: outcome.bytes_resent,
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
                .map(|file| ReportedFile { lfn: file.lfn, size: file.size, digests: file.digests })
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
    LeftOutRow {
        path: left_out.path,
        reason: crate::views::reason_word(left_out.reason),
        detail: left_out.detail,
    }
}
