//! Event loops without a thread of their own (sans-IO): state machines with a queue of inputs, stepped with
//! the time.
//!
//! A step takes what is queued, up to a bound, sends what follows from it, and says when it wants to be
//! stepped again. It never waits for an input. In production [`drive`] waits in the loop's thread; a test
//! steps all loops of a deployment in one thread, with a clock of its own.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use longhaul_identity::Clock;
use longhaul_model::Timestamp;

use crate::turns::LoopTurn;

/// One loop of the control plane.
pub trait EventLoop {
    type Input;

    /// Inputs handled in one step.
    const BATCH_MAX: usize;
    /// Longest wait without an input: it bounds the age of the last turn of a loop that is well.
    const WAIT_MAX: Duration;

    fn inputs(&mut self) -> &mut InputQueue<Self::Input>;

    /// When to be stepped for the first time if no input comes before.
    fn first_wake(&self) -> Option<Timestamp> {
        None
    }

    /// Handles the loaded inputs and what is due by `now`. To be called after the inputs were loaded and the
    /// clock was read, in this order: no input is from after `now`.
    fn step(&mut self, now: Timestamp) -> LoopStep;
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopStep {
    /// To be stepped again when an input is queued, or at `until`.
    Wait { until: Option<Timestamp> },
    /// The loop has ended.
    Stop,
}

/// The inputs of a loop. A step handles those that were loaded before it.
pub struct InputQueue<T> {
    receiver: Receiver<T>,
    loaded: VecDeque<T>,
}

impl<T> InputQueue<T> {
    pub fn new(receiver: Receiver<T>) -> InputQueue<T> {
        InputQueue { receiver, loaded: VecDeque::new() }
    }

    /// Loads queued inputs for the next step, until `count_max` are loaded; returns whether any are.
    pub fn load(&mut self, count_max: usize) -> bool {
        let room = count_max.saturating_sub(self.loaded.len());
        self.loaded.extend(self.receiver.try_iter().take(room));
        !self.loaded.is_empty()
    }

    /// The next loaded input.
    pub fn pop(&mut self) -> Option<T> {
        self.loaded.pop_front()
    }

    /// Takes all loaded inputs.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.loaded.drain(..)
    }

    /// Waits for an input, at most `wait_max`. False if none can come any more, since all senders are gone.
    pub fn wait(&mut self, wait_max: Option<Duration>) -> bool {
        if !self.loaded.is_empty() {
            return true;
        }
        let received = match wait_max {
            Some(wait_max) => self.receiver.recv_timeout(wait_max),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(input) => self.loaded.push_back(input),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }
}

/// Drives a loop in the calling thread until it has ended, or nobody can give it inputs any more; marks each
/// of its turns.
pub fn drive<L: EventLoop>(event_loop: &mut L, clock: &Clock, turn: &LoopTurn) {
    let mut wake_at = event_loop.first_wake();
    loop {
        let wait = wake_at.map(|at| at.since(clock()));
        let wait = wait.map_or(L::WAIT_MAX, |wait| wait.min(L::WAIT_MAX));
        if !event_loop.inputs().wait(Some(wait)) {
            return;
        }
        event_loop.inputs().load(L::BATCH_MAX);
        match event_loop.step(clock()) {
            LoopStep::Wait { until } => wake_at = until,
            LoopStep::Stop => return,
        }
        turn.mark(clock());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::turns::LoopTurns;

    #[test]
    fn a_wait_takes_nothing_away_and_a_batch_is_bounded() {
        let (sender, receiver) = channel();
        let mut queue = InputQueue::new(receiver);
        assert!(!queue.load(2) && queue.wait(Some(Duration::ZERO)), "a timeout is no end");
        (1..=4).for_each(|number| sender.send(number).unwrap());
        assert!(queue.wait(None) && queue.load(2));
        assert_eq!(queue.drain().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(queue.pop(), None, "what was not loaded before a step waits for the next one");
        assert!(queue.load(9));
        drop(sender);
        assert_eq!(queue.pop(), Some(3));
        assert!(queue.wait(None), "an input is left");
        assert_eq!(queue.pop(), Some(4));
        assert!(!queue.wait(None), "nobody is left to send");
    }

    struct Countdown(InputQueue<()>, Vec<Timestamp>);

    impl EventLoop for Countdown {
        type Input = ();
        const BATCH_MAX: usize = 1;
        const WAIT_MAX: Duration = Duration::ZERO;

        fn inputs(&mut self) -> &mut InputQueue<()> {
            &mut self.0
        }

        fn step(&mut self, now: Timestamp) -> LoopStep {
            self.1.push(now);
            // Far away: only the longest wait wakes it.
            let until = Some(now.plus(Duration::from_secs(3_600)));
            if self.1.len() < 3 { LoopStep::Wait { until } } else { LoopStep::Stop }
        }
    }

    #[test]
    fn a_driven_loop_is_stepped_after_its_longest_wait_until_it_ends() {
        let (_sender, receiver) = channel();
        let mut countdown = Countdown(InputQueue::new(receiver), Vec::new());
        let (turns, clock) = (LoopTurns::default(), Arc::new(|| Timestamp(7)) as Clock);
        let turn = turns.add("countdown", Duration::ZERO, Timestamp::ZERO);
        drive(&mut countdown, &clock, &turn);
        assert_eq!(countdown.1, [Timestamp(7); 3]);
        assert_eq!(turns.ages(Timestamp(9))[0].age, Duration::from_micros(2), "the last turn was at 7");
    }
}
