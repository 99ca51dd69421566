//! The copies that agents stream now, and who waits for each. In memory: after a restart of the service all
//! copies begin again, and agents end those that they have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_api::foreign::TAKEN_BACK_BY_SERVICE;
use longhaul_control::executor::AgentStreams;
use longhaul_model::{AgentId, AttemptId, Epoch, Fault, FaultCode, SiteName};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::choice::{Candidate, ChoiceError, choose};

/// How long an agent gets no copies after it reported a file complete that was not at the target: long enough
/// that a liar costs little, short enough that a fault that was mended is forgotten.
const DISTRUST_TTL: Duration = Duration::from_secs(3_600);

#[derive(Default)]
pub struct StreamLedger {
    given: Mutex<BTreeMap<AttemptId, AssignedCopy>>,
    /// Agents that reported a copy complete which was not, and since when they get none.
    distrusted: Mutex<BTreeMap<AgentId, Instant>>,
    settled: Notify,
}

struct AssignedCopy {
    agent: AgentId,
    site: SiteName,
    epoch: Epoch,
    /// The agent that was chosen, and the reason.
    choice: String,
    /// The agent may have received it.
    sent: bool,
    bytes: u64,
    heard: Instant,
    /// None once it has ended, while that is not durable yet.
    end: Option<oneshot::Sender<StreamResult>>,
}

/// The bytes of a file that is complete at its target, or why it is not.
pub type StreamResult = Result<u64, Fault>;

/// The chosen agent, the reason, and the channel on which the end will arrive.
pub struct Assignment {
    pub candidate: Candidate,
    pub choice: String,
    pub end: oneshot::Receiver<StreamResult>,
}

impl StreamLedger {
    /// Assigns a copy to the best of these agents by their present load, or says why none can take it.
    pub fn assign(
        &self,
        attempt: AttemptId,
        epoch: Epoch,
        mut candidates: Vec<Candidate>,
        now: Instant,
    ) -> Result<Assignment, ChoiceError> {
        let mut given = self.given.lock();
        let mut distrusted = self.distrusted.lock();
        distrusted.retain(|_, since| now.saturating_duration_since(*since) < DISTRUST_TTL);
        for candidate in &mut candidates {
            if distrusted.contains_key(&candidate.agent) {
                candidate.unwilling = Some("a file that it reported complete was not at the target");
            }
            let count = |counts: &dyn Fn(&AssignedCopy) -> bool| {
                let running = given.values().filter(|one| one.end.is_some() && counts(one));
                u32::try_from(running.count()).unwrap_or(u32::MAX)
            };
            candidate.busy = count(&|one| one.agent == candidate.agent);
            candidate.site_busy = count(&|one| one.site == candidate.site);
        }
        let (candidate, choice) = choose(&candidates)?;
        let (sender, end) = oneshot::channel();
        let one = AssignedCopy {
            agent: candidate.agent,
            site: candidate.site.clone(),
            epoch,
            choice: choice.clone(),
            sent: false,
            bytes: 0,
            heard: now,
            end: Some(sender),
        };
        given.insert(attempt, one);
        Ok(Assignment { candidate: candidate.clone(), choice, end })
    }

    /// Gives an agent no copies for [`DISTRUST_TTL`].
    pub fn distrust(&self, agent: AgentId, now: Instant) {
        self.distrusted.lock().insert(agent, now);
    }

    pub fn mark_sent(&self, attempt: AttemptId, now: Instant) {
        if let Some(one) = self.given.lock().get_mut(&attempt) {
            one.sent = true;
            one.heard = now;
        }
    }

    /// Records that the agent still has the copy.
    pub fn record_progress(&self, agent: AgentId, attempt: AttemptId, bytes: u64, now: Instant) {
        if let Some(one) = self.given.lock().get_mut(&attempt).filter(|one| one.agent == agent) {
            one.bytes = one.bytes.max(bytes);
            one.heard = now;
        }
    }

    /// Bytes so far, and the time since the agent's last report.
    pub fn progress(&self, attempt: AttemptId, now: Instant) -> Option<(u64, Duration)> {
        self.given.lock().get(&attempt).map(|one| (one.bytes, now.saturating_duration_since(one.heard)))
    }

    /// The agent that streams a copy, and the reason for this choice.
    pub fn choice(&self, attempt: AttemptId) -> Option<String> {
        self.given.lock().get(&attempt).map(|one| one.choice.clone())
    }

    pub fn attempts_of(&self, agent: AgentId) -> BTreeSet<AttemptId> {
        let given = self.given.lock();
        given.iter().filter(|(_, one)| one.agent == agent).map(|(&attempt, _)| attempt).collect()
    }

    /// The number of copies that the agent streams now.
    pub fn busy(&self, agent: AgentId) -> u32 {
        let given = self.given.lock();
        let running = given.values().filter(|one| one.agent == agent && one.end.is_some()).count();
        u32::try_from(running).unwrap_or(u32::MAX)
    }

    /// Records the end that an agent reports; the first one counts. False if the copy is not assigned to this
    /// agent any more, or has another epoch.
    pub fn record_end(&self, agent: AgentId, attempt: AttemptId, epoch: Epoch, result: StreamResult) -> bool {
        let mut given = self.given.lock();
        let Some(one) = given.get_mut(&attempt) else { return false };
        if one.agent != agent || one.epoch != epoch {
            return false;
        }
        if let Some(end) = one.end.take() {
            // Who waited may have been cancelled just now.
            let _ = end.send(result);
        }
        true
    }

    /// Fails the copies that were sent to an agent and are not among those that it holds.
    pub fn drop_lost(&self, agent: AgentId, held: &BTreeSet<AttemptId>) {
        for (attempt, one) in self.given.lock().iter_mut() {
            if one.agent == agent && one.sent && !held.contains(attempt) {
                let fault = Fault::new(FaultCode::Interrupted, "the agent that streamed it has lost it");
                let _ = one.end.take().map(|end| end.send(Err(fault)));
            }
        }
    }

    /// Forgets a copy whose end is durable, or does not matter.
    pub fn settle(&self, attempt: AttemptId) {
        if self.given.lock().remove(&attempt).is_some() {
            self.settled.notify_waiters();
        }
    }

    /// Waits until all of these are settled; false if the time is over before.
    pub async fn wait_settled(&self, attempts: &[AttemptId], within: Duration) -> bool {
        let all = async {
            loop {
                let settled = self.settled.notified();
                let left = {
                    let given = self.given.lock();
                    // One that was given to somebody else meanwhile was settled before.
                    attempts.iter().any(|attempt| given.get(attempt).is_some_and(|one| one.end.is_none()))
                };
                if !left {
                    return;
                }
                settled.await;
            }
        };
        tokio::time::timeout(within, all).await.is_ok()
    }
}

impl AgentStreams for StreamLedger {
    fn reconcile(&self, agent: AgentId, held: &BTreeSet<AttemptId>) -> Vec<AttemptId> {
        self.drop_lost(agent, held);
        self.attempts_of(agent).into_iter().collect()
    }
}

/// Whether a copy is lost: its agent has not reported it for so long.
pub fn is_lost(silent: Duration) -> bool {
    silent > TAKEN_BACK_BY_SERVICE
}

#[cfg(test)]
mod tests {
    use super::super::choice::Near;
    use super::*;

    const FIRST_AGENT: AgentId = AgentId(1);
    const OTHER_AGENT: AgentId = AgentId(2);

    fn candidate(agent: AgentId, files: u32) -> Candidate {
        Candidate {
            agent,
            site: "beta".parse().unwrap(),
            host: "h".into(),
            near: Near::Target,
            busy: 0,
            files,
            site_busy: 0,
            site_files: None,
            unwilling: None,
        }
    }

    fn take(
        handed: &StreamLedger,
        attempt: u64,
        candidates: Vec<Candidate>,
    ) -> Result<Assignment, ChoiceError> {
        handed.assign(AttemptId(attempt), Epoch(attempt), candidates, Instant::now())
    }

    #[test]
    fn places_are_counted_over_all_copies_and_over_those_of_a_site() {
        let handed = StreamLedger::default();
        let both = || vec![candidate(FIRST_AGENT, 2), candidate(OTHER_AGENT, 2)];
        let taken: Vec<_> = (1..=4).map(|attempt| take(&handed, attempt, both()).unwrap()).collect();
        assert_eq!(
            taken.iter().map(|one| one.candidate.agent).collect::<Vec<_>>(),
            [FIRST_AGENT, OTHER_AGENT, FIRST_AGENT, OTHER_AGENT]
        );
        assert!(take(&handed, 5, both()).is_err(), "all places are taken");
        handed.record_end(FIRST_AGENT, AttemptId(1), Epoch(1), Ok(1));
        assert_eq!((handed.busy(FIRST_AGENT), handed.busy(OTHER_AGENT)), (1, 2));
        let limited = || both().into_iter().map(|one| Candidate { site_files: Some(3), ..one }).collect();
        assert!(take(&handed, 6, limited()).is_err(), "three run at the site");
        assert_eq!(take(&handed, 7, both()).unwrap().candidate.agent, FIRST_AGENT);
    }

    #[test]
    fn an_agent_whose_word_was_untrue_gets_no_copies_for_an_hour() {
        let (handed, now) = (StreamLedger::default(), Instant::now());
        handed.distrust(FIRST_AGENT, now);
        let both = || vec![candidate(FIRST_AGENT, 2), candidate(OTHER_AGENT, 2)];
        let taken = handed.assign(AttemptId(1), Epoch(1), both(), now).unwrap();
        assert_eq!(taken.candidate.agent, OTHER_AGENT);
        let alone = vec![candidate(FIRST_AGENT, 2)];
        let why = handed.assign(AttemptId(2), Epoch(2), alone.clone(), now).err().unwrap();
        assert!(why.to_string().contains("was not at the target"), "{why}");
        assert!(handed.assign(AttemptId(3), Epoch(3), alone, now + DISTRUST_TTL).is_ok());
    }

    #[tokio::test]
    async fn an_end_counts_once_and_of_its_epoch_and_agent_only() {
        let handed = StreamLedger::default();
        let taken = take(&handed, 3, vec![candidate(FIRST_AGENT, 1)]).unwrap();
        assert!(!handed.record_end(OTHER_AGENT, AttemptId(3), Epoch(3), Ok(7)));
        assert!(
            !handed.record_end(FIRST_AGENT, AttemptId(3), Epoch(2), Ok(7)),
            "a late word of a former epoch"
        );
        assert!(handed.record_end(FIRST_AGENT, AttemptId(3), Epoch(3), Ok(8)));
        assert!(
            handed.record_end(FIRST_AGENT, AttemptId(3), Epoch(3), Ok(9)),
            "said again, and not durable yet"
        );
        assert_eq!(taken.end.await.unwrap(), Ok(8));
        let soon = Duration::from_millis(1);
        assert!(!handed.wait_settled(&[AttemptId(3)], soon).await);
        handed.settle(AttemptId(3));
        assert!(handed.wait_settled(&[AttemptId(3)], soon).await);
        assert!(
            !handed.record_end(FIRST_AGENT, AttemptId(3), Epoch(3), Ok(8)),
            "it is none of ours any more"
        );
    }

    #[tokio::test]
    async fn what_an_agent_does_not_hold_any_more_is_lost_unless_it_is_yet_to_be_sent() {
        let handed = StreamLedger::default();
        let taken: Vec<_> =
            (1..=3).map(|attempt| take(&handed, attempt, vec![candidate(FIRST_AGENT, 9)]).unwrap()).collect();
        for attempt in [1, 2] {
            handed.mark_sent(AttemptId(attempt), Instant::now());
        }
        handed.drop_lost(FIRST_AGENT, &BTreeSet::from([AttemptId(2)]));
        let mut ends = taken.into_iter().map(|one| one.end);
        assert_eq!(ends.next().unwrap().await.unwrap().unwrap_err().code, FaultCode::Interrupted);
        assert!(ends.all(|mut end| end.try_recv().is_err()), "the others go on");
    }

    #[test]
    fn an_agent_gives_up_before_its_copies_are_taken_back() {
        assert!(is_lost(TAKEN_BACK_BY_SERVICE + Duration::from_secs(1)));
        assert!(!is_lost(longhaul_api::foreign::GIVEN_UP_BY_AGENT + Duration::from_secs(20)));
    }
}
