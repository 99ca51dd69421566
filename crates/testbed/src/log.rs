//! What a process says on its standard error: kept in a file, and readable line by line as it comes.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeWriter, Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines kept for those who wait; older ones are in the file only.
const LINES_MAX: usize = 200_000;
/// Lines shown when a test fails: of the end, and of warnings and errors before it.
const TAIL_LINES: usize = 10;
const WARNINGS_SHOWN: usize = 15;
/// Whoever has watched a process to its end writes this behind what it said; it gets into no log.
const END_MARK: &[u8] = b"\0this was all\n";

/// One process's log over all its restarts. Clones are the same log.
#[derive(Clone, Default)]
pub struct Log(Arc<LogBuffer>);

#[derive(Default)]
struct LogBuffer {
    lines: Mutex<Lines>,
    more: Condvar,
}

#[derive(Default)]
struct Lines {
    kept: Vec<String>,
    /// Lines that came before the first kept one.
    dropped: usize,
    /// Marks of an end that have come.
    ends: usize,
}

impl Log {
    /// Copies everything from `source` to `file` and to this log, until it ends.
    pub(crate) fn follow(&self, source: impl Read + Send + 'static, file: &Path) {
        let log = self.clone();
        let mut file = File::options().create(true).append(true).open(file).expect("the log file opens");
        std::thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while source.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let ends = line.ends_with(END_MARK);
                if ends {
                    line.truncate(line.len() - END_MARK.len());
                }
                if !line.is_empty() {
                    // A full disk must not stop the process that is being tested.
                    let _ = file.write_all(&line);
                    log.push(String::from_utf8_lossy(&line).trim_end().to_owned());
                }
                if ends {
                    log.lines().ends += 1;
                    log.0.more.notify_all();
                }
                line.clear();
            }
        });
    }

    /// Waits until this log has all that has been written into a pipe that it follows, whoever else may still
    /// write there.
    pub(crate) fn catch_up(&self, mut pipe: &PipeWriter, within: Duration) {
        let seen = self.lines().ends;
        // What was written before it is read before it.
        if pipe.write_all(END_MARK).is_ok() {
            drop(self.0.more.wait_timeout_while(self.lines(), within, |lines| lines.ends == seen));
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: String) {
        let mut lines = self.lines();
        if lines.kept.len() == LINES_MAX {
            lines.kept.drain(..LINES_MAX / 2);
            lines.dropped += LINES_MAX / 2;
        }
        lines.kept.push(line);
        self.0.more.notify_all();
    }

    /// Lines so far: where to begin waiting for what has not been said yet.
    pub fn len(&self) -> usize {
        let lines = self.lines();
        lines.dropped + lines.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for a line after the first `from` that contains all of `parts`; none if it does not come in
    /// time.
    pub fn wait_for(&self, from: usize, parts: &[&str], within: Duration) -> Option<String> {
        let until = Instant::now() + within;
        let mut next = from;
        let mut lines = self.lines();
        loop {
            let begin = next.saturating_sub(lines.dropped).min(lines.kept.len());
            if let Some(found) =
                lines.kept[begin..].iter().find(|line| parts.iter().all(|part| line.contains(part)))
            {
                return Some(found.clone());
            }
            next = lines.dropped + lines.kept.len();
            let left = until.checked_duration_since(Instant::now())?;
            lines = self.0.more.wait_timeout(lines, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Every kept line that contains all of `parts`.
    pub fn lines_with(&self, parts: &[&str]) -> Vec<String> {
        let lines = self.lines();
        lines.kept.iter().filter(|line| parts.iter().all(|part| line.contains(part))).cloned().collect()
    }

    /// The last warnings and errors, and the end.
    pub fn tail(&self) -> String {
        let lines = self.lines();
        let (before, end) = lines.kept.split_at(lines.kept.len().saturating_sub(TAIL_LINES));
        let is_warning =
            |line: &&String| !line.contains("\"level\":\"INFO\"") && !line.contains("\"level\":\"DEBUG\"");
        let mut shown: Vec<&String> = before.iter().rev().filter(is_warning).take(WARNINGS_SHOWN).collect();
        shown.reverse();
        shown.into_iter().chain(end).cloned().collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_waited_for_and_kept_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (reader, mut writer) = std::io::pipe().unwrap();
        let log = Log::default();
        log.follow(reader, &path);
        writer.write_all(b"one began\ntwo began\n").unwrap();
        let found = log.wait_for(0, &["two", "began"], Duration::from_secs(60));
        assert_eq!(found.as_deref(), Some("two began"));
        let seen = log.len();
        assert_eq!(
            log.wait_for(seen, &["began"], Duration::ZERO),
            None,
            "what was said before does not count"
        );
        writer.write_all(b"three began\n").unwrap();
        assert!(log.wait_for(seen, &["began"], Duration::from_secs(60)).is_some());
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 3);
    }
}
