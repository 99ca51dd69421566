//! `[agent.storages.mover]`: a site's own command that brings files in place of the engine.

use longhaul_model::StorageName;
use serde::{Deserialize, Serialize};

use super::source_names::SourceNames;
use crate::command;

/// Maximum files of one command; fdtcp's batches had ten.
const FILES_MAX: usize = 10_000;
/// Upper bound of concurrent commands.
const AT_ONCE_MAX: usize = 100;
/// Upper bound of the time limit: a week.
const TIMEOUT_MAX_S: u32 = 7 * 86_400;
/// Maximum number of sources of one mover command.
const SOURCES_MAX: usize = 1_000;

/// The mover of one storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoverConfig {
    /// The program, by its whole path, and its arguments. `{copyjob}` and `{report}` stand for the two files;
    /// if neither stands anywhere, both come last.
    pub command: Vec<String>,
    /// Files of one command.
    #[serde(default = "default_files")]
    pub files: usize,
    /// Concurrent commands.
    #[serde(default = "default_at_once")]
    pub at_once: usize,
    /// Seconds until a command is ended.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// The sources from which it fetches, and their names for files. The engine fetches from all others.
    pub sources: Vec<SourceNames>,
}

fn default_files() -> usize {
    10
}

fn default_at_once() -> usize {
    3
}

fn default_timeout_s() -> u32 {
    6 * 3_600
}

impl MoverConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.command.is_empty() {
            return Err("mover.command is empty: name a program by its whole path".into());
        }
        command::check_command("mover.command", &self.command)?;
        let bounds = [
            ("files", self.files, FILES_MAX),
            ("at_once", self.at_once, AT_ONCE_MAX),
            ("timeout_s", self.timeout_s as usize, TIMEOUT_MAX_S as usize),
        ];
        for (name, value, most) in bounds {
            if !(1..=most).contains(&value) {
                return Err(format!("mover.{name} is {value}, 1 to {most} is expected"));
            }
        }
        if self.sources.is_empty() || self.sources.len() > SOURCES_MAX {
            return Err(format!("mover.sources has to name 1 to {SOURCES_MAX} source storages"));
        }
        for (place, source) in self.sources.iter().enumerate() {
            if self.sources[..place].iter().any(|other| other.storage == source.storage) {
                return Err(format!("mover.sources names {} twice", source.storage));
            }
            source.check().map_err(|why| format!("mover.sources, {}: {why}", source.storage))?;
        }
        Ok(())
    }

    pub(crate) fn source(&self, storage: &StorageName) -> Option<&SourceNames> {
        self.sources.iter().find(|source| source.storage == *storage)
    }

    /// The command line with the two files in place.
    pub(crate) fn words(&self, copyjob: &str, report: &str) -> Vec<String> {
        let placed = self.command.iter().any(|word| word.contains(COPYJOB) || word.contains(REPORT));
        let put = |word: &String| word.replace(COPYJOB, copyjob).replace(REPORT, report);
        let mut words: Vec<String> = self.command.iter().map(put).collect();
        if !placed {
            words.extend([copyjob.to_owned(), report.to_owned()]);
        }
        words
    }
}

/// Stands for the copyjobfile in the configured command.
const COPYJOB: &str = "{copyjob}";
/// Stands for the reportfile in the configured command.
const REPORT: &str = "{report}";

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "command = ['/bin/mover', '--report={report}', '{copyjob}']\n[[sources]]\nstorage = \
        'alpha'\nurl = 'fdt://a:1/d'\n";

    fn config(text: &str) -> MoverConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn placeholders_are_replaced() {
        let good = config(GOOD);
        good.check().unwrap();
        assert_eq!(good.words("/c", "/r"), ["/bin/mover", "--report=/r", "/c"]);
        let plain = config(&GOOD.replace(", '--report={report}', '{copyjob}'", ""));
        assert_eq!(plain.words("/c", "/r"), ["/bin/mover", "/c", "/r"]);
        assert_eq!((good.files, good.at_once, good.timeout_s), (10, 3, 21_600));
    }

    #[test]
    fn an_unusable_command_is_refused() {
        let why = |from: &str, to: &str| config(&GOOD.replace(from, to)).check().unwrap_err();
        assert!(why("'/bin/mover'", "'mover'").contains("mover.command begins with the whole path"));
        assert!(why("'/bin/mover', '--report={report}', '{copyjob}'", "").contains("command is empty"));
        assert!(why("[[sources]]", "files = 0\n[[sources]]").contains("mover.files is 0, 1 to 10000"));
        assert!(why("[[sources]]", "timeout_s = 999999\n[[sources]]").contains("mover.timeout_s"));
        let twice = format!("{GOOD}[[sources]]\nstorage = 'alpha'\nurl = 'x:/'\n");
        assert!(config(&twice).check().unwrap_err().contains("names alpha twice"));
        assert!(why("url = 'fdt://a:1/d'", "").contains("mover.sources, alpha: set either url"));
    }
}
