//! The service is away in the middle of a campaign: the agents finish what they hold, and report it when it
//! is back. `LONGHAUL_SOAK_AWAY_S` sets for how long it stays away after that.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use longhaul_api::routes;
use longhaul_testbed::{Deployment, Random, SERVICE, SiteOptions, Watcher, effort, processes, tree};

const FILES: usize = 2_000;
const BYTES: u64 = 200_000_000;
/// So slow, and so few files at a time, that beta is never given all of them before the service dies.
const RATE: &str = "4MB";
const AT_A_TIME: &str = "300";
/// The agents have finished what they hold when nothing was written for this long.
const QUIET: Duration = Duration::from_millis(1_500);
const FINISHED_WITHIN: Duration = Duration::from_secs(120);

/// Promises 3 and 5.
#[test]
fn agents_finish_what_they_hold_while_the_service_is_away() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), FILES, BYTES, &mut Random::new(11));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "beta", "--in", RATE, "--active-in", AT_A_TIME]);
    let watcher = Watcher::start(&deployment.storage("beta"), files.clone());
    let id = deployment.json(&["subscribe", "run7", "beta"])["id"].as_str().unwrap().to_owned();
    let known = deployment.until("some files are there", Duration::from_secs(60), || {
        let present = deployment.json(&["subscription", "show", &id])["files_present"].as_u64().unwrap();
        (present > 20).then_some(present)
    });

    deployment.kill(SERVICE);
    let at_kill = tree::stored(&deployment.storage("beta")).len();
    let (_never, tick) = mpsc::channel::<()>();
    let begun = Instant::now();
    loop {
        let before = processes::bytes_written(deployment.pid("beta"));
        let _ = tick.recv_timeout(QUIET);
        if processes::bytes_written(deployment.pid("beta")) < before + 100_000 {
            break;
        }
        assert!(begun.elapsed() < FINISHED_WITHIN, "they still move what they hold");
    }
    let _ = tick.recv_timeout(Duration::from_secs(effort::away_s()));
    let held = tree::stored(&deployment.storage("beta")).len();
    println!(
        "{known} known, {at_kill} there when the service died, {held} when it came back {:.0} s later",
        begun.elapsed().as_secs_f64()
    );
    assert!(held > at_kill, "what they held was not finished");
    assert!(held < files.len(), "they held everything: nothing is left to show that work goes on");
    deployment.assert_alive();

    let beta = deployment.log("beta").len();
    deployment.start(SERVICE);
    deployment.until_ready();
    // What was finished meanwhile is reported and counted before long, and nothing of it is moved again.
    deployment.until("the outcomes are reported", Duration::from_secs(120), || {
        let reply =
            deployment.api().call(&routes::SUBSCRIPTION_SHOW, &[&id], &[], &serde_json::Value::Null).ok()?;
        (reply.status == 200 && reply.json()["files_present"].as_u64()? >= held as u64).then_some(())
    });
    deployment.check();
    deployment.json(&["site", "limit", "beta", "--in", "none", "--active-in", "none"]);
    deployment.deliver("run7", "beta", 120);
    tree::assert_same(&files, &deployment.storage("beta"), "");
    let seen = watcher.finish();
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);

    let api = deployment.api();
    let done = api.all(&routes::TRANSFER_LIST, &[], &[("target", "beta"), ("state", "done")]);
    assert_eq!(done.len(), files.len(), "each file is recorded once");
    let mut moved = 0;
    for transfer in &done {
        // A lease that was decided and had not left when the service died is given anew. What a broken stream
        // still owed is sent again.
        let detail = api.get(&routes::TRANSFER_SHOW, &[transfer["id"].as_str().unwrap()], &[]);
        let attempts = detail["attempts"].as_array().unwrap();
        let bytes = |name: &str| attempts.iter().filter_map(|one| one[name].as_u64()).sum::<u64>();
        moved += bytes("bytes_moved") - bytes("bytes_resent");
    }
    assert_eq!(
        moved,
        files.values().map(|content| content.size).sum::<u64>(),
        "bytes moved for the first time are bytes of files"
    );
    assert!(deployment.log("beta").len() > beta, "the agent says that it is in contact again");
    deployment.check();
}
