//! `cargo xtask dist`: the program as users install it, stripped, and whether it is small enough to be
//! fetched in seconds.

use crate::tools::{cargo, run_command, target};

/// A larger program takes more than five seconds at 100 Mbit/s.
const PROGRAM_BYTES_MAX: u64 = 60_000_000;

/// The profile by which packages are built.
pub(crate) const PROFILE: &str = "dist";

pub(crate) fn run() -> Result<(), String> {
    // The profile says it as well, but cargo forgets it for packages that the profile has settings of.
    let strip = ["--", "-C", "strip=symbols"];
    let build = ["rustc", "--profile", PROFILE, "--package", "longhaul", "--bin", "longhaul"];
    run_command(cargo().args(build).args(strip))?;
    let program = target().join(PROFILE).join("longhaul");
    let metadata = program.metadata().map_err(|error| format!("{}: {error}", program.display()))?;
    let megabytes = metadata.len() as f64 / 1e6;
    println!("{}: {megabytes:.1} MB", program.display());
    if metadata.len() > PROGRAM_BYTES_MAX {
        return Err(format!("{megabytes:.1} MB, over {} MB", PROGRAM_BYTES_MAX / 1_000_000));
    }
    Ok(())
}
