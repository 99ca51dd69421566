//! The demo's own data: a reproducible mix of files from empty to several megabytes, some with odd but legal
//! names. The same parameters give the same tree, byte for byte, everywhere.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Buffer of the writer; also the unit in which contents are generated.
const BUFFER_BYTES: usize = 1 << 20;
/// Weights range from 2^0 to below 2^24, uniformly on a logarithmic scale: most files are small, most bytes
/// are in large ones.
const WEIGHT_BITS: u64 = 24;
/// One file in this many is empty.
const FILES_PER_EMPTY_FILE: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Path relative to the tree's root.
    pub path: String,
    pub size: u64,
}

/// xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled"): fast and
/// the same on every machine; no better randomness is needed here.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // splitmix64 of the seed: neighbouring seeds give unrelated streams, and the state is never 0.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((z ^ (z >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
    }
}

/// Names and sizes of a tree with `files` files and exactly `bytes` bytes (if any file can hold them).
pub fn plan(files: usize, bytes: u64) -> Vec<GeneratedFile> {
    let mut random = Random::new(files as u64);
    let weights: Vec<u64> = (0..files)
        .map(|place| {
            let scale = 1u64 << (random.next() % WEIGHT_BITS);
            let weight = scale + random.next() % scale;
            if place % FILES_PER_EMPTY_FILE == FILES_PER_EMPTY_FILE - 1 { 0 } else { weight }
        })
        .collect();
    let all: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut sizes: Vec<u64> =
        weights.iter().map(|weight| (u128::from(*weight) * u128::from(bytes) / all.max(1)) as u64).collect();
    let missing = bytes - sizes.iter().sum::<u64>();
    if let Some(largest) = sizes.iter_mut().max() {
        *largest += missing;
    }
    sizes.into_iter().enumerate().map(|(place, size)| GeneratedFile { path: name(place), size }).collect()
}

fn name(place: usize) -> String {
    let odd = odd_names();
    match odd.get(place) {
        Some(name) => format!("odd names/{name}"),
        None => format!("run7/{:02}/f{place:05}.root", place / 250),
    }
}

/// Names that DESIGN section 8 allows and that programs often mishandle.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "with blanks and a trailing one ",
        " leading blank",
        "new\nline",
        "tab\tand\rreturn",
        "bell\u{7} and \u{1b}[31mescape",
        "-rf",
        "--help",
        "...",
        "..hidden",
        ".dot",
        "back\\slash",
        "quotes'\"`",
        "$(touch x); rm *",
        "100 % #1 ?a=b&c=d",
        "caf\u{e9} composed",
        "cafe\u{301} decomposed",
        "日本語/データ",
        "עברית",
        "🚚🌍",
        "Case",
        "case",
        "CON",
        "colon:and|pipe<>",
        "a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    names.push("x".repeat(255));
    names.push(format!("{}end", format!("{}/", "deep".repeat(40)).repeat(6)));
    names
}

/// Writes the tree under `root`, which must exist. Reports the bytes after each file; ends early, without an
/// error, if `go_on` returns false.
pub fn write(root: &Path, files: &[GeneratedFile], mut go_on: impl FnMut(u64) -> bool) -> io::Result<()> {
    let mut buffer = vec![0u8; BUFFER_BYTES];
    for (place, file) in files.iter().enumerate() {
        let path = root.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut out = File::create_new(&path)?;
        contents(place, file.size, &mut buffer, |bytes| out.write_all(bytes))?;
        if !go_on(file.size) {
            break;
        }
    }
    Ok(())
}

/// Generates the bytes of file number `place`, one buffer at a time.
fn contents(
    place: usize,
    size: u64,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut random = Random::new(0x6c6f_6e67_0000_0000 + place as u64);
    let mut left = size;
    while left > 0 {
        let now = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        random.fill(&mut buffer[..now]);
        take(&buffer[..now])?;
        left -= now as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{Algorithm, Hasher, Lfn};

    #[test]
    fn sizes_add_up_and_span_from_nothing_to_megabytes() {
        let files = plan(2_000, 1_000_000_000);
        assert_eq!(files.len(), 2_000);
        assert_eq!(files.iter().map(|file| file.size).sum::<u64>(), 1_000_000_000);
        assert!(files.iter().filter(|file| file.size == 0).count() >= 40);
        assert!(files.iter().filter(|file| file.size < 10_000).count() > 600);
        let largest = files.iter().map(|file| file.size).max().unwrap();
        assert!((4_000_000..12_000_000).contains(&largest), "{largest}");
    }

    #[test]
    fn every_name_is_a_legal_lfn_and_unique() {
        let files = plan(300, 1_000);
        let names: std::collections::BTreeSet<Lfn> =
            files.iter().map(|file| file.path.parse().unwrap_or_else(|error| panic!("{error}"))).collect();
        assert_eq!(names.len(), 300);
        assert!(files.iter().any(|file| file.path.contains('\n')));
        assert!(files.iter().any(|file| file.path.len() > 900));
    }

    #[test]
    fn small_and_strange_requests_are_met() {
        assert!(plan(0, 0).is_empty());
        assert_eq!(plan(1, 7)[0].size, 7);
        assert_eq!(plan(100, 0).iter().map(|file| file.size).sum::<u64>(), 0);
        assert_eq!(plan(10, u64::MAX / 2).iter().map(|file| file.size).sum::<u64>(), u64::MAX / 2);
    }

    /// Whoever reports a fault with the demo's data and whoever investigates it have the same bytes.
    #[test]
    fn the_tree_is_the_same_everywhere() {
        let root = tempfile::tempdir().unwrap();
        let files = plan(120, 3_000_000);
        let mut written = 0;
        let count = |bytes| {
            written += bytes;
            true
        };
        write(root.path(), &files, count).unwrap();
        assert_eq!(written, 3_000_000);
        let mut hasher = Hasher::new([Algorithm::Sha256]);
        for file in &files {
            let bytes = fs::read(root.path().join(&file.path)).unwrap();
            assert_eq!(bytes.len() as u64, file.size);
            hasher.update(file.path.as_bytes());
            hasher.update(&bytes);
        }
        assert_eq!(
            hasher.finish().to_string(),
            "sha256:927dcea977cd5544fb721d0311d556a1f8b3863b2c9fb84b0fac4b6b2cea6ced"
        );
    }
}
