//! What agents may say of whose things (DESIGN, promise 12).

use longhaul_model::{DigestOrigin, DigestSet, Fault, FaultCode, TaskId, TransferState};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, digests, lfn, offer, scan, terms};
use crate::{
    Claim, Incarnation, NewDecision, NewTask, ReportResult, ReportedCheck, ReportedFact, ReportedFile,
    TaskKind,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_foreign_site_cannot_mark_replicas_suspect,
    a_foreign_site_cannot_prove_or_lose_replicas,
    a_foreign_site_cannot_register_files,
    a_foreign_site_cannot_end_tasks,
    a_finished_task_takes_no_facts,
    a_cancelled_task_takes_only_losses,
    another_agent_of_the_site_is_late_and_no_attacker,
    doors_decide_for_their_own_site_only,
    honest_repetitions_raise_nothing,
    a_verification_makes_no_replica,
];

fn add_task(world: &World, kind: TaskKind, dataset: longhaul_model::DatasetId, place: usize) -> TaskId {
    let id = TaskId(place as u64 + 1);
    let new = NewTask { id, kind, dataset, storage: world.storages[place] };
    world.catalog.add_task(&new, &terms()).unwrap().task.id
}

fn check(dataset: longhaul_model::DatasetId, number: u64, fault: Option<FaultCode>) -> ReportedCheck {
    ReportedCheck { lfn: lfn(dataset, number), fault: fault.map(|code| Fault::new(code, "said so")) }
}

fn foreign(applied: &ReportResult, claim: Claim) -> u64 {
    applied.foreign.get(&claim).copied().unwrap_or(0)
}

/// Files, suspect files, files read back: at alpha.
fn at_alpha(world: &World, dataset: longhaul_model::DatasetId) -> (u64, u64, u64) {
    let rows = world.catalog.replicas_of_dataset(dataset).unwrap();
    let alpha = rows.iter().find(|row| row.storage == world.storages[ALPHA]);
    alpha.map_or((0, 0, 0), |row| (row.files, row.suspect_files, row.verified.readback))
}

fn a_foreign_site_cannot_mark_replicas_suspect(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    let task = add_task(world, TaskKind::Verify, dataset, ALPHA);
    let files: Vec<_> = (0..3).map(|number| check(dataset, number, Some(FaultCode::WrongDigest))).collect();
    let applied = world.report(GAMMA, vec![ReportedFact::Checked { task, files: files.clone() }]);
    assert_eq!((applied.acknowledged, foreign(&applied, Claim::Checked)), (1, 1));
    assert!(applied.replicas.lost.is_empty() && applied.tasks.is_empty());
    assert_eq!(at_alpha(world, dataset), (3, 0, 0));
    assert_eq!(world.catalog.task(task).unwrap().unwrap().files_bad, 0);
    world.report(ALPHA, vec![ReportedFact::Checked { task, files }]);
    assert_eq!(at_alpha(world, dataset), (3, 3, 0), "its own agent is believed");
}

fn a_foreign_site_cannot_prove_or_lose_replicas(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    world.register(dataset, 0..2, Some(BETA), None);
    let verify = add_task(world, TaskKind::Verify, dataset, ALPHA);
    let good = vec![check(dataset, 0, None)];
    let applied = world.report(GAMMA, vec![ReportedFact::Checked { task: verify, files: good }]);
    assert_eq!((foreign(&applied, Claim::Checked), at_alpha(world, dataset)), (1, (2, 0, 0)));
    world.report(ALPHA, vec![ReportedFact::TaskDone { task: verify, fault: None }]);
    let new = NewTask {
        id: TaskId(9),
        kind: TaskKind::Delete { force: true },
        dataset,
        storage: world.storages[ALPHA],
    };
    world.catalog.add_task(&new, &terms()).unwrap();
    let gone = vec![check(dataset, 0, None), check(dataset, 1, None)];
    let applied = world.report(GAMMA, vec![ReportedFact::Checked { task: TaskId(9), files: gone }]);
    assert_eq!((foreign(&applied, Claim::Checked), at_alpha(world, dataset)), (1, (2, 0, 0)));
}

fn a_foreign_site_cannot_register_files(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    let kind = scan("");
    let task = add_task(world, kind, dataset, ALPHA);
    let huge = ReportedFile {
        lfn: lfn(dataset, 7),
        size: 1 << 40,
        digests: digests(7),
        origin: DigestOrigin::Computed,
    };
    let scanned = ReportedFact::Scanned { task, found: vec![huge], left_out: vec![] };
    let applied = world.report(GAMMA, vec![scanned.clone()]);
    assert_eq!((applied.acknowledged, foreign(&applied, Claim::Scanned)), (1, 1));
    assert_eq!(world.catalog.file(&lfn(dataset, 7)).unwrap(), None);
    assert_eq!(at_alpha(world, dataset), (1, 0, 0));
    world.report(ALPHA, vec![scanned]);
    assert!(world.catalog.file(&lfn(dataset, 7)).unwrap().is_some());
}

fn a_foreign_site_cannot_end_tasks(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    let task = add_task(world, TaskKind::Verify, dataset, ALPHA);
    let fault = Fault::new(FaultCode::Internal, "made up");
    for fault in [None, Some(fault)] {
        let applied = world.report(GAMMA, vec![ReportedFact::TaskDone { task, fault }]);
        assert_eq!(foreign(&applied, Claim::TaskDone), 1);
        let row = world.catalog.task(task).unwrap().unwrap();
        assert!(!row.done && row.fault.is_none());
    }
}

fn a_finished_task_takes_no_facts(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    let task = add_task(world, TaskKind::Verify, dataset, ALPHA);
    world.report(ALPHA, vec![ReportedFact::TaskDone { task, fault: None }]);
    let files = vec![check(dataset, 0, None), check(dataset, 1, Some(FaultCode::WrongDigest))];
    let applied = world.report(ALPHA, vec![ReportedFact::Checked { task, files }]);
    assert_eq!(at_alpha(world, dataset), (2, 0, 0));
    assert!(applied.foreign.is_empty() && applied.tasks.is_empty());
    let row = world.catalog.task(task).unwrap().unwrap();
    assert_eq!((row.files_done, row.files_bad), (0, 0));
    let again = Fault::new(FaultCode::Internal, "after all");
    world.report(ALPHA, vec![ReportedFact::TaskDone { task, fault: Some(again) }]);
    assert_eq!(world.catalog.task(task).unwrap().unwrap().fault, None);
}

/// What was deleted before the agent heard of the cancellation is gone; what it proves counts no more.
fn a_cancelled_task_takes_only_losses(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.register(dataset, 0..3, Some(BETA), None);
    let cancelled = Fault::new(FaultCode::Cancelled, "by request");
    let verify = add_task(world, TaskKind::Verify, dataset, ALPHA);
    world.catalog.cancel_task(verify, &cancelled, NOW).unwrap();
    let files = vec![check(dataset, 0, None), check(dataset, 1, Some(FaultCode::WrongDigest))];
    let applied = world.report(ALPHA, vec![ReportedFact::Checked { task: verify, files }]);
    assert!(applied.foreign.is_empty());
    assert_eq!(at_alpha(world, dataset), (3, 1, 0));
    let delete = NewTask {
        id: TaskId(9),
        kind: TaskKind::Delete { force: true },
        dataset,
        storage: world.storages[ALPHA],
    };
    world.catalog.add_task(&delete, &terms()).unwrap();
    world.catalog.cancel_task(TaskId(9), &cancelled, NOW).unwrap();
    let files = vec![check(dataset, 2, None)];
    world.report(ALPHA, vec![ReportedFact::Checked { task: TaskId(9), files: files.clone() }]);
    assert_eq!(at_alpha(world, dataset), (2, 1, 0));
    let applied = world.report(GAMMA, vec![ReportedFact::Checked { task: TaskId(9), files }]);
    assert_eq!(foreign(&applied, Claim::Checked), 1);
}

fn another_agent_of_the_site_is_late_and_no_attacker(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    let task = add_task(world, TaskKind::Verify, dataset, ALPHA);
    let site = world.catalog.agent(agent(ALPHA)).unwrap().unwrap().site;
    let second = longhaul_model::AgentId(77);
    world.catalog.add_agent(second, site, "second", longhaul_model::Timestamp::MAX, NOW).unwrap();
    let first = Incarnation { number: 1, nonce: 1 };
    world.catalog.agent_hello(second, first, "second", "0.1.0", &[], &[offer("alpha")], NOW).unwrap();
    let files = vec![check(dataset, 0, Some(FaultCode::WrongDigest))];
    let applied = world.report(ALPHA, vec![ReportedFact::Checked { task, files }]);
    assert!(applied.foreign.is_empty(), "it had the storage before");
    assert_eq!(at_alpha(world, dataset), (1, 0, 0));
}

fn doors_decide_for_their_own_site_only(world: &mut World) {
    let at = |storage: &str| NewDecision {
        allowed: true,
        since: NOW,
        at: NOW,
        times: 1,
        who: "anna".into(),
        credential: "token".into(),
        origin: String::new(),
        operation: "door GET".into(),
        object: "/x".into(),
        why: "a right".into(),
        at_door: Some(("gamma".parse().unwrap(), storage.parse().unwrap())),
    };
    let list = vec![at("alpha"), at("gamma"), at("beta"), at("nowhere")];
    let applied = world.report(GAMMA, vec![ReportedFact::DoorDecisions(list)]);
    assert_eq!((applied.acknowledged, foreign(&applied, Claim::DoorDecision)), (1, 2));
    let filter = crate::DecisionFilter { limit: 10, ..Default::default() };
    let rows = world.catalog.decisions(&filter).unwrap();
    assert_eq!(rows.into_iter().map(|row| row.decision).collect::<Vec<_>>(), [at("gamma")]);
}

/// An agent that starts again repeats what was not acknowledged, and may have what is long over.
fn honest_repetitions_raise_nothing(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    let (file, other) = (world.file(dataset, 0), world.file(dataset, 1));
    let first = world.lease(file.id, ALPHA, BETA);
    world.finish(&first, None);
    let task = add_task(world, TaskKind::Verify, dataset, ALPHA);
    world.report(ALPHA, vec![ReportedFact::TaskDone { task, fault: None }]);
    let revoked = world.lease(other.id, ALPHA, BETA);
    let expired = Fault::new(FaultCode::LeaseExpired, "");
    world.catalog.revoke_leases(&[revoked.attempt], &expired, NOW).unwrap();
    let said = vec![
        ReportedFact::Outcome(world.outcome(&first, None)),
        ReportedFact::Outcome(world.outcome(&revoked, None)),
        ReportedFact::Checked { task: TaskId(4_711), files: vec![] },
        ReportedFact::TaskDone { task: TaskId(4_711), fault: None },
    ];
    let applied = world.report(BETA, said);
    assert!(applied.foreign.is_empty() && applied.outcomes.iter().all(|one| one.applied.is_none()));
    let again = vec![ReportedFact::TaskDone { task, fault: None }];
    assert!(world.report(ALPHA, again).foreign.is_empty());
    let live = world.lease_next(&revoked, 2);
    let stolen = ReportedFact::Outcome(world.outcome(&live, None));
    let applied = world.report(GAMMA, vec![stolen]);
    assert_eq!((foreign(&applied, Claim::Outcome), applied.outcomes[0].applied.is_none()), (1, true));
    assert_eq!(world.catalog.live_transfers().unwrap()[0].state, TransferState::Leased);
}

fn a_verification_makes_no_replica(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    world.register(dataset, 5..6, Some(BETA), None);
    let bare =
        crate::NewFile { lfn: lfn(dataset, 8), size: 8, digests: DigestSet::default(), block: None, line: 1 };
    world.try_register(dataset, vec![Ok(bare)]).unwrap();
    let task = add_task(world, TaskKind::Verify, dataset, ALPHA);
    let files = vec![check(dataset, 5, None), check(dataset, 8, None)];
    world.report(ALPHA, vec![ReportedFact::Checked { task, files }]);
    assert_eq!(at_alpha(world, dataset), (2, 0, 0), "not at alpha; nothing to compare with");
    let nothing_to_compare = vec![check(dataset, 8, Some(FaultCode::BadRequest))];
    world.report(ALPHA, vec![ReportedFact::Checked { task, files: nothing_to_compare }]);
    assert_eq!(at_alpha(world, dataset), (2, 0, 0), "and so it proves nothing bad either");
}
