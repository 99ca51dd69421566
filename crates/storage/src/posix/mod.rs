//! posix
use crate::*;
use longhaul_model::*;
use std::ops::ControlFlow;
use std::path::PathBuf;
/// When a commit waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// File and directory are on disk before a commit succeeds.
    #[default]
    FileAndDirectory,
    /// Never: for storages that do not outlive a power cut anyway, such as tmpfs.
    None,
}
#[derive(Clone, Debug)]
pub struct PosixOptions {
    pub name: StorageName,
    /// Must exist.
    pub root: PathBuf,
    /// Directory of temporary files, on the same file system; none means `.longhaul` in the root.
    pub work: Option<PathBuf>,
    /// If not, nothing is ever created beneath the root, not even the work directory.
    pub writable: bool,
    pub flush: FlushPolicy,
}
/// A directory tree.
pub struct Posix {
    name: StorageName,
}
impl Posix {
    pub fn open(options: PosixOptions) -> Result<Posix, Fault> {
        Ok(Posix { name: options.name })
    }
}
impl Storage for Posix {
    fn name(&self) -> &StorageName {
        &self.name
    }
    fn capabilities(&self) -> Capabilities {
        todo!()
    }
    fn space(&self) -> Result<Space, Fault> {
        todo!()
    }
    fn stat(&self, _at: &Pfn) -> Result<Option<Identity>, Fault> {
        todo!()
    }
    fn open(&self, _at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        todo!()
    }
    fn create(&self, _temp: &TempName, _size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        todo!()
    }
    fn reopen(&self, _temp: &TempName, _size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        todo!()
    }
    fn commit(&self, _batch: &[Commit]) -> Vec<Result<(), Fault>> {
        todo!()
    }
    fn flush_present(&self, _at: &[Pfn]) -> Result<(), Fault> {
        todo!()
    }
    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        todo!()
    }
    fn remove_temp(&self, _temp: &TempName) -> Result<(), Fault> {
        todo!()
    }
    fn delete(&self, _at: &Pfn, _expected: &Identity) -> Result<(), Fault> {
        todo!()
    }
    fn walk(&self, _path: &str, _visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        todo!()
    }
}
