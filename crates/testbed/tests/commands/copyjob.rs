//! Programs that drive fdtcp can drive Longhaul: same copyjobfile, reportfile and exit codes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use longhaul_testbed::binary;

/// `longhaul serve`, killed at the end of the test.
struct Served(Child);

impl Served {
    fn new(directory: &Path, url_file: &Path) -> Served {
        let mut child = Command::new(binary())
            .args(["serve", "--listen", "127.0.0.1:0", "--url-file"])
            .args([url_file, directory])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("lh://"), "{line}");
        Served(child)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn copyjob(home: &Path, job: &str) -> Output {
    fs::write(home.join("job.txt"), job).unwrap();
    let arguments = ["copy", "--copyjobfile", "job.txt", "--report", "report.txt"];
    Command::new(binary()).args(arguments).current_dir(home).output().unwrap()
}

#[test]
fn a_hundred_pairs_three_of_them_bad() {
    let home = tempfile::tempdir().unwrap();
    let (source, target) = (home.path().join("in"), home.path().join("out"));
    fs::create_dir_all(&source).unwrap();
    fs::create_dir_all(&target).unwrap();
    for number in 0..98 {
        fs::write(source.join(format!("f{number}")), vec![number as u8; 1_000 + number]).unwrap();
    }
    fs::write(target.join("f97"), "something else").unwrap();
    let _served = Served::new(&source, &home.path().join("url"));
    let mut job: String =
        (0..98).map(|number| format!("@url/f{number} {}/f{number}\n", target.display())).collect();
    job += &format!("@url/missing {}/missing\n", target.display());
    job += &format!("fdt://far.example:54321/f {}/fdt\n", target.display());
    let ran = copyjob(home.path(), &job);
    assert_eq!(ran.status.code(), Some(1), "{}", String::from_utf8_lossy(&ran.stderr));
    let report = fs::read_to_string(home.path().join("report.txt")).unwrap();
    assert_eq!(report.lines().count(), 100, "{report}");
    let status_of = |name: &str| -> String {
        let end = format!("{}/{name}", target.display());
        let line = report.lines().find(|line| line.split(' ').nth(1) == Some(&end));
        line.unwrap_or_else(|| panic!("no line for {name}:\n{report}")).split(' ').nth(2).unwrap().to_owned()
    };
    for number in 0..97 {
        assert_eq!(status_of(&format!("f{number}")), "0");
        let name = format!("f{number}");
        assert_eq!(fs::read(target.join(&name)).unwrap(), fs::read(source.join(&name)).unwrap());
    }
    assert_eq!(
        (status_of("f97").as_str(), status_of("missing").as_str(), status_of("fdt").as_str()),
        ("2", "1", "1")
    );
    assert_eq!(fs::read(target.join("f97")).unwrap(), b"something else");
}

#[test]
fn all_right_is_zero_and_a_job_that_cannot_be_read_is_reported() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("a"), "a").unwrap();
    let ran = copyjob(home.path(), &format!("{0}/a {0}/b\n", home.path().display()));
    assert_eq!(ran.status.code(), Some(0), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(fs::read(home.path().join("b")).unwrap(), b"a");
    let ran = copyjob(home.path(), "\n# nothing\n");
    assert_eq!(ran.status.code(), Some(1));
    let report = fs::read_to_string(home.path().join("report.txt")).unwrap();
    assert!(report.starts_with("# E"), "{report}");
}
