//! A tape-backed storage whose stubs are listed but not read.
//!
//! Reading a stub would return no bytes, or make the file system recall files one by one in the order in
//! which somebody happens to ask.

use std::ops::ControlFlow;
use std::sync::Arc;

use longhaul_model::{Algorithm, DigestSet, Fault, FaultCode, Locality, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Directories, DirectoryCache, Entry, Identity, Listing, SourceFile, Space, Storage,
    TargetFile, TempName, Visit,
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

    fn claim_root_mark(&self, text: &str) -> Result<String, Fault> {
        self.storage.claim_root_mark(text)
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
        self.system.delete_with(at.path(), || self.storage.delete(at, expected))
    }

    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        self.storage.walk(path, visit)
    }

    fn directories(&self) -> Option<&dyn Directories> {
        self.storage.directories().map(|_| self as &dyn Directories)
    }
}

impl TapeBackedStorage {
    fn tree(&self) -> Result<&dyn Directories, Fault> {
        self.storage.directories().ok_or_else(|| Fault::new(FaultCode::Internal, "the storage is no tree"))
    }
}

/// Only what deletes concerns the tape. A file that gets another name is another one there, which the door
/// has migrated, and the tape's copy under the old name stays.
impl Directories for TapeBackedStorage {
    fn stat_entry(&self, path: &str) -> Result<Option<Entry>, Fault> {
        self.tree()?.stat_entry(path)
    }

    fn list(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Listing, Fault> {
        self.tree()?.list(path, after, limit)
    }

    fn make_directory(&self, at: &Pfn) -> Result<(), Fault> {
        self.tree()?.make_directory(at)
    }

    fn remove_directory(&self, at: &Pfn) -> Result<(), Fault> {
        self.tree()?.remove_directory(at)
    }

    fn remove_file(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        let tree = self.tree()?;
        self.system.delete_with(at.path(), || tree.remove_file(at, expected))
    }

    fn rename(&self, from: &Pfn, to: &Pfn, replaces: Option<&Identity>) -> Result<(), Fault> {
        self.tree()?.rename(from, to, replaces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StorageConfig;
    use crate::config::tape::TapeConfig;
    use longhaul_storage::Posix;
    use std::fs;

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script, "tape"].map(str::to_owned).to_vec()
    }

    fn open(root: &std::path::Path, locality: &str) -> TapeBackedStorage {
        let locality = if locality.is_empty() { Vec::new() } else { shell(locality) };
        open_with(root, &TapeConfig { locality, ..TapeConfig::new(shell("exit 0")) })
    }

    fn open_with(root: &std::path::Path, config: &TapeConfig) -> TapeBackedStorage {
        let storage = StorageConfig::new("alpha".parse().unwrap(), root);
        let system = Arc::new(TapeSystem::open(&storage, config).unwrap());
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

    /// Deletes a file as the service does, and as a door does; the results.
    fn delete_twice(storage: &TapeBackedStorage, root: &std::path::Path) -> [Result<(), Fault>; 2] {
        let at = Pfn::new("alpha".parse().unwrap(), "f1").unwrap();
        let write = || {
            fs::write(root.join("f1"), b"some").unwrap();
            storage.stat(&at).unwrap().unwrap()
        };
        let by_service = storage.delete(&at, &write());
        [by_service, storage.directories().unwrap().remove_file(&at, &write())]
    }

    #[test]
    fn what_is_deleted_leaves_the_tape_before_its_name_goes() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let config = |delete: &str| TapeConfig { delete: shell(delete), ..TapeConfig::new(shell("exit 0")) };
        let mut named = config(r#"test -e "$1" && echo "$1" >> "$0""#);
        let said = root.join("said");
        named.delete[3] = said.to_str().unwrap().to_owned();
        assert_eq!(delete_twice(&open_with(root, &named), root), [Ok(()), Ok(())]);
        assert!(!root.join("f1").exists());
        let path = root.join("f1").display().to_string();
        assert_eq!(fs::read_to_string(&said).unwrap(), format!("{path}\n{path}\n"));

        let failing = open_with(root, &config("echo no robot >&2; exit 3"));
        for result in delete_twice(&failing, root) {
            let fault = result.unwrap_err();
            assert_eq!(fault.code, FaultCode::HookRefused);
            assert!(
                fault.detail.contains("f1") && fault.detail.ends_with("(exit code 3): no robot"),
                "{fault}"
            );
        }
        assert!(root.join("f1").exists(), "its name stays as long as the tape may have it");
    }

    #[test]
    fn without_a_command_what_the_tape_has_is_not_deleted() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        for (locality, why) in [
            ("echo DISK_AND_TAPE", "names no command"),
            ("echo TAPE", "names no command"),
            ("exit 1", "does not tell"),
        ] {
            for result in delete_twice(&open(folder.path(), locality), folder.path()) {
                assert!(result.unwrap_err().detail.contains(why), "{locality}");
            }
            assert!(folder.path().join("f1").exists(), "{locality}");
        }
        for locality in ["echo DISK", ""] {
            assert_eq!(delete_twice(&open(folder.path(), locality), folder.path()), [Ok(()), Ok(())]);
        }
    }
}
