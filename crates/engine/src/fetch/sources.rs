//! The sources of a session: one, or several that hold the same files.

use std::sync::Arc;

use longhaul_model::AgentId;
use longhaul_model::mark::Treatment;
use longhaul_wire::receiver::OriginNumber;
use longhaul_wire::{JoinKey, Replica, SessionId};

use crate::context::EngineContext;
use crate::foreign_deployment::ForeignDeployment;
use crate::interface::FetchBatch;

/// Work with the same sources, class and mark shares a session.
pub(crate) type SessionKey = (Treatment, Vec<(AgentId, Option<Arc<str>>)>);

/// The sources and their addresses, the batch's own source first.
pub(crate) struct SourceList {
    all: Vec<(AgentId, Option<ForeignDeployment>)>,
    pub(super) addresses: Vec<Vec<String>>,
    /// Use all addresses of the first source at the same time.
    pub(super) spread: bool,
}

/// A source, as a session knows it.
pub(crate) struct SessionOrigin {
    pub(crate) agent: AgentId,
    pub(crate) membership: Option<ForeignDeployment>,
    /// The join key of our session with this source: each source gets its own.
    pub(crate) id: SessionId,
    pub(crate) key: JoinKey,
}

impl SourceList {
    pub(super) fn from_batch(batch: &FetchBatch) -> SourceList {
        let mut list = SourceList {
            all: vec![(batch.source_agent, batch.foreign.clone())],
            addresses: vec![batch.addresses.clone()],
            spread: batch.spread,
        };
        for replica in &batch.replicas {
            list.all.push((replica.agent, replica.foreign.clone()));
            list.addresses.push(replica.addresses.clone());
        }
        list
    }

    pub(crate) fn key(&self, treatment: Treatment) -> SessionKey {
        let named = |(agent, membership): &(AgentId, Option<ForeignDeployment>)| {
            (*agent, membership.as_ref().map(|other| other.deployment().clone()))
        };
        (treatment, self.all.iter().map(named).collect())
    }

    /// Creates the sources with fresh session keys.
    pub(super) fn origins(&self, shared: &EngineContext) -> Box<[SessionOrigin]> {
        let origin = |(agent, membership): &(AgentId, Option<ForeignDeployment>)| {
            let (mut id, mut key) = ([0; 16], [0; 32]);
            shared.random(&mut id);
            shared.random(&mut key);
            let membership = membership.clone();
            SessionOrigin { agent: *agent, membership, id: SessionId(id), key: JoinKey(key) }
        };
        self.all.iter().map(origin).collect()
    }
}

/// The replicas of a batch in the terms of `wire`.
pub(super) fn replicas(batch: &FetchBatch) -> Vec<Replica> {
    let numbered = batch.replicas.iter().enumerate();
    let replica = |(place, replica): (usize, &crate::interface::Replica)| Replica {
        origin: OriginNumber(place as u8 + 1),
        permit: replica.permit.clone(),
        storage: replica.storage.clone(),
        names: replica.names.clone(),
    };
    numbered.map(replica).collect()
}
