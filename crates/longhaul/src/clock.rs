//! The only place in this program that reads the clock.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_model::{IdMaker, IncidentId, SteadyClock, Timestamp};
use longhaul_service::Clocks;
use parking_lot::Mutex;

/// The host's time of day: for log lines, and for credentials. People and programs step it.
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// The time of this process: that of the wall clock, without its steps. All that is compared with another
/// time of this process is measured by it.
pub fn now() -> Timestamp {
    static CLOCK: Mutex<Option<SteadyClock>> = Mutex::new(None);
    let reading = {
        let mut clock = CLOCK.lock();
        let (wall, monotonic) = (wall(), since_boot());
        clock.get_or_insert_with(|| SteadyClock::start(wall, monotonic)).read(wall, monotonic)
    };
    // Logged without the lock: a line has a time too.
    if let Some(stepped_us) = reading.stepped_us {
        tracing::warn!(
            ahead_s = stepped_us as f64 / 1e6,
            "the clock of this host was stepped: this process measures time on and follows slowly; \
             restart it to take over the new time at once"
        );
    }
    reading.now
}

/// Time since the host started, suspended or not; nobody can set it.
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// The clock as an argument for crates that take one.
pub fn clock() -> Arc<dyn Fn() -> Timestamp + Send + Sync> {
    Arc::new(now)
}

/// Both clocks for the service.
pub fn clocks() -> Clocks {
    Clocks { steady: clock(), wall: Arc::new(wall) }
}

/// Makes an id for an error of this process, to find it in the log.
pub fn new_incident_id() -> IncidentId {
    static MAKER: Mutex<Option<IdMaker>> = Mutex::new(None);
    let mut maker = MAKER.lock();
    maker.get_or_insert_with(|| IdMaker::after(u64::from(std::process::id()) & 0xffff)).next(now())
}
