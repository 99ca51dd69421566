//! Sites, storages and agents that are removed, with all they had.

use longhaul_model::{Fault, FaultCode, SubscriptionState, Timestamp, TransferState};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, offer, scan, terms};
use crate::{
    CatalogError, CopyTerms, Incarnation, LeaseRefusal, LeaseResult, NewAccount, NewTask, ReportedCheck,
    ReportedFact, SiteRemoval, StorageRemoval, SubscriptionPatch, TaskKind,
};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_storage_with_the_last_good_copy_stays_unless_forced,
    a_removed_storage_is_neither_source_nor_copy,
    a_storage_that_is_subscribed_to_stays,
    leases_and_tasks_of_a_removed_storage_end,
    what_is_reported_of_a_removed_storage_counts_for_nothing,
    the_name_of_a_removed_storage_can_be_taken_again,
    history_names_a_removed_storage_apart_from_its_successor,
    a_removed_agent_gives_its_leases_back_and_is_let_in_no_more,
    storages_of_a_removed_agent_stay_if_anything_depends_on_them,
    a_removed_site_takes_its_agents_and_storages_with_it,
    a_copy_at_another_storage_of_the_site_is_no_other_copy,
    nobody_manages_or_joins_a_removed_site,
];

fn remove(world: &World, place: &str, force: bool) -> Result<StorageRemoval, Fault> {
    world.catalog.remove_storage(&place.parse().unwrap(), force, "root", &terms()).map_err(refusal)
}

fn refusal(error: CatalogError) -> Fault {
    match error {
        CatalogError::Refused(fault) => fault,
        error => panic!("{error}"),
    }
}

fn a_storage_with_the_last_good_copy_stays_unless_forced(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.verify(dataset, 0..3, ALPHA);
    // What beta has is only claimed.
    world.register(dataset, 0..3, Some(BETA), None);
    let told = world.catalog.storage_concerns(&"alpha".parse().unwrap(), &terms()).unwrap();
    assert_eq!((told.files(), told.bytes(), told.last_replicas()), (3, 303, 3));
    assert_eq!(told.datasets[0].dataset.as_str(), "a");
    let fault = remove(world, "alpha", false).unwrap_err();
    assert_eq!(fault.code, FaultCode::LastReplica);
    assert_eq!(fault.detail, "3 of 3 files at alpha have no other good copy");
    assert_eq!(world.catalog.storages().unwrap().len(), 3, "nothing was changed");
    // A good copy behind an agent that is away does not count either.
    world.verify(dataset, 0..3, BETA);
    let away = CopyTerms { unreachable: [world.storages[BETA]].into(), ..terms() };
    let told = world.catalog.storage_concerns(&"alpha".parse().unwrap(), &away).unwrap();
    assert_eq!(told.last_replicas(), 3);
    assert!(remove(world, "alpha", false).is_ok());
    assert_eq!(remove(world, "beta", false).unwrap_err().code, FaultCode::LastReplica);
    assert_eq!(remove(world, "beta", true).unwrap().concerns.files(), 3);
}

fn a_removed_storage_is_neither_source_nor_copy(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.register(dataset, 0..2, Some(BETA), None);
    for (place, files) in [(ALPHA, 0..3), (BETA, 0..2)] {
        world.verify(dataset, files, place);
    }
    let removal = remove(world, "beta", false).unwrap();
    assert_eq!(removal.blocks.len(), 1);
    let file = world.file(dataset, 0);
    let (_, copies) = world.catalog.replicas_of_file(&file.lfn).unwrap().unwrap();
    let at: Vec<_> = copies.iter().map(|copy| copy.storage_name.as_str()).collect();
    assert_eq!(at, ["alpha"]);
    assert_eq!(world.catalog.replicas_of_dataset(dataset).unwrap().len(), 1);
    let preview = world.catalog.deletion_preview(dataset, world.storages[ALPHA], &terms()).unwrap();
    assert_eq!(preview.last_replicas, 3, "it counts as a good copy of nothing");
    world.subscribe(dataset, None, GAMMA);
    let from = world.new_attempt(file.id, BETA, GAMMA);
    assert_eq!(world.begin(&from), LeaseResult::Refused(LeaseRefusal::SourceGone));
    assert!(world.catalog.storage(&"beta".parse().unwrap()).unwrap().is_none());
    assert!(world.try_subscribe(dataset, None, BETA).is_err());
    assert_eq!(remove(world, "beta", true).unwrap_err().code, FaultCode::NotFound);
    let said = world.catalog.audit(None, None, 1).unwrap();
    assert_eq!(
        (said[0].who.as_str(), said[0].what.as_str()),
        ("root", "storage beta removed, with 2 replicas")
    );
}

/// Also by one that is suspended: it may go on one day.
fn a_storage_that_is_subscribed_to_stays(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    let id = world.subscribe(dataset, None, BETA).subscription.id;
    for state in [None, Some(SubscriptionState::Suspended)] {
        let patch = SubscriptionPatch { state, ..SubscriptionPatch::default() };
        world.catalog.change_subscription(id, &patch, NOW).unwrap();
        let told = world.catalog.storage_concerns(&"beta".parse().unwrap(), &terms()).unwrap();
        assert_eq!(told.subscriptions, [id]);
        let fault = remove(world, "beta", true).unwrap_err();
        assert_eq!(fault.code, FaultCode::Conflict, "force does not end it");
        assert!(fault.detail.contains(&id.to_string()), "{fault}");
    }
    let cancel =
        SubscriptionPatch { state: Some(SubscriptionState::Cancelled), ..SubscriptionPatch::default() };
    world.catalog.change_subscription(id, &cancel, NOW).unwrap();
    assert!(remove(world, "beta", false).is_ok());
    assert_eq!(world.catalog.subscription(id).unwrap().unwrap().state, SubscriptionState::Cancelled);
}

fn leases_and_tasks_of_a_removed_storage_end(world: &mut World) {
    let dataset = world.dataset("a");
    for place in [ALPHA, BETA] {
        world.register(dataset, 0..3, Some(place), None);
        world.verify(dataset, 0..3, place);
    }
    world.subscribe(dataset, None, GAMMA);
    let files: Vec<_> = (0..3).map(|number| world.file(dataset, number).id).collect();
    let from = world.lease(files[0], BETA, GAMMA);
    let other = world.lease(files[1], ALPHA, GAMMA);
    let kinds = [TaskKind::Verify, TaskKind::Delete { force: false }];
    let tasks = kinds.map(|kind| {
        let new = NewTask { id: world.ids.next(NOW), kind, dataset, storage: world.storages[BETA] };
        world.catalog.add_task(&new, &terms()).unwrap().task.id
    });
    let told = world.catalog.storage_concerns(&"beta".parse().unwrap(), &terms()).unwrap();
    assert_eq!((told.leases_in, told.leases_out, told.tasks), (0, 1, 2));
    let removal = remove(world, "beta", false).unwrap();
    assert_eq!(removal.tasks, tasks);
    let released: Vec<_> = removal.released.iter().map(|row| row.attempt).collect();
    assert_eq!(released, [from.attempt]);
    let live = world.catalog.live_transfers().unwrap();
    let leased: Vec<_> =
        live.iter().filter(|row| row.state == TransferState::Leased).map(|row| row.attempt).collect();
    assert_eq!((live.len(), leased), (2, vec![other.attempt]), "the transfer waits for another source");
    for task in tasks {
        let row = world.catalog.task(task).unwrap().unwrap();
        assert_eq!((row.done, row.fault.unwrap().code), (true, FaultCode::Cancelled));
    }
    let next = crate::NewAttempt { source: world.storages[ALPHA], ..from };
    world.lease_next(&next, 2);
}

fn what_is_reported_of_a_removed_storage_counts_for_nothing(world: &mut World) {
    let dataset = world.dataset("a");
    for place in [ALPHA, BETA] {
        world.register(dataset, 0..1, Some(place), None);
        world.verify(dataset, 0..1, place);
    }
    let scan = scan("");
    let new = NewTask { id: world.ids.next(NOW), kind: scan, dataset, storage: world.storages[BETA] };
    let task = world.catalog.add_task(&new, &terms()).unwrap().task.id;
    remove(world, "beta", false).unwrap();
    let lfn = world.file(dataset, 0).lfn;
    let late = ReportedFact::Checked { task, files: vec![ReportedCheck { lfn, fault: None }] };
    world.report(BETA, vec![late, ReportedFact::TaskDone { task, fault: None }]);
    assert_eq!(world.catalog.replicas_of_dataset(dataset).unwrap().len(), 1);
    assert_eq!(world.catalog.task(task).unwrap().unwrap().fault.unwrap().code, FaultCode::Cancelled);
}

/// By another site, too, if an administrator allows it; the new one has nothing of the old.
fn the_name_of_a_removed_storage_can_be_taken_again(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(BETA), None);
    remove(world, "beta", true).unwrap();
    let (beta, gamma) = ("beta".parse().unwrap(), "gamma".parse().unwrap());
    world.catalog.allow_storage_name(&beta, &gamma, "root", NOW).unwrap();
    let next = Incarnation { number: 2, nonce: 7 };
    let offers = [offer("gamma"), offer("beta")];
    let hello = world.catalog.agent_hello(agent(GAMMA), next, "gamma", "0.1.0", &[], &offers, NOW).unwrap();
    let again = hello.storages.iter().find(|row| row.name.as_str() == "beta").unwrap();
    assert_ne!(again.id, world.storages[BETA]);
    assert_eq!((again.site_name.as_str(), again.files, again.bytes), ("gamma", 0, 0));
    remove(world, "beta", false).unwrap();
    assert_eq!(world.catalog.storages().unwrap().len(), 2);
}

fn history_names_a_removed_storage_apart_from_its_successor(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..1, Some(ALPHA), None);
    world.verify(dataset, 0..1, ALPHA);
    let wish = world.subscribe(dataset, None, BETA).subscription.id;
    let file = world.file(dataset, 0).id;
    world.bring(file, ALPHA, BETA);
    let cancel =
        SubscriptionPatch { state: Some(SubscriptionState::Cancelled), ..SubscriptionPatch::default() };
    world.catalog.change_subscription(wish, &cancel, NOW).unwrap();
    remove(world, "beta", false).unwrap();
    let former = format!("beta.removed-{}", world.storages[BETA]);
    assert_eq!(world.catalog.subscription(wish).unwrap().unwrap().target_name.as_str(), former);
    let next = Incarnation { number: 2, nonce: 7 };
    let hello =
        |name: &str| world.catalog.agent_hello(agent(BETA), next, "beta", "0.1.0", &[], &[offer(name)], NOW);
    let CatalogError::Refused(fault) = hello(&former).unwrap_err() else { panic!("a broken statement") };
    assert_eq!(fault.code, FaultCode::Conflict, "nobody gets the old history");
    assert_eq!(hello("beta").unwrap().storages[0].files, 0);
}

fn a_removed_agent_gives_its_leases_back_and_is_let_in_no_more(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    let file = world.file(dataset, 0).id;
    let into = world.lease(file, ALPHA, BETA);
    let removal = world.catalog.remove_agent(agent(BETA), "root", &terms()).unwrap();
    let released: Vec<_> = removal.refused.released.iter().map(|row| row.attempt).collect();
    assert_eq!(released, [into.attempt]);
    assert!(world.catalog.agent(agent(BETA)).unwrap().is_none());
    assert_eq!(world.catalog.agents().unwrap().len(), 2);
    let refused: Vec<_> = world.catalog.refused_agents().unwrap().iter().map(|row| row.agent).collect();
    assert_eq!(refused, [agent(BETA)]);
    let renewed = world.catalog.set_agent_certificate(agent(BETA), Timestamp::MAX).unwrap_err();
    let CatalogError::Refused(fault) = renewed else { panic!("{renewed}") };
    assert_eq!(fault.code, FaultCode::NotAllowed);
    let next = Incarnation { number: 2, nonce: 7 };
    let hello = |id| world.catalog.agent_hello(id, next, "beta", "0.1.0", &[], &[offer("beta")], NOW);
    assert!(hello(agent(BETA)).is_err());
    assert!(world.catalog.remove_agent(agent(BETA), "root", &terms()).is_err(), "it is gone");
    // The site's next agent goes on.
    let site = world.catalog.site(&"beta".parse().unwrap()).unwrap().unwrap();
    world.catalog.add_agent(agent(7), site.id, "new", Timestamp::MAX, NOW).unwrap();
    assert_eq!(hello(agent(7)).unwrap().storages[0].id, world.storages[BETA]);
}

fn storages_of_a_removed_agent_stay_if_anything_depends_on_them(world: &mut World) {
    let dataset = world.dataset("a");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    let next = Incarnation { number: 2, nonce: 7 };
    let offers = [offer("gamma"), offer("gamma-2")];
    world.catalog.agent_hello(agent(GAMMA), next, "gamma", "0.1.0", &[], &offers, NOW).unwrap();
    world.register(dataset, 0..1, Some(GAMMA), None);
    let idle = world.catalog.idle_storages(agent(GAMMA), &terms()).unwrap();
    assert_eq!(idle, ["gamma-2".parse().unwrap()], "the dry run names it");
    for place in [ALPHA, BETA, GAMMA] {
        world.catalog.remove_agent(agent(place), "root", &terms()).unwrap();
    }
    let storages = world.catalog.storages().unwrap();
    let names: Vec<_> = storages.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["alpha", "beta", "gamma"], "files, a subscription, files");
    assert_eq!(storages[0].files, 3);
}

fn remove_site(world: &World, name: &str, force: bool) -> Result<SiteRemoval, Fault> {
    world.catalog.remove_site(&name.parse().unwrap(), force, "root", &terms()).map_err(refusal)
}

/// Also while files are on their way to it and from it.
fn a_removed_site_takes_its_agents_and_storages_with_it(world: &mut World) {
    let dataset = world.dataset("a");
    for place in [ALPHA, BETA] {
        world.register(dataset, 0..3, Some(place), None);
        world.verify(dataset, 0..3, place);
    }
    world.subscribe(dataset, None, GAMMA);
    let from = world.lease(world.file(dataset, 0).id, BETA, GAMMA);
    let other = world.dataset("b");
    world.register(other, 0..2, Some(ALPHA), None);
    let wish = world.subscribe(other, None, BETA).subscription.id;
    let into = world.lease(world.file(other, 0).id, ALPHA, BETA);
    let told = world.catalog.site_concerns(&"beta".parse().unwrap(), &terms()).unwrap();
    assert_eq!((told.agents, told.storages[0].subscriptions.clone()), (vec![agent(BETA)], vec![wish]));
    let fault = remove_site(world, "beta", true).unwrap_err();
    assert_eq!(fault.code, FaultCode::Conflict, "others may rely on the subscription");
    assert_eq!(world.catalog.agents().unwrap().len(), 3, "nothing was changed");
    let cancel =
        SubscriptionPatch { state: Some(SubscriptionState::Cancelled), ..SubscriptionPatch::default() };
    world.catalog.change_subscription(wish, &cancel, NOW).unwrap();
    let removal = remove_site(world, "beta", false).unwrap();
    assert_eq!(removal.site.name.as_str(), "beta");
    let released = removal.agents.iter().flat_map(|(_, refused)| &refused.released);
    let released: Vec<_> = released.map(|row| row.attempt).collect();
    assert!(released.contains(&from.attempt) && !released.contains(&into.attempt), "{released:?}");
    let (catalog, name) = (&world.catalog, "beta".parse().unwrap());
    assert!(catalog.site(&name).unwrap().is_none() && catalog.sites().unwrap().len() == 2);
    assert!(catalog.storage(&"beta".parse().unwrap()).unwrap().is_none());
    assert!(catalog.agent(agent(BETA)).unwrap().is_none());
    assert_eq!(catalog.refused_agents().unwrap()[0].agent, agent(BETA));
    assert_eq!(catalog.replicas_of_dataset(dataset).unwrap().len(), 1);
    let said = catalog.audit(None, None, 1).unwrap();
    assert_eq!(said[0].what, "site beta removed, with 1 agent and 3 replicas at 1 storage");
    // Another site takes the name, and has nothing of the old one.
    let (again, is_new) = catalog.add_site(&name, NOW).unwrap();
    assert!(is_new && again.id != removal.site.id);
    assert!(catalog.site_concerns(&name, &terms()).unwrap().storages.is_empty());
    let former = format!("beta.removed-{}", removal.site.id).parse().unwrap();
    assert!(catalog.add_site(&former, NOW).is_err(), "nobody gets the old history");
    assert!(remove_site(world, "beta", false).is_ok() && remove_site(world, "beta", false).is_err());
}

fn a_copy_at_another_storage_of_the_site_is_no_other_copy(world: &mut World) {
    let dataset = world.dataset("a");
    let next = Incarnation { number: 2, nonce: 7 };
    let offers = [offer("beta"), offer("beta-2")];
    let hello = world.catalog.agent_hello(agent(BETA), next, "beta", "0.1.0", &[], &offers, NOW).unwrap();
    for name in ["beta", "beta-2"] {
        world.storages[BETA] = hello.storages.iter().find(|row| row.name.as_str() == name).unwrap().id;
        world.register(dataset, 0..3, Some(BETA), None);
        world.verify(dataset, 0..3, BETA);
    }
    let told = world.catalog.site_concerns(&"beta".parse().unwrap(), &terms()).unwrap();
    let last: Vec<u64> = told.storages.iter().map(|storage| storage.last_replicas()).collect();
    assert_eq!(last, [3, 3], "one of the two storages alone could go, both cannot");
    assert_eq!(remove_site(world, "beta", false).unwrap_err().code, FaultCode::LastReplica);
    assert_eq!(world.catalog.storages().unwrap().len(), 4, "nothing was changed");
    assert_eq!(remove_site(world, "beta", true).unwrap().storages.len(), 2);
}

fn nobody_manages_or_joins_a_removed_site(world: &mut World) {
    let catalog = &world.catalog;
    for (name, sites) in [("of-one", "beta"), ("of-more", "alpha beta gamma"), ("of-others", "alpha betas")] {
        let account = NewAccount {
            name: name.to_owned(),
            role: "manager".to_owned(),
            community: None,
            sites: Some(sites.to_owned()),
            password: String::new(),
        };
        catalog.add_account(&account, "root", NOW).unwrap();
    }
    let beta = "beta".parse().unwrap();
    assert_eq!(catalog.managers_of_site(&beta).unwrap(), ["of-more", "of-one"]);
    let site = catalog.site(&beta).unwrap().unwrap().id;
    let (hash, expires) = ([7; 32], NOW.plus(std::time::Duration::from_secs(60)));
    catalog.add_join_token(hash, site, expires, NOW).unwrap();
    remove_site(world, "beta", false).unwrap();
    let catalog = &world.catalog;
    assert!(catalog.managers_of_site(&beta).unwrap().is_empty());
    let sites = |name: &str| catalog.account(name).unwrap().unwrap().sites;
    assert_eq!(sites("of-one"), None);
    assert_eq!(sites("of-more").as_deref(), Some("alpha gamma"));
    assert_eq!(sites("of-others").as_deref(), Some("alpha betas"));
    assert!(catalog.redeem_join_token(hash, NOW).unwrap().is_err());
    assert!(catalog.add_join_token([8; 32], site, expires, NOW).is_err());
    assert!(catalog.add_agent(agent(7), site, "late", Timestamp::MAX, NOW).is_err());
}
