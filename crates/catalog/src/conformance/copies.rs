//! What counts as a good copy, and virtual storages, which hold none.

use std::collections::BTreeSet;

use longhaul_model::{
    AgentId, Algorithm, DatasetId, Digest, DigestOrigin, DigestSet, Fault, FaultCode, StorageId, StorageKind,
    SubscriptionId, TaskId, Timestamp, Verification,
};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, digests, lfn, offer, scan, terms};
use crate::{
    AddError, CatalogError, CopyDefect, CopyTerms, DeletionPreview, Incarnation, LeaseRefusal, LeaseResult,
    NewSubscription, NewTask, ReportedCheck, ReportedFact, ReportedFile, StorageOfferRow, TaskKind,
    VerificationState,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    the_only_copy_is_not_deleted,
    a_virtual_storage_holds_no_copy,
    a_claim_is_no_copy,
    a_copy_behind_a_dead_agent_does_not_count,
    a_copy_verified_too_long_ago_does_not_count,
    a_suspect_copy_does_not_count,
    a_copy_that_is_being_deleted_does_not_count,
    a_good_copy_elsewhere_allows_the_deletion,
    the_files_handed_out_follow_the_rule,
    copies_are_counted_file_by_file,
    a_scan_verifies_what_it_reads,
    what_a_server_tells_is_a_claim,
    a_scan_makes_what_changed_suspect,
    a_verification_that_left_files_unread_renews_nothing,
    files_that_nobody_has_are_found,
    files_that_only_a_virtual_storage_has_are_lost,
    test_data_and_claims_are_not_lost,
    ordinary_data_never_goes_to_a_virtual_storage,
    what_is_registered_later_does_not_go_to_a_virtual_storage,
    test_data_stays_at_virtual_storages,
];

const DAY_US: u64 = 86_400_000_000;

/// A storage at beta's site that generates what is read.
fn add_virtual(world: &World) -> StorageId {
    let offers = [offer("beta"), StorageOfferRow { kind: StorageKind::Virtual, ..offer("beta-test") }];
    let next = Incarnation { number: 2, nonce: 7 };
    let hello = world.catalog.agent_hello(agent(BETA), next, "beta", "0.2.0", &[], &offers, NOW).unwrap();
    let storages = hello.storages;
    assert_eq!((storages[0].kind, storages[1].kind), (StorageKind::Posix, StorageKind::Virtual));
    storages[1].id
}

fn preview(world: &World, dataset: DatasetId, terms: &CopyTerms) -> DeletionPreview {
    world.catalog.deletion_preview(dataset, world.storages[ALPHA], terms).unwrap()
}

/// Deletes at alpha without force, and says how that was refused.
fn refusal(world: &mut World, dataset: DatasetId, terms: &CopyTerms) -> Option<Fault> {
    let id: TaskId = world.ids.next(world.now);
    let storage = world.storages[ALPHA];
    let new = NewTask { id, kind: TaskKind::Delete { force: false }, dataset, storage };
    match world.catalog.add_task(&new, terms) {
        Ok(_) => None,
        Err(CatalogError::Refused(fault)) => Some(fault),
        Err(other) => panic!("{other}"),
    }
}

/// All of alpha's files are last copies, for this reason at beta; deleting them takes force.
fn assert_last(world: &mut World, dataset: DatasetId, terms: &CopyTerms, why: CopyDefect) {
    let told = preview(world, dataset, terms);
    assert_eq!((told.files, told.last_replicas), (3, 3));
    let elsewhere: Vec<_> = told.copies.iter().filter(|group| !group.is_here).collect();
    assert_eq!((elsewhere.len(), elsewhere[0].files, elsewhere[0].defect), (1, 3, Some(why)), "{told:?}");
    let fault = refusal(world, dataset, terms).unwrap();
    assert_eq!(fault.code, FaultCode::LastReplica);
    assert!(fault.detail.contains(&format!("{}: {why}", elsewhere[0].storage_name)), "{}", fault.detail);
    let forced = NewTask {
        id: world.ids.next(world.now),
        kind: TaskKind::Delete { force: true },
        dataset,
        storage: world.storages[ALPHA],
    };
    assert!(world.catalog.add_task(&forced, terms).unwrap().made, "force deletes it");
}

fn verified_at_alpha(world: &mut World) -> DatasetId {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.verify(dataset, 0..3, ALPHA);
    dataset
}

fn verified_at_both(world: &mut World) -> DatasetId {
    let dataset = verified_at_alpha(world);
    world.register(dataset, 0..3, Some(BETA), None);
    world.verify(dataset, 0..3, BETA);
    dataset
}

fn the_only_copy_is_not_deleted(world: &mut World) {
    let dataset = verified_at_alpha(world);
    let told = preview(world, dataset, &terms());
    assert_eq!((told.last_replicas, told.copies.len(), told.copies[0].is_here), (3, 1, true));
    let fault = refusal(world, dataset, &terms()).unwrap();
    assert_eq!(fault.detail, "3 of 3 files have no other good copy");
}

/// A deployment of release 0.1.0 may have ordinary data there.
fn a_virtual_storage_holds_no_copy(world: &mut World) {
    let dataset = verified_at_both(world);
    let offer = StorageOfferRow { kind: StorageKind::Virtual, ..offer("beta") };
    let next = Incarnation { number: 2, nonce: 7 };
    world.catalog.agent_hello(agent(BETA), next, "beta", "0.2.0", &[], &[offer], NOW).unwrap();
    let beta = world.storages[BETA];
    let there = world.catalog.deletion_preview(dataset, beta, &terms()).unwrap();
    assert_eq!((there.files, there.last_replicas), (3, 0), "nothing is lost with what it drops");
    assert_last(world, dataset, &terms(), CopyDefect::Virtual);
}

fn a_claim_is_no_copy(world: &mut World) {
    let dataset = verified_at_alpha(world);
    world.register(dataset, 0..3, Some(BETA), None);
    assert_last(world, dataset, &terms(), CopyDefect::Claimed);
}

fn a_copy_behind_a_dead_agent_does_not_count(world: &mut World) {
    let dataset = verified_at_both(world);
    let unreachable = BTreeSet::from([world.storages[BETA]]);
    assert_last(world, dataset, &CopyTerms { unreachable, ..terms() }, CopyDefect::Unreachable);
}

fn a_copy_verified_too_long_ago_does_not_count(world: &mut World) {
    let dataset = verified_at_both(world);
    let later = Timestamp(NOW.0 + 10 * DAY_US as i64);
    let within =
        |days: u64| CopyTerms { verified_within_us: Some(days * DAY_US), ..CopyTerms::lenient(later) };
    assert_eq!(preview(world, dataset, &within(10)).last_replicas, 0);
    assert_eq!(preview(world, dataset, &within(9)).last_replicas, 3);
    // Reading them again renews them.
    world.now = later;
    world.verify(dataset, 0..3, BETA);
    let told = preview(world, dataset, &within(1));
    assert_eq!((told.last_replicas, told.copies[1].verified), (0, Some(later)));
    world.now = Timestamp(later.0 + 2 * DAY_US as i64);
    let terms = CopyTerms { verified_within_us: Some(DAY_US), ..CopyTerms::lenient(world.now) };
    assert_last(world, dataset, &terms, CopyDefect::Stale);
}

fn a_suspect_copy_does_not_count(world: &mut World) {
    let dataset = verified_at_both(world);
    for number in 0..3 {
        let file = world.file(dataset, number);
        let fault = Fault::new(FaultCode::WrongDigest, "flipped");
        world.catalog.mark_suspect(file.id, world.storages[BETA], &fault, NOW).unwrap();
    }
    assert_last(world, dataset, &terms(), CopyDefect::Suspect);
}

fn a_copy_that_is_being_deleted_does_not_count(world: &mut World) {
    let dataset = verified_at_both(world);
    let storage = world.storages[BETA];
    let new = NewTask { id: world.ids.next(NOW), kind: TaskKind::Delete { force: false }, dataset, storage };
    world.catalog.add_task(&new, &terms()).unwrap();
    assert_last(world, dataset, &terms(), CopyDefect::Deleting);
}

fn a_good_copy_elsewhere_allows_the_deletion(world: &mut World) {
    let dataset = verified_at_alpha(world);
    // One storage only claims to have them; another was brought them.
    world.register(dataset, 0..3, Some(GAMMA), None);
    let wish = world.subscribe(dataset, None, BETA).subscription;
    for number in 0..3 {
        let file = world.file(dataset, number).id;
        world.bring(file, ALPHA, BETA);
    }
    let told = preview(world, dataset, &terms());
    assert_eq!((told.last_replicas, wish.target), (0, world.storages[BETA]));
    let end_to_end = VerificationState::Verified(Verification::EndToEnd);
    let rows: Vec<_> = told.copies.iter().map(|group| (group.how, group.verified, group.defect)).collect();
    let readback = VerificationState::Verified(Verification::Readback);
    assert_eq!(
        rows,
        [
            (readback, Some(NOW), None),
            (end_to_end, Some(NOW), None),
            (VerificationState::Registered, Some(NOW), Some(CopyDefect::Claimed)),
        ]
    );
    assert_eq!(refusal(world, dataset, &terms()), None);
}

/// Between the decision and the handing out an agent may have gone.
fn the_files_handed_out_follow_the_rule(world: &mut World) {
    let dataset = verified_at_both(world);
    let storage = world.storages[ALPHA];
    let new = NewTask { id: TaskId(1), kind: TaskKind::Delete { force: false }, dataset, storage };
    world.catalog.add_task(&new, &terms()).unwrap();
    let unreachable = BTreeSet::from([world.storages[BETA]]);
    let gone = CopyTerms { unreachable, ..terms() };
    let page = world.catalog.task_files(TaskId(1), None, 10, &gone).unwrap();
    assert_eq!((page.files.len(), page.kept_as_last), (0, 3));
    assert_eq!(world.catalog.task_files(TaskId(1), None, 10, &terms()).unwrap().files.len(), 3);
}

fn copies_are_counted_file_by_file(world: &mut World) {
    let dataset = verified_at_alpha(world);
    world.register(dataset, 0..3, Some(BETA), None);
    world.verify(dataset, 1..2, BETA);
    let told = preview(world, dataset, &terms());
    assert_eq!(told.last_replicas, 2);
    let rows: Vec<_> = told.copies.iter().map(|group| (group.is_here, group.files, group.defect)).collect();
    assert_eq!(rows, [(true, 3, None), (false, 2, Some(CopyDefect::Claimed)), (false, 1, None)]);
    let file = world.file(dataset, 1).id;
    let alpha = world.storages[ALPHA];
    assert_eq!(world.catalog.remove_replicas(alpha, &[file], false, &terms()).unwrap().lost.len(), 1);
}

fn a_scan_verifies_what_it_reads(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    let kind = scan("");
    let scan = NewTask { id: TaskId(1), kind, dataset, storage: world.storages[ALPHA] };
    world.catalog.add_task(&scan, &terms()).unwrap();
    let wrong: DigestSet = [Digest::adler32(77), Digest::crc32c(77)].into_iter().collect();
    let found = |number, digests| ReportedFile {
        lfn: lfn(dataset, number),
        size: 100 + number,
        digests,
        origin: DigestOrigin::Computed,
    };
    let files = vec![found(0, digests(0)), found(1, wrong), found(2, digests(2))];
    let fact = ReportedFact::Scanned { task: TaskId(1), found: files, left_out: Vec::new() };
    world.report(ALPHA, vec![fact]);
    let counts = world.catalog.replicas_of_dataset(dataset).unwrap()[0].verified;
    assert_eq!((counts.readback, counts.registered), (2, 1), "the file that differs is not verified");
}

/// A scan by digests that the storage's server tells registers files and finds what changed. It verifies no
/// replica, and clears no suspicion.
fn what_a_server_tells_is_a_claim(world: &mut World) {
    let dataset = verified_at_alpha(world);
    let alpha = world.storages[ALPHA];
    let suspect = (world.file(dataset, 1).id, Fault::new(FaultCode::WrongDigest, "flipped"));
    world.catalog.mark_suspect(suspect.0, alpha, &suspect.1, NOW).unwrap();
    let new = NewTask { id: TaskId(1), kind: scan(""), dataset, storage: alpha };
    world.catalog.add_task(&new, &terms()).unwrap();
    let told = |number, digest| ReportedFile {
        lfn: lfn(dataset, number),
        size: 100 + number,
        digests: DigestSet::from_iter([digest]),
        origin: DigestOrigin::Told,
    };
    let right = |number| told(number, Digest::adler32(number as u32 + 1));
    let found = vec![right(0), right(1), told(2, Digest::adler32(77)), right(3)];
    world.report(ALPHA, vec![ReportedFact::Scanned { task: TaskId(1), found, left_out: Vec::new() }]);
    let replica = world.catalog.replicas_of_dataset(dataset).unwrap().remove(0);
    assert_eq!(replica.suspect_files, 2, "the one that was, and the one that changed");
    assert_eq!((replica.verified.readback, replica.verified.registered), (3, 1), "{replica:?}");
}

/// A file of another dataset too; what cannot be compared proves nothing.
fn a_scan_makes_what_changed_suspect(world: &mut World) {
    let dataset = verified_at_alpha(world);
    let other = world.dataset("other");
    world.register(other, 0..1, Some(ALPHA), None);
    let kind = scan("");
    let scan = NewTask { id: TaskId(1), kind, dataset, storage: world.storages[ALPHA] };
    world.catalog.add_task(&scan, &terms()).unwrap();
    let found = |of, number, size, digests| ReportedFile {
        lfn: lfn(of, number),
        size,
        digests,
        origin: DigestOrigin::Computed,
    };
    let wrong: DigestSet = [Digest::adler32(77), Digest::crc32c(77)].into_iter().collect();
    let files = vec![
        found(dataset, 0, 7, digests(0)),
        found(dataset, 1, 101, wrong.clone()),
        found(dataset, 2, 102, DigestSet::from_iter([Digest::new(Algorithm::Md5, &[7; 16])])),
        found(other, 0, 100, wrong),
    ];
    let fact = ReportedFact::Scanned { task: TaskId(1), found: files, left_out: Vec::new() };
    let applied = world.report(ALPHA, vec![fact]);
    assert_eq!(applied.replicas.lost.len(), 3, "they are no sources any more");
    let task = applied.tasks.last().unwrap();
    let codes: Vec<_> = task.problems.iter().map(|problem| problem.fault.code).collect();
    let (changed, exists) = (FaultCode::SourceChanged, FaultCode::AlreadyExists);
    assert_eq!((task.files_bad, codes), (4, vec![changed, changed, exists, changed]));
    assert_eq!(world.catalog.replicas_of_dataset(dataset).unwrap()[0].suspect_files, 2);
    assert_eq!(world.catalog.replicas_of_dataset(other).unwrap()[0].suspect_files, 1);
}

fn a_verification_that_left_files_unread_renews_nothing(world: &mut World) {
    let dataset = verified_at_alpha(world);
    world.now = Timestamp(NOW.0 + DAY_US as i64);
    let storage = world.storages[ALPHA];
    let new = NewTask { id: TaskId(1), kind: TaskKind::Verify, dataset, storage };
    world.catalog.add_task(&new, &CopyTerms::lenient(world.now)).unwrap();
    let on_tape = Fault::new(FaultCode::OnTape, "alpha");
    let check = |number, fault| ReportedCheck { lfn: lfn(dataset, number), fault };
    let files = vec![check(0, None), check(1, None), check(2, Some(on_tape))];
    let done = ReportedFact::TaskDone { task: TaskId(1), fault: None };
    world.report(ALPHA, vec![ReportedFact::Checked { task: TaskId(1), files }, done]);
    assert_eq!(preview(world, dataset, &terms()).copies[0].verified, Some(NOW));
}

fn files_that_nobody_has_are_found(world: &mut World) {
    let dataset = verified_at_both(world);
    assert_eq!(world.catalog.lost_files().unwrap(), []);
    let suspect = |world: &World, number, place: usize| {
        let (file, fault) = (world.file(dataset, number), Fault::new(FaultCode::WrongDigest, "flipped"));
        world.catalog.mark_suspect(file.id, world.storages[place], &fault, NOW).unwrap();
    };
    suspect(world, 1, ALPHA);
    suspect(world, 2, BETA);
    assert_eq!(world.catalog.lost_files().unwrap(), [], "each of them is good somewhere");
    suspect(world, 1, BETA);
    let found = world.catalog.lost_files().unwrap();
    assert_eq!((found.len(), found[0].files, &*found[0].examples), (1, 1, &[lfn(dataset, 1)][..]));
    let holders: Vec<_> = found[0].last_holders.iter().map(|name| name.as_str()).collect();
    assert_eq!(holders, ["alpha", "beta"]);
    // Nobody has it at all.
    let file = world.file(dataset, 1).id;
    for place in [ALPHA, BETA] {
        world.catalog.remove_replicas(world.storages[place], &[file], true, &terms()).unwrap();
    }
    let found = world.catalog.lost_files().unwrap();
    assert_eq!((found[0].files, found[0].last_holders.len()), (1, 0));
    // It comes back.
    world.register(dataset, 1..2, Some(ALPHA), None);
    assert_eq!(world.catalog.lost_files().unwrap(), []);
}

/// Release 0.1.0 brought ordinary data there.
fn files_that_only_a_virtual_storage_has_are_lost(world: &mut World) {
    let dataset = verified_at_alpha(world);
    world.subscribe(dataset, None, BETA);
    let files: Vec<_> = (0..3).map(|number| world.file(dataset, number).id).collect();
    for &file in &files {
        world.bring(file, ALPHA, BETA);
    }
    let offer = StorageOfferRow { kind: StorageKind::Virtual, ..offer("beta") };
    let next = Incarnation { number: 2, nonce: 7 };
    world.catalog.agent_hello(agent(BETA), next, "beta", "0.2.0", &[], &[offer], NOW).unwrap();
    assert_eq!(world.catalog.lost_files().unwrap(), [], "alpha has them");
    let alpha = world.storages[ALPHA];
    world.catalog.remove_replicas(alpha, &files[..1], true, &terms()).unwrap();
    let found = world.catalog.lost_files().unwrap();
    assert_eq!((found.len(), found[0].files, found[0].last_holders.len()), (1, 1, 0));
    let holders: Vec<_> = found[0].virtual_holders.iter().map(|name| name.as_str()).collect();
    assert_eq!(holders, ["beta"]);
    world.catalog.remove_replicas(alpha, &files, true, &terms()).unwrap();
    assert_eq!(world.catalog.lost_files().unwrap()[0].files, 3);
}

fn test_data_and_claims_are_not_lost(world: &mut World) {
    let test = add_virtual(world);
    let dataset = world.dataset("test");
    let mut files = (0..2).map(|number| Ok(super::new_file(dataset, number, None, number + 1)));
    world.catalog.add_files(dataset, &mut files, Some(test), NOW).unwrap();
    // A manifest says that alpha has them; a scan may come much later.
    let claimed = world.dataset("claimed");
    world.register(claimed, 0..2, Some(ALPHA), None);
    assert_eq!(world.catalog.lost_files().unwrap(), []);
    let kind = TaskKind::Delete { force: true };
    world.catalog.add_task(&NewTask { id: TaskId(1), kind, dataset, storage: test }, &terms()).unwrap();
    assert_eq!(world.catalog.lost_files().unwrap(), [], "what a virtual storage drops is nobody's");
}

fn wish_for(world: &mut World, dataset: DatasetId, target: StorageId) -> NewSubscription {
    NewSubscription {
        id: world.ids.next::<SubscriptionId>(NOW),
        dataset,
        block: None,
        target,
        priority: 5,
        verification: Verification::Wire,
        terms: crate::Terms::default(),
        custodial: false,
    }
}

fn ordinary_data_never_goes_to_a_virtual_storage(world: &mut World) {
    let test = add_virtual(world);
    let held = verified_at_alpha(world);
    let nowhere = world.dataset("nowhere");
    world.register(nowhere, 0..2, None, None);
    for dataset in [held, nowhere] {
        let wish = wish_for(world, dataset, test);
        let Err(CatalogError::Refused(fault)) = world.catalog.add_subscription(&wish, NOW) else {
            panic!("ordinary data at a virtual storage")
        };
        assert_eq!(fault.code, FaultCode::Conflict);
        assert!(fault.detail.contains("beta-test is virtual"), "{}", fault.detail);
    }
    let mut again = (0..1).map(|number| Ok(super::new_file(held, number, None, 1)));
    let refused = world.catalog.add_files(held, &mut again, Some(test), NOW);
    assert!(matches!(refused, Err(AddError::Catalog(CatalogError::Refused(_)))), "{refused:?}");
    let empty = world.dataset("empty");
    let wish = wish_for(world, empty, test);
    assert!(world.catalog.add_subscription(&wish, NOW).unwrap().changed, "it may become test data");
}

/// The subscription came first, when the dataset could still become test data.
fn what_is_registered_later_does_not_go_to_a_virtual_storage(world: &mut World) {
    let test = add_virtual(world);
    let dataset = world.dataset("later");
    let wish = wish_for(world, dataset, test);
    assert!(world.catalog.add_subscription(&wish, NOW).unwrap().changed);
    world.register(dataset, 0..2, Some(ALPHA), None);
    world.verify(dataset, 0..2, ALPHA);
    let file = world.file(dataset, 0);
    let page = world.catalog.expand(file.block, test, None, 10).unwrap();
    assert_eq!(page.files.len(), 2);
    assert!(page.files.iter().all(|file| file.sources.is_empty()), "{page:?}");
    let mut attempt = world.new_attempt(file.id, ALPHA, BETA);
    attempt.target = test;
    assert_eq!(world.begin(&attempt), LeaseResult::Refused(LeaseRefusal::SourceGone));
    // Nor does a scan there register it.
    let kind = scan("");
    let scan = NewTask { id: TaskId(1), kind, dataset, storage: test };
    let refused = world.catalog.add_task(&scan, &terms());
    assert!(matches!(refused, Err(CatalogError::Refused(_))), "{refused:?}");
    // The sites that hold files get them as ever.
    world.subscribe(dataset, None, GAMMA);
    world.bring(file.id, ALPHA, GAMMA);
}

fn test_data_stays_at_virtual_storages(world: &mut World) {
    let test = add_virtual(world);
    let dataset = world.dataset("test");
    let mut files = (0..2).map(|number| Ok(super::new_file(dataset, number, None, number + 1)));
    world.catalog.add_files(dataset, &mut files, Some(test), NOW).unwrap();
    world.subscribe(dataset, None, GAMMA);
    let file = world.file(dataset, 0);
    let page = world.catalog.expand(file.block, world.storages[GAMMA], None, 10).unwrap();
    assert!(page.files.iter().all(|file| file.sources.is_empty()), "generated bytes are nobody's data");
    let mut attempt = world.new_attempt(file.id, ALPHA, GAMMA);
    attempt.source = test;
    assert_eq!(world.begin(&attempt), LeaseResult::Refused(LeaseRefusal::SourceGone));
    // Between virtual storages it goes on as ever.
    let offer = StorageOfferRow { kind: StorageKind::Virtual, ..offer("gamma") };
    let next = Incarnation { number: 2, nonce: 7 };
    let gamma: AgentId = agent(GAMMA);
    world.catalog.agent_hello(gamma, next, "gamma", "0.2.0", &[], &[offer], NOW).unwrap();
    let page = world.catalog.expand(file.block, world.storages[GAMMA], None, 10).unwrap();
    assert!(page.files.iter().all(|file| file.sources == [test]));
    assert_eq!(world.begin(&attempt), LeaseResult::Leased);
}
