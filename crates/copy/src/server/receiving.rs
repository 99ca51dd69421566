//! Files that a client puts here: the client says which, the engine fetches them over streams that the client
//! offers, and the ends are told when the client asks.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use longhaul_engine::Finished;
use longhaul_model::{Fault, FaultCode, Lfn, Verification};

use crate::fetching::{Ended, Fetching, Wanted};
use crate::landing::{Landing, Spot};
use crate::protocol::{ITEMS_MAX, PAGE_BYTES_MAX, Progress, PushedFile, Received, Relative};
use crate::remote::escaped_len;
use crate::site::{Site, Source, TARGET, storage_name};
use crate::sync::lock;

/// Files of one job that are not finished; a client that sends more is told to wait by a fault of theirs.
const UNDER_WAY_MAX: usize = 20_000;
/// What a result takes in a message beside its texts.
const RESULT_BYTES: usize = 200;
const IDLE: Duration = Duration::from_secs(3_600);

pub(super) struct Receiving {
    to: Mutex<Sender<Inbox>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    over: bool,
    finished: VecDeque<Received>,
    bytes_running: u64,
}

enum Inbox {
    Files(Vec<PushedFile>),
    Finished(Vec<Finished>),
    /// How far are the files under way?
    Count,
    /// The client has gone: no more tries, and the end with the last file.
    Drain,
    /// The server ends.
    End,
}

impl Receiving {
    pub(super) fn begin(
        site: Arc<Site>,
        landing: Arc<Landing>,
        source: Source,
        verification: Verification,
    ) -> Result<Arc<Receiving>, Fault> {
        let (to, inbox) = channel();
        let receiving = Arc::new(Receiving {
            to: Mutex::new(to.clone()),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let job = site.open_job(move |finished| drop(to.send(Inbox::Finished(finished))));
        let me = receiving.clone();
        std::thread::Builder::new()
            .name("copy-receive".to_owned())
            .spawn(move || {
                let mut fetching =
                    Fetching::new(&site, job, landing, source, storage_name(TARGET), verification);
                me.run(&mut fetching, &inbox);
            })
            .map_err(|error| Fault::new(FaultCode::Internal, format!("no thread can be started: {error}")))?;
        Ok(receiving)
    }

    fn send(&self, message: Inbox) {
        // The thread may be at its end already.
        let _ = lock(&self.to).send(message);
    }

    pub(super) fn take(&self, files: Vec<PushedFile>) {
        self.send(Inbox::Files(files));
    }

    pub(super) fn drain(&self) {
        self.send(Inbox::Drain);
        self.over();
    }

    pub(super) fn end(&self) {
        self.send(Inbox::End);
        self.over();
    }

    /// Nobody waits for news any more.
    fn over(&self) {
        lock(&self.state).over = true;
        self.changed.notify_all();
    }

    /// What has finished since the last time; waits for something.
    pub(super) fn poll(&self, wait_ms: u64) -> Progress {
        self.send(Inbox::Count);
        let end = Instant::now() + Duration::from_millis(wait_ms);
        let mut state = lock(&self.state);
        while state.finished.is_empty() && !state.over {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
        let mut bytes = 0;
        let mut finished = Vec::new();
        while let Some(next) = state.finished.front() {
            let detail = next.fault.as_ref().map_or(0, |fault| escaped_len(&fault.detail));
            bytes += RESULT_BYTES + escaped_len(next.path.as_str()) + detail;
            if bytes > PAGE_BYTES_MAX || finished.len() >= ITEMS_MAX {
                break;
            }
            finished.extend(state.finished.pop_front());
        }
        Progress { finished, bytes_running: state.bytes_running }
    }

    fn run(&self, fetching: &mut Fetching<'_>, inbox: &Receiver<Inbox>) {
        let mut draining = false;
        while !(draining && fetching.len() == 0) {
            let wake =
                fetching.next_wake().map_or(IDLE, |wake| wake.saturating_duration_since(Instant::now()));
            match inbox.recv_timeout(wake) {
                Ok(Inbox::Files(files)) => self.begin_files(fetching, files),
                Ok(Inbox::Finished(finished)) => {
                    let ended = fetching.told(finished);
                    self.tell(ended.into_iter().map(received).collect());
                }
                Ok(Inbox::Count) => {
                    let running = fetching.running_bytes();
                    lock(&self.state).bytes_running = running;
                }
                Ok(Inbox::Drain) => {
                    draining = true;
                    fetching.drain();
                }
                Ok(Inbox::End) | Err(RecvTimeoutError::Disconnected) => return fetching.abandon(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let ended = fetching.wake(Instant::now());
            self.tell(ended.into_iter().map(received).collect());
        }
    }

    fn begin_files(&self, fetching: &mut Fetching<'_>, files: Vec<PushedFile>) {
        let mut refused = Vec::new();
        let mut wanted = Vec::with_capacity(files.len());
        for file in files {
            let path = file.path.clone();
            match Lfn::parse(path.as_str()) {
                _ if fetching.len() + wanted.len() >= UNDER_WAY_MAX => {
                    refused.push((path, Fault::new(FaultCode::Busy, "too many files at once")));
                }
                Err(error) => refused.push((path, Fault::new(FaultCode::BadName, error.to_string()))),
                Ok(name) => {
                    let spot = Spot {
                        path: name.as_str().to_owned(),
                        mode: file.mode,
                        mtime_ns: file.mtime_ns,
                        replace: file.replace,
                    };
                    wanted.push(Wanted::new(name, file.size, spot));
                }
            }
        }
        self.tell(fetching.begin(wanted).into_iter().map(received).collect());
        self.tell(refused.into_iter().map(|(path, fault)| of_fault(path, fault)).collect());
    }

    fn tell(&self, finished: Vec<Received>) {
        if finished.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        state.finished.extend(finished);
        drop(state);
        self.changed.notify_all();
    }
}

fn of_fault(path: Relative, fault: Fault) -> Received {
    Received { path, fault: Some(fault), retries: 0, moved: Some(0), resent: 0 }
}

fn received(ended: Ended) -> Received {
    let path = Relative::parse(ended.wanted.name.as_str()).unwrap_or_else(|_| Relative::root());
    Received {
        path,
        fault: ended.result.err(),
        retries: ended.wanted.tries,
        moved: (!ended.wanted.by_another).then_some(ended.wanted.moved),
        resent: ended.wanted.resent,
    }
}
