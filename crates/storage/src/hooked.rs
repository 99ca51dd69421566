//! A storage around another one that calls hooks before reads and writes, and fails where a test wants it to:
//! tests wait for events and not for time. All else the inner storage does.
//!
//! [`memory`](crate::memory) injects faults as well; this one also has real files, links and devices inside.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul_model::{Algorithm, DigestSet, Fault, Pfn, StorageName};
use parking_lot::{Condvar, Mutex};

use crate::{Capabilities, Commit, Identity, SourceFile, Space, Storage, TargetFile, TempName, Visit};

/// Longer than anything takes on a busy machine: who waits so long waits for what never comes.
const GATE_TIMEOUT: Duration = Duration::from_secs(120);

/// Receives the number of the write, counted from 1.
type WriteHook = Arc<dyn Fn(u64) + Send + Sync>;
/// Receives the number of bytes.
type BytesHook = Arc<dyn Fn(usize) + Send + Sync>;
/// Receives path and offset; a fault replaces the read.
type ReadHook = Arc<dyn Fn(&Pfn, u64) -> Result<(), Fault> + Send + Sync>;

/// A storage that calls hooks before it writes and reads, and fails where a test says so.
pub struct HookedStorage {
    inner: Arc<dyn Storage>,
    write_hook: WriteHook,
    writes: Arc<AtomicU64>,
    bytes_hook: Mutex<BytesHook>,
    read_hook: Mutex<ReadHook>,
    opened_paths: Mutex<Vec<String>>,
    space: Mutex<Option<Space>>,
    device: Mutex<Option<u64>>,
    create_fault: Mutex<Option<Fault>>,
}

impl HookedStorage {
    /// The hook is called before each write.
    pub fn new(inner: Arc<dyn Storage>, write_hook: impl Fn(u64) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(HookedStorage {
            inner,
            write_hook: Arc::new(write_hook),
            writes: Arc::default(),
            bytes_hook: Mutex::new(Arc::new(|_| ())),
            read_hook: Mutex::new(Arc::new(|_, _| Ok(()))),
            opened_paths: Mutex::default(),
            space: Mutex::default(),
            device: Mutex::default(),
            create_fault: Mutex::default(),
        })
    }

    /// Kills the process in the middle of this write.
    pub fn killed_at(inner: Arc<dyn Storage>, write: u64) -> Arc<Self> {
        HookedStorage::new(inner, move |number| {
            if number == write {
                let killed =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
                assert!(killed.is_ok(), "a process may kill itself");
                std::thread::park();
            }
        })
    }

    /// Holds all writes from the first of these numbers on until the gate is opened, then those from the next
    /// one on. The numbers ascend. So no more is written while a test looks around, whatever it takes.
    pub fn gated(inner: Arc<dyn Storage>, stops: &[u64]) -> (Arc<Self>, WriteGate) {
        let stops = Stops { left: stops.iter().copied().collect(), reached: false };
        let gate = Arc::new(Gate { stops: Mutex::new(stops), changed: Condvar::new() });
        let passed = gate.clone();
        (HookedStorage::new(inner, move |number| passed.pass(number)), WriteGate(gate))
    }

    /// The hook is called before each write to files that are created from now on, with its length: a disk of
    /// a certain speed lets it wait.
    pub fn set_bytes_hook(&self, hook: impl Fn(usize) + Send + Sync + 'static) {
        *self.bytes_hook.lock() = Arc::new(hook);
    }

    /// The hook is called before each read of files that are opened from now on.
    pub fn set_read_hook(&self, hook: impl Fn(&Pfn, u64) -> Result<(), Fault> + Send + Sync + 'static) {
        *self.read_hook.lock() = Arc::new(hook);
    }

    /// Paths opened since they were last taken.
    pub fn take_opened_paths(&self) -> Vec<String> {
        std::mem::take(&mut self.opened_paths.lock())
    }

    /// Reports this space instead of the inner storage's.
    pub fn set_space(&self, space: Space) {
        *self.space.lock() = Some(space);
    }

    /// Reports this device instead of the inner storage's.
    pub fn set_device(&self, number: u64) {
        *self.device.lock() = Some(number);
    }

    /// Files cannot be created because of this fault; none removes it.
    pub fn set_create_fault(&self, fault: Option<Fault>) {
        *self.create_fault.lock() = fault;
    }

    fn wrap(&self, inner: Box<dyn TargetFile>) -> Box<dyn TargetFile> {
        let (hook, writes) = (self.write_hook.clone(), self.writes.clone());
        Box::new(HookedTarget { inner, hook, writes, bytes_hook: self.bytes_hook.lock().clone() })
    }
}

/// The test's side of [`HookedStorage::gated`]. Dropped, it holds nothing any more.
pub struct WriteGate(Arc<Gate>);

struct Gate {
    stops: Mutex<Stops>,
    changed: Condvar,
}

struct Stops {
    /// Numbers of writes.
    left: VecDeque<u64>,
    /// A write is held at the first of them.
    reached: bool,
}

impl Gate {
    /// Called by the writers. They give up at last, so that a test that failed can end.
    fn pass(&self, number: u64) {
        let deadline = Instant::now() + GATE_TIMEOUT;
        let mut stops = self.stops.lock();
        while stops.left.front().is_some_and(|&stop| number >= stop) {
            if !std::mem::replace(&mut stops.reached, true) {
                self.changed.notify_all();
            }
            if self.changed.wait_until(&mut stops, deadline).timed_out() {
                return;
            }
        }
    }
}

impl WriteGate {
    /// Waits until a write is held at the next stop.
    ///
    /// # Panics
    /// If none is within two minutes.
    pub fn wait(&self) {
        let mut stops = self.0.stops.lock();
        let _ = self.0.changed.wait_while_for(&mut stops, |stops| !stops.reached, GATE_TIMEOUT);
        assert!(stops.reached, "no write was held at the stops {:?}", stops.left);
    }

    /// Lets the writes go on up to the next stop.
    pub fn open(&self) {
        let mut stops = self.0.stops.lock();
        stops.left.pop_front();
        stops.reached = false;
        self.0.changed.notify_all();
    }
}

impl Drop for WriteGate {
    fn drop(&mut self) {
        self.0.stops.lock().left.clear();
        self.0.changed.notify_all();
    }
}

struct HookedSource {
    at: Pfn,
    inner: Box<dyn SourceFile>,
    hook: ReadHook,
}

impl SourceFile for HookedSource {
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn identity_now(&self) -> Result<Identity, Fault> {
        self.inner.identity_now()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        (self.hook)(&self.at, offset)?;
        self.inner.read_at(buffer, offset)
    }
}

struct HookedTarget {
    inner: Box<dyn TargetFile>,
    hook: WriteHook,
    writes: Arc<AtomicU64>,
    bytes_hook: BytesHook,
}

impl TargetFile for HookedTarget {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Fault> {
        (self.hook)(self.writes.fetch_add(1, Ordering::SeqCst) + 1);
        (self.bytes_hook)(bytes.len());
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

impl Storage for HookedStorage {
    fn name(&self) -> &StorageName {
        self.inner.name()
    }
    fn root_mark(&self) -> Result<Option<String>, Fault> {
        self.inner.root_mark()
    }
    fn put_root_mark(&self, text: &str) -> Result<(), Fault> {
        self.inner.put_root_mark(text)
    }
    fn claim_root_mark(&self, text: &str) -> Result<String, Fault> {
        self.inner.claim_root_mark(text)
    }
    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { device: self.device.lock().or(inner.device), ..inner }
    }
    fn space(&self) -> Result<Space, Fault> {
        match *self.space.lock() {
            Some(space) => Ok(space),
            None => self.inner.space(),
        }
    }
    fn stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.inner.stat(at)
    }
    fn open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault> {
        self.opened_paths.lock().push(at.path().into());
        let hook = self.read_hook.lock().clone();
        Ok(Box::new(HookedSource { at: at.clone(), inner: self.inner.open(at)?, hook }))
    }
    fn told_digests(
        &self,
        at: &Pfn,
        algorithms: &[Algorithm],
    ) -> Result<Option<(Identity, DigestSet)>, Fault> {
        self.inner.told_digests(at, algorithms)
    }
    fn create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault> {
        match self.create_fault.lock().clone() {
            Some(fault) => Err(fault),
            None => self.inner.create(temp, target, size).map(|file| self.wrap(file)),
        }
    }
    fn reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault> {
        Ok(self.inner.reopen(temp, size)?.map(|file| self.wrap(file)))
    }
    fn commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>> {
        self.inner.commit(batch)
    }
    fn stat_target(&self, at: &Pfn) -> Result<Option<Identity>, Fault> {
        self.inner.stat_target(at)
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
