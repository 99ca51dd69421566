//! A link's machine, told what happens, and what it does then.

use std::time::Duration;

use longhaul_circuits::{
    Action, Answer, CircuitEndpoints, CircuitRequest, Event, Grant, Lifecycle, Note, RequestKey,
    ReservationLedger, Settings,
};
use longhaul_model::Timestamp;

pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);
pub const START: Timestamp = Timestamp(1_790_000_000_000_000);
/// At 100 MB/s: just less and just more than five hours.
pub const WORKLOAD_BYTES_SMALL: u64 = 5 * 3600 * 100_000_000;
pub const WORKLOAD_BYTES_LARGE: u64 = WORKLOAD_BYTES_SMALL + 100_000_000;

pub struct Link {
    pub machine: Lifecycle,
    pub now: Timestamp,
    /// The last that was kept.
    pub book: ReservationLedger,
}

impl Link {
    pub fn new(settings: Settings) -> Link {
        Link {
            machine: Lifecycle::new("alpha→beta", settings, 1, START),
            now: START,
            book: ReservationLedger::default(),
        }
    }

    pub fn restored(book: ReservationLedger, now: Timestamp) -> (Link, Vec<Action>) {
        let machine = Lifecycle::restore("alpha→beta", Settings::default(), 2, book.clone(), now);
        let mut link = Link { machine, now, book };
        let actions = link.handle(Event::Tick);
        (link, actions)
    }

    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(event, self.now);
        let actions: Vec<_> = std::iter::from_fn(|| self.machine.poll()).collect();
        for action in &actions {
            if let Action::Persist(book) = action {
                self.book = book.clone();
            }
        }
        actions
    }

    pub fn after(&mut self, time: Duration) -> Vec<Action> {
        self.now = self.now.plus(time);
        self.handle(Event::Tick)
    }

    pub fn work(&mut self, pending_bytes: u64) -> Vec<Action> {
        self.handle(Event::Work { pending_bytes, bytes_per_s: Some(1e8) })
    }

    /// Until a request has left.
    pub fn asked(&mut self) -> CircuitRequest {
        self.work(WORKLOAD_BYTES_LARGE);
        wish(&self.after(MINUTE)).expect("a request")
    }

    pub fn granted(&mut self, expires: Option<Timestamp>) -> (CircuitRequest, Vec<Action>) {
        let wish = self.asked();
        let actions = self.answer(wish.key, granted(wish.mbit, expires));
        (wish, actions)
    }

    pub fn used(&mut self) -> CircuitRequest {
        let (wish, _) = self.granted(None);
        self.handle(Event::Probed { key: wish.key, good: true });
        wish
    }

    pub fn answer(&mut self, key: RequestKey, answer: Answer) -> Vec<Action> {
        self.handle(Event::Answer { key, answer })
    }
}

pub fn ends() -> CircuitEndpoints {
    CircuitEndpoints { source: "10.1.0.1".into(), target: "10.1.0.2".into() }
}

pub fn granted(mbit: u64, expires: Option<Timestamp>) -> Answer {
    Answer::Granted(Grant { mbit, ends: ends(), expires })
}

pub fn refused(less: bool) -> Answer {
    Answer::Refused { less, detail: "no capacity".into() }
}

pub fn wish(actions: &[Action]) -> Option<CircuitRequest> {
    actions.iter().find_map(|action| match action {
        Action::Request(wish) => Some(*wish),
        _ => None,
    })
}

/// Places of two actions: the first comes before the second.
pub fn in_order(
    actions: &[Action],
    first: impl Fn(&Action) -> bool,
    second: impl Fn(&Action) -> bool,
) -> bool {
    let place = |wanted: &dyn Fn(&Action) -> bool| actions.iter().position(wanted);
    matches!((place(&first), place(&second)), (Some(first), Some(second)) if first < second)
}

pub fn has_note(actions: &[Action], wanted: impl Fn(&Note) -> bool) -> bool {
    actions.iter().any(|action| matches!(action, Action::Note(note) if wanted(note)))
}
