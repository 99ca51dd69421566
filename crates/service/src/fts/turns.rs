//! Submissions go before questions: programs that poll as fast as they are answered would take as much of the
//! processors as all who submit together. While several requests are under way that change something,
//! questions are answered by part of the cores only, in the order in which they came; otherwise nobody waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// So many changes under way are a crowd.
const CROWD: usize = 4;
/// One core in so many answers questions then.
const CORES: usize = 2;

pub(crate) struct Turns {
    changes: AtomicUsize,
    questions: Semaphore,
}

/// Held while a request is worked on.
pub(crate) struct Turn<'a> {
    change: Option<&'a AtomicUsize>,
    _question: Option<SemaphorePermit<'a>>,
}

impl Turns {
    pub(crate) fn new(cores: usize) -> Self {
        Turns { changes: AtomicUsize::new(0), questions: Semaphore::new((cores / CORES).max(1)) }
    }

    pub(crate) fn of_change(&self) -> Turn<'_> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        Turn { change: Some(&self.changes), _question: None }
    }

    /// Waits for its turn, but not for longer than this.
    pub(crate) async fn of_question(&self, wait: Duration) -> Turn<'_> {
        let crowded = self.changes.load(Ordering::Relaxed) >= CROWD;
        let question = match crowded {
            true => timeout(wait, self.questions.acquire()).await.ok().and_then(Result::ok),
            false => None,
        };
        Turn { change: None, _question: question }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.change {
            changes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    #[tokio::test]
    async fn beside_many_changes_questions_are_answered_one_after_another_and_not_for_ever() {
        let turns = Turns::new(2);
        let few: Vec<Turn<'_>> = (1..CROWD).map(|_| turns.of_change()).collect();
        let alone = [turns.of_question(LONG).await, turns.of_question(LONG).await];
        let last = turns.of_change();
        let first = turns.of_question(LONG).await;
        assert!(
            timeout(Duration::ZERO, turns.of_question(LONG)).await.is_err(),
            "the first is being answered"
        );
        let waited = turns.of_question(Duration::ZERO).await;
        assert!(waited._question.is_none(), "after so long it waits no more");
        drop(first);
        drop(turns.of_question(LONG).await);
        assert_eq!(turns.questions.available_permits(), 1);
        drop(last);
        let many = [turns.of_question(LONG).await, turns.of_question(LONG).await];
        assert_eq!(turns.questions.available_permits(), 1, "few changes make nobody wait");
        drop((few, alone, many));
        assert_eq!(turns.changes.load(Ordering::Relaxed), 0);
    }
}
