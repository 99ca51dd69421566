//! Background I/O throttling: how much of a disk our work may use while the site's own users need it (promise
//! 8).
//!
//! The result is a *share*: the number of concurrent operations and, below one, the fraction of the time in
//! which that one may run. Multiplicative decrease and increase, after TCP's congestion avoidance (Jacobson
//! 1988): the share is halved at every sample under pressure and grows by a quarter at every sample without.
//!
//! Pressure shows in two ways. *Others wait*: tasks of this host waited for a disk for more of the time than
//! our operations were running. That says nothing while we write, since the kernel flushes on our behalf
//! afterwards, nor while all our reads hit the page cache. It names neither the disk nor the culprit: so the
//! share falls to one operation and no further. *Slow*: a MiB takes several times as long as on the idle
//! disk, per concurrent operation, and the host (if it can tell) does wait for disks. The latency of the idle
//! disk is learned: the minimum, which decays slowly, so that a disk that became slower for good does not
//! throttle us for ever.

/// From this share of the time on, others feel the wait.
const OTHERS_WAIT_SHARE_MIN: f64 = 0.10;
/// Latency above this multiple of the idle disk's is pressure. One other reader doubles it on most disks, and
/// so does a second kind of work of our own.
const SLOWDOWN_FACTOR: f64 = 3.0;
/// Below this latency a disk is fast, whatever it did when idle: the page cache is faster still, and a lone
/// rotating disk needs half of this.
const SLOW_S_PER_MIB_MIN: f64 = 0.020;
/// If tasks wait for disks less than this share of the time, the latency has another cause.
const SLOW_WAIT_SHARE_MIN: f64 = 0.30;
/// Lower bound of the share: what has begun makes progress.
pub const SHARE_MIN: f64 = 0.125;
/// Lower bound of the share while others wait but the disk is fast for us: they may wait for each other.
const CONTENDED_SHARE_MIN: f64 = 1.0;
/// Growth at each sample without pressure: half the speed of the decrease, so that recovery probes gently.
const SHARE_GROWTH: f64 = 1.25;
/// Growth of the idle latency at each sample, so that an outdated minimum is forgotten.
const IDLE_LATENCY_DECAY: f64 = 1.02;

/// Measurements since the previous sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSample {
    /// Fraction of the time in which some task of the host waited for a disk, if the system tells.
    pub io_wait: Option<f64>,
    /// Fraction of the time in which operations of ours were running.
    pub own_busy: f64,
    /// We wrote, or the kernel may still be flushing for us.
    pub wrote: bool,
    /// At least one of our reads came from the disk, not from the page cache.
    pub read_from_disk: bool,
    /// Duration of one of our operations per MiB, divided by the number of concurrent ones.
    pub seconds_per_mib: Option<f64>,
}

/// Why the share is below its maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ThrottleReason {
    /// Other tasks of the host wait for the disk while our operations run.
    OthersWait {
        /// Share of the time in which they waited, 0 to 1.
        part: f64,
    },
    /// The disk is much slower than when idle.
    Slow {
        /// Present latency per MiB and concurrent operation, in seconds.
        seconds_per_mib: f64,
        /// The same for the idle disk, in seconds.
        idle: f64,
    },
}

impl std::fmt::Display for ThrottleReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ThrottleReason::OthersWait { part } => {
                write!(f, "others wait for disks in {:.0} % of the time", 100.0 * part)
            }
            ThrottleReason::Slow { seconds_per_mib, idle } => {
                let (now, idle) = (1e3 * seconds_per_mib, 1e3 * idle);
                write!(f, "the disk takes {now:.0} ms per MiB, {idle:.1} ms when it is idle")
            }
        }
    }
}

/// The controller of one device. Call `update` at even intervals.
#[derive(Clone, Debug)]
pub struct DiskThrottle {
    share_max: f64,
    share: f64,
    idle: Option<f64>,
    reason: Option<ThrottleReason>,
}

impl DiskThrottle {
    /// # Panics
    /// If `share_max` is 0.
    pub fn new(most: u16) -> Self {
        assert!(most > 0, "a device allows at least one operation");
        DiskThrottle { share_max: most.into(), share: most.into(), idle: None, reason: None }
    }

    /// The present share: concurrent operations, or below one the fraction of the time for a single one.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// The reason, while the share is below its maximum.
    pub fn reason(&self) -> Option<ThrottleReason> {
        self.reason
    }

    /// Whether the share is at its maximum: nothing is throttled.
    pub fn is_full(&self) -> bool {
        self.share >= self.share_max
    }

    /// Adds a sample and returns the new share.
    pub fn update(&mut self, seen: DiskSample) -> f64 {
        match self.pressure(&seen) {
            Some(reason) => {
                let least = match reason {
                    ThrottleReason::Slow { .. } => SHARE_MIN,
                    ThrottleReason::OthersWait { .. } => CONTENDED_SHARE_MIN.min(self.share),
                };
                self.share = (self.share / 2.0).max(least);
                self.reason = Some(reason);
            }
            None => self.share = (self.share * SHARE_GROWTH).min(self.share_max),
        }
        if self.is_full() {
            self.reason = None;
        }
        self.learn_idle_latency(&seen);
        self.share
    }

    fn pressure(&self, seen: &DiskSample) -> Option<ThrottleReason> {
        if let (Some(seconds_per_mib), Some(idle)) = (seen.seconds_per_mib, self.idle)
            && seconds_per_mib >= (SLOWDOWN_FACTOR * idle).max(SLOW_S_PER_MIB_MIN)
            && seen.io_wait.is_none_or(|waiting| waiting >= SLOW_WAIT_SHARE_MIN)
        {
            return Some(ThrottleReason::Slow { seconds_per_mib, idle });
        }
        let part = seen.io_wait? - seen.own_busy;
        (part >= OTHERS_WAIT_SHARE_MIN && seen.read_from_disk && !seen.wrote)
            .then_some(ThrottleReason::OthersWait { part })
    }

    fn learn_idle_latency(&mut self, seen: &DiskSample) {
        let Some(now) = seen.seconds_per_mib.filter(|seconds| *seconds > 0.0) else { return };
        self.idle = Some(self.idle.map_or(now, |idle| now.min(idle * IDLE_LATENCY_DECAY)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CALM: DiskSample = DiskSample {
        io_wait: Some(0.05),
        own_busy: 0.05,
        wrote: false,
        read_from_disk: true,
        seconds_per_mib: Some(0.002),
    };

    fn update_times(law: &mut DiskThrottle, seen: DiskSample, times: usize) -> f64 {
        for _ in 0..times {
            law.update(seen);
        }
        law.share()
    }

    #[test]
    fn yields_to_others_and_recovers_gradually() {
        let mut law = DiskThrottle::new(4);
        assert_eq!(update_times(&mut law, CALM, 100), 4.0);
        let busy = DiskSample { io_wait: Some(0.8), own_busy: 0.3, ..CALM };
        assert_eq!(update_times(&mut law, busy, 2), 1.0);
        assert_eq!(
            law.reason().map(|reason| reason.to_string()).as_deref(),
            Some("others wait for disks in 50 % of the time")
        );
        assert_eq!(update_times(&mut law, busy, 10), 1.0, "the disk is still fast for us");
        let slow = DiskSample { seconds_per_mib: Some(0.03), ..busy };
        assert_eq!(update_times(&mut law, slow, 10), SHARE_MIN);
        assert_eq!(update_times(&mut law, busy, 1), SHARE_MIN, "the share does not rise while others wait");
        let after = update_times(&mut law, CALM, 5);
        assert!(after > 0.3 && after < 0.5 && law.reason().is_some(), "{after}");
        assert_eq!(update_times(&mut law, CALM, 20), 4.0);
        assert_eq!(law.reason(), None);
    }

    /// Waits of our own, or of the kernel on our behalf, are no reason to yield.
    #[test]
    fn does_not_yield_to_its_own_load() {
        let mut law = DiskThrottle::new(4);
        for own in [
            DiskSample { io_wait: Some(1.0), own_busy: 0.95, ..CALM },
            DiskSample { io_wait: Some(1.0), own_busy: 0.1, wrote: true, ..CALM },
            DiskSample { io_wait: Some(1.0), own_busy: 0.1, read_from_disk: false, ..CALM },
        ] {
            assert_eq!(update_times(&mut law, own, 100), 4.0);
        }
        // Four concurrent operations, each four times as long, count as one.
        let shared = DiskSample { seconds_per_mib: Some(0.0021), io_wait: Some(0.9), own_busy: 0.9, ..CALM };
        assert_eq!(update_times(&mut law, shared, 100), 4.0);
    }

    #[test]
    fn latency_counts_only_if_the_disk_causes_it() {
        let slow = DiskSample {
            io_wait: Some(0.9),
            own_busy: 1.0,
            wrote: true,
            seconds_per_mib: Some(0.05),
            ..CALM
        };
        let mut law = DiskThrottle::new(4);
        update_times(&mut law, CALM, 10);
        assert_eq!(update_times(&mut law, slow, 3), 0.5);
        assert!(
            law.reason().is_some_and(|reason| reason.to_string().contains("50 ms per MiB, 2.")),
            "{law:?}"
        );
        let mut unknown = DiskThrottle::new(4);
        update_times(&mut unknown, CALM, 10);
        assert_eq!(
            update_times(&mut unknown, DiskSample { io_wait: None, ..slow }, 3),
            0.5,
            "latency alone decides where the system tells nothing else"
        );
        let mut other_cause = DiskThrottle::new(4);
        update_times(&mut other_cause, CALM, 10);
        assert_eq!(
            update_times(&mut other_cause, DiskSample { io_wait: Some(0.02), ..slow }, 3),
            4.0,
            "the cause is not the disk"
        );
        // A disk that stays slow is accepted as slow.
        assert_eq!(update_times(&mut law, slow, 600), 4.0);
    }

    fn any_sample() -> impl Strategy<Value = DiskSample> {
        let part = 0.0..=1.0f64;
        let seconds = proptest::option::of(0.0..2.0f64);
        (proptest::option::of(part.clone()), part, any::<bool>(), any::<bool>(), seconds).prop_map(
            |(waiting, own, wrote, fetched, seconds_per_mib)| DiskSample {
                io_wait: waiting,
                own_busy: own,
                wrote,
                read_from_disk: fetched,
                seconds_per_mib,
            },
        )
    }

    proptest! {
        /// For any samples: the share stays in its bounds, falls by at most half, rises by at most a quarter,
        /// has a reason whenever it is reduced, and recovers without pressure.
        #[test]
        fn the_share_stays_in_bounds_and_recovers(most in 1u16..64,
            all in proptest::collection::vec(any_sample(), 0..200)) {
            let mut law = DiskThrottle::new(most);
            for each in all {
                let before = law.share();
                let after = law.update(each);
                prop_assert!((SHARE_MIN..=f64::from(most)).contains(&after));
                prop_assert!(after >= before / 2.0 && after <= before * SHARE_GROWTH);
                prop_assert_eq!(law.is_full(), law.reason().is_none());
            }
            let rest = DiskSample { io_wait: Some(0.0), own_busy: 0.0, wrote: false, read_from_disk: false,
                seconds_per_mib: None };
            let looks = ((f64::from(most) / SHARE_MIN).ln() / SHARE_GROWTH.ln()).ceil() as usize + 1;
            for _ in 0..looks {
                law.update(rest);
            }
            prop_assert!(law.is_full());
        }
    }
}
