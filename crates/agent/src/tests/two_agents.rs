//! Two agents with real engines, over real TLS, and a service played by the test.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use longhaul_api::agent::{AgentSettings, ExpectedFile, Fact, FoundFile, Lease, Task, TaskKind, Work};
use longhaul_api::probe::{ProbeAsked, Reach};
use longhaul_model::{
    AgentId, Algorithm, AttemptId, DigestOrigin, Epoch, Fault, FaultCode, TaskId, TransferId, Verification,
};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::https_service::Front;
use crate::{Agent, Config, StorageConfig, UplinkConfig, join};

struct TestSite {
    config: Config,
    files: TempDir,
    _state: TempDir,
}

struct Running {
    stop: oneshot::Sender<()>,
    end: JoinHandle<Result<(), Fault>>,
}

impl TestSite {
    async fn join(front: &Front, name: &str, agent: u64) -> TestSite {
        let (files, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let token = front.token(name, agent);
        let joined = join(None, &token, state.path()).await.unwrap();
        assert_eq!(
            (joined.agent.0, joined.site.as_str(), joined.deployment.as_str()),
            (agent, name, "tests")
        );
        let mut config =
            Config::new(state.path(), vec![StorageConfig::new(name.parse().unwrap(), files.path())]);
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.memory_bytes = 32 << 20;
        TestSite { config, files, _state: state }
    }

    fn start(&self, front: &Front) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let clock = front.deployment.clock.ahead(0);
        let agent = Agent::run(self.config.clone(), clock, async { drop(stopped.await) });
        Running { stop, end: tokio::spawn(agent) }
    }
}

impl Running {
    async fn end(self) {
        self.stop.send(()).unwrap();
        self.end.await.unwrap().unwrap();
    }
}

fn write(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn files_found(facts: &[Fact]) -> BTreeMap<String, FoundFile> {
    let files = facts.iter().filter_map(|fact| match fact {
        Fact::Scanned { found, .. } => Some(found),
        _ => None,
    });
    files.flatten().map(|file| (file.lfn.as_str().to_owned(), file.clone())).collect()
}

/// Promises 1, 2, 5: scanned files arrive whole and verified, although the target restarts while the service
/// is away; each outcome is reported once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_agents_move_a_tree_over_a_restart() {
    let front = Front::open().await;
    let (alpha, beta) = (TestSite::join(&front, "alpha", 1).await, TestSite::join(&front, "beta", 2).await);
    let mut tree: BTreeMap<String, Vec<u8>> =
        (0..60).map(|n| (format!("small/{n}"), vec![n; 100 * usize::from(n)])).collect();
    tree.insert("large\nname".into(), (0..4_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect());
    for (path, bytes) in &tree {
        write(alpha.files.path(), path, bytes);
    }
    let (service_alpha, service_beta) = (front.service(1), front.service(2));
    let (source, target) = (alpha.start(&front), beta.start(&front));
    let scan = TaskKind::Scan {
        dataset: "d".parse().unwrap(),
        path: String::new(),
        algorithms: vec![Algorithm::Adler32, Algorithm::Crc32c],
        digests: DigestOrigin::Computed,
    };
    service_alpha.task(Task { id: TaskId(1), storage: "alpha".parse().unwrap(), kind: scan });
    let found = service_alpha
        .wait_until(|state| (!state.tasks_done().is_empty()).then(|| files_found(&state.facts)))
        .await;
    assert_eq!(found.keys().collect::<Vec<_>>(), tree.keys().collect::<Vec<_>>());

    let addresses = service_alpha.change(|state| state.hellos[0].1.data_addresses.clone());
    let leases = found.values().zip(1..).map(|(file, attempt)| Lease {
        attempt: AttemptId(attempt),
        transfer: TransferId(100 + attempt),
        epoch: Epoch(1),
        lfn: file.lfn.clone(),
        size: file.size,
        digests: file.digests.clone(),
        verification: Verification::EndToEnd,
        priority: 3,
        replaces_damaged: false,
    });
    let batch = front.deployment.batch(addresses, leases.collect());
    let settings =
        AgentSettings { report_every_ms: 100, in_bytes_per_s: Some(4_000_000), out_bytes_per_s: None };
    service_beta.send_work(Work { batches: vec![batch], settings: Some(settings), ..Work::default() });
    service_beta.wait_for_outcomes(1).await;
    service_beta.change(|state| state.away = true);
    target.end().await;

    let target = beta.start(&front);
    service_beta.change(|state| state.away = false);
    let outcomes = service_beta.wait_for_outcomes(tree.len()).await;
    for outcome in &outcomes {
        assert_eq!(outcome.fault, None, "attempt {}", outcome.attempt);
        assert_eq!(outcome.verification, Verification::EndToEnd);
    }
    let mut attempts: Vec<_> = outcomes.iter().map(|outcome| outcome.attempt).collect();
    attempts.sort();
    attempts.dedup();
    assert_eq!(attempts.len(), tree.len(), "one outcome each");
    for (path, bytes) in &tree {
        assert!(fs::read(beta.files.path().join(path)).unwrap() == *bytes, "{path:?} is whole");
    }

    let files = found.values().map(|file| ExpectedFile {
        lfn: file.lfn.clone(),
        size: file.size,
        digests: file.digests.clone(),
    });
    service_beta.task(Task {
        id: TaskId(2),
        storage: "beta".parse().unwrap(),
        kind: TaskKind::Verify { files: files.collect() },
    });
    let checked = service_beta
        .wait_until(|state| {
            let files = state.facts.iter().filter_map(|fact| match fact {
                Fact::Checked { files, .. } => Some(files),
                _ => None,
            });
            (!state.tasks_done().is_empty()).then(|| files.flatten().cloned().collect::<Vec<_>>())
        })
        .await;
    assert_eq!(checked.len(), tree.len());
    assert!(checked.iter().all(|file| file.fault.is_none()));
    target.end().await;
    source.end().await;
}

/// Over real sockets, at the port where data are served; the counters are those of this host's loop back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_probes_its_peers_and_samples_its_uplink() {
    let front = Front::open().await;
    let (alpha, mut beta) =
        (TestSite::join(&front, "alpha", 1).await, TestSite::join(&front, "beta", 2).await);
    beta.config.uplinks =
        vec![UplinkConfig { interface: "lo".into(), bits_per_s: Some(8_000_000_000), every_s: 1 }];
    let (service_alpha, service_beta) = (front.service(1), front.service(2));
    let (source, target) = (alpha.start(&front), beta.start(&front));
    let addresses = service_alpha
        .wait_until(|state| state.hellos.first().map(|(_, hello)| hello.data_addresses.clone()))
        .await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let asked = [(1, addresses.clone()), (8, vec![closed]), (9, vec!["no-such-host.invalid:1".into()])];
    service_beta.change(|state| {
        state.probe = asked.map(|(agent, addresses)| ProbeAsked { agent: AgentId(agent), addresses }).into();
    });
    let found =
        service_beta.wait_until(|state| (state.probes.len() >= 3).then(|| state.probes.clone())).await;
    let of = |agent| found.iter().find(|result| result.agent == AgentId(agent)).unwrap();
    let way = &of(1).ways[0];
    assert_eq!((way.reach, way.address.to_string()), (Reach::Answers, addresses[0].clone()));
    assert!(way.rtt_us().is_some() && way.mtu.is_some() && !way.black_hole, "{way:?}");
    assert_eq!(of(8).ways[0].reach, Reach::Refused);
    assert!(of(9).fault.as_ref().unwrap().contains("no-such-host.invalid"));
    let sample = service_beta.wait_until(|state| state.uplinks.first().cloned()).await;
    assert_eq!((sample.interface.as_str(), sample.capacity_bytes_per_s), ("lo", Some(1e9)));
    assert!(sample.into_bytes_per_s > 0.0 && sample.seconds > 0.0, "{sample:?}");
    target.end().await;
    source.end().await;
}

#[tokio::test]
async fn joining_spends_a_token_once_and_trusts_nobody_else() {
    let front = Front::open().await;
    let code = |result: Result<crate::JoinedAgent, Fault>| result.unwrap_err().code;
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let token = front.token("alpha", 1);

    let clear = format!("http{}", front.url.strip_prefix("https").unwrap());
    assert_eq!(code(join(Some(&clear), &token, one.path()).await), FaultCode::BadRequest);
    let mut forged = token.clone();
    forged.ca_fingerprint = "00".repeat(32);
    assert!(join(None, &forged, one.path()).await.is_err(), "the CA is not the token's");

    join(None, &token, one.path()).await.unwrap();
    assert_eq!(code(join(None, &token, one.path()).await), FaultCode::AlreadyExists);
    assert_eq!(code(join(None, &token, two.path()).await), FaultCode::JoinTokenUsed);
    assert!(!two.path().join("identity.json").exists());

    let storages = vec![StorageConfig::new("alpha".parse().unwrap(), one.path())];
    let never = Agent::run(Config::new(two.path(), storages), front.deployment.clock.ahead(0), async {});
    let fault = never.await.unwrap_err();
    assert!(fault.detail.contains("agent join"), "{fault}");
}
