//! What must survive: the order of writes that a power cut relies on, and a disk that is full under the
//! database.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::Duration;

use longhaul_api::routes;
use longhaul_model::Timestamp;
use longhaul_testbed::mounts::Mounts;
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, SiteOptions, needs, processes, tree};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

// ---- power-loss order -------------------------------------------------------------------------------------

/// One system call, with the places in the trace where it began and where it had ended.
#[derive(Clone, Debug)]
struct Call {
    name: String,
    arguments: String,
    begun: usize,
    ended: usize,
    /// Seconds since 1970 at its beginning.
    at: f64,
}

impl Call {
    /// The file behind its first descriptor.
    fn path(&self) -> &str {
        self.paths().next().unwrap_or_default()
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.arguments.split('<').skip(1).filter_map(|part| part.split('>').next())
    }

    /// The names given as texts; those of this test need no escapes.
    fn texts(&self) -> Vec<&str> {
        self.arguments.split('"').skip(1).step_by(2).collect()
    }

    fn is_write(&self) -> bool {
        matches!(self.name.as_str(), "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2")
    }

    /// Whether afterwards all that lies at `path` would survive a power cut.
    fn flushes(&self, path: &str, root: &str) -> bool {
        match self.name.as_str() {
            "fsync" | "fdatasync" => self.path() == path,
            "syncfs" => self.path().starts_with(root),
            _ => false,
        }
    }
}

/// Reads `strace -f -ttt -y`: calls of several threads, some begun on one line and ended on another.
fn read_trace(text: &str) -> Vec<Call> {
    // What failed has changed nothing.
    let failed = |call: &Call| call.arguments.contains(") = -1 ");
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished: BTreeMap<&str, usize> = BTreeMap::new();
    for (line_number, line) in text.lines().enumerate() {
        // The column of thread ids is padded.
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((time, rest)) = rest.trim_start().split_once(' ') else { continue };
        let Ok(at) = time.parse::<f64>() else { continue };
        if rest.starts_with("<... ") {
            if let Some(call) = unfinished.remove(thread).and_then(|place| calls.get_mut(place)) {
                call.ended = line_number;
                call.arguments.push_str(rest.split_once("resumed>").map_or("", |(_, result)| result));
            }
            continue;
        }
        let Some((name, rest)) = rest.split_once('(') else { continue };
        let (arguments, ended) = match rest.strip_suffix(" <unfinished ...>") {
            Some(arguments) => {
                unfinished.insert(thread, calls.len());
                (arguments, usize::MAX)
            }
            None => (rest, line_number),
        };
        let call =
            Call { name: name.to_owned(), arguments: arguments.to_owned(), begun: line_number, ended, at };
        calls.push(call);
    }
    calls.retain(|call| !failed(call));
    calls
}

/// The first flush of `path` that began after `from` and was over before `to`.
fn flush_between<'a>(calls: &'a [Call], path: &str, root: &str, from: usize, to: usize) -> Option<&'a Call> {
    calls.iter().find(|call| call.begun > from && call.ended < to && call.flushes(path, root))
}

/// The attempts whose outcome is in a write to the ledger.
fn outcomes(call: &Call) -> Vec<String> {
    let text = call.arguments.replace("\\\"", "\"");
    let parts = text.split(r#""kind":"outcome","attempt":""#).skip(1);
    parts.filter_map(|part| part.split('"').next()).map(str::to_owned).collect()
}

/// Promises 1 and 4: data before its name, names before the note of it, the note before the report.
#[test]
fn everything_is_flushed_before_it_is_told() {
    if !needs::program("strace", &["-V"]) {
        return needs::not_run("the order of flushes", "strace is not installed (apt-get install strace)");
    }
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    let trace = deployment.directory().join("trace");
    let mut beta = SiteOptions::new("beta");
    beta.launcher = ["strace", "-f", "-y", "-ttt", "-s", "100000", "-o", trace.to_str().unwrap(), "-e"]
        .map(str::to_owned)
        .to_vec();
    let writes = "write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,syncfs";
    let names = "rename,renameat,renameat2,linkat,mkdir,mkdirat";
    beta.launcher.push(format!("trace={writes},{names}"));
    deployment.join_site(beta);
    deployment.start("beta");
    deployment.until_connected("beta");

    // Small ones that are committed in groups, and large ones that go alone; in new directories.
    let root = deployment.storage("alpha");
    let mut random = Random::new(83);
    for number in 0..60u64 {
        let directory = root.join(format!("d{}/e{}", number % 3, number % 2));
        fs::create_dir_all(&directory).unwrap();
        let size = if number % 12 == 0 { 3_000_000 } else { 1 + number * 500 };
        fs::write(directory.join(format!("f{number}")), tree::content(&mut random, size)).unwrap();
    }
    let files = tree::survey(&root).files;
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 120);
    tree::assert_same(&files, &deployment.storage("beta"), "");

    let mut attempts: BTreeMap<String, String> = BTreeMap::new();
    for transfer in deployment.api().all(&routes::TRANSFER_LIST, &[], &[("state", "done")]) {
        let detail = deployment.api().get(&routes::TRANSFER_SHOW, &[transfer["id"].as_str().unwrap()], &[]);
        let attempt =
            detail["attempts"].as_array().unwrap().last().unwrap()["id"].as_str().unwrap().to_owned();
        attempts.insert(attempt, transfer["lfn"].as_str().unwrap().to_owned());
    }
    assert_eq!(attempts.len(), files.len());
    let told = deployment.log(SERVICE);
    let storage = deployment.storage("beta").to_str().unwrap().to_owned();
    let ledger = deployment.agent_state("beta").join("ledger").to_str().unwrap().to_owned();
    // The trace is whole once its writer has ended, which it does with the agent.
    for agent in processes::children(deployment.pid("beta")) {
        kill_process(Pid::from_raw(agent as i32).unwrap(), Signal::TERM).unwrap();
    }
    assert!(deployment.process("beta").wait(WITHIN).is_some(), "strace ends with what it traces");
    let calls = read_trace(&fs::read_to_string(&trace).unwrap());
    assert_order(&calls, &storage, &ledger, &attempts, &told);
}

/// Checks each rename, each note and each report against what was flushed before.
fn assert_order(
    calls: &[Call],
    storage: &str,
    ledger: &str,
    attempts: &BTreeMap<String, String>,
    told: &longhaul_testbed::Log,
) {
    let mut renamed: BTreeMap<String, &Call> = BTreeMap::new();
    for call in
        calls.iter().filter(|call| call.name.starts_with("rename") && call.path().starts_with(storage))
    {
        let (directories, names): (Vec<&str>, Vec<&str>) = (call.paths().collect(), call.texts());
        let ([from, to], [temporary, name]) = (directories.as_slice(), names.as_slice()) else {
            panic!("{call:?}")
        };
        let temporary = format!("{from}/{temporary}");
        let last_write = calls
            .iter()
            .filter(|other| other.is_write() && other.path() == temporary && other.begun < call.begun)
            .map(|other| other.ended)
            .max();
        let last_write = last_write.unwrap_or_else(|| panic!("nothing was written to {temporary}"));
        assert!(last_write < call.begun, "{name} was renamed while it was written");
        let flushed = flush_between(calls, &temporary, storage, last_write, call.begun);
        assert!(flushed.is_some(), "{to}/{name} got its name before its bytes were flushed");
        // The mark of the storage's root is written as files are, and is none.
        if *name != "root.json" {
            renamed.insert(format!("{to}/{name}"), call);
        }
    }
    let made: Vec<(String, String, &Call)> = calls
        .iter()
        .filter(|call| call.name.starts_with("mkdir") && call.path().starts_with(storage))
        .filter_map(|call| {
            Some((call.path().to_owned(), format!("{}/{}", call.path(), call.texts().first()?), call))
        })
        .collect();
    let mut checked = 0;
    for note in calls.iter().filter(|call| call.is_write() && call.path() == ledger) {
        for attempt in outcomes(note) {
            // One that failed, as its connection broke, says nothing of a file that is there.
            let Some(lfn) = attempts.get(&attempt) else { continue };
            let path = format!("{storage}/{lfn}");
            let rename = renamed.get(&path).unwrap_or_else(|| panic!("{lfn} was noted and not renamed"));
            let directory = path.rsplit_once('/').unwrap().0;
            let flushed = flush_between(calls, directory, storage, rename.ended, note.begun);
            assert!(flushed.is_some(), "{lfn} was noted before its name was flushed");
            for (parent, child, made) in
                made.iter().filter(|(_, child, _)| path.starts_with(&format!("{child}/")))
            {
                let flushed = flush_between(calls, parent, storage, made.ended, note.begun);
                assert!(flushed.is_some(), "{lfn} was noted before {child} was flushed in {parent}");
            }
            let kept = flush_between(calls, ledger, ledger, note.ended, usize::MAX);
            let kept = kept.unwrap_or_else(|| panic!("the note of {lfn} was never flushed"));
            // The service cannot know before it was told.
            let line = told.wait_for(0, &["\"done\"", &attempt], WITHIN);
            let line = line.unwrap_or_else(|| panic!("the service never told of {lfn}"));
            let line: Value = serde_json::from_str(&line).unwrap();
            let known: Timestamp = line["at"].as_str().unwrap().parse().unwrap();
            let known_s = (known.0 + 1_000) as f64 / 1e6;
            assert!(kept.at <= known_s, "{lfn} was told at {known_s}, and its note flushed at {}", kept.at);
            checked += 1;
        }
    }
    println!("{checked} outcomes, {} renames, {} calls", renamed.len(), calls.len());
    assert_eq!((checked, renamed.len()), (attempts.len(), attempts.len()));
}

#[test]
fn a_wrong_order_would_be_found() {
    let good = "1     1.0 pwrite64(3</s/t/a>, \"x\", 1, 0) = 1\n2 1.1 syncfs(4</s> <unfinished ...>\n1 1.2 \
        write(9</x>, \"\", 0) = 0\n\
                2 1.3 <... syncfs resumed>) = 0\n2 1.4 renameat2(4</s/t>, \"a\", 5</s/d>, \"f\", \
                RENAME_NOREPLACE) = 0\n";
    let calls = read_trace(good);
    assert_eq!(calls.len(), 4);
    assert_eq!((calls[1].begun, calls[1].ended), (1, 3));
    assert_eq!(
        (calls[3].paths().collect::<Vec<_>>(), calls[3].texts()),
        (vec!["/s/t", "/s/d"], vec!["a", "f"])
    );
    assert!(flush_between(&calls, "/s/t/a", "/s", 0, 4).is_some());
    assert!(flush_between(&calls, "/s/t/a", "/s", 0, 3).is_none(), "it was not over");
    assert!(flush_between(&calls, "/s/t/a", "/s", 1, 4).is_none(), "it began before the last write ended");
}

// ---- a full disk under the database -----------------------------------------------------------------------

/// Promise 3: what was accepted is not forgotten; what cannot be accepted is refused with the reason.
#[test]
fn a_full_disk_under_the_database_stops_nothing_for_good() {
    let place = tempfile::Builder::new().prefix("longhaul-testbed-").tempdir().unwrap();
    let state = place.path().join("state");
    fs::create_dir(&state).unwrap();
    let Some(mounts) = Mounts::new("mount -t tmpfs -o size=24m,mode=700 none \"$1\"", &[&state]) else {
        return needs::not_run(
            "a full disk under the database",
            "this machine allows no mounts, not even in a user namespace",
        );
    };
    let options = ServiceOptions {
        state: Some(state.join("service")),
        launcher: mounts.launcher(),
        ..ServiceOptions::default()
    };
    let mut deployment = Deployment::set_up(options);
    deployment.ca = mounts.outside(&deployment.ca);
    deployment.start(SERVICE);
    deployment.until_ready();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    tree::make(&deployment.storage("alpha"), 600, 24_000_000, &mut Random::new(89));
    let files = tree::survey(&deployment.storage("alpha")).files;
    deployment.register("run7", "alpha");
    deployment.json(&["site", "limit", "beta", "--in", "1MB"]);
    let id = deployment.json(&["subscribe", "run7", "beta"])["id"].as_str().unwrap().to_owned();
    deployment.until("some files have come", WITHIN, || {
        (deployment.json(&["subscription", "show", &id])["files_present"].as_u64()? > 20).then_some(())
    });

    let filler = mounts.outside(&state.join("filler"));
    let mut file = fs::File::create(&filler).unwrap();
    for size in [1 << 20, 4_096] {
        while file.write_all(&vec![1u8; size]).is_ok() {}
    }
    drop(file);
    // A write that needs room is refused as what it is, and changes nothing.
    let manifest = deployment.directory().join("manifest");
    let lines: String = (0..20_000)
        .map(|n| format!("{{\"lfn\":\"new/{n}\",\"size\":1,\"digests\":[\"adler32:00000001\"]}}\n"))
        .collect();
    fs::write(&manifest, lines).unwrap();
    let ran = deployment.longhaul(&["dataset", "register", "new", "--manifest", manifest.to_str().unwrap()]);
    assert!(
        matches!(ran.status, 5 | 6) && ran.stderr.contains("full") && ran.stderr.contains("next:"),
        "{ran}"
    );
    // Whoever asks whether it works is told why not.
    let ready = deployment.await_answer(WITHIN, || {
        let reply = deployment.api().call(&routes::READYZ, &[], &[], &Value::Null).ok()?;
        (reply.status != 200).then(|| reply.text())
    });
    let ready = ready.expect("it is not ready while its disk is full");
    assert!(ready.contains("full") || ready.contains("space"), "{ready}");
    assert!(deployment.process(SERVICE).is_running(), "it waits for room, and does not end");
    assert_eq!(
        deployment.api().call(&routes::HEALTHZ, &[], &[], &Value::Null).unwrap().status,
        200,
        "reading goes on"
    );

    fs::remove_file(&filler).unwrap();
    deployment.until_ready();
    deployment.json(&["site", "limit", "beta", "--in", "none"]);
    deployment.deliver("run7", "beta", 120);
    tree::assert_same(&files, &deployment.storage("beta"), "");
    let done = deployment.api().all(&routes::TRANSFER_LIST, &[], &[("target", "beta"), ("state", "done")]);
    assert_eq!(done.len(), files.len(), "each file is recorded once");
    deployment.check();
    deployment.assert_alive();
    let registered = deployment
        .longhaul(&["dataset", "register", "new", "--manifest", manifest.to_str().unwrap(), "--json"])
        .ok()
        .json();
    assert_eq!(registered["files_added"], json!(20_000), "the same command works when there is room");
    deployment.check();
}
