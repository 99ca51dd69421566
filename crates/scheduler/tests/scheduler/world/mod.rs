//! A small world that runs the real scheduler: sites with ports, agents that run what they are leased, a
//! catalog that answers questions, failures by seed. Ports are shared max-min fairly; time goes in steps.

mod allowed;
mod rows;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use longhaul_model::{
    AgentId, AttemptId, BlockId, CommunityName, Fault, FaultCode, FileId, SiteId, StorageId, SubscriptionId,
    Timestamp,
};
use longhaul_network::Knowledge;
use longhaul_scheduler::*;
use longhaul_testkit::Dice;

use allowed::Allowed;
use rows::Rows;

pub const STEP: Duration = Duration::from_millis(10);
/// Agent to service, and the same back.
pub const DELAY: Duration = Duration::from_millis(60);
/// Attempts an agent runs at once from one source, and their bytes if there are more than a few.
const RUNNING: usize = 2_000;
const IN_FLIGHT_BYTES: f64 = 64e6;

/// One storage with its site and agent; all have the number of the storage.
#[derive(Clone)]
pub struct WorldSite {
    pub out_bytes_per_s: f64,
    pub in_bytes_per_s: f64,
    pub limits: SiteLimits,
    pub state: SiteState,
    pub connected: bool,
    /// Its agent cannot be reached by others.
    pub unreachable: bool,
    pub full: bool,
    /// Files may pass through it.
    pub relay: bool,
}

impl WorldSite {
    pub fn new(rate: f64) -> Self {
        WorldSite {
            out_bytes_per_s: rate,
            in_bytes_per_s: rate,
            limits: SiteLimits::default(),
            state: SiteState::Open,
            connected: true,
            unreachable: false,
            full: false,
            relay: false,
        }
    }
}

#[derive(Clone)]
pub struct WorldFile {
    pub block: u64,
    pub size: u64,
}

pub struct Running {
    pub lease: Lease,
    pub arrived_at_agent: Timestamp,
    pub started: bool,
    pub bytes: f64,
}

pub struct World {
    pub scheduler: Scheduler,
    pub now: Timestamp,
    pub places: Vec<WorldSite>,
    pub files: Vec<WorldFile>,
    /// (file, storage) as the catalog has it.
    pub replicas: BTreeSet<(u64, u64)>,
    /// Bytes that are not what the catalog says.
    pub corrupt: BTreeSet<(u64, u64)>,
    /// subscription → (target, blocks, priority, created)
    pub subscriptions: BTreeMap<u64, (u64, Vec<u64>, u8, Timestamp)>,
    /// Those that were cancelled, with their blocks.
    gone: BTreeMap<u64, Vec<u64>>,
    /// By subscription, where it is not the default.
    pub parties: BTreeMap<u64, Party>,
    pub deadlines: BTreeMap<u64, Timestamp>,
    pub strategies: BTreeMap<u64, Strategy>,
    /// What links carry, where that is less than their ends.
    pub slow: BTreeMap<(u64, u64), f64>,
    /// None: from everywhere to everywhere.
    pub links: Option<Vec<(StorageId, StorageId)>>,
    pub failed: BTreeSet<(u64, u64)>,
    pub running: BTreeMap<AttemptId, Running>,
    rows: Rows,
    post: VecDeque<(Timestamp, Event)>,
    allowed: Allowed,
    pub failure_share: f64,
    /// What cannot be reached refuses connections.
    pub refusing: bool,
    pub dice: Dice,
    // What happened.
    pub arrivals: BTreeMap<(u64, u64), u32>,
    /// (source, target) → files and bytes.
    pub moved: BTreeMap<(u64, u64), (u64, u64)>,
    pub leases: u64,
    pub decisions: u64,
    pub log: Vec<String>,
    /// Why each source was chosen.
    pub reasons: Vec<String>,
    pub keep_log: bool,
    /// Why leases were recalled, and how many were returned.
    pub recalled: Vec<String>,
    pub given_back: u64,
}

pub fn party(community: &str, activity: Option<&str>) -> Party {
    Party { community: community.parse().unwrap(), activity: activity.map(|name| name.parse().unwrap()) }
}

pub fn start() -> Timestamp {
    Timestamp::from_seconds(1_800_000_000)
}

impl World {
    pub fn new(places: Vec<WorldSite>, seed: u64) -> Self {
        Self::with(places, seed, Settings::default())
    }

    pub fn with(places: Vec<WorldSite>, seed: u64, settings: Settings) -> Self {
        let mut world = World {
            scheduler: Scheduler::new(settings, Knowledge::default(), 0),
            now: start(),
            places,
            files: Vec::new(),
            replicas: BTreeSet::new(),
            corrupt: BTreeSet::new(),
            subscriptions: BTreeMap::new(),
            gone: BTreeMap::new(),
            parties: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            strategies: BTreeMap::new(),
            slow: BTreeMap::new(),
            links: None,
            failed: BTreeSet::new(),
            running: BTreeMap::new(),
            rows: Rows::default(),
            post: VecDeque::new(),
            allowed: Allowed::default(),
            failure_share: 0.0,
            refusing: false,
            dice: Dice(seed),
            arrivals: BTreeMap::new(),
            moved: BTreeMap::new(),
            leases: 0,
            decisions: 0,
            log: Vec::new(),
            reasons: Vec::new(),
            keep_log: false,
            recalled: Vec::new(),
            given_back: 0,
        };
        for place in 0..world.places.len() as u64 {
            world.tell_site(place);
            world.tell_storage(place, None);
            world.tell_agent(place);
        }
        world
    }

    pub fn handle(&mut self, event: Event) {
        if let Event::Limits(limits) = &event {
            self.allowed.set(limits.clone(), self.now);
        }
        self.scheduler.handle(event, self.now);
    }

    pub fn limit_links(&mut self, pairs: impl IntoIterator<Item = (u64, u64)>) {
        let pairs = pairs.into_iter().map(|(source, target)| (StorageId(source), StorageId(target)));
        self.links = Some(pairs.collect());
        self.handle(Event::Links(self.links.clone()));
    }

    pub fn tell_site(&mut self, place: u64) {
        let row = &self.places[place as usize];
        let info = SiteInfo {
            id: SiteId(place),
            name: format!("site-{place}").parse().unwrap(),
            state: row.state,
            reason: None,
            limits: row.limits,
        };
        self.handle(Event::Site(info));
    }

    pub fn tell_storage(&mut self, place: u64, trouble: Option<Fault>) {
        self.handle(Event::Storage(StorageInfo {
            id: StorageId(place),
            name: format!("storage-{place}").parse().unwrap(),
            site: SiteId(place),
            writable: true,
            relay: self.places[place as usize].relay,
            trouble,
        }));
    }

    pub fn tell_agent(&mut self, place: u64) {
        let connected = self.places[place as usize].connected;
        self.handle(Event::Agent { storage: StorageId(place), agent: Some(AgentId(place + 1)), connected });
    }

    /// `sizes` become files of `block` at `storage`.
    pub fn add_files(&mut self, block: u64, storage: u64, sizes: impl IntoIterator<Item = u64>) {
        for size in sizes {
            let file = self.files.len() as u64;
            self.files.push(WorldFile { block, size });
            self.replicas.insert((file, storage));
        }
    }

    fn missing(&self, block: u64, target: u64) -> impl Iterator<Item = (u64, &WorldFile)> {
        let files = (0u64..).zip(&self.files);
        files.filter(move |(file, row)| row.block == block && !self.replicas.contains(&(*file, target)))
    }

    /// Those of them that have not failed for good.
    fn lacking_of(&self, block: u64, target: u64) -> impl Iterator<Item = u64> {
        let missing = self.missing(block, target).map(|(file, _)| file);
        missing.filter(move |file| !self.failed.contains(&(*file, target)))
    }

    pub fn subscribe(&mut self, id: u64, blocks: &[u64], target: u64, priority: u8) {
        let now = self.now;
        self.subscriptions.insert(id, (target, blocks.to_vec(), priority, now));
        self.tell_demands(id);
    }

    pub fn tell_demands(&mut self, id: u64) {
        let (target, blocks, priority, created) = self.subscriptions[&id].clone();
        for block in blocks {
            let (files_left, bytes_left) = self
                .missing(block, target)
                .fold((0, 0), |(files, bytes), (_, row)| (files + 1, bytes + row.size));
            self.handle(Event::Demand(Demand {
                id: DemandId { subscription: SubscriptionId(id), block: BlockId(block) },
                target: StorageId(target),
                priority,
                party: self.party(id),
                deadline: self.deadlines.get(&id).copied(),
                strategy: self.strategies.get(&id).copied(),
                created,
                files_left,
                bytes_left,
            }));
        }
    }

    pub fn cancel(&mut self, id: u64) {
        let (target, blocks, ..) = self.subscriptions.remove(&id).unwrap();
        self.gone.insert(id, blocks);
        self.handle(Event::SubscriptionGone { subscription: SubscriptionId(id) });
        let wanted: BTreeSet<u64> = self.wanted_blocks(target);
        let files = &self.files;
        self.rows.retain(|row| row.target != target || wanted.contains(&files[row.file as usize].block));
    }

    fn wanted_blocks(&self, target: u64) -> BTreeSet<u64> {
        let at = self.subscriptions.values().filter(|row| row.0 == target);
        at.flat_map(|row| row.1.iter().copied()).collect()
    }

    /// Communities whose demand it may serve. A hop that was wanted for a wish that is gone may go on in
    /// its name, if others want it too.
    fn communities(&self, lease: &Lease) -> BTreeSet<CommunityName> {
        let block = lease.block.0;
        let wanting: Vec<_> = self.subscriptions.iter().filter(|(_, row)| row.1.contains(&block)).collect();
        let is_hop = wanting.iter().all(|(_, row)| row.0 != lease.target.0);
        let gone = self.gone.iter().filter(|(_, blocks)| is_hop && blocks.contains(&block));
        let all = wanting.iter().map(|(id, _)| **id).chain(gone.map(|(id, _)| *id));
        all.map(|id| self.party(id).community).collect()
    }

    fn party(&self, subscription: u64) -> Party {
        self.parties.get(&subscription).cloned().unwrap_or_else(|| party("default", None))
    }

    /// Blocks with the targets where they should be.
    fn wanted(&self) -> BTreeSet<(u64, u64)> {
        let rows = self.subscriptions.values();
        rows.flat_map(|(target, blocks, ..)| blocks.iter().map(|&block| (block, *target))).collect()
    }

    /// Everything that should be at targets and is not, failed files aside.
    pub fn lacking(&self) -> usize {
        self.wanted().into_iter().map(|(block, target)| self.lacking_of(block, target).count()).sum()
    }

    /// A file with a target where it should be and is not; none if all is there.
    fn any_lacking(&self) -> Option<(u64, u64)> {
        let mut wanted = self.wanted().into_iter();
        wanted.find_map(|(block, target)| Some((self.lacking_of(block, target).next()?, target)))
    }

    /// Until all is there; panics after `most` of world time.
    pub fn run(&mut self, most: Duration) -> Duration {
        let begin = self.now;
        // Looked for again when it is there, not in each step: there are many files and steps.
        while let Some(lacking) = self.any_lacking() {
            while !self.replicas.contains(&lacking) && !self.failed.contains(&lacking) {
                self.step();
                if self.now.since(begin) > most {
                    panic!("{} files are lacking after {most:?}\n{}", self.lacking(), self.standing());
                }
            }
        }
        self.now.since(begin)
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Whether the next step brings an agent's word on how an attempt ended.
    pub fn hears_an_end_next(&self) -> bool {
        let mut next = self.post.iter().take_while(|(at, _)| *at <= self.now + STEP);
        next.any(|(_, event)| matches!(event, Event::Outcome(_)))
    }

    pub fn standing(&self) -> String {
        let mut text = format!("{:?}\n", self.scheduler.counts());
        for &id in self.subscriptions.keys() {
            text += &format!("{id}: {:?}\n", self.scheduler.outlook(SubscriptionId(id), self.now));
        }
        for row in self.scheduler.transfers(None, None, 5) {
            text += &format!("{row:?}: {:?}\n", self.scheduler.explain_wait(row.transfer, self.now));
        }
        text
    }

    pub fn step(&mut self) {
        self.now = self.now + STEP;
        while self.post.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, event) = self.post.pop_front().unwrap();
            self.deliver(event);
        }
        self.move_bytes();
        self.poll();
    }

    /// The service applies an agent's report to its catalog, then tells the scheduler.
    fn deliver(&mut self, event: Event) {
        if let Event::Outcome(outcome) = &event {
            self.allowed.end(outcome.attempt, outcome.bytes_moved);
            if let Some(transfer) = self.rows.of_attempt(outcome.attempt) {
                if outcome.fault.is_none() {
                    let row = self.rows.remove(transfer).unwrap();
                    self.replicas.insert((row.file, row.target));
                    *self.arrivals.entry((row.file, row.target)).or_default() += 1;
                } else {
                    self.rows.end_lease(transfer);
                    self.rows.get_mut(transfer).unwrap().attempts += 1;
                }
            }
        }
        self.handle(event);
    }

    fn move_bytes(&mut self) {
        self.start_attempts();
        let rates = self.rates();
        let mut ended = Vec::new();
        for (id, running) in &mut self.running {
            if !running.started {
                continue;
            }
            let rate = rates[&(running.lease.source.0, running.lease.target.0)];
            running.bytes += rate * STEP.as_secs_f64();
            if running.bytes + 1.0 >= running.lease.size as f64 {
                ended.push(*id);
            }
        }
        let unreachable: Vec<AttemptId> = self
            .running
            .iter()
            .filter(|(_, running)| {
                running.started && self.places[running.lease.source.0 as usize].unreachable
            })
            .map(|(id, _)| *id)
            .collect();
        for id in unreachable {
            let mut fault = Fault::new(FaultCode::Unreachable, "no route");
            if self.refusing {
                fault = fault.blaming(longhaul_model::Blame::Source);
            }
            self.end(id, Some(fault));
        }
        for id in ended {
            if self.running.contains_key(&id) {
                let fault = self.fate(id);
                self.end(id, fault);
            }
        }
    }

    fn start_attempts(&mut self) {
        let now = self.now;
        let waiting = self.running.values().filter(|one| !one.started && one.arrived_at_agent <= now);
        let targets: BTreeSet<u64> = waiting.map(|running| running.lease.target.0).collect();
        for place in targets {
            // By source: each session has its own stretch of work.
            let mut busy = vec![(0, 0.0); self.places.len()];
            let of_place = self.running.values_mut().filter(|running| running.lease.target.0 == place);
            let mut waiting = Vec::new();
            for running in of_place {
                let (files, bytes) = &mut busy[running.lease.source.0 as usize];
                if running.started {
                    *files += 1;
                    *bytes += running.lease.size as f64 - running.bytes;
                } else if running.arrived_at_agent <= now {
                    waiting.push(running);
                }
            }
            waiting.sort_by_key(|running| (u8::MAX - running.lease.priority, running.lease.attempt));
            let mut begun = Vec::new();
            for running in waiting {
                let (files, bytes) = &mut busy[running.lease.source.0 as usize];
                if *files < RUNNING && (*files < 4 || *bytes < IN_FLIGHT_BYTES) {
                    running.started = true;
                    *files += 1;
                    *bytes += running.lease.size as f64;
                    begun.push(running.lease.attempt);
                }
            }
            for attempt in begun {
                self.post.push_back((self.now + DELAY, Event::Started { attempt }));
            }
        }
    }

    fn fate(&mut self, id: AttemptId) -> Option<Fault> {
        let lease = &self.running[&id].lease;
        let (file, source, target) = (lease.file.0, lease.source.0, lease.target.0);
        if self.places[target as usize].full {
            return Some(Fault::new(FaultCode::TargetFull, "0 bytes free"));
        }
        if self.corrupt.contains(&(file, source)) {
            return Some(Fault::new(FaultCode::WrongDigest, "adler32 differs"));
        }
        if self.dice.chance(self.failure_share) {
            let codes = [
                FaultCode::ConnectionLost,
                FaultCode::SourceUnreadable,
                FaultCode::TargetWrite,
                FaultCode::PermitRefused,
                FaultCode::LeaseExpired,
                FaultCode::Stalled,
            ];
            let code = codes[self.dice.below(codes.len() as u64) as usize];
            return Some(Fault::new(code, "by the dice"));
        }
        None
    }

    pub fn end(&mut self, id: AttemptId, fault: Option<Fault>) {
        let running = self.running.remove(&id).unwrap();
        let lease = running.lease;
        if fault.is_none() {
            let moved = self.moved.entry((lease.source.0, lease.target.0)).or_default();
            moved.0 += 1;
            moved.1 += lease.size;
        }
        let outcome = Outcome {
            attempt: id,
            epoch: lease.epoch,
            fault,
            bytes_moved: running.bytes.min(lease.size as f64) as u64,
        };
        self.post.push_back((self.now + DELAY, Event::Outcome(outcome)));
    }

    /// By source and target: max-min fair over the ports out and in, by progressive filling.
    fn rates(&self) -> BTreeMap<(u64, u64), f64> {
        let count = self.places.len();
        let mut left: Vec<f64> = self.places.iter().map(|place| place.out_bytes_per_s).collect();
        left.extend(self.places.iter().map(|place| place.in_bytes_per_s));
        left.extend(self.slow.values());
        // What an attempt goes through.
        let ways = |pair: (u64, u64)| {
            let link = self.slow.keys().position(|slow| *slow == pair);
            let ends = [pair.0 as usize, count + pair.1 as usize];
            ends.into_iter().chain(link.map(|link| 2 * count + link)).collect::<Vec<usize>>()
        };
        let mut attempts: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        for running in self.running.values().filter(|running| running.started) {
            *attempts.entry((running.lease.source.0, running.lease.target.0)).or_default() += 1;
        }
        let mut open: Vec<((u64, u64), u32, Vec<usize>)> =
            attempts.into_iter().map(|(pair, attempts)| (pair, attempts, ways(pair))).collect();
        let mut rates = BTreeMap::new();
        while !open.is_empty() {
            let mut flows = vec![0u32; left.len()];
            for (_, attempts, ways) in &open {
                ways.iter().for_each(|&way| flows[way] += attempts);
            }
            let share = |way: usize| left[way] / f64::from(flows[way]);
            let used = (0..left.len()).filter(|&way| flows[way] > 0);
            let narrow = used.min_by(|&one, &other| share(one).total_cmp(&share(other))).unwrap();
            let rate = share(narrow).max(0.0);
            open.retain(|(pair, attempts, ways)| {
                let here = ways.contains(&narrow);
                if here {
                    rates.insert(*pair, rate);
                    ways.iter().for_each(|&way| left[way] -= rate * f64::from(*attempts));
                }
                !here
            });
        }
        rates
    }

    fn poll(&mut self) {
        while let Some(decision) = self.scheduler.poll_decision(self.now) {
            self.act(decision);
        }
    }

    fn act(&mut self, decision: Decision) {
        self.decisions += 1;
        if self.keep_log {
            self.log.push(format!("{decision:?}"));
        }
        match decision {
            Decision::Expand { demand, block, target, after, limit } => {
                self.answer(demand, block, target, after, limit)
            }
            Decision::Lease(lease) => self.take_lease(lease),
            Decision::Cancel { transfer, attempt, why, .. } => {
                self.running.remove(&attempt);
                self.allowed.end(attempt, 0);
                if why == CancelWhy::SitePaused {
                    self.rows.end_lease(transfer);
                } else {
                    self.rows.remove(transfer);
                }
            }
            Decision::Recall(asked) => {
                self.recalled.push(self.scheduler.explain_recall(&asked));
                // As an agent answers: what has begun goes on.
                if self.running.get(&asked.attempt).is_some_and(|running| !running.started) {
                    self.given_back += 1;
                    self.end(asked.attempt, Some(Fault::new(FaultCode::GivenBack, "asked for")));
                }
            }
            Decision::Drop { transfer } => {
                self.rows.remove(transfer);
            }
            Decision::Suspect { file, source, .. } => {
                assert!(self.corrupt.contains(&(file.0, source.0)), "a sound replica was suspected");
                self.replicas.remove(&(file.0, source.0));
                // What it held no longer counts: who wants it there lacks it again.
                let again = self.subscriptions.iter().filter(|(_, row)| row.0 == source.0);
                let again: Vec<u64> = again.map(|(id, _)| *id).collect();
                again.into_iter().for_each(|id| self.tell_demands(id));
            }
            Decision::Fail { transfer, file, target, .. } => {
                self.rows.remove(transfer);
                self.failed.insert((file.0, target.0));
            }
        }
    }

    fn answer(
        &mut self,
        demand: DemandId,
        block: BlockId,
        target: StorageId,
        after: Option<FileId>,
        limit: u32,
    ) {
        let live: BTreeSet<u64> = self
            .rows
            .iter()
            .map(|(_, row)| row)
            .filter(|row| row.target == target.0)
            .map(|row| row.file)
            .collect();
        let files: Vec<WantedFile> = self
            .missing(block.0, target.0)
            .filter(|(file, _)| after.is_none_or(|after| *file > after.0))
            .filter(|(file, _)| !live.contains(file) && !self.failed.contains(&(*file, target.0)))
            .take(limit as usize)
            .map(|(file, row)| WantedFile { file: FileId(file), size: row.size, sources: self.sources(file) })
            .collect();
        let exhausted = files.len() < limit as usize;
        self.post.push_back((self.now + STEP, Event::Files { demand, files, exhausted }));
        // Answers come sooner than what agents say.
        self.post.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    fn sources(&self, file: u64) -> Vec<StorageId> {
        self.replicas.range((file, 0)..=(file, u64::MAX)).map(|(_, storage)| StorageId(*storage)).collect()
    }

    /// Promise 8, and no two attempts for one file at one target.
    fn take_lease(&mut self, lease: Lease) {
        self.leases += 1;
        let (file, source, target) = (lease.file.0, lease.source.0, lease.target.0);
        for place in [source, target] {
            let row = &self.places[place as usize];
            assert!(row.connected && row.state == SiteState::Open, "leased at a site that is closed or away");
        }
        let pair = (lease.source, lease.target);
        assert!(self.links.as_ref().is_none_or(|links| links.contains(&pair)), "leased over no link");
        assert!(self.replicas.contains(&(file, source)), "leased from a storage that does not have it");
        if self.replicas.contains(&(file, target)) {
            // It arrived while its lease was being taken back: the catalog refuses, and the service says why.
            let outcome = Outcome { attempt: lease.attempt, epoch: lease.epoch, fault: None, bytes_moved: 0 };
            self.rows.remove(lease.transfer);
            return self.handle(Event::Outcome(outcome));
        }
        assert!(!self.rows.is_leased(target, file), "two live attempts for file {file} at {target}");
        let (into, out) = (self.rows.leased_into(target), self.rows.leased_from(source));
        let limits = self.places[target as usize].limits;
        assert!(limits.active_in.is_none_or(|most| into < most), "too many in");
        let limits = self.places[source as usize].limits;
        assert!(limits.active_out.is_none_or(|most| out < most), "too many out");
        let communities = self.communities(&lease);
        self.allowed.lease(&lease, &communities, self.now);
        assert_eq!(lease.choice.candidates[0].storage, lease.source, "the explanation tells of the choice");
        let words = self.scheduler.explain(&lease.choice);
        assert_eq!(words.candidates.len(), lease.choice.candidates.len());
        self.reasons.push(words.reason);
        let adopted = AdoptedLease { attempt: lease.attempt, source: lease.source, agent: lease.agent };
        self.rows.lease(lease.transfer, (file, target), lease.epoch, adopted);
        let running = Running { arrived_at_agent: self.now + DELAY, started: false, bytes: 0.0, lease };
        self.running.insert(running.lease.attempt, running);
    }

    /// The service dies and comes back: what is not in its catalog is forgotten, agents go on.
    pub fn restart_service(&mut self) {
        let knowledge = self.scheduler.knowledge().clone();
        let last =
            self.rows.iter().map(|(id, _)| id.0).chain(self.running.keys().map(|id| id.0)).max().unwrap_or(0);
        let settings = self.scheduler.settings().clone();
        self.scheduler = Scheduler::new(settings, knowledge, last);
        self.handle(Event::Links(self.links.clone()));
        self.handle(Event::Limits(self.allowed.limits().clone()));
        self.post.retain(|(_, event)| !matches!(event, Event::Files { .. }));
        for place in 0..self.places.len() as u64 {
            self.tell_site(place);
            self.tell_storage(place, None);
        }
        let ids: Vec<u64> = self.subscriptions.keys().copied().collect();
        ids.into_iter().for_each(|id| self.tell_demands(id));
        let adopted: Vec<AdoptedTransfer> = self
            .rows
            .iter()
            .map(|(&transfer, row)| AdoptedTransfer {
                transfer,
                file: FileId(row.file),
                block: BlockId(self.files[row.file as usize].block),
                target: StorageId(row.target),
                size: self.files[row.file as usize].size,
                sources: self.sources(row.file),
                attempts: row.attempts,
                epoch: row.epoch,
                not_before: None,
                lease: row.lease(),
            })
            .collect();
        adopted.into_iter().for_each(|row| self.handle(Event::Adopt(row)));
        while let Some(decision) = self.scheduler.poll_decision(self.now) {
            assert!(!matches!(decision, Decision::Lease(_)), "leased before any agent said hello");
            self.act(decision);
        }
        for place in 0..self.places.len() as u64 {
            let held: Vec<AttemptId> = self
                .rows
                .iter()
                .filter(|(_, row)| row.target == place)
                .filter_map(|(_, row)| Some(row.lease()?.attempt))
                .collect();
            self.tell_agent(place);
            self.handle(Event::HeldLeases { agent: AgentId(place + 1), attempts: held });
        }
    }

    pub fn bytes_between(&self, source: u64, target: u64) -> u64 {
        self.moved.get(&(source, target)).map_or(0, |moved| moved.1)
    }
}
