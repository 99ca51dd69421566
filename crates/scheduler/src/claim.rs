//! Bounded catch-up credit in fair queueing: how much of its lag a party that could not be served catches up
//! on.
//!
//! Plain weighted fair queueing either forgets the lag of a party whose sources were busy, or lets it starve
//! the others afterwards. An account holds how many bytes over weight a party leads or lags the present. The
//! lag has no bound, so those that wait keep their order and share by weight what little they get; with a
//! bound for each, those at their bounds would forget what they got since. What is bounded is what the lag is
//! worth: up to `full` it counts in full, beyond that by its logarithm. A party served from far back is moved
//! on by part of its lag, and returns there by waiting as long as before.
//!
//! `full` is the same for all that wait together: each one's share of a given time of the target,
//! [`crate::Settings::share_claim`]. Of 60 times that, five are caught up on; of 1,440 times, eight: five
//! minutes of an hour, eight of a day, all together.

/// Beyond e to this power of the full claim a longer lag adds nothing: with a minute in full, after two
/// years.
const LOG_CREDIT_MAX: f64 = 14.0;

/// The lead of a party (negative: its lag) after it was served `by`, or refunded that (negative).
pub(crate) fn advance(ahead: f64, by: f64, full: impl FnOnce() -> f64) -> f64 {
    let after = ahead + by;
    if ahead >= 0.0 && after >= 0.0 {
        return after;
    }
    let full = full();
    -lag(credit(-ahead, full) - by, full)
}

fn credit(behind: f64, full: f64) -> f64 {
    if behind <= full { behind } else { full * (1.0 + (behind / full).ln().min(LOG_CREDIT_MAX)) }
}

/// The lag that is worth this credit: the inverse of `credit`.
fn lag(worth: f64, full: f64) -> f64 {
    if worth <= full { worth } else { full * (worth / full - 1.0).min(LOG_CREDIT_MAX).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) {
        assert!((one - other).abs() <= 1e-9 * other.abs(), "{one}, not {other}");
    }

    #[test]
    fn a_short_block_costs_nothing_and_a_long_one_is_worth_little_more() {
        let full = 60.0;
        near(advance(-60.0, 60.0, || full), 0.0);
        near(advance(-60.0, 61.0, || full), 1.0);
        for (minutes, worth) in [(60.0, 5.09), (1_440.0, 8.27), (525_600.0, 14.17), (1e300, 15.0)] {
            let left = advance(-60.0 * minutes, 60.0 * worth, || full);
            assert!(left.abs() < 1.0, "{minutes}: {left}");
        }
    }

    #[test]
    fn what_was_paid_is_given_back_from_wherever_it_was() {
        for ahead in [-1e7, -1e4, -99.0, -50.0, 0.0, 30.0] {
            for by in [0.1, 70.0, 300.0] {
                near(1e9 + advance(advance(ahead, by, || 100.0), -by, || 100.0), 1e9 + ahead);
            }
        }
    }

    #[test]
    fn no_weight_makes_a_number_that_is_none() {
        for full in [0.0, 1e-9, 1e30, f64::INFINITY] {
            for ahead in [-1e30, -1.0, 0.0, 1e30] {
                for by in [-1e30, -1e-9, 0.0, 1e-9, 1e30] {
                    assert!(advance(ahead, by, || full).is_finite(), "{ahead} {by} {full}");
                }
            }
        }
    }
}
