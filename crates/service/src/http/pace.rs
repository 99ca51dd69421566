//! How many requests one user may make: so many a second on average, twice as many at once. Who makes more is
//! told when to come again; others do not notice. Whoever has not said who they are is counted by address.
//!
//! Not here: connections and operations at a time, which bound all users together (`HttpLimits`), and tries
//! to log in (`security::Attempts`).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use longhaul_model::Timestamp;

use crate::shared::guard;

/// Users that are counted; those who made no request for a while make room. More than that at a time are not
/// counted.
const USERS_MAX: usize = 20_000;
/// What may come at once, as a time at the allowed rate.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Each user's requests take their time from a clock of the user's own, which must not run ahead by more than
/// [`AT_ONCE`].
pub struct Pace {
    per_s: u32,
    clocks: Mutex<HashMap<String, Timestamp>>,
}

impl Pace {
    /// 0: no limit.
    pub fn new(per_s: u32) -> Pace {
        Pace { per_s, clocks: Mutex::default() }
    }

    /// Counts a request; the error says after what time the next will be taken.
    pub fn take(&self, who: &str, now: Timestamp) -> Result<(), Duration> {
        if self.per_s == 0 {
            return Ok(());
        }
        let one = Duration::from_nanos(1_000_000_000 / u64::from(self.per_s)).max(Duration::from_micros(1));
        let mut clocks = guard(&self.clocks);
        if !clocks.contains_key(who) {
            if clocks.len() >= USERS_MAX {
                clocks.retain(|_, clock| *clock > now);
            }
            if clocks.len() >= USERS_MAX {
                return Ok(());
            }
            clocks.insert(who.to_owned(), now);
        }
        let Some(clock) = clocks.get_mut(who) else { return Ok(()) };
        // A clock that was set back must not lock anybody out.
        let after = (*clock).clamp(now, now + AT_ONCE * 2) + one;
        if after > now + AT_ONCE {
            return Err(after.since(now + AT_ONCE));
        }
        *clock = after;
        Ok(())
    }

    pub fn per_s(&self) -> u32 {
        self.per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pace: &Pace, who: &str, now: Timestamp, tries: usize) -> usize {
        (0..tries).filter(|_| pace.take(who, now).is_ok()).count()
    }

    #[test]
    fn a_user_has_a_rate_and_others_do_not_notice() {
        let (pace, now) = (Pace::new(100), Timestamp::from_seconds(1_000));
        assert_eq!(taken(&pace, "mallory", now, 1_000), 200);
        let wait = pace.take("mallory", now).unwrap_err();
        assert_eq!(wait, Duration::from_millis(10));
        assert!(pace.take("anna", now).is_ok());
        assert!(pace.take("mallory", now + wait).is_ok());
        assert_eq!(taken(&pace, "mallory", now + Duration::from_secs(1), 1_000), 99);
        assert_eq!(taken(&pace, "mallory", now + Duration::from_secs(60), 1_000), 200, "no more is saved up");
        assert_eq!(taken(&Pace::new(0), "mallory", now, 10_000), 10_000);
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out() {
        let (pace, now) = (Pace::new(10), Timestamp::from_seconds(1_000));
        assert_eq!(taken(&pace, "anna", now, 100), 20);
        let before = Timestamp::from_seconds(10);
        let wait = pace.take("anna", before).unwrap_err();
        assert!(wait < Duration::from_secs(3), "{wait:?}");
    }

    #[test]
    fn what_is_known_of_users_is_bounded() {
        let (pace, now) = (Pace::new(10), Timestamp::from_seconds(1_000));
        for number in 0..USERS_MAX + 10 {
            assert!(pace.take(&number.to_string(), now).is_ok());
        }
        assert_eq!(guard(&pace.clocks).len(), USERS_MAX);
        assert!(pace.take("late", now + Duration::from_secs(3)).is_ok());
        assert_eq!(guard(&pace.clocks).len(), 1, "who was quiet made room");
    }
}
