//! From a server into a local directory.
//!
//! ```text
//! planner thread:  list a page ─► what lies at the target? ─► what to do        (ahead by a few pages)
//! this thread:     give wanted files to the engine, take their ends, count and tell
//! checker thread:  ask the source for the digests of what has landed, in groups
//! ```
//! Fetching begins with the first page of the listing.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use longhaul_engine::Finished;
use longhaul_model::{Algorithm, DataSecurity, DigestSet, Fault, FaultCode, Lfn, Verification};
use longhaul_security::SharedSecret;
use longhaul_storage::FlushPolicy;

use crate::fetching::{Ended, Fetching, Landed, Wanted};
use crate::landing::Landing;
use crate::looker::Looker;
use crate::options::Options;
use crate::plan::{self, Landings, TargetRoot};
use crate::planner::{Planner, Step};
use crate::progress::{FileOutcome, Outcome, Progress, Tell};
use crate::protocol::{Entry, Kind, Relative};
use crate::remote::Remote;
use crate::site::{Site, SiteConfig, Source, TARGET, storage_name};
use crate::state::{CopyKey, Scratch, StateDir};
use crate::stop::{Stop, interrupted};
use crate::url::{RemotePath, ServerUrl};

/// Files in the hands of the engine or of the checker: enough to keep long paths full of small files, and a few
/// megabytes of memory at the most.
const UNDER_WAY_MAX: usize = 4_000;
/// Pages planned ahead.
const PAGES_AHEAD: usize = 3;
/// Digests asked for at once; a group that is not full is asked for as soon as the checker is idle.
const CHECKED_AT_ONCE: usize = 1_000;
/// How often the bytes of files under way are counted, for whoever looks.
const COUNT_EVERY: Duration = Duration::from_millis(200);

pub(crate) struct Pull<'a> {
    pub(crate) url: &'a ServerUrl,
    pub(crate) sources: &'a [RemotePath],
    /// As it was written, a slash at its end included.
    pub(crate) target: &'a Path,
    pub(crate) options: &'a Options,
    pub(crate) data_security: DataSecurity,
    /// The name of each source in the target, which is a directory that is there.
    pub(crate) names: Option<&'a [String]>,
}

/// What wakes the copying thread.
enum Inbox {
    Planned { steps: Vec<Step>, last: bool, excluded: u64 },
    PlanFailed(Fault),
    Finished(Vec<Finished>),
    Checked(Vec<(Wanted, Landed, Result<DigestSet, Fault>)>),
    Stopped,
}

/// The part of the memory that questions get; the rest is for data.
const CONTROL_MEMORY: u64 = 2 << 20;

pub(crate) fn control_site(secret: &SharedSecret, key: &CopyKey, scratch: &Scratch) -> Result<Site, Fault> {
    let config = SiteConfig {
        agent: key.agent(),
        listen: Vec::new(),
        state_dir: scratch.path().to_owned(),
        memory_bytes: CONTROL_MEMORY,
        streams: None,
        responder: None,
        data_security: DataSecurity::Tls,
    };
    Site::start(secret, config, Vec::new())
}

impl Pull<'_> {
    pub(crate) fn run(&self, progress: &Progress, stop: &Stop, tell: Tell<'_>) -> Result<(), Fault> {
        let target = absolute(self.target)?;
        let paths = self.sources.iter().map(|source| source.path.as_str());
        let key = CopyKey::of(self.url.hosts().into_iter().chain(paths).chain([&*target.to_string_lossy()]));
        let scratch = Scratch::new()?;
        let control = control_site(&self.url.secret, &key, &scratch)?;
        let mut looks_at = Vec::with_capacity(self.sources.len());
        for source in self.sources {
            looks_at.push(Relative::parse(&source.path)?);
        }
        let remote = Remote::connect(control, &self.url.addresses, looks_at, stop)?;
        let landings = self.land(&remote)?;
        let root = self.root(&target, &landings)?;
        let copied = self.copy_to(&root, &key, &landings, &remote, progress, stop, tell);
        remote.leave();
        copied
    }

    /// Where each source lands, after a look at both sides.
    fn land(&self, remote: &Remote) -> Result<Landings, Fault> {
        if let Some(names) = self.names {
            return exact(names, &remote.welcome.found);
        }
        let mut sources = Vec::new();
        for (source, found) in self.sources.iter().zip(&remote.welcome.found) {
            let shown = self.shown(&source.path);
            let slash = if source.contents { "/" } else { "" };
            let kind = match found.as_ref().map(|entry| (entry.kind, entry.note.as_str())) {
                Some((Kind::File, _)) => plan::Kind::File,
                Some((Kind::Directory, _)) => plan::Kind::Directory,
                Some((Kind::LeftOut, note)) => {
                    let detail = format!("{shown} is {}", longhaul_model::units::printable(note));
                    return Err(Fault::new(FaultCode::SourceUnreadable, detail));
                }
                None => return Err(Fault::new(FaultCode::SourceMissing, shown)),
            };
            sources.push(plan::Source::of_path(shown, &format!("{}{slash}", source.path), kind));
        }
        plan::land(&sources, &local_target(self.target), self.options.recursive)
    }

    fn root(&self, target: &Path, landings: &Landings) -> Result<PathBuf, Fault> {
        match landings.root {
            TargetRoot::Parent => Ok(target.parent().unwrap_or(Path::new("/")).to_owned()),
            TargetRoot::Target { make } => {
                if make && !self.options.dry_run {
                    std::fs::create_dir(target).map_err(|error| {
                        let shown = longhaul_model::units::printable(&target.to_string_lossy());
                        let hint = if error.kind() == std::io::ErrorKind::NotFound {
                            " (directories above the target are not made)"
                        } else {
                            ""
                        };
                        Fault::new(FaultCode::TargetWrite, format!("making {shown}: {error}{hint}"))
                    })?;
                }
                Ok(target.to_owned())
            }
        }
    }

    fn copy_to(
        &self,
        root: &Path,
        key: &CopyKey,
        landings: &Landings,
        remote: &Remote,
        progress: &Progress,
        stop: &Stop,
        tell: Tell<'_>,
    ) -> Result<(), Fault> {
        let planner = Planner {
            remote,
            sources: self.sources,
            landings,
            options: self.options,
            looker: Looker::open(root)?,
            shown: &|path| self.shown(path),
        };
        let (inbox, wakes) = channel();
        if self.options.dry_run {
            return dry_run(&planner, progress, stop, tell);
        }
        let state = StateDir::open(root, "copy", key)?;
        let landing = Arc::new(Landing::open(storage_name(TARGET), root.to_owned(), FlushPolicy::default())?);
        let config = SiteConfig {
            agent: key.agent(),
            listen: Vec::new(),
            state_dir: state.path().to_owned(),
            memory_bytes: self.options.memory_bytes,
            streams: self.options.streams,
            responder: None,
            data_security: self.data_security,
        };
        let site = Site::start(&self.url.secret, config, vec![landing.clone()])?;
        site.engine().set_limits(self.options.limit, None);
        let told = inbox.clone();
        let job = site.open_job(move |finished| drop(told.send(Inbox::Finished(finished))));
        let stopping = inbox.clone();
        let _hook = stop.hook(move || drop(stopping.send(Inbox::Stopped)));
        let source = Source {
            agent: remote.agent(),
            addresses: remote.addresses().to_vec(),
            class: self.options.class,
        };
        let fetching = Fetching::new(
            &site,
            job,
            landing.clone(),
            source,
            storage_name(TARGET),
            self.options.verification,
        );
        let copied = std::thread::scope(|scope| {
            let (pages, may_plan) = sync_channel(PAGES_AHEAD);
            let planned = inbox.clone();
            let plan = &planner;
            let plan_stop = stop.clone();
            scope.spawn(move || plan_on(plan, &planned, &pages, &plan_stop));
            let (check, to_check) = channel();
            scope.spawn(move || check_on(remote, &to_check, &inbox));
            let mut work = Work {
                pull: self,
                landing: &landing,
                fetching,
                progress,
                tell,
                steps: VecDeque::new(),
                listed: false,
                may_plan: Some(may_plan),
                check: Some(check),
                unchecked: Vec::new(),
                checking: 0,
                is_checking: false,
                counted: Instant::now(),
                excluded: 0,
            };
            work.run(&wakes)
        });
        drop(site);
        drop(landing);
        if copied.is_ok() && progress.totals().files_failed == 0 {
            state.remove();
        }
        copied
    }

    /// A source's file, for people and reports; without the secret.
    fn shown(&self, path: &str) -> String {
        format!("{}{}/{}", crate::url::SCHEME, self.url.shown(), longhaul_model::units::printable(path))
    }
}

/// The state of the copying thread.
struct Work<'a> {
    pull: &'a Pull<'a>,
    landing: &'a Landing,
    fetching: Fetching<'a>,
    progress: &'a Progress,
    tell: Tell<'a>,
    steps: VecDeque<Step>,
    listed: bool,
    /// Taking from it lets the planner plan another page.
    may_plan: Option<Receiver<()>>,
    check: Option<Sender<Vec<(Wanted, Landed)>>>,
    unchecked: Vec<(Wanted, Landed)>,
    /// Files whose digests are being asked for.
    checking: usize,
    is_checking: bool,
    counted: Instant,
    excluded: u64,
}

impl Work<'_> {
    fn run(&mut self, wakes: &Receiver<Inbox>) -> Result<(), Fault> {
        loop {
            self.begin_more();
            self.ask_for_digests();
            if self.is_done() {
                self.progress.change(|totals| totals.bytes_running = 0);
                return Ok(());
            }
            let most = self.counted + COUNT_EVERY;
            let wake = self.fetching.next_wake().map_or(most, |wake| wake.min(most));
            match wakes.recv_timeout(wake.saturating_duration_since(Instant::now())) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Fault::new(FaultCode::Internal, "the copy has lost its threads"));
                }
            }
            let now = Instant::now();
            for ended in self.fetching.wake(now) {
                self.ended(ended);
            }
            if now >= self.counted + COUNT_EVERY {
                self.count(now);
            }
        }
    }

    fn is_done(&self) -> bool {
        let nothing_waits = self.steps.is_empty() && self.unchecked.is_empty() && self.checking == 0;
        self.listed && nothing_waits && self.fetching.len() == 0
    }

    fn count(&mut self, now: Instant) {
        self.counted = now;
        let running = self.fetching.running_bytes();
        let waiting = self.fetching.waiting();
        self.progress.change(|totals| totals.bytes_running = running);
        self.progress.set_note(match waiting {
            0 => String::new(),
            files => format!("{files} files wait for another try"),
        });
    }

    fn handle(&mut self, event: Inbox) -> Result<(), Fault> {
        match event {
            Inbox::Planned { steps, last, excluded } => {
                let wanted = steps.iter().filter_map(Step::wanted_bytes);
                let (files, bytes) = wanted.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size));
                self.progress.change(|totals| {
                    totals.files += files;
                    totals.bytes += bytes;
                    totals.listed = last;
                    totals.excluded += excluded - self.excluded;
                });
                self.excluded = excluded;
                self.steps.extend(steps);
                self.listed = last;
            }
            Inbox::PlanFailed(fault) => return Err(fault),
            Inbox::Finished(finished) => {
                for ended in self.fetching.told(finished) {
                    self.ended(ended);
                }
            }
            Inbox::Checked(checked) => {
                self.checking -= checked.len();
                self.is_checking = false;
                for (wanted, landed, digests) in checked {
                    self.compare(wanted, &landed, digests);
                }
            }
            Inbox::Stopped => return Err(interrupted()),
        }
        Ok(())
    }

    /// Does what was planned, as long as there is room.
    fn begin_more(&mut self) {
        let most = self.pull.options.parallel_files.unwrap_or(UNDER_WAY_MAX);
        let mut wanted = Vec::new();
        while self.fetching.len() + self.unchecked.len() + self.checking + wanted.len() < most {
            let Some(step) = self.steps.pop_front() else { break };
            match step {
                Step::Fetch(file) => wanted.push(*file),
                step => self.aside(step),
            }
        }
        if self.steps.is_empty()
            && let Some(may_plan) = &self.may_plan
        {
            while may_plan.try_recv().is_ok() {}
        }
        for ended in self.fetching.begin(wanted) {
            self.ended(ended);
        }
    }

    /// A step that moves no bytes.
    fn aside(&mut self, step: Step) {
        match step {
            Step::Fetch(_) => {}
            Step::Directory { path, mode } => match self.landing.make_directory(path.as_str(), Some(mode)) {
                Ok(_) => self.progress.change(|totals| totals.directories += 1),
                Err(fault) => {
                    self.progress.fail(path.as_str(), &fault);
                    self.report(path.as_str(), path.as_str(), 0, Outcome::Failed(fault));
                }
            },
            step => crate::planner::tell_aside(step, self.progress, self.tell),
        }
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { wanted, result } = ended;
        self.progress.change(|totals| {
            totals.retries += u64::from(wanted.tries);
            totals.bytes_resent += wanted.resent;
        });
        match result {
            Err(fault) => self.failed(&wanted, fault),
            Ok(landed) if self.pull.options.verification == Verification::Wire => {
                let _ = landed;
                self.done(&wanted, Verification::Wire);
            }
            Ok(landed) => self.unchecked.push((wanted, landed)),
        }
    }

    fn ask_for_digests(&mut self) {
        let idle = !self.is_checking && !self.unchecked.is_empty();
        if !idle {
            return;
        }
        let many = self.unchecked.len().min(CHECKED_AT_ONCE);
        let group: Vec<_> = self.unchecked.drain(..many).collect();
        self.checking += group.len();
        self.is_checking = true;
        if let Some(check) = &self.check {
            // The checker lives as long as this sender.
            let _ = check.send(group);
        }
    }

    /// Promise 2: the source's own digest against that of what was handed to the storage.
    fn compare(&mut self, wanted: Wanted, landed: &Landed, digests: Result<DigestSet, Fault>) {
        let compared = digests.and_then(|theirs| match theirs.contradiction(&landed.digests) {
            Some((sent, got)) => {
                let detail = format!("{}: the source sent {sent}, {got} has arrived", wanted.spot.path);
                Err(Fault::new(FaultCode::WrongDigest, detail))
            }
            None if theirs.comparable(&landed.digests) => Ok(()),
            None => {
                Err(Fault::new(FaultCode::ProtocolError, "the source told no digest that can be compared"))
            }
        });
        match compared {
            Ok(()) => {
                let asked = self.pull.options.verification;
                self.done(&wanted, asked.max(Verification::EndToEnd));
            }
            Err(fault) => {
                // Promise 1: nothing stays under its final name that is not known to be right.
                if let Err(fault) = self.landing.discard(&wanted.spot.path) {
                    tracing::error!(%fault, "a wrong file could not be removed");
                }
                self.failed(&wanted, fault);
            }
        }
    }

    fn done(&mut self, wanted: &Wanted, verification: Verification) {
        self.progress.change(|totals| {
            totals.files_done += 1;
            totals.bytes_done += wanted.size;
            totals.verified(verification);
        });
        let outcome = Outcome::Done { verification };
        self.report(wanted.name.as_str(), &wanted.spot.path, wanted.size, outcome);
    }

    fn failed(&mut self, wanted: &Wanted, fault: Fault) {
        self.progress.fail(&wanted.spot.path, &fault);
        self.report(wanted.name.as_str(), &wanted.spot.path, wanted.size, Outcome::Failed(fault));
    }

    fn report(&mut self, source: &str, target: &str, size: u64, outcome: Outcome) {
        let source = self.pull.shown(source);
        (self.tell)(&FileOutcome { source, target: target.to_owned(), size, outcome });
    }
}

/// The planner's thread.
fn plan_on(planner: &Planner<'_>, to: &Sender<Inbox>, pages: &SyncSender<()>, stop: &Stop) {
    let planned = planner.each(&mut |steps, last, excluded| {
        stop.check()?;
        let _ = to.send(Inbox::Planned { steps, last, excluded });
        // Blocks while too many pages are ahead; an error means that the copy is over.
        if last || pages.send(()).is_ok() { Ok(()) } else { Err(interrupted()) }
    });
    if let Err(fault) = planned {
        let _ = to.send(Inbox::PlanFailed(fault));
    }
}

/// The checker's thread.
fn check_on(remote: &Remote, groups: &Receiver<Vec<(Wanted, Landed)>>, to: &Sender<Inbox>) {
    while let Ok(group) = groups.recv() {
        let paths: Result<Vec<Relative>, Fault> =
            group.iter().map(|(wanted, _)| Relative::parse(wanted.name.as_str())).collect();
        let answers = paths.and_then(|paths| remote.digests(&paths));
        let checked = match answers {
            Ok(answers) => group
                .into_iter()
                .zip(answers)
                .map(|((wanted, landed), answer)| (wanted, landed, answer))
                .collect(),
            Err(fault) => {
                group.into_iter().map(|(wanted, landed)| (wanted, landed, Err(fault.clone()))).collect()
            }
        };
        if to.send(Inbox::Checked(checked)).is_err() {
            return;
        }
    }
}

fn dry_run(planner: &Planner<'_>, progress: &Progress, stop: &Stop, tell: Tell<'_>) -> Result<(), Fault> {
    planner.each(&mut |steps, last, excluded| {
        stop.check()?;
        progress.change(|totals| {
            totals.listed = last;
            totals.excluded = excluded;
        });
        for step in steps {
            crate::planner::tell_dry(step, progress, &mut *tell);
        }
        Ok(())
    })
}

/// Where sources land that have names of their own. What is missing is told when its turn comes.
fn exact(names: &[String], found: &[Option<Entry>]) -> Result<Landings, Fault> {
    let mut landings = Vec::with_capacity(names.len());
    for (name, found) in names.iter().zip(found) {
        let name = Lfn::parse(name).map_err(|error| Fault::new(FaultCode::BadName, error.to_string()))?;
        landings.push(match found {
            Some(entry) if entry.kind == Kind::Directory => plan::Landing::Beneath(Some(name)),
            _ => plan::Landing::As(name),
        });
    }
    Ok(Landings { root: TargetRoot::Target { make: false }, landings, may_collide: true })
}

/// What lies at a local target.
pub(crate) fn local_target(path: &Path) -> plan::Target {
    let kind = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => plan::TargetKind::Directory,
        Ok(_) => plan::TargetKind::File,
        Err(_) => plan::TargetKind::Missing,
    };
    let text = path.to_string_lossy();
    plan::Target::of_path(longhaul_model::units::printable(&text), &text, kind)
}

/// Without dots and links on the way, as far as it exists.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Fault> {
    let failed = |error: std::io::Error| {
        let shown = longhaul_model::units::printable(&path.to_string_lossy());
        Fault::new(FaultCode::BadRequest, format!("{shown}: {error}"))
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

/// The crc32c of a set.
pub(crate) fn crc32c(digests: &DigestSet) -> Option<longhaul_model::Digest> {
    digests.get(Algorithm::Crc32c)
}
