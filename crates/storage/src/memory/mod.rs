//! Fault-injecting in-memory storage for the tests of this crate and of others.
//!
//! It models the durability of a disk: bytes and names are volatile until they are flushed, and
//! [`FaultyStore::after_power_cut`] returns what is left. Directories exist as long as files lie in them.

mod faults;
mod state;

use std::ops::ControlFlow;
use std::sync::Arc;

use longhaul_model::{Blame, Fault, FaultCode, Pfn, StorageName};
use parking_lot::{Mutex, MutexGuard};

pub use faults::UnflushedNames;
use state::State;

use crate::listing::visit_all;
use crate::{
    Capabilities, Commit, Identity, SkipReason, SourceFile, Space, Storage, TargetFile, TempName, Visit,
};

/// Clones share the same store, so that a test keeps one to inspect and to inject faults.
#[derive(Clone)]
pub struct FaultyStore {
    name: StorageName,
    state: Arc<Mutex<State>>,
}

/// A recorded operation, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A temporary file was created.
    Create(TempName),
    /// Flush of one temporary file, by [`TargetFile::flush`].
    Flush(TempName),
    /// Flush of all data of a commit.
    FlushData,
    /// A temporary file got its final name.
    Rename(TempName, String),
    /// Flush of all names of a commit.
    FlushNames,
    /// A temporary file was removed.
    RemoveTemp(TempName),
    /// A file was deleted under its final name.
    Delete(String),
}

impl FaultyStore {
    /// An empty, writable store.
    pub fn new(name: StorageName) -> Self {
        FaultyStore { name, state: Arc::default() }
    }

    /// Puts a new, durable file under a final name; replaces an older one.
    ///
    /// # Panics
    /// If `path` is not a valid name.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let at = Pfn::new(self.name.clone(), path);
        assert!(at.is_ok(), "{path:?} is no name");
        let mut state = self.state();
        let inode = state.new_inode(bytes.to_vec(), true);
        state.names.insert(path.to_owned(), inode);
        state.durable_names.insert(path.to_owned(), inode);
    }

    /// The bytes under a final name.
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(path).map(|&inode| state.inode(inode).bytes.clone())
    }

    /// The permission bits that a commit gave the file.
    pub fn mode(&self, path: &str) -> Option<u32> {
        self.state().mode(path)
    }

    /// The bytes of a temporary file.
    pub fn temp_contents(&self, temp: &TempName) -> Option<Vec<u8>> {
        let state = self.state();
        state.temps.get(temp).map(|&inode| state.inode(inode).bytes.clone())
    }

    /// All final names.
    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// All operations so far, in order.
    pub fn operations(&self) -> Vec<Operation> {
        self.state().operations.clone()
    }

    /// Makes `walk` find something that is not a file.
    pub fn put_skipped(&self, path: &str, reason: SkipReason, detail: &str) {
        self.state().left_out.push((path.to_owned(), reason, detail.to_owned()));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn check_name(&self, at: &Pfn) -> Result<(), Fault> {
        if at.storage != self.name {
            return Err(Fault::new(FaultCode::NotFound, format!("{at} is not in the storage {}", self.name)));
        }
        if at.path() == ".longhaul" || at.path().starts_with(".longhaul/") {
            return Err(Fault::new(FaultCode::BadName, format!("{at} lies in the work directory")));
        }
        Ok(())
    }
}

impl Storage for FaultyStore {
    fn name(&self) -> &StorageName {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let state = self.state();
        let faults = &state.faults;
        Capabilities {
            writable: true,
            case_insensitive: faults.case_insensitive,
            random_write: !faults.append_only,
            device: faults.device,
            parallel: faults.parallel,
            discards: false,
            resumes: true,
            reads_temps: true,
            sets_attributes: true,
            keeps_any_name: true,
            always_tells_space: true,
            has_directories: true,
            removes_empty_directories: true,
        }
    }

    fn space(&self) -> Result<Space, Fault> {
        let state = self.state();
        let total_bytes = state.faults.capacity_bytes;
        Ok(Space { total_bytes, free_bytes: total_bytes.saturating_sub(state.used_bytes()) })
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.check_name(at)?;
        let state = self.state();
        if let Some(&inode) = state.names.get(at.path()) {
            return Ok(Some(state.identity(inode)));
        }
        if state.has_directory(at.path()) {
            return Err(Fault::new(FaultCode::SourceUnreadable, format!("{at} is a directory, not a file")));
        }
        match state.case_variant_of(at.path()) {
            Some(twin) => Err(Fault::new(FaultCode::CaseTwin, format!("{at} meets {twin}"))),
            None => Ok(None),
        }
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        let identity = self.stat(at)?;
        let identity = identity.ok_or_else(|| Fault::new(FaultCode::SourceMissing, at.to_string()))?;
        Ok(Box::new(OpenSource { store: self.clone(), path: at.path().to_owned(), identity }))
    }

    fn create(
        &self,
        temp: &TempName,
        _target: Option<&Pfn>,
        size: u64,
    ) -> Result<Box<dyn TargetFile>, Fault> {
        let mut state = self.state();
        state.check_writable()?;
        state.remove_temp(temp);
        if state.used_bytes().saturating_add(size) > state.faults.capacity_bytes {
            return Err(Fault::new(
                FaultCode::TargetFull,
                format!("{size} bytes do not fit into {}", self.name),
            ));
        }
        let inode = state.new_inode(Vec::new(), false);
        state.inode_mut(inode).reserved_bytes = size;
        state.temps.insert(temp.clone(), inode);
        state.operations.push(Operation::Create(temp.clone()));
        Ok(Box::new(OpenTarget { store: self.clone(), temp: temp.clone(), inode }))
    }

    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        let mut state = self.state();
        state.check_writable()?;
        let Some(&inode) = state.temps.get(temp) else { return Ok(None) };
        if state.inode(inode).bytes.len() as u64 > size || state.inode(inode).lost {
            state.remove_temp(temp);
            return Ok(None);
        }
        Ok(Some(Box::new(OpenTarget { store: self.clone(), temp: temp.clone(), inode })))
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        let mut state = self.state();
        let admit = |item: &Commit| {
            self.check_name(&item.target)?;
            state.check_writable()?;
            state.check_complete(item)
        };
        let mut results: Vec<Result<(), Fault>> = batch.iter().map(admit).collect();
        batch
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_ok())
            .for_each(|(item, _)| state.set_attributes(item));
        state.flush_batch(batch, &mut results);
        for (item, result) in batch.iter().zip(&mut results).filter(|(_, result)| result.is_ok()) {
            *result = state.rename(item);
        }
        if results.iter().any(Result::is_ok)
            && let Err(lost) = state.flush_names()
        {
            results.iter_mut().filter(|result| result.is_ok()).for_each(|result| *result = Err(lost.clone()));
        }
        results
    }

    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        for at in at {
            let identity = self.stat(at)?;
            identity.ok_or_else(|| Fault::new(FaultCode::TargetWrite, format!("{at} is gone")))?;
        }
        let mut state = self.state();
        state.take_flush_fault()?;
        for at in at {
            let inode = state.names.get(at.path()).copied();
            inode.into_iter().for_each(|inode| state.inode_mut(inode).flush());
        }
        state.flush_names()
    }

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        Ok(self.state().temps.keys().cloned().collect())
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        let mut state = self.state();
        state.check_writable()?;
        state.remove_temp(temp);
        state.operations.push(Operation::RemoveTemp(temp.clone()));
        Ok(())
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.state().check_writable()?;
        let Some(found) = self.stat(at).map_err(|fault| fault.blaming(Blame::Target))? else {
            return Ok(());
        };
        if found != *expected {
            let detail = format!("{at} is {found}, not {expected} (size:mtime:inode), and stays");
            return Err(Fault::new(FaultCode::Conflict, detail));
        }
        let mut state = self.state();
        state.names.remove(at.path());
        state.operations.push(Operation::Delete(at.path().to_owned()));
        Ok(())
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        if !path.is_empty() {
            let start = Pfn::new(self.name.clone(), path)?;
            self.check_name(&start)?;
        }
        let found = self.state().visits(&self.name, path);
        visit_all(found, (&self.name, path), visit)
    }
}

struct OpenSource {
    store: FaultyStore,
    path: String,
    identity: Identity,
}

impl SourceFile for OpenSource {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn identity_now(&self) -> Result<Identity, Fault> {
        Ok(self.store.state().identity(self.identity.inode))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        self.store.state().read(&self.path, self.identity.inode, buffer, offset)
    }
}

struct OpenTarget {
    store: FaultyStore,
    temp: TempName,
    inode: u64,
}

impl TargetFile for OpenTarget {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        self.store.state().write(self.inode, bytes, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        Ok(state::copy_at(&self.store.state().inode(self.inode).bytes, buffer, offset))
    }

    fn begin_writeback(&self, _offset: u64, _len: u64) {}

    fn flush(&self) -> Result<(), Fault> {
        let mut state = self.store.state();
        state.operations.push(Operation::Flush(self.temp.clone()));
        if let Err(fault) = state.take_flush_fault() {
            state.inode_mut(self.inode).lose();
            return Err(fault);
        }
        state.inode_mut(self.inode).flush();
        state.flush_temp_name(&self.temp, self.inode);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
