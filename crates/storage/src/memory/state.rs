//! The contents of the store, in memory and on its simulated disk.

use std::collections::BTreeMap;

use longhaul_model::{Fault, FaultCode, Pfn, StorageName};

use super::Operation;
use super::faults::Faults;
use crate::listing::is_beneath;
use crate::{Commit, Identity, MODE_BITS, SkipReason, TempName, Visit};

#[derive(Clone, Default)]
pub(super) struct State {
    inodes: BTreeMap<u64, Inode>,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) temps: BTreeMap<TempName, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) durable_temps: BTreeMap<TempName, u64>,
    pub(super) left_out: Vec<(String, SkipReason, String)>,
    pub(super) operations: Vec<Operation>,
    pub(super) faults: Faults,
    /// Counts changes; serves as the modification time.
    changes: i64,
}

#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) bytes: Vec<u8>,
    durable: Vec<u8>,
    mtime_ns: i64,
    mode: Option<u32>,
    pub(super) reserved_bytes: u64,
    /// Whether a flush failed.
    pub(super) lost: bool,
}

impl Inode {
    pub(super) fn flush(&mut self) {
        self.durable.clone_from(&self.bytes);
    }

    /// Discards what was not flushed, as the kernel drops pages that it could not write.
    pub(super) fn lose(&mut self) {
        self.bytes = self.after_power_cut();
        self.lost = true;
    }

    /// Content of the same length, since sizes often survive, but with zeros where bytes were not flushed.
    fn after_power_cut(&self) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        bytes.resize(self.bytes.len(), 0);
        bytes
    }
}

pub(super) fn copy_at(bytes: &[u8], buffer: &mut [u8], offset: u64) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|start| bytes.get(start..)).unwrap_or_default();
    let len = rest.len().min(buffer.len());
    buffer[..len].copy_from_slice(&rest[..len]);
    len
}

impl State {
    pub(super) fn new_inode(&mut self, bytes: Vec<u8>, durable: bool) -> u64 {
        self.changes += 1;
        let number = self.changes as u64;
        let durable = if durable { bytes.clone() } else { Vec::new() };
        self.inodes.insert(number, Inode { bytes, durable, mtime_ns: self.changes, ..Inode::default() });
        number
    }

    /// Inodes are never removed: an open file outlives its name.
    pub(super) fn inode(&self, number: u64) -> &Inode {
        &self.inodes[&number]
    }

    pub(super) fn inode_mut(&mut self, number: u64) -> &mut Inode {
        self.inodes.entry(number).or_default()
    }

    pub(super) fn touch(&mut self, number: u64) {
        self.changes += 1;
        self.inode_mut(number).mtime_ns = self.changes;
    }

    pub(super) fn identity(&self, number: u64) -> Identity {
        let inode = self.inode(number);
        Identity { size: inode.bytes.len() as u64, mtime_ns: inode.mtime_ns, inode: number }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let held = |number: &u64| {
            let inode = self.inode(*number);
            inode.reserved_bytes.max(inode.bytes.len() as u64)
        };
        self.names.values().map(held).sum::<u64>() + self.temps.values().map(held).sum::<u64>()
    }

    pub(super) fn has_directory(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        self.names.range(inside.clone()..).next().is_some_and(|(name, _)| name.starts_with(&inside))
    }

    /// A name that differs only in case, on a case-insensitive storage. Includes directories.
    pub(super) fn case_variant_of(&self, path: &str) -> Option<&str> {
        if !self.faults.case_insensitive {
            return None;
        }
        let mut wanted: Vec<&str> = path.split('/').collect();
        while !wanted.is_empty() {
            let depth = wanted.len();
            let twin = self.names.keys().find(|name| {
                let has: Vec<&str> = name.split('/').take(depth).collect();
                has != wanted && has.join("/").to_lowercase() == wanted.join("/").to_lowercase()
            });
            if let Some(twin) = twin {
                return Some(twin);
            }
            wanted.pop();
        }
        None
    }

    pub(super) fn read(
        &mut self,
        path: &str,
        number: u64,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, Fault> {
        let end = offset + buffer.len() as u64;
        if self.faults.unreadable.get(path).is_some_and(|&bad| (offset..end).contains(&bad)) {
            let detail = format!("{path} at byte {offset}: input/output error");
            return Err(Fault::new(FaultCode::SourceUnreadable, detail));
        }
        if self.faults.changes_at.get(path).is_some_and(|&at| (offset..end).contains(&at)) {
            self.faults.changes_at.remove(path);
            self.inode_mut(number).bytes.iter_mut().for_each(|byte| *byte ^= 0xff);
            self.touch(number);
        }
        Ok(copy_at(&self.inode(number).bytes, buffer, offset))
    }

    pub(super) fn write(&mut self, number: u64, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        self.check_writable()?;
        self.faults.take_write_fault(bytes.len() as u64)?;
        let len = self.inode(number).bytes.len() as u64;
        if self.faults.append_only && offset != len {
            let detail = format!("byte {offset} came when byte {len} was due; it only appends");
            return Err(Fault::new(FaultCode::Internal, detail));
        }
        let inode = self.inode(number);
        let end = offset as usize + bytes.len();
        let held = inode.reserved_bytes.max(inode.bytes.len() as u64);
        let more = (end as u64).saturating_sub(held);
        if self.used_bytes().saturating_add(more) > self.faults.capacity_bytes {
            return Err(Fault::new(FaultCode::TargetFull, "no space left"));
        }
        let inode = self.inode_mut(number);
        if inode.bytes.len() < end {
            inode.bytes.resize(end, 0);
        }
        inode.bytes[offset as usize..end].copy_from_slice(bytes);
        self.touch(number);
        Ok(())
    }

    pub(super) fn check_writable(&self) -> Result<(), Fault> {
        if self.faults.read_only {
            return Err(Fault::new(FaultCode::TargetReadOnly, "read-only file system"));
        }
        Ok(())
    }

    pub(super) fn check_complete(&self, item: &Commit) -> Result<(), Fault> {
        let found = self.temps.get(&item.temp).map(|&number| self.inode(number));
        let trouble = match found {
            None => "is gone".to_owned(),
            Some(inode) if inode.lost => "lost data when a flush failed".to_owned(),
            Some(inode) if inode.bytes.len() as u64 != item.size => {
                format!("has {} bytes, not {}", inode.bytes.len(), item.size)
            }
            Some(_) => return Ok(()),
        };
        Err(Fault::new(FaultCode::TargetWrite, format!("the temporary file of {} {trouble}", item.target)))
    }

    pub(super) fn flush_batch(&mut self, batch: &[Commit], results: &mut [Result<(), Fault>]) {
        if results.iter().all(Result::is_err) {
            return;
        }
        self.operations.push(Operation::FlushData);
        let flushed = self.take_flush_fault();
        for (item, result) in batch.iter().zip(results).filter(|(_, result)| result.is_ok()) {
            let Some(&number) = self.temps.get(&item.temp) else { continue };
            match &flushed {
                Ok(()) => self.inode_mut(number).flush(),
                Err(fault) => {
                    self.inode_mut(number).lose();
                    *result = Err(fault.clone());
                }
            }
        }
    }

    pub(super) fn mode(&self, path: &str) -> Option<u32> {
        self.names.get(path).and_then(|&number| self.inode(number).mode)
    }

    /// Sets the attributes of an admitted commit.
    pub(super) fn set_attributes(&mut self, item: &Commit) {
        let Some(&number) = self.temps.get(&item.temp) else { return };
        let inode = self.inode_mut(number);
        inode.mode = item.mode.map(|mode| mode & MODE_BITS).or(inode.mode);
        inode.mtime_ns = item.mtime_ns.unwrap_or(inode.mtime_ns);
    }

    pub(super) fn rename(&mut self, item: &Commit) -> Result<(), Fault> {
        let path = item.target.path();
        let clash = |what: &str| Err(Fault::new(FaultCode::NameClash, format!("{}: {what}", item.target)));
        if let Some(twin) = self.case_variant_of(path) {
            let detail = format!("{} meets \"{twin}\", which is there already", item.target);
            return Err(Fault::new(FaultCode::CaseTwin, detail));
        }
        if self.has_directory(path) {
            return clash("something is there");
        }
        if let Some(&there) = self.names.get(path)
            && item.replaces != Some(self.identity(there))
        {
            return clash("something else is there");
        }
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        if parents.into_iter().any(|parent| self.names.contains_key(parent)) {
            return clash("a file stands where a directory is needed");
        }
        let Some(number) = self.temps.remove(&item.temp) else {
            return Err(Fault::new(FaultCode::TargetWrite, "named twice in one commit"));
        };
        self.inode_mut(number).reserved_bytes = 0;
        self.names.insert(path.to_owned(), number);
        self.operations.push(Operation::Rename(item.temp.clone(), path.to_owned()));
        Ok(())
    }

    pub(super) fn flush_names(&mut self) -> Result<(), Fault> {
        self.operations.push(Operation::FlushNames);
        self.take_flush_fault()?;
        self.durable_names = self.names.clone();
        self.durable_temps = self.temps.clone();
        Ok(())
    }

    pub(super) fn flush_temp_name(&mut self, temp: &TempName, number: u64) {
        if self.temps.get(temp) == Some(&number) {
            self.durable_temps.insert(temp.clone(), number);
        }
    }

    pub(super) fn remove_temp(&mut self, temp: &TempName) {
        self.temps.remove(temp);
    }

    pub(super) fn take_flush_fault(&mut self) -> Result<(), Fault> {
        self.faults.take_flush_fault()
    }

    /// All files lose what was not flushed.
    pub(super) fn cut_power(&mut self) {
        for inode in self.inodes.values_mut() {
            inode.bytes = inode.after_power_cut();
            inode.durable.clone_from(&inode.bytes);
        }
    }

    /// Everything at and beneath `start`, in name order, component by component.
    pub(super) fn visits(&self, storage: &StorageName, start: &str) -> Vec<Visit> {
        let mut found: Vec<(Vec<String>, Visit)> = Vec::new();
        let key = |path: &str| path.split('/').map(str::to_owned).collect();
        for (path, &number) in self.names.iter().filter(|(path, _)| is_beneath(path, start)) {
            if let Ok(at) = Pfn::new(storage.clone(), path) {
                found.push((key(path), Visit::File { at, identity: self.identity(number) }));
            }
        }
        for (path, reason, detail) in self.left_out.iter().filter(|(path, ..)| is_beneath(path, start)) {
            let visit = Visit::Skipped { path: path.clone(), reason: *reason, detail: detail.clone() };
            found.push((key(path), visit));
        }
        found.sort_by(|one, other| one.0.cmp(&other.0));
        found.into_iter().map(|(_, visit)| visit).collect()
    }
}
