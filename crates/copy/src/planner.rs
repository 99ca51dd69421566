//! What is to be done for each file of a listing: the listing of the source against what lies at the target.
//!
//! Runs ahead of the copy, page by page. Not here: the rules (`plan`).

use longhaul_model::units::printable;
use longhaul_model::{Algorithm, Digest, Fault, FaultCode, Lfn};

use crate::agenda::TakePage;
use crate::fetching::Wanted;
use crate::landing::Spot;
use crate::looker::{Looker, READ_BYTES};
use crate::options::Options;
use crate::plan::{Collisions, Decision, Existing, Landing, Landings, Meta, Policy, SkipReason, decide};
use crate::progress::{FileOutcome, Outcome, Progress, Tell};
use crate::protocol::{Entry, Kind, Listed, Page, Relative, Reply, Request};
use crate::remote::{Remote, unexpected};
use crate::url::RemotePath;

/// Bytes that a server is asked to read for digests in one question: it should not take long to answer.
const DIGEST_BYTES_AT_ONCE: u64 = 256 << 20;
/// Single files planned together.
const SINGLES_AT_ONCE: usize = 1_000;

pub(crate) enum Step {
    Fetch(Box<Wanted>),
    Skip { source: String, target: String, size: u64, reason: SkipReason },
    Refuse { source: String, target: String, size: u64, fault: Fault },
    Directory { path: Lfn, mode: u32 },
    LeftOut { path: String, note: String },
}

impl Step {
    /// The size, if it is about a file that somebody wants.
    pub(crate) fn wanted_bytes(&self) -> Option<u64> {
        match self {
            Step::Fetch(wanted) => Some(wanted.size),
            Step::Skip { size, .. } | Step::Refuse { size, .. } => Some(*size),
            Step::Directory { .. } | Step::LeftOut { .. } => None,
        }
    }
}

pub(crate) struct Planner<'a> {
    pub(crate) remote: &'a Remote,
    pub(crate) sources: &'a [RemotePath],
    pub(crate) landings: &'a Landings,
    pub(crate) options: &'a Options,
    /// None if the target does not exist.
    pub(crate) looker: Option<Looker>,
    pub(crate) shown: &'a (dyn Fn(&str) -> String + Sync),
}

/// A file that needs digests before it can be decided.
struct Open {
    /// Its place among the steps.
    at: usize,
    name: Lfn,
    path: Lfn,
    entry: Entry,
    existing: Existing,
}

impl Planner<'_> {
    pub(crate) fn each(&self, take: TakePage<'_, Step>) -> Result<(), Fault> {
        let mut collisions = self.landings.may_collide.then(Collisions::default);
        let shown: Vec<String> = self.sources.iter().map(|source| (self.shown)(&source.path)).collect();
        let mut excluded_before = 0;
        let mut singles: Vec<(usize, Option<Entry>)> = Vec::new();
        for (number, source) in self.sources.iter().enumerate() {
            let landing = &self.landings.landings[number];
            let last_source = number + 1 == self.sources.len();
            if let Some(known) = self.known(number) {
                // A file, or nothing: there is nothing to list.
                singles.push((number, known));
                if last_source || singles.len() >= SINGLES_AT_ONCE {
                    let steps = self.singles(std::mem::take(&mut singles), &mut collisions, &shown)?;
                    take(steps, last_source, excluded_before)?;
                }
                continue;
            }
            if !singles.is_empty() {
                let steps = self.singles(std::mem::take(&mut singles), &mut collisions, &shown)?;
                take(steps, false, excluded_before)?;
            }
            for page in 0.. {
                let Page { entries, last, excluded } = self.list(number, source, landing, page)?;
                let mut steps = Vec::with_capacity(entries.len());
                let mut open = Vec::new();
                for entry in entries {
                    self.entry(number, entry, &mut steps, &mut open);
                }
                self.compare(open, &mut steps)?;
                if let Some(collisions) = &mut collisions {
                    refuse_collisions(&mut steps, collisions, number as u32, &shown);
                }
                take(steps, last && last_source, excluded_before + excluded)?;
                if last {
                    excluded_before += excluded;
                    break;
                }
            }
        }
        Ok(())
    }

    /// What hello has told of a source that needs no listing. Filters are the server's, so that with them one
    /// is needed.
    fn known(&self, number: usize) -> Option<Option<Entry>> {
        let found = self.remote.welcome.found.get(number)?;
        match found {
            Some(entry) if entry.kind == Kind::Directory || !self.options.filters.is_empty() => None,
            Some(entry) => Some(Some(entry.clone())),
            None => Some(None),
        }
    }

    fn singles(
        &self,
        singles: Vec<(usize, Option<Entry>)>,
        collisions: &mut Option<Collisions>,
        shown: &[String],
    ) -> Result<Vec<Step>, Fault> {
        let mut steps = Vec::with_capacity(singles.len());
        let mut open = Vec::new();
        for (number, entry) in singles {
            let begin = steps.len();
            match entry {
                Some(entry) => {
                    let last = entry.path.as_str().rsplit('/').next().unwrap_or_default();
                    let entry = Entry { path: Relative::parse(last)?, ..entry };
                    self.entry(number, entry, &mut steps, &mut open);
                }
                None => {
                    let source = (self.shown)(&self.sources[number].path);
                    let target = match &self.landings.landings[number] {
                        Landing::As(name) | Landing::Beneath(Some(name)) => name.as_str().to_owned(),
                        Landing::Beneath(None) => String::new(),
                    };
                    let fault = Fault::new(FaultCode::SourceMissing, source.clone());
                    steps.push(Step::Refuse { source, target, size: 0, fault });
                }
            }
            if let Some(collisions) = collisions {
                refuse_collisions(&mut steps[begin..], collisions, number as u32, shown);
            }
        }
        self.compare(open, &mut steps)?;
        Ok(steps)
    }

    fn list(&self, number: usize, source: &RemotePath, landing: &Landing, page: u32) -> Result<Page, Fault> {
        let of = listed(source, landing, self.options)?;
        if let (0, 0, Some(page)) = (number, page, self.remote.first_page(&of)) {
            return Ok(page.clone());
        }
        match self.remote.ask(&Request::List { listing: number as u32, of, page })? {
            Reply::Page(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    fn entry(&self, number: usize, entry: Entry, steps: &mut Vec<Step>, open: &mut Vec<Open>) {
        let (source, landing) = (&self.sources[number], &self.landings.landings[number]);
        let found = self.remote.welcome.found.get(number).and_then(Option::as_ref);
        let is_file = found.is_some_and(|found| found.kind == Kind::File);
        if entry.kind == Kind::LeftOut {
            let path = (self.shown)(&join(source, entry.path.as_str()));
            return steps.push(Step::LeftOut { path, note: printable(&entry.note) });
        }
        let names = Lfn::parse(entry.path.as_str()).map_err(|error| error.to_string()).and_then(|relative| {
            let path = landing.path(&relative).map_err(|fault| fault.detail)?;
            // Of a single file the listing tells its last name.
            let name = if is_file { source.path.clone() } else { join(source, relative.as_str()) };
            Ok((Lfn::parse(&name).map_err(|error| error.to_string())?, path))
        });
        match names {
            Err(why) => {
                let path = (self.shown)(&join(source, entry.path.as_str()));
                steps.push(Step::LeftOut { path, note: why });
            }
            Ok((_, path)) if entry.kind == Kind::Directory => {
                steps.push(Step::Directory { path, mode: entry.mode });
            }
            Ok((name, path)) => self.file(name, path, entry, steps, open),
        }
    }

    fn file(&self, name: Lfn, path: Lfn, entry: Entry, steps: &mut Vec<Step>, open: &mut Vec<Open>) {
        let existing = match &self.looker {
            Some(looker) => looker.existing(path.as_str()),
            None => Ok(Existing::Missing),
        };
        let refuse = |fault| Step::Refuse {
            source: (self.shown)(name.as_str()),
            target: path.as_str().to_owned(),
            size: entry.size,
            fault,
        };
        match existing {
            Err(fault) => steps.push(refuse(fault)),
            Ok(existing) => match self.decide(&name, &path, &entry, None, &existing) {
                Some(step) => steps.push(step),
                None => {
                    let at = steps.len();
                    // Takes the place until it is decided.
                    steps.push(refuse(Fault::new(FaultCode::Internal, "it was not compared")));
                    open.push(Open { at, name, path, entry, existing });
                }
            },
        }
    }

    /// None: digests are needed.
    fn decide(
        &self,
        name: &Lfn,
        path: &Lfn,
        entry: &Entry,
        digest: Option<Digest>,
        existing: &Existing,
    ) -> Option<Step> {
        let source = Meta { size: entry.size, mtime_ns: entry.mtime_ns, digest };
        let shown = path.as_str();
        let texts = || ((self.shown)(name.as_str()), shown.to_owned());
        match decide(policy(self.options), &source, existing, shown) {
            Decision::NeedDigests => None,
            Decision::Copy { replaces } => {
                let spot = Spot {
                    path: shown.to_owned(),
                    mode: entry.mode,
                    mtime_ns: entry.mtime_ns,
                    replace: replaces,
                };
                Some(Step::Fetch(Box::new(Wanted::new(name.clone(), entry.size, spot))))
            }
            Decision::Skip(reason) => {
                let (source, target) = texts();
                Some(Step::Skip { source, target, size: entry.size, reason })
            }
            Decision::Refuse(fault) => {
                let (source, target) = texts();
                Some(Step::Refuse { source, target, size: entry.size, fault })
            }
        }
    }

    /// Reads both sides of what cannot be decided otherwise.
    fn compare(&self, open: Vec<Open>, steps: &mut [Step]) -> Result<(), Fault> {
        let Some(looker) = &self.looker else { return Ok(()) };
        let mut rest = open.as_slice();
        let mut buffer = Vec::new();
        while !rest.is_empty() {
            let mut bytes = 0;
            let many = rest
                .iter()
                .position(|open| {
                    bytes += open.entry.size;
                    bytes > DIGEST_BYTES_AT_ONCE
                })
                .unwrap_or(rest.len())
                .max(1);
            let (group, left) = rest.split_at(many);
            rest = left;
            let names: Result<Vec<Relative>, Fault> =
                group.iter().map(|open| Relative::parse(open.name.as_str())).collect();
            let theirs = self.remote.digests(&names?)?;
            buffer.resize(READ_BYTES, 0);
            for (open, theirs) in group.iter().zip(theirs) {
                let both = theirs.and_then(|digests| {
                    let theirs = crate::pull::crc32c(&digests).ok_or_else(unexpected)?;
                    Ok((theirs, looker.digest(open.path.as_str(), Algorithm::Crc32c, &mut buffer)?))
                });
                steps[open.at] = self.decided(open, both);
            }
        }
        Ok(())
    }

    fn decided(&self, open: &Open, digests: Result<(Digest, Digest), Fault>) -> Step {
        let refuse = |fault| Step::Refuse {
            source: (self.shown)(open.name.as_str()),
            target: open.path.as_str().to_owned(),
            size: open.entry.size,
            fault,
        };
        match digests {
            Err(fault) => refuse(fault),
            Ok((theirs, ours)) => {
                let existing = match open.existing {
                    Existing::File(meta) => Existing::File(Meta { digest: Some(ours), ..meta }),
                    other => other,
                };
                self.decide(&open.name, &open.path, &open.entry, Some(theirs), &existing).unwrap_or_else(
                    || refuse(Fault::new(FaultCode::Internal, "digests of two kinds were compared")),
                )
            }
        }
    }
}

/// What is asked for of a source that is a directory.
pub(crate) fn listed(source: &RemotePath, landing: &Landing, options: &Options) -> Result<Listed, Fault> {
    Ok(Listed {
        path: Relative::parse(&source.path)?,
        recursive: options.recursive,
        filters: options.filters.clone(),
        prefix: Relative::parse(landing.filter_prefix())?,
    })
}

pub(crate) fn policy(options: &Options) -> Policy {
    Policy { update: options.update, checksum: options.checksum, window_ns: 0 }
}

fn join(source: &RemotePath, relative: &str) -> String {
    if source.path.is_empty() { relative.to_owned() } else { format!("{}/{relative}", source.path) }
}

fn refuse_collisions(steps: &mut [Step], collisions: &mut Collisions, by: u32, shown: &[String]) {
    for step in steps {
        let fault = match &*step {
            Step::Fetch(wanted) => Lfn::parse(&wanted.spot.path)
                .map_err(|error| Fault::new(FaultCode::BadName, error.to_string()))
                .and_then(|path| collisions.take_file(&path, by, shown))
                .err(),
            Step::Directory { path, .. } => collisions.take_directory(path, by, shown).err(),
            _ => None,
        };
        if let Some(fault) = fault {
            let (source, target, size) = match &*step {
                Step::Fetch(wanted) => {
                    (wanted.name.as_str().to_owned(), wanted.spot.path.clone(), wanted.size)
                }
                Step::Directory { path, .. } => (path.as_str().to_owned(), path.as_str().to_owned(), 0),
                _ => continue,
            };
            *step = Step::Refuse { source, target, size, fault };
        }
    }
}

/// Counts and tells a step in which nothing is moved.
pub(crate) fn tell_aside(step: Step, progress: &Progress, tell: Tell<'_>) {
    let (source, target, size, outcome) = match step {
        Step::Fetch(_) | Step::Directory { .. } => return,
        Step::Skip { source, target, size, reason } => {
            progress.change(|totals| {
                totals.files_skipped += 1;
                totals.bytes_skipped += size;
            });
            (source, target, size, Outcome::Skipped(reason))
        }
        Step::Refuse { source, target, size, fault } => {
            progress.fail(&target, &fault);
            (source, target, size, Outcome::Failed(fault))
        }
        Step::LeftOut { path, note } => {
            progress.change(|totals| totals.left_out += 1);
            (path, String::new(), 0, Outcome::LeftOut(note))
        }
    };
    tell(&FileOutcome { source, target, size, outcome, replicas: Vec::new() });
}

/// The same for a dry run, in which nothing is moved at all.
pub(crate) fn tell_dry(step: Step, progress: &Progress, tell: Tell<'_>) {
    if let Some(size) = step.wanted_bytes() {
        progress.change(|totals| {
            totals.files += 1;
            totals.bytes += size;
        });
    }
    match step {
        Step::Fetch(wanted) => tell(&FileOutcome {
            source: wanted.name.as_str().to_owned(),
            target: wanted.spot.path.clone(),
            size: wanted.size,
            outcome: Outcome::WouldCopy { replaces: wanted.spot.replace },
            replicas: Vec::new(),
        }),
        Step::Directory { .. } => progress.change(|totals| totals.directories += 1),
        step => tell_aside(step, progress, tell),
    }
}
