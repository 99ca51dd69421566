//! Agents that look at each other, over the real protocol: who is asked to look at whom, what of it is shown
//! and believed, what stands as a problem and ends again; what transfers show of the ways; and the counters
//! of uplinks.

use std::sync::atomic::Ordering;

use crate::world::{Agent, World};
use longhaul_api::agent::{Report, ReportReply};
use longhaul_api::native::Status;
use longhaul_api::network::NetworkLinkDetail;
use longhaul_api::probe::{PathLimit, PathSample, ProbeAsked, ProbeResult, ProbedWay, Reach, UplinkSample};
use longhaul_api::routes;
use longhaul_model::{AgentId, FaultCode};

/// One turn of each agent later.
fn pass(world: &World, seconds: i64, agents: &mut [&mut Agent]) {
    world.shift_s.fetch_add(seconds, Ordering::Relaxed);
    agents.iter_mut().for_each(|agent| agent.clock_off_s += seconds);
}

async fn asked(agent: &Agent) -> Vec<ProbeAsked> {
    agent.report(&agent.empty_report()).await.unwrap().probe
}

fn way(reach: Reach, rtt_us: u32) -> ProbedWay {
    let answers = reach == Reach::Answers;
    ProbedWay {
        address: "192.0.2.7:7470".parse().unwrap(),
        reach,
        rtts_us: if answers { vec![rtt_us; 8] } else { Vec::new() },
        mtu: answers.then_some(1_400),
        black_hole: answers,
        hops: Vec::new(),
        unknown: Vec::new(),
    }
}

async fn found(agent: &Agent, peer: AgentId, way: ProbedWay) -> ReportReply {
    let result = ProbeResult { agent: peer, at: agent.now(), ways: vec![way], fault: None };
    agent.report(&Report { probes: vec![result], ..agent.empty_report() }).await.unwrap()
}

async fn unreachable(world: &World) -> Vec<String> {
    let status: Status = world.admin().request(&routes::STATUS).send().await.unwrap();
    let all = status.problems.into_iter().filter(|problem| problem.fault.code == FaultCode::Unreachable);
    all.map(|problem| problem.fault.detail).collect()
}

async fn link(world: &World) -> NetworkLinkDetail {
    let request = world.admin().request(&routes::NETWORK_LINK).parameter("alpha").parameter("beta");
    request.send().await.unwrap()
}

#[tokio::test]
async fn agents_take_turns_and_what_they_cannot_reach_is_a_problem_until_they_can() {
    let world = World::with(|config| config.probe_every_s = 10).await;
    let (mut alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    assert!(asked(&beta).await.is_empty(), "not at once");
    pass(&world, 10, &mut [&mut alpha, &mut beta]);
    assert_eq!(asked(&alpha).await.len(), 1);
    let peer = ProbeAsked { agent: alpha.id, addresses: vec!["127.0.0.1:9".into()] };
    assert_eq!(asked(&beta).await, [peer]);
    assert!(asked(&beta).await.is_empty(), "one in ten seconds");

    found(&beta, alpha.id, way(Reach::Answers, 20_000)).await;
    assert_eq!(unreachable(&world).await, Vec::<String>::new());
    let shown = link(&world).await;
    assert!((shown.link.rtt_us.unwrap() - 20_000.0).abs() < 1.0, "believed: {:?}", shown.link);
    assert!(shown.probes[0].remarks.iter().any(|line| line.contains("1400 bytes vanish")), "{shown:?}");
    let back: NetworkLinkDetail = {
        let request = world.admin().request(&routes::NETWORK_LINK).parameter("beta").parameter("alpha");
        request.send().await.unwrap()
    };
    assert_eq!(back.link.mtu, Some(1_400), "packets were sent from beta to alpha");
    assert!(back.advice.iter().any(|line| line.contains("1400 bytes vanish")), "{:?}", back.advice);

    pass(&world, 5, &mut [&mut alpha, &mut beta]);
    found(&beta, alpha.id, way(Reach::Silent, 0)).await;
    asked(&alpha).await;
    let problems = unreachable(&world).await;
    assert_eq!(problems.len(), 1);
    for words in ["beta (host.example) cannot reach alpha", "192.0.2.7:7470 is silent"] {
        assert!(problems[0].contains(words), "{problems:?}");
    }
    let shown = link(&world).await;
    assert!(shown.link.failure_share > 0.8, "the scheduler hears of it: {:?}", shown.link);
    assert!(shown.link.probed.unwrap().unreachable_since.is_some());
    assert!(shown.explanation.iter().any(|line| line.contains("no address of the source answers")));

    pass(&world, 5, &mut [&mut alpha, &mut beta]);
    found(&beta, alpha.id, way(Reach::Answers, 21_000)).await;
    asked(&alpha).await;
    assert_eq!(unreachable(&world).await, Vec::<String>::new(), "it is over");
    assert!(link(&world).await.link.failure_share < 0.1);
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_counted() {
    let world = World::new().await;
    let (alpha, beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    let at = beta.now();
    let future = ProbeResult {
        agent: alpha.id,
        at: at.plus(std::time::Duration::from_secs(3_600)),
        ways: vec![way(Reach::Answers, 20_000)],
        fault: None,
    };
    let nobody = ProbeResult { agent: AgentId(12_345), at, ..future.clone() };
    let itself = ProbeResult { agent: beta.id, at, ..future.clone() };
    let absurd = UplinkSample {
        interface: "eth0".into(),
        at,
        seconds: 30.0,
        into_bytes_per_s: 1e300,
        out_bytes_per_s: 0.0,
        capacity_bytes_per_s: None,
    };
    let report =
        Report { probes: vec![future, nobody, itself], uplinks: vec![absurd], ..beta.empty_report() };
    beta.report(&report).await.unwrap();
    assert!(link(&world).await.probes.is_empty());
    let metrics = world.service().operations().metrics();
    for line in [
        "longhaul_measurements_total{via=\"probe\",result=\"refused\"} 3",
        "longhaul_measurements_total{via=\"uplink\",result=\"refused\"} 1",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn what_transfers_show_of_a_way_is_known() {
    let world = World::new().await;
    let (alpha, beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    assert_eq!(link(&world).await.link.loss, None);
    let sample = PathSample {
        source: alpha.id,
        at: beta.now(),
        seconds: 30.0,
        ipv6: Some(false),
        streams: 2,
        bytes: 99_900 * 1_448,
        packets: 100_000,
        resent: 100,
        rtt_us: 50_000,
        limit: Some(PathLimit::ReceiveWindow),
    };
    let nobody = PathSample { source: AgentId(12_345), ..sample.clone() };
    let absurd = PathSample { seconds: 0.0, ..sample.clone() };
    let within = PathSample { source: beta.id, ..sample.clone() };
    let paths = vec![sample, nobody, absurd, within];
    beta.report(&Report { paths, ..beta.empty_report() }).await.unwrap();
    let shown = link(&world).await.link;
    assert!((shown.loss.unwrap() - 1e-3).abs() < 1e-5, "{shown:?}");
    assert!((shown.rtt_us.unwrap() - 50_000.0).abs() < 1.0, "{shown:?}");
    // 144.7 MB in 30 s, by two streams.
    assert!((shown.window_limit.unwrap() / 2.41e6 - 1.0).abs() < 0.01, "{shown:?}");
    assert!(shown.held_up_by.contains("window"), "{shown:?}");
    let metrics = world.service().operations().metrics();
    for (result, count) in [("taken", 1), ("refused", 2), ("unused", 1)] {
        let line = format!("longhaul_measurements_total{{via=\"transfers\",result=\"{result}\"}} {count}");
        assert!(metrics.contains(&line), "{metrics}");
    }
}

#[tokio::test]
async fn an_uplink_that_is_full_holds_its_links_up() {
    let world = World::new().await;
    let (alpha, beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    let sample = UplinkSample {
        interface: "eth0".into(),
        at: alpha.now(),
        seconds: 30.0,
        into_bytes_per_s: 1e6,
        out_bytes_per_s: 1.2e9,
        capacity_bytes_per_s: Some(1.25e9),
    };
    alpha.report(&Report { uplinks: vec![sample.clone()], ..alpha.empty_report() }).await.unwrap();
    let shown = link(&world).await;
    // Times have milliseconds on their way.
    let counted = UplinkSample { at: sample.at, ..shown.uplinks[0].sample.clone() };
    assert_eq!(counted, sample);
    assert!(shown.link.held_up_by.contains("uplink of the source's site"), "{:?}", shown.link);
    assert!(
        shown.explanation.iter().any(|line| line.contains("(96 %)") && line.contains("traffic of others")),
        "{:?}",
        shown.explanation
    );
    let metrics = world.service().operations().metrics();
    for (direction, rate) in [("in", "1000000"), ("out", "1200000000")] {
        let line =
            format!("longhaul_uplink_bytes_per_second{{site=\"alpha\",direction=\"{direction}\"}} {rate}");
        assert!(metrics.contains(&line), "{metrics}");
    }
}
