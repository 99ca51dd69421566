//! The path of a transfer through the service, with scripted agents: subscribed, leased, reported, recorded;
//! exactly once, whatever is lost or repeated on the way.

use std::time::Duration;

use crate::world::World;
use longhaul_api::agent::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{Blame, DigestOrigin, Fault, FaultCode, SubscriptionState, TransferState};

/// Promises 2, 3 and 10: what was asked for arrives in the records once, with how it was verified and why
/// that source.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_leased_reported_and_recorded() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("demo/set1", "alpha", 20).await;
    let subscription = world.subscribe("demo/set1", "beta").await;
    assert_eq!((subscription.files_wanted, subscription.files_present), (20, 0));

    let leases = beta.leases(20).await;
    let (batch, first) = &leases[0];
    assert_eq!(batch.source.agent, alpha.id);
    assert_eq!(batch.source.addresses, ["127.0.0.1:9"]);
    assert_eq!((first.size, first.digests.to_string().as_str()), (1_000, "adler32:03da0195"));

    let entries: Vec<Entry> = leases.iter().map(|(_, lease)| beta.done(lease)).collect();
    let reply = beta.send(entries.clone()).await.unwrap();
    assert_eq!(reply.acknowledged, 20);
    assert!(!reply.say_hello);
    // The reply was lost: the agent repeats itself.
    assert_eq!(beta.send(entries).await.unwrap().acknowledged, 20);

    let subscription = world.subscription(subscription.id).await;
    assert!(subscription.complete);
    assert_eq!((subscription.files_present, subscription.bytes_present), (20, 20_000));
    let verified: Vec<(&str, u64)> =
        subscription.verified.iter().map(|row| (row.how.as_str(), row.files)).collect();
    assert_eq!(verified, [("end-to-end", 20)]);
    assert_eq!((subscription.sources[0].storage.as_str(), subscription.sources[0].files), ("alpha", 20));

    let admin = world.admin();
    let page: Page<TransferView> =
        admin.request(&routes::TRANSFER_LIST).query("state", "done").send().await.unwrap();
    assert_eq!(page.items.len(), 20);
    let detail: TransferDetail =
        admin.request(&routes::TRANSFER_SHOW).parameter(page.items[0].id).send().await.unwrap();
    assert!(!detail.attempts[0].choice.reason.is_empty());
    let status: Status = admin.request(&routes::STATUS).send().await.unwrap();
    assert_eq!((status.files_done, status.bytes_done, status.transfers_running), (20, 20_000, 0));
    assert!(status.problems.is_empty(), "{:?}", status.problems);
    world.assert_sound().await;
}

/// Promise 3: a parcel that got lost on the way comes again; nothing is leased twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_parcel_is_repeated() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 3).await;
    world.subscribe("d", "beta").await;
    let mut first = beta.poll(Duration::from_secs(20)).await.unwrap();
    while first.batches.is_empty() {
        beta.received = first.number;
        first = beta.poll(Duration::from_secs(20)).await.unwrap();
    }
    let again = beta.poll(Duration::from_secs(20)).await.unwrap();
    assert_eq!(again.number, first.number);
    assert_eq!(again.batches[0].leases, first.batches[0].leases);
    // The agent dies and starts again: the parcel still waits for it.
    let mut reborn = beta.started_again(2, 22);
    reborn.hello(&[]).await.unwrap();
    assert_eq!(reborn.leases(3).await.len(), 3);
    world.assert_sound().await;
}

/// Promises 3 and 5: the service restarts in the middle; what the agent holds goes on, what it does not is
/// leased anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_the_middle_loses_nothing() {
    let mut world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 10).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let leases = beta.leases(10).await;
    let reported: Vec<Entry> = leases[..3].iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(reported).await.unwrap();

    world.restart().await;
    // Nothing is handed out before the service knows what is held.
    let entries = vec![beta.done(&leases[3].1)];
    let reply = beta.send(entries.clone()).await.unwrap();
    assert!(reply.say_hello);
    assert_eq!(reply.acknowledged, 3, "nothing is taken in before the hello");
    let nothing = beta.poll(Duration::from_millis(100)).await.unwrap();
    assert!(nothing.batches.is_empty());

    // It holds 4 to 6 and has lost 7 to 9.
    let held: Vec<_> = leases[3..7].iter().map(|(_, lease)| lease.attempt).collect();
    alpha.hello(&[]).await.unwrap();
    beta.hello(&held).await.unwrap();
    assert_eq!(beta.send(entries).await.unwrap().acknowledged, 4);
    let again = beta.leases(3).await;
    assert_eq!(again.len(), 3);
    for (_, lease) in &again {
        let (_, before) = leases.iter().find(|(_, before)| before.lfn == lease.lfn).unwrap();
        assert!(lease.attempt != before.attempt && lease.epoch > before.epoch);
        assert_eq!(lease.transfer, before.transfer);
    }
    let mut rest: Vec<Entry> = leases[4..7].iter().map(|(_, lease)| beta.done(lease)).collect();
    // A zombie's late word about a lease that was given anew changes nothing.
    rest.push(beta.outcome(&leases[8].1, Some(Fault::new(FaultCode::TargetWrite, "late"))));
    rest.extend(again.iter().map(|(_, lease)| beta.done(lease)).collect::<Vec<_>>());
    beta.send(rest).await.unwrap();
    let view = world.subscription(subscription).await;
    assert!(view.complete, "{view:?}");
    assert_eq!((view.files_present, view.retries), (10, 0));
    world.assert_sound().await;
}

/// Promise 3: the service ends in the midst of reports; each is applied once, and what was wanted arrives.
#[tokio::test(flavor = "multi_thread")]
async fn crashes_in_the_middle_lose_and_double_nothing() {
    const FILES: usize = 60;
    let mut world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", FILES).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let mut held: Vec<Lease> = Vec::new();
    let mut unacknowledged: Vec<Entry> = Vec::new();
    let mut crashes = 0;
    loop {
        // A real agent says hello as soon as it is asked to; what it has done and not yet told is still held.
        let mut attempts: Vec<_> = held.iter().map(|lease| lease.attempt).collect();
        attempts.extend(unacknowledged.iter().filter_map(|entry| match &entry.fact {
            Fact::Outcome(outcome) => Some(outcome.attempt),
            _ => None,
        }));
        alpha.hello(&[]).await.unwrap();
        let acknowledged = beta.hello(&attempts).await.unwrap().acknowledged;
        unacknowledged.retain(|entry| entry.sequence > acknowledged);
        let Ok(reply) = beta.send(unacknowledged.clone()).await else { continue };
        unacknowledged.retain(|entry| entry.sequence > reply.acknowledged);
        if world.subscription(subscription).await.complete {
            break;
        }
        if held.is_empty() {
            held = beta.leases(1).await.into_iter().map(|(_, lease)| lease).collect();
        }
        let some = held.split_off(held.len().saturating_sub(7));
        unacknowledged.extend(some.iter().map(|lease| beta.done(lease)).collect::<Vec<_>>());
        // The report is on its way when the service goes: perhaps applied, perhaps not, never acknowledged.
        let report = Report { entries: unacknowledged.clone(), ..beta.empty_report() };
        let lost = beta.report(&report);
        tokio::select! {
            biased;
            _ = lost => {}
            _ = tokio::task::yield_now() => {}
        }
        world.crash().await;
        crashes += 1;
        assert!(crashes < 100, "no end in sight");
    }
    let view = world.subscription(subscription).await;
    assert_eq!((view.files_present, view.retries), (FILES as u64, 0));
    let status: Status = world.admin().request(&routes::STATUS).send().await.unwrap();
    assert_eq!((status.files_done, status.bytes_done), (FILES as u64, 1_000 * FILES as u64));
    world.assert_sound().await;
}

/// Problems of agents that are not let in.
async fn turned_away(world: &World) -> Vec<ProblemView> {
    let problems = world.problems().await;
    problems.into_iter().filter(|told| told.fault.detail.contains("is not let in")).collect()
}

/// A second agent that offers the same storage, by mistake with another directory, is told so; the first
/// goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_connected_agent_keeps_its_storage() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut first = world.agent("beta").await;
    first.hello(&[]).await.unwrap();
    let mut second = world.agent("beta").await;
    let problem = second.hello(&[]).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.detail.contains(&first.id.to_string()), "{problem}");
    // It goes on trying, which is told as a problem of the site.
    assert!(turned_away(&world).await.is_empty());
    second.hello(&[]).await.unwrap_err();
    let told = turned_away(&world).await.remove(0);
    assert_eq!((told.fault.code, told.fault.blame, told.count), (FaultCode::Conflict, Blame::Target, 2));
    assert!(told.fault.detail.starts_with(&format!("agent {} of beta on", second.id)), "{}", told.fault);
    assert!(told.remedy.ends_with(&format!("longhaul agent refuse {}", second.id)), "{}", told.remedy);
    world.dataset("d", "alpha", 1).await;
    world.subscribe("d", "beta").await;
    assert_eq!(first.leases(1).await.len(), 1);
    // Under a name of its own it is welcome.
    second.storages[0].name = "beta-2".parse().unwrap();
    second.hello(&[]).await.unwrap();
    assert!(turned_away(&world).await.is_empty());
    // What the first does not offer any more, the second may.
    first = first.started_again(2, 12);
    first.storages.clear();
    first.hello(&[]).await.unwrap();
    second = second.started_again(2, 12);
    second.storages[0].name = "beta".parse().unwrap();
    second.hello(&[]).await.unwrap();
    assert_eq!(second.leases(1).await.len(), 1);
    world.assert_sound().await;
}

/// A host is replaced: its successor serves the storage, and does what the former was to do.
#[tokio::test(flavor = "multi_thread")]
async fn another_agent_takes_over_a_storage() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut former = world.agent("beta").await;
    former.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 3).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let leases = former.leases(3).await;
    let mut successor = world.agent("beta").await;
    // The former is silent for longer than a connection lasts.
    world.shift_s.fetch_add(20, std::sync::atomic::Ordering::Relaxed);
    alpha.hello(&[]).await.unwrap();
    successor.hello(&[]).await.unwrap();
    let again = successor.leases(3).await;
    let late: Vec<Entry> = leases.iter().map(|(_, lease)| former.done(lease)).collect();
    former.send(late).await.unwrap();
    assert_eq!(world.subscription(subscription).await.files_present, 0, "its epochs are over");
    let done: Vec<Entry> = again.iter().map(|(_, lease)| successor.done(lease)).collect();
    successor.send(done).await.unwrap();
    assert!(world.subscription(subscription).await.complete);
    world.assert_sound().await;
}

/// An agent that was silent while another took over its storage is present again, and serves the others. It
/// gets the storage back, with what is to be done there, when the other is gone; nobody has to restart it.
#[tokio::test(flavor = "multi_thread")]
async fn a_storage_goes_back_to_an_agent_that_was_silent() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    let mut first = world.agent("beta").await;
    let own = StorageOffer { name: "beta-1".parse().unwrap(), ..first.storages[0].clone() };
    first.storages.push(own);
    first.hello(&[]).await.unwrap();
    let mut second = world.agent("beta").await;
    world.shift_s.fetch_add(20, std::sync::atomic::Ordering::Relaxed);
    second.hello(&[]).await.unwrap();
    world.dataset("there", "beta", 1).await;
    let verify = VerificationRequest { dataset: "there".parse().unwrap(), storage: "beta".parse().unwrap() };
    let admin = world.admin();
    let _: TaskView = admin.request(&routes::VERIFICATION_CREATE).json(&verify).send().await.unwrap();
    let task = second.task().await;
    // It is back, and is to say hello again: it goes on with what the other one does not serve.
    let reply = first.report(&first.empty_report()).await.unwrap();
    assert!(!reply.say_hello && reply.offer_again);
    let common: [longhaul_model::StorageName; 1] = ["beta".parse().unwrap()];
    assert_eq!(first.hello(&[]).await.unwrap().unconfirmed, common);
    let reply = first.report(&first.empty_report()).await.unwrap();
    assert_eq!((reply.offer_again, &reply.unconfirmed[..]), (false, &common[..]), "once is enough");
    assert!(turned_away(&world).await.is_empty());
    second.report(&Report { ending: true, ..second.empty_report() }).await.unwrap();
    let reply = first.report(&first.empty_report()).await.unwrap();
    assert!(reply.unconfirmed.is_empty(), "the other one has stopped");
    assert!(first.hello(&[]).await.unwrap().unconfirmed.is_empty());
    assert_eq!(first.task().await.id, task.id);
    alpha.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 2).await;
    world.subscribe("d", "beta").await;
    assert_eq!(first.leases(2).await.len(), 2);
    world.assert_sound().await;
}

/// A failure is counted under its blame, shown with its remedy, and the file is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_is_retried_and_shown() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 1).await;
    world.subscribe("d", "beta").await;
    let (_, lease) = beta.leases(1).await.remove(0);
    let lost = beta.outcome(&lease, Some(Fault::new(FaultCode::ConnectionLost, "reset by peer")));
    beta.send(vec![lost]).await.unwrap();
    let admin = world.admin();
    let problems = world.problems().await;
    let problem = &problems[0];
    assert_eq!((problem.fault.code, problem.count, problem.open), (FaultCode::ConnectionLost, 1, true));
    assert!(!problem.remedy.is_empty() && problem.examples == ["d/f00000"]);
    let waiting: TransferView = admin
        .request(&routes::TRANSFER_SHOW)
        .parameter(lease.transfer)
        .send::<TransferDetail>()
        .await
        .unwrap()
        .transfer;
    if waiting.state == TransferState::Waiting {
        assert!(waiting.waits_for.is_some(), "promise 10: a wait has a reason");
    }
    let (_, second) = beta.leases(1).await.remove(0);
    assert_eq!(second.transfer, lease.transfer);
    assert!(second.epoch > lease.epoch);
    let done = beta.done(&second);
    beta.send(vec![done]).await.unwrap();
    let status: Status = admin.request(&routes::STATUS).send().await.unwrap();
    assert_eq!(status.failures_by_blame.iter().map(|row| row.count).sum::<u64>(), 1);
    assert!(status.problems.iter().all(|problem| !problem.open), "nothing waits any more");
    world.assert_sound().await;
}

/// Cancelled subscriptions take their leases back; paused sites say so, and go on when resumed.
#[tokio::test(flavor = "multi_thread")]
async fn cancelling_and_pausing_take_leases_back() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 2).await;
    let subscription = world.subscribe("d", "beta").await.id;
    let admin = world.admin();
    let leases = beta.leases(2).await;
    let change = SiteChange {
        state: Some(SiteState::Paused),
        reason: Some("UPS work".into()),
        ..SiteChange::default()
    };
    let site: SiteView =
        admin.request(&routes::SITE_CHANGE).parameter("beta").json(&change).send().await.unwrap();
    assert_eq!((site.state, site.reason.as_deref()), (SiteState::Paused, Some("UPS work")));
    let mut cancelled = Vec::new();
    while cancelled.len() < 2 {
        let work = beta.poll(Duration::from_secs(20)).await.unwrap();
        assert!(work.number > beta.received, "leases that have not begun are taken back");
        beta.received = work.number;
        cancelled.extend(work.cancel);
    }
    assert!(leases.iter().all(|(_, lease)| cancelled.contains(&lease.attempt)));
    let view = world.subscription(subscription).await;
    let why = format!("{:?}", view.expected);
    assert!(view.expected.median.is_none() && why.contains("UPS work"), "{why}");

    let open = SiteChange { state: Some(SiteState::Open), ..SiteChange::default() };
    let site: SiteView =
        admin.request(&routes::SITE_CHANGE).parameter("beta").json(&open).send().await.unwrap();
    assert_eq!(site.reason, None);
    let again = beta.leases(2).await;
    let cancel =
        SubscriptionChange { state: Some(SubscriptionState::Cancelled), ..SubscriptionChange::default() };
    let _: SubscriptionView = admin
        .request(&routes::SUBSCRIPTION_CHANGE)
        .parameter(subscription)
        .json(&cancel)
        .send()
        .await
        .unwrap();
    let mut cancelled = Vec::new();
    while cancelled.len() < 2 {
        let work = beta.poll(Duration::from_secs(20)).await.unwrap();
        assert!(work.number > beta.received);
        beta.received = work.number;
        cancelled.extend(work.cancel);
    }
    let late: Vec<Entry> = again.iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(late).await.unwrap();
    assert_eq!(world.subscription(subscription).await.files_present, 0, "nobody wants it any more");
    world.assert_sound().await;
}

/// Gamma takes from beta what beta has got, before beta has all of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_partial_replica_is_a_source() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 4).await;
    world.subscribe("d", "beta").await;
    let leases = beta.leases(4).await;
    let some: Vec<Entry> = leases[..2].iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(some).await.unwrap();
    let file: FileReplicas = world
        .admin()
        .request(&routes::REPLICA_OF_FILE)
        .query("lfn", leases[0].1.lfn.as_str())
        .send()
        .await
        .unwrap();
    let mut at: Vec<(&str, &str)> =
        file.replicas.iter().map(|replica| (replica.storage.as_str(), replica.verified.as_str())).collect();
    at.sort();
    assert_eq!(at, [("alpha", "registered"), ("beta", "end-to-end")]);
    world.assert_sound().await;
}

/// Scan, verify and delete: handed to the storage's agent, applied as it reports.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_to_the_storages_agent() {
    let world = World::new().await;
    let mut alpha = world.agent("alpha").await;
    let admin = world.admin();
    let create = DatasetCreate { name: "scanned".parse().unwrap(), community: None };
    let _: DatasetView = admin.request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    alpha.hello(&[]).await.unwrap();
    let scan = ScanRequest {
        storage: "alpha".parse().unwrap(),
        path: "in".into(),
        algorithms: vec![],
        digests: DigestOrigin::Computed,
    };
    let view: TaskView =
        admin.request(&routes::DATASET_SCAN).parameter("scanned").json(&scan).send().await.unwrap();
    assert!(!view.done);
    let task = alpha.task().await;
    assert_eq!(task.id, view.id);
    let found = vec![FoundFile {
        lfn: "in/a".parse().unwrap(),
        size: 3,
        digests: "adler32:00620062".parse().unwrap(),
        origin: DigestOrigin::Computed,
    }];
    let left_out =
        vec![LeftOut { path: "in/s".into(), reason: LeftOutReason::Socket, detail: "a socket".into() }];
    let entries = vec![
        alpha.entry(Fact::Scanned { task: task.id, found, left_out }),
        alpha.entry(Fact::TaskDone { task: task.id, fault: None }),
    ];
    alpha.send(entries).await.unwrap();
    let dataset: DatasetView =
        admin.request(&routes::DATASET_SHOW).parameter("scanned").send().await.unwrap();
    assert_eq!(
        (dataset.files, dataset.left_out[0].reason, dataset.left_out[0].count),
        (1, LeftOutReason::Socket, 1)
    );
    assert!(dataset.scan.is_none() && dataset.replicas[0].complete);

    let verify =
        VerificationRequest { dataset: "scanned".parse().unwrap(), storage: "alpha".parse().unwrap() };
    let view: TaskView = admin.request(&routes::VERIFICATION_CREATE).json(&verify).send().await.unwrap();
    let task = alpha.task().await;
    assert!(matches!(&task.kind, TaskKind::Verify { files } if files.len() == 1));
    let bad = Fault::new(FaultCode::WrongDigest, "in/a");
    let entries = vec![
        alpha.entry(Fact::Checked {
            task: task.id,
            files: vec![CheckedFile { lfn: "in/a".parse().unwrap(), fault: Some(bad) }],
        }),
        alpha.entry(Fact::TaskDone { task: task.id, fault: None }),
    ];
    alpha.send(entries).await.unwrap();
    let view: TaskView = admin.request(&routes::TASK_SHOW).parameter(view.id).send().await.unwrap();
    assert!(view.done && view.files_bad == 1, "{view:?}");
    let file: FileReplicas =
        admin.request(&routes::REPLICA_OF_FILE).query("lfn", "in/a").send().await.unwrap();
    assert!(file.replicas[0].suspect);
    world.assert_sound().await;
}

/// Never the last good copy unless forced; a dry run first.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_replica_is_deleted_only_by_force() {
    let world = World::new().await;
    let mut alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 3).await;
    let admin = world.admin();
    let mut request = DeletionRequest {
        dataset: "d".parse().unwrap(),
        storage: "alpha".parse().unwrap(),
        dry_run: true,
        force: false,
    };
    let delete = |request: DeletionRequest| {
        let admin = admin.clone();
        async move { admin.request(&routes::DELETION_CREATE).json(&request).send::<DeletionReply>().await }
    };
    let told = delete(request.clone()).await.unwrap();
    assert_eq!((told.files, told.last_replicas, told.task), (3, 3, None));
    let copy = &told.copies[0];
    assert_eq!((told.copies.len(), copy.to_delete, copy.connected, copy.counts), (1, true, true, false));
    assert_eq!(copy.reason.as_deref(), Some("claimed when it was registered, never verified"));
    request.dry_run = false;
    assert_eq!(delete(request.clone()).await.unwrap_err().code, FaultCode::LastReplica);
    request.force = true;
    let task = delete(request).await.unwrap().task.unwrap();
    let handed = alpha.task().await;
    assert_eq!(handed.id, task);
    let TaskKind::Delete { files } = handed.kind else { panic!("{:?}", handed.kind) };
    let gone = files.into_iter().map(|file| CheckedFile { lfn: file.lfn, fault: None }).collect();
    let entries = vec![
        alpha.entry(Fact::Checked { task, files: gone }),
        alpha.entry(Fact::TaskDone { task, fault: None }),
    ];
    alpha.send(entries).await.unwrap();
    let dataset: DatasetView = admin.request(&routes::DATASET_SHOW).parameter("d").send().await.unwrap();
    assert!(dataset.replicas.is_empty(), "{:?}", dataset.replicas);
    world.assert_sound().await;
}

/// A status is short; what it leaves out it counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_says_how_many_subscriptions_it_leaves_out() {
    const STORAGES: usize = 103;
    let world = World::new().await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    let one = beta.storages[0].clone();
    let named = |number| StorageOffer { name: format!("beta-{number}").parse().unwrap(), ..one.clone() };
    beta.storages = (0..STORAGES).map(named).collect();
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 1).await;
    for offer in &beta.storages {
        world.subscribe("d", offer.name.as_str()).await;
    }
    let status: Status = world.admin().request(&routes::STATUS).send().await.unwrap();
    assert_eq!((status.subscriptions.len(), status.subscriptions_more), (100, 3));
    let page: Page<SubscriptionView> =
        world.admin().request(&routes::SUBSCRIPTION_LIST).query("limit", 100).send().await.unwrap();
    assert!(page.items.len() == 100 && page.next.is_some(), "a list that is cut says so");
    world.assert_sound().await;
}

/// A subscription shows what came, and what failed, since it was made: nothing of one that was cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_subscription_shows_no_numbers_of_a_cancelled_one() {
    let world = World::new().await;
    let alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let mut beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 3).await;
    let first = world.subscribe("d", "beta").await.id;
    let leases = beta.leases(3).await;
    let full = Fault::new(FaultCode::TargetWrite, "no room");
    let entries = vec![beta.done(&leases[0].1), beta.outcome(&leases[1].1, Some(full))];
    beta.send(entries).await.unwrap();
    let admin = world.admin();
    let change =
        SubscriptionChange { state: Some(SubscriptionState::Cancelled), ..SubscriptionChange::default() };
    let cancelled: SubscriptionView =
        admin.request(&routes::SUBSCRIPTION_CHANGE).parameter(first).json(&change).send().await.unwrap();
    assert_eq!((cancelled.retries, cancelled.sources[0].files), (1, 1));
    let second = world.subscribe("d", "beta").await;
    assert_eq!((second.files_present, second.retries, second.rate_average), (1, 0, 0.0));
    assert!(second.sources.is_empty(), "{:?}", second.sources);
    world.assert_sound().await;
}
