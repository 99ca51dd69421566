//! Several agents on one root, as the transfer nodes of a file system: they share the work, and what one held
//! when it was killed is brought by the others (docs/howto/transfer-nodes.md).

use std::time::Duration;

use longhaul_api::routes;
use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, Watcher, processes, tree};

const FILES: usize = 400;
const BYTES: u64 = 60_000_000;
/// What alpha sends: bytes move for some seconds.
const RATE: &str = "6MB";
/// Each of the agents has written so much when one is killed.
const SHARE_BYTES: u64 = 2_000_000;
/// The storage, and how its agents are called here.
const STORAGE: &str = "beta";
const AGENTS: [&str; 3] = ["beta", "beta-node2", "beta-node3"];

fn options() -> SiteOptions {
    SiteOptions { storage_settings: "shared = true\n".to_owned(), ..SiteOptions::new(STORAGE) }
}

fn until_served_by(deployment: &Deployment, agents: usize) {
    deployment.until(&format!("{agents} agents serve the storage"), Duration::from_secs(120), || {
        let site = deployment.json(&["site", "show", STORAGE]);
        (site["storages"][0]["agents"].as_array()?.len() == agents).then_some(())
    });
}

/// Promises 1, 2 and 4 with several writers.
#[test]
fn agents_of_one_root_share_the_work_and_take_over_what_a_killed_one_held() {
    let mut deployment = Deployment::with(ServiceOptions {
        settings: "fence_after_s = 1\n".to_owned(),
        ..ServiceOptions::default()
    });
    deployment.add_site(SiteOptions::new("alpha"));
    deployment.add_site(options());
    for node in &AGENTS[1..] {
        let root = deployment.storage(STORAGE);
        deployment.add_agent(node, options().root(root));
    }
    until_served_by(&deployment, AGENTS.len());

    tree::make(&deployment.storage("alpha"), FILES, BYTES, &mut Random::new(34));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "alpha", "--out", RATE]);
    let watcher = Watcher::start(&deployment.storage(STORAGE), files.clone());
    deployment.json(&["subscribe", "run7", STORAGE]);
    deployment.until("all take part", Duration::from_secs(120), || {
        let written = AGENTS.map(|node| processes::bytes_written(deployment.pid(node)));
        written.iter().all(|bytes| *bytes > SHARE_BYTES).then_some(())
    });
    // The one that leads.
    deployment.kill(STORAGE);
    deployment.deliver("run7", STORAGE, 240);
    tree::assert_same(&files, &deployment.storage(STORAGE), "");
    let seen = watcher.finish();
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    let done = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", STORAGE), ("state", "done")]);
    assert_eq!(done.len(), files.len(), "each file is recorded once");

    // Another one leads and does what is to be done there; the one that was killed is one of all again.
    deployment.json(&["verify", STORAGE, "run7"]);
    deployment.start(STORAGE);
    until_served_by(&deployment, AGENTS.len());
    deployment.json(&["site", "limit", "alpha", "--out", "none"]);
    deployment.assert_alive();
    deployment.check();
}
