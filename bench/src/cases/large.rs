//! Large files on tmpfs: what the service costs the engine, and whether the wire ever runs dry.

use std::path::Path;
use std::process::Command;

use longhaul_api::routes;
use longhaul_model::Timestamp;
use longhaul_testbed::{Deployment, SiteOptions};

use crate::Rounds;
use crate::measure::{
    Row, example, make_files, median, output, peak_memory, seconds_of, socket_memory, touch_memory, used,
};

const FILES: usize = 20;
const SIZE: usize = 100_000_000;
const BUDGET: u64 = 256 << 20;
const MEMORY_FILE_SYSTEM: &str = "/dev/shm";

pub(crate) fn run(rounds: &Rounds) -> Vec<Row> {
    let shm = tempfile::tempdir_in(MEMORY_FILE_SYSTEM).expect("a folder on tmpfs");
    let mut deployment = Deployment::new();
    for name in ["alpha", "beta"] {
        let root = shm.path().join(name);
        std::fs::create_dir(&root).expect("a storage on tmpfs");
        deployment.add_site(SiteOptions::new(name).root(&root).memory(BUDGET));
    }
    let (mut ours, mut engine, mut gaps, mut cpu, mut sockets) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0);
    for round in 0..rounds.0 {
        touch_memory(shm.path(), 2 * FILES, SIZE);
        engine.push(engine_alone(shm.path()));
        let (folder, dataset) = (format!("r{round}"), format!("bench/large{round}"));
        make_files(&shm.path().join("alpha").join(&folder), FILES, SIZE);
        deployment.register(&dataset, &format!("alpha:{folder}"));
        touch_memory(shm.path(), FILES, SIZE);
        let before = used(&deployment);
        let done = deployment.json(&["subscribe", &dataset, "beta", "--wait=600"]);
        sockets = sockets.max(socket_memory());
        cpu.push((used(&deployment) - before) / (FILES * SIZE) as f64 * 1e9);
        ours.push((FILES * SIZE) as f64 / 1e6 / seconds_of(&done));
        gaps.push(longest_gap_ms(&deployment, &dataset));
        eprintln!(
            "  round {round}: {:.0} MB/s, engine alone {:.0} MB/s, longest gap {:.0} ms",
            ours[round], engine[round], gaps[round]
        );
        for site in ["alpha", "beta"] {
            std::fs::remove_dir_all(shm.path().join(site).join(&folder)).expect("room for the next round");
        }
    }
    let (rate, alone, gap) = (median(ours), median(engine), gaps.iter().copied().fold(0.0, f64::max));
    let agent = peak_memory(deployment.pid("beta")) + sockets;
    vec![
        Row {
            case: "large",
            figure: "MB/s, whole system",
            value: format!("{rate:.0}"),
            yardstick: format!("{alone:.0} (engine without service)"),
            ratio: Some(rate / alone),
            bar: "≥ 0.85",
            reached: rate / alone >= 0.85,
        },
        Row {
            case: "large",
            figure: "longest gap on the wire, ms",
            value: format!("{gap:.0}"),
            yardstick: "–".into(),
            ratio: None,
            bar: "≤ 100",
            reached: gap <= 100.0,
        },
        Row {
            case: "large",
            figure: "CPU s/GB, all processes",
            value: format!("{:.2}", median(cpu)),
            yardstick: "–".into(),
            ratio: None,
            bar: "–",
            reached: true,
        },
        Row {
            case: "large",
            figure: "target agent and all sockets, peak MB",
            value: format!("{:.0}", agent as f64 / 1e6),
            yardstick: format!("{:.0} (budget)", BUDGET as f64 / 1e6),
            ratio: None,
            bar: "≤ budget + 100 MB",
            reached: agent <= BUDGET + 100_000_000,
        },
    ]
}

fn engine_alone(folder: &Path) -> f64 {
    let text =
        output(Command::new(example("loopback")).arg(folder).args([FILES.to_string(), SIZE.to_string()]));
    // "… MB/s …" somewhere in its line.
    let words: Vec<&str> = text.split_whitespace().collect();
    let place = words.iter().position(|word| word.starts_with("MB/s")).expect("a rate");
    words[place - 1].parse().expect("a number before MB/s")
}

/// The longest time between the first and the last byte during which no file was on the wire, from the
/// records of the attempts themselves.
fn longest_gap_ms(deployment: &Deployment, dataset: &str) -> f64 {
    let api = deployment.api();
    let mut spans: Vec<(Timestamp, Timestamp)> = Vec::new();
    for item in api.all(&routes::TRANSFER_LIST, &[], &[("dataset", dataset)]) {
        let detail = api.get(&routes::TRANSFER_SHOW, &[item["id"].as_str().expect("an id")], &[]);
        for attempt in detail["attempts"].as_array().into_iter().flatten() {
            let time = |name: &str| attempt["times"][name].as_str().and_then(|text| text.parse().ok());
            if let (Some(first), Some(last)) = (time("first_byte"), time("last_byte")) {
                spans.push((first, last));
            }
        }
    }
    assert_eq!(spans.len(), FILES, "every file has its times");
    spans.sort();
    let mut reached = spans[0].1;
    let mut longest = 0.0f64;
    for (first, last) in spans {
        longest = longest.max(first.since(reached).as_secs_f64() * 1e3);
        reached = reached.max(last);
    }
    longest
}
