//! A tape-backed storage whose stubs are listed but not read.
//!
//! Reading a stub would return no bytes, or make the file system recall files one by one in the order in
//! which somebody happens to ask.

use std::ops::ControlFlow;
use std::sync::Arc;

use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Locality, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Directories, DirectoryCache, Identity, SourceFile, Space, Storage, TargetFile,
    TempName, Visit,
};

use super::system::{DiskState, TapeSystem};

pub(super) struct TapeBackedStorage {
    storage: Arc<dyn Storage>,
    system: Arc<TapeSystem>,
}

impl TapeBackedStorage {
    pub(super) fn new(storage: Arc<dyn Storage>, system: Arc<TapeSystem>) -> TapeBackedStorage {
        TapeBackedStorage { storage, system }
    }

    /// Checks after opening: a file that is removed from disk later is another file, or changes under its
    /// reader.
    fn guard_stub(&self, at: &Pfn, file: Box<dyn SourceFile>) -> Box<dyn SourceFile> {
        if self.system.disk_state(at.path()) != DiskState::Stub {
            return file;
        }
        // A sparse file looks like a stub: the tape system can tell them apart.
        let path = [at.path().to_owned()];
        if self.system.knows_tape()
            && self.system.locate_blocking(&path).first().is_some_and(|at| at.is_on_disk())
        {
            return file;
        }
        Box::new(StubFile { file, name: at.path().to_owned() })
    }
}

/// A file whose bytes are on tape only.
struct StubFile {
    file: Box<dyn SourceFile>,
    name: String,
}

impl SourceFile for StubFile {
    fn identity(&self) -> Identity {
        self.file.identity()
    }

    fn identity_now(&self) -> Result<Identity, Fault> {
        self.file.identity_now()
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize, Fault> {
        self.check_online().map(|()| 0)
    }

    fn check_online(&self) -> Result<(), Fault> {
        Err(Fault::new(FaultCode::OnTape, format!("{} ({})", self.name, Locality::Tape.word())))
    }
}

impl Storage for TapeBackedStorage {
    fn name(&self) -> &StorageName {
        self.storage.name()
    }

    fn root_mark(&self) -> Result<Option<String>, Fault> {
        self.storage.root_mark()
    }

    fn put_root_mark(&self, text: &str) -> Result<(), Fault> {
        self.storage.put_root_mark(text)
    }

    fn capabilities(&self) -> Capabilities {
        self.storage.capabilities()
    }

    fn space(&self) -> Result<Space, Fault> {
        self.storage.space()
    }

    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.storage.stat(at)
    }

    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        Ok(self.guard_stub(at, self.storage.open(at)?))
    }

    fn open_with_cache(
        &self,
        at: &Pfn,
        directory_cache: &mut DirectoryCache,
    ) -> Result<Box<dyn SourceFile>, Fault> {
        Ok(self.guard_stub(at, self.storage.open_with_cache(at, directory_cache)?))
    }

    fn told_digests(
        &self,
        at: &Pfn,
        algorithms: &[Algorithm],
    ) -> Result<Option<(Identity, DigestSet)>, Fault> {
        self.storage.told_digests(at, algorithms)
    }

    fn create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        self.storage.create(temp, target, size)
    }

    fn put(&self, item: &Commit, bytes: &[u8]) -> Result<(), Fault> {
        self.storage.put(item, bytes)
    }

    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.storage.reopen(temp, size)
    }

    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        self.storage.commit(batch)
    }

    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        self.storage.flush_present(at)
    }

    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        self.storage.temps()
    }

    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        self.storage.remove_temp(temp)
    }

    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.storage.delete(at, expected)
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        self.storage.walk(path, visit)
    }

    fn directories(&self) -> Option<&dyn Directories> {
        self.storage.directories()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StorageConfig;
    use crate::config::tape::TapeConfig;
    use longhaul_storage::Posix;
    use std::fs;

    fn open(root: &std::path::Path, locality: &str) -> TapeBackedStorage {
        let shell = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let locality = if locality.is_empty() { Vec::new() } else { shell(locality) };
        let config = TapeConfig { locality, ..TapeConfig::new(shell("exit 0")) };
        let storage = StorageConfig::new("alpha".parse().unwrap(), root);
        let system = Arc::new(TapeSystem::open(&storage, &config).unwrap());
        TapeBackedStorage::new(
            Arc::new(Posix::open_in(storage.posix(), storage.posix_tuning()).unwrap()),
            system,
        )
    }

    #[test]
    fn a_stub_is_listed_and_not_read() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("there"), vec![7; 5_000]).unwrap();
        fs::File::create(folder.path().join("stub")).unwrap().set_len(5_000).unwrap();
        let storage = open(folder.path(), "");
        let at = |name: &str| Pfn::new("alpha".parse().unwrap(), name).unwrap();
        let mut buffer = [0; 10];
        let there = storage.open(&at("there")).unwrap();
        assert_eq!((there.check_online(), there.read_at(&mut buffer, 0)), (Ok(()), Ok(10)));
        for stub in
            [storage.open(&at("stub")), storage.open_with_cache(&at("stub"), &mut DirectoryCache::default())]
        {
            let stub = stub.unwrap();
            assert_eq!(stub.identity().size, 5_000);
            let fault = stub.read_at(&mut buffer, 0).unwrap_err();
            assert_eq!((fault.code, stub.check_online()), (FaultCode::OnTape, Err(fault.clone())));
            assert!(
                fault.to_string().contains("on tape only") && fault.code.next_step().contains("bring_online")
            );
        }
        // The tape system says that it is a sparse file.
        let knows = open(folder.path(), "echo DISK");
        let file = std::thread::spawn(move || knows.open(&at("stub")).unwrap().check_online());
        assert_eq!(file.join().unwrap(), Ok(()));
    }
}
