//! Users whom a command of the administrator's maps to communities, over real TLS: known, unknown, and when
//! the command fails, takes too long or lies.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::isolation::Play;

/// A command that does what its rule, which can be changed meanwhile, says.
pub struct Command {
    folder: tempfile::TempDir,
}

impl Command {
    pub fn new(rule: &str) -> Command {
        let command = Command { folder: tempfile::tempdir().unwrap() };
        command.becomes(rule);
        let script = format!("#!/bin/sh\necho x >> {0}/calls\n. {0}/rule\n", command.path().display());
        fs::write(command.program(), script).unwrap();
        fs::set_permissions(command.program(), fs::Permissions::from_mode(0o755)).unwrap();
        command
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn program(&self) -> PathBuf {
        self.path().join("map-user")
    }

    pub fn becomes(&self, rule: &str) {
        fs::write(self.path().join("rule"), rule).unwrap();
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path().join("calls")).unwrap_or_default().lines().count()
    }

    pub async fn play(&self, seconds: u32) -> Play {
        let program = self.program().display().to_string();
        Play::with(|config| {
            config.fts.mapping_command = vec![program];
            config.fts.mapping_seconds = seconds;
            config.fts.mapping_kept_seconds = 100;
        })
        .await
    }
}

async fn whoami(play: &Play) -> (u16, Value) {
    let (status, answer) = play.request("certificate", "GET", "/whoami", "").await;
    (status, serde_json::from_str(&answer).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_says_whose_a_user_is_and_none_is_guessed_without_it() {
    let command = Command::new("case \"$1\" in */CN=dora) echo testvo;; esac");
    let mut play = command.play(60).await;
    let (job, _) = play.job_of("alice").await;
    for _ in 0..5 {
        let (status, me) = whoami(&play).await;
        assert_eq!((status, &me["vos"]), (200, &serde_json::json!(["testvo"])), "{me}");
    }
    // Of alice's community, by the command's word alone.
    assert_eq!(play.request("certificate", "GET", &format!("/jobs/{job}"), "").await.0, 200);
    assert_eq!(command.calls(), 1, "it is asked once");

    // What it says counts for a while, and not longer: also when it fails then.
    command.becomes("exit 7");
    assert_eq!(whoami(&play).await.0, 200);
    play.world.shift_s.fetch_add(101, std::sync::atomic::Ordering::Relaxed);
    for path in ["/whoami".to_owned(), format!("/jobs/{job}")] {
        let (status, answer) = play.request("certificate", "GET", &path, "").await;
        assert_eq!(status, 503, "{answer}");
        assert!(answer.contains("cannot be found out"), "{answer}");
    }
    // Tokens say themselves whose they are.
    assert_eq!(play.request("carol", "GET", &format!("/jobs/{job}"), "").await.0, 200);

    for lie in ["echo 'test vo'", "echo testvo; echo othervo", "yes testvo", "echo ../testvo"] {
        play.world.shift_s.fetch_add(101, std::sync::atomic::Ordering::Relaxed);
        command.becomes(lie);
        let (status, answer) = whoami(&play).await;
        assert_eq!(status, 503, "{lie}: {answer}");
    }
    play.world.shift_s.fetch_add(101, std::sync::atomic::Ordering::Relaxed);
    command.becomes(":");
    let (status, answer) = whoami(&play).await;
    assert_eq!(status, 403, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("is of no community here"), "{answer}");
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_does_not_end_lets_nobody_in() {
    let command = Command::new("sleep 600");
    let play = command.play(1).await;
    let (status, answer) = whoami(&play).await;
    assert_eq!(status, 503, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("did not end within 1s"), "{answer}");
    assert_eq!(play.request("alice", "GET", "/jobs", "").await.0, 200, "others are served");
}
