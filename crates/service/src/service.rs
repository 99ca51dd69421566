//! Starting and stopping.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use longhaul_control::brain::{Brain, Input};
use longhaul_control::commit_loop::{CommitLoop, CommitWork};
use longhaul_control::event_loop::drive;
use longhaul_control::query_loop::QueryLoop;
use longhaul_control::thread_fault;
use longhaul_control::turns::{BRAIN_TURN_AGE_MAX, LoopTurn, LoopTurns, TURN_AGE_MAX};
use longhaul_jobs::{self as jobs, ForeignMover, JobLoop, Work};
use longhaul_model::{Fault, FaultCode};
use longhaul_netops::measured::puller;
use longhaul_netops::{Level, plan};
use longhaul_scheduler::Scheduler;
use longhaul_security::LockFile;
use longhaul_threads::{end_process, panic_text, spawn_core_loop};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::context::ServiceContext;
use crate::housekeeping::{self, save_knowledge, write_audit_log};
use crate::http::{self, Http, Listening};
use crate::listener_tls::ListenerTls;
use crate::messages;
use crate::recovery::recover_live_state;
use crate::state::State;
use crate::wiring::{Wiring, public_url};
use crate::{Clock, Clocks, Config, Operations};

/// A future that is compiled here and not once more in every crate that awaits it (decision 0036).
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// Adds what is shown to browsers.
type Pages = Box<dyn FnOnce(&Arc<Operations>) -> Router + Send>;

/// A running service. Dropping it without [`Service::stop`] ends it in the midst of things, and loses nothing
/// either.
pub struct Service {
    operations: Arc<Operations>,
    addresses: Vec<SocketAddr>,
    http_address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    threads: Threads,
}

#[derive(Default)]
struct Threads {
    brain: Option<JoinHandle<Scheduler>>,
    commit_loop: Option<JoinHandle<()>>,
    query_loop: Option<JoinHandle<()>>,
    job_loop: Option<JoinHandle<()>>,
}

impl Service {
    /// Opens the state directory, takes up what was live, and listens. `pages` adds what is shown to
    /// browsers.
    pub fn start(
        config: Config,
        clocks: impl Into<Clocks>,
        pages: impl FnOnce(&Arc<Operations>) -> Router + Send + 'static,
    ) -> BoxFuture<Result<Service, Fault>> {
        // What is wrong with the configuration is told by the check that follows.
        let mover = jobs::mover(&config.jobs, &config.state_dir);
        Service::start_with(config, clocks, mover, pages)
    }

    /// As [`Service::start`]; copies of jobs are done by `mover`, and wait where there is none.
    pub fn start_with(
        config: Config,
        clocks: impl Into<Clocks>,
        mover: Option<Arc<dyn ForeignMover>>,
        pages: impl FnOnce(&Arc<Operations>) -> Router + Send + 'static,
    ) -> BoxFuture<Result<Service, Fault>> {
        Service::start_boxed(config, clocks.into(), mover, Box::new(pages))
    }

    fn start_boxed(
        config: Config,
        clocks: Clocks,
        mover: Option<Arc<dyn ForeignMover>>,
        pages: Pages,
    ) -> BoxFuture<Result<Service, Fault>> {
        Box::pin(Service::open(config, clocks, mover, pages))
    }

    async fn open(
        config: Config,
        clocks: Clocks,
        mover: Option<Arc<dyn ForeignMover>>,
        pages: Pages,
    ) -> Result<Service, Fault> {
        config.check()?;
        let clock = clocks.steady.clone();
        let now = clock();
        let opening = config.clone();
        let state = tokio::task::spawn_blocking(move || State::open(&opening, now))
            .await
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
        let sockets = Sockets::bind(&config).await?;
        let remote = mover.as_ref().and_then(|mover| mover.remote());
        let public_url = public_url(&config, &sockets.secure_addresses);
        let wiring = Wiring::open(&config, &clocks, state, public_url, remote.clone())?;
        let Wiring { shared, brain, commit_loop, query_loop, work, tokens_wanted } = wiring;
        let operations = Arc::new(Operations::new(shared.clone()));
        // Dropped before what the loops take their inputs from: they may end when the start fails.
        let (stop, stopped) = watch::channel(false);
        let starting = CoreStart {
            clock: &clock,
            turns: &shared.kernel.turns,
            stopped: &stopped,
            state_lock: &shared.state_lock,
        };
        let mut threads = Threads::start(&starting, brain, commit_loop, query_loop)?;
        let recovering = shared.clone();
        tokio::task::spawn_blocking(move || recover_live_state(&recovering))
            .await
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
        messages::prepare(&shared)?;
        // After the limits and shares of all: what jobs wait for is ordered by them.
        let runtime = tokio::runtime::Handle::current();
        let job_loop = JobLoop::new(shared.job_control.clone(), work, mover, runtime);
        let turn = starting.turn("job-loop", TURN_AGE_MAX);
        let of_jobs = clock.clone();
        let work = move |jobs: &mut JobLoop| drive(jobs, &of_jobs, &turn);
        threads.job_loop = Some(starting.spawn("job-loop", job_loop, work, JobLoop::stop)?);
        let mut service = Service {
            addresses: sockets.secure_addresses.clone(),
            http_address: sockets.plain_address,
            operations,
            stop,
            tasks: JoinSet::new(),
            threads,
        };
        let tape = jobs::tape::run(shared.job_control.clone(), remote, stopped.clone());
        service.spawn_optional_task("tape", Box::pin(tape));
        let tokens = jobs::run_tokens(shared.job_control.clone(), tokens_wanted, stopped.clone());
        service.spawn_optional_task("tokens", Box::pin(tokens));
        service.listen(sockets, pages, stopped)?;
        tracing::info!(deployment = shared.control.authority.deployment(), url = %shared.public_url,
            "service \
            started");
        Ok(service)
    }

    fn listen(
        &mut self,
        sockets: Sockets,
        pages: Pages,
        stopped: watch::Receiver<bool>,
    ) -> Result<(), Fault> {
        let shared = self.operations.shared.clone();
        let limits = shared.config.limits.clone();
        let plain_hosts = self.http_address.map(plain_hosts).unwrap_or_default();
        let http = Arc::new(Http::new(self.operations.clone(), plain_hosts, stopped.clone()));
        let router = http::router(&http, pages(&self.operations));
        let tls = ListenerTls::open(&shared)?;
        let acceptor = tls.acceptor();
        let deployment: Arc<str> = shared.control.authority.deployment().into();
        let secure = sockets.secure.into_iter().map(|listener| (listener, Some(acceptor.clone())));
        for (listener, tls) in secure.chain(sockets.plain.map(|listener| (listener, None))) {
            let listening = Listening {
                listener,
                tls,
                deployment: deployment.clone(),
                users: shared.identity.users().clone(),
                clock: shared.kernel.wall_clock(),
                steady_clock: shared.kernel.clock.clone(),
                router: router.clone(),
                limits: limits.clone(),
                stop: stopped.clone(),
            };
            self.spawn_task("listener", Box::pin(listening.run()), &stopped);
        }
        for (place, archive) in shared.config.perfsonar.iter().enumerate() {
            let pull = puller::run(shared.netops.clone(), place, archive.clone(), stopped.clone());
            self.spawn_optional_task("puller", Box::pin(pull));
        }
        if shared.config.circuits.level == Level::Service {
            let plan = plan::run(shared.netops.clone(), stopped.clone());
            self.spawn_task("circuit-plan", Box::pin(plan), &stopped);
        }
        let messages = messages::run(shared.clone(), stopped.clone());
        self.spawn_optional_task("messages", Box::pin(messages));
        let housekeeping = housekeeping::run(shared, tls, stopped.clone());
        self.spawn_task("housekeeping", Box::pin(housekeeping), &stopped);
        Ok(())
    }

    /// Starts a task that is needed until the service stops: it ends the process if it panics or ends before.
    fn spawn_task(&mut self, name: &'static str, task: BoxFuture<()>, stopped: &watch::Receiver<bool>) {
        let stopped = stopped.clone();
        let task = async move {
            task.await;
            if !may_end(&stopped) {
                end_process(name, "it ended before it was asked to");
            }
        };
        self.spawn_optional_task(name, Box::pin(task));
    }

    /// Starts a task that ends by itself where nothing is configured for it: a panic ends the process. It is
    /// aborted when the service is dropped.
    fn spawn_optional_task(&mut self, name: &'static str, task: BoxFuture<()>) {
        self.tasks.spawn(async move {
            let mut core = JoinSet::new();
            core.spawn(task);
            if let Some(Err(error)) = core.join_next().await
                && error.is_panic()
            {
                let panic = error.into_panic();
                end_process(name, &format!("it panicked: {}", panic_text(panic.as_ref())));
            }
        });
    }

    pub fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    /// Where agents and people connect with TLS: the ports as they were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Address of the plain listener for browsers on this machine.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// How agents reach this service, as join tokens say.
    pub fn public_url(&self) -> &str {
        &self.operations.shared.public_url
    }

    /// Answers what is being asked, finishes what is being written, and ends.
    pub fn stop(self) -> BoxFuture<()> {
        Box::pin(self.stop_all())
    }

    async fn stop_all(mut self) {
        let _ = self.stop.send(true);
        self.operations.shared.control.agents.wake_all();
        while self.tasks.join_next().await.is_some() {}
        let shared = self.operations.shared.clone();
        let mut threads = std::mem::take(&mut self.threads);
        let ended = tokio::task::spawn_blocking(move || threads.end(&shared)).await;
        if let Err(error) = ended {
            tracing::error!(%error, "stopping");
        }
        tracing::info!("service stopped");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        let shared = &self.operations.shared;
        // After `stop` nobody listens any more. Otherwise the threads end by themselves.
        shared.kernel.scheduler.try_notify(Input::Stop);
        shared.job_control.jobs.send(Work::Stop);
        let _ = shared.kernel.writer.send(CommitWork::Stop);
    }
}

/// What the start of a core thread needs.
struct CoreStart<'a> {
    clock: &'a Clock,
    turns: &'a LoopTurns,
    stopped: &'a watch::Receiver<bool>,
    state_lock: &'a Arc<LockFile>,
}

impl CoreStart<'_> {
    fn turn(&self, name: &'static str, age_max: Duration) -> LoopTurn {
        self.turns.add(name, age_max, (self.clock)())
    }

    /// Starts a thread that may end only when the service stops.
    fn spawn<S: Send + 'static, T: Send + 'static>(
        &self,
        name: &str,
        state: S,
        work: impl FnOnce(&mut S) + Send + 'static,
        end: impl FnOnce(S) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Fault> {
        let (stopped, state_lock) = (self.stopped.clone(), self.state_lock.clone());
        // No other service takes the state directory while a thread of this one still works on it.
        let end = move |state| {
            let ended = end(state);
            drop(state_lock);
            ended
        };
        let started = spawn_core_loop(name, move || may_end(&stopped), state, work, end);
        started.map_err(|error| thread_fault(name, error))
    }
}

/// The service stops, or its start has failed.
fn may_end(stopped: &watch::Receiver<bool>) -> bool {
    *stopped.borrow() || stopped.has_changed().is_err()
}

impl Threads {
    /// Starts those that must run while the live state is recovered: their queues are bounded.
    fn start(
        starting: &CoreStart<'_>,
        brain: Brain,
        commit_loop: CommitLoop,
        query_loop: QueryLoop,
    ) -> Result<Threads, Fault> {
        let clock = starting.clock;
        let (of_brain, of_commits, of_queries) = (clock.clone(), clock.clone(), clock.clone());
        let brain_turn = starting.turn("brain", BRAIN_TURN_AGE_MAX);
        let commit_turn = starting.turn("commit-loop", TURN_AGE_MAX);
        let query_turn = starting.turn("query-loop", TURN_AGE_MAX);
        let think = move |brain: &mut Brain| drive(brain, &of_brain, &brain_turn);
        let commit = move |commits: &mut CommitLoop| drive(commits, &of_commits, &commit_turn);
        let query = move |queries: &mut QueryLoop| drive(queries, &of_queries, &query_turn);
        Ok(Threads {
            brain: Some(starting.spawn("brain", brain, think, Brain::end)?),
            commit_loop: Some(starting.spawn("commit-loop", commit_loop, commit, drop)?),
            query_loop: Some(starting.spawn("query-loop", query_loop, query, drop)?),
            job_loop: None,
        })
    }

    /// Ends the scheduler loop first, since it gives the commit loop work; then the commit loop, which
    /// finishes what it has.
    fn end(&mut self, shared: &ServiceContext) {
        shared.kernel.notify_scheduler(Input::Stop);
        let scheduler = self.brain.take().and_then(|brain| brain.join().ok());
        let _ = shared.kernel.writer.send(CommitWork::Stop);
        drop(self.commit_loop.take().map(JoinHandle::join));
        drop(self.query_loop.take().map(JoinHandle::join));
        shared.job_control.jobs.send(Work::Stop);
        drop(self.job_loop.take().map(JoinHandle::join));
        write_audit_log(shared);
        if let Some(scheduler) = scheduler {
            save_knowledge(shared, &scheduler);
        }
    }
}

/// Sockets are taken before anything else is told, so that the ports are known.
struct Sockets {
    secure: Vec<TcpListener>,
    secure_addresses: Vec<SocketAddr>,
    plain: Option<TcpListener>,
    plain_address: Option<SocketAddr>,
}

impl Sockets {
    async fn bind(config: &Config) -> Result<Sockets, Fault> {
        let mut secure = Vec::new();
        for &address in &config.listen {
            secure.push(bind(address).await?);
        }
        let plain = match config.http {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let address = |listener: &TcpListener| listener.local_addr().ok();
        Ok(Sockets {
            secure_addresses: secure.iter().filter_map(address).collect(),
            plain_address: plain.as_ref().and_then(address),
            secure,
            plain,
        })
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Fault> {
    TcpListener::bind(address).await.map_err(|error| {
        let code = FaultCode::from_listen_error(error.kind());
        Fault::new(code, format!("cannot listen on {address}: {error}")).with_source(error)
    })
}

fn plain_hosts(address: SocketAddr) -> Vec<String> {
    vec![address.to_string(), format!("localhost:{}", address.port())]
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::{SystemTime, UNIX_EPOCH};

    use longhaul_model::Timestamp;
    use longhaul_testkit::{until, until_met};
    use longhaul_threads::CORE_ENDED_EXIT_CODE;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const VARIABLE: &str = "LONGHAUL_TEST_ENDING";

    fn wall_time() -> Timestamp {
        Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64)
    }

    fn config(directory: &Path) -> Config {
        Config {
            state_dir: directory.join("state"),
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
            ..Config::default()
        }
    }

    async fn start(directory: &Path) -> Service {
        let config = config(directory);
        crate::init(&config, wall_time()).unwrap();
        Service::start(config, Arc::new(wall_time) as Clock, |_| Router::new()).await.unwrap()
    }

    /// In the process that is to end: the loop panics as it would at a defect.
    async fn end(part: &str) {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
        let directory = tempfile::tempdir().unwrap();
        let mut service = start(directory.path()).await;
        let (_stop, stopped) = watch::channel(false);
        match part {
            "brain" => {
                let kernel = &service.operations.shared.kernel;
                kernel.notify_scheduler(Input::Ask(Box::new(|_, _| panic!("attempt to add with overflow"))));
            }
            "messages" => service
                .spawn_optional_task("messages", Box::pin(async { panic!("attempt to add with overflow") })),
            _ => service.spawn_task("listener", Box::pin(async {}), &stopped),
        }
        std::future::pending().await
    }

    /// A sum that overflowed ended the committing thread: the service answered, said that it was well, and
    /// wrote nothing until somebody restarted it.
    #[tokio::test]
    async fn a_loop_or_task_that_panics_ends_the_process_with_its_reason_in_the_last_line() {
        if let Ok(part) = std::env::var(VARIABLE) {
            return end(&part).await;
        }
        let name =
            "service::tests::a_loop_or_task_that_panics_ends_the_process_with_its_reason_in_the_last_line";
        let panicked = "it panicked: attempt to add with overflow";
        let ended = "it ended before it was asked to";
        for (part, why) in [("brain", panicked), ("messages", panicked), ("listener", ended)] {
            let me = std::env::current_exe().unwrap();
            let output =
                Command::new(me).args(["--exact", name, "--nocapture"]).env(VARIABLE, part).output().unwrap();
            let log = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(CORE_ENDED_EXIT_CODE), "{log}");
            let last = log.lines().last().unwrap_or_default();
            assert!(last.contains(part) && last.contains(why), "{last}");
        }
    }

    /// It may still write when the service itself is gone.
    #[test]
    fn a_core_thread_holds_the_lock_of_the_state_directory_until_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::create(directory.path().join("lock")).unwrap();
        let is_free = || open().try_lock().is_ok();
        let state_lock = Arc::new(LockFile::acquire(open()).unwrap().unwrap());
        let (clock, turns): (Clock, LoopTurns) = (Arc::new(|| Timestamp::ZERO), LoopTurns::default());
        let (stop, stopped) = watch::channel(false);
        let ((finish, may_finish), (leave, may_leave)) = (mpsc::channel::<()>(), mpsc::channel::<()>());
        let starting = CoreStart { clock: &clock, turns: &turns, stopped: &stopped, state_lock: &state_lock };
        let work = move |_: &mut ()| {
            let _ = may_finish.recv();
        };
        let end = move |()| {
            let _ = may_leave.recv();
        };
        let thread = starting.spawn("loop", (), work, end).unwrap();
        // As if the service were dropped.
        drop(state_lock);
        stop.send(true).unwrap();
        assert!(!is_free(), "it works");
        finish.send(()).unwrap();
        assert!(!is_free(), "its state is put away");
        leave.send(()).unwrap();
        thread.join().unwrap();
        assert!(is_free());
    }

    #[tokio::test]
    async fn a_dropped_service_lets_go_of_its_state_directory_with_the_last_thread() {
        let directory = tempfile::tempdir().unwrap();
        let service = start(directory.path()).await;
        let state_lock = Arc::downgrade(&service.operations.shared.state_lock);
        assert!(state_lock.strong_count() > 4, "the service and four threads hold it");
        drop(service);
        let path = directory.path().join("state/lock");
        until_met("the end of the threads", || File::open(&path).unwrap().try_lock().is_ok()).await;
        assert_eq!(state_lock.strong_count(), 0);
    }

    #[tokio::test]
    async fn readiness_names_each_loop_with_the_age_of_its_turn_and_fails_for_one_that_stands_still() {
        let directory = tempfile::tempdir().unwrap();
        let service = start(directory.path()).await;
        let (operations, kernel) = (service.operations.clone(), &service.operations.shared.kernel);
        let loops: Vec<String> = kernel.turns.ages(kernel.now()).iter().map(|age| age.name.into()).collect();
        for expected in ["brain", "commit-loop", "query-loop", "job-loop"] {
            assert!(loops.iter().any(|name| name == expected), "{expected} in {loops:?}");
        }
        let ready = operations.readyz();
        assert!(ready.ok, "{ready:?}");
        for part in ["scheduler", "catalog", "agents"] {
            let row = ready.reasons.iter().find(|reason| reason.part == part).unwrap();
            assert_eq!(row.last_turn_age_ms, None, "as in release 0.1.0");
        }
        kernel.turns.add("stuck-loop", Duration::from_secs(60), kernel.now() - Duration::from_secs(61));
        let ready = operations.readyz();
        let stuck = ready.reasons.iter().find(|reason| reason.part == "stuck-loop").unwrap();
        assert!(!ready.ok && !stuck.ok && stuck.last_turn_age_ms >= Some(61_000), "{ready:?}");
        assert!(operations.healthz().ok, "the process works");
        // What has nothing to do ends by itself; nothing else has ended.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        service.stop().await;
    }

    /// Whoever may look may have the state checked, which goes through the whole catalog: one at a time.
    #[tokio::test(flavor = "multi_thread")]
    async fn checks_of_the_state_take_no_place_of_other_operations() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        // Whoever finds no place is told so at once.
        (config.limits.operations, config.limits.wait_ms) = (1, 1);
        let token = crate::init(&config, wall_time()).unwrap().admin_token;
        let service = Service::start(config, Arc::new(wall_time) as Clock, |_| Router::new()).await.unwrap();
        let address = service.http_address().unwrap();
        let status = async |path: &str| {
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAuthorization: Bearer \
                    {token}\r\n\r\n"
            );
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await.unwrap();
            reply.lines().next().unwrap_or_default().to_owned()
        };
        let answered = async |path: &str| {
            let line = status(path).await;
            if line.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(line) }
        };
        let (finish, may_finish) = mpsc::channel::<()>();
        let (begin, begun) = tokio::sync::oneshot::channel();
        let operations = service.operations.clone();
        let under_way = tokio::spawn(async move {
            let check = move |_: &Operations| {
                let _ = begin.send(());
                let _ = may_finish.recv();
                Ok(())
            };
            operations.run_scan(check).await
        });
        begun.await.unwrap();
        assert!(status("/api/v1/check").await.starts_with("HTTP/1.1 503"), "another one is under way");
        until("an answer beside a check", async || answered("/api/v1/whoami").await).await;
        drop(finish);
        under_way.await.unwrap().unwrap();
        until("the next check", async || answered("/api/v1/check").await).await;
        service.stop().await;
    }

    #[tokio::test]
    async fn an_agents_clock_and_certificate_and_a_broken_state_are_problems() {
        let directory = tempfile::tempdir().unwrap();
        let service = start(directory.path()).await;
        let (operations, shared) = (service.operations.clone(), service.operations.shared.clone());
        let titles = || -> Vec<String> {
            let page = operations.problem_list(&crate::PageQuery::default()).unwrap();
            page.items.into_iter().map(|problem| problem.fault.detail).collect()
        };
        assert!(titles().is_empty(), "{:?}", titles());
        let (catalog, agents, now) = (&shared.kernel.catalog, &shared.control.agents, shared.kernel.now());
        let (site, _) = catalog.add_site(&"beta".parse().unwrap(), now).unwrap();
        let agent = longhaul_model::AgentId(7);
        let expired = now - Duration::from_secs(60);
        catalog.add_agent(agent, site.id, "worker1", expired, now).unwrap();
        shared.kernel.refresh_directory().unwrap();
        let row = catalog.agent(agent).unwrap().unwrap();
        agents.add(row.clone());
        agents.hello(row, Vec::new(), now);
        agents.open_session(agent);
        let _poll = agents.open_poll(agent);
        agents.learn_clock(agent, 2 * 3_600_000);
        let told = titles();
        for part in ["is 7200 s ahead of the service's", "expired at"] {
            assert!(told.iter().any(|detail| detail.contains(part)), "{part} in {told:?}");
        }
        assert!(operations.check().unwrap().sound);
        assert!(operations.metrics().contains("longhaul_state_check_findings 0"), "{}", operations.metrics());
        service.stop().await;
    }
}
