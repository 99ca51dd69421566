//! What an agent says about things of other sites, or with numbers that cannot be, harms nobody.

use longhaul_api::agent::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{Fault, FaultCode};

use crate::world::World;

async fn problems(world: &World) -> Vec<ProblemView> {
    let page: Page<ProblemView> = world.admin().request(&routes::PROBLEM_LIST).send().await.unwrap();
    page.items
}

/// Pages of a verification are turned by its own agent, and once each.
#[tokio::test(flavor = "multi_thread")]
async fn claims_about_other_sites_change_nothing_and_are_a_problem_of_who_makes_them() {
    let world = World::new().await;
    let (mut alpha, mut gamma) = (world.agent("alpha").await, world.agent("gamma").await);
    alpha.hello(&[]).await.unwrap();
    gamma.hello(&[]).await.unwrap();
    world.dataset("d", "alpha", 3).await;
    let verify = VerificationRequest { dataset: "d".parse().unwrap(), storage: "alpha".parse().unwrap() };
    let view: TaskView =
        world.admin().request(&routes::VERIFICATION_CREATE).json(&verify).send().await.unwrap();
    let task = alpha.task().await;
    let TaskKind::Verify { files } = &task.kind else { panic!("{task:?}") };
    let bad = |file: &ExpectedFile| CheckedFile {
        lfn: file.lfn.clone(),
        fault: Some(Fault::new(FaultCode::WrongDigest, "made up")),
    };
    let checked: Vec<CheckedFile> = files.iter().map(bad).collect();
    let before = problems(&world).await.len();
    let entries = vec![
        gamma.entry(Fact::Checked { task: task.id, files: checked }),
        gamma.entry(Fact::TaskDone { task: task.id, fault: None }),
    ];
    let reply = gamma.send(entries).await.unwrap();
    assert_eq!(reply.acknowledged, 2, "the sequence goes on");
    let show = || async {
        world.admin().request(&routes::TASK_SHOW).parameter(view.id).send::<TaskView>().await.unwrap()
    };
    let shown = show().await;
    assert!(!shown.done && shown.files_bad == 0, "{shown:?}");
    assert_eq!(problems(&world).await.len(), before, "two may be anything");
    let entries = vec![gamma.entry(Fact::TaskDone { task: task.id, fault: None })];
    gamma.send(entries).await.unwrap();
    let problems = problems(&world).await;
    let told = problems.iter().find(|problem| problem.fault.code == FaultCode::NotAllowed).unwrap();
    assert_eq!((told.count, told.storage.as_ref().unwrap().as_str()), (3, "gamma"));
    let good = files.iter().map(|file| CheckedFile { lfn: file.lfn.clone(), fault: None }).collect();
    let entries = vec![
        alpha.entry(Fact::Checked { task: task.id, files: good }),
        alpha.entry(Fact::TaskDone { task: task.id, fault: None }),
    ];
    alpha.send(entries).await.unwrap();
    let shown = show().await;
    assert!(shown.done && shown.files_done == 3, "{shown:?}");
    world.assert_sound().await;
}

/// One report with counts that no sum holds, and whatever else cannot be: what comes after it is written.
#[tokio::test(flavor = "multi_thread")]
async fn no_number_of_an_agent_stops_the_service() {
    let world = World::new().await;
    let mut alpha = world.agent("alpha").await;
    alpha.hello(&[]).await.unwrap();
    let now = alpha.now();
    let decision = || DoorDecision {
        storage: "alpha".parse().unwrap(),
        allowed: true,
        since: now,
        at: now,
        times: u64::MAX,
        who: "anna".into(),
        credential: "token".into(),
        origin: String::new(),
        operation: "door GET".into(),
        object: "/x".into(),
        why: String::new(),
    };
    let entries = vec![alpha.entry(Fact::Decided { decisions: vec![decision(), decision()] })];
    let space = StorageSpace {
        storage: "alpha".parse().unwrap(),
        total_bytes: u64::MAX,
        free_bytes: u64::MAX,
        trouble: None,
    };
    let report = Report { entries, spaces: vec![space], ..alpha.empty_report() };
    assert_eq!(alpha.report(&report).await.unwrap().acknowledged, 1);
    let entries = vec![alpha.entry(Fact::Decided { decisions: vec![decision()] })];
    assert_eq!(alpha.send(entries).await.unwrap().acknowledged, 2);
    world.dataset("d", "alpha", 1).await;
    world.assert_sound().await;
}
