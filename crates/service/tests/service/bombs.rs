//! JSON that is sent to do harm, at the paths of FTS's API that read it: deep, twofold, huge, wide. Each is
//! refused with a text, whoever sends it, nothing of it is kept, and the service stays as large as it was.

use serde_json::json;

use crate::world::World;

const PATHS: [&str; 5] = ["/jobs", "/config/se", "/ban/se", "/config/links", "/admin/force-start"];

struct Bomb {
    what: &'static str,
    body: String,
    statuses: &'static [u16],
    /// Part of the text that says why.
    told: &'static str,
}

fn bomb(what: &'static str, body: String, statuses: &'static [u16], told: &'static str) -> Bomb {
    Bomb { what, body, statuses, told }
}

fn bombs() -> Vec<Bomb> {
    const VALUES_COUNT: usize = 300_000;
    let deep = |open: &str, close: &str, levels: usize| {
        format!("{{\"files\":{}0{}}}", open.repeat(levels), close.repeat(levels))
    };
    let keys = |count: usize| {
        let one = |number| format!("\"https://host{number}.example\":{{\"se_info\":{{}}}}");
        format!("{{{}}}", (0..count).map(one).collect::<Vec<_>>().join(","))
    };
    let digits = "9".repeat(1 << 20);
    vec![
        bomb("lists in lists", deep("[", "]", 100_000), &[400], "recursion limit"),
        bomb("objects in objects", deep("{\"a\":", "}", 100_000), &[400], "recursion limit"),
        bomb("lists that never end", "[".repeat(4 << 20), &[400], "recursion limit"),
        bomb("as deep as is read", deep("[", "]", 120), &[400], ""),
        bomb("a key twice", r#"{"storage":"https://a","storage":"https://b"}"#.into(), &[400], "comes twice"),
        bomb(
            "a key twice, further down",
            concat!(
                r#"{"files":[{"sources":["https://a/x"],"destinations":["https://b/x"],"#,
                r#""sources":["https://c/x"]}]}"#
            )
            .into(),
            &[400],
            "comes twice",
        ),
        bomb(
            "a key twice, once escaped",
            r#"{"params":{"priority":3,"p\u0072iority":5}}"#.into(),
            &[400],
            "comes twice",
        ),
        bomb("a number beyond all", r#"{"files":1e99999}"#.into(), &[400], "out of range"),
        bomb("a number of a megabyte", format!("{{\"files\":{digits}}}"), &[400], "out of range"),
        bomb("a fraction of a megabyte", format!("{{\"files\":0.{digits}}}"), &[400], ""),
        bomb("a text of ten megabytes", format!("{{\"storage\":\"{}\"}}", "x".repeat(10 << 20)), &[400], ""),
        bomb("a key of ten megabytes", format!("{{\"{}\":1}}", "x".repeat(10 << 20)), &[400], ""),
        bomb("a list of ten million", format!("[{}0]", "0,".repeat(7 << 20)), &[400], "values"),
        bomb("keys by the hundred thousand", keys(VALUES_COUNT), &[400], ""),
        bomb("half a character", "{\"storage\":\"\\ud800\"}".into(), &[400], ""),
    ]
}

/// Kilobytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

/// In a process of its own, for its memory is measured, and the tests that run beside it here would be
/// counted too. The allocator is told to give back what is free, so that what stays in memory is what
/// somebody holds.
#[test]
fn harmful_json_is_refused_and_nothing_of_it_stays() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bombs::in_a_process_of_its_own", "--ignored", "--nocapture"])
        .envs([
            ("MALLOC_ARENA_MAX", "1"),
            ("MALLOC_MMAP_THRESHOLD_", "131072"),
            ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let told = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}{told}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, as a process"]
async fn in_a_process_of_its_own() {
    let world = World::new().await;
    let kept = || async {
        let mut kept = Vec::new();
        for path in ["/jobs", "/config/se", "/ban/se", "/config/links"] {
            kept.push(world.request(&world.admin_token, "GET", path, "").await);
        }
        kept
    };
    let before = kept().await;
    let all = async || {
        for bomb in bombs() {
            for path in PATHS {
                let (status, answer) = world.request(&world.admin_token, "POST", path, &bomb.body).await;
                let what = format!("{} at {path}: {status} {answer}", bomb.what);
                assert!(bomb.statuses.contains(&status), "{what}");
                let text = answer["message"].as_str().unwrap_or_else(|| panic!("{what}"));
                assert!(text.contains(bomb.told), "{what}");
                assert!(!text.is_empty() && text.len() < 1_000, "{what}");
            }
        }
    };
    all().await;
    // By now all that is ever needed at once has been had. Some 400 MiB are sent in each round.
    let first = memory();
    for _ in 0..2 {
        all().await;
    }
    let grown = memory().saturating_sub(first) / 1_024;
    println!("{} MiB after one round, {grown} MiB more after three", first / 1_024);
    assert!(grown < 64, "{grown} MiB more");
    assert_eq!(kept().await, before);
    // And whoever is nobody is not even read.
    for bomb in bombs() {
        let (status, _) = world.request("lht_unknown", "POST", "/jobs", &bomb.body).await;
        assert_eq!(status, 401, "{}", bomb.what);
    }
    let (status, me) = world.request(&world.admin_token, "GET", "/whoami", "").await;
    assert_eq!((status, &me["is_root"]), (200, &json!(true)), "it serves on");
    world.assert_sound().await;
}
