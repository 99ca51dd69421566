//! Protocol version negotiation. Release N speaks N and N-1; the first frame of each stream settles which.

/// The versions that this release speaks.
pub const VERSIONS: VersionRange = VersionRange { oldest: 1, newest: 3 };
/// First version in which sources understand the receiver's options for a stream: [`crate::Frame::Mark`] and
/// [`crate::Frame::Pace`].
pub const STREAM_OPTIONS_SINCE: u16 = 2;
/// First version in which sources understand [`crate::Frame::RequestIfChanged`].
pub const CONDITIONAL_REQUESTS_SINCE: u16 = 3;

/// An inclusive range of protocol versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// Oldest version of the range.
    pub oldest: u16,
    /// Newest version of the range.
    pub newest: u16,
}

impl VersionRange {
    /// The newest version that both ends speak.
    pub fn negotiate(self, other: VersionRange) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether a version lies in the range.
    pub fn contains(self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

impl std::fmt::Display for VersionRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_agree_on_the_newest_version() {
        let range = |oldest, newest| VersionRange { oldest, newest };
        assert_eq!(range(3, 4).negotiate(range(4, 5)), Some(4));
        assert_eq!(range(4, 5).negotiate(range(3, 4)), Some(4));
        assert_eq!(range(1, 2).negotiate(range(1, 2)), Some(2));
        assert_eq!(range(1, 2).negotiate(range(3, 4)), None);
        // A nonsensical range from a peer gives no agreement.
        assert_eq!(range(1, 2).negotiate(range(2, 1)), None);
    }
}
