//! `[[agent.circuits]]`: from where circuits may be requested, and when one is worth it.

use std::path::PathBuf;
use std::time::Duration;

use longhaul_circuits::{ReleaseRule, RenewalRule, Settings, SlownessRule};
use longhaul_model::{Fault, FaultCode, StorageName};
use serde::{Deserialize, Serialize};

/// Upper bound of seconds and counts: some thirty years.
const NUMBER_MAX: u32 = 1_000_000_000;

/// Circuits from one peer. Defaults are those of the ANSE paper where it has any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CircuitLinkConfig {
    /// A storage of the peer. All sessions with its agent use the circuit, whatever storage they read.
    pub from: StorageName,
    /// Provider and addresses, as for `longhaul copy --circuit`.
    pub file: PathBuf,
    /// A circuit is requested if the queue takes longer than this at the measured rate.
    #[serde(default = "hours::<5>")]
    pub work_s: u32,
    /// Number of consecutive checks that have to find that.
    #[serde(default = "default_checks")]
    pub checks: u32,
    #[serde(default = "seconds::<60>")]
    pub check_s: u32,
    /// The circuit is released if the queue takes less than this; 0: it is kept until it expires.
    #[serde(default = "hours::<1>")]
    pub leave_work_s: u32,
    /// How long the queue has to be that short.
    #[serde(default = "seconds::<600>")]
    pub leave_during_s: u32,
    /// Minimum age of a circuit before it is released.
    #[serde(default = "seconds::<1800>")]
    pub leave_hold_s: u32,
    /// A successor is requested this long before a circuit expires; 0: only after it has expired.
    #[serde(default = "seconds::<900>")]
    pub renew_before_s: u32,
    /// A successor is requested only if the queue takes at least this.
    #[serde(default = "hours::<1>")]
    pub renew_work_s: u32,
    /// Requested lifetime; none: the provider's choice.
    #[serde(default)]
    pub lifetime_s: Option<u32>,
    #[serde(default = "seconds::<600>")]
    pub request_timeout_s: u32,
    /// Pause after a failed request.
    #[serde(default = "hours::<1>")]
    pub request_window_s: u32,
    /// Pause after a failed circuit.
    #[serde(default = "hours::<1>")]
    pub transfer_window_s: u32,
    /// How long the ends of a new circuit may take to answer.
    #[serde(default = "seconds::<60>")]
    pub probe_s: u32,
    /// How long streams may take to migrate away.
    #[serde(default = "seconds::<300>")]
    pub drain_s: u32,
    /// Use ends this long before the circuit expires.
    #[serde(default = "seconds::<60>")]
    pub leave_before_s: u32,
    /// A circuit is abandoned if it carries less than this part of what the plain path carried; 0: never.
    #[serde(default = "seconds::<80>")]
    pub slower_percent: u32,
    #[serde(default = "seconds::<300>")]
    pub slower_during_s: u32,
    /// The rate of a path is averaged over this much transfer time.
    #[serde(default = "hours::<3>")]
    pub rate_over_s: u32,
}

fn hours<const COUNT: u32>() -> u32 {
    COUNT * 3600
}

fn seconds<const COUNT: u32>() -> u32 {
    COUNT
}

fn default_checks() -> u32 {
    1
}

impl CircuitLinkConfig {
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let from = &self.from;
        let wrong =
            |why: String| Err(Fault::new(FaultCode::BadRequest, format!("circuit from {from}: {why}")));
        if !self.file.is_absolute() {
            return wrong(format!("file is {}: write it as an absolute path", self.file.display()));
        }
        for (key, value) in [("checks", self.checks), ("check_s", self.check_s), ("probe_s", self.probe_s)] {
            if value == 0 {
                return wrong(format!("{key} is 0, the least is 1"));
            }
        }
        let all = [
            ("work_s", self.work_s),
            ("checks", self.checks),
            ("check_s", self.check_s),
            ("leave_work_s", self.leave_work_s),
            ("leave_during_s", self.leave_during_s),
            ("leave_hold_s", self.leave_hold_s),
            ("renew_before_s", self.renew_before_s),
            ("renew_work_s", self.renew_work_s),
            ("lifetime_s", self.lifetime_s.unwrap_or(1)),
            ("request_timeout_s", self.request_timeout_s),
            ("request_window_s", self.request_window_s),
            ("transfer_window_s", self.transfer_window_s),
            ("probe_s", self.probe_s),
            ("drain_s", self.drain_s),
            ("leave_before_s", self.leave_before_s),
            ("slower_during_s", self.slower_during_s),
            ("rate_over_s", self.rate_over_s),
        ];
        if let Some((key, value)) = all.into_iter().find(|(_, value)| *value > NUMBER_MAX) {
            return wrong(format!("{key} is {value}, the most is {NUMBER_MAX}"));
        }
        if self.slower_percent > 100 {
            return wrong(format!("slower_percent is {}, the most is 100", self.slower_percent));
        }
        if self.leave_work_s > self.work_s {
            let (leave, work) = (self.leave_work_s, self.work_s);
            return wrong(format!(
                "leave_work_s is {leave}, more than work_s ({work}): circuits would be given back as soon as \
                    they are there"
            ));
        }
        Ok(())
    }

    /// The file's settings with this link's times.
    pub(crate) fn settings(&self, asked: Settings) -> Settings {
        let span = |seconds: u32| Duration::from_secs(seconds.into());
        Settings {
            check_interval: span(self.check_s),
            work_threshold: span(self.work_s),
            checks_in_a_row: self.checks,
            release: (self.leave_work_s > 0).then(|| ReleaseRule {
                work_below: span(self.leave_work_s),
                during: span(self.leave_during_s),
                age_min: span(self.leave_hold_s),
            }),
            renewal: (self.renew_before_s > 0).then(|| RenewalRule {
                before: span(self.renew_before_s),
                work_min: span(self.renew_work_s),
            }),
            rate_window: span(self.rate_over_s),
            slowness: (self.slower_percent > 0).then(|| SlownessRule {
                rate_share_min: f64::from(self.slower_percent) / 100.0,
                during: span(self.slower_during_s),
            }),
            lifetime: self.lifetime_s.map(span),
            request_timeout: span(self.request_timeout_s),
            request_cooldown: span(self.request_window_s),
            transfer_cooldown: span(self.transfer_window_s),
            probe_timeout: span(self.probe_s),
            drain_timeout: span(self.drain_s),
            expiry_margin: span(self.leave_before_s),
            ..asked
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL_TOML: &str = "from = 'beta'\nfile = '/etc/longhaul/beta.toml'\n";

    #[test]
    fn defaults_are_those_of_the_lifecycle_and_circuits_are_released() {
        let config: CircuitLinkConfig = toml::from_str(MINIMAL_TOML).unwrap();
        config.check().unwrap();
        let settings = config.settings(Settings { mbit: 7, ..Settings::default() });
        let hour = Duration::from_secs(3600);
        let leave = ReleaseRule { work_below: hour, during: hour / 6, age_min: hour / 2 };
        assert_eq!(settings, Settings { mbit: 7, release: Some(leave), ..Settings::default() });
    }

    #[test]
    fn mistakes_are_reported() {
        for (more, expected) in [
            ("checks = 0\n", "checks is 0"),
            ("slower_percent = 101\n", "slower_percent is 101"),
            ("work_s = 10\n", "given back as soon as they are there"),
            ("drain_s = 2000000000\n", "drain_s is 2000000000"),
        ] {
            let config: CircuitLinkConfig = toml::from_str(&format!("{MINIMAL_TOML}{more}")).unwrap();
            let fault = config.check().unwrap_err();
            assert!(fault.detail.contains(expected) && fault.detail.contains("circuit from beta"), "{fault}");
        }
        let relative: CircuitLinkConfig = toml::from_str(&MINIMAL_TOML.replace("/etc", "etc")).unwrap();
        assert!(relative.check().unwrap_err().detail.contains("absolute path"));
        assert!(toml::from_str::<CircuitLinkConfig>(&format!("{MINIMAL_TOML}works = 1\n")).is_err());
    }
}
