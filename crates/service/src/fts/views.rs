//! Jobs and files of the catalog as FTS shows them.

use longhaul_api::fts::submission::Parameters;
use longhaul_api::fts::{FileView, JobView, Moment, RetryView};
use longhaul_catalog::{JobAttemptRow, JobFileRow, JobRow};
use longhaul_jobs::FileDetails;
use longhaul_model::JobFileState;

use crate::operations::Operations;

const MIB: f64 = (1 << 20) as f64;

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The name under which this service is known, without the port.
pub fn own_host(operations: &Operations) -> String {
    operations.shared.job_control.settings.host.clone()
}

pub fn job(row: &JobRow, host: &str) -> JobView {
    let parameters: Parameters = serde_json::from_str(&row.details).unwrap_or_default();
    JobView {
        job_id: row.id,
        job_state: row.state,
        job_type: row.kind,
        source_se: row.source_se.clone(),
        dest_se: row.target_se.clone(),
        user_dn: row.user.clone(),
        cred_id: row.credential.clone(),
        vo_name: row.vo.clone(),
        reason: filled(&row.reason),
        submit_time: Moment(row.submitted),
        job_finished: row.finished.map(Moment),
        priority: row.priority,
        job_metadata: parameters.metadata(),
        retry: parameters.retry,
        retry_delay: parameters.retry_delay,
        max_time_in_queue: row.expires.map(|at| at.as_micros() / 1_000_000),
        cancel_job: row.canceled,
        dst_file_report: parameters.dst_file_report,
        overwrite_flag: parameters.overwrite_flag,
        verify_checksum: parameters.verify_checksum,
        internal_job_params: parameters.internal(),
        source_spacetoken: parameters.source_spacetoken,
        destination_spacetoken: parameters.destination_spacetoken,
        copy_pin_lifetime: parameters.copy_pin_lifetime,
        bring_online: parameters.bring_online,
        archive_timeout: parameters.archive_timeout,
        target_qos: None,
        os_project_id: None,
        submit_host: host.to_owned(),
    }
}

pub fn file(row: &JobFileRow, host: &str) -> FileView {
    let details: FileDetails = serde_json::from_str(&row.details).unwrap_or_default();
    // What follows a copy is no part of it.
    let copied = row.tape.archiving_began.or(row.finished);
    let seconds = row.started.zip(copied).map(|(began, ended)| ended.since(began).as_secs_f64());
    let rate = row.bytes.zip(seconds).filter(|(_, seconds)| *seconds > 0.0);
    let storage = |url: &str| longhaul_model::job::storage_element(url).unwrap_or_default();
    FileView {
        file_id: row.id,
        file_index: row.index,
        job_id: row.job,
        file_state: row.state,
        file_state_initial: details.file_state_initial.unwrap_or(JobFileState::Submitted),
        vo_name: row.vo.clone(),
        source_se: storage(&row.source),
        dest_se: storage(&row.target),
        source_surl: row.source.clone(),
        dest_surl: row.target.clone(),
        dest_surl_uuid: None,
        priority: row.priority,
        reason: filled(&row.reason),
        recoverable: filled(&row.reason).map(|_| row.recoverable),
        filesize: row.bytes,
        user_filesize: row.size.unwrap_or(0),
        checksum: row.checksum.clone().unwrap_or_default(),
        start_time: row.started.map(Moment),
        finish_time: row.finished.map(Moment),
        staging_start: row.tape.staging_began.map(Moment),
        staging_finished: row.tape.staging_ended.map(Moment),
        archive_start_time: row.tape.archiving_began.map(Moment),
        archive_finish_time: row.tape.archiving_ended.map(Moment),
        staging_host: row.tape.staging_began.map(|_| host.to_owned()),
        transfer_host: row.attempt.map(|_| host.to_owned()),
        internal_file_params: None,
        pid: None,
        tx_duration: seconds,
        throughput: rate.map(|(bytes, seconds)| bytes as f64 / MIB / seconds),
        retry: row.retries,
        file_metadata: details.file_metadata,
        staging_metadata: details.staging_metadata,
        archive_metadata: details.archive_metadata,
        selection_strategy: details.selection_strategy,
        bringonline_token: row.tape.staging_request.clone(),
        log_file: None,
        log_debug: None,
        activity: row.activity.clone(),
        scitag: details.scitag,
        src_token_id: details.source_token_id,
        dst_token_id: details.target_token_id,
        hashed_id: (row.id & 0xffff) as u32,
    }
}

/// An attempt that was followed by another, or ended the file, for a reason.
pub fn retry(row: JobAttemptRow, host: &str) -> Option<RetryView> {
    Some(RetryView {
        file_id: row.file,
        attempt: row.number,
        datetime: Moment(row.ended?),
        reason: row.reason?,
        transfer_host: Some(host.to_owned()),
        log_file: None,
    })
}
