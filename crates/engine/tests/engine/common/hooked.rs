//! A storage that calls a hook before each write, so that tests wait for events and not for time.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use longhaul_model::{Fault, Pfn, StorageName};
use longhaul_storage::{
    Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit,
};

/// Receives the number of the write, counted from 1.
pub type Hook = Arc<dyn Fn(u64) + Send + Sync>;

pub struct Hooked {
    pub inner: Arc<dyn Storage>,
    pub hook: Hook,
    pub writes: Arc<AtomicU64>,
}

impl Hooked {
    pub fn new(inner: Arc<dyn Storage>, hook: impl Fn(u64) + Send + Sync + 'static) -> Arc<Hooked> {
        Arc::new(Hooked { inner, hook: Arc::new(hook), writes: Arc::default() })
    }

    /// Kills the process in the middle of this write.
    pub fn killed_at(inner: Arc<dyn Storage>, write: u64) -> Arc<Hooked> {
        Hooked::new(inner, move |number| {
            if number == write {
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
                std::thread::park();
            }
        })
    }

    /// Signals when this write begins, and does not block it.
    pub fn tells_at(inner: Arc<dyn Storage>, write: u64) -> (Arc<Hooked>, Receiver<()>) {
        let (reached, at_write) = channel();
        let reached = Mutex::new(reached);
        let hooked = Hooked::new(inner, move |number| {
            if number == write {
                let _ = reached.lock().unwrap().send(());
            }
        });
        (hooked, at_write)
    }

    fn wrap(&self, file: Box<dyn TargetFile>) -> Box<dyn TargetFile> {
        Box::new(HookedFile { inner: file, hook: self.hook.clone(), writes: self.writes.clone() })
    }
}

struct HookedFile {
    inner: Box<dyn TargetFile>,
    hook: Hook,
    writes: Arc<AtomicU64>,
}

impl TargetFile for HookedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        (self.hook)(self.writes.fetch_add(1, Ordering::SeqCst) + 1);
        self.inner.write_at(bytes, offset)
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        self.inner.read_at(buffer, offset)
    }
    fn begin_writeback(&self, offset: u64, len: u64) {
        self.inner.begin_writeback(offset, len);
    }
    fn flush(&self) -> Result<(), Fault> {
        self.inner.flush()
    }
}

impl Storage for Hooked {
    fn name(&self) -> &StorageName {
        self.inner.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn space(&self) -> Result<Space, Fault> {
        self.inner.space()
    }
    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.inner.stat(at)
    }
    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        self.inner.open(at)
    }
    fn create(&self, temp: &TempName, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        self.inner.create(temp, size).map(|file| self.wrap(file))
    }
    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        Ok(self.inner.reopen(temp, size)?.map(|file| self.wrap(file)))
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
