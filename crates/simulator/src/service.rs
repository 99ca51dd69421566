//! The simulated service: passes what its catalog and agents report to the scheduler, and carries out its
//! decisions. It decides nothing.

use longhaul_model::{AgentId, BlockId, FaultCode, FileId, SiteId, StorageId, SubscriptionId, Timestamp};
use longhaul_network::RegionId;
use longhaul_scheduler::{
    CancelWhy, CommunityShare, Decision, Demand, DemandId, Event, Lease, Limit, Limits, Outcome, Party,
    Shares, SiteInfo, SiteLimits, SiteState, StorageInfo,
};

use crate::catalog::Arrival;
use crate::world::{Attempt, Phase, START, SimEvent, World, micros};

/// Waiting transfers explained in a report.
const WAITS_REPORTED_MAX: usize = 3;

impl World<'_> {
    pub(crate) fn announce_sites(&mut self) {
        for at in 0..self.plan.layout.sites.len() {
            let site = &self.plan.layout.sites[at];
            // Names were checked when the plan was made.
            let (Ok(name), Ok(storage)) = (site.name.parse(), site.name.parse()) else { continue };
            let limits = SiteLimits {
                active_in: site.active_in,
                active_out: site.active_out,
                in_bytes_per_s: site.limit_in.map(|rate| rate as u64),
                out_bytes_per_s: site.limit_out.map(|rate| rate as u64),
            };
            let (id, index) = (SiteId(at as u64), StorageId(at as u64));
            self.handle(Event::Site(SiteInfo { id, name, state: SiteState::Open, reason: None, limits }));
            self.handle(Event::Region { site: id, region: Some(RegionId::from_name(&site.region)) });
            self.handle(Event::Storage(StorageInfo {
                id: index,
                name: storage,
                site: id,
                writable: true,
                relay: site.relay,
                trouble: None,
            }));
            self.announce_agent(at as u32);
        }
        self.announce_links();
    }

    fn links(&self) -> Vec<(StorageId, StorageId)> {
        let count = self.plan.layout.sites.len();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        pairs
            .filter(|&(from, to)| from != to && self.plan.layout.pair(from, to).open)
            .map(|(from, to)| (StorageId(from as u64), StorageId(to as u64)))
            .collect()
    }

    fn announce_links(&mut self) {
        let (links, count) = (self.links(), self.plan.layout.sites.len());
        let all = links.len() == count * (count - 1);
        self.handle(Event::Links((!all).then_some(links)));
    }

    /// What the way asks of each link.
    pub(crate) fn announce_limits(&mut self, at_once: Option<u32>) {
        let Some(active) = at_once else { return };
        let limit = Limit { active: Some(active), bytes_per_s: None };
        let links = self.links().into_iter().map(|link| (link, limit)).collect();
        self.handle(Event::Limits(Limits { links, ..Limits::default() }));
    }

    pub(crate) fn announce_shares(&mut self) {
        let rows = self.plan.work.communities.iter().map(|community| {
            let share = CommunityShare {
                activities: community.activities.clone(),
                ..CommunityShare::with_weight(community.share)
            };
            (community.name.clone(), share)
        });
        let shares = Shares { communities: rows.collect(), default: 1.0 };
        self.handle(Event::Shares(shares));
    }

    pub(crate) fn announce_agent(&mut self, site: u32) {
        let connected = self.sites[site as usize].connected;
        let storage = StorageId(site.into());
        self.handle(Event::Agent { storage, agent: Some(AgentId(u64::from(site) + 1)), connected });
    }

    /// Requests whose time has come become demands.
    pub(crate) fn submit_due_requests(&mut self) {
        while let Some(request) = self.plan.work.requests.get(self.next_request)
            && micros(request.at) <= self.now
        {
            let number = self.next_request as u32;
            self.next_request += 1;
            for block in self.plan.work.datasets[request.dataset as usize].blocks.clone() {
                if !self.catalog.has_block(block, request.target) {
                    self.submit_demand(number, block, request.target);
                }
            }
            if self.request_left[number as usize] == 0 {
                self.metrics.dataset_done(number, 0.0);
            }
        }
    }

    fn submit_demand(&mut self, request: u32, block: u32, target: u32) {
        let row = &self.plan.work.requests[request as usize];
        let (files_left, bytes_left) = self.catalog.missing(self.plan, block, target);
        let want = self.wants.entry((block, target)).or_default();
        if want.requests.is_empty() {
            want.files = files_left;
            self.files_left += files_left;
            self.metrics.add_wanted(row.community, bytes_left);
        }
        want.requests.push(request);
        self.request_left[request as usize] += 1;
        self.handle(Event::Demand(Demand {
            id: DemandId {
                subscription: SubscriptionId(u64::from(request) + 1),
                block: BlockId(block.into()),
            },
            target: StorageId(target.into()),
            priority: row.priority,
            party: Party {
                community: self.plan.work.communities[row.community as usize].name.clone(),
                activity: row.activity.clone(),
            },
            created: Timestamp(START.0 + micros(row.at)),
            deadline: row.deadline.map(|deadline| Timestamp(START.0 + micros(deadline))),
            strategy: None,
            files_left,
            bytes_left,
        }));
    }

    /// What the scheduler has in memory at the end, and what some of it waits for.
    pub(crate) fn explain_waits(&self) -> Vec<String> {
        let counts = self.scheduler.counts();
        let mut lines = vec![format!(
            "{} queued, {} resting, {} without a source, {} leased, {} of them begun",
            counts.queued, counts.in_backoff, counts.parked, counts.leased, counts.started
        )];
        for row in self.scheduler.transfers(None, None, WAITS_REPORTED_MAX) {
            let waits = self.scheduler.explain_wait(row.transfer, self.service_time());
            let target = &self.plan.layout.sites[row.target.0 as usize].name;
            lines.push(format!(
                "file {} to {target}, {} tries: {}",
                row.file,
                row.attempts,
                waits.unwrap_or_else(|| format!("{:?}", row.leased))
            ));
        }
        lines
    }

    pub(crate) fn poll_scheduler(&mut self) {
        self.scheduler_stale = false;
        while let Some(decision) = self.scheduler.poll_decision(self.service_time()) {
            self.metrics.decisions += 1;
            self.apply_decision(decision);
        }
    }

    fn apply_decision(&mut self, decision: Decision) {
        match decision {
            Decision::Expand { demand, target, after, limit, .. } => {
                let after = after.map(|after| after.0 as u32);
                let at = self.now + self.service_step();
                self.schedule_at(at, SimEvent::Files { demand, target: target.0 as u32, after, limit });
            }
            Decision::Lease(lease) => self.start_lease(&lease),
            Decision::Cancel { attempt, why, .. } => {
                if let Some(&index) = self.by_id.get(&attempt) {
                    self.cancel(index);
                }
                self.metrics.cancelled += u64::from(why == CancelWhy::SitePaused);
            }
            Decision::Recall(asked) => {
                if let Some(&attempt) = self.by_id.get(&asked.attempt) {
                    let generation = self.attempts[attempt as usize].generation;
                    let way = self.plan.model.service_round_trip.0 / 2.0 + self.plan.model.service_step.0;
                    self.schedule_after(way, SimEvent::LeaseRecall { attempt, generation });
                }
            }
            Decision::Drop { .. } => {}
            Decision::Suspect { file, source, .. } => {
                let block = self.block_of(file.0 as u32);
                self.catalog.remove_replica(block, file.0 as u32, source.0 as u32);
            }
            Decision::Fail { file, target, .. } => {
                let (file, target) = (file.0 as u32, target.0 as u32);
                let block = self.block_of(file);
                self.catalog.mark_failed(self.plan, block, file, target);
                if let Some(want) = self.wants.get_mut(&(block, target)) {
                    self.metrics.failed += 1;
                    self.files_left = self.files_left.saturating_sub(1);
                    want.files = want.files.saturating_sub(1);
                }
            }
        }
    }

    fn block_of(&self, file: u32) -> u32 {
        (self.plan.work.blocks.partition_point(|block| block.files.end <= file)) as u32
    }

    fn start_lease(&mut self, lease: &Lease) {
        let (file, block) = (lease.file.0 as u32, lease.block.0 as u32);
        let (source, target) = (lease.source.0 as u32, lease.target.0 as u32);
        self.metrics.leases += 1;
        if self.catalog.has_file(self.plan, block, file, target) {
            let outcome = Outcome { attempt: lease.attempt, epoch: lease.epoch, fault: None, bytes_moved: 0 };
            return self.handle(Event::Outcome(outcome));
        }
        let pools = (self.plan.pool(source as usize, file), self.plan.pool(target as usize, file));
        let flow = self.flows.flow_between(self.plan, pools.0, pools.1);
        self.update_route(flow);
        let index = self.new_attempt(Attempt {
            generation: 0,
            phase: Phase::InTransit,
            id: lease.attempt,
            epoch: lease.epoch,
            file,
            block,
            size: lease.size,
            source,
            target,
            flow,
            leased: self.now,
            expected: lease.choice.candidates.first().map_or(0.0, |chosen| chosen.finish.as_secs_f64()),
            tries: lease.try_number,
            begin: 0.0,
            end: 0.0,
            fault: None,
            to_move: lease.size,
            moved: 0,
        });
        self.by_id.insert(lease.attempt, index);
        let generation = self.attempts[index as usize].generation;
        let way = self.plan.model.service_round_trip.0 / 2.0 + self.plan.model.service_step.0;
        self.schedule_after(way, SimEvent::Lease { attempt: index, generation });
    }

    pub(crate) fn answer_expansion(&mut self, demand: DemandId, target: u32, after: Option<u32>, limit: u32) {
        let after = after.map(|after| FileId(after.into()));
        let (files, exhausted) =
            self.catalog.missing_files(self.plan, demand.block.0 as u32, target, after, limit);
        self.handle(Event::Files { demand, files, exhausted });
    }

    pub(crate) fn on_started(&mut self, attempt: u32, generation: u32) {
        if self.is_current(attempt, generation) {
            let attempt = self.attempts[attempt as usize].id;
            self.handle(Event::Started { attempt });
        }
    }

    pub(crate) fn on_progress(&mut self, rows: &[(u32, u32, u64)]) {
        for &(attempt, generation, bytes_done) in rows {
            if self.is_current(attempt, generation) {
                let attempt = self.attempts[attempt as usize].id;
                self.handle(Event::Progress { attempt, bytes_done });
            }
        }
        self.record_changes();
    }

    /// The catalog first, then the scheduler.
    pub(crate) fn on_ended(&mut self, index: u32, generation: u32) {
        if !self.is_current(index, generation) {
            return;
        }
        let attempt = &mut self.attempts[index as usize];
        let outcome = Outcome {
            attempt: attempt.id,
            epoch: attempt.epoch,
            fault: attempt.fault.take(),
            bytes_moved: attempt.moved,
        };
        let (block, file, source, target) = (attempt.block, attempt.file, attempt.source, attempt.target);
        let (leased, expected) = (attempt.leased, attempt.expected);
        self.free_attempt(index);
        if let Some(fault) = &outcome.fault {
            let given_back = fault.code == FaultCode::GivenBack;
            self.metrics.leases_returned += u64::from(given_back);
            self.metrics.faults += u64::from(!given_back);
            return self.handle(Event::Outcome(outcome));
        }
        let taken = (self.now - leased) as f64 / 1e6;
        self.metrics.add_forecast(expected, taken);
        let arrival = self.catalog.add_replica(self.plan, block, file, target);
        self.count_file(source, target);
        self.handle(Event::Outcome(outcome));
        self.record_changes();
        if arrival == Arrival::Duplicate {
            return;
        }
        let size = self.plan.work.sizes[file as usize];
        // What nobody wants there only passes through.
        if let Some(want) = self.wants.get_mut(&(block, target)) {
            self.files_left = self.files_left.saturating_sub(1);
            want.files = want.files.saturating_sub(1);
            if let Some(&first) = want.requests.first() {
                let row = &self.plan.work.requests[first as usize];
                self.metrics.file_done(self.now, micros(row.at), row.community, size);
            }
        }
        if arrival == Arrival::CompletesBlock {
            self.block_complete(block, target);
        }
    }

    fn block_complete(&mut self, block: u32, target: u32) {
        self.handle(Event::BlockComplete { block: BlockId(block.into()), storage: StorageId(target.into()) });
        let Some(want) = self.wants.remove(&(block, target)) else { return };
        for request in want.requests {
            let id = DemandId {
                subscription: SubscriptionId(u64::from(request) + 1),
                block: BlockId(block.into()),
            };
            self.handle(Event::DemandGone { id });
            let left = &mut self.request_left[request as usize];
            *left -= 1;
            if *left == 0 {
                let row = &self.plan.work.requests[request as usize];
                self.metrics.dataset_done(request, (self.now - micros(row.at)) as f64 / 1e6);
            }
        }
    }
}
