//! The FTS3 REST API as its unmodified client sees it: every case of `fts3`, against a service in this
//! process.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::isolation::Issuer;
use crate::people::{Authority, Holder};
use crate::world::World;
use longhaul_api::native::{TokenCreate, TokenCreated};
use longhaul_api::routes;
use longhaul_identity::{FtsPerson, Reach};
use serde_json::json;

const PEOPLE: [(&str, &str, Reach); 4] = [
    ("alice", "testvo", Reach::None),
    ("bob", "othervo", Reach::None),
    ("carol", "testvo", Reach::None),
    ("manager", "testvo", Reach::All),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_unmodified_client_sees_what_the_reference_promises() {
    let Some(python) = client() else {
        assert!(std::env::var("CI").is_err(), "NOT RUN: no Python with fts3 3.14.2");
        return println!("\n*** NOT RUN: no Python with fts3 3.14.2 (the test command installs it) ***\n");
    };
    let grid = tempfile::tempdir().unwrap();
    let authority = Authority::new(grid.path(), "authority");
    authority.user("dora");
    let member =
        authority.proxy_of("dora", "testvo", &["/testvo/Role=production/Capability=NULL", "/testvo"]);
    if member.is_none() {
        assert!(std::env::var("CI").is_err(), "NOT RUN: voms-proxy-fake is not installed");
    }
    let mut issuer = Issuer::new(grid.path());
    issuer.serve();
    let world = World::with(|config| {
        // The suite's storages are on this machine.
        config.jobs.allow_networks = vec!["127.0.0.0/8".into()];
        config.jobs.authorities = vec![authority.file()];
        config.fts.trust_dir = Some(authority.trusted());
        config.fts.people = PEOPLE.map(person).to_vec();
        config.fts.voms_dir = member.as_ref().map(|(_, folder)| folder.clone());
        issuer.is_trusted_by(config);
    })
    .await;
    let mut tokens = BTreeMap::from([
        ("admin".to_owned(), world.admin_token.clone()),
        ("eve".to_owned(), issuer.token("/testvo")),
    ]);
    for (name, ..) in PEOPLE {
        let create = TokenCreate { name: name.into(), role: "viewer".into(), ..TokenCreate::default() };
        let made: TokenCreated =
            world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
        tokens.insert(name.to_owned(), made.token);
    }
    let folder = world.directory.path().join("client");
    fs::create_dir(&folder).unwrap();
    let stranger = Authority::new(grid.path(), "stranger");
    let people = holders(&authority, &stranger, member.map(|(holder, _)| holder));
    let given = json!({
        "endpoint": format!("https://localhost:{}", world.address().port()),
        "capath": authorities(&world.ca_pem, &folder),
        "folder": folder,
        "tokens": tokens,
        "storage": storage(&authority),
        "people": people,
    });
    let words = std::env::var("LONGHAUL_FTS3_CASES").unwrap_or_default();
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/service/fts3/suite.py");
    let mut command = Command::new(python);
    command
        .arg("-B")
        .arg(suite)
        .args(words.split_whitespace())
        .env("LONGHAUL_FTS3_WORLD", given.to_string())
        .env("HOME", &folder)
        .env_remove("X509_USER_PROXY")
        .env_remove("X509_CERT_DIR")
        .stdin(Stdio::null());
    let ran = tokio::task::spawn_blocking(move || command.output().expect("the suite can be run"));
    let ran = ran.await.unwrap();
    println!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "the suite failed; its output is above");
    world.assert_sound().await;
}

fn person((name, community, config): (&str, &str, Reach)) -> FtsPerson {
    FtsPerson {
        name: name.into(),
        community: community.parse().unwrap(),
        transfer: Reach::Community,
        config,
        datamanagement: Reach::None,
        admin: Reach::None,
    }
}

/// A Python with the client: the one that the test command made, or told of.
fn client() -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    let made = Some(target.join("tools/fts3/bin/python")).filter(|path| path.exists());
    std::env::var_os("LONGHAUL_FTS3_PYTHON").map(PathBuf::from).or(made)
}

/// The deployment's authority as grid software has it: a folder of files named after hashes of subjects.
fn authorities(ca_pem: &str, folder: &Path) -> PathBuf {
    let file = folder.join("ca.pem");
    fs::write(&file, ca_pem).unwrap();
    crate::people::trusted(&file, &folder.join("certificates"))
}

/// What a storage of the suite shows, and by whom its users have to be known.
fn storage(authority: &Authority) -> serde_json::Value {
    let host = authority.host("127.0.0.1");
    json!({ "certificate": host.certificate, "key": host.key, "authority": authority.file() })
}

/// The certificates of the suite's users.
fn holders(authority: &Authority, stranger: &Authority, member: Option<Holder>) -> serde_json::Value {
    let told = |holder: Holder| json!({ "certificate": holder.certificate, "key": holder.key });
    let mut all = json!({
        "dora": told(authority.holder("dora")),
        "dora-new": told(authority.user("dora-new")),
        "dora-proxy": told(authority.proxy("dora")),
        "stranger": told(stranger.user("stranger")),
    });
    if let Some(member) = member {
        all["dora-member"] = told(member);
    }
    all
}
