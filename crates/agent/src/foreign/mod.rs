//! Foreign mover: streams copies between storages of others that cannot copy between themselves and would
//! otherwise go through the service's host, with the code of `storage-remote`.
//!
//! Copies are held like leases: in the outbox log from their arrival until their outcome is acknowledged. But
//! the credentials are in memory only, so a copy does not survive this process: at the next start it fails,
//! and the service schedules it again. A service that gets no reports takes copies back after a while; before
//! that they have been cancelled here.
//!
//! Not here: which agent gets which copy (`jobs::agent_streams`), how one is made (`storage_remote`). Start
//! with [`ForeignMover`].

mod conversion;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_api::agent::{AttemptTimes, Progress};
use longhaul_api::foreign::{ForeignCopy, GIVEN_UP_BY_AGENT, MoverOffer};
use longhaul_model::{AttemptId, Epoch, Fault, FaultCode};
use longhaul_storage_remote::{Cancel, Canceller, Family, Remote, RemoteConfig, Trust, cancellation};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

use crate::clock::ServiceClock;
use crate::config::foreign::ForeignMoverConfig;
use crate::outbox_log::OutboxLog;
use crate::outcomes::OutcomeRecorder;
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// Interval of checks whether the service still answers.
const SILENCE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// At shutdown: how long copies may take to remove partial files.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// At shutdown: how long to wait until the service has heard of the cancelled copies.
const FINAL_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct ForeignMover {
    remote: Remote,
    /// Clients restricted to one address family.
    remote_by_family: [(Family, Remote); 2],
    files: u32,
    bytes_per_s: Option<u64>,
    slots: Arc<Semaphore>,
    running: Mutex<BTreeMap<AttemptId, Arc<RunningCopy>>>,
    /// Notified when a copy has ended.
    ended: Notify,
    /// When the last report that the service has answered was sent.
    answered_at: Mutex<AgentTime>,
    outcomes: Arc<OutcomeRecorder>,
    clock: ServiceClock,
    runtime: tokio::runtime::Handle,
}

struct RunningCopy {
    epoch: Epoch,
    bytes: AtomicU64,
    canceller: Canceller,
    /// Why we cancel it, unless the service does.
    cancel_reason: Mutex<Option<Fault>>,
}

/// Fails the copies that an earlier run held; the service schedules them again.
pub(crate) fn fail_held(log: &OutboxLog) -> Result<(), Fault> {
    let fault = || {
        let detail = "the agent that streamed it was restarted and stores no credentials";
        Fault::new(FaultCode::Interrupted, detail)
    };
    let end = |held: crate::outbox_log::HeldCopy| {
        conversion::copy_outcome(held.attempt, held.epoch, Err(fault()), AttemptTimes::default())
    };
    log.finish(&log.copies_held().into_iter().map(end).collect::<Vec<_>>()).map(drop)
}

impl ForeignMover {
    /// Must be called within a runtime.
    pub(crate) fn new(
        config: &ForeignMoverConfig,
        outcomes: Arc<OutcomeRecorder>,
        clock: ServiceClock,
    ) -> Result<ForeignMover, Fault> {
        let wrong = |why| Fault::new(FaultCode::BadRequest, why);
        let trust = match config.authorities.is_empty() {
            true => Trust::System,
            false => Trust::Files(config.authorities.clone()),
        };
        let settings = RemoteConfig {
            trust,
            allow: config.networks().map_err(wrong)?,
            bytes_per_s: config.bytes_per_s,
            ..RemoteConfig::default()
        };
        let remote = Remote::new(settings)?;
        Ok(ForeignMover {
            remote_by_family: [Family::V4, Family::V6].map(|family| (family, remote.over(family))),
            remote,
            files: config.files,
            bytes_per_s: config.bytes_per_s,
            slots: Arc::new(Semaphore::new(config.files as usize)),
            running: Mutex::default(),
            ended: Notify::new(),
            answered_at: Mutex::default(),
            outcomes,
            clock,
            runtime: tokio::runtime::Handle::current(),
        })
    }

    pub(crate) fn offer(&self) -> MoverOffer {
        MoverOffer { files: self.files }
    }

    /// Applies the site's limits besides the configured one: streamed bytes count in both directions.
    pub(crate) fn set_limits(&self, in_bytes_per_s: Option<u64>, out_bytes_per_s: Option<u64>) {
        let all = [self.bytes_per_s, in_bytes_per_s, out_bytes_per_s];
        self.remote.limit_rate(all.into_iter().flatten().min());
    }

    /// Starts copies, which the log holds already.
    pub(crate) fn start_copies(self: &Arc<Self>, copies: Vec<ForeignCopy>) {
        for copy in copies {
            let (canceller, cancel) = cancellation();
            let running = Arc::new(RunningCopy {
                epoch: copy.epoch,
                bytes: AtomicU64::new(0),
                canceller,
                cancel_reason: Mutex::default(),
            });
            self.running.lock().insert(copy.attempt, running.clone());
            self.runtime.spawn(self.clone().run(copy, running, cancel));
        }
    }

    /// Cancels copies on behalf of the service, which waits for no outcome.
    pub(crate) fn cancel(&self, attempts: &[AttemptId]) {
        let running = self.running.lock();
        attempts.iter().filter_map(|attempt| running.get(attempt)).for_each(|one| one.canceller.cancel());
    }

    /// Cancels all copies, with that reason as their fault.
    pub(crate) fn cancel_all(&self, why: &str) {
        let running = self.running.lock();
        if !running.is_empty() {
            tracing::info!(copies = running.len(), why, "cancelling copies between foreign storages");
        }
        for one in running.values() {
            one.cancel_reason.lock().get_or_insert_with(|| Fault::new(FaultCode::Interrupted, why));
            one.canceller.cancel();
        }
    }

    /// Notes that the service has answered a report sent then.
    pub(crate) fn note_answer(&self, sent: AgentTime) {
        *self.answered_at.lock() = sent;
    }

    pub(crate) fn progress(&self) -> Vec<Progress> {
        let running = self.running.lock();
        let one = |(&attempt, running): (&AttemptId, &Arc<RunningCopy>)| Progress {
            attempt,
            bytes_done: running.bytes.load(Ordering::Relaxed),
        };
        running.iter().map(one).collect()
    }

    /// Cancels everything at shutdown: partial files are removed, and the service hears of it if that does
    /// not take long.
    pub(crate) async fn shut_down(&self) {
        self.cancel_all("the agent that streamed it was stopped");
        let none_left = async {
            loop {
                let ended = self.ended.notified();
                if self.running.lock().is_empty() {
                    return;
                }
                ended.await;
            }
        };
        if self.running.lock().is_empty() || timeout(CANCEL_TIMEOUT, none_left).await.is_err() {
            return;
        }
        let told = async {
            while self.outcomes.log.facts_pending() > 0 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        // Otherwise it is reported after the next start.
        let _ = timeout(FINAL_REPORT_TIMEOUT, told).await;
    }

    async fn run(self: Arc<Self>, copy: ForeignCopy, running: Arc<RunningCopy>, cancel: Cancel) {
        let (attempt, epoch) = (copy.attempt, running.epoch);
        let mut times = AttemptTimes { received: self.clock.now(), ..AttemptTimes::default() };
        let made = self.clone();
        let counted = running.clone();
        // In a task of its own, so that a panic ends one copy only.
        let making = tokio::spawn(async move { made.copy(copy, &counted, &cancel).await });
        let made = making.await.unwrap_or_else(|error| {
            Err(Fault::new(FaultCode::Internal, format!("the copy ended abnormally: {error}"))
                .with_source(error))
        });
        let result = match (made, running.cancel_reason.lock().take()) {
            // A result that came before the cancellation counts.
            (Err(fault), Some(why)) if fault.code == FaultCode::Cancelled => Err(why),
            (made, _) => made,
        };
        match &result {
            Ok(bytes) => {
                times.committed = Some(self.clock.now());
                tracing::info!(%attempt, bytes, "foreign copy succeeded");
            }
            Err(fault) => {
                tracing::info!(%attempt, code = %fault.code, fault = %fault.chain(), "foreign copy failed")
            }
        }
        let (outcomes, outcome) =
            (self.outcomes.clone(), conversion::copy_outcome(attempt, epoch, result, times));
        let kept = tokio::task::spawn_blocking(move || outcomes.record_outcomes(&[outcome])).await;
        if let Err(error) = kept {
            tracing::error!(%attempt, %error, "an outcome is not recorded; the copy fails at the next start");
        }
        self.running.lock().remove(&attempt);
        self.ended.notify_waiters();
    }

    async fn copy(&self, copy: ForeignCopy, running: &RunningCopy, cancel: &Cancel) -> Result<u64, Fault> {
        let cancelled = || Fault::new(FaultCode::Cancelled, "TRANSFER [125] Transfer canceled");
        let _place = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(cancelled()),
            place = self.slots.clone().acquire_owned() => place.map_err(|_| cancelled())?,
        };
        let over = conversion::family(&copy);
        let wanted = conversion::copy_order(&copy)?;
        drop(copy);
        let remote = self.remote_by_family.iter().find(|(family, _)| over == Some(*family));
        let remote = remote.map_or(&self.remote, |(_, remote)| remote);
        let progress = |bytes: u64| {
            running.bytes.fetch_max(bytes, Ordering::Relaxed);
        };
        remote.copy(&wanted, &progress, cancel).await.map(|done| done.bytes)
    }
}

/// Dead man's switch: cancels all copies when the service has been silent for so long that it is about to
/// give them to another agent. Two never write the same file.
pub(crate) struct SilenceWatch {
    mover: Arc<ForeignMover>,
    ticker: Ticker,
}

impl SilenceWatch {
    pub(crate) fn new(mover: Arc<ForeignMover>) -> Self {
        SilenceWatch { mover, ticker: Ticker::new(SILENCE_CHECK_INTERVAL) }
    }
}

impl PeriodicLoop for SilenceWatch {
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        let silence = now.saturating_sub(*self.mover.answered_at.lock());
        if self.ticker.tick(now).is_some() && silence > GIVEN_UP_BY_AGENT {
            let seconds = GIVEN_UP_BY_AGENT.as_secs();
            self.mover.cancel_all(&format!("the service has not answered its agent for {seconds} s"));
        }
        self.ticker.due()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::tests::drive;
    use longhaul_model::Timestamp;

    #[tokio::test]
    async fn copies_end_when_the_service_has_been_silent_for_45_s() {
        let directory = tempfile::tempdir().unwrap();
        let clock = ServiceClock::new(Arc::new(|| Timestamp::ZERO), 0);
        let outcomes = OutcomeRecorder::for_test(Arc::new(OutboxLog::open(directory.path()).unwrap()));
        let config = ForeignMoverConfig { files: 1, ..ForeignMoverConfig::default() };
        let mover = Arc::new(ForeignMover::new(&config, Arc::new(outcomes), clock).unwrap());
        let (canceller, cancel) = cancellation();
        let copy = RunningCopy {
            epoch: Epoch(1),
            bytes: AtomicU64::new(0),
            canceller,
            cancel_reason: Mutex::default(),
        };
        mover.running.lock().insert(AttemptId(1), Arc::new(copy));
        let mut watch = SilenceWatch::new(mover.clone());
        let s = Duration::from_secs;
        mover.note_answer(s(10));
        drive(&mut watch, s(10), s(56));
        assert!(!cancel.is_cancelled(), "until 55 s it may be a slow service");
        mover.note_answer(s(20));
        drive(&mut watch, s(56), s(66));
        assert!(!cancel.is_cancelled());
        drive(&mut watch, s(66), s(67));
        assert!(cancel.is_cancelled());
        let reason = mover.running.lock()[&AttemptId(1)].cancel_reason.lock().clone();
        assert_eq!(reason.unwrap().code, FaultCode::Interrupted);
    }
}
