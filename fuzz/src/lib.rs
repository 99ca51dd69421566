//! Fuzz targets of every decoder that reads what others wrote: plain functions of bytes, in [`targets`].
//!
//! `fuzz_targets/` wraps each for libFuzzer; `cargo xtask soak fuzz` builds and runs them; `corpus/` holds
//! seeds and the regressions of what was found, and `crates/testbed/tests/scenarios/corpus.rs` replays it in
//! the test command, without libFuzzer. Not here: hostile peers of running processes (`testbed`), property
//! tests (beside the code). Start with [`targets::ALL`]. `docs/reference/fuzzing.md` says how to add a
//! target.

pub mod targets;
