//! What a newcomer types: `longhaul demo`. It ends well by itself, survives the death of its parts, and
//! leaves nothing behind however it ends.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longhaul_testbed::processes::{self, MARK};
use longhaul_testbed::tree::{self, Survey};
use longhaul_testbed::{CommandOutput, Log, Process, Random, binary, effort, free_port, needs};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(300);
/// Processes of a demo that was killed end within this.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// A home and a directory for temporary things of one demo's own, and a mark on all of its processes.
struct DemoHome {
    home: TempDir,
    mark: String,
    own_ports: bool,
}

impl DemoHome {
    fn new(mark: &str) -> DemoHome {
        let home = tempfile::Builder::new().prefix("longhaul-testbed-").tempdir().unwrap();
        std::fs::create_dir(home.path().join("tmp")).unwrap();
        DemoHome { home, mark: format!("{mark}-{}", std::process::id()), own_ports: true }
    }

    fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("demo").args(words);
        // Tests of this file run side by side, and two demos that begin at once both find the usual ports
        // free.
        for option in
            ["--http", "--listen"].into_iter().filter(|option| self.own_ports && !words.contains(option))
        {
            command.arg(option).arg(format!("127.0.0.1:{}", free_port()));
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LONGHAUL_") {
                command.env_remove(name);
            }
        }
        command
            .env("HOME", self.home.path())
            .env("TMPDIR", self.home.path().join("tmp"))
            .env(MARK, &self.mark);
        command
    }

    fn run(&self, words: &[&str]) -> CommandOutput {
        CommandOutput::from_command(&mut self.command(words), WITHIN)
    }

    fn start(&self, words: &[&str]) -> Process {
        Process::start("demo", &mut self.command(words), &Log::default(), &self.home.path().join("log"))
    }

    #[track_caller]
    fn assert_no_process(&self) {
        let left = processes::outlive(&self.mark, GONE_WITHIN);
        assert!(left.is_empty(), "still alive: {left:#?}");
    }

    /// What lies in the directory for temporary things.
    fn litter(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.home.path().join("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// A process of the demo, by its role: `service`, or a site.
    fn child(&self, role: &str) -> Option<Pid> {
        let text = std::fs::read_to_string(self.state().join(role).join("pid")).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    fn text(&self, path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }
}

#[test]
fn it_ends_by_itself_with_equal_trees_and_leaves_nothing() {
    let place = DemoHome { own_ports: false, ..DemoHome::new("demo-ends") };
    // The usual ports are taken: by us, unless somebody else has them already.
    let _taken = [8080, 8443].map(|port| TcpListener::bind(("127.0.0.1", port)));
    let state = place.text(&place.state());
    let ran = place.run(&["--exit", "--json", "--size", "20MB", "--files", "150", "--dir", &state]).ok();
    let report = ran.json();
    assert_eq!((&report["complete"], &report["wrong"]), (&json!(true), &json!([])), "{ran}");
    assert_eq!(report["checks"]["sound"], json!(true), "{ran}");
    assert!(!ran.stderr.contains("http://127.0.0.1:8080/"), "a free port is taken: {ran}");
    let files = tree::survey(&place.state().join("alpha/storage")).files;
    assert_eq!((files.len(), report["dataset"]["files"].as_u64()), (150, Some(150)));
    assert_eq!(files.values().map(|content| content.size).sum::<u64>(), 20_000_000);
    for site in ["beta", "gamma"] {
        tree::assert_same(&files, &place.state().join(site).join("storage"), "");
    }
    for subscription in report["subscriptions"].as_array().unwrap() {
        assert_eq!(subscription["verified"], json!([{ "how": "end-to-end", "files": 150 }]));
    }
    place.assert_no_process();

    // Without --dir nothing at all stays, and a person gets a summary.
    let ran = place.run(&["--exit", "--size", "1MB", "--files", "20", "--sites", "2"]).ok();
    assert!(ran.stdout.contains("is complete at beta"), "{ran}");
    assert_eq!(place.litter(), Vec::<PathBuf>::new());
    place.assert_no_process();
}

/// Must show 2, in small: the data stay where they are, and what is left out is counted by reason.
#[test]
fn own_data_are_served_in_place_and_what_is_left_out_is_told() {
    let place = DemoHome::new("demo-data");
    let data = place.home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    tree::make(&data, 100, 5_000_000, &mut Random::new(5));
    tree::add_odd(&data);
    let survey = tree::survey(&data);
    let listing = |root: &Path| {
        CommandOutput::from_command(
            Command::new("ls").args(["-lAR", "--time-style=full-iso"]).arg(root),
            WITHIN,
        )
        .ok()
        .stdout
    };
    let before = listing(&data);
    let state = place.text(&place.state());
    let ran = place.run(&["--exit", "--json", "--data", &place.text(&data), "--dir", &state]).ok();
    for site in ["beta", "gamma"] {
        tree::assert_same(&survey.files, &place.state().join(site).join("storage"), "");
    }
    assert_eq!(listing(&data), before, "the data are only read");
    assert_told(&ran.json(), &survey);
    place.assert_no_process();

    // For people the same, in words.
    let ran = place.run(&["--exit", "--sites", "2", "--data", &place.text(&data)]).ok();
    let left_out = survey.left_out.len();
    assert!(ran.stdout.contains(&format!("{left_out} left out")), "{ran}");
    assert_eq!(place.litter(), Vec::<PathBuf>::new());
}

/// Must show 2: a tree that nobody made for the purpose, compared at each site with what it was.
#[test]
fn a_real_tree_travels() {
    let least = effort::tree_files();
    let Some(data) = effort::tree().or_else(|| tree::real_tree(least)) else {
        return needs::not_run(
            "a real tree",
            &format!("no tree of this system has {least} files: set LONGHAUL_SOAK_TREE"),
        );
    };
    let place = DemoHome::new("demo-real");
    let survey = tree::survey(&data);
    let state = place.text(&place.state());
    let ran = place.run(&["--exit", "--json", "--data", &place.text(&data), "--dir", &state]).ok();
    for site in ["beta", "gamma"] {
        tree::assert_same(&survey.files, &place.state().join(site).join("storage"), "");
    }
    assert_told(&ran.json(), &survey);
    place.assert_no_process();
}

/// The summary counts what was left out, by reason, and nothing else is missing.
#[track_caller]
fn assert_told(report: &Value, survey: &Survey) {
    assert_eq!(report["dataset"]["files"], json!(survey.files.len()), "{report:#}");
    let told = report["dataset"]["left_out"].as_array().unwrap().iter();
    let told = told
        .map(|one| (one["reason"].as_str().unwrap().to_owned(), one["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(survey.reasons(), told);
}

/// Promise 3, for everyone to try: any of its processes can be killed on the way.
#[test]
fn what_dies_is_restarted_and_told() {
    let place = DemoHome::new("demo-child");
    let state = place.text(&place.state());
    // It serves on when all is there, so that each is restarted however fast this machine is.
    let mut demo = place.start(&["--size", "300MB", "--files", "300", "--dir", &state]);
    assert!(demo.log.wait_for(0, &["gamma", "subscribed"], WITHIN).is_some(), "{}", demo.log.tail());
    for role in ["beta", "service", "alpha"] {
        let from = demo.log.len();
        kill_process(place.child(role).unwrap(), Signal::KILL).unwrap();
        let told = demo.log.wait_for(from, &[role, "died (signal 9), restarted"], WITHIN);
        assert!(told.is_some(), "{role} is not restarted:\n{}", demo.log.tail());
    }
    assert!(demo.log.wait_for(0, &["Ctrl-C"], WITHIN).is_some(), "it is not complete:\n{}", demo.log.tail());
    demo.signal(Signal::INT);
    let status = demo.wait(WITHIN).unwrap_or_else(|| panic!("it does not end:\n{}", demo.log.tail()));
    assert!(matches!(status.code(), Some(0 | 130)), "{status}: {}", demo.log.tail());
    let files = tree::survey(&place.state().join("alpha/storage")).files;
    for site in ["beta", "gamma"] {
        tree::assert_same(&files, &place.state().join(site).join("storage"), "");
    }
    place.assert_no_process();
}

#[test]
fn no_process_survives_it_even_when_it_is_killed() {
    let place = DemoHome::new("demo-killed");
    let state = place.text(&place.state());
    let mut demo = place.start(&["--size", "5MB", "--files", "50", "--dir", &state]);
    assert!(demo.log.wait_for(0, &["Ctrl-C"], WITHIN).is_some(), "it serves on:\n{}", demo.log.tail());
    assert!(processes::marked(&place.mark).len() >= 5, "a service, three agents and itself");
    demo.kill();
    place.assert_no_process();

    // Ctrl-C: all ends, and the temporary directory goes.
    let mut demo = place.start(&["--size", "5MB", "--files", "50", "--sites", "2"]);
    assert!(demo.log.wait_for(0, &["Ctrl-C"], WITHIN).is_some(), "it serves on:\n{}", demo.log.tail());
    demo.signal(Signal::INT);
    let status = demo.wait(WITHIN).expect("it ends at Ctrl-C");
    assert!(matches!(status.code(), Some(0 | 130)), "{status}");
    place.assert_no_process();
    assert_eq!(place.litter(), Vec::<PathBuf>::new());
}

#[test]
fn what_cannot_work_is_told_before_anything_is_done() {
    let place = DemoHome::new("demo-refused");
    let ran = place.run(&["--exit", "--size", "900PB"]);
    ran.fails(6, "E1102", &["free"]);
    let taken = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for option in ["--http", "--listen"] {
        place.run(&["--exit", "--size", "1MB", option, &address]).fails(2, "E1000", &[&address, option]);
    }
    std::fs::create_dir(place.state()).unwrap();
    std::fs::write(place.state().join("mine"), b"x").unwrap();
    place.run(&["--exit", "--dir", &place.text(&place.state())]).fails(2, "E1000", &["not empty"]);
    place.run(&["--exit", "--data", "/nowhere/at/all"]).fails(3, "E9007", &["/nowhere/at/all"]);
    // Programs get the problem as a document.
    let ran = place.run(&["--exit", "--json", "--size", "900PB"]).exits(6);
    let problem: Value = ran.json();
    assert_eq!(problem["code"], json!("E1102"), "{ran}");
    assert_eq!(place.litter(), Vec::<PathBuf>::new());
    place.assert_no_process();
}
