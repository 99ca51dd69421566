//! The service's orders to bring files from tape for subscriptions. Each is a stage request of its storage's
//! tape driver, which keeps it over any kill; here is only what the service has to hear, and what it has
//! heard.
//!
//! The service keeps its orders in memory and repeats them with each hello. Of orders that it does not
//! repeat, files that it orders anew are released at once, and the rest after [`REPEAT_TIME`]: nobody else
//! would ever release their pins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{StageOrder, StageRelease, StageReport};
use longhaul_doors::{RequestedFile, StageState, Tape};
use longhaul_model::limits::REPORTED_STAGED_MAX;
use longhaul_model::{Lfn, StageId, StorageName};
use parking_lot::Mutex;

use super::{TapeDriver, Tapes};
use crate::context::AgentContext;
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// Ids of requests of the service begin like this; those of clients are hexadecimal.
const ID_PREFIX: &str = "service-";
/// A session's orders are repeated at its beginning, and the files wait longer for a drive than this.
const REPEAT_TIME: Duration = Duration::from_secs(600);

/// Between two looks at what the tape drivers have done.
const GATHER_PERIOD: Duration = Duration::from_secs(1);

/// No disk is waited for while the state is locked: reports are made on the event loop.
pub(crate) struct StageOrders {
    tapes: Arc<Tapes>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    orders: BTreeMap<OrderKey, Order>,
    /// What the service has not heard, in the order in which it happened.
    untold: Vec<StageReport>,
    /// The first of them that the report under way says.
    reporting: usize,
    /// When requests that were not repeated end.
    forget_at: Option<AgentTime>,
}

type OrderKey = (StorageName, StageId);

#[derive(Default)]
struct Order {
    /// Files of the order that nobody has released.
    files: BTreeMap<String, Lfn>,
    /// Those of which it is known what became of them.
    ended: BTreeSet<String>,
    /// The driver's count of changes when it was looked at last.
    looked_at: Option<u64>,
    /// Since the last hello.
    is_repeated: bool,
}

impl StageOrders {
    pub(crate) fn new(tapes: Arc<Tapes>) -> StageOrders {
        StageOrders { tapes, state: Mutex::default() }
    }

    /// A hello is about to be sent: the service repeats what goes on.
    pub(crate) fn note_hello(&self, now: AgentTime) {
        let mut state = self.state.lock();
        state.orders.values_mut().for_each(|order| order.is_repeated = false);
        state.forget_at = Some(now + REPEAT_TIME);
    }

    /// Blocks on the disk.
    pub(crate) fn take(&self, orders: Vec<StageOrder>) {
        orders.into_iter().for_each(|order| self.take_order(order));
    }

    fn take_order(&self, StageOrder { storage, order, lfns, pin_s }: StageOrder) {
        let refuse = |lfns: Vec<Lfn>, why: &str| {
            let report =
                |lfn| StageReport { storage: storage.clone(), order, lfn, why_not: Some(why.into()) };
            self.state.lock().untold.extend(lfns.into_iter().map(report));
        };
        let Some(driver) = self.tapes.driver(&storage) else {
            return refuse(lfns, "this agent has no tape behind the storage");
        };
        let (mut files, mut unnamed) = (BTreeMap::new(), Vec::new());
        for lfn in lfns {
            match driver.path_of(&lfn) {
                Some(path) => drop(files.insert(path, lfn)),
                None => unnamed.push(lfn),
            }
        }
        refuse(unnamed, "the name rules give it no path here");
        let lifetime = Some(Duration::from_secs(pin_s.into()));
        let requested = |path: &String| RequestedFile { path: path.clone(), lifetime, metadata: None };
        if let Err(fault) = driver.stage_order(&request_id(order), files.keys().map(requested).collect()) {
            return refuse(files.into_values().collect(), &fault.detail);
        }
        let paths: Vec<String> = files.keys().cloned().collect();
        {
            let mut state = self.state.lock();
            let known = state.orders.entry((storage.clone(), order)).or_default();
            known.files.extend(files);
            known.ended.clear();
            known.is_repeated = true;
            known.looked_at = None;
        }
        for id in self.unrepeated(&storage, driver) {
            release_files(driver, &storage, &id, &paths);
        }
    }

    /// Files that need not be brought, or stay, any longer. Blocks on the disk.
    pub(crate) fn release(&self, releases: &[StageRelease]) {
        for StageRelease { storage, order, lfns } in releases {
            let Some(driver) = self.tapes.driver(storage) else { continue };
            let paths: Vec<String> = lfns.iter().filter_map(|lfn| driver.path_of(lfn)).collect();
            let id = request_id(*order);
            if self.is_over_without(&(storage.clone(), *order), &paths) {
                end_request(driver, storage, &id);
            } else {
                release_files(driver, storage, &id, &paths);
            }
        }
    }

    /// Takes paths out of an order. Whether nothing of it is left.
    fn is_over_without(&self, key: &OrderKey, paths: &[String]) -> bool {
        let mut state = self.state.lock();
        let is_over = state.orders.get_mut(key).is_none_or(|known| {
            paths.iter().for_each(|path| drop(known.files.remove(path)));
            known.files.is_empty()
        });
        if is_over {
            state.orders.remove(key);
        }
        is_over
    }

    /// What the service has not heard yet; [`StageOrders::confirm`] says that it has.
    pub(crate) fn take_reports(&self) -> Vec<StageReport> {
        let mut state = self.state.lock();
        state.reporting = state.untold.len().min(REPORTED_STAGED_MAX);
        state.untold.iter().take(REPORTED_STAGED_MAX).cloned().collect()
    }

    /// The service has heard the last reports.
    pub(crate) fn confirm(&self) {
        let mut state = self.state.lock();
        let told = std::mem::take(&mut state.reporting);
        state.untold.drain(..told);
    }

    /// The service may not have heard them.
    pub(crate) fn abandon(&self) {
        self.state.lock().reporting = 0;
    }

    /// Looks what has become of all files, and ends what is repeated no more. Blocks on the disk.
    pub(crate) fn gather(&self, now: AgentTime) {
        if self.state.lock().forget_at.take_if(|at| *at <= now).is_some() {
            self.end_unrepeated();
        }
        let keys: Vec<OrderKey> = self.state.lock().orders.keys().cloned().collect();
        keys.iter().for_each(|key| self.gather_order(key));
    }

    fn gather_order(&self, key: &OrderKey) {
        let Some(driver) = self.tapes.driver(&key.0) else { return };
        let changes = driver.changes();
        if self.state.lock().orders.get(key).is_none_or(|order| order.looked_at == Some(changes)) {
            return;
        }
        let files = driver.report(&request_id(key.1)).map(|report| report.files).unwrap_or_default();
        let mut state = self.state.lock();
        let State { orders, untold, .. } = &mut *state;
        let Some(order) = orders.get_mut(key) else { return };
        order.looked_at = Some(changes);
        for file in files {
            let why_not = match file.state {
                StageState::Completed => None,
                StageState::Failed => Some(file.error.unwrap_or_default()),
                StageState::Submitted | StageState::Started | StageState::Cancelled => continue,
            };
            let Some(lfn) = order.files.get(&file.path).cloned() else { continue };
            if order.ended.insert(file.path) {
                untold.push(StageReport { storage: key.0.clone(), order: key.1, lfn, why_not });
            }
        }
    }

    fn end_unrepeated(&self) {
        for (storage, driver) in self.tapes.drivers() {
            for id in self.unrepeated(storage, driver) {
                tracing::info!(%storage, request = id, "the service repeats an order no more: it ends");
                end_request(driver, storage, &id);
            }
        }
        self.state.lock().orders.retain(|_, order| order.is_repeated);
    }

    /// Requests of orders of a storage that the service has not repeated since the last hello.
    fn unrepeated(&self, storage: &StorageName, driver: &TapeDriver) -> Vec<String> {
        let mut requests = driver.requests_beginning(ID_PREFIX);
        let state = self.state.lock();
        let repeated = state.orders.iter().filter(|(key, order)| key.0 == *storage && order.is_repeated);
        let repeated: BTreeSet<String> = repeated.map(|(key, _)| request_id(key.1)).collect();
        requests.retain(|id| !repeated.contains(id));
        requests
    }
}

/// Looks at the tape drivers from time to time.
pub(crate) struct StageOrdersCheck {
    context: Arc<AgentContext>,
    ticker: Ticker,
}

impl StageOrdersCheck {
    pub(crate) fn new(context: Arc<AgentContext>) -> StageOrdersCheck {
        StageOrdersCheck { context, ticker: Ticker::new(GATHER_PERIOD) }
    }
}

impl PeriodicLoop for StageOrdersCheck {
    /// Blocks on the disk.
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        if self.ticker.tick(now).is_some() {
            self.context.stage_orders.gather(now);
        }
        self.ticker.due()
    }
}

fn release_files(driver: &TapeDriver, storage: &StorageName, id: &str, paths: &[String]) {
    if let Err(fault) = driver.cancel(id, paths).and_then(|()| driver.release(id, paths)) {
        tracing::warn!(%storage, fault = %fault.chain(), "files stay on disk until their pins end");
    }
}

fn end_request(driver: &TapeDriver, storage: &StorageName, id: &str) {
    if let Err(fault) = driver.end(id) {
        tracing::warn!(%storage, fault = %fault.chain(), "a request stays until its pins end");
    }
}

fn request_id(order: StageId) -> String {
    format!("{ID_PREFIX}{order}")
}

#[cfg(test)]
mod tests;
