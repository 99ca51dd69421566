//! Space that is promised to subscriptions, where the storage has less.

use std::time::Duration;

use longhaul_api::agent::{Report, StorageSpace};
use longhaul_api::native::{Page, ProblemView, StorageView, Subscribe, SubscriptionView};
use longhaul_api::routes;
use longhaul_api::steering::{StorageChange, Terms};
use longhaul_model::{FaultCode, StorageName};

use crate::world::{Agent, World};

const FILE_BYTES: u64 = 1_000;

async fn report_free(agent: &Agent, free_bytes: u64) {
    let storage = agent.storages[0].name.clone();
    let space =
        StorageSpace { storage, total_bytes: 1_000_000, free_bytes, trouble: None, pools: Vec::new() };
    agent.report(&Report { spaces: vec![space], ..agent.empty_report() }).await.unwrap();
}

async fn space_problems(world: &World) -> Vec<ProblemView> {
    let problems = world.problems().await;
    problems.into_iter().filter(|problem| problem.fault.code == FaultCode::NoSpaceForRequest).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_beyond_the_free_space_is_accepted_with_a_warning_or_refused() {
    let mut world = World::new().await;
    let (alpha, beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
        // A work poll makes it present.
        agent.poll(Duration::from_millis(1)).await.unwrap();
    }
    report_free(&beta, 4 * FILE_BYTES).await;
    world.dataset("small", "alpha", 3).await;
    world.dataset("more", "alpha", 2).await;
    world.dataset("last", "alpha", 1).await;

    let fits = world.subscribe("small", "beta").await;
    assert_eq!(fits.space_warning, None);
    assert!(space_problems(&world).await.is_empty());
    let beyond = world.subscribe("more", "beta").await;
    let warning = beyond.space_warning.expect("5 kB are promised, 4 kB are free");
    assert!(warning.contains("5.00 kB") && warning.contains("4.00 kB"), "{warning}");
    let problems = space_problems(&world).await;
    assert_eq!((problems.len(), problems[0].storage.clone()), (1, Some("beta".parse().unwrap())));
    let storages: Page<StorageView> = world.admin().request(&routes::STORAGE_LIST).send().await.unwrap();
    let promised = |name: &str| {
        let name: StorageName = name.parse().unwrap();
        storages.items.iter().find(|row| row.name == name).unwrap().promised_bytes
    };
    assert_eq!((promised("beta"), promised("alpha")), (Some(5 * FILE_BYTES), Some(0)));

    let refuse = StorageChange { space_policy: Some("refuse".into()), ..StorageChange::default() };
    let changed: StorageView =
        world.admin().request(&routes::STORAGE_CHANGE).parameter("beta").json(&refuse).send().await.unwrap();
    assert_eq!(changed.space_policy.as_deref(), Some("refuse"));
    let wish = Subscribe {
        dataset: "last".parse().unwrap(),
        block: None,
        storage: "beta".parse().unwrap(),
        priority: None,
        verification: None,
        custodial: false,
        terms: Terms::default(),
    };
    let create = || async {
        world.admin().request(&routes::SUBSCRIPTION_CREATE).json(&wish).send::<SubscriptionView>().await
    };
    assert_eq!(create().await.unwrap_err().code, FaultCode::NoSpaceForRequest);
    report_free(&beta, 500_000).await;
    assert_eq!(create().await.unwrap().space_warning, None);
    assert!(space_problems(&world).await.is_empty());
    world.assert_sound().await;
    world.stop().await;
}
