//! Files of recordings: a directory for each run of the service, segments in it, and an upper bound for all
//! of them.
//!
//! ```text
//! DIR/run-2026-11-21T22-48-00.123Z/000000.lhr      whole lines; the last may be torn after a kill
//!                                  000001.lhr
//! ```
//!
//! Runs are removed as a whole, the oldest first: a recording without its beginning tells nothing.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use longhaul_model::{Fault, FaultCode, Timestamp, units};

const PREFIX: &str = "run-";
const SUFFIX: &str = "lhr";
/// A segment is left when it is so large.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Runs begun within the same millisecond; more is a clock that stands.
const SAME_TIME_MAX: u32 = 1_000;

pub struct Files {
    run: PathBuf,
    bytes_max: u64,
    /// What this run has written.
    bytes: u64,
    segment: Option<(File, u64)>,
    segments: u32,
    /// Earlier runs with their sizes, newest first.
    others: Vec<(PathBuf, u64)>,
}

impl Files {
    /// Makes the directory of a new run, and room for it: half of the bound at least.
    pub fn begin(root: &Path, bytes_max: u64, now: Timestamp) -> Result<Files, Fault> {
        let trouble = |error: io::Error| {
            let detail = format!(
                "service.record_dir: {}: {error}; choose a directory that the service may write, or leave it \
                    out",
                root.display()
            );
            Fault::new(FaultCode::StateDirectory, detail)
        };
        let mut builder = DirBuilder::new();
        builder.mode(0o700).recursive(true).create(root).map_err(trouble)?;
        builder.recursive(false);
        let others = runs(root).map_err(trouble)?;
        let name = format!("{PREFIX}{}", now.to_string().replace(':', "-"));
        let names = (1..SAME_TIME_MAX).map(|count| match count {
            1 => name.clone(),
            count => format!("{name}-{count:03}"),
        });
        for name in names {
            let run = root.join(name);
            match builder.create(&run) {
                Ok(()) => {
                    let mut files = Files { run, bytes_max, bytes: 0, segment: None, segments: 0, others };
                    files.make_room(bytes_max / 2).map_err(trouble)?;
                    return Ok(files);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(trouble(error)),
            }
        }
        Err(trouble(io::ErrorKind::AlreadyExists.into()))
    }

    pub fn run(&self) -> &Path {
        &self.run
    }

    /// Whole lines.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = lines.len() as u64;
        if !self.make_room(length)? {
            return Err(io::Error::other(format!(
                "{} have been recorded, and service.record_bytes allows no more",
                units::bytes(self.bytes)
            )));
        }
        let left = matches!(&self.segment, Some((_, bytes)) if *bytes + length > SEGMENT_BYTES);
        if left {
            self.end()?;
        }
        let (file, bytes) = match &mut self.segment {
            Some(segment) => segment,
            none => none.insert((new_segment(&self.run, &mut self.segments)?, 0)),
        };
        file.write_all(lines)?;
        *bytes += length;
        self.bytes += length;
        Ok(())
    }

    /// What was written is on the disk.
    pub fn end(&mut self) -> io::Result<()> {
        match self.segment.take() {
            Some((file, _)) => file.sync_all(),
            None => Ok(()),
        }
    }

    /// Removes earlier runs until so many bytes more may be written; whether they may.
    fn make_room(&mut self, more: u64) -> io::Result<bool> {
        let wanted = self.bytes.saturating_add(more);
        loop {
            let others: u64 = self.others.iter().map(|(_, bytes)| bytes).sum();
            if wanted.saturating_add(others) <= self.bytes_max {
                return Ok(true);
            }
            let Some((oldest, _)) = self.others.pop() else { return Ok(false) };
            fs::remove_dir_all(&oldest)?;
        }
    }
}

fn new_segment(run: &Path, segments: &mut u32) -> io::Result<File> {
    let path = run.join(format!("{segments:06}.{SUFFIX}"));
    *segments += 1;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Earlier runs, newest first. What is not a run of ours is left alone.
fn runs(root: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if ours && entry.file_type()?.is_dir() {
            let mut bytes = 0;
            for segment in fs::read_dir(entry.path())? {
                bytes += segment?.metadata()?.len();
            }
            found.push((entry.path(), bytes));
        }
    }
    found.sort_by(|one, other| other.0.cmp(&one.0));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    fn total(root: &Path) -> u64 {
        runs(root).unwrap().iter().map(|(_, bytes)| bytes).sum()
    }

    #[test]
    fn the_oldest_runs_go_and_the_bound_holds() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("recordings");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("notes.txt"), "mine").unwrap();
        for run in 0..5 {
            let mut files = Files::begin(&root, 1_000, at(run)).unwrap();
            files.write(&[b'x'; 300]).unwrap();
            files.end().unwrap();
            assert!(total(&root) <= 1_000);
        }
        let left = runs(&root).unwrap();
        assert_eq!(left.len(), 2, "a new run has half of the bound for itself");
        assert!(left[0].0.ends_with("run-2027-01-15T08-00-04.000Z"), "{left:?}");
        assert!(root.join("notes.txt").exists());
    }

    #[test]
    fn a_run_that_is_larger_than_the_bound_ends_and_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut before = Files::begin(directory.path(), 1_000, at(0)).unwrap();
        before.write(&[b'x'; 200]).unwrap();
        let mut files = Files::begin(directory.path(), 1_000, at(0)).unwrap();
        assert_ne!(before.run(), files.run(), "two runs of one time");
        for _ in 0..3 {
            files.write(&[b'x'; 300]).unwrap();
        }
        assert!(!before.run().exists());
        let why = files.write(&[b'x'; 300]).unwrap_err().to_string();
        assert!(why.contains("service.record_bytes"), "{why}");
        files.write(&[b'x'; 100]).unwrap();
        assert_eq!(total(directory.path()), 1_000);
    }
}
