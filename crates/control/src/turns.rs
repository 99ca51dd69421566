//! The last turn of each loop: readiness tells who stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use longhaul_model::Timestamp;
use parking_lot::Mutex;

/// The age at which the turn of a loop that waits for the disk is too old. A long transaction is done by
/// then, and so is a probe of a catalog that cannot be written.
pub const TURN_AGE_MAX: Duration = Duration::from_secs(60);
/// The same for the brain, which waits for nothing.
pub const BRAIN_TURN_AGE_MAX: Duration = Duration::from_secs(15);
/// The same for housekeeping, whose pruning of history can take minutes.
pub const HOUSEKEEPING_TURN_AGE_MAX: Duration = Duration::from_secs(900);

/// When one loop made its last turn.
#[derive(Clone, Debug, Default)]
pub struct LoopTurn(Arc<AtomicI64>);

impl LoopTurn {
    pub fn mark(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::Relaxed);
    }

    fn last(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

/// The turns of all loops of a process.
#[derive(Default)]
pub struct LoopTurns(Mutex<Vec<(&'static str, Duration, LoopTurn)>>);

/// How long ago a loop made its last turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnAge {
    pub name: &'static str,
    pub age: Duration,
    /// It is older than it may be.
    pub is_late: bool,
}

impl LoopTurns {
    /// Adds a loop that is about to start, and whose turn may be as old as `age_max`.
    pub fn add(&self, name: &'static str, age_max: Duration, now: Timestamp) -> LoopTurn {
        let turn = LoopTurn::default();
        turn.mark(now);
        self.0.lock().push((name, age_max, turn.clone()));
        turn
    }

    pub fn ages(&self, now: Timestamp) -> Vec<TurnAge> {
        let row = |(name, age_max, turn): &(&'static str, Duration, LoopTurn)| {
            let age = now.since(turn.last());
            TurnAge { name, age, is_late: age > *age_max }
        };
        self.0.lock().iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_late_and_only_that_one() {
        let (turns, start) = (LoopTurns::default(), Timestamp::from_seconds(1_000));
        let brain = turns.add("brain", BRAIN_TURN_AGE_MAX, start);
        turns.add("commit-loop", TURN_AGE_MAX, start);
        let late = |now: Timestamp| {
            turns.ages(now).into_iter().filter(|age| age.is_late).map(|age| age.name).collect::<Vec<_>>()
        };
        assert!(late(start + TURN_AGE_MAX).contains(&"brain") && late(start + BRAIN_TURN_AGE_MAX).is_empty());
        let then = start + TURN_AGE_MAX + Duration::from_micros(1);
        brain.mark(then);
        assert_eq!(late(then), ["commit-loop"]);
        assert_eq!(turns.ages(then)[0], TurnAge { name: "brain", age: Duration::ZERO, is_late: false });
    }
}
