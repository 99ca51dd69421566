//! How soon a password may be tried again: by whose account it is, and by where the try comes from. Each
//! failure makes the next wait longer; time lets failures be forgotten, one after the other.
//!
//! A try counts as failed from its beginning, so that many at once are as many. Where an account was logged
//! in to lately it has a count of its own: whoever guesses from elsewhere does not lock its holder out. Names
//! are counted whether there is such an account or not. In memory and bounded: what has failed least makes
//! room.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_model::Timestamp;

use crate::text;

/// Of an account: five tries, then waits of 1, 2, 4 … seconds. In the long run four tries an hour.
const ACCOUNT_POLICY: ThrottlePolicy = ThrottlePolicy {
    free_failures: 5,
    wait_max: Duration::from_secs(900),
    decay_interval: Duration::from_secs(900),
};
/// Of an address, behind which many people may sit: in the long run two failures a minute.
const ADDRESS_POLICY: ThrottlePolicy = ThrottlePolicy {
    free_failures: 20,
    wait_max: Duration::from_secs(300),
    decay_interval: Duration::from_secs(30),
};
/// Counts in memory, some hundred bytes each.
const FAILURE_COUNTERS_MAX: usize = 20_000;
/// Accounts and the addresses they were logged in to from.
const TRUSTED_ORIGINS_MAX: usize = 20_000;
const TRUSTED_ORIGIN_TTL: Duration = Duration::from_secs(30 * 86_400);

struct ThrottlePolicy {
    /// Failures without a wait.
    free_failures: u32,
    wait_max: Duration,
    /// One failure is forgotten in this time.
    decay_interval: Duration,
}

/// Failures of late.
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
    /// By the hash of its name: names come from outside and are of any length.
    Account([u8; 32]),
    /// From where it was logged in to before.
    TrustedOrigin([u8; 32], IpAddr),
}

struct FailureCounter {
    failures: u32,
    /// The last try.
    last: Timestamp,
    /// From where on time has not been counted as forgotten yet.
    since: Timestamp,
}

/// A try under way, counted as failed.
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

    /// Counts a try; `account` is what was given as its name, none where there is no password to guess. The
    /// error is how long to wait for the next one; a try that had to wait does not count.
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

    /// The password was right.
    pub fn record_success(&self, attempt: LoginAttempt, now: Timestamp) {
        let mut state = self.state();
        for key in &attempt.keys {
            match key {
                // Whoever has an account of their own must not clear what they do to those of others.
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

    /// It was not looked at: it is as if it had not been made.
    pub fn withdraw(&self, attempt: LoginAttempt) {
        let mut state = self.state();
        attempt.keys.iter().for_each(|key| state.remove_failure(key));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here can stop half-way: what a panicking thread left is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remaining_delay(&mut self, key: &Key, now: Timestamp) -> Duration {
        let Some(count) = self.counters.get_mut(key) else { return Duration::ZERO };
        count.decay(key.policy(), now);
        let wait = key.policy().delay(count.failures);
        // Clocks jump: nobody waits for longer than that.
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
    /// After so many failures.
    fn delay(&self, failures: u32) -> Duration {
        match failures.checked_sub(self.free_failures) {
            None => Duration::ZERO,
            Some(doublings) => Duration::from_secs(1 << doublings.min(20)).min(self.wait_max),
        }
    }
}

/// What one customer of a provider has: an address of IPv4, or a /64 of IPv6.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
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

    /// Tries once a second; how many were let through.
    fn guesses(
        attempts: &LoginThrottle,
        account: &str,
        address: IpAddr,
        seconds: std::ops::Range<u64>,
    ) -> usize {
        seconds.filter(|second| attempts.begin(Some(account), address, at(*second)).is_ok()).count()
    }

    #[test]
    fn each_failure_makes_the_next_wait_longer() {
        let attempts = LoginThrottle::new();
        for _ in 0..5 {
            assert!(attempts.begin(Some("anna"), from(1), NOW).is_ok());
        }
        let wait =
            |second| attempts.begin(Some("anna"), from(1), at(second)).map(drop).map_err(|w| w.as_secs());
        assert_eq!(wait(0), Err(1));
        assert_eq!(wait(1), Ok(()));
        assert_eq!(wait(1), Err(2), "a try that had to wait does not count");
        assert_eq!(wait(3), Ok(()));
        assert_eq!(wait(4), Err(3));
        assert!(attempts.begin(Some("bert"), from(1), at(4)).is_ok(), "others may");
        assert!(attempts.begin(Some("anna"), from(1), at(4 * 3_600)).is_ok(), "it is forgotten");
    }

    #[test]
    fn an_account_is_guarded_wherever_the_tries_come_from() {
        let attempts = LoginThrottle::new();
        let day = (0..86_400).filter(|second| {
            let address = IpAddr::from([10, 0, (second >> 8) as u8, *second as u8]);
            attempts.begin(Some("anna"), address, at(*second)).is_ok()
        });
        let day = day.count();
        assert!((90..130).contains(&day), "{day} tries a day");
    }

    #[test]
    fn an_address_is_guarded_whatever_names_it_tries() {
        let attempts = LoginThrottle::new();
        let hour = (0..3_600)
            .filter(|second| attempts.begin(Some(&format!("name{second}")), from(1), at(*second)).is_ok());
        let hour = hour.count();
        assert!((100..170).contains(&hour), "{hour} tries an hour");
        let in_network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, last]);
        let tried = (0..40).filter(|last| attempts.begin(None, in_network(*last), NOW).is_ok()).count();
        assert_eq!(tried, 20, "a network of IPv6 is one customer");
    }

    #[test]
    fn guesses_from_elsewhere_do_not_lock_the_holder_out() {
        let attempts = LoginThrottle::new();
        let first = attempts.begin(Some("anna"), from(1), NOW).unwrap();
        attempts.record_success(first, NOW);
        guesses(&attempts, "anna", from(2), 0..600);
        assert!(attempts.begin(Some("anna"), from(2), at(600)).is_err());
        assert!(attempts.begin(Some("anna"), from(3), at(600)).is_err(), "nor from a third place");
        assert!(attempts.begin(Some("anna"), from(1), at(600)).is_ok());
        assert!(guesses(&attempts, "anna", from(1), 600..1_200) < 15, "and guessing at home is as slow");
    }

    #[test]
    fn success_clears_the_account_and_not_the_address() {
        let attempts = LoginThrottle::new();
        for number in 0..19 {
            assert!(attempts.begin(Some(&format!("name{number}")), from(1), NOW).is_ok());
        }
        for _ in 0..50 {
            let own = attempts.begin(Some("own"), from(1), NOW).unwrap();
            attempts.record_success(own, NOW);
        }
        assert!(attempts.begin(Some("name"), from(1), NOW).is_ok());
        assert!(attempts.begin(Some("other"), from(1), NOW).is_err());
        let withdrawn = attempts.begin(Some("anna"), from(2), NOW).unwrap();
        attempts.withdraw(withdrawn);
        for _ in 0..5 {
            assert!(attempts.begin(Some("anna"), from(2), NOW).is_ok());
        }
    }

    /// Promise 7.
    #[test]
    fn memory_is_bounded_and_what_failed_often_stays() {
        let attempts = LoginThrottle::new();
        guesses(&attempts, "anna", from(1), 0..60);
        for number in 0..FAILURE_COUNTERS_MAX as u32 + 100 {
            let _ = attempts.begin(None, IpAddr::from((10 << 24 | number).to_be_bytes()), at(60));
        }
        assert!(attempts.state().counters.len() <= FAILURE_COUNTERS_MAX);
        assert!(attempts.begin(Some("anna"), from(9), at(60)).is_err());
    }

    proptest! {
        /// However tries are spread: never more than the free ones and what time allows.
        #[test]
        fn no_pattern_gets_more_tries(gaps in proptest::collection::vec(0u64..2_000, 1..200)) {
            let attempts = LoginThrottle::new();
            let (mut now, mut let_through) = (0, 0u64);
            for gap in gaps {
                now += gap;
                let_through += u64::from(attempts.begin(Some("anna"), from((now % 250) as u8), at(now)).is_ok());
            }
            prop_assert!(let_through <= 16 + now / 450, "{} in {} s", let_through, now);
        }
    }
}
