//! Housekeeping: what is done once a second, and what is done every so many seconds.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::native::ChangeKind;
use longhaul_control::brain::Input;
use longhaul_control::commit_loop::CommitWork;
use longhaul_control::recorded::Recorded;
use longhaul_control::turns::HOUSEKEEPING_TURN_AGE_MAX;
use longhaul_control::{deadlines, lost_files};
use longhaul_model::Timestamp;
use longhaul_netops::measured::changes;
use longhaul_scheduler::Scheduler;
use longhaul_threads::{end_process, panic_text, spawn_worker};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::context::ServiceContext;
use crate::listener_tls::ListenerTls;
use crate::state_check::{CheckSchedule, start_check};

/// What the network room believes, kept across restarts.
pub(crate) const KNOWLEDGE: &str = "network-knowledge";
/// Time between two ticks.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two prunings of history, and between two savings of what is believed.
const PRUNE_TICKS: u64 = 600;
const SAVE_TICKS: u64 = 60;
/// Between two looks at the authorities of users and at their communities.
const USERS_TICKS: u64 = 60;
/// What was decided is on disk after so many seconds.
const DECISIONS_TICKS: u64 = 2;
/// Delegated credentials that expired longer ago are forgotten; until then their users are told what
/// happened.
const DELEGATION_KEPT: Duration = Duration::from_secs(7 * 86_400);
/// Between two looks at what passed through relays.
const CLEAR_TICKS: u64 = 2;
/// Between two divisions of the rates of sites among their agents: each begins and ends work by itself.
const DIVIDE_TICKS: u64 = 2;
/// Between two looks for silent agents of shared storages.
const FENCE_TICKS: u64 = 5;

/// Where the beliefs about the network are written to the catalog.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavesOn {
    /// A thread of their own: the scheduler loop never waits for the disk.
    OwnThread,
    /// The thread that steps the scheduler loop, for a service without threads.
    #[cfg(feature = "testing")]
    SteppingThread,
}

/// The periodic work of a service, counted in ticks of a second. It blocks on the catalog.
pub(crate) struct Housekeeping {
    shared: Arc<ServiceContext>,
    ticks: u64,
    saves_on: SavesOn,
    checks: CheckSchedule,
}

impl Housekeeping {
    pub(crate) fn new(shared: Arc<ServiceContext>, saves_on: SavesOn) -> Housekeeping {
        let every = u64::from(shared.config.check_every_s);
        let every = (every > 0).then_some(Duration::from_secs(every));
        let last = shared.last_check.outcome().map(|outcome| outcome.at);
        let checks = CheckSchedule::new(every, last, shared.kernel.now());
        Housekeeping { shared, ticks: 0, saves_on, checks }
    }

    /// Does what is due at this tick; returns when the next one is.
    pub(crate) fn step(&mut self, now: Timestamp) -> Timestamp {
        self.ticks += 1;
        self.shared.kernel.changes.tick(now);
        self.note_connections(now);
        if self.is_due(DIVIDE_TICKS) {
            self.shared.control.divide_site_rates(None, now);
        }
        // Through the commit loop, as what agents say of such files comes through it.
        let _ = self.shared.kernel.writer.send(CommitWork::StageFiles);
        if self.is_due(FENCE_TICKS) {
            // Through the commit loop: no lease and no report is under way meanwhile.
            let _ = self.shared.kernel.writer.send(CommitWork::FenceSilentAgents);
        }
        if self.is_due(deadlines::WATCH_INTERVAL.as_secs()) {
            if let Err(error) = deadlines::watch(&self.shared.control) {
                tracing::warn!(%error, "deadlines could not be looked at");
            }
            changes::watch(&self.shared.netops);
        }
        if self.is_due(lost_files::SEARCH_INTERVAL.as_secs())
            && let Err(error) = lost_files::search(&self.shared.control)
        {
            tracing::warn!(%error, "files without a good copy could not be searched for");
        }
        if self.is_due(CLEAR_TICKS) {
            // Through the commit loop: what leaves the catalog and what comes into it stay in order.
            let _ = self.shared.kernel.writer.send(CommitWork::ClearRelays);
        }
        if self.is_due(SAVE_TICKS) {
            self.save_beliefs();
        }
        if self.is_due(DECISIONS_TICKS) {
            write_audit_log(&self.shared);
        }
        if self.is_due(USERS_TICKS) {
            self.shared.identity.users().reload(self.shared.kernel.wall_time());
        }
        if self.is_due(PRUNE_TICKS) {
            self.prune(now);
        }
        // A check waits for the commit loop: it cannot run where that is stepped.
        if self.saves_on == SavesOn::OwnThread && self.checks.is_due(now) {
            start_check(self.shared.clone());
        }
        now.plus(TICK)
    }

    fn is_due(&self, ticks: u64) -> bool {
        self.ticks.is_multiple_of(ticks)
    }

    fn note_connections(&self, now: Timestamp) {
        let agents = &self.shared.control.agents;
        for (agent, site, storages, connected) in agents.transitions(now) {
            tracing::info!(%agent, %site, connected, "agent");
            let events = agents.connection_events(agent, storages, now);
            self.shared.kernel.notify_scheduler(Input::Events(events));
            self.shared.kernel.changes.touch(ChangeKind::Site, site, now);
        }
    }

    fn save_beliefs(&self) {
        let (catalog, saves_on) = (self.shared.kernel.catalog.clone(), self.saves_on);
        let save = Input::Ask(Box::new(move |scheduler: &mut Recorded, _: Timestamp| {
            let text = serde_json::to_string(scheduler.knowledge()).unwrap_or_default();
            let write = move || catalog.set_setting(KNOWLEDGE, &text);
            match saves_on {
                SavesOn::OwnThread => drop(spawn_worker("knowledge-saver", write)),
                #[cfg(feature = "testing")]
                SavesOn::SteppingThread => drop(write()),
            }
        }));
        self.shared.kernel.notify_scheduler(save);
    }

    fn prune(&self, now: Timestamp) {
        let (catalog, config) = (&self.shared.kernel.catalog, &self.shared.config);
        self.shared.identity.forget_ended_sessions();
        if let Err(error) = catalog.forget_delegations(now - DELEGATION_KEPT) {
            tracing::warn!(%error, "delegated credentials that expired could not be removed");
        }
        let older_than = now - Duration::from_secs(u64::from(config.history_days) * 86_400);
        while let Ok(1..) = catalog.prune_history(older_than, config.history_rows) {}
    }
}

/// Drives [`Housekeeping`] until the service stops; also renews the listeners' certificate and the keys of
/// users' authorities.
pub(crate) async fn run(shared: Arc<ServiceContext>, tls: ListenerTls, mut stop: watch::Receiver<bool>) {
    let housekeeping = Arc::new(Mutex::new(Housekeeping::new(shared.clone(), SavesOn::OwnThread)));
    let mut ticks: u64 = 0;
    let turn = shared.kernel.turns.add("housekeeping", HOUSEKEEPING_TURN_AGE_MAX, shared.kernel.now());
    let tls = Arc::new(Mutex::new(tls));
    loop {
        tokio::select! {
            _ = tokio::time::sleep(TICK) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        ticks += 1;
        if ticks.is_multiple_of(USERS_TICKS) {
            let shared = shared.clone();
            tokio::spawn(async move { shared.identity.refresh_issuers().await });
        }
        let (shared, housekeeping, tls) = (shared.clone(), housekeeping.clone(), tls.clone());
        let step = move || {
            tls.lock().renew(&shared, shared.kernel.now());
            housekeeping.lock().step(shared.kernel.now());
            shared.kernel.now()
        };
        match tokio::task::spawn_blocking(step).await {
            Ok(ended) => turn.mark(ended),
            Err(error) if error.is_panic() => {
                let panic = error.into_panic();
                end_process("housekeeping", &format!("it panicked: {}", panic_text(panic.as_ref())));
            }
            // The runtime ends.
            Err(_) => return,
        }
    }
}

pub(crate) fn write_audit_log(shared: &ServiceContext) {
    if let Err(error) = shared.identity.write_audit_log() {
        tracing::warn!(%error, "decisions wait to be written");
    }
}

/// Keeps what is believed of the network for the next start.
pub(crate) fn save_knowledge(shared: &ServiceContext, scheduler: &Scheduler) {
    let text = serde_json::to_string(scheduler.knowledge()).unwrap_or_default();
    if let Err(error) = shared.kernel.catalog.set_setting(KNOWLEDGE, &text) {
        tracing::warn!(%error, "what is believed of the network could not be kept");
    }
}
