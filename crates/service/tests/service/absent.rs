//! Agents and sites that are away: whose turn that is, and what follows from it, as one problem.

use longhaul_api::agent::Report;
use longhaul_api::native::{SiteChange, SiteState, SiteView, Status};
use longhaul_api::routes;
use longhaul_model::{Blame, Fault, FaultCode};

use crate::world::World;

/// What its peers fail at is its turn then, and no problem beside it.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stops_is_one_problem_with_what_fails_for_it() {
    const FILES: usize = 3;
    let world = World::new().await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("d", "alpha", FILES).await;
    world.subscribe("d", "beta").await;
    let leases = beta.leases(FILES).await;
    alpha.report(&Report { ending: true, ..alpha.empty_report() }).await.unwrap();
    let mut failed = Vec::new();
    for (_, lease) in &leases {
        let fault = Fault::new(FaultCode::Unreachable, "127.0.0.1:9: no answer");
        failed.push(beta.outcome(lease, Some(fault)));
    }
    beta.send(failed).await.unwrap();

    let all = world.problems().await;
    let [problem] = &all[..] else { panic!("{all:#?}") };
    assert_eq!((problem.fault.code, problem.count), (FaultCode::Unreachable, 1 + FILES as u64));
    assert!(problem.fault.detail.contains("was stopped at"), "{problem:?}");
    assert_eq!(problem.storage, Some("alpha".parse().unwrap()));
    assert!(problem.remedy.contains("start the agent on host.example"), "{}", problem.remedy);
    let status: Status = world.admin().request(&routes::STATUS).send().await.unwrap();
    let failures = status.failures_by_blame.iter().filter(|row| row.count > 0);
    let failures: Vec<_> = failures.map(|row| (row.blame, row.count)).collect();
    assert_eq!(failures, [(Blame::Source, FILES as u64)]);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_site_is_a_problem_of_its_own_kind() {
    let world = World::new().await;
    world.agent("beta").await.hello(&[]).await.unwrap();
    let change = SiteChange { state: Some(SiteState::Paused), ..SiteChange::default() };
    let admin = world.admin();
    let _: SiteView =
        admin.request(&routes::SITE_CHANGE).parameter("beta").json(&change).send().await.unwrap();
    let all = world.problems().await;
    let [problem] = &all[..] else { panic!("{all:#?}") };
    assert_eq!(problem.fault.code, FaultCode::SitePaused);
    assert!(problem.remedy.ends_with("longhaul site resume beta"), "{}", problem.remedy);
}
