//! `[service.staging]`: how much is brought from tape for subscriptions at once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::queue::StagingLimits;

/// Upper bound of files ordered at once: what an agent's tape queue holds.
const FILES_MAX: u32 = 100_000;
/// Upper bound of pins and of the time given to a tape system: thirty days.
const SECONDS_MAX: u32 = 30 * 86_400;

/// Files brought from tape for subscriptions, per tape-backed storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagingConfig {
    /// Files ordered or on disk for a transfer at once.
    #[serde(default = "default_files")]
    pub files: u32,
    /// How long a staged file stays on disk if it is not read.
    #[serde(default = "default_pin_s")]
    pub pin_s: u32,
    /// An order without an answer for this long is given again.
    #[serde(default = "default_order_timeout_s")]
    pub order_timeout_s: u32,
}

/// What a tape system mounts cartridges for at once (CTA: 10,000 files), and an agent keeps easily.
fn default_files() -> u32 {
    10_000
}

/// Two days: a link that is down over a night costs no second mount.
fn default_pin_s() -> u32 {
    172_800
}

/// A day: recalls wait for drives through a night.
fn default_order_timeout_s() -> u32 {
    86_400
}

impl Default for StagingConfig {
    fn default() -> Self {
        StagingConfig {
            files: default_files(),
            pin_s: default_pin_s(),
            order_timeout_s: default_order_timeout_s(),
        }
    }
}

impl StagingConfig {
    /// Says which value is out of its bounds.
    ///
    /// # Errors
    /// The name of the setting, its value, and what is expected.
    pub fn check(&self) -> Result<(), String> {
        let bounds = [
            ("files", self.files, FILES_MAX),
            ("pin_s", self.pin_s, SECONDS_MAX),
            ("order_timeout_s", self.order_timeout_s, SECONDS_MAX),
        ];
        for (name, value, most) in bounds {
            if !(1..=most).contains(&value) {
                return Err(format!("staging.{name} is {value}, 1 to {most} is expected"));
            }
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> StagingLimits {
        StagingLimits {
            files: self.files.into(),
            pin: Duration::from_secs(self.pin_s.into()),
            order_timeout: Duration::from_secs(self.order_timeout_s.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_bounds() {
        let config = StagingConfig::default();
        config.check().unwrap();
        let broken = StagingConfig { files: 100_001, ..config.clone() };
        assert_eq!(broken.check().unwrap_err(), "staging.files is 100001, 1 to 100000 is expected");
        assert!(StagingConfig { pin_s: 0, ..config }.check().is_err());
    }
}
