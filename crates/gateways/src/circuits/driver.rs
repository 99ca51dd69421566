//! The thread that drives a link's [`Lifecycle`]: carries out its decisions in order, and feeds it the
//! provider's events.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use longhaul_circuits::{
    Action, Answer, CircuitEndpoints, Event, Explanation, Lifecycle, Note, RequestKey, ReservationLedger,
    State,
};
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::{read_private, write_private};
use longhaul_threads::spawn_worker;
use parking_lot::Mutex;

use super::{CircuitConfig, Provider, open};

/// How often the traffic on a circuit is polled, so that a dead circuit is left within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Longest sleep while no circuit is in use and nothing is due.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Time to release reservations at a stop. The ledger keeps those that remain.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The traffic of the link. The driver's thread calls it.
pub trait Traffic: Send {
    /// Whether the ends answer. May take some seconds.
    fn probe(&mut self, ends: &CircuitEndpoints) -> bool;
    /// Moves the traffic to this circuit, from the current one if there is one.
    fn use_circuit(&mut self, mbit: u64, ends: &CircuitEndpoints);
    fn stop_using(&mut self);
    fn health(&mut self) -> Health;
    fn record_note(&mut self, note: &Note);
}

/// The health of a circuit.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Streams or transfers on the circuit.
    pub users: usize,
    /// Why the circuit is considered dead, if it is.
    pub lost: Option<String>,
    /// The previous circuit carries nothing any more.
    pub has_left: bool,
}

enum Command {
    Handle(Event),
    /// The provider has news; wakes the thread.
    Wake,
    End,
}

/// The link whose circuits are driven, and the file that holds their state.
#[derive(Clone, Debug)]
pub struct CircuitContext {
    pub link: String,
    pub ledger_path: PathBuf,
    /// Differs between runs.
    pub seed: u64,
}

/// The handle of a link's driver thread. Dropping it releases all reservations.
pub struct ProviderDriver {
    commands: Sender<Command>,
    explanation: Arc<Mutex<Explanation>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ProviderDriver {
    /// Continues from the ledger that an earlier run left.
    pub fn start(
        context: CircuitContext,
        config: &CircuitConfig,
        clock: Clock,
        traffic: Box<dyn Traffic>,
    ) -> Result<ProviderDriver, Fault> {
        let ledger = read_ledger(&context)?;
        let (now, settings) = (clock(), config.settings.clone());
        let (commands, inbox) = channel();
        let waker = commands.clone();
        let wake = move || {
            let _ = waker.send(Command::Wake);
        };
        let provider = open(config, &context.link, &context.ledger_path, Arc::new(wake))?;
        let machine = Lifecycle::restore(context.link, settings, context.seed, ledger, now);
        let look = Arc::new(Mutex::new(machine.explain()));
        let (path, shown) = (context.ledger_path, look.clone());
        let mut working = DriverThread {
            machine,
            provider,
            traffic,
            clock,
            path,
            explanation: shown,
            in_use: None,
            is_broken: false,
        };
        let (ready, is_ready) = channel::<()>();
        let work = move || {
            working.carry_out();
            drop(ready);
            working.run(&inbox);
        };
        let thread = spawn_worker("circuits", work);
        let failed = |error| {
            Fault::new(FaultCode::Internal, format!("no thread for circuits: {error}")).with_source(error)
        };
        let thread = Some(thread.map_err(failed)?);
        // From here on `explanation` includes what the ledger holds.
        let _ = is_ready.recv();
        Ok(ProviderDriver { commands, explanation: look, thread })
    }

    pub fn send_event(&self, event: Event) {
        // The thread ends only with this handle.
        let _ = self.commands.send(Command::Handle(event));
    }

    /// The state of the link, and why it is so.
    pub fn explanation(&self) -> Explanation {
        self.explanation.lock().clone()
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

/// An unreadable ledger may name what a provider still holds, so nothing is requested until an operator has
/// checked.
fn read_ledger(context: &CircuitContext) -> Result<ReservationLedger, Fault> {
    if !context.ledger_path.exists() {
        return Ok(ReservationLedger::default());
    }
    let text = read_private(&context.ledger_path)
        .map_err(|error| Fault::new(FaultCode::StateDirectory, error.to_string()).with_source(error))?;
    serde_json::from_str(&text).map_err(|error| {
        let shown = context.ledger_path.display();
        let detail = format!(
            "{shown} is no ledger of circuits ({error}): check what the provider holds, then remove the file"
        );
        Fault::new(FaultCode::StateDirectory, detail)
    })
}

struct DriverThread {
    machine: Lifecycle,
    provider: Box<dyn Provider>,
    traffic: Box<dyn Traffic>,
    clock: Clock,
    path: PathBuf,
    explanation: Arc<Mutex<Explanation>>,
    in_use: Option<RequestKey>,
    /// The ledger could not be written, so no more requests are made.
    is_broken: bool,
}

impl DriverThread {
    fn run(&mut self, inbox: &Receiver<Command>) {
        let mut ending = None;
        loop {
            self.carry_out();
            *self.explanation.lock() = self.machine.explain();
            let now = (self.clock)();
            if let Some(since) = ending
                && (self.machine.ledger().reservations.is_empty() || now.since(since) >= RELEASE_TIMEOUT)
            {
                return;
            }
            match inbox.recv_timeout(self.sleep(now)) {
                Ok(Command::Handle(event)) => {
                    // Count users that came since the last poll too: the event may release the circuit.
                    self.process_news();
                    self.machine.handle(event, (self.clock)());
                }
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => {
                    ending.get_or_insert(now);
                    self.machine.handle(Event::OwnerEnded, now);
                }
                Ok(Command::Wake) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.process_news();
        }
    }

    fn sleep(&self, now: Timestamp) -> Duration {
        let due = self.provider.next_news().into_iter().fold(self.machine.next_wake(), Timestamp::min);
        due.since(now).min(if self.is_polled() { POLL_INTERVAL } else { SLEEP_MAX })
    }

    /// Whether something may be on a circuit.
    fn is_polled(&self) -> bool {
        matches!(self.machine.state(), State::Established { used: true, .. }) || self.machine.is_draining()
    }

    fn process_news(&mut self) {
        let now = (self.clock)();
        for event in self.provider.news(now) {
            self.machine.handle(event, now);
        }
        if self.is_polled() {
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
                Action::Persist(ledger) => self.persist(&ledger),
                // A request that is not in the ledger could be forgotten.
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

    fn persist(&mut self, ledger: &ReservationLedger) {
        let written = match ledger.is_empty() {
            true => std::fs::remove_file(&self.path).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error.to_string()),
            }),
            false => serde_json::to_vec(ledger)
                .map_err(|error| error.to_string())
                .and_then(|text| write_private(&self.path, &text).map_err(|error| error.to_string())),
        };
        self.is_broken = written.is_err();
        if let Err(error) = written {
            tracing::error!(error, "cannot write the ledger of circuits: requesting no more circuits");
        }
    }
}
