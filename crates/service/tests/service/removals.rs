//! Sites, storages and agents that are removed for good.

use longhaul_api::Problem;
use longhaul_api::agent::Report;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{AgentId, FaultCode, SubscriptionState};

use crate::world::World;

async fn remove(world: &World, storage: &str, dry_run: bool, force: bool) -> Result<StorageRemoved, Problem> {
    let request = StorageRemoval { dry_run, force };
    world.admin().request(&routes::STORAGE_REMOVE).parameter(storage).json(&request).send().await
}

async fn storages(world: &World) -> Vec<String> {
    let page: Page<StorageView> = world.admin().request(&routes::STORAGE_LIST).send().await.unwrap();
    page.items.iter().map(|row| row.name.to_string()).collect()
}

/// Step by step: while its agent runs, while something is subscribed there, and with the last good copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_storage_is_removed_once_nothing_depends_on_it() {
    let mut world = World::new().await;
    let (alpha, beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("demo/set1", "beta", 3).await;
    world.dataset("demo/set2", "alpha", 2).await;
    let wish = world.subscribe("demo/set2", "beta").await;
    let told = remove(&world, "beta", true, false).await.unwrap();
    assert!(!told.removed && told.served_by == Some(beta.id));
    assert_eq!((told.files, told.last_replicas, &told.subscriptions[..]), (3, 3, &[wish.id][..]));
    let problem = remove(&world, "beta", false, true).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.detail.contains("which is connected: stop that agent"), "{problem}");
    let ending = Report { ending: true, ..beta.empty_report() };
    beta.report(&ending).await.unwrap();
    let problem = remove(&world, "beta", false, true).await.unwrap_err();
    assert_eq!(problem.remedy, format!("end it: longhaul subscription cancel {}", wish.id), "{problem}");
    let change = SubscriptionChange { state: Some(SubscriptionState::Cancelled), ..Default::default() };
    let _: SubscriptionView = world
        .admin()
        .request(&routes::SUBSCRIPTION_CHANGE)
        .parameter(wish.id)
        .json(&change)
        .send()
        .await
        .unwrap();
    let problem = remove(&world, "beta", false, false).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::LastReplica, "{problem}");
    assert_eq!(storages(&world).await, ["alpha", "beta"]);
    assert!(remove(&world, "beta", false, true).await.unwrap().removed);
    assert_eq!(storages(&world).await, ["alpha"]);
    world.restart().await;
    assert_eq!(storages(&world).await, ["alpha"]);
    // What offers the name now is a new storage, and has nothing of the old.
    beta.started_again(2, 12).hello(&[]).await.unwrap();
    assert_eq!(remove(&world, "beta", true, false).await.unwrap().files, 0);
    world.assert_sound().await;
}

/// Not while it runs. Afterwards it is refused like a thief, and the site's next agent goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_removed_when_it_is_stopped_or_refused() {
    let mut world = World::new().await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("demo/set1", "alpha", 3).await;
    let wish = world.subscribe("demo/set1", "beta").await;
    beta.leases(3).await;
    let remove = async |world: &World, agent: AgentId, dry_run| -> Result<AgentRemoved, Problem> {
        let request = AgentRemoval { dry_run };
        world.admin().request(&routes::AGENT_REMOVE).parameter(agent).json(&request).send().await
    };
    let told = remove(&world, beta.id, true).await.unwrap();
    assert!(!told.removed && told.connected);
    assert_eq!((told.leases_in, told.subscriptions, told.storages.len()), (3, 1, 1));
    let problem = remove(&world, beta.id, false).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.remedy.ends_with(&format!("longhaul agent refuse {} --yes", beta.id)), "{problem}");
    let ending = Report { ending: true, ..beta.empty_report() };
    beta.report(&ending).await.unwrap();
    assert!(remove(&world, beta.id, false).await.unwrap().removed);
    let site: SiteView = world.admin().request(&routes::SITE_SHOW).parameter("beta").send().await.unwrap();
    assert_eq!((site.agents.len(), site.storages.len()), (0, 1));
    let problem = beta.started_again(2, 12).hello(&[]).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::NotAllowed, "{problem}");
    assert_eq!(alpha.report(&alpha.empty_report()).await.unwrap().refused, [beta.id], "peers know");
    world.restart().await;
    let problem = beta.started_again(3, 13).hello(&[]).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::NotAllowed, "{problem}");
    alpha.started_again(2, 12).hello(&[]).await.unwrap();
    let mut next = world.agent("beta").await;
    next.hello(&[]).await.unwrap();
    let again = next.leases(3).await;
    let entries = again.iter().map(|(_, lease)| next.done(lease)).collect();
    next.send(entries).await.unwrap();
    assert!(world.subscription(&wish.id).await.complete);
    // A refused one can be removed at once.
    let refusal = AgentRefusal { reason: "stolen".into(), dry_run: false };
    let admin = world.admin();
    let _: AgentRefused =
        admin.request(&routes::AGENT_REFUSE).parameter(next.id).json(&refusal).send().await.unwrap();
    assert!(remove(&world, next.id, false).await.unwrap().removed);
    world.assert_sound().await;
}

async fn remove_site(world: &World, dry_run: bool, force: bool) -> Result<SiteRemoved, Problem> {
    let request = SiteRemoval { dry_run, force };
    world.admin().request(&routes::SITE_REMOVE).parameter("beta").json(&request).send().await
}

/// While it receives: its agent is refused, its subscriptions end, then it goes with all it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_site_is_removed_while_it_receives() {
    let mut world = World::new().await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("demo/set1", "alpha", 3).await;
    let wish = world.subscribe("demo/set1", "beta").await;
    beta.leases(3).await;
    let told = remove_site(&world, true, false).await.unwrap();
    assert!(!told.removed && told.connected == [beta.id] && told.agents == [beta.id]);
    assert_eq!((told.storages[0].leases_in, told.storages[0].subscriptions.len()), (3, 1));
    let problem = remove_site(&world, false, true).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.remedy.ends_with(&format!("longhaul agent refuse {} --yes", beta.id)), "{problem}");
    let refusal = AgentRefusal { reason: "its site is given up".into(), dry_run: false };
    let admin = world.admin();
    let _: AgentRefused =
        admin.request(&routes::AGENT_REFUSE).parameter(beta.id).json(&refusal).send().await.unwrap();
    let problem = remove_site(&world, false, true).await.unwrap_err();
    assert_eq!(problem.remedy, format!("end it: longhaul subscription cancel {}", wish.id), "{problem}");
    let change = SubscriptionChange { state: Some(SubscriptionState::Cancelled), ..Default::default() };
    let _: SubscriptionView =
        admin.request(&routes::SUBSCRIPTION_CHANGE).parameter(wish.id).json(&change).send().await.unwrap();
    assert!(remove_site(&world, false, false).await.unwrap().removed);
    assert_eq!(storages(&world).await, ["alpha"]);
    let shown: Result<SiteView, Problem> = admin.request(&routes::SITE_SHOW).parameter("beta").send().await;
    assert_eq!(shown.unwrap_err().code, FaultCode::NotFound);
    world.restart().await;
    let problem = beta.started_again(2, 12).hello(&[]).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::NotAllowed, "{problem}");
    alpha.started_again(2, 12).hello(&[]).await.unwrap();
    // A site of that name is another one, and works.
    let mut next = world.agent("beta").await;
    next.hello(&[]).await.unwrap();
    let wish = world.subscribe("demo/set1", "beta").await;
    let leases = next.leases(3).await;
    let entries = leases.iter().map(|(_, lease)| next.done(lease)).collect();
    next.send(entries).await.unwrap();
    assert!(world.subscription(&wish.id).await.complete);
    world.assert_sound().await;
}
