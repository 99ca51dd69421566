//! The scheduler with a recorder in front (event sourcing): every input and decision passes here, and is
//! recorded if `service.record_dir` is set.
//!
//! A recording is complete or it ends: if the disk cannot follow or there is no room left, it stops with a
//! warning, and what was written is a whole recording of the time until then. The brain waits for none of it.
//! Not here: the form of a line (`scheduler::record`), what a recording is good for (`simulator::replay`).

mod files;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use longhaul_model::{Fault, Timestamp};
use longhaul_network::exchange::Imported;
use longhaul_network::{Knowledge, Observation, ObservationError};
use longhaul_scheduler::record::{self, FORMAT_VERSION, Head, Line, LineKind};
use longhaul_scheduler::{Decision, Event, ImportedKnowledge, Scheduler, Settings};
use longhaul_threads::spawn_worker;
use serde::Serialize;

use crate::kernel::thread_fault;
use files::Files;

/// Bytes in a chunk for the writer; a smaller one leaves whenever the brain is idle.
const CHUNK_BYTES: usize = 128 << 10;
/// Bytes that may wait for a slow disk. Chunks would not bound it: those of an idle brain are small.
const WAITING_BYTES_MAX: u64 = 32 << 20;

/// What pages and metrics show of a recording.
#[derive(Default)]
pub struct Recording {
    pub bytes: AtomicU64,
    /// It began and ended before the service did.
    pub broken: AtomicBool,
}

pub struct Recorded {
    scheduler: Scheduler,
    tape: Option<Tape>,
}

impl Recorded {
    /// `kept`: what is believed of the network, as it was kept.
    pub fn new(settings: Settings, kept: Option<&str>, last_id: u64) -> Self {
        // Beliefs that this version cannot read are learned again.
        let knowledge: Knowledge = kept.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Recorded { scheduler: Scheduler::new(settings, knowledge, last_id), tape: None }
    }

    /// From now on, which is before the scheduler has heard of anything.
    pub fn record(
        &mut self,
        kept: Option<String>,
        last_id: u64,
        (directory, bytes_max): (&Path, u64),
        recording: Arc<Recording>,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let files = Files::begin(directory, bytes_max, now)?;
        tracing::info!(directory = %files.run().display(), "recording what the scheduler hears and decides");
        let (to, chunks) = channel();
        let state = recording.clone();
        let writer = spawn_worker("recorder", move || write(files, &chunks, &state));
        let writer = writer.map_err(|error| thread_fault("recorder", error))?;
        let mut tape =
            Tape { buffer: Vec::new(), number: 0, handed: 0, to: Some(to), writer: Some(writer), recording };
        let head = Head {
            format: FORMAT_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            settings: self.scheduler.settings().clone(),
            last_id,
            knowledge: kept.filter(|text| serde_json::from_str::<Knowledge>(text).is_ok()),
        };
        tape.put(LineKind::Head, now, record::encode(&head));
        self.tape = Some(tape);
        Ok(())
    }

    pub fn handle(&mut self, event: Event, now: Timestamp) {
        let event = self.record_input(LineKind::Event, event, now);
        self.scheduler.handle(event, now);
    }

    pub fn observe(&mut self, observation: Observation, now: Timestamp) -> Result<(), ObservationError> {
        let observation = self.record_input(LineKind::Observation, observation, now);
        self.scheduler.observe(observation, now)
    }

    pub fn learn(&mut self, lesson: ImportedKnowledge, now: Timestamp) -> Result<Imported, Fault> {
        let lesson = self.record_input(LineKind::Knowledge, lesson, now);
        self.scheduler.import_knowledge(&lesson, now)
    }

    pub fn poll_decision(&mut self, now: Timestamp) -> Option<Decision> {
        let decision = self.scheduler.poll_decision(now);
        if let Some(tape) = &mut self.tape {
            tape.put(LineKind::Poll, now, record::encode(&decision));
        }
        decision
    }

    /// Hands what has gathered to the writer.
    pub fn rest(&mut self) {
        if let Some(tape) = &mut self.tape {
            tape.flush();
        }
    }

    /// The recording is whole on disk; knowledge outlives the process.
    pub fn end(mut self) -> Scheduler {
        if let Some(tape) = self.tape.take() {
            tape.end();
        }
        self.scheduler
    }

    /// Records an input, and returns it as a replay will read it, bit by bit.
    fn record_input<T: Serialize + for<'a> serde::Deserialize<'a>>(
        &mut self,
        kind: LineKind,
        thing: T,
        now: Timestamp,
    ) -> T {
        let Some(tape) = &mut self.tape else { return thing };
        match record::round_trip(&thing) {
            Some((body, kept)) => {
                tape.put(kind, now, Some(body));
                kept
            }
            None => {
                tape.put(kind, now, None);
                thing
            }
        }
    }
}

impl Deref for Recorded {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        &self.scheduler
    }
}

/// The brain's end of a recording.
struct Tape {
    buffer: Vec<u8>,
    /// Number of the next line.
    number: u64,
    /// Bytes that the writer has got.
    handed: u64,
    /// None when the recording has ended.
    to: Option<Sender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    recording: Arc<Recording>,
}

impl Tape {
    fn put(&mut self, kind: LineKind, now: Timestamp, body: Option<String>) {
        if self.to.is_none() {
            return;
        }
        let Some(body) = body else {
            // A line left out would make all that follows worthless.
            return self.stop("something happened that a recording cannot hold");
        };
        Line { number: self.number, kind, now, body: &body }.write(&mut self.buffer);
        self.number += 1;
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(to) = self.to.as_ref().filter(|_| !self.buffer.is_empty()) else { return };
        let chunk = std::mem::take(&mut self.buffer);
        self.handed += chunk.len() as u64;
        if self.handed - self.recording.bytes.load(Ordering::Relaxed) > WAITING_BYTES_MAX {
            return self.stop("the disk does not follow");
        }
        // The writer has ended, and said why.
        if to.send(chunk).is_err() {
            self.to = None;
        }
    }

    fn stop(&mut self, why: &str) {
        tracing::warn!(why, "the recording has ended; the next start of the service begins another");
        self.recording.broken.store(true, Ordering::Relaxed);
        self.to = None;
        self.buffer = Vec::new();
    }

    fn end(mut self) {
        self.flush();
        self.to = None;
        drop(self.writer.take().map(JoinHandle::join));
    }
}

fn write(mut files: Files, chunks: &Receiver<Vec<u8>>, recording: &Recording) {
    for chunk in chunks {
        if let Err(why) = files.write(&chunk) {
            tracing::warn!(%why, "the recording has ended; the next start of the service begins another");
            recording.broken.store(true, Ordering::Relaxed);
            break;
        }
        recording.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    }
    if let Err(why) = files.end() {
        tracing::warn!(%why, "the recording may have lost its end");
    }
}
