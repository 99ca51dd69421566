//! Plans a local copy entry by entry: walks the sources, places each file, checks the target and decides.
//!
//! It changes nothing, so `--dry-run`, counting in advance and the copy itself each make their own pass; the
//! list is never held in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_model::units::printable;
use longhaul_model::{Digest, Fault, FaultCode, Lfn};
use longhaul_storage::{FlushPolicy, Identity, NoLinks};

use super::tree::{SourceTree, TargetTree, stat_existing};
use crate::filter::Filters;
use crate::rules::{
    Collisions, Decision, FileMeta, Kind, Placement, Placements, Policy, Source, Target, TargetEntry,
    TargetKind, TargetRoot, Totals, decide, place_sources,
};
use crate::walk::{DirectoryEntry, FileEntry, LeftOutEntry, Walk, WalkEntry, WalkOptions};

/// Sources and target as they were typed.
#[derive(Clone, Debug, Default)]
pub struct LocalRequest {
    pub sources: Vec<String>,
    pub target: String,
    pub recursive: bool,
    pub filters: Filters,
    pub policy: Policy,
}

/// One file and the decision about it.
#[derive(Clone)]
pub struct PlannedFile {
    pub tree: Arc<SourceTree>,
    /// Path beneath the source's tree.
    pub source: Lfn,
    /// Path beneath the target's root.
    pub target: Lfn,
    pub size: u64,
    pub mtime_ns: i64,
    pub inode: u64,
    pub mode: u32,
    pub decision: Decision,
    /// Identity of the file that exists at the target, if it is a file.
    pub existing: Option<Identity>,
}

impl PlannedFile {
    pub fn identity(&self) -> Identity {
        Identity { size: self.size, mtime_ns: self.mtime_ns, inode: self.inode }
    }

    pub fn shown_source(&self) -> String {
        self.tree.shown(&self.source)
    }

    /// Decides again, now with digests of both files.
    pub(super) fn decide_with(
        &self,
        policy: Policy,
        of_source: Digest,
        of_target: Digest,
        shown: &str,
    ) -> Decision {
        let Some(there) = &self.existing else { return Decision::Copy { replaces: false } };
        let source = FileMeta { size: self.size, mtime_ns: self.mtime_ns, digest: Some(of_source) };
        let there = FileMeta { size: there.size, mtime_ns: there.mtime_ns, digest: Some(of_target) };
        decide(policy, &source, &TargetEntry::File(there), shown)
    }
}

#[derive(Clone)]
pub enum PlannedEntry {
    File(PlannedFile),
    /// A directory without files, which no file's path would create.
    Directory(DirectoryEntry),
    LeftOut(LeftOutEntry),
}

/// A checked request.
pub struct LocalPlan {
    request: LocalRequest,
    sources: Vec<LocalSource>,
    placements: Placements,
    root: PathBuf,
}

struct LocalSource {
    tree: Arc<SourceTree>,
    /// Path beneath the tree: the name of a single file, or empty.
    start: String,
    /// The name as typed: a link to a file is copied under the link's name.
    name: Option<Lfn>,
}

impl LocalPlan {
    /// Inspects sources and target; changes nothing.
    pub fn prepare(request: LocalRequest) -> Result<LocalPlan, Fault> {
        let mut sources = Vec::with_capacity(request.sources.len());
        let mut found = Vec::with_capacity(request.sources.len());
        for typed in &request.sources {
            let (source, described) = inspect_source(typed)?;
            sources.push(source);
            found.push(described);
        }
        let kind = match std::fs::metadata(&request.target) {
            Ok(metadata) if metadata.is_dir() => TargetKind::Directory,
            Ok(_) => TargetKind::File,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => TargetKind::Missing,
            Err(error) => {
                let text = format!("{}: {error}", printable(&request.target));
                return Err(Fault::new(FaultCode::TargetReadOnly, text));
            }
        };
        let target = Target::of_path(printable(&request.target), &request.target, kind);
        let landings = place_sources(&found, &target, request.recursive)?;
        let root = target_root(&request.target, landings.root)?;
        let plan = LocalPlan { request, sources, placements: landings, root };
        plan.refuse_target_inside_source()?;
        Ok(plan)
    }

    pub fn policy(&self) -> Policy {
        self.request.policy
    }

    /// The directory that all targets are beneath; it need not exist yet.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn shown_target(&self, path: &Lfn) -> String {
        printable(&self.root.join(path.as_str()).to_string_lossy())
    }

    pub(super) fn trees(&self) -> impl Iterator<Item = &SourceTree> {
        self.sources.iter().map(|source| &*source.tree)
    }

    /// Opens the target for writing, creating its directory if that was meant.
    pub fn open_target(&self, flush: FlushPolicy) -> Result<TargetTree, Fault> {
        if self.placements.root == (TargetRoot::Target { make: true })
            && let Err(error) = std::fs::create_dir(&self.root)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            let code = match error.kind() {
                std::io::ErrorKind::NotFound => FaultCode::NotFound,
                std::io::ErrorKind::StorageFull => FaultCode::TargetFull,
                _ => FaultCode::TargetReadOnly,
            };
            let text =
                format!("cannot create the directory {}: {error}", printable(&self.root.to_string_lossy()));
            return Err(Fault::new(code, text));
        }
        TargetTree::open(&self.root, flush)
    }

    /// All entries in order. The target is checked when each file's turn comes.
    pub fn files(&self) -> Result<PlannedEntries<'_>, Fault> {
        Ok(PlannedEntries {
            plan: self,
            // A root that does not exist is empty.
            target: NoLinks::open_root(&self.root).ok(),
            collisions: self.placements.may_collide.then(Collisions::default),
            index: 0,
            walk: None,
            entries_of_source: 0,
            excluded: 0,
        })
    }

    /// Counts files and bytes in advance.
    pub fn totals(&self) -> Result<Totals, Fault> {
        let mut totals = Totals::default();
        for planned in self.files()? {
            if let PlannedEntry::File(file) = planned? {
                totals.add(&file.decision, file.size);
            }
        }
        Ok(totals)
    }

    /// Refuses to copy a directory into itself, which would never end, unless filters exclude the target.
    fn refuse_target_inside_source(&self) -> Result<(), Fault> {
        let Ok(root) = std::path::absolute(&self.root) else { return Ok(()) };
        let existing = root
            .ancestors()
            .find_map(|there| Some(there.canonicalize().ok()?.join(root.strip_prefix(there).ok()?)));
        let Some(root) = existing else { return Ok(()) };
        for (source, landing) in self.sources.iter().zip(&self.placements.placements) {
            let Ok(inside) = root.strip_prefix(source.tree.root()) else { continue };
            if !source.start.is_empty() {
                continue;
            }
            let inside = inside.to_string_lossy();
            let seen = [landing.filter_prefix(), &*inside].join("/");
            let seen = seen.trim_matches('/');
            if !seen.is_empty() && !inside.is_empty() && !self.request.filters.includes_path(seen, true) {
                continue;
            }
            let text = format!(
                "{} is inside {}: the copy would never end",
                printable(&root.to_string_lossy()),
                printable(&source.tree.root().to_string_lossy())
            );
            return Err(Fault::new(FaultCode::Conflict, text));
        }
        Ok(())
    }
}

fn inspect_source(typed: &str) -> Result<(LocalSource, Source), Fault> {
    let failed = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => FaultCode::SourceMissing,
            _ => FaultCode::SourceUnreadable,
        };
        Fault::new(code, format!("{}: {error}", printable(typed))).with_source(error)
    };
    // A trailing slash on a file's name is refused by `place_sources`.
    let real = Path::new(typed.trim_end_matches('/')).canonicalize();
    let real = if typed.chars().all(|c| c == '/') { Path::new(typed).canonicalize() } else { real };
    let real = real.map_err(failed)?;
    let metadata = real.metadata().map_err(failed)?;
    if metadata.is_dir() {
        let described = Source::of_path(printable(typed), typed, Kind::Directory);
        let tree = Arc::new(SourceTree::open(&real)?);
        return Ok((LocalSource { tree, start: String::new(), name: None }, described));
    }
    if !metadata.is_file() {
        let text = format!("{} is neither a file nor a directory", printable(typed));
        return Err(Fault::new(FaultCode::SourceUnreadable, text));
    }
    let described = Source::of_path(printable(typed), typed, Kind::File);
    let bad = |why: String| Fault::new(FaultCode::BadName, format!("{}: {why}", printable(typed)));
    let start = real.file_name().and_then(|name| name.to_str());
    let start = start.ok_or_else(|| bad("the name is not UTF-8".to_owned()))?.to_owned();
    let name = described.name.as_deref().unwrap_or(&start);
    let name = Lfn::parse(name).map_err(|error| bad(error.to_string()).with_source(error))?;
    let parent = real.parent().unwrap_or(Path::new("/"));
    let tree = Arc::new(SourceTree::open(parent)?);
    Ok((LocalSource { tree, start, name: Some(name) }, described))
}

fn target_root(typed: &str, root: TargetRoot) -> Result<PathBuf, Fault> {
    let path = Path::new(typed);
    if root != TargetRoot::Parent {
        return Ok(path.to_owned());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if parent.is_dir() {
        return Ok(parent.to_owned());
    }
    let text = format!("the directory {} does not exist", printable(&parent.to_string_lossy()));
    Err(Fault::new(FaultCode::NotFound, text))
}

/// Iterator over planned entries. An error concerns a whole source.
pub struct PlannedEntries<'a> {
    plan: &'a LocalPlan,
    target: Option<NoLinks>,
    collisions: Option<Collisions>,
    index: usize,
    walk: Option<Walk>,
    /// Entries of the current source so far.
    entries_of_source: u64,
    excluded: u64,
}

impl PlannedEntries<'_> {
    /// Entries excluded by filters so far.
    pub fn excluded(&self) -> u64 {
        self.excluded + self.walk.as_ref().map_or(0, Walk::excluded)
    }

    fn open_walk(&self) -> Result<Walk, Fault> {
        let source = &self.plan.sources[self.index];
        let options = WalkOptions {
            filters: self.plan.request.filters.clone(),
            prefix: self.placement().filter_prefix().to_owned(),
        };
        Walk::open(source.tree.root(), &source.start, options)
    }

    fn placement(&self) -> &Placement {
        &self.plan.placements.placements[self.index]
    }

    /// Ends the current source: one that is empty still becomes a directory.
    fn end_source(&mut self, excluded: u64) -> Option<PlannedEntry> {
        let empty =
            self.entries_of_source == 0 && excluded == 0 && self.plan.sources[self.index].start.is_empty();
        let directory = match self.placement() {
            Placement::Beneath(Some(path)) if empty => Some(path.clone()),
            _ => None,
        };
        let metadata = self.plan.sources[self.index].tree.root().metadata().ok();
        self.index += 1;
        self.entries_of_source = 0;
        self.excluded += excluded;
        let (path, metadata) = (directory?, metadata?);
        use std::os::unix::fs::MetadataExt;
        let mtime_ns = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
        Some(PlannedEntry::Directory(DirectoryEntry {
            path,
            mode: metadata.mode() & crate::walk::MODE_BITS,
            mtime_ns,
        }))
    }

    fn file(&mut self, entry: FileEntry) -> PlannedEntry {
        let source = &self.plan.sources[self.index];
        let relative = source.name.as_ref().unwrap_or(&entry.path);
        let landed = self.placement().path(relative);
        let mut file = PlannedFile {
            tree: Arc::clone(&source.tree),
            source: entry.path.clone(),
            target: landed.as_ref().unwrap_or(relative).clone(),
            size: entry.size,
            mtime_ns: entry.mtime_ns,
            inode: entry.inode,
            mode: entry.mode,
            decision: Decision::NeedDigests,
            existing: None,
        };
        let taken = landed.and_then(|path| match &mut self.collisions {
            None => Ok(()),
            Some(collisions) => collisions.claim_file(&path, self.index as u32, &self.plan.request.sources),
        });
        file.decision = match taken {
            Err(fault) => Decision::Refuse(fault),
            Ok(()) => {
                let (decision, existing) = self.decide(&file);
                file.existing = existing;
                decision
            }
        };
        PlannedEntry::File(file)
    }

    fn decide(&self, file: &PlannedFile) -> (Decision, Option<Identity>) {
        let shown = self.plan.shown_target(&file.target);
        let Some(target) = &self.target else { return (Decision::Copy { replaces: false }, None) };
        match stat_existing(target, &file.target) {
            Ok((existing, identity)) => {
                let meta = FileMeta { size: file.size, mtime_ns: file.mtime_ns, digest: None };
                (decide(self.plan.request.policy, &meta, &existing, &shown), identity)
            }
            Err(errno) => {
                let text = format!("{shown}: {}", std::io::Error::from(errno));
                (Decision::Refuse(Fault::new(FaultCode::TargetReadOnly, text)), None)
            }
        }
    }

    fn directory(&mut self, entry: DirectoryEntry) -> Option<PlannedEntry> {
        let path = self.placement().path(&entry.path).ok()?;
        Some(PlannedEntry::Directory(DirectoryEntry { path, ..entry }))
    }
}

impl Iterator for PlannedEntries<'_> {
    type Item = Result<PlannedEntry, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.index < self.plan.sources.len() {
            if self.walk.is_none() {
                match self.open_walk() {
                    Ok(walk) => self.walk = Some(walk),
                    Err(fault) => {
                        self.index += 1;
                        return Some(Err(fault));
                    }
                }
            }
            let planned = match self.walk.as_mut().and_then(Iterator::next) {
                Some(WalkEntry::File(entry)) => Some(self.file(entry)),
                Some(WalkEntry::EmptyDirectory(entry)) => self.directory(entry),
                Some(WalkEntry::LeftOut(entry)) => return Some(Ok(PlannedEntry::LeftOut(entry))),
                None => {
                    let excluded = self.walk.take().map_or(0, |walk| walk.excluded());
                    match self.end_source(excluded) {
                        Some(planned) => return Some(Ok(planned)),
                        None => continue,
                    }
                }
            };
            self.entries_of_source += 1;
            if let Some(planned) = planned {
                return Some(Ok(planned));
            }
        }
        None
    }
}
