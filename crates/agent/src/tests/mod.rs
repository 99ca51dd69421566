//! Whole agents: one against a fake service with a fake engine (`one_agent`), two with real engines over real
//! TLS (`two_agents`), two in one thread on a simulated clock (`one_thread`).

mod by_circuit;
mod command_mover;
pub(crate) mod fake_engine;
mod fake_service;
mod foreign;
mod hooks;
mod https_service;
mod one_agent;
mod one_thread;
mod two_agents;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use longhaul_api::agent::{Lease, LeaseBatch, SourcePeer};
use longhaul_engine::Clock;
use longhaul_model::{
    AgentId, Algorithm, AttemptId, DigestSet, Epoch, Hasher, SiteName, Timestamp, TransferId, Verification,
};
use longhaul_security::{Authority, Permit, list_digest, new_signing_request};
use tempfile::TempDir;

use crate::state_dir::Identity;

/// The wall clock of a test, in the certificates' present.
#[derive(Clone)]
struct TestClock(Arc<AtomicI64>);

impl TestClock {
    fn new() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        TestClock(Arc::new(AtomicI64::new(since.as_micros() as i64)))
    }

    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    /// The clock of a host that is `seconds` ahead.
    fn ahead(&self, seconds: i64) -> Clock {
        let clock = self.clone();
        Arc::new(move || Timestamp(clock.now().0 + seconds * 1_000_000))
    }
}

/// The keys of a deployment.
struct Deployment {
    authority: Authority,
    clock: TestClock,
    _directory: TempDir,
}

impl Deployment {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = TestClock::new();
        let authority = Authority::create(directory.path(), "tests", clock.now()).unwrap();
        Deployment { authority, clock, _directory: directory }
    }

    fn identity(&self, agent: u64, site: &str) -> Identity {
        let (signing_request, key) = new_signing_request().unwrap();
        let site: SiteName = site.parse().unwrap();
        let issued =
            self.authority.issue_agent(&signing_request, AgentId(agent), &site, self.clock.now()).unwrap();
        Identity {
            service_url: "https://127.0.0.1:1".into(),
            deployment: "tests".into(),
            site,
            agent: AgentId(agent),
            certificate: issued.certificate_pem,
            key,
            ca: self.authority.ca_pem().into(),
            permit_key: self.authority.permit_key_pem(),
        }
    }

    /// Leases for agent 2 (beta) of files at agent 1 (alpha), with a true permit.
    fn batch(&self, addresses: Vec<String>, leases: Vec<Lease>) -> LeaseBatch {
        let start_by = self.clock.now().plus(Duration::from_secs(600));
        let permit = Permit {
            deployment: "tests".into(),
            target_agent: AgentId(2),
            source_agent: AgentId(1),
            source_storage: "alpha".parse().unwrap(),
            list_digest: list_digest(leases.iter().map(|lease| (lease.attempt, &lease.lfn, lease.size))),
            expires: start_by,
        };
        LeaseBatch {
            source: SourcePeer { agent: AgentId(1), storage: "alpha".parse().unwrap(), addresses },
            target_storage: "beta".parse().unwrap(),
            permit: self.authority.sign_permit(&permit),
            start_by,
            leases,
            class: longhaul_model::TrafficClass::default(),
            circuits: Default::default(),
            mark: longhaul_model::Mark::default(),
        }
    }
}

pub(crate) fn lease(attempt: u64, lfn: &str, bytes: &[u8]) -> Lease {
    Lease {
        attempt: AttemptId(attempt),
        transfer: TransferId(1_000 + attempt),
        epoch: Epoch(1),
        lfn: lfn.parse().unwrap(),
        size: bytes.len() as u64,
        digests: digests(bytes),
        verification: Verification::EndToEnd,
        priority: 3,
        replaces_damaged: false,
    }
}

fn digests(bytes: &[u8]) -> DigestSet {
    let mut hasher = Hasher::new([Algorithm::Adler32, Algorithm::Crc32c]);
    hasher.update(bytes);
    hasher.finish()
}
