//! Files on their way over a relay; terms of subscriptions; settings.

use longhaul_model::{Fault, FaultCode, FileId, StorageId, StorageKind, TaskId, Timestamp};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, offer, terms};
use crate::{
    CatalogError, Incarnation, LeaseRefusal, LeaseResult, NewSubscription, ReportedCheck, ReportedFact,
    StorageOfferRow, StoragePatch, SubscriptionPatch, TaskKind, Terms, TermsPatch,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_relay_receives_files_for_others_and_is_cleared,
    a_relay_keeps_files_wanted_or_present_there_before,
    a_relay_keeps_what_only_a_virtual_storage_has_besides,
    hops_end_with_the_last_demand,
    terms_are_stored_and_returned_with_demands,
    settings_change_with_an_audit_entry_or_not_at_all,
];

fn make_relay(world: &World, place: usize) {
    let name = ["alpha", "beta", "gamma"][place].parse().unwrap();
    let patch = StoragePatch { relay: Some(true), ..StoragePatch::default() };
    assert!(world.catalog.change_storage(&name, &patch, "root", NOW).unwrap().relay);
}

/// Brings a file over BETA to GAMMA.
fn passed(world: &mut World, file: FileId) {
    let hop = world.lease(file, ALPHA, BETA);
    world.finish(&hop, None);
    let last = world.lease(file, BETA, GAMMA);
    world.finish(&last, None);
}

fn cleared(world: &World, at: Timestamp) -> Vec<crate::TaskRow> {
    let mut ids = 100..;
    world.catalog.clear_relays(|| TaskId(ids.next().unwrap()), at).unwrap().0
}

fn a_relay_receives_files_for_others_and_is_cleared(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..2, Some(ALPHA), None);
    world.subscribe(dataset, None, GAMMA);
    let files = [world.file(dataset, 0), world.file(dataset, 1)];
    let hop = world.new_attempt(files[0].id, ALPHA, BETA);
    assert_eq!(world.begin(&hop), LeaseResult::Refused(LeaseRefusal::NotWanted), "it is no relay");
    make_relay(world, BETA);
    assert_eq!(world.begin(&hop), LeaseResult::Leased);
    world.assert_sound();
    world.finish(&hop, None);
    assert!(cleared(world, NOW).is_empty(), "gamma lacks it");
    let later = Timestamp(NOW.0 + 60_000_000);
    let last = world.lease(files[0].id, BETA, GAMMA);
    world.finish(&last, None);
    passed(world, files[1].id);
    let tasks = cleared(world, later);
    assert_eq!((tasks.len(), tasks[0].kind.clone(), tasks[0].files_total), (1, TaskKind::Clear, 2));
    assert_eq!(tasks[0].storage, world.storages[BETA]);
    assert!(cleared(world, later).is_empty(), "once");
    world.assert_sound();
    // Until the file is gone there, no transfer may bring it again.
    world.subscribe(dataset, None, BETA);
    let back = world.new_attempt(files[0].id, ALPHA, BETA);
    assert_eq!(world.begin(&back), LeaseResult::Refused(LeaseRefusal::Clearing));
    let page = world.catalog.task_files(tasks[0].id, None, 1, &terms()).unwrap();
    let rest = world.catalog.task_files(tasks[0].id, page.next, 10, &terms()).unwrap();
    assert_eq!((page.files.len(), rest.files.len(), rest.next), (1, 1, None));
    let gone = |lfn: &longhaul_model::Lfn, fault| ReportedCheck { lfn: lfn.clone(), fault };
    let task = tasks[0].id;
    let trouble = Fault::new(FaultCode::TargetWrite, "read-only");
    world.report(
        BETA,
        vec![
            ReportedFact::Checked {
                task,
                files: vec![gone(&files[0].lfn, None), gone(&files[1].lfn, Some(trouble))],
            },
            ReportedFact::TaskDone { task, fault: None },
        ],
    );
    assert_eq!(world.begin(&back), LeaseResult::Leased);
    assert!(cleared(world, later).is_empty(), "what could not be removed rests first");
}

fn a_relay_keeps_files_wanted_or_present_there_before(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    make_relay(world, BETA);
    world.subscribe(dataset, None, GAMMA);
    let file = world.file(dataset, 0).id;
    passed(world, file);
    world.subscribe(dataset, None, BETA);
    assert!(cleared(world, Timestamp(NOW.0 + 60_000_000)).is_empty());
    let at: Vec<StorageId> =
        world.catalog.replicas_of_dataset(dataset).unwrap().iter().map(|row| row.storage).collect();
    assert_eq!(at.len(), 3, "it is wanted at the relay by now");
}

/// Release 0.1.0 brought ordinary data to virtual storages, over relays too.
fn a_relay_keeps_what_only_a_virtual_storage_has_besides(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    make_relay(world, BETA);
    world.subscribe(dataset, None, GAMMA);
    let file = world.file(dataset, 0).id;
    passed(world, file);
    let offer = StorageOfferRow { kind: StorageKind::Virtual, ..offer("gamma") };
    let next = Incarnation { number: 2, nonce: 7 };
    world.catalog.agent_hello(agent(GAMMA), next, "gamma", "0.2.0", &[], &[offer], NOW).unwrap();
    world.catalog.remove_replicas(world.storages[ALPHA], &[file], true, &terms()).unwrap();
    assert!(cleared(world, Timestamp(NOW.0 + 60_000_000)).is_empty(), "the relay has the last replica");
}

fn hops_end_with_the_last_demand(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    make_relay(world, BETA);
    let id = world.subscribe(dataset, None, GAMMA).subscription.id;
    let file = world.file(dataset, 0).id;
    let hop = world.lease(file, ALPHA, BETA);
    let cancel = SubscriptionPatch {
        state: Some(longhaul_model::SubscriptionState::Cancelled),
        ..SubscriptionPatch::default()
    };
    let changed = world.catalog.change_subscription(id, &cancel, NOW).unwrap();
    assert_eq!(changed.cancelled[0].lease, Some((hop.attempt, agent(BETA))));
    assert!(world.catalog.live_transfers().unwrap().is_empty());
}

fn terms_are_stored_and_returned_with_demands(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    let terms = Terms {
        community: Some("atlas".parse().unwrap()),
        activity: Some("user-subscriptions".parse().unwrap()),
        strategy: None,
        deadline: Some(Timestamp(NOW.0 + 1)),
    };
    let new = NewSubscription {
        id: world.ids.next(NOW),
        dataset,
        block: None,
        target: world.storages[BETA],
        priority: 5,
        verification: longhaul_model::Verification::Wire,
        terms: terms.clone(),
        custodial: false,
    };
    let made = world.catalog.add_subscription(&new, NOW).unwrap();
    assert_eq!((&made.subscription.terms, &made.demands[0].terms), (&terms, &terms));
    assert_eq!(world.catalog.subscriptions_with_deadline().unwrap().len(), 1);
    // The target's strategy applies where the subscription names none.
    let patch = StoragePatch { strategy: Some(Some("success".into())), ..StoragePatch::default() };
    world.catalog.change_storage(&"beta".parse().unwrap(), &patch, "root", NOW).unwrap();
    assert_eq!(world.catalog.demands().unwrap()[0].terms.strategy.as_deref(), Some("success"));
    let patch =
        TermsPatch { strategy: Some(Some("queue".into())), deadline: Some(None), ..TermsPatch::default() };
    let patch = SubscriptionPatch { terms: patch, ..SubscriptionPatch::default() };
    let changed = world.catalog.change_subscription(made.subscription.id, &patch, NOW).unwrap();
    let wanted = Terms { strategy: Some("queue".into()), deadline: None, ..terms };
    assert!(changed.changed && changed.subscription.terms == wanted && changed.demands[0].terms == wanted);
    assert!(world.catalog.subscriptions_with_deadline().unwrap().is_empty());
}

fn settings_change_with_an_audit_entry_or_not_at_all(world: &mut World) {
    let set = |text: &'static str| {
        world.catalog.change_setting("x", "root", NOW, |present| {
            if text == "bad" {
                return Err(CatalogError::conflict("no"));
            }
            Ok((text.to_owned(), format!("{} to {text}", present.unwrap_or("nothing"))))
        })
    };
    set("one").unwrap();
    set("bad").unwrap_err();
    set("two").unwrap();
    assert_eq!(world.catalog.setting("x").unwrap().as_deref(), Some("two"));
    let told: Vec<String> =
        world.catalog.audit(None, None, 10).unwrap().into_iter().map(|row| row.what).collect();
    assert_eq!(told, ["one to two", "nothing to one"]);
    let set_two = |second: &'static str| {
        world.catalog.change_settings(["x", "y"], "root", NOW, |present| {
            assert_eq!(present, [Some("two".to_owned()), None]);
            if second == "bad" {
                return Err(CatalogError::conflict("no"));
            }
            Ok((["three".to_owned(), second.to_owned()], "both".to_owned()))
        })
    };
    set_two("bad").unwrap_err();
    assert_eq!(world.catalog.setting("x").unwrap().as_deref(), Some("two"));
    set_two("four").unwrap();
    assert_eq!(world.catalog.setting("x").unwrap().as_deref(), Some("three"));
    assert_eq!(world.catalog.setting("y").unwrap().as_deref(), Some("four"));
    assert_eq!(world.catalog.audit(None, None, 10).unwrap().len(), 3, "one entry for both");
}
