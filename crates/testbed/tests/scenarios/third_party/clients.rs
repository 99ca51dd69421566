//! The programs that people have, which order copies between storages by themselves: curl, davix and gfal;
//! and rclone, which knows no third-party copies and carries the bytes.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::third_party::cases::{
    Case, Direction, Ends, FILE_BYTES, TRIES_MAX, WITHIN, at_once, cancelled, some,
};
use crate::third_party::world::{By, CREDENTIALS, KINDS, Kind, World, adler32, below, content, may_run};

/// A program that takes longer hangs, which counts as a failure.
const COPY_TIMEOUT_S: &str = "120";
const MACAROON: &str = "Content-Type: application/macaroon-request";

/// A program that orders a copy.
type Program = fn(&World, &Ends) -> Command;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ran(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// What it said on its standard output, if it went well.
fn said(command: &mut Command) -> Result<String, String> {
    let output = ran(command);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() { Ok(out) } else { Err(format!("{}: {out}{err}", output.status)) }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

impl World {
    /// A command of curl with the robot's credential.
    fn curl(&self, by: By) -> Command {
        let mut command = Command::new("curl");
        command.args(["-sSN", "--max-time", COPY_TIMEOUT_S, "--cacert"]).arg(self.authority.ca_file());
        match by {
            By::Certificate => command.arg("-E").arg(&self.robot),
            By::Token => command.args(["-H", &bearer(&self.issuer.token(SCOPE))]),
        };
        command
    }

    /// What the active side shall show to the passive one.
    fn lent(&self, ends: &Ends) -> String {
        if ends.case.by == By::Token {
            return self.issuer.token(SCOPE);
        }
        let activities = match ends.case.direction {
            Direction::Pull => "DOWNLOAD,LIST",
            Direction::Push => "MANAGE,UPLOAD,DELETE,LIST",
        };
        let wish = format!(r#"{{"caveats":["activity:{activities}"],"validity":"PT30M"}}"#);
        let mut asking = self.curl(By::Certificate);
        asking.args(["-f", "-X", "POST", "-H", MACAROON, "-d", &wish, ends.passive()]);
        // XRootD may break it off.
        asking.args(["--retry", "2", "--retry-all-errors"]);
        let answer = said(&mut asking).unwrap_or_else(|why| panic!("{}: {why}", ends.case));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["macaroon"].as_str().unwrap().to_owned()
    }

    /// A command of gfal with the robot's credential.
    fn gfal(&self, program: &str, by: By) -> Command {
        let mut command = Command::new(program);
        // The system's, which has its modules, whatever else is called python here.
        command.env("GFAL_PYTHONBIN", "/usr/bin/python3");
        command.env("X509_CERT_DIR", self.authority.ca_folder()).env_remove("X509_USER_PROXY");
        match by {
            By::Certificate => {
                command.env("X509_USER_CERT", &self.robot).env("X509_USER_KEY", &self.robot);
                command.env_remove("BEARER_TOKEN")
            }
            By::Token => command.env("BEARER_TOKEN", self.issuer.token(SCOPE)),
        };
        command
    }
}

const SCOPE: &str = "storage.read:/ storage.modify:/";

fn curl(world: &World, ends: &Ends) -> Command {
    let (header, other) = match ends.case.direction {
        Direction::Pull => ("Source", &ends.source),
        Direction::Push => ("Destination", &ends.target),
    };
    let mut command = world.curl(ends.case.by);
    command.args(["-X", "COPY", "-H", "Credential: none", "-H", &format!("{header}: {other}")]);
    command.args(["-H", &format!("TransferHeader{}", bearer(&world.lent(ends)))]).arg(ends.active());
    command
}

fn davix(world: &World, ends: &Ends) -> Command {
    let mut command = Command::new("davix-cp");
    command.args(["--copy-mode", ends.case.direction.word(), "--retry", "0", "--capath"]);
    command.arg(world.authority.ca_folder());
    match ends.case.by {
        By::Certificate => command.arg("-E").arg(&world.robot).arg("--key").arg(&world.robot),
        By::Token => command.args(["-H", &bearer(&world.issuer.token(SCOPE))]),
    };
    command.args(["-H", &format!("TransferHeader{}", bearer(&world.lent(ends)))]);
    command.args(["-H", "Credential: none", &ends.source, &ends.target]);
    command
}

/// It asks for macaroons by itself, and compares the checksums of both ends.
fn gfal(world: &World, ends: &Ends) -> Command {
    let mut command = world.gfal("gfal-copy", ends.case.by);
    command.args([
        "-vvv",
        "--parent",
        "-t",
        COPY_TIMEOUT_S,
        "-K",
        "ADLER32",
        "--copy-mode",
        ends.case.direction.word(),
    ]);
    command.args([&ends.source, &ends.target]);
    command
}

/// How far a copy is by a line of a program's.
fn marked(line: &str) -> Option<u64> {
    let (_, number) = line.split_once("Stripe Bytes Transferred:")?;
    number.trim().parse().ok()
}

/// A program that runs.
struct Running {
    ends: Ends,
    child: Child,
    lines: BufReader<Box<dyn Read + Send>>,
    heard: Vec<String>,
}

impl Running {
    fn start(ends: Ends, mut command: Command) -> Running {
        // What it says on either, in the order in which it says it.
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stderr(writer.try_clone().unwrap()).stdout(writer);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running { ends, child, lines: BufReader::new(Box::new(reader)), heard: Vec::new() }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap_or(0);
        self.heard.push(line.trim_end().to_owned());
        (read > 0).then_some(line)
    }

    /// The first marker that says that it is in its midst.
    fn marker(&mut self) -> Option<u64> {
        while let Some(line) = self.line() {
            if let Some(bytes) = marked(&line).filter(|bytes| (1..FILE_BYTES).contains(bytes)) {
                return Some(bytes);
            }
        }
        None
    }

    /// Nothing in a door. XRootD 5.5 writes under the file's own name and leaves there what has come, as it
    /// does with any upload that breaks (see `xrootd_keeps_what_a_broken_upload_has_brought`); of its own
    /// pulls it says that they were broken off.
    fn leaves_what_may_be(&self, world: &World) {
        let (case, folder) = (self.ends.case, &self.ends.folder);
        let name = folder.file_name().unwrap().to_str().unwrap();
        let given_up = ["TPC_PullRequest", "event=PERFMARKER_FAIL", name];
        world.deployment.until(&format!("{case} leaves nothing"), WITHIN, || {
            let done = match (case.target, case.direction) {
                (Kind::Door, _) => below(folder).is_empty(),
                (Kind::Xrootd, Direction::Pull) => world.target_has_said(case.by, &given_up),
                (Kind::Xrootd, Direction::Push) => true,
            };
            done.then_some(())
        });
        if case.target == Kind::Xrootd {
            let left = std::fs::metadata(&self.ends.file).map_or(0, |found| found.len());
            assert!(left < FILE_BYTES && below(folder).iter().all(|name| name == "f"), "{case}");
        }
    }

    /// Whether it has ended well.
    fn ends_well(&mut self) -> Result<(), String> {
        while self.line().is_some() {}
        let status = self.child.wait().unwrap();
        let heard = self.heard.join("\n");
        if status.success() { Ok(()) } else { Err(format!("{status}: {heard}")) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program is asked for in a test.
struct Trial {
    name: &'static str,
    program: Program,
    /// Shows the markers of the active side.
    tells: bool,
    /// What it says of a copy that went as it was told, and not another way; `WAY` is pull or push.
    says: Option<&'static str>,
    /// With which of the pairings it begins.
    turn: usize,
}

const CURL: Trial = Trial { name: "curl", program: curl, tells: true, says: Some("success: "), turn: 0 };
const DAVIX: Trial = Trial { name: "davix", program: davix, tells: false, says: None, turn: 5 };
const GFAL: Trial =
    Trial { name: "gfal", program: gfal, tells: false, says: Some("TRANSFER:TYPE\t3rd WAY"), turn: 10 };

impl Trial {
    fn completes(&self, mut running: Running, bytes: &[u8]) -> Result<u64, String> {
        let seen = match self.tells {
            true => running.marker(),
            false => running.ends.gate.holds(WITHIN).then_some(0),
        };
        running.ends.gate.open();
        running.ends_well()?;
        let heard = running.heard.join("\n");
        let seen = seen.ok_or_else(|| format!("nothing is told of it in its midst: {heard}"))?;
        let says = self.says.map(|text| text.replace("WAY", running.ends.case.direction.word()));
        if says.is_some_and(|says| !running.heard.iter().any(|line| line.contains(&says))) {
            return Err(heard);
        }
        running.ends.is_whole(bytes);
        Ok(seen)
    }

    /// The end of the program is the end of the copy.
    fn ends_with_it(&self, mut running: Running, world: &World) -> Result<u64, String> {
        let seen = match self.tells {
            true => running.marker(),
            false => running.ends.gate.holds(WITHIN).then_some(0),
        };
        let Some(seen) = seen else {
            running.ends.gate.open();
            return Err(running.ends_well().err().unwrap_or_default());
        };
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        let case = running.ends.case;
        assert!(
            running.ends.gate.was_given_up(WITHIN),
            "{} {case}: the active side ends its transfer",
            self.name
        );
        running.leaves_what_may_be(world);
        Ok(seen)
    }

    fn run(
        &self,
        cases: Vec<Case>,
        check: impl Fn(Running, &World) -> Result<u64, String> + Sync,
        bytes: &[u8],
        tag: &str,
    ) {
        let mut world = World::new();
        let wanted = cases.len();
        let (mut left, mut table) = (cases, Vec::new());
        for number in 0..TRIES_MAX {
            let tag = format!("{}-{tag}{number}", self.name);
            let start = |case: &Case| {
                let ends = case.ends(&world, bytes, &tag, "https");
                world.make_folder(&ends);
                let command = (self.program)(&world, &ends);
                Running::start(ends, command)
            };
            let checked = at_once(std::mem::take(&mut left), |case| (case, check(start(&case), &world)));
            for (case, result) in checked {
                match result {
                    Ok(seen) => {
                        table.push(format!("{:<6} {case:<34} {seen:>10} bytes seen on its way", self.name));
                    }
                    Err(why) => {
                        println!("{} {case} failed: {why}\n{}", self.name, world.logs(case.by));
                        assert!(case.uses_xrootd(), "{} {case}: {why}", self.name);
                        left.push(case);
                    }
                }
            }
            if left.is_empty() {
                break;
            }
            CREDENTIALS.iter().for_each(|by| world.start_again(*by));
        }
        println!("{}", table.join("\n"));
        assert!(left.is_empty(), "{}, {TRIES_MAX} times: {left:?}", self.name);
        assert_eq!(table.len(), wanted);
        world.deployment.until("the doors have nothing on its way", WITHIN, || {
            world.temporary().is_empty().then_some(())
        });
        world.deployment.assert_alive();
    }

    fn copies(&self) {
        let bytes = content(3, FILE_BYTES);
        self.run(some(self.turn), |running, _| self.completes(running, &bytes), &bytes, "whole");
    }

    fn is_cancelled(&self) {
        let bytes = content(4, FILE_BYTES);
        let cases = cancelled(some(self.turn));
        self.run(cases, |running, world| self.ends_with_it(running, world), &bytes, "ended");
    }
}

#[test]
fn curl_orders_copies_and_ends_them() {
    if may_run("copies ordered by curl", &[("curl", "--version")]) {
        CURL.copies();
        CURL.is_cancelled();
    }
}

#[test]
fn davix_orders_copies_and_ends_them() {
    if may_run("copies ordered by davix", &[("davix-cp", "--version"), ("curl", "--version")]) {
        DAVIX.copies();
        DAVIX.is_cancelled();
    }
}

#[test]
fn gfal_orders_copies_and_ends_them() {
    if may_run("copies ordered by gfal", &[("gfal2_version", "")]) {
        GFAL.copies();
        GFAL.is_cancelled();
    }
}

/// Without a third party too: what a copy into it leaves that was broken off is no doing of the one who
/// copies.
#[test]
fn xrootd_keeps_what_a_broken_upload_has_brought() {
    if !may_run("broken uploads to XRootD", &[("curl", "--version")]) {
        return;
    }
    let (world, bytes) = (World::new(), content(7, FILE_BYTES));
    let case =
        Case { source: Kind::Door, target: Kind::Xrootd, direction: Direction::Push, by: By::Certificate };
    let ends = case.ends(&world, &bytes, "upload", "https");
    world.make_folder(&ends);
    let file = world.deployment.directory().join("upload");
    std::fs::write(&file, &bytes).unwrap();
    let mut uploading = world.curl(case.by);
    uploading.arg("-T").arg(&file).arg(&ends.target);
    let mut running = Running::start(ends, uploading);
    assert!(running.ends.gate.holds(WITHIN));
    let part =
        || std::fs::metadata(&running.ends.file).ok().map(|found| found.len()).filter(|part| *part > 0);
    // It drops what it has not read yet when the connection ends: some of it has to be written before.
    let written = world.deployment.until("a part of it is there", WITHIN, part);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert!(running.ends.gate.was_given_up(WITHIN));
    let left = part().unwrap_or(0);
    assert!((written..FILE_BYTES).contains(&left), "{written} {left}");
}

/// What a program says that asks a storage of this kind, of which XRootD may break off some.
fn said_in_the_end(world: &mut World, kind: Kind, by: By, ask: &dyn Fn(&World) -> Command) -> String {
    let tries_max = if kind == Kind::Xrootd { TRIES_MAX } else { 1 };
    for tries in 1..=tries_max {
        match said(&mut ask(world)) {
            Ok(said) => return said,
            Err(why) => println!("try {tries}: {why}\n{}", world.logs(by)),
        }
        world.start_again(by);
    }
    panic!("{tries_max} times, {kind:?} {by:?}");
}

/// What each program is told of a file's checksum is right.
#[test]
fn checksums_are_told_to_every_program() {
    if !may_run("checksums of a door", &[("curl", "--version"), ("gfal2_version", "")]) {
        return;
    }
    let mut world = World::new();
    let bytes = content(5, 3_000_000);
    for by in CREDENTIALS {
        for kind in KINDS {
            world.put(kind, by, "summed", &bytes);
            let url = world.place(kind, by, 0).https("summed");
            let mut said_of_it = |ask: &dyn Fn(&World) -> Command| said_in_the_end(&mut world, kind, by, ask);
            let told = said_of_it(&|world| {
                let mut asking = world.curl(by);
                asking.args(["-fI", "-H", "Want-Digest: adler32", &url]);
                asking
            });
            let digest = told.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("digest").then(|| value.trim().to_owned())
            });
            assert_eq!(digest, Some(format!("adler32={}", adler32(&bytes))), "{kind:?} {by:?}: {told}");
            let summed = said_of_it(&|world| {
                let mut asking = world.gfal("gfal-sum", by);
                asking.args([&url, "ADLER32"]);
                asking
            });
            assert_eq!(summed.split_whitespace().last(), Some(adler32(&bytes).as_str()), "{kind:?} {by:?}");
        }
    }
}

/// It reads from the one and writes to the other, and copies files both ways.
#[test]
fn rclone_carries_files() {
    if !may_run("rclone between storages", &[("rclone", "version")]) {
        return;
    }
    let world = World::new();
    let bytes = content(6, 3_000_000);
    let local = world.deployment.directory().join("rclone");
    std::fs::create_dir_all(&local).unwrap();
    for by in CREDENTIALS {
        for source in KINDS {
            for target in KINDS {
                let case = format!("{source:?} to {target:?}, {by:?}");
                let name = format!("rclone-{source:?}-{target:?}").to_lowercase();
                world.put(source, by, &name, &bytes);
                let (from, to) = (world.place(source, by, 0), world.place(target, by, 1));
                let copied = rclone(&world, by, &[&at(&from.https(""), &name), &at(&to.https(""), &name)]);
                copied.unwrap_or_else(|why| panic!("{case}: {why}"));
                assert!(std::fs::read(to.file(&name)).unwrap() == bytes, "{case}");
                let back = local.join(&name);
                let copied = rclone(&world, by, &[&at(&to.https(""), &name), back.to_str().unwrap()]);
                copied.unwrap_or_else(|why| panic!("back, {case}: {why}"));
                assert!(std::fs::read(&back).unwrap() == bytes, "back, {case}");
            }
        }
    }
}

/// A file of a storage in its words.
fn at(url: &str, name: &str) -> String {
    format!(":webdav,vendor=other,url=\"{url}\":{name}")
}

fn rclone(world: &World, by: By, words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("rclone");
    command.args(["copyto", "--config", "/dev/null", "--retries", "3", "--ca-cert"]);
    command.arg(world.authority.ca_file());
    match by {
        By::Certificate => {
            command.arg("--client-cert").arg(&world.robot).arg("--client-key").arg(&world.robot)
        }
        By::Token => command.args(["--webdav-bearer-token", &world.issuer.token(SCOPE)]),
    };
    said(command.env("HOME", Path::new("/nonexistent")).args(words))
}
