//! Jobs: a submission is durable, each file ends once, and its job changes in the same transaction.

use std::time::Duration;

use longhaul_model::job::{CANCELED_BY_USER, FILES_FAILED, TOO_LONG_IN_QUEUE};
use longhaul_model::{AttemptId, JobFileState, JobId, JobKind, JobState, Timestamp};

use super::{NOW, World};
use crate::{
    DelegationRow, JobCancelResult, JobChanges, JobFileChange, JobFileQuery, JobFileResult, JobFileStep,
    JobQuery, JobWork, NewJob, NewJobFile, SubmitResult,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    jobs_are_listed_by_their_filters,
    many_jobs_are_submitted_at_once,
    many_changes_are_applied_at_once,
    a_failed_transaction_leaves_nothing_behind,
    a_file_ends_once,
    replicas_are_tried_until_one_arrives,
    hops_run_in_sequence,
    jobs_are_cancelled_and_expire,
    running_files_wait_again_after_a_restart,
    priorities_move_waiting_files,
    delegations_are_stored,
    events_are_recorded_until_acknowledged,
];

pub(super) fn id(number: u64) -> JobId {
    JobId((u128::from(number) << 64) | 7)
}

pub(super) fn file(index: u32, source: &str, target: &str, state: JobFileState) -> NewJobFile {
    NewJobFile {
        index,
        source: source.into(),
        target: target.into(),
        size: Some(10),
        checksum: None,
        activity: "default".into(),
        state,
        details: "{}".into(),
    }
}

pub(super) fn job(number: u64, kind: JobKind, files: Vec<NewJobFile>) -> NewJob {
    NewJob {
        id: id(number),
        kind,
        vo: "higgs".into(),
        user: "/CN=alice".into(),
        credential: "c1".into(),
        priority: 3,
        strategy: "best".into(),
        submitted: NOW + Duration::from_secs(number),
        expires: None,
        details: "{}".into(),
        refuse_duplicates: true,
        files,
    }
}

/// `count` files from a to b.
fn plain(number: u64, count: u32) -> NewJob {
    let one = |at| {
        let (source, target) = (format!("https://a/{number}/{at}"), format!("https://b/{number}/{at}"));
        file(at, &source, &target, JobFileState::Submitted)
    };
    job(number, JobKind::Regular, (0..count).map(one).collect())
}

/// Submits one waiting job.
#[cfg(test)]
pub(super) fn one(world: &World) {
    assert_eq!(world.catalog.submit_jobs(&[plain(1, 1)]).unwrap().0, [SubmitResult::Created]);
}

pub(super) struct Play<'a> {
    pub(super) world: &'a World,
    pub(super) attempts: u64,
}

impl Play<'_> {
    pub(super) fn submit(&self, job: NewJob) -> JobChanges {
        let (answers, changed) = self.world.catalog.submit_jobs(&[job]).unwrap();
        assert_eq!(answers, [SubmitResult::Created]);
        changed
    }

    fn change(&self, file: u64, attempt: u64, step: JobFileStep) -> (JobFileResult, JobChanges) {
        let change = JobFileChange { file, attempt: AttemptId(attempt), step };
        let (mut answers, changed) = self.world.catalog.change_job_files(&[change], self.world.now).unwrap();
        (answers.remove(0), changed)
    }

    /// The id of the end point of a URL.
    pub(super) fn end(&self, url: &str) -> u64 {
        self.world.catalog.job_endpoints().unwrap().iter().find(|end| end.url == url).unwrap().id
    }

    fn begin(&mut self, file: u64, source: &str) -> (u64, JobWork) {
        self.attempts += 1;
        let step = JobFileStep::Begin { source: self.end(source), choice: "{}".into(), started: false };
        match self.change(file, self.attempts, step).0 {
            JobFileResult::Begun(work) => (self.attempts, *work),
            other => panic!("{other:?}"),
        }
    }

    /// Begins a file, and ends it.
    pub(super) fn run(&mut self, file: u64, source: &str, step: JobFileStep) -> JobChanges {
        let (attempt, work) = self.begin(file, source);
        self.change(work.file.id, attempt, JobFileStep::Started);
        let (answer, changed) = self.change(work.file.id, attempt, step);
        assert!(matches!(answer, JobFileResult::Done));
        changed
    }

    pub(super) fn state(&self, number: u64) -> (JobState, String) {
        let row = self.world.catalog.jobs(&[id(number)]).unwrap().remove(0).unwrap();
        assert_eq!(row.finished.is_some(), row.state.is_terminal());
        (row.state, row.reason)
    }

    pub(super) fn files(&self, number: u64) -> Vec<JobFileState> {
        let files = self.world.catalog.job_files(&[id(number)]).unwrap().remove(0);
        files.into_iter().map(|file| file.state).collect()
    }

    pub(super) fn waiting(&self) -> Vec<(u64, Vec<u64>)> {
        let queues = self.world.catalog.job_queues().unwrap();
        let files = queues.iter().flat_map(|queue| {
            self.world.catalog.queued_job_files(queue.id, None, 100, self.world.now).unwrap()
        });
        files.map(|file| (file.file, file.sources)).collect()
    }
}

fn arrived() -> JobFileStep {
    JobFileStep::Arrived { bytes: 10, mode: "pull".into(), archive: false }
}

fn failed() -> JobFileStep {
    JobFileStep::Failed { reason: "SOURCE [2] gone".into(), recoverable: false, existing_target: None }
}

fn jobs_are_listed_by_their_filters(world: &mut World) {
    let play = Play { world, attempts: 0 };
    world.catalog.index_open_targets(true).unwrap();
    let changed = play.submit(plain(1, 2));
    assert_eq!((changed.files.len(), changed.new_queues.len(), changed.new_endpoints.len()), (2, 1, 2));
    let mut other = plain(2, 1);
    other.vo = "other".into();
    other.files[0].source = "davs://c:8443/x".into();
    let changed = play.submit(other);
    assert_eq!((changed.new_queues.len(), changed.new_endpoints.len()), (1, 1));
    let answers = world.catalog.submit_jobs(&[plain(1, 1), {
        let mut again = plain(3, 1);
        again.files[0].target = "https://b/1/1".into();
        again
    }]);
    let twice = SubmitResult::DuplicateTarget("https://b/1/1".into());
    assert_eq!(answers.unwrap().0, [SubmitResult::DuplicateId, twice.clone()]);
    // Also without the index of open targets.
    world.catalog.index_open_targets(false).unwrap();
    let mut again = plain(3, 1);
    again.files[0].target = "https://b/1/1".into();
    assert_eq!(world.catalog.submit_jobs(&[again]).unwrap().0, [twice]);
    let mut bad = plain(4, 1);
    bad.files[0].source = "nowhere".into();
    assert_eq!(world.catalog.submit_jobs(&[bad]).unwrap().0, [SubmitResult::BadUrl("nowhere".into())]);

    let list = |query: JobQuery| -> Vec<JobId> {
        world.catalog.list_jobs(&query).unwrap().into_iter().map(|job| job.id).collect()
    };
    assert_eq!(list(JobQuery::default()), [id(2), id(1)]);
    assert_eq!(list(JobQuery { limit: 1, ..JobQuery::default() }), [id(2)]);
    assert_eq!(list(JobQuery { vo: Some("higgs".into()), ..JobQuery::default() }), [id(1)]);
    assert_eq!(list(JobQuery { source_se: vec!["davs://c".into()], ..JobQuery::default() }), [id(2)]);
    let ends = vec!["https://a".into(), "davs://c".into()];
    assert_eq!(list(JobQuery { source_se: ends, ..JobQuery::default() }), [id(2), id(1)]);
    // A list continues where another ended.
    assert_eq!(list(JobQuery { after: Some(id(2)), ..JobQuery::default() }), [id(1)]);
    assert!(list(JobQuery { after: Some(id(1)), ..JobQuery::default() }).is_empty());
    assert!(list(JobQuery { after: Some(id(9)), ..JobQuery::default() }).is_empty());
    let since = |seconds| JobQuery {
        submitted_since: Some(NOW + Duration::from_secs(seconds)),
        ..JobQuery::default()
    };
    assert_eq!([1, 2, 3].map(|seconds| list(since(seconds)).len()), [2, 1, 0]);
    let both =
        JobQuery { credential: Some("c1".into()), user: Some("/CN=alice".into()), ..JobQuery::default() };
    assert_eq!(list(JobQuery { unfinished_only: true, ..both }), [id(2), id(1)]);
    assert!(list(JobQuery { states: vec![JobState::Finished], ..JobQuery::default() }).is_empty());
    assert!(list(JobQuery { finished_since: Some(NOW), ..JobQuery::default() }).is_empty());
    let files = |query: JobFileQuery| world.catalog.list_job_files(&query).unwrap().len();
    assert_eq!(files(JobFileQuery { unfinished_only: true, ..JobFileQuery::default() }), 3);
    assert_eq!(files(JobFileQuery { vo: Some("other".into()), ..JobFileQuery::default() }), 1);
    assert_eq!(files(JobFileQuery { target: Some("https://b/1/0".into()), ..JobFileQuery::default() }), 1);
    assert_eq!(files(JobFileQuery { finished_since: Some(NOW), ..JobFileQuery::default() }), 0);
    let rows = world.catalog.jobs(&[id(9), id(1)]).unwrap();
    assert!(rows[0].is_none() && rows[1].as_ref().unwrap().source_se.as_deref() == Some("https://a"));
}

/// More rows in one transaction than one statement inserts; later ids continue from there.
fn many_jobs_are_submitted_at_once(world: &mut World) {
    const FILES: u32 = 3;
    let jobs: Vec<NewJob> = (1..=150)
        .map(|number| {
            let mut job = plain(number, FILES);
            job.expires = (number % 2 == 0).then_some(NOW);
            job.details = format!(r#"{{"note":"ünïcode\t{number}"}}"#);
            job.files[1].size = None;
            job.files[2].checksum = Some(format!("adler32:{number:08x}"));
            job
        })
        .collect();
    let (answers, changed) = world.catalog.submit_jobs(&jobs).unwrap();
    assert!(answers.iter().all(|answer| *answer == SubmitResult::Created), "{answers:?}");
    let later = Play { world, attempts: 0 }.submit(plain(200, 1));
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let (rows, files) = (world.catalog.jobs(&ids).unwrap(), world.catalog.job_files(&ids).unwrap());
    let mut events = changed.files.iter();
    for ((job, row), files) in jobs.iter().zip(rows).zip(files) {
        let row = row.unwrap();
        assert_eq!((&row.details, row.expires, row.files), (&job.details, job.expires, u64::from(FILES)));
        assert_eq!(files.len(), job.files.len());
        for (file, row) in job.files.iter().zip(files) {
            let events = events.next().unwrap();
            assert_eq!((events.job, events.file, events.size), (job.id, row.id, file.size));
            assert_eq!((row.index, &row.source, &row.target), (file.index, &file.source, &file.target));
            assert_eq!((row.size, &row.checksum), (file.size, &file.checksum));
        }
    }
    let last = changed.files.last().unwrap().file;
    assert!(changed.files.is_sorted_by(|one, next| one.file < next.file) && later.files[0].file > last);
}

/// Changes of one transaction see each other, also those of the same file.
fn many_changes_are_applied_at_once(world: &mut World) {
    const JOBS: u64 = 70;
    let jobs: Vec<NewJob> = (1..=JOBS).map(|number| plain(number, 2)).collect();
    let (_, changed) = world.catalog.submit_jobs(&jobs).unwrap();
    let play = Play { world, attempts: 0 };
    let source = play.end("https://a");
    let begin = |started| JobFileStep::Begin { source, choice: "{}".into(), started };
    let mut changes = Vec::new();
    for (file, attempt) in changed.files.iter().map(|file| file.file).zip(1..) {
        let steps = match attempt % 4 {
            0 => vec![begin(true), begin(true), arrived()],
            1 => vec![begin(false), JobFileStep::Started, failed(), arrived()],
            2 => vec![begin(false), JobFileStep::Released, begin(true)],
            _ => vec![begin(false)],
        };
        let change = |step| JobFileChange { file, attempt: AttemptId(attempt), step };
        changes.extend(steps.into_iter().map(change));
    }
    let (answers, changed) = play.world.catalog.change_job_files(&changes, play.world.now).unwrap();
    let mut events = String::new();
    for (answer, change) in answers.iter().zip(&changes) {
        events.push(match answer {
            JobFileResult::Done => 'd',
            JobFileResult::Refused => 'r',
            JobFileResult::Begun(work) => {
                assert_eq!((work.file.id, work.file.attempt), (change.file, Some(change.attempt)));
                let JobFileStep::Begin { started, .. } = &change.step else { panic!("{:?}", change.step) };
                let state = if *started { JobFileState::Active } else { JobFileState::Ready };
                assert_eq!((work.file.state, work.file.started), (state, started.then_some(play.world.now)));
                assert!(!work.tried_before || change.attempt.0 % 4 == 2);
                'b'
            }
        });
    }
    // Attempts 1, 2, 3, 4, and so on.
    assert_eq!(events, "bddrbdbbbrd".repeat(JOBS as usize * 2 / 4));
    let states: Vec<Vec<JobFileState>> = (1..=JOBS).map(|number| play.files(number)).collect();
    assert!(states.iter().step_by(2).all(|job| *job == [JobFileState::Failed, JobFileState::Active]));
    assert!(
        states.iter().skip(1).step_by(2).all(|job| *job == [JobFileState::Ready, JobFileState::Finished])
    );
    assert!((1..=JOBS).all(|number| play.state(number).0 == JobState::Active));
    assert_eq!(changed.jobs.len() as u64, JOBS);
}

/// Whichever statement fails, and whenever the failure is reported.
fn a_failed_transaction_leaves_nothing_behind(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    let files = play.submit(plain(1, 3)).files;
    let source = play.end("https://a");
    let begin = |place: usize, attempt| JobFileChange {
        file: files[place].file,
        attempt: AttemptId(attempt),
        step: JobFileStep::Begin { source, choice: "{}".into(), started: true },
    };
    // Attempt ids are unique, so this statement fails.
    let twice = [begin(0, 77), begin(1, 77), begin(2, 78)];
    play.world.catalog.change_job_files(&twice, play.world.now).unwrap_err();
    assert_eq!(play.files(1), [JobFileState::Submitted; 3]);
    assert_eq!((play.state(1).0, play.waiting().len()), (JobState::Submitted, 3));
    // The next transaction is unaffected.
    play.attempts = 100;
    play.run(files[0].file, "https://a", arrived());
    assert_eq!(play.submit(plain(2, 1)).files.len(), 1);
    assert_eq!(play.files(1)[0], JobFileState::Finished);
}

fn a_file_ends_once(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    play.submit(plain(1, 2));
    let waiting = play.waiting();
    let (first, second) = (waiting[0].0, waiting[1].0);
    let (attempt, work) = play.begin(first, "https://a");
    assert_eq!((work.file.source.as_str(), work.job.id), ("https://a/1/0", id(1)));
    assert_eq!(play.state(1).0, JobState::Submitted);
    let open = |play: &Play<'_>, who: &str| play.world.catalog.open_job_files_of(who).unwrap();
    assert_eq!((open(&play, "c1"), open(&play, "nobody")), (2, 0));
    play.change(first, attempt, JobFileStep::Started);
    assert_eq!(play.state(1).0, JobState::Active);
    // Of another attempt, or begun already: refused.
    assert!(matches!(play.change(first, attempt + 9, arrived()).0, JobFileResult::Refused));
    let again = JobFileStep::Begin { source: play.end("https://a"), choice: "{}".into(), started: false };
    assert!(matches!(play.change(first, 99, again).0, JobFileResult::Refused));
    // It is tried again, not at once.
    let later = play.world.now + Duration::from_secs(60);
    let step = JobFileStep::Retry { reason: "TRANSFER [110] slow".into(), not_before: later, stage: false };
    play.change(first, attempt, step);
    assert_eq!(play.waiting().len(), 1);
    assert_eq!(play.world.catalog.backed_off_job_files(play.world.now).unwrap().len(), 1);
    assert_eq!(play.state(1).0, JobState::Active);
    let (attempt, _) = play.begin(first, "https://a");
    play.change(first, attempt, JobFileStep::Started);
    // The mover is part of this attempt's explanation, and of no other's.
    let carried = || JobFileStep::MoverAssigned { mover: "an agent \"x\"".into() };
    assert!(matches!(play.change(first, attempt, carried()).0, JobFileResult::Done));
    assert!(matches!(play.change(first, attempt + 9, carried()).0, JobFileResult::Refused));
    assert!(matches!(play.change(first, attempt, arrived()).0, JobFileResult::Done));
    assert!(matches!(play.change(first, attempt, failed()).0, JobFileResult::Refused));
    assert_eq!(open(&play, "c1"), 1);
    let changed = play.run(second, "https://a", failed());
    assert_eq!(open(&play, "c1"), 0);
    assert_eq!(changed.jobs, [(id(1), JobState::FinishedDirty)]);
    assert_eq!(play.state(1), (JobState::FinishedDirty, FILES_FAILED.into()));
    let attempts = play.world.catalog.job_file_attempts(first).unwrap();
    let choices: Vec<_> = attempts.iter().map(|one| one.choice.as_str()).collect();
    assert_eq!(choices, ["{}", r#"{"mover":"an agent \"x\""}"#]);
    let events: Vec<_> = attempts.iter().map(|one| (one.number, one.reason.is_some(), one.bytes)).collect();
    assert_eq!(events, [(1, true, None), (2, false, Some(10))]);
    let ended = JobQuery { finished_since: Some(NOW), ..JobQuery::default() };
    assert_eq!(play.world.catalog.list_jobs(&ended).unwrap().len(), 1);
    assert!(play.world.catalog.job_queues().unwrap().is_empty());
}

fn replicas_are_tried_until_one_arrives(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    let replica = |host: &str, state| file(0, &format!("https://{host}/f"), "https://t/f", state);
    let files = || {
        let rest = ["r2", "r3"].map(|host| replica(host, JobFileState::NotUsed));
        [vec![replica("r1", JobFileState::Submitted)], rest.to_vec()].concat()
    };
    play.submit(job(1, JobKind::Replicas, files()));
    let (first, sources) = play.waiting().remove(0);
    let ends = ["https://r1", "https://r2", "https://r3"].map(|url| play.end(url));
    assert_eq!(sources, ends);
    // The second is chosen in place of the first, and fails: then the first is tried again.
    play.run(first, "https://r2", failed());
    assert_eq!(play.files(1), [JobFileState::Submitted, JobFileState::Failed, JobFileState::NotUsed]);
    assert_eq!(play.state(1).0, JobState::Active);
    assert_eq!(play.waiting(), [(first, vec![ends[0], ends[2]])]);
    play.run(first, "https://r3", arrived());
    assert_eq!(play.files(1), [JobFileState::NotUsed, JobFileState::Failed, JobFileState::Finished]);
    assert_eq!(play.state(1).0, JobState::Finished);
    let row = play.world.catalog.jobs(&[id(1)]).unwrap().remove(0).unwrap();
    assert_eq!(row.source_se.as_deref(), Some("https://r3"));
    // A replica that was never needed does not block others.
    play.submit(job(2, JobKind::Replicas, files()));
    for host in ["https://r1", "https://r2", "https://r3"] {
        let (next, _) = play.waiting().remove(0);
        play.run(next, host, failed());
    }
    assert_eq!(play.state(2), (JobState::Failed, FILES_FAILED.into()));
}

fn hops_run_in_sequence(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    let hops = |number: u64| {
        let hop = |at, source: &str, target: &str, state| {
            let path = |host: &str| format!("https://{host}/{number}");
            file(at, &path(source), &path(target), state)
        };
        let files = vec![
            hop(0, "a", "b", JobFileState::Submitted),
            hop(1, "b", "c", JobFileState::NotUsed),
            hop(2, "c", "d", JobFileState::NotUsed),
        ];
        job(number, JobKind::Hops, files)
    };
    play.submit(hops(1));
    let row = play.world.catalog.jobs(&[id(1)]).unwrap().remove(0).unwrap();
    assert_eq!((row.source_se.as_deref(), row.target_se.as_deref()), (Some("https://a"), Some("https://d")));
    for (host, left) in [("https://a", 1), ("https://b", 1), ("https://c", 0)] {
        let (next, sources) = play.waiting().remove(0);
        assert_eq!(sources, [play.end(host)]);
        play.run(next, host, arrived());
        assert_eq!(play.waiting().len(), left);
    }
    assert_eq!(play.state(1).0, JobState::Finished);
    play.submit(hops(2));
    let (next, _) = play.waiting().remove(0);
    play.run(next, "https://a", arrived());
    let (next, _) = play.waiting().remove(0);
    play.run(next, "https://b", failed());
    assert_eq!(play.files(2), [JobFileState::Finished, JobFileState::Failed, JobFileState::NotUsed]);
    assert_eq!(play.state(2).0, JobState::Failed);
    assert!(play.waiting().is_empty());
}

fn jobs_are_cancelled_and_expire(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    play.submit(plain(1, 3));
    let files: Vec<u64> = play.waiting().into_iter().map(|(file, _)| file).collect();
    play.run(files[0], "https://a", arrived());
    let (attempt, _) = play.begin(files[1], "https://a");
    let cancel = |wanted: &[(JobId, Option<Vec<u64>>)]| {
        play.world.catalog.cancel_job_files(wanted, CANCELED_BY_USER, play.world.now).unwrap()
    };
    let (answers, changed) = cancel(&[(id(1), Some(vec![files[0], files[2], 999])), (id(9), None)]);
    let states = vec![Some(JobFileState::Finished), Some(JobFileState::Canceled), None];
    assert_eq!(answers, [JobCancelResult::Done(states), JobCancelResult::Unknown]);
    assert_eq!(changed.files.len(), 1);
    let (answers, changed) = cancel(&[(id(1), None), (id(1), None)]);
    assert_eq!(answers, [JobCancelResult::Done(Vec::new()), JobCancelResult::AlreadyEnded]);
    assert_eq!((changed.files[0].from, changed.files[0].attempt), (JobFileState::Ready, AttemptId(attempt)));
    assert_eq!(play.state(1), (JobState::Canceled, CANCELED_BY_USER.into()));
    assert!(matches!(play.change(files[1], attempt, arrived()).0, JobFileResult::Refused));
    assert!(play.waiting().is_empty());

    let mut brief = plain(2, 2);
    brief.expires = Some(NOW + Duration::from_secs(100));
    play.submit(brief);
    let (running, _) = play.waiting().remove(0);
    let (attempt, _) = play.begin(running, "https://a");
    assert!(play.world.catalog.expire_jobs(NOW).unwrap().files.is_empty());
    let changed = play.world.catalog.expire_jobs(NOW + Duration::from_secs(101)).unwrap();
    assert_eq!((changed.files.len(), changed.jobs.len()), (1, 0));
    play.change(running, attempt, JobFileStep::Started);
    play.change(running, attempt, arrived());
    assert_eq!(play.state(2).0, JobState::Canceled);
    let files = play.world.catalog.job_files(&[id(2)]).unwrap().remove(0);
    assert_eq!(files[1].reason, TOO_LONG_IN_QUEUE);
}

fn running_files_wait_again_after_a_restart(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    play.submit(plain(1, 2));
    let (first, _) = play.waiting().remove(0);
    let (attempt, _) = play.begin(first, "https://a");
    play.change(first, attempt, JobFileStep::Started);
    assert_eq!(play.waiting().len(), 1);
    assert_eq!(play.world.catalog.last_id().unwrap().max(attempt), play.world.catalog.last_id().unwrap());
    play.world.catalog.release_running_jobs(play.world.now).unwrap();
    assert_eq!(play.waiting().len(), 2);
    // A late report of a mover is about an attempt that has ended.
    assert!(matches!(play.change(first, attempt, arrived()).0, JobFileResult::Refused));
    let queue = play.world.catalog.job_queues().unwrap().remove(0);
    assert_eq!((queue.files, queue.bytes), (2, 20));
    play.attempts += 10;
    play.run(first, "https://a", arrived());
    assert_eq!(play.files(1), [JobFileState::Finished, JobFileState::Submitted]);
}

fn priorities_move_waiting_files(world: &mut World) {
    let play = Play { world, attempts: 0 };
    play.submit(plain(1, 2));
    let (answers, changed) = world.catalog.set_job_priority(&[id(1), id(9)], 5).unwrap();
    assert_eq!((answers, changed.files.len()), (vec![Some(true), None], 2));
    let queue = world.catalog.job_queues().unwrap().remove(0);
    assert_eq!((queue.priority, queue.files), (5, 2));
    let (forced, changed) = world.catalog.force_job_files(&[play.waiting()[1].0], world.now).unwrap();
    assert_eq!((forced, changed.files[0].to), (1, JobFileState::ForceStart));
    assert_eq!((changed.files[0].queue_before, changed.files[0].queue), (queue.id, changed.new_queues[0].id));
    assert_eq!(world.catalog.job_queues().unwrap().len(), 2);
    assert_eq!(play.waiting().len(), 2);
}

fn delegations_are_stored(world: &mut World) {
    let row = DelegationRow {
        id: "c1".into(),
        user: "/CN=alice".into(),
        request: Some(vec![1]),
        proxy: None,
        expires: None,
        details: "{}".into(),
        changed: NOW,
    };
    let there = || world.catalog.delegation("c1").unwrap();
    assert_eq!(there(), None);
    world.catalog.put_delegation(&row).unwrap();
    assert_eq!(there(), Some(row.clone()));
    let given = DelegationRow {
        request: None,
        proxy: Some(vec![2]),
        expires: Some(NOW + Duration::from_secs(1)),
        ..row
    };
    world.catalog.put_delegation(&given).unwrap();
    assert_eq!(there(), Some(given.clone()));
    assert_eq!(world.catalog.forget_delegations(NOW).unwrap(), 0);
    assert_eq!(there(), Some(given.clone()));
    assert_eq!(world.catalog.forget_delegations(Timestamp::MAX).unwrap(), 1);
    assert_eq!(there(), None);
    world.catalog.put_delegation(&given).unwrap();
    assert_eq!(there(), Some(given));
    assert!(
        world.catalog.delete_delegation("c1").unwrap() && !world.catalog.delete_delegation("c1").unwrap()
    );
    assert_eq!(there(), None);
}

fn events_are_recorded_until_acknowledged(world: &mut World) {
    world.catalog.record_job_events(true).unwrap();
    let mut play = Play { world, attempts: 0 };
    let changed = play.submit(plain(1, 2));
    let (first, second) = (changed.files[0].file, changed.files[1].file);
    let again = JobFileStep::Retry { reason: "TRANSFER [110] late".into(), not_before: NOW, stage: false };
    play.run(first, "https://a", again);
    play.run(first, "https://a", arrived());
    let (attempt, _) = play.begin(second, "https://a");
    play.change(second, attempt, JobFileStep::Released);
    use JobFileState::*;
    let events = world.catalog.job_events(0).unwrap();
    let steps: Vec<_> = events
        .iter()
        .map(|news| (news.file.id == first, news.from, news.file.state, news.file.retries))
        .collect();
    assert_eq!(
        steps,
        [
            (true, None, Submitted, 0),
            (false, None, Submitted, 0),
            (true, Some(Submitted), Ready, 0),
            (true, Some(Ready), Active, 0),
            (true, Some(Active), Submitted, 1),
            (true, Some(Submitted), Ready, 1),
            (true, Some(Ready), Active, 1),
            (true, Some(Active), Finished, 1),
            (false, Some(Submitted), Ready, 0),
            (false, Some(Ready), Submitted, 0),
        ]
    );
    // The event shows the state of then, whatever came later.
    let (late, done, taken_back) = (&events[4], &events[7], &events[9]);
    assert_eq!((late.file.reason.as_str(), late.file.bytes), ("TRANSFER [110] late", None));
    assert!(late.began.is_some() && late.ended.is_some() && late.job.state == JobState::Active);
    assert_eq!((done.file.bytes, done.file.mode.as_deref()), (Some(10), Some("pull")));
    assert_eq!((taken_back.began, taken_back.ended), (None, None));
    assert!(events.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));

    world.catalog.acknowledge_job_events(events[6].sequence).unwrap();
    assert_eq!(world.catalog.pending_job_events().unwrap(), 3);
    assert_eq!(world.catalog.job_events(events[7].sequence).unwrap().len(), 2);
    world.catalog.acknowledge_job_events(events[9].sequence).unwrap();
    assert_eq!(world.catalog.pending_job_events().unwrap(), 0);
    // Sequence numbers are not reused, so a reader who has seen one knows what is new.
    let play = Play { world, attempts: 10 };
    play.submit(plain(2, 1));
    assert!(world.catalog.job_events(0).unwrap()[0].sequence > events[9].sequence);
    world.catalog.record_job_events(false).unwrap();
    play.submit(plain(3, 1));
    assert_eq!(world.catalog.pending_job_events().unwrap(), 0);
}
