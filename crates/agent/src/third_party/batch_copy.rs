//! Batches whose files servers copy: each file is opened at its source, copied, and reported or handed to the
//! engine.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use longhaul_engine::{AttemptOutcome, AttemptTimeline, Event, FetchBatch, FetchFile};
use longhaul_model::{Executor, Timestamp};
use longhaul_storage_remote::{FileAccess, Mode, ServerCopyFault};
use tokio::task::JoinSet;

use super::file_calls::ACCESS_FILES_MAX;
use super::file_copy::{CopiedFile, FileCopy, FileSource};
use super::mover::{ServerMoverInner, ServerStorage};
use super::pairs::StoragePair;
use crate::mover::attempt_outcome;

/// The agent that serves the source of a batch.
#[derive(Clone)]
pub(super) enum BatchSource {
    Own(Arc<ServerStorage>),
    /// Another agent, which is asked for access to each file.
    Peer,
}

/// A batch with its two storages.
pub(super) struct ServerBatch {
    pub(super) batch: FetchBatch,
    pub(super) source: BatchSource,
    pub(super) target: Arc<ServerStorage>,
    pub(super) received: Timestamp,
}

/// A file with where it is copied from.
type OpenedFile = (FetchFile, Result<FileSource, ServerCopyFault>);

impl ServerBatch {
    fn pair(&self) -> StoragePair {
        (self.batch.source_storage.clone(), self.batch.target_storage.clone())
    }
}

impl ServerMoverInner {
    /// Has the servers copy the files, as many at once as the target takes.
    pub(super) async fn run_batch(self: Arc<Self>, batch: Arc<ServerBatch>, files: Vec<FetchFile>) {
        let mut running = JoinSet::new();
        let mut left: VecDeque<FetchFile> = files.into();
        let mut opened: VecDeque<OpenedFile> = VecDeque::new();
        loop {
            if opened.is_empty() && !left.is_empty() {
                let next = left.drain(..left.len().min(ACCESS_FILES_MAX)).collect();
                opened = self.open_sources(&batch, next).await.into();
            }
            let Some((file, source)) = opened.pop_front() else { break };
            let Ok(slot) = batch.target.slots.clone().acquire_owned().await else { return };
            if self.storages_of(&batch.batch).is_none() || (self.clock)() > batch.batch.start_by {
                let rest = opened.iter().map(|(file, _)| file).chain(&left).chain([&file]);
                self.hand_over(&batch, rest.map(|file| file.attempt).collect(), batch.batch.start_by).await;
                break;
            }
            let (inner, batch) = (self.clone(), batch.clone());
            running.spawn(async move {
                inner.run_file(&batch, file, source).await;
                drop(slot);
            });
        }
        while running.join_next().await.is_some() {}
    }

    /// Where the files are copied from.
    async fn open_sources(self: &Arc<Self>, batch: &ServerBatch, files: Vec<FetchFile>) -> Vec<OpenedFile> {
        let source = match &batch.source {
            BatchSource::Own(source) => {
                let own = |file| (file, Ok(FileSource::Own(source.clone())));
                return files.into_iter().map(own).collect();
            }
            BatchSource::Peer => self.ask_access(&batch.batch, &files).await,
        };
        match source {
            Ok(given) => {
                let open = |(file, access): (FetchFile, Result<FileAccess, ServerCopyFault>)| {
                    let noted = access.inspect_err(|fault| self.note_fault(&batch.pair(), &file, fault));
                    (file, noted.map(FileSource::Peer))
                };
                files.into_iter().zip(given).map(open).collect()
            }
            Err(fault) => {
                self.note_no_access(batch, &fault);
                files.into_iter().map(|file| (file, Err(fault.clone()))).collect()
            }
        }
    }

    fn note_no_access(&self, batch: &ServerBatch, failed: &ServerCopyFault) {
        let (source, target) = batch.pair();
        tracing::info!(agent = %batch.batch.source_agent, %source, %target, fault = %failed.fault.chain(),
            "servers do not copy these files");
        if failed.is_of_servers {
            self.with_pairs(|pairs| pairs.rest(&batch.pair(), (self.clock)()));
        }
    }

    async fn run_file(
        self: &Arc<Self>,
        batch: &Arc<ServerBatch>,
        file: FetchFile,
        source: Result<FileSource, ServerCopyFault>,
    ) {
        let attempt = file.attempt;
        let source = match source {
            Ok(source) => source,
            Err(_) => {
                return self.hand_over(batch, BTreeSet::from([attempt]), batch.batch.start_by).await;
            }
        };
        let Some(moved) = self.begin(attempt) else { return };
        let started = (self.clock)();
        self.engine.emit(vec![Event::Started { attempt, at: started }]).await;
        let copy = FileCopy {
            source: &source,
            target: &batch.target,
            file: &file,
            scitag: batch.batch.mark.scitag.map(|tag| tag.number().into()),
            moved: &moved,
            times: AttemptTimeline {
                received: batch.received,
                started: Some(started),
                ..AttemptTimeline::default()
            },
        };
        let ended = tokio::select! {
            ended = copy.run(self) => Some(ended),
            () = self.until_unwanted(attempt) => None,
        };
        match ended {
            Some(Ok(copied)) => return self.finish(&batch.pair(), file, copied).await,
            Some(Err(fault)) => self.note_fault(&batch.pair(), &file, &fault),
            None => {}
        }
        let temp = self.temps.name(attempt);
        if let Err(fault) = batch.target.server.remove_copy(&temp).await {
            tracing::info!(%attempt, %temp, fault = %fault.chain(), "a temporary file could not be removed");
        }
        // It has begun here: `start_by` does not apply any more.
        self.hand_over(batch, BTreeSet::from([attempt]), Timestamp::MAX).await;
    }

    fn note_fault(&self, pair: &StoragePair, file: &FetchFile, failed: &ServerCopyFault) {
        let (source, target) = pair;
        tracing::info!(
            attempt = %file.attempt, transfer = %file.transfer, %source, %target,
            fault = %failed.fault.chain(), "the servers did not copy a file; the engine does"
        );
        let now = (self.clock)();
        if failed.is_of_servers && self.with_pairs(|pairs| pairs.note_refused(pair, now)) {
            tracing::warn!(%source, %target, fault = %failed.fault.chain(),
                "these servers do not copy between themselves; they are asked again in ten minutes");
        }
    }

    async fn finish(&self, pair: &StoragePair, file: FetchFile, copied: CopiedFile) {
        if !self.end(pair, &file) {
            return;
        }
        tracing::info!(
            attempt = %file.attempt, transfer = %file.transfer, source = %pair.0, target = %pair.1,
            mode = %copied.mode, "the servers copied a file between themselves"
        );
        let executor = match copied.mode {
            Mode::Pull => Executor::TargetServer,
            Mode::Push => Executor::SourceServer,
            Mode::Stream => Executor::Engines,
        };
        let outcome = attempt_outcome(&file, Ok(copied.success), copied.times);
        let outcome = AttemptOutcome { executor: Some(executor), ..outcome };
        self.engine.emit(vec![Event::Finished(outcome)]).await;
    }
}
