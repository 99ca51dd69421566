//! Leases, outcomes, history.

use longhaul_model::{Blame, DigestSet, Epoch, Executor, Fault, FaultCode, TransferState, Verification};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, digests, lfn, outcome};
use crate::{
    LeaseRefusal, LeaseResult, NewAttempt, NewFile, ReportItem, ReportedFact, ReportedOutcome, TransferFilter,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    leases_are_refused_when_the_state_changed,
    outcomes_are_applied_exactly_once,
    failures_wait_and_are_recorded,
    lost_leases_wait_again,
    a_success_with_wrong_digests_is_a_failure,
    a_success_without_digests_is_a_failure,
    a_copy_is_never_recorded_as_better_verified_than_shown,
    an_attempt_moves_no_more_than_it_can,
    who_moved_the_bytes_is_kept,
    expansion_skips_live_and_present_files,
    transfers_are_listed_newest_first,
    history_is_pruned,
    a_target_serves_before_it_is_complete,
];

/// `count` files at alpha, subscribed at beta.
fn wanted(world: &mut World, count: u64) -> Vec<crate::FileRow> {
    let dataset = world.dataset("a");
    world.register(dataset, 0..count, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    (0..count).map(|number| world.file(dataset, number)).collect()
}

fn leases_are_refused_when_the_state_changed(world: &mut World) {
    let files = wanted(world, 3);
    let first = world.lease(files[0].id, ALPHA, BETA);
    let refusal = |world: &World, attempt: &NewAttempt| match world.begin(attempt) {
        LeaseResult::Refused(refusal) => refusal,
        LeaseResult::Leased | LeaseResult::LeasedToReplace => panic!("leased"),
    };
    let second = world.new_attempt(files[0].id, ALPHA, BETA);
    assert_eq!(refusal(world, &second), LeaseRefusal::Live, "two leases of one file at one storage");
    assert_eq!(refusal(world, &first), LeaseRefusal::Live);
    let from_nowhere = world.new_attempt(files[1].id, GAMMA, BETA);
    assert_eq!(refusal(world, &from_nowhere), LeaseRefusal::SourceGone);
    let unwanted = world.new_attempt(files[1].id, ALPHA, GAMMA);
    assert_eq!(refusal(world, &unwanted), LeaseRefusal::NotWanted);
    let unknown = world.new_attempt(longhaul_model::FileId(999), ALPHA, BETA);
    assert_eq!(refusal(world, &unknown), LeaseRefusal::NoSuchFile);
    world.finish(&first, None);
    let again = world.new_attempt(files[0].id, ALPHA, BETA);
    assert_eq!(refusal(world, &again), LeaseRefusal::AlreadyThere);
    let reused = NewAttempt { transfer: first.transfer, ..world.new_attempt(files[1].id, ALPHA, BETA) };
    assert_eq!(refusal(world, &reused), LeaseRefusal::Live, "a finished transfer never comes to life again");
    let failed = world.lease(files[2].id, ALPHA, BETA);
    world.finish(&failed, Some(Fault::new(FaultCode::Unreachable, "")));
    let stale = NewAttempt {
        transfer: failed.transfer,
        epoch: Epoch(1),
        ..world.new_attempt(files[2].id, ALPHA, BETA)
    };
    assert_eq!(refusal(world, &stale), LeaseRefusal::StaleEpoch);
    assert_eq!(world.begin(&NewAttempt { epoch: Epoch(2), ..stale }), LeaseResult::Leased);
}

/// Promise 3: results are applied exactly once.
fn outcomes_are_applied_exactly_once(world: &mut World) {
    let files = wanted(world, 2);
    let (one, two) = (world.lease(files[0].id, ALPHA, BETA), world.lease(files[1].id, ALPHA, BETA));
    let item = |sequence, attempt: &NewAttempt, fault| {
        let file = files.iter().find(|file| file.id == attempt.file).unwrap();
        let told = ReportedOutcome { digests: file.digests.clone(), ..outcome(attempt, fault) };
        ReportItem { sequence, fact: ReportedFact::Outcome(told) }
    };
    let items = [item(1, &one, None), item(2, &two, Some(Fault::new(FaultCode::Unreachable, "")))];
    let applied = world.catalog.apply_report(agent(BETA), &items, 2, NOW).unwrap();
    assert!(applied.acknowledged == 2 && applied.outcomes.iter().all(|outcome| outcome.applied.is_some()));
    let again = world.catalog.apply_report(agent(BETA), &items, 2, NOW).unwrap();
    assert!(again.acknowledged == 2 && again.outcomes.iter().all(|outcome| outcome.applied.is_none()));
    let renamed = [item(3, &one, None), item(4, &two, None)];
    let again = world.catalog.apply_report(agent(BETA), &renamed, 4, NOW).unwrap();
    assert!(again.outcomes.iter().all(|outcome| outcome.applied.is_none()), "the attempts are over");
    let second =
        NewAttempt { transfer: two.transfer, epoch: Epoch(2), ..world.new_attempt(files[1].id, ALPHA, BETA) };
    assert_eq!(world.begin(&second), LeaseResult::Leased);
    let stale = NewAttempt { epoch: Epoch(1), ..second.clone() };
    let stranger = world.catalog.apply_report(agent(GAMMA), &[item(1, &second, None)], 1, NOW).unwrap();
    assert_eq!(stranger.outcomes[0].applied, None, "another agent's lease");
    let late = world.catalog.apply_report(agent(BETA), &[item(5, &stale, None)], 5, NOW).unwrap();
    assert_eq!(late.outcomes[0].applied, None, "an older epoch");
    let good = world.catalog.apply_report(agent(BETA), &[item(6, &second, None)], 6, NOW).unwrap();
    let applied = good.outcomes[0].applied.as_ref().unwrap();
    assert_eq!((applied.state, applied.attempts), (TransferState::Done, 2));
    assert_eq!(world.catalog.acknowledged(agent(BETA)).unwrap(), 6);
    let totals = world.catalog.totals().unwrap();
    assert_eq!((totals.files_done, totals.bytes_done, totals.failures.len()), (2, 201, 1));
}

fn failures_wait_and_are_recorded(world: &mut World) {
    let files = wanted(world, 1);
    let first = world.lease(files[0].id, ALPHA, BETA);
    let fault = Fault::new(FaultCode::TargetFull, "no room");
    let applied = world.finish(&first, Some(fault.clone()));
    let transfer = applied.outcomes[0].applied.clone().unwrap();
    assert!(transfer.state == TransferState::Waiting && transfer.not_before > NOW);
    let live = world.catalog.live_transfers().unwrap();
    assert_eq!(
        (live[0].state, live[0].attempts, live[0].fault.as_ref()),
        (TransferState::Waiting, 1, Some(&fault))
    );
    assert_eq!(live[0].not_before, transfer.not_before);
    let second = NewAttempt {
        transfer: first.transfer,
        epoch: Epoch(2),
        ..world.new_attempt(files[0].id, ALPHA, BETA)
    };
    assert_eq!(world.begin(&second), LeaseResult::Leased);
    let detail = world.catalog.transfer(first.transfer).unwrap().unwrap();
    assert_eq!((detail.transfer.state, detail.attempts.len()), (TransferState::Leased, 2));
    assert!(detail.attempts[1].finished.is_none());
    let kept = detail.attempts[0].finished.as_ref().unwrap();
    assert_eq!((kept.fault.as_ref(), kept.verification), (Some(&fault), None));
    assert!(detail.attempts[0].choice.contains("only replica"));
    world.finish(&second, None);
    let detail = world.catalog.transfer(first.transfer).unwrap().unwrap();
    assert_eq!((detail.transfer.state, detail.transfer.attempts), (TransferState::Done, 2));
    let id =
        world.catalog.subscriptions(&crate::SubscriptionFilter { limit: 1, ..Default::default() }).unwrap()
            [0]
        .id;
    assert_eq!(world.catalog.subscription_progress(id).unwrap().retries, 1);
}

/// Promise 5.
fn lost_leases_wait_again(world: &mut World) {
    let files = wanted(world, 3);
    let leases: Vec<_> = files.iter().map(|file| world.lease(file.id, ALPHA, BETA)).collect();
    let released = world.catalog.release_leases_except(agent(BETA), &[leases[1].attempt], NOW).unwrap();
    assert_eq!(
        released.iter().map(|row| row.transfer).collect::<Vec<_>>(),
        [leases[0].transfer, leases[2].transfer]
    );
    assert!(released.iter().all(|row| row.state == TransferState::Waiting));
    assert_eq!(world.finish(&leases[0], None).outcomes[0].applied, None, "it was released");
    assert!(world.finish(&leases[1], None).outcomes[0].applied.is_some());
    let expired = Fault::new(FaultCode::LeaseExpired, "");
    assert!(world.catalog.revoke_leases(&[leases[0].attempt], &expired, NOW).unwrap().is_empty());
    let failed = world
        .catalog
        .cancel_transfers(&[leases[0].transfer], &Fault::new(FaultCode::NoSource, ""), NOW)
        .unwrap();
    assert_eq!((failed.len(), failed[0].lease), (1, None));
    let detail = world.catalog.transfer(leases[0].transfer).unwrap().unwrap();
    assert_eq!(
        (detail.transfer.state, detail.transfer.attempts, detail.attempts.len()),
        (TransferState::Failed, 1, 1)
    );
}

/// Promise 2: a pair assertion beyond the engine's own comparison.
fn a_success_with_wrong_digests_is_a_failure(world: &mut World) {
    let files = wanted(world, 1);
    let attempt = world.lease(files[0].id, ALPHA, BETA);
    let lie = ReportedOutcome { digests: digests(1_234), ..outcome(&attempt, None) };
    let applied = world.report(BETA, vec![ReportedFact::Outcome(lie)]);
    let transfer = applied.outcomes[0].applied.as_ref().unwrap();
    assert_eq!(transfer.fault.as_ref().unwrap().code, FaultCode::WrongDigest);
    assert_eq!(world.catalog.replicas_of_file(&files[0].lfn).unwrap().unwrap().1.len(), 1, "only alpha's");
}

/// Promise 2: what is not shown is not believed.
fn a_success_without_digests_is_a_failure(world: &mut World) {
    let files = wanted(world, 2);
    let other: DigestSet = "sha256:\
        e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        .parse()
        .unwrap();
    for (file, shown) in files.iter().zip([DigestSet::default(), other]) {
        let attempt = world.lease(file.id, ALPHA, BETA);
        let claim = ReportedOutcome { digests: shown, ..outcome(&attempt, None) };
        let applied = world.report(BETA, vec![ReportedFact::Outcome(claim)]);
        let transfer = applied.outcomes[0].applied.as_ref().unwrap();
        let fault = transfer.fault.as_ref().unwrap();
        assert_eq!((fault.code, fault.blame), (FaultCode::WrongDigest, Blame::Target));
        assert_eq!((transfer.state, transfer.verification), (TransferState::Waiting, None));
        assert_eq!(world.catalog.replicas_of_file(&file.lfn).unwrap().unwrap().1.len(), 1, "only alpha's");
        let honest = world.lease_next(&attempt, 2);
        assert!(world.finish(&honest, None).outcomes[0].applied.as_ref().unwrap().fault.is_none());
    }
}

/// Promise 2: without a digest in the catalog only the chunks' checksums were compared, whatever is said.
fn a_copy_is_never_recorded_as_better_verified_than_shown(world: &mut World) {
    let dataset = world.dataset("a");
    let bare = |number, digests| NewFile { digests, ..super::new_file(dataset, number, None, number + 1) };
    let files = vec![Ok(bare(0, DigestSet::default())), Ok(bare(1, digests(1)))];
    world.try_register(dataset, files).unwrap();
    world.subscribe(dataset, None, BETA);
    let how = |world: &mut World, number: u64, said| {
        let file = world.file(dataset, number);
        let attempt = world.lease(file.id, ALPHA, BETA);
        let claim = ReportedOutcome { verification: said, ..world.outcome(&attempt, None) };
        let applied = world.report(BETA, vec![ReportedFact::Outcome(claim)]);
        let recorded = applied.outcomes[0].applied.as_ref().unwrap().verification;
        let detail = world.catalog.transfer(attempt.transfer).unwrap().unwrap();
        assert_eq!(detail.transfer.verification, recorded);
        let replicas = world.catalog.replicas_of_file(&file.lfn).unwrap().unwrap().1;
        let there = replicas.iter().find(|row| row.storage == world.storages[BETA]).unwrap();
        assert_eq!(Some(there.how), recorded.map(crate::VerificationState::Verified));
        recorded.unwrap()
    };
    assert_eq!(how(world, 0, Verification::Readback), Verification::Wire);
    assert_eq!(how(world, 1, Verification::EndToEnd), Verification::EndToEnd);
}

/// What a target says it has moved counts against the source's limits.
fn an_attempt_moves_no_more_than_it_can(world: &mut World) {
    let files = wanted(world, 2);
    for (file, fault) in files.iter().zip([None, Some(Fault::new(FaultCode::Stalled, ""))]) {
        let attempt = world.lease(file.id, ALPHA, BETA);
        let told = world.outcome(&attempt, fault);
        let wild = ReportedOutcome { bytes_moved: u64::MAX, bytes_resent: u64::MAX, ..told };
        let applied = world.report(BETA, vec![ReportedFact::Outcome(wild)]);
        let transfer = applied.outcomes[0].applied.as_ref().unwrap();
        let most = file.size * longhaul_model::limits::MOVED_PER_FILE_BYTE_MAX;
        assert_eq!((transfer.bytes_moved, transfer.bytes_resent), (most, most));
        let detail = world.catalog.transfer(attempt.transfer).unwrap().unwrap();
        assert_eq!(detail.attempts[0].finished.as_ref().unwrap().bytes_moved, most);
    }
}

fn who_moved_the_bytes_is_kept(world: &mut World) {
    let files = wanted(world, 3);
    for (file, executor) in files.iter().zip([None, Some(Executor::TargetServer), Some(Executor::Command)]) {
        let attempt = world.lease(file.id, ALPHA, BETA);
        let told = ReportedOutcome { executor, ..world.outcome(&attempt, None) };
        world.report(BETA, vec![ReportedFact::Outcome(told)]);
        let detail = world.catalog.transfer(attempt.transfer).unwrap().unwrap();
        assert_eq!(detail.attempts[0].finished.as_ref().unwrap().executor, executor);
    }
}

fn expansion_skips_live_and_present_files(world: &mut World) {
    let files = wanted(world, 6);
    world.bring(files[1].id, ALPHA, BETA);
    world.lease(files[2].id, ALPHA, BETA);
    let block = files[0].block;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = world.catalog.expand(block, world.storages[BETA], after, 2).unwrap();
        seen.extend(page.files.iter().map(|file| file.file));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, [files[0].id, files[3].id, files[4].id, files[5].id]);
}

fn transfers_are_listed_newest_first(world: &mut World) {
    let files = wanted(world, 7);
    for (place, file) in files.iter().enumerate() {
        let attempt = world.lease(file.id, ALPHA, BETA);
        match place % 3 {
            0 => drop(world.finish(&attempt, None)),
            1 => drop(world.finish(&attempt, Some(Fault::new(FaultCode::Stalled, "")))),
            _ => {}
        }
    }
    let all = |filter: TransferFilter| {
        let (mut items, mut filter) = (Vec::new(), filter);
        loop {
            let page = world.catalog.transfers(&filter).unwrap();
            items.extend(page.items);
            filter.before = page.next;
            if page.next.is_none() {
                return items;
            }
        }
    };
    let everything = all(TransferFilter { limit: 2, ..Default::default() });
    let names: Vec<_> = everything.iter().map(|row| row.lfn.clone()).collect();
    let expected: Vec<_> = files.iter().rev().map(|file| file.lfn.clone()).collect();
    assert_eq!(names, expected);
    let count = |state, source: Option<usize>| {
        let source = source.map(|place| world.storages[place]);
        all(TransferFilter { state: Some(state), source, limit: 2, ..Default::default() }).len()
    };
    assert_eq!(count(TransferState::Done, None), 3);
    assert_eq!(count(TransferState::Waiting, Some(ALPHA)), 2);
    assert_eq!(count(TransferState::Leased, None), 2);
    assert_eq!(count(TransferState::Done, Some(BETA)), 0);
    let dataset = files[0].dataset;
    let target = Some(world.storages[BETA]);
    assert_eq!(
        all(TransferFilter { dataset: Some(dataset), target, limit: 3, ..Default::default() }).len(),
        7
    );
}

fn history_is_pruned(world: &mut World) {
    let files = wanted(world, 4);
    let first = world.lease(files[0].id, ALPHA, BETA);
    world.finish(&first, Some(Fault::new(FaultCode::Stalled, "")));
    for file in &files[1..] {
        world.now.0 += 1_000_000;
        world.bring(file.id, ALPHA, BETA);
    }
    assert_eq!(world.catalog.prune_history(NOW, 100).unwrap(), 0);
    assert_eq!(world.catalog.prune_history(NOW, 2).unwrap(), 1);
    assert_eq!(world.catalog.prune_history(longhaul_model::Timestamp(world.now.0), 2).unwrap(), 1);
    let left = world.catalog.transfers(&TransferFilter { limit: 10, ..Default::default() }).unwrap().items;
    assert_eq!(left.iter().map(|row| row.file).collect::<Vec<_>>(), [files[3].id, files[0].id]);
    let detail = world.catalog.transfer(first.transfer).unwrap().unwrap();
    assert_eq!(detail.attempts.len(), 1, "what is live keeps its attempts");
}

fn a_target_serves_before_it_is_complete(world: &mut World) {
    let files = wanted(world, 2);
    let dataset = files[0].dataset;
    let demand = world.subscribe(dataset, None, GAMMA).demands.remove(0);
    world.bring(files[0].id, ALPHA, BETA);
    let page = world.catalog.expand(demand.block, world.storages[GAMMA], None, 10).unwrap();
    assert_eq!(page.files[0].sources, [world.storages[ALPHA], world.storages[BETA]]);
    assert_eq!(page.files[1].sources, [world.storages[ALPHA]]);
    world.bring(files[0].id, BETA, GAMMA);
    assert_eq!(page.files[0].lfn, lfn(dataset, 0));
    let links = world.catalog.totals().unwrap().links;
    assert_eq!(links.len(), 2);
}
