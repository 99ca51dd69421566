//! Damaged replicas are replaced where a subscription wants them, and good copies outlive that.

use longhaul_model::{BlockId, DatasetId, Fault, FaultCode, SubscriptionId, Timestamp};

use super::{ALPHA, BETA, GAMMA, World, lfn};
use crate::{
    FileRow, LeaseRefusal, LeaseResult, NewTask, ReportResult, ReportedCheck, ReportedFact, TaskKind,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_damaged_replica_is_replaced_from_a_good_one,
    a_damaged_replica_is_replaced_by_nothing_but_a_good_one,
    a_damaged_replica_stays_where_nothing_wants_it,
    a_replica_that_somebody_changed_is_not_replaced,
    a_claim_repairs_nothing,
    a_replica_that_is_damaged_again_and_again_is_left_alone_for_a_day,
];

const HOUR: i64 = 3_600_000_000;

/// A file at alpha that beta has subscribed and got.
fn brought(world: &mut World) -> (DatasetId, SubscriptionId, FileRow) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    let subscription = world.subscribe(dataset, None, BETA).subscription.id;
    for number in 0..2 {
        let file = world.file(dataset, number);
        world.bring(file.id, ALPHA, BETA);
    }
    let file = world.file(dataset, 0);
    (dataset, subscription, file)
}

/// A verification at a storage finds the first file bad.
fn damage(world: &mut World, dataset: DatasetId, place: usize) -> ReportResult {
    let task = world.ids.next(world.now);
    let new = NewTask { id: task, kind: TaskKind::Verify, dataset, storage: world.storages[place] };
    world.catalog.add_task(&new, &super::terms()).unwrap();
    let fault = Some(Fault::new(FaultCode::WrongDigest, "adler32 differs"));
    let checked = ReportedFact::Checked { task, files: vec![ReportedCheck { lfn: lfn(dataset, 0), fault }] };
    world.report(place, vec![checked, ReportedFact::TaskDone { task, fault: None }])
}

/// Good files at a storage by the list of replicas; whether they are all.
fn good_files(world: &World, dataset: DatasetId, place: usize) -> (u64, bool) {
    let rows = world.catalog.replicas_of_dataset(dataset).unwrap();
    let row = rows.iter().find(|row| row.storage == world.storages[place]).unwrap();
    (row.files - row.suspect_files, row.complete)
}

fn a_damaged_replica_is_replaced_from_a_good_one(world: &mut World) {
    let (dataset, subscription, file) = brought(world);
    let applied = damage(world, dataset, BETA);
    let demanded: Vec<BlockId> = applied.replicas.demands.iter().map(|demand| demand.block).collect();
    assert_eq!(demanded, [file.block], "wanted again by itself");
    let progress = world.catalog.subscription_progress(subscription).unwrap();
    assert_eq!((progress.files_present, progress.complete), (1, false));
    assert_eq!(good_files(world, dataset, BETA), (1, false), "one number in both lists");
    let attempt = world.new_attempt(file.id, ALPHA, BETA);
    assert_eq!(world.begin(&attempt), LeaseResult::LeasedToReplace);
    world.finish(&attempt, None);
    let progress = world.catalog.subscription_progress(subscription).unwrap();
    assert_eq!((progress.files_present, progress.complete), (2, true));
    assert_eq!(good_files(world, dataset, BETA), (2, true));
}

fn a_damaged_replica_is_replaced_by_nothing_but_a_good_one(world: &mut World) {
    let (dataset, _, file) = brought(world);
    damage(world, dataset, BETA);
    damage(world, dataset, ALPHA);
    let attempt = world.new_attempt(file.id, ALPHA, BETA);
    assert_eq!(world.begin(&attempt), LeaseResult::Refused(LeaseRefusal::SourceGone));
    let lost = world.catalog.lost_files().unwrap();
    assert_eq!(lost.iter().map(|row| row.files).collect::<Vec<_>>(), [1], "somebody learns of it");
}

fn a_damaged_replica_stays_where_nothing_wants_it(world: &mut World) {
    let (dataset, _, file) = brought(world);
    damage(world, dataset, ALPHA);
    let attempt = world.new_attempt(file.id, BETA, ALPHA);
    assert_eq!(world.begin(&attempt), LeaseResult::Refused(LeaseRefusal::NotWanted));
}

fn a_replica_that_somebody_changed_is_not_replaced(world: &mut World) {
    let (_, _, file) = brought(world);
    let fault = Fault::new(FaultCode::SourceChanged, "it has 2 bytes more");
    world.catalog.mark_suspect(file.id, world.storages[BETA], &fault, world.now).unwrap();
    let attempt = world.new_attempt(file.id, ALPHA, BETA);
    assert_eq!(world.begin(&attempt), LeaseResult::Leased, "the agent ends it with a name clash");
}

fn a_claim_repairs_nothing(world: &mut World) {
    let (dataset, _, file) = brought(world);
    damage(world, dataset, BETA);
    let attempt = world.new_attempt(file.id, ALPHA, BETA);
    assert_eq!(world.begin(&attempt), LeaseResult::LeasedToReplace);
    let mut outcome = world.outcome(&attempt, None);
    outcome.already_there = true;
    outcome.digests = longhaul_model::DigestSet::default();
    world.report(BETA, vec![ReportedFact::Outcome(outcome)]);
    assert_eq!(good_files(world, dataset, BETA), (1, false), "it was not read");
}

fn a_replica_that_is_damaged_again_and_again_is_left_alone_for_a_day(world: &mut World) {
    let (dataset, _, file) = brought(world);
    world.subscribe(dataset, None, GAMMA);
    for _ in 0..3 {
        damage(world, dataset, BETA);
        let attempt = world.new_attempt(file.id, ALPHA, BETA);
        assert_eq!(world.begin(&attempt), LeaseResult::LeasedToReplace);
        world.finish(&attempt, None);
        world.now = Timestamp(world.now.0 + HOUR);
    }
    assert!(world.catalog.worn_replicas(world.now).unwrap().is_empty(), "it is good");
    damage(world, dataset, BETA);
    let attempt = world.new_attempt(file.id, ALPHA, BETA);
    assert_eq!(world.begin(&attempt), LeaseResult::Refused(LeaseRefusal::Worn));
    let worn = world.catalog.worn_replicas(world.now).unwrap();
    assert_eq!((worn.len(), worn[0].files, worn[0].storage_name.as_str()), (1, 1, "beta"));
    assert_eq!(worn[0].examples, std::slice::from_ref(&file.lfn));
    let elsewhere = world.new_attempt(file.id, ALPHA, GAMMA);
    assert_eq!(world.begin(&elsewhere), LeaseResult::Leased);
    world.now = Timestamp(world.now.0 + 24 * HOUR);
    assert!(world.catalog.worn_replicas(world.now).unwrap().is_empty());
    assert_eq!(world.begin(&attempt), LeaseResult::LeasedToReplace, "tried again");
}
