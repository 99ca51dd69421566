//! How far the running copies are, for those who ask and for the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use longhaul_control::SchedulerHandle;
use longhaul_control::brain::Input;
use longhaul_model::{AttemptId, Timestamp};
use longhaul_scheduler::Event;
use parking_lot::Mutex;

/// Interval between two progress reports of a copy to the scheduler.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Running copies by file.
#[derive(Default)]
pub struct RunningCopies(Mutex<BTreeMap<u64, Arc<Counter>>>);

pub(crate) struct Counter {
    bytes: AtomicU64,
    reported: AtomicI64,
    since: Timestamp,
}

/// Progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub bytes: u64,
    pub since: Timestamp,
}

impl RunningCopies {
    pub(crate) fn begin(&self, file: u64, now: Timestamp) -> Arc<Counter> {
        let counter = Counter { bytes: AtomicU64::new(0), reported: AtomicI64::new(now.0), since: now };
        let counter = Arc::new(counter);
        self.0.lock().insert(file, counter.clone());
        counter
    }

    pub(crate) fn end(&self, file: u64) {
        self.0.lock().remove(&file);
    }

    pub fn progress(&self, file: u64) -> Option<Progress> {
        let moving = self.0.lock();
        let counter = moving.get(&file)?;
        Some(Progress { bytes: counter.bytes.load(Ordering::Relaxed), since: counter.since })
    }
}

impl Counter {
    pub(crate) fn advance(
        &self,
        bytes: u64,
        attempt: AttemptId,
        now: Timestamp,
        scheduler: &SchedulerHandle,
    ) {
        self.bytes.fetch_max(bytes, Ordering::Relaxed);
        let told = self.reported.load(Ordering::Relaxed);
        if now.since(Timestamp(told)) >= REPORT_INTERVAL
            && self.reported.compare_exchange(told, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            // Dropped where the scheduler has no time for it: the next one says more.
            scheduler.try_notify(Input::Events(vec![Event::Progress { attempt, bytes_done: bytes }]));
        }
    }
}
