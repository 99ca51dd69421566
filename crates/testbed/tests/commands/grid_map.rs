//! `serve --grid-map`: subjects read and write as the accounts that the map gives them, and as no other.
//!
//! Needs root and accounts that every Debian has. Without them the tests say that they did not run; with CI
//! set they fail.

use std::fs;
use std::io::{BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use longhaul_testbed::binary;
use serde_json::Value;

const WAIT_MAX: Duration = Duration::from_secs(60);
/// System accounts and their ids.
const GAMES: (&str, u32, u32) = ("games", 5, 60);
const MAN: (&str, u32, u32) = ("man", 6, 12);
const JANE: &str = "/C=UK/O=eScience/CN=jane doe";

fn may_run() -> bool {
    let uid = fs::metadata("/proc/self").unwrap().uid();
    let known = |(name, uid, gid): (&str, u32, u32)| {
        let asked = Command::new("getent").args(["passwd", name]).output();
        let text = asked.map(|asked| String::from_utf8_lossy(&asked.stdout).into_owned()).unwrap_or_default();
        text.starts_with(&format!("{name}:x:{uid}:{gid}:"))
    };
    if uid == 0 && known(GAMES) && known(MAN) {
        return true;
    }
    let why = "DID NOT RUN: needs root, and the accounts games and man with Debian's numbers";
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("{why}");
    false
}

struct Ground {
    home: tempfile::TempDir,
}

impl Ground {
    fn new() -> Ground {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let ground = Ground { home };
        fs::create_dir(ground.path("far")).unwrap();
        ground
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn file(&self, name: &str, owner: (u32, u32), mode: u32) {
        let path = self.path(name);
        fs::write(&path, format!("of {name}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner.0), Some(owner.1)).unwrap();
    }

    fn directory(&self, name: &str, owner: (u32, u32)) {
        fs::create_dir(self.path(name)).unwrap();
        chown(self.path(name), Some(owner.0), Some(owner.1)).unwrap();
    }

    fn copy(&self, from: &str, to: &str) -> Output {
        Command::new(binary()).args(["copy", from, to]).current_dir(self.home.path()).output().unwrap()
    }

    fn good(&self, from: &str, to: &str) {
        let ran = self.copy(from, to);
        assert!(ran.status.success(), "{from} -> {to}: {}", String::from_utf8_lossy(&ran.stderr));
    }

    #[track_caller]
    fn refused(&self, from: &str, to: &str) -> String {
        let ran = self.copy(from, to);
        assert!(!ran.status.success(), "{from} -> {to} was allowed");
        String::from_utf8_lossy(&ran.stderr).into_owned()
    }
}

struct Served {
    child: Child,
    parties: Vec<Value>,
}

impl Served {
    fn new(ground: &Ground, more: &[&str]) -> Served {
        let mut child = Command::new(binary())
            .args(["serve", "--json", "--grid-map", "map", "--url-dir", "urls", "--listen", "127.0.0.1:0"])
            .args(more)
            .arg("far")
            .current_dir(ground.home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(fs::File::create(ground.path("log")).unwrap()))
            .spawn()
            .unwrap();
        // One document; the stream stays open after it.
        let output = BufReader::new(child.stdout.take().unwrap());
        let parties = serde_json::Deserializer::from_reader(output).into_iter::<Vec<Value>>().next();
        let log = || fs::read_to_string(ground.path("log")).unwrap();
        let parties =
            parties.unwrap_or_else(|| panic!("{}", log())).unwrap_or_else(|why| panic!("{why}: {}", log()));
        Served { child, parties }
    }

    /// The server processes, with their status from the kernel.
    fn servers(&self) -> Vec<(u32, String)> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
            if status.contains(&format!("\nPPid:\t{}\n", self.child.id())) {
                found.push((pid, status));
            }
        }
        found
    }

    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_of(path: &Path, (_, uid, gid): (&str, u32, u32)) -> bool {
    fs::metadata(path).is_ok_and(|found| (found.uid(), found.gid()) == (uid, gid))
}

fn prepared() -> Ground {
    let ground = Ground::new();
    ground.file("far/hers", (GAMES.1, GAMES.2), 0o600);
    ground.file("far/his", (MAN.1, MAN.2), 0o600);
    ground.file("far/roots", (0, 0), 0o600);
    ground.file("far/everyones", (0, 0), 0o644);
    ground.directory("far/in", (GAMES.1, GAMES.2));
    let map = format!(
        "# who is who\n\"{JANE}\" games,man\n\"/DC=ch/CN=robot\" man\n\"/CN=eve\" root\n\"/CN=daemon\" \
            daemon\nnonsense\n\
         \"{JANE}\" man\n"
    );
    fs::write(ground.path("map"), map).unwrap();
    ground
}

const ALLOWED: &[&str] =
    &["--system-account", "games", "--system-account", "man", "--system-account", "root"];

#[test]
fn each_reads_and_writes_as_the_account_that_the_map_says() {
    if !may_run() {
        return;
    }
    let ground = prepared();
    let served = Served::new(&ground, &[ALLOWED, &["--write"]].concat());
    let of = |place: usize, key: &str| served.parties[place][key].as_str().unwrap_or_default().to_owned();
    assert_eq!(served.parties.len(), 2, "{:?}", served.parties);
    assert_eq!((of(0, "subject").as_str(), of(0, "account").as_str()), (JANE, "games"));
    assert_eq!((of(1, "subject").as_str(), of(1, "account").as_str()), ("/DC=ch/CN=robot", "man"));
    let log = fs::read_to_string(ground.path("log")).unwrap();
    for told in ["map:4: root is root", "map:5: daemon (uid 1", "map:6:", "map:7:"] {
        assert!(log.contains(told), "{told} is missing in {log}");
    }
    // No process that talks to the network has any right of root.
    let servers = served.servers();
    assert_eq!(servers.len(), 2);
    for (_, status) in &servers {
        let has = |line: &str| status.contains(&format!("\n{line}\n"));
        assert!(has("Uid:\t5\t5\t5\t5") || has("Uid:\t6\t6\t6\t6"), "{status}");
        assert!(has("CapPrm:\t0000000000000000") && has("CapEff:\t0000000000000000"), "{status}");
        assert!(has("NoNewPrivs:\t1") && !status.contains("Groups:\t0 "), "{status}");
    }
    // None of them can write to root's terminal.
    for (pid, _) in &servers {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let session = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap();
        assert_eq!(session, pid.to_string(), "a session of its own: {stat}");
    }
    // Reading.
    ground.good("@urls/games.url/hers", "out/");
    ground.good("@urls/games.url/everyones", "out/");
    ground.good("@urls/man.url/his", "out/");
    assert_eq!(fs::read_to_string(ground.path("out/his")).unwrap(), "of far/his\n");
    for (url, name) in [("games", "his"), ("man", "hers"), ("games", "roots"), ("man", "roots")] {
        let why = ground.refused(&format!("@urls/{url}.url/{name}"), "stolen");
        assert!(why.contains("Permission denied"), "{why}");
        assert!(!ground.path("stolen").exists());
    }
    // Writing.
    fs::write(ground.path("new"), "bytes").unwrap();
    ground.good("new", "@urls/games.url/in/new");
    assert!(is_of(&ground.path("far/in/new"), GAMES));
    ground.refused("new", "@urls/man.url/in/other");
    ground.refused("new", "@urls/man.url/hers");
    assert_eq!(fs::read_dir(ground.path("far/in")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(ground.path("far/hers")).unwrap(), "of far/hers\n");
    served.end();
    assert!(!ground.path("far/.longhaul").exists(), "nothing is left in the export");
    assert_eq!(fs::read_dir(ground.path("urls")).unwrap().count(), 0, "URLs that lead nowhere are gone");
}

#[test]
fn a_server_that_dies_comes_back_under_its_url_and_all_end_with_the_first() {
    if !may_run() {
        return;
    }
    let ground = prepared();
    let mut served = Served::new(&ground, ALLOWED);
    let url = fs::read_to_string(ground.path("urls/games.url")).unwrap();
    let (pid, _) = served.servers().into_iter().find(|(_, status)| status.contains("\nUid:\t5\t")).unwrap();
    let kill = |pid: u32| {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    kill(pid);
    let begun = Instant::now();
    while !ground.copy("@urls/games.url/hers", "again").status.success() {
        assert!(begun.elapsed() < WAIT_MAX, "it does not come back");
    }
    assert_eq!(fs::read_to_string(ground.path("urls/games.url")).unwrap(), url);
    // However the parent ends, the servers do not outlive it.
    let servers = served.servers();
    assert_eq!(servers.len(), 2);
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    while servers.iter().any(|(pid, _)| is_alive(*pid)) {
        assert!(begun.elapsed() < WAIT_MAX, "servers without their parent go on");
        std::thread::yield_now();
    }
}

fn is_alive(pid: u32) -> bool {
    let mut status = String::new();
    let read =
        fs::File::open(format!("/proc/{pid}/status")).and_then(|mut file| file.read_to_string(&mut status));
    read.is_ok() && !status.contains("State:\tZ")
}

#[test]
fn a_map_that_others_can_change_is_refused() {
    if !may_run() {
        return;
    }
    let ground = prepared();
    let refused = |why: &str| {
        let arguments = ["serve", "--grid-map", "map", "--url-dir", "urls", "far"];
        let ran = Command::new(binary()).args(arguments).current_dir(ground.home.path()).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(!ran.status.success() && said.contains(why), "{why}: {said}");
    };
    // System accounts are refused, since none is allowed here.
    refused("no subject is mapped");
    fs::set_permissions(ground.path("map"), fs::Permissions::from_mode(0o664)).unwrap();
    refused("users other than root can change");
    fs::set_permissions(ground.path("map"), fs::Permissions::from_mode(0o644)).unwrap();
    chown(ground.path("map"), Some(GAMES.1), None).unwrap();
    refused("users other than root can change");
}
