//! Admission control (load shedding): under write pressure, reads get half of the cores.
//!
//! Programs that poll as fast as they are answered would otherwise take as much of the processors as all
//! submitters together. Writes are always admitted at once. While [`WRITE_PRESSURE_MIN`] of them are in
//! flight, reads queue for a permit, first come, first served; otherwise nobody waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// With this many writes in flight, reads are limited: fewer leave the processors enough room for both.
const WRITE_PRESSURE_MIN: usize = 4;
/// Under write pressure, one core of this many answers reads; the others belong to the writes.
const CORES_PER_READ: usize = 2;

pub(crate) struct ReadAdmission {
    writes: AtomicUsize,
    reads: Semaphore,
}

/// Admits one request; held while the request is worked on.
pub(crate) struct AdmissionGuard<'a> {
    write: Option<&'a AtomicUsize>,
    _read: Option<SemaphorePermit<'a>>,
}

impl ReadAdmission {
    pub(crate) fn new(cores: usize) -> Self {
        ReadAdmission { writes: AtomicUsize::new(0), reads: Semaphore::new((cores / CORES_PER_READ).max(1)) }
    }

    pub(crate) fn admit_write(&self) -> AdmissionGuard<'_> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        AdmissionGuard { write: Some(&self.writes), _read: None }
    }

    /// Waits for a permit under write pressure, but admits the read after `wait` in any case.
    pub(crate) async fn admit_read(&self, wait: Duration) -> AdmissionGuard<'_> {
        let under_pressure = self.writes.load(Ordering::Relaxed) >= WRITE_PRESSURE_MIN;
        let permit = match under_pressure {
            true => timeout(wait, self.reads.acquire()).await.ok().and_then(Result::ok),
            false => None,
        };
        AdmissionGuard { write: None, _read: permit }
    }
}

impl Drop for AdmissionGuard<'_> {
    fn drop(&mut self) {
        if let Some(writes) = self.write {
            writes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT_LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn under_write_pressure_reads_take_turns_but_do_not_wait_for_ever() {
        let admission = ReadAdmission::new(2);
        let few: Vec<AdmissionGuard<'_>> = (1..WRITE_PRESSURE_MIN).map(|_| admission.admit_write()).collect();
        let unlimited = [admission.admit_read(WAIT_LONG).await, admission.admit_read(WAIT_LONG).await];
        let last = admission.admit_write();
        let first = admission.admit_read(WAIT_LONG).await;
        assert!(
            timeout(Duration::ZERO, admission.admit_read(WAIT_LONG)).await.is_err(),
            "the first read holds the only permit"
        );
        let waited = admission.admit_read(Duration::ZERO).await;
        assert!(waited._read.is_none(), "admitted without a permit when its wait is over");
        drop(first);
        drop(admission.admit_read(WAIT_LONG).await);
        assert_eq!(admission.reads.available_permits(), 1);
        drop(last);
        let many = [admission.admit_read(WAIT_LONG).await, admission.admit_read(WAIT_LONG).await];
        assert_eq!(admission.reads.available_permits(), 1, "without write pressure no read takes a permit");
        drop((few, unlimited, many));
        assert_eq!(admission.writes.load(Ordering::Relaxed), 0);
    }
}
