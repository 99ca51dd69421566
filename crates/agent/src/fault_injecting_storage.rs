//! For tests: a POSIX storage in a temporary directory with injected faults.
//!
//! `storage::memory` injects faults as well, but tests here need real files, links and devices.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use longhaul_model::{Fault, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, FlushPolicy, Identity, Posix, PosixOptions, SourceFile, Space, Storage, TargetFile,
    TempName, Visit,
};

use crate::threads::locked;

type OnRead = Arc<dyn Fn(&Pfn, u64) -> Result<(), Fault> + Send + Sync>;

pub(crate) struct FaultInjectingStorage {
    inner: Posix,
    /// Paths opened since they were last taken.
    pub opened_paths: Mutex<Vec<String>>,
    /// Hook that is called with path and offset before each read.
    pub on_read: Mutex<OnRead>,
    pub space: Mutex<Option<Space>>,
    pub create_fault: Mutex<Option<Fault>>,
}

impl FaultInjectingStorage {
    pub(crate) fn new(root: &Path) -> Arc<FaultInjectingStorage> {
        let options = PosixOptions {
            name: "alpha".parse().unwrap(),
            root: root.into(),
            work: None,
            writable: true,
            flush: FlushPolicy::None,
        };
        Arc::new(FaultInjectingStorage {
            inner: Posix::open(options).unwrap(),
            opened_paths: Mutex::default(),
            on_read: Mutex::new(Arc::new(|_, _| Ok(()))),
            space: Mutex::default(),
            create_fault: Mutex::default(),
        })
    }

    pub(crate) fn set_read_hook(
        &self,
        on_read: impl Fn(&Pfn, u64) -> Result<(), Fault> + Send + Sync + 'static,
    ) {
        *locked(&self.on_read) = Arc::new(on_read);
    }

    pub(crate) fn take_opened_paths(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.opened_paths))
    }
}

struct HookedFile {
    at: Pfn,
    inner: Box<dyn SourceFile>,
    on_read: OnRead,
}

impl SourceFile for HookedFile {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn identity_now(&self) -> Result<Identity, Fault> {
        self.inner.identity_now()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        (self.on_read)(&self.at, offset)?;
        self.inner.read_at(buffer, offset)
    }
}

impl Storage for FaultInjectingStorage {
    fn name(&self) -> &StorageName {
        self.inner.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn space(&self) -> Result<Space, Fault> {
        match *locked(&self.space) {
            Some(space) => Ok(space),
            None => self.inner.space(),
        }
    }
    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.inner.stat(at)
    }
    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        locked(&self.opened_paths).push(at.path().into());
        let on_read = locked(&self.on_read).clone();
        Ok(Box::new(HookedFile { at: at.clone(), inner: self.inner.open(at)?, on_read }))
    }
    fn create(&self, temp: &TempName, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        match locked(&self.create_fault).clone() {
            Some(fault) => Err(fault),
            None => self.inner.create(temp, size),
        }
    }
    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        self.inner.reopen(temp, size)
    }
    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        self.inner.commit(batch)
    }
    fn flush_present(&self, at: &[Pfn]) -> Result<(), Fault> {
        self.inner.flush_present(at)
    }
    fn temps(&self) -> Result<Vec<TempName>, Fault> {
        self.inner.temps()
    }
    fn remove_temp(&self, temp: &TempName) -> Result<(), Fault> {
        self.inner.remove_temp(temp)
    }
    fn delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault> {
        self.inner.delete(at, expected)
    }
    fn walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault> {
        self.inner.walk(path, visit)
    }
}
