//! The only place in this crate that reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_model::Timestamp;

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
