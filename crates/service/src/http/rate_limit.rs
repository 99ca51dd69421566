//! Rate limit of requests, per user: a token bucket each, so many requests a second on average and twice as
//! many at once. Who makes more is told when to come again; others do not notice. Whoever has not said who
//! they are is counted by address.
//!
//! Not here: connections and operations at a time, which bound all users together (`HttpLimits`), and tries
//! to log in (`security::Attempts`).

use std::collections::HashMap;
use std::time::Duration;

use longhaul_model::{Timestamp, TokenBucket};
use parking_lot::Mutex;

/// Users that are counted; those who made no request for a while make room. More than that at a time are not
/// counted.
const USERS_MAX: usize = 20_000;
/// What may come at once, as a time at the allowed rate.
const BURST: Duration = Duration::from_secs(2);

pub struct UserRateLimiter {
    per_s: u32,
    buckets: Mutex<HashMap<String, TokenBucket>>,
}

impl UserRateLimiter {
    /// 0: no limit.
    pub fn new(per_s: u32) -> UserRateLimiter {
        UserRateLimiter { per_s, buckets: Mutex::default() }
    }

    /// Counts a request; the error says after what time the next will be taken.
    pub fn take(&self, user: &str, now: Timestamp) -> Result<(), Duration> {
        if self.per_s == 0 {
            return Ok(());
        }
        let now = now.since(Timestamp::ZERO);
        let mut buckets = self.buckets.lock();
        if !buckets.contains_key(user) {
            if buckets.len() >= USERS_MAX {
                buckets.retain(|_, bucket| !bucket.is_full(now));
            }
            if buckets.len() >= USERS_MAX {
                return Ok(());
            }
            let bucket = TokenBucket::full(Some(u64::from(self.per_s)), BURST, now);
            buckets.insert(user.to_owned(), bucket);
        }
        let Some(bucket) = buckets.get_mut(user) else { return Ok(()) };
        let wait = bucket.wait_for(1, now);
        if !wait.is_zero() {
            return Err(wait);
        }
        bucket.consume(1);
        Ok(())
    }

    pub fn per_s(&self) -> u32 {
        self.per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(limiter: &UserRateLimiter, who: &str, now: Timestamp, tries: usize) -> usize {
        (0..tries).filter(|_| limiter.take(who, now).is_ok()).count()
    }

    #[test]
    fn a_user_has_a_rate_and_others_do_not_notice() {
        let (limiter, now) = (UserRateLimiter::new(100), Timestamp::from_seconds(1_000));
        assert_eq!(taken(&limiter, "mallory", now, 1_000), 200);
        let wait = limiter.take("mallory", now).unwrap_err();
        assert_eq!(wait, Duration::from_millis(10));
        assert!(limiter.take("anna", now).is_ok());
        assert!(limiter.take("mallory", now + wait).is_ok());
        assert_eq!(taken(&limiter, "mallory", now + Duration::from_secs(1), 1_000), 99);
        assert_eq!(
            taken(&limiter, "mallory", now + Duration::from_secs(60), 1_000),
            200,
            "no more is saved up"
        );
        assert_eq!(taken(&UserRateLimiter::new(0), "mallory", now, 10_000), 10_000);
    }

    #[test]
    fn a_clock_that_is_set_back_locks_nobody_out() {
        let (limiter, now) = (UserRateLimiter::new(10), Timestamp::from_seconds(1_000_000));
        assert_eq!(taken(&limiter, "anna", now, 100), 20);
        for back_s in [60, 3 * 3_600] {
            let before = Timestamp::from_seconds(1_000_000 - back_s);
            let wait = limiter.take("anna", before).unwrap_err();
            assert!(wait < Duration::from_secs(3), "{wait:?}");
            assert!(limiter.take("anna", before + wait).is_ok(), "the wait ends");
        }
    }

    #[test]
    fn what_is_known_of_users_is_bounded() {
        let (limiter, now) = (UserRateLimiter::new(10), Timestamp::from_seconds(1_000));
        for number in 0..USERS_MAX + 10 {
            assert!(limiter.take(&number.to_string(), now).is_ok());
        }
        assert_eq!(limiter.buckets.lock().len(), USERS_MAX);
        assert!(limiter.take("late", now + Duration::from_secs(3)).is_ok());
        assert_eq!(limiter.buckets.lock().len(), 1, "who was quiet made room");
    }
}
