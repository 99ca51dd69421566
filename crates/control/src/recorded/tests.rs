//! A day of a service, by its own brain and a clock that runs ahead: recorded, and told again.
//!
//! Catalog, agents and files are played here; everything between what the brain hears and what it orders is
//! real, its thread included, so that no two runs of the test record the same.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::Duration;

use longhaul_catalog::{DemandRow, MissingFile};
use longhaul_identity::Clock;
use longhaul_model::{
    AgentId, AttemptId, BlockId, DatasetId, DigestSet, Fault, FaultCode, FileId, SiteId, StorageId,
    SubscriptionId, Timestamp, Verification,
};
use longhaul_network::{
    Endpoint, Mapping, Metric, Observation, ObservationId, Origin, PathSelector, Subject,
};
use longhaul_scheduler::{
    CancelWhy, DemandId, Event, ImportedKnowledge, Lease, Outcome, Settings, SiteInfo, SiteLimits, SiteState,
    StorageInfo, Strategy,
};
use longhaul_simulator::replay::{Replay, ReplayError, ReplayOptions, ReplayReport};

use super::{LineKind, Recorded, Recording, Tape};
use crate::brain::{Brain, INPUTS_MAX, Input, Order};
use crate::commit_loop::CommitWork;
use crate::event_loop::InputQueue;
use crate::executor::Executor;
use crate::kernel::{SchedulerHandle, WriterHandle};
use crate::query_loop::ExpandQuery;
use crate::turns::LoopTurn;

const SITES: u64 = 5;
/// Sites that hold the data; the others want it.
const SOURCES: u64 = 3;
const BLOCKS: u64 = 24;
const FILES_OF_BLOCK: u64 = 125;
const SIZE: u64 = 2_000_000_000;
const DAY_S: i64 = 86_400;
const BEGIN: Timestamp = Timestamp(1_800_000_000_000_000);

/// What happens at a time of the day, besides what the leases bring.
enum Happening {
    Demand {
        block: u64,
        target: u64,
    },
    Site {
        site: u64,
        state: SiteState,
    },
    Connected {
        site: u64,
        connected: bool,
    },
    Measured {
        source: u64,
        target: u64,
        bytes_per_s: f64,
    },
    Told,
    /// Time passes: whoever rests tries again.
    Nothing,
    Started(Lease),
    Ended(Lease, Option<FaultCode>),
}

struct Day {
    clock: Arc<AtomicI64>,
    brain: SchedulerHandle,
    jobs: Receiver<CommitWork>,
    questions: Receiver<ExpandQuery>,
    /// By time and number.
    agenda: BTreeMap<(Timestamp, u64), Happening>,
    happenings: u64,
    random: u64,
    /// By target: files that came.
    done: BTreeMap<(u64, u64), u64>,
    leases: u64,
}

#[test]
fn a_day_that_was_recorded_is_decided_again_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let leases = record_a_day(directory.path());
    let expected = BLOCKS * FILES_OF_BLOCK * (SITES - SOURCES);
    assert!(leases > expected, "{leases} leases for {expected} files: some failed and were tried again");
    let segments = segments(directory.path());

    let same = replay(&segments, ReplayOptions::default()).unwrap();
    assert_eq!(same.difference, None, "{:#?}", same.difference);
    assert_eq!((same.leases, same.torn), (leases, 0));
    assert!(same.lasted() > Duration::from_secs(20 * 3_600), "{same:?}");
    assert!(same.inputs.observations > 20 && same.inputs.imports == 1, "{same:?}");

    // Another setting decides otherwise, and the first decision that is another is told.
    let orderly = |settings: &mut Settings| settings.strategy = Strategy::Orderly;
    let other =
        replay(&segments, ReplayOptions { settings: Some(Box::new(orderly)), ..ReplayOptions::default() })
            .unwrap();
    let difference = other.difference.expect("another strategy chooses other sources");
    assert!(other.equal < same.equal && difference.number == other.equal + 1);
    assert!(difference.recorded.starts_with("file ") && difference.recorded != difference.replayed);
    assert!(!difference.fields.is_empty(), "{difference:?}");

    // Beside the recorded choices stand those of others, where they can be told.
    let beside = vec![Strategy::Best, Strategy::Throughput];
    let shown = replay(&segments, ReplayOptions { compare: beside, settings: None }).unwrap();
    assert!(shown.is_same(), "asking changes nothing");
    let [best, throughput] = &shown.comparisons[..] else { panic!("{:?}", shown.comparisons) };
    assert!(best.choices > leases / 2 && best.same == best.choices, "{best:?}");
    assert!(throughput.same < throughput.choices, "{throughput:?}");
    assert!(throughput.example.as_ref().is_some_and(|words| words.contains("throughput would have taken")));
    let refused =
        replay(&segments, ReplayOptions { compare: vec![Strategy::Queue], settings: None }).unwrap_err();
    assert!(refused.contains("queue goes by what waits"), "{refused}");

    damage(&segments, &same);
}

/// A torn end is cut, whatever was torn; all other damage is told.
fn damage(segments: &[Vec<u8>], whole: &ReplayReport) {
    let mut torn = segments.to_vec();
    let last = torn.last_mut().unwrap();
    last.truncate(last.len() - 7);
    let told = replay(&torn, ReplayOptions::default()).unwrap();
    assert!(told.is_same() && told.torn > 0 && told.lines == whole.lines - 1, "{told:?}");

    let mut flipped = segments.to_vec();
    let middle = flipped[0].len() / 2;
    flipped[0][middle] ^= 4;
    let why = replay(&flipped, ReplayOptions::default()).unwrap_err();
    assert!(why.contains("damaged"), "{why}");

    let mut gap = segments.to_vec();
    let end = gap[0].iter().position(|&byte| byte == b'\n').unwrap();
    let next = end + 1 + gap[0][end + 1..].iter().position(|&byte| byte == b'\n').unwrap();
    gap[0].drain(end..next);
    let why = replay(&gap, ReplayOptions::default()).unwrap_err();
    assert!(why.contains("line 1 is missing"), "{why}");
    assert!(replay(&[Vec::new()], ReplayOptions::default()).unwrap_err().contains("empty"));
}

fn segments(directory: &Path) -> Vec<Vec<u8>> {
    let runs: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|run| run.unwrap().path()).collect();
    assert_eq!(runs.len(), 1, "one start, one run");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(&runs[0]).unwrap().map(|segment| segment.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn replay(segments: &[Vec<u8>], wish: ReplayOptions) -> Result<ReplayReport, String> {
    let replayed = || -> Result<ReplayReport, ReplayError> {
        let mut replay = Replay::new(wish)?;
        segments.iter().try_for_each(|segment| replay.feed(segment))?;
        replay.end()
    };
    replayed().map_err(|error| error.to_string())
}

/// Returns how many leases there were.
fn record_a_day(directory: &Path) -> u64 {
    let clock = Arc::new(AtomicI64::new(BEGIN.0));
    let (inputs, heard) = sync_channel(INPUTS_MAX);
    let (writer, jobs) = channel();
    let (queries, questions) = channel();
    let mut scheduler = Recorded::new(Settings::default(), None, 0);
    let recording = Arc::new(Recording::default());
    scheduler.record(None, 0, (directory, 1 << 30), recording.clone(), BEGIN).unwrap();
    let ticking = clock.clone();
    let now: Clock = Arc::new(move || Timestamp(ticking.load(Ordering::Relaxed)));
    let inputs_of_brain = InputQueue::new(heard);
    let brain =
        Brain::new(inputs_of_brain, scheduler, WriterHandle::new(writer), queries, Box::new(NoExecutor));
    let thinking = std::thread::spawn(move || brain.run(&now, &LoopTurn::default()));
    let mut day = Day {
        clock,
        brain: SchedulerHandle::new(inputs),
        jobs,
        questions,
        agenda: BTreeMap::new(),
        happenings: 0,
        random: 8_241,
        done: BTreeMap::new(),
        leases: 0,
    };
    day.plan();
    day.pass();
    day.send_input(Input::Stop);
    thinking.join().unwrap();
    assert!(!recording.broken.load(Ordering::Relaxed), "the recording is whole");
    day.leases
}

/// The catalog: every source holds every file.
fn answer(question: &ExpandQuery) -> Input {
    let first = question.block.0 * FILES_OF_BLOCK;
    let from = question.after.map_or(first, |after| after.0 + 1);
    let to = (first + FILES_OF_BLOCK).min(from + u64::from(question.limit));
    let file = |file: u64| MissingFile {
        file: FileId(file),
        lfn: format!("day/{file}").parse().unwrap(),
        size: SIZE,
        digests: DigestSet::default(),
        sources: (0..SOURCES).map(StorageId).collect(),
    };
    Input::Expanded {
        demand: question.demand,
        target: question.target,
        files: Some((from..to).map(file).collect()),
        exhausted: to == first + FILES_OF_BLOCK,
    }
}

/// There are no jobs in this world.
struct NoExecutor;

impl Executor for NoExecutor {
    fn agent(&self) -> AgentId {
        AgentId(u64::MAX)
    }

    fn take(&mut self, lease: Lease, _: String) {
        panic!("a lease of nobody: {lease:?}");
    }

    fn take_back(&mut self, attempt: AttemptId, _: CancelWhy) {
        panic!("{attempt} is nobody's");
    }
}

impl Day {
    fn at(&mut self, at: Timestamp, what: Happening) {
        self.happenings += 1;
        self.agenda.insert((at, self.happenings), what);
    }

    fn random(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    /// A block each hour for each target; a site that is paused at noon, one that is away, a fibre that is
    /// cut.
    fn plan(&mut self) {
        let hour = |hours: f64| BEGIN + Duration::from_secs_f64(hours * 3_600.0);
        for block in 0..BLOCKS {
            for target in SOURCES..SITES {
                self.at(hour(block as f64 * 0.9 + 0.1), Happening::Demand { block, target });
            }
        }
        self.at(hour(6.0), Happening::Connected { site: 0, connected: false });
        self.at(hour(7.5), Happening::Connected { site: 0, connected: true });
        self.at(hour(12.0), Happening::Site { site: 1, state: SiteState::Paused });
        self.at(hour(13.0), Happening::Site { site: 1, state: SiteState::Open });
        self.at(hour(0.05), Happening::Told);
        for minute in 0..24 * 60 {
            self.at(hour(f64::from(minute) / 60.0), Happening::Nothing);
        }
        for half in 0..40 {
            let (source, target) = (half % SOURCES, SOURCES + half % 2);
            let bytes_per_s = 1e8 * (1.0 + (half % 7) as f64 / 3.0);
            self.at(hour(half as f64 / 2.0), Happening::Measured { source, target, bytes_per_s });
        }
    }

    fn send_input(&self, input: Input) {
        assert!(self.brain.send(input));
    }

    fn pass(&mut self) {
        self.begin();
        let end = BEGIN + Duration::from_secs(DAY_S as u64);
        while let Some(((at, _), what)) = self.agenda.pop_first() {
            if at > end {
                break;
            }
            self.clock.fetch_max(at.0, Ordering::Relaxed);
            self.happen(what);
            self.hear();
        }
    }

    fn begin(&mut self) {
        let mut events = Vec::new();
        for site in 0..SITES {
            events.push(site_event(site, SiteState::Open));
            events.push(Event::Storage(StorageInfo {
                id: StorageId(site),
                name: name(site).parse().unwrap(),
                site: SiteId(site),
                writable: site >= SOURCES,
                relay: false,
                trouble: None,
            }));
            events.push(agent_event(site, true));
        }
        self.send_input(Input::Events(events));
    }

    fn happen(&mut self, what: Happening) {
        let now = Timestamp(self.clock.load(Ordering::Relaxed));
        let input = match what {
            Happening::Demand { block, target } => {
                Input::Demands { now: vec![demand(block, target, now)], gone: Vec::new() }
            }
            Happening::Site { site, state } => Input::Events(vec![site_event(site, state)]),
            Happening::Connected { site, connected } => Input::Events(vec![agent_event(site, connected)]),
            Happening::Measured { source, target, bytes_per_s } => {
                let seen = measured(source, target, bytes_per_s, now);
                let said = self.brain.observe(vec![seen]).expect("the brain answers");
                assert!(said[0].is_ok(), "{said:?}");
                return;
            }
            Happening::Told => {
                let taken = self.brain.learn(lesson(now)).expect("the brain answers").unwrap();
                assert_eq!(taken.imported, 1, "{taken:?}");
                return;
            }
            Happening::Nothing => return,
            Happening::Started(lease) => Input::Events(vec![
                Event::Started { attempt: lease.attempt },
                Event::Progress { attempt: lease.attempt, bytes_done: lease.size / 3 },
            ]),
            Happening::Ended(lease, fault) => self.ended(&lease, fault),
        };
        self.send_input(input);
    }

    fn ended(&mut self, lease: &Lease, fault: Option<FaultCode>) -> Input {
        let (block, file) = (lease.block, lease.file);
        let events = vec![Event::Outcome(Outcome {
            attempt: lease.attempt,
            epoch: lease.epoch,
            bytes_moved: if fault.is_some() { lease.size / 2 } else { lease.size },
            fault: fault.map(|code| Fault::new(code, "as the dice fell")),
        })];
        if fault.is_some() {
            return Input::Applied { events, done: Vec::new(), complete: Vec::new() };
        }
        let done = self.done.entry((block.0, lease.target.0)).or_default();
        *done += 1;
        let complete = if *done == FILES_OF_BLOCK { vec![(block, lease.target)] } else { Vec::new() };
        Input::Applied { events, done: vec![(lease.target, block, file)], complete }
    }

    /// Until the brain has nothing to decide now: answers what it asks, and does what it orders.
    fn hear(&mut self) {
        let mut orders: VecDeque<Order> = VecDeque::new();
        loop {
            let wakeup =
                self.brain.query(|scheduler, now| scheduler.next_wakeup().is_some_and(|at| at <= now));
            let mut quiet = !wakeup.expect("the brain answers");
            for question in self.questions.try_iter() {
                quiet = false;
                self.send_input(answer(&question));
            }
            for job in self.jobs.try_iter() {
                if let CommitWork::Orders(more) = job {
                    quiet = false;
                    orders.extend(more);
                    self.send_input(Input::Written { events: Vec::new(), trouble: None });
                }
            }
            if quiet {
                break;
            }
        }
        for order in orders {
            match order {
                Order::Lease(grant) => self.lease(grant.lease),
                Order::Cancel { attempt, .. } => self.cancel(attempt),
                Order::GiveBack { attempt, .. } => self.give_back(attempt),
                _ => {}
            }
        }
    }

    /// A lease was taken back: its agent lets go of it.
    fn cancel(&mut self, attempt: AttemptId) {
        self.agenda.retain(|_, what| match what {
            Happening::Started(lease) | Happening::Ended(lease, _) => lease.attempt != attempt,
            _ => true,
        });
    }

    /// A lease is asked back: it ends unless it has begun.
    fn give_back(&mut self, attempt: AttemptId) {
        let waiting = self.agenda.values().find_map(|what| match what {
            Happening::Started(lease) if lease.attempt == attempt => Some(lease.clone()),
            _ => None,
        });
        if let Some(lease) = waiting {
            self.cancel(attempt);
            let now = Timestamp(self.clock.load(Ordering::Relaxed));
            self.at(now, Happening::Ended(lease, Some(FaultCode::GivenBack)));
        }
    }

    fn lease(&mut self, lease: Lease) {
        self.leases += 1;
        let now = Timestamp(self.clock.load(Ordering::Relaxed));
        // From alpha it is slow in the second half of the day, from gamma always.
        let late = now.since(BEGIN) > Duration::from_secs(DAY_S as u64 / 2);
        let rate = match lease.source.0 {
            0 if late => 15e6,
            2 => 40e6,
            _ => 150e6,
        } * (0.7 + self.random() as f64 % 600.0 / 1_000.0);
        let fault = match self.random() % 100 {
            0..3 => Some(FaultCode::Unreachable),
            3..5 => Some(FaultCode::Interrupted),
            _ => None,
        };
        let seconds = lease.size as f64 / rate;
        self.at(now + Duration::from_secs_f64(seconds / 3.0), Happening::Started(lease.clone()));
        self.at(now + Duration::from_secs_f64(seconds), Happening::Ended(lease, fault));
    }
}

fn name(site: u64) -> &'static str {
    ["alpha", "beta", "gamma", "delta", "epsilon"][site as usize]
}

fn site_event(site: u64, state: SiteState) -> Event {
    Event::Site(SiteInfo {
        id: SiteId(site),
        name: name(site).parse().unwrap(),
        state,
        reason: (state == SiteState::Paused).then(|| "new switches".to_owned()),
        limits: SiteLimits { active_in: Some(40), active_out: Some(30), ..SiteLimits::default() },
    })
}

fn agent_event(site: u64, connected: bool) -> Event {
    Event::Agent { storage: StorageId(site), agent: Some(AgentId(site + 1)), connected }
}

fn demand(block: u64, target: u64, created: Timestamp) -> DemandRow {
    DemandRow {
        subscription: SubscriptionId(target * 1_000 + block + 1),
        dataset: DatasetId(1),
        block: BlockId(block),
        target: StorageId(target),
        priority: 3 + (block % 4) as u8,
        verification: Verification::EndToEnd,
        community: ["atlas", "cms", "belle"][block as usize % 3].parse().unwrap(),
        created,
        terms: Default::default(),
        files_missing: FILES_OF_BLOCK,
        bytes_missing: FILES_OF_BLOCK * SIZE,
    }
}

fn measured(source: u64, target: u64, bytes_per_s: f64, now: Timestamp) -> Observation {
    Observation {
        id: ObservationId::from_parts(&["test", &now.0.to_string()]),
        at: now,
        subject: Subject::Path {
            source: Endpoint::Storage(StorageId(source)),
            target: Endpoint::Storage(StorageId(target)),
            path: PathSelector::default(),
        },
        metric: Metric::Throughput { bytes_per_s: bytes_per_s / 3.0, seconds: 20.0, streams: 4 },
        origin: Origin::Probe,
        mapping: Mapping::Explicit,
    }
}

fn lesson(now: Timestamp) -> ImportedKnowledge {
    let document = serde_json::json!({
        "format": "longhaul-network", "version": 1, "instances": ["elsewhere"], "written": now,
        "links": [{
            "source": "gamma", "target": "Epsilon-T1", "bytes_per_s": 123_456_789.123_456_7,
            "spread": 0.1, "seconds": 500.0, "seen": now,
        }],
    });
    ImportedKnowledge {
        document: serde_json::from_value(document).unwrap(),
        sites: (0..SITES).map(|site| (name(site).to_owned(), SiteId(site))).collect(),
        aliases: vec![("Epsilon-T1".to_owned(), "epsilon".to_owned())],
    }
}

#[test]
fn nothing_is_recorded_unless_it_is_wished() {
    let mut scheduler = Recorded::new(Settings::default(), None, 0);
    let id = DemandId { subscription: SubscriptionId(1), block: BlockId(1) };
    scheduler.handle(Event::DemandGone { id }, BEGIN);
    assert_eq!(scheduler.poll_decision(BEGIN), None);
    scheduler.rest();
    scheduler.end();
}

/// What waits is bounded by its bytes: a brain that rests after every line may do so often.
#[test]
fn a_disk_that_stands_still_ends_the_recording_at_a_bound_of_bytes() {
    let (to, chunks) = channel();
    let recording = Arc::new(Recording::default());
    let mut tape = Tape {
        buffer: Vec::new(),
        number: 0,
        handed: 0,
        to: Some(to),
        writer: None,
        recording: recording.clone(),
    };
    let broken = || recording.broken.load(Ordering::Relaxed);
    for _ in 0..100_000 {
        tape.put(LineKind::Poll, BEGIN, Some("null".to_owned()));
        tape.flush();
    }
    assert!(!broken(), "100,000 short lines are few bytes");
    let mut waiting: usize = chunks.try_iter().map(|chunk| chunk.len()).sum();
    recording.bytes.store(waiting as u64, Ordering::Relaxed);
    waiting = 0;
    for _ in 0..100 {
        tape.put(LineKind::Poll, BEGIN, Some(format!("\"{}\"", "x".repeat(1 << 20))));
        waiting += chunks.try_iter().map(|chunk| chunk.len()).sum::<usize>();
    }
    assert!(broken() && tape.to.is_none(), "{waiting} bytes wait");
    assert!((31 << 20..33 << 20).contains(&waiting), "{waiting} bytes");
}
