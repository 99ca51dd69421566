//! What runs now and how fast: leased attempts with their progress, goodput by link and subscription,
//! problems. In memory only; after a restart it fills again from the catalog and from what agents report.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_api::native::ProblemView;
use longhaul_catalog::{Admission, Claim, Phase, Subject, admit};
use longhaul_model::{
    AgentId, AttemptId, Fault, Lfn, Mark, SiteId, StorageId, StorageName, SubscriptionId, Timestamp,
    TransferId,
};
use longhaul_network::Link;
use parking_lot::{Mutex, MutexGuard};

use crate::agent_backlogs::AgentBacklogs;
use crate::problems::Problems;
use crate::rates::{History, Meter};
use crate::site_rates::WorkingAgents;

/// Links and subscriptions with a plot of their own; beyond it only the total is plotted.
const METERS_MAX: usize = 5_000;

#[derive(Clone, Debug)]
pub struct Running {
    pub transfer: TransferId,
    pub link: Link,
    pub agent: AgentId,
    /// The agent that it reads from; none: taken up after a restart.
    pub source_agent: Option<AgentId>,
    pub subscription: SubscriptionId,
    pub lfn: Lfn,
    pub size: u64,
    /// None: taken up after a restart; the first progress says where counting begins.
    pub bytes_done: Option<u64>,
    pub started: bool,
    pub mark: Mark,
}

impl Running {
    /// What becomes of an agent's claim about this attempt. The site plays no part: a lease has one holder.
    fn admission(&self, claim: Claim, agent: AgentId) -> Admission {
        let site = SiteId(0);
        admit(claim, (agent, site), Some(Subject { agent: self.agent, site, phase: Phase::Open }))
    }
}

/// What a subscription has got since this process started.
#[derive(Default)]
struct Moved {
    meter: Meter,
    /// Its first byte that this process saw.
    since: Timestamp,
}

#[derive(Default)]
struct Inner {
    /// Bounded by the scheduler's lease windows.
    running: BTreeMap<AttemptId, Running>,
    by_transfer: BTreeMap<TransferId, AttemptId>,
    total: History,
    links: BTreeMap<Link, History>,
    subscriptions: BTreeMap<SubscriptionId, Moved>,
    /// What attempts that failed had counted: their successors resume there. Bounded by the transfers that
    /// wait.
    partial: BTreeMap<TransferId, u64>,
    problems: Problems,
}

impl Inner {
    fn goodput(&mut self, link: Link, subscription: SubscriptionId, bytes: u64, now: Timestamp) {
        self.total.add(bytes, now);
        if self.links.len() < METERS_MAX || self.links.contains_key(&link) {
            self.links.entry(link).or_default().add(bytes, now);
        }
        if self.subscriptions.len() >= METERS_MAX {
            self.subscriptions.retain(|_, moved| !moved.meter.is_idle(now));
        }
        if self.subscriptions.len() < METERS_MAX || self.subscriptions.contains_key(&subscription) {
            let fresh = || Moved { since: now, ..Moved::default() };
            self.subscriptions.entry(subscription).or_insert_with(fresh).meter.add(bytes, now);
        }
    }
}

/// What running attempts add up to, of one subscription or link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Now {
    pub files: u64,
    pub bytes_done: u64,
    pub rate: f64,
}

#[derive(Default)]
pub struct Live {
    inner: Mutex<Inner>,
}

impl Live {
    pub fn leased(&self, attempt: AttemptId, mut running: Running) {
        let mut inner = self.lock();
        if let Some(bytes) = inner.partial.remove(&running.transfer) {
            running.bytes_done = Some(bytes);
        }
        inner.by_transfer.insert(running.transfer, attempt);
        inner.running.insert(attempt, running);
    }

    /// Leases among these that another agent has.
    pub fn held_by_others(&self, agent: AgentId, attempts: &[AttemptId]) -> u64 {
        let inner = self.lock();
        let of_other = |attempt: &&AttemptId| {
            let running = inner.running.get(attempt);
            running.is_some_and(|running| running.admission(Claim::HeldLease, agent) == Admission::Foreign)
        };
        attempts.iter().filter(of_other).count() as u64
    }

    /// Bytes count as they arrive verified; what an outcome adds is only the rest. An attempt that is not the
    /// agent's makes no progress by its word.
    pub fn progress(
        &self,
        agent: AgentId,
        attempt: AttemptId,
        bytes_done: u64,
        now: Timestamp,
    ) -> Result<Progressed, Admission> {
        let mut inner = self.lock();
        let running = inner.running.get_mut(&attempt).ok_or(Admission::Late)?;
        match running.admission(Claim::Progress, agent) {
            Admission::Full => {}
            other => return Err(other),
        }
        let bytes_done = bytes_done.min(running.size);
        let before = running.bytes_done.unwrap_or(bytes_done);
        let gained = bytes_done.saturating_sub(before);
        let began = !std::mem::replace(&mut running.started, true);
        running.bytes_done = Some(before.max(bytes_done));
        let (link, subscription) = (running.link, running.subscription);
        if gained > 0 {
            inner.goodput(link, subscription, gained, now);
        }
        Ok(Progressed { began, bytes_done, subscription })
    }

    /// The attempt ended. On success what `bytes_moved` says beyond the last progress counts now.
    pub fn ended(
        &self,
        attempt: AttemptId,
        succeeded: bool,
        bytes_moved: u64,
        now: Timestamp,
    ) -> Option<Running> {
        let mut inner = self.lock();
        let running = inner.running.remove(&attempt)?;
        inner.by_transfer.remove(&running.transfer);
        let counted = running.bytes_done.unwrap_or(0);
        if succeeded {
            let rest = bytes_moved.min(running.size).saturating_sub(counted);
            inner.goodput(running.link, running.subscription, rest, now);
        } else if counted > 0 {
            inner.partial.insert(running.transfer, counted);
        }
        Some(running)
    }

    /// The storage that an attempt reads from, and the agent, if that is known.
    pub fn source_of(&self, attempt: AttemptId) -> Option<(StorageId, Option<AgentId>)> {
        self.lock().running.get(&attempt).map(|running| (running.link.source, running.source_agent))
    }

    pub(crate) fn lfn_of(&self, attempt: AttemptId) -> Option<Lfn> {
        self.lock().running.get(&attempt).map(|running| running.lfn.clone())
    }

    /// The agent that has the lease.
    pub fn agent_of(&self, attempt: AttemptId) -> Option<AgentId> {
        self.lock().running.get(&attempt).map(|running| running.agent)
    }

    /// Leases for files of these storages that other agents have.
    pub fn held_beside(&self, agent: AgentId, targets: &[StorageId]) -> Vec<AttemptId> {
        let inner = self.lock();
        let beside = |running: &Running| running.agent != agent && targets.contains(&running.link.target);
        inner.running.iter().filter(|(_, running)| beside(running)).map(|(&attempt, _)| attempt).collect()
    }

    /// Agents that hold leases for files of these storages.
    pub(crate) fn holders(&self, is_meant: impl Fn(StorageId) -> bool) -> BTreeSet<(AgentId, StorageId)> {
        let inner = self.lock();
        let meant = inner.running.values().filter(|running| is_meant(running.link.target));
        meant.map(|running| (running.agent, running.link.target)).collect()
    }

    pub(crate) fn working_agents(&self) -> WorkingAgents {
        let inner = self.lock();
        WorkingAgents {
            targets: inner.running.values().map(|running| running.agent).collect(),
            sources: inner.running.values().filter_map(|running| running.source_agent).collect(),
        }
    }

    /// What each agent has still to bring, and to send.
    pub(crate) fn backlogs(&self) -> AgentBacklogs {
        let inner = self.lock();
        let mut backlogs = AgentBacklogs::default();
        for running in inner.running.values() {
            let rest = running.size.saturating_sub(running.bytes_done.unwrap_or(0));
            backlogs.count_target(running.agent, rest);
            if let Some(source) = running.source_agent {
                backlogs.count_source(source, rest);
            }
        }
        backlogs
    }

    pub fn failed(
        &self,
        transfer: TransferId,
        fault: &Fault,
        storage: Option<StorageName>,
        example: String,
        now: Timestamp,
    ) {
        self.lock().problems.failed(transfer, fault, storage, example, now);
    }

    pub fn settled(&self, transfer: TransferId) {
        let mut inner = self.lock();
        inner.problems.ended(transfer);
        inner.partial.remove(&transfer);
    }

    pub fn running_of(&self, agent: AgentId) -> Vec<AttemptId> {
        self.lock()
            .running
            .iter()
            .filter(|(_, running)| running.agent == agent)
            .map(|(&attempt, _)| attempt)
            .collect()
    }

    pub fn attempts(&self) -> Vec<AttemptId> {
        self.lock().running.keys().copied().collect()
    }

    pub fn bytes_done(&self, transfer: TransferId) -> Option<u64> {
        let inner = self.lock();
        inner
            .by_transfer
            .get(&transfer)
            .and_then(|attempt| inner.running.get(attempt))
            .and_then(|running| running.bytes_done)
    }

    pub fn of_subscription(&self, subscription: SubscriptionId, now: Timestamp) -> Now {
        let inner = self.lock();
        let rate = inner.subscriptions.get(&subscription).map_or(0.0, |moved| moved.meter.rate_now(now));
        sum(rate, inner.running.values().filter(|running| running.subscription == subscription))
    }

    /// When the subscription's first byte came, if this process saw it.
    pub fn first_byte(&self, subscription: SubscriptionId) -> Option<Timestamp> {
        self.lock().subscriptions.get(&subscription).map(|moved| moved.since)
    }

    pub fn of_link(&self, link: Link, now: Timestamp) -> Now {
        let inner = self.lock();
        let rate = inner.links.get(&link).map_or(0.0, |history| history.rate_now(now));
        sum(rate, inner.running.values().filter(|running| running.link == link))
    }

    /// Links that moved or may move something lately.
    pub fn links(&self) -> Vec<Link> {
        self.lock().links.keys().copied().collect()
    }

    pub fn arriving_at(&self, storage: StorageId, now: Timestamp) -> Now {
        self.ends(now, |link| link.target == storage)
    }

    pub fn leaving_from(&self, storage: StorageId, now: Timestamp) -> Now {
        self.ends(now, |link| link.source == storage)
    }

    fn ends(&self, now: Timestamp, fits: impl Fn(&Link) -> bool) -> Now {
        let inner = self.lock();
        let rate =
            inner.links.iter().filter(|(link, _)| fits(link)).map(|(_, history)| history.rate_now(now)).sum();
        sum(rate, inner.running.values().filter(|running| fits(&running.link)))
    }

    pub fn total(&self, now: Timestamp) -> Now {
        let inner = self.lock();
        sum(inner.total.rate_now(now), inner.running.values())
    }

    pub fn history(&self, seconds: u32, now: Timestamp) -> (u32, Vec<f64>) {
        self.lock().total.over(seconds, now)
    }

    pub fn link_history(&self, link: Link, seconds: u32, now: Timestamp) -> Vec<f64> {
        self.lock().links.get(&link).map(|history| history.over(seconds, now).1).unwrap_or_default()
    }

    pub fn problems(&self) -> Vec<ProblemView> {
        self.lock().problems.views()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

pub struct Progressed {
    /// This was the first sign that the attempt has begun.
    pub began: bool,
    /// As reported, and never more than the file has.
    pub bytes_done: u64,
    pub subscription: SubscriptionId,
}

fn sum<'a>(rate: f64, running: impl Iterator<Item = &'a Running>) -> Now {
    running.fold(Now { rate, ..Now::default() }, |now, running| Now {
        files: now.files + 1,
        bytes_done: now.bytes_done + running.bytes_done.unwrap_or(0),
        ..now
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(1);

    fn running() -> Running {
        Running {
            transfer: TransferId(1),
            link: Link { source: StorageId(1), target: StorageId(2) },
            agent: AGENT,
            source_agent: None,
            subscription: SubscriptionId(1),
            lfn: "f".parse().unwrap(),
            size: 100,
            bytes_done: Some(0),
            started: false,
            mark: Mark::default(),
        }
    }

    #[test]
    fn bytes_count_once_whether_told_by_progress_or_by_the_outcome() {
        let live = Live::default();
        let running = running();
        let link = running.link;
        let at = |seconds: i64| Timestamp::from_seconds(1_700_000_000 + seconds);
        live.leased(AttemptId(1), running.clone());
        assert!(live.progress(AGENT, AttemptId(1), 60, at(0)).ok().unwrap().began);
        assert!(
            !live.progress(AGENT, AttemptId(1), 40, at(0)).ok().unwrap().began,
            "late progress changes nothing"
        );
        assert_eq!(
            live.of_subscription(SubscriptionId(1), at(0)),
            Now { files: 1, bytes_done: 60, rate: 60.0 }
        );
        live.ended(AttemptId(1), true, 100, at(0));
        assert!(live.ended(AttemptId(1), true, 100, at(0)).is_none());
        assert_eq!(live.history(1, at(1)), (1, vec![100.0]));
        assert_eq!(live.of_link(link, at(1)).rate, 100.0);

        // A second try resumes where the first one broke off.
        live.leased(AttemptId(2), running.clone());
        let _ = live.progress(AGENT, AttemptId(2), 70, at(2));
        live.ended(AttemptId(2), false, 70, at(2));
        live.leased(AttemptId(3), running.clone());
        let _ = live.progress(AGENT, AttemptId(3), 80, at(3));
        assert_eq!(live.history(2, at(4)), (1, vec![70.0, 10.0]));
        // Nobody counts what came before a restart of the service once more.
        live.leased(AttemptId(4), Running { transfer: TransferId(4), bytes_done: None, ..running });
        let _ = live.progress(AGENT, AttemptId(4), 90, at(4));
        let _ = live.progress(AGENT, AttemptId(4), 95, at(4));
        assert_eq!(live.history(1, at(5)), (1, vec![5.0]));
    }

    #[test]
    fn nobody_reports_the_progress_of_anothers_attempt() {
        let live = Live::default();
        live.leased(AttemptId(1), running());
        let now = Timestamp::from_seconds(1_700_000_000);
        let stranger = AgentId(3);
        assert_eq!(live.progress(stranger, AttemptId(1), 100, now).err(), Some(Admission::Foreign));
        assert_eq!(live.bytes_done(TransferId(1)), Some(0));
        assert_eq!(live.progress(stranger, AttemptId(9), 100, now).err(), Some(Admission::Late), "long over");
        let own = live.progress(AGENT, AttemptId(1), u64::MAX, now).ok().unwrap();
        assert!(own.began && own.bytes_done == 100, "never more than the file has");
        assert_eq!(live.held_by_others(stranger, &[AttemptId(1), AttemptId(9)]), 1);
        assert_eq!(live.held_by_others(AGENT, &[AttemptId(1), AttemptId(9)]), 0);
    }
}
