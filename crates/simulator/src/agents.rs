//! Simulated agents: leases arrive, files begin in the order of their leases, bytes move, attempts end,
//! reports are sent. An agent begins whatever it holds as soon as its session has room; how much it holds is
//! the scheduler's choice.

use longhaul_model::{Fault, FaultCode};

use crate::flows::Flow;
use crate::random::{mix, uniform_for};
use crate::scenario::{FailureKind, Mover};
use crate::world::{Phase, SimEvent, World, micros};

/// A session that was idle for longer has to ramp up its rate again.
const SESSION_WARM_US_MAX: i64 = 10_000_000;
/// Messages within this time are sent together, as agents do.
const MESSAGE_DELAY_S: f64 = 0.005;

impl World<'_> {
    pub(crate) fn on_lease_delivered(&mut self, index: u32, generation: u32) {
        if !self.is_current(index, generation) {
            return;
        }
        let attempt = &mut self.attempts[index as usize];
        attempt.phase = Phase::Waiting;
        let (flow, target) = (attempt.flow, attempt.target);
        self.flows.rows[flow as usize].waiting.push_back(index);
        self.start_waiting(flow);
        if !self.sites[target as usize].reporting {
            self.sites[target as usize].reporting = true;
            self.schedule_after(self.plan.model.report_every.0, SimEvent::Report { site: target });
        }
    }

    /// Begins what waits, in its order, as long as the session and both pools have room.
    pub(crate) fn start_waiting(&mut self, flow: u32) {
        loop {
            let row = &self.flows.rows[flow as usize];
            let (from, to) = (row.from_pool, row.to_pool);
            let Some(&index) = row.waiting.front() else { return };
            if self.is_away(row.target as u32) || !self.flows.may_open(flow) {
                return;
            }
            for pool in [from, to] {
                if self.pool_busy[pool]
                    >= self.plan.layout.sites[self.plan.layout.pools[pool].site].pool_active
                {
                    self.pool_waiting[pool].insert(flow);
                    return;
                }
            }
            self.flows.rows[flow as usize].waiting.pop_front();
            self.pool_busy[from] += 1;
            self.pool_busy[to] += 1;
            self.start_attempt(flow, index);
        }
    }

    fn start_attempt(&mut self, flow: u32, index: u32) {
        let (size, source, file, block) = {
            let attempt = &self.attempts[index as usize];
            (attempt.size as f64, attempt.source, attempt.file, attempt.block)
        };
        let cold = self.now.saturating_sub(self.flows.rows[flow as usize].idle_since) > SESSION_WARM_US_MAX
            && !self.flows.rows[flow as usize].has_work();
        self.flows.start_opening(flow, size);
        let generation = self.attempts[index as usize].generation;
        let told = self.report_time(index);
        self.schedule_at(told, SimEvent::Began { attempt: index, generation });
        let tape = self.plan.layout.sites[source as usize].tape.as_ref().filter(|tape| tape.recall);
        let whole_at_start = self.plan.work.blocks[block as usize].at.contains(&source);
        if tape.is_some() && whole_at_start && !self.on_disk.contains(&(file, source)) {
            self.attempts[index as usize].phase = Phase::Recalling;
            self.sites[source as usize].to_recall.push_back((index, generation));
            return self.start_recalls(source);
        }
        self.open_file(index, flow, cold);
    }

    fn open_file(&mut self, index: u32, flow: u32, cold: bool) {
        self.attempts[index as usize].phase = Phase::Opening;
        let generation = self.attempts[index as usize].generation;
        let mut wait = self.plan.model.overhead.0 + self.flows.rows[flow as usize].rtt;
        if cold || self.plan.model.mover == Mover::File {
            wait += self.plan.ramp_up(self.flows.rows[flow as usize].rtt, self.flows.rate_alone(flow));
        }
        self.schedule_after(wait, SimEvent::Ready { attempt: index, generation });
    }

    /// A drive takes the next file; mounting and winding come first.
    fn start_recalls(&mut self, site: u32) {
        let Some(tape) = &self.plan.layout.sites[site as usize].tape else { return };
        while self.sites[site as usize].drives_busy < tape.drives
            && let Some((attempt, generation)) = self.sites[site as usize].to_recall.pop_front()
        {
            if !self.is_current(attempt, generation) {
                continue;
            }
            self.sites[site as usize].drives_busy += 1;
            let seconds = tape.mount.0 + self.attempts[attempt as usize].size as f64 / tape.rate.0;
            self.schedule_after(seconds, SimEvent::Recalled { site, attempt, generation });
        }
    }

    pub(crate) fn on_recalled(&mut self, site: u32, index: u32, generation: u32) {
        self.sites[site as usize].drives_busy -= 1;
        if self.is_current(index, generation) && self.attempts[index as usize].phase == Phase::Recalling {
            let (file, flow) = (self.attempts[index as usize].file, self.attempts[index as usize].flow);
            self.on_disk.insert((file, site));
            self.open_file(index, flow, false);
        }
        self.start_recalls(site);
    }

    /// The first byte could come now: or something is wrong.
    pub(crate) fn on_ready(&mut self, index: u32, generation: u32) {
        if !self.is_current(index, generation) || self.attempts[index as usize].phase != Phase::Opening {
            return; // It was struck meanwhile.
        }
        let attempt = &self.attempts[index as usize];
        let (flow, size) = (attempt.flow, attempt.size as f64);
        if let Some((fault, later)) = self.start_fault(index) {
            self.attempts[index as usize].fault = Some(fault);
            self.flows.end_opening(flow, size);
            return self.end_attempt(index, later);
        }
        self.flows.end_opening(flow, size);
        let bytes = self.draw_bytes_to_move(index);
        let (begin, end) = self.flows.add_file(flow, index, generation, bytes as f64, self.now);
        let attempt = &mut self.attempts[index as usize];
        attempt.phase = Phase::Moving;
        (attempt.begin, attempt.end, attempt.to_move) = (begin, end, bytes);
    }

    /// Why an attempt cannot begin, and after how long that shows.
    fn start_fault(&self, index: u32) -> Option<(Fault, f64)> {
        let attempt = &self.attempts[index as usize];
        let (source, target) = (attempt.source as usize, attempt.target as usize);
        if self.sites[source].down > 0 || !self.plan.layout.pair(source, target).open {
            let fault = Fault::new(FaultCode::Unreachable, "no answer");
            return Some((fault, self.plan.model.unreachable_after.0));
        }
        for (site, inward) in [(source, false), (target, true)] {
            for &number in &self.sites[site].failures {
                let trouble = &self.plan.failures[number as usize];
                let hit = match trouble.kind {
                    FailureKind::SiteError => true,
                    FailureKind::CredentialOutage => !inward,
                    FailureKind::TargetFull => inward,
                    _ => false,
                };
                if hit && self.attempt_random(index, u64::from(number)) < trouble.share {
                    return Some((Fault::new(trouble.code, "by the scenario"), 0.0));
                }
            }
        }
        match self.bad_replica(index) {
            Some(code @ FaultCode::SourceMissing) => Some((Fault::new(code, "gone"), 0.0)),
            _ => None,
        }
    }

    /// Whether the replica is no good: some are gone, some have other bytes. The first of each block is
    /// sound, except where all are damaged.
    fn bad_replica(&self, index: u32) -> Option<FaultCode> {
        let attempt = &self.attempts[index as usize];
        let block = &self.plan.work.blocks[attempt.block as usize];
        if block.damaged.contains(&attempt.file) {
            return Some(FaultCode::WrongDigest);
        }
        let rank = block.at.iter().position(|&site| site == attempt.source)?;
        let dice = uniform_for(self.plan.seed ^ 0xbad, attempt.file.into(), attempt.source.into());
        if rank == 0 || dice >= block.bad {
            return None;
        }
        Some(if dice < block.bad / 3.0 { FaultCode::SourceMissing } else { FaultCode::WrongDigest })
    }

    /// A number that belongs to this try of this file, whatever else happens: two runs meet the same luck.
    fn attempt_random(&self, index: u32, purpose: u64) -> f64 {
        let attempt = &self.attempts[index as usize];
        let which = mix(u64::from(attempt.file) << 32 | u64::from(attempt.target));
        uniform_for(
            self.plan.seed ^ purpose,
            which,
            u64::from(attempt.tries) << 32 | u64::from(attempt.source),
        )
    }

    /// How much of the file is moved before it is over: all, unless it fails on the way.
    fn draw_bytes_to_move(&mut self, index: u32) -> u64 {
        let (source, target) = (self.attempts[index as usize].source, self.attempts[index as usize].target);
        let link = self.plan.layout.pair(source as usize, target as usize).failures;
        let share = 1.0 - (1.0 - link) * (1.0 - self.plan.model.failures.0);
        if share > 0.0 && self.attempt_random(index, 0xd00f) < share {
            let codes = [
                FaultCode::ConnectionLost,
                FaultCode::Stalled,
                FaultCode::SourceUnreadable,
                FaultCode::TargetWrite,
            ];
            let which = (self.attempt_random(index, 0xc0de) * codes.len() as f64) as usize;
            self.attempts[index as usize].fault =
                Some(Fault::new(codes[which.min(codes.len() - 1)], "by the dice"));
            return (self.attempts[index as usize].size as f64 * self.attempt_random(index, 0x9a47)) as u64;
        }
        self.attempts[index as usize].size
    }

    /// The first of a session's files has all its bytes.
    pub(crate) fn on_file_done(&mut self, flow: u32) {
        let attempts = &self.attempts;
        let gone = |index: u32, generation: u32| {
            let attempt = &attempts[index as usize];
            attempt.generation != generation || attempt.phase != Phase::Moving
        };
        let Some(index) = self.flows.pop_done(flow, self.now, gone) else { return };
        let attempt = &mut self.attempts[index as usize];
        let end = attempt.end;
        attempt.moved = attempt.to_move;
        self.flows.remove_file(flow, end, self.now);
        if self.attempts[index as usize].fault.is_none() {
            self.attempts[index as usize].fault = self.verify(index);
        }
        self.end_attempt(index, 0.0);
    }

    /// What verification finds.
    fn verify(&self, index: u32) -> Option<Fault> {
        let target = self.attempts[index as usize].target as usize;
        let full = |number: &u32| self.plan.failures[*number as usize].kind == FailureKind::TargetFull;
        if self.sites[target].failures.iter().any(full) {
            return Some(Fault::new(FaultCode::TargetFull, "no room"));
        }
        self.bad_replica(index).map(|code| Fault::new(code, "the bytes differ"))
    }

    /// The attempt no longer holds anything; the service hears of it.
    pub(crate) fn end_attempt(&mut self, index: u32, later: f64) {
        let attempt = &mut self.attempts[index as usize];
        attempt.phase = Phase::Reported;
        let (generation, flow, moved) = (attempt.generation, attempt.flow, attempt.moved);
        self.metrics.add_moved(moved);
        let told = self.report_time(index).saturating_add(micros(later));
        self.schedule_at(told, SimEvent::Ended { attempt: index, generation });
        self.release_pools(flow);
    }

    /// Room in the pools of a session: whoever waited for it begins.
    fn release_pools(&mut self, flow: u32) {
        let row: &Flow = &self.flows.rows[flow as usize];
        let pools = [row.from_pool, row.to_pool];
        let mut waiting = Vec::new();
        for pool in pools {
            self.pool_busy[pool] -= 1;
            waiting.extend(std::mem::take(&mut self.pool_waiting[pool]));
        }
        self.start_waiting(flow);
        waiting.into_iter().for_each(|flow| self.start_waiting(flow));
    }

    /// When the service hears what happens at an agent now: its agent may be away.
    fn report_time(&self, index: u32) -> i64 {
        let target = self.attempts[index as usize].target as usize;
        let sent = self.now.max(self.sites[target].back) + micros(MESSAGE_DELAY_S);
        self.round_up_to_step(sent + micros(self.plan.model.service_round_trip.0 / 2.0))
    }

    pub(crate) fn is_away(&self, site: u32) -> bool {
        self.sites[site as usize].down > 0
    }

    /// The service took a lease back.
    pub(crate) fn cancel(&mut self, index: u32) {
        self.detach(index);
        self.free_attempt(index);
    }

    /// The service asks for a lease back: what has begun goes on, and a word of it comes anyway.
    pub(crate) fn on_recall(&mut self, index: u32, generation: u32) {
        if !self.is_current(index, generation) || self.attempts[index as usize].phase != Phase::Waiting {
            return;
        }
        self.detach(index);
        let attempt = &mut self.attempts[index as usize];
        attempt.phase = Phase::Reported;
        attempt.fault = Some(Fault::new(FaultCode::GivenBack, "asked for"));
        let told = self.report_time(index);
        self.schedule_at(told, SimEvent::Ended { attempt: index, generation });
    }

    /// Takes an attempt out of wherever it is at its agent.
    fn detach(&mut self, index: u32) {
        let attempt = &self.attempts[index as usize];
        let (flow, end, size) = (attempt.flow, attempt.end, attempt.size as f64);
        match attempt.phase {
            Phase::Free | Phase::InTransit | Phase::Reported => {}
            Phase::Waiting => self.flows.rows[flow as usize].waiting.retain(|&other| other != index),
            Phase::Opening | Phase::Recalling => {
                self.flows.end_opening(flow, size);
                self.attempts[index as usize].phase = Phase::Reported;
                self.release_pools(flow);
            }
            Phase::Moving => {
                let moved = self.bytes_received(index);
                self.attempts[index as usize].moved = moved;
                self.attempts[index as usize].phase = Phase::Reported;
                self.metrics.add_moved(moved);
                self.flows.remove_file(flow, end, self.now);
                self.release_pools(flow);
            }
        }
    }

    /// Bytes of a moving attempt so far.
    fn bytes_received(&mut self, index: u32) -> u64 {
        let attempt = &self.attempts[index as usize];
        self.flows.advance(attempt.flow, self.now);
        let service = self.flows.rows[attempt.flow as usize].service();
        ((service - attempt.begin).max(0.0) as u64).min(attempt.to_move)
    }

    /// An attempt that has begun ends with a fault of the world.
    pub(crate) fn interrupt(&mut self, index: u32, fault: Fault, later: f64) {
        let attempt = &mut self.attempts[index as usize];
        let (flow, end, size, phase) = (attempt.flow, attempt.end, attempt.size as f64, attempt.phase);
        match phase {
            Phase::Moving => {
                let moved = self.bytes_received(index);
                self.attempts[index as usize].moved = moved;
                self.attempts[index as usize].phase = Phase::Reported;
                self.flows.remove_file(flow, end, self.now);
            }
            Phase::Opening | Phase::Recalling => self.flows.end_opening(flow, size),
            _ => return,
        }
        self.attempts[index as usize].fault = Some(fault);
        self.end_attempt(index, later);
    }

    pub(crate) fn send_report(&mut self, site: u32) {
        let mut rows = Vec::new();
        let mut any = false;
        for at in 0..self.flows.into[site as usize].len() {
            let flow = self.flows.into[site as usize][at];
            any |= self.flows.rows[flow as usize].has_work()
                || !self.flows.rows[flow as usize].waiting.is_empty();
        }
        let moving: Vec<u32> = self.moving_into(site);
        for index in moving {
            let bytes = self.bytes_received(index);
            rows.push((index, self.attempts[index as usize].generation, bytes));
        }
        if !rows.is_empty() && !self.is_away(site) {
            let way = self.plan.model.service_round_trip.0 / 2.0;
            let at = self.round_up_to_step(self.now + micros(way));
            self.schedule_at(at, SimEvent::Progress { rows });
        }
        self.sites[site as usize].reporting = any;
        if any {
            self.schedule_after(self.plan.model.report_every.0, SimEvent::Report { site });
        }
    }

    fn moving_into(&self, site: u32) -> Vec<u32> {
        let mut moving = Vec::new();
        for &flow in &self.flows.into[site as usize] {
            let attempts = &self.attempts;
            moving.extend(self.flows.rows[flow as usize].moving().filter_map(|(index, generation)| {
                let attempt = &attempts[index as usize];
                (attempt.generation == generation && attempt.phase == Phase::Moving).then_some(index)
            }));
        }
        moving.sort_unstable();
        moving
    }
}
