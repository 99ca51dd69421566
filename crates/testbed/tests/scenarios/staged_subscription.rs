//! A subscription whose only replica is on tape: its files are staged in bulk, whoever is killed meanwhile,
//! read once, and leave the disk again.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use longhaul_api::routes;
use longhaul_testbed::tape_recall::Experiment;
use longhaul_testbed::{Deployment, DirectoryTape, Random, SERVICE, SiteOptions, tree};

const FILES: usize = 120;
const BYTES: u64 = 12_000_000;
/// Files of one command of the site.
const BULK: usize = 50;
const WITHIN: Duration = Duration::from_secs(120);

#[test]
fn a_subscription_from_tape_stages_in_bulk_reads_once_and_lets_go() {
    let mut deployment = Deployment::new();
    let tape = DirectoryTape::new(deployment.directory());
    tree::make(&tape.disk, FILES, BYTES, &mut Random::new(7));
    deployment.add_site(tape.site("alpha", &format!("bulk = {BULK}\n")));
    deployment.add_site(SiteOptions::new("beta"));
    let files = tree::survey(&tape.disk).files;
    deployment.register("run7", "alpha");
    assert_eq!(deployment.json(&["site", "show", "alpha"])["storages"][0]["kind"], "tape");
    let paths: Vec<&Path> = files.keys().map(|path| Path::new(OsStr::from_bytes(path))).collect();
    paths.iter().for_each(|path| tape.take_off_disk(path));
    // A tape keeps no empty files.
    let on_tape = files.values().filter(|content| content.size > 0).count();

    let subscription = deployment.json(&["subscribe", "run7", "beta"]);
    let id = subscription["id"].as_str().unwrap();
    let ordered = |deployment: &Deployment| {
        deployment.until("all is ordered", WITHIN, || {
            let queue = deployment.json(&["site", "show", "alpha"])["storages"][0]["tape_queue"].clone();
            (queue["ordered_files"] == on_tape).then_some(())
        });
    };
    ordered(&deployment);
    deployment.until("the reason is said", WITHIN, || {
        let shown = deployment.json(&["subscription", "show", id]);
        let why = shown["expected"]["why_none"].as_str()?;
        (why.starts_with("comes from tape at alpha first: ") && why.contains("ordered")).then_some(())
    });
    // Nobody forgets it, and nobody orders twice what is under way.
    deployment.until("the tape is at it", WITHIN, || (tape.runs("stage") > 0).then_some(()));
    deployment.restart("alpha");
    deployment.restart(SERVICE);
    deployment.until_ready();
    ordered(&deployment);
    let before = tape.runs("stage");
    tape.let_go();
    deployment.deliver("run7", "beta", 120);
    tree::assert_same(&files, &deployment.storage("beta"), "");
    let runs = tape.runs("stage") - before;
    assert!(runs <= files.len().div_ceil(BULK) + 1, "{runs} commands for {} files", files.len());
    let done = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", "beta")]);
    assert!(done.len() == files.len() && done.iter().all(|one| one["attempts"] == 1), "{done:#?}");

    // What was read leaves the disk.
    deployment
        .until("the disk is empty", WITHIN, || paths.iter().all(|path| tape.is_stub(path)).then_some(()));
    let queue = deployment.json(&["site", "show", "alpha"])["storages"][0]["tape_queue"].clone();
    assert!(queue.is_null(), "{queue}");
    deployment.assert_alive();
    deployment.check();
}

/// `cargo xtask testbed tape` in small: cartridge by cartridge, and never more on disk than is allowed. There
/// is one drive: with several, which of them a cartridge is mounted in is the tape system's to choose.
#[test]
fn a_recall_mounts_each_cartridge_once_and_keeps_to_its_disk() {
    let experiment = Experiment {
        files: 400,
        file_bytes: 5_000,
        cartridges: 8,
        drives: 1,
        buffer_bytes: 800_000,
        tells_places: true,
    };
    let outcome = experiment.run().unwrap();
    assert!(outcome.bars().iter().all(|bar| bar.reached), "{:#?}", outcome.bars());
}
