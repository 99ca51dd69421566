//! Starting and stopping.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::Router;
use longhaul_control::brain::{Brain, Input};
use longhaul_control::commit_loop::{CommitLoop, CommitWork};
use longhaul_control::query_loop::QueryLoop;
use longhaul_control::spawn;
use longhaul_jobs::{self as jobs, ForeignMover, JobLoop, Work};
use longhaul_model::{Fault, FaultCode};
use longhaul_netops::measured::puller;
use longhaul_netops::{Level, plan};
use longhaul_scheduler::Scheduler;
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::context::ServiceContext;
use crate::housekeeping::{self, save_knowledge, write_audit_log};
use crate::http::{self, Http, Listening};
use crate::listener_tls::acceptor;
use crate::messages;
use crate::recovery::recover_live_state;
use crate::state::State;
use crate::wiring::{Wiring, public_url};
use crate::{Clock, Config, Operations};

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
    pub async fn start(
        config: Config,
        clock: Clock,
        pages: impl FnOnce(&Arc<Operations>) -> Router,
    ) -> Result<Service, Fault> {
        // What is wrong with the configuration is told by the check that follows.
        let mover = jobs::mover(&config.jobs, &config.state_dir);
        Service::start_with(config, clock, mover, pages).await
    }

    /// As [`Service::start`]; copies of jobs are done by `mover`, and wait where there is none.
    pub async fn start_with(
        config: Config,
        clock: Clock,
        mover: Option<Arc<dyn ForeignMover>>,
        pages: impl FnOnce(&Arc<Operations>) -> Router,
    ) -> Result<Service, Fault> {
        config.check()?;
        let now = clock();
        let opening = config.clone();
        let state = tokio::task::spawn_blocking(move || State::open(&opening, now))
            .await
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
        let sockets = Sockets::bind(&config).await?;
        let remote = mover.as_ref().and_then(|mover| mover.remote());
        let public_url = public_url(&config, &sockets.secure_addresses);
        let wiring = Wiring::open(&config, &clock, state, public_url, remote.clone())?;
        let Wiring { shared, brain, commit_loop, query_loop, work, tokens_wanted } = wiring;
        let operations = Arc::new(Operations::new(shared.clone()));
        let mut threads = Threads::start(&clock, brain, commit_loop, query_loop)?;
        let recovering = shared.clone();
        tokio::task::spawn_blocking(move || recover_live_state(&recovering))
            .await
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))??;
        messages::prepare(&shared)?;
        // After the limits and shares of all: what jobs wait for is ordered by them.
        let runtime = tokio::runtime::Handle::current();
        let job_loop = JobLoop::new(shared.job_control.clone(), work, mover, runtime);
        threads.job_loop = Some(spawn("job-loop", move || job_loop.run())?);
        let (stop, stopped) = watch::channel(false);
        let mut service = Service {
            addresses: sockets.secure_addresses.clone(),
            http_address: sockets.plain_address,
            operations,
            stop,
            tasks: JoinSet::new(),
            threads,
        };
        service.tasks.spawn(jobs::tape::run(shared.job_control.clone(), remote, stopped.clone()));
        service.tasks.spawn(jobs::run_tokens(shared.job_control.clone(), tokens_wanted, stopped.clone()));
        service.listen(sockets, pages, stopped)?;
        tracing::info!(deployment = shared.control.authority.deployment(), url = %shared.public_url,
            "service \
            started");
        Ok(service)
    }

    fn listen(
        &mut self,
        sockets: Sockets,
        pages: impl FnOnce(&Arc<Operations>) -> Router,
        stopped: watch::Receiver<bool>,
    ) -> Result<(), Fault> {
        let shared = &self.operations.shared;
        let limits = shared.config.limits.clone();
        let plain_hosts = self.http_address.map(plain_hosts).unwrap_or_default();
        let http = Arc::new(Http::new(self.operations.clone(), plain_hosts, stopped.clone()));
        let router = http::router(&http, pages(&self.operations));
        let tls = Arc::new(RwLock::new(acceptor(shared)?));
        let connections = Arc::new(Semaphore::new(limits.connections as usize));
        let deployment: Arc<str> = shared.control.authority.deployment().into();
        let secure = sockets.secure.into_iter().map(|listener| (listener, Some(tls.clone())));
        for (listener, tls) in secure.chain(sockets.plain.map(|listener| (listener, None))) {
            let listening = Listening {
                listener,
                tls,
                deployment: deployment.clone(),
                users: shared.identity.users().clone(),
                clock: shared.kernel.clock.clone(),
                router: router.clone(),
                limits: limits.clone(),
                connections: connections.clone(),
                stop: stopped.clone(),
            };
            self.tasks.spawn(listening.run());
        }
        for (place, archive) in shared.config.perfsonar.iter().enumerate() {
            self.tasks.spawn(puller::run(shared.netops.clone(), place, archive.clone(), stopped.clone()));
        }
        if shared.config.circuits.level == Level::Service {
            self.tasks.spawn(plan::run(shared.netops.clone(), stopped.clone()));
        }
        self.tasks.spawn(messages::run(shared.clone(), stopped.clone()));
        self.tasks.spawn(housekeeping::run(shared.clone(), tls, stopped));
        Ok(())
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
    pub async fn stop(mut self) {
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
        let shared = &self.operations.shared;
        // After `stop` nobody listens any more. Otherwise the threads end by themselves.
        shared.kernel.scheduler.try_notify(Input::Stop);
        shared.job_control.jobs.send(Work::Stop);
        let _ = shared.kernel.writer.send(CommitWork::Stop);
    }
}

impl Threads {
    /// Starts those that must run while the live state is recovered: their queues are bounded.
    fn start(
        clock: &Clock,
        brain: Brain,
        commit_loop: CommitLoop,
        query_loop: QueryLoop,
    ) -> Result<Threads, Fault> {
        let of_brain = clock.clone();
        let (of_commits, of_queries) = (clock.clone(), clock.clone());
        Ok(Threads {
            brain: Some(spawn("brain", move || brain.run(&of_brain))?),
            commit_loop: Some(spawn("commit-loop", move || commit_loop.run(&of_commits))?),
            query_loop: Some(spawn("query-loop", move || query_loop.run(&of_queries))?),
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
        Fault::new(
            FaultCode::BadRequest,
            format!("cannot listen on {address}: {error}; choose another address"),
        )
        .with_source(error)
    })
}

fn plain_hosts(address: SocketAddr) -> Vec<String> {
    vec![address.to_string(), format!("localhost:{}", address.port())]
}
