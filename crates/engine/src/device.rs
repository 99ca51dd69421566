//! Disk I/O scheduling: reader and writer threads per device (not per storage), and a gate (counting
//! semaphore) that all their operations pass. The gate is wide open unless local users need the disk; then
//! [`DiskThrottle`] narrows it.
//!
//! An operation costs two clock readings and one short lock. An idle device is not sampled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_model::StorageName;
use longhaul_storage::PARALLEL_MAX;
use longhaul_wire::disk_throttle::{DiskSample, DiskThrottle};
use parking_lot::{Condvar, Mutex};

use crate::context::EngineContext;
use crate::fetch::WriteJob;
use crate::interface::{DeviceSnapshot, Export};
use crate::io_pressure::IoPressure;
use crate::queue::Queue;
use crate::serve::ReadJob;

/// Default number of parallel reads, and of parallel writes, per device. Two keep a disk busy while one of
/// them computes digests.
const PARALLEL_DEFAULT: u16 = 2;
/// The kernel updates its pressure statistics every two seconds.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Shorter operations measure the cost of opening a file, not the speed of the disk.
const LATENCY_SAMPLE_BYTES_MIN: usize = 256 << 10;
/// An operation that took minutes must not be followed by hours of pause.
const DUTY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// All devices of an engine.
pub(crate) struct Devices {
    all: Mutex<Vec<Arc<Device>>>,
    sampling: Mutex<PressureSampling>,
}

/// Sampling of the host's I/O pressure.
struct PressureSampling {
    last: Duration,
    pressure: IoPressure,
}

/// A disk, or whatever stands for one, with its queues and threads.
pub(crate) struct Device {
    /// The system's device number; none if unknown.
    number: Option<u64>,
    storages: Mutex<Vec<StorageName>>,
    parallel: u16,
    /// Bounded by the send buffers: each job holds one.
    pub(crate) to_read: Queue<ReadJob>,
    /// Bounded by the receive buffers: each job holds one.
    pub(crate) to_write: Queue<WriteJob>,
    gate: Mutex<Gate>,
    opened: Condvar,
}

/// Admission to the device.
struct Gate {
    throttle: DiskThrottle,
    running: usize,
    /// Operations that wait for admission.
    waiting: usize,
    /// No operation starts before then (duty cycle for shares below one).
    paused_until: Option<Instant>,
    closed: bool,
    load: DeviceLoad,
}

/// Load since the last sample.
#[derive(Default)]
struct DeviceLoad {
    /// Running operations, including those that bypass the gate.
    in_flight: usize,
    since: Option<Instant>,
    /// Time with at least one operation running.
    busy_time: Duration,
    /// Sum of the durations of all operations.
    operation_time: Duration,
    /// Duration of the operations large enough to measure the disk's latency.
    latency_time: Duration,
    latency_bytes: u64,
    operations: u64,
    wrote: bool,
    /// We wrote during the previous interval: the kernel may still be flushing.
    wrote_before: bool,
}

/// What an operation does to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
}

impl Devices {
    pub(crate) fn new(exports: &[Export]) -> Devices {
        let mut groups: BTreeMap<Result<u64, usize>, (Vec<StorageName>, Option<u16>)> = BTreeMap::new();
        for (place, export) in exports.iter().enumerate() {
            let can = export.storage.capabilities();
            let group = groups.entry(can.device.ok_or(place)).or_default();
            group.0.push(export.storage.name().clone());
            // The lowest configured limit applies to all storages on the disk.
            group.1 = group.1.into_iter().chain(can.parallel).min();
        }
        for export in exports {
            for pool in export.storage.pool_devices() {
                // Another storage, or a pool of one, may lie there too.
                let group = groups.entry(Ok(pool.number)).or_default();
                group.1 = group.1.into_iter().chain(pool.parallel).min();
            }
        }
        let device = |(number, (storages, parallel)): (Result<u64, usize>, (_, Option<u16>))| {
            Arc::new(Device::new(number.ok(), storages, parallel))
        };
        let all = Mutex::new(groups.into_iter().map(device).collect());
        Devices {
            all,
            sampling: Mutex::new(PressureSampling { last: Duration::ZERO, pressure: IoPressure::open() }),
        }
    }

    /// The device of a storage, and whether it is new. An existing device keeps its number of threads.
    pub(crate) fn add(&self, export: &Export) -> (Arc<Device>, bool) {
        let (name, can) = (export.storage.name(), export.storage.capabilities());
        let mut all = self.all.lock();
        if let Some(known) = all.iter().find(|device| device.holds(name)) {
            return (known.clone(), false);
        }
        if let Some(known) = all.iter().find(|device| can.device.is_some() && device.number == can.device) {
            known.storages.lock().push(name.clone());
            return (known.clone(), false);
        }
        let device = Arc::new(Device::new(can.device, vec![name.clone()], can.parallel));
        all.push(device.clone());
        (device, true)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Device>> {
        self.all.lock().clone()
    }

    /// # Panics
    /// If the storage is not exported.
    pub(crate) fn device(&self, storage: &StorageName) -> Arc<Device> {
        match self.all().into_iter().find(|device| device.holds(storage)) {
            Some(device) => device,
            None => unreachable!("{storage} is not exported"),
        }
    }

    /// Samples the disk pressure; free of cost while we are idle.
    pub(crate) fn tick(&self, now: Duration) {
        let mut looks = self.sampling.lock();
        if now.saturating_sub(looks.last) < SAMPLE_INTERVAL {
            return;
        }
        let passed = now.saturating_sub(looks.last);
        looks.last = now;
        let all = self.all();
        if all.iter().all(|device| device.is_idle()) {
            looks.pressure.reset();
            return;
        }
        let (waiting, fetched) = (looks.pressure.stall_share(now), looks.pressure.has_read_from_disk());
        drop(looks);
        let seen: Vec<DiskSample> = all.iter().map(|device| device.take_sample(passed)).collect();
        // The kernel reports the waiting for all disks together, so ours is summed over all of them as well.
        let own = seen.iter().map(|seen| seen.own_busy).sum::<f64>().min(1.0);
        let wrote = seen.iter().any(|seen| seen.wrote);
        for (device, seen) in all.iter().zip(seen) {
            device.update_throttle(DiskSample {
                io_wait: waiting,
                own_busy: own,
                wrote,
                read_from_disk: fetched,
                ..seen
            });
        }
    }

    /// The device of this number, if a storage or a pool of one lies there.
    pub(crate) fn numbered(&self, number: u64) -> Option<Arc<Device>> {
        self.all().into_iter().find(|device| device.is_numbered(number))
    }

    pub(crate) fn snapshot(&self) -> Vec<DeviceSnapshot> {
        self.all().iter().map(|device| device.snapshot()).collect()
    }

    pub(crate) fn stop(&self) {
        for device in self.all() {
            device.gate.lock().closed = true;
            device.opened.notify_all();
            device.to_read.close();
            device.to_write.close();
        }
    }
}

impl Device {
    fn new(number: Option<u64>, storages: Vec<StorageName>, parallel: Option<u16>) -> Device {
        let parallel = parallel.unwrap_or(PARALLEL_DEFAULT).clamp(1, PARALLEL_MAX);
        // Readers and writers.
        let law = DiskThrottle::new(2 * parallel);
        let gate = Gate {
            throttle: law,
            running: 0,
            waiting: 0,
            paused_until: None,
            closed: false,
            load: DeviceLoad::default(),
        };
        Device {
            number,
            storages: Mutex::new(storages),
            parallel,
            to_read: Queue::new(usize::MAX),
            to_write: Queue::new(usize::MAX),
            gate: Mutex::new(gate),
            opened: Condvar::new(),
        }
    }

    fn holds(&self, storage: &StorageName) -> bool {
        self.storages.lock().contains(storage)
    }

    pub(crate) fn is_numbered(&self, number: u64) -> bool {
        self.number == Some(number)
    }

    /// Number of reader threads, and of writer threads.
    pub(crate) fn parallel(&self) -> u16 {
        self.parallel
    }

    /// Runs a reader thread.
    pub(crate) fn run_reader(&self) {
        while let Some(job) = self.to_read.take() {
            job.run(self);
        }
    }

    /// Runs a writer thread.
    pub(crate) fn run_writer(&self, shared: &Arc<EngineContext>) {
        while let Some(job) = self.to_write.take() {
            job.run(shared);
        }
    }

    /// Runs an operation on this many bytes as soon as the gate admits it.
    pub(crate) fn run<T>(&self, what: Operation, bytes: usize, operation: impl FnOnce() -> T) -> T {
        self.run_with(what, bytes, true, operation)
    }

    /// Runs a flush or the like, which others already wait for: counted, but never delayed.
    pub(crate) fn run_ungated<T>(&self, bytes: usize, operation: impl FnOnce() -> T) -> T {
        self.run_with(Operation::Write, bytes, false, operation)
    }

    fn run_with<T>(&self, what: Operation, bytes: usize, gated: bool, operation: impl FnOnce() -> T) -> T {
        let begun = self.begin(gated);
        // Ends on panic too: others wait for the gate.
        let _passing = RunningOperation { device: self, begun, what, bytes, gated };
        operation()
    }

    fn begin(&self, gated: bool) -> Instant {
        let mut gate = self.gate.lock();
        gate.waiting += usize::from(gated);
        while gated && !gate.closed {
            match gate.paused_until.filter(|until| *until > Instant::now()) {
                Some(until) => drop(self.opened.wait_until(&mut gate, until)),
                None if gate.running >= gate.throttle.share().max(1.0) as usize => {
                    self.opened.wait(&mut gate)
                }
                None => break,
            }
        }
        gate.waiting -= usize::from(gated);
        gate.running += usize::from(gated);
        let now = Instant::now();
        gate.load.in_flight += 1;
        gate.load.since.get_or_insert(now);
        now
    }

    fn end(&self, passing: &RunningOperation<'_>) {
        let now = Instant::now();
        let took = now.saturating_duration_since(passing.begun);
        let mut gate = self.gate.lock();
        let busy = &mut gate.load;
        busy.in_flight -= 1;
        busy.operations += 1;
        busy.operation_time += took;
        busy.wrote |= passing.what == Operation::Write;
        if passing.bytes >= LATENCY_SAMPLE_BYTES_MIN {
            busy.latency_time += took;
            busy.latency_bytes += passing.bytes as u64;
        }
        if busy.in_flight == 0
            && let Some(since) = busy.since.take()
        {
            busy.busy_time += now.saturating_duration_since(since);
        }
        if !passing.gated {
            return;
        }
        gate.running -= 1;
        let share = gate.throttle.share();
        if share < 1.0 {
            gate.paused_until = Some(now + took.mul_f64(1.0 / share - 1.0).min(DUTY_PAUSE_MAX));
        }
        let others_wait = gate.waiting > 0;
        drop(gate);
        if others_wait {
            self.opened.notify_one();
        }
    }

    /// Whether the device has been idle since the last sample, and is not throttled.
    fn is_idle(&self) -> bool {
        let gate = self.gate.lock();
        gate.load.operations == 0 && gate.load.in_flight == 0 && gate.throttle.is_full()
    }

    fn take_sample(&self, passed: Duration) -> DiskSample {
        let mut gate = self.gate.lock();
        let now = Instant::now();
        let before = std::mem::take(&mut gate.load);
        let running = before.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        gate.load = DeviceLoad {
            in_flight: before.in_flight,
            since: before.since.map(|_| now),
            wrote_before: before.wrote,
            ..DeviceLoad::default()
        };
        let any = before.busy_time + running;
        let at_once =
            (before.operation_time.as_secs_f64() / before.busy_time.as_secs_f64().max(f64::EPSILON)).max(1.0);
        let mib = before.latency_bytes as f64 / f64::from(1 << 20);
        DiskSample {
            io_wait: None,
            own_busy: (any.as_secs_f64() / passed.as_secs_f64().max(f64::EPSILON)).min(1.0),
            wrote: before.wrote || before.wrote_before,
            read_from_disk: false,
            seconds_per_mib: (mib > 0.0).then(|| before.latency_time.as_secs_f64() / mib / at_once),
        }
    }

    fn update_throttle(&self, seen: DiskSample) {
        let mut gate = self.gate.lock();
        let (was_whole, before) = (gate.throttle.is_full(), gate.throttle.share());
        let share = gate.throttle.update(seen);
        let (is_whole, reason) = (gate.throttle.is_full(), gate.throttle.reason());
        if share >= 1.0 {
            gate.paused_until = None;
        }
        drop(gate);
        if share > before {
            self.opened.notify_all();
        }
        let storages = || self.storages.lock().iter().map(StorageName::as_str).collect::<Vec<_>>().join(", ");
        if was_whole && let Some(reason) = reason {
            tracing::info!(storages = storages(), %reason, "yielding the disk to local users");
        } else if is_whole && !was_whole {
            tracing::info!(storages = storages(), "using the full share of the disk again");
        }
    }

    fn snapshot(&self) -> DeviceSnapshot {
        let gate = self.gate.lock();
        DeviceSnapshot {
            storages: self.storages.lock().clone(),
            parallel: self.parallel,
            share: gate.throttle.share() / f64::from(2 * self.parallel),
            waiting: gate.waiting,
            reason: gate.throttle.reason().map(|reason| reason.to_string()),
        }
    }
}

/// A running operation.
struct RunningOperation<'a> {
    device: &'a Device,
    begun: Instant,
    what: Operation,
    bytes: usize,
    gated: bool,
}

impl Drop for RunningOperation<'_> {
    fn drop(&mut self) {
        self.device.end(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::NameRules;
    use longhaul_storage::memory::FaultyStore;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    fn export(name: &str, device: Option<(u64, u16)>) -> Export {
        let store = FaultyStore::new(name.parse().unwrap());
        if let Some((device, parallel)) = device {
            store.set_device(device, parallel);
        }
        Export { storage: Arc::new(store), rules: NameRules::default() }
    }

    #[test]
    fn storages_on_one_device_share_it() {
        let devices = Devices::new(&[
            export("a", Some((1, 8))),
            export("b", Some((2, 1))),
            export("c", Some((1, 3))),
            export("d", None),
            export("e", None),
        ]);
        let of = |name: &str| devices.device(&name.parse().unwrap());
        assert!(Arc::ptr_eq(&of("a"), &of("c")) && !Arc::ptr_eq(&of("a"), &of("b")));
        assert!(!Arc::ptr_eq(&of("d"), &of("e")), "unknown devices are not shared");
        let parallel: Vec<u16> = ["a", "b", "c", "d"].iter().map(|name| of(name).parallel()).collect();
        assert_eq!(parallel, [3, 1, 3, PARALLEL_DEFAULT]);
        assert_eq!(devices.all().len(), 4);
        let (late, is_new) = devices.add(&export("f", Some((1, 8))));
        assert!(!is_new && Arc::ptr_eq(&late, &of("f")) && Arc::ptr_eq(&late, &of("a")));
        assert!(devices.add(&export("g", None)).1 && !devices.add(&export("g", None)).1);
    }

    const BUSY: DiskSample = DiskSample {
        io_wait: Some(0.9),
        own_busy: 0.1,
        wrote: false,
        read_from_disk: true,
        seconds_per_mib: None,
    };
    const CALM: DiskSample = DiskSample { io_wait: Some(0.0), ..BUSY };

    /// Promise 8: under pressure fewer operations run at once, and afterwards as many as before.
    #[test]
    fn the_gate_narrows_under_pressure_and_opens_again() {
        let device = Device::new(None, vec!["a".parse().unwrap()], Some(2));
        // Five operations arrive and stay until all five run or wait; returns how many run.
        let admitted = || {
            let (inside, released) = (AtomicUsize::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                for _ in 0..5 {
                    scope.spawn(|| {
                        device.run(Operation::Read, 1, || {
                            inside.fetch_add(1, Ordering::SeqCst);
                            while !released.load(Ordering::SeqCst) {
                                std::thread::yield_now();
                            }
                        });
                    });
                }
                while inside.load(Ordering::SeqCst) + device.snapshot().waiting < 5 {
                    std::thread::yield_now();
                }
                let admitted = inside.load(Ordering::SeqCst);
                released.store(true, Ordering::SeqCst);
                admitted
            })
        };
        assert_eq!(admitted(), 4);
        device.update_throttle(BUSY);
        assert_eq!(admitted(), 2);
        (0..5).for_each(|_| device.update_throttle(BUSY));
        assert_eq!(admitted(), 1);
        assert_eq!(device.snapshot().reason.as_deref(), Some("others wait for disks in 80 % of the time"));
        (0..20).for_each(|_| device.update_throttle(CALM));
        assert_eq!((admitted(), device.snapshot().reason), (4, None));
    }

    #[test]
    fn operations_are_counted_and_an_idle_device_is_idle() {
        let device = Device::new(None, vec!["a".parse().unwrap()], Some(2));
        assert!(device.is_idle());
        device.run(Operation::Read, LATENCY_SAMPLE_BYTES_MIN, || {
            assert!(!device.is_idle(), "an operation is running")
        });
        assert!(!device.is_idle());
        let seen = device.take_sample(Duration::from_secs(1));
        assert!(!seen.wrote && seen.seconds_per_mib.is_some() && seen.own_busy < 1.0, "{seen:?}");
        assert!(device.is_idle(), "nothing since the last sample");
        device.run_ungated(10, || ());
        let seen = device.take_sample(Duration::from_secs(1));
        assert!(seen.wrote && seen.seconds_per_mib.is_none());
        assert!(device.take_sample(Duration::from_secs(1)).wrote, "the kernel may still be flushing");
        assert!(!device.take_sample(Duration::from_secs(1)).wrote);
        let panicked: Result<(), _> =
            crate::sync::catch_panic("an operation", || device.run(Operation::Write, 1, || panic!("in it")));
        assert!(panicked.is_err());
        assert_eq!(device.gate.lock().running, 0, "the gate is free again");
    }
}
