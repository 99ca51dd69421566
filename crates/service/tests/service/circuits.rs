//! What agents tell of their circuits, and what people want of them; with scripted agents.

use longhaul_api::Problem;
use longhaul_api::agent::*;
use longhaul_api::circuits::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_api::steering::AuditEntry;
use longhaul_model::Timestamp;

use crate::world::{Agent, World};

const FIRST: &str = "00000000-0000-8000-8000-000000000001";
const SECOND: &str = "00000000-0000-8000-8000-000000000002";

fn circuit(id: &str, asked: Timestamp) -> Circuit {
    Circuit {
        id: id.into(),
        why: "what waits takes 8.0 h".into(),
        asked,
        asked_mbit: 800,
        granted: Some(asked),
        booked_mbit: Some(800),
        expires: None,
        used: Some(asked),
        carried_bytes: 1_000,
        carried_s: 10.0,
        plain_bytes_per_s: Some(20.0),
        ended: None,
        end: None,
    }
}

fn link(circuit: Option<Circuit>) -> CircuitLink {
    CircuitLink {
        source: "alpha".parse().unwrap(),
        provider: "static".into(),
        state: if circuit.is_some() { CircuitState::Established } else { CircuitState::Off },
        until: None,
        circuit,
        next: None,
        look: CircuitLook { words: "1.1 TB wait".into(), ..CircuitLook::default() },
        notes: Vec::new(),
        ended: Vec::new(),
        orders: Vec::new(),
        offer: None,
    }
}

async fn report_circuits(agent: &Agent, circuits: Vec<CircuitLink>) -> ReportReply {
    agent.report(&Report { circuits, ..agent.empty_report() }).await.unwrap()
}

async fn list(world: &World) -> Vec<CircuitView> {
    let page: Page<CircuitView> = world.admin().request(&routes::CIRCUIT_LIST).send().await.unwrap();
    page.items
}

async fn show(world: &World, which: &str) -> Result<CircuitDetail, Problem> {
    world.admin().request(&routes::CIRCUIT_SHOW).parameter(which).send().await
}

async fn request(world: &World, source: &str, target: &str, mbit: u64) -> Result<CircuitDetail, Problem> {
    let (source, target) = (source.parse().unwrap(), target.to_owned());
    let request = CircuitRequest { source, target, mbit, seconds: 3_600, replace: false };
    world.admin().request(&routes::CIRCUIT_REQUEST).json(&request).send().await
}

async fn release(world: &World, which: &str) -> Result<CircuitDetail, Problem> {
    world.admin().request(&routes::CIRCUIT_RELEASE).parameter(which).send().await
}

async fn world() -> (World, Agent) {
    let world = World::new().await;
    world.agent("alpha").await.hello(&[]).await.unwrap();
    let beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    (world, beta)
}

/// What a run of an agent counts is added to what runs before it did, and what nobody tells of any more has
/// ended.
#[tokio::test(flavor = "multi_thread")]
async fn circuits_are_kept_over_restarts_of_agent_and_service() {
    let (mut world, beta) = world().await;
    let asked = beta.now();
    report_circuits(&beta, vec![link(Some(circuit(FIRST, asked)))]).await;
    let shown = list(&world).await.remove(0);
    assert_eq!((shown.link.as_str(), shown.gain_s, shown.connected), ("alpha:beta", Some(40.0), true));
    world.restart().await;
    let kept = list(&world).await.remove(0);
    assert_eq!((kept.circuit.as_ref(), kept.why.as_str()), (shown.circuit.as_ref(), "1.1 TB wait"));
    // Its next run knows what its book has, and counts from nothing.
    let beta = beta.started_again(2, 7);
    let (why, carried_bytes, carried_s) = (String::new(), 500, 5.0);
    let again = Circuit { why, carried_bytes, carried_s, plain_bytes_per_s: None, ..circuit(FIRST, asked) };
    let (hello, circuits) = (Some(beta.who(&[])), vec![link(Some(again.clone()))]);
    beta.report(&Report { hello, circuits, ..beta.empty_report() }).await.unwrap();
    let seen = list(&world).await.remove(0).circuit.unwrap();
    assert_eq!(
        (seen.carried_bytes, seen.carried_s, seen.why.as_str()),
        (1_500, 15.0, "what waits takes 8.0 h")
    );
    let later = Circuit { carried_bytes: 600, carried_s: 6.0, ..again };
    report_circuits(&beta, vec![link(Some(later))]).await;
    assert_eq!(show(&world, &FIRST[..30]).await.unwrap().link.unwrap().circuit.unwrap().carried_bytes, 1_600);
    // Killed, it gave it back, and has another now.
    report_circuits(&beta, vec![link(Some(circuit(SECOND, asked)))]).await;
    let over = show(&world, FIRST).await.unwrap().circuits.remove(0).circuit;
    assert!(over.ended.is_some() && over.end.unwrap().contains("started again"));
    // An end is told once more and changes nothing.
    let ended = Circuit { ended: Some(asked), end: Some("it expires".into()), ..circuit(SECOND, asked) };
    for _ in 0..2 {
        report_circuits(&beta, vec![CircuitLink { ended: vec![ended.clone()], ..link(None) }]).await;
    }
    let history: Page<CircuitRecord> = world.admin().request(&routes::CIRCUIT_HISTORY).send().await.unwrap();
    let ends: Vec<_> = history.items.iter().map(|record| record.circuit.end.clone().unwrap()).collect();
    assert_eq!((ends.len(), ends[0].as_str()), (2, "it expires"));
    // An agent that has no circuits any more says so with its hello.
    beta.hello(&[]).await.unwrap();
    assert!(list(&world).await.is_empty());
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_want_is_told_until_something_came_of_it() {
    let (mut world, beta) = world().await;
    report_circuits(&beta, vec![link(None)]).await;
    for (source, target, mbit, why) in [
        ("alpha", "beta", 0, "0 Mbit/s"),
        ("beta", "alpha", 100, "no link with circuits"),
        ("alpha", "nowhere", 100, "no link with circuits"),
    ] {
        let refused = request(&world, source, target, mbit).await.unwrap_err();
        assert!(refused.detail.contains(why), "{refused:?}");
    }
    let detail = request(&world, "alpha", "beta", 400).await.unwrap();
    let id = detail.orders[0].id;
    assert_eq!(detail.orders[0].state, CircuitOrderState::Sent);
    let wants = |reply: &ReportReply| reply.circuits.iter().map(|order| order.id).collect::<Vec<_>>();
    assert_eq!(wants(&report_circuits(&beta, vec![link(None)]).await), [id]);
    world.restart().await;
    beta.hello(&[]).await.unwrap();
    let ordered = |id, state, words: &str| CircuitLink {
        orders: vec![CircuitOrdered { id, state, words: words.into() }],
        ..link(None)
    };
    assert_eq!(wants(&report_circuits(&beta, vec![ordered(id, CircuitOrderState::Taken, "")]).await), [id]);
    // Another one stands in its place.
    let second = request(&world, "alpha", "beta", 300).await.unwrap().orders[0].id;
    assert_eq!(wants(&report_circuits(&beta, vec![link(None)]).await), [second]);
    let refused = "300 Mbit/s were refused: maintenance";
    assert_eq!(
        wants(&report_circuits(&beta, vec![ordered(second, CircuitOrderState::Failed, refused)]).await),
        []
    );
    let orders = show(&world, "alpha:beta").await.unwrap().orders;
    assert_eq!((orders[0].state, orders[0].words.as_str()), (CircuitOrderState::Failed, refused));
    assert!(orders[1].words.contains("wanted something else"), "{orders:?}");
    // There is nothing to give back; then there is.
    let nothing = release(&world, "alpha:beta").await.unwrap_err();
    assert!(nothing.detail.contains("no circuit on alpha:beta"), "{nothing:?}");
    let has = link(Some(circuit(FIRST, beta.now())));
    report_circuits(&beta, vec![has.clone()]).await;
    release(&world, SECOND).await.unwrap_err();
    release(&world, &FIRST[..8]).await.unwrap();
    let given = report_circuits(&beta, vec![has]).await.circuits.remove(0);
    assert_eq!(given.what, CircuitWish::Release { circuit: FIRST.into() });
    // Asked for in one breath: first the one, then the other.
    request(&world, "alpha", "beta", 300).await.unwrap();
    let both = report_circuits(&beta, vec![link(None)]).await;
    assert_eq!((both.circuits.len(), both.circuits[0].id), (2, given.id));
    let audit: Page<AuditEntry> = world.admin().request(&routes::AUDIT_LIST).send().await.unwrap();
    let said: Vec<&str> = audit.items.iter().map(|entry| entry.what.as_str()).collect();
    assert!(said[0].starts_with("circuit alpha:beta: 300 Mbit/s requested until"), "{said:?}");
    assert_eq!(said[1], "circuit alpha:beta: given back");
}

/// Whatever an agent says, what is known of others stays.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_and_the_rest_of_the_report_taken() {
    let (world, beta) = world().await;
    let good = circuit(FIRST, beta.now());
    let with = |change: &dyn Fn(&mut CircuitLink)| {
        let mut link = link(Some(good.clone()));
        change(&mut link);
        link
    };
    let long = "x".repeat(TEXT_BYTES_MAX + 1);
    let of = |link: &mut CircuitLink| link.circuit.clone().unwrap();
    let wrong: Vec<CircuitLink> = vec![
        with(&|link| link.provider = "magic".into()),
        with(&|link| link.look.words = long.clone()),
        with(&|link| link.notes = vec![CircuitNote { at: good.asked, words: long.clone() }]),
        with(&|link| link.notes = vec![CircuitNote { at: good.asked, words: "x".into() }; NOTES_MAX + 1]),
        with(&|link| link.circuit = Some(Circuit { id: "../../etc".into(), ..of(link) })),
        with(&|link| link.circuit = Some(Circuit { booked_mbit: Some(u64::MAX), ..of(link) })),
        with(&|link| link.circuit = Some(Circuit { carried_s: -1.0, ..of(link) })),
        with(&|link| link.circuit = Some(Circuit { plain_bytes_per_s: Some(1e300), ..of(link) })),
        with(&|link| {
            link.circuit = Some(Circuit { asked: Timestamp(good.asked.0 + 86_400_000_000), ..of(link) })
        }),
        with(&|link| link.ended = vec![of(link)]),
    ];
    for link in wrong {
        report_circuits(&beta, vec![link.clone()]).await;
        assert!(list(&world).await.is_empty(), "{link:?}");
    }
    // Said twice, the first counts; and nothing of it reaches a terminal as it is.
    let odd = with(&|link| link.look.words = "a\u{1b}[2Jb".into());
    report_circuits(&beta, vec![odd, link(None)]).await;
    let shown = list(&world).await.remove(0);
    assert!(shown.circuit.is_some() && !shown.why.contains('\u{1b}'), "{shown:?}");
    // A name that is another's stays that one's.
    let alpha = world.agent("gamma").await;
    alpha.hello(&[]).await.unwrap();
    let claimed = Circuit { carried_bytes: 9_000_000, ..good };
    report_circuits(&alpha, vec![CircuitLink { source: "beta".parse().unwrap(), ..link(Some(claimed)) }])
        .await;
    assert_eq!(show(&world, FIRST).await.unwrap().circuits[0].circuit.carried_bytes, 1_000);
    for name in ["", "alpha", ":", "alpha:", "alpha:\u{1b}", "00000000-0000-8000-8000-00000000000f"] {
        assert!(show(&world, name).await.is_err(), "{name}");
    }
}
