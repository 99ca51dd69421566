//! Storages that are on tape: a site's own commands bring files to disk, take them to tape, remove them from
//! the disk, and say where they are.
//!
//! Clients ask by the Tape REST API of the storage's doors (`doors::tape`), and what they ask for is kept
//! over any kill. What comes to such a storage, through a door or by the engine, goes to tape. What is on
//! tape only is seen and not read.
//!
//! Not here: the form of questions, and who may ask (`doors`); tape systems themselves. Start with [`Tapes`];
//! then `state`, which is the state, and `driver`, which keeps it and does what follows from it.

mod driver;
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

/// The sites behind an agent's storages, as far as they are on tape.
#[derive(Default)]
pub(crate) struct TapeSystems(BTreeMap<StorageName, Arc<TapeSystem>>);

impl TapeSystems {
    /// To be called where there is a runtime.
    pub(crate) fn from_storages(storages: &[StorageConfig]) -> Result<TapeSystems, Fault> {
        let mut systems = BTreeMap::new();
        for storage in storages {
            let Some(config) = &storage.tape else { continue };
            systems.insert(storage.name.clone(), Arc::new(TapeSystem::open(storage, config)?));
        }
        Ok(TapeSystems(systems))
    }

    /// The storage as it is to be read.
    pub(crate) fn wrap(&self, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        match self.0.get(storage.name()) {
            Some(site) => Arc::new(TapeBackedStorage::new(storage, site.clone())),
            None => storage,
        }
    }
}

/// All that is asked of an agent's tapes.
#[derive(Default)]
pub(crate) struct Tapes(BTreeMap<StorageName, Arc<TapeDriver>>);

impl Tapes {
    /// Reads what an earlier run has kept in `directory`.
    pub(crate) fn open(systems: TapeSystems, directory: &Path, clock: &ServiceClock) -> Result<Tapes, Fault> {
        let mut drivers = BTreeMap::new();
        if !systems.0.is_empty() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| {
                Fault::new(FaultCode::StateDirectory, format!("{}: {error}", directory.display()))
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

    pub(crate) fn tape_of(&self, storage: &StorageName) -> Option<Arc<dyn Tape>> {
        self.0.get(storage).map(|driver| driver.clone() as Arc<dyn Tape>)
    }

    /// Files that the engine has brought, by storages. An error: they are not known to be on their way to
    /// tape.
    pub(crate) fn queue_migration(&self, files: &BTreeMap<StorageName, Vec<Lfn>>) -> Result<(), Fault> {
        let of_tapes = files.iter().filter_map(|(storage, lfns)| Some((self.0.get(storage)?, lfns)));
        of_tapes.into_iter().try_for_each(|(driver, lfns)| driver.queue_migration(lfns))
    }

    /// Does what there is to do, until it is dropped.
    pub(crate) async fn run(self: Arc<Tapes>) -> Fault {
        let mut running = JoinSet::new();
        for driver in self.0.values() {
            running.spawn(driver.clone().run());
        }
        match running.join_next().await {
            Some(Ok(fault)) => fault,
            Some(Err(error)) => Fault::new(FaultCode::Internal, format!("the care for tapes ended: {error}")),
            None => std::future::pending().await,
        }
    }
}
