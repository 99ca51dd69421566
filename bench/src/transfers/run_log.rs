//! Append-only log of measured runs (`--book FILE`), from which an interrupted session goes on: a line for
//! each run that has ended, and no run is made twice.
//!
//! All cases in five rounds take hours. With such a log they can be measured bit by bit while a machine is
//! quiet, an interruption loses one run, and tables can be printed again without measuring. A log with runs
//! of another build of ours is refused: all runs of one log are of one build. A run that failed is not
//! logged, so it is tried again.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use longhaul_model::digest::PartDigest;
use serde::{Deserialize, Serialize};

use super::run::{Failure, Measured};

pub(crate) struct RunLog {
    path: PathBuf,
    file: File,
    lines: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Build {
    /// crc32c of our program.
    build: u32,
}

#[derive(Serialize, Deserialize)]
struct Line {
    case: String,
    program: String,
    run: StoredRun,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredRun {
    Measured(Measured),
    TooSlow { limit_s: u64, below_mb_per_s: f64 },
}

impl RunLog {
    /// Opens or creates the log of the program at `binary`.
    pub(crate) fn open(path: &Path, binary: &Path) -> Result<RunLog, String> {
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        let bytes = std::fs::read(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
        let build = PartDigest::compute(&bytes).crc32c;
        let text = if path.exists() { std::fs::read_to_string(path).map_err(told)? } else { String::new() };
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(told)?;
        // A session that was killed may have left half a line.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines = whole.lines().enumerate();
        match lines.next() {
            None => {
                file.set_len(0).map_err(told)?;
                writeln!(file, "{}", json(&Build { build })).map_err(told)?;
            }
            Some((_, first)) => {
                let kept: Build = read(path, 0, first)?;
                if kept.build != build {
                    return Err(format!(
                        "{}: has runs of another build of longhaul: begin another book, or build what it was \
                            begun with",
                        path.display()
                    ));
                }
                file.set_len(whole.len() as u64).map_err(told)?;
            }
        }
        let lines = lines.map(|(number, line)| read(path, number, line)).collect::<Result<_, _>>()?;
        Ok(RunLog { path: path.to_owned(), file, lines })
    }

    pub(crate) fn runs(&self, case: &str, program: &str) -> Vec<Result<Measured, Failure>> {
        let lines = self.lines.iter().filter(|line| line.case == case && line.program == program);
        lines.map(|line| line.run.clone().into()).collect()
    }

    pub(crate) fn append(
        &mut self,
        case: &str,
        program: &str,
        run: &Result<Measured, Failure>,
    ) -> Result<(), String> {
        let run = match run {
            Ok(run) => StoredRun::Measured(run.clone()),
            Err(Failure::TooSlow { limit_s, below_mb_per_s }) => {
                StoredRun::TooSlow { limit_s: *limit_s, below_mb_per_s: *below_mb_per_s }
            }
            Err(Failure::Failed(_)) => return Ok(()),
        };
        let line = Line { case: case.to_owned(), program: program.to_owned(), run };
        let written = writeln!(self.file, "{}", json(&line));
        self.lines.push(line);
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

impl From<StoredRun> for Result<Measured, Failure> {
    fn from(kept: StoredRun) -> Result<Measured, Failure> {
        match kept {
            StoredRun::Measured(run) => Ok(run),
            StoredRun::TooSlow { limit_s, below_mb_per_s } => {
                Err(Failure::TooSlow { limit_s, below_mb_per_s })
            }
        }
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("numbers and texts")
}

fn read<T: serde::de::DeserializeOwned>(path: &Path, number: usize, line: &str) -> Result<T, String> {
    serde_json::from_str(line).map_err(|error| format!("{}:{}: {error}", path.display(), number + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_there_again_and_half_a_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (path, binary) = (folder.path().join("book"), folder.path().join("longhaul"));
        std::fs::write(&binary, "a build").unwrap();
        let run = Measured { seconds: 2.0, bytes: 7, second_half: Some(1.5), ..Measured::default() };
        let slow = Failure::TooSlow { limit_s: 20, below_mb_per_s: 3.5 };
        let mut log = RunLog::open(&path, &binary).unwrap();
        log.append("lan-2g", "longhaul", &Ok(run)).unwrap();
        log.append("lan-2g", "rsync", &Err(slow)).unwrap();
        log.append("lan-2g", "curl", &Err(Failure::Failed("not there".into()))).unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], b"{\"case\":\"la"].concat()).unwrap();

        let mut log = RunLog::open(&path, &binary).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        let runs = log.runs("lan-2g", "longhaul");
        assert_eq!(runs.len(), 1);
        let run = runs[0].as_ref().unwrap();
        assert_eq!((run.seconds, run.bytes, run.second_half), (2.0, 7, Some(1.5)));
        assert!(matches!(log.runs("lan-2g", "rsync")[..], [Err(Failure::TooSlow { limit_s: 20, .. })]));
        assert!(log.runs("lan-2g", "curl").is_empty() && log.runs("lan-20x100m", "longhaul").is_empty());
        log.append("lan-2g", "curl", &Ok(Measured::default())).unwrap();
        assert_eq!(RunLog::open(&path, &binary).unwrap().runs("lan-2g", "curl").len(), 1);
    }

    #[test]
    fn runs_of_another_build_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, binary) = (folder.path().join("book"), folder.path().join("longhaul"));
        std::fs::write(&binary, "a build").unwrap();
        drop(RunLog::open(&path, &binary).unwrap());
        std::fs::write(&binary, "another").unwrap();
        assert!(RunLog::open(&path, &binary).err().unwrap().contains("another build"));
    }
}
