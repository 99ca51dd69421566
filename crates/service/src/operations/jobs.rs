//! Jobs, copies between URLs: submitted, shown, changed. The same jobs as FTS's clients see, by the same
//! rules.

use longhaul_api::Problem;
use longhaul_api::formats::JobPriority;
use longhaul_api::fts::submission::Rules;
use longhaul_api::fts::{Refusal, Submission};
use longhaul_api::jobs::{
    FILES_SHOWN, FILES_SHOWN_MAX, JobChange, JobDetail, JobFileSubmit, JobSubmit, JobView,
};
use longhaul_api::native::Page;
use longhaul_catalog::{JobAttemptRow, JobFileRow, JobQuery, JobRow};
use longhaul_identity::Caller;
use longhaul_identity::{JobScope, Person};
use longhaul_jobs::{Jobs, OWN_TOKEN, views};
use longhaul_model::job::CANCELED_BY_USER;
use longhaul_model::units::printable;
use longhaul_model::{CommunityName, Fault, FaultCode, JobId, JobState, Timestamp};
use longhaul_storage_remote::Checksum;
use serde_json::{Value, json};

use super::{Operations, PageQuery, bad_request, not_found, page, problem, unprocessable};

/// Schemes under which a host may be asked for by its name alone.
const SCHEMES: [&str; 6] = ["https", "davs", "http", "dav", "s3s", "s3"];
/// Errors about files of a submission that one answer lists.
const ERRORS_LISTED_MAX: usize = 10;
const TOKEN_BYTES_MAX: usize = 32 << 10;

/// Query of `job_list`.
#[derive(Clone, Debug, Default)]
pub struct JobList {
    pub state: Option<JobState>,
    pub community: Option<CommunityName>,
    /// A host, or `scheme://host`.
    pub source: Option<String>,
    pub target: Option<String>,
    pub since: Option<Timestamp>,
    pub page: PageQuery,
}

impl Operations {
    pub fn jobs(&self) -> &Jobs {
        &self.shared.job_control.jobs
    }

    /// A job with its files; none if there is no such job.
    pub fn job(&self, id: JobId) -> Result<Option<(JobRow, Vec<JobFileRow>)>, Fault> {
        self.shared.job_control.job(id)
    }

    /// Why each attempt of a file was made, and what it came to.
    pub fn job_file_attempts(&self, file: u64) -> Result<Vec<JobAttemptRow>, Fault> {
        self.shared.job_control.job_file_attempts(file)
    }

    pub fn job_submit(&self, caller: &Caller, request: &JobSubmit) -> Result<JobView, Problem> {
        let mut person = self.submitter(caller)?;
        if let Some(community) = &request.community {
            person = self.working_for(&person, community)?;
        }
        let body = body(request)?;
        let rules = self.shared.job_control.job_rules(&person);
        let mut submission =
            Submission::parse(&body, &rules).map_err(|refusal| in_full(&body, &rules, refusal))?;
        check_checksums(&submission)?;
        give_tokens(&mut submission, &request.files)?;
        let id = self.shared.job_control.accept_job(&person, submission)?;
        tracing::info!(job = %id, community = %printable(person.vo()), by = %caller.principal.name, "job \
            submitted");
        Ok(views::job(&self.job_row(&person, id, "see")?))
    }

    pub fn job_list(&self, caller: &Caller, query: &JobList) -> Result<Page<JobView>, Problem> {
        let person = self.submitter(caller)?;
        let community = query.community.as_ref().map(|name| name.as_str().to_owned());
        let seen = person.job_scope(community, None)?;
        let JobScope { vo, credential } =
            seen.ok_or_else(|| not_theirs(&person, query.community.as_ref()))?;
        let limit = query.page.limit();
        let rows = self.shared.kernel.catalog.list_jobs(&JobQuery {
            vo,
            credential,
            source_se: query.source.as_deref().map(elements).unwrap_or_default(),
            target_se: query.target.as_deref().map(elements).unwrap_or_default(),
            states: query.state.into_iter().collect(),
            submitted_since: query.since,
            after: query.page.after()?,
            limit: limit + 1,
            ..JobQuery::default()
        });
        let rows = rows.map_err(problem)?;
        page(rows, limit, |row| row.id.to_string(), |row| Ok(views::job(&row)))
    }

    pub fn job_show(&self, caller: &Caller, id: JobId, files: Option<u32>) -> Result<JobDetail, Problem> {
        let person = self.submitter(caller)?;
        let row = self.job_row(&person, id, "see")?;
        let rows = self.shared.kernel.catalog.job_files(&[id]).map_err(problem)?.into_iter().next();
        let most = files.unwrap_or(FILES_SHOWN).min(FILES_SHOWN_MAX) as usize;
        Ok(views::detail(&self.shared.job_control, &row, rows.unwrap_or_default(), most))
    }

    pub fn job_cancel(&self, caller: &Caller, id: JobId) -> Result<JobView, Problem> {
        let person = self.submitter(caller)?;
        must_go_on(&self.job_row(&person, id, "cancel")?, "cancelled")?;
        self.shared.job_control.cancel_jobs(vec![(id, None)], CANCELED_BY_USER)?;
        Ok(views::job(&self.job_row(&person, id, "see")?))
    }

    pub fn job_change(&self, caller: &Caller, id: JobId, change: &JobChange) -> Result<JobView, Problem> {
        if !JobPriority::accepts(change.priority) {
            return Err(bad_request("the priority of a job is 1 (least) to 5"));
        }
        let person = self.submitter(caller)?;
        must_go_on(&self.job_row(&person, id, "modify")?, "changed")?;
        self.shared.job_control.set_job_priority(&[id], change.priority)?;
        Ok(views::job(&self.job_row(&person, id, "see")?))
    }

    pub(crate) fn may_submit(&self, caller: &Caller) -> Result<(), Problem> {
        self.submitter(caller).map(drop)
    }

    /// Whoever may have files copied.
    fn submitter(&self, caller: &Caller) -> Result<Person, Problem> {
        let person = self.identity().person_of_caller(caller)?;
        if person.level("transfer").is_none() {
            let name = printable(&caller.principal.name);
            let detail =
                format!("{name} has no right to jobs: its name stands with no community that is served");
            let remedy = "ask an administrator to name it in service.fts.people, with its community";
            return Err(Problem::from(Fault::new(FaultCode::NotAllowed, detail)).with_remedy(remedy));
        }
        Ok(person)
    }

    fn working_for(&self, person: &Person, community: &CommunityName) -> Result<Person, Problem> {
        let served = person.is_root || self.config().fts.serves(community.as_str());
        let working = person.working_for(community.as_str()).filter(|_| served);
        working.ok_or_else(|| not_theirs(person, Some(community)))
    }

    fn job_row(&self, person: &Person, id: JobId, doing: &str) -> Result<JobRow, Problem> {
        let word = id.to_string();
        let found = self.shared.job_control.jobs_for(person, &[word.as_str()], doing)?.pop();
        match found {
            Some(Ok(row)) => Ok(row),
            Some(Err(refusal)) if refusal.status != 404 => Err(refusal.into()),
            _ => Err(not_found("job", id, "longhaul job list")),
        }
    }
}

fn not_theirs(person: &Person, community: Option<&CommunityName>) -> Problem {
    let theirs = if person.vos.is_empty() { "none".to_owned() } else { printable(&person.vos.join(", ")) };
    let name = community.map_or("that", |name| name.as_str());
    let detail =
        format!("{} does not work for the community {name}, but for: {theirs}", printable(&person.dn));
    Fault::new(FaultCode::NotAllowed, detail).into()
}

fn must_go_on(row: &JobRow, done: &str) -> Result<(), Problem> {
    if !row.state.is_terminal() {
        return Ok(());
    }
    let detail = format!("the job {} has ended ({}): it cannot be {done} any more", row.id, row.state);
    let problem = Problem::from(Fault::new(FaultCode::Conflict, detail));
    Err(problem.with_remedy(format!("see what became of its files: longhaul job show {}", row.id)))
}

/// What the catalog calls the storages of a host.
fn elements(host: &str) -> Vec<String> {
    let host = host.trim_end_matches('/').to_ascii_lowercase();
    if host.contains("://") {
        return vec![longhaul_model::job::storage_element(&host).unwrap_or(host)];
    }
    SCHEMES.iter().map(|scheme| format!("{scheme}://{host}")).collect()
}

/// A submission in the form that FTS's clients send: there is one parser, with one set of checks.
fn body(request: &JobSubmit) -> Result<Value, Problem> {
    if let Some(fts) = &request.fts {
        let alone = JobSubmit {
            community: request.community.clone(),
            fts: Some(fts.clone()),
            ..JobSubmit::default()
        };
        if serde_json::to_value(request).ok() != serde_json::to_value(alone).ok() {
            return Err(unprocessable(
                "beside fts only community can be given: put the rest into its params",
            ));
        }
        return Ok(Value::Object(fts.clone()));
    }
    if request.priority.is_some_and(|priority| !JobPriority::accepts(priority)) {
        return Err(bad_request("the priority of a job is 1 (least) to 5"));
    }
    if request.files.is_empty() {
        return Err(unprocessable("files is empty: a job copies at least one file"));
    }
    let file = |file: &JobFileSubmit| {
        json!({
            "sources": file.sources,
            "destinations": [file.target],
            "filesize": file.size,
            "checksum": file.checksum,
            "metadata": file.metadata,
            "activity": request.activity,
            "selection_strategy": request.strategy,
        })
    };
    Ok(json!({
        "files": request.files.iter().map(file).collect::<Vec<_>>(),
        "params": {
            "priority": request.priority,
            "overwrite": request.overwrite,
            // FTS has no word for "never" but a negative number.
            "retry": request.retries.map(|retries| if retries == 0 { -1 } else { i64::from(retries) }),
            "retry_delay": request.retry_delay_s,
            "timeout": request.timeout_s,
            "max_time_in_queue": request.queue_s.map(|seconds| format!("{seconds}s")),
            "verify_checksum": request.verify,
            "multihop": request.hops,
            "job_metadata": request.metadata,
        },
    }))
}

/// Which files are wrong, each with its own trouble: by looking at each alone.
fn in_full(body: &Value, rules: &Rules, refusal: Refusal) -> Problem {
    let entries = body["files"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Without what is said of the job, which is large only in the hands of those who mean no good.
    let wrong = entries.iter().take(FILES_SHOWN_MAX as usize).enumerate().filter_map(|(place, entry)| {
        let refusal = Submission::parse(&json!({ "files": [entry] }), rules).err()?;
        Some((place, refusal.message))
    });
    let wrong: Vec<(usize, String)> = wrong.collect();
    if wrong.is_empty() {
        return refused(refusal);
    }
    wrong_files(wrong, entries.len())
}

/// Each file by itself is what the API document says; what it says is no job.
fn refused(refusal: Refusal) -> Problem {
    let problem = Problem::from(refusal).with_remedy(NOTHING_BEGAN);
    if problem.status == 400 { problem.unprocessable() } else { problem }
}

const NOTHING_BEGAN: &str = "correct it and submit it again: nothing was begun";

fn wrong_files(wrong: Vec<(usize, String)>, of: usize) -> Problem {
    let count = wrong.len();
    let mut told: Vec<String> = wrong
        .into_iter()
        .take(ERRORS_LISTED_MAX)
        .map(|(place, text)| {
            let text = text.strip_prefix("Invalid value within the request: ").unwrap_or(&text);
            format!("file {}: {text}", place + 1)
        })
        .collect();
    if count > ERRORS_LISTED_MAX {
        told.push(format!("and {} more", count - ERRORS_LISTED_MAX));
    }
    let files = if of == 1 { "the file is".to_owned() } else { format!("{count} of {of} files are") };
    unprocessable(format!("{files} wrong: {}", told.join("; "))).with_remedy(NOTHING_BEGAN)
}

/// A checksum that nobody can compare is refused now, not by each copy.
fn check_checksums(submission: &Submission) -> Result<(), Problem> {
    if submission.parameters.verify_checksum == 'n' {
        return Ok(());
    }
    let wrong = submission.files.iter().enumerate().filter_map(|(place, file)| {
        let error = file.checksum.parse::<Checksum>().err()?;
        Some((place, error.to_string()))
    });
    let wrong: Vec<(usize, String)> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong_files(wrong, submission.files.len())) }
}

/// Tokens of storages, each for its end alone: FTS's form knows only both or none.
fn give_tokens(submission: &mut Submission, files: &[JobFileSubmit]) -> Result<(), Problem> {
    let whose = files.iter().flat_map(|file| std::iter::repeat_n(file, file.sources.len()));
    for (place, (file, given)) in submission.files.iter_mut().zip(whose).enumerate() {
        for token in [&given.source_token, &given.target_token].into_iter().flatten() {
            let why = match () {
                () if token.starts_with(OWN_TOKEN) => {
                    "is one of this deployment: no storage may see it".into()
                }
                () if token.is_empty() => "is empty".to_owned(),
                () if token.len() > TOKEN_BYTES_MAX => format!("is longer than {TOKEN_BYTES_MAX} bytes"),
                () if token.chars().any(|c| !c.is_ascii_graphic()) => {
                    "has characters that no token has".into()
                }
                () => continue,
            };
            let detail = format!("file {}: the token of a storage {why}", place + 1);
            return Err(unprocessable(detail).with_remedy(NOTHING_BEGAN));
        }
        file.source_token.clone_from(&given.source_token);
        file.target_token.clone_from(&given.target_token);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use longhaul_api::fts::UrlNames;

    use super::*;

    fn rules() -> Rules {
        Rules { now: Timestamp(1), metadata_bytes: 1_024, auth_method: "oauth2", names: UrlNames::default() }
    }

    fn file(source: &str, target: &str) -> JobFileSubmit {
        JobFileSubmit { sources: vec![source.into()], target: target.into(), ..JobFileSubmit::default() }
    }

    fn parse(request: &JobSubmit) -> Result<Submission, Problem> {
        let body = body(request)?;
        let mut submission =
            Submission::parse(&body, &rules()).map_err(|refusal| in_full(&body, &rules(), refusal))?;
        check_checksums(&submission)?;
        give_tokens(&mut submission, &request.files)?;
        Ok(submission)
    }

    #[test]
    fn a_submission_says_the_same_in_both_forms() {
        let mut request =
            JobSubmit { files: vec![file("https://a/x", "https://b/x")], ..JobSubmit::default() };
        request.files[0].sources.push("https://c/x".into());
        request.files[0].checksum = Some("ADLER32:0a1b2c3d".into());
        request.files[0].target_token = Some("token".into());
        request.activity = Some("export".into());
        (request.priority, request.overwrite, request.retries) = (Some(5), true, Some(0));
        let submission = parse(&request).unwrap();
        assert_eq!((submission.kind.word(), submission.priority, submission.files.len()), ("R", 5, 2));
        assert_eq!((submission.parameters.retry, submission.parameters.verify_checksum), (-1, 't'));
        assert_eq!(submission.parameters.overwrite_flag, Some('Y'));
        assert_eq!(submission.files[1].source, "https://c/x");
        assert_eq!(submission.files[1].activity, "export");
        assert_eq!(submission.files[1].target_token.as_deref(), Some("token"));
        let fts =
            serde_json::json!({ "files": [{ "sources": ["https://a/x"], "destinations": ["https://b/x"] }] });
        let mut request = JobSubmit { fts: fts.as_object().cloned(), ..JobSubmit::default() };
        assert_eq!(parse(&request).unwrap().priority, 3);
        request.priority = Some(5);
        assert!(parse(&request).unwrap_err().detail.contains("only community"));
    }

    #[test]
    fn all_that_is_wrong_is_told_with_its_place() {
        let mut request = JobSubmit {
            files: vec![
                file("https://a/x", "https://b/x"),
                file("srm://a/y", "https://b/y"),
                file("https://a/z", "https://b/"),
            ],
            ..JobSubmit::default()
        };
        let detail = parse(&request).unwrap_err().detail;
        assert!(detail.starts_with("2 of 3 files are wrong: file 2: srm is no scheme"), "{detail}");
        assert!(detail.ends_with("; file 3: Missing path (https://b/)"), "{detail}");
        request.files.truncate(1);
        request.files[0].checksum = Some("MD5:short".into());
        let refused = parse(&request).unwrap_err();
        assert!(refused.detail.starts_with("the file is wrong: file 1: "), "{}", refused.detail);
        assert_eq!(refused.remedy, NOTHING_BEGAN);
        request.files[0].checksum = None;
        request.files[0].source_token = Some("lht_canary".into());
        let refused = parse(&request).unwrap_err().detail;
        assert!(refused.contains("no storage may see it") && !refused.contains("canary"), "{refused}");
        request.files.clear();
        assert!(parse(&request).unwrap_err().detail.contains("files is empty"));
        request.priority = Some(9);
        assert!(parse(&request).unwrap_err().detail.contains("1 (least) to 5"));
    }

    #[test]
    fn a_host_is_meant_under_every_scheme() {
        assert_eq!(elements("A.example").len(), SCHEMES.len());
        assert_eq!(elements("davs://A.example:443/"), ["davs://a.example"]);
    }
}
