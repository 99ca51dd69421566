//! What agents of targets say about sources (DESIGN, promises 12 and 13).

use longhaul_model::{DatasetId, Fault, FaultCode, Retry, TaskId, Timestamp};

use super::{ALPHA, BETA, GAMMA, NOW, World, lfn, terms};
use crate::{
    FileRow, LeaseRefusal, LeaseResult, NewAttempt, ReportResult, ReportedCheck, ReportedFact, TaskRow,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_targets_word_orders_a_verification_and_marks_nothing,
    the_sources_own_agent_makes_a_replica_suspect,
    two_target_sites_are_believed_but_not_about_the_last_copy,
    a_refuted_accusation_is_not_heard_again_for_a_day,
    an_unsettled_verification_is_ordered_again,
    accusations_end_with_the_replica,
];

const HOUR: i64 = 3_600_000_000;

/// Files at alpha that beta and gamma want, and how many a verification is about.
fn accused(world: &mut World, count: u64) -> (DatasetId, Vec<FileRow>) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..count, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    world.subscribe(dataset, None, GAMMA);
    (dataset, (0..count).map(|number| world.file(dataset, number)).collect())
}

fn blame(world: &mut World, file: &FileRow, source: usize, target: usize) -> (NewAttempt, ReportResult) {
    let attempt = world.lease(file.id, source, target);
    let applied = world.finish(&attempt, Some(Fault::new(FaultCode::WrongDigest, "adler32 differs")));
    (attempt, applied)
}

fn ordered(world: &World) -> Vec<TaskRow> {
    let mut ids = world.now.0 as u64..;
    world.catalog.order_verifications(|| TaskId(ids.next().unwrap()), world.now).unwrap()
}

fn suspects(world: &World, dataset: DatasetId, place: usize) -> u64 {
    let rows = world.catalog.replicas_of_dataset(dataset).unwrap();
    rows.iter().filter(|row| row.storage == world.storages[place]).map(|row| row.suspect_files).sum()
}

fn checked(world: &mut World, task: TaskId, dataset: DatasetId, number: u64, fault: Option<FaultCode>) {
    let fault = fault.map(|code| Fault::new(code, "alpha"));
    let files = vec![ReportedCheck { lfn: lfn(dataset, number), fault }];
    world.report(ALPHA, vec![ReportedFact::Checked { task, files }]);
}

fn a_targets_word_orders_a_verification_and_marks_nothing(world: &mut World) {
    let (dataset, files) = accused(world, 3);
    for file in &files[..2] {
        let (_, applied) = blame(world, file, ALPHA, GAMMA);
        assert!(applied.accused && applied.replicas.lost.is_empty());
        let fault = applied.outcomes[0].applied.as_ref().unwrap().fault.clone().unwrap();
        assert_eq!((fault.code, fault.retry), (FaultCode::WrongDigest, Retry::Later), "others go on");
    }
    assert_eq!(suspects(world, dataset, ALPHA), 0);
    world.lease(files[0].id, ALPHA, BETA);
    let tasks = ordered(world);
    assert_eq!((tasks.len(), tasks[0].storage, tasks[0].files_total), (1, world.storages[ALPHA], 2));
    assert_eq!(tasks[0].bytes_total, files[0].size + files[1].size);
    let page = world.catalog.task_files(tasks[0].id, None, 1, &terms()).unwrap();
    let rest = world.catalog.task_files(tasks[0].id, page.next, 10, &terms()).unwrap();
    let about: Vec<_> = page.files.iter().chain(&rest.files).map(|file| file.file).collect();
    assert_eq!(about, [files[0].id, files[1].id], "only what was accused is read");
    assert!(ordered(world).is_empty(), "once");
}

fn the_sources_own_agent_makes_a_replica_suspect(world: &mut World) {
    let (dataset, files) = accused(world, 2);
    blame(world, &files[0], ALPHA, GAMMA);
    let task = ordered(world)[0].id;
    checked(world, task, dataset, 0, Some(FaultCode::WrongDigest));
    assert_eq!(suspects(world, dataset, ALPHA), 1, "its last copy, by its own agent's word");
    world.report(ALPHA, vec![ReportedFact::TaskDone { task, fault: None }]);
    let next = world.new_attempt(files[0].id, ALPHA, BETA);
    assert_eq!(world.begin(&next), LeaseResult::Refused(LeaseRefusal::SourceGone));
    assert!(ordered(world).is_empty());
}

fn two_target_sites_are_believed_but_not_about_the_last_copy(world: &mut World) {
    let (dataset, files) = accused(world, 1);
    let (first, _) = blame(world, &files[0], ALPHA, GAMMA);
    let repeated = world.lease_next(&first, 2);
    world.finish(&repeated, Some(Fault::new(FaultCode::WrongDigest, "still")));
    assert_eq!(suspects(world, dataset, ALPHA), 0, "one site, however often");
    let (_, applied) = blame(world, &files[0], ALPHA, BETA);
    assert_eq!((applied.replicas.lost.len(), suspects(world, dataset, ALPHA)), (0, 0), "the last copy");
    world.register(dataset, 0..1, Some(BETA), None);
    let again = world.lease_next(&repeated, 3);
    let applied = world.finish(&again, Some(Fault::new(FaultCode::WrongDigest, "still")));
    assert_eq!((applied.replicas.lost.len(), suspects(world, dataset, ALPHA)), (1, 1));
    let task = ordered(world)[0].id;
    checked(world, task, dataset, 0, None);
    assert_eq!(suspects(world, dataset, ALPHA), 0, "its own agent has the last word");
}

fn a_refuted_accusation_is_not_heard_again_for_a_day(world: &mut World) {
    let (dataset, files) = accused(world, 1);
    let (mut attempt, _) = blame(world, &files[0], ALPHA, GAMMA);
    let task = ordered(world)[0].id;
    checked(world, task, dataset, 0, None);
    world.report(ALPHA, vec![ReportedFact::TaskDone { task, fault: None }]);
    for (epoch, hours, heard) in [(2, 1, 0), (3, 22, 0), (4, 2, 1)] {
        world.now = Timestamp(world.now.0 + hours * HOUR);
        attempt = world.lease_next(&attempt, epoch);
        world.finish(&attempt, Some(Fault::new(FaultCode::WrongDigest, "again")));
        assert_eq!(ordered(world).len(), heard, "epoch {epoch}");
        assert_eq!(suspects(world, dataset, ALPHA), 0);
    }
}

fn an_unsettled_verification_is_ordered_again(world: &mut World) {
    let (dataset, files) = accused(world, 1);
    blame(world, &files[0], ALPHA, GAMMA);
    let task = ordered(world)[0].id;
    checked(world, task, dataset, 0, Some(FaultCode::OnTape));
    world.report(ALPHA, vec![ReportedFact::TaskDone { task, fault: None }]);
    assert!(ordered(world).is_empty(), "not at once");
    world.now = Timestamp(world.now.0 + HOUR);
    let task = ordered(world)[0].id;
    let cancelled = Fault::new(FaultCode::Cancelled, "by request");
    world.catalog.cancel_task(task, &cancelled, world.now).unwrap();
    world.now = Timestamp(world.now.0 + HOUR);
    assert_eq!(ordered(world).len(), 1);
    assert_eq!(suspects(world, dataset, ALPHA), 0);
    assert_eq!(world.catalog.tasks(dataset).unwrap().len(), 3);
    assert!(NOW < world.now);
}

fn accusations_end_with_the_replica(world: &mut World) {
    let (dataset, files) = accused(world, 1);
    world.register(dataset, 0..1, Some(BETA), None);
    blame(world, &files[0], ALPHA, GAMMA);
    world.catalog.remove_replicas(world.storages[ALPHA], &[files[0].id], true, &terms()).unwrap();
    assert!(ordered(world).is_empty());
    world.register(dataset, 0..1, Some(ALPHA), None);
    assert!(ordered(world).is_empty(), "another copy");
    assert_eq!(suspects(world, dataset, ALPHA), 0);
}
