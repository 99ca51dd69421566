//! The blake3 tree of a file, cut at chunks: one value for each chunk, from which the digest of the whole
//! follows.
//!
//! A chunk of ours is 1,024 of blake3's, a whole subtree wherever it lies, so its value depends on its bytes
//! and its place and on nothing else. Whoever knows the root can believe a list of values that anybody gave,
//! after combining it, and then each chunk by itself.

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::digest::{Algorithm, Digest};
use crate::limits::{CHUNK_BYTES, FILE_BYTES_MAX};

/// Of one chunk. Of a file's only chunk it is the root.
pub type ChunkValue = [u8; 32];

/// Values of a file of which the whole could be held in memory: 32 MiB of them are those of 1 TiB.
pub const VALUES_MAX: usize = 1 << 24;

/// A list of values that agree with the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    size: u64,
    root: Digest,
    values: Box<[ChunkValue]>,
}

/// How many values a file of this size has. One without bytes has one.
pub fn values_of(size: u64) -> u64 {
    size.div_ceil(u64::from(CHUNK_BYTES)).max(1)
}

/// The value of the chunk at this place of a file of this size.
///
/// # Panics
/// If the place is not at a chunk's border within a file.
pub fn chunk_value(offset: u64, bytes: &[u8], size: u64) -> ChunkValue {
    if values_of(size) == 1 {
        return *blake3::hash(bytes).as_bytes();
    }
    assert!(
        offset.is_multiple_of(u64::from(CHUNK_BYTES)) && offset <= FILE_BYTES_MAX,
        "chunks lie at their borders"
    );
    if bytes.is_empty() {
        // No chunk of a longer file is empty: a value that none has.
        return [0; 32];
    }
    blake3::Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root()
}

impl Tree {
    /// Of a file of this size; none if these are not as many values as it has.
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

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn values(&self) -> &[ChunkValue] {
        &self.values
    }

    /// Whether these are the bytes of the chunk at this place.
    pub fn fits(&self, offset: u64, bytes: &[u8]) -> bool {
        let place = usize::try_from(offset / u64::from(CHUNK_BYTES)).unwrap_or(usize::MAX);
        offset.is_multiple_of(u64::from(CHUNK_BYTES))
            && bytes.len() as u64 == self.size.saturating_sub(offset).min(u64::from(CHUNK_BYTES))
            && self.values.get(place).is_some_and(|value| *value == chunk_value(offset, bytes, self.size))
    }
}

/// How many of these values lie in the left half of a tree: the largest power of two that leaves some for the
/// right.
fn left_of(values: usize) -> usize {
    values.next_power_of_two() / 2
}

/// The value of a part of the tree that is not its root. As deep as the number of values has bits.
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
