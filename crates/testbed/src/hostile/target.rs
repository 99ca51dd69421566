//! A target that steals: an agent of the deployment that asks for what it may not read, and wears its source
//! out.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, Lfn, StorageName, Timestamp, TransferId};
use longhaul_security::{Authority, Credentials, Permit, list_digest};
use longhaul_wire::{BatchId, FileNumber, Frame, Manifest, ManifestFile, PackEntry};

use super::{Wire, hello};

/// An agent gone bad, and what it could have got hold of: permits that the service signed for others, or long
/// ago.
pub struct Thief {
    pub credentials: Credentials,
    authority: Authority,
    source: SocketAddr,
    /// The agent that serves at `source`.
    source_agent: AgentId,
    storage: StorageName,
}

impl Thief {
    /// `authority` is the service's, which signs what a test needs to be signed.
    pub fn new(
        credentials: Credentials,
        authority: &Path,
        source: SocketAddr,
        of: &Credentials,
        storage: &str,
    ) -> Thief {
        let (source_agent, _) = agent(of);
        Thief {
            credentials,
            authority: Authority::open(authority).expect("the service has one"),
            source,
            source_agent,
            storage: storage.parse().expect("it is a name"),
        }
    }

    pub fn id(&self) -> AgentId {
        agent(&self.credentials).0
    }

    /// A stream of a session, welcomed.
    pub fn dial(&self, session: u8) -> Wire {
        let mut wire = Wire::dial(self.source, &self.credentials).expect("the source listens");
        wire.send(&hello(session, 1), &[]).expect("the source hears");
        let welcome = wire.receive();
        assert!(matches!(welcome, Some((Frame::Welcome(_), _))), "{welcome:?}");
        wire
    }

    /// A permit as the service would sign it for these files, but for what `change` changes.
    pub fn permit(&self, files: &[ManifestFile], change: impl FnOnce(&mut Permit)) -> Arc<str> {
        let mut permit = Permit {
            deployment: self.authority.deployment().to_owned(),
            target_agent: self.id(),
            source_agent: self.source_agent,
            source_storage: self.storage.clone(),
            list_digest: list_digest(files.iter().map(|file| (file.attempt, &file.lfn, file.size))),
            expires: now() + Duration::from_secs(600),
        };
        change(&mut permit);
        self.authority.sign_permit(&permit)
    }

    pub fn manifest(&self, batch: u32, first: u32, permit: Arc<str>, files: &[ManifestFile]) -> Frame {
        Frame::Manifest(Manifest {
            batch: BatchId(batch),
            first: FileNumber(first),
            permit: Some(permit),
            storage: self.storage.clone(),
            last_part: true,
            files: files.to_vec(),
        })
    }

    /// Announces the files under a good permit; the source accepts it, whatever it will say of the files.
    pub fn announce(&self, wire: &mut Wire, batch: u32, first: u32, files: &[ManifestFile]) {
        let permit = self.permit(files, |_| {});
        wire.send(&self.manifest(batch, first, permit, files), &[]).expect("the source hears");
        let answer = wire.receive();
        let accepted = Frame::ManifestAnswer { batch: BatchId(batch), fault: None };
        assert_eq!(answer.map(|(frame, _)| frame), Some(accepted));
    }
}

fn agent(credentials: &Credentials) -> (AgentId, String) {
    let identity = credentials.identity().expect("they are an agent's");
    let (agent, site) = identity.require_agent().expect("they are an agent's");
    (agent, site.to_string())
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
    Timestamp(since.as_micros() as i64)
}

pub fn listed(lfn: &str, size: u64) -> ManifestFile {
    let lfn: Lfn = lfn.parse().expect("it is a name");
    ManifestFile { attempt: AttemptId(1), transfer: TransferId(1), lfn, size }
}

/// What a source said to a request: bytes, or whose fault it is. None: it hung up without a word.
pub fn answer(wire: &mut Wire) -> Option<Result<Vec<u8>, FaultCode>> {
    let refused = |fault: &Fault| Some(Err(fault.code));
    loop {
        match wire.receive()? {
            (Frame::Data(_), payload) => return Some(Ok(payload)),
            (Frame::PackData(head), payload) => {
                let fault = head.entries.iter().find_map(|entry| match entry {
                    PackEntry::Fault { fault, .. } => Some(fault.clone()),
                    PackEntry::Whole { .. } => None,
                });
                return fault.map_or(Some(Ok(payload)), |fault| refused(&fault));
            }
            (Frame::FileFault { fault, .. }, _) => return refused(&fault),
            (Frame::ManifestAnswer { fault: Some(fault), .. }, _) => return refused(&fault),
            (Frame::Goodbye { fault }, _) => return fault.as_ref().and_then(refused),
            _ => {}
        }
    }
}
