//! Presence of agents: who is connected, under which incarnation (a fencing number), and each one's outbox.
//!
//! An agent is *connected* while it holds a work poll open or was heard of lately. It gets work only after it
//! said hello in this incarnation to this process of the service, so that what it holds is known first.

pub mod shared_storages;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{
    AgentSettings, AskedBack, Incarnation, LeaseBatch, SourcePeer, StageOrder, StageRelease, Task, Work,
};
use longhaul_api::foreign::{ForeignCopy, MoverOffer};
use longhaul_api::native::{AgentView, MoverView};
use longhaul_catalog::{AgentRow, RefusedAgentRow};
use longhaul_model::{
    AgentId, AttemptId, Fault, FaultCode, SiteId, SiteName, StorageId, StorageName, TaskId, Timestamp,
};
use longhaul_scheduler::Event;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::outbox::Outbox;

/// An agent without an open poll counts as connected for this long after its last request.
pub const CONTACT_TIMEOUT: Duration = Duration::from_secs(15);

struct Presence {
    site: SiteId,
    site_name: SiteName,
    host: String,
    version: String,
    addresses: Vec<String>,
    /// The incarnation of the last accepted hello, as in the catalog.
    incarnation: Incarnation,
    /// Whether that hello was said to this process.
    said_hello: bool,
    storages: Vec<StorageId>,
    /// Shared storages that it serves beside the agent that offered them last.
    joined: Vec<StorageId>,
    /// Storages of its last hello that another agent has taken over since, or that it has to offer again.
    displaced: Vec<StorageId>,
    /// Names that its last hello offered and that were left out, since they are not its site's.
    unconfirmed: Vec<StorageName>,
    /// When another agent was last asked to fence this one in a shared storage.
    fences_asked: BTreeMap<StorageId, Timestamp>,
    /// What was last put into its outbox in this session.
    settings: Option<AgentSettings>,
    /// Its offer to make copies between storages of others.
    mover: Option<MoverOffer>,
    certificate_expires: Timestamp,
    last_contact: Option<Timestamp>,
    /// When it said that it stops; none from its next hello on.
    ended: Option<Timestamp>,
    open_polls: u32,
    clock_offset_ms: i64,
    /// Connection state that the scheduler was last told.
    connected: bool,
    outbox: Outbox,
    wake: Arc<Notify>,
}

impl Presence {
    fn is_connected(&self, now: Timestamp) -> bool {
        self.said_hello && self.is_heard(now)
    }

    /// Whether it asked for something lately, known or not.
    fn is_heard(&self, now: Timestamp) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let recent = self.last_contact.is_some_and(|last| now.since(last) < CONTACT_TIMEOUT);
        self.open_polls > 0 || recent
    }
}

/// Where an agent is, and how others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentInfo {
    pub id: AgentId,
    pub site: SiteId,
    pub site_name: SiteName,
    pub host: String,
    pub addresses: Vec<String>,
}

impl AgentInfo {
    fn from_presence(id: AgentId, presence: &Presence) -> Self {
        AgentInfo {
            id,
            site: presence.site,
            site_name: presence.site_name.clone(),
            host: presence.host.clone(),
            addresses: presence.addresses.clone(),
        }
    }
}

/// How the incarnation of a request relates to the one of the last hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The same, and it said hello to this process.
    Present,
    /// It has to say hello first.
    AwaitingHello,
}

/// The storages of a hello that are served from now on.
#[derive(Clone, Debug, Default)]
pub struct ServedStorages {
    /// Those whose tasks the agent does.
    pub led: Vec<StorageId>,
    /// The led ones that other agents may serve as well.
    pub shared: Vec<StorageId>,
    /// Those that it serves beside the agent that leads them.
    pub joined: Vec<StorageId>,
}

impl From<Vec<StorageId>> for ServedStorages {
    fn from(led: Vec<StorageId>) -> Self {
        ServedStorages { led, ..ServedStorages::default() }
    }
}

#[derive(Default)]
pub struct Agents {
    presences: Mutex<BTreeMap<AgentId, Presence>>,
    /// As whom the scheduler knows those that serve a shared storage: it knows one agent for each storage.
    known_as: Mutex<BTreeMap<StorageId, AgentId>>,
    /// The first hello to this process, since when silence counts: before, it could hear nobody.
    listening_since: Mutex<Option<Timestamp>>,
    /// Agents whose certificates are refused.
    refused: Mutex<BTreeMap<AgentId, RefusedAgentRow>>,
}

/// An open poll; counts until dropped.
pub struct OpenPoll<'a> {
    agents: &'a Agents,
    agent: AgentId,
    pub wake: Arc<Notify>,
}

impl Drop for OpenPoll<'_> {
    fn drop(&mut self) {
        if let Some(presence) = self.agents.lock().get_mut(&self.agent) {
            presence.open_polls = presence.open_polls.saturating_sub(1);
        }
    }
}

impl Agents {
    /// Adds an agent from its row in the catalog: at the start, and when one joins.
    pub fn add(&self, row: AgentRow) {
        self.lock().entry(row.id).or_insert_with(|| Presence {
            site: row.site,
            site_name: row.site_name,
            host: row.host,
            version: row.version,
            addresses: row.addresses,
            incarnation: Incarnation { number: row.incarnation.number, nonce: row.incarnation.nonce },
            said_hello: false,
            storages: Vec::new(),
            joined: Vec::new(),
            displaced: Vec::new(),
            unconfirmed: Vec::new(),
            fences_asked: BTreeMap::new(),
            settings: None,
            mover: None,
            certificate_expires: row.certificate_expires,
            last_contact: row.last_hello,
            ended: None,
            open_polls: 0,
            clock_offset_ms: 0,
            connected: false,
            outbox: Outbox::default(),
            wake: Arc::new(Notify::new()),
        });
    }

    /// Refuses the agent from now on, in polls that are open, too. Nothing that waits for it is delivered.
    pub fn refuse(&self, refusal: RefusedAgentRow) {
        let agent = refusal.agent;
        self.refused.lock().insert(agent, refusal);
        self.with(agent, |presence| {
            presence.said_hello = false;
            presence.mover = None;
            presence.outbox = Outbox::default();
        });
    }

    /// Fails for an agent whose certificates are refused. Everything that agents ask for goes through here.
    pub fn check_admitted(&self, agent: AgentId) -> Result<(), Fault> {
        self.refused.lock().get(&agent).map_or(Ok(()), |refusal| Err(refusal.fault()))
    }

    /// The agent that serves a storage instead of `agent`, if it was heard of lately. `recorded` is the one
    /// that offered the storage last; until it says hello to this process, it counts as if it still did.
    pub fn other_holder(
        &self,
        agent: AgentId,
        storage: StorageId,
        recorded: AgentId,
        now: Timestamp,
    ) -> Option<AgentInfo> {
        if recorded == agent { None } else { self.holder(storage, recorded, now) }
    }

    /// The agent that serves a storage, if it was heard of lately; `recorded` as for
    /// [`Agents::other_holder`].
    pub fn holder(&self, storage: StorageId, recorded: AgentId, now: Timestamp) -> Option<AgentInfo> {
        if self.check_admitted(recorded).is_err() {
            return None;
        }
        let presences = self.lock();
        let presence = presences.get(&recorded)?;
        let offers = !presence.said_hello || presence.storages.contains(&storage);
        (offers && presence.is_heard(now)).then(|| AgentInfo::from_presence(recorded, presence))
    }

    /// Refused agents that may still have a valid certificate.
    pub fn refused_peers(&self, now: Timestamp) -> Vec<AgentId> {
        let refused = self.refused.lock();
        refused.values().filter(|refusal| now <= refusal.expires).map(|refusal| refusal.agent).collect()
    }

    /// Notes a request of the agent, and refuses an older or copied incarnation (fencing).
    pub fn contact(
        &self,
        agent: AgentId,
        incarnation: Incarnation,
        now: Timestamp,
    ) -> Result<Standing, Fault> {
        self.check_admitted(agent)?;
        let mut presences = self.lock();
        let presence = presences.get_mut(&agent).ok_or_else(|| unknown(agent))?;
        let known = presence.incarnation;
        if incarnation.number < known.number || (incarnation.number == known.number && incarnation != known) {
            return Err(stale(agent, incarnation, known));
        }
        presence.last_contact = Some(now);
        Ok(if presence.said_hello && incarnation == known {
            Standing::Present
        } else {
            Standing::AwaitingHello
        })
    }

    /// The agent says that it stops. It is out of contact at once.
    pub fn note_ending(&self, agent: AgentId, now: Timestamp) {
        if let Some(presence) = self.lock().get_mut(&agent) {
            presence.ended = Some(now);
        }
    }

    /// When the agent said that it stops, if it has not started since.
    pub fn ended(&self, agent: AgentId) -> Option<Timestamp> {
        self.lock().get(&agent).and_then(|presence| presence.ended)
    }

    pub fn learn_clock(&self, agent: AgentId, offset_ms: i64) {
        if let Some(presence) = self.lock().get_mut(&agent) {
            presence.clock_offset_ms = offset_ms;
        }
    }

    /// A hello was accepted by the catalog. Returns whether it begins a session: until now this process did
    /// not know what the agent holds.
    pub fn hello(&self, row: AgentRow, served: impl Into<ServedStorages>, now: Timestamp) -> bool {
        let ServedStorages { led: storages, shared, joined } = served.into();
        self.note_served(row.id, &storages, &shared, &joined);
        self.listening_since.lock().get_or_insert(now);
        let mut presences = self.lock();
        let Some(presence) = presences.get_mut(&row.id) else { return false };
        let incarnation = Incarnation { number: row.incarnation.number, nonce: row.incarnation.nonce };
        let begins = !presence.said_hello || presence.incarnation != incarnation;
        if begins {
            // Until the session is opened nothing is handed out that the hello does not know of.
            presence.said_hello = false;
            presence.settings = None;
        }
        presence.incarnation = incarnation;
        presence.host = row.host;
        presence.version = row.version;
        presence.addresses = row.addresses;
        presence.storages = storages.clone();
        presence.joined = joined;
        presence.displaced.clear();
        presence.fences_asked.clear();
        presence.last_contact = Some(now);
        presence.ended = None;
        presence.connected = false;
        // A storage is served by the agent that offered it last.
        for (&other, presence) in presences.iter_mut() {
            if other != row.id {
                let known = std::mem::take(&mut presence.storages).into_iter();
                let (displaced, served): (Vec<StorageId>, Vec<StorageId>) =
                    known.partition(|storage| storages.contains(storage));
                presence.storages = served;
                presence.displaced.extend(displaced);
                let alone = |storage: &StorageId| storages.contains(storage) && !shared.contains(storage);
                presence.displaced.extend(presence.joined.extract_if(.., |storage| alone(storage)));
            }
        }
        begins
    }

    /// Whether the agent said hello to this process in this incarnation.
    pub fn is_present(&self, agent: AgentId, incarnation: Incarnation) -> bool {
        let presences = self.lock();
        let presence = presences.get(&agent);
        presence.is_some_and(|presence| presence.said_hello && presence.incarnation == incarnation)
    }

    /// Whether another agent has taken over a storage of the agent's last hello.
    pub fn is_displaced(&self, agent: AgentId) -> bool {
        self.lock().get(&agent).is_some_and(|presence| !presence.displaced.is_empty())
    }

    /// Notes the storages that a hello offered under names that are not its site's. Returns whether they are
    /// others than before.
    pub fn note_unconfirmed(&self, agent: AgentId, names: Vec<StorageName>) -> bool {
        let mut presences = self.lock();
        let Some(presence) = presences.get_mut(&agent) else { return false };
        let is_changed = presence.unconfirmed != names;
        presence.unconfirmed = names;
        is_changed
    }

    /// The storages that were left out of the agent's last hello.
    pub fn unconfirmed(&self, agent: AgentId) -> Vec<StorageName> {
        self.lock().get(&agent).map(|presence| presence.unconfirmed.clone()).unwrap_or_default()
    }

    /// Notes what a hello offers of copies between storages of others.
    pub fn offers_mover(&self, agent: AgentId, mover: Option<MoverOffer>) {
        if let Some(presence) = self.lock().get_mut(&agent) {
            presence.mover = mover;
        }
    }

    /// Connected agents that make copies between storages of others, by id.
    pub fn movers(&self, now: Timestamp) -> Vec<(AgentInfo, MoverOffer)> {
        let presences = self.lock();
        let connected = presences.iter().filter(|(_, presence)| presence.is_connected(now));
        connected
            .filter_map(|(&agent, presence)| {
                Some((AgentInfo::from_presence(agent, presence), presence.mover?))
            })
            .collect()
    }

    /// Storages that a connected agent serves.
    pub fn reachable_storages(&self, now: Timestamp) -> BTreeSet<StorageId> {
        let presences = self.lock();
        let serving = presences.values().filter(|presence| presence.said_hello && presence.is_connected(now));
        serving.flat_map(Presence::served).collect()
    }

    /// From now on the agent gets work.
    pub fn open_session(&self, agent: AgentId) {
        self.with(agent, |presence| presence.said_hello = true);
    }

    pub fn certificate_renewed(&self, agent: AgentId, expires: Timestamp) {
        if let Some(presence) = self.lock().get_mut(&agent) {
            presence.certificate_expires = expires;
        }
    }

    /// Opens a poll. Fails for an agent that has not joined.
    pub fn open_poll(&self, agent: AgentId) -> Result<OpenPoll<'_>, Fault> {
        let mut presences = self.lock();
        let presence = presences.get_mut(&agent).ok_or_else(|| unknown(agent))?;
        presence.open_polls += 1;
        Ok(OpenPoll { agents: self, agent, wake: presence.wake.clone() })
    }

    /// The next work for the agent, if there is any. `version` is that of the protocol it speaks.
    pub fn next_work(
        &self,
        agent: AgentId,
        received: u64,
        version: u16,
        now: Timestamp,
    ) -> Option<Arc<Work>> {
        self.lock().get_mut(&agent).and_then(|presence| presence.outbox.poll(received, version, now))
    }

    pub fn put_leases(&self, agent: AgentId, batches: Vec<LeaseBatch>) {
        self.with(agent, |presence| batches.into_iter().for_each(|batch| presence.outbox.put_leases(batch)));
    }

    pub fn put_copy(&self, agent: AgentId, copy: ForeignCopy) {
        self.with(agent, |presence| presence.outbox.put_copy(copy));
    }

    /// Drops a copy that has ended from the agent's outbox.
    pub fn drop_copy(&self, agent: AgentId, attempt: AttemptId) {
        self.with(agent, |presence| presence.outbox.drop_copy(attempt));
    }

    pub fn put_task(&self, agent: AgentId, task: Task) {
        self.with(agent, |presence| presence.outbox.put_task(task));
    }

    pub fn cancel(&self, agent: AgentId, attempts: impl IntoIterator<Item = AttemptId>) {
        self.with(agent, |presence| attempts.into_iter().for_each(|attempt| presence.outbox.cancel(attempt)));
    }

    pub fn ask_back(&self, agent: AgentId, asked: AskedBack) {
        self.with(agent, |presence| presence.outbox.ask_back(asked));
    }

    pub(crate) fn put_stages(&self, agent: AgentId, orders: Vec<StageOrder>) {
        self.with(agent, |presence| orders.into_iter().for_each(|order| presence.outbox.put_stage(order)));
    }

    pub(crate) fn put_releases(&self, agent: AgentId, releases: Vec<StageRelease>) {
        self.with(agent, |presence| {
            releases.into_iter().for_each(|release| presence.outbox.put_release(release));
        });
    }

    pub fn cancel_task(&self, agent: AgentId, task: TaskId) {
        self.with(agent, |presence| presence.outbox.cancel_task(task));
    }

    /// Puts settings into the agent's outbox, unless it has these.
    pub(crate) fn change_settings(&self, agent: AgentId, settings: AgentSettings) {
        let has_them = |presence: &Presence| presence.settings.as_ref() == Some(&settings);
        if self.lock().get(&agent).is_none_or(has_them) {
            return;
        }
        self.with(agent, |presence| {
            presence.settings = Some(settings.clone());
            presence.outbox.put_settings(settings);
        });
    }

    /// Leases that the agent may not have got yet.
    pub fn undelivered(&self, agent: AgentId) -> Vec<AttemptId> {
        self.lock().get(&agent).map(|presence| presence.outbox.leases().collect()).unwrap_or_default()
    }

    /// The agent that serves a storage, if it said hello.
    pub fn of_storage(&self, storage: StorageId) -> Option<AgentId> {
        let presences = self.lock();
        presences
            .iter()
            .find(|(_, presence)| presence.said_hello && presence.storages.contains(&storage))
            .map(|(&agent, _)| agent)
    }

    /// Storages that the agent offered last and still serves.
    pub fn storages_of(&self, agent: AgentId) -> Vec<StorageId> {
        self.lock().get(&agent).map(|presence| presence.storages.clone()).unwrap_or_default()
    }

    /// Removes an agent that is refused already, with all that waits for it.
    pub fn remove(&self, agent: AgentId) {
        if let Some(presence) = self.lock().remove(&agent) {
            presence.wake.notify_waiters();
        }
    }

    /// Whether the agent asked for something lately and is not refused.
    pub fn is_in_contact(&self, agent: AgentId, now: Timestamp) -> bool {
        self.check_admitted(agent).is_ok()
            && self.lock().get(&agent).is_some_and(|presence| presence.is_heard(now))
    }

    /// Nobody serves the storage any more: it was removed.
    pub fn forget_storage(&self, storage: StorageId) {
        for presence in self.lock().values_mut() {
            presence.storages.retain(|served| *served != storage);
            presence.joined.retain(|served| *served != storage);
            presence.displaced.retain(|other| *other != storage);
        }
    }

    pub(crate) fn connected_of_site(&self, site: SiteId, now: Timestamp) -> BTreeSet<AgentId> {
        let presences = self.lock();
        let here = |presence: &Presence| presence.site == site && presence.is_connected(now);
        presences.iter().filter(|(_, presence)| here(presence)).map(|(&agent, _)| agent).collect()
    }

    pub fn of_site(&self, site: SiteId) -> Vec<AgentId> {
        self.lock().iter().filter(|(_, presence)| presence.site == site).map(|(&agent, _)| agent).collect()
    }

    pub fn is_connected(&self, agent: AgentId, now: Timestamp) -> bool {
        self.lock().get(&agent).is_some_and(|presence| presence.is_connected(now))
    }

    /// The agent, if it is connected.
    pub fn connected_agent(&self, agent: AgentId, now: Timestamp) -> Option<AgentInfo> {
        let presences = self.lock();
        let presence = presences.get(&agent).filter(|presence| presence.is_connected(now))?;
        Some(AgentInfo::from_presence(agent, presence))
    }

    /// The agent, connected or not.
    pub fn agent(&self, agent: AgentId) -> Option<AgentInfo> {
        self.lock().get(&agent).map(|presence| AgentInfo::from_presence(agent, presence))
    }

    /// All connected agents.
    pub fn connected(&self, now: Timestamp) -> BTreeMap<AgentId, AgentInfo> {
        let presences = self.lock();
        let connected = presences.iter().filter(|(_, presence)| presence.is_connected(now));
        connected.map(|(&agent, presence)| (agent, AgentInfo::from_presence(agent, presence))).collect()
    }

    /// Connected agents of other sites, with addresses, in order.
    pub fn peers_of(&self, agent: AgentId, now: Timestamp) -> Vec<AgentId> {
        let presences = self.lock();
        let Some(site) = presences.get(&agent).map(|presence| presence.site) else { return Vec::new() };
        let fits = |presence: &Presence| {
            presence.site != site && !presence.addresses.is_empty() && presence.is_connected(now)
        };
        presences.iter().filter(|(_, presence)| fits(presence)).map(|(&peer, _)| peer).collect()
    }

    /// How other agents reach the agent that serves a storage.
    pub fn source_peer(&self, storage: StorageId, name: &StorageName) -> Option<SourcePeer> {
        self.peer(self.of_storage(storage)?, name)
    }

    /// How other agents reach an agent that serves a storage.
    pub(crate) fn peer(&self, agent: AgentId, name: &StorageName) -> Option<SourcePeer> {
        let addresses = self.lock().get(&agent)?.addresses.clone();
        Some(SourcePeer { agent, storage: name.clone(), addresses })
    }

    /// Agents whose connection changed since the last call, with their site and the storages that they serve.
    pub fn transitions(&self, now: Timestamp) -> Vec<(AgentId, SiteName, Vec<StorageId>, bool)> {
        let mut changed = Vec::new();
        for (&agent, presence) in self.lock().iter_mut() {
            let connected = presence.is_connected(now);
            if connected != presence.connected {
                presence.connected = connected;
                changed.push((agent, presence.site_name.clone(), presence.served().collect(), connected));
            }
        }
        changed
    }

    /// Events for the scheduler about the connections that [`Agents::transitions`] finds changed.
    pub fn transition_events(&self, now: Timestamp) -> Vec<Event> {
        let changed = self.transitions(now).into_iter();
        changed.flat_map(|(agent, _, storages, _)| self.connection_events(agent, storages, now)).collect()
    }

    /// Agents of a site as the API shows them. `busy` counts an agent's copies between storages of others.
    pub fn views(&self, site: SiteId, now: Timestamp, busy: impl Fn(AgentId) -> u32) -> Vec<AgentView> {
        let presences = self.lock();
        let of_site = presences.iter().filter(|(_, presence)| presence.site == site);
        of_site
            .map(|(&id, presence)| AgentView {
                id,
                host: presence.host.clone(),
                version: presence.version.clone(),
                incarnation: presence.incarnation.number,
                last_contact: presence.last_contact,
                connected: presence.is_connected(now),
                data_addresses: presence.addresses.clone(),
                clock_offset_ms: presence.clock_offset_ms,
                certificate_expires: Some(presence.certificate_expires),
                mover: presence.mover.map(|offer| MoverView { busy: busy(id), files: offer.files }),
                refused_since: self.refused.lock().get(&id).map(|refusal| refusal.refused),
            })
            .collect()
    }

    /// `(agents known, connected, leases not yet fetched)`.
    pub fn totals(&self, now: Timestamp) -> (usize, usize, usize) {
        let presences = self.lock();
        let connected = presences.values().filter(|presence| presence.is_connected(now)).count();
        let waiting = presences.values().map(|presence| presence.outbox.leases().count()).sum();
        (presences.len(), connected, waiting)
    }

    pub fn wake_all(&self) {
        self.lock().values().for_each(|presence| presence.wake.notify_waiters());
    }

    fn with(&self, agent: AgentId, change: impl FnOnce(&mut Presence)) {
        if let Some(presence) = self.lock().get_mut(&agent) {
            change(presence);
            presence.wake.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<AgentId, Presence>> {
        self.presences.lock()
    }
}

fn unknown(agent: AgentId) -> Fault {
    Fault::new(FaultCode::NotAuthenticated, format!("this service knows no agent {agent}"))
}

fn stale(agent: AgentId, shown: Incarnation, known: Incarnation) -> Fault {
    Fault::new(
        FaultCode::StaleIncarnation,
        format!(
            "agent {agent} shows start number {}, but start number {} is known{}: its state directory was \
                copied or restored",
            shown.number,
            known.number,
            if shown.number == known.number { " from another process" } else { "" },
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(7);

    fn row(number: u64, nonce: u64) -> AgentRow {
        AgentRow {
            id: AGENT,
            site: SiteId(1),
            site_name: "beta".parse().unwrap(),
            host: "h".into(),
            version: "1".into(),
            incarnation: longhaul_catalog::Incarnation { number, nonce },
            addresses: vec!["h:1".into()],
            certificate_expires: Timestamp::MAX,
            acknowledged: 0,
            created: Timestamp::ZERO,
            last_hello: None,
        }
    }

    #[test]
    fn older_and_copied_incarnations_are_fenced() {
        let agents = Agents::default();
        agents.add(row(4, 1));
        let shown = |number, nonce| agents.contact(AGENT, Incarnation { number, nonce }, Timestamp::ZERO);
        assert_eq!(shown(4, 1).unwrap(), Standing::AwaitingHello, "hello was said to an earlier process");
        assert_eq!(shown(5, 2).unwrap(), Standing::AwaitingHello);
        assert!(agents.hello(row(5, 2), vec![StorageId(1)], Timestamp::ZERO));
        agents.open_session(AGENT);
        assert_eq!(shown(5, 2).unwrap(), Standing::Present);
        assert!(!agents.hello(row(5, 2), vec![StorageId(1)], Timestamp::ZERO), "the same session");
        for (number, nonce) in [(4, 1), (5, 3)] {
            assert_eq!(shown(number, nonce).unwrap_err().code, FaultCode::StaleIncarnation);
        }
        assert_eq!(
            agents
                .contact(AgentId(8), Incarnation { number: 1, nonce: 1 }, Timestamp::ZERO)
                .unwrap_err()
                .code,
            FaultCode::NotAuthenticated
        );
    }

    /// The hello of a thief's next start does not help, and the open poll ends.
    #[test]
    fn a_refused_agent_is_not_let_in_again() {
        let agents = Agents::default();
        agents.add(row(1, 1));
        agents.hello(row(2, 1), vec![StorageId(1)], Timestamp::ZERO);
        agents.open_session(AGENT);
        let poll = agents.open_poll(AGENT).unwrap();
        let expires = Timestamp::from_seconds(9);
        let refusal =
            RefusedAgentRow { agent: AGENT, reason: "stolen".into(), refused: Timestamp::ZERO, expires };
        let mut woken = std::pin::pin!(poll.wake.notified());
        woken.as_mut().enable();
        agents.refuse(refusal);
        assert!(woken.as_mut().enable(), "who waits for work is told");
        for number in [2, 3] {
            let shown = Incarnation { number, nonce: 1 };
            let fault = agents.contact(AGENT, shown, Timestamp::ZERO).unwrap_err();
            assert_eq!((fault.code, fault.detail.contains("stolen")), (FaultCode::NotAllowed, true));
        }
        assert!(!agents.is_connected(AGENT, Timestamp::ZERO) && agents.of_storage(StorageId(1)).is_none());
        assert_eq!(agents.refused_peers(expires), [AGENT]);
        assert!(agents.refused_peers(Timestamp::from_seconds(10)).is_empty(), "its certificates are over");
    }

    #[test]
    fn a_storage_is_its_holders_until_that_is_silent_refused_or_offers_it_no_more() {
        const OTHER_AGENT: AgentId = AgentId(8);
        let storage = StorageId(1);
        let held = |agents: &Agents, now| agents.other_holder(OTHER_AGENT, storage, AGENT, now).is_some();
        let agents = Agents::default();
        agents.add(row(1, 1));
        agents.hello(row(2, 1), vec![storage], Timestamp::ZERO);
        agents.open_session(AGENT);
        assert!(held(&agents, Timestamp::ZERO));
        assert!(agents.other_holder(AGENT, storage, AGENT, Timestamp::ZERO).is_none(), "its own");
        assert!(!held(&agents, Timestamp::ZERO.plus(CONTACT_TIMEOUT)), "silent");
        agents.hello(row(3, 1), vec![StorageId(2)], Timestamp::ZERO);
        assert!(held(&agents, Timestamp::ZERO), "not known yet what it offers");
        agents.open_session(AGENT);
        assert!(!held(&agents, Timestamp::ZERO), "it offers another one");
        agents.hello(row(4, 1), vec![storage], Timestamp::ZERO);
        agents.open_session(AGENT);
        assert!(held(&agents, Timestamp::ZERO));
        let (reason, expires) = ("stolen".into(), Timestamp::MAX);
        agents.refuse(RefusedAgentRow { agent: AGENT, reason, refused: Timestamp::ZERO, expires });
        assert!(!held(&agents, Timestamp::ZERO), "refused");
    }

    /// One that was silent for a while has to learn that another one serves its storage now: only then does
    /// it offer it again when that one is gone.
    #[test]
    fn an_agent_whose_storage_was_taken_over_says_hello_again() {
        const OTHER_AGENT: AgentId = AgentId(8);
        let (mine, common) = (StorageId(1), StorageId(2));
        let other_row = |number| AgentRow { id: OTHER_AGENT, ..row(number, 1) };
        let at = |seconds| Timestamp::from_seconds(seconds);
        let shown = |number| Incarnation { number, nonce: 1 };
        let agents = Agents::default();
        agents.add(row(1, 1));
        agents.add(other_row(1));
        agents.hello(row(2, 1), vec![mine, common], at(0));
        assert!(!agents.is_present(AGENT, shown(2)), "no session yet");
        agents.open_session(AGENT);
        assert!(agents.is_present(AGENT, shown(2)) && !agents.is_present(AGENT, shown(3)));
        assert!(!agents.is_displaced(AGENT));
        agents.hello(other_row(2), vec![common], at(20));
        agents.open_session(OTHER_AGENT);
        assert_eq!(agents.contact(AGENT, shown(2), at(21)).unwrap(), Standing::Present);
        assert_eq!((agents.storages_of(AGENT), agents.is_displaced(AGENT)), (vec![mine], true));
        assert!(!agents.is_displaced(OTHER_AGENT));
        // The hello that followed was taken in without the other one's storage.
        assert!(!agents.hello(row(2, 1), vec![mine], at(22)), "the session goes on");
        assert!(!agents.is_displaced(AGENT), "once is enough");
        // And the other way round, until nobody has it any more.
        agents.hello(row(2, 1), vec![mine, common], at(50));
        assert!(agents.is_displaced(OTHER_AGENT));
        agents.forget_storage(common);
        assert!(!agents.is_displaced(OTHER_AGENT));
    }

    #[test]
    fn an_open_poll_or_a_recent_word_is_a_connection() {
        let agents = Agents::default();
        agents.add(row(1, 1));
        let at = |seconds| Timestamp::from_seconds(seconds);
        agents.hello(row(2, 1), vec![StorageId(1)], at(0));
        assert!(!agents.is_connected(AGENT, at(0)), "no session yet");
        agents.open_session(AGENT);
        assert_eq!(agents.transitions(at(1)).len(), 1);
        assert!(agents.transitions(at(2)).is_empty());
        let poll = agents.open_poll(AGENT).unwrap();
        assert!(agents.is_connected(AGENT, at(100)));
        drop(poll);
        assert!(!agents.transitions(at(100))[0].3);
    }

    #[test]
    fn an_agent_that_ends_is_away_at_once_until_it_starts_again() {
        let agents = Agents::default();
        agents.add(row(1, 1));
        let at = |seconds| Timestamp::from_seconds(seconds);
        agents.hello(row(2, 1), vec![StorageId(1)], at(0));
        agents.open_session(AGENT);
        let _poll = agents.open_poll(AGENT).unwrap();
        assert!(agents.transitions(at(1))[0].3);
        agents.note_ending(AGENT, at(2));
        agents.contact(AGENT, Incarnation { number: 2, nonce: 1 }, at(2)).unwrap();
        assert!(!agents.is_connected(AGENT, at(2)), "though its poll is still open");
        assert_eq!((agents.transitions(at(2))[0].3, agents.ended(AGENT)), (false, Some(at(2))));
        agents.hello(row(3, 1), vec![StorageId(1)], at(3));
        agents.open_session(AGENT);
        assert!(agents.is_connected(AGENT, at(3)) && agents.ended(AGENT).is_none());
    }
}
