//! Embeds two engines in one process and copies a file between two directories over loopback:
//! `cargo run -p longhaul-engine --example embed -- SOURCE_DIRECTORY FILE TARGET_DIRECTORY`.
//!
//! In a real deployment the engines run at two sites, and the service does what `main` does here: it issues
//! certificates and signs permits.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use longhaul_engine::{Config, Engine, Event, Export, FetchBatch, FetchFile};
use longhaul_model::{AgentId, Algorithm, AttemptId, Epoch, Hasher, Timestamp, TransferId, Verification};
use longhaul_security::{Authority, Credentials, Permit, PermitVerifier, list_digest, new_signing_request};
use longhaul_storage::{FlushPolicy, Posix, PosixOptions};

const SOURCE: AgentId = AgentId(1);
const TARGET: AgentId = AgentId(2);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, file, target] = arguments.as_slice() else {
        return Err("usage: embed SOURCE_DIRECTORY FILE TARGET_DIRECTORY".into());
    };
    // The deployment's own CA: engines trust no other certificates and permits.
    let home = tempfile::tempdir()?;
    let authority = Authority::create(&home.path().join("authority"), "example", now())?;
    let (source_engine, _events) = start(SOURCE, "alpha", source, home.path(), &authority)?;
    let (target_engine, events) = start(TARGET, "beta", target, home.path(), &authority)?;

    // What the catalog knows of a file. The target checks size and digest of what arrives.
    let bytes = std::fs::read(Path::new(source).join(file))?;
    let mut hasher = Hasher::new([Algorithm::Adler32]);
    hasher.update(&bytes);
    let wanted = FetchFile {
        attempt: AttemptId(1),
        transfer: TransferId(1),
        epoch: Epoch(1),
        lfn: file.parse()?,
        size: bytes.len() as u64,
        digests: hasher.finish(),
        verification: Verification::EndToEnd,
        priority: 1,
        replaces_damaged: false,
        tree: None,
    };
    // The source serves nothing without a permit for these two agents and exactly this list of files.
    let in_an_hour = now() + Duration::from_secs(3_600);
    let permit = authority.sign_permit(&Permit {
        deployment: "example".to_owned(),
        target_agent: TARGET,
        source_agent: SOURCE,
        source_storage: "alpha".parse()?,
        list_digest: list_digest([(wanted.attempt, &wanted.lfn, wanted.size)].into_iter()),
        expires: in_an_hour,
    });
    // The target pulls: it dials the source, verifies each chunk, and renames the file once it is complete.
    target_engine.fetch(FetchBatch {
        foreign: None,
        source_agent: SOURCE,
        source_storage: "alpha".parse()?,
        addresses: source_engine.data_addresses().iter().map(ToString::to_string).collect(),
        spread: false,
        class: Default::default(),
        mark: Default::default(),
        circuits: Default::default(),
        target_storage: "beta".parse()?,
        permit,
        start_by: in_an_hour,
        files: vec![wanted],
        withheld: BTreeSet::new(),
        replicas: Vec::new(),
    });
    // Each file ends with exactly one `Finished`; `Started` tells that its lease is in use.
    let outcome = loop {
        if let Event::Finished(outcome) = events.recv_timeout(Duration::from_secs(60))? {
            break outcome;
        }
    };
    writeln!(std::io::stdout(), "{file}: {} bytes moved, {}", outcome.bytes_moved, outcome.result?.digests)?;
    Ok(())
}

type Started = Result<(Engine, mpsc::Receiver<Event>), Box<dyn Error>>;
/// Starts an engine that has one directory as its storage.
fn start(agent: AgentId, name: &str, root: &str, home: &Path, ca: &Authority) -> Started {
    // The private key never leaves the agent; the authority certifies it.
    let (request, key_pem) = new_signing_request()?;
    let certificate_pem = ca.issue_agent(&request, agent, &"site".parse()?, now())?.certificate_pem;
    let credentials = Credentials { certificate_pem, key_pem, ca_pem: ca.ca_pem().to_owned() };
    let (writable, flush, root) = (agent == TARGET, FlushPolicy::FileAndDirectory, root.into());
    let storage = Posix::open(PosixOptions { name: name.parse()?, root, work: None, writable, flush })?;
    // The journals are in the directory: after a crash, an engine resumes from them.
    let config =
        Config { listen: vec!["127.0.0.1:0".parse()?], ..Config::new(agent, "example", home.join(name)) };
    let permits = PermitVerifier::new(&ca.permit_key_pem())?;
    let exports = vec![Export { storage: Arc::new(storage), rules: Default::default() }];
    let (send, events) = mpsc::channel(); // Events come from a thread of the engine.
    let deliver = move |group: Vec<Event>| group.into_iter().for_each(|event| drop(send.send(event)));
    Ok((Engine::start(config, &credentials, permits, exports, Arc::new(now), deliver)?, events))
}

/// The engine asks its owner for the time, since leases expire by the service's clock.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(since.as_micros() as i64)
}
