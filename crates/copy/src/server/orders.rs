//! Third-party copies: a client orders this server to fetch from another one, and may go.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use longhaul_model::{AgentId, DataSecurity, Fault, FaultCode};

use super::lock;
use crate::landing::refuse_work_directory;
use crate::progress::Progress;
use crate::protocol::{Order, OrderState};
use crate::pull::Pull;
use crate::state::CopyKey;
use crate::stop::Stop;
use crate::url::ServerUrl;

/// Orders that run or whose end nobody has seen.
const ORDERS_MAX: usize = 32;
/// A poll answers so often while an order runs: its numbers change all the time.
const TELL_EVERY: Duration = Duration::from_millis(250);

pub(super) struct Orders {
    data_security: DataSecurity,
    all: Mutex<HashMap<u64, Arc<Running>>>,
}

struct Running {
    /// None: it goes on without its client.
    owner: Mutex<Option<AgentId>>,
    progress: Progress,
    stop: Stop,
    end: Mutex<End>,
    changed: Condvar,
}

#[derive(Default)]
struct End {
    over: bool,
    fault: Option<Fault>,
    version: u64,
}

impl Orders {
    pub(super) fn new(data_security: DataSecurity) -> Orders {
        Orders { data_security, all: Mutex::default() }
    }

    /// Begins an order. The same order again is the one that runs already.
    pub(super) fn begin(&self, peer: AgentId, root: &Path, order: Order) -> Result<OrderState, Fault> {
        let (url, source) = ServerUrl::parse(&order.source)?;
        refuse_work_directory(order.target.as_str())?;
        let hosts = url.hosts();
        let key = CopyKey::of(hosts.into_iter().chain([source.path.as_str(), order.target.as_str()]));
        let number = key.agent().0;
        let mut all = lock(&self.all);
        all.retain(|_, running| !lock(&running.end).over || lock(&running.owner).is_none());
        if let Some(running) = all.get(&number).filter(|running| !lock(&running.end).over) {
            if !order.detach {
                *lock(&running.owner) = Some(peer);
            }
            return Ok(running.state(number));
        }
        if all.len() >= ORDERS_MAX {
            return Err(Fault::new(FaultCode::Busy, format!("{ORDERS_MAX} orders are kept already")));
        }
        let running = Arc::new(Running {
            owner: Mutex::new((!order.detach).then_some(peer)),
            progress: Progress::default(),
            stop: Stop::default(),
            end: Mutex::default(),
            changed: Condvar::new(),
        });
        all.insert(number, running.clone());
        drop(all);
        tracing::info!(client = %peer, source = url.shown(), detached = order.detach, "a client orders a copy");
        let target = root.join(order.target.as_str());
        let slash = if order.target_contents { "/" } else { "" };
        let target = std::path::PathBuf::from(format!("{}{slash}", target.to_string_lossy()));
        let data_security = self.data_security;
        let me = running.clone();
        let work = move || {
            let pull = Pull {
                url: &url,
                sources: &[source],
                target: &target,
                options: &order.options,
                data_security,
                names: None,
            };
            let copied = pull.run(&me.progress, &me.stop, &mut |_| {});
            me.ended(copied.err());
        };
        std::thread::Builder::new()
            .name("copy-order".to_owned())
            .spawn(work)
            .map_err(|error| Fault::new(FaultCode::Internal, format!("no thread can be started: {error}")))?;
        Ok(running.state(number))
    }

    fn get(&self, order: u64) -> Result<Arc<Running>, Fault> {
        let known = lock(&self.all).get(&order).cloned();
        known.ok_or_else(|| Fault::new(FaultCode::NotFound, "there is no such order"))
    }

    pub(super) fn poll(&self, order: u64, seen: u64, wait_ms: u64) -> Result<OrderState, Fault> {
        let running = self.get(order)?;
        let mut end = lock(&running.end);
        if !end.over && seen >= end.version {
            let most = Duration::from_millis(wait_ms).min(TELL_EVERY);
            end = running
                .changed
                .wait_timeout(end, most)
                .map_or_else(|poisoned| poisoned.into_inner().0, |(end, _)| end);
        }
        end.version += 1;
        drop(end);
        Ok(running.state(order))
    }

    pub(super) fn cancel(&self, order: u64) -> Result<(), Fault> {
        self.get(order)?.stop.stop();
        Ok(())
    }

    /// Stops what a client has ordered that is gone, unless it said to go on.
    pub(super) fn gone(&self, peer: AgentId) {
        for running in lock(&self.all).values() {
            if *lock(&running.owner) == Some(peer) {
                running.stop.stop();
            }
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        lock(&self.all).values().any(|running| !lock(&running.end).over)
    }

    /// Stops all, and waits for their ends.
    pub(super) fn stop(&self) {
        let all: Vec<Arc<Running>> = lock(&self.all).values().cloned().collect();
        all.iter().for_each(|running| running.stop.stop());
        for running in all {
            let mut end = lock(&running.end);
            while !end.over {
                end = running.changed.wait(end).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }
}

impl Running {
    fn ended(&self, fault: Option<Fault>) {
        match &fault {
            Some(fault) => tracing::info!(%fault, "an ordered copy has ended"),
            None => tracing::info!("an ordered copy is complete"),
        }
        let mut end = lock(&self.end);
        end.over = true;
        end.fault = fault;
        end.version += 1;
        drop(end);
        self.changed.notify_all();
    }

    fn state(&self, order: u64) -> OrderState {
        let end = lock(&self.end);
        OrderState {
            order,
            version: end.version,
            totals: self.progress.totals(),
            over: end.over,
            fault: end.fault.clone(),
            failed: self.progress.failed(),
        }
    }
}
