//! A copy counts as a good one once it was verified, and while the agent that holds it is connected.

use longhaul_api::Problem;
use longhaul_api::agent::{CheckedFile, Fact, Report, TaskKind};
use longhaul_api::native::{DeletionReply, DeletionRequest, TaskView, VerificationRequest};
use longhaul_api::routes;
use longhaul_model::FaultCode;

use crate::world::{Agent, World, manifest_line};

async fn delete_at_alpha(world: &World, dry_run: bool) -> Result<DeletionReply, Problem> {
    let request = DeletionRequest {
        dataset: "d".parse().unwrap(),
        storage: "alpha".parse().unwrap(),
        dry_run,
        force: false,
    };
    world.admin().request(&routes::DELETION_CREATE).json(&request).send().await
}

/// Files at alpha that no other storage has a good copy of, and why the copies at beta are none.
async fn last_replicas(world: &World) -> (u64, Option<String>) {
    let reply = delete_at_alpha(world, true).await.unwrap();
    let at_beta = reply.copies.iter().find(|copy| !copy.to_delete).unwrap();
    (reply.last_replicas, at_beta.reason.clone())
}

/// The agent reads all files of the dataset again, and finds them good.
async fn verify(world: &World, agent: &mut Agent, storage: &str) {
    let request = VerificationRequest { dataset: "d".parse().unwrap(), storage: storage.parse().unwrap() };
    let _: TaskView =
        world.admin().request(&routes::VERIFICATION_CREATE).json(&request).send().await.unwrap();
    let task = agent.task().await;
    let TaskKind::Verify { files } = &task.kind else { panic!("{task:?}") };
    let files = files.iter().map(|file| CheckedFile { lfn: file.lfn.clone(), fault: None }).collect();
    let entries = vec![
        agent.entry(Fact::Checked { task: task.id, files }),
        agent.entry(Fact::TaskDone { task: task.id, fault: None }),
    ];
    agent.send(entries).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_counts_once_it_is_verified_and_while_its_agent_is_connected() {
    let world = World::new().await;
    let (mut alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("d", "alpha", 3).await;
    verify(&world, &mut alpha, "alpha").await;
    let manifest: String = (0..3).map(|n| manifest_line(&format!("d/f{n:05}"), 1_000)).collect();
    assert_eq!(world.register("d", Some("beta"), manifest).await.unwrap().files_known, 3);
    let claimed = "claimed when it was registered, never verified";
    assert_eq!(last_replicas(&world).await, (3, Some(claimed.to_owned())));
    let problem = delete_at_alpha(&world, false).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::LastReplica, "{problem}");

    verify(&world, &mut beta, "beta").await;
    assert_eq!(last_replicas(&world).await, (0, None));

    let ending = Report { ending: true, ..beta.empty_report() };
    beta.report(&ending).await.unwrap();
    let away = "its agent is not connected";
    assert_eq!(last_replicas(&world).await, (3, Some(away.to_owned())));
    let problem = delete_at_alpha(&world, false).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::LastReplica, "{problem}");
    assert!(problem.detail.contains(&format!("beta: {away}")), "{problem}");
    world.assert_sound().await;
}
