//! Space that is promised: what subscriptions and jobs still have to bring to a storage, beside what is free.

use std::collections::BTreeMap;

use longhaul_catalog::StorageRow;
use longhaul_model::{Fault, FaultCode, StorageId, StorageName, units};

use super::Operations;

/// A storage with less free space than is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpaceShortage {
    pub storage: StorageName,
    free_bytes: u64,
    promised_bytes: u64,
}

impl SpaceShortage {
    /// None if there is room. A storage that has not reported its size is taken to have room.
    fn between(storage: &StorageRow, promised_bytes: u64) -> Option<SpaceShortage> {
        let short = storage.writable && storage.total_bytes > 0 && promised_bytes > storage.free_bytes;
        short.then(|| SpaceShortage {
            storage: storage.name.clone(),
            free_bytes: storage.free_bytes,
            promised_bytes,
        })
    }

    /// A sentence for people.
    pub fn text(&self) -> String {
        format!(
            "{} are promised to {}, which has {} free",
            units::bytes(self.promised_bytes),
            self.storage,
            units::bytes(self.free_bytes)
        )
    }

    pub fn fault(&self) -> Fault {
        Fault::new(FaultCode::NoSpaceForRequest, self.text())
    }

    pub fn remedy(&self) -> String {
        format!(
            "free space at {name}, or cancel some of what is subscribed there: longhaul subscription list \
             --storage {name}; to refuse such subscriptions: longhaul storage set {name} --space-policy \
             refuse",
            name = self.storage
        )
    }
}

impl Operations {
    /// Bytes that still have to come to each storage; empty if the scheduler does not answer in time.
    pub(super) fn promised_bytes(&self) -> BTreeMap<StorageId, u64> {
        let ids: Vec<StorageId> =
            self.shared.kernel.directory().storages.values().map(|row| row.id).collect();
        let promised = self.query_scheduler(move |scheduler, _| {
            let bytes =
                |id| scheduler.missing_bytes(id).iter().map(|row| row.bytes).fold(0, u64::saturating_add);
            ids.into_iter().map(|id| (id, bytes(id))).collect()
        });
        promised.unwrap_or_default()
    }

    /// The storages that lack space for what is promised.
    pub(super) fn space_shortages(&self) -> BTreeMap<StorageId, SpaceShortage> {
        let promised = self.promised_bytes();
        let directory = self.shared.kernel.directory();
        let shortage = |row: &StorageRow| {
            let bytes = promised.get(&row.id).copied().unwrap_or(0);
            SpaceShortage::between(row, bytes).map(|shortage| (row.id, shortage))
        };
        directory.storages.values().filter_map(shortage).collect()
    }
}
