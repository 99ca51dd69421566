//! Push: copies from local paths to a server.
//!
//! The server's engine fetches, as everywhere; only the streams are dialled from here, since this host has no
//! port that the server could dial.
//! ```text
//! planner thread:  walk ─► what lies there? (asked of the server) ─► what to do
//! this thread:     tell the server which files to fetch, and others when those have landed
//! poller thread:   ask the server what has happened
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use longhaul_model::units::printable;
use longhaul_model::{Blame, DataSecurity, Fault, FaultCode, Lfn};
use longhaul_storage::{FlushPolicy, Posix, PosixOptions, Storage};

use crate::options::Options;
use crate::plan_queue::{PlanQueue, PlannedPage, plan_ahead};
use crate::progress::{FileCallback, FileOutcome, Outcome, Progress};
use crate::protocol::{self, Kind, PushedFile, ReceivedFile, RelativePath, Reply, Request};
use crate::pull::absolute;
use crate::push_export::PushExport;
use crate::push_steps::{PushSource, PushSteps, Step};
use crate::remote::{Remote, escaped_len, unexpected};
use crate::rules::{self, Placements, TargetRoot};
use crate::site::{EXPORT, Site, SiteConfig, storage_name};
use crate::state::{CopyKey, ScratchDir};
use crate::stop::{Stop, interrupted};
use crate::url::{RemotePath, ServerUrl};

/// Files announced to the server and not finished.
const FILES_RUNNING_MAX: usize = 4_000;
/// Streams kept open; the server uses as many as it needs.
const STREAMS_DEFAULT: usize = 8;
/// Files announced in one message.
const FILES_PER_MESSAGE_MAX: usize = 1_000;
/// Bytes of a file in a message besides its name.
const FILE_OVERHEAD_BYTES: usize = 110;
/// How long the server holds a poll back if nothing happens.
const POLL_WAIT_MS: u64 = 250;
/// A broken connection is final once nothing has moved for this long.
const STALL_MAX: Duration = Duration::from_secs(120);
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// Number of our only job.
const JOB_ID: u32 = 1;

pub(crate) struct Push<'a> {
    pub(crate) sources: &'a [PathBuf],
    pub(crate) url: &'a ServerUrl,
    pub(crate) target: &'a RemotePath,
    pub(crate) options: &'a Options,
    pub(crate) data_security: DataSecurity,
    /// Target path of each source from the server's root, instead of `target`.
    pub(crate) names: Option<&'a [String]>,
}

enum PushEvent {
    Planned(PlannedPage<Step>),
    Polled(protocol::ReceiveProgress),
    PollFailed(Fault),
    Stopped,
}

impl Push<'_> {
    pub(crate) fn run(&self, progress: &Progress, stop: &Stop, tell: FileCallback<'_>) -> Result<(), Fault> {
        let (before, failed_before) = (progress.totals(), progress.failed());
        let mut best = before.bytes_moved;
        let mut last_good = Instant::now();
        loop {
            let fault = match self.try_once(progress, stop, &mut *tell) {
                Err(fault) if fault.blame == Blame::Network && !stop.is_stopped() => fault,
                ended => return ended,
            };
            let moved = progress.totals().bytes_moved;
            if moved == before.bytes_moved {
                // It never worked: report that at once.
                return Err(fault);
            }
            if moved > best {
                best = moved;
                last_good = Instant::now();
            }
            if last_good.elapsed() > STALL_MAX {
                return Err(fault);
            }
            tracing::info!(fault = %fault.chain(),
                "the connection broke; restarting the copy with what is left");
            progress.restart(before.clone(), failed_before.clone());
            if stop.wait(RECONNECT_PAUSE) {
                return Err(interrupted());
            }
        }
    }

    fn try_once(&self, progress: &Progress, stop: &Stop, tell: FileCallback<'_>) -> Result<(), Fault> {
        let locals = self.locals()?;
        let names: Vec<String> = locals.iter().map(|local| local.absolute_path()).collect();
        let hosts = self.url.hosts();
        let parts = names.iter().map(String::as_str).chain(hosts).chain([self.target.path.as_str()]);
        let key = CopyKey::from_parts(parts);
        let scratch = ScratchDir::new()?;
        let roots: Result<Vec<Arc<dyn Storage>>, Fault> =
            locals.iter().map(|local| Ok(Arc::new(local.storage()?) as Arc<dyn Storage>)).collect();
        let offered = Arc::new(PushExport::new(storage_name(EXPORT), roots?));
        let config = SiteConfig::client(key.agent(), self.options, self.data_security, scratch.path());
        let site = Site::start(&self.url.secret, config, vec![offered.clone()])?;
        site.engine().set_limits(None, self.options.limit);
        // Dialled now, so that they are open when the first file is ready.
        let streams = self.options.streams.unwrap_or(STREAMS_DEFAULT);
        let _offer = match self.options.dry_run {
            true => None,
            false => Some(site.engine().offer(&self.url.addresses, streams)?),
        };
        let looks_at = vec![RelativePath::parse(&self.target.path)?];
        let remote = Remote::connect(site, &self.url.addresses, looks_at, None, stop)?;
        if !remote.welcome.writable {
            let detail = format!("{} is read-only: start it with --write", self.url.shown());
            return Err(Fault::new(FaultCode::NotAllowed, detail));
        }
        let landings = self.place_sources(&locals, &remote)?;
        let base = self.base(&landings, &remote)?;
        // A directory that did not exist is empty, so nothing has to be asked.
        let is_new = matches!(landings.root, TargetRoot::Target { make: true });
        let planner = PushSteps {
            remote: &remote,
            sources: &locals,
            placements: &landings,
            base: &base,
            options: self.options,
            is_new,
        };
        if self.options.dry_run {
            return planner.dry_run(progress, stop, tell);
        }
        self.send_files(&planner, &offered, progress, stop, tell)
    }

    fn locals(&self) -> Result<Vec<PushSource>, Fault> {
        self.sources
            .iter()
            .map(|path| match self.local(path) {
                Err(fault) if self.names.is_some() => Ok(PushSource {
                    typed: path.clone(),
                    root: PathBuf::from("/"),
                    start: String::new(),
                    is_file: true,
                    missing: Some(fault),
                }),
                local => local,
            })
            .collect()
    }

    fn local(&self, path: &Path) -> Result<PushSource, Fault> {
        let shown = printable(&path.to_string_lossy());
        let failed = |error: std::io::Error| {
            Fault::new(FaultCode::SourceMissing, format!("{shown}: {error}")).with_source(error)
        };
        let found = std::fs::metadata(path).map_err(failed)?;
        let real = absolute(path)?;
        let typed = path.to_owned();
        if found.is_dir() {
            return Ok(PushSource { typed, root: real, start: String::new(), is_file: false, missing: None });
        }
        let name = real.file_name().and_then(std::ffi::OsStr::to_str).map(str::to_owned);
        let start =
            name.ok_or_else(|| Fault::new(FaultCode::BadName, format!("{shown}: the name is not UTF-8")))?;
        let root = real.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(PushSource { typed, root, start, is_file: true, missing: None })
    }

    fn place_sources(&self, locals: &[PushSource], remote: &Remote) -> Result<Placements, Fault> {
        if let Some(names) = self.names {
            let mut landings = Vec::with_capacity(names.len());
            for (name, local) in names.iter().zip(locals) {
                let bad = Fault::from;
                let name = Lfn::parse(name).map_err(bad)?;
                landings.push(match local.is_file {
                    true => rules::Placement::As(name),
                    false => rules::Placement::Beneath(Some(name)),
                });
            }
            return Ok(Placements {
                root: TargetRoot::Target { make: false },
                placements: landings,
                may_collide: true,
            });
        }
        let sources: Vec<rules::Source> = locals
            .iter()
            .map(|local| {
                let kind = if local.is_file { rules::Kind::File } else { rules::Kind::Directory };
                let text = local.typed.to_string_lossy();
                rules::Source::of_path(printable(&text), &text, kind)
            })
            .collect();
        let found = remote.welcome.found.first().and_then(Option::as_ref);
        let kind = match found.map(|entry| entry.kind) {
            None => rules::TargetKind::Missing,
            Some(Kind::Directory) => rules::TargetKind::Directory,
            Some(_) => rules::TargetKind::File,
        };
        let slash = if self.target.contents { "/" } else { "" };
        let target = rules::Target::of_path(self.shown(""), &format!("{}{slash}", self.target.path), kind);
        rules::place_sources(&sources, &target, self.options.recursive)
    }

    /// The directory at the server that placements are relative to; created if it is missing.
    fn base(&self, landings: &Placements, remote: &Remote) -> Result<String, Fault> {
        match landings.root {
            TargetRoot::Parent => {
                Ok(self.target.path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned())
            }
            TargetRoot::Target { make } => {
                if make && !self.options.dry_run {
                    let paths = vec![RelativePath::parse(&self.target.path)?];
                    remote.call_done(&Request::MakeDirectories { paths })?;
                }
                Ok(self.target.path.clone())
            }
        }
    }

    fn send_files(
        &self,
        planner: &PushSteps<'_>,
        offered: &PushExport,
        progress: &Progress,
        stop: &Stop,
        tell: FileCallback<'_>,
    ) -> Result<(), Fault> {
        let remote = planner.remote;
        let (verification, class) = (self.options.verification, self.options.class);
        remote.call_done_once(&Request::Receive { job: JOB_ID, verification, class })?;
        let (inbox, wakes) = channel();
        let stopping = inbox.clone();
        let _hook = stop.hook(move || drop(stopping.send(PushEvent::Stopped)));
        std::thread::scope(|scope| {
            let (agenda, pages) = PlanQueue::new(Step::wanted_bytes);
            let (planned, plan_stop) = (inbox.clone(), stop.clone());
            scope.spawn(move || {
                plan_ahead(
                    |take| planner.for_each_page(take),
                    &planned,
                    PushEvent::Planned,
                    &pages,
                    &plan_stop,
                );
            });
            let (go_on, may_poll) = channel();
            scope.spawn(move || poll_server(remote, &may_poll, &inbox));
            let mut work = PushRun {
                push: self,
                remote,
                export: offered,
                progress,
                tell,
                queue: agenda,
                poll_requests: go_on,
                polling: false,
                under_way: 0,
                moved_before: progress.totals().bytes_moved,
                moved_known: 0,
                size_unknown: 0,
            };
            let worked = work.run(&wakes);
            work.count();
            // Ends the poller's last request.
            let _ = remote.call_once(&Request::ReceiveEnd { job: JOB_ID });
            worked
        })
    }

    fn shown(&self, path: &str) -> String {
        format!("{}{}/{}", crate::url::SCHEME, self.url.shown(), printable(path))
    }
}

impl PushSource {
    pub(crate) fn storage(&self) -> Result<Posix, Fault> {
        Posix::open(PosixOptions {
            name: storage_name(EXPORT),
            root: self.root.clone(),
            work: None,
            writable: false,
            flush: FlushPolicy::None,
        })
    }
}

struct PushRun<'a> {
    push: &'a Push<'a>,
    remote: &'a Remote,
    export: &'a PushExport,
    progress: &'a Progress,
    tell: FileCallback<'a>,
    queue: PlanQueue<Step>,
    /// Each message lets the poller ask once.
    poll_requests: Sender<()>,
    polling: bool,
    under_way: usize,
    /// Bytes moved by earlier copies of this command.
    moved_before: u64,
    /// Payload of finished files; and the sizes of finished files for which the server cannot say how much
    /// came over this connection.
    moved_known: u64,
    size_unknown: u64,
}

impl PushRun<'_> {
    fn run(&mut self, wakes: &Receiver<PushEvent>) -> Result<(), Fault> {
        loop {
            self.begin_more()?;
            if self.queue.is_done() && self.under_way == 0 {
                self.progress.change(|totals| totals.bytes_running = 0);
                return Ok(());
            }
            if self.under_way > 0 && !self.polling {
                self.polling = self.poll_requests.send(()).is_ok();
            }
            match wakes.recv() {
                Ok(event) => self.handle(event)?,
                Err(_) => return Err(Fault::new(FaultCode::Internal, "the copy's threads have ended")),
            }
        }
    }

    /// Payload bytes sent.
    fn bytes_out(&self) -> u64 {
        self.remote.site().engine().snapshot().bytes_out
    }

    /// Final count of moved bytes: what no file accounts for is attributed to the files that the server knows
    /// too little about.
    fn count(&self) {
        let moved = self.bytes_out();
        let of_unknown = moved.saturating_sub(self.moved_known).min(self.size_unknown);
        self.progress.change(|totals| {
            totals.bytes_moved = self.moved_before + moved;
            totals.bytes_resumed += self.size_unknown - of_unknown;
        });
    }

    fn handle(&mut self, event: PushEvent) -> Result<(), Fault> {
        match event {
            PushEvent::Planned(planned) => self.queue.push_page(planned?, self.progress),
            PushEvent::Polled(polled) => {
                self.polling = false;
                let moved = self.moved_before + self.bytes_out();
                self.progress.change(|totals| {
                    totals.bytes_running = polled.bytes_running;
                    totals.bytes_moved = moved;
                });
                polled.finished.into_iter().for_each(|received| self.handle_received(received));
            }
            PushEvent::PollFailed(fault) => return Err(fault),
            PushEvent::Stopped => return Err(interrupted()),
        }
        Ok(())
    }

    fn begin_more(&mut self) -> Result<(), Fault> {
        let most = self.push.options.parallel_files.unwrap_or(FILES_RUNNING_MAX);
        loop {
            let mut files: Vec<PushedFile> = Vec::new();
            let mut directories = Vec::new();
            let mut bytes = 0;
            while self.under_way + files.len() < most
                && files.len() < FILES_PER_MESSAGE_MAX
                && bytes < protocol::PAGE_BYTES_MAX / 2
            {
                let Some(step) = self.queue.next() else { break };
                match step {
                    Step::Send(put) => {
                        bytes += FILE_OVERHEAD_BYTES + escaped_len(put.file.path.as_str());
                        files.push(put.file.clone());
                        self.export.add(*put);
                    }
                    Step::Directory(path) => {
                        bytes += FILE_OVERHEAD_BYTES + escaped_len(path.as_str());
                        directories.push(path);
                    }
                    Step::NoTransfer(step) => {
                        crate::listing_diff::report_without_transfer(step, self.progress, self.tell)
                    }
                }
            }
            if !directories.is_empty() {
                let made = directories.len() as u64;
                self.remote.call_done_once(&Request::MakeDirectories { paths: directories })?;
                self.progress.change(|totals| totals.directories += made);
            } else if files.is_empty() {
                break;
            }
            if !files.is_empty() {
                self.under_way += files.len();
                self.remote.call_done_once(&Request::ReceiveFiles { job: JOB_ID, files })?;
            }
        }
        self.queue.resume_planner();
        Ok(())
    }

    fn handle_received(&mut self, received: ReceivedFile) {
        let name = received.path.as_str();
        let Some(put) = self.export.remove(name) else { return };
        self.under_way -= 1;
        self.progress.change(|totals| {
            totals.retries += u64::from(received.retries);
            totals.bytes_resent += received.resent;
        });
        match received.moved {
            Some(moved) => self.moved_known += moved,
            None => self.size_unknown += put.file.size,
        }
        let size = put.file.size;
        let outcome = match received.fault {
            None => {
                let verification = self.push.options.verification;
                self.progress.change(|totals| {
                    totals.files_done += 1;
                    totals.bytes_done += size;
                    if let Some(moved) = received.moved {
                        totals.bytes_resumed += size.saturating_sub(moved.saturating_sub(received.resent));
                    }
                    totals.verified(verification);
                });
                Outcome::Done { verification }
            }
            Some(mut fault) => {
                fault.detail = printable(&fault.detail);
                self.progress.fail(name, &fault);
                Outcome::Failed(fault)
            }
        };
        let source = put.shown;
        (self.tell)(&FileOutcome { source, target: name.to_owned(), size, outcome, replicas: Vec::new() });
    }
}

/// Body of the poller's thread: polls once for each message.
fn poll_server(remote: &Remote, may_poll: &Receiver<()>, to: &Sender<PushEvent>) {
    while may_poll.recv().is_ok() {
        let polled = match remote.call_once(&Request::ReceivePoll { job: JOB_ID, wait_ms: POLL_WAIT_MS }) {
            Ok(Reply::Received(polled)) => PushEvent::Polled(polled),
            Ok(_) => PushEvent::PollFailed(unexpected()),
            Err(fault) => PushEvent::PollFailed(fault),
        };
        if to.send(polled).is_err() {
            return;
        }
    }
}

/// The target path of a file, from the server's root.
pub(crate) fn join_target(base: &str, path: &Lfn) -> Result<RelativePath, Fault> {
    RelativePath::parse(&if base.is_empty() { path.as_str().to_owned() } else { format!("{base}/{path}") })
}
