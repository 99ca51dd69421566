//! Content of virtual files, generated from their names, and their digests, computed by combining CRCs
//! without generating the bytes.
//!
//! All virtual files are parts of one endless text: a repeated block of pseudo-random bytes (xorshift64). The
//! block's length is a prime just below that of a chunk, so that no two neighbouring chunks are equal and a
//! misplaced one is detected; the name determines where a file starts in the block, so that files differ.

use std::sync::OnceLock;

use longhaul_model::digest::PartDigest;
use longhaul_model::limits::FILE_BYTES_MAX;
use longhaul_model::units;

/// The largest prime below 2^20.
const PERIOD: usize = 1_048_573;
/// In a directory's name this prefix precedes the name of the storage that has the files in it.
const FROM: &str = "from-";

/// The content of a virtual file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualContent {
    size: u64,
    /// The file's start within the block.
    phase: usize,
}

impl VirtualContent {
    /// Parses a path within a storage (or an LFN, where both are spelled alike): it must contain a directory
    /// `from-STORAGE`, and the last component starts with the size: `from-alpha-test/250MB-0001`. What
    /// precedes that directory does not affect the content.
    pub fn parse(path: &str) -> Option<VirtualContent> {
        let (_, own) = origin(path)?;
        let last = own.rsplit('/').next()?;
        let stated = last.split(['-', '.']).next()?;
        // Digits and a unit in letters only: no fraction, no spaces.
        if !stated.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let size = units::parse_bytes(stated).ok().filter(|&size| size <= FILE_BYTES_MAX)?;
        Some(VirtualContent { size, phase: (fnv1a(own.as_bytes()) % PERIOD as u64) as usize })
    }

    /// Size in bytes.
    pub fn size(self) -> u64 {
        self.size
    }

    /// Returns fewer bytes than requested only at the end of the file.
    pub fn read_at(self, buffer: &mut [u8], offset: u64) -> usize {
        let rest = self.size.saturating_sub(offset);
        let len = usize::try_from(rest).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let mut place = ((self.phase as u64 + offset % PERIOD as u64) % PERIOD as u64) as usize;
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PERIOD - place);
            buffer[done..done + piece].copy_from_slice(&block()[place..place + piece]);
            done += piece;
            place = 0;
        }
        len
    }

    /// The digests of the whole file, in the time of reading two chunks.
    pub fn digest(self) -> PartDigest {
        let rest = (self.size % PERIOD as u64) as usize;
        repeated(self.part(PERIOD), self.size / PERIOD as u64).then(self.part(rest))
    }

    /// The digests of its first bytes, at most one block.
    fn part(self, len: usize) -> PartDigest {
        let first = len.min(PERIOD - self.phase);
        let head = PartDigest::compute(&block()[self.phase..self.phase + first]);
        head.then(PartDigest::compute(&block()[..len - first]))
    }
}

/// The storage that has the virtual file at `path`, and the part of the path that identifies the file.
pub(super) fn origin(path: &str) -> Option<(&str, &str)> {
    let mut start = 0;
    for component in path.split('/') {
        if let Some(storage) = component.strip_prefix(FROM)
            && start + component.len() < path.len()
        {
            return Some((storage, &path[start..]));
        }
        start += component.len() + 1;
    }
    None
}

/// Repeats the CRC `times` times, by doubling (CRC combination).
fn repeated(mut part: PartDigest, mut times: u64) -> PartDigest {
    let mut whole = PartDigest::EMPTY;
    while times > 0 {
        if times & 1 == 1 {
            whole = whole.then(part);
        }
        times >>= 1;
        // The last doubling would be unused, and may exceed any file's length.
        if times > 0 {
            part = part.then(part);
        }
    }
    whole
}

fn block() -> &'static [u8] {
    static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
    BLOCK.get_or_init(|| {
        // Marsaglia's xorshift64 (2003): fast, and without a pattern that a checksum could miss.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut block = Vec::with_capacity(PERIOD + 8);
        while block.len() < PERIOD {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            block.extend_from_slice(&state.to_le_bytes());
        }
        block.truncate(PERIOD);
        block
    })
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(content: VirtualContent) -> Vec<u8> {
        let mut bytes = vec![0; content.size() as usize + 1];
        let read = content.read_at(&mut bytes, 0);
        bytes.truncate(read);
        bytes
    }

    #[test]
    fn names_state_sizes() {
        let size = |path| VirtualContent::parse(path).map(VirtualContent::size);
        assert_eq!(size("from-a/1000"), Some(1_000));
        assert_eq!(size("x/from-a/y/2MB-0001"), Some(2_000_000));
        assert_eq!(size("from-a/1MiB.root"), Some(1 << 20));
        assert_eq!(size("from-a/0"), Some(0));
        for none in [
            "1000",
            "from-a",
            "a/from-b",
            "from-a/x1000",
            "from-a/",
            "from-a/-5",
            "from-a/1XB",
            "fromm-a/7",
            "",
        ] {
            assert_eq!(size(none), None, "{none}");
        }
    }

    #[test]
    fn the_path_before_the_origin_does_not_affect_content() {
        let one = VirtualContent::parse("run7/from-a/5MB-1");
        assert_eq!(one, VirtualContent::parse("from-a/5MB-1"));
        assert_ne!(one, VirtualContent::parse("from-b/5MB-1"));
        assert_ne!(one, VirtualContent::parse("from-a/5MB-2"));
        assert_eq!(origin("run7/from-a/x/1"), Some(("a", "from-a/x/1")));
    }

    #[test]
    fn neighbouring_chunks_differ() {
        let bytes = all(VirtualContent::parse("from-a/3MiB").unwrap());
        let chunks: Vec<&[u8]> = bytes.chunks(1 << 20).collect();
        assert!(chunks[0] != chunks[1] && chunks[1] != chunks[2] && chunks[0] != chunks[2]);
    }

    /// An exabyte's digest is computed at once, by combining its parts.
    #[test]
    fn digests_of_huge_files_are_computed_at_once() {
        let content = VirtualContent::parse("from-a/1000PB").unwrap();
        assert_eq!(content.digest().len, 1_000_000_000_000_000_000);
        let mut end = [0; 100];
        assert_eq!(content.read_at(&mut end, content.size() - 40), 40);
        assert_eq!(content.read_at(&mut end, content.size() + 1), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn digests_are_those_of_the_bytes(size in 0u64..5_000_000, name in "[a-z]{1,8}") {
            let content = VirtualContent::parse(&format!("from-{name}/{size}-{name}")).unwrap();
            prop_assert_eq!(content.digest(), PartDigest::compute(&all(content)));
        }

        #[test]
        fn any_range_equals_the_range_of_the_whole(size in 0u64..3_000_000, offset in 0u64..3_500_000,
            len in 0usize..2_000_000) {
            let content = VirtualContent::parse(&format!("from-a/{size}")).unwrap();
            let whole = all(content);
            let mut buffer = vec![0; len];
            let read = content.read_at(&mut buffer, offset);
            let start = (offset as usize).min(whole.len());
            prop_assert_eq!(&buffer[..read], &whole[start..(start + len).min(whole.len())]);
        }

        #[test]
        fn no_path_panics(path in "(from-|/|[0-9]|GB|-|\\.|é){0,12}") {
            if let Some(content) = VirtualContent::parse(&path) {
                prop_assert!(content.size() <= FILE_BYTES_MAX);
            }
        }
    }
}
