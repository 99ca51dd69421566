//! Wiring of the control plane: opens its rooms and loops, and starts no thread.
//!
//! [`Service`](crate::Service) drives the loops in threads of their own; a test steps them (`simulated`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::Duration;

use longhaul_control::agents::Agents;
use longhaul_control::brain::{Brain, INPUTS_MAX, Input};
use longhaul_control::commit_loop::{CommitLoop, CommitWork};
use longhaul_control::event_loop::InputQueue;
use longhaul_control::metrics::Metrics;
use longhaul_control::query_loop::{ExpandQuery, QueryLoop};
use longhaul_control::recorded::Recorded;
use longhaul_control::staging::Staging;
use longhaul_control::{Control, Kernel, SchedulerHandle, WriterHandle};
use longhaul_identity::{Identity, IdentitySettings};
use longhaul_jobs::by_circuit::CircuitBacklog;
use longhaul_jobs::{
    ConfigStore, ExchangeRequest, JobControl, JobSettings, Jobs, QueuedFiles, QueuedFilesSource, Tokens, Work,
};
use longhaul_model::{Fault, IdMaker};
use longhaul_netops::{NetOps, NetOpsSettings};
use longhaul_scheduler::Settings;
use longhaul_storage_remote::Remote;

use crate::context::ServiceContext;
use crate::housekeeping::KNOWLEDGE;
use crate::messages::Messages;
use crate::state::State;
use crate::state_check::LastCheck;
use crate::state_place;
use crate::{Clocks, Config};

/// The rooms of a service and its loops, not yet driven by anybody.
pub(crate) struct Wiring {
    pub shared: Arc<ServiceContext>,
    pub brain: Brain,
    pub commit_loop: CommitLoop,
    pub query_loop: QueryLoop,
    /// Input of the job loop, which is opened after the live state has been recovered.
    pub work: Receiver<Work>,
    /// Tokens of users that are to be renewed.
    pub tokens_wanted: tokio::sync::mpsc::Receiver<ExchangeRequest>,
}

impl Wiring {
    pub(crate) fn open(
        config: &Config,
        clocks: &Clocks,
        state: State,
        public_url: String,
        remote: Option<Arc<Remote>>,
    ) -> Result<Wiring, Fault> {
        let (jobs, work) = Jobs::new();
        let (tokens, tokens_wanted) = Tokens::open(&config.fts)?;
        let (inputs, brain_inputs) = sync_channel(INPUTS_MAX);
        let (writer, commit_work) = channel();
        let handles = (SchedulerHandle::new(inputs), WriterHandle::new(writer));
        let shared = Arc::new(share(config, clocks, state, public_url, handles, (jobs, tokens, remote))?);
        let (brain, commit_loop, query_loop) = open_loops(&shared, brain_inputs, commit_work)?;
        Ok(Wiring { shared, brain, commit_loop, query_loop, work, tokens_wanted })
    }
}

fn share(
    config: &Config,
    clocks: &Clocks,
    state: State,
    public_url: String,
    (scheduler, writer): (SchedulerHandle, WriterHandle),
    (jobs, tokens, remote): (Jobs, Tokens, Option<Arc<Remote>>),
) -> Result<ServiceContext, Fault> {
    let last_id = state.catalog.last_id()?;
    let last_check = LastCheck::load(&state.catalog)?;
    let place_change = state_place::note_start(&state.catalog, &config.state_dir, (clocks.wall)())?;
    let agents = Agents::default();
    state.catalog.agents()?.into_iter().for_each(|row| agents.add(row));
    state.catalog.refused_agents()?.into_iter().for_each(|refusal| agents.refuse(refusal));
    let (vault, metrics) = (Arc::new(state.vault), Arc::new(Metrics::default()));
    let config_store = Arc::new(ConfigStore::new(state.catalog.clone()));
    let identity = Arc::new(Identity::open(
        IdentitySettings {
            deployment: config.deployment.clone(),
            fts: config.fts.clone(),
            login: config.login.clone(),
            names: config.names.clone(),
            public_url: public_url.clone(),
            wait: config.limits.wait(),
        },
        clocks.clone(),
        state.catalog.clone(),
        vault.clone(),
        config_store.clone(),
        metrics.clone(),
    )?);
    let kernel = Arc::new(Kernel::new(
        clocks.clone(),
        IdMaker::after(last_id),
        state.catalog,
        vault,
        metrics,
        scheduler,
        writer,
    ));
    let control = Arc::new(Control::new(
        kernel.clone(),
        state.authority,
        agents,
        config.marking.table()?,
        Staging::new(config.staging.clone()),
        jobs.stream_ledger.clone(),
        config.report_every_ms,
        Duration::from_secs(config.fence_after_s.into()),
        config.verified_within_us(),
    ));
    let hosts = config.circuits.hosts.clone();
    let backlog = Arc::new(CircuitBacklog::new(kernel.clone(), control.clone(), hosts));
    let settings =
        NetOpsSettings { circuits: config.circuits.clone(), probe_interval_s: config.probe_every_s };
    let (kernel_of_net, control_of_net) = (kernel.clone(), control.clone());
    let netops = NetOps::open(kernel_of_net, control_of_net, settings, &config.perfsonar, backlog.clone())?;
    let netops = Arc::new(netops);
    let messages = Arc::new(Messages::default());
    let host: Option<::http::Uri> = public_url.parse().ok();
    let host = host.and_then(|url| url.host().map(str::to_owned)).unwrap_or_default();
    let job_control = JobControl {
        kernel: kernel.clone(),
        control: control.clone(),
        identity: identity.clone(),
        netops: netops.clone(),
        settings: JobSettings { jobs: config.jobs.clone(), fts: config.fts.clone(), host },
        config_store,
        jobs,
        tokens,
        queued: QueuedFiles::default(),
        backlog,
        listener: messages.clone(),
    };
    Ok(ServiceContext {
        kernel,
        control,
        job_control: Arc::new(job_control),
        remote,
        identity,
        public_url,
        config: config.clone(),
        started: (clocks.steady)(),
        netops,
        messages,
        last_check,
        place_change,
        state_lock: Arc::new(state.lock),
    })
}

/// How agents reach a service that listens on `addresses`.
pub(crate) fn public_url(config: &Config, addresses: &[SocketAddr]) -> String {
    if !config.public_url.is_empty() {
        return config.public_url.trim_end_matches('/').to_owned();
    }
    match addresses.first() {
        Some(address) if address.ip().is_unspecified() => format!("https://localhost:{}", address.port()),
        Some(address) => format!("https://{address}"),
        None => String::new(),
    }
}

fn open_loops(
    shared: &Arc<ServiceContext>,
    inputs: Receiver<Input>,
    work: Receiver<CommitWork>,
) -> Result<(Brain, CommitLoop, QueryLoop), Fault> {
    let kept = shared.kernel.catalog.setting(KNOWLEDGE)?;
    let settings = Settings {
        lease_length: shared.config.lease(),
        strategy: shared.config.strategy()?,
        lease_recall: shared.config.ask_back,
        ..Settings::default()
    };
    let last_id = shared.kernel.catalog.last_id()?;
    let mut scheduler = Recorded::new(settings, kept.as_deref(), last_id);
    if let Some(directory) = &shared.config.record_dir {
        let bounds = (directory.as_path(), shared.config.record_bytes);
        scheduler.record(kept, last_id, bounds, shared.control.recording.clone(), shared.kernel.now())?;
    }
    let kernel = &shared.kernel;
    let (queries, questions) = channel::<ExpandQuery>();
    let executor = shared.job_control.jobs.executor();
    let brain = Brain::new(InputQueue::new(inputs), scheduler, kernel.writer.clone(), queries, executor);
    let commit_loop = CommitLoop::new(InputQueue::new(work), shared.control.clone());
    let source = Box::new(QueuedFilesSource { catalog: kernel.catalog.clone() });
    let query_loop = QueryLoop::new(InputQueue::new(questions), shared.control.clone(), source);
    Ok((brain, commit_loop, query_loop))
}
