//! Rules on the text of files: what pure rooms must not call, sizes, marks of unfinished work, links.

use super::Findings;
use super::rooms::{Kind, ROOMS};
use crate::tools::root;

/// Longer files have two subjects.
const LINES_MAX: usize = 800;

/// Calls that make a pure room impure, with what to do instead.
const IMPURE: &[(&str, &str)] = &[
    ("Instant::now", "take `now` as an argument"),
    ("SystemTime", "take `now` as an argument"),
    ("Timestamp::now", "take `now` as an argument"),
    ("Zoned::now", "take `now` as an argument"),
    ("std::fs", "files belong to edge rooms"),
    ("std::io::stdin", "input belongs to the binary"),
    ("TcpStream", "sockets belong to edge rooms"),
    ("TcpListener", "sockets belong to edge rooms"),
    ("UdpSocket", "sockets belong to edge rooms"),
    ("std::thread", "threads belong to edge rooms"),
    ("tokio::", "tasks belong to edge rooms"),
    ("std::env", "the environment belongs to the binary"),
    ("std::process", "processes belong to edge rooms"),
    ("rand::", "take randomness as an argument"),
    ("RandomState", "take randomness as an argument"),
    ("HashMap", "its order is random: use BTreeMap"),
    ("HashSet", "its order is random: use BTreeSet"),
];

/// The typed client: a caller of the network that lives with the types it sends, behind a feature. And a map
/// with a fixed hash that offers no iteration, so that no order can show.
const EXEMPT: &[&str] = &["crates/api/src/client", "crates/scheduler/src/id_map.rs"];

/// The parts of the simulator that make a plan, share capacities among flows, or tell what came of it. All
/// others run a world, those that are yet to come too. They obey the scheduler: what is compared or sorted
/// there would be a choice of a source, an order or a concurrency of the simulator's own.
const BESIDE_THE_WORLD: &[&str] = &[
    "bound.rs",
    "failures.rs",
    "fluid.rs",
    "plots.rs",
    "random.rs",
    "replay/mod.rs",
    "report.rs",
    "tape_bound.rs",
    "tree.rs",
    "workload.rs",
];
const CHOOSING: &[&str] =
    &["min_by", "max_by", "sort_by", "sort_unstable_by", "sort_by_key", ".choose(", ".rate("];

/// Rooms whose threads hold state that others wait for: one that ends must end the process, which
/// `longhaul_threads` sees to.
const CORE_ROOMS: &[&str] = &["agent", "control", "engine", "identity", "jobs", "netops", "service"];
/// A thread of one probe, whose end is the end of that probe.
const OTHER_THREADS: &[&str] = &["crates/agent/src/measure/probes.rs"];

/// Marks that must not land. Split so that this file does not find itself.
const UNFINISHED: &[&str] =
    &[concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME"), concat!("XX", "X:")];

/// Paths that only exist on one machine.
const PRIVATE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/home", "/")];

/// The small modules that may hold `unsafe`, each for one need that it explains.
const UNSAFE: &[&str] = &[
    "crates/doctor/src/sys.rs",
    "crates/engine/src/marks/flow_label.rs",
    "crates/engine/src/tcp.rs",
    "crates/storage/src/posix/writeback.rs",
    "crates/testbed/src/wan/tun.rs",
];

pub(crate) fn check(files: &[String], findings: &mut Findings) {
    for name in files {
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        if name.ends_with(".rs") {
            check_rust(name, &text, findings);
        }
        if name.ends_with(".md") {
            check_links(name, &text, findings);
        }
        for path in PRIVATE_PATHS {
            if let Some(line) = text.lines().position(|line| begins_a_path(line, path)) {
                findings.push(format!("{name}:{}: names a path of one machine ({path})", line + 1));
            }
        }
    }
}

/// Whether `path` stands in the line as the beginning of a path, not in the middle of one.
fn begins_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | '~')))
    })
}

fn check_rust(name: &str, text: &str, findings: &mut Findings) {
    let lines = text.lines().count();
    if lines > LINES_MAX {
        findings.push(format!("{name}: {lines} lines, over {LINES_MAX}: two subjects?"));
    }
    let is_root = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
    if is_root && !text.starts_with("//!") {
        findings.push(format!(
            "{name}: begins with no module comment (what it is, what it is not, where to start)"
        ));
    }
    for mark in UNFINISHED {
        if let Some(line) = text.lines().position(|line| line.contains(mark)) {
            findings.push(format!("{name}:{}: unfinished ({mark})", line + 1));
        }
    }
    if text.contains(concat!("allow(", "unsafe_code)")) && !UNSAFE.contains(&name) {
        findings.push(format!("{name}: holds unsafe code and is not among the modules that may"));
    }
    if is_pure(name) {
        check_pure(name, text, findings);
    }
    check_obeying(name, text, findings);
    check_threads(name, text, findings);
}

/// A core room starts its threads by `longhaul_threads`. Tests may do as they like.
fn check_threads(name: &str, text: &str, findings: &mut Findings) {
    let in_core = CORE_ROOMS.iter().any(|room| name.starts_with(&format!("crates/{room}/src/")));
    let is_test = name.contains("/tests/") || name.contains("test") || OTHER_THREADS.contains(&name);
    if !in_core || is_test {
        return;
    }
    let code = text.split(concat!("#[cfg(", "test)]\nmod tests {")).next().unwrap_or_default();
    for call in [concat!("thread::", "spawn("), concat!("thread::", "Builder::new()")] {
        if let Some(line) = code.lines().position(|line| line.contains(call)) {
            findings.push(format!("{name}:{}: starts a thread: use longhaul_threads::spawn_core", line + 1));
        }
    }
}

/// The simulator decides nothing.
fn check_obeying(name: &str, text: &str, findings: &mut Findings) {
    let file = name.strip_prefix("crates/simulator/src/");
    if file.is_none_or(|file| BESIDE_THE_WORLD.contains(&file)) {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for call in CHOOSING.iter().filter(|call| code.contains(**call)) {
            findings.push(format!(
                "{name}:{}: {call} looks like a choice: those are the scheduler's",
                number + 1
            ));
        }
    }
}

fn is_pure(name: &str) -> bool {
    ROOMS
        .iter()
        .filter(|room| room.kind == Kind::Pure)
        .any(|room| name.starts_with(&format!("crates/{}/src/", room.name)))
        && !EXEMPT.iter().any(|prefix| name.starts_with(prefix))
}

/// Tests stand at the bottom of a file and may do as they like; comments may speak of anything.
fn check_pure(name: &str, text: &str, findings: &mut Findings) {
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("#[cfg(test)]") {
            return;
        }
        let code = line.split("//").next().unwrap_or_default();
        for (call, instead) in IMPURE {
            if code.contains(call) {
                findings.push(format!("{name}:{}: {call} in a pure room: {instead}", number + 1));
            }
        }
    }
}

/// Relative links in documents lead to files that exist.
fn check_links(name: &str, text: &str, findings: &mut Findings) {
    let folder = root().join(name).parent().map(ToOwned::to_owned).unwrap_or_default();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for part in line.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or_default().split('#').next().unwrap_or_default();
            let outside = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !outside && !folder.join(target).exists() {
                findings.push(format!("{name}:{}: leads to {target}, which does not exist", number + 1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impure_calls_are_found_outside_tests_and_comments() {
        let mut findings = Findings::new();
        let text =
            "//! x\nlet now = Instant::now();\n// Instant::now\n#[cfg(test)]\nmod tests { use std::fs; }\n";
        check_rust("crates/wire/src/x.rs", text, &mut findings);
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.clear();
        check_rust("crates/engine/src/x.rs", text, &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
    }

    #[test]
    fn a_core_room_starts_threads_in_one_way_only() {
        let text =
            "//! x\nthread::spawn(body);\n#[cfg(test)]\nmod tests {\n    std::thread::spawn(body);\n}\n";
        let found = |name: &str| {
            let mut findings = Findings::new();
            check_threads(name, text, &mut findings);
            findings
        };
        assert_eq!(found("crates/engine/src/x.rs").len(), 1, "the test's own is not counted");
        for free in ["crates/engine/src/x/tests.rs", "crates/doctor/src/x.rs", OTHER_THREADS[0]] {
            assert!(found(free).is_empty(), "{free}");
        }
    }

    #[test]
    fn the_simulator_chooses_nothing() {
        let mut findings = Findings::new();
        let text = "let best = sources.iter().min_by(rate); // min_by\n";
        let running = [
            "agents",
            "catalog",
            "circuit_provider",
            "circuits",
            "events",
            "flows",
            "service",
            "world",
            "yet-to-come",
        ];
        for name in running {
            check_obeying(&format!("crates/simulator/src/{name}.rs"), text, &mut findings);
        }
        assert_eq!(findings.len(), running.len());
        check_obeying("crates/simulator/src/bound.rs", text, &mut findings);
        check_obeying("crates/scheduler/src/dispatch.rs", text, &mut findings);
        assert_eq!(findings.len(), running.len());
        for name in BESIDE_THE_WORLD {
            assert!(root().join("crates/simulator/src").join(name).exists(), "{name} is no more");
        }
    }

    #[test]
    fn paths_of_one_machine_are_told_from_others() {
        let private = PRIVATE_PATHS[1];
        assert!(begins_a_path(&format!("cd {private}x"), private));
        assert!(begins_a_path(&format!("\"{private}x\""), private));
        assert!(!begins_a_path(&format!("..{private}x"), private));
    }

    #[test]
    fn long_files_and_missing_comments_are_found() {
        let mut findings = Findings::new();
        check_rust("crates/engine/src/lib.rs", &"x\n".repeat(LINES_MAX + 1), &mut findings);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }

    #[test]
    fn dead_links_are_found() {
        let mut findings = Findings::new();
        check_links(
            "README.md",
            "[a](Cargo.toml) [b](nowhere.md) [c](https://example.org)\n```\n[d](nowhere)\n```",
            &mut findings,
        );
        assert_eq!(findings.len(), 1, "{findings:?}");
    }
}
