//! A push seen from the server: the client names files, the engine fetches them over streams that the client
//! offers, and outcomes are returned when the client polls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use longhaul_engine::AttemptOutcome;
use longhaul_model::{Fault, FaultCode, Lfn, Verification};
use parking_lot::{Condvar, Mutex};

use crate::fetch_job::{FetchJob, FetchResult, FileFetch};
use crate::protocol::{
    ITEMS_PER_MESSAGE_MAX, PAGE_BYTES_MAX, PushedFile, ReceiveProgress, ReceivedFile, RelativePath,
};
use crate::remote::escaped_len;
use crate::rename_on_commit::{Destination, MappedStorage};
use crate::site::{Site, Source, TARGET, storage_name};

/// Unfinished files of one job; more are refused as busy.
const FILES_RUNNING_MAX: usize = 20_000;
/// Bytes of a result in a message besides its texts.
const RESULT_OVERHEAD_BYTES: usize = 200;
const IDLE_WAIT: Duration = Duration::from_secs(3_600);

pub(super) struct ReceiveJob {
    to: Mutex<Sender<ReceiveEvent>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    over: bool,
    finished: VecDeque<ReceivedFile>,
    bytes_running: u64,
}

enum ReceiveEvent {
    Files(Vec<PushedFile>),
    Finished(Vec<AttemptOutcome>),
    /// Count the bytes of running files.
    Count,
    /// The client disconnected: stop retrying and end with the last file.
    Drain,
    /// The server shuts down.
    End,
}

impl ReceiveJob {
    pub(super) fn begin(
        site: Arc<Site>,
        landing: Arc<MappedStorage>,
        source: Source,
        verification: Verification,
    ) -> Result<Arc<ReceiveJob>, Fault> {
        let (to, inbox) = channel();
        let receiving = Arc::new(ReceiveJob {
            to: Mutex::new(to.clone()),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let job = site.open_job(move |finished| drop(to.send(ReceiveEvent::Finished(finished))));
        let me = receiving.clone();
        std::thread::Builder::new()
            .name("copy-receive".to_owned())
            .spawn(move || {
                let mut fetching =
                    FetchJob::new(&site, job, landing, source, storage_name(TARGET), verification);
                me.run(&mut fetching, &inbox);
            })
            .map_err(|error| {
                Fault::new(FaultCode::Internal, format!("cannot start a thread: {error}")).with_source(error)
            })?;
        Ok(receiving)
    }

    fn send(&self, message: ReceiveEvent) {
        // The thread may have ended already.
        let _ = self.to.lock().send(message);
    }

    pub(super) fn add_files(&self, files: Vec<PushedFile>) {
        self.send(ReceiveEvent::Files(files));
    }

    pub(super) fn drain(&self) {
        self.send(ReceiveEvent::Drain);
        self.wake_pollers();
    }

    pub(super) fn end(&self) {
        self.send(ReceiveEvent::End);
        self.wake_pollers();
    }

    /// Ends all waiting polls.
    fn wake_pollers(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }

    /// Returns files finished since the last poll; waits for the first.
    pub(super) fn poll(&self, wait_ms: u64) -> ReceiveProgress {
        self.send(ReceiveEvent::Count);
        let end = Instant::now() + Duration::from_millis(wait_ms);
        let mut state = self.state.lock();
        while state.finished.is_empty() && !state.over {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        let mut bytes = 0;
        let mut finished = Vec::new();
        while let Some(next) = state.finished.front() {
            let detail = next.fault.as_ref().map_or(0, |fault| escaped_len(&fault.detail));
            bytes += RESULT_OVERHEAD_BYTES + escaped_len(next.path.as_str()) + detail;
            if bytes > PAGE_BYTES_MAX || finished.len() >= ITEMS_PER_MESSAGE_MAX {
                break;
            }
            finished.extend(state.finished.pop_front());
        }
        ReceiveProgress { finished, bytes_running: state.bytes_running }
    }

    fn run(&self, fetching: &mut FetchJob<'_>, inbox: &Receiver<ReceiveEvent>) {
        let mut draining = false;
        while !(draining && fetching.len() == 0) {
            let wake = fetching
                .next_retry_at()
                .map_or(IDLE_WAIT, |wake| wake.saturating_duration_since(Instant::now()));
            match inbox.recv_timeout(wake) {
                Ok(ReceiveEvent::Files(files)) => self.begin_files(fetching, files),
                Ok(ReceiveEvent::Finished(finished)) => {
                    let ended = fetching.handle_finished(finished);
                    self.push_results(ended.into_iter().map(received_file).collect());
                }
                Ok(ReceiveEvent::Count) => {
                    let running = fetching.running_bytes();
                    self.state.lock().bytes_running = running;
                }
                Ok(ReceiveEvent::Drain) => {
                    draining = true;
                    fetching.drain();
                }
                Ok(ReceiveEvent::End) | Err(RecvTimeoutError::Disconnected) => return fetching.abandon(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let ended = fetching.retry_due(Instant::now());
            self.push_results(ended.into_iter().map(received_file).collect());
        }
    }

    fn begin_files(&self, fetching: &mut FetchJob<'_>, files: Vec<PushedFile>) {
        let mut refused = Vec::new();
        let mut wanted = Vec::with_capacity(files.len());
        for file in files {
            let path = file.path.clone();
            match Lfn::parse(path.as_str()) {
                _ if fetching.len() + wanted.len() >= FILES_RUNNING_MAX => {
                    refused.push((path, Fault::new(FaultCode::Busy, "too many files at once")));
                }
                Err(error) => refused.push((path, Fault::from(error))),
                Ok(name) => {
                    let spot = Destination {
                        path: name.as_str().to_owned(),
                        mode: file.mode,
                        mtime_ns: file.mtime_ns,
                        replace: file.replace,
                    };
                    wanted.push(FileFetch::new(name, file.size, spot));
                }
            }
        }
        self.push_results(fetching.start(wanted).into_iter().map(received_file).collect());
        self.push_results(refused.into_iter().map(|(path, fault)| refused_file(path, fault)).collect());
    }

    fn push_results(&self, finished: Vec<ReceivedFile>) {
        if finished.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.finished.extend(finished);
        drop(state);
        self.changed.notify_all();
    }
}

fn refused_file(path: RelativePath, fault: Fault) -> ReceivedFile {
    ReceivedFile { path, fault: Some(fault), retries: 0, moved: Some(0), resent: 0 }
}

fn received_file(ended: FetchResult) -> ReceivedFile {
    let path = RelativePath::parse(ended.file.name.as_str()).unwrap_or_else(|_| RelativePath::root());
    ReceivedFile {
        path,
        fault: ended.result.err(),
        retries: ended.file.tries,
        moved: (!ended.file.done_by_other).then_some(ended.file.moved),
        resent: ended.file.resent,
    }
}
