//! `POST /jobs`: checked, accepted, durable, and only then answered.

use longhaul_api::fts::submission::Rules;
use longhaul_api::fts::{self, BanStatus, Refusal, Submission, SubmittedFile, WantedId};
use longhaul_catalog::{NewJob, NewJobFile, Submitted};
use longhaul_model::{JobFileState, JobId};
use serde_json::json;

use super::ask::{Ask, Reply};
use super::delegation;
use super::person::{Method, Person};
use super::views::FileDetails;
use crate::operations::Operations;

/// A delegated credential that lives no longer is not worth beginning with.
const CREDENTIAL_LIFE_S: u64 = 3_600;

pub fn submit(operations: &Operations, ask: &Ask) -> Result<Reply, Refusal> {
    let person = &ask.person;
    person.needs("transfer")?;
    let config = &operations.config().fts;
    let rules = Rules {
        now: operations.now(),
        metadata_bytes: config.metadata_bytes as usize,
        auth_method: person.auth_method(),
    };
    let submission = Submission::parse(&serde_json::Value::Object(ask.dictionary()?), &rules)?;
    if person.method == Method::Certificate {
        delegation::needs_credential(operations, person, CREDENTIAL_LIFE_S)?;
    }
    let id = match &submission.id {
        WantedId::Named(sid) => fts::deterministic_id(person.vo(), sid),
        WantedId::Any => operations.shared.new_job_id(),
    };
    let kept = operations.shared.fts.get(&operations.shared.catalog)?;
    let job = new_job(id, person, submission, rules.now, config.check_duplicates, |file| {
        let bans =
            [&file.source_se, &file.target_se].map(|storage| (storage, kept.ban_of(storage, person.vo())));
        let mut held = false;
        for (storage, ban) in bans.into_iter().filter_map(|(storage, ban)| Some((storage, ban?))) {
            if ban.status != BanStatus::WaitAndSubmit {
                return Err(Refusal::forbidden(format!("{storage} is banned")));
            }
            held = true;
        }
        Ok(held)
    })?;
    match operations.submit_job(job)? {
        Submitted::Made => Reply::json(&json!({ "job_id": id })),
        Submitted::DuplicateId => {
            // The id is told: whoever lost the answer to the first submission finds the job again.
            let text = format!("The sid provided by the user is duplicated (job {id} exists)");
            Err(Refusal::new(409, text))
        }
        Submitted::DuplicateTarget(target) => {
            let text = format!("The submission is duplicated: another transfer to {target} is under way");
            Err(Refusal::new(409, text))
        }
        Submitted::BadUrl(url) => {
            Err(Refusal::bad(format!("Invalid value within the request: {url} names no server")))
        }
    }
}

fn new_job(
    id: JobId,
    person: &Person,
    submission: Submission,
    now: longhaul_model::Timestamp,
    refuse_duplicates: bool,
    held: impl Fn(&SubmittedFile) -> Result<bool, Refusal>,
) -> Result<NewJob, Refusal> {
    let strategy = submission.files.first().map(|file| file.selection_strategy.clone()).unwrap_or_default();
    let mut files = Vec::with_capacity(submission.files.len());
    for mut file in submission.files {
        if held(&file)? {
            file.state = on_hold(file.state);
        }
        files.push(new_file(person, file));
    }
    Ok(NewJob {
        id,
        kind: submission.kind,
        vo: person.vo().to_owned(),
        user: person.dn.clone(),
        credential: person.delegation_id.clone(),
        priority: submission.priority,
        strategy,
        submitted: now,
        expires: submission.expires,
        details: serde_json::to_string(&submission.parameters).unwrap_or_default(),
        refuse_duplicates,
        files,
    })
}

/// What an end that is banned with leave to submit makes of a file's state.
fn on_hold(state: JobFileState) -> JobFileState {
    match state {
        JobFileState::Submitted => JobFileState::OnHold,
        JobFileState::Staging => JobFileState::OnHoldStaging,
        state => state,
    }
}

fn new_file(person: &Person, file: SubmittedFile) -> NewJobFile {
    // A token of this deployment opens this service; no storage may ever see it. One of another issuer serves for
    // submission and storages alike where no others are given.
    let own = person.token.as_ref();
    let at_storage = |given: Option<String>| {
        let given = given.or_else(|| own.map(|token| token.text.clone()));
        given.filter(|text| own.is_none_or(|token| !(token.ours && token.text == *text)))
    };
    let (source_token, target_token) = (at_storage(file.source_token), at_storage(file.target_token));
    let id_of = |token: &Option<String>| token.as_ref().map(|token| fts::delegation_id_of_token(token, ""));
    let details = FileDetails {
        file_metadata: file.metadata,
        staging_metadata: file.staging_metadata,
        archive_metadata: file.archive_metadata,
        scitag: file.scitag,
        selection_strategy: file.selection_strategy,
        file_state_initial: Some(file.state),
        source_token_id: id_of(&source_token),
        target_token_id: id_of(&target_token),
        source_token,
        destination_token: target_token,
    };
    NewJobFile {
        index: file.index,
        source: file.source,
        target: file.target,
        size: file.size,
        checksum: Some(file.checksum),
        activity: file.activity,
        state: file.state,
        details: serde_json::to_string(&details).unwrap_or_default(),
    }
}
