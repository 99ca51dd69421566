//! Locality of a file in a tape system, in the words of the WLCG Tape REST API.

/// Where a file's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// On disk only.
    Disk,
    /// On tape only: it has to be staged before it can be read.
    Tape,
    /// On disk and on tape.
    DiskAndTape,
    /// Lost: registered, but on neither.
    Lost,
    /// No such file.
    None,
    /// Not known at the moment, for instance because the tape system is down.
    Unavailable,
}

impl Locality {
    /// Whether the file can be read without staging.
    pub fn is_on_disk(self) -> bool {
        matches!(self, Locality::Disk | Locality::DiskAndTape)
    }

    /// Whether there is a copy on tape.
    pub fn is_on_tape(self) -> bool {
        matches!(self, Locality::Tape | Locality::DiskAndTape)
    }

    /// The word of the Tape REST API.
    pub fn word(self) -> &'static str {
        match self {
            Locality::Disk => "DISK",
            Locality::Tape => "TAPE",
            Locality::DiskAndTape => "DISK_AND_TAPE",
            Locality::Lost => "LOST",
            Locality::None => "NONE",
            Locality::Unavailable => "UNAVAILABLE",
        }
    }

    /// Parses a word of [`Locality::word`] in either case, or a word of SRM, which some tape systems still
    /// use.
    pub fn parse(word: &str) -> Option<Locality> {
        use Locality::{Disk, DiskAndTape, Lost, None, Tape, Unavailable};
        let is = |other: &str| word.eq_ignore_ascii_case(other);
        let of_srm = [("ONLINE", Disk), ("NEARLINE", Tape), ("ONLINE_AND_NEARLINE", DiskAndTape)];
        let by_word = [Disk, Tape, DiskAndTape, Lost, None, Unavailable].map(|at| (at.word(), at));
        by_word.into_iter().chain(of_srm).find(|(other, _)| is(other)).map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written_and_as_older_systems_write_them() {
        for at in [
            Locality::Disk,
            Locality::Tape,
            Locality::DiskAndTape,
            Locality::Lost,
            Locality::None,
            Locality::Unavailable,
        ] {
            assert_eq!(Locality::parse(at.word()), Some(at));
            assert_eq!(Locality::parse(&at.word().to_lowercase()), Some(at));
        }
        assert_eq!(Locality::parse("Online"), Some(Locality::Disk));
        assert_eq!(Locality::parse("ONLINE_AND_NEARLINE"), Some(Locality::DiskAndTape));
        for other in ["", "DISKS", " DISK"] {
            assert_eq!(Locality::parse(other), None);
        }
    }
}
