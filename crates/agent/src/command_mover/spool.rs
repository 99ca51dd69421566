//! Spool of one command: copyjob and report, in a directory of their own.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use longhaul_gateways::copyjob::{quoted, report_line};
use longhaul_model::{Fault, FaultCode};
use rustix::fs::OFlags;

/// Maximum size of a report: many times the longest names and texts of the largest batch.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// A spool directory, removed when dropped.
pub(super) struct Spool {
    folder: PathBuf,
}

/// Source and target, as in the copyjobfile.
pub(super) type FilePair = (String, String);

/// A report's verdict on one pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    Failed {
        status: u8,
        text: String,
    },
    /// Two lines contradict each other.
    Contradiction,
    /// There is no line for it.
    Missing,
}

impl Spool {
    /// # Errors
    /// The state directory cannot be written.
    pub(super) fn create(parent: &Path, number: u64, pairs: &[FilePair]) -> Result<Spool, Fault> {
        let spool = Spool { folder: parent.join(number.to_string()) };
        let failed = |error: std::io::Error| {
            Fault::new(FaultCode::StateDirectory, format!("{}: {error}", spool.folder.display()))
                .with_source(error)
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&spool.folder).map_err(failed)?;
        let mut file = File::create(spool.copyjob()).map_err(failed)?;
        let lines: String =
            pairs.iter().map(|(source, target)| format!("{} {}\n", quoted(source), quoted(target))).collect();
        file.write_all(lines.as_bytes()).map_err(failed)?;
        Ok(spool)
    }

    pub(super) fn copyjob(&self) -> PathBuf {
        self.folder.join("copyjob")
    }

    pub(super) fn report(&self) -> PathBuf {
        self.folder.join("report")
    }

    /// One for each pair, in their order.
    ///
    /// # Errors
    /// Why there is no report, in words.
    pub(super) fn verdicts(&self, pairs: &[FilePair]) -> Result<Vec<Verdict>, String> {
        // The command may have put anything there: follow no link, wait for no pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(self.report());
        let file = open.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "it wrote no report".to_owned(),
            _ => format!("its report cannot be read: {error}"),
        })?;
        if !file.metadata().is_ok_and(|is| is.is_file()) {
            return Err("its report is not a regular file".into());
        }
        let mut bytes = Vec::new();
        let read = file.take(REPORT_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| format!("its report cannot be read: {error}"))?;
        if bytes.len() as u64 > REPORT_BYTES_MAX {
            return Err(format!("its report has more than {REPORT_BYTES_MAX} bytes"));
        }
        Ok(verdicts(&bytes, pairs))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "a spool could not be removed");
        }
    }
}

/// Lines are matched by the pair, as in PhEDEx; other lines are ignored.
fn verdicts(report: &[u8], pairs: &[FilePair]) -> Vec<Verdict> {
    let place = |(place, (source, target)): (usize, &'_ FilePair)| ((source.clone(), target.clone()), place);
    let places: HashMap<FilePair, usize> = pairs.iter().enumerate().map(place).collect();
    let mut verdicts = vec![Verdict::Missing; pairs.len()];
    for line in report.split(|&byte| byte == b'\n') {
        let Some(line) = std::str::from_utf8(line).ok().and_then(report_line) else { continue };
        let Some(&place) = places.get(&(line.source, line.target)) else { continue };
        let now = match line.status {
            0 => Verdict::Done,
            status => Verdict::Failed { status, text: line.text },
        };
        let before = &mut verdicts[place];
        let is_same = std::mem::discriminant(before) == std::mem::discriminant(&now);
        *before = if *before == Verdict::Missing || is_same { now } else { Verdict::Contradiction };
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs() -> Vec<FilePair> {
        ["a", "two words", "c", "d"].map(|name| (format!("fdt://h/{name}"), format!("/t/{name}"))).to_vec()
    }

    #[test]
    fn each_pair_is_matched_with_its_line() {
        let parent = tempfile::tempdir().unwrap();
        let spool = Spool::create(&parent.path().join("new"), 7, &pairs()).unwrap();
        let text = fs::read_to_string(spool.copyjob()).unwrap();
        assert!(text.starts_with("fdt://h/a /t/a\n\"fdt://h/two words\" \"/t/two words\"\n"), "{text}");
        assert_eq!(spool.verdicts(&pairs()).unwrap_err(), "it wrote no report");
        let report = "# log\nfdt://h/a /t/a 0 copied\n\"fdt://h/two words\" \"/t/two words\" 3 not mine\n\
                      fdt://h/c /t/c 0\nfdt://h/c /t/c 1 no\nfdt://h/d /t/elsewhere 0\nnonsense\n";
        fs::write(spool.report(), [report.as_bytes(), b"\xff\xfe 0\n"].concat()).unwrap();
        let failed = Verdict::Failed { status: 3, text: "not mine".into() };
        let expected = [Verdict::Done, failed, Verdict::Contradiction, Verdict::Missing];
        assert_eq!(spool.verdicts(&pairs()).unwrap(), expected);
        let folder = spool.folder.clone();
        drop(spool);
        assert!(!folder.exists());
    }

    #[test]
    fn an_unusable_report_is_an_error() {
        let parent = tempfile::tempdir().unwrap();
        let spool = Spool::create(parent.path(), 1, &pairs()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, spool.report(), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        assert_eq!(spool.verdicts(&pairs()).unwrap_err(), "its report is not a regular file");
        fs::remove_file(spool.report()).unwrap();
        std::os::unix::fs::symlink(spool.copyjob(), spool.report()).unwrap();
        assert!(spool.verdicts(&pairs()).unwrap_err().contains("cannot be read"));
        fs::remove_file(spool.report()).unwrap();
        File::create(spool.report()).unwrap().set_len(REPORT_BYTES_MAX + 1).unwrap();
        assert!(spool.verdicts(&pairs()).unwrap_err().contains("more than"));
    }

    proptest! {
        #[test]
        fn any_report_is_read(report in prop::collection::vec(any::<u8>(), 0..200), lines in "(fdt://h/[acd] \
            /t/[acd] [0-9]{0,3} [a-z]{0,3}\n|[ \"\n]){0,20}") {
            prop_assert_eq!(verdicts(&report, &pairs()).len(), 4);
            prop_assert_eq!(verdicts(lines.as_bytes(), &pairs()).len(), 4);
        }
    }
}
