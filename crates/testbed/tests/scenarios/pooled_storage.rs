//! A storage of several pools: files go to and come from all of them, one that is not mounted takes nothing
//! from the catalog, one that is drained is emptied while files move, and a lost one is filled again by the
//! others (docs/howto/pools.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_model::PoolState;
use longhaul_testbed::disk_pools::Experiment;
use longhaul_testbed::{Deployment, Random, SiteOptions, tree};
use serde_json::Value;

const WITHIN: Duration = Duration::from_secs(120);
const FILES: usize = 300;
const BYTES: u64 = 60_000_000;
const STORAGE: &str = "beta";
const POOLS: [&str; 3] = ["disk1", "disk2", "disk3"];

struct Pools {
    deployment: Deployment,
    roots: [PathBuf; 3],
}

impl Pools {
    /// Alpha has a directory, beta the pools.
    fn new() -> Pools {
        let mut deployment = Deployment::new();
        deployment.add_site(SiteOptions::new("alpha"));
        let roots = POOLS.map(|name| deployment.directory().join(name));
        roots.iter().for_each(|root| fs::create_dir(root).unwrap());
        let mut pools = Pools { deployment, roots };
        let options = pools.options(&[PoolState::Open; 3]);
        pools.deployment.add_site(options);
        pools
    }

    fn options(&self, states: &[PoolState]) -> SiteOptions {
        let pools = POOLS.iter().zip(&self.roots).zip(states);
        let pools = pools.map(|((name, root), state)| ((*name).to_owned(), root.clone(), *state));
        SiteOptions { pools: pools.collect(), ..SiteOptions::new(STORAGE) }
    }

    fn restart_with(&mut self, states: &[PoolState]) {
        let options = self.options(states);
        self.deployment.stop(STORAGE);
        self.deployment.configure(STORAGE, options);
        self.deployment.start(STORAGE);
    }

    /// What the site says of one pool, once that is so.
    fn until(&self, what: &str, pool: usize, met: impl Fn(&Value) -> bool) {
        self.deployment.until(what, WITHIN, || {
            let site = self.deployment.json(&["site", "show", STORAGE]);
            let shown = site["storages"][0]["pools"].get(pool)?;
            met(shown).then_some(())
        });
    }

    fn count(&self, pool: usize, folder: &str) -> usize {
        files_below(&self.roots[pool].join(folder))
    }

    fn counts(&self, folder: &str) -> [usize; 3] {
        [0, 1, 2].map(|pool| self.count(pool, folder))
    }
}

fn files_below(directory: &Path) -> usize {
    if directory.exists() { tree::survey(directory).files.len() } else { 0 }
}

/// A dataset of files of all sizes, registered at alpha.
fn register(deployment: &Deployment, name: &str, seed: u64) -> usize {
    let root = deployment.storage("alpha").join(name);
    fs::create_dir(&root).unwrap();
    tree::make(&root, FILES, BYTES, &mut Random::new(seed));
    deployment.register(name, &format!("alpha:{name}"));
    files_below(&root)
}

#[test]
fn a_storage_of_pools_is_filled_drained_and_healed() {
    let mut pools = Pools::new();
    let files = register(&pools.deployment, "run7", 34);
    pools.deployment.deliver("run7", STORAGE, WITHIN.as_secs());
    let counts = pools.counts("run7");
    assert_eq!(counts.iter().sum::<usize>(), files, "each file lies in one pool");
    assert!(counts.iter().all(|count| *count > FILES / 10), "{counts:?}");
    pools.deployment.longhaul(&["verify", STORAGE, "run7"]).ok();

    // A disk is not mounted: nothing is lost, and new files go to the others.
    pools.deployment.stop(STORAGE);
    let aside = pools.deployment.directory().join("aside");
    fs::rename(&pools.roots[1], &aside).unwrap();
    fs::create_dir(&pools.roots[1]).unwrap();
    pools.deployment.start(STORAGE);
    pools.until("the pool is out of service", 1, |pool| !pool["trouble"].is_null());
    let problems = pools.deployment.json(&["problems"]);
    let is_told =
        |problem: &Value| problem["fault"]["detail"].as_str().unwrap().contains("pool disk2 of beta");
    assert!(problems["items"].as_array().unwrap().iter().any(is_told), "{problems}");
    register(&pools.deployment, "run8", 35);
    pools.deployment.deliver("run8", STORAGE, WITHIN.as_secs());
    assert_eq!(pools.count(1, "run8"), 0);
    let replicas = pools.deployment.json(&["replica", "list", "run7"]);
    let complete = |list: &Value| {
        let replicas = list["items"].as_array().unwrap();
        replicas.iter().all(|replica| replica["files"] == files) && replicas.len() == 2
    };
    assert!(complete(&replicas), "{replicas}");
    fs::remove_dir_all(&pools.roots[1]).unwrap();
    fs::rename(&aside, &pools.roots[1]).unwrap();
    pools.until("the pool is back", 1, |pool| pool["trouble"].is_null());
    pools.deployment.longhaul(&["verify", STORAGE, "run7"]).ok();

    // A pool is drained.
    pools.restart_with(&[PoolState::Draining, PoolState::Open, PoolState::Open]);
    pools.until("the pool is empty", 0, |pool| pool["drain"]["is_empty"] == true);
    assert_eq!(pools.count(0, "run7") + pools.count(0, "run8"), 0);
    for dataset in ["run7", "run8"] {
        pools.deployment.longhaul(&["verify", STORAGE, dataset]).ok();
    }

    // A disk is lost, and taken out: what lay there is fetched again.
    pools.deployment.stop(STORAGE);
    let lost = pools.count(2, "run7");
    assert!(lost > 0);
    let two = SiteOptions { pools: pools.options(&[PoolState::Open; 2]).pools, ..SiteOptions::new(STORAGE) };
    pools.deployment.configure(STORAGE, two);
    pools.deployment.start(STORAGE);
    pools.deployment.longhaul(&["verify", STORAGE, "run7"]).exits(10);
    pools.deployment.until("what was lost is there again", WITHIN, || {
        (pools.count(0, "run7") + pools.count(1, "run7") == files).then_some(())
    });
    pools.deployment.longhaul(&["verify", STORAGE, "run7"]).ok();

    // What is deleted leaves every pool.
    let subscriptions = pools.deployment.json(&["subscription", "list", "--dataset", "run7"]);
    let id = subscriptions["items"][0]["id"].as_str().unwrap();
    pools.deployment.json(&["subscription", "cancel", id]);
    pools.deployment.longhaul(&["replica", "delete", "run7", STORAGE, "--yes"]).ok();
    pools.deployment.until("it is deleted", WITHIN, || {
        (pools.count(0, "run7") + pools.count(1, "run7") == 0).then_some(())
    });
    pools.deployment.assert_alive();
    pools.deployment.check();
}

/// As `cargo xtask testbed pools`, in small: what is measured there is that each disk has its share.
#[test]
fn every_disk_has_its_share_of_what_is_written() {
    let small = Experiment { pools: 4, files: 60, file_bytes: 2_000_000, ..Experiment::default() };
    let filled = small.run().unwrap();
    assert_eq!(filled.right_files, small.files);
    let [fast @ .., slow] = &filled.written[..] else { panic!("{filled:?}") };
    assert!(fast.iter().all(|bytes| bytes > slow), "{:?}", filled.written);
    let drained = Experiment { drained_files: 10, ..small }.run().unwrap();
    assert_eq!((drained.right_files, drained.written[0]), (60, 0), "nothing new goes to the drained one");
    assert!(drained.drained_files > 0);
}
