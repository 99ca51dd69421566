//! Live transfers.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// Makes leases durable, at most [`limits::BATCH_ITEMS_MAX`]; one answer each, in order. Only those
    /// answered with [`Begun::Leased`] may leave the process.
    pub fn begin_attempts(
        &self,
        _attempts: &[NewAttempt],
        _now: Timestamp,
    ) -> Result<Vec<Begun>, CatalogError> {
        todo!()
    }
    /// The agent holds no lease but those in `held`: all others of it wait again. Returns these.
    pub fn release_leases(
        &self,
        _agent: AgentId,
        _held: &[AttemptId],
        _now: Timestamp,
    ) -> Result<Vec<LiveTransferRow>, CatalogError> {
        todo!()
    }
    /// These leases were taken back before they began, or expired: they wait again. Those not live are left out.
    pub fn take_back(
        &self,
        _attempts: &[AttemptId],
        _fault: &Fault,
        _now: Timestamp,
    ) -> Result<Vec<LiveTransferRow>, CatalogError> {
        todo!()
    }
    /// Everything a scheduler adopts after a restart.
    pub fn live_transfers(&self) -> Result<Vec<LiveTransferRow>, CatalogError> {
        todo!()
    }
    /// Ends live transfers as cancelled or, with a fault other than `Cancelled`, as failed.
    pub fn cancel_transfers(
        &self,
        _transfers: &[TransferId],
        _fault: &Fault,
        _now: Timestamp,
    ) -> Result<Vec<CancelledTransfer>, CatalogError> {
        todo!()
    }
}
