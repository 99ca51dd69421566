//! What people steer while the service runs: terms of subscriptions, shares, deadlines, links and relays;
//! with scripted agents.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::{Agent, World, manifest_line, until};
use longhaul_api::Problem;
use longhaul_api::agent::*;
use longhaul_api::commissioning::{Commissioning, Grade, LinkTest};
use longhaul_api::limits::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_api::steering::*;
use longhaul_model::{Fault, FaultCode, TransferState};
use serde_json::{Value, json};

/// So large that there is something to wait for.
const LARGE_BYTES: u64 = 64_000_000;

fn wish(dataset: &str, storage: &str, terms: Terms) -> Subscribe {
    Subscribe {
        dataset: dataset.parse().unwrap(),
        block: None,
        storage: storage.parse().unwrap(),
        priority: None,
        verification: None,
        custodial: false,
        terms,
    }
}

async fn subscribe(world: &World, wish: &Subscribe) -> SubscriptionView {
    world.admin().request(&routes::SUBSCRIPTION_CREATE).json(wish).send().await.unwrap()
}

async fn large(world: &World, dataset: &str, storage: &str, files: usize, bytes: u64) {
    let create = DatasetCreate { name: dataset.parse().unwrap(), community: None };
    let _: DatasetView = world.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    let lines: String = (0..files).map(|n| manifest_line(&format!("{dataset}/f{n:05}"), bytes)).collect();
    world.register(dataset, Some(storage), lines).await.unwrap();
}

async fn share(world: &World, community: &str, activity: Option<&str>, weight: f64) -> Page<ShareView> {
    let change = ShareChange {
        community: community.to_owned(),
        activity: activity.map(str::to_owned),
        weight: Some(weight),
    };
    world.admin().request(&routes::SHARE_SET).json(&change).send().await.unwrap()
}

async fn agents<const N: usize>(world: &World, names: [&str; N]) -> [Agent; N] {
    let mut agents = Vec::new();
    for name in names {
        let agent = world.agent(name).await;
        agent.hello(&[]).await.unwrap();
        agents.push(agent);
    }
    agents.try_into().ok().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn terms_are_kept_shown_changed_and_survive_a_restart() {
    let mut world = World::new().await;
    let [_alpha, _beta] = agents(&world, ["alpha", "beta"]).await;
    world.dataset("d", "alpha", 3).await;
    let wrong = wish("d", "beta", Terms { strategy: Some("fastest".into()), ..Terms::default() });
    let refused: Result<SubscriptionView, _> =
        world.admin().request(&routes::SUBSCRIPTION_CREATE).json(&wrong).send().await;
    assert!(refused.unwrap_err().detail.contains("known are best, orderly"));
    let terms = Terms {
        community: Some("atlas".parse().unwrap()),
        activity: Some("production".parse().unwrap()),
        strategy: Some("auto".into()),
        deadline: None,
    };
    let made = subscribe(&world, &wish("d", "beta", terms.clone())).await;
    let kept = Terms { strategy: Some("queue".into()), ..terms };
    assert_eq!(made.terms, kept, "a strategy has one name");
    let change = TermsChange {
        activity: Some("none".into()),
        strategy: Some("success".into()),
        ..TermsChange::default()
    };
    let change = SubscriptionChange { terms: change, ..SubscriptionChange::default() };
    let changed: SubscriptionView = world
        .admin()
        .request(&routes::SUBSCRIPTION_CHANGE)
        .parameter(made.id)
        .json(&change)
        .send()
        .await
        .unwrap();
    let expected = Terms { activity: None, strategy: Some("success".into()), ..kept };
    assert_eq!(changed.terms, expected);
    world.restart().await;
    assert_eq!(world.subscription(made.id).await.terms, expected);
    world.assert_sound().await;
}

/// Which of two communities the next `count` leases of files at alpha were charged to; each is done before
/// the next is taken.
async fn charged(
    alpha: &Agent,
    beta: &mut Agent,
    held: &mut Vec<Lease>,
    count: usize,
) -> BTreeMap<String, usize> {
    let mut charged = BTreeMap::new();
    for _ in 0..count {
        if held.is_empty() {
            // A source that is silent for 15 s is out of contact.
            alpha.report(&alpha.empty_report()).await.unwrap();
            held.extend(beta.leases(1).await.into_iter().map(|(_, lease)| lease));
        }
        let lease = held.remove(0);
        let dataset = lease.lfn.as_str().split('/').next().unwrap().to_owned();
        *charged.entry(dataset).or_default() += 1;
        let entry = beta.done(&lease);
        beta.send(vec![entry]).await.unwrap();
    }
    charged
}

/// Changed while both wait: what comes next is shared by the new weights, without a restart, and after one
/// too.
#[tokio::test(flavor = "multi_thread")]
async fn shares_take_effect_at_once_and_stay() {
    let mut world = World::new().await;
    let [alpha, mut beta] = agents(&world, ["alpha", "beta"]).await;
    // Few at a time, so that each next one shows whose turn it is.
    let limits = Some(SiteLimitsSet { active_in: Some(4), ..SiteLimitsSet::default() });
    let change = SiteChange { limits, ..SiteChange::default() };
    let _: SiteView =
        world.admin().request(&routes::SITE_CHANGE).parameter("beta").json(&change).send().await.unwrap();
    for dataset in ["red", "blue"] {
        large(&world, dataset, "alpha", 400, LARGE_BYTES).await;
    }
    share(&world, "red", None, 9.0).await;
    share(&world, "blue", None, 1.0).await;
    for dataset in ["red", "blue"] {
        let terms = Terms { community: Some(dataset.parse().unwrap()), ..Terms::default() };
        subscribe(&world, &wish(dataset, "beta", terms)).await;
    }
    let mut held = Vec::new();
    // What was given out before both wanted something does not count.
    charged(&alpha, &mut beta, &mut held, 20).await;
    let before = charged(&alpha, &mut beta, &mut held, 80).await;
    assert!(before["red"] >= 6 * before["blue"], "{before:?}");

    share(&world, "red", None, 1.0).await;
    let shares = share(&world, "blue", None, 9.0).await;
    let blue = shares.items.iter().find(|row| row.community == "blue" && row.activity.is_none()).unwrap();
    assert_eq!((blue.weight, (blue.part * 11.0).round()), (9.0, 9.0));
    charged(&alpha, &mut beta, &mut held, 20).await;
    let after = charged(&alpha, &mut beta, &mut held, 80).await;
    assert!(after["blue"] >= 6 * after.get("red").copied().unwrap_or(0), "{after:?}");

    let zero = ShareChange { community: "blue".into(), activity: Some("*".into()), weight: Some(0.0) };
    let refused: Result<Page<ShareView>, _> =
        world.admin().request(&routes::SHARE_SET).json(&zero).send().await;
    assert!(refused.unwrap_err().detail.contains("sum to zero"));
    world.restart().await;
    let kept: Page<ShareView> = world.admin().request(&routes::SHARE_LIST).send().await.unwrap();
    assert_eq!(kept.items, shares.items);
    let audit: Page<AuditEntry> = world.admin().request(&routes::AUDIT_LIST).send().await.unwrap();
    let told: Vec<(&str, &str)> =
        audit.items.iter().map(|row| (row.who.as_str(), row.what.as_str())).collect();
    assert_eq!(told[..2], [("admin", "share of blue: 9"), ("admin", "share of red: 1")]);
    world.assert_sound().await;
}

/// Answered at submission, and with a chance soon after; in danger when nothing can move and the time runs
/// out; no more when it is taken away.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_answered_and_warned_of() {
    let world = World::new().await;
    let [_alpha, _beta] = agents(&world, ["alpha", "beta"]).await;
    large(&world, "d", "alpha", 50, 20 * LARGE_BYTES).await;
    let now = world.service().operations().now();
    let terms =
        |seconds: u64| Terms { deadline: Some(now + Duration::from_secs(seconds)), ..Terms::default() };
    let past = wish("d", "beta", Terms { deadline: Some(now - Duration::from_secs(5)), ..Terms::default() });
    let refused: Result<SubscriptionView, _> =
        world.admin().request(&routes::SUBSCRIPTION_CREATE).json(&past).send().await;
    assert!(refused.unwrap_err().detail.contains("has passed already"));
    let made = subscribe(&world, &wish("d", "beta", terms(10 * 86_400))).await;
    assert!(made.promise.is_some(), "answered at once");
    // The chance follows when its files have been looked up.
    let promise = loop {
        let promise = world.subscription(made.id).await.promise.unwrap();
        if promise.chance.is_some() {
            break promise;
        }
        tokio::task::yield_now().await;
    };
    assert!(promise.chance.is_some_and(|chance| chance > 0.9), "{promise:?}");
    assert!(
        promise.words.contains("chance by") && promise.words.contains("the rate rests on "),
        "{}",
        promise.words
    );

    let soon = (now + Duration::from_secs(400)).to_string();
    set_deadline(&world, &made.id.to_string(), &soon).await;
    let warned = |problems: &[ProblemView]| {
        let is_it =
            |fault: &Fault| fault.code == FaultCode::DeadlineInDanger && fault.detail.contains("d at beta");
        problems.iter().any(|problem| is_it(&problem.fault))
    };
    problems_until(&world, |problems| warned(problems)).await;
    let promise = world.subscription(made.id).await.promise.unwrap();
    assert!(promise.in_danger_since.is_some());
    assert!(promise.words.contains("before all other work of its activity"), "{promise:?}");
    let later = (now + Duration::from_secs(10 * 86_400)).to_string();
    set_deadline(&world, &made.id.to_string(), &later).await;
    problems_until(&world, |problems| !warned(problems)).await;
    let promise = world.subscription(made.id).await.promise.unwrap();
    assert!(!promise.words.contains("before all other"), "{promise:?}");
    world.assert_sound().await;
}

async fn set_deadline(world: &World, id: &str, deadline: &str) {
    let terms = TermsChange { deadline: Some(deadline.to_owned()), ..TermsChange::default() };
    let change = SubscriptionChange { terms, ..SubscriptionChange::default() };
    let _: SubscriptionView =
        world.admin().request(&routes::SUBSCRIPTION_CHANGE).parameter(id).json(&change).send().await.unwrap();
}

async fn problems_until(world: &World, fits: impl Fn(&[ProblemView]) -> bool) {
    let mut events = world.service().operations().changes();
    loop {
        let problems = world.problems().await;
        if fits(&problems) {
            return;
        }
        // Each change of a problem is told; the wait is for the next one.
        let told = tokio::time::timeout(Duration::from_secs(60), events.recv()).await;
        told.expect("nothing changed within a minute").unwrap();
    }
}

fn link(source: &str, target: &str) -> AllowedLink {
    AllowedLink { source: source.parse().unwrap(), target: target.parse().unwrap() }
}

async fn limit(
    world: &World,
    of: LimitKind,
    name: &str,
    active: Option<u32>,
) -> Result<Page<LimitView>, Problem> {
    let change = LimitChange { of, name: name.to_owned(), active, bytes_per_s: None };
    world.admin().request(&routes::LIMIT_SET).json(&change).send().await
}

async fn shares_of(world: &World) -> Vec<ShareView> {
    let shares: Page<ShareView> = world.admin().request(&routes::SHARE_LIST).send().await.unwrap();
    shares.items
}

/// A share in FTS's API for all pairs is the community's weight too: where the scheduler refuses the weight,
/// the share is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_fts_and_its_weight_change_together_or_not_at_all() {
    let world = World::new().await;
    let fts = async |method: &str, path: &str, body: Value| {
        world.request(&world.admin_token, method, path, &body.to_string()).await
    };
    let link = json!({ "symbolicname": "all", "source": "*", "destination": "*", "max_active": 20 });
    assert_eq!(fts("POST", "/config/links", link).await.0, 201);
    let of_atlas = |share: f64| json!({ "source": "*", "destination": "*", "vo": "atlas", "share": share });
    let untouched = shares_of(&world).await;
    let (status, refused) = fts("POST", "/config/shares", of_atlas(2e6)).await;
    assert!((400..500).contains(&status), "{status}: {refused}");
    assert_eq!(fts("GET", "/config/shares", Value::Null).await, (200, json!([])));
    assert_eq!(shares_of(&world).await, untouched);

    assert_eq!(fts("POST", "/config/shares", of_atlas(5.0)).await.0, 200);
    let in_force = shares_of(&world).await;
    assert!(in_force.iter().any(|row| row.community == "atlas" && row.weight == 5.0), "{in_force:?}");
    share(&world, "*", None, 0.0).await;
    let (kept, in_force) = (fts("GET", "/config/shares", Value::Null).await, shares_of(&world).await);
    // Without it nobody would be entitled to anything.
    let (status, refused) =
        fts("DELETE", "/config/shares?source=*&destination=*&vo=atlas", Value::Null).await;
    assert!((400..500).contains(&status), "{status}: {refused}");
    assert_eq!(fts("GET", "/config/shares", Value::Null).await, kept);
    assert_eq!(shares_of(&world).await, in_force);
    share(&world, "*", None, 1.0).await;
    assert_eq!(fts("DELETE", "/config/shares?source=*&destination=*&vo=atlas", Value::Null).await.0, 204);
    assert_eq!(fts("GET", "/config/shares", Value::Null).await.1, json!([]));
    assert!(shares_of(&world).await.iter().all(|row| row.community != "atlas"));
    world.assert_sound().await;
}

/// One request lists and commissions links, or does neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_change_of_links_commissions_none() {
    let world = World::new().await;
    let [_alpha, _beta] = agents(&world, ["alpha", "beta"]).await;
    let both = LinksChange {
        add: vec![link("beta", "alpha")],
        decommission: vec![link("alpha", "beta")],
        ..LinksChange::default()
    };
    let refused: Result<LinksView, _> = world.admin().request(&routes::LINK_CHANGE).json(&both).send().await;
    assert!(refused.unwrap_err().remedy.contains("link only"));
    let view: LinksView = world.admin().request(&routes::LINK_LIST).send().await.unwrap();
    assert_eq!((view.open, view.uncommissioned), (true, Vec::new()));
    let set = LinksSet { links: Some(vec![link("alpha", "beta")]) };
    let _: LinksView = world.admin().request(&routes::LINK_SET).json(&set).send().await.unwrap();
    let view = commissioned(&world, both).await;
    assert_eq!((view.links.len(), view.uncommissioned), (2, vec![link("alpha", "beta")]));
    world.assert_sound().await;
}

async fn commissioned(world: &World, change: LinksChange) -> LinksView {
    world.admin().request(&routes::LINK_CHANGE).json(&change).send().await.unwrap()
}

/// What stands in the way of a subscription, in words.
async fn held_up_by(world: &World, id: impl ToString) -> String {
    let expected = world.subscription(id).await.expected;
    expected.why_none.into_iter().chain(expected.held_up_by).collect::<Vec<_>>().join("; ")
}

/// A limit and a link that is not commissioned hold work up at once and over a restart, with the reason;
/// lifted, the work goes on.
#[tokio::test(flavor = "multi_thread")]
async fn limits_and_commissioning_are_live_durable_and_explained() {
    let mut world = World::new().await;
    let [alpha, mut beta] = agents(&world, ["alpha", "beta"]).await;
    let set = limit(&world, LimitKind::Link, "alpha:beta", Some(2)).await.unwrap();
    assert_eq!((set.items.len(), set.items[0].active), (2, Some(2)));
    let tests = &set.items[1];
    assert_eq!(
        (tests.name.as_str(), tests.active),
        ("commissioning", Some(64)),
        "test transfers have a limit unasked"
    );
    for (of, name, why) in [
        (LimitKind::Link, "alpha", "a link is SOURCE:TARGET"),
        (LimitKind::Into, "nowhere", "nowhere"),
        (LimitKind::Community, "a b", "a b"),
    ] {
        let refused = limit(&world, of, name, Some(1)).await.unwrap_err();
        assert!(refused.detail.contains(why), "{refused:?}");
    }
    world.restart().await;
    alpha.hello(&[]).await.unwrap();
    beta.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 5).await;
    let made = world.subscribe("d", "beta").await;
    let two = beta.leases(2).await;
    let why = held_up_by(&world, made.id).await;
    assert!(
        why.contains("alpha sends this storage 2 files at a time, the limit of the link (3 files"),
        "{why}"
    );

    let close = LinksChange { decommission: vec![link("alpha", "beta")], ..LinksChange::default() };
    let view = commissioned(&world, close).await;
    assert_eq!((view.open, view.uncommissioned), (true, vec![link("alpha", "beta")]));
    assert_eq!(limit(&world, LimitKind::Link, "alpha:beta", None).await.unwrap().items.len(), 1);
    let entries: Vec<Entry> = two.iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(entries).await.unwrap();
    let why = held_up_by(&world, made.id).await;
    assert!(why.contains("3 files do not come over the link from alpha, which is not commissioned"), "{why}");

    let open = LinksChange { commission: vec![link("alpha", "beta")], ..LinksChange::default() };
    assert!(commissioned(&world, open).await.uncommissioned.is_empty());
    assert_eq!(beta.leases(3).await.len(), 3);
    let audit: Page<AuditEntry> = world.admin().request(&routes::AUDIT_LIST).send().await.unwrap();
    let told: Vec<&str> = audit.items.iter().map(|entry| entry.what.as_str()).collect();
    assert_eq!(
        told,
        [
            "links commissioned: alpha:beta",
            "limit of link alpha:beta: none",
            "links for test transfers only: alpha:beta",
            "limit of link alpha:beta: 2 files at once",
        ]
    );
    world.assert_sound().await;
}

/// Where tests decide, a link whose test was not good carries test transfers only until one is; nowhere else
/// does a test close anything.
#[tokio::test(flavor = "multi_thread")]
async fn tests_of_links_decide_which_are_used_where_that_is_wished() {
    for wished in [false, true] {
        let world = World::with(|config| config.links_by_tests = wished).await;
        let [_alpha, mut beta] = agents(&world, ["alpha", "beta"]).await;
        let tested = async |grade: Grade| {
            let test = LinkTest {
                source: "alpha".parse().unwrap(),
                target: "beta".parse().unwrap(),
                source_storage: "alpha-test".parse().unwrap(),
                target_storage: "beta-test".parse().unwrap(),
                grade,
                why: "by a rule".to_owned(),
                addresses: Vec::new(),
                rtt_us: None,
                rate_best: 1.0,
                steps: Vec::new(),
                limited_by: String::new(),
                faults: Vec::new(),
            };
            let said = Commissioning { tests: vec![test], ..Commissioning::default() };
            let request = world.admin().request(&routes::SITE_COMMISSION).parameter("beta").json(&said);
            let _: SiteView = request.send().await.unwrap();
            let links: LinksView = world.admin().request(&routes::LINK_LIST).send().await.unwrap();
            links.uncommissioned
        };
        let closed = tested(Grade::Failing).await;
        assert_eq!(closed, if wished { vec![link("alpha", "beta")] } else { Vec::new() });
        world.dataset("d", "alpha", 2).await;
        let made = world.subscribe("d", "beta").await;
        if wished {
            // Once its files have been looked up.
            until("the reason", async || {
                let why = held_up_by(&world, made.id).await;
                if why.contains("alpha, which is not commissioned") { Ok(()) } else { Err(why) }
            })
            .await;
            assert_eq!(tested(Grade::Slow).await, [link("alpha", "beta")], "still not good");
        }
        assert!(tested(Grade::Commissioned).await.is_empty());
        assert_eq!(beta.leases(2).await.len(), 2);
        let audit: Page<AuditEntry> = world.admin().request(&routes::AUDIT_LIST).send().await.unwrap();
        let told: Vec<&str> = audit.items.iter().map(|entry| entry.what.as_str()).collect();
        let expected = ["links commissioned: alpha:beta", "links for test transfers only: alpha:beta"];
        assert_eq!(told, if wished { &expected[..] } else { &[] });
        world.assert_sound().await;
    }
}

/// alpha → rho → beta: over the relay, through a restart of the service on the way, and the relay is clean
/// after.
#[tokio::test(flavor = "multi_thread")]
async fn files_pass_through_a_relay_and_leave_it_clean() {
    const FILES: usize = 5;
    let mut world = World::new().await;
    let [alpha, mut rho, mut beta] = agents(&world, ["alpha", "rho", "beta"]).await;
    let admin = world.admin();
    let alone = LinksChange { add: vec![link("alpha", "rho")], ..LinksChange::default() };
    let refused: Result<LinksView, _> = admin.request(&routes::LINK_CHANGE).json(&alone).send().await;
    assert!(refused.unwrap_err().remedy.contains("link only"), "a first link must not close all others");
    let set = LinksSet { links: Some(vec![link("alpha", "rho"), link("rho", "beta")]) };
    let view: LinksView = admin.request(&routes::LINK_SET).json(&set).send().await.unwrap();
    assert_eq!((view.open, view.links.len()), (false, 2));
    world.dataset("d", "alpha", FILES).await;
    let made = world.subscribe("d", "beta").await;
    let relay = StorageChange { relay: Some(true), ..StorageChange::default() };
    let storage: StorageView =
        admin.request(&routes::STORAGE_CHANGE).parameter("rho").json(&relay).send().await.unwrap();
    assert!(storage.relay);

    let first = rho.leases(FILES).await;
    assert!(
        first
            .iter()
            .all(|(batch, _)| batch.source.agent == alpha.id && batch.target_storage.as_str() == "rho")
    );
    let detail: TransferDetail =
        admin.request(&routes::TRANSFER_SHOW).parameter(first[0].1.transfer).send().await.unwrap();
    let way: Vec<&str> = detail.attempts[0].choice.way.iter().map(|name| name.as_str()).collect();
    assert_eq!(way, ["rho", "beta"]);
    assert!(!detail.attempts[0].choice.candidates[0].rate_by.is_empty());

    // Promise 5: what is on its way to a relay goes on after a restart.
    world.restart().await;
    let held: Vec<_> = first.iter().map(|(_, lease)| lease.attempt).collect();
    alpha.hello(&[]).await.unwrap();
    beta.hello(&[]).await.unwrap();
    rho.hello(&held).await.unwrap();
    let entries: Vec<Entry> = first.iter().map(|(_, lease)| rho.done(lease)).collect();
    rho.send(entries).await.unwrap();
    let second = beta.leases(FILES).await;
    assert!(second.iter().all(|(batch, _)| batch.source.agent == rho.id));
    let entries: Vec<Entry> = second.iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(entries).await.unwrap();
    assert!(world.subscription(made.id).await.complete);

    let mut cleared = 0;
    while cleared < FILES {
        let task = rho.task().await;
        let TaskKind::Delete { files } = &task.kind else { panic!("{task:?}") };
        cleared += files.len();
        let gone = files.iter().map(|file| CheckedFile { lfn: file.lfn.clone(), fault: None }).collect();
        let entries = vec![
            rho.entry(Fact::Checked { task: task.id, files: gone }),
            rho.entry(Fact::TaskDone { task: task.id, fault: None }),
        ];
        rho.send(entries).await.unwrap();
    }
    let replicas: Page<ReplicaView> =
        world.admin().request(&routes::DATASET_REPLICAS).parameter("d").send().await.unwrap();
    let at: Vec<&str> = replicas.items.iter().map(|row| row.storage.as_str()).collect();
    assert_eq!(at, ["alpha", "beta"]);
    world.assert_sound().await;
}

/// Nobody wants it any more: what is on its way to the relay is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_wish_ends_what_passes_through_a_relay() {
    let world = World::new().await;
    let [_alpha, mut rho, _beta] = agents(&world, ["alpha", "rho", "beta"]).await;
    let admin = world.admin();
    let relay = StorageChange { relay: Some(true), ..StorageChange::default() };
    let _: StorageView =
        admin.request(&routes::STORAGE_CHANGE).parameter("rho").json(&relay).send().await.unwrap();
    let set = LinksSet { links: Some(vec![link("alpha", "rho"), link("rho", "beta")]) };
    let _: LinksView = admin.request(&routes::LINK_SET).json(&set).send().await.unwrap();
    world.dataset("d", "alpha", 3).await;
    let made = world.subscribe("d", "beta").await;
    let leases = rho.leases(3).await;
    let change = SubscriptionChange {
        state: Some(longhaul_model::SubscriptionState::Cancelled),
        ..SubscriptionChange::default()
    };
    let _: SubscriptionView =
        admin.request(&routes::SUBSCRIPTION_CHANGE).parameter(made.id).json(&change).send().await.unwrap();
    let work = rho.poll(Duration::from_secs(20)).await.unwrap();
    assert!(leases.iter().all(|(_, lease)| work.cancel.contains(&lease.attempt)), "{work:?}");
    let detail: TransferDetail =
        admin.request(&routes::TRANSFER_SHOW).parameter(leases[0].1.transfer).send().await.unwrap();
    assert_eq!(detail.transfer.state, TransferState::Cancelled);
    world.assert_sound().await;
}
