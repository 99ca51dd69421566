//! Sites, storages and agents as they appear, change and disappear.

use std::collections::BTreeSet;

use longhaul_model::{AgentId, AttemptId, StorageId, Timestamp};

use crate::breaker::Breaker;
use crate::decision::{CancelWhy, Decision};
use crate::event::{SiteInfo, SiteState, StorageInfo};
use crate::scheduler::Scheduler;
use crate::state::Phase;

impl Scheduler {
    pub(crate) fn site_changed(&mut self, info: SiteInfo, now: Timestamp) {
        let site = self.site_index(info.id);
        let paused = info.state == SiteState::Paused;
        self.site_rates_changed(site, info.limits, now);
        let before = self.sites[site].info.replace(info);
        if before.map(|info| info.limits) != self.sites[site].info.as_ref().map(|info| info.limits) {
            self.limited_rates_changed();
        }
        if paused {
            self.revoke_unstarted(site, now);
        }
        let closed = self.sites[site].state() != SiteState::Open;
        if closed {
            let storages: Vec<u32> = self.sites[site].storages.iter().copied().collect();
            storages.into_iter().for_each(|storage| self.reassign_from(storage, now));
        } else {
            self.retry_parked_demands();
        }
        self.sites_with_free_slots.insert(site);
        self.wake_all();
    }

    pub(crate) fn storage_changed(&mut self, info: StorageInfo) {
        self.knowledge.set_storage_site(info.id, info.site);
        let site = self.site_index(info.site);
        let index = self.storage_index(info.id);
        let before = self.storages[index].site;
        if before != site {
            self.move_storage(index, site);
        }
        let row = &mut self.storages[index];
        let relays = std::mem::replace(&mut row.relay, info.relay) != info.relay;
        match info.relay {
            true => self.routes.relays.insert(index),
            false => self.routes.relays.remove(&index),
        };
        let eased = row.trouble.is_some() && info.trouble.is_none();
        let news = row.name.as_ref() != Some(&info.name) || row.writable != info.writable || before != site;
        let same_trouble = row.trouble == info.trouble;
        row.name = Some(info.name);
        row.writable = info.writable;
        row.trouble = info.trouble;
        if eased {
            // It says itself that there is room: no need to probe.
            row.target.room_breaker = Breaker::default();
        }
        if news || relays || !same_trouble {
            self.retry_parked_demands();
            self.wake_all();
        }
    }

    /// The attempts of a storage count where the storage is.
    fn move_storage(&mut self, index: u32, site: u32) {
        let before = self.storages[index].site;
        let inward = self.storages[index].target.leased.len() as u32;
        let outward = self.storages[index].files_ahead;
        self.sites[before].active_in -= inward;
        self.sites[before].active_out -= outward;
        self.sites[before].storages.remove(&index);
        self.sites[site].active_in += inward;
        self.sites[site].active_out += outward;
        self.sites[site].storages.insert(index);
        self.storages[index].site = site;
    }

    pub(crate) fn agent_changed(
        &mut self,
        storage: StorageId,
        agent: Option<AgentId>,
        connected: bool,
        now: Timestamp,
    ) {
        let index = self.storage_index(storage);
        let row = &mut self.storages[index];
        let connected = connected && agent.is_some();
        let (agent_before, connected_before) = (row.agent, row.connected);
        row.agent = agent.or(row.agent);
        row.connected = connected;
        if agent.is_some() && agent_before.is_some() && agent != agent_before {
            // Another agent works for the storage now: what the former one held is nobody's.
            self.release_leases(index, |_| false, now);
        }
        if connected && !connected_before {
            self.storages[index].reach_breaker = Breaker::default();
            let targets: Vec<u32> = self.storage_of.values().copied().collect();
            for target in targets {
                if let Some(link) = self.storages[target].target.links.get_mut(index) {
                    link.reach_breaker = Breaker::default();
                }
            }
            self.retry_parked_demands();
            self.wake_around(index);
            self.refill.insert(index);
        }
        if !connected && connected_before {
            self.reassign_from(index, now);
        }
    }

    /// Reconciles with the leases that an agent reports: all others of it are released.
    pub(crate) fn reconcile_leases(&mut self, agent: AgentId, attempts: &[AttemptId], now: Timestamp) {
        let held: BTreeSet<AttemptId> = attempts.iter().copied().collect();
        let indexes: Vec<u32> = self.storage_of.values().copied().collect();
        for index in indexes {
            if self.storages[index].agent == Some(agent) {
                self.release_leases(index, |attempt| held.contains(&attempt), now);
            }
        }
    }

    fn release_leases(&mut self, target: u32, keep: impl Fn(AttemptId) -> bool, now: Timestamp) {
        let leased: Vec<u32> = self.storages[target].target.leased.iter().copied().collect();
        for index in leased {
            if self.transfers[index].lease().is_some_and(|lease| !keep(lease.attempt)) {
                self.requeue_leased(index, now);
            }
        }
    }

    /// Revokes the leases of a paused site that have not begun, in and out.
    fn revoke_unstarted(&mut self, site: u32, now: Timestamp) {
        let targets: Vec<u32> = self.storage_of.values().copied().collect();
        for target in targets {
            let inward = self.storages[target].site == site;
            let leased: Vec<u32> = self.storages[target].target.leased.iter().copied().collect();
            for index in leased {
                let Phase::Leased(lease) = self.transfers[index].phase else { continue };
                let outward = self.storages[lease.source].site == site;
                if (inward || outward) && !lease.started {
                    let transfer = self.transfers[index].id;
                    let why = CancelWhy::SitePaused;
                    self.out.push_back(Decision::Cancel {
                        transfer,
                        attempt: lease.attempt,
                        agent: lease.agent,
                        why,
                    });
                    self.requeue_leased(index, now);
                }
            }
        }
    }
}
