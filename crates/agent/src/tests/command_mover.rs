//! A site's own mover in place of the engine: a service and an engine that the test plays, and real commands
//! that do what they should, fail, lie, hang and die.

use std::fs;
use std::path::{Path, PathBuf};

use longhaul_api::agent::Outcome;
use longhaul_model::{Blame, Fault, FaultCode, Retry, Verification};
use longhaul_testkit::until_met;

use super::one_agent::{TestSite, attempts};
use crate::{HooksConfig, MoverConfig, SourceNames};

/// Copies as it is told and writes its report, except where a file's name says otherwise.
const MOVER: &str = r##"
folder=$1; copyjob=$2; report=$3
echo call >> "$folder/said"
echo "# a report" > "$report"
while read -r source target; do
    name=$(basename "$source"); status=0
    echo "$name" >> "$folder/said"
    case $name in
    f1) cp "$source" "$target" ;;
    f2) status="1 no such file" ;;
    f3) continue ;;
    f4) ;;
    f5) echo 012345 > "$target" ;;
    f6) echo 0 > "$target" ;;
    f7) cp "$source" "$target"; echo "$source $target 1 no" >> "$report" ;;
    f8) ln -s "$source" "$target" ;;
    f9) ln "$source" "$target" ;;
    f10) mkfifo "$target" ;;
    f11) status=3 ;;
    f12) cp "$source" "$target"; echo "$source $target 0 yes" >> "$report"; echo $$ > "$folder/pid"
         echo waits >> "$folder/said"; exec sleep 600 ;;
    f13) kill -9 $$ ;;
    f14) rm -f "$report"; mkfifo "$report"; echo "last words" >&2; exit 7 ;;
    f15) cp "$source" "$target"; echo waits >> "$folder/said"; read -r _ < "$folder/go" ;;
    esac
    echo "$source $target $status" >> "$report"
done < "$copyjob"
echo "it is over" >&2
exit 4
"##;

struct Moved {
    site: TestSite,
    folder: tempfile::TempDir,
}

impl Moved {
    fn new(change: impl FnOnce(&mut MoverConfig)) -> Moved {
        let (mut site, folder) = (TestSite::new(), tempfile::tempdir().unwrap());
        let here = folder.path().to_str().unwrap().to_owned();
        fs::create_dir(folder.path().join("source")).unwrap();
        for number in 1..=15 {
            fs::write(folder.path().join(format!("source/f{number}")), "0123456").unwrap();
        }
        let source = SourceNames {
            storage: "alpha".parse().unwrap(),
            url: Some(format!("{here}/source")),
            rules: Vec::new(),
            protocol: None,
            on_circuit: None,
        };
        let command = ["/bin/sh", "-c", MOVER, "mover", &here].map(str::to_owned).to_vec();
        let mut mover =
            MoverConfig { command, files: 100, at_once: 1, timeout_s: 600, sources: vec![source] };
        change(&mut mover);
        site.config.storages[0].mover = Some(mover);
        site.config.check().unwrap();
        Moved { site, folder }
    }

    fn said(&self) -> Vec<String> {
        let said = fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
        said.lines().map(str::to_owned).collect()
    }

    fn has_said(&self, line: &str) -> bool {
        self.said().iter().any(|said| said == line)
    }

    async fn until_said(&self, line: &str) {
        until_met(line, || self.has_said(line)).await;
    }

    fn path(&self, file: &str) -> PathBuf {
        self.site.config.storages[0].root.join(file)
    }

    /// Neither temporary files nor those of a command stay; they go after the outcomes have been told.
    async fn until_tidy(&self) {
        let empty = |folder: &Path| fs::read_dir(folder).map_or(true, |mut found| found.next().is_none());
        let (temps, spools) = (self.path(".longhaul/temps"), self.site.config.state_dir.join("movers"));
        until_met("the end of temporary files", || empty(&temps)).await;
        until_met("the end of the commands' files", || empty(&spools)).await;
    }
}

fn outcome_of(outcomes: &[Outcome], attempt: u64) -> &Outcome {
    outcomes.iter().find(|outcome| outcome.attempt == attempts(&[attempt])[0]).unwrap()
}

fn fault(outcomes: &[Outcome], attempt: u64) -> Fault {
    outcome_of(outcomes, attempt).fault.clone().unwrap()
}

#[tokio::test]
async fn a_movers_claims_are_verified() {
    let moved = Moved::new(|_| {});
    let agent = moved.site.start();
    moved.site.lease(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let outcomes = moved.site.service.wait_for_outcomes(11).await;
    let good = outcome_of(&outcomes, 1);
    assert_eq!((&good.fault, good.verification), (&None, Verification::Readback));
    assert_eq!((good.bytes_moved, good.already_there), (7, false));
    assert_eq!(good.digests, super::digests(b"0123456"));
    assert_eq!(fs::read(moved.path("f1")).unwrap(), b"0123456");
    for (attempt, why) in [
        (2, "f2: the mover reports: it failed (status 1): no such file"),
        (3, "f3: the mover has ended (exit code 4): it is over; its report does not mention it"),
        (4, "the mover reported f4 as copied, but "),
        (6, "the mover reported f6 as copied, but it has 2 bytes, 7 are registered"),
        (7, "f7: the mover's report contradicts itself about it"),
        (8, "the mover reported f8 as copied, but "),
        (9, "is no file of its own"),
        (10, "is no file of its own"),
        (11, "f11: the mover reports: no permission (status 3): without a word"),
    ] {
        let fault = fault(&outcomes, attempt);
        assert_eq!(
            (fault.code, fault.blame, fault.retry),
            (FaultCode::MoverFailed, Blame::Target, Retry::Later)
        );
        assert!(fault.detail.contains(why), "{attempt}: {fault}");
        assert!(!moved.path(&format!("f{attempt}")).exists(), "{attempt}");
    }
    let damaged = fault(&outcomes, 5);
    assert_eq!((damaged.code, damaged.blame), (FaultCode::Corrupted, Blame::Network));
    assert!(damaged.detail.contains("the bytes have adler32:"), "{damaged}");
    assert!(!moved.path("f5").exists(), "whole or absent");
    assert!(agent.engine.attempts().is_empty(), "the engine had no part in it");
    moved.until_tidy().await;
    agent.end().await;
}

#[tokio::test]
async fn a_command_may_hang_die_or_leave_no_report() {
    // On a busy machine the short time may be over before a command has come to what it is to do.
    for timeout_s in [1, 5, 30] {
        let moved = Moved::new(|mover| (mover.files, mover.timeout_s) = (2, timeout_s));
        let agent = moved.site.start();
        // In order, two each: f12 hangs with f1 behind it, f13 dies, f14's report is a pipe.
        moved.site.lease(&[12, 1, 13, 2, 14, 3]);
        let outcomes = moved.site.service.wait_for_outcomes(6).await;
        let is_late = |attempt| fault(&outcomes, attempt).detail.contains("did not end within");
        if timeout_s < 30 && (!moved.has_said("waits") || is_late(13) || is_late(14)) {
            agent.end().await;
            continue;
        }
        assert_eq!(outcome_of(&outcomes, 12).fault, None, "what it said before it was ended counts");
        let late = fault(&outcomes, 1);
        let why = format!("did not end within {timeout_s}s; its report does not mention it");
        assert!(late.detail.contains(&why), "{late}");
        let died = fault(&outcomes, 13);
        let why = "(it was ended by a signal); its report does not mention it";
        assert!(died.detail.contains(why), "{died}");
        let none = fault(&outcomes, 14);
        let why = "(exit code 7): last words; its report is not a regular file";
        assert!(none.detail.contains(why), "{none}");
        assert_eq!(moved.said().iter().filter(|line| *line == "call").count(), 3);
        moved.until_tidy().await;
        agent.end().await;
        break;
    }

    let moved = Moved::new(|mover| mover.command[0] = "/nowhere/mover".into());
    let agent = moved.site.start();
    moved.site.lease(&[1]);
    let outcomes = moved.site.service.wait_for_outcomes(1).await;
    let fault = fault(&outcomes, 1);
    assert_eq!(fault.code, FaultCode::MoverFailed);
    assert!(fault.detail.contains("/nowhere/mover cannot be run"), "{fault}");
    agent.end().await;
}

#[tokio::test]
async fn present_files_are_not_fetched_and_other_sources_are_the_engines() {
    let moved = Moved::new(|_| {});
    fs::write(moved.path("f1"), "0123456").unwrap();
    fs::write(moved.path("f2"), "others!").unwrap();
    let agent = moved.site.start();
    moved.site.lease(&[1, 2]);
    let outcomes = moved.site.service.wait_for_outcomes(2).await;
    let there = outcome_of(&outcomes, 1);
    assert_eq!((&there.fault, there.already_there, there.bytes_moved), (&None, true, 0));
    assert_eq!(fault(&outcomes, 2).code, FaultCode::NameClash);
    assert_eq!(fs::read(moved.path("f2")).unwrap(), b"others!", "a good replica is never destroyed");
    assert!(moved.said().is_empty(), "there was nothing to bring");
    let lease = super::lease(3, "f3", b"0123456");
    let mut batch = moved.site.deployment.batch(vec!["127.0.0.1:9".into()], vec![lease]);
    batch.source.storage = "gamma".parse().unwrap();
    moved.site.service.lease(vec![batch]);
    agent.wait_for_files(1).await;
    assert_eq!(agent.engine.attempts(), attempts(&[3]));
    agent.end().await;
}

#[tokio::test]
async fn what_a_hook_says_is_there_is_not_fetched() {
    let mut moved = Moved::new(|_| {});
    let script = "case $1 in pre) case $2 in */f1) exit 0 ;; *) exit 1 ;; esac ;; esac";
    moved.site.config.storages[0].hooks = Some(HooksConfig {
        validate: ["/bin/sh", "-c", script, "hook"].map(str::to_owned).to_vec(),
        delete: Vec::new(),
        before: true,
        at_once: 1,
        timeout_s: 60,
    });
    let agent = moved.site.start();
    moved.site.lease(&[1, 4]);
    let outcomes = moved.site.service.wait_for_outcomes(2).await;
    assert_eq!((&outcome_of(&outcomes, 1).fault, outcome_of(&outcomes, 1).already_there), (&None, true));
    assert_eq!(moved.said(), ["call", "f4"]);
    agent.end().await;
}

/// Promise 5: cancelled files end with their command and have no outcome; interrupted ones start over after a
/// restart.
#[tokio::test]
async fn attempts_survive_cancellation_and_restart() {
    let moved = Moved::new(|mover| mover.files = 1);
    let agent = moved.site.start();
    moved.site.lease(&[12]);
    moved.until_said("waits").await;
    moved.site.service.cancel(attempts(&[12]));
    let pid = fs::read_to_string(moved.folder.path().join("pid")).unwrap();
    let gone = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    until_met("the end of the command", gone).await;
    // The next command has the slot, and waits for the test.
    let go = moved.folder.path().join("go");
    rustix::fs::mknodat(rustix::fs::CWD, &go, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::remove_file(moved.folder.path().join("said")).unwrap();
    moved.site.lease(&[15, 1]);
    moved.until_said("waits").await;
    agent.end().await;
    assert!(!moved.path("f15").exists() && !moved.path("f12").exists());

    fs::remove_file(moved.folder.path().join("said")).unwrap();
    let agent = moved.site.start();
    moved.until_said("waits").await;
    fs::write(&go, "go\n").unwrap();
    let outcomes = moved.site.service.wait_for_outcomes(2).await;
    assert_eq!(
        (outcomes.len(), &outcome_of(&outcomes, 15).fault, &outcome_of(&outcomes, 1).fault),
        (2, &None, &None)
    );
    moved.until_tidy().await;
    agent.end().await;
}
