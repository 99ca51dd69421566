//! The settings of tape systems (`service.jobs.tape`).

use std::time::Duration;

use longhaul_model::job::storage_element;
use longhaul_model::{Fault, FaultCode, Timestamp};
use serde::{Deserialize, Serialize};

/// Settings of tape systems.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TapeConfig {
    /// Files in one request.
    pub bulk_files: u32,
    /// Seconds that a file waits for others before an incomplete request is sent.
    pub bulk_wait_s: u32,
    /// Open requests at all tape systems together.
    pub requests: u32,
    /// Seconds until a request is polled for the first time; the interval then grows to `poll_last_s`.
    pub poll_first_s: u32,
    /// Longest interval between two polls of a request.
    pub poll_last_s: u32,
    /// Storages (`https://tape.example.org`) whose files are taken to be on tape where they do not say where
    /// they are.
    pub storages: Vec<String>,
}

impl Default for TapeConfig {
    fn default() -> Self {
        TapeConfig {
            bulk_files: 200,
            bulk_wait_s: 30,
            requests: 1_000,
            poll_first_s: 30,
            poll_last_s: 600,
            storages: Vec::new(),
        }
    }
}

impl TapeConfig {
    pub fn check(&self) -> Result<(), Fault> {
        let wrong = |text: &str| Err(Fault::new(FaultCode::BadRequest, format!("service.jobs.tape.{text}")));
        if !(1..=10_000).contains(&self.bulk_files) {
            return wrong("bulk_files: 1 to 10000 are possible");
        }
        if self.requests == 0 {
            return wrong("requests is 0: it must be positive");
        }
        if self.poll_first_s == 0 || self.poll_first_s > self.poll_last_s {
            return wrong("poll_first_s must be positive, and no more than poll_last_s");
        }
        if let Some(odd) = self.storages.iter().find(|one| storage_element(one).as_ref() != Some(*one)) {
            return wrong(&format!("storages: {odd:?} is no storage: write scheme://host, without a port"));
        }
        Ok(())
    }

    /// The next poll of a request that was made at `since`: a quarter of its age later, within bounds.
    pub(super) fn next_poll(&self, since: Timestamp, now: Timestamp) -> Timestamp {
        let [first, last] = [self.poll_first_s, self.poll_last_s].map(|s| Duration::from_secs(u64::from(s)));
        now + (now.since(since) / 4).clamp(first, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_seldom() {
        let config = TapeConfig::default();
        let at = |seconds: i64| Timestamp(seconds * 1_000_000);
        for (waited, next) in [(0, 30), (100, 30), (400, 100), (10_000, 600)] {
            assert_eq!(config.next_poll(at(0), at(waited)), at(waited + next), "after {waited} s");
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        assert!(TapeConfig::default().check().is_ok());
        for wrong in [
            TapeConfig { bulk_files: 0, ..TapeConfig::default() },
            TapeConfig { requests: 0, ..TapeConfig::default() },
            TapeConfig { poll_first_s: 700, ..TapeConfig::default() },
        ] {
            assert!(wrong.check().unwrap_err().detail.starts_with("service.jobs.tape."));
        }
    }
}
