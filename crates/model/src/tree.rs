//! BLAKE3 hash tree of a file (a Merkle tree, as in Bao): one chaining value per chunk, from which the digest
//! of the whole follows.
//!
//! One of our chunks is 1,024 BLAKE3 chunks and always a whole subtree, so its value depends only on its
//! bytes and its offset. A reader that knows the root can accept a list of values from an untrusted peer once
//! it hashes to the root, and then verify each chunk alone.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::digest::{Algorithm, Digest};
use crate::limits::{CHUNK_BYTES, FILE_BYTES_MAX};

/// Chaining value of one chunk; for a file of one chunk, the root itself.
pub type ChunkValue = [u8; 32];

/// Most values of one file, so that they fit in memory: 2²⁴ values take 512 MiB and cover a file of 16 TiB.
pub const VALUES_MAX: usize = 1 << 24;

/// Chunk values that hash to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    size: u64,
    root: Digest,
    values: Box<[ChunkValue]>,
}

/// Number of chunk values of a file of this size; an empty file has one.
pub fn values_of(size: u64) -> u64 {
    size.div_ceil(u64::from(CHUNK_BYTES)).max(1)
}

/// The value of the chunk at `offset` in a file of `size` bytes.
///
/// # Panics
/// If `offset` is not a chunk boundary within a file.
pub fn chunk_value(offset: u64, bytes: &[u8], size: u64) -> ChunkValue {
    if values_of(size) == 1 {
        return *blake3::hash(bytes).as_bytes();
    }
    assert!(
        offset.is_multiple_of(u64::from(CHUNK_BYTES)) && offset <= FILE_BYTES_MAX,
        "chunks lie at their borders"
    );
    if bytes.is_empty() {
        // No chunk of a longer file is empty: return a value that no chunk has.
        return [0; 32];
    }
    blake3::Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root()
}

impl Tree {
    /// A tree from all values of a file of `size` bytes; none if their number is wrong.
    pub fn from_values(size: u64, values: Vec<ChunkValue>) -> Option<Tree> {
        if values.len() as u64 != values_of(size) {
            return None;
        }
        let root = match values.as_slice() {
            [only] => *only,
            values => {
                let (left, right) = values.split_at(left_of(values.len()));
                *merge_subtrees_root(&merged(left), &merged(right), Mode::Hash).as_bytes()
            }
        };
        Some(Tree { size, root: Digest::new(Algorithm::Blake3, &root), values: values.into() })
    }

    /// The digest of the whole file.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// Size of the file, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The value of each chunk, in order.
    pub fn values(&self) -> &[ChunkValue] {
        &self.values
    }

    /// Whether `bytes` are the chunk at `offset`.
    pub fn fits(&self, offset: u64, bytes: &[u8]) -> bool {
        let place = usize::try_from(offset / u64::from(CHUNK_BYTES)).unwrap_or(usize::MAX);
        offset.is_multiple_of(u64::from(CHUNK_BYTES))
            && bytes.len() as u64 == self.size.saturating_sub(offset).min(u64::from(CHUNK_BYTES))
            && self.values.get(place).is_some_and(|value| *value == chunk_value(offset, bytes, self.size))
    }
}

/// Number of values in the left subtree: the largest power of two that leaves some for the right one.
fn left_of(values: usize) -> usize {
    values.next_power_of_two() / 2
}

/// The value of an inner node. Recursion is as deep as the number of values has bits.
fn merged(values: &[ChunkValue]) -> ChainingValue {
    match values {
        [only] => *only,
        _ => {
            let (left, right) = values.split_at(left_of(values.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: usize = CHUNK_BYTES as usize;

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    fn tree(bytes: &[u8]) -> Tree {
        let size = bytes.len() as u64;
        let values = match bytes {
            [] => vec![chunk_value(0, &[], 0)],
            bytes => bytes
                .chunks(CHUNK)
                .enumerate()
                .map(|(place, part)| chunk_value((place * CHUNK) as u64, part, size))
                .collect(),
        };
        Tree::from_values(size, values).unwrap()
    }

    #[test]
    fn the_root_is_the_digest_of_the_whole() {
        for len in [0, 1, 1_024, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK, 5 * CHUNK + 77, 8 * CHUNK]
        {
            let bytes = content(len);
            let tree = tree(&bytes);
            assert_eq!(tree.root().value(), blake3::hash(&bytes).as_bytes(), "{len}");
            assert_eq!(tree.values().len() as u64, values_of(len as u64));
        }
    }

    #[test]
    fn each_chunk_is_known_by_itself() {
        let bytes = content(4 * CHUNK + 9);
        let tree = tree(&bytes);
        for (place, part) in bytes.chunks(CHUNK).enumerate() {
            let at = (place * CHUNK) as u64;
            assert!(tree.fits(at, part));
            let mut other = part.to_vec();
            other[part.len() / 2] ^= 1;
            assert!(!tree.fits(at, &other) && !tree.fits(at + CHUNK as u64, part), "{place}");
            assert!(!tree.fits(at, &part[1..]) && !tree.fits(at + 1, part));
        }
        assert!(!tree.fits(5 * CHUNK as u64, &[]) && !tree.fits(u64::MAX, b"x"));
    }

    proptest! {
        #[test]
        fn a_list_that_lies_has_another_root(values in proptest::collection::vec(any::<ChunkValue>(),
            2..70), at in any::<usize>()) {
            let size = (values.len() * CHUNK) as u64;
            let tree = Tree::from_values(size, values.clone()).unwrap();
            let mut other = values.clone();
            other[at % values.len()][at % 32] ^= 1;
            prop_assert_ne!(Tree::from_values(size, other).unwrap().root(), tree.root());
            prop_assert!(Tree::from_values(size + 1, values.clone()).is_none());
            prop_assert!(Tree::from_values(size, values[1..].to_vec()).is_none());
        }
    }
}
