//! The only place in this program that reads the clock.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_model::{IdMaker, IncidentId, Timestamp};
use parking_lot::Mutex;

pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// The clock as an argument for crates that take one.
pub fn clock() -> Arc<dyn Fn() -> Timestamp + Send + Sync> {
    Arc::new(now)
}

/// Makes an id for an error of this process, to find it in the log.
pub fn new_incident_id() -> IncidentId {
    static MAKER: Mutex<Option<IdMaker>> = Mutex::new(None);
    let mut maker = MAKER.lock();
    maker.get_or_insert_with(|| IdMaker::after(u64::from(std::process::id()) & 0xffff)).next(now())
}
