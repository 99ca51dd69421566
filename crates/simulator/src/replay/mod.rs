//! Replay of a recording of a real service (deterministic replay): the same scheduler gets the same inputs;
//! does it decide the same?
//!
//! Everything the service's scheduler was told is told again in the same order at the same times, and it is
//! polled where it was polled then. Its decisions must equal those of the recording, to the last digit. The
//! comparison ends with the first difference: what follows answers decisions that were not made here.
//!
//! Not here: files (the binary reads them), the form of a line (`scheduler::record`), words (`describe`).
//! Start with [`Replay`]: `feed` it the bytes in order, then get the result with `end`.

mod describe;
mod error;

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{StorageId, StorageName, Timestamp};
use longhaul_network::Knowledge;
use longhaul_scheduler::record::{self, FORMAT_VERSION, Head, LINE_BYTES_MAX, Line, LineKind};
use longhaul_scheduler::{Decision, Event, ImportedKnowledge, Lease, Scheduler, Settings, Strategy};

pub use error::{LineError, ReplayError};

/// Strategies whose choices can be derived from a recording of others: those that use measurements of links.
/// The rest use the queue at each source, which would be another one had they chosen before.
pub const STRATEGIES_COMPARABLE: [Strategy; 5] =
    [Strategy::Best, Strategy::Orderly, Strategy::Success, Strategy::Throughput, Strategy::FileThroughput];

/// What shall be another than in the recording.
pub type ChangeSettings = Box<dyn FnOnce(&mut Settings)>;

/// Strategies whose choice shall be set beside that of the recording, and other settings than it was made
/// with.
#[derive(Default)]
pub struct ReplayOptions {
    pub compare: Vec<Strategy>,
    pub settings: Option<ChangeSettings>,
}

/// A scheduler that hears a recording.
pub struct Replay {
    options: ReplayOptions,
    /// None before the head.
    scheduler: Option<Scheduler>,
    names: BTreeMap<StorageId, StorageName>,
    /// Bytes of a line that is not complete yet.
    rest: Vec<u8>,
    report: ReplayReport,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayReport {
    /// The program that recorded it.
    pub version: String,
    pub from: Timestamp,
    pub to: Timestamp,
    pub lines: u64,
    pub inputs: InputCounts,
    /// Decisions of the recording that were made here too.
    pub equal: u64,
    /// Leases among the equal decisions.
    pub leases: u64,
    pub difference: Option<Difference>,
    /// Bytes of a last line that is not whole: the service was killed while it wrote.
    pub torn: u64,
    pub comparisons: Vec<StrategyComparison>,
}

/// What the scheduler was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputCounts {
    pub events: u64,
    pub observations: u64,
    pub imports: u64,
    /// How often it was asked for a decision.
    pub polls: u64,
}

/// The first decision that is not the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Among the decisions of the recording, from 1.
    pub number: u64,
    pub at: Timestamp,
    pub recorded: String,
    pub replayed: String,
    /// What exactly differs: the field, then and now.
    pub fields: Vec<String>,
}

/// What another strategy would have chosen, each time by itself: with the queues and loads that the recorded
/// choices made.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyComparison {
    pub strategy: Strategy,
    /// Leases for which there was a choice among several sources that could be used.
    pub choices: u64,
    pub same: u64,
    /// Bytes by source: in the recording, and by this strategy.
    pub bytes: BTreeMap<String, [u64; 2]>,
    pub example: Option<String>,
}

impl Replay {
    pub fn new(wish: ReplayOptions) -> Result<Self, ReplayError> {
        let mut compare = wish.compare.iter();
        if let Some(&strategy) = compare.find(|strategy| !STRATEGIES_COMPARABLE.contains(strategy)) {
            return Err(ReplayError::NotComparable(strategy));
        }
        let beside = wish.compare.iter().map(|&strategy| StrategyComparison::new(strategy)).collect();
        let so_far = ReplayReport { comparisons: beside, ..ReplayReport::default() };
        Ok(Replay {
            options: wish,
            scheduler: None,
            names: BTreeMap::new(),
            rest: Vec::new(),
            report: so_far,
        })
    }

    /// The next bytes of the recording. What is damaged or missing is told; a torn end shows in
    /// [`Replay::end`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            bytes = after;
            if self.rest.is_empty() {
                self.apply_line(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.apply_line(&whole)?;
            }
        }
        if self.rest.len() + bytes.len() > LINE_BYTES_MAX {
            return Err(ReplayError::LineTooLong { line: self.report.lines });
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }

    /// Whether what follows can change nothing any more.
    pub fn is_over(&self) -> bool {
        self.report.difference.is_some()
    }

    pub fn end(mut self) -> Result<ReplayReport, ReplayError> {
        if self.scheduler.is_none() {
            return Err(ReplayError::Empty);
        }
        self.report.torn = self.rest.len() as u64;
        Ok(self.report)
    }

    fn apply_line(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        if self.is_over() {
            return Ok(());
        }
        let number = self.report.lines;
        let line = Line::read(bytes).ok_or(ReplayError::DamagedLine { line: number })?;
        if line.number != number {
            return Err(ReplayError::MissingLine { line: number, found: line.number });
        }
        self.report.lines += 1;
        self.apply(&line).map_err(|error| ReplayError::Line { line: number, error })
    }

    fn apply(&mut self, line: &Line<'_>) -> Result<(), LineError> {
        let now = line.now;
        let Some(scheduler) = &mut self.scheduler else {
            if line.kind != LineKind::Head {
                return Err(LineError::NoHead);
            }
            (self.report.from, self.report.to) = (now, now);
            return self.begin(line.decode().map_err(LineError::Body)?);
        };
        self.report.to = self.report.to.max(now);
        let told = &mut self.report.inputs;
        match line.kind {
            LineKind::Head => return Err(LineError::SecondHead),
            LineKind::Event => {
                told.events += 1;
                let event: Event = line.decode().map_err(LineError::Body)?;
                if let Event::Storage(storage) = &event {
                    self.names.insert(storage.id, storage.name.clone());
                }
                scheduler.handle(event, now);
            }
            // What was refused then is refused again.
            LineKind::Observation => {
                told.observations += 1;
                let _ = scheduler.observe(line.decode().map_err(LineError::Body)?, now);
            }
            LineKind::Knowledge => {
                told.imports += 1;
                let lesson: ImportedKnowledge = line.decode().map_err(LineError::Body)?;
                let _ = scheduler.import_knowledge(&lesson, now);
            }
            LineKind::Poll => {
                told.polls += 1;
                self.compare(line)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, head: Head) -> Result<(), LineError> {
        if head.format != FORMAT_VERSION {
            return Err(LineError::Format(head.format));
        }
        let knowledge: Knowledge = match &head.knowledge {
            Some(text) => serde_json::from_str(text).map_err(LineError::Knowledge)?,
            None => Knowledge::default(),
        };
        check_head(&head)?;
        let mut settings = head.settings;
        if let Some(change) = self.options.settings.take() {
            change(&mut settings);
        }
        self.report.version = head.version;
        self.scheduler = Some(Scheduler::new(settings, knowledge, head.last_id));
        Ok(())
    }

    fn compare(&mut self, line: &Line<'_>) -> Result<(), LineError> {
        let Some(scheduler) = &mut self.scheduler else { return Ok(()) };
        let nothing = line.body == "null";
        let preferred = if nothing || self.report.comparisons.is_empty() {
            None
        } else {
            lease_of(line)?.map(|lease| {
                let wishes = self.report.comparisons.iter();
                let preferred =
                    wishes.map(|beside| beside.preferred(scheduler, &lease, line.now)).collect::<Vec<_>>();
                (lease, preferred)
            })
        };
        let decision = scheduler.poll_decision(line.now);
        let body = record::encode(&decision).ok_or(LineError::Unencodable)?;
        if body != line.body {
            let recorded: Option<Decision> = line.decode().map_err(LineError::Body)?;
            let number = self.report.equal + 1;
            let describe =
                |decision: &Option<Decision>| describe::describe_decision(decision.as_ref(), &self.names);
            self.report.difference = Some(Difference {
                number,
                at: line.now,
                recorded: describe(&recorded),
                replayed: describe(&decision),
                fields: describe::differing_fields(line.body, &body),
            });
            return Ok(());
        }
        self.report.equal += u64::from(!nothing);
        self.report.leases += u64::from(matches!(decision, Some(Decision::Lease(_))));
        if let Some((lease, preferred)) = preferred {
            for (beside, preferred) in self.report.comparisons.iter_mut().zip(preferred) {
                beside.count(&lease, preferred, line.now, &self.names);
            }
        }
        Ok(())
    }
}

/// Numbers that no service begins with, and no scheduler is made for.
fn check_head(head: &Head) -> Result<(), LineError> {
    let settings = &head.settings;
    let counts = [
        ("relief", settings.relief),
        ("expand_files", settings.expand_files),
        ("horizon_files", settings.horizon_files),
        ("lease_files_max", settings.lease_files_max),
    ];
    if let Some((setting, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
        return Err(LineError::ZeroSetting { setting });
    }
    let rate = settings.nominal_bytes_per_s;
    if !rate.is_finite() || rate <= 0.0 {
        return Err(LineError::NominalRate(rate));
    }
    if i64::try_from(head.last_id).is_err() {
        return Err(LineError::LastId(head.last_id));
    }
    Ok(())
}

fn lease_of(line: &Line<'_>) -> Result<Option<Lease>, LineError> {
    let decision: Option<Decision> = line.decode().map_err(LineError::Body)?;
    Ok(match decision {
        Some(Decision::Lease(lease)) => Some(lease),
        _ => None,
    })
}

impl StrategyComparison {
    fn new(strategy: Strategy) -> Self {
        StrategyComparison { strategy, choices: 0, same: 0, bytes: BTreeMap::new(), example: None }
    }

    /// The source that the strategy would have chosen for this lease, just before it was made.
    fn preferred(&self, scheduler: &Scheduler, lease: &Lease, now: Timestamp) -> Option<StorageId> {
        if self.strategy == Strategy::Best {
            // Its inputs stand in every choice.
            let usable = lease.choice.candidates.iter().filter(|candidate| candidate.unusable.is_none());
            return usable
                .min_by_key(|candidate| (candidate.finish, candidate.bytes_ahead, candidate.storage))
                .map(|candidate| candidate.storage);
        }
        scheduler.preferred(lease.transfer, self.strategy, now)
    }

    fn count(
        &mut self,
        lease: &Lease,
        preferred: Option<StorageId>,
        now: Timestamp,
        names: &BTreeMap<StorageId, StorageName>,
    ) {
        if lease.choice.candidates.len() < 2 {
            return;
        }
        // Where it would choose nothing now, it would have waited.
        let Some(preferred) = preferred else { return };
        self.choices += 1;
        self.same += u64::from(preferred == lease.source);
        for (at, storage) in [lease.source, preferred].into_iter().enumerate() {
            let bytes = &mut self.bytes.entry(describe::storage_name(storage, names)).or_default()[at];
            *bytes = bytes.saturating_add(lease.size);
        }
        if preferred != lease.source && self.example.is_none() {
            self.example = Some(describe::describe_other_choice(self.strategy, lease, preferred, now, names));
        }
    }
}

impl ReplayReport {
    pub fn lasted(&self) -> Duration {
        self.to.since(self.from)
    }

    pub fn is_same(&self) -> bool {
        self.difference.is_none()
    }
}
