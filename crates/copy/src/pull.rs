//! Pull: copies from a server into a local directory.
//!
//! ```text
//! planner thread:  list a page ─► what lies at the target? ─► what to do        (ahead by a few pages)
//! this thread:     give wanted files to the engine, take their ends, count and tell
//! ```
//! Round trips dominate on long paths: data streams are dialled together with the control channel, the first
//! page of the listing comes with the answer to hello, and fetching begins with it. So the first bytes of
//! files arrive after four round trips, two of which are those of TCP and TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use longhaul_engine::AttemptOutcome;
use longhaul_gateways::circuits::CircuitConfig;
use longhaul_model::{Algorithm, DataSecurity, Digest, DigestSet, Fault, FaultCode, Lfn};
use longhaul_storage::FlushPolicy;

use crate::circuit;
use crate::fetch_job::{FetchJob, FetchResult, FileFetch};
use crate::listing_diff::{self, ListingDiff, Step};
use crate::options::Options;
use crate::plan_queue::{PlanQueue, PlannedPage, plan_ahead};
use crate::progress::{FileCallback, FileOutcome, Outcome, Progress};
use crate::protocol::{Entry, Kind, ListRequest, RelativePath};
use crate::pull_steps::PullSteps;
use crate::remote::Remote;
use crate::rename_on_commit::MappedStorage;
use crate::replicas::{self, ReplicaServer};
use crate::rules::{self, Placements, TargetRoot};
use crate::site::{Site, SiteConfig, TARGET, storage_name};
use crate::state::{CopyKey, ScratchDir, StateDir};
use crate::stop::{Stop, interrupted};
use crate::url::{RemotePath, ServerUrl};

/// Files handed to the engine: enough to fill long paths with small files, at a cost of a few megabytes of
/// memory.
const FILES_RUNNING_MAX: usize = 4_000;
/// How often the bytes of running files are counted for display.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) struct Pull<'a> {
    pub(crate) url: &'a ServerUrl,
    pub(crate) sources: &'a [RemotePath],
    /// The target as written, including a trailing slash.
    pub(crate) target: &'a Path,
    pub(crate) options: &'a Options,
    pub(crate) data_security: DataSecurity,
    /// The name of each source in the target, which is then an existing directory.
    pub(crate) names: Option<&'a [String]>,
    /// Servers with replicas of the only source.
    pub(crate) replicas: &'a [(ServerUrl, RemotePath)],
    /// BLAKE3 digest of the only source, which must be a file.
    pub(crate) blake3: Option<Digest>,
    pub(crate) circuit: Option<&'a CircuitConfig>,
}

/// Events for the copying thread.
enum PullEvent {
    Planned(PlannedPage<Step>),
    Finished(Vec<AttemptOutcome>),
    Stopped,
}

impl Pull<'_> {
    pub(crate) fn run(&self, progress: &Progress, stop: &Stop, tell: FileCallback<'_>) -> Result<(), Fault> {
        let target = absolute(self.target)?;
        let key = self.key(&target);
        let scratch = ScratchDir::new()?;
        let config = SiteConfig::client(key.agent(), self.options, self.data_security, scratch.path());
        let site = Site::start(&self.url.secret, config, Vec::new())?;
        if !self.options.dry_run {
            site.engine().preconnect(&self.url.addresses);
        }
        let members = self.connect(&site, progress, stop)?;
        drop(site);
        let landings = self.place_sources(&members[0].remote)?;
        let root = self.target_root(&target, &landings)?;
        let shown = |path: &str| self.shown(path);
        let planning =
            PullSteps { pull: self, members: &members, placements: &landings, root: &root, shown: &shown };
        if self.options.dry_run {
            return dry_run(&planning.diff_with(0)?, progress, stop, tell);
        }
        let state = StateDir::open(&root, "copy", &key)?;
        let copied = self.copy_to(&state, &planning, progress, stop, tell);
        // The engine writes its journals when it ends.
        drop(members);
        if copied.is_ok() && progress.totals().files_failed == 0 {
            state.remove();
        }
        copied
    }

    /// Whether each chunk is verified against a tree: always if the copy began with several servers, so that
    /// what they brought is valid with one of them.
    pub(crate) fn is_checked(&self) -> bool {
        self.blake3.is_some() || !self.replicas.is_empty()
    }

    /// With several servers the key names none of them: what one brought is valid with any other.
    fn key(&self, target: &Path) -> CopyKey {
        let target = target.to_string_lossy();
        let paths = self.sources.iter().map(|source| source.path.as_str());
        match self.replicas.is_empty() {
            true => CopyKey::from_parts(self.url.hosts().into_iter().chain(paths).chain([&*target])),
            false => CopyKey::from_parts(paths.chain([&*target, "replicas"])),
        }
    }

    /// Connects to the servers that have the source, the leader first.
    fn connect(
        &self,
        site: &Arc<Site>,
        progress: &Progress,
        stop: &Stop,
    ) -> Result<Vec<ReplicaServer>, Fault> {
        let lists = self.early_listing();
        if let ([source], false) = (self.sources, self.replicas.is_empty()) {
            let others = self.replicas.iter().map(|(url, path)| (url, path));
            let servers: Vec<_> = [(self.url, source)].into_iter().chain(others).collect();
            return replicas::connect(site, &servers, lists.as_ref(), progress, stop);
        }
        let mut looks_at = Vec::with_capacity(self.sources.len());
        for source in self.sources {
            looks_at.push(RelativePath::parse(&source.path)?);
        }
        let remote = Remote::connect(site.clone(), &self.url.addresses, looks_at, lists, stop)?;
        let path = self.sources.first().cloned().unwrap_or_else(RemotePath::root);
        let shown = self.shown(&path.path);
        Ok(vec![ReplicaServer { remote, path, shown }])
    }

    /// What the server may list with its answer to hello: the only source, in case it is a directory.
    fn early_listing(&self) -> Option<ListRequest> {
        let [source] = self.sources else { return None };
        let landings = match self.names {
            Some(_) => return None,
            None => self.placements_for(&[rules::Kind::Directory]).ok()?,
        };
        listing_diff::list_request(source, &landings.placements[0], self.options).ok()
    }

    /// Places each source, with what is known of both ends.
    fn place_sources(&self, remote: &Remote) -> Result<Placements, Fault> {
        if let Some(names) = self.names {
            return named_placements(names, &remote.welcome.found);
        }
        let mut kinds = Vec::new();
        for (source, found) in self.sources.iter().zip(&remote.welcome.found) {
            let shown = self.shown(&source.path);
            if self.blake3.is_some() && found.as_ref().is_some_and(|entry| entry.kind == Kind::Directory) {
                let detail = format!("{shown} is a directory: --blake3 is the digest of a single file");
                return Err(Fault::new(FaultCode::BadRequest, detail));
            }
            kinds.push(match found.as_ref().map(|entry| (entry.kind, entry.note.as_str())) {
                Some((Kind::File, _)) => rules::Kind::File,
                Some((Kind::Directory, _)) => rules::Kind::Directory,
                Some((Kind::LeftOut, note)) => {
                    let detail = format!("{shown} is {}", longhaul_model::units::printable(note));
                    return Err(Fault::new(FaultCode::SourceUnreadable, detail));
                }
                None => return Err(Fault::new(FaultCode::SourceMissing, shown)),
            });
        }
        self.placements_for(&kinds)
    }

    fn placements_for(&self, kinds: &[rules::Kind]) -> Result<Placements, Fault> {
        let sources: Vec<rules::Source> = self
            .sources
            .iter()
            .zip(kinds)
            .map(|(source, kind)| {
                let slash = if source.contents { "/" } else { "" };
                rules::Source::of_path(self.shown(&source.path), &format!("{}{slash}", source.path), *kind)
            })
            .collect();
        rules::place_sources(&sources, &local_target(self.target), self.options.recursive)
    }

    fn target_root(&self, target: &Path, landings: &Placements) -> Result<PathBuf, Fault> {
        match landings.root {
            TargetRoot::Parent => Ok(target.parent().unwrap_or(Path::new("/")).to_owned()),
            TargetRoot::Target { make } => {
                if make && !self.options.dry_run {
                    std::fs::create_dir(target).map_err(|error| {
                        let shown = longhaul_model::units::printable(&target.to_string_lossy());
                        let hint = if error.kind() == std::io::ErrorKind::NotFound {
                            " (parent directories are not created)"
                        } else {
                            ""
                        };
                        Fault::new(FaultCode::TargetWrite, format!("cannot create {shown}: {error}{hint}"))
                            .with_source(error)
                    })?;
                }
                Ok(target.to_owned())
            }
        }
    }

    fn copy_to(
        &self,
        state: &StateDir,
        planning: &PullSteps<'_>,
        progress: &Progress,
        stop: &Stop,
        tell: FileCallback<'_>,
    ) -> Result<(), Fault> {
        let (members, (inbox, wakes)) = (planning.members, channel());
        let root = planning.root.to_owned();
        let landing = Arc::new(MappedStorage::open(storage_name(TARGET), root, FlushPolicy::default())?);
        let site = members[0].remote.site();
        site.add_target(landing.clone(), state.path())?;
        site.engine().set_limits(self.options.limit, None);
        let told = inbox.clone();
        let job = site.open_job(move |finished| drop(told.send(PullEvent::Finished(finished))));
        let stopping = inbox.clone();
        let _hook = stop.hook(move || drop(stopping.send(PullEvent::Stopped)));
        let source = replicas::source(members, self.options.class);
        let _circuit = match self.circuit {
            Some(config) => {
                let story = progress.circuit_log();
                Some(circuit::request_circuit(config, site, &source, state, story)?)
            }
            None => None,
        };
        let fetching = FetchJob::new(
            site,
            job,
            landing.clone(),
            source,
            storage_name(TARGET),
            self.options.verification,
        );
        std::thread::scope(|scope| {
            let (agenda, pages) = PlanQueue::new(Step::wanted_bytes);
            let plan_stop = stop.clone();
            scope.spawn(move || {
                plan_ahead(
                    |take| planning.for_each_page(take),
                    &inbox,
                    PullEvent::Planned,
                    &pages,
                    &plan_stop,
                );
            });
            let mut work = PullRun {
                pull: self,
                members,
                storage: &landing,
                job: fetching,
                progress,
                tell,
                queue: agenda,
                counted: Instant::now(),
                moved_before: progress.totals().bytes_moved,
            };
            let worked = work.run(&wakes);
            work.count(Instant::now());
            worked
        })
    }

    /// A file of the source for display, without the secret.
    pub(crate) fn shown(&self, path: &str) -> String {
        replicas::shown(self.url, path)
    }
}

/// State of the copying thread.
struct PullRun<'a> {
    pull: &'a Pull<'a>,
    members: &'a [ReplicaServer],
    storage: &'a MappedStorage,
    job: FetchJob<'a>,
    progress: &'a Progress,
    tell: FileCallback<'a>,
    queue: PlanQueue<Step>,
    counted: Instant,
    /// Bytes moved by earlier copies of this command.
    moved_before: u64,
}

impl PullRun<'_> {
    fn run(&mut self, wakes: &Receiver<PullEvent>) -> Result<(), Fault> {
        loop {
            self.begin_more();
            if self.is_done() {
                return Ok(());
            }
            let most = self.counted + COUNT_INTERVAL;
            let wake = self.job.next_retry_at().map_or(most, |wake| wake.min(most));
            match wakes.recv_timeout(wake.saturating_duration_since(Instant::now())) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Fault::new(FaultCode::Internal, "the copy's threads have ended"));
                }
            }
            let now = Instant::now();
            for ended in self.job.retry_due(now) {
                self.handle_result(ended);
            }
            if now >= self.counted + COUNT_INTERVAL {
                self.count(now);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.queue.is_done() && self.job.len() == 0
    }

    fn count(&mut self, now: Instant) {
        self.counted = now;
        let running = self.job.running_bytes();
        let waiting = self.job.deferred_files();
        let moved = self.moved_before + self.job.bytes_in();
        self.progress.change(|totals| {
            totals.bytes_running = running;
            totals.bytes_moved = moved;
        });
        self.progress.set_note(match waiting {
            0 if self.waits_for_trees() => "the source is reading ahead for the blake3 tree".to_owned(),
            0 => String::new(),
            1 => "1 file waits for a retry".to_owned(),
            files => format!("{files} files wait for a retry"),
        });
    }

    /// Whether nothing runs because the trees of the next files are not known yet.
    fn waits_for_trees(&self) -> bool {
        self.pull.is_checked() && self.job.len() == 0 && !self.queue.is_done()
    }

    fn handle(&mut self, event: PullEvent) -> Result<(), Fault> {
        match event {
            PullEvent::Planned(planned) => self.queue.push_page(planned?, self.progress),
            PullEvent::Finished(finished) => {
                for ended in self.job.handle_finished(finished) {
                    self.handle_result(ended);
                }
            }
            PullEvent::Stopped => return Err(interrupted()),
        }
        Ok(())
    }

    /// Starts planned steps as long as there is room.
    fn begin_more(&mut self) {
        let most = self.pull.options.parallel_files.unwrap_or(FILES_RUNNING_MAX);
        let mut wanted = Vec::new();
        while self.job.len() + wanted.len() < most {
            let Some(step) = self.queue.next() else { break };
            match step {
                Step::Fetch(file) => wanted.push(*file),
                step => self.handle_without_transfer(step),
            }
        }
        self.queue.resume_planner();
        for ended in self.job.start(wanted) {
            self.handle_result(ended);
        }
    }

    /// Handles a step that transfers no bytes.
    fn handle_without_transfer(&mut self, step: Step) {
        match step {
            Step::Fetch(_) => {}
            Step::Directory { path, mode } => match self.storage.make_directory(path.as_str(), Some(mode)) {
                Ok(_) => self.progress.change(|totals| totals.directories += 1),
                Err(fault) => {
                    self.progress.fail(path.as_str(), &fault);
                    self.report(path.as_str(), path.as_str(), 0, Outcome::Failed(fault));
                }
            },
            step => listing_diff::report_without_transfer(step, self.progress, self.tell),
        }
    }

    fn handle_result(&mut self, ended: FetchResult) {
        let FetchResult { file: wanted, result } = ended;
        self.progress.change(|totals| {
            totals.retries += u64::from(wanted.tries);
            totals.bytes_resent += wanted.resent;
        });
        match result {
            Err(fault) => self.failed(&wanted, fault),
            Ok(()) => self.done(&wanted),
        }
    }

    fn done(&mut self, wanted: &FileFetch) {
        let verification = self.pull.options.verification;
        self.progress.change(|totals| {
            totals.files_done += 1;
            totals.bytes_done += wanted.size;
            totals.bytes_resumed += wanted.resumed();
            totals.verified(verification);
        });
        self.report_file(wanted, Outcome::Done { verification });
    }

    fn failed(&mut self, wanted: &FileFetch, fault: Fault) {
        self.progress.fail(&wanted.destination.path, &fault);
        self.report_file(wanted, Outcome::Failed(fault));
    }

    fn report_file(&mut self, wanted: &FileFetch, outcome: Outcome) {
        let replicas = match self.pull.replicas.is_empty() {
            true => Vec::new(),
            false => replicas::shares(self.members, wanted),
        };
        replicas.iter().for_each(|share| self.progress.add_share(share));
        let source = self.pull.shown(wanted.name.as_str());
        let (target, size) = (wanted.destination.path.clone(), wanted.size);
        (self.tell)(&FileOutcome { source, target, size, outcome, replicas });
    }

    fn report(&mut self, source: &str, target: &str, size: u64, outcome: Outcome) {
        let source = self.pull.shown(source);
        (self.tell)(&FileOutcome { source, target: target.to_owned(), size, outcome, replicas: Vec::new() });
    }
}

fn dry_run(
    planner: &ListingDiff<'_>,
    progress: &Progress,
    stop: &Stop,
    tell: FileCallback<'_>,
) -> Result<(), Fault> {
    planner.for_each_page(&mut |steps, last, excluded| {
        stop.check()?;
        progress.change(|totals| {
            totals.listed = last;
            totals.excluded = excluded;
        });
        for step in steps {
            listing_diff::report_dry_run(step, progress, &mut *tell);
        }
        Ok(())
    })
}

/// Placements of sources with given names. A missing source is reported when its turn comes.
fn named_placements(names: &[String], found: &[Option<Entry>]) -> Result<Placements, Fault> {
    let mut landings = Vec::with_capacity(names.len());
    for (name, found) in names.iter().zip(found) {
        let name = Lfn::parse(name)?;
        landings.push(match found {
            Some(entry) if entry.kind == Kind::Directory => rules::Placement::Beneath(Some(name)),
            _ => rules::Placement::As(name),
        });
    }
    Ok(Placements { root: TargetRoot::Target { make: false }, placements: landings, may_collide: true })
}

/// What exists at a local target.
pub(crate) fn local_target(path: &Path) -> rules::Target {
    let kind = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => rules::TargetKind::Directory,
        Ok(_) => rules::TargetKind::File,
        Err(_) => rules::TargetKind::Missing,
    };
    let text = path.to_string_lossy();
    rules::Target::of_path(longhaul_model::units::printable(&text), &text, kind)
}

/// Resolves dots and links as far as the path exists.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Fault> {
    let failed = |error: std::io::Error| {
        let shown = longhaul_model::units::printable(&path.to_string_lossy());
        Fault::new(FaultCode::BadRequest, format!("{shown}: {error}")).with_source(error)
    };
    match path.canonicalize() {
        Ok(real) => Ok(real),
        Err(_) => {
            let whole = std::path::absolute(path).map_err(failed)?;
            let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else { return Ok(whole) };
            Ok(parent.canonicalize().map_or(whole.clone(), |parent| parent.join(name)))
        }
    }
}

/// The CRC32C of a set of digests.
pub(crate) fn crc32c(digests: &DigestSet) -> Option<longhaul_model::Digest> {
    digests.get(Algorithm::Crc32c)
}
