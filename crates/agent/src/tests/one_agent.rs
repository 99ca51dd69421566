//! One agent against a service and an engine that the test plays.

use std::sync::Arc;

use longhaul_api::agent::{AgentSettings, AskedBack, RenewReply, Work};
use longhaul_engine::Clock;
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, Timestamp};
use longhaul_security::new_signing_request;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::fake_engine::FakeEngine;
use super::fake_service::{FakeService, FakeServiceState};
use super::{Deployment, lease};
use crate::agent::Agent;
use crate::config::{Config, StorageConfig};
use crate::null_mover::{self, NullLinks};
use crate::state_dir::{Identity, StateDir};

pub(super) struct TestSite {
    pub(super) deployment: Deployment,
    pub(super) service: Arc<FakeService>,
    pub(super) config: Config,
    _state: TempDir,
    _files: TempDir,
}

pub(super) struct Running {
    pub(super) engine: FakeEngine,
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<(), Fault>>,
}

impl TestSite {
    pub(super) fn new() -> TestSite {
        TestSite::with_service(true)
    }

    fn with_service(direct: bool) -> TestSite {
        let deployment = Deployment::new();
        let (state, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config =
            Config::new(state.path(), vec![StorageConfig::new("beta".parse().unwrap(), files.path())]);
        config.space_check_s = 3_600;
        let identity = deployment.identity(2, "beta");
        StateDir::open(state.path()).unwrap().save_identity(&identity).unwrap();
        let service = FakeService::new(&deployment.clock, direct);
        TestSite { deployment, service, config, _state: state, _files: files }
    }

    pub(super) fn start(&self) -> Running {
        self.start_with(self.config.clone(), self.deployment.clock.ahead(0))
    }

    fn start_with(&self, config: Config, clock: Clock) -> Running {
        let state = StateDir::open(&config.state_dir).unwrap();
        let identity = state.identity().unwrap().unwrap();
        let mut engine = None;
        let start_mover = |start| {
            engine = Some(FakeEngine::start(start));
            Ok(Box::new(engine.clone().unwrap()) as _)
        };
        let agent = Agent::start(config, clock, state, identity, self.service.clone(), start_mover).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let end = tokio::spawn(agent.run_until(Box::pin(async { drop(stopped.await) })));
        Running { engine: engine.unwrap(), stop, end }
    }

    pub(super) fn lease(&self, attempts: &[u64]) {
        let leases =
            attempts.iter().map(|&attempt| lease(attempt, &format!("f{attempt}"), b"0123456")).collect();
        self.service.lease(vec![self.deployment.batch(vec!["127.0.0.1:9".into()], leases)]);
    }
}

impl Running {
    pub(super) async fn wait_for_files(&self, count: usize) {
        self.engine
            .wait_until(|asked| asked.fetched.iter().map(|batch| batch.files.len()).sum::<usize>() >= count)
            .await;
    }

    pub(super) async fn end(self) {
        self.stop.send(()).unwrap();
        self.end.await.unwrap().unwrap();
        assert!(self.engine.calls().stopped);
    }
}

pub(super) fn attempts(ids: &[u64]) -> Vec<AttemptId> {
    ids.iter().copied().map(AttemptId).collect()
}

#[tokio::test]
async fn leases_go_to_the_engine_and_outcomes_to_the_service() {
    let site = TestSite::new();
    let agent = site.start();
    site.lease(&[1, 2]);
    agent.wait_for_files(2).await;
    agent.engine.begin(1);
    agent.engine.succeed(&[1]);
    agent.engine.finish(&[2], Err(Fault::new(FaultCode::WrongDigest, "flipped at alpha")));
    let outcomes = site.service.wait_for_outcomes(2).await;
    assert_eq!(outcomes[0].fault, None);
    assert_eq!(outcomes[1].fault.as_ref().unwrap().code, FaultCode::WrongDigest);
    let hello = site.service.change(|state| state.hellos[0].1.clone());
    assert_eq!(hello.storages[0].name.as_str(), "beta");
    assert!(hello.held.is_empty() && !hello.data_addresses.is_empty());
    agent.end().await;
}

/// Nobody has to find out by failures that it is gone.
#[tokio::test]
async fn an_agent_that_stops_says_so_once() {
    let site = TestSite::new();
    let agent = site.start();
    site.lease(&[1]);
    agent.wait_for_files(1).await;
    agent.engine.begin(1);
    agent.engine.succeed(&[1]);
    site.service.wait_for_outcomes(1).await;
    assert_eq!(site.service.change(|state| state.endings), 0);
    agent.end().await;
    assert_eq!(site.service.change(|state| state.endings), 1);
}

/// Promise 5: while the service is away, held leases go on, also over a restart, and their outcomes are
/// reported once when it is back.
#[tokio::test]
async fn the_service_may_be_away() {
    let site = TestSite::new();
    let agent = site.start();
    site.lease(&[1, 2, 3]);
    agent.wait_for_files(3).await;
    agent.engine.begin(2);
    site.service.change(|state| state.away = true);
    agent.engine.succeed(&[1]);
    agent.end().await;

    let agent = site.start();
    agent.wait_for_files(3).await;
    agent.engine.wait_until(|asked| asked.cancelled == attempts(&[1])).await;
    assert_eq!(agent.engine.attempts(), attempts(&[2, 3]), "what has an outcome does not run again");
    let whole: Vec<_> = agent.engine.calls().fetched[0].files.iter().map(|file| file.attempt).collect();
    assert_eq!(whole, attempts(&[1, 2, 3]), "the permit is for the whole list");
    agent.engine.succeed(&[2, 3]);
    site.service.change(|state| state.away = false);
    let outcomes = site.service.wait_for_outcomes(3).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.attempt).collect::<Vec<_>>(), attempts(&[1, 2, 3]));
    let (incarnation, hello) = site.service.change(|state| state.hellos.last().unwrap().clone());
    assert_eq!(incarnation.number, 2);
    assert_eq!(
        hello.held.len(),
        3,
        "leases whose outcome the service may not know are claimed: {:?}",
        hello.held
    );
    agent.end().await;
    assert_eq!(site.service.change(|state| state.outcomes().len()), 3, "exactly once");
}

/// Promise 5: expiry forbids only starting, also after a restart.
#[tokio::test]
async fn begun_leases_finish_and_others_expire() {
    let site = TestSite::new();
    let agent = site.start();
    site.lease(&[1, 2]);
    agent.wait_for_files(2).await;
    let start_by = agent.engine.start_by(1);
    agent.engine.begin(1);
    agent.end().await;
    site.deployment.clock.advance(3_600);

    let agent = site.start();
    agent.wait_for_files(2).await;
    assert!(agent.engine.start_by(1) > start_by, "the engine may go on with 1");
    let outcomes = site.service.wait_for_outcomes(1).await;
    assert_eq!(outcomes[0].attempt, AttemptId(2));
    assert_eq!(outcomes[0].fault.as_ref().unwrap().code, FaultCode::LeaseExpired);
    assert_eq!(agent.engine.attempts(), attempts(&[1]));
    agent.engine.succeed(&[1]);
    assert_eq!(site.service.wait_for_outcomes(2).await[1].fault, None);
    agent.end().await;
}

#[tokio::test]
async fn cancelled_leases_are_dropped_silently() {
    let site = TestSite::new();
    let agent = site.start();
    site.lease(&[1, 2]);
    agent.wait_for_files(2).await;
    site.service.cancel(attempts(&[1, 55]));
    let asked = agent.engine.wait_until(|asked| !asked.cancelled.is_empty()).await;
    assert_eq!(asked.cancelled, attempts(&[1]));
    agent.engine.succeed(&[1, 2]);
    let outcomes = site.service.wait_for_outcomes(1).await;
    assert_eq!(outcomes[0].attempt, AttemptId(2));
    agent.end().await;
}

/// Promise 5: what has begun is finished, even if it is recalled.
#[tokio::test]
async fn recalled_leases_are_given_back_unless_begun() {
    let site = TestSite::new();
    let agent = site.start();
    site.lease(&[1, 2, 3]);
    agent.wait_for_files(3).await;
    agent.engine.begin(1);
    let why = "alpha gives 1.2 MB/s now".to_owned();
    let asked = [1, 2, 55].map(|number| AskedBack { attempt: AttemptId(number), why: why.clone() });
    site.service.send_work(Work { give_back: asked.to_vec(), ..Work::default() });
    let outcomes = site.service.wait_for_outcomes(1).await;
    let fault = outcomes[0].fault.clone().unwrap();
    assert_eq!((outcomes[0].attempt, fault.code), (AttemptId(2), FaultCode::GivenBack));
    assert_eq!(fault.detail, why);
    agent.engine.wait_until(|asked| asked.cancelled == attempts(&[2])).await;
    agent.engine.succeed(&[1, 2, 3]);
    let outcomes = site.service.wait_for_outcomes(3).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.attempt.0).collect::<Vec<_>>(), [2, 1, 3]);
    agent.end().await;
}

/// A restarted service asks its agents for a hello. No lease may be under way while the agent lists what it
/// holds.
#[tokio::test]
async fn a_restarted_service_is_greeted_again() {
    let site = TestSite::new();
    let agent = site.start();
    let settings = AgentSettings { report_every_ms: 1, in_bytes_per_s: None, out_bytes_per_s: None };
    site.service.send_work(Work { settings: Some(settings), ..Work::default() });
    site.service.wait_until(|state| state.hellos.first().map(|_| ())).await;
    for round in 1..=20 {
        site.lease(&[round]);
        site.service.restart();
        site.service.wait_until(|state| (state.hellos.len() as u64 > round).then_some(())).await;
        agent.wait_for_files(round as usize).await;
    }
    site.service.restart();
    let held = site
        .service
        .wait_until(|state| (state.hellos.len() > 21).then(|| state.hellos.last().unwrap().1.held.len()))
        .await;
    assert_eq!(held, 20);
    agent.end().await;
}

/// Once its name is confirmed a storage is offered again, once; until then nothing is said of it.
#[tokio::test]
async fn a_storage_is_offered_again_when_its_name_is_confirmed() {
    let site = TestSite::new();
    site.service.change(|state| state.unconfirmed = vec!["beta".parse().unwrap()]);
    let agent = site.start();
    let settings = AgentSettings { report_every_ms: 1, in_bytes_per_s: None, out_bytes_per_s: None };
    site.service.send_work(Work { settings: Some(settings), ..Work::default() });
    site.service.wait_until(|state| (state.hellos.len() == 1 && state.spaces.is_empty()).then_some(())).await;
    site.service.change(|state| state.unconfirmed.clear());
    site.service
        .wait_until(|state| (state.hellos.len() == 2 && !state.spaces.is_empty()).then_some(()))
        .await;
    let offered = site.service.change(|state| state.hellos[1].1.storages[0].name.clone());
    assert_eq!(offered.as_str(), "beta");
    for attempt in 1..=3 {
        site.lease(&[attempt]);
        agent.wait_for_files(attempt as usize).await;
        agent.engine.succeed(&[attempt]);
        site.service.wait_for_outcomes(attempt as usize).await;
    }
    assert_eq!(site.service.change(|state| state.hellos.len()), 2, "it is greeted");
    agent.end().await;
}

/// Another agent took over the storage while this one was silent. It says hello again, and what runs goes
/// on; when the other one is gone, the storage is offered anew.
#[tokio::test]
async fn a_storage_is_offered_again_when_its_other_agent_is_gone() {
    let site = TestSite::new();
    let agent = site.start();
    let settings = AgentSettings { report_every_ms: 1, in_bytes_per_s: None, out_bytes_per_s: None };
    site.service.send_work(Work { settings: Some(settings), ..Work::default() });
    site.lease(&[1]);
    agent.wait_for_files(1).await;
    site.service.change(|state| {
        (state.offer_again, state.unconfirmed) = (true, vec!["beta".parse().unwrap()]);
    });
    let second_hello = |state: &FakeServiceState| state.hellos.get(1).map(|(_, hello)| hello.clone());
    let hello = site.service.wait_until(second_hello).await;
    assert_eq!((hello.storages[0].name.as_str(), hello.held), ("beta", attempts(&[1])));
    site.service.wait_until(|state| state.spaces.is_empty().then_some(())).await;
    site.service.change(|state| state.unconfirmed.clear());
    site.service
        .wait_until(|state| (state.hellos.len() == 3 && !state.spaces.is_empty()).then_some(()))
        .await;
    assert_eq!(agent.engine.calls().cancelled, []);
    agent.engine.succeed(&[1]);
    site.service.wait_for_outcomes(1).await;
    site.lease(&[2]);
    agent.wait_for_files(2).await;
    assert_eq!(site.service.change(|state| state.hellos.len()), 3, "it is greeted");
    agent.end().await;
}

/// A copied state directory is another incarnation; the one the service refuses ends and says why.
#[tokio::test]
async fn a_copied_state_directory_ends() {
    let site = TestSite::with_service(false);
    let original = site.start();
    site.service.wait_until(|state| state.hellos.first().map(|_| ())).await;
    let copy = tempfile::tempdir().unwrap();
    for name in ["identity.json", "incarnation", "ledger"] {
        std::fs::copy(site.config.state_dir.join(name), copy.path().join(name)).unwrap();
    }
    let mut config = site.config.clone();
    config.state_dir = copy.path().into();
    let copied = site.start_with(config, site.deployment.clock.ahead(0));
    site.service.wait_until(|state| (state.hellos.len() >= 2).then_some(())).await;
    let incarnations =
        site.service.change(|state| state.hellos.iter().map(|(number, _)| *number).collect::<Vec<_>>());
    assert!(incarnations[0] != incarnations[1]);
    site.service
        .change(|state| state.refuse = Some(Fault::new(FaultCode::StaleIncarnation, "another one runs")));
    let fault = copied.end.await.unwrap().unwrap_err();
    assert_eq!(fault.code, FaultCode::StaleIncarnation);
    assert!(copied.engine.calls().stopped, "it stops writing");
    assert!(original.end.await.unwrap().is_err());
}

/// Times are the service's, whatever this host's clock says; after a restart without service as well.
#[tokio::test]
async fn a_clock_that_is_hours_or_years_off_does_not_matter() {
    for off_s in [7_200, -7_200, 2 * 365 * 86_400, -2 * 365 * 86_400] {
        let site = TestSite::new();
        let host_clock = site.deployment.clock.ahead(off_s);
        let agent = site.start_with(site.config.clone(), host_clock.clone());
        let error_us = |clock: &Clock| clock().0.abs_diff(site.deployment.clock.now().0);
        site.lease(&[1]);
        agent.wait_for_files(1).await;
        let error = error_us(&agent.engine.clock);
        assert!(error < 2_000_000, "{off_s} s: {error} us");
        site.service.change(|state| state.away = true);
        agent.end().await;
        let agent = site.start_with(site.config.clone(), host_clock);
        let error = error_us(&agent.engine.clock);
        assert!(error < 2_000_000, "{off_s} s, after a restart: {error} us");
        agent.end().await;
    }
}

#[tokio::test]
async fn settings_reach_the_engine_and_trouble_reaches_the_service() {
    let site = TestSite::new();
    let agent = site.start();
    let settings =
        AgentSettings { report_every_ms: 3_600_000, in_bytes_per_s: Some(5), out_bytes_per_s: None };
    site.service.send_work(Work { settings: Some(settings), ..Work::default() });
    agent.engine.wait_until(|asked| asked.limits == Some((Some(5), None))).await;
    site.lease(&[1]);
    agent.wait_for_files(1).await;
    agent.engine.finish(&[1], Err(Fault::new(FaultCode::TargetFull, "no room for 7 bytes")));
    let trouble =
        site.service.wait_until(|state| state.spaces.first().and_then(|space| space.trouble.clone())).await;
    assert_eq!(trouble.code, FaultCode::TargetFull);
    agent.end().await;
}

#[tokio::test]
async fn the_engine_is_told_of_refused_peers() {
    let site = TestSite::new();
    let agent = site.start();
    site.service.change(|state| state.refused = vec![AgentId(9)]);
    agent.engine.wait_until(|asked| asked.refused.contains(&AgentId(9))).await;
    site.service.change(|state| state.refused = Vec::new());
    agent.engine.wait_until(|asked| asked.refused.is_empty()).await;
    agent.end().await;
}

#[tokio::test]
async fn the_certificate_is_renewed_in_time() {
    let site = TestSite::new();
    let before = StateDir::open(&site.config.state_dir).unwrap().identity().unwrap().unwrap();
    site.deployment.clock.advance(70 * 86_400);
    let issued = || {
        let (request, _) = new_signing_request().unwrap();
        let now: Timestamp = site.deployment.clock.now();
        site.deployment
            .authority
            .issue_agent(&request, AgentId(2), &before.site, now)
            .unwrap()
            .certificate_pem
    };
    let certificate = issued();
    let reply = RenewReply { certificate: certificate.clone(), ca: before.ca.clone() };
    site.service.change(|state| state.renewal = Some(reply));
    let agent = site.start();
    agent.engine.wait_until(|asked| asked.renewed.as_ref() == Some(&certificate)).await;
    site.service.wait_until(|state| state.renewed.as_ref().map(|_| ())).await;
    agent.end().await;
    let after: Identity = StateDir::open(&site.config.state_dir).unwrap().identity().unwrap().unwrap();
    assert_eq!(after.certificate, certificate);
    assert!(after.key != before.key);
}

/// Nothing is moved, and everything that was leased is reported once, as the file of links says.
#[tokio::test]
async fn a_null_mover_reports_what_its_file_says() {
    let mut site = TestSite::new();
    site.config.storages = vec![StorageConfig::new_virtual("beta".parse().unwrap())];
    let state = StateDir::open(&site.config.state_dir).unwrap();
    let identity = state.identity().unwrap().unwrap();
    let links = NullLinks::parse("seed = 9\n[default]\nfailure_rate = 0.5\nfailure = 'target'\n").unwrap();
    let clock = site.deployment.clock.ahead(0);
    let agent = Agent::start(site.config.clone(), clock, state, identity, site.service.clone(), |start| {
        null_mover::start(links, start)
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let end = tokio::spawn(agent.unwrap().run_until(Box::pin(async { drop(stopped.await) })));
    let all: Vec<u64> = (1..=200).collect();
    site.lease(&all);
    let outcomes = site.service.wait_for_outcomes(200).await;
    let told: std::collections::BTreeSet<AttemptId> =
        outcomes.iter().map(|outcome| outcome.attempt).collect();
    assert_eq!((outcomes.len(), told.len()), (200, 200));
    let failed: Vec<FaultCode> =
        outcomes.iter().filter_map(|outcome| Some(outcome.fault.as_ref()?.code)).collect();
    assert!((72..=128).contains(&failed.len()), "four standard deviations of a half: {}", failed.len());
    assert!(failed.iter().all(|&code| code == FaultCode::TargetWrite));
    let good = outcomes.iter().filter(|outcome| outcome.fault.is_none());
    assert!(good.into_iter().all(|outcome| outcome.bytes_moved == 7 && !outcome.digests.is_empty()));
    stop.send(()).unwrap();
    end.await.unwrap().unwrap();
}
