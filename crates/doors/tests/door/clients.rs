//! The programs that people have.

use std::path::Path;
use std::process::{Command, Output};

use crate::house::{Changes, House, READER, WRITER};

/// Whether a program can be run. Where it is missing, that is said loudly; with `CI=true` it fails.
fn there(name: &str, probe: &str) -> bool {
    let found = Command::new(name).arg(probe).output().is_ok();
    if !found {
        assert!(!std::env::var("CI").is_ok_and(|value| value == "true"), "NOT RUN: {name} is not installed");
        eprintln!("\n*** NOT RUN: {name} with a door: it is not installed ***\n");
    }
    found
}

fn ran(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    output
}

fn some_bytes(path: &Path, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn curl() {
    if !there("curl", "--version") {
        return;
    }
    let house = House::new();
    let curl = || {
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail", "--max-time", "60", "--cacert"]).arg(&house.ca);
        command
    };
    let bytes = some_bytes(&house.file("in"), 5_000_000);
    let token = format!("Authorization: Bearer {WRITER}");
    ran(curl().args(["-H", &token, "-T"]).arg(house.file("in")).arg(house.url("/d/f")));
    assert!(std::fs::read(house.root.join("d/f")).unwrap() == bytes);
    let alice = house.file("alice.pem");
    ran(curl()
        .arg("-E")
        .arg(&alice)
        .args(["-H", "Expect: 100-continue", "-T"])
        .arg(house.file("in"))
        .arg(house.url("/d/g")));
    let out = house.file("out");
    ran(curl().arg("-E").arg(&alice).arg("-o").arg(&out).arg(house.url("/d/g")));
    assert!(std::fs::read(&out).unwrap() == bytes);
    let part = ran(curl()
        .args(["-H", &format!("Authorization: bearer {READER}"), "-r", "10-19"])
        .arg(house.url("/d/g")));
    assert_eq!(part.stdout, bytes[10..20]);
    for (certificate, path) in [("mallory.pem", "/d/g"), ("alice.pem", "/d/none")] {
        let refused = curl().arg("-E").arg(house.file(certificate)).arg(house.url(path)).output().unwrap();
        assert!(!refused.status.success(), "{certificate} {path}");
    }
    let shown = String::from_utf8_lossy(&ran(curl().args(["-E"]).arg(&alice).arg(house.url("/d/"))).stdout)
        .into_owned();
    assert!(shown.contains("./g"), "{shown}");
}

/// Classes 1 and 2, as RFC 4918 has them: trees are deleted, missing parents are an error.
#[test]
fn litmus() {
    if !there("litmus", "--version") {
        return;
    }
    let changes = Changes { make_parents: false, delete_trees: true, ..Changes::default() };
    let house = House::with(changes);
    // Its only credentials are a user and a password, which a door does not take: it comes with a client
    // certificate.
    let p12 = house.file("alice.p12");
    ran(Command::new("openssl")
        .args(["pkcs12", "-export", "-passout", "pass:", "-in"])
        .arg(house.file("alice.pem"))
        .arg("-out")
        .arg(&p12));
    let run = |suite: &str| {
        let output = Command::new("litmus")
            .arg("-k")
            .arg("-c")
            .arg(&p12)
            .arg(house.url("/"))
            .env("TESTS", suite)
            .current_dir(house.file(""))
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).replace('\r', "\n"))
    };
    for suite in ["basic", "copymove", "props", "locks", "http"] {
        let (passed, said) = run(suite);
        assert!(passed && !said.contains("FAIL"), "{suite}:\n{said}");
    }
}

#[test]
fn rclone() {
    if !there("rclone", "version") {
        return;
    }
    let house = House::new();
    let local = house.file("local");
    std::fs::create_dir_all(local.join("a/b")).unwrap();
    for (name, len) in [("one", 1), ("a/two", 70_000), ("a/b/three", 3_000_000), ("a/ü x", 0)] {
        some_bytes(&local.join(name), len);
    }
    let rclone = || {
        let mut command = Command::new("rclone");
        command.args(["--ca-cert"]).arg(&house.ca).args([
            "--config",
            "/dev/null",
            "--webdav-vendor",
            "other",
        ]);
        command.args(["--webdav-url", &house.url("/"), "--webdav-bearer-token", WRITER]);
        command
    };
    ran(rclone().arg("copy").arg(&local).arg(":webdav:up"));
    ran(rclone().args(["check", "--download"]).arg(&local).arg(":webdav:up"));
    ran(rclone().args(["moveto", ":webdav:up/one", ":webdav:up/uno"]));
    let back = house.file("back");
    ran(rclone().args(["copy", ":webdav:up"]).arg(&back));
    assert!(
        std::fs::read(back.join("a/b/three")).unwrap() == std::fs::read(local.join("a/b/three")).unwrap()
    );
    assert!(back.join("uno").exists() && back.join("a/ü x").exists());
    let about = String::from_utf8_lossy(&ran(rclone().args(["about", ":webdav:"])).stdout).into_owned();
    assert!(about.contains("Free:"), "{about}");
}

#[test]
fn davix() {
    if !there("davix-get", "--version") {
        return;
    }
    let house = House::new();
    let bytes = some_bytes(&house.file("in"), 2_000_000);
    let alice = house.file("alice.pem");
    let davix = |tool: &str| {
        let mut command = Command::new(tool);
        command
            .arg("--capath")
            .arg(house.file("none"))
            .arg("-k")
            .arg("-E")
            .arg(&alice)
            .arg("--key")
            .arg(&alice);
        command
    };
    ran(davix("davix-mkdir").arg(house.url("/d")));
    ran(davix("davix-put").arg(house.file("in")).arg(house.url("/d/f")));
    assert!(std::fs::read(house.root.join("d/f")).unwrap() == bytes);
    let got = ran(davix("davix-get").arg(house.url("/d/f")));
    assert!(got.stdout == bytes);
    let listed =
        String::from_utf8_lossy(&ran(davix("davix-ls").arg("-l").arg(house.url("/d"))).stdout).into_owned();
    assert!(listed.contains("2000000") && listed.contains('f'), "{listed}");
    // Debian's 0.8.4 ends with 255 whatever came of it.
    davix("davix-mv").arg(house.url("/d/f")).arg(house.url("/d/g")).output().unwrap();
    assert!(house.root.join("d/g").exists() && !house.root.join("d/f").exists());
    ran(davix("davix-rm").arg(house.url("/d/g")));
    assert!(!house.root.join("d/g").exists());
}

#[test]
fn gfal() {
    if !there("gfal-ls", "--version") {
        return;
    }
    let house = House::new();
    let bytes = some_bytes(&house.file("in"), 2_000_000);
    let said = |tool: &str, arguments: &[&str]| {
        let mut command = Command::new(tool);
        // The system's, which has its modules, whatever else is called python here.
        command.env("GFAL_PYTHONBIN", "/usr/bin/python3");
        command.env("BEARER_TOKEN", WRITER).args(["-D", "HTTP PLUGIN:INSECURE=true"]).args(arguments);
        String::from_utf8_lossy(&ran(&mut command).stdout).into_owned()
    };
    let local = |name: &str| format!("file://{}", house.file(name).display());
    let (folder, file, other) = (house.url("/d"), house.url("/d/f"), house.url("/d/g"));
    said("gfal-mkdir", &[&folder]);
    said("gfal-copy", &["-K", "ADLER32", &local("in"), &file]);
    assert!(std::fs::read(house.root.join("d/f")).unwrap() == bytes);
    let listed = said("gfal-ls", &["-l", &folder]);
    assert!(listed.contains("2000000") && listed.contains(" f"), "{listed}");
    let told = said("gfal-stat", &[&file]);
    assert!(told.contains("2000000") && told.contains("regular file"), "{told}");
    let sum = said("gfal-sum", &[&file, "ADLER32"]);
    let own = format!("{:08x}", simd_adler32::adler32(&bytes.as_slice()));
    assert!(sum.contains(&own), "{sum} is not {own}");
    said("gfal-rename", &[&file, &other]);
    said("gfal-copy", &[&other, &local("out")]);
    assert!(std::fs::read(house.file("out")).unwrap() == bytes);
    said("gfal-rm", &[&other]);
    assert!(!house.root.join("d/g").exists() && !house.root.join("d/f").exists());
}
