//! From a server into a local directory, over real sockets.

use std::os::unix::fs::PermissionsExt;

use longhaul_copy::{Options, Outcome};
use longhaul_model::{FaultCode, Verification};
use longhaul_testkit::content;

use crate::common::{Ground, at, place, recursive, run, tree};

fn some_tree(ground: &Ground) {
    for number in 0..300 {
        let name = format!("far/run7/d{}/f{number}", number % 7);
        let path = ground.write(&name, &content(number, (number * 311 % 70_000) as usize));
        let mode = if number % 3 == 0 { 0o640 } else { 0o755 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    ground.write("far/run7/large", &content(1, 5_500_000));
    ground.write("far/run7/none", b"");
    ground.make("far/run7/empty/inside");
}

#[test]
fn a_tree_arrives_whole_with_times_and_modes() {
    let ground = Ground::new();
    some_tree(&ground);
    let server = ground.serve("far", false);
    let target = ground.make("near");
    let ran = run(vec![at(&server, "run7/")], place(target.to_str().unwrap()), recursive()).good();
    assert_eq!(tree(&target), tree(&ground.path("far/run7")));
    assert_eq!((ran.totals.files_done, ran.totals.verified_end_to_end), (302, 302));
    assert_eq!((ran.totals.files, ran.totals.directories), (302, 1));
    assert!(ran.totals.listed && ran.totals.bytes_done == ran.totals.bytes);
    // A repeated copy finds everything there.
    let again = run(vec![at(&server, "run7/")], place(target.to_str().unwrap()), recursive()).good();
    assert_eq!((again.totals.files_done, again.totals.files_skipped), (0, 302));
    assert!(again.told.iter().all(|told| matches!(told.outcome, Outcome::Skipped(_))));
}

#[test]
fn slashes_and_names_mean_what_they_mean_to_rsync() {
    let ground = Ground::new();
    ground.write("far/a/b/f", b"bytes");
    let server = ground.serve("far", false);
    let near = ground.make("near");
    let to = |name: &str| place(near.join(name).to_str().unwrap());
    run(vec![at(&server, "a")], to(""), recursive()).good();
    assert!(near.join("a/b/f").is_file());
    run(vec![at(&server, "a/b/f")], to("other"), Options::default()).good();
    assert_eq!(std::fs::read(near.join("other")).unwrap(), b"bytes");
    run(vec![at(&server, "a/b/f"), at(&server, "a/b/")], to("both/"), recursive()).result.unwrap();
    assert!(near.join("both/f").is_file());
    run(vec![at(&server, "")], to("whole"), recursive()).good();
    assert!(near.join("whole/a/b/f").is_file());
    let fault = run(vec![at(&server, "a")], to("x"), Options::default()).result.unwrap_err();
    assert!(fault.detail.contains("--recursive"), "{fault}");
    let fault = run(vec![at(&server, "gone")], to("x"), recursive()).result.unwrap_err();
    assert_eq!(fault.code, FaultCode::SourceMissing);
    assert!(!near.join("x").exists() && !near.join(".longhaul").exists());
}

#[test]
fn says_how_it_was_verified() {
    let ground = Ground::new();
    ground.write("far/f", &content(3, 3_000_000));
    let server = ground.serve("far", false);
    for (asked, name) in
        [(Verification::Wire, "w"), (Verification::EndToEnd, "e"), (Verification::Readback, "r")]
    {
        let options = Options { verification: asked, ..Options::default() };
        let target = ground.path(name);
        let ran = run(vec![at(&server, "f")], place(target.to_str().unwrap()), options).good();
        assert!(matches!(&ran.told[..], [one] if one.outcome == Outcome::Done { verification: asked }));
        let counted =
            (ran.totals.verified_wire, ran.totals.verified_end_to_end, ran.totals.verified_readback);
        let expected = match asked {
            Verification::Wire => (1, 0, 0),
            Verification::EndToEnd => (0, 1, 0),
            Verification::Readback => (0, 0, 1),
        };
        assert_eq!(counted, expected);
    }
}
