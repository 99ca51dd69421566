//! The memory of a virtual storage: length and checksum of a file in progress, and the name of a committed
//! one.

use std::collections::{BTreeMap, VecDeque};

use longhaul_model::digest::crc32c_combine;
use longhaul_model::{Fault, FaultCode, Pfn, StorageName};

use super::content::{VirtualContent, origin};
use crate::listing::is_beneath;
use crate::{Commit, Identity, TempName, Visit};

/// Files remembered; beyond that the oldest are evicted. A hundred bytes each.
pub(super) const RECORDS_MAX: usize = 100_000;
/// Temporary files, and disjoint extents of one: an engine has far fewer in flight.
const TEMPS_MAX: usize = 10_000;
const PIECES_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct State {
    records: BTreeMap<String, Record>,
    order: VecDeque<(String, u64)>,
    temps: BTreeMap<TempName, Temp>,
    /// Counts created files; serves as time and inode.
    made: u64,
}

#[derive(Clone)]
pub(super) struct Record {
    pub(super) identity: Identity,
    /// The written bytes match the name, so the file can be read again.
    pub(super) content: Option<VirtualContent>,
}

struct Temp {
    number: u64,
    len: u64,
    /// Disjoint extents: where each starts, its length and CRC-32C.
    pieces: BTreeMap<u64, (u64, u32)>,
    /// Something was written twice: the checksum is unknown.
    twice: bool,
}

impl State {
    pub(super) fn create(&mut self, temp: &TempName) -> Result<u64, Fault> {
        if self.temps.len() >= TEMPS_MAX && !self.temps.contains_key(temp) {
            return Err(Fault::new(
                FaultCode::TargetFull,
                format!("{TEMPS_MAX} files are under way here already"),
            ));
        }
        self.made += 1;
        let fresh = Temp { number: self.made, len: 0, pieces: BTreeMap::new(), twice: false };
        self.temps.insert(temp.clone(), fresh);
        Ok(self.made)
    }

    pub(super) fn written(
        &mut self,
        temp: &TempName,
        number: u64,
        offset: u64,
        len: u64,
        crc: u32,
    ) -> Result<(), Fault> {
        let gone = || Fault::new(FaultCode::TargetWrite, "the temporary file is gone");
        let temp = self.temps.get_mut(temp).filter(|temp| temp.number == number).ok_or_else(gone)?;
        temp.add(offset, len, crc)
    }

    pub(super) fn temps(&self) -> Vec<TempName> {
        self.temps.keys().cloned().collect()
    }

    pub(super) fn remove_temp(&mut self, temp: &TempName) {
        self.temps.remove(temp);
    }

    pub(super) fn record(&self, path: &str) -> Option<&Record> {
        self.records.get(path)
    }

    pub(super) fn is_directory(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        self.records.range(inside.clone()..).next().is_some_and(|(name, _)| name.starts_with(&inside))
    }

    pub(super) fn commit(&mut self, item: &Commit, own: &StorageName) -> Result<(), Fault> {
        let path = item.target.path();
        let found = self.temps.get(&item.temp);
        let temp = found.ok_or_else(|| incomplete(item, "is gone".into()))?;
        if temp.len != item.size {
            return Err(incomplete(item, format!("has {} bytes, not {}", temp.len, item.size)));
        }
        self.admit(item, own)?;
        let expected = VirtualContent::parse(path).filter(|content| content.size() == item.size);
        let content = expected.filter(|content| temp.matches(item.size, content.digest().crc32c));
        self.temps.remove(&item.temp);
        self.made += 1;
        let mtime_ns = item.mtime_ns.unwrap_or(self.made.cast_signed());
        let identity = Identity { size: item.size, mtime_ns, inode: self.made };
        self.order.push_back((path.to_owned(), self.made));
        self.records.insert(path.to_owned(), Record { identity, content });
        self.clean();
        Ok(())
    }

    /// Whether the name is free, or held by the file that may be replaced.
    fn admit(&self, item: &Commit, own: &StorageName) -> Result<(), Fault> {
        let path = item.target.path();
        let clash = |what: &str| Err(Fault::new(FaultCode::NameClash, format!("{}: {what}", item.target)));
        if VirtualContent::parse(path).is_some()
            && origin(path).is_some_and(|(storage, _)| storage == own.as_str())
        {
            return clash("a virtual file of this storage has this name");
        }
        if self.is_directory(path) {
            return clash("it is a directory");
        }
        if self.records.get(path).is_some_and(|record| item.replaces.as_ref() != Some(&record.identity)) {
            return clash("something else is there");
        }
        let mut parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        if parents.any(|parent| self.records.contains_key(parent)) {
            return clash("a file stands where a directory is needed");
        }
        Ok(())
    }

    /// Evicts the oldest files.
    fn clean(&mut self) {
        while self.order.len() > RECORDS_MAX {
            let Some((path, number)) = self.order.pop_front() else { return };
            // A name that was reused since belongs to a younger file.
            if self.records.get(&path).is_some_and(|record| record.identity.inode == number) {
                self.records.remove(&path);
            }
        }
    }

    pub(super) fn delete(&mut self, path: &str) {
        if let Some(record) = self.records.remove(path) {
            self.order.retain(|(_, number)| *number != record.identity.inode);
        }
    }

    /// Everything at and beneath `start`, in name order, component by component.
    pub(super) fn visits(&self, storage: &StorageName, start: &str) -> Vec<Visit> {
        let mut found: Vec<(&String, &Record)> =
            self.records.iter().filter(|(path, _)| is_beneath(path, start)).collect();
        found.sort_by(|one, other| one.0.split('/').cmp(other.0.split('/')));
        let visit = |(path, record): (&String, &Record)| {
            let at = Pfn::new(storage.clone(), path).ok()?;
            Some(Visit::File { at, identity: record.identity.clone() })
        };
        found.into_iter().filter_map(visit).collect()
    }
}

fn incomplete(item: &Commit, trouble: String) -> Fault {
    Fault::new(FaultCode::TargetWrite, format!("the temporary file of {} {trouble}", item.target))
}

impl Temp {
    /// Merges an extent with its neighbours, so that a file written in order is always one extent.
    fn add(&mut self, offset: u64, len: u64, crc: u32) -> Result<(), Fault> {
        let end = offset.checked_add(len);
        let end =
            end.ok_or_else(|| Fault::new(FaultCode::TargetWrite, "a write beyond the end of all files"))?;
        self.len = self.len.max(end);
        if len == 0 {
            return Ok(());
        }
        let before = self.pieces.range(..end).next_back().map(|(&at, &piece)| (at, piece));
        let overlaps = before.is_some_and(|(at, (size, _))| at + size > offset);
        if overlaps || self.pieces.len() >= PIECES_MAX {
            self.twice = true;
            self.pieces.clear();
        }
        if self.twice {
            return Ok(());
        }
        let (mut start, mut size, mut sum) = (offset, len, crc);
        if let Some((at, (first, first_sum))) = before.filter(|(at, (size, _))| at + size == offset) {
            self.pieces.remove(&at);
            (start, size, sum) = (at, first + len, crc32c_combine(first_sum, crc, len));
        }
        if let Some((next, next_sum)) = self.pieces.remove(&end) {
            (size, sum) = (size + next, crc32c_combine(sum, next_sum, next));
        }
        self.pieces.insert(start, (size, sum));
        Ok(())
    }

    fn matches(&self, size: u64, crc: u32) -> bool {
        let whole = size == 0 || self.pieces.get(&0) == Some(&(size, crc));
        whole && !self.twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::digest::PartDigest;
    use proptest::prelude::*;

    fn temp(number: u8) -> TempName {
        TempName::from_bytes([number; 16])
    }

    proptest! {
        #[test]
        fn checksums_are_independent_of_the_write_order(
            mut order in Just((0..20usize).collect::<Vec<_>>()).prop_shuffle(),
            again: bool,
        ) {
            let bytes: Vec<u8> = (0..20u32 * 37).map(|place| (place * 7) as u8).collect();
            if again {
                order.push(order[0]);
            }
            let mut state = State::default();
            let number = state.create(&temp(1)).unwrap();
            for piece in order {
                let part = &bytes[piece * 37..(piece + 1) * 37];
                let offset = (piece * 37) as u64;
                state.written(&temp(1), number, offset, 37, PartDigest::compute(part).crc32c).unwrap();
            }
            let is = state.temps[&temp(1)].matches(bytes.len() as u64, PartDigest::compute(&bytes).crc32c);
            prop_assert_eq!(is, !again, "what was written twice is not known");
            prop_assert!(state.temps[&temp(1)].pieces.len() <= 1);
        }
    }

    #[test]
    fn the_oldest_are_evicted() {
        let mut state = State::default();
        let own: StorageName = "n".parse().unwrap();
        for number in 0..RECORDS_MAX + 2 {
            state.create(&temp(1)).unwrap();
            let target = Pfn::new(own.clone(), &format!("f{number}")).unwrap();
            state.commit(&Commit::new(temp(1), target, 0), &own).unwrap();
        }
        assert_eq!(state.records.len(), RECORDS_MAX);
        assert!(state.record("f1").is_none() && state.record("f2").is_some());
    }
}
