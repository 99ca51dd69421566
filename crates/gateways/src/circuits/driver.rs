//! The thread that drives a link's [`Lifecycle`]: carries out its decisions in order, and feeds it the
//! provider's events.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_circuits::{
    Action, Answer, CircuitEndpoints, Event, Explanation, Lifecycle, Note, RequestKey, ReservationLedger,
    State,
};
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::{read_private, write_private};

use super::{CircuitConfig, Provider, open};

/// How often traffic on a circuit is polled: a dead one is left within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Otherwise it sleeps until something is due, or as long as this.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Time to release reservations at a stop. Those that are left are in the state file.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The traffic of the link. Called on the driver's thread.
pub trait Traffic: Send {
    /// Whether the ends answer; may take some seconds.
    fn probe(&mut self, ends: &CircuitEndpoints) -> bool;
    /// Replaces the circuit that is used, if there is one.
    fn use_circuit(&mut self, mbit: u64, ends: &CircuitEndpoints);
    fn stop_using(&mut self);
    fn health(&mut self) -> Health;
    fn record_note(&mut self, note: &Note);
}

/// The health of a circuit.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Streams or transfers on it.
    pub users: usize,
    /// Why the circuit is taken for dead, if it is.
    pub lost: Option<String>,
    /// Nothing is on the one that was used before it.
    pub has_left: bool,
}

enum Command {
    Tell(Event),
    /// The provider has news.
    Look,
    End,
}

/// The link whose circuits are driven, and where their state is kept.
#[derive(Clone, Debug)]
pub struct CircuitContext {
    pub link: String,
    pub book: PathBuf,
    /// Unlike that of any other run.
    pub seed: u64,
}

/// Gives everything back when dropped.
pub struct ProviderDriver {
    commands: Sender<Command>,
    look: Arc<Mutex<Explanation>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ProviderDriver {
    /// Takes up what a run before has left in the book.
    pub fn start(
        place: CircuitContext,
        config: &CircuitConfig,
        clock: Clock,
        traffic: Box<dyn Traffic>,
    ) -> Result<ProviderDriver, Fault> {
        let book = read_book(&place)?;
        let (now, settings) = (clock(), config.settings.clone());
        let (commands, inbox) = channel();
        let waker = commands.clone();
        let wake = move || {
            let _ = waker.send(Command::Look);
        };
        let provider = open(config, &place.link, &place.book, Arc::new(wake))?;
        let machine = Lifecycle::restore(place.link, settings, place.seed, book, now);
        let look = Arc::new(Mutex::new(machine.explain()));
        let (path, shown) = (place.book, look.clone());
        let mut working =
            DriverThread { machine, provider, traffic, clock, path, shown, in_use: None, is_broken: false };
        let (ready, is_ready) = channel::<()>();
        let work = move || {
            working.carry_out();
            drop(ready);
            working.run(&inbox);
        };
        let thread = std::thread::Builder::new().name("circuits".to_owned()).spawn(work);
        let failed = |error| {
            Fault::new(FaultCode::Internal, format!("no thread for circuits: {error}")).with_source(error)
        };
        let thread = Some(thread.map_err(failed)?);
        // Whoever tells of the link now knows what the book had.
        let _ = is_ready.recv();
        Ok(ProviderDriver { commands, look, thread })
    }

    pub fn tell(&self, event: Event) {
        // Its thread ends only with us, or by a panic, after which there are no circuits.
        let _ = self.commands.send(Command::Tell(event));
    }

    /// The state of the link, and why it is so.
    pub fn look(&self) -> Explanation {
        self.look.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for ProviderDriver {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for ProviderDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProviderDriver")
    }
}

/// A book that cannot be read may name what a provider still holds: nothing is asked for until somebody has
/// looked.
fn read_book(place: &CircuitContext) -> Result<ReservationLedger, Fault> {
    if !place.book.exists() {
        return Ok(ReservationLedger::default());
    }
    let text = read_private(&place.book)
        .map_err(|error| Fault::new(FaultCode::StateDirectory, error.to_string()).with_source(error))?;
    serde_json::from_str(&text).map_err(|error| {
        let shown = place.book.display();
        let detail =
            format!("{shown} is no book of circuits ({error}); see what the provider holds, then remove it");
        Fault::new(FaultCode::StateDirectory, detail)
    })
}

struct DriverThread {
    machine: Lifecycle,
    provider: Box<dyn Provider>,
    traffic: Box<dyn Traffic>,
    clock: Clock,
    path: PathBuf,
    shown: Arc<Mutex<Explanation>>,
    in_use: Option<RequestKey>,
    /// The book could not be written: nothing is asked for any more.
    is_broken: bool,
}

impl DriverThread {
    fn run(&mut self, inbox: &Receiver<Command>) {
        let mut ending = None;
        loop {
            self.carry_out();
            *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = self.machine.explain();
            let now = (self.clock)();
            if let Some(since) = ending
                && (self.machine.ledger().reservations.is_empty() || now.since(since) >= RELEASE_TIMEOUT)
            {
                return;
            }
            match inbox.recv_timeout(self.sleep(now)) {
                Ok(Command::Tell(event)) => {
                    // Who came since the last look counts as well, if the circuit is to be given back.
                    self.look();
                    self.machine.handle(event, (self.clock)());
                }
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => {
                    ending.get_or_insert(now);
                    self.machine.handle(Event::OwnerEnded, now);
                }
                Ok(Command::Look) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.look();
        }
    }

    fn sleep(&self, now: Timestamp) -> Duration {
        let due = self.provider.next_news().into_iter().fold(self.machine.next_wake(), Timestamp::min);
        due.since(now).min(if self.is_looked_at() { POLL_INTERVAL } else { SLEEP_MAX })
    }

    /// Whether something may be on a circuit.
    fn is_looked_at(&self) -> bool {
        matches!(self.machine.state(), State::Established { used: true, .. }) || self.machine.is_draining()
    }

    fn look(&mut self) {
        let now = (self.clock)();
        for event in self.provider.news(now) {
            self.machine.handle(event, now);
        }
        if self.is_looked_at() {
            let health = self.traffic.health();
            self.machine.handle(Event::Users(health.users), now);
            if health.has_left {
                self.machine.handle(Event::PredecessorDrained, now);
            }
            if let (Some(key), Some(detail)) = (self.in_use, health.lost) {
                self.machine.handle(Event::Answer { key, answer: Answer::Lost { detail } }, now);
            }
        }
        self.machine.handle(Event::Tick, now);
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.machine.poll() {
            let now = (self.clock)();
            match action {
                Action::Persist(book) => self.keep(&book),
                // A request that is in no book could be forgotten.
                Action::Request(_) if self.is_broken => {}
                Action::Request(wish) => self.provider.request(&wish, now),
                Action::TearDown(key) => self.provider.tear_down(key, now),
                Action::List => self.provider.list(now),
                Action::Probe { key, ends } => {
                    let good = self.traffic.probe(&ends);
                    self.machine.handle(Event::Probed { key, good }, (self.clock)());
                }
                Action::Use { key, mbit, ends } => {
                    self.in_use = Some(key);
                    self.traffic.use_circuit(mbit, &ends);
                }
                Action::StopUsing(_) => {
                    self.in_use = None;
                    self.traffic.stop_using();
                }
                Action::Note(note) => self.traffic.record_note(&note),
            }
        }
    }

    fn keep(&mut self, book: &ReservationLedger) {
        let written = match book.is_empty() {
            true => std::fs::remove_file(&self.path).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error.to_string()),
            }),
            false => serde_json::to_vec(book)
                .map_err(|error| error.to_string())
                .and_then(|text| write_private(&self.path, &text).map_err(|error| error.to_string())),
        };
        self.is_broken = written.is_err();
        if let Err(error) = written {
            tracing::error!(error, "the book of circuits cannot be written: none is asked for");
        }
    }
}
