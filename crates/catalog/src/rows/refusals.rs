//! Refused agents.

use longhaul_model::{AgentId, Fault, FaultCode, StorageName, Timestamp};

use crate::LiveTransferRow;

/// An agent whose certificates are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedAgentRow {
    pub agent: AgentId,
    pub reason: String,
    pub refused: Timestamp,
    /// No certificate of the agent is valid after this.
    pub expires: Timestamp,
}

impl RefusedAgentRow {
    /// What the agent is told.
    pub fn fault(&self) -> Fault {
        let detail = format!(
            "the certificates of agent {} are refused since {} ({}): join this host again with a new token",
            self.agent, self.refused, self.reason
        );
        Fault::new(FaultCode::NotAllowed, detail)
    }
}

/// What became of an agent's work when it was refused.
#[derive(Clone, Debug)]
pub struct RefusalResult {
    pub refusal: RefusedAgentRow,
    /// Transfers that wait again.
    pub released: Vec<LiveTransferRow>,
}

/// What depends on an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentConcerns {
    pub storages: Vec<StorageName>,
    /// Files registered at these storages.
    pub files: u64,
    pub bytes: u64,
    /// Transfers that it carries out.
    pub leases_in: u64,
    /// Transfers of other agents that read from its storages.
    pub leases_out: u64,
    /// Open tasks at its storages.
    pub tasks: u64,
    /// Active subscriptions to its storages.
    pub subscriptions: u64,
}
