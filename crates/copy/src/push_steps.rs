//! Produces the steps of a push: walks the local sources and compares them with what exists at the server.

use std::path::PathBuf;

use longhaul_model::units::printable;
use longhaul_model::{Digest, Fault, FaultCode, Lfn, Pfn};
use longhaul_storage::{Storage, digest_file};

use crate::listing_diff::{self, policy};
use crate::options::Options;
use crate::plan_queue::PageSink;
use crate::progress::{FileCallback, FileOutcome, Outcome, Progress};
use crate::protocol::{Entry, Kind, PushedFile, RelativePath};
use crate::push::join_target;
use crate::remote::{Remote, unexpected};
use crate::rules::{Collisions, Decision, FileMeta, Placement, Placements, TargetEntry, decide};
use crate::stop::Stop;
use crate::target_index::DIGEST_READ_BYTES;
use crate::walk::{FileEntry, Walk, WalkEntry, WalkOptions};

/// Entries per page: one request to the server for each page.
const PAGE_ENTRIES_MAX: usize = 1_000;
/// The first page is short, so that sending begins soon.
const FIRST_PAGE_ENTRIES_MAX: usize = 200;

/// A source of a push.
pub(crate) struct PushSource {
    pub(crate) typed: PathBuf,
    /// The canonical directory.
    pub(crate) root: PathBuf,
    /// Path beneath the root: empty, or the name of a single file.
    pub(crate) start: String,
    pub(crate) is_file: bool,
    /// Why it cannot be copied, if the other sources are copied anyway.
    pub(crate) missing: Option<Fault>,
}

impl PushSource {
    pub(crate) fn absolute_path(&self) -> String {
        self.root.join(&self.start).to_string_lossy().into_owned()
    }
}

/// A file to push.
#[derive(Clone, Debug)]
pub(crate) struct PushItem {
    pub(crate) file: PushedFile,
    /// Index of the source; `from` is the path in it.
    pub(crate) source: usize,
    pub(crate) from: Lfn,
    pub(crate) shown: String,
}

pub(crate) enum Step {
    Send(Box<PushItem>),
    Directory(RelativePath),
    /// A step that transfers nothing.
    NoTransfer(listing_diff::Step),
}

impl Step {
    pub(crate) fn wanted_bytes(&self) -> Option<u64> {
        match self {
            Step::Send(put) => Some(put.file.size),
            Step::Directory(_) => None,
            Step::NoTransfer(step) => step.wanted_bytes(),
        }
    }
}

pub(crate) struct PushSteps<'a> {
    pub(crate) remote: &'a Remote,
    pub(crate) sources: &'a [PushSource],
    pub(crate) placements: &'a Placements,
    pub(crate) base: &'a str,
    pub(crate) options: &'a Options,
    /// Nothing exists at the target.
    pub(crate) is_new: bool,
}

/// Collision check, if two sources may claim one name.
type CollisionCheck = Option<(Collisions, Vec<String>)>;

impl PushSteps<'_> {
    pub(crate) fn for_each_page(&self, take: PageSink<'_, Step>) -> Result<(), Fault> {
        let shown = || self.sources.iter().map(|local| printable(&local.typed.to_string_lossy())).collect();
        let mut watch: CollisionCheck = self.placements.may_collide.then(|| (Collisions::default(), shown()));
        let filters = self
            .options
            .filters()
            .map_err(|error| Fault::new(FaultCode::BadRequest, error.to_string()).with_source(error))?;
        let mut excluded_before = 0;
        let mut most = FIRST_PAGE_ENTRIES_MAX;
        for (number, local) in self.sources.iter().enumerate() {
            if let Some(fault) = &local.missing {
                let source = printable(&local.typed.to_string_lossy());
                let target = match &self.placements.placements[number] {
                    Placement::As(name) | Placement::Beneath(Some(name)) => name.as_str().to_owned(),
                    Placement::Beneath(None) => String::new(),
                };
                let refused = listing_diff::Step::Refuse { source, target, size: 0, fault: fault.clone() };
                let last = number + 1 == self.sources.len();
                take(vec![Step::NoTransfer(refused)], last, excluded_before)?;
                continue;
            }
            let prefix = self.placements.placements[number].filter_prefix().to_owned();
            let options = WalkOptions { filters: filters.clone(), prefix };
            let mut walk = Walk::open(&local.root, &local.start, options)?;
            let mut more = true;
            while more {
                let found: Vec<WalkEntry> = walk.by_ref().take(most).collect();
                more = found.len() == most;
                most = PAGE_ENTRIES_MAX;
                let steps = self.steps_of_page(number, found, &mut watch)?;
                let last = !more && number + 1 == self.sources.len();
                take(steps, last, excluded_before + walk.excluded())?;
            }
            excluded_before += walk.excluded();
        }
        Ok(())
    }

    fn steps_of_page(
        &self,
        number: usize,
        found: Vec<WalkEntry>,
        watch: &mut CollisionCheck,
    ) -> Result<Vec<Step>, Fault> {
        let mut steps = Vec::with_capacity(found.len());
        let mut files = Vec::with_capacity(found.len());
        for entry in found {
            match entry {
                WalkEntry::File(file) => match self.target(number, &file.path) {
                    Ok(path) => files.push((file, path)),
                    Err(fault) => {
                        let path = self.shown(number, file.path.as_str());
                        steps
                            .push(Step::NoTransfer(listing_diff::Step::LeftOut { path, note: fault.detail }));
                    }
                },
                WalkEntry::EmptyDirectory(directory) => {
                    steps.push(Step::Directory(self.target(number, &directory.path)?));
                }
                WalkEntry::LeftOut(left) => {
                    let path = self.shown(number, &left.path);
                    steps.push(Step::NoTransfer(listing_diff::Step::LeftOut { path, note: left.detail }));
                }
            }
        }
        let there = if self.is_new {
            vec![None; files.len()]
        } else {
            self.remote.stats(files.iter().map(|(_, path)| path.clone()).collect())?
        };
        let mut open = Vec::new();
        for ((file, path), there) in files.into_iter().zip(there) {
            let existing = existing(there.as_ref());
            match self.decide(number, &file, &path, None, &existing) {
                Some(step) => steps.push(step),
                None => open.push((file, path, existing)),
            }
        }
        self.compare_digests(number, open, &mut steps)?;
        if let Some((collisions, shown)) = watch {
            steps.iter_mut().for_each(|step| refuse_collision(step, collisions, number as u32, shown));
        }
        Ok(steps)
    }

    fn target(&self, number: usize, relative: &Lfn) -> Result<RelativePath, Fault> {
        join_target(self.base, &self.placements.placements[number].path(relative)?)
    }

    fn shown(&self, number: usize, path: &str) -> String {
        let local = &self.sources[number];
        if local.is_file {
            return printable(&local.typed.to_string_lossy());
        }
        printable(&local.typed.join(path).to_string_lossy())
    }

    fn decide(
        &self,
        number: usize,
        file: &FileEntry,
        path: &RelativePath,
        digest: Option<Digest>,
        existing: &TargetEntry,
    ) -> Option<Step> {
        let source = FileMeta { size: file.size, mtime_ns: file.mtime_ns, digest };
        let texts = || (self.shown(number, file.path.as_str()), path.as_str().to_owned());
        match decide(policy(self.options), &source, existing, path.as_str()) {
            Decision::NeedDigests => None,
            Decision::Copy { replaces } => {
                let pushed = PushedFile {
                    path: path.clone(),
                    size: file.size,
                    mtime_ns: file.mtime_ns,
                    mode: file.mode,
                    replace: replaces,
                };
                Some(Step::Send(Box::new(PushItem {
                    file: pushed,
                    source: number,
                    from: file.path.clone(),
                    shown: texts().0,
                })))
            }
            Decision::Skip(reason) => {
                let (source, target) = texts();
                Some(Step::NoTransfer(listing_diff::Step::Skip { source, target, size: file.size, reason }))
            }
            Decision::Refuse(fault) => {
                let (source, target) = texts();
                Some(Step::NoTransfer(listing_diff::Step::Refuse { source, target, size: file.size, fault }))
            }
        }
    }

    /// Digests both ends of files that cannot be decided otherwise; one by one, since a server should answer
    /// soon.
    fn compare_digests(
        &self,
        number: usize,
        open: Vec<(FileEntry, RelativePath, TargetEntry)>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Fault> {
        if open.is_empty() {
            return Ok(());
        }
        let storage = self.sources[number].storage()?;
        let mut buffer = vec![0; DIGEST_READ_BYTES];
        for (file, path, existing) in open {
            let theirs = self.remote.digests(std::slice::from_ref(&path))?.pop().ok_or_else(unexpected)?;
            let step = theirs.and_then(|digests| {
                let theirs = crate::pull::crc32c(&digests).ok_or_else(unexpected)?;
                let at = Pfn::new(storage.name().clone(), file.path.as_str())?;
                let (ours, _) = digest_file(&storage, &at, [longhaul_model::Algorithm::Crc32c], &mut buffer)?;
                let ours = crate::pull::crc32c(&ours).ok_or_else(unexpected)?;
                let existing = match existing {
                    TargetEntry::File(meta) => TargetEntry::File(FileMeta { digest: Some(theirs), ..meta }),
                    other => other,
                };
                self.decide(number, &file, &path, Some(ours), &existing).ok_or_else(unexpected)
            });
            steps.push(step.unwrap_or_else(|fault| {
                let source = self.shown(number, file.path.as_str());
                let target = path.as_str().to_owned();
                Step::NoTransfer(listing_diff::Step::Refuse { source, target, size: file.size, fault })
            }));
        }
        Ok(())
    }

    pub(crate) fn dry_run(
        &self,
        progress: &Progress,
        stop: &Stop,
        tell: FileCallback<'_>,
    ) -> Result<(), Fault> {
        self.for_each_page(&mut |steps, last, excluded| {
            stop.check()?;
            progress.change(|totals| {
                totals.listed = last;
                totals.excluded = excluded;
            });
            for step in steps {
                match step {
                    Step::NoTransfer(step) => listing_diff::report_dry_run(step, progress, &mut *tell),
                    Step::Directory(_) => progress.change(|totals| totals.directories += 1),
                    Step::Send(put) => {
                        progress.change(|totals| {
                            totals.files += 1;
                            totals.bytes += put.file.size;
                        });
                        tell(&FileOutcome {
                            source: put.shown,
                            target: put.file.path.as_str().to_owned(),
                            size: put.file.size,
                            outcome: Outcome::WouldCopy { replaces: put.file.replace },
                            replicas: Vec::new(),
                        });
                    }
                }
            }
            Ok(())
        })
    }
}

fn existing(there: Option<&Entry>) -> TargetEntry {
    match there.map(|entry| (entry.kind, entry)) {
        None => TargetEntry::Missing,
        Some((Kind::File, entry)) => {
            TargetEntry::File(FileMeta { size: entry.size, mtime_ns: entry.mtime_ns, digest: None })
        }
        Some((Kind::Directory, _)) => TargetEntry::Directory,
        Some((Kind::LeftOut, _)) => TargetEntry::Other,
    }
}

fn refuse_collision(step: &mut Step, collisions: &mut Collisions, by: u32, shown: &[String]) {
    let (path, size, source) = match &*step {
        Step::Send(put) => (put.file.path.clone(), put.file.size, put.shown.clone()),
        Step::Directory(path) => (path.clone(), 0, String::new()),
        Step::NoTransfer(_) => return,
    };
    let Ok(name) = Lfn::parse(path.as_str()) else { return };
    let taken = match &*step {
        Step::Directory(_) => collisions.claim_directory(&name, by, shown),
        _ => collisions.claim_file(&name, by, shown),
    };
    if let Err(fault) = taken {
        let target = path.as_str().to_owned();
        *step = Step::NoTransfer(listing_diff::Step::Refuse { source, target, size, fault });
    }
}
