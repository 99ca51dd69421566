//! What the files of a directory of authorities say, and that a change of them counts at once.

use longhaul_model::Timestamp;
use longhaul_security::grid::{GridSettings, GridTrust, Revocation};

use crate::pki::*;

fn refusal(trust: &GridTrust, holders: &[&Holder], now: Timestamp) -> String {
    trust.verify_chain(&chain(holders), now).expect_err("it was accepted").detail
}

fn reload(trust: &GridTrust) -> Vec<String> {
    let reloaded = trust.reload(NOW).unwrap();
    assert!(reloaded.changed, "nothing changed: {:?}", reloaded.problems);
    reloaded.problems
}

fn with_revocation(grid: &Grid, revocation: Revocation) -> GridTrust {
    let mut settings = grid.settings();
    settings.revocation = revocation;
    GridTrust::load(settings, NOW).unwrap()
}

#[test]
fn revocation_counts_as_soon_as_its_list_is_there() {
    let grid = Grid::new();
    let trust = grid.trust();
    let proxy = grid.alice.proxy().sign();
    let shown = [&proxy, &grid.alice];
    assert!(trust.verify_chain(&chain(&shown), NOW).is_ok());
    assert!(!trust.reload(NOW).unwrap().changed, "nothing was written");
    grid.write("11111111.r0", revocation_list(&grid.ca, &[99, 7, 3], NOW - DAY, NOW + 7 * DAY));
    assert!(reload(&trust).is_empty());
    assert!(refusal(&trust, &shown, NOW).contains("has been revoked"), "a remembered chain must not count");
    grid.write("11111111.r0", pem("X509 CRL", &revocation_list(&grid.ca, &[6, 8], NOW - DAY, NOW + 7 * DAY)));
    assert!(reload(&trust).is_empty());
    assert!(trust.verify_chain(&chain(&shown), NOW).is_ok());
    // An intermediate authority that was taken back takes all it issued with it.
    let middle = grid.ca.issues("/CN=middle").with(basic_constraints(true)).serial(50).sign();
    let bob = middle.issues("/CN=bob").sign();
    assert!(trust.verify_chain(&chain(&[&bob, &middle]), NOW).is_ok());
    grid.write("11111111.r0", revocation_list(&grid.ca, &[50], NOW - DAY, NOW + 7 * DAY));
    reload(&trust);
    assert!(refusal(&trust, &[&bob, &middle], NOW).contains("/CN=middle has been revoked"));
}

#[test]
fn lists_that_are_missing_or_expired_count_by_the_setting() {
    let grid = Grid::new();
    let shown = [&grid.alice];
    assert!(
        refusal(&with_revocation(&grid, Revocation::Require), &shown, NOW).contains("no revocation list")
    );
    grid.write("11111111.r0", revocation_list(&grid.ca, &[99], NOW - DAY, NOW + DAY / 2));
    for revocation in [Revocation::Require, Revocation::IfPresent] {
        let trust = with_revocation(&grid, revocation);
        assert!(trust.verify_chain(&chain(&shown), NOW).is_ok());
        assert!(refusal(&trust, &shown, NOW + DAY).contains("fetch-crl"));
        assert!(refusal(&trust, &shown, NOW - DAY - DAY / 2).contains("not valid yet"));
        let problems = trust.reload(NOW).unwrap().problems;
        assert!(problems[0].contains("11111111.r0: the revocation list expires at"), "{problems:?}");
        assert!(trust.reload(NOW + DAY).unwrap().problems[0].contains("expired at"));
    }
    grid.write("11111111.r0", revocation_list(&grid.ca, &[7], NOW - DAY, NOW + DAY / 2));
    assert!(with_revocation(&grid, Revocation::Ignore).verify_chain(&chain(&shown), NOW + DAY).is_ok());
}

#[test]
fn forged_and_partial_lists_stop_their_authority() {
    let grid = Grid::new();
    let mut twin = authority(CA);
    twin.subject = CA.into();
    grid.write("11111111.r0", revocation_list(&twin, &[], NOW - DAY, NOW + DAY));
    let trust = grid.trust();
    assert!(refusal(&trust, &[&grid.alice], NOW).contains("not signed by its authority"));
    // A good list that is replaced by garbage stays in force.
    grid.write("11111111.r0", revocation_list(&grid.ca, &[99], NOW - DAY, NOW + 7 * DAY));
    reload(&trust);
    assert!(trust.verify_chain(&chain(&[&grid.alice]), NOW).is_ok());
    grid.write("11111111.r0", b"garbage");
    assert!(reload(&trust)[0].contains("11111111.r0"));
    assert!(trust.verify_chain(&chain(&[&grid.alice]), NOW).is_ok());
    assert!(refusal(&trust, &[&grid.alice], NOW + 8 * DAY).contains("fetch-crl"));
    // Garbage from the beginning says nothing, and so nothing counts.
    assert!(refusal(&grid.trust(), &[&grid.alice], NOW).contains("11111111.r0 cannot be read"));
    // A list of a part of the certificates.
    let flag = tlv(0x81, &[0xff]);
    let partial = extension(&[2, 5, 29, 28], true, sequence(&[flag]));
    let body = sequence(&[
        integer(1),
        algorithm(&grid.ca.key),
        name(CA),
        time(NOW - DAY),
        time(NOW + DAY),
        tlv(0xa0, &sequence(&[partial])),
    ]);
    grid.write("11111111.r0", signed(body, &grid.ca.key));
    assert!(refusal(&grid.trust(), &[&grid.alice], NOW).contains("cannot be read"));
}

#[test]
fn authorities_sign_what_their_policies_permit() {
    let grid = Grid::new();
    let trust = grid.trust();
    let mallory = grid.ca.issues("/C=XX/CN=mallory").sign();
    assert!(trust.verify_chain(&chain(&[&mallory]), NOW).is_ok());
    let policy = format!(
        "access_id_CA X509 '{CA}'\npos_rights globus CA:sign\ncond_subjects globus \
            '\"/DC=org/DC=example/*\"'\n"
    );
    grid.write("11111111.signing_policy", &policy);
    assert!(reload(&trust).is_empty());
    assert!(refusal(&trust, &[&mallory], NOW).contains("may not sign /C=XX/CN=mallory"));
    // A proxy has a name that no policy is asked about.
    assert!(trust.verify_chain(&chain(&[&grid.alice.proxy().sign(), &grid.alice]), NOW).is_ok());
    let namespaces = "TO Issuer SELF \\\n PERMIT Subject \"/C=XX/.*\"\n";
    grid.write("11111111.namespaces", namespaces);
    reload(&trust);
    assert!(trust.verify_chain(&chain(&[&mallory]), NOW).is_ok(), "namespaces count where both are");
    assert!(refusal(&trust, &[&grid.alice], NOW).contains("may not sign"));
    grid.write(
        "11111111.namespaces",
        format!("{namespaces}TO Issuer \"{CA}\" DENY Subject \"/C=XX/CN=mal.*\"\n"),
    );
    reload(&trust);
    assert!(refusal(&trust, &[&mallory], NOW).contains("may not sign"));
    std::fs::remove_file(grid.path().join("11111111.namespaces")).unwrap();
    reload(&trust);
    assert!(trust.verify_chain(&chain(&[&grid.alice]), NOW).is_ok());
    // What cannot be understood permits nothing.
    grid.write("11111111.namespaces", "TO Issuer SELF PERMIT Subject \"(a|b)\"\n");
    assert!(reload(&trust)[0].contains("not understood"));
    assert!(refusal(&trust, &[&grid.alice], NOW).contains("11111111.namespaces cannot be read"));
}

#[test]
fn an_authority_without_a_policy_counts_by_the_setting() {
    let grid = Grid::new();
    let strict = GridSettings { require_policy: true, ..grid.settings() };
    let trust = GridTrust::load(strict, NOW).unwrap();
    assert!(refusal(&trust, &[&grid.alice], NOW).contains("nothing says which subjects"));
}

#[test]
fn authorities_come_and_go_and_bad_files_are_told() {
    let grid = Grid::new();
    let trust = grid.trust();
    let other = authority("/CN=other");
    let bob = other.issues("/CN=bob").sign();
    assert!(refusal(&trust, &[&bob], NOW).contains("not trusted here"));
    grid.write("other.pem", other.pem());
    // As installed by links of two kinds of hashes.
    std::os::unix::fs::symlink("other.pem", grid.path().join("22222222.0")).unwrap();
    std::os::unix::fs::symlink("missing.pem", grid.path().join("33333333.0")).unwrap();
    grid.write("44444444.0", "no certificate");
    grid.write("README", "not looked at");
    assert_eq!(reload(&trust), ["44444444.0: holds no certificate"]);
    assert_eq!(trust.reload(NOW).unwrap().authorities, 2);
    assert!(trust.verify_chain(&chain(&[&bob]), NOW).is_ok());
    assert!(trust.authorities_pem().contains(&other.pem()));
    std::fs::remove_file(grid.path().join("other.pem")).unwrap();
    reload(&trust);
    assert!(refusal(&trust, &[&bob], NOW).contains("not trusted here"));
    // A directory that cannot be read changes nothing, and one without authorities is a mistake.
    let empty = tempfile::tempdir().unwrap();
    assert!(
        GridTrust::load(GridSettings::new(empty.path()), NOW).unwrap_err().detail.contains("no certificate")
    );
    assert!(GridTrust::load(GridSettings::new("/nowhere/at/all"), NOW).is_err());
    let path = grid.path().to_owned();
    let moved = path.with_extension("moved");
    std::fs::rename(&path, &moved).unwrap();
    assert!(trust.reload(NOW).is_err());
    assert!(trust.verify_chain(&chain(&[&grid.alice]), NOW).is_ok());
    std::fs::rename(&moved, &path).unwrap();
}
