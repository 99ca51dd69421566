//! The program as a shell sees it: exit codes and output streams. No service runs here; tests that need one
//! are in `testbed`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use longhaul_testbed::binary;

fn longhaul(home: &std::path::Path) -> Command {
    let mut command = Command::new(binary());
    command.env_clear().env("HOME", home).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    longhaul(home.path()).args(arguments).envs(environment.iter().copied()).output().unwrap()
}

fn error_of(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Promise 10: every failure says what, why and what to do next, and has an id.
fn assert_four_parts(output: &Output) {
    let text = error_of(output);
    for part in ["error[E", "\n  why:  ", "\n  next: ", "\n  id:   "] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no colour without a terminal");
}

#[test]
fn help_and_version_are_data() {
    for arguments in [&["--help"][..], &["--version"], &["demo", "--help"], &["help", "site", "add"]] {
        let output = run(arguments, &[]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{arguments:?}");
    }
    let help = String::from_utf8(run(&["--help"], &[]).stdout).unwrap();
    assert!(help.contains("Exit status") && help.contains("LONGHAUL_TOKEN"), "{help}");
}

#[test]
fn wrong_use_ends_with_2() {
    for arguments in [
        &["datset"][..],
        &["site", "show"],
        &["site", "show", "a b"],
        &["subscribe", "a/b"],
        &["dataset", "register", "a/b"],
        &["dataset", "register", "a/b", "--scan", "alpha:../up"],
        &["subscription", "priority", "0CMZ6DDN80000", "10"],
        &["demo", "--sites", "1"],
        &["demo", "--size", "lots"],
        &["service", "run", "--listen", "nowhere"],
        &["agent", "run"],
        &["agent", "join"],
        &["status"],
    ] {
        let output = run(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", error_of(&output));
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert_four_parts(&output);
    }
    assert_eq!(run(&[], &[]).status.code(), Some(2));
}

#[test]
fn a_service_that_is_away_ends_with_5() {
    // A port that is bound but does not listen would hang; one just closed refuses.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("https://127.0.0.1:{port}");
    let ca = format!("sha256:{}", "0".repeat(64));
    let output = run(&["site", "list", "--url", &url, "--ca", &ca], &[]);
    assert_eq!(output.status.code(), Some(5), "{}", error_of(&output));
    assert_four_parts(&output);
}

#[test]
fn with_json_the_problem_is_the_document() {
    for arguments in [&["site", "list", "--json"][..], &["nonsense", "--json"]] {
        let output = run(arguments, &[]);
        let problem: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(problem["code"], "E1000");
        assert!(problem["remedy"].is_string() && problem["instance"].is_string(), "{problem}");
    }
}

#[test]
fn settings_show_their_origin_and_keep_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("longhaul.toml");
    std::fs::write(&file, "[service]\ndeployment = \"grid\"\n[agent]\nmemory_bytes = \"64MiB\"\n").unwrap();
    let output = run(
        &["config", "show", "--origin", "--changed", "--plain", "--config", file.to_str().unwrap()],
        &[("LONGHAUL_AGENT_MEMORY_BYTES", "128MiB"), ("LONGHAUL_TOKEN", "lht_secret")],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows[0][..3], ["agent.memory_bytes", "134217728", "LONGHAUL_AGENT_MEMORY_BYTES"]);
    assert_eq!(rows[1][..2], ["client.token", "(secret)"]);
    assert_eq!(rows[2][0], "service.deployment");
    assert!(rows[2][2].ends_with("longhaul.toml:2"), "{text}");
}

#[test]
fn a_misspelt_setting_names_file_line_and_what_was_meant() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("longhaul.toml");
    std::fs::write(&file, "[service]\n\nlisen = [\"127.0.0.1:1\"]\n").unwrap();
    let output = run(&["service", "run", "--config", file.to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(2));
    let text = error_of(&output);
    assert!(text.contains("unknown key service.lisen") && text.contains("longhaul.toml:3"), "{text}");
    assert!(text.contains("did you mean service.listen?"), "{text}");
    let output = run(&["config", "check"], &[("LONGHAUL_SERVICE_LISEN", "x")]);
    assert!(error_of(&output).contains("LONGHAUL_SERVICE_LISTEN"), "{}", error_of(&output));
    let output = run(&["config", "show", "--config", "/nonexistent/longhaul.toml"], &[]);
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let home = tempfile::tempdir().unwrap();
    let mut child = longhaul(home.path())
        .args(["completion", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", error_of(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn completions_exist_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completion", shell], &[]);
        assert!(String::from_utf8(output.stdout).unwrap().contains("subscription"), "{shell}");
    }
}

/// No process of a demo outlives it, however it dies.
#[test]
fn a_child_ends_when_its_standard_input_ends() {
    let home = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ca = format!("sha256:{}", "0".repeat(64));
    // The port accepts connections and never answers, so the command waits until its time-out.
    let mut child = longhaul(home.path())
        .args(["site", "list", "--exit-with-parent", "--ca", &ca, "--url"])
        .arg(format!("https://{}", listener.local_addr().unwrap()))
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let held = listener.accept().unwrap();
    assert!(child.try_wait().unwrap().is_none(), "it waits for an answer");
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(held);
}

/// The pages are generated from the definition of the flags, so none can be missing.
#[test]
fn every_command_has_a_manual_page_with_its_flags() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    assert!(run(&["man", pages.to_str().unwrap()], &[]).status.success());
    let page = |name: &str| std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
    assert!(page("longhaul").contains("longhaul\\-copy(1)"));
    assert!(
        page("longhaul-site-add").contains(".TH longhaul-site-add 1")
            || page("longhaul-site-add").contains(".TH")
    );
    for command in ["copy", "serve"] {
        let help = String::from_utf8(run(&[command, "--help"], &[]).stdout).unwrap();
        let text = page(&format!("longhaul-{command}"));
        let flags = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
        let flags: Vec<&str> =
            flags.map(|word| word.trim_end_matches([',', '.', ':', ';', ')', '[', '='])).collect();
        assert!(flags.len() > 12, "{flags:?}");
        for flag in flags {
            assert!(text.contains(&flag.replace('-', "\\-")), "{flag} is missing in the page of {command}");
        }
    }
    let names: Vec<String> = std::fs::read_dir(&pages)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.len() > 40 && !names.iter().any(|name| name.contains("as-account")), "{names:?}");
}
