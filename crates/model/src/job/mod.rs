//! Jobs as users of FTS submit them: files that are copied between two URLs, and answered for together.
//!
//! One place for the states of a job and of its files: what may follow what, what the files make of their
//! job, and which file's turn it is after another ended. The words are those of FTS's API.

mod evaluate;
mod id;
mod place;
mod reason;

pub use evaluate::{JobFileAt, JobFileCounts, Verdict, job_state, next_hop, next_replicas, retries_of};
pub use id::JobId;
pub use place::{JOBS_HALF, end_point, of_jobs, storage_element};
pub use reason::{
    ARCHIVING_OF_REPLICAS, ARCHIVING_TOO_LONG, CANCELED_BY_USER, EMPTY_JOB, FILES_FAILED, REASON_BYTES,
    STAGING_TOO_LONG, TOO_LONG_IN_QUEUE, TRANSFER_CANCELED, brought_from_tape, errno, is_recoverable,
    parse_reason, reason,
};

use serde::{Deserialize, Serialize};

use crate::lifecycle::words;

/// What binds the files of a job together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobKind {
    /// Nothing: each file for itself.
    #[serde(rename = "N")]
    Regular,
    /// They are replicas of one file: one of them has to arrive.
    #[serde(rename = "R")]
    Replicas,
    /// They are hops of one way: each begins when the one before has arrived.
    #[serde(rename = "H")]
    Hops,
    /// Same source and target for all, so that a connection serves several.
    #[serde(rename = "Y")]
    Reuse,
}

words!(JobKind { Regular = "N", Replicas = "R", Hops = "H", Reuse = "Y" });

/// ```text
/// SUBMITTED, STAGING ─► ACTIVE ─► ARCHIVING ─► FINISHED, FAILED, FINISHEDDIRTY; any of the former ─► CANCELED
/// ```
/// Follows from the files alone ([`job_state`]), but for a cancelled job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobState {
    #[serde(rename = "SUBMITTED")]
    Submitted,
    #[serde(rename = "READY")]
    Ready,
    #[serde(rename = "ACTIVE")]
    Active,
    #[serde(rename = "STAGING")]
    Staging,
    #[serde(rename = "ARCHIVING")]
    Archiving,
    #[serde(rename = "FINISHED")]
    Finished,
    #[serde(rename = "FAILED")]
    Failed,
    /// Some files arrived, others did not.
    #[serde(rename = "FINISHEDDIRTY")]
    FinishedDirty,
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
    pub fn is_terminal(self) -> bool {
        use JobState::*;
        matches!(self, Finished | Failed | FinishedDirty | Canceled)
    }
}

/// ```text
/// TOKEN_PREP ─► STAGING ─► STARTED ─► SUBMITTED ─► READY ─► ACTIVE ─► ARCHIVING ─► FINISHED
/// SUBMITTED ⇄ ON_HOLD      STAGING ⇄ ON_HOLD_STAGING      ACTIVE ─► SUBMITTED (retry)
/// NOT_USED ⇄ SUBMITTED (the turn of a replica or a hop)   any but the last ─► FAILED, CANCELED
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobFileState {
    /// Its tokens are exchanged first.
    #[serde(rename = "TOKEN_PREP")]
    TokenPrep,
    /// To be brought from tape to disk.
    #[serde(rename = "STAGING")]
    Staging,
    /// The tape system is at it.
    #[serde(rename = "STARTED")]
    Started,
    #[serde(rename = "SUBMITTED")]
    Submitted,
    /// An administrator put it before all others.
    #[serde(rename = "FORCE_START")]
    ForceStart,
    /// Decided, and about to begin.
    #[serde(rename = "READY")]
    Ready,
    #[serde(rename = "ACTIVE")]
    Active,
    /// Copied, and not on tape yet.
    #[serde(rename = "ARCHIVING")]
    Archiving,
    /// An end is banned.
    #[serde(rename = "ON_HOLD")]
    OnHold,
    #[serde(rename = "ON_HOLD_STAGING")]
    OnHoldStaging,
    /// A replica or hop whose turn has not come, and may never come.
    #[serde(rename = "NOT_USED")]
    NotUsed,
    #[serde(rename = "FINISHED")]
    Finished,
    #[serde(rename = "FAILED")]
    Failed,
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
    pub fn is_terminal(self) -> bool {
        matches!(self, JobFileState::Finished | JobFileState::Failed | JobFileState::Canceled)
    }

    /// Waits for its tape system, or for leave to ask it.
    pub fn is_staging(self) -> bool {
        matches!(self, JobFileState::Staging | JobFileState::Started | JobFileState::OnHoldStaging)
    }

    /// The scheduler may give it a slot.
    pub fn is_queued(self) -> bool {
        matches!(self, JobFileState::Submitted | JobFileState::ForceStart)
    }

    /// A mover has it, or is about to.
    pub fn is_running(self) -> bool {
        matches!(self, JobFileState::Ready | JobFileState::Active)
    }

    pub fn may_become(self, next: JobFileState) -> bool {
        use JobFileState::*;
        match next {
            Failed | Canceled => !self.is_terminal(),
            Finished => matches!(self, Active | Archiving | Started),
            Archiving => self == Active,
            Active => matches!(self, Ready | Submitted | ForceStart | NotUsed),
            Ready => matches!(self, Submitted | ForceStart | NotUsed),
            ForceStart => self == Submitted,
            // A copy that did not come about leaves its file in the queue.
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
