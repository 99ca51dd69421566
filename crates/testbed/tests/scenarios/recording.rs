//! What a real service with real agents decided is decided again by `longhaul simulate --replay`.

use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, tree};
use serde_json::{Value, json};

const FILES: usize = 600;
const BYTES: u64 = 20_000_000;
const SERVICE: &str = "service";

#[test]
fn a_recorded_service_decides_the_same_again_also_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let recordings = directory.path().join("recordings");
    let recordings = recordings.to_str().unwrap();
    let settings = format!("record_dir = {recordings:?}\n");
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    for site in ["alpha", "beta", "gamma"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), FILES, BYTES, &mut Random::new(11));
    let files = tree::survey(&deployment.storage("alpha")).files.len() as u64;
    deployment.register("run9", "alpha");
    deployment.deliver("run9", "beta", 120);
    // The second run begins with what the first has left under way.
    deployment.json(&["subscribe", "run9", "gamma"]);
    deployment.restart(SERVICE);
    deployment.until_ready();
    deployment.deliver("run9", "gamma", 120);
    deployment.stop(SERVICE);

    let shown = deployment.longhaul(&["simulate", "--replay", recordings, "--strategy", "throughput"]).ok();
    println!("{}", shown.stdout);
    assert_eq!(shown.stdout.matches("  same: all ").count(), 2, "{shown}");
    let told = deployment.longhaul(&["simulate", "--replay", recordings, "--json"]).ok();
    let runs: Vec<Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(runs.len(), 2, "{told}");
    let leases: u64 = runs.iter().map(|run| run["leases"].as_u64().unwrap()).sum();
    assert!(leases >= 2 * files, "{leases} leases for {files} files at two sites");
    for run in &runs {
        assert_eq!((&run["same"], &run["difference"]), (&json!(true), &Value::Null), "{run:#}");
    }

    let wrong = deployment.longhaul(&["simulate", "--replay", recordings, "--strategy", "queue"]);
    assert!(wrong.status == 2 && wrong.stderr.contains("goes by what waits at each source"), "{wrong}");
    let nothing =
        deployment.longhaul(&["simulate", "--replay", directory.path().join("none").to_str().unwrap()]);
    assert_eq!(nothing.status, 3, "{nothing}");
}
