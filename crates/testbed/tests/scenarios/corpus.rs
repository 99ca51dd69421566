//! The committed corpus of every fuzz target, replayed without libFuzzer: seeds, and what was ever found.
//! `cargo xtask soak fuzz` is what looks for more.

#[path = "../../../../fuzz/src/targets/mod.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// What a corpus in a repository may weigh: a clone is not made slow by it, nor is the test command.
const FILES_MAX: usize = 200;
const BYTES_MAX: usize = 4_096;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn nothing_that_was_found_comes_back() {
    let mut bad = Vec::new();
    for (name, target) in targets::ALL {
        let folder = fuzz().join("corpus").join(name);
        let files = names_in(&folder);
        assert!((1..=FILES_MAX).contains(&files.len()), "{name} has {} files", files.len());
        for file in files {
            let bytes = fs::read(folder.join(&file)).unwrap();
            assert!(bytes.len() <= BYTES_MAX, "{name}/{file} has {} bytes", bytes.len());
            if catch_unwind(|| target(&bytes)).is_err() {
                bad.push(format!("{name}/{file}"));
            }
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}

/// A target without its wrapper would never be fuzzed, and a corpus without its target never replayed.
#[test]
fn targets_wrappers_and_corpora_belong_together() {
    let known: BTreeSet<String> = targets::ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(known.len(), targets::ALL.len(), "names are unique");
    assert_eq!(names_in(&fuzz().join("corpus")), known);
    let wrappers = names_in(&fuzz().join("fuzz_targets"));
    assert_eq!(wrappers, known.iter().map(|name| format!("{name}.rs")).collect());
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for name in &known {
        assert!(manifest.contains(&format!("name = {name:?}\n")), "{name} is not in fuzz/Cargo.toml");
        let wrapper = fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(wrapper.contains(&format!("targets::{name}(")), "fuzz_targets/{name}.rs runs another");
    }
}
