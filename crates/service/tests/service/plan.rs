//! The plan of circuits in the service: asked for once whatever is killed, given back, taken over, and
//! nothing where agents decide. With scripted agents.

use longhaul_api::agent::*;
use longhaul_api::circuits::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{CircuitOrderId, SubscriptionState, Timestamp};
use longhaul_service::{CircuitsConfig, Config, Level};

use crate::world::{Agent, World, manifest_line, until};

const CIRCUIT: &str = "00000000-0000-8000-8000-000000000011";
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
        next: None,
        look: CircuitLook::default(),
        notes: Vec::new(),
        ended: Vec::new(),
        orders: Vec::new(),
        offer: Some(CircuitOffer {
            name: "exchange.example".into(),
            mbit: vec![10_000],
            lifetime_s: Some(36_000),
            own_line: false,
            replaces: true,
        }),
    }
}

fn with(link: CircuitLink, id: CircuitOrderId, state: CircuitOrderState) -> CircuitLink {
    CircuitLink { orders: vec![CircuitOrdered { id, state, words: String::new() }], ..link }
}

async fn report_link(agent: &Agent, link: &CircuitLink) -> ReportReply {
    agent.report(&Report { circuits: vec![link.clone()], ..agent.empty_report() }).await.unwrap()
}

/// Tells the same again and again until the answer fits.
async fn report_until(agent: &Agent, link: &CircuitLink, fits: impl Fn(&ReportReply) -> bool) -> ReportReply {
    until("such an answer", async || {
        let reply = report_link(agent, link).await;
        if fits(&reply) { Ok(reply) } else { Err(format!("{reply:?}")) }
    })
    .await
}

async fn plan(world: &World) -> CircuitPlan {
    world.admin().request(&routes::CIRCUIT_PLAN).send().await.unwrap()
}

/// When the service has planned so many times more.
async fn plans(world: &World, count: usize) {
    let mut last = plan(world).await.planned;
    for _ in 0..count {
        last = until("another plan", async || {
            let planned = plan(world).await.planned;
            if planned == last { Err(format!("{last:?}")) } else { Ok(planned) }
        })
        .await;
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
    let reply = report_until(beta, &nothing, |reply| !reply.circuits.is_empty()).await;
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
        let reply = report_link(&beta, &link).await;
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
    let reply = report_until(&beta, &used, |reply| reply.circuits.iter().any(|one| one.id != order.id)).await;
    let release = reply.circuits.into_iter().find(|one| one.id != order.id).unwrap();
    assert_eq!(release.what, CircuitWish::Release { circuit: CIRCUIT.into() });
    let said = show(&world).await.plan.unwrap().done.unwrap().words;
    assert!(said.starts_with("given back: what waits takes"), "{said}");
    // Until the agent says that it is gone, it counts as there; killed meanwhile, too.
    world.crash().await;
    beta.hello(&[]).await.unwrap();
    report_link(&beta, &used).await;
    plans(&world, 1).await;
    assert_eq!(plan(&world).await.providers[0].circuits, 1);
    assert_eq!(orders(&world).await.len(), 2, "it is said once");
    let mut over = with(link(CircuitState::Resting, None), release.id, CircuitOrderState::Done);
    let ended = link(CircuitState::Established, Some(asked)).circuit.unwrap();
    over.ended = vec![Circuit { ended: Some(beta.now()), end: Some("given back".into()), ..ended }];
    report_until(&beta, &over, |reply| reply.circuits.is_empty()).await;
    until("the end of the circuit", async || {
        report_link(&beta, &over).await;
        let provider = plan(&world).await.providers.remove(0);
        if provider.circuits != 0 {
            return Err(format!("{provider:?}"));
        }
        assert!(provider.gained_bytes > 0, "{provider:?}");
        Ok(())
    })
    .await;
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_agents_decide_a_plan_is_only_told_and_one_from_before_is_given_back() {
    let (mut world, beta) = world(|_| {}).await;
    world.subscribe("big", "beta").await;
    report_link(&beta, &link(CircuitState::Off, None)).await;
    let dry = plan(&world).await;
    assert_eq!((dry.level.as_str(), dry.planned), ("agent", None));
    assert_eq!((dry.links[0].what, dry.links[0].mbit), (CircuitPlanAct::Ask, Some(10_000)), "{dry:?}");
    assert!(dry.links[0].why.contains("40.0 TB take"), "{dry:?}");
    let reply = report_link(&beta, &link(CircuitState::Off, None)).await;
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
    let reply = report_link(&beta, &link(CircuitState::Off, None)).await;
    assert!(reply.circuits.is_empty() && !reply.circuits_planned);
    assert!(orders(&world).await.iter().all(|order| order.state.is_final()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_wants_comes_first_and_a_refusal_makes_the_link_rest() {
    let (world, beta) = world(planned).await;
    let request = CircuitRequest {
        source: "alpha".parse().unwrap(),
        target: "beta".into(),
        mbit: 300,
        seconds: 3_600,
        replace: false,
    };
    let nothing = link(CircuitState::Off, None);
    report_link(&beta, &nothing).await;
    let detail: CircuitDetail =
        world.admin().request(&routes::CIRCUIT_REQUEST).json(&request).send().await.unwrap();
    let person = detail.orders[0].id;
    world.subscribe("big", "beta").await;
    plans(&world, 3).await;
    assert_eq!(orders(&world).await.len(), 1);
    assert!(show(&world).await.plan.unwrap().why.contains("somebody else asked for"));
    report_link(&beta, &with(nothing.clone(), person, CircuitOrderState::Failed)).await;
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
    report_link(&beta, &refused).await;
    plans(&world, 2).await;
    assert!(report_link(&beta, &refused).await.circuits.is_empty());
    let detail = show(&world).await;
    assert!(detail.plan.unwrap().why.contains("no circuit is asked for on this link until"));
    assert_eq!(detail.orders[0].words, "10000 Mbit/s were refused: maintenance");
}

const NEXT: &str = "00000000-0000-8000-8000-000000000012";

/// A link with a circuit of 5 Gbit/s that is used, or with none, where 40 Gbit/s can be had as well, or not
/// yet.
fn small(used: Option<Timestamp>, more: bool, orders: &[(&CircuitOrder, CircuitOrderState)]) -> CircuitLink {
    let state = if used.is_some() { CircuitState::Established } else { CircuitState::Off };
    let mut link = link(state, used);
    if let Some(circuit) = &mut link.circuit {
        (circuit.asked_mbit, circuit.booked_mbit) = (5_000, Some(5_000));
    }
    if let Some(offer) = &mut link.offer {
        offer.mbit = if more { vec![5_000, 40_000] } else { vec![5_000] };
    }
    let told = |(order, state): &(&CircuitOrder, CircuitOrderState)| CircuitOrdered {
        id: order.id,
        state: *state,
        words: String::new(),
    };
    link.orders = orders.iter().map(told).collect();
    link
}

fn next(asked: Timestamp) -> Circuit {
    let circuit = link(CircuitState::Established, Some(asked)).circuit.unwrap();
    let (asked_mbit, booked_mbit) = (40_000, Some(40_000));
    Circuit { id: NEXT.into(), asked_mbit, booked_mbit, carried_bytes: 0, carried_s: 0.0, ..circuit }
}

/// A circuit that is used, and the order for one that is to follow it.
async fn followed(world: &World, beta: &Agent) -> (CircuitOrder, CircuitOrder, Timestamp) {
    world.subscribe("big", "beta").await;
    let first = report_until(beta, &small(None, false, &[]), |reply| !reply.circuits.is_empty()).await;
    let first = first.circuits[0].clone();
    let used = beta.now();
    let told = small(Some(used), true, &[(&first, CircuitOrderState::Had)]);
    let reply = report_until(beta, &told, |reply| reply.circuits.len() == 2).await;
    let second = reply.circuits.into_iter().find(|order| order.id != first.id).unwrap();
    let CircuitWish::Request { mbit, replaces, .. } = &second.what else { panic!("{second:?}") };
    assert_eq!((*mbit, replaces.as_deref()), (40_000, Some(CIRCUIT)));
    (first, second, used)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_better_circuit_is_up_before_the_one_that_there_is_goes_whatever_is_killed() {
    use CircuitOrderState::{Done, Had, Taken};
    let (mut world, beta) = world(planned).await;
    let (first, second, used) = followed(&world, &beta).await;
    let words = show(&world).await.plan.unwrap().done.unwrap().words;
    assert!(words.contains("40 Gbit/s fit what waits better than 5 Gbit/s"), "{words}");
    // Killed while the second is asked for.
    let asked = beta.now();
    let mut both = small(Some(used), true, &[(&first, Had), (&second, Taken)]);
    both.next = Some(Circuit { granted: None, booked_mbit: None, used: None, ..next(asked) });
    report_link(&beta, &both).await;
    world.crash().await;
    beta.hello(&[]).await.unwrap();
    let reply = report_link(&beta, &both).await;
    assert_eq!(reply.circuits, [first.clone(), second.clone()], "the same, and nothing else");
    plans(&world, 2).await;
    assert_eq!(plan(&world).await.providers[0].circuits, 2, "both count");
    // The second is used, and the first given back.
    let mut after = small(Some(used), true, &[(&first, Done), (&second, Had)]);
    let over = after.circuit.replace(next(asked)).unwrap();
    after.ended =
        vec![Circuit { ended: Some(beta.now()), end: Some("another takes its place".into()), ..over }];
    let reply = report_until(&beta, &after, |reply| reply.circuits.len() == 1).await;
    assert_eq!(reply.circuits, [second]);
    plans(&world, 3).await;
    let provider = plan(&world).await.providers.remove(0);
    assert_eq!((provider.circuits, provider.mbit), (1, 40_000), "{provider:?}");
    assert_eq!(report_link(&beta, &after).await.circuits.len(), 1, "nothing is given back");
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_better_one_is_refused_the_one_that_there_is_stays() {
    use CircuitOrderState::{Failed, Had};
    let (world, beta) = world(planned).await;
    let (first, second, used) = followed(&world, &beta).await;
    let refused = small(Some(used), true, &[(&first, Had), (&second, Failed)]);
    let reply = report_until(&beta, &refused, |reply| reply.circuits.len() == 1).await;
    assert_eq!(reply.circuits, [first]);
    plans(&world, 4).await;
    let provider = plan(&world).await.providers.remove(0);
    assert_eq!((provider.circuits, provider.mbit), (1, 5_000), "{provider:?}");
    assert_eq!(report_link(&beta, &refused).await.circuits.len(), 1, "it is not asked for again at once");
}

/// A person may have another in place of the one that there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_replaces_a_circuit() {
    let (world, beta) = world(|_| {}).await;
    let used = beta.now();
    report_link(&beta, &small(Some(used), true, &[])).await;
    for (replace, replaces) in [(false, None), (true, Some(CIRCUIT))] {
        let request = CircuitRequest {
            source: "alpha".parse().unwrap(),
            target: "beta".into(),
            mbit: 300,
            seconds: 3_600,
            replace,
        };
        let _: CircuitDetail =
            world.admin().request(&routes::CIRCUIT_REQUEST).json(&request).send().await.unwrap();
        let orders = report_link(&beta, &small(Some(used), true, &[])).await.circuits;
        let CircuitWish::Request { replaces: told, .. } = &orders.last().unwrap().what else { panic!() };
        assert_eq!((told.as_deref(), orders.len()), (replaces, 1 + usize::from(replace)));
    }
}
