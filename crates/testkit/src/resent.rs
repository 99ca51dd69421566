//! How much the engine may lawfully move twice.

use std::time::Duration;

/// Most bytes that may have come twice in a transfer whose streams never broke, and that took so much longer
/// than it usually does: none within a second. A stream that is silent for two seconds is given up, and the
/// last chunks are requested twice after one. On a busy machine both happen, and then all that is in flight
/// comes again.
pub fn resent_max(delay: Duration, in_flight_max: u64) -> u64 {
    delay.as_secs().saturating_mul(in_flight_max)
}
