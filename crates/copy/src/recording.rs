//! An export that remembers the digest of what was read from it, so that the source can say afterwards what it has
//! sent, without reading anything twice.
//!
//! It is the source's own word: computed where the bytes are read, before anything of the network touches them.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_model::digest::PartDigest;
use longhaul_model::{Algorithm, DigestSet, Fault, Hasher, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit,
};

/// Files remembered. Readers ask within seconds; whatever is forgotten is read again.
const FILES_MAX: usize = 50_000;
/// Extents of one file that do not touch yet: as many as are under way on all streams.
const PARTS_MAX: usize = 4_096;

/// What was read of files, by path.
#[derive(Default)]
pub(crate) struct Read {
    files: Mutex<HashMap<String, Parts>>,
}

struct Parts {
    identity: Identity,
    parts: BTreeMap<u64, PartDigest>,
}

impl Read {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Parts>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, path: &str, identity: &Identity, offset: u64, part: PartDigest) {
        let mut files = self.lock();
        if let Some(known) = files.get_mut(path).filter(|known| known.identity == *identity) {
            return known.add(offset, part);
        }
        if files.len() >= FILES_MAX {
            files.clear();
        }
        let mut fresh = Parts { identity: identity.clone(), parts: BTreeMap::new() };
        fresh.add(offset, part);
        files.insert(path.to_owned(), fresh);
    }

    /// The digest of a file that was read in full and has not changed, and forgets it.
    pub(crate) fn take(&self, path: &str, now: &Identity) -> Option<DigestSet> {
        let known = self.lock().remove(path)?;
        known.whole(now)
    }

    pub(crate) fn forget(&self, path: &str) {
        self.lock().remove(path);
    }
}

impl Parts {
    /// Joins it to its neighbours. What overlaps was read again and says nothing new.
    fn add(&mut self, offset: u64, part: PartDigest) {
        let before = self.parts.range(..=offset).next_back().map(|(at, part)| (*at, *part));
        if before.is_some_and(|(at, before)| at + before.len > offset) || self.parts.len() >= PARTS_MAX {
            return;
        }
        let end = offset + part.len;
        let after = self.parts.range(offset..).next().map(|(at, part)| (*at, *part));
        if after.is_some_and(|(at, _)| at < end) {
            return;
        }
        let (mut at, mut joined) = (offset, part);
        if let Some((start, before)) = before.filter(|(start, before)| start + before.len == offset) {
            at = start;
            joined = before.then(joined);
        }
        if let Some((next, after)) = after.filter(|(next, _)| *next == end) {
            self.parts.remove(&next);
            joined = joined.then(after);
        }
        self.parts.insert(at, joined);
    }

    fn whole(&self, now: &Identity) -> Option<DigestSet> {
        if self.identity != *now {
            return None;
        }
        if now.size == 0 {
            return crc32c(PartDigest::EMPTY);
        }
        self.parts.get(&0).filter(|part| part.len == now.size).and_then(|part| crc32c(*part))
    }
}

/// The adler32 of a part is not computed here.
fn crc32c(part: PartDigest) -> Option<DigestSet> {
    Some([part.digests().get(Algorithm::Crc32c)?].into_iter().collect())
}

fn part_of(bytes: &[u8]) -> PartDigest {
    let mut hasher = Hasher::new([Algorithm::Crc32c]);
    hasher.update(bytes);
    let value = hasher.finish().get(Algorithm::Crc32c).and_then(|digest| digest.as_u32()).unwrap_or_default();
    PartDigest { len: bytes.len() as u64, crc32c: value, ..PartDigest::EMPTY }
}

/// Where the files of an export lie, when not under their own names in one storage.
pub(crate) trait Finder: Send + Sync {
    fn find(&self, path: &str) -> Result<(Arc<dyn Storage>, Pfn), Fault>;
}

/// Everything under its own name.
pub(crate) struct Plain(pub(crate) Arc<dyn Storage>);

impl Finder for Plain {
    fn find(&self, path: &str) -> Result<(Arc<dyn Storage>, Pfn), Fault> {
        let at = Pfn::new(self.0.name().clone(), path)
            .map_err(|error| Fault::new(longhaul_model::FaultCode::BadName, error.to_string()))?;
        Ok((self.0.clone(), at))
    }
}

/// The export.
pub(crate) struct Recording {
    name: StorageName,
    finder: Arc<dyn Finder>,
    read: Arc<Read>,
}

impl Recording {
    pub(crate) fn new(name: StorageName, finder: Arc<dyn Finder>) -> Self {
        Recording { name, finder, read: Arc::default() }
    }

    pub(crate) fn read(&self) -> Arc<Read> {
        self.read.clone()
    }

    fn refuse<T>(&self) -> Result<T, Fault> {
        let detail = format!("{} is exported for reading only", self.name);
        Err(Fault::new(longhaul_model::FaultCode::TargetReadOnly, detail))
    }
}

struct RecordingFile {
    inner: Box<dyn SourceFile>,
    path: String,
    identity: Identity,
    read: Arc<Read>,
}

impl SourceFile for RecordingFile {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn identity_now(&self) -> Result<Identity, Fault> {
        self.inner.identity_now()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        let len = self.inner.read_at(buffer, offset)?;
        if len > 0 {
            self.read.add(&self.path, &self.identity, offset, part_of(&buffer[..len]));
        }
        Ok(len)
    }
}

impl Storage for Recording {
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
        let (storage, real) = self.finder.find(at.path())?;
        storage.stat(&real)
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        let (storage, real) = self.finder.find(at.path())?;
        let inner = storage.open(&real)?;
        let identity = inner.identity();
        Ok(Box::new(RecordingFile { inner, path: at.path().to_owned(), identity, read: self.read.clone() }))
    }

    fn create(&self, _: &TempName, _: u64) -> Result<Box<dyn TargetFile>, Fault> {
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

    /// Listings are made by `walk`.
    fn walk(&self, _: &str, _: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity(size: u64) -> Identity {
        Identity { size, mtime_ns: 1, inode: 1 }
    }

    fn digest_of(bytes: &[u8]) -> DigestSet {
        let mut hasher = Hasher::new([Algorithm::Crc32c]);
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn a_changed_or_half_read_file_has_no_digest() {
        let read = Read::default();
        read.add("a", &identity(6), 0, part_of(b"abc"));
        assert_eq!(read.take("a", &identity(6)), None);
        read.add("a", &identity(6), 3, part_of(b"def"));
        read.add("a", &identity(6), 0, part_of(b"abc"));
        assert_eq!(read.take("a", &identity(7)), None);
        for _ in 0..2 {
            read.add("a", &identity(6), 3, part_of(b"def"));
            read.add("a", &identity(6), 0, part_of(b"abc"));
        }
        assert_eq!(read.take("a", &identity(6)), Some(digest_of(b"abcdef")));
        assert_eq!(read.take("a", &identity(6)), None, "it is told once");
    }

    proptest! {
        #[test]
        fn parts_in_any_order_make_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 1..2_000),
            chunk in 1usize..300,
            order in proptest::collection::vec(any::<u16>(), 2_000),
        ) {
            let mut chunks: Vec<(usize, &[u8])> = bytes.chunks(chunk).enumerate().collect();
            chunks.sort_by_key(|(place, _)| order[*place]);
            let read = Read::default();
            for (place, part) in chunks {
                read.add("x", &identity(bytes.len() as u64), (place * chunk) as u64, part_of(part));
            }
            prop_assert_eq!(read.take("x", &identity(bytes.len() as u64)), Some(digest_of(&bytes)));
        }
    }
}
