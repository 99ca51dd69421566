//! What a newcomer waits for: everything compiled from nothing.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::Rounds;
use crate::measure::{Row, output};

pub(crate) fn run(_: &Rounds) -> Vec<Row> {
    let target = tempfile::tempdir().expect("a folder to build in");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root of the checkout");
    let begun = Instant::now();
    output(
        Command::new(env!("CARGO"))
            .args(["build", "--release", "--locked"])
            .current_dir(root)
            .env("CARGO_TARGET_DIR", target.path())
            .env_remove("CARGO_INCREMENTAL"),
    );
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    vec![Row {
        case: "build",
        figure: "cold release build, min",
        value: format!("{minutes:.1}"),
        yardstick: "two cores".into(),
        ratio: None,
        bar: "≤ 8",
        reached: minutes <= 8.0,
    }]
}
