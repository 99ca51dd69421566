//! Compares the source's listing with what exists at the target and decides a step for each entry.
//!
//! Runs ahead of the copy, page by page. Not here: the rules themselves (`rules`).

use longhaul_model::units::printable;
use longhaul_model::{Algorithm, Digest, Fault, FaultCode, Lfn};

use crate::fetch_job::FileFetch;
use crate::options::Options;
use crate::plan_queue::PageSink;
use crate::progress::{FileCallback, FileOutcome, Outcome, Progress};
use crate::protocol::{Entry, Kind, ListRequest, Page, RelativePath, Reply, Request};
use crate::remote::{Remote, unexpected};
use crate::rename_on_commit::Destination;
use crate::rules::{
    Collisions, Decision, FileMeta, Placement, Placements, Policy, SkipReason, TargetEntry, decide,
};
use crate::target_index::{DIGEST_READ_BYTES, TargetIndex};
use crate::url::RemotePath;

/// Bytes that a server digests for one request, so that it answers soon.
const DIGEST_BYTES_PER_REQUEST_MAX: u64 = 256 << 20;
/// Single files planned as one page.
const SINGLES_PER_PAGE_MAX: usize = 1_000;

pub(crate) enum Step {
    Fetch(Box<FileFetch>),
    Skip { source: String, target: String, size: u64, reason: SkipReason },
    Refuse { source: String, target: String, size: u64, fault: Fault },
    Directory { path: Lfn, mode: u32 },
    LeftOut { path: String, note: String },
}

impl Step {
    /// The file size, if the step is about a file.
    pub(crate) fn wanted_bytes(&self) -> Option<u64> {
        match self {
            Step::Fetch(wanted) => Some(wanted.size),
            Step::Skip { size, .. } | Step::Refuse { size, .. } => Some(*size),
            Step::Directory { .. } | Step::LeftOut { .. } => None,
        }
    }
}

pub(crate) struct ListingDiff<'a> {
    pub(crate) remote: &'a Remote,
    pub(crate) sources: &'a [RemotePath],
    pub(crate) placements: &'a Placements,
    pub(crate) options: &'a Options,
    /// Index of the target; none if it does not exist.
    pub(crate) target: Option<TargetIndex>,
    pub(crate) shown: &'a (dyn Fn(&str) -> String + Sync),
}

/// A file that needs digests before it can be decided.
struct Undecided {
    /// Its index among the steps.
    at: usize,
    name: Lfn,
    path: Lfn,
    entry: Entry,
    existing: TargetEntry,
}

impl ListingDiff<'_> {
    pub(crate) fn for_each_page(&self, take: PageSink<'_, Step>) -> Result<(), Fault> {
        let mut collisions = self.placements.may_collide.then(Collisions::default);
        let shown: Vec<String> = self.sources.iter().map(|source| (self.shown)(&source.path)).collect();
        let mut excluded_before = 0;
        let mut singles: Vec<(usize, Option<Entry>)> = Vec::new();
        for (number, source) in self.sources.iter().enumerate() {
            let landing = &self.placements.placements[number];
            let last_source = number + 1 == self.sources.len();
            if let Some(known) = self.found_in_hello(number) {
                // A single file, or missing: there is nothing to list.
                singles.push((number, known));
                if last_source || singles.len() >= SINGLES_PER_PAGE_MAX {
                    let steps =
                        self.steps_of_singles(std::mem::take(&mut singles), &mut collisions, &shown)?;
                    take(steps, last_source, excluded_before)?;
                }
                continue;
            }
            if !singles.is_empty() {
                let steps = self.steps_of_singles(std::mem::take(&mut singles), &mut collisions, &shown)?;
                take(steps, false, excluded_before)?;
            }
            for page in 0.. {
                let Page { entries, last, excluded } = self.fetch_page(number, source, landing, page)?;
                let mut steps = Vec::with_capacity(entries.len());
                let mut open = Vec::new();
                for entry in entries {
                    self.add_entry(number, entry, &mut steps, &mut open);
                }
                self.compare_digests(open, &mut steps)?;
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

    /// What the answer to hello says about a source that needs no listing. Filters are applied by the server,
    /// so with filters a listing is always needed.
    fn found_in_hello(&self, number: usize) -> Option<Option<Entry>> {
        let found = self.remote.welcome.found.get(number)?;
        match found {
            Some(entry) if entry.kind == Kind::Directory || !self.options.filters.is_empty() => None,
            Some(entry) => Some(Some(entry.clone())),
            None => Some(None),
        }
    }

    fn steps_of_singles(
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
                    let entry = Entry { path: RelativePath::parse(last)?, ..entry };
                    self.add_entry(number, entry, &mut steps, &mut open);
                }
                None => {
                    let source = (self.shown)(&self.sources[number].path);
                    let target = match &self.placements.placements[number] {
                        Placement::As(name) | Placement::Beneath(Some(name)) => name.as_str().to_owned(),
                        Placement::Beneath(None) => String::new(),
                    };
                    let fault = Fault::new(FaultCode::SourceMissing, source.clone());
                    steps.push(Step::Refuse { source, target, size: 0, fault });
                }
            }
            if let Some(collisions) = collisions {
                refuse_collisions(&mut steps[begin..], collisions, number as u32, shown);
            }
        }
        self.compare_digests(open, &mut steps)?;
        Ok(steps)
    }

    fn fetch_page(
        &self,
        number: usize,
        source: &RemotePath,
        landing: &Placement,
        page: u32,
    ) -> Result<Page, Fault> {
        let of = list_request(source, landing, self.options)?;
        if let (0, 0, Some(page)) = (number, page, self.remote.first_page(&of)) {
            return Ok(page.clone());
        }
        match self.remote.call(&Request::List { listing: number as u32, of, page })? {
            Reply::Page(page) => Ok(page),
            _ => Err(unexpected()),
        }
    }

    fn add_entry(&self, number: usize, entry: Entry, steps: &mut Vec<Step>, open: &mut Vec<Undecided>) {
        let (source, landing) = (&self.sources[number], &self.placements.placements[number]);
        let found = self.remote.welcome.found.get(number).and_then(Option::as_ref);
        let is_file = found.is_some_and(|found| found.kind == Kind::File);
        if entry.kind == Kind::LeftOut {
            let path = (self.shown)(&join(source, entry.path.as_str()));
            return steps.push(Step::LeftOut { path, note: printable(&entry.note) });
        }
        let names = Lfn::parse(entry.path.as_str()).map_err(|error| error.to_string()).and_then(|relative| {
            let path = landing.path(&relative).map_err(|fault| fault.detail)?;
            // For a single file the listing has only its last name.
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
            Ok((name, path)) => self.add_file(name, path, entry, steps, open),
        }
    }

    fn add_file(&self, name: Lfn, path: Lfn, entry: Entry, steps: &mut Vec<Step>, open: &mut Vec<Undecided>) {
        let existing = match &self.target {
            Some(looker) => looker.existing(path.as_str()),
            None => Ok(TargetEntry::Missing),
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
                    // Placeholder until the digests are compared.
                    steps.push(refuse(Fault::new(FaultCode::Internal, "the file was not compared")));
                    open.push(Undecided { at, name, path, entry, existing });
                }
            },
        }
    }

    /// Decides one file; none if digests are needed.
    fn decide(
        &self,
        name: &Lfn,
        path: &Lfn,
        entry: &Entry,
        digest: Option<Digest>,
        existing: &TargetEntry,
    ) -> Option<Step> {
        let source = FileMeta { size: entry.size, mtime_ns: entry.mtime_ns, digest };
        let shown = path.as_str();
        let texts = || ((self.shown)(name.as_str()), shown.to_owned());
        match decide(policy(self.options), &source, existing, shown) {
            Decision::NeedDigests => None,
            Decision::Copy { replaces } => {
                let spot = Destination {
                    path: shown.to_owned(),
                    mode: entry.mode,
                    mtime_ns: entry.mtime_ns,
                    replace: replaces,
                };
                Some(Step::Fetch(Box::new(FileFetch::new(name.clone(), entry.size, spot))))
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

    /// Digests both ends of files that cannot be decided otherwise.
    fn compare_digests(&self, open: Vec<Undecided>, steps: &mut [Step]) -> Result<(), Fault> {
        let Some(looker) = &self.target else { return Ok(()) };
        let mut rest = open.as_slice();
        let mut buffer = Vec::new();
        while !rest.is_empty() {
            let mut bytes = 0;
            let many = rest
                .iter()
                .position(|open| {
                    bytes += open.entry.size;
                    bytes > DIGEST_BYTES_PER_REQUEST_MAX
                })
                .unwrap_or(rest.len())
                .max(1);
            let (group, left) = rest.split_at(many);
            rest = left;
            let names: Result<Vec<RelativePath>, Fault> =
                group.iter().map(|open| RelativePath::parse(open.name.as_str())).collect();
            let theirs = self.remote.digests(&names?)?;
            buffer.resize(DIGEST_READ_BYTES, 0);
            for (open, theirs) in group.iter().zip(theirs) {
                let both = theirs.and_then(|digests| {
                    let theirs = crate::pull::crc32c(&digests).ok_or_else(unexpected)?;
                    Ok((theirs, looker.digest(open.path.as_str(), Algorithm::Crc32c, &mut buffer)?))
                });
                steps[open.at] = self.decide_with_digests(open, both);
            }
        }
        Ok(())
    }

    fn decide_with_digests(&self, open: &Undecided, digests: Result<(Digest, Digest), Fault>) -> Step {
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
                    TargetEntry::File(meta) => TargetEntry::File(FileMeta { digest: Some(ours), ..meta }),
                    other => other,
                };
                self.decide(&open.name, &open.path, &open.entry, Some(theirs), &existing).unwrap_or_else(
                    || refuse(Fault::new(FaultCode::Internal, "digests of two kinds were compared")),
                )
            }
        }
    }
}

/// The list request for a source that is a directory.
pub(crate) fn list_request(
    source: &RemotePath,
    landing: &Placement,
    options: &Options,
) -> Result<ListRequest, Fault> {
    Ok(ListRequest {
        path: RelativePath::parse(&source.path)?,
        recursive: options.recursive,
        filters: options.filters.clone(),
        prefix: RelativePath::parse(landing.filter_prefix())?,
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
            Step::Fetch(wanted) => Lfn::parse(&wanted.destination.path)
                .map_err(Fault::from)
                .and_then(|path| collisions.claim_file(&path, by, shown))
                .err(),
            Step::Directory { path, .. } => collisions.claim_directory(path, by, shown).err(),
            _ => None,
        };
        if let Some(fault) = fault {
            let (source, target, size) = match &*step {
                Step::Fetch(wanted) => {
                    (wanted.name.as_str().to_owned(), wanted.destination.path.clone(), wanted.size)
                }
                Step::Directory { path, .. } => (path.as_str().to_owned(), path.as_str().to_owned(), 0),
                _ => continue,
            };
            *step = Step::Refuse { source, target, size, fault };
        }
    }
}

/// Counts and reports a step that transfers nothing.
pub(crate) fn report_without_transfer(step: Step, progress: &Progress, tell: FileCallback<'_>) {
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

/// Counts and reports a step of a dry run.
pub(crate) fn report_dry_run(step: Step, progress: &Progress, tell: FileCallback<'_>) {
    if let Some(size) = step.wanted_bytes() {
        progress.change(|totals| {
            totals.files += 1;
            totals.bytes += size;
        });
    }
    match step {
        Step::Fetch(wanted) => tell(&FileOutcome {
            source: wanted.name.as_str().to_owned(),
            target: wanted.destination.path.clone(),
            size: wanted.size,
            outcome: Outcome::WouldCopy { replaces: wanted.destination.replace },
            replicas: Vec::new(),
        }),
        Step::Directory { .. } => progress.change(|totals| totals.directories += 1),
        step => report_without_transfer(step, progress, tell),
    }
}
