//! Login throttling against brute force, per account and per address, with exponential delay (NIST SP
//! 800-63B, "Rate limiting"; OWASP Authentication Cheat Sheet). Failures decay over time, one by one.
//!
//! An attempt counts as failed from its beginning, so parallel ones are all counted. An origin from which an
//! account logged in lately is trusted and has a counter of its own: guessing from elsewhere does not lock
//! the account's holder out. Names are counted whether such an account exists or not. In memory and bounded:
//! the counter with the fewest failures is evicted.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use longhaul_model::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use crate::text;

/// Policy of an account: five attempts, then delays of 1, 2, 4 … seconds. Four attempts an hour in the long
/// run.
const ACCOUNT_POLICY: ThrottlePolicy = ThrottlePolicy {
    free_failures: 5,
    wait_max: Duration::from_secs(900),
    decay_interval: Duration::from_secs(900),
};
/// Policy of an address, which many people may share: two failures a minute in the long run.
const ADDRESS_POLICY: ThrottlePolicy = ThrottlePolicy {
    free_failures: 20,
    wait_max: Duration::from_secs(300),
    decay_interval: Duration::from_secs(30),
};
/// Counters in memory, some hundred bytes each.
const FAILURE_COUNTERS_MAX: usize = 20_000;
/// Pairs of an account and a trusted origin in memory.
const TRUSTED_ORIGINS_MAX: usize = 20_000;
/// How long an origin stays trusted after a login.
const TRUSTED_ORIGIN_TTL: Duration = Duration::from_secs(30 * 86_400);

struct ThrottlePolicy {
    /// Failures without a delay.
    free_failures: u32,
    wait_max: Duration,
    /// One failure decays in this time.
    decay_interval: Duration,
}

/// Counts failed logins and delays the next ones.
#[derive(Default)]
pub struct LoginThrottle {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counters: BTreeMap<Key, FailureCounter>,
    trusted_origins: BTreeMap<Key, Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Address(IpAddr),
    /// An account, by the hash of its name: names come from outside and have any length.
    Account([u8; 32]),
    /// An account at an origin from which it logged in before.
    TrustedOrigin([u8; 32], IpAddr),
}

struct FailureCounter {
    failures: u32,
    /// When the last attempt began.
    last: Timestamp,
    /// Since when no decay has been applied.
    since: Timestamp,
}

/// A login attempt under way, counted as failed.
#[derive(Debug)]
#[must_use = "what becomes of a try has to be told"]
pub struct LoginAttempt {
    keys: Vec<Key>,
    origin: Option<Key>,
}

impl LoginThrottle {
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins an attempt. `account` is the name that was given, none where there is no password to guess. The
    /// error is the delay until the next attempt; a delayed attempt does not count.
    pub fn begin(
        &self,
        account: Option<&str>,
        address: IpAddr,
        now: Timestamp,
    ) -> Result<LoginAttempt, Duration> {
        let address = client_network(address);
        let mut state = self.state();
        let home = account.map(|account| Key::TrustedOrigin(text::sha256(account.as_bytes()), address));
        let known = |key: &Key| {
            state.trusted_origins.get(key).is_some_and(|seen| now.since(*seen) < TRUSTED_ORIGIN_TTL)
        };
        let account = match home {
            Some(key @ Key::TrustedOrigin(..)) if known(&key) => Some(key),
            Some(Key::TrustedOrigin(account, _)) => Some(Key::Account(account)),
            _ => None,
        };
        let keys: Vec<Key> = account.into_iter().chain([Key::Address(address)]).collect();
        let wait = keys.iter().map(|key| state.remaining_delay(key, now)).max().unwrap_or_default();
        if wait > Duration::ZERO {
            return Err(wait);
        }
        for key in &keys {
            state.add_failure(*key, now);
        }
        Ok(LoginAttempt { keys, origin: home })
    }

    /// Records that the password was right.
    pub fn record_success(&self, attempt: LoginAttempt, now: Timestamp) {
        let mut state = self.state();
        for key in &attempt.keys {
            match key {
                // Logging in to an own account must not clear failures at those of others.
                Key::Address(_) => state.remove_failure(key),
                _ => drop(state.counters.remove(key)),
            }
        }
        let Some(home) = attempt.origin else { return };
        if state.trusted_origins.len() >= TRUSTED_ORIGINS_MAX && !state.trusted_origins.contains_key(&home) {
            let oldest = state.trusted_origins.iter().min_by_key(|(_, seen)| **seen).map(|(key, _)| *key);
            oldest.and_then(|key| state.trusted_origins.remove(&key));
        }
        state.trusted_origins.insert(home, now);
    }

    /// Withdraws an attempt that was not checked.
    pub fn withdraw(&self, attempt: LoginAttempt) {
        let mut state = self.state();
        attempt.keys.iter().for_each(|key| state.remove_failure(key));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No update here can stop half-way: what a panicking thread left is consistent.
        self.state.lock()
    }
}

impl State {
    fn remaining_delay(&mut self, key: &Key, now: Timestamp) -> Duration {
        let Some(count) = self.counters.get_mut(key) else { return Duration::ZERO };
        count.decay(key.policy(), now);
        let wait = key.policy().delay(count.failures);
        // Clocks jump: nobody waits longer than the delay.
        (count.last + wait).since(now).min(wait)
    }

    fn add_failure(&mut self, key: Key, now: Timestamp) {
        if self.counters.len() >= FAILURE_COUNTERS_MAX && !self.counters.contains_key(&key) {
            self.evict(now);
        }
        let count = self.counters.entry(key).or_insert(FailureCounter { failures: 0, last: now, since: now });
        count.failures = count.failures.saturating_add(1);
        count.last = now;
    }

    fn remove_failure(&mut self, key: &Key) {
        if let Some(count) = self.counters.get_mut(key) {
            count.failures = count.failures.saturating_sub(1);
        }
    }

    fn evict(&mut self, now: Timestamp) {
        self.counters.retain(|key, count| {
            count.decay(key.policy(), now);
            count.failures > 0
        });
        while self.counters.len() >= FAILURE_COUNTERS_MAX {
            let least = self.counters.iter().min_by_key(|(_, count)| (count.failures, count.last));
            let Some(key) = least.map(|(key, _)| *key) else { return };
            self.counters.remove(&key);
        }
    }
}

impl FailureCounter {
    fn decay(&mut self, pace: &ThrottlePolicy, now: Timestamp) {
        let steps = now.since(self.since).as_micros() / pace.decay_interval.as_micros();
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_sub(steps);
        self.since = if self.failures == 0 { now } else { self.since + pace.decay_interval * steps };
    }
}

impl Key {
    fn policy(&self) -> &'static ThrottlePolicy {
        match self {
            Key::Address(_) => &ADDRESS_POLICY,
            Key::Account(_) | Key::TrustedOrigin(..) => &ACCOUNT_POLICY,
        }
    }
}

impl ThrottlePolicy {
    /// The delay after this many failures.
    fn delay(&self, failures: u32) -> Duration {
        match failures.checked_sub(self.free_failures) {
            None => Duration::ZERO,
            Some(doublings) => Duration::from_secs(1 << doublings.min(20)).min(self.wait_max),
        }
    }
}

/// The network of one customer of a provider: an IPv4 address, or an IPv6 /64.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp(1_780_000_000_000_000);

    fn at(seconds: u64) -> Timestamp {
        NOW + Duration::from_secs(seconds)
    }

    fn from(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Attempts once a second; returns how many were let through.
    fn guesses(
        throttle: &LoginThrottle,
        account: &str,
        address: IpAddr,
        seconds: std::ops::Range<u64>,
    ) -> usize {
        seconds.filter(|second| throttle.begin(Some(account), address, at(*second)).is_ok()).count()
    }

    #[test]
    fn each_failure_makes_the_next_wait_longer() {
        let throttle = LoginThrottle::new();
        for _ in 0..5 {
            assert!(throttle.begin(Some("anna"), from(1), NOW).is_ok());
        }
        let wait =
            |second| throttle.begin(Some("anna"), from(1), at(second)).map(drop).map_err(|w| w.as_secs());
        assert_eq!(wait(0), Err(1));
        assert_eq!(wait(1), Ok(()));
        assert_eq!(wait(1), Err(2), "a try that had to wait does not count");
        assert_eq!(wait(3), Ok(()));
        assert_eq!(wait(4), Err(3));
        assert!(throttle.begin(Some("bert"), from(1), at(4)).is_ok(), "others may");
        assert!(throttle.begin(Some("anna"), from(1), at(4 * 3_600)).is_ok(), "it is forgotten");
    }

    #[test]
    fn an_account_is_guarded_wherever_the_tries_come_from() {
        let throttle = LoginThrottle::new();
        let day = (0..86_400).filter(|second| {
            let address = IpAddr::from([10, 0, (second >> 8) as u8, *second as u8]);
            throttle.begin(Some("anna"), address, at(*second)).is_ok()
        });
        let day = day.count();
        assert!((90..130).contains(&day), "{day} tries a day");
    }

    #[test]
    fn an_address_is_guarded_whatever_names_it_tries() {
        let throttle = LoginThrottle::new();
        let hour = (0..3_600)
            .filter(|second| throttle.begin(Some(&format!("name{second}")), from(1), at(*second)).is_ok());
        let hour = hour.count();
        assert!((100..170).contains(&hour), "{hour} tries an hour");
        let in_network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, last]);
        let tried = (0..40).filter(|last| throttle.begin(None, in_network(*last), NOW).is_ok()).count();
        assert_eq!(tried, 20, "a network of IPv6 is one customer");
    }

    #[test]
    fn guesses_from_elsewhere_do_not_lock_the_holder_out() {
        let throttle = LoginThrottle::new();
        let first = throttle.begin(Some("anna"), from(1), NOW).unwrap();
        throttle.record_success(first, NOW);
        guesses(&throttle, "anna", from(2), 0..600);
        assert!(throttle.begin(Some("anna"), from(2), at(600)).is_err());
        assert!(throttle.begin(Some("anna"), from(3), at(600)).is_err(), "nor from a third place");
        assert!(throttle.begin(Some("anna"), from(1), at(600)).is_ok());
        assert!(guesses(&throttle, "anna", from(1), 600..1_200) < 15, "and guessing at home is as slow");
    }

    #[test]
    fn success_clears_the_account_and_not_the_address() {
        let throttle = LoginThrottle::new();
        for number in 0..19 {
            assert!(throttle.begin(Some(&format!("name{number}")), from(1), NOW).is_ok());
        }
        for _ in 0..50 {
            let own = throttle.begin(Some("own"), from(1), NOW).unwrap();
            throttle.record_success(own, NOW);
        }
        assert!(throttle.begin(Some("name"), from(1), NOW).is_ok());
        assert!(throttle.begin(Some("other"), from(1), NOW).is_err());
        let withdrawn = throttle.begin(Some("anna"), from(2), NOW).unwrap();
        throttle.withdraw(withdrawn);
        for _ in 0..5 {
            assert!(throttle.begin(Some("anna"), from(2), NOW).is_ok());
        }
    }

    /// Promise 7.
    #[test]
    fn memory_is_bounded_and_what_failed_often_stays() {
        let throttle = LoginThrottle::new();
        guesses(&throttle, "anna", from(1), 0..60);
        for number in 0..FAILURE_COUNTERS_MAX as u32 + 100 {
            let _ = throttle.begin(None, IpAddr::from((10 << 24 | number).to_be_bytes()), at(60));
        }
        assert!(throttle.state().counters.len() <= FAILURE_COUNTERS_MAX);
        assert!(throttle.begin(Some("anna"), from(9), at(60)).is_err());
    }

    proptest! {
        /// However throttle are spread, no more get through than the free ones and those that decay allows.
        #[test]
        fn no_pattern_gets_more_tries(gaps in proptest::collection::vec(0u64..2_000, 1..200)) {
            let throttle = LoginThrottle::new();
            let (mut now, mut let_through) = (0, 0u64);
            for gap in gaps {
                now += gap;
                let_through += u64::from(throttle.begin(Some("anna"), from((now % 250) as u8),
                    at(now)).is_ok());
            }
            prop_assert!(let_through <= 16 + now / 450, "{} in {} s", let_through, now);
        }
    }
}
