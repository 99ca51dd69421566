//! Each error leads on: what commands print as the next step belongs to the case, the commands in it exist
//! with the arguments that they are named with, and where one is to cure the error, it does.
//!
//! Not here: that every command in any text of the product parses (`longhaul`, `cli/named_command_tests.rs`).

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use longhaul_testbed::{
    CommandOutput, Deployment, Log, Process, SiteOptions, TICK, binary, clean, clock, free_port, needs,
};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);
/// A server that does not listen after so many ticks never will.
const READY_TICKS: u32 = 24_000;
const UNKNOWN_ID: &str = "0CMZ8QTHR00KJ";
const UNKNOWN_JOB: &str = "d4482976-e57e-11f1-aea5-02fc00000001";
/// Far before the certificate of any service began.
const CLOCK_BEHIND_S: i64 = -400 * 86_400;

/// Next steps that fit no case: they are for errors of which no more is known.
const UNSPECIFIC_STEPS: &[&str] = &["with the matching", "delete the existing"];

/// What ends a command within a sentence.
const COMMAND_ENDS: &[&str] = &["`", ";", ",", "(", ")", "…", ": ", ". "];

/// Commands with one of these words change nothing and end by themselves. The others are only parsed.
const READING_WORDS: &[&str] = &["list", "show", "status", "problems", "help", "--help"];

/// What stands for a name in a next step, and what it is here.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("SITE", "alpha"),
    ("STORAGE", "alpha"),
    ("SOURCE", "alpha"),
    ("TARGET", "beta"),
    ("DATASET", "run7"),
    ("NAME", "run7"),
    ("PATH", "run7"),
    ("DIR", "."),
    ("FILE", "file"),
    ("SUBSCRIPTION", UNKNOWN_ID),
];

/// A command that fails, and what its next step has to be.
struct RemedyCase {
    words: String,
    environment: Vec<(String, String)>,
    code: &'static str,
    /// Part of the next step that only this case has.
    next_step: String,
    /// The commands of the next step make the failed one work.
    is_cured: bool,
}

impl RemedyCase {
    fn new(words: impl Into<String>, code: &'static str, next_step: impl Into<String>) -> RemedyCase {
        let (words, next_step) = (words.into(), next_step.into());
        RemedyCase { words, environment: Vec::new(), code, next_step, is_cured: false }
    }

    fn environment(mut self, name: &str, value: impl Into<String>) -> RemedyCase {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    fn cured(self) -> RemedyCase {
        RemedyCase { is_cured: true, ..self }
    }

    fn run(&self, deployment: &Deployment) -> CommandOutput {
        let words: Vec<&str> = self.words.split(' ').collect();
        let mut command = deployment.command(&words);
        command.envs(self.environment.iter().cloned());
        CommandOutput::from_command(&mut command, WITHIN)
    }

    #[track_caller]
    fn check(&self, deployment: &Deployment) {
        let failed = self.run(deployment);
        assert!(failed.status != 0 && failed.stderr.contains(&format!("error[{}]", self.code)), "{failed}");
        let next = next_step(&failed);
        assert!(next.contains(&self.next_step), "{:?} is no part of the next step: {failed}", self.next_step);
        let unspecific = UNSPECIFIC_STEPS.iter().find(|step| next.contains(*step));
        assert_eq!(unspecific, None, "{failed}");
        let commands = named_commands(next);
        assert!(!self.is_cured || !commands.is_empty(), "no command cures it: {failed}");
        for command in commands {
            follow(deployment, &command, self.is_cured);
        }
        if self.is_cured {
            self.run(deployment).ok();
        }
    }
}

#[track_caller]
fn next_step(failed: &CommandOutput) -> &str {
    let step = failed.stderr.lines().find_map(|line| line.trim_start().strip_prefix("next: "));
    step.unwrap_or_else(|| panic!("no next step: {failed}"))
}

/// The commands in a sentence, without the program's name.
fn named_commands(text: &str) -> Vec<String> {
    const PROGRAM: &str = "longhaul ";
    let rests = text.match_indices(PROGRAM).map(|(at, _)| &text[at + PROGRAM.len()..]);
    let commands = rests.map(|rest| {
        let end = COMMAND_ENDS.iter().filter_map(|&mark| rest.find(mark)).min().unwrap_or(rest.len());
        rest[..end].trim_end_matches([' ', '.']).to_owned()
    });
    commands.collect()
}

/// `SITE`, `--site=SITE` and `SOURCE:TARGET` with names that exist here.
fn fill_in(word: &str) -> String {
    let parts = word.split_inclusive([':', '=']).map(|part| {
        let name = part.trim_end_matches([':', '=']);
        let known = PLACEHOLDERS.iter().find(|(placeholder, _)| *placeholder == name);
        known.map_or(part.to_owned(), |(_, value)| format!("{value}{}", &part[name.len()..]))
    });
    parts.collect()
}

/// Runs a command of a next step. One that could change something or never ends is only parsed, unless it is
/// the cure.
#[track_caller]
fn follow(deployment: &Deployment, command: &str, is_cure: bool) {
    let mut words: Vec<String> = command.split(' ').map(fill_in).collect();
    if !is_cure && !words.iter().any(|word| READING_WORDS.contains(&word.as_str())) {
        words.push("--help".to_owned());
    }
    deployment.longhaul(&words.iter().map(String::as_str).collect::<Vec<_>>()).ok();
}

fn id(view: &Value) -> String {
    view["id"].as_str().unwrap_or_else(|| panic!("no id in {view}")).to_owned()
}

/// The only subscription that is active.
fn active_subscription(deployment: &Deployment) -> String {
    let list = deployment.json(&["subscription", "list"]);
    let items = list["items"].as_array().unwrap();
    id(items.iter().find(|item| item["state"] == json!("active")).unwrap())
}

fn unknown_names() -> Vec<RemedyCase> {
    let unknown = |words: &str, next: &str| RemedyCase::new(words, "E1002", next);
    vec![
        unknown("dataset show run9", "longhaul dataset list"),
        unknown("subscribe run7 omega", "longhaul site list"),
        unknown("site pause omega", "longhaul site list"),
        unknown(&format!("agent refuse {UNKNOWN_ID} --yes"), "longhaul site show SITE"),
        unknown(&format!("subscription show {UNKNOWN_ID}"), "longhaul subscription list"),
        unknown(&format!("task show {UNKNOWN_ID}"), "longhaul task list"),
        unknown(&format!("transfer show {UNKNOWN_ID}"), "longhaul transfer list"),
        unknown(&format!("job show {UNKNOWN_JOB}"), "longhaul job list"),
        unknown("token revoke nobody", "longhaul token list"),
        unknown("account disable nobody", "longhaul account list"),
        unknown("subscribe run7#0099 beta", "longhaul dataset show run7 --blocks"),
        unknown("replica list --file no/such", "longhaul dataset show NAME --files"),
        unknown("storage disallow vault", "longhaul site show SITE"),
        // Both exist; the one is not at the other.
        unknown("verify beta run8", "longhaul replica list run8"),
        unknown("replica delete run8 beta --yes", "longhaul replica list run8"),
    ]
}

fn wrong_use() -> Vec<RemedyCase> {
    vec![
        RemedyCase::new("status --bogus", "E1000", "longhaul status --help"),
        RemedyCase::new("site show", "E1000", "longhaul site show --help"),
        RemedyCase::new("subscribe run7 beta --verify=maybe", "E1000", "longhaul subscribe --help"),
    ]
}

/// Files and ports of this host.
fn local_errors(deployment: &Deployment) -> Vec<RemedyCase> {
    let directory = deployment.directory().display();
    let taken = deployment.service_address;
    let tree = deployment.directory().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), b"one").unwrap();
    let manifest = deployment.directory().join("manifest");
    fs::write(&manifest, b"not json\n").unwrap();
    vec![
        RemedyCase::new(
            format!("copy {directory}/nothing {directory}/target"),
            "E2001",
            "the path of the source",
        ),
        RemedyCase::new(format!("copy @{directory}/nothing {directory}/target"), "E1002", "check the path"),
        RemedyCase::new(
            format!("copy --recursive {directory}/tree {directory}/tree/inside"),
            "E1004",
            "outside of the source",
        ),
        RemedyCase::new(format!("digest {directory}/nothing"), "E1002", "check the path"),
        RemedyCase::new(format!("serve {directory}/nothing"), "E1002", "the path of the directory"),
        RemedyCase::new(
            format!("dataset register run9 --manifest {directory}/manifest"),
            "E1005",
            "correct that line",
        ),
        RemedyCase::new(format!("serve {directory}/tree --listen {taken}"), "E9010", "--listen :PORT"),
        RemedyCase::new(format!("bench network --listen {taken}"), "E9010", "another port"),
    ]
}

/// Credentials, addresses, clocks and authorities.
fn identity_errors(deployment: &Deployment) -> Vec<RemedyCase> {
    let directory = deployment.directory().display();
    let state = format!("{directory}/other-service");
    let init = format!("service init --state {state} --listen 127.0.0.1:1 --json");
    let other = deployment.longhaul(&init.split(' ').collect::<Vec<_>>()).ok().json();
    let other_ca = other["ca"].as_str().unwrap();
    let viewer = deployment.json(&["token", "create", "eve"])["token"].as_str().unwrap().to_owned();
    let join_token = |words: &[&str]| deployment.json(words)["join_token"].as_str().unwrap().to_owned();
    let used = join_token(&["site", "add", "delta"]);
    let join = |state: &str, token: &str| format!("agent join --state {directory}/{state} --token {token}");
    deployment.longhaul(&join("joined", &used).split(' ').collect::<Vec<_>>()).ok();
    let unused = join_token(&["site", "add", "delta", "--another-agent"]);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut cases = vec![
        RemedyCase::new(init, "E1003", "longhaul service run"),
        RemedyCase::new(
            format!("service run --state {state} --listen {}", deployment.service_address),
            "E9010",
            "another address",
        ),
        RemedyCase::new(join("joined", &unused), "E1003", "longhaul agent run"),
        RemedyCase::new(join("another", &used), "E4003", "longhaul site add"),
        RemedyCase::new("status", "E4002", "log in again").environment("LONGHAUL_TOKEN", "lht_wrong"),
        RemedyCase::new("site pause alpha", "E4001", "an administrator")
            .environment("LONGHAUL_TOKEN", viewer),
        RemedyCase::new("status", "E4005", "--ca FILE").environment("LONGHAUL_CA", other_ca),
        RemedyCase::new("status", "E5001", "longhaul service run")
            .environment("LONGHAUL_URL", format!("https://{nowhere}")),
    ];
    match clock::shifted(deployment.directory(), CLOCK_BEHIND_S) {
        Some(environment) => {
            let wrong_clock = RemedyCase::new("status", "E4008", "clock of this host");
            cases.push(RemedyCase { environment, ..wrong_clock });
        }
        None => needs::not_run("a wrong clock", "there is no C compiler"),
    }
    cases
}

/// What the present state forbids. Later cases build on earlier ones.
fn check_states(deployment: &Deployment) {
    let forbidden = |words: &str, next: &str| RemedyCase::new(words, "E1004", next);
    let agent = id(&deployment.json(&["site", "show", "beta"])["agents"][0]);
    let done = id(&deployment.json(&["transfer", "list", "--state", "done"])["items"][0]);
    deployment.json(&["dataset", "close", "run8"]);
    deployment.longhaul(&["storage", "allow", "vault", "--site", "beta"]).ok();
    for case in [
        forbidden("dataset add run8 --scan alpha:other", "longhaul dataset register"),
        forbidden("dataset delete run7", "longhaul replica delete run7 "),
        forbidden("subscribe run7 gamma", "longhaul storage list"),
        forbidden("storage set gamma --relay yes", "longhaul storage list"),
        forbidden(&format!("transfer retry {done}"), &format!("longhaul transfer show {done}")),
        forbidden("link add alpha:beta", "longhaul link only"),
        forbidden("storage allow alpha --site beta", "longhaul storage remove alpha"),
        forbidden("storage allow vault --site alpha", "longhaul storage disallow vault").cured(),
        forbidden("site remove beta --yes", &format!("longhaul agent refuse {agent}")),
        forbidden(&format!("agent remove {agent} --yes"), &format!("longhaul agent refuse {agent}")),
        RemedyCase::new("replica delete run8 alpha --yes", "E1006", "--force"),
    ] {
        case.check(deployment);
    }
    let first = active_subscription(deployment);
    let cancel = |subscription: &str| format!("longhaul subscription cancel {subscription}");
    RemedyCase::new("subscribe run7 beta --verify=readback", "E1003", cancel(&first))
        .cured()
        .check(deployment);
    let second = active_subscription(deployment);
    forbidden("replica delete run7 beta --yes", &cancel(&second)).cured().check(deployment);
    let resume = format!("subscription resume {second}");
    forbidden(&resume, "longhaul subscribe run7 beta").check(deployment);
}

fn check_space(deployment: &Deployment) {
    let manifest = deployment.directory().join("huge");
    fs::write(&manifest, r#"{"lfn":"huge/one","size":1000000000000000000,"digests":["adler32:11e60398"]}"#)
        .unwrap();
    deployment.json(&["dataset", "register", "huge", "--manifest", manifest.to_str().unwrap()]);
    deployment.longhaul(&["storage", "set", "beta", "--space-policy", "refuse"]).ok();
    deployment.until("the size of beta is known", WITHIN, || {
        let total = deployment.json(&["site", "show", "beta"])["storages"][0]["total_bytes"].as_u64()?;
        (total > 0).then_some(())
    });
    RemedyCase::new("subscribe huge beta", "E1102", "free space at the target").check(deployment);
}

/// A paused site is a problem, and its next step ends it.
fn check_problem_of_paused_site(deployment: &Deployment) {
    let find = || {
        let problems = deployment.json(&["problems"]);
        let items = problems["items"].as_array()?;
        items.iter().find(|item| item["fault"]["code"] == json!("E3009")).cloned()
    };
    deployment.json(&["site", "pause", "gamma", "--reason", "drill"]);
    let problem = deployment.until("the paused site is a problem", WITHIN, find);
    let commands = named_commands(problem["remedy"].as_str().unwrap());
    assert_eq!(commands, ["site resume gamma"], "{problem}");
    follow(deployment, &commands[0], true);
    deployment.until("the problem is over", WITHIN, || find().is_none().then_some(()));
}

/// Serves a directory of the deployment, and returns when it listens.
fn serve(deployment: &Deployment, port: u16, url: &Path) -> Process {
    let mut command = Command::new(binary());
    clean(&mut command, deployment.directory());
    command.arg("serve").arg(deployment.directory().join("tree")).arg("--url-file").arg(url);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    let log = Log::default();
    let file = deployment.directory().join("serve.log");
    let mut server = Process::start("serve", &mut command, &log, &file);
    for _ in 0..READY_TICKS {
        if fs::metadata(url).is_ok_and(|data| data.len() > 0) {
            return server;
        }
        assert!(server.wait(TICK).is_none(), "the server has ended: {}", log.tail());
    }
    panic!("the server does not listen: {}", log.tail());
}

/// The address of an earlier server at the same port.
fn check_stale_address(deployment: &Deployment) {
    let directory = deployment.directory();
    let port = free_port();
    let (stale, fresh) = (directory.join("stale-url"), directory.join("fresh-url"));
    drop(serve(deployment, port, &stale));
    let _server = serve(deployment, port, &fresh);
    let copy = format!("copy --recursive @{}/ {}", stale.display(), directory.join("copied").display());
    RemedyCase::new(copy, "E4005", "the address that `longhaul serve` printed last").check(deployment);
}

#[test]
fn every_error_leads_on() {
    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    deployment.add_site(SiteOptions::new("gamma").read_only());
    let root = deployment.storage("alpha");
    for (directory, file) in [("run7", "one"), ("run7", "two"), ("other", "three")] {
        fs::create_dir_all(root.join(directory)).unwrap();
        fs::write(root.join(directory).join(file), file).unwrap();
    }
    deployment.register("run7", "alpha:run7");
    deployment.register("run8", "alpha:other");
    deployment.deliver("run7", "beta", 60);
    let cases = [unknown_names(), wrong_use(), local_errors(&deployment), identity_errors(&deployment)];
    for case in cases.iter().flatten() {
        case.check(&deployment);
    }
    check_stale_address(&deployment);
    check_states(&deployment);
    check_space(&deployment);
    check_problem_of_paused_site(&deployment);
    deployment.assert_alive();
    deployment.check();
}

#[test]
fn commands_are_read_out_of_sentences() {
    assert_eq!(
        named_commands("start it with: longhaul service run; or `longhaul help`, longhaul link only A:B…"),
        ["service run", "help", "link only A:B"]
    );
    assert_eq!(fill_in("SOURCE:TARGET"), "alpha:beta");
    assert_eq!(fill_in("--site=SITE"), "--site=alpha");
    assert_eq!(fill_in("site"), "site");
}
