//! Fault injection for [`FaultyStore`](super::FaultyStore).

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};
use parking_lot::Mutex;

use super::FaultyStore;

#[derive(Clone)]
pub(super) struct Faults {
    pub(super) capacity_bytes: u64,
    pub(super) read_only: bool,
    pub(super) case_insensitive: bool,
    pub(super) append_only: bool,
    /// See `Capabilities`.
    pub(super) device: Option<u64>,
    pub(super) parallel: Option<u16>,
    /// Bytes that can still be written before the disk is full.
    full_after_bytes: Option<u64>,
    /// Numbers of flushes and writes that will fail.
    flush_failures: u32,
    write_failures: u32,
    /// By path: the byte that cannot be read, and the byte whose reading makes the file change.
    pub(super) unreadable: BTreeMap<String, u64>,
    pub(super) changes_at: BTreeMap<String, u64>,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            capacity_bytes: 1 << 40,
            read_only: false,
            case_insensitive: false,
            append_only: false,
            device: None,
            parallel: None,
            full_after_bytes: None,
            flush_failures: 0,
            write_failures: 0,
            unreadable: BTreeMap::new(),
            changes_at: BTreeMap::new(),
        }
    }
}

impl Faults {
    pub(super) fn take_flush_fault(&mut self) -> Result<(), Fault> {
        if self.flush_failures == 0 {
            return Ok(());
        }
        self.flush_failures -= 1;
        Err(Fault::new(FaultCode::TargetWrite, "flushing: input/output error"))
    }

    pub(super) fn take_write_fault(&mut self, bytes: u64) -> Result<(), Fault> {
        if self.write_failures > 0 {
            self.write_failures -= 1;
            return Err(Fault::new(FaultCode::TargetWrite, "writing: input/output error"));
        }
        match &mut self.full_after_bytes {
            Some(left) if *left < bytes => Err(Fault::new(FaultCode::TargetFull, "no space left")),
            Some(left) => {
                *left -= bytes;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// What a power failure does to names that were created and not flushed. A disk may do either, so tests try
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnflushedNames {
    /// The name survives.
    Kept,
    /// The name is lost.
    Lost,
}

impl FaultyStore {
    /// Sets the total space of the store, in bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().faults.capacity_bytes = bytes;
    }

    /// The disk is full after this many more written bytes, whatever was reserved; none removes the limit.
    pub fn run_full_after(&self, bytes: Option<u64>) {
        self.state().faults.full_after_bytes = bytes;
    }

    /// Refuses every write, as a file system mounted read-only does.
    pub fn set_read_only(&self, read_only: bool) {
        self.state().faults.read_only = read_only;
    }

    /// Makes names that differ only in case one name.
    pub fn set_case_insensitive(&self, case_insensitive: bool) {
        self.state().faults.case_insensitive = case_insensitive;
    }

    /// Writes anywhere but at the end of a file fail.
    pub fn set_append_only(&self, append_only: bool) {
        self.state().faults.append_only = append_only;
    }

    /// Sets the device of the store and its concurrency.
    pub fn set_device(&self, device: u64, parallel: u16) {
        let faults = &mut self.state().faults;
        (faults.device, faults.parallel) = (Some(device), Some(parallel));
    }

    /// Reads that touch this byte fail; none ends that.
    pub fn fail_reading(&self, path: &str, offset: Option<u64>) {
        let unreadable = &mut self.state().faults.unreadable;
        match offset {
            Some(offset) => unreadable.insert(path.to_owned(), offset),
            None => unreadable.remove(path),
        };
    }

    /// The next `times` writes fail with `TargetWrite`.
    pub fn fail_writes(&self, times: u32) {
        self.state().faults.write_failures = times;
    }

    /// The next flushes fail, and lose what they should have flushed.
    pub fn fail_flushes(&self, times: u32) {
        self.state().faults.flush_failures = times;
    }

    /// The file changes, once, when this byte is about to be read.
    pub fn change_while_reading(&self, path: &str, offset: u64) {
        self.state().faults.changes_at.insert(path.to_owned(), offset);
    }

    /// Inverts a byte without changing the identity, as a failing disk does (silent corruption).
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn flip_byte(&self, path: &str, offset: u64) {
        let (mut state, number) = self.state_and_inode(path);
        state.inode_mut(number).bytes[offset as usize] ^= 0xff;
        state.inode_mut(number).flush();
    }

    /// Truncates a file, as its owner might. Panics like [`FaultyStore::flip_byte`], as do the next two.
    pub fn truncate(&self, path: &str, len: u64) {
        let (mut state, number) = self.state_and_inode(path);
        state.inode_mut(number).bytes.truncate(len as usize);
        state.inode_mut(number).flush();
        state.touch(number);
    }

    /// Changes the modification time.
    pub fn change_identity(&self, path: &str) {
        let (mut state, number) = self.state_and_inode(path);
        state.touch(number);
    }

    /// Removes a file, as its owner might.
    pub fn remove(&self, path: &str) {
        let (mut state, _) = self.state_and_inode(path);
        state.names.remove(path);
        state.durable_names.remove(path);
    }

    /// A separate store with what the disk would hold after a power failure now. Injected faults are cleared.
    pub fn after_power_cut(&self, names: UnflushedNames) -> FaultyStore {
        let mut state = self.state().clone();
        // The configuration stays; injected faults are cleared.
        let Faults { append_only, case_insensitive, device, parallel, .. } = state.faults;
        state.faults = Faults { append_only, case_insensitive, device, parallel, ..Faults::default() };
        state.operations.clear();
        state.cut_power();
        match names {
            UnflushedNames::Lost => {
                state.names = state.durable_names.clone();
                state.temps = state.durable_temps.clone();
            }
            UnflushedNames::Kept => {
                state.durable_names = state.names.clone();
                state.durable_temps = state.temps.clone();
            }
        }
        FaultyStore { name: self.name.clone(), state: Arc::new(Mutex::new(state)) }
    }

    fn state_and_inode(&self, path: &str) -> (parking_lot::MutexGuard<'_, super::State>, u64) {
        let state = self.state();
        let number = state.names.get(path).copied();
        assert!(number.is_some(), "no file {path:?} to spoil");
        (state, number.unwrap_or_default())
    }
}
