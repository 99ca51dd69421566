//! Rows of the catalog as what FTS would say of them.

use longhaul_api::fts::FileChange;
use longhaul_api::fts::submission::Parameters;
use longhaul_catalog::JobEventRow;
use longhaul_model::JobFileState;

use longhaul_jobs::FileDetails;

pub fn change(row: JobEventRow) -> FileChange {
    let (job, file) = (row.job, row.file);
    let parameters: Parameters = serde_json::from_str(&job.details).unwrap_or_default();
    let details: FileDetails = serde_json::from_str(&file.details).unwrap_or_default();
    FileChange {
        at: row.at,
        from: row.from,
        to: file.state,
        job: job.id,
        job_kind: job.kind,
        job_state: job.state,
        job_files: job.files,
        vo: job.vo,
        user: job.user,
        submitted: job.submitted,
        parameters,
        file: file.id,
        index: file.index,
        source: file.source,
        target: file.target,
        final_target: row.final_target.unwrap_or_default(),
        activity: file.activity,
        size: file.size.filter(|size| *size > 0),
        initial: details.file_state_initial.unwrap_or(JobFileState::Submitted),
        file_metadata: details.file_metadata,
        staging_metadata: details.staging_metadata,
        archive_metadata: details.archive_metadata,
        scitag: details.scitag,
        retries: file.retries,
        reason: file.reason,
        recoverable: file.recoverable,
        began: row.began,
        started: file.started,
        ended: row.ended,
        bytes: file.bytes,
        mode: file.mode,
        staging: (file.tape.staging_began, file.tape.staging_ended),
        archiving: (file.tape.archiving_began, file.tape.archiving_ended),
    }
}
