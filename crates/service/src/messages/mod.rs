//! Messages to brokers: what happens to files of jobs, told as FTS tells it.
//!
//! A change is noted in the catalog in the transaction that makes it; the *spooler* brings what is noted to
//! the spool on disk, and only then strikes it off; a *publisher* for each way (STOMP, NATS) sends what is
//! spooled, in its order, and goes on when the broker has confirmed it. So a message may come twice after a
//! kill, and never not at all. What pairs of storages did is told beside that, once a minute, and only as
//! long as the service runs.
//!
//! Not here: what a message says (`api::fts`), how brokers are spoken to (`gateways::brokers`).
//! Start with [`Messages`].

mod compose;
mod config;
mod publisher;
mod queues;
mod record;
mod spool;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_api::fts::Sayer;
use longhaul_control::metrics::Gauges;
use longhaul_model::{Fault, FaultCode, Timestamp, units};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use longhaul_jobs::ChangeListener;

use crate::Config;
use crate::context::ServiceContext;

pub use config::{MessagesConfig, NatsConfig, StompConfig};
use spool::Spool;

/// What happens within this time is spooled with one flush; so is the answer to a submission on its way
/// before its messages are.
const BATCH_WINDOW: Duration = Duration::from_millis(100);
/// Pause after a failed write to the spool.
const WRITE_BACKOFF: Duration = Duration::from_secs(1);
const DIRECTORY: &str = "messages";

/// Where the job loop says that there is something to tell, and what pages and metrics show.
#[derive(Default)]
pub struct Messages {
    news: Notify,
    spool: Mutex<Option<Arc<Spool>>>,
    ways: Mutex<Vec<Arc<WayState>>>,
    /// Why nothing can be spooled, if so.
    trouble: Mutex<Option<(Timestamp, Fault)>>,
}

/// How one way stands.
pub struct WayState {
    pub name: &'static str,
    pub published: AtomicU64,
    pub open: Mutex<Open>,
}

#[derive(Clone, Default)]
pub struct Open {
    /// The broker that takes messages now.
    pub broker: Option<String>,
    /// Why there is none, and since when.
    pub fault: Option<(Timestamp, Fault)>,
    /// When the oldest happened that it has not had.
    pub oldest: Option<Timestamp>,
}

impl ChangeListener for Messages {
    fn jobs_changed(&self) {
        self.news.notify_one();
    }
}

impl Messages {
    /// Problems of the brokers and the spool that administrators should see.
    pub fn problems(&self) -> Vec<(Timestamp, Fault)> {
        let mut problems: Vec<(Timestamp, Fault)> = self.trouble.lock().clone().into_iter().collect();
        for way in self.ways.lock().iter() {
            problems.extend(way.open.lock().fault.clone().map(|(since, mut fault)| {
                fault.detail = format!("messages by {} wait on disk: {}", way.name, fault.detail);
                (since, fault)
            }));
        }
        if let Some(spool) = &*self.spool.lock()
            && let (at, dropped) = (spool.dropped_at(), spool.dropped())
            && let Some(at) = at
        {
            let text = format!(
                "{} dropped before a broker had them: older than service.messages.expire_hours, or the spool \
                 had grown to service.messages.spool_bytes",
                units::plural(dropped, "message was", "messages were")
            );
            problems.push((at, Fault::new(FaultCode::NoSpaceForRequest, text)));
        }
        problems
    }

    pub fn show(&self, gauges: &mut Gauges, now: Timestamp) {
        let Some(spool) = self.spool.lock().clone() else { return };
        let bytes = "Bytes of messages on disk.";
        gauges.gauge("longhaul_messages_spool_bytes", bytes, vec![], spool.bytes() as f64);
        let dropped = "Messages that went before a broker had them, since the start.";
        gauges.total("longhaul_messages_dropped_total", dropped, vec![], spool.dropped());
        for way in self.ways.lock().iter() {
            let label = || vec![("way", way.name.to_owned())];
            let open = way.open.lock().clone();
            let published = way.published.load(Ordering::Relaxed);
            let text = "Messages that a broker has confirmed, since the start.";
            gauges.total("longhaul_messages_published_total", text, label(), published);
            let text = "Whether a broker takes messages.";
            gauges.gauge(
                "longhaul_messages_connected",
                text,
                label(),
                f64::from(u8::from(open.broker.is_some())),
            );
            let age = open.oldest.map_or(0.0, |oldest| now.since(oldest).as_secs_f64());
            let text = "Age of the oldest message that waits.";
            gauges.gauge("longhaul_messages_oldest_seconds", text, label(), age);
        }
    }
}

/// Before the job loop does anything: from then on changes are noted, or those noted by an earlier start are
/// forgotten.
pub fn prepare(shared: &ServiceContext) -> Result<(), Fault> {
    Ok(shared.kernel.catalog.record_job_events(shared.config.messages.is_wanted())?)
}

/// Spools and publishes until told to stop; nothing if no broker is named.
pub async fn run(shared: Arc<ServiceContext>, stop: watch::Receiver<bool>) {
    let config = &shared.config.messages;
    if !config.is_wanted() {
        return;
    }
    let ways = match config.ways() {
        Ok(ways) => ways,
        Err(fault) => return note(&shared, fault),
    };
    let names: Vec<&'static str> = ways.iter().map(|way| way.name).collect();
    let directory = shared.config.state_dir.join(DIRECTORY);
    let bounds = (config.spool_bytes, config.expire());
    let spool = match Spool::open(&directory, bounds, &names, shared.kernel.now()) {
        Ok(spool) => Arc::new(spool),
        Err(error) => return note(&shared, spool_fault(&directory, &error)),
    };
    *shared.messages.spool.lock() = Some(spool.clone());
    let mut tasks = JoinSet::new();
    for way in ways {
        let state =
            Arc::new(WayState { name: way.name, published: AtomicU64::new(0), open: Mutex::default() });
        shared.messages.ways.lock().push(state.clone());
        let means = (config.clone(), shared.kernel.clock.clone());
        let publisher = publisher::Publisher::new(means, spool.clone(), way, state);
        tasks.spawn(publisher.run(stop.clone()));
    }
    tasks.spawn(queues::publish_minutes(shared.clone(), spool.clone(), stop.clone()));
    tasks.spawn(spooler(shared.clone(), spool, directory.clone(), stop));
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            // It is the panic of the whole task, whose owner ends the process.
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

async fn spooler(
    shared: Arc<ServiceContext>,
    spool: Arc<Spool>,
    directory: std::path::PathBuf,
    mut stop: watch::Receiver<bool>,
) {
    let sayer = Arc::new(sayer(&shared.config, &shared.public_url));
    loop {
        let (at_work, to, says) = (shared.clone(), spool.clone(), sayer.clone());
        let done = tokio::task::spawn_blocking(move || bring(&at_work, &to, &says)).await;
        let done = done.unwrap_or_else(|error| Err(Bringing::Catalog(error.to_string())));
        let pause = match done {
            Ok(()) => {
                *shared.messages.trouble.lock() = None;
                BATCH_WINDOW
            }
            Err(why) => {
                note(&shared, why.fault(&directory));
                WRITE_BACKOFF
            }
        };
        let failed = shared.messages.trouble.lock().is_some();
        tokio::select! {
            () = shared.messages.news.notified(), if !failed => {}
            () = tokio::time::sleep(WRITE_BACKOFF), if failed => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    // What came last is in the catalog at least; most often here is its turn.
    let last = tokio::task::spawn_blocking(move || bring(&shared, &spool, &sayer)).await;
    if !matches!(last, Ok(Ok(()))) {
        tracing::warn!("some messages are spooled at the next start only");
    }
}

enum Bringing {
    Catalog(String),
    Spool(std::io::Error),
}

impl Bringing {
    fn fault(self, directory: &Path) -> Fault {
        match self {
            Bringing::Catalog(why) => Fault::new(FaultCode::StateDirectory, format!("messages: {why}")),
            Bringing::Spool(error) => spool_fault(directory, &error),
        }
    }
}

/// From the catalog to the spool, all that there is.
fn bring(shared: &ServiceContext, spool: &Spool, sayer: &Sayer) -> Result<(), Bringing> {
    let catalog = |error: longhaul_catalog::CatalogError| Bringing::Catalog(error.to_string());
    loop {
        let rows = shared.kernel.catalog.job_events(0).map_err(catalog)?;
        let Some(last) = rows.last().map(|row| row.sequence) else { return Ok(()) };
        let messages = rows.into_iter().flat_map(|row| compose::change(row).messages(sayer)).collect();
        spool.append(messages, shared.kernel.now()).map_err(Bringing::Spool)?;
        shared.kernel.catalog.acknowledge_job_events(last).map_err(catalog)?;
    }
}

fn sayer(config: &Config, public_url: &str) -> Sayer {
    let messages = &config.messages;
    let host = || public_url.parse::<http::Uri>().ok()?.host().map(str::to_owned);
    let endpnt = match messages.alias.as_str() {
        "" => host().unwrap_or_default(),
        alias => alias.to_owned(),
    };
    let fqdn = (!messages.fqdn.is_empty()).then(|| messages.fqdn.clone());
    Sayer { endpnt, fqdn, users: messages.users }
}

fn spool_fault(directory: &Path, error: &std::io::Error) -> Fault {
    let text = format!(
        "messages cannot be spooled in {}: {error}",
        units::printable(&directory.display().to_string())
    );
    Fault::new(FaultCode::StateDirectory, text)
}

fn note(shared: &ServiceContext, fault: Fault) {
    tracing::error!(%fault, "messages");
    let mut trouble = shared.messages.trouble.lock();
    let since = trouble.as_ref().map_or_else(|| shared.kernel.now(), |(since, _)| *since);
    *trouble = Some((since, fault));
}
