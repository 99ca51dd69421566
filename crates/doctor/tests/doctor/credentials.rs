//! Certificates, keys and grid-map files, made for the purpose.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use longhaul_doctor::{Examination, ExaminationRequest, Finding, Group, Severity, examine};
use longhaul_model::Timestamp;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

struct TestCredential {
    _directory: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
    other_key: PathBuf,
}

fn make_credential(from: (i32, u8, u8), until: (i32, u8, u8)) -> TestCredential {
    let directory = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["far.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "far \u{1b}[2Jexample");
    params.not_before = date_time_ymd(from.0, from.1, from.2);
    params.not_after = date_time_ymd(until.0, until.1, until.2);
    let certificate = params.self_signed(&key).unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    TestCredential {
        certificate: write("cert.pem", &certificate.pem()),
        key: write("key.pem", &key.serialize_pem()),
        other_key: write("other.pem", &KeyPair::generate().unwrap().serialize_pem()),
        _directory: directory,
    }
}

fn examine_with(certificate: Option<&Path>, key: Option<&Path>, grid_map: Option<&Path>) -> Vec<Finding> {
    let order = ExaminationRequest {
        root: "/nonexistent".into(),
        certificate: certificate.map(Path::to_owned),
        key: key.map(Path::to_owned),
        grid_maps: grid_map.map(Path::to_owned).into_iter().collect(),
        ..ExaminationRequest::default()
    };
    let Examination { findings, .. } = examine(&order, now());
    findings.into_iter().filter(|finding| finding.group == Group::Credentials).collect()
}

fn finding<'a>(all: &'a [Finding], check: &str) -> &'a Finding {
    all.iter().find(|one| one.check == check).unwrap_or_else(|| panic!("no {check} in {all:#?}"))
}

#[test]
fn a_pair_that_belongs_together_is_fine() {
    let made = make_credential((2026, 1, 1), (2027, 3, 1));
    let all = examine_with(Some(&made.certificate), Some(&made.key), None);
    assert!(all.iter().all(|one| one.severity == Severity::Ok), "{all:#?}");
    assert_eq!(all.len(), 3);
    let found = &finding(&all, "certificate").found;
    assert!(found.contains("valid 99 d") && found.contains("far.example"), "{found}");
    assert!(!found.contains('\u{1b}'), "what others wrote cannot move the cursor: {found}");
}

#[test]
fn a_key_of_another_certificate_and_a_key_for_all_to_read_are_problems() {
    let made = make_credential((2026, 1, 1), (2027, 3, 1));
    std::fs::set_permissions(&made.other_key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let all = examine_with(Some(&made.certificate), Some(&made.other_key), None);
    let mismatch = finding(&all, "key and certificate");
    assert_eq!(mismatch.severity, Severity::Problem);
    assert!(mismatch.found.contains("other.pem is not the key of"), "{mismatch:?}");
    let open = finding(&all, "key file");
    assert_eq!(open.severity, Severity::Problem);
    assert!(open.found.contains("0644") && open.remedy[0].starts_with("chmod 600 "), "{open:?}");
}

#[test]
fn dates_are_told() {
    let level = |from, until| {
        let made = make_credential(from, until);
        let all = examine_with(Some(&made.certificate), None, None);
        (all[0].severity, all[0].found.clone())
    };
    let (expired, words) = level((2025, 1, 1), (2026, 11, 20));
    assert_eq!(expired, Severity::Problem);
    assert!(words.contains("expired 1 d"), "{words}");
    assert_eq!(level((2026, 12, 1), (2027, 12, 1)).0, Severity::Problem);
    assert_eq!(level((2026, 1, 1), (2026, 11, 30)).0, Severity::Advice);
    // A certificate that lives for days only is always near its end.
    assert_eq!(level((2026, 11, 18), (2026, 11, 25)).0, Severity::Ok);
}

#[test]
fn invalid_credential_files_are_reported() {
    let made = make_credential((2026, 1, 1), (2027, 3, 1));
    let all = examine_with(Some(&made.key), Some(&made.certificate), None);
    assert_eq!(finding(&all, "certificate").severity, Severity::Problem);
    assert!(finding(&all, "key").found.contains("no private key"));
    let all = examine_with(Some(Path::new("/nonexistent/a")), None, None);
    assert!(all[0].found.contains("No such file"), "{all:?}");
}

#[test]
fn a_chain_out_of_order_is_a_problem() {
    let (first, second) =
        (make_credential((2026, 1, 1), (2027, 3, 1)), make_credential((2026, 1, 1), (2027, 3, 1)));
    // Two of one name: in order by name. A third, of another name, is not.
    let text = |made: &TestCredential| std::fs::read_to_string(&made.certificate).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "stranger");
    let stranger = params.self_signed(&key).unwrap().pem();
    std::fs::write(&first.certificate, format!("{}{}{stranger}", text(&first), text(&second))).unwrap();
    let all = examine_with(Some(&first.certificate), None, None);
    assert!(finding(&all, "certificate chain").found.contains("certificate 2 is not issued by"), "{all:#?}");
}

#[test]
fn bad_grid_map_lines_are_reported_by_number() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("grid-mapfile");
    let mut text = String::from(
        "# map\n\"/C=UK/CN=jane doe\" jdoe\n/C=UK/CN=no quotes x\n\"/CN=a\" \"/cms/Role=x\" \
            a\n\"/C=UK/CN=jane doe\" root\n",
    );
    text.push_str(&"nonsense\n".repeat(30));
    std::fs::write(&path, text).unwrap();
    let all = examine_with(None, None, Some(&path));
    assert!(all[0].found.contains("3 lines map"), "{all:#?}");
    assert!(
        all.iter().any(|one| one.severity == Severity::Problem && one.found.contains("grid-mapfile:3: ")),
        "{all:#?}"
    );
    assert!(
        all.iter()
            .any(|one| one.severity == Severity::Advice && one.found.contains(":5: contradicts line 2")),
        "{all:#?}"
    );
    assert!(all.len() < 20, "a page of bad lines is enough: {}", all.len());
    assert_eq!(examine_with(None, None, Some(Path::new("/nonexistent/map")))[0].severity, Severity::Problem);
}
