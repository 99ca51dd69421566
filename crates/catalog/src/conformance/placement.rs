//! Subscriptions, replicas, deletions.

use longhaul_model::{Fault, FaultCode, SubscriptionState, TaskId};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, lfn, scan, terms};
use crate::{
    CatalogError, NewTask, ReportedCheck, ReportedFact, SpacePolicy, SpaceRow, StoragePatch,
    SubscriptionFilter, SubscriptionPatch, TASK_PROBLEMS_MAX, TaskKind, VerificationState,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_subscription_follows_a_growing_dataset,
    what_is_empty_is_complete_unless_a_scan_may_fill_it,
    the_same_subscription_is_added_once,
    a_subscription_counts_from_its_creation_to_its_end,
    space_that_is_promised_is_counted_where_the_storage_refuses,
    cancelling_one_leaves_the_others,
    suspended_subscriptions_demand_nothing,
    suspect_replicas_are_no_sources,
    deletions_keep_the_last_replica,
    a_deletion_runs_file_by_file,
    verification_proves_replicas,
    files_on_tape_are_counted_and_no_problem,
    removing_the_last_replica_is_refused,
];

const CANCEL: SubscriptionPatch = SubscriptionPatch {
    state: Some(SubscriptionState::Cancelled),
    priority: None,
    terms: crate::TermsPatch { community: None, activity: None, strategy: None, deadline: None },
    consent: None,
};

fn code(error: CatalogError) -> FaultCode {
    Fault::from(error).code
}

fn a_subscription_follows_a_growing_dataset(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    let subscribed = world.subscribe(dataset, None, BETA);
    let id = subscribed.subscription.id;
    assert_eq!((subscribed.demands[0].files_missing, subscribed.demands[0].bytes_missing), (2, 201));
    let files: Vec<_> = (0..2).map(|number| world.file(dataset, number).id).collect();
    world.bring(files[0], ALPHA, BETA);
    assert_eq!(world.catalog.demands().unwrap()[0].files_missing, 1);
    let block = world.catalog.demands().unwrap()[0].block;
    assert_eq!(world.catalog.demanded_blocks(id).unwrap().into_iter().collect::<Vec<_>>(), [block]);
    let wanted = [BETA, ALPHA].map(|at| world.catalog.is_wanted_at(block, world.storages[at]).unwrap());
    assert_eq!(wanted, [true, false]);
    let holders: Vec<_> =
        world.catalog.sources_of_demands().unwrap().into_iter().map(|(_, storage)| storage).collect();
    assert_eq!(holders, [world.storages[ALPHA], world.storages[BETA]], "whoever has some of it");
    let applied = world.bring(files[1], ALPHA, BETA);
    assert_eq!(applied.subscriptions_complete, [id]);
    assert_eq!(applied.complete.len(), 1);
    let row = world.catalog.subscription(id).unwrap().unwrap();
    assert_eq!(row.completed, Some(NOW));
    let grown = world.register(dataset, 2..3, Some(ALPHA), None);
    assert_eq!((grown.demands.len(), grown.demands[0].files_missing), (1, 1));
    assert_eq!(world.catalog.subscription(id).unwrap().unwrap().completed, None);
    let page = world.catalog.expand(grown.demands[0].block, world.storages[BETA], None, 10).unwrap();
    assert_eq!(page.files.iter().map(|file| file.lfn.clone()).collect::<Vec<_>>(), [lfn(dataset, 2)]);
    world.bring(page.files[0].file, ALPHA, BETA);
    let progress = world.catalog.subscription_progress(id).unwrap();
    assert!(progress.complete && progress.files_present == 3 && progress.verified.end_to_end == 3);
    assert_eq!((progress.sources[0].files, progress.sources[0].bytes), (3, 303));
}

fn what_is_empty_is_complete_unless_a_scan_may_fill_it(world: &mut World) {
    let dataset = world.dataset("a");
    let id = world.subscribe(dataset, None, BETA).subscription.id;
    let complete = |world: &World| world.catalog.subscription_progress(id).unwrap().complete;
    assert!(complete(world));
    let (task, kind) = (TaskId(77), scan(""));
    let scan = NewTask { id: task, kind, dataset, storage: world.storages[ALPHA] };
    world.catalog.add_task(&scan, &terms()).unwrap();
    assert!(!complete(world), "the scan may find files");
    world.report(ALPHA, vec![ReportedFact::TaskDone { task, fault: None }]);
    assert!(complete(world), "it found none");
    world.assert_sound();
    world.register(dataset, 0..1, Some(ALPHA), None);
    assert!(!complete(world));
}

fn the_same_subscription_is_added_once(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    let first = world.subscribe(dataset, None, BETA);
    let again = world.subscribe(dataset, None, BETA);
    assert!(first.changed && !again.changed);
    assert_eq!(first.subscription, again.subscription);
    world.catalog.change_subscription(first.subscription.id, &CANCEL, NOW).unwrap();
    let error = world.catalog.change_subscription(
        first.subscription.id,
        &SubscriptionPatch { state: Some(SubscriptionState::Active), ..SubscriptionPatch::default() },
        NOW,
    );
    assert_eq!(code(error.unwrap_err()), FaultCode::Conflict);
    assert!(world.subscribe(dataset, None, BETA).changed);
    let filter =
        SubscriptionFilter { state: Some(SubscriptionState::Active), limit: 10, ..Default::default() };
    assert_eq!(world.catalog.subscriptions(&filter).unwrap().len(), 1);
    let at_home = world.subscribe(dataset, None, ALPHA);
    assert!(at_home.demands.is_empty() && at_home.subscription.completed == Some(NOW));
}

/// Sizes are 100, 101, 102, … bytes.
fn space_that_is_promised_is_counted_where_the_storage_refuses(world: &mut World) {
    let (first, second) = (world.dataset("a"), world.dataset("b"));
    world.register(first, 0..2, Some(ALPHA), None);
    let block = world.register(second, 0..1, Some(ALPHA), None).blocks[0].block;
    let free = |world: &World, free_bytes| {
        let space = SpaceRow { storage: world.storages[BETA], total_bytes: 1_000, free_bytes, trouble: None };
        world.catalog.record_spaces(&[space]).unwrap();
    };
    let policy = |world: &World, policy| {
        let patch = StoragePatch { space_policy: Some(policy), ..StoragePatch::default() };
        let row = world.catalog.change_storage(&"beta".parse().unwrap(), &patch, "root", NOW).unwrap();
        assert_eq!(row.space_policy, policy);
    };
    free(world, 300);
    policy(world, SpacePolicy::Refuse);
    let promised = world.subscribe(first, None, BETA).subscription.id;
    let refused = world.try_subscribe(second, None, BETA).unwrap_err().to_string();
    assert!(refused.contains("300 B free") && refused.contains("301 B"), "{refused}");
    assert!(world.catalog.demands().unwrap().iter().all(|demand| demand.subscription == promised));
    free(world, 301);
    world.subscribe(second, None, BETA);
    world.subscribe(second, Some(block), BETA);
    free(world, 0);
    world.subscribe(second, None, ALPHA);
    assert!(!world.subscribe(first, None, BETA).changed, "what was accepted stays");
    world.catalog.change_subscription(promised, &CANCEL, NOW).unwrap();
    assert!(world.try_subscribe(first, None, BETA).is_err());
    policy(world, SpacePolicy::Warn);
    world.subscribe(first, None, BETA);
}

fn cancelling_one_leaves_the_others(world: &mut World) {
    let dataset = world.dataset("a");
    let block = world.register(dataset, 0..2, Some(ALPHA), None).blocks[0].block;
    let whole = world.subscribe(dataset, None, BETA).subscription.id;
    let part = world.subscribe(dataset, Some(block), BETA).subscription.id;
    let file = world.file(dataset, 0).id;
    let attempt = crate::NewAttempt { subscription: whole, ..world.new_attempt(file, ALPHA, BETA) };
    assert_eq!(world.begin(&attempt), crate::LeaseResult::Leased);
    let cancelled = world.catalog.change_subscription(whole, &CANCEL, NOW).unwrap();
    assert!(cancelled.cancelled.is_empty() && cancelled.demands_gone == [block]);
    assert_eq!(world.catalog.live_transfers().unwrap()[0].subscription, part, "it serves the other one now");
    let cancelled = world.catalog.change_subscription(part, &CANCEL, NOW).unwrap();
    assert_eq!(cancelled.cancelled[0].lease, Some((attempt.attempt, agent(BETA))));
    assert!(
        world.catalog.live_transfers().unwrap().is_empty() && world.catalog.demands().unwrap().is_empty()
    );
    let late = world.finish(&attempt, None);
    assert_eq!(late.outcomes[0].applied, None);
    let detail = world.catalog.transfer(attempt.transfer).unwrap().unwrap();
    assert_eq!(detail.transfer.state, longhaul_model::TransferState::Cancelled);
}

fn a_subscription_counts_from_its_creation_to_its_end(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    let files: Vec<_> = (0..3).map(|number| world.file(dataset, number)).collect();
    let numbers = |world: &World, id| {
        let progress = world.catalog.subscription_progress(id).unwrap();
        let arrived: Vec<_> = progress.sources.iter().map(|source| (source.files, source.bytes)).collect();
        (progress.retries, arrived)
    };
    let unreachable = || Some(Fault::new(FaultCode::Unreachable, ""));
    let first = world.subscribe(dataset, None, BETA).subscription.id;
    world.bring(files[0].id, ALPHA, BETA);
    let failed = world.lease(files[1].id, ALPHA, BETA);
    world.finish(&failed, unreachable());
    world.catalog.change_subscription(first, &CANCEL, NOW).unwrap();
    assert_eq!(numbers(world, first), (1, vec![(1, 100)]));
    let second = world.subscribe(dataset, None, BETA).subscription.id;
    assert_eq!(numbers(world, second), (0, vec![]), "those of the cancelled one are not its own");
    world.bring(files[1].id, ALPHA, BETA);
    let failed = world.lease(files[2].id, ALPHA, BETA);
    world.finish(&failed, unreachable());
    assert_eq!(numbers(world, second), (1, vec![(1, 101)]));
    assert_eq!(numbers(world, first), (1, vec![(1, 100)]), "a cancelled one counts no more");
    // What comes while two want it counts for both.
    let of_block = world.subscribe(dataset, Some(files[2].block), BETA).subscription.id;
    assert_eq!(numbers(world, of_block), (0, vec![]));
    let again = world.lease_next(&failed, 2);
    world.finish(&again, None);
    assert_eq!(numbers(world, second), (1, vec![(2, 203)]));
    assert_eq!(numbers(world, of_block), (0, vec![(1, 102)]));
    world.assert_sound();
}

fn suspended_subscriptions_demand_nothing(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    let id = world.subscribe(dataset, None, BETA).subscription.id;
    let to =
        |state| SubscriptionPatch { state: Some(state), priority: Some(9), ..SubscriptionPatch::default() };
    let suspended = world.catalog.change_subscription(id, &to(SubscriptionState::Suspended), NOW).unwrap();
    assert!(suspended.demands.is_empty() && suspended.subscription.priority == 9);
    assert!(world.register(dataset, 2..3, Some(ALPHA), None).demands.is_empty());
    let file = world.file(dataset, 0).id;
    let attempt = world.new_attempt(file, ALPHA, BETA);
    assert_eq!(world.begin(&attempt), crate::LeaseResult::Refused(crate::LeaseRefusal::NotWanted));
    let resumed = world.catalog.change_subscription(id, &to(SubscriptionState::Active), NOW).unwrap();
    assert_eq!(resumed.demands[0].files_missing, 3);
}

fn suspect_replicas_are_no_sources(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    let demands = world.subscribe(dataset, None, BETA).demands;
    let file = world.file(dataset, 1);
    let fault = Fault::new(FaultCode::WrongDigest, "flipped");
    let change = world.catalog.mark_suspect(file.id, world.storages[ALPHA], &fault, NOW).unwrap();
    assert_eq!(change.lost, [(file.id, file.block, world.storages[ALPHA])]);
    world.assert_sound();
    let page = world.catalog.expand(demands[0].block, world.storages[BETA], None, 10).unwrap();
    let sources: Vec<usize> = page.files.iter().map(|file| file.sources.len()).collect();
    assert_eq!(sources, [1, 0, 1]);
    let (_, replicas) = world.catalog.replicas_of_file(&file.lfn).unwrap().unwrap();
    assert_eq!(replicas[0].suspect.as_ref().unwrap().code, FaultCode::WrongDigest);
    let at = world.catalog.replicas_of_dataset(dataset).unwrap();
    assert_eq!((at[0].files, at[0].suspect_files, at[0].complete), (3, 1, false));
    // Its own storage demands the file again as soon as the dataset is subscribed there.
    assert_eq!(world.subscribe(dataset, None, ALPHA).demands[0].files_missing, 1);
    let change = world.catalog.clear_suspect(file.id, world.storages[ALPHA], NOW).unwrap();
    assert_eq!((change.found.len(), change.complete.len(), change.demands_gone.len()), (1, 1, 1));
    assert!(world.catalog.replicas_of_dataset(dataset).unwrap()[0].complete);
}

fn deletions_keep_the_last_replica(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..4, Some(ALPHA), None);
    world.register(dataset, 0..2, Some(BETA), None);
    world.verify(dataset, 0..4, ALPHA);
    world.verify(dataset, 0..2, BETA);
    let preview = world.catalog.deletion_preview(dataset, world.storages[ALPHA], &terms()).unwrap();
    assert_eq!((preview.files, preview.bytes, preview.last_replicas), (4, 406, 2));
    let delete = |id, place: usize, force| NewTask {
        id: TaskId(id),
        kind: TaskKind::Delete { force },
        dataset,
        storage: world.storages[place],
    };
    assert_eq!(
        code(world.catalog.add_task(&delete(1, ALPHA, false), &terms()).unwrap_err()),
        FaultCode::LastReplica
    );
    let new = delete(2, BETA, false);
    assert!(world.catalog.add_task(&new, &terms()).unwrap().made);
    // A replica that beta is about to delete no longer counts as another good one.
    let preview = world.catalog.deletion_preview(dataset, world.storages[ALPHA], &terms()).unwrap();
    assert_eq!(preview.last_replicas, 4);
    let forced = delete(3, ALPHA, true);
    assert!(world.catalog.add_task(&forced, &terms()).unwrap().made);
    let kept = world.catalog.task_files(TaskId(2), None, 10, &terms()).unwrap();
    assert_eq!((kept.files.len(), kept.kept_as_last), (0, 2), "looked at again when handed out");
    world.assert_sound();
    let (task, change) =
        world.catalog.cancel_task(TaskId(3), &Fault::new(FaultCode::Cancelled, ""), NOW).unwrap();
    assert!(task.done && change.complete.len() == 1);
    assert_eq!(world.catalog.task_files(TaskId(2), None, 10, &terms()).unwrap().files.len(), 2);
}

fn a_deletion_runs_file_by_file(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.register(dataset, 0..3, Some(BETA), None);
    world.verify(dataset, 0..3, ALPHA);
    let id = world.subscribe(dataset, None, BETA).subscription.id;
    let new = NewTask {
        id: TaskId(1),
        kind: TaskKind::Delete { force: false },
        dataset,
        storage: world.storages[BETA],
    };
    assert_eq!(code(world.catalog.add_task(&new, &terms()).unwrap_err()), FaultCode::Conflict);
    world.catalog.change_subscription(id, &CANCEL, NOW).unwrap();
    let added = world.catalog.add_task(&new, &terms()).unwrap();
    assert_eq!((added.task.files_total, added.replicas.blocks_lost.len()), (3, 1));
    let refused = crate::NewSubscription {
        id: longhaul_model::SubscriptionId(u64::from(u32::MAX)),
        dataset,
        block: None,
        target: world.storages[BETA],
        priority: 5,
        verification: longhaul_model::Verification::Wire,
        terms: crate::Terms::default(),
        custodial: false,
    };
    assert_eq!(code(world.catalog.add_subscription(&refused, NOW).unwrap_err()), FaultCode::Conflict);
    let demand = world.subscribe(dataset, None, GAMMA).demands.remove(0);
    let page = world.catalog.expand(demand.block, world.storages[GAMMA], None, 10).unwrap();
    assert!(
        page.files.iter().all(|file| file.sources == [world.storages[ALPHA]]),
        "what is being deleted is no source"
    );
    let files = world.catalog.task_files(TaskId(1), None, 2, &terms()).unwrap();
    assert_eq!(files.files.len(), 2);
    let rest = world.catalog.task_files(TaskId(1), files.next, 2, &terms()).unwrap();
    assert_eq!((rest.files.len(), rest.next), (1, None));
    let check = |number, fault| ReportedCheck { lfn: lfn(dataset, number), fault };
    let busy = Fault::new(FaultCode::TargetWrite, "busy");
    let checked = vec![check(0, None), check(1, Some(busy))];
    world.report(BETA, vec![ReportedFact::Checked { task: TaskId(1), files: checked }]);
    world.assert_sound();
    let at = world.catalog.replicas_of_dataset(dataset).unwrap();
    assert_eq!((at[1].files, at[1].complete), (2, false));
    let done = vec![
        ReportedFact::Checked { task: TaskId(1), files: vec![check(2, None)] },
        ReportedFact::TaskDone { task: TaskId(1), fault: None },
    ];
    let applied = world.report(BETA, done);
    let task = applied.tasks.last().unwrap();
    assert!(task.done && task.files_done == 2 && task.files_bad == 1 && task.problems.len() == 1);
    let page = world.catalog.expand(demand.block, world.storages[GAMMA], None, 10).unwrap();
    assert_eq!(page.files[1].sources.len(), 2, "what a deletion left behind is a source again");
    assert_eq!(page.files[0].sources.len(), 1);
}

fn verification_proves_replicas(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    let new = NewTask { id: TaskId(1), kind: TaskKind::Verify, dataset, storage: world.storages[ALPHA] };
    world.catalog.add_task(&new, &terms()).unwrap();
    assert_eq!(world.catalog.task_files(TaskId(1), None, 10, &terms()).unwrap().files.len(), 3);
    let check = |number, fault| ReportedCheck { lfn: lfn(dataset, number), fault };
    let wrong = Fault::new(FaultCode::WrongDigest, "alpha");
    let files = vec![check(0, None), check(1, None), check(2, Some(wrong))];
    let applied = world.report(ALPHA, vec![ReportedFact::Checked { task: TaskId(1), files }]);
    assert_eq!(applied.replicas.lost.len(), 1);
    let at = world.catalog.replicas_of_dataset(dataset).unwrap();
    assert_eq!((at[0].verified.readback, at[0].verified.registered, at[0].suspect_files), (2, 1, 1));
    let (_, replicas) = world.catalog.replicas_of_file(&lfn(dataset, 0)).unwrap().unwrap();
    assert_eq!(replicas[0].how, VerificationState::Verified(longhaul_model::Verification::Readback));
    world.assert_sound();
    let files = vec![check(2, None)];
    let applied = world.report(ALPHA, vec![ReportedFact::Checked { task: TaskId(1), files }]);
    assert_eq!((applied.replicas.found.len(), applied.complete.len()), (1, 1));
    // A file on tape could not be read, so it does not become suspect.
    let files = vec![check(2, Some(Fault::new(FaultCode::OnTape, "alpha")))];
    let applied = world.report(ALPHA, vec![ReportedFact::Checked { task: TaskId(1), files }]);
    assert!(applied.replicas.lost.is_empty());
    assert_eq!(world.catalog.replicas_of_dataset(dataset).unwrap()[0].suspect_files, 0);
    let task = world.catalog.task(TaskId(1)).unwrap().unwrap();
    assert_eq!((task.files_done, task.files_bad, task.files_on_tape), (3, 1, 1), "no problem of the copy");
    assert!(task.problems.iter().all(|problem| problem.fault.code != FaultCode::OnTape));
}

/// All are counted, not those only that are listed.
fn files_on_tape_are_counted_and_no_problem(world: &mut World) {
    let count = TASK_PROBLEMS_MAX as u64 + 2;
    let dataset = world.dataset("a");
    world.register(dataset, 0..count, Some(ALPHA), None);
    let new = NewTask { id: TaskId(1), kind: TaskKind::Verify, dataset, storage: world.storages[ALPHA] };
    world.catalog.add_task(&new, &terms()).unwrap();
    let on_tape = |number| ReportedCheck {
        lfn: lfn(dataset, number),
        fault: Some(Fault::new(FaultCode::OnTape, "alpha")),
    };
    let mut files: Vec<ReportedCheck> = (0..count - 1).map(on_tape).collect();
    let wrong = Fault::new(FaultCode::WrongDigest, "alpha");
    files.push(ReportedCheck { lfn: lfn(dataset, count - 1), fault: Some(wrong) });
    world.report(ALPHA, vec![ReportedFact::Checked { task: TaskId(1), files }]);
    let task = world.catalog.task(TaskId(1)).unwrap().unwrap();
    assert_eq!((task.files_done, task.files_bad, task.files_on_tape), (0, 1, count - 1));
    assert_eq!(task.problems.len(), 1, "what is wrong is listed behind any number of files on tape");
    assert_eq!(world.catalog.replicas_of_dataset(dataset).unwrap()[0].suspect_files, 1);
    world.assert_sound();
}

fn removing_the_last_replica_is_refused(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.register(dataset, 0..1, Some(BETA), None);
    world.verify(dataset, 0..1, BETA);
    let files: Vec<_> = (0..3).map(|number| world.file(dataset, number).id).collect();
    let alpha = world.storages[ALPHA];
    let error = world.catalog.remove_replicas(alpha, &files[..2], false, &terms()).unwrap_err();
    assert_eq!(code(error), FaultCode::LastReplica);
    assert_eq!(world.catalog.remove_replicas(alpha, &files[..1], false, &terms()).unwrap().lost.len(), 1);
    assert_eq!(world.catalog.replicas_of_dataset(dataset).unwrap()[0].files, 2);
    assert_eq!(world.catalog.remove_replicas(alpha, &files, true, &terms()).unwrap().lost.len(), 2);
    let at = world.catalog.replicas_of_dataset(dataset).unwrap();
    assert_eq!((at.len(), at[0].files), (1, 1));
}
