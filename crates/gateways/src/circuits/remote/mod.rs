//! Remote providers: drives a [`Dialogue`] over HTTP on a thread of its own, so that its owner never blocks.

mod calls;
mod dialogue;
mod listener;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use longhaul_circuits::{CircuitRequest, Event, RequestKey};
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::{read_private, write_private};
use tokio::runtime::Runtime;

use super::{Provider, Wake};
pub(crate) use calls::{Caller, Trust};
pub(crate) use dialogue::{Call, CallId, Dialogue, HttpAnswer, Names, Step, poll_delay};
pub(crate) use listener::Acknowledge;

/// Callbacks and answers that wait to be looked at.
enum Input {
    Heard(CallId, Result<HttpAnswer, Fault>),
    Called(String),
}

/// The queue for inputs from other threads.
#[derive(Clone)]
struct Inbox {
    sender: Sender<Input>,
    wake: Wake,
}

impl Inbox {
    fn put(&self, input: Input) {
        // Nobody listens any more only when all ends.
        let _ = self.sender.send(input);
        (self.wake)();
    }
}

/// The context in which a dialogue starts.
pub(crate) struct Ground {
    runtime: Runtime,
    inbox: Inbox,
    outbox: Receiver<Input>,
    names: PathBuf,
}

impl Ground {
    /// `names` is where the provider's names of our requests are kept.
    pub(crate) fn new(names: PathBuf, wake: Wake) -> Result<Ground, Fault> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("circuit calls")
            .enable_all()
            .build()
            .map_err(|error| {
                Fault::new(FaultCode::Internal, format!("no thread for circuits: {error}")).with_source(error)
            })?;
        let (sender, outbox) = channel();
        Ok(Ground { runtime, inbox: Inbox { sender, wake }, outbox, names })
    }

    pub(crate) fn read_names(&self) -> Result<Names, Fault> {
        read_names(&self.names)
    }

    /// Takes calls of the provider at `address`; returns the real one, whose port may have been chosen.
    pub(crate) fn listen(&self, address: SocketAddr, acknowledge: Acknowledge) -> Result<SocketAddr, Fault> {
        let _inside = self.runtime.enter();
        listener::listen(address, acknowledge, self.inbox.clone())
    }

    pub(crate) fn start(self, caller: Caller, dialogue: Box<dyn Dialogue>) -> Remote {
        let Ground { runtime, inbox, outbox, names } = self;
        Remote { dialogue, caller, runtime: Some(runtime), inbox, outbox, names, news: VecDeque::new() }
    }
}

/// Names that cannot be read may be all that is known of what a provider holds.
fn read_names(path: &Path) -> Result<Names, Fault> {
    if !path.exists() {
        return Ok(Names::new());
    }
    let text = read_private(path)
        .map_err(|error| Fault::new(FaultCode::StateDirectory, error.to_string()).with_source(error))?;
    serde_json::from_str(&text).map_err(|error| {
        let shown = path.display();
        let detail = format!(
            "{shown} holds no names of reservations ({error}); see what the provider holds, then remove it"
        );
        Fault::new(FaultCode::StateDirectory, detail)
    })
}

pub(crate) struct Remote {
    dialogue: Box<dyn Dialogue>,
    caller: Caller,
    runtime: Option<Runtime>,
    inbox: Inbox,
    outbox: Receiver<Input>,
    names: PathBuf,
    news: VecDeque<Event>,
}

impl Remote {
    fn carry_out(&mut self) {
        while let Some(step) = self.dialogue.poll() {
            match step {
                Step::PersistNames(names) => self.persist_names(&names),
                Step::Emit(event) => self.news.push_back(event),
                Step::Call(id, call) => {
                    let (caller, inbox) = (self.caller.clone(), self.inbox.clone());
                    if let Some(runtime) = &self.runtime {
                        runtime.spawn(async move { inbox.put(Input::Heard(id, caller.call(call).await)) });
                    }
                }
            }
        }
    }

    fn persist_names(&self, names: &Names) {
        let written = match names.is_empty() {
            true => std::fs::remove_file(&self.names).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error.to_string()),
            }),
            false => serde_json::to_vec(names)
                .map_err(|error| error.to_string())
                .and_then(|text| write_private(&self.names, &text).map_err(|error| error.to_string())),
        };
        if let Err(error) = written {
            tracing::error!(error, "the provider's names of reservations cannot be written");
        }
    }
}

impl Provider for Remote {
    fn request(&mut self, wish: &CircuitRequest, now: Timestamp) {
        self.dialogue.request(wish, now);
        self.carry_out();
    }

    fn tear_down(&mut self, key: RequestKey, now: Timestamp) {
        self.dialogue.tear_down(key, now);
        self.carry_out();
    }

    fn list(&mut self, now: Timestamp) {
        self.dialogue.list(now);
        self.carry_out();
    }

    fn news(&mut self, now: Timestamp) -> Vec<Event> {
        while let Ok(input) = self.outbox.try_recv() {
            match input {
                Input::Heard(id, answer) => self.dialogue.heard(id, answer, now),
                Input::Called(body) => self.dialogue.called(&body, now),
            }
        }
        self.dialogue.tick(now);
        self.carry_out();
        self.news.drain(..).collect()
    }

    fn next_news(&self) -> Option<Timestamp> {
        match self.news.is_empty() {
            true => self.dialogue.next_wake(),
            false => Some(Timestamp::ZERO),
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
