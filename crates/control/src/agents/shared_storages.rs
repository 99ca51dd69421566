//! Storages that several agents of a site serve: a file system with transfer nodes. One of them *leads*: it
//! does the storage's tasks and reports its space. All read from it and write to it, each the files that it
//! was given.
//!
//! The scheduler decides by storage and knows one agent for each. Which of several gets a lease is decided
//! when it becomes durable.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_api::agent::FenceOrder;
use longhaul_model::{AgentId, StorageId, Timestamp};
use longhaul_scheduler::Event;

use super::{Agents, Presence};

/// One that holds its lock in the root may only be cut off from the service: after this time what it held has
/// ended or must not begin any more, and it is fenced all the same.
pub const FENCE_LOCKED_AFTER: Duration = Duration::from_secs(20 * 60);
/// An order whose answer was lost is repeated after this time.
const ORDER_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// A silent agent of a shared storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilentAgent {
    pub agent: AgentId,
    pub storage: StorageId,
    /// Another one that can fence it.
    pub by: AgentId,
    pub even_if_locked: bool,
}

impl Presence {
    /// All storages that it serves, whoever leads them.
    pub(super) fn served(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.storages.iter().chain(&self.joined).copied()
    }

    pub(super) fn serves(&self, storage: StorageId) -> bool {
        self.served().any(|served| served == storage)
    }

    /// When it was heard of last, by request or by its own word that it ends.
    fn silent_since(&self) -> Option<Timestamp> {
        self.ended.or(self.last_contact)
    }
}

impl Agents {
    /// The connected agents that serve a storage, by id.
    pub fn serving(&self, storage: StorageId, now: Timestamp) -> Vec<AgentId> {
        let presences = self.lock();
        let serving =
            presences.iter().filter(|(_, presence)| presence.serves(storage) && presence.is_connected(now));
        serving.map(|(&agent, _)| agent).collect()
    }

    /// All storages that an agent serves, whoever leads them.
    pub fn served_by(&self, agent: AgentId) -> Vec<StorageId> {
        let presences = self.lock();
        presences.get(&agent).map(|presence| presence.served().collect()).unwrap_or_default()
    }

    /// Any agent that serves the storage and was heard of lately, but for the one that leads it.
    pub fn joined_agent(&self, storage: StorageId, now: Timestamp) -> Option<AgentId> {
        let presences = self.lock();
        let mut joined = presences
            .iter()
            .filter(|(_, presence)| presence.joined.contains(&storage) && presence.is_heard(now));
        joined.next().map(|(&agent, _)| agent)
    }

    /// As whom the scheduler knows the agents of a storage.
    pub fn known_as(&self, storage: StorageId) -> Option<AgentId> {
        self.known_as.lock().get(&storage).copied().or_else(|| self.of_storage(storage))
    }

    /// Storages of which the scheduler knows this agent, whoever leads them.
    pub fn storages_known_as(&self, agent: AgentId) -> Vec<StorageId> {
        let mut storages = self.storages_of(agent);
        let known_as = self.known_as.lock();
        storages.retain(|storage| known_as.get(storage).is_none_or(|known| *known == agent));
        let elsewhere =
            known_as.iter().filter(|(storage, known)| **known == agent && !storages.contains(storage));
        let elsewhere: Vec<StorageId> = elsewhere.map(|(&storage, _)| storage).collect();
        [storages, elsewhere].concat()
    }

    /// A shared storage keeps the name by which the scheduler knows its agents, whoever leads it.
    pub(super) fn note_served(
        &self,
        agent: AgentId,
        led: &[StorageId],
        shared: &[StorageId],
        joined: &[StorageId],
    ) {
        let mut known_as = self.known_as.lock();
        for storage in led.iter().filter(|storage| !shared.contains(storage)) {
            known_as.remove(storage);
        }
        for &storage in shared.iter().chain(joined) {
            known_as.entry(storage).or_insert(agent);
        }
    }

    /// Whether the agent that led a shared storage leads it no more: it was fenced, refused or removed, or it
    /// said that it does not serve the storage. Silence alone is no reason: it may verify or delete there.
    pub(crate) fn has_given_up(&self, lead: AgentId, storage: StorageId) -> bool {
        if self.check_admitted(lead).is_err() {
            return true;
        }
        let presences = self.lock();
        presences.get(&lead).is_none_or(|presence| {
            presence.displaced.contains(&storage) || presence.said_hello && !presence.serves(storage)
        })
    }

    /// Events for the scheduler after the connection of an agent that serves these storages has changed.
    pub fn connection_events(&self, agent: AgentId, storages: Vec<StorageId>, now: Timestamp) -> Vec<Event> {
        let event = |storage| Event::Agent {
            storage,
            agent: Some(self.known_as(storage).unwrap_or(agent)),
            connected: !self.serving(storage, now).is_empty(),
        };
        storages.into_iter().map(event).collect()
    }

    /// Agents that have been silent for so long, each with another one that is connected and takes over what
    /// it held. `holders` are those that lead a shared storage or hold leases for it. Each is named again
    /// only after a while.
    pub fn silent_agents(
        &self,
        holders: &BTreeSet<(AgentId, StorageId)>,
        after: Duration,
        now: Timestamp,
    ) -> Vec<SilentAgent> {
        let listening_since = self.listening_since.lock().unwrap_or(now);
        let mut presences = self.lock();
        let mut silent = Vec::new();
        for &(agent, storage) in holders {
            let Some(presence) = presences.get(&agent) else { continue };
            let since = presence.silent_since().unwrap_or_default().max(listening_since);
            let asked = presence.fences_asked.get(&storage);
            let is_asked = asked.is_some_and(|asked| now.since(*asked) < ORDER_AGAIN_AFTER);
            let is_fenced = presence.displaced.contains(&storage);
            if presence.is_heard(now) || now.since(since) < after || is_asked || is_fenced {
                continue;
            }
            let even_if_locked = now.since(since) >= FENCE_LOCKED_AFTER;
            let mut others = presences.iter().filter(|(other, there)| {
                **other != agent && there.serves(storage) && there.is_connected(now)
            });
            if let Some((&by, _)) = others.next() {
                silent.push(SilentAgent { agent, storage, by, even_if_locked });
            }
        }
        for found in &silent {
            if let Some(presence) = presences.get_mut(&found.agent) {
                presence.fences_asked.insert(found.storage, now);
            }
        }
        silent
    }

    pub fn order_fence(&self, by: AgentId, order: FenceOrder) {
        self.with(by, |presence| presence.outbox.put_fence(order));
    }

    /// Whether the word of one agent that it has fenced another one counts: it serves the storage, and the
    /// other one, of the same site, is silent still. One that is back has ended what was fenced by itself.
    pub fn may_take_over(&self, by: AgentId, from: AgentId, storage: StorageId, now: Timestamp) -> bool {
        let presences = self.lock();
        let Some((by, from)) = presences.get(&by).zip(presences.get(&from)).filter(|_| by != from) else {
            return false;
        };
        by.serves(storage)
            && by.site == from.site
            && !from.is_heard(now)
            && !from.displaced.contains(&storage)
    }

    /// The agent was fenced: it serves the storage no more until it offers it again. If it led it, the one
    /// that fenced it offers it again, and leads it from then on.
    pub fn note_fenced(&self, from: AgentId, by: AgentId, storage: StorageId, led: bool) {
        let mut presences = self.lock();
        let Some(presence) = presences.get_mut(&from) else { return };
        presence.storages.retain(|served| *served != storage);
        presence.joined.retain(|served| *served != storage);
        presence.fences_asked.remove(&storage);
        presence.displaced.push(storage);
        if let Some(next) = presences.get_mut(&by).filter(|_| led) {
            next.displaced.push(storage);
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_api::agent::Incarnation;
    use longhaul_catalog::AgentRow;
    use longhaul_model::SiteId;

    use super::super::ServedStorages;
    use super::*;

    const LEAD: AgentId = AgentId(1);
    const SIBLING: AgentId = AgentId(2);
    const STORAGE: StorageId = StorageId(5);
    const AFTER: Duration = Duration::from_secs(60);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_700_000_000 + seconds)
    }

    fn row(agent: AgentId) -> AgentRow {
        AgentRow {
            id: agent,
            site: SiteId(1),
            site_name: "alpha".parse().unwrap(),
            host: format!("node{agent}"),
            version: "1".into(),
            incarnation: longhaul_catalog::Incarnation { number: 1, nonce: agent.0 },
            addresses: vec![format!("node{agent}:1")],
            certificate_expires: Timestamp::MAX,
            acknowledged: 0,
            created: Timestamp::ZERO,
            last_hello: None,
        }
    }

    fn lead() -> ServedStorages {
        ServedStorages { led: vec![STORAGE], shared: vec![STORAGE], joined: vec![] }
    }

    fn joined() -> ServedStorages {
        ServedStorages { joined: vec![STORAGE], ..ServedStorages::default() }
    }

    fn holders() -> BTreeSet<(AgentId, StorageId)> {
        BTreeSet::from([(LEAD, STORAGE), (SIBLING, STORAGE)])
    }

    fn word_of(agents: &Agents, agent: AgentId, now: Timestamp) {
        agents.contact(agent, Incarnation { number: 1, nonce: agent.0 }, now).unwrap();
    }

    /// Both are there at second 0.
    fn two_agents() -> Agents {
        let agents = Agents::default();
        for (agent, served) in [(LEAD, lead()), (SIBLING, joined())] {
            agents.add(row(agent));
            agents.hello(row(agent), served, at(0));
            agents.open_session(agent);
        }
        agents.transitions(at(0));
        agents
    }

    fn events(agents: &Agents, now: Timestamp) -> Vec<(Option<AgentId>, bool)> {
        let told = agents.transition_events(now).into_iter().map(|event| match event {
            Event::Agent { agent, connected, .. } => (agent, connected),
            other => panic!("{other:?}"),
        });
        told.collect()
    }

    #[test]
    fn a_shared_storage_is_there_while_one_of_its_agents_is() {
        let agents = two_agents();
        assert_eq!(agents.serving(STORAGE, at(1)), [LEAD, SIBLING]);
        word_of(&agents, SIBLING, at(20));
        assert_eq!(agents.serving(STORAGE, at(20)), [SIBLING]);
        assert_eq!(events(&agents, at(20)), [(Some(LEAD), true)], "nothing is over for the scheduler");
        assert_eq!(agents.of_storage(STORAGE), Some(LEAD), "tasks wait for the one that leads");
        assert_eq!(events(&agents, at(40)), [(Some(LEAD), false)]);
    }

    #[test]
    fn the_silent_one_is_fenced_once_and_again_only_after_a_while() {
        let agents = two_agents();
        let silent = |now: i64| {
            word_of(&agents, SIBLING, at(now));
            agents.silent_agents(&holders(), AFTER, at(now))
        };
        assert_eq!(silent(59), []);
        let asked = SilentAgent { agent: LEAD, storage: STORAGE, by: SIBLING, even_if_locked: false };
        assert_eq!(silent(60), [asked]);
        assert_eq!(silent(89), []);
        assert_eq!(silent(90), [asked]);
        assert_eq!(silent(1_200), [SilentAgent { even_if_locked: true, ..asked }]);
        word_of(&agents, LEAD, at(1_300));
        assert_eq!(silent(1_300), []);
        agents.note_ending(SIBLING, at(1_300));
        word_of(&agents, LEAD, at(1_360));
        let by_lead = SilentAgent { agent: SIBLING, storage: STORAGE, by: LEAD, even_if_locked: false };
        assert_eq!(
            agents.silent_agents(&holders(), AFTER, at(1_360)),
            [by_lead],
            "one that has ended as well"
        );
    }

    #[test]
    fn whoever_fenced_the_lead_offers_the_storage_again_and_leads_it() {
        let agents = two_agents();
        word_of(&agents, SIBLING, at(70));
        assert!(agents.may_take_over(SIBLING, LEAD, STORAGE, at(70)));
        assert!(!agents.may_take_over(LEAD, SIBLING, STORAGE, at(70)), "it is there");
        assert!(!agents.may_take_over(AgentId(9), LEAD, STORAGE, at(70)), "a stranger");
        assert!(!agents.may_take_over(SIBLING, LEAD, StorageId(6), at(70)), "another storage");
        assert!(!agents.has_given_up(LEAD, STORAGE), "silence alone is no reason");
        agents.note_fenced(LEAD, SIBLING, STORAGE, true);
        assert!(agents.has_given_up(LEAD, STORAGE));
        assert!(agents.is_displaced(SIBLING) && agents.is_displaced(LEAD));
        assert!(!agents.may_take_over(SIBLING, LEAD, STORAGE, at(70)), "once");
        assert!(agents.other_holder(SIBLING, STORAGE, LEAD, at(70)).is_none());
        agents.hello(row(SIBLING), lead(), at(71));
        assert_eq!(agents.of_storage(STORAGE), Some(SIBLING));
        assert_eq!(agents.known_as(STORAGE), Some(LEAD), "as before: no lease is released for it");
        assert_eq!(
            (agents.storages_known_as(LEAD), agents.storages_known_as(SIBLING)),
            (vec![STORAGE], vec![])
        );
        agents.hello(row(LEAD), joined(), at(80));
        assert_eq!(agents.serving(STORAGE, at(80)), [LEAD, SIBLING]);
        assert!(!agents.is_displaced(LEAD));
    }

    /// Nobody could be heard while the service was away, and the one that says hello first does not lead.
    #[test]
    fn after_a_restart_of_the_service_silence_counts_anew() {
        let agents = Agents::default();
        [LEAD, SIBLING].into_iter().for_each(|agent| agents.add(row(agent)));
        agents.hello(row(SIBLING), joined(), at(10_000));
        agents.open_session(SIBLING);
        assert!(!agents.has_given_up(LEAD, STORAGE));
        assert_eq!(agents.known_as(STORAGE), Some(SIBLING), "leases go to the one that is there");
        let silent = |now: i64| {
            word_of(&agents, SIBLING, at(now));
            agents.silent_agents(&holders(), AFTER, at(now))
        };
        assert_eq!((silent(10_000), silent(10_059)), (vec![], vec![]));
        let asked = SilentAgent { agent: LEAD, storage: STORAGE, by: SIBLING, even_if_locked: false };
        assert_eq!(silent(10_060), [asked]);
        assert!(agents.may_take_over(SIBLING, LEAD, STORAGE, at(10_060)));
        agents.hello(row(LEAD), lead(), at(10_061));
        agents.open_session(LEAD);
        assert_eq!(agents.known_as(STORAGE), Some(SIBLING), "and no lease is released when it leads");
    }

    #[test]
    fn a_storage_that_is_shared_no_more_has_one_agent() {
        let agents = two_agents();
        assert_eq!((agents.served_by(LEAD), agents.served_by(SIBLING)), (vec![STORAGE], vec![STORAGE]));
        agents.hello(row(LEAD), vec![STORAGE], at(1));
        assert_eq!(agents.serving(STORAGE, at(1)), [LEAD]);
        assert!(agents.is_displaced(SIBLING), "it has to learn of it");
    }
}
