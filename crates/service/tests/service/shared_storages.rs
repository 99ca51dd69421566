//! Several agents of a site serve one root: who gets what, and what becomes of it when one is silent.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_api::agent::{Entry, FenceReport, Report};
use longhaul_api::native::{SiteChange, SiteLimitsSet, SiteView, TaskView, VerificationRequest};
use longhaul_api::routes;
use longhaul_control::agents::shared_storages::FENCE_LOCKED_AFTER;
use longhaul_model::{AgentId, FaultCode};

use crate::world::{Agent, World};

const FILES: usize = 8;

/// An agent of beta on a root with that mark.
async fn sharing(world: &World, mark: &str) -> Agent {
    let mut agent = world.agent("beta").await;
    agent.storages[0].shared = true;
    agent.storages[0].root_mark = Some(mark.into());
    agent
}

/// Two agents of beta on one root, and one of alpha.
async fn two_of_beta(world: &World) -> (Agent, Agent, Agent) {
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let (first, second) = (sharing(world, "7").await, sharing(world, "7").await);
    for agent in [&first, &second] {
        assert!(agent.hello(&[]).await.unwrap().unconfirmed.is_empty());
    }
    (alpha, first, second)
}

async fn shift(world: &World, seconds: u64) {
    world.shift_s.fetch_add(seconds as i64, Ordering::Relaxed);
}

fn fenced(by: &Agent, other: &Agent) -> Report {
    let storage = by.storages[0].name.clone();
    let fences = vec![FenceReport { storage, agent: other.id, why_not: None }];
    Report { fences, ..by.empty_report() }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_to_and_from_a_shared_storage_are_dealt_to_its_agents() {
    let world = World::new().await;
    let (mut alpha, mut first, mut second) = two_of_beta(&world).await;
    world.dataset("d", "alpha", FILES).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let to_first = first.leases(FILES / 2).await;
    let to_second = second.leases(FILES / 2).await;
    let lfns: BTreeSet<String> =
        to_first.iter().chain(&to_second).map(|(_, lease)| lease.lfn.to_string()).collect();
    assert_eq!(lfns.len(), FILES, "each file once");
    let done: Vec<Entry> = to_first.iter().map(|(_, lease)| first.done(lease)).collect();
    first.send(done).await.unwrap();
    let done: Vec<Entry> = to_second.iter().map(|(_, lease)| second.done(lease)).collect();
    second.send(done).await.unwrap();
    assert!(world.subscription(subscription).await.complete);

    world.dataset("back", "beta", FILES).await;
    world.subscribe("back", "alpha").await;
    world.dataset("more", "beta", FILES).await;
    world.subscribe("more", "alpha").await;
    let from = alpha.leases(2 * FILES).await;
    let sources: BTreeSet<AgentId> = from.iter().map(|(batch, _)| batch.source.agent).collect();
    assert!(sources.is_subset(&BTreeSet::from([first.id, second.id])), "{sources:?}");

    let site: SiteView = world.admin().request(&routes::SITE_SHOW).parameter("beta").send().await.unwrap();
    assert_eq!(site.storages[0].agents, Some(vec![first.id, second.id]), "the first one leads");
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_fenced_agent_held_goes_to_the_others_and_its_late_word_changes_nothing() {
    let world = World::new().await;
    let (alpha, mut first, mut second) = two_of_beta(&world).await;
    world.dataset("d", "alpha", FILES).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let lost = first.leases(FILES / 2).await;
    let own = second.leases(FILES / 2).await;
    let verify = VerificationRequest { dataset: "d".parse().unwrap(), storage: "alpha".parse().unwrap() };
    let _: TaskView = world.admin().request(&routes::VERIFICATION_CREATE).json(&verify).send().await.unwrap();

    shift(&world, u64::from(world.config.fence_after_s)).await;
    for agent in [&alpha, &second] {
        agent.report(&agent.empty_report()).await.unwrap();
    }
    let order = second.fence_order().await;
    assert_eq!((order.agent, order.storage.as_str(), order.even_if_locked), (first.id, "beta", false));
    // Until it is done, nobody gets what the first one holds.
    let why_not = Some("it runs".to_owned());
    let refused = FenceReport { storage: order.storage, agent: first.id, why_not };
    let reply = second.report(&Report { fences: vec![refused], ..second.empty_report() }).await.unwrap();
    assert!(!reply.offer_again);
    let reply = second.report(&fenced(&second, &first)).await.unwrap();
    assert!(reply.offer_again, "it leads the storage from now on");
    second.hello(&own.iter().map(|(_, lease)| lease.attempt).collect::<Vec<_>>()).await.unwrap();
    let again = second.leases(FILES / 2).await;
    let lfns = |leases: &[(_, longhaul_api::agent::Lease)]| -> BTreeSet<String> {
        leases.iter().map(|(_, lease)| lease.lfn.to_string()).collect()
    };
    assert_eq!(lfns(&again), lfns(&lost));

    let late: Vec<Entry> = lost.iter().map(|(_, lease)| first.done(lease)).collect();
    let reply = first.send(late).await.unwrap();
    assert!(reply.offer_again && world.subscription(subscription).await.files_present == 0);
    assert!(first.hello(&[]).await.unwrap().unconfirmed.is_empty(), "it serves the storage again");
    let done: Vec<Entry> = own.iter().chain(&again).map(|(_, lease)| second.done(lease)).collect();
    second.send(done).await.unwrap();
    assert!(world.subscription(subscription).await.complete);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_holds_its_lock_is_fenced_later_and_one_that_is_back_not_at_all() {
    let world = World::new().await;
    let (alpha, mut first, mut second) = two_of_beta(&world).await;
    world.dataset("d", "alpha", FILES).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let held = first.leases(FILES / 2).await;
    shift(&world, FENCE_LOCKED_AFTER.as_secs()).await;
    for agent in [&alpha, &second] {
        agent.report(&agent.empty_report()).await.unwrap();
    }
    assert!(second.fence_order().await.even_if_locked);
    // It was cut off from the service alone, and is back before the word of the other one comes.
    let done: Vec<Entry> = held.iter().map(|(_, lease)| first.done(lease)).collect();
    first.send(done).await.unwrap();
    let reply = second.report(&fenced(&second, &first)).await.unwrap();
    assert!(!reply.offer_again);
    assert_eq!(world.subscription(subscription).await.files_present, FILES as u64 / 2);
    world.assert_sound().await;
}

/// Takes parcels until so many leases and a rate into the site of so many bytes per second have come.
async fn until_rate(agent: &mut Agent, mut leases: usize, bytes_per_s: u64) {
    let mut has_rate = false;
    while leases > 0 || !has_rate {
        let work = agent.poll(Duration::from_secs(20)).await.unwrap();
        assert!(work.number > agent.received, "no rate of {bytes_per_s} within 20 s");
        agent.received = work.number;
        leases = leases.saturating_sub(work.batches.iter().map(|batch| batch.leases.len()).sum());
        has_rate |= work.settings.is_some_and(|settings| settings.in_bytes_per_s == Some(bytes_per_s));
    }
}

/// The rate is the site's, not that of each agent.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_of_a_site_is_divided_among_its_agents_that_have_work() {
    const RATE: u64 = 50_000_000;
    let world = World::new().await;
    let (_alpha, mut first, mut second) = two_of_beta(&world).await;
    let limits = SiteLimitsSet {
        in_bytes_per_s: Some(RATE),
        out_bytes_per_s: None,
        active_in: None,
        active_out: None,
    };
    let change = SiteChange { limits: Some(limits), ..SiteChange::default() };
    let admin = world.admin();
    let _: SiteView =
        admin.request(&routes::SITE_CHANGE).parameter("beta").json(&change).send().await.unwrap();
    for agent in [&mut first, &mut second] {
        until_rate(agent, 0, RATE).await;
    }
    world.dataset("d", "alpha", FILES).await;
    world.subscribe("d", "beta").await;
    for agent in [&mut first, &mut second] {
        until_rate(agent, FILES / 2, RATE / 2).await;
    }
    world.assert_sound().await;
}

/// A stranger's word that it has fenced somebody changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn only_an_agent_of_the_storage_fences_there() {
    let world = World::new().await;
    let (alpha, mut first, second) = two_of_beta(&world).await;
    world.dataset("d", "alpha", FILES).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let held = first.leases(FILES / 2).await;
    shift(&world, u64::from(world.config.fence_after_s)).await;
    second.report(&second.empty_report()).await.unwrap();
    let of_beta = FenceReport { storage: "beta".parse().unwrap(), agent: first.id, why_not: None };
    alpha.report(&Report { fences: vec![of_beta.clone()], ..alpha.empty_report() }).await.unwrap();
    let of_itself = FenceReport { agent: second.id, ..of_beta };
    second.report(&Report { fences: vec![of_itself], ..second.empty_report() }).await.unwrap();
    let done: Vec<Entry> = held.iter().map(|(_, lease)| first.done(lease)).collect();
    first.send(done).await.unwrap();
    assert_eq!(world.subscription(subscription).await.files_present, FILES as u64 / 2);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_with_another_mark_is_not_the_same_storage() {
    let world = World::new().await;
    let (_, first, second) = two_of_beta(&world).await;
    let other_root = sharing(&world, "8").await;
    let problem = other_root.hello(&[]).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.detail.contains("different marks"), "{problem}");
    let mut unshared = sharing(&world, "7").await;
    unshared.storages[0].shared = false;
    let problem = unshared.hello(&[]).await.unwrap_err();
    assert!(problem.detail.contains("shared = true"), "{problem}");
    let mut read_only = sharing(&world, "7").await;
    read_only.storages[0].writable = false;
    assert!(read_only.hello(&[]).await.unwrap_err().detail.contains("writable"));
    for agent in [&first, &second] {
        assert!(agent.report(&agent.empty_report()).await.is_ok(), "they go on");
    }
    world.assert_sound().await;
}

/// The service forgets who serves what beside whom; leases of both go on.
#[tokio::test(flavor = "multi_thread")]
async fn both_agents_keep_their_leases_over_a_restart_of_the_service() {
    let mut world = World::new().await;
    let (alpha, mut first, mut second) = two_of_beta(&world).await;
    world.dataset("d", "alpha", FILES).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let (to_first, to_second) = (first.leases(FILES / 2).await, second.leases(FILES / 2).await);
    let attempts = |leases: &[(_, longhaul_api::agent::Lease)]| -> Vec<_> {
        leases.iter().map(|(_, lease)| lease.attempt).collect()
    };
    for order in [[0, 1], [1, 0]] {
        world.restart().await;
        alpha.hello(&[]).await.unwrap();
        for which in order {
            let (agent, leases) = if which == 0 { (&first, &to_first) } else { (&second, &to_second) };
            agent.hello(&attempts(leases)).await.unwrap();
        }
    }
    let done: Vec<Entry> = to_second.iter().map(|(_, lease)| second.done(lease)).collect();
    second.send(done).await.unwrap();
    let done: Vec<Entry> = to_first.iter().map(|(_, lease)| first.done(lease)).collect();
    first.send(done).await.unwrap();
    assert!(world.subscription(subscription).await.complete);
    world.assert_sound().await;
}
