//! `cargo xtask bench`: builds everything once, then hands over to the program in `bench/`.

use crate::tools::{cargo, run_command};

pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    run_command(cargo().args(["build", "--release", "--workspace", "--examples"]))?;
    run_command(
        cargo().args(["run", "--release", "--quiet", "--package", "longhaul-bench", "--"]).args(words),
    )
}
