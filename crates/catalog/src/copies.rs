//! What counts as a good copy of a file: the rule of the last good copy, in one function.
//!
//! A copy counts if somebody could fetch the file from it now and somebody looked at it before: the storage
//! holds files, its agent is connected, the replica is neither suspect nor being deleted, its content was
//! compared with the catalog, and that not too long ago. [`Copy::defect`] is the rule; deletions, the pages
//! of files that they hand out, and previews of both ask it and nothing else.

use std::collections::BTreeSet;
use std::fmt;

use longhaul_model::{StorageId, Timestamp};

use crate::VerificationState;

/// What decides about copies beside the catalog itself.
#[derive(Clone, Debug)]
pub struct CopyTerms {
    pub now: Timestamp,
    /// Copies verified longer ago do not count. None: the age does not matter.
    pub verified_within_us: Option<u64>,
    /// Storages whose agent is not connected.
    pub unreachable: BTreeSet<StorageId>,
}

/// One copy of a file, or many of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    pub storage: StorageId,
    /// The storage generates what is read and drops what is written.
    pub is_virtual: bool,
    pub suspect: bool,
    pub deleting: bool,
    pub how: VerificationState,
    /// When it was verified, or before. None: the catalog does not know.
    pub verified: Option<Timestamp>,
}

/// Why a copy does not count as a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyDefect {
    Virtual,
    Deleting,
    Suspect,
    Claimed,
    Unreachable,
    /// Verified too long ago.
    Stale,
    /// The age of a verification matters, and that of this one is not known.
    AgeUnknown,
}

impl CopyTerms {
    /// Every agent is connected and the age of a verification does not matter.
    pub fn lenient(now: Timestamp) -> Self {
        CopyTerms { now, verified_within_us: None, unreachable: BTreeSet::new() }
    }
}

impl Copy {
    /// Why the copy does not count as a good one; None if it does. What only an administrator can mend comes
    /// before what mends itself.
    pub fn defect(&self, terms: &CopyTerms) -> Option<CopyDefect> {
        if self.is_virtual {
            return Some(CopyDefect::Virtual);
        }
        if self.deleting {
            return Some(CopyDefect::Deleting);
        }
        if self.suspect {
            return Some(CopyDefect::Suspect);
        }
        if self.how == VerificationState::Registered {
            return Some(CopyDefect::Claimed);
        }
        if terms.unreachable.contains(&self.storage) {
            return Some(CopyDefect::Unreachable);
        }
        let within = terms.verified_within_us?;
        match self.verified {
            None => Some(CopyDefect::AgeUnknown),
            Some(at) => (terms.now.0.saturating_sub(at.0) > i64::try_from(within).unwrap_or(i64::MAX))
                .then_some(CopyDefect::Stale),
        }
    }
}

impl fmt::Display for CopyDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CopyDefect::Virtual => "a virtual storage holds no files",
            CopyDefect::Deleting => "being deleted",
            CopyDefect::Suspect => "suspect",
            CopyDefect::Claimed => "claimed when it was registered, never verified",
            CopyDefect::Unreachable => "its agent is not connected",
            CopyDefect::Stale => "verified too long ago",
            CopyDefect::AgeUnknown => "not known when it was verified",
        })
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::Verification;

    use super::*;

    const DAY: i64 = 86_400_000_000;
    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    const GOOD: Copy = Copy {
        storage: StorageId(1),
        is_virtual: false,
        suspect: false,
        deleting: false,
        how: VerificationState::Verified(Verification::EndToEnd),
        verified: Some(Timestamp(NOW.0 - 10 * DAY)),
    };

    fn terms(days: Option<u64>, unreachable: &[u64]) -> CopyTerms {
        CopyTerms {
            now: NOW,
            verified_within_us: days.map(|days| days * DAY as u64),
            unreachable: unreachable.iter().map(|&id| StorageId(id)).collect(),
        }
    }

    #[test]
    fn the_rule_of_the_good_copy() {
        let claimed = VerificationState::Registered;
        let cases = [
            ("good", GOOD, terms(None, &[]), None),
            (
                "wire",
                Copy { how: VerificationState::Verified(Verification::Wire), ..GOOD },
                terms(None, &[]),
                None,
            ),
            ("another is unreachable", GOOD, terms(None, &[2]), None),
            ("virtual", Copy { is_virtual: true, ..GOOD }, terms(None, &[]), Some(CopyDefect::Virtual)),
            ("deleting", Copy { deleting: true, ..GOOD }, terms(None, &[]), Some(CopyDefect::Deleting)),
            ("suspect", Copy { suspect: true, ..GOOD }, terms(None, &[]), Some(CopyDefect::Suspect)),
            ("claimed", Copy { how: claimed, ..GOOD }, terms(None, &[]), Some(CopyDefect::Claimed)),
            ("dead holder", GOOD, terms(None, &[1]), Some(CopyDefect::Unreachable)),
            ("fresh", GOOD, terms(Some(10), &[]), None),
            ("stale", GOOD, terms(Some(9), &[]), Some(CopyDefect::Stale)),
            (
                "age unknown",
                Copy { verified: None, ..GOOD },
                terms(Some(9), &[]),
                Some(CopyDefect::AgeUnknown),
            ),
            ("age unknown, no limit", Copy { verified: None, ..GOOD }, terms(None, &[]), None),
            (
                "an endless limit",
                GOOD,
                CopyTerms { verified_within_us: Some(u64::MAX), ..terms(None, &[]) },
                None,
            ),
            (
                "a clock that went back",
                Copy { verified: Some(Timestamp::MAX), ..GOOD },
                terms(Some(1), &[]),
                None,
            ),
        ];
        for (name, copy, terms, defect) in cases {
            assert_eq!(copy.defect(&terms), defect, "{name}");
        }
    }
}
