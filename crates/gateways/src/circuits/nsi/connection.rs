//! The state machine of one reservation at an NSI provider.

use std::time::Duration;

use longhaul_circuits::RequestKey;
use longhaul_model::Timestamp;

use crate::circuits::remote::{CallId, poll_delay};

/// What is done next, or waited for. Who has an id may turn to `Terminate` from everywhere.
///
/// ```text
/// Reserve ─► Checking ─► Commit ─► Committing ─► Provision ─► Provisioning ─► Up
///    │ no answer  ▲         │ not wanted
///    ▼            │         ▼
///   Find ─────────┘       Abort ─► Aborting ─► Terminate ─► Terminating ─► gone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Reserve,
    /// It may be there under an id that we do not know: the provider's list tells.
    Find,
    Checking,
    Commit,
    Committing,
    Provision,
    /// Until the data plane is active, which is more than a confirmation.
    Provisioning,
    Up,
    Abort,
    Aborting,
    Terminate,
    Terminating,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Reserve,
    Commit,
    Abort,
    Provision,
    Terminate,
    Query,
}

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) key: RequestKey,
    /// Asked for, and granted once that is known.
    pub(super) mbit: u64,
    pub(super) lifetime: Option<Duration>,
    /// When it ends by itself, by our clock.
    pub(super) end: Option<Timestamp>,
    pub(super) id: Option<String>,
    pub(super) stage: Stage,
    /// The call under way: there is never more than one.
    pub(super) call: Option<CallId>,
    /// When the stage's call is due.
    pub(super) next: Timestamp,
    pub(super) looks: u32,
    pub(super) failures: u32,
    /// The provider does not hold it longer than from here.
    pub(super) held_since: Option<Timestamp>,
    /// So many reservations of this request were lost before.
    pub(super) lost: u32,
    pub(super) is_leaving: bool,
    /// Nobody is told about it: it is only cleared away.
    pub(super) is_stray: bool,
    /// A reserve may have arrived of which nothing was heard.
    pub(super) is_unsure: bool,
    /// The owner was told how the request ended.
    pub(super) is_told: bool,
    /// What the provider has said that happened, which only a query proves.
    pub(super) hint: Option<String>,
    /// The hint came while a call was under way, whose answer may tell of the time before it.
    pub(super) is_hint_newer: bool,
}

impl Connection {
    pub(super) fn new(key: RequestKey, mbit: u64, stage: Stage, now: Timestamp) -> Connection {
        Connection {
            key,
            mbit,
            lifetime: None,
            end: None,
            id: None,
            stage,
            call: None,
            next: now,
            looks: 0,
            failures: 0,
            held_since: None,
            lost: 0,
            is_leaving: false,
            is_stray: false,
            is_unsure: false,
            is_told: false,
            hint: None,
            is_hint_newer: false,
        }
    }

    /// A connection that is only to be released.
    pub(super) fn stray(key: RequestKey, id: String, now: Timestamp) -> Connection {
        let mut stray = Connection::new(key, 0, Stage::Terminate, now);
        (stray.id, stray.is_leaving, stray.is_stray) = (Some(id), true, true);
        stray
    }

    pub(super) fn turn(&mut self, stage: Stage, now: Timestamp) {
        if self.stage != stage {
            (self.looks, self.failures) = (0, 0);
        }
        self.stage = stage;
        self.next = now;
    }

    /// Something is said to have happened. What has failed is not forgotten for what follows from it.
    pub(super) fn hear(&mut self, hint: Option<String>, now: Timestamp) {
        if !self.hint.as_deref().is_some_and(is_failure) {
            self.hint = hint.or_else(|| self.hint.take());
        }
        self.is_hint_newer = self.call.is_some();
        self.next = now;
    }

    /// A query has shown that nothing has come of it, unless its answer may be older than the hint.
    pub(super) fn drop_hint(&mut self) {
        if !self.is_hint_newer {
            self.hint = None;
        }
    }

    /// Waits for what follows from a call that was acknowledged.
    pub(super) fn wait(&mut self, stage: Stage, now: Timestamp) {
        self.turn(stage, now);
        self.look_later(now);
    }

    pub(super) fn look_later(&mut self, now: Timestamp) {
        self.next = now.plus(poll_delay(self.looks));
        self.looks = self.looks.saturating_add(1);
    }

    pub(super) fn fail(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.next = now.plus(poll_delay(self.failures));
    }

    /// From where it stands to its end; none if there is nothing to end.
    pub(super) fn leave(&mut self, now: Timestamp) -> Option<()> {
        let stage = match (self.stage, &self.id) {
            (Stage::Reserve, None) if !self.is_unsure => return None,
            (Stage::Reserve | Stage::Find, None) => Stage::Find,
            (Stage::Commit, Some(_)) => Stage::Abort,
            (Stage::Abort | Stage::Aborting | Stage::Terminate | Stage::Terminating, _) => return Some(()),
            (_, Some(_)) => Stage::Terminate,
            (_, None) => Stage::Find,
        };
        if stage != self.stage {
            self.turn(stage, now);
        }
        Some(())
    }

    /// Judged by our clock, whatever the provider says.
    pub(super) fn is_held_too_long(&self, hold: Duration, now: Timestamp) -> bool {
        self.held_since.is_some_and(|since| now.since(since) > hold)
    }

    pub(super) fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// When there is something to do, if nothing is heard meanwhile.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let waits = self.call.is_some() || (self.is_up() && self.hint.is_none() && !self.is_leaving);
        (!waits).then_some(self.next)
    }
}

/// Whether an event of this name means that the data plane has failed.
pub(super) fn is_failure(event: &str) -> bool {
    matches!(event, "activateFailed" | "forcedEnd" | "dataplaneError")
}
