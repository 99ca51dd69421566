//! Random lives: a provider that delays, refuses, loses, doubles and reorders its answers; kills between any
//! two actions; clocks that jump; work and transfers that come and go. `cargo xtask soak random` lives 10,000
//! of them.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_circuits::{
    Action, Answer, CircuitEndpoints, CircuitRequest, Event, Grant, Lifecycle, Order, OrderKind,
    ProviderReservation, RequestKey, ReservationLedger, ReservationStage, Settings, State,
};
use longhaul_model::{CircuitOrderId, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const LIVES: u32 = 500;
const MINUTE: Duration = Duration::from_secs(60);
const START: Timestamp = Timestamp(1_790_000_000_000_000);

/// What happens next. Numbers choose among what is possible then.
#[derive(Clone, Debug)]
enum Step {
    Wait {
        seconds: u32,
        /// As a machine does that is suspended: nobody is woken before the end.
        asleep: bool,
    },
    /// The clock goes back.
    Jump {
        seconds: u32,
    },
    Work {
        hours: u32,
    },
    Wanted(bool),
    /// A person wants a circuit for so long, changes their mind, or gives back what there is.
    Order {
        minutes: u32,
    },
    NoOrder,
    /// Somebody wants another in place of the circuit that there is.
    Replace {
        minutes: u32,
    },
    Release,
    Moved {
        on_circuit: bool,
        megabytes: u32,
        seconds: u32,
    },
    /// The provider takes up one of the requests that have reached it.
    Decide {
        which: usize,
        how: How,
    },
    /// One of its answers arrives; the others wait, this one may be lost or come twice.
    Deliver {
        which: usize,
        lost: bool,
        twice: bool,
    },
    /// A circuit ends before its time, and the provider says so, or not.
    End {
        which: usize,
        told: bool,
    },
    /// The provider only says that it has given back the next one.
    Lie,
    Transfer {
        on_circuit: bool,
        good: bool,
    },
    Users(usize),
    Left,
    Ends {
        answer: bool,
    },
    /// Actions that were not carried out yet are lost, and what was in memory.
    Kill {
        after: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Grant {
        minutes: Option<u32>,
    },
    Refuse {
        less: bool,
    },
    /// It is granted, and nobody is told.
    Silence,
    /// It is granted, and said to be refused.
    Lie,
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![
        4 => proptest::option::of(1..600_u32).prop_map(|minutes| How::Grant { minutes }),
        2 => any::<bool>().prop_map(|less| How::Refuse { less }),
        1 => Just(How::Silence),
        1 => Just(How::Lie),
    ];
    prop_oneof![
        6 => (1..1200_u32, prop::bool::weighted(0.2)).prop_map(|(seconds, asleep)| Step::Wait { seconds,
            asleep }),
        1 => (1..100_000_u32).prop_map(|seconds| Step::Jump { seconds }),
        3 => (0..20_u32).prop_map(|hours| Step::Work { hours }),
        1 => any::<bool>().prop_map(Step::Wanted),
        1 => (0..600_u32).prop_map(|minutes| Step::Order { minutes }),
        1 => Just(Step::NoOrder),
        2 => (0..600_u32).prop_map(|minutes| Step::Replace { minutes }),
        1 => Just(Step::Release),
        2 => (any::<bool>(), 0..100_000_u32, 1..1_000_u32)
            .prop_map(|(on_circuit, megabytes, seconds)| Step::Moved { on_circuit, megabytes, seconds }),
        6 => (any::<usize>(), how).prop_map(|(which, how)| Step::Decide { which, how }),
        6 => (any::<usize>(), prop::bool::weighted(0.1), prop::bool::weighted(0.1))
            .prop_map(|(which, lost, twice)| Step::Deliver { which, lost, twice }),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, told)| Step::End { which, told }),
        1 => Just(Step::Lie),
        2 => (any::<bool>(), prop::bool::weighted(0.7)).prop_map(|(on_circuit,
            good)| Step::Transfer { on_circuit, good }),
        1 => (0..3_usize).prop_map(Step::Users),
        1 => Just(Step::Left),
        1 => prop::bool::weighted(0.8).prop_map(|answer| Step::Ends { answer }),
        2 => (0..8_usize).prop_map(|after| Step::Kill { after }),
    ]
}

/// The outside: it knows nothing of the machine but what it is asked.
#[derive(Default)]
struct Provider {
    waiting: Vec<CircuitRequest>,
    /// With the end of each.
    held: BTreeMap<RequestKey, Option<Timestamp>>,
    /// On their way to us.
    answers: Vec<Event>,
    granted: BTreeSet<RequestKey>,
    /// So many are only said to be given back.
    lies: usize,
}

impl Provider {
    fn decide(&mut self, which: usize, how: How, now: Timestamp) {
        if self.waiting.is_empty() {
            return;
        }
        let wish = self.waiting.swap_remove(which % self.waiting.len());
        let answer = match how {
            How::Refuse { less } => Answer::Refused { less, detail: "no".into() },
            How::Grant { .. } | How::Silence | How::Lie => {
                let expires = match how {
                    How::Grant { minutes: Some(minutes) } => Some(now.plus(MINUTE * minutes)),
                    _ => None,
                };
                assert!(self.granted.insert(wish.key), "a name was used twice");
                self.held.insert(wish.key, expires);
                let ends = CircuitEndpoints { source: "10.1.0.1".into(), target: "10.1.0.2".into() };
                match how {
                    How::Lie => Answer::Refused { less: false, detail: "no".into() },
                    _ => Answer::Granted(Grant { mbit: wish.mbit, ends, expires }),
                }
            }
        };
        if !matches!(how, How::Silence) {
            self.answers.push(Event::Answer { key: wish.key, answer });
        }
    }

    fn tear_down(&mut self, key: RequestKey) {
        match self.lies.checked_sub(1) {
            Some(left) => self.lies = left,
            None => {
                self.waiting.retain(|wish| wish.key != key);
                self.held.remove(&key);
            }
        }
        self.answers.push(Event::TornDown(key));
    }

    fn is_up(&self, key: RequestKey, now: Timestamp) -> bool {
        self.held.get(&key).is_some_and(|expires| expires.is_none_or(|at| at > now))
    }

    fn listed(&self, now: Timestamp) -> Event {
        let held = self
            .held
            .keys()
            .map(|key| ProviderReservation { key: *key, up: self.is_up(*key, now) })
            .collect();
        Event::Listed { asked: now, held }
    }
}

/// Since when something is so, by a clock that no jump moves.
#[derive(Default)]
struct Marks {
    /// Held, and nobody here knows of it.
    unknown: BTreeMap<RequestKey, Duration>,
    /// Used, and not there any more.
    dead: Option<Duration>,
    /// For the request of that time.
    asked: Option<(Timestamp, Duration)>,
    rests: Option<Duration>,
}

/// When it began to be so, if it is.
fn mark(since: &mut Option<Duration>, is_so: bool, elapsed: Duration) -> Duration {
    *since = is_so.then(|| since.unwrap_or(elapsed));
    since.map_or(Duration::ZERO, |since| elapsed - since)
}

struct World {
    machine: Lifecycle,
    provider: Provider,
    /// What it says arrives at once, and nothing is lost.
    is_prompt: bool,
    now: Timestamp,
    elapsed: Duration,
    marks: Marks,
    /// What survives a kill.
    book: ReservationLedger,
    used: Option<RequestKey>,
    ends_answer: bool,
    settings: Settings,
    runs: u64,
    /// What people want, said with each step.
    orders: Vec<Order>,
    last_order: u64,
}

impl World {
    fn new(is_prompt: bool) -> World {
        let settings = Settings::default();
        World {
            machine: Lifecycle::new("alpha→beta", settings.clone(), 0, START),
            provider: Provider::default(),
            is_prompt,
            now: START,
            elapsed: Duration::ZERO,
            marks: Marks::default(),
            book: ReservationLedger::default(),
            used: None,
            ends_answer: true,
            settings,
            runs: 0,
            orders: Vec::new(),
            last_order: 0,
        }
    }

    fn handle(&mut self, event: Event) {
        self.machine.handle(event, self.now);
    }

    /// Carries out so many actions, and checks what each must fulfil.
    fn carry_out(&mut self, most: usize) {
        for _ in 0..most {
            let Some(action) = self.machine.poll() else { return };
            let in_book = |key: RequestKey| self.book.reservations.iter().find(|one| one.key == key);
            match action {
                Action::Persist(book) => {
                    let alive = book
                        .reservations
                        .iter()
                        .filter(|one| one.stage != ReservationStage::Releasing)
                        .count();
                    // One, and while it is used one that is to follow it.
                    assert!(alive <= 1 || alive == 2 && self.used.is_some(), "too many are alive: {book:?}");
                    self.book = book;
                }
                Action::Request(wish) => {
                    assert!(in_book(wish.key).is_some(), "asked for before it was written down");
                    self.provider.waiting.push(wish);
                }
                Action::TearDown(key) => {
                    assert!(in_book(key).is_some_and(|one| one.stage == ReservationStage::Releasing));
                    assert_ne!(self.used, Some(key), "given back in use");
                    // Found; what comes of a lie is found again.
                    self.marks.unknown.remove(&key);
                    self.provider.tear_down(key);
                }
                Action::List => {
                    let listed = self.provider.listed(self.now);
                    self.provider.answers.push(listed);
                }
                Action::Probe { key, .. } => {
                    self.provider.answers.push(Event::Probed { key, good: self.ends_answer });
                }
                Action::Use { key, .. } => {
                    assert!(
                        in_book(key).is_some_and(|one| one.stage == ReservationStage::Established),
                        "used, not established"
                    );
                    self.used = Some(key);
                }
                Action::StopUsing(key) => assert_eq!(self.used.take(), Some(key)),
                Action::Note(note) => assert!(!note.to_string().is_empty()),
            }
        }
    }

    fn kill(&mut self) {
        self.used = None;
        self.runs += 1;
        let (settings, book) = (self.settings.clone(), self.book.clone());
        self.machine = Lifecycle::restore("alpha→beta", settings, self.runs, book, self.now);
        // Its checks begin anew. A rest goes on.
        self.marks = Marks { rests: self.marks.rests, ..Marks::default() };
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(time);
        self.elapsed += time;
    }

    /// Whoever has the machine wakes it when it wants to be woken.
    fn wait(&mut self, time: Duration, asleep: bool) {
        let until = self.elapsed + time;
        while self.elapsed < until {
            let wake = if asleep { time } else { self.machine.next_wake().since(self.now) };
            self.pass(wake.min(until - self.elapsed));
            self.handle(Event::Tick);
            self.go_on();
        }
    }

    /// Carries out all that is to be done, and what comes of that at once.
    fn go_on(&mut self) {
        self.carry_out(usize::MAX);
        while self.is_prompt && !self.provider.answers.is_empty() {
            self.deliver(0, false, false);
            self.carry_out(usize::MAX);
        }
        self.check();
    }

    fn deliver(&mut self, which: usize, lost: bool, twice: bool) {
        if self.provider.answers.is_empty() {
            return;
        }
        let which = which % self.provider.answers.len();
        let event = self.provider.answers.remove(which);
        if lost {
            return;
        }
        if twice {
            self.handle(event.clone());
            self.carry_out(usize::MAX);
        }
        self.handle(event);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Wait { seconds, asleep } => self.wait(Duration::from_secs(seconds.into()), asleep),
            Step::Jump { seconds } => {
                self.now = self.now - Duration::from_secs(u64::from(seconds));
                // Nothing lasts longer than if it began now.
                self.marks = Marks::default();
                self.handle(Event::Tick);
            }
            Step::Work { hours } => {
                let pending_bytes = u64::from(hours) * 3600 * 100_000_000;
                self.handle(Event::Work { pending_bytes, bytes_per_s: Some(1e8) });
            }
            Step::Wanted(wanted) => self.handle(Event::SetWanted(wanted)),
            Step::Order { minutes } => {
                let until = self.now.plus(MINUTE * minutes);
                self.order(OrderKind::Circuit { mbit: 400, until, replaces: None });
            }
            Step::NoOrder => self.orders.clear(),
            Step::Replace { minutes } => {
                let until = self.now.plus(MINUTE * minutes);
                let replaces = self.used.or(Some(RequestKey(1)));
                let before = std::mem::take(&mut self.orders);
                self.order(OrderKind::Circuit { mbit: 800, until, replaces });
                // What was wanted before is wanted until then.
                self.orders.splice(
                    0..0,
                    before.into_iter().filter(|order| !matches!(order.kind, OrderKind::Release(_))),
                );
            }
            Step::Release => {
                let key = self.book.reservations.last().map_or(RequestKey(1), |one| one.key);
                self.order(OrderKind::Release(key));
            }
            Step::Moved { on_circuit, megabytes, seconds } => {
                let (bytes, during) = (u64::from(megabytes) * 1_000_000, Duration::from_secs(seconds.into()));
                self.handle(Event::Moved { on_circuit, bytes, during });
            }
            Step::Decide { which, how } => self.provider.decide(which, how, self.now),
            Step::Deliver { which, lost, twice } => self.deliver(which, lost, twice),
            Step::End { which, told } => self.end_one(which, told),
            Step::Lie => self.provider.lies += 1,
            Step::Transfer { on_circuit, good } => self.handle(Event::Transfer { on_circuit, good }),
            Step::Users(users) => self.handle(Event::Users(users)),
            Step::Left => self.handle(Event::PredecessorDrained),
            Step::Ends { answer } => self.ends_answer = answer,
            Step::Kill { after } => {
                self.handle(Event::Tick);
                self.carry_out(after);
                self.kill();
                self.handle(Event::Tick);
            }
        }
        self.go_on();
        self.handle(Event::Orders(self.orders.clone()));
        self.go_on();
    }

    /// In place of the one before.
    fn order(&mut self, what: OrderKind) {
        self.last_order += 1;
        self.orders = vec![Order { id: CircuitOrderId(self.last_order), by: "ada".into(), kind: what }];
    }

    fn end_one(&mut self, which: usize, told: bool) {
        let Some(key) = self.provider.held.keys().nth(which % self.provider.held.len().max(1)).copied()
        else {
            return;
        };
        self.provider.held.remove(&key);
        if told {
            let answer = Answer::Lost { detail: "maintenance".into() };
            self.provider.answers.push(Event::Answer { key, answer });
        }
    }

    /// Just after the machine has looked at the time.
    fn check(&mut self) {
        assert_eq!(self.book, self.machine.ledger(), "what is durable is what is known");
        assert!(self.machine.next_wake() > self.now, "it wants to be woken for what it has not done");
        self.check_use();
        self.check_unknown();
        let state = self.machine.state();
        let request = match state {
            State::Requested { since } => Some(since),
            _ => None,
        };
        let same = self.marks.asked.filter(|(of, _)| Some(*of) == request);
        self.marks.asked = same.or(request.map(|since| (since, self.elapsed)));
        let asked = self.marks.asked.map_or(Duration::ZERO, |(_, since)| self.elapsed - since);
        assert!(asked < self.settings.request_timeout, "asked for {asked:?} ago");
        let rest = match state {
            State::Cooldown(rest) => Some(rest),
            _ => None,
        };
        let rests = mark(&mut self.marks.rests, rest.is_some(), self.elapsed);
        let window = self.settings.request_cooldown.max(self.settings.transfer_cooldown);
        assert!(rests < window, "it rests for {rests:?}");
        assert!(rest.is_none_or(|rest| rest.until.since(rest.since) <= window));
    }

    /// Use ends before the circuit does; and soon after that if it ends before its time.
    fn check_use(&mut self) {
        let used = self.used.and_then(|key| self.book.reservations.iter().find(|one| one.key == key));
        assert_eq!(used.is_some(), self.used.is_some(), "what is used is written down");
        let leave = used.and_then(|one| one.expires).map(|at| at - self.settings.expiry_margin);
        assert!(leave.is_none_or(|at| at > self.now), "used until {:?} at {:?}", leave, self.now);
        let is_dead = self.used.is_some_and(|key| !self.provider.is_up(key, self.now));
        let dead = mark(&mut self.marks.dead, is_dead, self.elapsed);
        // What began in the very moment of the list is in the next one.
        assert!(!self.is_prompt || dead < 2 * self.settings.reconciliation_interval, "dead for {dead:?}");
    }

    /// Every reservation is known, or in the provider's next list and given back then.
    fn check_unknown(&mut self) {
        let known = |key: &RequestKey| self.book.reservations.iter().any(|one| one.key == *key);
        let unknown = self.provider.held.keys().filter(|key| !known(key));
        let since = |key: &RequestKey| self.marks.unknown.get(key).copied().unwrap_or(self.elapsed);
        self.marks.unknown = unknown.map(|key| (*key, since(key))).collect();
        for (key, since) in &self.marks.unknown {
            let age = self.elapsed - *since;
            assert!(
                !self.is_prompt || age < self.settings.reconciliation_interval,
                "{key} is leaked for {age:?}"
            );
        }
    }

    /// The world comes to rest and everybody behaves: nothing may be left over.
    fn settle(&mut self) {
        self.ends_answer = true;
        self.provider.lies = 0;
        self.orders.clear();
        self.handle(Event::Orders(Vec::new()));
        self.handle(Event::SetWanted(false));
        self.handle(Event::Work { pending_bytes: 0, bytes_per_s: Some(1e8) });
        self.handle(Event::Users(0));
        // Longer than the longest rest and request, and than circuits if no clock jumps.
        for _ in 0..1400 {
            self.pass(Duration::from_secs(30));
            self.handle(Event::Tick);
            self.carry_out(usize::MAX);
            while !self.provider.waiting.is_empty() {
                self.provider.decide(0, How::Grant { minutes: None }, self.now);
            }
            while !self.provider.answers.is_empty() {
                self.deliver(0, false, false);
                self.carry_out(usize::MAX);
            }
        }
        let state = self.machine.state();
        match state {
            State::Off => {
                assert_eq!((self.provider.held.len(), self.used), (0, None), "a leaked reservation")
            }
            State::Established { used: true, .. } => {
                let held: Vec<_> = self.provider.held.keys().copied().collect();
                assert_eq!(held, Vec::from_iter(self.used), "exactly what is used is held");
            }
            _ => panic!("it does not come to rest: {state:?}"),
        }
        assert_eq!(self.book.cooldown, None);
        assert_eq!(self.book.reservations.len(), self.provider.held.len());
    }
}

#[test]
fn random_runs_leak_nothing_duplicate_nothing_and_overuse_nothing() {
    // `PROPTEST_CASES` asks for more.
    let cases = Config::default().cases.max(LIVES);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let lives = (any::<bool>(), proptest::collection::vec(step(), 1..200));
    runner
        .run(&lives, |(is_prompt, steps)| {
            let mut world = World::new(is_prompt);
            for step in steps {
                world.step(step);
            }
            world.settle();
            // A restart changes nothing of it, if it does not end by itself.
            let (state, book) = (world.machine.state(), world.book.clone());
            world.kill();
            world.settle();
            if book.reservations.iter().all(|one| one.expires.is_none()) {
                prop_assert_eq!((world.machine.state(), &world.book), (state, &book));
            }
            // Whatever there is, its owner can end it.
            world.handle(Event::OwnerEnded);
            world.settle();
            prop_assert_eq!((world.machine.state(), world.book.is_empty()), (State::Off, true));
            Ok(())
        })
        .unwrap();
}
