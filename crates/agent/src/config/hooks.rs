//! `[agent.storages.hooks]`: a site's own commands around the files of a storage.

use serde::{Deserialize, Serialize};

use crate::command;

/// Concurrent commands of one storage.
const AT_ONCE_MAX: usize = 1_000;
/// Upper bound of the time limit: a day.
const TIMEOUT_MAX_S: u32 = 86_400;

/// The commands of one storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HooksConfig {
    /// The program's absolute path and its first arguments. Empty: files are not validated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub validate: Vec<String>,
    /// The same for deletions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delete: Vec<String>,
    /// Whether `validate` also runs before a transfer.
    #[serde(default = "yes")]
    pub before: bool,
    #[serde(default = "default_at_once")]
    pub at_once: usize,
    /// Seconds until a command is ended.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
}

fn yes() -> bool {
    true
}

/// As in PhEDEx.
fn default_at_once() -> usize {
    10
}

fn default_timeout_s() -> u32 {
    600
}

impl HooksConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        command::check_command("hooks.validate", &self.validate)?;
        command::check_command("hooks.delete", &self.delete)?;
        if !(1..=AT_ONCE_MAX).contains(&self.at_once) {
            return Err(format!("hooks.at_once is {}, 1 to {AT_ONCE_MAX} is expected", self.at_once));
        }
        if !(1..=TIMEOUT_MAX_S).contains(&self.timeout_s) {
            return Err(format!("hooks.timeout_s is {}, 1 to {TIMEOUT_MAX_S} is expected", self.timeout_s));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_command_is_refused() {
        let config = |text: &str| toml::from_str::<HooksConfig>(text).unwrap();
        let said = |text: &str| config(text).check().unwrap_err();
        assert_eq!(config("validate = ['/bin/true', 'x']").check(), Ok(()));
        assert_eq!((config("").at_once, config("").timeout_s, config("").before), (10, 600, true));
        assert!(said("validate = ['true']").contains("hooks.validate begins with the whole path"));
        assert!(said("delete = ['/bin/rm', \"\\u0000\"]").contains("hooks.delete is no command"));
        assert!(said("at_once = 0").contains("hooks.at_once is 0"));
        assert!(said("timeout_s = 90000").contains("hooks.timeout_s is 90000"));
    }
}
