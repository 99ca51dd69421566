//! A source, and a site with several transfer nodes, in a laboratory with a path for each of them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_api::routes;
use serde_json::json;
use tempfile::TempDir;

use crate::tree;
use crate::wan::{Direction, Lab, PathConfig, Side};
use crate::{Deployment, Random, ServiceOptions, SiteOptions, free_port};

pub(super) const NODES: usize = 4;
/// The site with the nodes, and where all data come from.
pub(super) const TARGET: &str = "beta";
const SOURCE: &str = "alpha";
/// Between agents and service: what is said there is in nobody's way.
const CONTROL: usize = NODES;
const CONTROL_RTT_MS: f64 = 2.0;
/// Roots in memory.
const MEMORY: &str = "/dev/shm";

/// How a node is called here; the first has the site's name.
pub(super) fn node(number: usize) -> String {
    if number == 0 { TARGET.to_owned() } else { format!("{TARGET}-node{}", number + 1) }
}

pub(super) struct World<'a> {
    pub lab: &'a Lab,
    pub deployment: Deployment,
    roots: TempDir,
}

/// Lets `work` run in a world of its own, on the nodes' side of the laboratory.
pub(super) fn in_world<T: Send>(
    link_mbit: f64,
    rtt_ms: f64,
    work: impl FnOnce(&mut World<'_>) -> T + Send,
) -> Result<T, String> {
    let mut paths = vec![PathConfig::new(rtt_ms).rate_mbit(link_mbit); NODES];
    paths.push(PathConfig::new(CONTROL_RTT_MS));
    let lab = Lab::start(&paths)?;
    lab.inside(Side::Left, || work(&mut World::new(&lab)))
}

impl<'a> World<'a> {
    fn new(lab: &'a Lab) -> World<'a> {
        let listen = SocketAddr::from((lab.address(Side::Left, CONTROL), free_port()));
        let settings = "probe_every_s = 0\n".to_owned();
        let options = ServiceOptions { listen: Some(listen), settings, ..ServiceOptions::default() };
        let roots = tempfile::Builder::new().prefix("longhaul-nodes-").tempdir_in(MEMORY);
        let roots = roots.expect("a directory in memory");
        let mut world = World { lab, deployment: Deployment::with(options), roots };
        for name in [SOURCE, TARGET] {
            fs::create_dir(world.root(name)).expect("a root");
        }
        world.add_source();
        let first = world.node_options(0);
        world.deployment.add_site(first);
        world
    }

    fn root(&self, name: &str) -> PathBuf {
        self.roots.path().join(name)
    }

    fn add_source(&mut self) {
        let port = free_port();
        let mut options = SiteOptions::new(SOURCE).root(self.root(SOURCE));
        options.launcher =
            ["ip", "netns", "exec", self.lab.namespace(Side::Right)].map(str::to_owned).to_vec();
        options.listen = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        options.port = Some(port);
        // What goes to an address of a path goes by that path, wherever it was asked for.
        let address = self.lab.address(Side::Right, 0);
        options.settings = format!("probes = false\nadvertise = [\"{address}:{port}\"]\n");
        self.deployment.add_site(options);
    }

    fn node_options(&self, number: usize) -> SiteOptions {
        let bind = self.lab.address(Side::Left, number);
        SiteOptions {
            settings: format!("probes = false\nbind = [\"{bind}\"]\n"),
            storage_settings: "shared = true\nflush = \"none\"\n".to_owned(),
            ..SiteOptions::new(TARGET).root(self.root(TARGET))
        }
    }

    /// Adds all nodes but the first.
    pub fn add_nodes(&mut self) {
        for number in 1..NODES {
            let options = self.node_options(number);
            self.deployment.add_agent(&node(number), options);
        }
        self.deployment.until("all nodes serve the storage", Duration::from_secs(60), || {
            let site = self.deployment.json(&["site", "show", TARGET]);
            (site["storages"][0]["agents"].as_array()?.len() == NODES).then_some(())
        });
    }

    /// Registers files of that size at the source; nothing moves yet. They are copies of one file.
    pub fn register(&self, dataset: &str, files: usize, file_bytes: u64) {
        let folder = self.root(SOURCE).join(dataset);
        fs::create_dir(&folder).expect("a directory");
        let first = folder.join("f0");
        fs::write(&first, tree::content(&mut Random::new(7), file_bytes)).expect("a file");
        for number in 1..files {
            fs::copy(&first, folder.join(format!("f{number}"))).expect("a copy");
        }
        self.deployment.register(dataset, &format!("{SOURCE}:{dataset}"));
    }

    pub fn subscribe(&self, dataset: &str) {
        self.deployment.longhaul(&["subscribe", dataset, TARGET]).ok();
    }

    /// Whether all of it has arrived.
    pub fn is_complete(&self, dataset: &str) -> bool {
        let filter = [("dataset", dataset)];
        let subscriptions = self.deployment.api().all(&routes::SUBSCRIPTION_LIST, &[], &filter);
        subscriptions.iter().any(|one| one["complete"] == json!(true))
    }

    /// Files that have arrived of a dataset, and those of them that are not what was sent.
    pub fn arrived(&self, dataset: &str) -> (usize, usize) {
        let sent = fs::read(self.root(SOURCE).join(dataset).join("f0")).expect("the source");
        let files = fs::read_dir(self.root(TARGET).join(dataset)).expect("what has arrived");
        let is_wrong = |path: &Path| fs::read(path).is_ok_and(|bytes| bytes != sent);
        files.fold((0, 0), |(all, wrong), entry| {
            let path = entry.expect("an entry").path();
            (all + 1, wrong + usize::from(is_wrong(&path)))
        })
    }

    /// Removes a dataset's files at both ends, once nothing moves any more: memory is small.
    pub fn remove_files(&self, dataset: &str) {
        for name in [SOURCE, TARGET] {
            fs::remove_dir_all(self.root(name).join(dataset)).expect("the files of a dataset");
        }
    }

    /// What each path has carried towards the nodes, headers included.
    pub fn carried(&self) -> [u64; NODES] {
        std::array::from_fn(|path| self.lab.counters(path, Direction::RightToLeft).bytes_carried)
    }

    /// How often each file was recorded as brought.
    pub fn recorded(&self, dataset: &str) -> usize {
        let filter = [("target", TARGET), ("state", "done")];
        let done = self.deployment.api().all(&routes::TRANSFER_LIST, &[], &filter);
        let prefix = format!("{dataset}/");
        let is_of = |transfer: &serde_json::Value| {
            transfer["lfn"].as_str().is_some_and(|lfn| lfn.starts_with(&prefix))
        };
        done.iter().filter(|transfer| is_of(transfer)).count()
    }
}
