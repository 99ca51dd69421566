//! Agents whose hello is refused: they are in contact, and yet serve nothing. A problem of their site as long
//! as they go on trying. In memory only: after a restart of the service they try again.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{AgentId, Fault, Timestamp};
use parking_lot::Mutex;

/// An agent that has not tried for this long was stopped, or gave up. Agents try every few seconds.
const TRY_TTL: Duration = Duration::from_secs(600);

/// One try may be the last word of a process that was replaced meanwhile.
const TRIES_SHOWN_MIN: u64 = 2;

/// Bounded by the agents that have joined.
#[derive(Default)]
pub struct TurnedAway(Mutex<BTreeMap<AgentId, TurnedAwayAgent>>);

/// An agent whose hello is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnedAwayAgent {
    /// As it calls itself: the catalog knows what it said last when it was let in.
    pub host: String,
    /// Why, at its last try.
    pub fault: Fault,
    pub first: Timestamp,
    pub last: Timestamp,
    pub times: u64,
}

impl TurnedAway {
    /// Returns whether the agent becomes a problem with this.
    pub fn record(&self, agent: AgentId, host: &str, fault: &Fault, now: Timestamp) -> bool {
        let mut agents = self.0.lock();
        agents.retain(|_, row| now.since(row.last) < TRY_TTL);
        let row = agents.entry(agent).or_insert_with(|| TurnedAwayAgent {
            host: String::new(),
            fault: fault.clone(),
            first: now,
            last: now,
            times: 0,
        });
        (row.host, row.fault, row.last) = (host.to_owned(), fault.clone(), now);
        row.times = row.times.saturating_add(1);
        row.times == TRIES_SHOWN_MIN
    }

    /// The agent was let in, or is no more. Returns whether it was a problem.
    pub fn clear(&self, agent: AgentId) -> bool {
        self.0.lock().remove(&agent).is_some_and(|row| row.times >= TRIES_SHOWN_MIN)
    }

    /// The agent, if it is a problem now.
    pub fn get(&self, agent: AgentId, now: Timestamp) -> Option<TurnedAwayAgent> {
        let shown = |row: &&TurnedAwayAgent| row.times >= TRIES_SHOWN_MIN && now.since(row.last) < TRY_TTL;
        self.0.lock().get(&agent).filter(shown).cloned()
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::FaultCode;

    use super::*;

    #[test]
    fn an_agent_is_a_problem_until_it_is_let_in_or_gives_up() {
        let (turned_away, agent) = (TurnedAway::default(), AgentId(7));
        let at = Timestamp::from_seconds;
        let fault = |text: &str| Fault::new(FaultCode::Conflict, text);
        assert!(!turned_away.record(agent, "worker1", &fault("first"), at(10)), "it may have been replaced");
        assert!(turned_away.get(agent, at(10)).is_none());
        assert!(turned_away.record(agent, "worker2", &fault("second"), at(20)));
        assert!(!turned_away.record(agent, "worker2", &fault("third"), at(25)), "it is one already");
        let row = turned_away.get(agent, at(30)).unwrap();
        assert_eq!((row.first, row.last, row.times), (at(10), at(25), 3));
        assert_eq!((row.host.as_str(), row.fault.detail.as_str()), ("worker2", "third"));
        assert!(turned_away.get(AgentId(8), at(30)).is_none());
        assert!(turned_away.get(agent, at(25).plus(TRY_TTL)).is_none(), "it gave up");
        assert!(turned_away.clear(agent) && !turned_away.clear(agent));
        assert!(turned_away.get(agent, at(30)).is_none());
    }
}
