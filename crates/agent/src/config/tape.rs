//! What a site's administrator says about the tape behind a storage.

use serde::{Deserialize, Serialize};

use crate::command;

/// Commands of one kind at once.
const AT_ONCE_MAX: usize = 1_000;
/// Files of one command: their names have to fit into its arguments.
const BULK_MAX: usize = 1_000;
const TIMEOUT_MAX_S: u32 = 86_400;
const TAPE_TIMEOUT_MAX_S: u32 = 7 * 86_400;
const PIN_MAX_S: u32 = 10 * 365 * 86_400;
const MIGRATE_AFTER_MAX_S: u32 = 7 * 86_400;

/// The tape behind one storage: a site's own commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapeConfig {
    /// Brings files to disk: the program, by its whole path, and its first arguments.
    pub stage: Vec<String>,
    /// Says where files are. Empty: what lies on the disk is told from what is only a stub of a file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locality: Vec<String>,
    /// Brings to tape what was written. Empty: the tape system does it by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrate: Vec<String>,
    /// Takes off the disk what is on tape and needed by nobody. Empty: the tape system does it by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Files that one run of `stage`, `migrate` or `remove` is given.
    #[serde(default = "default_bulk")]
    pub bulk: usize,
    /// Commands of each kind.
    #[serde(default = "default_at_once")]
    pub at_once: usize,
    /// Seconds until `stage` or `migrate` is ended.
    #[serde(default = "default_tape_timeout_s")]
    pub tape_timeout_s: u32,
    /// Seconds until `locality` or `remove` is ended.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// Seconds that a file stays on disk if its client names no time.
    #[serde(default = "default_pin_s")]
    pub pin_s: u32,
    /// The most that clients get.
    #[serde(default = "default_pin_max_s")]
    pub pin_max_s: u32,
    /// Seconds from the arrival of a file until it is given to `migrate`: some clients rename what they have
    /// written.
    #[serde(default = "default_migrate_after_s")]
    pub migrate_after_s: u32,
}

/// Each file by itself: what comes of it is known as soon as it is there.
fn default_bulk() -> usize {
    1
}

fn default_at_once() -> usize {
    10
}

/// A recall may wait for a drive through a night.
fn default_tape_timeout_s() -> u32 {
    86_400
}

fn default_timeout_s() -> u32 {
    600
}

/// Three days, as sites of the grid have it.
fn default_pin_s() -> u32 {
    259_200
}

fn default_pin_max_s() -> u32 {
    2_592_000
}

fn default_migrate_after_s() -> u32 {
    60
}

impl TapeConfig {
    /// With every default.
    pub fn new(stage: Vec<String>) -> TapeConfig {
        TapeConfig {
            stage,
            locality: Vec::new(),
            migrate: Vec::new(),
            remove: Vec::new(),
            bulk: default_bulk(),
            at_once: default_at_once(),
            tape_timeout_s: default_tape_timeout_s(),
            timeout_s: default_timeout_s(),
            pin_s: default_pin_s(),
            pin_max_s: default_pin_max_s(),
            migrate_after_s: default_migrate_after_s(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.stage.is_empty() {
            return Err("tape.stage is empty: name the command that brings files to disk".into());
        }
        let commands = [
            ("tape.stage", &self.stage),
            ("tape.locality", &self.locality),
            ("tape.migrate", &self.migrate),
            ("tape.remove", &self.remove),
        ];
        for (name, words) in commands {
            command::check_command(name, words)?;
        }
        // Nobody would know whether the tape has a file: it would be removed before, or never count as
        // written.
        if self.locality.is_empty() && !(self.migrate.is_empty() && self.remove.is_empty()) {
            return Err("tape.migrate and tape.remove need tape.locality, which says what is on tape".into());
        }
        let bounds = [
            ("bulk", self.bulk as u64, 1, BULK_MAX as u64),
            ("at_once", self.at_once as u64, 1, AT_ONCE_MAX as u64),
            ("tape_timeout_s", self.tape_timeout_s.into(), 1, TAPE_TIMEOUT_MAX_S.into()),
            ("timeout_s", self.timeout_s.into(), 1, TIMEOUT_MAX_S.into()),
            ("pin_max_s", self.pin_max_s.into(), 1, PIN_MAX_S.into()),
            ("pin_s", self.pin_s.into(), 1, self.pin_max_s.into()),
            ("migrate_after_s", self.migrate_after_s.into(), 0, MIGRATE_AFTER_MAX_S.into()),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(format!("tape.{name} is {value}, {least} to {most} is expected"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_enough_and_mistakes_are_told() {
        let config = |text: &str| toml::from_str::<TapeConfig>(text).unwrap();
        let stage = "stage = ['/bin/stage', 'x']\n";
        assert_eq!(config(stage), TapeConfig::new(vec!["/bin/stage".into(), "x".into()]));
        assert_eq!(config(stage).check(), Ok(()));
        let again: TapeConfig = toml::from_str(&toml::to_string(&config(stage)).unwrap()).unwrap();
        assert_eq!(again, config(stage));
        for (more, why) in [
            ("migrate = ['/bin/m']", "need tape.locality"),
            ("remove = ['/bin/r']", "need tape.locality"),
            ("locality = ['where']", "tape.locality begins with the whole path"),
            ("bulk = 0", "tape.bulk is 0, 1 to 1000"),
            ("pin_s = 100\npin_max_s = 99", "tape.pin_s is 100, 1 to 99"),
            ("tape_timeout_s = 0", "tape.tape_timeout_s is 0"),
        ] {
            let told = config(&format!("{stage}{more}")).check().unwrap_err();
            assert!(told.contains(why), "{more}: {told}");
        }
        assert!(config("stage = []").check().unwrap_err().contains("tape.stage is empty"));
        assert!(toml::from_str::<TapeConfig>("").is_err());
    }
}
