//! Rows of live transfers, those that wait or are leased: their columns and how they are read.

use longhaul_model::{
    AgentId, AttemptId, BlockId, DatasetId, DigestSet, Epoch, FileId, StorageId, SubscriptionId, Timestamp,
    TransferId, TransferState,
};

use super::codec::Columns;
use super::transfers::LiveTransferRow;
use crate::sql::{Result, Row};

/// A live transfer as the catalog's own operations need it: without the file's name and what only agents and
/// people read, which [`LiveTransferRow`] has.
#[derive(Clone, Debug)]
pub(crate) struct LiveTransfer {
    pub(crate) id: TransferId,
    pub(crate) file: FileId,
    pub(crate) size: u64,
    pub(crate) digests: DigestSet,
    pub(crate) block: BlockId,
    pub(crate) dataset: DatasetId,
    pub(crate) target: StorageId,
    pub(crate) subscription: SubscriptionId,
    pub(crate) leased: bool,
    pub(crate) attempts: u32,
    pub(crate) attempt: AttemptId,
    pub(crate) epoch: Epoch,
    pub(crate) source: StorageId,
    pub(crate) agent: AgentId,
    pub(crate) created: Timestamp,
    pub(crate) chosen: Timestamp,
    /// The target is a relay that the file only passes through.
    pub(crate) hop: bool,
}

impl LiveTransfer {
    /// The columns that [`LiveTransfer::read`] takes; a condition follows.
    pub(crate) const SELECT: &str =
        "SELECT l.id, l.file, f.size, f.digests, l.block, l.dataset, l.target, l.subscription, l.leased,
    l.attempts, l.attempt, l.epoch, l.source, l.agent, l.created, l.chosen, l.hop
    FROM live l JOIN files f ON f.id = l.file WHERE ";

    pub(crate) fn read(row: &Row<'_>) -> Result<LiveTransfer> {
        Ok(LiveTransfer {
            id: row.id(0)?,
            file: row.id(1)?,
            size: row.number(2)?,
            digests: row.digests(3)?,
            block: row.id(4)?,
            dataset: row.id(5)?,
            target: row.id(6)?,
            subscription: row.id(7)?,
            leased: row.get(8)?,
            attempts: row.get(9)?,
            attempt: row.id(10)?,
            epoch: row.id(11)?,
            source: row.id(12)?,
            agent: row.id(13)?,
            created: row.time(14)?,
            chosen: row.time(15)?,
            hop: row.get(16)?,
        })
    }
}

impl LiveTransferRow {
    /// The columns that [`LiveTransferRow::read`] takes; conditions and an order may follow.
    pub(crate) const SELECT: &str =
        "SELECT l.id, l.file, f.lfn, f.size, f.digests, l.block, l.dataset, l.target, l.subscription,
    l.leased, l.attempts, l.attempt, l.epoch, l.source, l.agent, l.start_by, l.not_before, l.created, \
    l.changed, l.fault FROM live l JOIN files f ON f.id = l.file";

    pub(crate) fn read(row: &Row<'_>) -> Result<LiveTransferRow> {
        Ok(LiveTransferRow {
            transfer: row.id(0)?,
            file: row.id(1)?,
            lfn: row.parsed(2)?,
            size: row.number(3)?,
            digests: row.digests(4)?,
            block: row.id(5)?,
            dataset: row.id(6)?,
            target: row.id(7)?,
            subscription: row.id(8)?,
            state: if row.get(9)? { TransferState::Leased } else { TransferState::Waiting },
            attempts: row.get(10)?,
            attempt: row.id(11)?,
            epoch: row.id(12)?,
            source: row.id(13)?,
            agent: row.id(14)?,
            start_by: row.time(15)?,
            not_before: row.time(16)?,
            created: row.time(17)?,
            changed: row.time(18)?,
            fault: row.fault(19)?,
        })
    }
}
