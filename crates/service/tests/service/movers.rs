//! Copies between foreign storages that agents of sites offer to stream: which agent gets them, with their
//! users' credentials, and what its word about them is worth.

use std::time::Duration;

use longhaul_api::agent::*;
use longhaul_api::foreign::{ForeignCopy, MoverOffer};
use longhaul_api::jobs::JobDetail;
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_api::steering::{MoverGrantChange, MoverGrantView};
use longhaul_model::{DigestSet, JobId, JobKind, JobState, Verification};

use crate::jobs::Play;
use crate::world::{Agent, World, until};

/// An agent of the site that offers to stream, and calls its host by this name.
async fn join_mover(world: &World, site: &str, host: &str) -> Agent {
    let agent = world.agent(site).await;
    let hello = Hello {
        host: host.into(),
        data_addresses: vec![format!("{host}:9")],
        mover: Some(MoverOffer { files: 3 }),
        ..agent.who(&[])
    };
    agent.report(&Report { hello: Some(hello), ..agent.empty_report() }).await.unwrap();
    agent
}

/// An administrator allows the site's agents to stream for everybody.
async fn allow(world: &World, site: &str) {
    let change = MoverGrantChange { site: site.parse().unwrap(), community: "*".into(), allowed: true };
    let _: Page<MoverGrantView> =
        world.admin().request(&routes::MOVER_SET).json(&change).send().await.unwrap();
}

async fn submit_file(play: &mut Play) -> JobId {
    let files = play.plain(1);
    play.submit(JobKind::Regular, "{}", files).await
}

/// Polls until a parcel has a copy. That parcel is not acknowledged, so that it would come again.
async fn next_copy(agent: &mut Agent) -> ForeignCopy {
    loop {
        let work = agent.poll(Duration::from_secs(20)).await.unwrap();
        assert!(work.number > agent.received, "no copy within 20 s");
        if let Some(copy) = work.copies.into_iter().next() {
            return copy;
        }
        agent.received = work.number;
    }
}

/// The agent reports that it has copied the file.
async fn report_success(agent: &mut Agent, copy: &ForeignCopy) {
    let entry = agent.entry(Fact::Outcome(Outcome {
        attempt: copy.attempt,
        epoch: copy.epoch,
        fault: None,
        digests: DigestSet::default(),
        verification: Verification::EndToEnd,
        already_there: false,
        bytes_moved: 1,
        bytes_resent: 0,
        executor: None,
        times: AttemptTimes::default(),
    }));
    agent.send(vec![entry]).await.unwrap();
}

/// Which mover the latest attempt of the job's file has, and why.
async fn mover_of(play: &Play, id: JobId) -> String {
    let client = play.world.admin();
    let shown: JobDetail = client.request(&routes::JOB_SHOW).parameter(id).send().await.unwrap();
    shown.files[0].mover.clone().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_offer_alone_brings_it_no_copy() {
    let mut play = Play::new().await;
    let mut beta = join_mover(&play.world, "beta", "host.example").await;
    let id = submit_file(&mut play).await;
    until("the end of the job", async || {
        let work = beta.poll(Duration::from_millis(10)).await.unwrap();
        assert!(work.copies.is_empty(), "an agent gets a copy that no administrator allows it");
        beta.received = work.number;
        let state = play.job(id).0.state;
        state.is_terminal().then_some(()).ok_or_else(|| format!("{state:?}"))
    })
    .await;
    let (job, files) = play.job(id);
    assert_eq!((job.state, files[0].mode.as_deref()), (JobState::Finished, Some("stream")));
    play.arrived("/d0/f0");
    let mover = mover_of(&play, id).await;
    assert!(mover.contains("no administrator has allowed its site to stream"), "{mover}");

    allow(&play.world, "beta").await;
    let id = submit_file(&mut play).await;
    let copy = next_copy(&mut beta).await;
    play.target.put("/d1/f0", b"content of /d1/f0");
    report_success(&mut beta, &copy).await;
    let (job, files) = play.ended(id).await;
    let by_agent = Some("stream by the agent host.example of beta");
    assert_eq!((job.state, files[0].mode.as_deref()), (JobState::Finished, by_agent));
    play.world.assert_sound().await;
    play.world.stop().await;
}

/// What opens the storages leaves the outbox with the attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_an_agent_only_says_it_has_copied_has_failed() {
    let mut play = Play::new().await;
    let mut beta = join_mover(&play.world, "beta", "host.example").await;
    allow(&play.world, "beta").await;
    let id = submit_file(&mut play).await;
    let copy = next_copy(&mut beta).await;
    let parcel = beta.poll(Duration::from_millis(10)).await.unwrap();
    assert_eq!(parcel.copies, std::slice::from_ref(&copy), "it comes again until it is acknowledged");
    report_success(&mut beta, &copy).await;
    let (job, files) = play.ended(id).await;
    assert_eq!(job.state, JobState::Failed, "{files:?}");
    let why = &files[0].reason;
    assert!(why.contains("the agent host.example of beta reported a complete file, but"), "{why}");
    assert!(play.target.get("/d0/f0").is_none());
    let parcel = beta.poll(Duration::from_millis(10)).await.unwrap();
    assert!(parcel.copies.is_empty(), "the attempt is over");
    play.world.assert_sound().await;
    play.world.stop().await;
}

/// Nearness comes from the settings alone: a copy brings its user's credentials to whoever is near.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_calls_its_host_as_the_storages_is_not_near() {
    let mut play = Play::new().await;
    // Among agents that are equally far, the one that joined first is chosen.
    let mut beta = join_mover(&play.world, "beta", "host.example").await;
    let mut gamma = join_mover(&play.world, "gamma", "127.0.0.1").await;
    for site in ["beta", "gamma"] {
        allow(&play.world, site).await;
    }
    let id = submit_file(&mut play).await;
    let (site, copy) = tokio::select! {
        copy = next_copy(&mut beta) => ("beta", copy),
        copy = next_copy(&mut gamma) => ("gamma", copy),
    };
    assert_eq!(site, "beta");
    let mover = mover_of(&play, id).await;
    assert!(mover.contains("of 2 movers, at neither storage's site"), "{mover}");
    play.target.put("/d0/f0", b"content of /d0/f0");
    report_success(&mut beta, &copy).await;
    assert_eq!(play.ended(id).await.0.state, JobState::Finished);
    play.world.assert_sound().await;
    play.world.stop().await;
}
