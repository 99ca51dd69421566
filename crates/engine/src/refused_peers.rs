//! Peers whose certificates the service refuses. A certificate is valid until it expires, so agents must
//! know.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_model::{AgentId, Fault, FaultCode};
use parking_lot::RwLock;

/// Checked whenever something arrives from a peer, so that its open streams end too.
#[derive(Default)]
pub(crate) struct RefusedPeers {
    /// Whether there are any: nearly always not, and then no lock is taken for each read.
    some: AtomicBool,
    peers: RwLock<BTreeSet<AgentId>>,
}

impl RefusedPeers {
    /// Replaces the list. Returns the peers that are new in it.
    pub(crate) fn replace(&self, refused: BTreeSet<AgentId>) -> Vec<AgentId> {
        let mut peers = self.peers.write();
        let new = refused.difference(&peers).copied().collect();
        self.some.store(!refused.is_empty(), Ordering::Release);
        *peers = refused;
        new
    }

    /// Fails for a refused peer. The fault lets an attempt be made again, from another source.
    pub(crate) fn check(&self, peer: AgentId) -> Result<(), Fault> {
        if !self.some.load(Ordering::Acquire) || !self.peers.read().contains(&peer) {
            return Ok(());
        }
        Err(refused(peer))
    }
}

/// Why nothing is exchanged with the peer.
pub(crate) fn refused(peer: AgentId) -> Fault {
    Fault::new(FaultCode::Unreachable, format!("the certificates of agent {peer} are refused"))
}
