//! Where a file of a tape system lies, by the words of the WLCG Tape REST API.

/// Where a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    Disk,
    Tape,
    DiskAndTape,
    Lost,
    /// There is no such file.
    None,
    /// Nobody can say now.
    Unavailable,
}

impl Locality {
    pub fn is_on_disk(self) -> bool {
        matches!(self, Locality::Disk | Locality::DiskAndTape)
    }

    pub fn is_on_tape(self) -> bool {
        matches!(self, Locality::Tape | Locality::DiskAndTape)
    }

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

    /// By its word, as [`Locality::word`] gives it, in letters of either case; also by the words of SRM,
    /// which tape systems have kept.
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
