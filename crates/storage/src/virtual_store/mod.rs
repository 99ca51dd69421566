//! Virtual storage for network and load tests: reads are generated, writes are verified and discarded. It has
//! no disk, no relevant size, and nothing to clean up.
//!
//! As a source it has every file whose path contains a directory `from-NAME`, NAME being its own, and whose
//! last component starts with a size (see [`VirtualContent`]). As a target it remembers name, size and
//! checksum of committed files, the last [`state::RECORDS_MAX`] of them, until the process ends. If the bytes
//! were those that the name stands for, they can be read from here again, regenerated; otherwise reading them
//! is refused with a reason.
//!
//! Not here: what is measured with it (`service`, the binary), and fault injection (`memory`).

mod content;
mod state;

use std::ops::ControlFlow;
use std::sync::Arc;

use longhaul_model::{Algorithm, Blame, Fault, FaultCode, Hasher, Pfn, StorageName};
use parking_lot::{Mutex, MutexGuard};

pub use content::VirtualContent;
use content::origin;
use state::State;

use crate::listing::visit_all;
use crate::{Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit};

/// The reported size: large enough that no test is refused, and always free.
const TOTAL_BYTES: u64 = 1 << 50;

/// A storage whose files are generated on reading, and verified and discarded on writing. Clones share the
/// same storage.
#[derive(Clone)]
pub struct Virtual {
    name: StorageName,
    writable: bool,
    state: Arc<Mutex<State>>,
}

impl Virtual {
    /// A virtual storage; unless it is writable, files can only be read.
    pub fn new(name: StorageName, writable: bool) -> Self {
        Virtual { name, writable, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn check_name(&self, at: &Pfn) -> Result<(), Fault> {
        if at.storage != self.name {
            return Err(Fault::new(FaultCode::NotFound, format!("{at} is not in the storage {}", self.name)));
        }
        // As in storages with a work directory, so that both behave alike.
        if at.path() == ".longhaul" || at.path().starts_with(".longhaul/") {
            return Err(Fault::new(FaultCode::BadName, format!("{at} lies in the work directory")));
        }
        Ok(())
    }

    fn check_writable(&self) -> Result<(), Fault> {
        if self.writable {
            return Ok(());
        }
        Err(Fault::new(FaultCode::TargetReadOnly, format!("{} is configured to be read only", self.name)))
    }

    /// The identity of one of its own files.
    fn own(&self, at: &Pfn) -> Option<VirtualContent> {
        let (storage, _) = origin(at.path())?;
        if storage == self.name.as_str() { VirtualContent::parse(at.path()) } else { None }
    }
}

/// The content never changes, and neither does the identity.
fn identity_of_own(content: VirtualContent) -> Identity {
    Identity { size: content.size(), mtime_ns: 0, inode: 0 }
}

impl Storage for Virtual {
    fn name(&self) -> &StorageName {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            writable: self.writable,
            random_write: true,
            discards: true,
            sets_attributes: true,
            keeps_any_name: true,
            always_tells_space: true,
            has_directories: true,
            removes_empty_directories: true,
            ..Capabilities::default()
        }
    }

    fn space(&self) -> Result<Space, Fault> {
        Ok(Space { total_bytes: TOTAL_BYTES, free_bytes: TOTAL_BYTES })
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.check_name(at)?;
        if let Some(content) = self.own(at) {
            return Ok(Some(identity_of_own(content)));
        }
        let state = self.state();
        if let Some(record) = state.record(at.path()) {
            return Ok(Some(record.identity.clone()));
        }
        if state.is_directory(at.path()) {
            return Err(Fault::new(FaultCode::SourceUnreadable, format!("{at} is a directory, not a file")));
        }
        Ok(None)
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        let identity = self.stat(at)?.ok_or_else(|| {
            let how = "a virtual file is named from-STORAGE/…/SIZE-…, such as";
            let detail = format!("{at} is not there ({how} from-{}/1GB-0001)", self.name);
            Fault::new(FaultCode::SourceMissing, detail)
        })?;
        let content = match self.own(at) {
            Some(content) => Some(content),
            None => self.state().record(at.path()).and_then(|record| record.content),
        };
        let content = content.ok_or_else(|| {
            let detail =
                format!("{at}: a virtual storage drops the bytes that it takes; they cannot be read again");
            Fault::new(FaultCode::SourceUnreadable, detail)
        })?;
        Ok(Box::new(Source { storage: self.clone(), at: at.clone(), content, identity }))
    }

    fn create(
        &self,
        temp: &TempName,
        _target: Option<&Pfn>,
        size: u64,
    ) -> Result<Box<dyn TargetFile>, Fault> {
        self.check_writable()?;
        if size > TOTAL_BYTES {
            return Err(Fault::new(
                FaultCode::TargetFull,
                format!("{size} bytes do not fit into {}", self.name),
            ));
        }
        let number = self.state().create(temp)?;
        Ok(Box::new(Target { storage: self.clone(), temp: temp.clone(), number }))
    }

    /// Nothing of an earlier attempt can be read back and compared, so each starts from scratch.
    fn reopen(&self, temp: &TempName, _size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.check_writable()?;
        self.state().remove_temp(temp);
        Ok(None)
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        let commit = |item: &Commit| {
            self.check_writable()?;
            self.check_name(&item.target)?;
            self.state().commit(item, &self.name)
        };
        batch.iter().map(commit).collect()
    }

    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        for at in at {
            self.stat(at)?.ok_or_else(|| Fault::new(FaultCode::TargetWrite, format!("{at} is gone")))?;
        }
        Ok(())
    }

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        Ok(self.state().temps())
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        self.check_writable()?;
        self.state().remove_temp(temp);
        Ok(())
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.check_writable()?;
        if self.own(at).is_some() {
            // It takes no space, and the caller wants it forgotten elsewhere.
            return Ok(());
        }
        let found = self.stat(at).map_err(|fault| fault.blaming(Blame::Target))?;
        match found {
            None => Ok(()),
            Some(found) if found == *expected => {
                self.state().delete(at.path());
                Ok(())
            }
            Some(found) => {
                let detail = format!("{at} is {found}, not {expected} (size:mtime:inode), and stays");
                Err(Fault::new(FaultCode::Conflict, detail))
            }
        }
    }

    /// Usage of written files. Its own files are unlimited.
    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        if !path.is_empty() {
            let bad = Fault::from;
            self.check_name(&Pfn::new(self.name.clone(), path).map_err(bad)?)?;
        }
        let found = self.state().visits(&self.name, path);
        visit_all(found, (&self.name, path), visit)
    }
}

struct Source {
    storage: Virtual,
    at: Pfn,
    content: VirtualContent,
    identity: Identity,
}

impl SourceFile for Source {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn identity_now(&self) -> Result<Identity, Fault> {
        let gone = || Fault::new(FaultCode::SourceMissing, self.at.to_string());
        self.storage.stat(&self.at)?.ok_or_else(gone)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        Ok(self.content.read_at(buffer, offset))
    }
}

struct Target {
    storage: Virtual,
    temp: TempName,
    number: u64,
}

impl TargetFile for Target {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        let mut hasher = Hasher::new([Algorithm::Crc32c]);
        hasher.update(bytes);
        let crc =
            hasher.finish().get(Algorithm::Crc32c).and_then(|digest| digest.as_u32()).unwrap_or_default();
        self.storage.state().written(&self.temp, self.number, offset, bytes.len() as u64, crc)
    }

    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> Result<usize, Fault> {
        let detail =
            "a virtual storage keeps no bytes, so they cannot be read back: verify end-to-end instead";
        Err(Fault::new(FaultCode::TargetWrite, detail))
    }

    fn begin_writeback(&self, _offset: u64, _len: u64) {}

    fn flush(&self) -> Result<(), Fault> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    fn storage() -> Virtual {
        Virtual::new("alpha-test".parse().unwrap(), true)
    }

    fn at(path: &str) -> Pfn {
        Pfn::new("alpha-test".parse().unwrap(), path).unwrap()
    }

    fn temp() -> TempName {
        TempName::from_bytes([1; 16])
    }

    #[test]
    fn it_conforms() {
        conformance::check(&|| Box::new(storage()));
    }

    #[test]
    fn its_own_files_exist_and_never_change() {
        let storage = storage();
        let own = at("run/from-alpha-test/3MB-1");
        let identity = storage.stat(&own).unwrap().unwrap();
        assert_eq!(identity.size, 3_000_000);
        let source = storage.open(&own).unwrap();
        let mut bytes = vec![0; 3_000_001];
        assert_eq!(source.read_at(&mut bytes, 0), Ok(3_000_000));
        assert_eq!(source.identity_now(), Ok(source.identity()));
        assert_eq!(storage.stat(&at("run/from-beta-test/3MB-1")), Ok(None), "another's");
        let missing = storage.open(&at("run/from-alpha-test/big")).err().unwrap();
        assert!(missing.detail.contains("from-alpha-test/1GB-0001"), "{missing}");
        storage.create(&temp(), None, 1).unwrap();
        let over = storage.commit(&[Commit::new(temp(), own.clone(), 0)]);
        assert_eq!(over[0].as_ref().unwrap_err().code, FaultCode::NameClash);
        assert_eq!(storage.delete(&own, &identity), Ok(()));
        assert_eq!(storage.stat(&own), Ok(Some(identity)), "it has no end");
    }

    fn receive(storage: &Virtual, path: &str, bytes: &[u8]) {
        let target = storage.create(&temp(), None, bytes.len() as u64).unwrap();
        for (place, chunk) in bytes.chunks(1 << 20).enumerate().rev() {
            target.write_at(chunk, (place as u64) << 20).unwrap();
        }
        assert_eq!(storage.commit(&[Commit::new(temp(), at(path), bytes.len() as u64)]), [Ok(())]);
    }

    /// Promise 2: only content known to be the file is ever served as the file.
    #[test]
    fn only_matching_content_is_served_again() {
        let storage = storage();
        let name = "from-beta-test/2500000-7";
        let content = VirtualContent::parse(name).unwrap();
        let mut bytes = vec![0; 2_500_000];
        content.read_at(&mut bytes, 0);
        receive(&storage, name, &bytes);
        let source = storage.open(&at(name)).unwrap();
        let mut again = vec![0; 2_500_000];
        assert_eq!(source.read_at(&mut again, 0), Ok(2_500_000));
        assert!(again == bytes);
        bytes[2_000_000] ^= 1;
        receive(&storage, "from-beta-test/2500000-8", &bytes);
        let dropped = storage.open(&at("from-beta-test/2500000-8")).err().unwrap();
        assert_eq!(dropped.code, FaultCode::SourceUnreadable);
        assert!(dropped.detail.contains("drops the bytes"), "{dropped}");
    }

    #[test]
    fn a_read_only_storage_refuses_writes() {
        let storage = Virtual::new("alpha-test".parse().unwrap(), false);
        assert!(!storage.capabilities().writable);
        assert_eq!(storage.create(&temp(), None, 1).err().unwrap().code, FaultCode::TargetReadOnly);
        assert!(storage.open(&at("from-alpha-test/1-1")).is_ok());
    }
}
