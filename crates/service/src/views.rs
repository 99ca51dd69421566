//! Rows of the catalog as the API shows them. No decisions.

use std::collections::BTreeSet;

use longhaul_api::agent::{AttemptTimes, LeftOut, LeftOutReason};
use longhaul_api::native::{
    AttemptView, BlockView, CopyView, FileView, LeftOutCount, ReplicaView, SiteLimits, SiteLimitsSet,
    SiteState, SourceShare, StorageView, TapeQueue, TaskProblem, TaskView, TransferView, VerifiedCount,
};
use longhaul_catalog as catalog;
use longhaul_catalog::{VerificationCounts, VerificationState};
use longhaul_model::{StorageId, TransferState, Verification};

use longhaul_control::choice;
use longhaul_control::staging::StagingStatus;

const REGISTERED: &str = "registered";

/// The word of the agent's protocol, as it is stored.
fn reason(word: &str) -> LeftOutReason {
    // What an older version stored under another word is shown as what cannot be read.
    serde_json::from_value(serde_json::Value::String(word.to_owned())).unwrap_or(LeftOutReason::Unreadable)
}

pub fn left_out(row: catalog::LeftOutCount) -> LeftOutCount {
    let examples = row.examples.into_iter();
    LeftOutCount {
        reason: reason(&row.reason),
        count: row.count,
        examples: examples
            .map(|row| LeftOut { path: row.path, reason: reason(&row.reason), detail: row.detail })
            .collect(),
    }
}

pub fn verified(counts: &VerificationCounts) -> Vec<VerifiedCount> {
    let rows = [
        (REGISTERED, counts.registered),
        (Verification::Wire.word(), counts.wire),
        (Verification::EndToEnd.word(), counts.end_to_end),
        (Verification::Readback.word(), counts.readback),
    ];
    rows.into_iter()
        .filter(|(_, files)| *files > 0)
        .map(|(how, files)| VerifiedCount { how: how.to_owned(), files })
        .collect()
}

pub fn how(how: VerificationState) -> String {
    match how {
        VerificationState::Registered => REGISTERED.to_owned(),
        VerificationState::Verified(verification) => verification.word().to_owned(),
    }
}

pub fn copies(groups: Vec<catalog::CopyGroup>, unreachable: &BTreeSet<StorageId>) -> Vec<CopyView> {
    let view = |group: catalog::CopyGroup| CopyView {
        storage: group.storage_name,
        to_delete: group.is_here,
        files: group.files,
        connected: !unreachable.contains(&group.storage),
        verified: how(group.how),
        verified_at: group.verified.filter(|_| group.how != VerificationState::Registered),
        counts: group.defect.is_none(),
        reason: group.defect.map(|defect| defect.to_string()),
    };
    groups.into_iter().map(view).collect()
}

pub fn replica(row: catalog::ReplicaTotals) -> ReplicaView {
    ReplicaView {
        storage: row.storage_name,
        files: row.files,
        bytes: row.bytes,
        complete: row.complete,
        suspect_files: row.suspect_files,
        suspect_bytes: row.suspect_bytes,
        verified: verified(&row.verified),
    }
}

pub fn block(row: catalog::BlockRow, replicas: Vec<catalog::ReplicaTotals>) -> BlockView {
    BlockView {
        name: row.name,
        open: row.open,
        files: row.files,
        bytes: row.bytes,
        replicas: replicas.into_iter().map(replica).collect(),
    }
}

pub fn file(row: catalog::FileRow, block: longhaul_model::BlockName) -> FileView {
    FileView { lfn: row.lfn, block, size: row.size, digests: row.digests }
}

pub fn task(row: catalog::TaskRow, waits_for: Option<String>) -> TaskView {
    let kind = match row.kind {
        catalog::TaskKind::Scan { .. } => "scan",
        catalog::TaskKind::Verify => "verify",
        catalog::TaskKind::Delete { .. } => "delete",
        catalog::TaskKind::Clear => "clear",
    };
    TaskView {
        id: row.id,
        kind: kind.to_owned(),
        dataset: row.dataset_name,
        storage: row.storage_name,
        done: row.done,
        files_done: row.files_done,
        bytes_done: row.bytes_done,
        files_bad: row.files_bad,
        files_on_tape: row.files_on_tape,
        problems: row
            .problems
            .into_iter()
            .map(|row| TaskProblem { lfn: row.lfn, fault: row.fault })
            .collect(),
        fault: row.fault,
        created: row.created,
        waits_for,
    }
}

pub fn source_share(row: catalog::SourceTotals) -> SourceShare {
    SourceShare { storage: row.source_name, files: row.files, bytes: row.bytes }
}

pub fn transfer(
    row: catalog::TransferRow,
    bytes_running: Option<u64>,
    waits_for: Option<String>,
) -> TransferView {
    let bytes_done = if row.state == TransferState::Done { row.size } else { bytes_running.unwrap_or(0) };
    TransferView {
        id: row.id,
        dataset: row.dataset_name,
        lfn: row.lfn,
        size: row.size,
        target: row.target_name,
        source: Some(row.source_name),
        state: row.state,
        attempts: row.attempts,
        bytes_done,
        changed: row.changed,
        waits_for,
        fault: row.fault,
        verification: row.verification,
    }
}

pub fn attempt(row: catalog::AttemptRow) -> AttemptView {
    let finished = row.finished.is_some();
    let (times, end) = match row.finished {
        Some(end) => (times(end.times), Some(end)),
        None => (AttemptTimes { received: row.chosen, ..AttemptTimes::default() }, None),
    };
    let end = end.as_ref();
    AttemptView {
        id: row.id,
        source: row.source_name,
        chosen: row.chosen,
        choice: choice::from_json(&row.choice),
        times,
        bytes_moved: end.map_or(0, |end| end.bytes_moved),
        bytes_resent: end.map_or(0, |end| end.bytes_resent),
        executor: end.and_then(|end| end.executor),
        fault: end.and_then(|end| end.fault.clone()),
        verification: end.and_then(|end| end.verification),
        digests: end.map(|end| end.digests.clone()).unwrap_or_default(),
        already_there: end.is_some_and(|end| end.already_there),
        finished,
    }
}

fn times(times: catalog::AttemptTimes) -> AttemptTimes {
    AttemptTimes {
        received: times.received,
        started: times.started,
        first_byte: times.first_byte,
        last_byte: times.last_byte,
        committed: times.committed,
    }
}

pub fn storage(row: &catalog::StorageRow) -> StorageView {
    StorageView {
        name: row.name.clone(),
        site: Some(row.site_name.clone()),
        kind: row.kind,
        writable: row.writable,
        total_bytes: row.total_bytes,
        free_bytes: row.free_bytes,
        files: row.files,
        bytes: row.bytes,
        trouble: row.trouble.clone(),
        relay: row.relay,
        strategy: row.strategy.clone(),
        promised_bytes: None,
        space_policy: Some(row.space_policy.word().to_owned()),
        rules_version: row.rules.version,
        agents: None,
        tape_queue: None,
        pools: Vec::new(),
    }
}

pub fn tape_queue(status: &StagingStatus) -> TapeQueue {
    let StagingStatus { waiting, ordered, pinned, failing, oldest_order, last_failure } = status;
    TapeQueue {
        waiting_files: waiting.files,
        waiting_bytes: waiting.bytes,
        ordered_files: ordered.files,
        ordered_bytes: ordered.bytes,
        staged_files: pinned.files,
        staged_bytes: pinned.bytes,
        failing_files: *failing,
        oldest_order: *oldest_order,
        last_failure: last_failure.as_ref().map(|failure| format!("{}: {}", failure.lfn, failure.why)),
    }
}

pub fn site_state(state: catalog::SiteState) -> SiteState {
    match state {
        catalog::SiteState::Open => SiteState::Open,
        catalog::SiteState::Draining => SiteState::Draining,
        catalog::SiteState::Paused => SiteState::Paused,
    }
}

pub fn to_site_state(state: SiteState) -> catalog::SiteState {
    match state {
        SiteState::Open => catalog::SiteState::Open,
        SiteState::Draining => catalog::SiteState::Draining,
        SiteState::Paused => catalog::SiteState::Paused,
    }
}

pub fn limits(limits: &catalog::SiteLimits) -> SiteLimits {
    SiteLimits {
        active_in: limits.active_in,
        active_out: limits.active_out,
        in_bytes_per_s: limits.in_bytes_per_s,
        out_bytes_per_s: limits.out_bytes_per_s,
    }
}

pub fn to_limits(limits: &SiteLimitsSet) -> catalog::SiteLimits {
    catalog::SiteLimits {
        active_in: limits.active_in,
        active_out: limits.active_out,
        in_bytes_per_s: limits.in_bytes_per_s,
        out_bytes_per_s: limits.out_bytes_per_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_stored_as_the_protocol_spells_them() {
        assert_eq!(longhaul_control::commit_loop::reason_word(LeftOutReason::LinkLeadsOut), "link-leads-out");
        assert_eq!(reason("not-utf8"), LeftOutReason::NotUtf8);
        assert_eq!(reason("of a later version"), LeftOutReason::Unreadable);
    }
}
