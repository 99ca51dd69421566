//! Tape: a bulk request is stored until nothing is pinned for us any more, and its files continue once they
//! are on disk, or on tape.

use std::time::Duration;

use longhaul_model::job::ARCHIVING_OF_REPLICAS;
use longhaul_model::{JobFileState, JobKind, JobState};

use super::World;
use super::jobs::{Play, file, id, job};
use crate::{JobFileStep, NewJob, TapeFileState, TapeStep};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    files_are_copied_once_staged,
    unwanted_files_are_released,
    replicas_and_hops_are_staged_too,
    archived_files_finish_on_tape,
];

fn from_tape(number: u64, kind: JobKind, pairs: &[(&str, &str)]) -> NewJob {
    let one = |(at, (source, target)): (usize, &(&str, &str))| {
        let index = if kind == JobKind::Replicas { 0 } else { at as u32 };
        let waits = at == 0 || !matches!(kind, JobKind::Replicas | JobKind::Hops);
        let state = if waits { JobFileState::Staging } else { JobFileState::NotUsed };
        file(index, source, target, state)
    };
    let files = pairs.iter().enumerate().map(one).collect();
    NewJob { details: r#"{"bring_online":600,"archive_timeout":100}"#.into(), ..job(number, kind, files) }
}

fn step(play: &Play<'_>, steps: &[TapeStep]) {
    play.world.catalog.step_tape(steps, play.world.now).unwrap();
}

/// Requests all files that wait at that end point; returns the bulk request and its files.
fn request_all(play: &Play<'_>, url: &str) -> (u64, Vec<u64>) {
    let (end, now) = (play.end(url), play.world.now);
    assert!(play.world.catalog.staging_endpoints().unwrap().contains(&end));
    let waiting = play.world.catalog.staging_files(end, 100, now).unwrap();
    assert_eq!((waiting[0].vo.as_str(), waiting[0].requester.as_str()), ("higgs", "c1"));
    let files: Vec<u64> = waiting.iter().map(|file| file.file).collect();
    step(play, &[TapeStep::Request { endpoint: end, vo: "higgs".into(), files: files.clone() }]);
    assert!(play.world.catalog.staging_files(end, 100, now).unwrap().is_empty(), "a file has one bulk");
    let bulk = *play.world.catalog.due_tape_requests(now, 10).unwrap().last().unwrap();
    (bulk, files)
}

fn taken(play: &Play<'_>, request: u64) {
    let next = play.world.now + Duration::from_secs(30);
    step(
        play,
        &[TapeStep::Accepted { request, base: "https://a/api".into(), id: format!("id-{request}"), next }],
    );
}

fn stands(play: &Play<'_>, bulk: u64) -> Vec<TapeFileState> {
    let row = play.world.catalog.tape_request(bulk).unwrap();
    row.map_or(Vec::new(), |row| row.files.into_iter().map(|(stands, _)| stands).collect())
}

fn files_are_copied_once_staged(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    let pairs =
        [("https://a/1", "https://b/1"), ("https://a/2", "https://b/2"), ("https://a/3", "https://a/3")];
    play.submit(from_tape(1, JobKind::Regular, &pairs));
    assert!(play.waiting().is_empty());
    let (bulk, files) = request_all(&play, "https://a");
    assert_eq!((play.state(1).0, play.files(1)), (JobState::Staging, vec![JobFileState::Staging; 3]));
    taken(&play, bulk);
    assert_eq!(play.files(1), [JobFileState::Started; 3]);
    let due = |play: &Play<'_>, seconds| {
        play.world.catalog.due_tape_requests(play.world.now + Duration::from_secs(seconds), 10).unwrap()
    };
    assert_eq!((due(&play, 29), due(&play, 30)), (vec![], vec![bulk]));
    let why = "STAGING [5] torn".to_owned();
    step(&play, &[TapeStep::OnDisk { request: bulk, files: vec![files[0], files[2]] }]);
    step(&play, &[TapeStep::NotStaged { files: vec![(files[1], why.clone())] }]);
    let states = [JobFileState::Submitted, JobFileState::Failed, JobFileState::Finished];
    assert_eq!(play.files(1), states, "what is copied nowhere is done");
    assert_eq!(stands(&play, bulk), [TapeFileState::OnDisk, TapeFileState::Abandoned]);
    step(&play, &[TapeStep::Released { request: bulk, files: vec![files[1]] }]);
    step(&play, &[TapeStep::Polled { request: bulk, next: None, failed: false }]);
    assert!(due(&play, 1_000_000).is_empty());
    // The copy took too long: the staged copy is released, and the file requested again.
    let again =
        JobFileStep::Retry { reason: "TRANSFER [110] slow".into(), not_before: play.world.now, stage: true };
    play.run(files[0], "https://a", again);
    assert_eq!(play.files(1)[0], JobFileState::Staging);
    assert_eq!((stands(&play, bulk), due(&play, 0)), (vec![TapeFileState::Consumed], vec![bulk]));
    let (second, _) = request_all(&play, "https://a");
    taken(&play, second);
    step(&play, &[TapeStep::OnDisk { request: second, files: vec![files[0]] }]);
    step(&play, &[TapeStep::Released { request: bulk, files: vec![files[0]] }]);
    assert!(play.world.catalog.tape_request(bulk).unwrap().is_none(), "nothing is left of it");
    let arrived = JobFileStep::Arrived { bytes: 10, mode: "pull".into(), archive: false };
    play.run(files[0], "https://a", arrived);
    assert_eq!(play.state(1).0, JobState::FinishedDirty);
    assert_eq!((stands(&play, second), due(&play, 0)), (vec![TapeFileState::Consumed], vec![second]));
    let rows = play.world.catalog.job_files(&[id(1)]).unwrap().remove(0);
    assert!(rows[0].tape.staging_began.is_some() && rows[0].tape.staging_ended.is_some());
    assert_eq!((rows[0].tape.staging_request.clone(), &rows[1].reason), (Some(format!("id-{second}")), &why));
    assert_eq!(play.world.catalog.count_tape_requests(play.end("https://a"), "higgs").unwrap(), (1, 1));
}

fn unwanted_files_are_released(world: &mut World) {
    let play = Play { world, attempts: 0 };
    play.submit(from_tape(
        1,
        JobKind::Regular,
        &[("https://a/1", "https://b/1"), ("https://a/2", "https://b/2")],
    ));
    let (bulk, files) = request_all(&play, "https://a");
    let cancel = |files: Option<Vec<u64>>| {
        play.world.catalog.cancel_job_files(&[(id(1), files)], "enough", play.world.now).unwrap();
    };
    cancel(Some(vec![files[0]]));
    // The tape system's answer comes later and does not undo that.
    taken(&play, bulk);
    assert_eq!(play.world.catalog.due_tape_requests(play.world.now, 10).unwrap(), [bulk]);
    assert_eq!(stands(&play, bulk), [TapeFileState::Abandoned, TapeFileState::Requested]);
    step(&play, &[TapeStep::Released { request: bulk, files: vec![files[0]] }]);
    // Neither does another poll, nor a late step.
    cancel(None);
    step(&play, &[TapeStep::OnDisk { request: bulk, files: vec![files[1]] }]);
    step(&play, &[TapeStep::Polled { request: bulk, next: None, failed: false }]);
    assert_eq!(play.world.catalog.due_tape_requests(play.world.now, 10).unwrap(), [bulk]);
    assert_eq!(play.files(1), [JobFileState::Canceled; 2]);
    step(&play, &[TapeStep::Restage { request: bulk, files: vec![files[1]] }]);
    assert!(play.world.catalog.tape_request(bulk).unwrap().is_none());
    assert_eq!(play.files(1), [JobFileState::Canceled; 2]);
}

fn replicas_and_hops_are_staged_too(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    let pairs = [("https://a/1", "https://t/1"), ("https://c/1", "https://t/1")];
    play.submit(from_tape(1, JobKind::Replicas, &pairs));
    let (bulk, files) = request_all(&play, "https://a");
    taken(&play, bulk);
    step(&play, &[TapeStep::OnDisk { request: bulk, files: files.clone() }]);
    assert_eq!(play.waiting(), [(files[0], vec![play.end("https://a")])], "the other one may be on tape");
    let failed =
        JobFileStep::Failed { reason: "SOURCE [2] gone".into(), recoverable: false, existing_target: None };
    play.run(files[0], "https://a", failed);
    assert_eq!(play.files(1), [JobFileState::Failed, JobFileState::Staging]);

    // A file without staging is found on tape: replicas not known to be on tape are tried first.
    let plain = |number, pairs| {
        let mut job = from_tape(number, JobKind::Replicas, pairs);
        job.details = "{}".into();
        job.files[0].state = JobFileState::Submitted;
        job
    };
    let pairs =
        [("https://d/3", "https://t/3"), ("https://e/3", "https://t/3"), ("https://f/3", "https://t/3")];
    play.submit(plain(3, &pairs));
    let (first, sources) = play.waiting().remove(0);
    assert_eq!(sources, ["https://d", "https://e", "https://f"].map(|end| play.end(end)));
    play.run(first, "https://d", JobFileStep::OnTape { reason: "on tape".into() });
    let [unused, queued] = [JobFileState::NotUsed, JobFileState::Submitted];
    assert_eq!(play.files(3), [unused, queued, unused]);
    let (second, sources) = play.waiting().remove(0);
    assert_eq!(sources, ["https://e", "https://f"].map(|end| play.end(end)), "nothing is read from tape");
    let failed =
        |why: &str| JobFileStep::Failed { reason: why.into(), recoverable: false, existing_target: None };
    play.run(second, "https://e", failed("SOURCE [2] gone"));
    let third = play.waiting().remove(0).0;
    assert_eq!(play.files(3), [unused, JobFileState::Failed, queued]);
    play.run(third, "https://f", failed("SOURCE [5] broken"));
    assert_eq!(play.files(3), [JobFileState::Staging, JobFileState::Failed, JobFileState::Failed]);
    let row = play.world.catalog.job_files(&[id(3)]).unwrap().remove(0).remove(0);
    assert!(row.reason.contains("no replica on disk is left") && row.reason.contains("SOURCE [5] broken"));
    assert_eq!(row.retries, 0, "nothing was tried in vain");
    let (bulk, files) = request_all(&play, "https://d");
    taken(&play, bulk);
    step(&play, &[TapeStep::OnDisk { request: bulk, files: files.clone() }]);
    assert_eq!(play.waiting(), [(files[0], vec![play.end("https://d")])]);
    play.run(files[0], "https://d", failed("SOURCE [5] broken"));
    assert_eq!(play.state(3).0, JobState::Failed);

    let hops = [("https://h/2", "https://h/2"), ("https://h/2", "https://t/2")];
    play.submit(from_tape(2, JobKind::Hops, &hops));
    let (bulk, files) = request_all(&play, "https://h");
    taken(&play, bulk);
    step(&play, &[TapeStep::OnDisk { request: bulk, files }]);
    assert_eq!(play.files(2), [JobFileState::Finished, JobFileState::Submitted]);
}

fn archived_files_finish_on_tape(world: &mut World) {
    let mut play = Play { world, attempts: 0 };
    let plain = |number: u64, kind| {
        let pairs = [("https://a/1", "https://b/1"), ("https://a/2", "https://b/2")];
        let mut job = from_tape(number, kind, &pairs);
        for file in job.files.iter_mut().filter(|file| file.state == JobFileState::Staging) {
            file.state = JobFileState::Submitted;
        }
        job.details = r#"{"archive_timeout":100}"#.into();
        job.refuse_duplicates = false;
        job
    };
    play.submit(plain(1, JobKind::Regular));
    let arrived = || JobFileStep::Arrived { bytes: 10, mode: "pull".into(), archive: true };
    let files: Vec<u64> = play.waiting().into_iter().map(|(file, _)| file).collect();
    for &file in &files {
        play.run(file, "https://a", arrived());
    }
    assert_eq!((play.state(1).0, play.files(1)), (JobState::Archiving, vec![JobFileState::Archiving; 2]));
    let due = |play: &Play<'_>| play.world.catalog.archiving_files(play.world.now, 10).unwrap().len();
    assert_eq!(due(&play), 2);
    step(&play, &[TapeStep::Archived { files: vec![files[0]] }]);
    let next = play.world.now + Duration::from_secs(60);
    step(&play, &[TapeStep::ArchivePending { files: vec![files[1]], next }]);
    assert_eq!((due(&play), play.files(1)[0]), (0, JobFileState::Finished));
    step(&play, &[TapeStep::NotArchived { files: vec![(files[1], "ARCHIVING [5] lost".into())] }]);
    step(&play, &[TapeStep::Archived { files: vec![files[1]] }]);
    assert_eq!((play.state(1).0, play.files(1)[1]), (JobState::FinishedDirty, JobFileState::Failed));

    play.submit(plain(2, JobKind::Replicas));
    let (first, _) = play.waiting().remove(0);
    play.run(first, "https://a", arrived());
    step(&play, &[TapeStep::NotArchived { files: vec![(first, "ARCHIVING [5] lost".into())] }]);
    assert_eq!(play.state(2), (JobState::Failed, ARCHIVING_OF_REPLICAS.into()));
    assert_eq!(play.files(2), [JobFileState::Failed, JobFileState::NotUsed]);
}
