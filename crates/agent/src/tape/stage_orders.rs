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
use crate::step::AgentTime;

/// Ids of requests of the service begin like this; those of clients are hexadecimal.
const ID_PREFIX: &str = "service-";
/// A session's orders are repeated at its beginning, and the files wait longer for a drive than this.
const REPEAT_TIME: Duration = Duration::from_secs(600);

pub(crate) struct StageOrders {
    tapes: Arc<Tapes>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    orders: BTreeMap<OrderKey, Order>,
    /// Files that were refused at once, and their reasons.
    refused: Vec<StageReport>,
    /// What the report under way says.
    reporting: Reporting,
    /// When requests that were not repeated end.
    forget_at: Option<AgentTime>,
}

type OrderKey = (StorageName, StageId);

#[derive(Default)]
struct Order {
    /// Files of the order that nobody has released.
    files: BTreeMap<String, Lfn>,
    told: BTreeSet<String>,
    /// The driver's count of changes when all was told.
    told_at: Option<u64>,
    /// Since the last hello.
    is_repeated: bool,
}

#[derive(Default)]
struct Reporting {
    refused: usize,
    files: Vec<(OrderKey, String)>,
    /// Orders of which everything is told with it, with the driver's count of changes.
    complete: Vec<(OrderKey, u64)>,
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
        for StageOrder { storage, order, lfns, pin_s } in orders {
            let refuse = |lfn: Lfn, why: String| StageReport {
                storage: storage.clone(),
                order,
                lfn,
                why_not: Some(why),
            };
            let Some(driver) = self.tapes.driver(&storage) else {
                let why = "this agent has no tape behind the storage";
                self.state.lock().refused.extend(lfns.into_iter().map(|lfn| refuse(lfn, why.into())));
                continue;
            };
            let mut files = BTreeMap::new();
            for lfn in lfns {
                match driver.path_of(&lfn) {
                    Some(path) => drop(files.insert(path, lfn)),
                    None => {
                        let why = "the name rules give it no path here".to_owned();
                        self.state.lock().refused.push(refuse(lfn, why));
                    }
                }
            }
            let lifetime = Some(Duration::from_secs(pin_s.into()));
            let requested = |path: &String| RequestedFile { path: path.clone(), lifetime, metadata: None };
            let taken = driver.stage_order(&request_id(order), files.keys().map(requested).collect());
            let mut state = self.state.lock();
            match taken {
                Ok(()) => {
                    let paths: Vec<String> = files.keys().cloned().collect();
                    let known = state.orders.entry((storage.clone(), order)).or_default();
                    known.files.extend(files);
                    known.is_repeated = true;
                    known.told_at = None;
                    for id in state.unrepeated(&storage, driver) {
                        release_files(driver, &storage, &id, &paths);
                    }
                }
                Err(fault) => {
                    let refused = files.into_values().map(|lfn| refuse(lfn, fault.detail.to_string()));
                    state.refused.extend(refused);
                }
            }
        }
    }

    /// Files that need not be brought, or stay, any longer. Blocks on the disk.
    pub(crate) fn release(&self, releases: &[StageRelease]) {
        for StageRelease { storage, order, lfns } in releases {
            let Some(driver) = self.tapes.driver(storage) else { continue };
            let paths: Vec<String> = lfns.iter().filter_map(|lfn| driver.path_of(lfn)).collect();
            let id = request_id(*order);
            let key = (storage.clone(), *order);
            let mut state = self.state.lock();
            let is_over = state.orders.get_mut(&key).is_none_or(|known| {
                paths.iter().for_each(|path| drop(known.files.remove(path)));
                known.files.is_empty()
            });
            if is_over {
                state.orders.remove(&key);
                end_request(driver, storage, &id);
            } else {
                release_files(driver, storage, &id, &paths);
            }
        }
    }

    /// What the service has not heard yet; [`StageOrders::confirm`] says that it has. Blocks on the disk when
    /// requests are to be ended.
    pub(crate) fn take_reports(&self, now: AgentTime) -> Vec<StageReport> {
        let mut state = self.state.lock();
        if state.forget_at.is_some_and(|at| at <= now) {
            state.forget_at = None;
            self.end_unrepeated(&mut state);
        }
        let State { orders, refused, .. } = &*state;
        let mut reports: Vec<StageReport> = refused.iter().take(REPORTED_STAGED_MAX).cloned().collect();
        let mut reporting = Reporting { refused: reports.len(), ..Reporting::default() };
        for (key, order) in orders {
            let Some(driver) = self.tapes.driver(&key.0) else { continue };
            let changes = driver.changes();
            if order.told_at == Some(changes) || !self.report_order(key, order, &mut reports, &mut reporting)
            {
                continue;
            }
            reporting.complete.push((key.clone(), changes));
        }
        state.reporting = reporting;
        reports
    }

    /// Adds what was not told of an order. Returns whether that was everything.
    fn report_order(
        &self,
        key: &OrderKey,
        order: &Order,
        reports: &mut Vec<StageReport>,
        reporting: &mut Reporting,
    ) -> bool {
        let driver = self.tapes.driver(&key.0);
        let Some(report) = driver.and_then(|driver| driver.report(&request_id(key.1))) else { return true };
        for file in report.files {
            let why_not = match file.state {
                StageState::Completed => None,
                StageState::Failed => Some(file.error.unwrap_or_default()),
                StageState::Submitted | StageState::Started | StageState::Cancelled => continue,
            };
            let Some(lfn) = order.files.get(&file.path).filter(|_| !order.told.contains(&file.path)) else {
                continue;
            };
            if reports.len() >= REPORTED_STAGED_MAX {
                return false;
            }
            let (storage, order) = key.clone();
            reports.push(StageReport { storage, order, lfn: lfn.clone(), why_not });
            reporting.files.push((key.clone(), file.path));
        }
        true
    }

    /// The service has heard the last reports.
    pub(crate) fn confirm(&self) {
        let mut state = self.state.lock();
        let Reporting { refused, files, complete } = std::mem::take(&mut state.reporting);
        state.refused.drain(..refused);
        for (key, path) in files {
            if let Some(order) = state.orders.get_mut(&key) {
                order.told.insert(path);
            }
        }
        for (key, changes) in complete {
            if let Some(order) = state.orders.get_mut(&key) {
                order.told_at = Some(changes);
            }
        }
    }

    /// The service may not have heard them.
    pub(crate) fn abandon(&self) {
        self.state.lock().reporting = Reporting::default();
    }

    fn end_unrepeated(&self, state: &mut State) {
        for (storage, driver) in self.tapes.drivers() {
            for id in state.unrepeated(storage, driver) {
                tracing::info!(%storage, request = id, "the service repeats an order no more: it ends");
                end_request(driver, storage, &id);
            }
        }
        state.orders.retain(|_, order| order.is_repeated);
    }
}

impl State {
    /// Requests of orders of a storage that the service has not repeated since the last hello.
    fn unrepeated(&self, storage: &StorageName, driver: &TapeDriver) -> Vec<String> {
        let repeated = self.orders.iter().filter(|(key, order)| key.0 == *storage && order.is_repeated);
        let repeated: BTreeSet<String> = repeated.map(|(key, _)| request_id(key.1)).collect();
        let mut requests = driver.requests_beginning(ID_PREFIX);
        requests.retain(|id| !repeated.contains(id));
        requests
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
