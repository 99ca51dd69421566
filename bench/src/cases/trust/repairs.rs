//! What the repair of damaged copies costs the network.

use std::fs;
use std::os::unix::fs::FileExt as _;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_testbed::{Deployment, Random, SiteOptions};

use super::at_most;
use crate::measure::Row;

/// Files that are damaged in one chunk each. The ratio does not depend on their number.
const DAMAGED_FILES: usize = 40;
const DAMAGED_FILE_BYTES: usize = 100_000_000;

pub(super) fn run() -> Vec<Row> {
    let figure = "bytes to repair 40 files of 100 MB with one bad chunk each, by damaged chunks";
    vec![at_most(figure, repair_ratio(), 2.0, "≤ 2")]
}

/// Bytes that are fetched to repair damaged files, as a multiple of the chunks that are damaged.
fn repair_ratio() -> f64 {
    let mut deployment = Deployment::new();
    ["alpha", "beta"].into_iter().for_each(|site| deployment.add_site(SiteOptions::new(site)));
    let mut random = Random::new(41);
    let mut bytes: Vec<u8> = (0..DAMAGED_FILE_BYTES).map(|_| random.below(256) as u8).collect();
    let name = |number: usize| format!("f{number:03}");
    for number in 0..DAMAGED_FILES {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        // What is there already is compared and not moved.
        for site in ["alpha", "beta"] {
            fs::write(deployment.storage(site).join(name(number)), &bytes).expect("a file");
        }
    }
    deployment.register("run", "alpha");
    deployment.deliver("run", "beta", 600);
    let moved = || deployment.metric("longhaul_moved_bytes_total{source=\"alpha\",target=\"beta\"}");
    let before = moved();
    for number in 0..DAMAGED_FILES {
        let at = random.below(DAMAGED_FILE_BYTES as u64);
        let path = deployment.storage("beta").join(name(number));
        let file = fs::File::options().read(true).write(true).open(path).expect("a file");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("a byte");
        file.write_all_at(&[byte[0] ^ 1], at).expect("another byte");
    }
    deployment.longhaul(&["verify", "beta", "run"]).exits(10);
    deployment.deliver("run", "beta", 600);
    (moved() - before) / (DAMAGED_FILES as f64 * f64::from(CHUNK_BYTES))
}
