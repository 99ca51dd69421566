//! One mover command: some files of one source, from leases to outcomes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_engine::{AttemptOutcome, AttemptTimeline, Event, FetchFile, Success};
use longhaul_model::{
    AgentId, AttemptId, CircuitUse, Executor, Fault, FaultCode, Pfn, StorageName, Timestamp,
};
use longhaul_storage::{Identity, Storage, TempName};

use super::command_circuits::at_host;
use super::commit::{self, PresentFile, WrittenFile};
use super::mover::{CommandMoverInner, StorageCommand};
use super::spool::{FilePair, Spool, Verdict};
use crate::command::{self, CommandExit, CommandSpec};
use crate::mover::attempt_outcome;

/// The files that one command fetches.
pub(super) struct CommandJob {
    pub(super) source: StorageName,
    pub(super) source_agent: AgentId,
    pub(super) circuits: CircuitUse,
    pub(super) target: StorageName,
    pub(super) start_by: Timestamp,
    pub(super) received: Timestamp,
    pub(super) files: Vec<FetchFile>,
}

/// A file of a running command.
struct JobFile {
    file: FetchFile,
    at: Pfn,
    temp: TempName,
    /// The damaged file that the commit may replace.
    replaces: Option<Identity>,
    pair: FilePair,
}

/// A prepared command with its files and spool.
struct PreparedCommand {
    items: Vec<JobFile>,
    spool: Spool,
    by_circuit: Option<CircuitUseGuard>,
}

/// Use of the circuit from a source, which is not released meanwhile.
struct CircuitUseGuard {
    mover: Arc<CommandMoverInner>,
    source: AgentId,
    /// Our address on it.
    local: Option<IpAddr>,
    /// Bytes that arrived; none if the command was abandoned, which says nothing about the circuit.
    bytes: Option<u64>,
}

impl CircuitUseGuard {
    fn begin(mover: &Arc<CommandMoverInner>, source: AgentId) -> Option<CircuitUseGuard> {
        let local = mover.circuits(|circuits| circuits.begin(source))?;
        Some(CircuitUseGuard { mover: mover.clone(), source, local, bytes: None })
    }
}

impl Drop for CircuitUseGuard {
    fn drop(&mut self) {
        self.mover.circuits(|circuits| circuits.end(self.source, self.bytes));
    }
}

/// Waits for a slot, runs the command, and completes when each file has an end or is not wanted any more.
pub(super) async fn run(mover: Arc<CommandMoverInner>, job: CommandJob) {
    let Some(of) = mover.storage_command(&job.target) else { return };
    let Ok(_slot) = of.slots.acquire().await else { return };
    let started = (mover.clock)();
    let (all, times) =
        (job.files.clone(), AttemptTimeline { received: job.received, ..AttemptTimeline::default() });
    let begun = {
        let (mover, job) = (mover.clone(), job);
        blocking(move || prepare(&mover, job, started)).await
    };
    let PreparedCommand { items, spool, mut by_circuit } = match begun {
        Ok(Some(begun)) => begun,
        Ok(None) => return,
        // Files that have ended already are not reported twice.
        Err(fault) => return give_up(mover.clone(), all, fault, times).await,
    };
    let attempts: Vec<AttemptId> = items.iter().map(|item| item.file.attempt).collect();
    let times = AttemptTimeline { started: Some(started), ..times };
    let ended = tokio::select! {
        ended = run_command(&mover, of, &spool, by_circuit.as_ref()) => Some(ended),
        () = mover.until_unwanted(&attempts) => None,
    };
    let end = mover.clone();
    match blocking(move || finish(&end, &items, &spool, ended, times)).await {
        Ok(bytes) => by_circuit.iter_mut().for_each(|by_circuit| by_circuit.bytes = bytes),
        Err(fault) => give_up(mover.clone(), all, fault, times).await,
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| {
        Fault::new(FaultCode::Internal, format!("a step of a mover's command: {error}")).with_source(error)
    })
}

async fn give_up(mover: Arc<CommandMoverInner>, files: Vec<FetchFile>, fault: Fault, times: AttemptTimeline) {
    let ended = files.iter().map(|file| attempt_outcome(file, Err(fault.clone()), times)).collect();
    let told = blocking(move || mover.finish_attempts(ended)).await;
    if let Err(fault) = told {
        tracing::error!(fault = %fault.chain(), "ends of attempts could not be reported");
    }
}

/// Inspects each target, reports files that end here, and writes the copyjob for the others. None if there
/// are none.
fn prepare(mover: &Arc<CommandMoverInner>, job: CommandJob, started: Timestamp) -> Option<PreparedCommand> {
    let of = mover.storage_command(&job.target)?;
    let names = of.config.source(&job.source)?;
    let name = names.names_for_target(job.target.as_str());
    let late = started > job.start_by;
    let files: Vec<FetchFile> = job.files.into_iter().filter(|file| mover.is_wanted(file.attempt)).collect();
    if !late {
        mover.emit(files.iter().map(|file| Event::Started { attempt: file.attempt, at: started }).collect());
    }
    let times = AttemptTimeline {
        received: job.received,
        started: (!late).then_some(started),
        ..AttemptTimeline::default()
    };
    let (mut items, mut ended) = (Vec::new(), Vec::new());
    for file in files {
        let found = match late {
            true => Err(Fault::new(FaultCode::LeaseExpired, format!("it had to begin by {}", job.start_by))),
            false => inspect_target(mover, of, &file).and_then(|found| Ok((found, name(&file.lfn)?))),
        };
        match found {
            Ok((TargetFile::Present(success), _)) => ended.push(attempt_outcome(&file, Ok(success), times)),
            Ok((TargetFile::Missing { at, temp, path, replaces }, source)) => {
                items.push(JobFile { file, at, temp, replaces, pair: (source, path) });
            }
            Err(fault) => ended.push(attempt_outcome(&file, Err(fault), times)),
        }
    }
    if items.is_empty() {
        mover.finish_attempts(ended);
        return None;
    }
    let on_circuit = names.on_circuit.as_ref().filter(|_| job.circuits != CircuitUse::Never);
    let by_circuit = on_circuit.and_then(|_| CircuitUseGuard::begin(mover, job.source_agent));
    // All files of a command take the same path.
    if let (Some(host), true) = (on_circuit, by_circuit.is_some()) {
        items.iter_mut().for_each(|item| item.pair.0 = at_host(&item.pair.0, host));
    }
    let bytes = items.iter().map(|item| item.file.size).fold(0u64, u64::saturating_add);
    let spool = check_space(&*of.export.storage, bytes).and_then(|()| {
        let pairs: Vec<FilePair> = items.iter().map(|item| item.pair.clone()).collect();
        Spool::create(&mover.spool, mover.next_run(), &pairs)
    });
    match spool {
        Ok(spool) => {
            mover.finish_attempts(ended);
            items
                .iter()
                .for_each(|item| mover.set_written_path(item.file.attempt, item.pair.1.clone().into()));
            Some(PreparedCommand { items, spool, by_circuit })
        }
        Err(fault) => {
            ended.extend(items.iter().map(|item| attempt_outcome(&item.file, Err(fault.clone()), times)));
            mover.finish_attempts(ended);
            None
        }
    }
}

enum TargetFile {
    Present(Success),
    Missing {
        at: Pfn,
        temp: TempName,
        path: String,
        /// The damaged file that the commit may replace.
        replaces: Option<Identity>,
    },
}

fn inspect_target(
    mover: &CommandMoverInner,
    of: &StorageCommand,
    file: &FetchFile,
) -> Result<TargetFile, Fault> {
    let storage = &*of.export.storage;
    let at = of.export.rules.to_pfn(storage.name(), &file.lfn);
    let at = at?;
    if !storage.capabilities().writable {
        let detail = format!("{} is exported for reading only", storage.name());
        return Err(Fault::new(FaultCode::TargetReadOnly, detail));
    }
    if file.digests.is_empty() {
        let detail = format!(
            "the catalog has no digest of {}, and a mover command's claim is not enough",
            file.lfn.shown()
        );
        return Err(Fault::new(FaultCode::MoverFailed, detail).retrying(longhaul_model::Retry::Never));
    }
    let replaces = match commit::find_present(storage, &at, file, &mover.stop)? {
        PresentFile::Right(success) => return Ok(TargetFile::Present(success)),
        PresentFile::Damaged(identity) => Some(identity),
        PresentFile::None => None,
    };
    let temp = mover.temps.name(file.attempt);
    storage.remove_temp(&temp)?;
    let path = storage.temp_path(&temp).and_then(|path| path.into_os_string().into_string().ok());
    let path = path.ok_or_else(|| {
        Fault::new(
            FaultCode::TargetWrite,
            "the storage's work directory has no path that can be written down",
        )
    })?;
    Ok(TargetFile::Missing { at, temp, path, replaces })
}

/// Notices a full storage before anything is sent.
fn check_space(storage: &dyn Storage, bytes: u64) -> Result<(), Fault> {
    let free = storage.space()?.free_bytes;
    if bytes > free {
        let detail = format!("{bytes} bytes are to come to {}, {free} are free", storage.name());
        return Err(Fault::new(FaultCode::TargetFull, detail));
    }
    Ok(())
}

async fn run_command(
    mover: &CommandMoverInner,
    of: &StorageCommand,
    spool: &Spool,
    by_circuit: Option<&CircuitUseGuard>,
) -> Result<CommandExit, Fault> {
    let (copyjob, report) = (spool.copyjob(), spool.report());
    let words = of.config.words(&copyjob.to_string_lossy(), &report.to_string_lossy());
    let limit = mover.bytes_per_s().map(|limit| ("LONGHAUL_BYTES_PER_S", limit.to_string()));
    let local = by_circuit.and_then(|by_circuit| by_circuit.local);
    let local = local.map(|local| ("LONGHAUL_CIRCUIT_ADDRESS", local.to_string()));
    let told: Vec<(&str, String)> = limit.into_iter().chain(local).collect();
    let time = Duration::from_secs(of.config.timeout_s.into());
    let failure = Some(FaultCode::MoverFailed);
    command::run(CommandSpec {
        program: &words,
        environment: &told,
        timeout: time,
        failure_code: failure,
        ..CommandSpec::default()
    })
    .await
}

/// Reports the result of each file and returns the bytes that arrived. `ended` is none if no file is wanted
/// any more.
fn finish(
    mover: &CommandMoverInner,
    items: &[JobFile],
    spool: &Spool,
    ended: Option<Result<CommandExit, Fault>>,
    times: AttemptTimeline,
) -> Option<u64> {
    let of = items.first().and_then(|item| mover.storage_command(&item.at.storage))?;
    let (storage, mut bytes) = (&*of.export.storage, None);
    if let Some(ended) = ended {
        let times = AttemptTimeline { last_byte: Some((mover.clock)()), ..times };
        let results = results(storage, items, spool, &ended, mover);
        let told = items.iter().zip(results).map(|(item, result)| finished_file(mover, item, result, times));
        let told: Vec<AttemptOutcome> = told.collect();
        bytes = Some(told.iter().map(|one| one.bytes_moved).sum());
        mover.finish_attempts(told);
    }
    // A committed file has no temporary name any more; of the rest nothing is kept.
    for item in items {
        if let Err(fault) = storage.remove_temp(&item.temp) {
            tracing::warn!(temp = %item.temp, fault = %fault.chain(),
                "a temporary file could not be removed");
        }
    }
    bytes
}

fn finished_file(
    mover: &CommandMoverInner,
    item: &JobFile,
    result: Result<Success, Fault>,
    times: AttemptTimeline,
) -> AttemptOutcome {
    let committed = result.is_ok().then(|| (mover.clock)());
    let one = attempt_outcome(&item.file, result, AttemptTimeline { committed, ..times });
    let one = AttemptOutcome { executor: Some(Executor::Command), ..one };
    tracing::debug!(
        attempt = %one.attempt, transfer = %one.transfer, lfn = %item.file.lfn, arrived = one.result.is_ok(),
        "a mover command finished a file"
    );
    one
}

fn results(
    storage: &dyn Storage,
    items: &[JobFile],
    spool: &Spool,
    ended: &Result<CommandExit, Fault>,
    mover: &CommandMoverInner,
) -> Vec<Result<Success, Fault>> {
    let pairs: Vec<FilePair> = items.iter().map(|item| item.pair.clone()).collect();
    let verdicts: Vec<Result<Verdict, String>> = match spool.verdicts(&pairs) {
        Ok(verdicts) => verdicts.into_iter().map(Ok).collect(),
        Err(why) => vec![Err(why); items.len()],
    };
    // Results that it reported before it was killed count too.
    let said: Vec<Result<(), Fault>> =
        items.iter().zip(verdicts).map(|(item, verdict)| judge(item, verdict, ended)).collect();
    let done =
        items.iter().zip(&said).filter(|(item, said)| said.is_ok() && mover.is_wanted(item.file.attempt));
    let arrived: Vec<WrittenFile<'_>> = done
        .map(|(item, _)| WrittenFile {
            file: &item.file,
            temp: &item.temp,
            at: &item.at,
            replaces: item.replaces.clone(),
        })
        .collect();
    let mut landed: BTreeMap<AttemptId, Result<Success, Fault>> = arrived
        .iter()
        .map(|one| one.file.attempt)
        .zip(commit::verify_and_commit(storage, &arrived, &mover.stop))
        .collect();
    let gone = || Err(Fault::new(FaultCode::Cancelled, "it is not wanted any more"));
    let mut of = |item: &JobFile| landed.remove(&item.file.attempt).unwrap_or_else(gone);
    items.iter().zip(said).map(|(item, said)| said.and_then(|()| of(item))).collect()
}

/// The report's verdict on a file; where it has none, how the command ended.
fn judge(
    item: &JobFile,
    verdict: Result<Verdict, String>,
    ended: &Result<CommandExit, Fault>,
) -> Result<(), Fault> {
    let lfn = item.file.lfn.shown();
    let failed = |why: String| Err(Fault::new(FaultCode::MoverFailed, format!("{lfn}: {why}")));
    let why = match verdict {
        Ok(Verdict::Done) => return Ok(()),
        Ok(Verdict::Failed { status, text }) => {
            let what = match status {
                2 => "something is there already",
                3 => "no permission",
                _ => "it failed",
            };
            let said = if text.is_empty() { "without a word".to_owned() } else { text };
            return failed(format!("the mover reports: {what} (status {status}): {said}"));
        }
        Ok(Verdict::Contradiction) => return failed("the mover's report contradicts itself about it".into()),
        Ok(Verdict::Missing) => "its report does not mention it".to_owned(),
        Err(why) => why,
    };
    match ended {
        Err(fault) => failed(format!("{}; {why}", fault.detail)),
        Ok(ended) => failed(format!("the mover has ended {}; {why}", ended.describe())),
    }
}
