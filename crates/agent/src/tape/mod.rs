//! Tape-backed storages: the site's own commands stage files to disk, migrate them to tape, remove them from
//! disk, and tell their locality.
//!
//! Clients use the Tape REST API of the storage's doors (`doors::tape`), and their requests survive any
//! crash. What arrives at such a storage, through a door or by the engine, is migrated to tape. A file that
//! is on tape only is listed but not read.
//!
//! Not here: the form of requests and who may make them (`doors`); tape systems themselves. Start with
//! [`Tapes`]; then `state`, and `driver`, which persists it and acts on it.

mod disk_budget;
mod driver;
mod stage_orders;
mod stage_queue;
mod state;
mod stub_storage;
mod system;

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use longhaul_doors::Tape;
use longhaul_model::{Fault, FaultCode, Lfn, StorageName};
use longhaul_storage::Storage;
use tokio::task::JoinSet;

use crate::clock::ServiceClock;
use crate::config::StorageConfig;
use driver::TapeDriver;
use stub_storage::TapeBackedStorage;
use system::TapeSystem;

pub(crate) use stage_orders::{StageOrders, StageOrdersCheck};

/// The tape systems behind an agent's storages, where there are any.
#[derive(Default)]
pub(crate) struct TapeSystems(BTreeMap<StorageName, Arc<TapeSystem>>);

impl TapeSystems {
    /// Must be called within a runtime.
    pub(crate) fn from_storages(storages: &[StorageConfig]) -> Result<TapeSystems, Fault> {
        let mut systems = BTreeMap::new();
        for storage in storages {
            let Some(config) = &storage.tape else { continue };
            systems.insert(storage.name.clone(), Arc::new(TapeSystem::open(storage, config)?));
        }
        Ok(TapeSystems(systems))
    }

    /// Wraps a tape-backed storage so that stubs are not read.
    pub(crate) fn wrap(&self, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        match self.0.get(storage.name()) {
            Some(site) => Arc::new(TapeBackedStorage::new(storage, site.clone())),
            None => storage,
        }
    }
}

/// The tape drivers of an agent's storages.
#[derive(Default)]
pub(crate) struct Tapes(BTreeMap<StorageName, Arc<TapeDriver>>);

impl Tapes {
    /// Restores the state of an earlier run from `directory`.
    pub(crate) fn open(systems: TapeSystems, directory: &Path, clock: &ServiceClock) -> Result<Tapes, Fault> {
        let mut drivers = BTreeMap::new();
        if !systems.0.is_empty() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| {
                Fault::new(FaultCode::StateDirectory, format!("{}: {error}", directory.display()))
                    .with_source(error)
            })?;
        }
        for (name, site) in systems.0 {
            let file = directory.join(name.as_str());
            drivers.insert(name, Arc::new(TapeDriver::open(site, &file, clock.clone())?));
        }
        Ok(Tapes(drivers))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn driver(&self, storage: &StorageName) -> Option<&Arc<TapeDriver>> {
        self.0.get(storage)
    }

    fn drivers(&self) -> impl Iterator<Item = (&StorageName, &Arc<TapeDriver>)> {
        self.0.iter()
    }

    pub(crate) fn tape_of(&self, storage: &StorageName) -> Option<Arc<dyn Tape>> {
        self.0.get(storage).map(|driver| driver.clone() as Arc<dyn Tape>)
    }

    /// Queues files that the engine has transferred for migration. An error: that is not durable.
    pub(crate) fn queue_migration(&self, files: &BTreeMap<StorageName, Vec<Lfn>>) -> Result<(), Fault> {
        let of_tapes = files.iter().filter_map(|(storage, lfns)| Some((self.0.get(storage)?, lfns)));
        of_tapes.into_iter().try_for_each(|(driver, lfns)| driver.queue_migration(lfns))
    }

    /// Runs all drivers until it is dropped.
    pub(crate) async fn run(self: Arc<Tapes>) -> Fault {
        let mut running = JoinSet::new();
        for driver in self.0.values() {
            running.spawn(driver.clone().run());
        }
        match running.join_next().await {
            Some(Ok(fault)) => fault,
            Some(Err(error)) => {
                Fault::new(FaultCode::Internal, format!("a tape driver ended: {error}")).with_source(error)
            }
            None => std::future::pending().await,
        }
    }
}
