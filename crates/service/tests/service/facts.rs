//! What an agent says about things of other sites, or with numbers that cannot be, harms nobody.

use longhaul_api::agent::*;
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{Fault, FaultCode};

use crate::world::{Agent, World};

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
    let before = world.problems().await.len();
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
    assert_eq!(world.problems().await.len(), before, "two may be anything");
    let entries = vec![gamma.entry(Fact::TaskDone { task: task.id, fault: None })];
    gamma.send(entries).await.unwrap();
    let problems = world.problems().await;
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

/// Files of a page that another site has skipped would never be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_task_is_turned_by_its_own_agent_alone() {
    /// More than a page holds.
    const FILES: usize = 2_001;
    let world = World::new().await;
    let (mut alpha, mut gamma) = (world.agent("alpha").await, world.agent("gamma").await);
    for agent in [&alpha, &gamma] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("d", "alpha", FILES).await;
    let verify = VerificationRequest { dataset: "d".parse().unwrap(), storage: "alpha".parse().unwrap() };
    let view: TaskView =
        world.admin().request(&routes::VERIFICATION_CREATE).json(&verify).send().await.unwrap();
    let show = async || {
        world.admin().request(&routes::TASK_SHOW).parameter(view.id).send::<TaskView>().await.unwrap()
    };
    let first = alpha.task().await;
    let foreign = gamma.entry(Fact::TaskDone { task: first.id, fault: None });
    gamma.send(vec![foreign]).await.unwrap();
    let verified = verified_page(&mut alpha, &first);
    alpha.send(verified).await.unwrap();
    assert!(!show().await.done, "the other pages have been skipped");
    // A page may come once more: its parcel was not acknowledged when the next was asked for.
    while !show().await.done {
        let page = alpha.task().await;
        let verified = verified_page(&mut alpha, &page);
        alpha.send(verified).await.unwrap();
    }
    let shown = show().await;
    assert!(shown.done && shown.files_done == FILES as u64, "{shown:?}");
    world.assert_sound().await;
}

/// All files of the page are good, and the page is done.
fn verified_page(agent: &mut Agent, page: &Task) -> Vec<Entry> {
    let TaskKind::Verify { files } = &page.kind else { panic!("{page:?}") };
    let files = files.iter().map(|file| CheckedFile { lfn: file.lfn.clone(), fault: None }).collect();
    let facts = [Fact::Checked { task: page.id, files }, Fact::TaskDone { task: page.id, fault: None }];
    facts.map(|fact| agent.entry(fact)).into()
}

/// A target's word makes no replica of another site suspect: the source's own agent reads the file at once,
/// and what it finds holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_a_target_finds_bad_is_verified_by_its_own_agent() {
    let world = World::new().await;
    let (mut alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    world.dataset("d", "alpha", 2).await;
    world.subscribe("d", "beta").await;
    let leases = beta.leases(2).await;
    let (lease, lfn) = (&leases[0].1, &leases[0].1.lfn);
    let is_suspect = async || {
        let request = world.admin().request(&routes::REPLICA_OF_FILE).query("lfn", lfn.as_str());
        let file: FileReplicas = request.send().await.unwrap();
        file.replicas[0].suspect
    };
    let bad = Fault::new(FaultCode::WrongDigest, "adler32 differs");
    let accusation = beta.outcome(lease, Some(bad.clone()));
    beta.send(vec![accusation]).await.unwrap();
    assert!(!is_suspect().await, "by the word of a target alone");
    let task = alpha.task().await;
    let TaskKind::Verify { files } = &task.kind else { panic!("{task:?}") };
    assert_eq!(files.iter().map(|file| &file.lfn).collect::<Vec<_>>(), [lfn]);
    let found = vec![CheckedFile { lfn: lfn.clone(), fault: Some(bad) }];
    let entries = vec![
        alpha.entry(Fact::Checked { task: task.id, files: found }),
        alpha.entry(Fact::TaskDone { task: task.id, fault: None }),
    ];
    alpha.send(entries).await.unwrap();
    assert!(is_suspect().await);
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
        pools: Vec::new(),
    };
    let report = Report { entries, spaces: vec![space], ..alpha.empty_report() };
    assert_eq!(alpha.report(&report).await.unwrap().acknowledged, 1);
    let entries = vec![alpha.entry(Fact::Decided { decisions: vec![decision()] })];
    assert_eq!(alpha.send(entries).await.unwrap().acknowledged, 2);
    world.dataset("d", "alpha", 1).await;
    world.assert_sound().await;
}
