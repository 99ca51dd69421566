//! Many small files through the whole system onto the disk, against what the disk allows: write 1,000, flush
//! once, rename all, flush once.

use std::process::Command;

use longhaul_testbed::{Deployment, SiteOptions};
use serde_json::Value;

use crate::Rounds;
use crate::measure::{Row, example, make_files, median, output, peak_memory, seconds_of, used};

const FILES: usize = 10_000;
const SIZE: usize = 64_000;
const BUDGET: u64 = 256 << 20;

pub(crate) fn run(rounds: &Rounds) -> Vec<Row> {
    let mut deployment = Deployment::new();
    for name in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(name).memory(BUDGET));
    }
    let (mut ours, mut floors, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds.0 {
        floors.push(floor(&deployment));
        let dataset = format!("bench/small{round}");
        make_files(&deployment.storage("alpha").join(format!("r{round}")), FILES, SIZE);
        deployment.register(&dataset, &format!("alpha:r{round}"));
        let before = used(&deployment);
        let done = deployment.json(&["subscribe", &dataset, "beta", "--wait=600"]);
        cpu.push((used(&deployment) - before) / (FILES * SIZE) as f64 * 1e9);
        ours.push(FILES as f64 / seconds_of(&done));
        eprintln!("  round {round}: {:.0} files/s, floor {:.0} files/s", ours[round], floors[round]);
    }
    let (rate, floor) = (median(ours), median(floors));
    let agent = peak_memory(deployment.pid("beta")).max(peak_memory(deployment.pid("alpha")));
    let bound = BUDGET + 100_000_000;
    vec![
        Row {
            case: "small",
            figure: "files/s, whole system",
            value: format!("{rate:.0}"),
            yardstick: format!("{floor:.0} (write 1,000, flush, rename, flush)"),
            ratio: Some(rate / floor),
            bar: "≥ 0.7",
            reached: rate / floor >= 0.7,
        },
        Row {
            case: "small",
            figure: "CPU s/GB, all processes",
            value: format!("{:.2}", median(cpu)),
            yardstick: "–".into(),
            ratio: None,
            bar: "–",
            reached: true,
        },
        Row {
            case: "small",
            figure: "agent, peak MB",
            value: format!("{:.0}", agent as f64 / 1e6),
            yardstick: format!("{:.0} (budget)", BUDGET as f64 / 1e6),
            ratio: None,
            bar: "≤ budget + 100 MB",
            reached: agent <= bound,
        },
    ]
}

/// Files per second that this disk takes, with none of our code.
fn floor(deployment: &Deployment) -> f64 {
    let text = output(
        Command::new(example("floor"))
            .arg(deployment.directory())
            .args([FILES.to_string(), SIZE.to_string()]),
    );
    let line: Value = serde_json::from_str(text.trim()).expect("one line of JSON");
    line["files_per_s"].as_f64().expect("a rate")
}
