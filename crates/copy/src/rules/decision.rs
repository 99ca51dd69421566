//! Decides whether to copy, skip or refuse a file, given what exists at its target.

use longhaul_model::units::{bytes, printable};
use longhaul_model::{Digest, Fault, FaultCode};
use serde::{Deserialize, Serialize};

/// What is known of a file at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    pub size: u64,
    pub mtime_ns: i64,
    /// Digest of its present bytes, if it was computed.
    pub digest: Option<Digest>,
}

/// What exists at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetEntry {
    Missing,
    File(FileMeta),
    Directory,
    /// A link, a device, a pipe or a socket.
    Other,
}

/// What to do with files that exist already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// `--update`: keep what is not older at the target, replace the rest.
    pub update: bool,
    /// `--checksum`: keep what has the same bytes, replace the rest; times do not count.
    pub checksum: bool,
    /// Times that differ by no more than this are equal: for file systems with coarse timestamps.
    pub window_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Copy {
        replaces: bool,
    },
    Skip(SkipReason),
    /// Digests of both files, of one kind, are needed; decide again with them.
    NeedDigests,
    Refuse(Fault),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    SameSizeAndTime,
    SameDigest,
    TargetNewer,
}

impl SkipReason {
    pub fn text(self) -> &'static str {
        match self {
            SkipReason::SameSizeAndTime => "same size and time",
            SkipReason::SameDigest => "same size and digest",
            SkipReason::TargetNewer => "newer at the target",
        }
    }
}

/// Decides about one file. `shown` is the target's name, for messages.
///
/// Without options an existing file must be the right one and is never replaced: a repeated command resumes,
/// and a mistyped one destroys nothing.
pub fn decide(policy: Policy, source: &FileMeta, existing: &TargetEntry, shown: &str) -> Decision {
    let there = match existing {
        TargetEntry::Missing => return Decision::Copy { replaces: false },
        TargetEntry::File(there) => there,
        TargetEntry::Directory | TargetEntry::Other => {
            let what = if *existing == TargetEntry::Directory { "a directory" } else { "not a regular file" };
            return Decision::Refuse(Fault::new(
                FaultCode::NameClash,
                format!("{} is {what}", printable(shown)),
            ));
        }
    };
    let apart = there.mtime_ns.abs_diff(source.mtime_ns) > policy.window_ns;
    if policy.update && apart && there.mtime_ns > source.mtime_ns {
        return Decision::Skip(SkipReason::TargetNewer);
    }
    if !policy.checksum && there.size == source.size && !apart {
        return Decision::Skip(SkipReason::SameSizeAndTime);
    }
    if policy.update && !policy.checksum {
        return Decision::Copy { replaces: true };
    }
    match same_bytes(source, there) {
        None => Decision::NeedDigests,
        Some(true) => Decision::Skip(SkipReason::SameDigest),
        Some(false) if policy.checksum => Decision::Copy { replaces: true },
        Some(false) => {
            let text = format!(
                "{} exists and differs ({}, the source has {}); --update replaces older files, --checksum \
                    those that differ",
                printable(shown),
                bytes(there.size),
                bytes(source.size)
            );
            Decision::Refuse(Fault::new(FaultCode::NameClash, text))
        }
    }
}

/// Whether both files have the same bytes; none if that takes digests that are missing.
fn same_bytes(source: &FileMeta, there: &FileMeta) -> Option<bool> {
    if source.size != there.size {
        return Some(false);
    }
    match (source.digest, there.digest) {
        (Some(one), Some(other)) if one.algorithm() == other.algorithm() => Some(one == other),
        _ => None,
    }
}

/// The line of `--dry-run` for a decision: action, size, source and target.
pub fn dry_run_line(decision: &Decision, size: u64, source: &str, target: &str) -> String {
    let (source, target) = (printable(source), printable(target));
    let size = bytes(size);
    match decision {
        Decision::Copy { replaces: false } => format!("copy     {size:>8}  {source} -> {target}"),
        Decision::Copy { replaces: true } => format!("replace  {size:>8}  {source} -> {target}"),
        Decision::Skip(reason) => format!("skip     {size:>8}  {target} ({})", reason.text()),
        Decision::NeedDigests => format!("compare  {size:>8}  {source} with {target}"),
        Decision::Refuse(fault) => format!("refuse   {size:>8}  {source}: {fault}"),
    }
}

/// Totals of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub copy_files: u64,
    pub copy_bytes: u64,
    pub skip_files: u64,
    pub skip_bytes: u64,
    pub refused_files: u64,
}

impl Totals {
    pub fn add(&mut self, decision: &Decision, size: u64) {
        let (files, total) = match decision {
            Decision::Copy { .. } | Decision::NeedDigests => {
                (&mut self.copy_files, Some(&mut self.copy_bytes))
            }
            Decision::Skip(_) => (&mut self.skip_files, Some(&mut self.skip_bytes)),
            Decision::Refuse(_) => (&mut self.refused_files, None),
        };
        *files += 1;
        if let Some(total) = total {
            *total = total.saturating_add(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn meta(size: u64, mtime_ns: i64) -> FileMeta {
        FileMeta { size, mtime_ns, digest: None }
    }

    fn read(size: u64, mtime_ns: i64, crc: u32) -> FileMeta {
        FileMeta { size, mtime_ns, digest: Some(Digest::crc32c(crc)) }
    }

    const PLAIN: Policy = Policy { update: false, checksum: false, window_ns: 0 };
    const UPDATE: Policy = Policy { update: true, ..PLAIN };
    const CHECKSUM: Policy = Policy { checksum: true, ..PLAIN };

    fn refused(decision: &Decision) -> bool {
        matches!(decision, Decision::Refuse(fault) if fault.code == FaultCode::NameClash)
    }

    #[test]
    fn without_options_nothing_is_replaced() {
        let plain = |source, there| decide(PLAIN, &source, &TargetEntry::File(there), "t");
        assert_eq!(
            decide(PLAIN, &meta(5, 1), &TargetEntry::Missing, "t"),
            Decision::Copy { replaces: false }
        );
        assert_eq!(plain(meta(5, 1), meta(5, 1)), Decision::Skip(SkipReason::SameSizeAndTime));
        assert_eq!(plain(meta(5, 1), meta(5, 2)), Decision::NeedDigests);
        assert_eq!(plain(read(5, 1, 7), read(5, 2, 7)), Decision::Skip(SkipReason::SameDigest));
        assert!(refused(&plain(read(5, 1, 7), read(5, 2, 8))));
        assert!(refused(&plain(meta(5, 1), meta(6, 1))));
        assert!(refused(&decide(UPDATE, &meta(5, 1), &TargetEntry::Directory, "t")));
        assert!(refused(&decide(CHECKSUM, &meta(5, 1), &TargetEntry::Other, "t")));
    }

    #[test]
    fn update_as_in_rsync() {
        let update = |source, there| decide(UPDATE, &source, &TargetEntry::File(there), "t");
        assert_eq!(update(meta(5, 10), meta(5, 10)), Decision::Skip(SkipReason::SameSizeAndTime));
        assert_eq!(update(meta(5, 10), meta(6, 11)), Decision::Skip(SkipReason::TargetNewer));
        assert_eq!(update(meta(5, 10), meta(5, 9)), Decision::Copy { replaces: true });
        assert_eq!(update(meta(5, 10), meta(6, 10)), Decision::Copy { replaces: true });
        let coarse = Policy { window_ns: 2, ..UPDATE };
        assert_eq!(
            decide(coarse, &meta(5, 10), &TargetEntry::File(meta(5, 12)), "t"),
            Decision::Skip(SkipReason::SameSizeAndTime)
        );
    }

    #[test]
    fn checksum_reads_what_could_be_equal() {
        let checksum = |source, there| decide(CHECKSUM, &source, &TargetEntry::File(there), "t");
        assert_eq!(checksum(meta(5, 1), meta(5, 1)), Decision::NeedDigests, "times do not count");
        assert_eq!(checksum(meta(5, 1), meta(6, 1)), Decision::Copy { replaces: true });
        assert_eq!(checksum(read(5, 1, 7), read(5, 9, 7)), Decision::Skip(SkipReason::SameDigest));
        assert_eq!(checksum(read(5, 1, 7), read(5, 1, 8)), Decision::Copy { replaces: true });
        let other = FileMeta { digest: Some(Digest::adler32(7)), ..meta(5, 1) };
        assert_eq!(
            checksum(read(5, 1, 7), other),
            Decision::NeedDigests,
            "digests of different kinds do not compare"
        );
        let both = Policy { update: true, checksum: true, window_ns: 0 };
        assert_eq!(
            decide(both, &meta(5, 1), &TargetEntry::File(meta(6, 2)), "t"),
            Decision::Skip(SkipReason::TargetNewer)
        );
    }

    #[test]
    fn a_dry_run_lists_each_file() {
        let mut totals = Totals::default();
        let mut told = Vec::new();
        for decision in [
            Decision::Copy { replaces: false },
            Decision::Copy { replaces: true },
            Decision::Skip(SkipReason::TargetNewer),
            Decision::Refuse(Fault::new(FaultCode::NameClash, "b is a directory")),
        ] {
            totals.add(&decision, 4_100_000);
            told.push(dry_run_line(&decision, 4_100_000, "a\n", "b"));
        }
        assert_eq!(
            told,
            [
                "copy      4.10 MB  a\\n -> b",
                "replace   4.10 MB  a\\n -> b",
                "skip      4.10 MB  b (newer at the target)",
                "refuse    4.10 MB  a\\n: the target holds something else under this name: b is a directory",
            ]
        );
        assert_eq!(
            (totals.copy_files, totals.copy_bytes, totals.skip_files, totals.refused_files),
            (2, 8_200_000, 1, 1)
        );
    }

    proptest! {
        /// After a copy, which keeps size, time and bytes, the same command has nothing to do; and with
        /// digests given no decision stays open.
        #[test]
        fn a_repeated_command_does_nothing(update: bool, checksum: bool, window_ns in 0u64..3,
            size in 0u64..3,
            mtime_ns in 0i64..4, crc in 0u32..2, size_there in 0u64..3, mtime_there in 0i64..4,
            crc_there in 0u32..2) {
            let policy = Policy { update, checksum, window_ns };
            let source = read(size, mtime_ns, crc);
            let again = decide(policy, &source, &TargetEntry::File(source), "t");
            prop_assert!(matches!(again, Decision::Skip(_)));
            let there = read(size_there, mtime_there, crc_there);
            let decision = decide(policy, &source, &TargetEntry::File(there), "t");
            prop_assert_ne!(&decision, &Decision::NeedDigests);
            if !update && !checksum {
                let copies = matches!(decision, Decision::Copy { .. });
                prop_assert!(!copies, "nothing is replaced without an option");
            }
        }
    }
}
