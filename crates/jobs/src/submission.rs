//! A submission on its way to the job loop: its owner, bans that concern it, and the rows it becomes.

use std::collections::BTreeMap;

use longhaul_api::fts::submission::Rules;
use longhaul_api::fts::{self, BanStatus, Refusal, Submission, SubmittedFile, WantedId};
use longhaul_catalog::{NewJob, NewJobFile, SubmitResult};
use longhaul_identity::{Person, catalog_problem, refusal};
use longhaul_model::units::printable;
use longhaul_model::{JobFileState, JobId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::job_control::JobControl;
use crate::names::url_names;
use crate::queued::Reservation;

/// Status of a refusal by the number of files. FTS's clients show no text with it, see `fts::submit`.
pub const TOO_MANY: u16 = 429;
/// With this begin API tokens of this deployment.
pub const OWN_TOKEN: &str = "lht_";

/// What is kept with each file as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileDetails {
    pub file_metadata: Value,
    pub staging_metadata: Value,
    pub archive_metadata: Value,
    pub scitag: Option<u32>,
    pub selection_strategy: String,
    pub file_state_initial: Option<JobFileState>,
    /// First digits of a hash of each token.
    pub source_token_id: Option<String>,
    pub target_token_id: Option<String>,
    /// For the mover alone: never answered, and sealed.
    pub source_token: Option<String>,
    pub destination_token: Option<String>,
}

impl JobControl {
    /// What this deployment decides about a person's submissions.
    pub fn job_rules(&self, person: &Person) -> Rules {
        Rules {
            now: self.kernel.now(),
            metadata_bytes: self.settings.fts.metadata_bytes as usize,
            auth_method: person.auth_method(),
            names: url_names(&self.settings.jobs.names, &self.kernel),
        }
    }

    /// Makes the job durable; it may begin at once. Refused as a whole if an end of it is banned, if there is
    /// one of its id, or another on its way to the same target where that counts.
    pub fn accept_job(&self, person: &Person, mut submission: Submission) -> Result<JobId, Refusal> {
        let id = match &submission.id {
            WantedId::Named(sid) => fts::deterministic_id(person.vo(), sid),
            WantedId::Any => self.new_job_id(),
        };
        let kept = self.config_store.get()?;
        let (now, refuse_duplicates) = (self.kernel.now(), self.settings.fts.check_duplicates);
        let unmanaged = submission.parameters.unmanaged_tokens;
        let longest = kept.longest_wait(person.vo());
        submission.expires = submission.expires.or_else(|| longest.map(|longest| now + longest));
        let mut tokens = Tokens { job_control: self, sealed: BTreeMap::new() };
        let job = new_job(id, person, submission, (now, refuse_duplicates), &mut tokens, |file| {
            let bans = [&file.source_se, &file.target_se]
                .map(|storage| (storage, kept.ban_of(storage, person.vo())));
            let mut held = false;
            for (storage, ban) in bans.into_iter().filter_map(|(storage, ban)| Some((storage, ban?))) {
                if ban.status != BanStatus::WaitAndSubmit {
                    return Err(Refusal::forbidden(format!("{storage} is banned")));
                }
                held = true;
            }
            Ok(held)
        })?;
        let may_renew = !unmanaged && self.tokens.can_renew();
        let tokens = tokens.sealed;
        let room = self.room_for(person, &job)?;
        match self.submit_job(job)? {
            SubmitResult::Created => {
                room.into_iter().for_each(Reservation::commit);
                if may_renew {
                    self.tokens.queue_exchange(tokens.into_keys());
                }
                Ok(id)
            }
            SubmitResult::DuplicateId => {
                // The id is told: whoever lost the answer to the first submission finds the job again.
                let text = format!("The sid provided by the user is duplicated (job {id} exists)");
                Err(Refusal::new(409, text))
            }
            SubmitResult::DuplicateTarget(target) => {
                let text = format!("The submission is duplicated: another transfer to {target} is under way");
                Err(Refusal::new(409, text))
            }
            SubmitResult::BadUrl(url) => {
                Err(Refusal::bad(format!("Invalid value within the request: {url} names no server")))
            }
        }
    }
}

impl JobControl {
    /// Whether the user may have so many files more under way.
    fn room_for(&self, person: &Person, job: &NewJob) -> Result<Option<Reservation>, Refusal> {
        let Some(most) = self.settings.jobs.files_of_user(person.vo()) else { return Ok(None) };
        let files = job.files.len() as u64;
        let count = || self.kernel.catalog.open_job_files_of(&job.credential);
        let room = self.queued.reserve(&job.credential, (files, most), self.kernel.now(), count);
        room.map_err(|error| refusal(catalog_problem(error)))?.map(Some).map_err(|queued| {
            let (who, community) = (printable(&person.dn), printable(person.vo()));
            Refusal::new(
                TOO_MANY,
                format!(
                    "{who} has {queued} files under way: with the {files} of this job that would be more \
                        than the {most} \
                     that one user of {community} may have. Nothing was accepted: submit it again when some \
                     have ended, \
                     or ask an administrator for more (service.jobs.user_files)"
                ),
            )
        })
    }
}

/// Those of one submission, with each as it is kept: many files share one.
struct Tokens<'s> {
    job_control: &'s JobControl,
    sealed: BTreeMap<String, String>,
}

impl Tokens<'_> {
    fn sealed(&mut self, token: String) -> Result<String, Refusal> {
        if let Some(known) = self.sealed.get(&token) {
            return Ok(known.clone());
        }
        let sealed = self
            .job_control
            .identity
            .credentials()
            .seal_token(&token)
            .map_err(|error| refusal(catalog_problem(error)))?;
        self.sealed.insert(token, sealed.clone());
        Ok(sealed)
    }
}

fn new_job(
    id: JobId,
    person: &Person,
    submission: Submission,
    (now, refuse_duplicates): (Timestamp, bool),
    tokens: &mut Tokens<'_>,
    held: impl Fn(&SubmittedFile) -> Result<bool, Refusal>,
) -> Result<NewJob, Refusal> {
    let strategy = submission.files.first().map(|file| file.selection_strategy.clone()).unwrap_or_default();
    let mut files = Vec::with_capacity(submission.files.len());
    for mut file in submission.files {
        if held(&file)? {
            file.state = on_hold(file.state);
        }
        files.push(new_file(person, file, tokens)?);
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
        details: longhaul_identity::job_details(&submission.parameters, person),
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

fn new_file(person: &Person, file: SubmittedFile, tokens: &mut Tokens<'_>) -> Result<NewJobFile, Refusal> {
    // A token of this deployment opens this service; no storage may ever see it. One of another issuer serves
    // for submission and storages alike where no others are given, if it is for others than us.
    let own = person.token.as_ref().filter(|token| token.for_storages);
    let at_storage = |given: Option<String>| {
        let given = given.or_else(|| own.map(|token| token.text.clone()));
        given.filter(|text| !text.starts_with(OWN_TOKEN))
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
        source_token: source_token.map(|token| tokens.sealed(token)).transpose()?,
        destination_token: target_token.map(|token| tokens.sealed(token)).transpose()?,
    };
    Ok(NewJobFile {
        index: file.index,
        source: file.source,
        target: file.target,
        size: file.size,
        checksum: Some(file.checksum),
        activity: file.activity,
        state: file.state,
        details: serde_json::to_string(&details).unwrap_or_default(),
    })
}
