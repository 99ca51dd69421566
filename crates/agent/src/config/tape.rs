//! `[agent.storages.tape]`: the tape system behind a storage.

use serde::{Deserialize, Serialize};

use crate::command;

/// Maximum of concurrent commands of one kind.
const AT_ONCE_MAX: usize = 1_000;
/// Maximum files of one command: their names have to fit into its arguments.
const BULK_MAX: usize = 1_000;
/// Upper bound of the time limit of quick commands: a day.
const TIMEOUT_MAX_S: u32 = 86_400;
/// Upper bound of the time limit of tape commands: a week.
const TAPE_TIMEOUT_MAX_S: u32 = 7 * 86_400;
/// Upper bound of pin lifetimes: ten years.
const PIN_MAX_S: u32 = 10 * 365 * 86_400;
/// Upper bound of the delay before migration: a week.
const MIGRATE_AFTER_MAX_S: u32 = 7 * 86_400;

/// The tape system behind one storage: a site's own commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapeConfig {
    /// Stages files to disk: the program's absolute path and its first arguments.
    pub stage: Vec<String>,
    /// Tells the locality of files. Empty: the disk shows which files are stubs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locality: Vec<String>,
    /// Tells the cartridge of files, and their positions on it. Empty: files are staged in the order in which
    /// they were wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub place: Vec<String>,
    /// Migrates written files to tape. Empty: the tape system does it by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub migrate: Vec<String>,
    /// Removes from disk what is on tape and not needed. Empty: the tape system does it by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// Deletes files from tape, before their names go. Empty: what is on tape is not deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delete: Vec<String>,
    /// Files of one `stage`, `migrate` or `remove` command.
    #[serde(default = "default_bulk")]
    pub bulk: usize,
    /// What staged files that somebody needs take up of the disk at most. None: 80 % of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_bytes: Option<u64>,
    /// Concurrent commands of each kind.
    #[serde(default = "default_at_once")]
    pub at_once: usize,
    /// Time limit of `stage` and `migrate`.
    #[serde(default = "default_tape_timeout_s")]
    pub tape_timeout_s: u32,
    /// Time limit of `locality`, `place`, `remove` and `delete`.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// Default pin lifetime.
    #[serde(default = "default_pin_s")]
    pub pin_s: u32,
    /// Maximum pin lifetime.
    #[serde(default = "default_pin_max_s")]
    pub pin_max_s: u32,
    /// Delay from a file's arrival until it is given to `migrate`: some clients rename what they have
    /// written.
    #[serde(default = "default_migrate_after_s")]
    pub migrate_after_s: u32,
}

/// One: a file's result is known as soon as it is there.
fn default_bulk() -> usize {
    1
}

fn default_at_once() -> usize {
    10
}

/// A day: a recall may wait for a drive through a night.
fn default_tape_timeout_s() -> u32 {
    86_400
}

fn default_timeout_s() -> u32 {
    600
}

/// Three days, as is usual at grid sites.
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
            place: Vec::new(),
            migrate: Vec::new(),
            remove: Vec::new(),
            delete: Vec::new(),
            bulk: default_bulk(),
            buffer_bytes: None,
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
            ("tape.place", &self.place),
            ("tape.migrate", &self.migrate),
            ("tape.remove", &self.remove),
            ("tape.delete", &self.delete),
        ];
        for (name, words) in commands {
            command::check_command(name, words)?;
        }
        // Without locality nobody would know whether the tape has a file: it would be removed too early or
        // never count as migrated.
        if self.locality.is_empty() && !(self.migrate.is_empty() && self.remove.is_empty()) {
            return Err("tape.migrate and tape.remove need tape.locality, which says what is on tape".into());
        }
        let bounds = [
            ("bulk", self.bulk as u64, 1, BULK_MAX as u64),
            ("buffer_bytes", self.buffer_bytes.unwrap_or(1), 1, u64::MAX),
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
    fn a_command_is_enough_and_mistakes_are_reported() {
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
