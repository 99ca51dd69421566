//! The export of a push: single files of several local trees, each under the name it gets at the server, and
//! nothing else.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit,
};
use parking_lot::{Mutex, MutexGuard};

use crate::push_steps::PushItem;

pub(crate) struct PushExport {
    name: StorageName,
    /// One root for each source of the push.
    roots: Vec<Arc<dyn Storage>>,
    files: Mutex<HashMap<String, PushItem>>,
}

impl PushExport {
    pub(crate) fn new(name: StorageName, roots: Vec<Arc<dyn Storage>>) -> Self {
        PushExport { name, roots, files: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, PushItem>> {
        self.files.lock()
    }

    /// Lets the server fetch a file by the name it gets there.
    pub(crate) fn add(&self, put: PushItem) {
        self.lock().insert(put.file.path.as_str().to_owned(), put);
    }

    /// Withdraws a file that the server has finished with.
    pub(crate) fn remove(&self, name: &str) -> Option<PushItem> {
        self.lock().remove(name)
    }

    /// The server asks for what this run named to it. Anything else it asks for an attempt of an earlier
    /// run, which has not ended there yet and finds its source again: the file is not gone, and what has
    /// arrived of it must be kept for this run.
    fn resolve(&self, at: &Pfn) -> Result<(Arc<dyn Storage>, Pfn), Fault> {
        let files = self.lock();
        let put = files.get(at.path()).ok_or_else(|| {
            let detail = format!("{} was asked for by an earlier run of this copy", printable(at.path()));
            Fault::new(FaultCode::Interrupted, detail)
        })?;
        let root = self.roots[put.source].clone();
        let real = Pfn::new(root.name().clone(), put.from.as_str())?;
        Ok((root, real))
    }

    fn refuse<T>(&self) -> Result<T, Fault> {
        let detail = format!("{} is exported read-only", self.name);
        Err(Fault::new(FaultCode::TargetReadOnly, detail))
    }
}

impl Storage for PushExport {
    fn name(&self) -> &StorageName {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn space(&self) -> Result<Space, Fault> {
        Ok(Space { total_bytes: 0, free_bytes: 0 })
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        let (storage, real) = self.resolve(at)?;
        storage.stat(&real)
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        let (storage, real) = self.resolve(at)?;
        storage.open(&real)
    }

    fn create(&self, _: &TempName, _: Option<&Pfn>, _: u64) -> Result<Box<dyn TargetFile>, Fault> {
        self.refuse()
    }

    fn reopen(&self, _: &TempName, _: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.refuse()
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        batch.iter().map(|_| self.refuse()).collect()
    }

    fn flush_present(&self, _: &[Pfn]) -> Result<(), Fault> {
        self.refuse()
    }

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        Ok(Vec::new())
    }

    fn remove_temp(&self, _: &TempName) -> Result<(), Fault> {
        self.refuse()
    }

    fn delete(&self, _: &Pfn, _: &Identity) -> Result<(), Fault> {
        self.refuse()
    }

    /// Empty: listings are made by `crate::walk`.
    fn walk(&self, _: &str, _: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Blame;

    /// Promise 4: as a missing file, it would end with all that has arrived of it.
    #[test]
    fn what_an_earlier_run_asks_for_is_interrupted_and_not_missing() {
        let name: StorageName = "export".parse().unwrap();
        let export = PushExport::new(name.clone(), Vec::new());
        let at = Pfn::new(name, "large").unwrap();
        let fault = export.open(&at).map(|_| ()).unwrap_err();
        assert_eq!((fault.code, fault.blame), (FaultCode::Interrupted, Blame::Ourselves));
        assert_eq!(export.stat(&at).unwrap_err().code, FaultCode::Interrupted);
    }
}
