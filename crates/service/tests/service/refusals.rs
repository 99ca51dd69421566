//! A stolen key: the agent is refused everywhere and at once, and another agent goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::agent::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{AgentId, FaultCode, Lfn};
use longhaul_security::new_signing_request;

use crate::world::{Agent, World};

async fn refuse(world: &World, agent: AgentId, dry_run: bool) -> AgentRefused {
    let request = AgentRefusal { reason: "its key was stolen".into(), dry_run };
    world.admin().request(&routes::AGENT_REFUSE).parameter(agent).json(&request).send().await.unwrap()
}

fn assert_refused<T>(answer: Result<T, Problem>, what: &str) {
    let Err(problem) = answer else { panic!("{what} is answered") };
    assert_eq!((problem.status, problem.code), (403, FaultCode::NotAllowed), "{what}: {problem}");
    assert!(problem.detail.contains("its key was stolen"), "{problem}");
}

async fn renew(agent: &Agent) -> Result<RenewReply, Problem> {
    let (signing_request, _) = new_signing_request().unwrap();
    let request = RenewRequest { signing_request };
    agent.client.request(&routes::AGENT_RENEW).json(&request).send().await
}

/// On connections that are open, and in the poll that waits; after a restart of the service, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_agent_is_answered_nothing_any_more() {
    let mut world = World::new().await;
    let (alpha, beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    let mut thief = beta.started_again(1, 11);
    // Its settings come first; then the poll waits for work.
    thief.received = thief.poll(Duration::from_secs(20)).await.unwrap().number;
    let poll = tokio::spawn(async move { thief.poll(Duration::from_secs(20)).await });
    let preview = refuse(&world, beta.id, true).await;
    assert!(!preview.refused && renew(&beta).await.is_ok(), "a dry run changes nothing");
    assert!(refuse(&world, beta.id, false).await.refused);
    assert_refused(poll.await.unwrap(), "the poll");
    assert_refused(beta.report(&beta.empty_report()).await, "a report");
    assert_refused(beta.started_again(2, 12).hello(&[]).await, "the hello of another start");
    assert_refused(renew(&beta).await, "a renewal");
    assert_eq!(alpha.report(&alpha.empty_report()).await.unwrap().refused, [beta.id], "peers know");
    world.restart().await;
    assert_refused(beta.started_again(3, 13).hello(&[]).await, "a hello to another process");
    assert_eq!(alpha.hello(&[]).await.unwrap().refused, [beta.id]);
    world.assert_sound().await;
}

/// Its leases come to another agent of the site, and what it reports of them late changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn another_agent_goes_on_where_a_refused_one_stopped() {
    let world = World::new().await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("demo/set1", "alpha", 3).await;
    let subscription = world.subscribe("demo/set1", "beta").await;
    let leases = beta.leases(3).await;
    let preview = refuse(&world, beta.id, true).await;
    assert_eq!((preview.leases_in, preview.leases_out, preview.subscriptions), (3, 0, 1));
    assert_eq!(preview.storages, ["beta".parse().unwrap()]);
    refuse(&world, beta.id, false).await;
    let late = beta.done(&leases[0].1);
    assert_refused(beta.send(vec![late]).await, "a late outcome");
    assert_eq!(world.subscription(&subscription.id).await.files_present, 0);
    let [problem] = &world.problems().await[..] else { panic!("one problem: nobody has the storage") };
    assert!(problem.fault.detail.contains("is refused since"), "{problem:?}");
    assert!(problem.remedy.ends_with("longhaul site add beta --another-agent"), "{}", problem.remedy);
    let mut next = world.agent("beta").await;
    next.hello(&[]).await.unwrap();
    assert!(world.problems().await.is_empty(), "nobody misses the refused one");
    let site: SiteView = world.admin().request(&routes::SITE_SHOW).parameter("beta").send().await.unwrap();
    let refused = |id| site.agents.iter().find(|agent| agent.id == id).unwrap().refused_since.is_some();
    assert!(refused(beta.id) && !refused(next.id));
    let again = next.leases(3).await;
    let entries = again.iter().map(|(_, lease)| next.done(lease)).collect();
    next.send(entries).await.unwrap();
    assert!(world.subscription(&subscription.id).await.complete);
    world.assert_sound().await;
}

/// In the middle: some files are done, some are under way, some have not begun. What it reported counts, the
/// rest comes to the next agent once, and nothing that it says late.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_refused_in_the_middle_of_a_hundred_leases() {
    const FILES: usize = 100;
    const DONE: usize = 40;
    let mut world = World::new().await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("demo/set1", "alpha", FILES).await;
    let subscription = world.subscribe("demo/set1", "beta").await;
    let leases = beta.leases(FILES).await;
    assert_eq!(leases.len(), FILES);
    let done = leases[..DONE].iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.send(done).await.unwrap();
    let preview = refuse(&world, beta.id, true).await;
    assert_eq!((preview.leases_in, preview.subscriptions), ((FILES - DONE) as u64, 1));
    refuse(&world, beta.id, false).await;
    let late = leases[DONE..].iter().map(|(_, lease)| beta.done(lease)).collect();
    assert_refused(beta.send(late).await, "late outcomes");
    assert_eq!(world.subscription(&subscription.id).await.files_present, DONE as u64);
    world.restart().await;
    alpha.started_again(2, 12).hello(&[]).await.unwrap();
    let mut next = world.agent("beta").await;
    next.hello(&[]).await.unwrap();
    let again = next.leases(FILES - DONE).await;
    let files = |leases: &[(Arc<LeaseBatch>, Lease)]| -> BTreeSet<Lfn> {
        leases.iter().map(|(_, lease)| lease.lfn.clone()).collect()
    };
    assert_eq!(again.len(), FILES - DONE);
    assert_eq!(files(&again), files(&leases[DONE..]), "the same files, each once");
    let entries = again.iter().map(|(_, lease)| next.done(lease)).collect();
    next.send(entries).await.unwrap();
    assert!(world.subscription(&subscription.id).await.complete);
    world.assert_sound().await;
}

/// What others were to read from it waits for its storage's next agent; their leases are withdrawn, also from
/// agents that know nothing of refusals.
#[tokio::test(flavor = "multi_thread")]
async fn leases_from_a_refused_source_are_withdrawn() {
    let world = World::new().await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("demo/set1", "alpha", 2).await;
    world.subscribe("demo/set1", "beta").await;
    let leases = beta.leases(2).await;
    assert_eq!(refuse(&world, alpha.id, true).await.leases_out, 2);
    refuse(&world, alpha.id, false).await;
    let mut withdrawn = Vec::new();
    while withdrawn.len() < 2 {
        let work = beta.poll(Duration::from_secs(20)).await.unwrap();
        assert!(work.number > beta.received, "nothing is withdrawn");
        beta.received = work.number;
        withdrawn.extend(work.cancel);
    }
    withdrawn.sort();
    let mut leased: Vec<_> = leases.iter().map(|(_, lease)| lease.attempt).collect();
    leased.sort();
    assert_eq!(withdrawn, leased);
    world.assert_sound().await;
}
