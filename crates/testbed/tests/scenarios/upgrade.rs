//! A deployment of the last release, on SQLite and on PostgreSQL, goes on with this version while work is
//! under way: processes are replaced one after another, so that old and new ones talk to each other, and the
//! last release's commands work with the new service.
//!
//! It needs the last release's program, named by `LONGHAUL_PREVIOUS_BINARY`: `cargo xtask previous upgrade`
//! builds that from its commit and runs these tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_testbed::foreign::PostgreSql;
use longhaul_testbed::tree::{self, Content};
use longhaul_testbed::{CommandOutput, Deployment, Random, SERVICE, ServiceOptions, SiteOptions, needs};
use serde_json::{Value, json};

/// Into beta, so that every step finds work under way.
const RATE: &str = "3MB";
const FILES: usize = 400;
const BYTES: u64 = 60_000_000;
const WITHIN: Duration = Duration::from_secs(120);
const AGENTS: [&str; 2] = ["alpha", "beta"];
/// A storage of alpha under a name that the last release took and this one would not take.
const FREE_NAME: &str = "attic";

/// In which order an administrator replaces the programs.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    ServiceFirst,
    AgentsFirst,
}

struct Upgrade {
    deployment: Deployment,
    previous: PathBuf,
    files: BTreeMap<Vec<u8>, Content>,
    subscription: String,
}

fn previous_binary() -> PathBuf {
    let named = std::env::var_os("LONGHAUL_PREVIOUS_BINARY");
    PathBuf::from(
        named.expect("LONGHAUL_PREVIOUS_BINARY names the last release: cargo xtask previous upgrade"),
    )
}

impl Upgrade {
    /// Service and agents of the last release, with a subscription that has moved some files, one that is
    /// suspended, and settings of each kind.
    fn begin(settings: String) -> Upgrade {
        let previous = previous_binary();
        let options =
            ServiceOptions { settings, binary: Some(previous.clone()), ..ServiceOptions::default() };
        let mut deployment = Deployment::with(options);
        for name in AGENTS {
            let binary = Some(previous.clone());
            let mut options = SiteOptions { binary, ..SiteOptions::new(name).with_virtual_storage() };
            if name == "alpha" {
                options.settings +=
                    &format!("[[agent.storages]]\nname = {FREE_NAME:?}\nkind = \"virtual\"\n");
            }
            deployment.add_site(options);
        }
        let root = deployment.storage("alpha");
        tree::make(&root.join("run7"), FILES, BYTES, &mut Random::new(7));
        tree::make(&root.join("run8"), 20, 1_000_000, &mut Random::new(8));
        let files = tree::survey(&root.join("run7")).files;
        let mut upgrade = Upgrade { deployment, previous, files, subscription: String::new() };
        upgrade.old(&["dataset", "register", "run7", "--scan", "alpha:run7"]);
        upgrade.old(&["dataset", "register", "run8", "--scan", "alpha:run8"]);
        upgrade.old(&["site", "limit", "beta", "--in", RATE]);
        upgrade.old(&["share", "set", "physics", "30"]);
        upgrade.old(&["token", "create", "watcher", "--role", "viewer"]);
        let subscription = upgrade.old(&["subscribe", "run7", "beta"]);
        upgrade.subscription = subscription["id"].as_str().unwrap().to_owned();
        let other = upgrade.old(&["subscribe", "run8", "beta"]);
        upgrade.old(&["subscription", "suspend", other["id"].as_str().unwrap()]);
        upgrade.until_arrived(FILES / 10);
        upgrade
    }

    /// A command of the last release that must work.
    #[track_caller]
    fn old(&self, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        CommandOutput::from_command(&mut self.deployment.command_of(&self.previous, &words), WITHIN)
            .ok()
            .json()
    }

    fn arrived(&self) -> u64 {
        let view = self.deployment.json(&["subscription", "show", &self.subscription]);
        view["files_present"].as_u64().unwrap_or_else(|| panic!("no files_present in {view}"))
    }

    #[track_caller]
    fn until_arrived(&self, files: usize) -> u64 {
        self.deployment.until("files arrive", WITHIN, || {
            let arrived = self.arrived();
            (arrived >= files as u64).then_some(arrived)
        })
    }

    /// Kills a process in the midst of its work; this version goes on from its state. More files arrive then.
    fn replace(&mut self, name: &str) {
        let before = self.arrived();
        assert!(before < FILES as u64, "nothing is left to move when {name} is replaced");
        self.deployment.kill(name);
        self.deployment.upgrade(name);
        self.deployment.start(name);
        if name == SERVICE {
            self.deployment.until_ready();
        } else {
            self.deployment.until_connected(name);
        }
        let after = self.until_arrived(before as usize + 5);
        println!("{name} is replaced: {before} files had arrived, then {after}");
    }

    /// What the last release's commands show and do, asked of the service as it is now.
    fn use_old_commands(&self) {
        let shown = |words: &[&str]| self.old(words);
        let names = |view: Value, of: &str| -> Vec<String> {
            let items = view["items"].as_array().unwrap_or_else(|| panic!("no items in {view}")).clone();
            items.iter().map(|item| item[of].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(shown(&["dataset", "list"]), "name"), ["run7", "run8"]);
        assert_eq!(names(shown(&["site", "list"]), "name"), AGENTS);
        assert_eq!(names(shown(&["storage", "list"]), "name").len(), 5);
        assert_eq!(names(shown(&["subscription", "list"]), "id").len(), 2);
        assert_eq!(shown(&["dataset", "show", "run7"])["files"], json!(FILES));
        assert!(!shown(&["status"])["now"].is_null());
        let done = shown(&["transfer", "list", "--state", "done", "-n", "1"]);
        let transfer = done["items"][0]["id"].as_str().unwrap().to_owned();
        assert!(!shown(&["transfer", "explain", &transfer])["attempts"].as_array().unwrap().is_empty());
        for words in [
            &["problems"][..],
            &["share", "list"],
            &["limit", "list"],
            &["token", "list"],
            &["task", "list"],
            &["job", "list"],
            &["network", "links"],
            &["link", "list"],
            &["audit"],
            &["subscription", "show", &self.subscription],
            &["site", "show", "beta"],
            &["network", "show"],
            &["replica", "list", "run7"],
        ] {
            shown(words);
        }
        shown(&["dataset", "register", "run9", "--scan", "alpha:run8"]);
        shown(&["limit", "set", "link", "alpha:beta", "--rate", "40MB"]);
        let other = names(shown(&["subscription", "list", "--dataset", "run8"]), "id");
        shown(&["subscription", "resume", &other[0]]);
    }

    /// Storages keep the names that the last release gave them; a new one needs one of its site.
    fn check_names(&self) {
        let site = self.deployment.json(&["site", "show", "alpha"]);
        let mut storages = site["storages"].as_array().unwrap().iter();
        assert!(storages.any(|storage| storage["name"] == json!(FREE_NAME)), "{site}");
        assert_eq!(site["storage_names"], json!([]), "without an allowance");
        let problems = self.deployment.json(&["problems"]).to_string();
        assert!(!problems.contains("is not served"), "{problems}");
        self.deployment.longhaul(&["storage", "allow", FREE_NAME, "--site", "beta"]).fails(
            6,
            "E1004",
            &["site alpha has a storage attic"],
        );
    }

    /// All is there, once, and good.
    fn finish(self) {
        self.old(&["site", "limit", "beta", "--in", "none"]);
        self.deployment.deliver("run7", "beta", WITHIN.as_secs());
        self.deployment.deliver("run8", "beta", WITHIN.as_secs());
        tree::assert_same(&self.files, &self.deployment.storage("beta").join("run7"), "");
        let verified = self.deployment.longhaul(&["verify", "beta", "run7"]).ok();
        println!("{}", verified.stdout);
        self.deployment.check();
        self.check_names();
        let shares = self.deployment.longhaul(&["share", "list"]).ok();
        assert!(shares.stdout.contains("physics"), "{shares}");
        let tokens = self.deployment.longhaul(&["token", "list"]).ok();
        assert!(tokens.stdout.contains("watcher"), "{tokens}");
        let mut deployment = self.deployment;
        deployment.assert_alive();
    }
}

fn version(binary: &Path) -> String {
    let mut command = std::process::Command::new(binary);
    CommandOutput::from_command(command.arg("--version"), WITHIN).ok().stdout
}

fn upgrade(settings: String, order: Order) {
    let mut upgrade = Upgrade::begin(settings);
    println!("from {}to {}", version(&upgrade.previous), version(&longhaul_testbed::binary()));
    if order == Order::ServiceFirst {
        upgrade.replace(SERVICE);
        upgrade.use_old_commands();
    }
    AGENTS.iter().for_each(|agent| upgrade.replace(agent));
    if order == Order::AgentsFirst {
        upgrade.replace(SERVICE);
        upgrade.use_old_commands();
    }
    upgrade.finish();
}

#[test]
#[ignore = "needs the last release's program: cargo xtask previous upgrade"]
fn a_deployment_on_sqlite_goes_on_with_this_version_service_first() {
    upgrade(String::new(), Order::ServiceFirst);
}

#[test]
#[ignore = "needs the last release's program: cargo xtask previous upgrade"]
fn a_deployment_on_sqlite_goes_on_with_this_version_agents_first() {
    upgrade(String::new(), Order::AgentsFirst);
}

#[test]
#[ignore = "needs the last release's program: cargo xtask previous upgrade"]
fn a_deployment_on_postgresql_goes_on_with_this_version() {
    if let Some(why) = PostgreSql::missing() {
        needs::not_run("the upgrade of a deployment on PostgreSQL", &why);
        return;
    }
    let server = PostgreSql::start();
    let settings = format!("[service.database]\nurl = \"postgresql://{}\"\n", server.location());
    upgrade(settings, Order::ServiceFirst);
}
