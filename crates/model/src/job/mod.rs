//! Jobs as users of FTS submit them: files to copy from URL to URL, with one state for all of them.
//!
//! Defines the states of a job and of its files: which transition is valid, how the files determine the state
//! of their job, and which file starts after another has ended. The words are those of FTS's API.

mod endpoint;
mod evaluate;
mod id;
mod reason;

pub use endpoint::{JOBS_HALF, end_point, of_jobs, storage_element};
pub use evaluate::{JobFileAt, JobFileCounts, Verdict, job_state, next_hop, next_replicas, retries_of};
pub use id::JobId;
pub use reason::{
    ARCHIVING_OF_REPLICAS, ARCHIVING_TOO_LONG, CANCELED_BY_USER, EMPTY_JOB, FILES_FAILED, REASON_BYTES,
    STAGING_TOO_LONG, TOO_LONG_IN_QUEUE, TRANSFER_CANCELED, brought_from_tape, errno, is_recoverable,
    parse_reason, reason,
};

use serde::{Deserialize, Serialize};

use crate::lifecycle::words;

/// How the files of a job depend on each other; letters of FTS's `job_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobKind {
    /// Independent files.
    #[serde(rename = "N")]
    Regular,
    /// Replicas of one file: one of them has to arrive.
    #[serde(rename = "R")]
    Replicas,
    /// Hops of one route: each starts when the one before it has arrived.
    #[serde(rename = "H")]
    Hops,
    /// The same source and target for all files, so that one connection serves several.
    #[serde(rename = "Y")]
    Reuse,
}

words!(JobKind { Regular = "N", Replicas = "R", Hops = "H", Reuse = "Y" });

/// State of a job; words of FTS's `job_state`. Derived from its files ([`job_state`]), unless the job is
/// cancelled.
///
/// ```text
/// SUBMITTED, STAGING ─► ACTIVE ─► ARCHIVING ─► FINISHED, FAILED, FINISHEDDIRTY
/// any but the last three ─► CANCELED
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobState {
    /// No file has started.
    #[serde(rename = "SUBMITTED")]
    Submitted,
    /// FTS's state between queue and transfer; never derived here, but stored jobs may have it.
    #[serde(rename = "READY")]
    Ready,
    /// At least one file has started.
    #[serde(rename = "ACTIVE")]
    Active,
    /// Files are being staged from tape, and none has started.
    #[serde(rename = "STAGING")]
    Staging,
    /// Every file has arrived, and some are being written to tape.
    #[serde(rename = "ARCHIVING")]
    Archiving,
    /// Every file arrived.
    #[serde(rename = "FINISHED")]
    Finished,
    /// No file arrived.
    #[serde(rename = "FAILED")]
    Failed,
    /// Some files arrived, others failed.
    #[serde(rename = "FINISHEDDIRTY")]
    FinishedDirty,
    /// Cancelled by its user, or by the service before it could run.
    #[serde(rename = "CANCELED")]
    Canceled,
}

words!(JobState {
    Submitted = "SUBMITTED",
    Ready = "READY",
    Active = "ACTIVE",
    Staging = "STAGING",
    Archiving = "ARCHIVING",
    Finished = "FINISHED",
    Failed = "FAILED",
    FinishedDirty = "FINISHEDDIRTY",
    Canceled = "CANCELED",
});

impl JobState {
    /// Whether the state is final.
    pub fn is_terminal(self) -> bool {
        use JobState::*;
        matches!(self, Finished | Failed | FinishedDirty | Canceled)
    }
}

/// State of one file of a job; words of FTS's `file_state`.
///
/// ```text
/// TOKEN_PREP ─► STAGING ─► STARTED ─► SUBMITTED ─► READY ─► ACTIVE ─► ARCHIVING ─► FINISHED
/// SUBMITTED ⇄ ON_HOLD      STAGING ⇄ ON_HOLD_STAGING      ACTIVE ─► SUBMITTED (retry)
/// NOT_USED ⇄ SUBMITTED (the turn of a replica or a hop)   any but the last ─► FAILED, CANCELED
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobFileState {
    /// Its tokens have to be exchanged first.
    #[serde(rename = "TOKEN_PREP")]
    TokenPrep,
    /// Waits to be staged from tape to disk.
    #[serde(rename = "STAGING")]
    Staging,
    /// The tape system is staging it.
    #[serde(rename = "STARTED")]
    Started,
    /// Queued for a transfer slot.
    #[serde(rename = "SUBMITTED")]
    Submitted,
    /// Queued ahead of all others by an administrator.
    #[serde(rename = "FORCE_START")]
    ForceStart,
    /// Scheduled, and about to start.
    #[serde(rename = "READY")]
    Ready,
    /// Being transferred.
    #[serde(rename = "ACTIVE")]
    Active,
    /// Copied, and not yet on tape.
    #[serde(rename = "ARCHIVING")]
    Archiving,
    /// Queued while its source or target is banned.
    #[serde(rename = "ON_HOLD")]
    OnHold,
    /// Waits to be staged while its source or target is banned.
    #[serde(rename = "ON_HOLD_STAGING")]
    OnHoldStaging,
    /// A replica or hop that is not needed yet, and may never be.
    #[serde(rename = "NOT_USED")]
    NotUsed,
    /// Arrived.
    #[serde(rename = "FINISHED")]
    Finished,
    /// Failed for good.
    #[serde(rename = "FAILED")]
    Failed,
    /// Cancelled by its user, or by the service.
    #[serde(rename = "CANCELED")]
    Canceled,
}

words!(JobFileState {
    TokenPrep = "TOKEN_PREP",
    Staging = "STAGING",
    Started = "STARTED",
    Submitted = "SUBMITTED",
    ForceStart = "FORCE_START",
    Ready = "READY",
    Active = "ACTIVE",
    Archiving = "ARCHIVING",
    OnHold = "ON_HOLD",
    OnHoldStaging = "ON_HOLD_STAGING",
    NotUsed = "NOT_USED",
    Finished = "FINISHED",
    Failed = "FAILED",
    Canceled = "CANCELED",
});

impl JobFileState {
    /// Whether the state is final.
    pub fn is_terminal(self) -> bool {
        matches!(self, JobFileState::Finished | JobFileState::Failed | JobFileState::Canceled)
    }

    /// Waits for its tape system, or for permission to ask it.
    pub fn is_staging(self) -> bool {
        matches!(self, JobFileState::Staging | JobFileState::Started | JobFileState::OnHoldStaging)
    }

    /// The scheduler may give it a slot.
    pub fn is_queued(self) -> bool {
        matches!(self, JobFileState::Submitted | JobFileState::ForceStart)
    }

    /// A mover runs it, or is about to.
    pub fn is_running(self) -> bool {
        matches!(self, JobFileState::Ready | JobFileState::Active)
    }

    /// Whether a file in this state may go to state `next`.
    pub fn may_become(self, next: JobFileState) -> bool {
        use JobFileState::*;
        match next {
            Failed | Canceled => !self.is_terminal(),
            Finished => matches!(self, Active | Archiving | Started),
            Archiving => self == Active,
            Active => matches!(self, Ready | Submitted | ForceStart | NotUsed),
            Ready => matches!(self, Submitted | ForceStart | NotUsed),
            ForceStart => self == Submitted,
            // An attempt that failed puts its file back into the queue.
            Submitted => matches!(self, TokenPrep | Started | OnHold | Ready | Active | ForceStart | NotUsed),
            Started => self == Staging,
            Staging => matches!(self, TokenPrep | OnHoldStaging | Started | Active | NotUsed),
            OnHold => matches!(self, Submitted | TokenPrep | NotUsed),
            OnHoldStaging => matches!(self, Staging | TokenPrep | NotUsed),
            // Another replica of the same file was chosen, or this one turned out to be on tape.
            NotUsed => matches!(self, Submitted | ForceStart | Active),
            TokenPrep => self == NotUsed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_states_stay() {
        for &state in JobFileState::ALL {
            assert!(!state.may_become(state), "{state}");
            for &next in JobFileState::ALL {
                assert!(!(state.is_terminal() && state.may_become(next)), "{state} to {next}");
            }
            assert!(state.is_terminal() || state.may_become(JobFileState::Canceled), "{state}");
        }
    }

    #[test]
    fn words_are_those_of_the_interface() {
        for &state in JobFileState::ALL {
            assert_eq!(state.word().parse::<JobFileState>().unwrap(), state);
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
        for &state in JobState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
        for &kind in JobKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
        assert!("finished".parse::<JobFileState>().is_err());
    }
}
