//! A hostile reporter: what an agent says of things that are not its site's changes nothing, however it is
//! said, and the others are served beside it. The same history is played in a deployment with the reporter
//! and in one without it; then their catalogs are compared row by row. (Promises 1, 2, 9.)

mod reporter;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use longhaul_api::routes;
use longhaul_catalog::{Claim, RULES};
use longhaul_model::{AgentId, AttemptId, Epoch, TaskId};
use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, effort, tree};
use serde_json::{Value, json};

use reporter::{HostileReporter, Victims};

const FILES: usize = 20;
const FILE_BYTES: u64 = 100_000;
const SLOW_BYTES: u64 = 30_000_000;
const DELIVERED_WITHIN_S: u64 = 120;
/// The reporter learns anew what it can name after so many reports.
const REPORTS_PER_LOOK: usize = 20;
/// At least so many claims of each kind that can be foreign have to be counted.
const FOREIGN_MIN: u64 = 3;
/// The others work on until each kind was counted so often, but not for more rounds than these.
const ROUNDS_MAX: u64 = 1_000;

#[test]
fn what_is_said_of_others_changes_nothing() {
    let time = Duration::from_secs(effort::reporter_s());
    let mut beset = world();
    let random = effort::random("hostile reporter");
    let rounds = beside_a_reporter(&beset, random, |deployment| {
        let begun = Instant::now();
        let mut rounds = 0;
        while begun.elapsed() < time || (!uncounted(deployment).is_empty() && rounds < ROUNDS_MAX) {
            rounds += 1;
            play(deployment, rounds);
        }
        end(deployment);
        rounds
    });
    beset.assert_alive();
    beset.check();
    let mut quiet = world();
    for number in 1..=rounds {
        play(&quiet, number);
    }
    end(&quiet);
    quiet.check();
    println!("{rounds} rounds");
    for deployment in [&mut beset, &mut quiet] {
        for process in ["alpha", "beta", "gamma", "service"] {
            deployment.stop(process);
        }
    }
    let (found, expected) = (read(&beset, "rows"), read(&quiet, "rows"));
    for (table, rows) in expected.as_object().unwrap() {
        assert_eq!(found[table], *rows, "{table}");
    }
    let rows =
        expected.as_object().unwrap().values().filter_map(Value::as_array).map(Vec::len).sum::<usize>();
    println!("{rows} rows are equal");
    assert!(expected["history"].as_array().unwrap().len() >= FILES && expected["tasks"] != json!([]));
}

fn world() -> Deployment {
    // No lease ends by itself: one that waits behind the limit for longer is leased anew and counted as
    // retried, which depends on how long the rounds take.
    let settings = "lease_s = 86400\n".into();
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    for site in ["alpha", "beta", "gamma", "delta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha").join("slow"), FILES, SLOW_BYTES, &mut Random::new(1));
    tree::make(
        &deployment.storage("delta").join("away"),
        FILES,
        FILES as u64 * FILE_BYTES,
        &mut Random::new(2),
    );
    deployment.register("slow", "alpha:slow");
    deployment.register("away", "delta:away");
    // Some leases and a task stay open all the time.
    deployment.json(&["site", "limit", "gamma", "--in", "20kB"]);
    deployment.json(&["subscribe", "slow", "gamma"]);
    deployment.stop("delta");
    let verification = json!({ "storage": "delta", "dataset": "away" });
    deployment.api().call(&routes::VERIFICATION_CREATE, &[], &[], &verification).unwrap().expect(202);
    deployment
}

/// What took its time ends, still beside the reporter.
fn end(deployment: &Deployment) {
    deployment.json(&["site", "limit", "gamma", "--in", "none"]);
    deployment.deliver("slow", "gamma", DELIVERED_WITHIN_S);
}

/// What honest people and agents do in one round, the same each time.
fn play(deployment: &Deployment, number: u64) {
    let dataset = format!("round{number}");
    let folder = deployment.storage("alpha").join(&dataset);
    fs::create_dir(&folder).unwrap();
    tree::make(&folder, FILES, FILES as u64 * FILE_BYTES, &mut Random::new(number));
    deployment.register(&dataset, &format!("alpha:{dataset}"));
    deployment.deliver(&dataset, "beta", DELIVERED_WITHIN_S);
    let read = deployment.json(&["verify", "beta", &dataset]);
    assert_eq!(read["files_bad"], json!(0), "{read}");
    if number.is_multiple_of(3) {
        deployment.longhaul(&["replica", "delete", &dataset, "alpha", "--yes"]).ok();
    }
}

/// Does the work while a reporter says what it likes; returns what the work returns.
fn beside_a_reporter(
    deployment: &Deployment,
    random: Random,
    work: impl FnOnce(&Deployment) -> u64 + Send,
) -> u64 {
    let claims = claims();
    let mut reporter = HostileReporter::join(deployment, "mallory", random);
    let rounds = thread::scope(|scope| {
        let working = scope.spawn(|| work(deployment));
        while !working.is_finished() {
            let victims = victims(deployment);
            reporter.start_anew(&victims);
            for _ in 0..REPORTS_PER_LOOK {
                reporter.round(&claims, &victims);
            }
        }
        working.join().unwrap()
    });
    println!("{} claims, {} reports refused as a whole", reporter.claims, reporter.reports_refused);
    let problems = deployment.json(&["problems"]);
    let told = problems.to_string();
    assert!(told.contains("mallory"), "it is told of: {told}");
    assert!(!told.contains('\u{1b}'), "what people see is printable: {told}");
    assert_eq!(uncounted(deployment), Vec::<String>::new());
    rounds
}

fn claims() -> Vec<Claim> {
    RULES.iter().map(|rule| rule.claim).collect()
}

/// The kinds of claims about things of others that were counted too rarely, with how often.
fn uncounted(deployment: &Deployment) -> Vec<String> {
    let metrics = deployment.metrics();
    // An agent may say what it likes of itself; what it says of its own links counts for them only.
    let of_itself = [Claim::Probe, Claim::Path, Claim::Uplink, Claim::Circuit];
    let foreign = claims().into_iter().filter(|claim| !of_itself.contains(claim));
    let counts = foreign.map(|claim| {
        let label = format!("claim=\"{}\"", claim.word());
        let lines = metrics.lines().filter(|line| line.contains("foreign") && line.contains(&label));
        let total: f64 = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum();
        (claim, total)
    });
    let few = counts.filter(|(_, total)| *total < FOREIGN_MIN as f64);
    few.map(|(claim, total)| format!("{}: {total}", claim.word())).collect()
}

fn victims(deployment: &Deployment) -> Victims {
    let named = read(deployment, "named");
    let rows = |table: &str| named[table].as_array().unwrap().clone();
    let number = |value: &Value| value.as_i64().unwrap().cast_unsigned();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let attempts = |table: &str| {
        let of_row = |row: &Value| (AttemptId(number(&row[0])), Epoch(number(&row[1])));
        rows(table).iter().map(of_row).collect()
    };
    let tasks = |table: &str| rows(table).iter().map(|row| TaskId(number(&row[0]))).collect();
    Victims {
        attempts: [attempts("live attempts"), attempts("attempts")],
        tasks: [tasks("open tasks"), tasks("tasks")],
        storages: rows("storages").iter().map(|row| text(&row[0]).parse().unwrap()).collect(),
        files: rows("files").iter().map(|row| (text(&row[0]).parse().unwrap(), number(&row[1]))).collect(),
        agents: rows("agents").iter().map(|row| AgentId(number(&row[0]))).collect(),
    }
}

/// Reads the catalog itself: what the service shows could hide a change.
fn read(deployment: &Deployment, what: &str) -> Value {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/hostile_reporter/catalog_rows.py");
    let catalog = deployment.service_state().join("catalog.sqlite");
    let ran = Command::new("python3").arg(script).arg(catalog).arg(what).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}
