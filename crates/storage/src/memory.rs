//! in-memory
use crate::*;
use longhaul_model::*;
use std::ops::ControlFlow;
/// A storage in memory with injectable faults. Clones share the store.
#[derive(Clone)]
pub struct FaultyStore {
    name: StorageName,
}
impl FaultyStore {
    pub fn new(name: StorageName) -> Self {
        FaultyStore { name }
    }
    /// Puts a durable file under its final name.
    pub fn put(&self, _path: &str, _bytes: &[u8]) {
        todo!()
    }
    /// The bytes under a final name.
    pub fn contents(&self, _path: &str) -> Option<Vec<u8>> {
        todo!()
    }
}
impl Storage for FaultyStore {
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
