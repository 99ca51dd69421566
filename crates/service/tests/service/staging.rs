//! Subscriptions whose files are on tape: what is ordered, when it is leased, and what is let go.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_api::agent::{Report, StageOrder, StageReport};
use longhaul_api::native::{SiteView, SubscriptionChange, TapeQueue};
use longhaul_api::routes;
use longhaul_model::{Fault, FaultCode, Lfn, StorageKind, SubscriptionState};

use crate::world::{Agent, World};

const FILES: usize = 20;

/// Alpha has a tape, beta a disk. Alpha has a dataset.
async fn tape_and_disk(world: &World) -> (Agent, Agent) {
    let (mut alpha, beta) = (world.agent("alpha").await, world.agent("beta").await);
    alpha.storages[0].kind = StorageKind::Tape;
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("d", "alpha", FILES).await;
    (alpha, beta)
}

fn files(order: &StageOrder) -> BTreeSet<Lfn> {
    order.lfns.iter().cloned().collect()
}

/// What an agent says of the files of an order.
async fn report_staged(agent: &Agent, order: &StageOrder, lfns: &[Lfn], why_not: Option<&str>) {
    let report = |lfn: &Lfn| StageReport {
        storage: order.storage.clone(),
        order: order.order,
        lfn: lfn.clone(),
        why_not: why_not.map(str::to_owned),
    };
    let staged = lfns.iter().map(report).collect();
    agent.report(&Report { staged, ..agent.empty_report() }).await.unwrap();
}

async fn queue(world: &World) -> Option<TapeQueue> {
    let site: SiteView = world.admin().request(&routes::SITE_SHOW).parameter("alpha").send().await.unwrap();
    site.storages[0].tape_queue.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_on_tape_are_leased_when_they_are_on_disk_and_released_when_they_arrived() {
    let world = World::new().await;
    let (mut alpha, mut beta) = tape_and_disk(&world).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let order = alpha.stage_order().await;
    assert_eq!((files(&order).len(), order.storage.as_str()), (FILES, "alpha"));
    let shown = world.subscription(subscription).await.expected.why_none.unwrap();
    assert!(shown.starts_with("comes from tape at alpha first: 20 files ordered ("), "{shown}");

    report_staged(&alpha, &order, &order.lfns[..5], None).await;
    let leases = beta.leases(5).await;
    let leased: BTreeSet<Lfn> = leases.iter().map(|(_, lease)| lease.lfn.clone()).collect();
    assert_eq!(leased, order.lfns[..5].iter().cloned().collect());
    let held_up = world.subscription(subscription).await.expected.held_up_by;
    assert!(held_up.iter().any(|why| why.contains("15 files ordered")), "{held_up:?}");
    let done = leases.iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(done).await.unwrap();
    let mut released = BTreeSet::new();
    while released.len() < 5 {
        let work = alpha.work().await;
        released.extend(work.releases.into_iter().flat_map(|release| release.lfns));
        assert!(work.stages.is_empty(), "nothing is ordered twice");
    }
    assert_eq!(released, leased);

    report_staged(&alpha, &order, &order.lfns[5..], None).await;
    let leases = beta.leases(FILES - 5).await;
    let done = leases.iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(done).await.unwrap();
    assert!(world.subscription(subscription).await.complete);
    assert_eq!(queue(&world).await, None);
    assert!(world.problems().await.is_empty());
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tapes_are_not_asked_for_what_a_connected_disk_has() {
    let world = World::new().await;
    let (mut alpha, mut beta) = tape_and_disk(&world).await;
    world.subscribe("d", "beta").await;
    let order = alpha.stage_order().await;
    report_staged(&alpha, &order, &order.lfns, None).await;
    let leases = beta.leases(FILES).await;
    let done = leases.iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(done).await.unwrap();
    let mut gamma = world.agent("gamma").await;
    gamma.hello(&[]).await.unwrap();
    world.subscribe("d", "gamma").await;
    let leases = gamma.leases(FILES).await;
    assert!(leases.iter().all(|(batch, _)| batch.source.storage.as_str() == "beta"));
    assert_eq!(queue(&world).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_left_the_disk_is_staged_after_the_attempt_that_misses_it() {
    let world = World::new().await;
    let (mut alpha, mut beta) = tape_and_disk(&world).await;
    world.subscribe("d", "beta").await;
    let order = alpha.stage_order().await;
    report_staged(&alpha, &order, &order.lfns, None).await;
    let leases = beta.leases(FILES).await;
    let fault = || Some(Fault::new(FaultCode::OnTape, "f00000 (TAPE)"));
    let missed = &leases[0].1;
    let mut said = vec![beta.outcome(missed, fault())];
    said.extend(leases[1..].iter().map(|(_, lease)| beta.done(lease)));
    beta.send(said).await.unwrap();
    let again = alpha.stage_order().await;
    assert_eq!((&again.lfns[..], again.order != order.order), (&[missed.lfn.clone()][..], true));
    assert!(world.problems().await.is_empty(), "it is no problem");
    report_staged(&alpha, &again, &again.lfns, None).await;
    let lease = beta.leases(1).await.remove(0).1;
    assert_eq!(lease.lfn, missed.lfn);
    let done = beta.done(&lease);
    beta.send(vec![done]).await.unwrap();
    assert_eq!(queue(&world).await, None);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_does_not_come_is_a_problem_of_its_storage_and_ordered_again() {
    let world = World::new().await;
    let (mut alpha, _beta) = tape_and_disk(&world).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let order = alpha.stage_order().await;
    report_staged(&alpha, &order, &order.lfns[..1], Some("drive 3 is broken")).await;
    let shown = world.subscription(subscription).await.expected.why_none.unwrap();
    assert!(shown.contains("1 has not come so far: ") && shown.ends_with("drive 3 is broken"), "{shown}");
    let problems = world.problems().await;
    let found = problems.iter().find(|problem| problem.fault.code == FaultCode::OnTape).unwrap();
    assert!(found.fault.detail.contains("1 wanted file does not come from tape"), "{found:?}");
    assert_eq!(found.storage.as_ref().unwrap().as_str(), "alpha");
    world.shift_s.fetch_add(30, Ordering::Relaxed);
    alpha.hello(&[]).await.unwrap();
    // The hello repeats what goes on, and the file comes with an order of its own.
    let (mut orders, mut lfns) = (BTreeSet::new(), BTreeSet::new());
    while lfns.len() < FILES {
        let again = alpha.stage_order().await;
        orders.insert(again.order);
        lfns.extend(again.lfns);
    }
    assert!(orders.len() == 2 && orders.contains(&order.order), "{orders:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_ends_takes_back_what_was_ordered_for_it_alone() {
    let world = World::new().await;
    let (mut alpha, _beta) = tape_and_disk(&world).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let order = alpha.stage_order().await;
    let change =
        SubscriptionChange { state: Some(SubscriptionState::Cancelled), ..SubscriptionChange::default() };
    let _: longhaul_api::native::SubscriptionView = world
        .admin()
        .request(&routes::SUBSCRIPTION_CHANGE)
        .parameter(subscription)
        .json(&change)
        .send()
        .await
        .unwrap();
    let mut released = BTreeSet::new();
    while released.len() < FILES {
        let work = alpha.poll(Duration::from_secs(20)).await.unwrap();
        assert!(work.number > alpha.received, "not released within 20 s");
        alpha.received = work.number;
        released.extend(work.releases.into_iter().flat_map(|release| release.lfns));
    }
    assert_eq!(released, files(&order));
    assert_eq!(queue(&world).await, None);
    // What comes all the same may go.
    report_staged(&alpha, &order, &order.lfns[..1], None).await;
    let release = alpha.work().await.releases.remove(0);
    assert_eq!((release.order, &release.lfns[..]), (order.order, &order.lfns[..1]));
}

/// An agent of another site says that a file is on disk.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_agent_of_a_storage_says_what_is_on_its_disk() {
    let world = World::new().await;
    let (mut alpha, mut beta) = tape_and_disk(&world).await;
    world.subscribe("d", "beta").await;
    let order = alpha.stage_order().await;
    report_staged(&beta, &order, &order.lfns, None).await;
    assert_eq!(queue(&world).await.unwrap().ordered_files, FILES as u64);
    report_staged(&alpha, &order, &order.lfns, None).await;
    assert_eq!(beta.leases(FILES).await.len(), FILES);
}
