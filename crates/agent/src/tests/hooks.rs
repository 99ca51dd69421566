//! Commands of a site around what an agent fetches: an engine and a service that the test plays, and real
//! commands.

use std::fs;
use std::path::{Path, PathBuf};

use longhaul_api::agent::Outcome;
use longhaul_model::{Blame, FaultCode, Retry, Verification};
use longhaul_testkit::until_met;

use super::one_agent::{TestSite, attempts};
use crate::HooksConfig;

/// Notes what it is called with, and ends as files beside it say: `pre-NAME`, `0-NAME` for each file.
const HOOK: &str = r#"
cd "$1"; shift
echo "$@" >> said
name=$(basename "$2")
test -e "$1-$name.wait" && read -r _ < "$1-$name.wait"
echo "$1 $name" >&2
exit "$(cat "$1-$name" 2>/dev/null || echo 0)"
"#;
const DELETE: &str = "cd \"$1\"; echo \"delete $2\" >> said";

struct Hooked {
    site: TestSite,
    folder: tempfile::TempDir,
}

impl Hooked {
    fn new(before: bool) -> Hooked {
        let (mut site, folder) = (TestSite::new(), tempfile::tempdir().unwrap());
        let here = folder.path().to_str().unwrap();
        let shell = |script: &str| ["/bin/sh", "-c", script, "hook", here].map(str::to_owned).to_vec();
        let (validate, delete) = (shell(HOOK), shell(DELETE));
        site.config.storages[0].hooks =
            Some(HooksConfig { validate, delete, before, at_once: 10, timeout_s: 60 });
        site.config.check().unwrap();
        Hooked { site, folder }
    }

    /// What the command ends with.
    fn ends(&self, when: &str, file: &str, code: i32) {
        fs::write(self.folder.path().join(format!("{when}-{file}")), code.to_string()).unwrap();
    }

    fn said(&self) -> Vec<String> {
        let said = fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn path(&self, file: &str) -> PathBuf {
        self.site.config.storages[0].root.join(file)
    }
}

fn outcome_of(outcomes: &[Outcome], attempt: u64) -> &Outcome {
    outcomes.iter().find(|outcome| outcome.attempt == attempts(&[attempt])[0]).unwrap()
}

#[tokio::test]
async fn validate_runs_before_and_after() {
    let hooked = Hooked::new(true);
    hooked.ends("pre", "f1", 0);
    hooked.ends("pre", "f2", 86);
    for file in ["f3", "f4", "f5"] {
        hooked.ends("pre", file, 1);
    }
    hooked.ends("0", "f4", 2);
    let agent = hooked.site.start();
    hooked.site.lease(&[1, 2, 3, 4, 5]);
    agent.wait_for_files(5).await;
    // The permit is for the whole list, so the list goes in whole; the mover knows from the beginning what
    // it does not fetch.
    let asked = agent.engine.calls();
    assert_eq!(Vec::from_iter(asked.fetched[0].withheld.clone()), attempts(&[1, 2]));
    assert_eq!(asked.cancelled, []);
    assert_eq!(agent.engine.attempts(), attempts(&[3, 4, 5]));
    agent.engine.succeed(&[3, 4]);
    agent.engine.finish(&[5], Err(longhaul_model::Fault::new(FaultCode::Stalled, "at alpha")));
    let outcomes = hooked.site.service.wait_for_outcomes(5).await;

    let there = outcome_of(&outcomes, 1);
    assert_eq!((&there.fault, there.already_there), (&None, true));
    assert_eq!(there.verification, Verification::Wire, "nothing was read here");
    let vetoed = outcome_of(&outcomes, 2).fault.clone().unwrap();
    assert_eq!(
        (vetoed.code, vetoed.blame, vetoed.retry),
        (FaultCode::HookRefused, Blame::Request, Retry::Never)
    );
    assert_eq!(outcome_of(&outcomes, 3).fault, None);
    let refused = outcome_of(&outcomes, 4).fault.clone().unwrap();
    assert_eq!((refused.code, refused.blame), (FaultCode::HookRefused, Blame::Target));
    assert!(refused.detail.contains("does not take f4 (exit code 2): 0 f4"), "{refused}");
    assert_eq!(outcome_of(&outcomes, 5).fault.as_ref().unwrap().code, FaultCode::Stalled, "its own end");

    let sums = super::digests(b"0123456");
    let sums: Vec<String> = sums.iter().map(ToString::to_string).collect();
    let call =
        |when: &str, file: &str| format!("{when} {} 7 {} n", hooked.path(file).display(), sums.join(","));
    let mut expected: Vec<String> = ["f1", "f2", "f3", "f4", "f5"].map(|file| call("pre", file)).to_vec();
    expected.extend(["f3", "f4"].map(|file| call("0", file)));
    expected.push(format!("delete {}", hooked.path("f4").display()));
    expected.sort();
    assert_eq!(hooked.said(), expected);
    agent.end().await;
}

#[tokio::test]
async fn without_validation_before_files_are_fetched_at_once() {
    let hooked = Hooked::new(false);
    let agent = hooked.site.start();
    hooked.site.lease(&[1]);
    agent.wait_for_files(1).await;
    agent.engine.succeed(&[1]);
    assert_eq!(hooked.site.service.wait_for_outcomes(1).await[0].fault, None);
    assert!(hooked.said()[0].starts_with("0 "), "{:?}", hooked.said());
    assert_eq!(hooked.said().len(), 1);
    agent.end().await;
}

/// What is cancelled while the site is asked is not fetched, and has no outcome; what waits is known after a
/// restart.
#[tokio::test]
async fn attempts_survive_cancellation_and_restart() {
    let hooked = Hooked::new(true);
    let pipe = |file: &str| make_pipe(&hooked.folder.path().join(format!("pre-{file}.wait")));
    pipe("f1");
    for file in ["f1", "f2"] {
        hooked.ends("pre", file, 1);
    }
    let agent = hooked.site.start();
    hooked.site.lease(&[1, 2]);
    until_met("the site's commands", || hooked.said().len() >= 2).await;
    agent.end().await;

    let agent = hooked.site.start();
    until_met("the site's commands", || hooked.said().len() >= 4).await;
    hooked.site.service.cancel(attempts(&[2]));
    agent.engine.wait_until(|asked| asked.cancelled == attempts(&[2])).await;
    fs::write(hooked.folder.path().join("pre-f1.wait"), "go\n").unwrap();
    agent.wait_for_files(2).await;
    assert_eq!(agent.engine.attempts(), attempts(&[1]));
    agent.engine.succeed(&[1]);
    let outcomes = hooked.site.service.wait_for_outcomes(1).await;
    assert_eq!((outcomes.len(), &outcome_of(&outcomes, 1).fault), (1, &None));
    agent.end().await;
}

fn make_pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}
