//! The plan of circuits in the service: asked for once whatever is killed, given back, taken over, and nothing where agents
//! decide. With scripted agents.

use std::time::Duration;

use longhaul_api::agent::*;
use longhaul_api::circuits::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{CircuitOrderId, SubscriptionState, Timestamp};
use longhaul_service::{CircuitsConfig, Config, Level};

use crate::world::{Agent, World, manifest_line};

const CIRCUIT: &str = "00000000-0000-8000-8000-000000000011";
const WITHIN: Duration = Duration::from_secs(20);
const TB: u64 = 1_000_000_000_000;

fn planned(config: &mut Config) {
    config.circuits = CircuitsConfig {
        level: Level::Service,
        every_s: 1,
        gain_s: 1,
        hold_s: 0,
        away_s: 3_600,
        ..CircuitsConfig::default()
    };
}

/// 40 TB at alpha that beta wants, over a link that may have a circuit.
async fn world(change: impl FnOnce(&mut Config)) -> (World, Agent) {
    let world = World::with(change).await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    let beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    let lines: String = (0..40).map(|n| manifest_line(&format!("big/f{n:05}"), TB)).collect();
    let create = DatasetCreate { name: "big".parse().unwrap(), community: None };
    let _: DatasetView = world.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    world.register("big", Some("alpha"), lines).await.unwrap();
    (world, beta)
}

/// As the agent has it: nothing, or a circuit that is asked for or used.
fn link(state: CircuitState, asked: Option<Timestamp>) -> CircuitLink {
    let used = state == CircuitState::Established;
    let circuit = asked.map(|asked| Circuit {
        id: CIRCUIT.into(),
        why: "the service's plan requests it".into(),
        asked,
        asked_mbit: 10_000,
        granted: used.then_some(asked),
        booked_mbit: used.then_some(10_000),
        expires: None,
        used: used.then_some(asked),
        carried_bytes: 5 * TB,
        carried_s: 10.0,
        plain_bytes_per_s: Some(1e8),
        ended: None,
        end: None,
    });
    CircuitLink {
        source: "alpha".parse().unwrap(),
        provider: "nsi".into(),
        state,
        until: None,
        circuit,
        look: CircuitLook::default(),
        notes: Vec::new(),
        ended: Vec::new(),
        orders: Vec::new(),
        offer: Some(CircuitOffer {
            name: "exchange.example".into(),
            mbit: vec![10_000],
            lifetime_s: Some(36_000),
            own_line: false,
        }),
    }
}

fn with(link: CircuitLink, id: CircuitOrderId, state: CircuitOrderState) -> CircuitLink {
    CircuitLink { orders: vec![CircuitOrdered { id, state, words: String::new() }], ..link }
}

async fn tell(agent: &Agent, link: &CircuitLink) -> ReportReply {
    agent.report(&Report { circuits: vec![link.clone()], ..agent.empty_report() }).await.unwrap()
}

/// Tells the same again and again until the answer fits.
async fn tell_until(agent: &Agent, link: &CircuitLink, fits: impl Fn(&ReportReply) -> bool) -> ReportReply {
    let begun = tokio::time::Instant::now();
    loop {
        let reply = tell(agent, link).await;
        if fits(&reply) {
            return reply;
        }
        assert!(begun.elapsed() < WITHIN, "it never came: {reply:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn plan(world: &World) -> CircuitPlan {
    world.admin().request(&routes::CIRCUIT_PLAN).send().await.unwrap()
}

/// When the service has planned so many times more.
async fn plans(world: &World, count: usize) {
    let begun = tokio::time::Instant::now();
    let mut last = plan(world).await.planned;
    for _ in 0..count {
        loop {
            let planned = plan(world).await.planned;
            if planned != last {
                last = planned;
                break;
            }
            assert!(begun.elapsed() < WITHIN, "it plans no more");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn orders(world: &World) -> Vec<CircuitOrderView> {
    show(world).await.orders
}

async fn show(world: &World) -> CircuitDetail {
    world.admin().request(&routes::CIRCUIT_SHOW).parameter("alpha:beta").send().await.unwrap()
}

/// The plan's wish, once it is told.
async fn asked(beta: &Agent) -> CircuitOrder {
    let nothing = link(CircuitState::Off, None);
    let reply = tell_until(beta, &nothing, |reply| !reply.circuits.is_empty()).await;
    assert!(reply.circuits_planned);
    reply.circuits[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_asks_once_whatever_is_killed_and_gives_back_what_nothing_needs() {
    let (mut world, beta) = world(planned).await;
    let wish = world.subscribe("big", "beta").await;
    let order = asked(&beta).await;
    assert!(matches!(order.what, CircuitWish::Request { mbit: 10_000, .. }), "{order:?}");
    assert_eq!(order.by, "the service's plan");
    let detail = show(&world).await;
    let said = detail.plan.unwrap();
    assert_eq!(said.what, CircuitPlanAct::Keep);
    assert!(said.done.unwrap().words.contains("10000 Mbit/s asked for: 40.0 TB take"), "{}", said.why);
    // Killed before the agent said anything, while it asks, and while the circuit is used.
    let asked = beta.now();
    let stages = [
        (link(CircuitState::Off, None), None),
        (link(CircuitState::Requested, Some(asked)), Some(CircuitOrderState::Taken)),
        (link(CircuitState::Established, Some(asked)), Some(CircuitOrderState::Had)),
    ];
    for (link, state) in stages {
        world.crash().await;
        beta.hello(&[]).await.unwrap();
        let link = state.map_or(link.clone(), |state| with(link, order.id, state));
        let reply = tell(&beta, &link).await;
        assert_eq!(reply.circuits, std::slice::from_ref(&order), "the same, and nothing else");
        plans(&world, 2).await;
        assert_eq!(orders(&world).await.len(), 1);
    }
    let now = plan(&world).await;
    assert_eq!((now.level.as_str(), now.links[0].what), ("service", CircuitPlanAct::Keep), "{now:?}");
    assert_eq!((now.providers[0].circuits, now.providers[0].mbit), (1, 10_000));
    assert!(now.budgets[0].booked_gbit_h > 0.0);
    // Nothing is wanted any more.
    let change =
        SubscriptionChange { state: Some(SubscriptionState::Cancelled), ..SubscriptionChange::default() };
    let _: SubscriptionView = world
        .admin()
        .request(&routes::SUBSCRIPTION_CHANGE)
        .parameter(wish.id)
        .json(&change)
        .send()
        .await
        .unwrap();
    let used = with(link(CircuitState::Established, Some(asked)), order.id, CircuitOrderState::Had);
    let reply = tell_until(&beta, &used, |reply| reply.circuits.iter().any(|one| one.id != order.id)).await;
    let release = reply.circuits.into_iter().find(|one| one.id != order.id).unwrap();
    assert_eq!(release.what, CircuitWish::Release { circuit: CIRCUIT.into() });
    let said = show(&world).await.plan.unwrap().done.unwrap().words;
    assert!(said.starts_with("given back: what waits takes"), "{said}");
    // Until the agent says that it is gone, it counts as there; killed meanwhile, too.
    world.crash().await;
    beta.hello(&[]).await.unwrap();
    tell(&beta, &used).await;
    plans(&world, 1).await;
    assert_eq!(plan(&world).await.providers[0].circuits, 1);
    assert_eq!(orders(&world).await.len(), 2, "it is said once");
    let mut over = with(link(CircuitState::Resting, None), release.id, CircuitOrderState::Done);
    let ended = link(CircuitState::Established, Some(asked)).circuit.unwrap();
    over.ended = vec![Circuit { ended: Some(beta.now()), end: Some("given back".into()), ..ended }];
    tell_until(&beta, &over, |reply| reply.circuits.is_empty()).await;
    let begun = tokio::time::Instant::now();
    loop {
        tell(&beta, &over).await;
        let provider = plan(&world).await.providers.remove(0);
        if provider.circuits == 0 {
            assert!(provider.gained_bytes > 0, "{provider:?}");
            break;
        }
        assert!(begun.elapsed() < WITHIN, "it never ends: {provider:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_agents_decide_a_plan_is_only_told_and_one_from_before_is_given_back() {
    let (mut world, beta) = world(|_| {}).await;
    world.subscribe("big", "beta").await;
    tell(&beta, &link(CircuitState::Off, None)).await;
    let dry = plan(&world).await;
    assert_eq!((dry.level.as_str(), dry.planned), ("agent", None));
    assert_eq!((dry.links[0].what, dry.links[0].mbit), (CircuitPlanAct::Ask, Some(10_000)), "{dry:?}");
    assert!(dry.links[0].why.contains("40.0 TB take"), "{dry:?}");
    let reply = tell(&beta, &link(CircuitState::Off, None)).await;
    assert!(reply.circuits.is_empty() && !reply.circuits_planned);
    assert!(show(&world).await.plan.is_none() && orders(&world).await.is_empty());
    // The same service with the plan switched on, and off again.
    planned(&mut world.config);
    world.restart().await;
    beta.hello(&[]).await.unwrap();
    asked(&beta).await;
    world.config.circuits.level = Level::Agent;
    world.restart().await;
    beta.hello(&[]).await.unwrap();
    let reply = tell(&beta, &link(CircuitState::Off, None)).await;
    assert!(reply.circuits.is_empty() && !reply.circuits_planned);
    assert!(orders(&world).await.iter().all(|order| order.state.is_final()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_wants_comes_first_and_a_refusal_makes_the_link_rest() {
    let (world, beta) = world(planned).await;
    let request =
        CircuitRequest { source: "alpha".parse().unwrap(), target: "beta".into(), mbit: 300, seconds: 3_600 };
    let nothing = link(CircuitState::Off, None);
    tell(&beta, &nothing).await;
    let detail: CircuitDetail =
        world.admin().request(&routes::CIRCUIT_REQUEST).json(&request).send().await.unwrap();
    let person = detail.orders[0].id;
    world.subscribe("big", "beta").await;
    plans(&world, 3).await;
    assert_eq!(orders(&world).await.len(), 1);
    assert!(show(&world).await.plan.unwrap().why.contains("somebody else asked for"));
    tell(&beta, &with(nothing.clone(), person, CircuitOrderState::Failed)).await;
    let order = asked(&beta).await;
    // Refused, it is not asked for again at once, and why is told.
    let refused = CircuitLink {
        orders: vec![CircuitOrdered {
            id: order.id,
            state: CircuitOrderState::Failed,
            words: "10000 Mbit/s were refused: maintenance".into(),
        }],
        ..link(CircuitState::Resting, None)
    };
    tell(&beta, &refused).await;
    plans(&world, 2).await;
    assert!(tell(&beta, &refused).await.circuits.is_empty());
    let detail = show(&world).await;
    assert!(detail.plan.unwrap().why.contains("no circuit is asked for on this link until"));
    assert_eq!(detail.orders[0].words, "10000 Mbit/s were refused: maintenance");
}
