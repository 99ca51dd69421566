//! Derives a job's state from the states of its files, and which file may start next.

use super::reason::FILES_FAILED;
use super::{JobFileState, JobKind, JobState};

/// The state of one file of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobFileAt {
    /// Files with the same index are replicas of one file; of a multi-hop job it counts the hops.
    pub index: u32,
    /// The file's state.
    pub state: JobFileState,
}

/// The state of a job, as derived from its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The derived state.
    pub state: JobState,
    /// FTS's text for a job that did not finish well; empty otherwise.
    pub reason: &'static str,
}

/// Number of files of a job by state. Replicas of one file count once towards the final state; a file with an
/// index of its own counts the same either way, so the counts of a large job can be updated file by file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobFileCounts {
    /// Files, with the replicas of one file counted once.
    pub total: u64,
    /// Files that arrived.
    pub finished: u64,
    /// Files that failed for good.
    pub failed: u64,
    /// Files that were cancelled.
    pub canceled: u64,
    /// Files that are being transferred.
    pub active: u64,
    /// Files that are being staged from tape.
    pub staging: u64,
    /// Files that have been copied and are being written to tape.
    pub archiving: u64,
    /// Unfinished files in any other state, without replicas that may never be needed.
    pub waiting: u64,
}

impl JobFileCounts {
    /// Counts a file of its own index.
    pub fn add(&mut self, state: JobFileState) {
        self.total += 1;
        *self.counter(state) += 1;
    }

    /// Moves a file from the count of one state to another's.
    pub fn moved(&mut self, from: JobFileState, to: JobFileState) {
        *self.counter(from) = self.counter(from).saturating_sub(1);
        *self.counter(to) += 1;
    }

    fn counter(&mut self, state: JobFileState) -> &mut u64 {
        match state {
            JobFileState::Finished => &mut self.finished,
            JobFileState::Failed => &mut self.failed,
            JobFileState::Canceled => &mut self.canceled,
            JobFileState::Active => &mut self.active,
            JobFileState::Archiving => &mut self.archiving,
            state if state.is_staging() => &mut self.staging,
            _ => &mut self.waiting,
        }
    }

    /// Counts files some of which share an index.
    pub fn from_groups(kind: JobKind, files: &[JobFileAt]) -> JobFileCounts {
        let mut tally = JobFileCounts::default();
        let mut order: Vec<&JobFileAt> = files.iter().collect();
        order.sort_by_key(|file| file.index);
        for group in order.chunk_by(|a, b| a.index == b.index) {
            tally.total += 1;
            let all = |wanted: fn(JobFileState) -> bool| group.iter().all(|file| wanted(file.state));
            if group.iter().any(|file| file.state == JobFileState::Finished) {
                tally.finished += 1;
                continue;
            } else if all(|state| state == JobFileState::Canceled) {
                tally.canceled += 1;
            } else if all(JobFileState::is_terminal) {
                tally.failed += 1;
            }
            for file in group.iter().filter(|file| !file.state.is_terminal()) {
                // A hop that waits for the one before it is still to be done; a replica may never be.
                if file.state != JobFileState::NotUsed || kind != JobKind::Replicas {
                    *tally.counter(file.state) += 1;
                }
            }
            // One replica failed and another is to be tried: the job has begun.
            let tried = group.iter().any(|file| file.state == JobFileState::Failed);
            let archiving = group.iter().any(|file| file.state == JobFileState::Archiving);
            if kind == JobKind::Replicas && tried && !archiving && !all(JobFileState::is_terminal) {
                tally.active += 1;
            }
        }
        tally
    }

    /// The job's state. `was` is its previous state: a job that has begun is not queued again when one of its
    /// files is.
    pub fn verdict(&self, kind: JobKind, was: JobState) -> Verdict {
        let broken = kind == JobKind::Hops && self.failed + self.canceled > 0;
        if broken || self.finished + self.failed + self.canceled == self.total {
            return self.ended(kind);
        }
        Verdict { state: self.under_way(was), reason: "" }
    }

    fn ended(&self, kind: JobKind) -> Verdict {
        let state = match *self {
            JobFileCounts { finished, failed, .. } if finished > 0 && failed > 0 && kind != JobKind::Hops => {
                JobState::FinishedDirty
            }
            JobFileCounts { failed, .. } if failed > 0 => JobState::Failed,
            // A job without files has nothing that could have arrived.
            JobFileCounts { canceled, total, .. } if canceled > 0 || total == 0 => JobState::Canceled,
            _ => JobState::Finished,
        };
        Verdict { state, reason: if state == JobState::Finished { "" } else { FILES_FAILED } }
    }

    fn under_way(&self, was: JobState) -> JobState {
        if self.archiving > 0 && self.active + self.staging + self.waiting == 0 {
            JobState::Archiving
        } else if was == JobState::Active || self.active > 0 {
            JobState::Active
        } else if self.staging > 0 {
            JobState::Staging
        } else if self.finished + self.failed + self.archiving > 0 {
            JobState::Active
        } else {
            JobState::Submitted
        }
    }
}

/// The state of a job from all its files, in the order of their ids.
pub fn job_state(kind: JobKind, was: JobState, files: &[JobFileAt]) -> Verdict {
    JobFileCounts::from_groups(kind, files).verdict(kind, was)
}

/// Index into `files` of the hop that may start: the first that has not started, if all before it have
/// arrived and none has failed.
pub fn next_hop(files: &[JobFileAt]) -> Option<usize> {
    if files.iter().any(|file| matches!(file.state, JobFileState::Failed | JobFileState::Canceled)) {
        return None;
    }
    let place = files.iter().position(|file| file.state != JobFileState::Finished)?;
    (files[place].state == JobFileState::NotUsed).then_some(place)
}

/// Indices into `files` of the replicas one of which may start: those not tried yet, if none is active and
/// none has arrived.
pub fn next_replicas(files: &[JobFileAt]) -> Vec<usize> {
    use JobFileState as F;
    let idle = files.iter().all(|file| matches!(file.state, F::NotUsed | F::Failed | F::Canceled));
    let untried = files.iter().enumerate().filter(|(_, file)| idle && file.state == F::NotUsed);
    untried.map(|(place, _)| place).collect()
}

/// How often a file of a job is retried: as often as the job says, or by the deployment's default if it does
/// not say; never if another replica is tried instead, or if a hop has failed.
pub fn retries_of(kind: JobKind, wanted: i64, usual: u32) -> u32 {
    match (kind, wanted) {
        (JobKind::Replicas | JobKind::Hops, _) => 0,
        (_, 0) => usual,
        (_, wanted) => u32::try_from(wanted.max(0)).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use JobFileState as F;
    use proptest::prelude::*;

    fn at(kind: JobKind, states: &[F]) -> Vec<JobFileAt> {
        let index = |place| if kind == JobKind::Replicas { 0 } else { place as u32 };
        states.iter().enumerate().map(|(place, &state)| JobFileAt { index: index(place), state }).collect()
    }

    fn state(kind: JobKind, states: &[F]) -> JobState {
        job_state(kind, JobState::Submitted, &at(kind, states)).state
    }

    #[test]
    fn jobs_are_what_the_reference_says() {
        use JobKind::*;
        for (kind, files, job) in [
            (Regular, [F::Finished, F::Failed].as_slice(), JobState::FinishedDirty),
            (Regular, &[F::Finished, F::Canceled], JobState::Canceled),
            (Regular, &[F::Failed, F::Canceled], JobState::Failed),
            (Regular, &[F::Finished, F::Active, F::Failed], JobState::Active),
            (Replicas, &[F::Submitted, F::NotUsed, F::NotUsed], JobState::Submitted),
            (Replicas, &[F::Failed, F::Submitted, F::NotUsed], JobState::Active),
            (Replicas, &[F::Failed, F::Finished, F::NotUsed], JobState::Finished),
            (Replicas, &[F::Failed, F::Failed, F::Failed], JobState::Failed),
            (Hops, &[F::Active, F::NotUsed, F::NotUsed], JobState::Active),
            (Hops, &[F::Finished, F::Failed, F::NotUsed], JobState::Failed),
            (Hops, &[F::Finished, F::Finished, F::Finished], JobState::Finished),
            (Hops, &[F::Finished, F::Canceled, F::NotUsed], JobState::Canceled),
            (Regular, &[F::Finished, F::Archiving], JobState::Archiving),
            (Reuse, &[F::Finished, F::Archiving], JobState::Archiving),
            (Hops, &[F::Finished, F::Archiving], JobState::Archiving),
            (Replicas, &[F::Archiving, F::NotUsed], JobState::Archiving),
            (Regular, &[F::Staging, F::Staging], JobState::Staging),
            (Regular, &[F::Staging, F::Active], JobState::Active),
            (Regular, &[F::Submitted, F::Submitted], JobState::Submitted),
            (Regular, &[F::Canceled, F::Submitted], JobState::Submitted),
            (Regular, &[F::Canceled, F::Canceled], JobState::Canceled),
            (Regular, &[F::Archiving, F::Submitted], JobState::Active),
            (Regular, &[], JobState::Canceled),
        ] {
            assert_eq!(state(kind, files), job, "{kind} {files:?}");
        }
    }

    #[test]
    fn a_job_that_began_is_not_queued_again_and_says_why_it_failed() {
        let retried = at(JobKind::Regular, &[F::Submitted]);
        assert_eq!(job_state(JobKind::Regular, JobState::Active, &retried).state, JobState::Active);
        let failed = job_state(JobKind::Regular, JobState::Active, &at(JobKind::Regular, &[F::Failed]));
        assert_eq!((failed.state, failed.reason), (JobState::Failed, FILES_FAILED));
        let done = job_state(JobKind::Regular, JobState::Active, &at(JobKind::Regular, &[F::Finished]));
        assert_eq!((done.state, done.reason), (JobState::Finished, ""));
    }

    #[test]
    fn hops_and_replicas_take_turns() {
        let hop = |states: &[F]| next_hop(&at(JobKind::Hops, states));
        assert_eq!(hop(&[F::NotUsed, F::NotUsed]), Some(0));
        assert_eq!(hop(&[F::Finished, F::NotUsed, F::NotUsed]), Some(1));
        assert_eq!(hop(&[F::Finished, F::Active, F::NotUsed]), None);
        assert_eq!(hop(&[F::Finished, F::Failed, F::NotUsed]), None);
        assert_eq!(hop(&[F::Finished, F::Finished]), None);
        let replica = |states: &[F]| next_replicas(&at(JobKind::Replicas, states));
        assert_eq!(replica(&[F::NotUsed, F::NotUsed]), [0, 1]);
        assert_eq!(replica(&[F::Failed, F::NotUsed, F::NotUsed]), [1, 2]);
        assert!(replica(&[F::Submitted, F::NotUsed]).is_empty());
        assert!(replica(&[F::Finished, F::NotUsed]).is_empty());
        assert!(replica(&[F::Failed, F::Failed]).is_empty());
    }

    #[test]
    fn retries_are_the_jobs_else_the_deployments() {
        assert_eq!(retries_of(JobKind::Regular, 3, 7), 3);
        assert_eq!(retries_of(JobKind::Regular, 0, 7), 7);
        assert_eq!(retries_of(JobKind::Reuse, -1, 7), 0);
        assert_eq!(retries_of(JobKind::Replicas, 3, 7), 0);
        assert_eq!(retries_of(JobKind::Hops, 3, 7), 0);
        assert_eq!(retries_of(JobKind::Regular, i64::MAX, 7), u32::MAX);
    }

    fn any_state() -> impl Strategy<Value = F> {
        (0..F::ALL.len()).prop_map(|place| F::ALL[place])
    }

    proptest! {
        /// Kept file by file, a tally says what one counted anew says, where no index is shared.
        #[test]
        fn a_tally_is_kept_file_by_file(steps in prop::collection::vec((0..4usize, any_state()), 0..20)) {
            let mut states = [F::Submitted; 4];
            let mut tally = JobFileCounts::default();
            states.iter().for_each(|&state| tally.add(state));
            for (file, state) in steps {
                tally.moved(states[file], state);
                states[file] = state;
                let files = at(JobKind::Regular, &states);
                prop_assert_eq!(tally, JobFileCounts::from_groups(JobKind::Regular, &files));
            }
        }

        /// A job has ended exactly if nothing of it can still come to something.
        #[test]
        fn a_job_ends_with_its_last_file(
            kind in (0..JobKind::ALL.len()).prop_map(|place| JobKind::ALL[place]),
            states in prop::collection::vec(any_state(), 1..6),
        ) {
            let files = at(kind, &states);
            let verdict = job_state(kind, JobState::Submitted, &files);
            let over = match kind {
                JobKind::Hops => states.iter().any(|state| matches!(state, F::Failed | F::Canceled))
                    || states.iter().all(|&state| state == F::Finished),
                JobKind::Replicas => states.contains(&F::Finished)
                    || states.iter().all(|state| state.is_terminal()),
                _ => states.iter().all(|state| state.is_terminal()),
            };
            prop_assert_eq!(verdict.state.is_terminal(), over);
            prop_assert_eq!(verdict.reason.is_empty(), !over || verdict.state == JobState::Finished);
            prop_assert!(!over || next_replicas(&files).is_empty() || kind != JobKind::Replicas);
            prop_assert!(!over || next_hop(&files).is_none() || kind != JobKind::Hops);
        }
    }
}
