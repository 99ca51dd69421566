//! Transfers that have had an attempt, as the catalog keeps them: found by attempt, and counted by the ends
//! of their leases.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_model::{AttemptId, Epoch, TransferId};
use longhaul_scheduler::AdoptedLease;

pub struct Row {
    pub file: u64,
    pub target: u64,
    pub attempts: u32,
    pub epoch: Epoch,
    lease: Option<AdoptedLease>,
}

impl Row {
    pub fn lease(&self) -> Option<AdoptedLease> {
        self.lease
    }
}

#[derive(Default)]
pub struct Rows {
    rows: BTreeMap<TransferId, Row>,
    by_attempt: BTreeMap<AttemptId, TransferId>,
    /// (target, file) of those that are leased.
    leased: BTreeSet<(u64, u64)>,
    leased_into: BTreeMap<u64, u32>,
    leased_from: BTreeMap<u64, u32>,
}

impl Rows {
    pub fn iter(&self) -> impl Iterator<Item = (&TransferId, &Row)> {
        self.rows.iter()
    }

    pub fn get_mut(&mut self, transfer: TransferId) -> Option<&mut Row> {
        self.rows.get_mut(&transfer)
    }

    /// The transfer whose lease is for this attempt.
    pub fn of_attempt(&self, attempt: AttemptId) -> Option<TransferId> {
        self.by_attempt.get(&attempt).copied()
    }

    pub fn is_leased(&self, target: u64, file: u64) -> bool {
        self.leased.contains(&(target, file))
    }

    /// How many are leased to a target.
    pub fn leased_into(&self, target: u64) -> u32 {
        self.leased_into.get(&target).copied().unwrap_or(0)
    }

    /// How many are leased from a source.
    pub fn leased_from(&self, source: u64) -> u32 {
        self.leased_from.get(&source).copied().unwrap_or(0)
    }

    pub fn remove(&mut self, transfer: TransferId) -> Option<Row> {
        self.end_lease(transfer);
        self.rows.remove(&transfer)
    }

    pub fn retain(&mut self, keeps: impl Fn(&Row) -> bool) {
        let gone: Vec<TransferId> =
            self.rows.iter().filter(|(_, row)| !keeps(row)).map(|(id, _)| *id).collect();
        for transfer in gone {
            self.remove(transfer);
        }
    }

    pub fn end_lease(&mut self, transfer: TransferId) {
        let Some(row) = self.rows.get_mut(&transfer) else { return };
        let Some(lease) = row.lease.take() else { return };
        self.by_attempt.remove(&lease.attempt);
        self.leased.remove(&(row.target, row.file));
        *self.leased_into.get_mut(&row.target).unwrap() -= 1;
        *self.leased_from.get_mut(&lease.source.0).unwrap() -= 1;
    }

    /// Panics if the transfer is leased already, or its epoch does not grow.
    pub fn lease(
        &mut self,
        transfer: TransferId,
        (file, target): (u64, u64),
        epoch: Epoch,
        lease: AdoptedLease,
    ) {
        let row = self.rows.entry(transfer).or_insert(Row { file, target, attempts: 0, epoch, lease: None });
        assert!(row.lease.is_none() && (row.epoch < epoch || row.epoch.0 == 1), "epochs grow");
        row.epoch = epoch;
        row.lease = Some(lease);
        self.by_attempt.insert(lease.attempt, transfer);
        self.leased.insert((target, file));
        *self.leased_into.entry(target).or_default() += 1;
        *self.leased_from.entry(lease.source.0).or_default() += 1;
    }
}
