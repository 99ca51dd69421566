//! A large catalog: how fast it is registered, how soon work begins with it loaded, and what it costs in
//! memory.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Instant;

use longhaul_api::routes;
use longhaul_model::Timestamp;
use longhaul_testbed::{Deployment, SiteOptions};

use crate::Rounds;
use crate::measure::{Row, make_files, median, peak_memory};

const FILES: usize = 1_000_000;
const PROBE_FILES: usize = 100;

pub(crate) fn run(rounds: &Rounds) -> Vec<Row> {
    let mut deployment = Deployment::new();
    for name in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(name));
    }
    let manifest = deployment.directory().join("manifest.ndjson");
    write_manifest(&manifest);
    let begun = Instant::now();
    let path = manifest.to_string_lossy();
    deployment.json(&["dataset", "register", "bench/million", "--manifest", &path, "--at", "alpha"]);
    let rate = FILES as f64 / begun.elapsed().as_secs_f64();
    eprintln!("  registered {rate:.0} files/s");

    let firsts: Vec<f64> = (0..rounds.0).map(|round| first_byte_s(&deployment, round)).collect();
    let first = median(firsts);
    let service = peak_memory(deployment.pid("service"));
    vec![
        Row {
            case: "register",
            figure: "files/s from a manifest",
            value: format!("{rate:.0}"),
            yardstick: "–".into(),
            ratio: None,
            bar: "≥ 30,000",
            reached: rate >= 30_000.0,
        },
        Row {
            case: "register",
            figure: "subscription to first byte, s",
            value: format!("{first:.3}"),
            yardstick: "1,000,000 files in the catalog".into(),
            ratio: None,
            bar: "≤ 1",
            reached: first <= 1.0,
        },
        Row {
            case: "register",
            figure: "service, peak MB",
            value: format!("{:.0}", service as f64 / 1e6),
            yardstick: "1,000,000 files in the catalog".into(),
            ratio: None,
            bar: "≤ 600",
            reached: service <= 600_000_000,
        },
    ]
}

fn write_manifest(path: &Path) {
    let mut file = BufWriter::new(File::create(path).expect("a manifest"));
    for number in 0..FILES {
        let (part, size) = (number / 1_000, 1_000_000 + number);
        writeln!(
            file,
            "{{\"lfn\":\"store/run7/aod/{part:04}/file_{number:08}.root\",\"size\":{size},\
             \"digests\":[\"adler32:{:08x}\"]}}",
            number + 1
        )
        .expect("a line is written");
    }
}

/// From the answer to `subscribe` to the first byte of the first file, by the service's clock.
fn first_byte_s(deployment: &Deployment, round: usize) -> f64 {
    let (folder, dataset) = (format!("probe{round}"), format!("bench/probe{round}"));
    make_files(&deployment.storage("alpha").join(&folder), PROBE_FILES, 10_000);
    deployment.register(&dataset, &format!("alpha:{folder}"));
    let done = deployment.json(&["subscribe", &dataset, "beta", "--wait=120"]);
    let created: Timestamp =
        done["created"].as_str().and_then(|text| text.parse().ok()).expect("when it was made");
    let api = deployment.api();
    let firsts =
        api.all(&routes::TRANSFER_LIST, &[], &[("dataset", &dataset)]).into_iter().filter_map(|item| {
            let detail = api.get(&routes::TRANSFER_SHOW, &[item["id"].as_str()?], &[]);
            detail["attempts"][0]["times"]["first_byte"].as_str()?.parse::<Timestamp>().ok()
        });
    firsts.min().expect("a first byte").since(created).as_secs_f64()
}
