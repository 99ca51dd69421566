//! How much of a disk our work may take while the site's own users need it (promise 8).
//!
//! The answer is a *share*: operations at once, and below one of them the part of the time in which that one
//! may run. It halves at every look that finds pressure and grows by a quarter at every look that finds none.
//!
//! Pressure is told in two ways. *Others wait*: tasks of this host waited for a disk in more of the time than
//! operations of ours were under way. That says nothing while we write, since the kernel writes on for us
//! afterwards and waits as well, nor while all that we read comes from memory. It does not say which disk
//! they wait for either, nor that we are in their way: we go down to one operation at once, and no further.
//! *Slow*: a megabyte takes several times as long as on the idle disk, for each of our operations at once,
//! and the host (if it can tell) does wait for disks. What the idle disk does is learnt: the best that was
//! seen, forgotten slowly, so that a disk that became slower for good is not given way to for ever.

/// Others wait in so much of the time: they feel it.
const OTHERS_WAIT: f64 = 0.10;
/// As slow as this against the idle disk. Twice is what one other reader costs on most disks, and our own
/// second kind of work as well.
const SLOW_TIMES: f64 = 3.0;
/// Seconds per MiB below which a disk is fast, whatever it was before: files in the page cache are faster
/// still, and a lone rotating disk needs half of that.
const SLOW_LEAST: f64 = 0.020;
/// Without tasks that wait in so much of the time, slowness is not the disk's.
const SLOW_WAITING: f64 = 0.30;
/// Never less: what has begun goes on.
pub const SHARE_LEAST: f64 = 0.125;
/// Never less because others wait, as long as the disk is fast for us: they may wait for each other.
const SHARE_BESIDE_OTHERS: f64 = 1.0;
const RECOVERY: f64 = 1.25;
/// By so much the best is forgotten at each look.
const FORGETTING: f64 = 1.02;

/// What was seen since the last look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Part of the time in which some task of the host waited for a disk, if the system tells.
    pub waiting: Option<f64>,
    /// Part of the time in which operations of ours were under way.
    pub own: f64,
    /// We wrote, or the kernel may still write for us.
    pub wrote: bool,
    /// Something that we read came from a disk.
    pub fetched: bool,
    /// What one of our operations took per MiB, divided by how many there were at once.
    pub seconds_per_mib: Option<f64>,
}

/// Why a share is less than it could be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    OthersWait { part: f64 },
    Slow { seconds_per_mib: f64, idle: f64 },
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::OthersWait { part } => {
                write!(f, "others wait for disks in {:.0} % of the time", 100.0 * part)
            }
            Reason::Slow { seconds_per_mib, idle } => {
                let (now, idle) = (1e3 * seconds_per_mib, 1e3 * idle);
                write!(f, "the disk takes {now:.0} ms per MiB, {idle:.1} ms when it is idle")
            }
        }
    }
}

/// The law for one device. `look` at even intervals.
#[derive(Clone, Debug)]
pub struct Yielding {
    most: f64,
    share: f64,
    idle: Option<f64>,
    reason: Option<Reason>,
}

impl Yielding {
    /// # Panics
    /// If `most` is 0: a device bears at least one operation.
    pub fn new(most: u16) -> Self {
        assert!(most > 0, "a device bears an operation");
        Yielding { most: most.into(), share: most.into(), idle: None, reason: None }
    }

    pub fn share(&self) -> f64 {
        self.share
    }

    /// Why, while it is less than it could be.
    pub fn reason(&self) -> Option<Reason> {
        self.reason
    }

    pub fn is_whole(&self) -> bool {
        self.share >= self.most
    }

    /// Takes what was seen, and returns the share from now on.
    pub fn look(&mut self, seen: Seen) -> f64 {
        match self.pressure(&seen) {
            Some(reason) => {
                let least = match reason {
                    Reason::Slow { .. } => SHARE_LEAST,
                    Reason::OthersWait { .. } => SHARE_BESIDE_OTHERS.min(self.share),
                };
                self.share = (self.share / 2.0).max(least);
                self.reason = Some(reason);
            }
            None => self.share = (self.share * RECOVERY).min(self.most),
        }
        if self.is_whole() {
            self.reason = None;
        }
        self.learn(&seen);
        self.share
    }

    fn pressure(&self, seen: &Seen) -> Option<Reason> {
        if let (Some(seconds_per_mib), Some(idle)) = (seen.seconds_per_mib, self.idle)
            && seconds_per_mib >= (SLOW_TIMES * idle).max(SLOW_LEAST)
            && seen.waiting.is_none_or(|waiting| waiting >= SLOW_WAITING)
        {
            return Some(Reason::Slow { seconds_per_mib, idle });
        }
        let part = seen.waiting? - seen.own;
        (part >= OTHERS_WAIT && seen.fetched && !seen.wrote).then_some(Reason::OthersWait { part })
    }

    fn learn(&mut self, seen: &Seen) {
        let Some(now) = seen.seconds_per_mib.filter(|seconds| *seconds > 0.0) else { return };
        self.idle = Some(self.idle.map_or(now, |idle| now.min(idle * FORGETTING)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CALM: Seen =
        Seen { waiting: Some(0.05), own: 0.05, wrote: false, fetched: true, seconds_per_mib: Some(0.002) };

    fn looks(law: &mut Yielding, seen: Seen, times: usize) -> f64 {
        for _ in 0..times {
            law.look(seen);
        }
        law.share()
    }

    #[test]
    fn gives_way_to_others_and_comes_back_gradually() {
        let mut law = Yielding::new(4);
        assert_eq!(looks(&mut law, CALM, 100), 4.0);
        let busy = Seen { waiting: Some(0.8), own: 0.3, ..CALM };
        assert_eq!(looks(&mut law, busy, 2), 1.0);
        assert_eq!(
            law.reason().map(|reason| reason.to_string()).as_deref(),
            Some("others wait for disks in 50 % of the time")
        );
        assert_eq!(looks(&mut law, busy, 10), 1.0, "the disk is fast for us");
        let slow = Seen { seconds_per_mib: Some(0.03), ..busy };
        assert_eq!(looks(&mut law, slow, 10), SHARE_LEAST);
        assert_eq!(looks(&mut law, busy, 1), SHARE_LEAST, "others still wait");
        let after = looks(&mut law, CALM, 5);
        assert!(after > 0.3 && after < 0.5 && law.reason().is_some(), "{after}");
        assert_eq!(looks(&mut law, CALM, 20), 4.0);
        assert_eq!(law.reason(), None);
    }

    /// What we or the kernel on our behalf wait for is no reason to give way to ourselves.
    #[test]
    fn does_not_give_way_to_itself() {
        let mut law = Yielding::new(4);
        for own in [
            Seen { waiting: Some(1.0), own: 0.95, ..CALM },
            Seen { waiting: Some(1.0), own: 0.1, wrote: true, ..CALM },
            Seen { waiting: Some(1.0), own: 0.1, fetched: false, ..CALM },
        ] {
            assert_eq!(looks(&mut law, own, 100), 4.0);
        }
        // Four operations at once, each four times as long, come in as one.
        let shared = Seen { seconds_per_mib: Some(0.0021), waiting: Some(0.9), own: 0.9, ..CALM };
        assert_eq!(looks(&mut law, shared, 100), 4.0);
    }

    #[test]
    fn slowness_counts_if_it_is_the_disks() {
        let slow = Seen { waiting: Some(0.9), own: 1.0, wrote: true, seconds_per_mib: Some(0.05), ..CALM };
        let mut law = Yielding::new(4);
        looks(&mut law, CALM, 10);
        assert_eq!(looks(&mut law, slow, 3), 0.5);
        assert!(
            law.reason().is_some_and(|reason| reason.to_string().contains("50 ms per MiB, 2.")),
            "{law:?}"
        );
        let mut unknown = Yielding::new(4);
        looks(&mut unknown, CALM, 10);
        assert_eq!(
            looks(&mut unknown, Seen { waiting: None, ..slow }, 3),
            0.5,
            "latency alone, where nothing else is told"
        );
        let mut other_cause = Yielding::new(4);
        looks(&mut other_cause, CALM, 10);
        assert_eq!(
            looks(&mut other_cause, Seen { waiting: Some(0.02), ..slow }, 3),
            4.0,
            "the processor is busy, say"
        );
        // A disk that stays like that is like that.
        assert_eq!(looks(&mut law, slow, 600), 4.0);
    }

    fn seen() -> impl Strategy<Value = Seen> {
        let part = 0.0..=1.0f64;
        let seconds = proptest::option::of(0.0..2.0f64);
        (proptest::option::of(part.clone()), part, any::<bool>(), any::<bool>(), seconds).prop_map(
            |(waiting, own, wrote, fetched, seconds_per_mib)| Seen {
                waiting,
                own,
                wrote,
                fetched,
                seconds_per_mib,
            },
        )
    }

    proptest! {
        /// Whatever is seen: the share keeps its bounds, falls by half at most, rises by a quarter at most,
        /// has a reason when it is not whole, and is whole again after a while without pressure.
        #[test]
        fn keeps_its_bounds_and_recovers(most in 1u16..64, all in proptest::collection::vec(seen(), 0..200)) {
            let mut law = Yielding::new(most);
            for each in all {
                let before = law.share();
                let after = law.look(each);
                prop_assert!((SHARE_LEAST..=f64::from(most)).contains(&after));
                prop_assert!(after >= before / 2.0 && after <= before * RECOVERY);
                prop_assert_eq!(law.is_whole(), law.reason().is_none());
            }
            let rest = Seen { waiting: Some(0.0), own: 0.0, wrote: false, fetched: false, seconds_per_mib: None };
            let looks = ((f64::from(most) / SHARE_LEAST).ln() / RECOVERY.ln()).ceil() as usize + 1;
            for _ in 0..looks {
                law.look(rest);
            }
            prop_assert!(law.is_whole());
        }
    }
}
