//! What agents report, exactly once.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// Applies the items that the agent's stored sequence number does not cover yet, in one transaction that
    /// also stores the new one (`last_sequence` or that of the last item, if greater).
    pub fn apply_report(
        &self,
        _agent: AgentId,
        _items: &[ReportItem],
        _last_sequence: u64,
        _now: Timestamp,
    ) -> Result<Applied, CatalogError> {
        todo!()
    }
}
