//! What users lend the service, after jobs that used it: neither in a file of its state nor in what it says.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::isolation::{Play, openssl};
use serde_json::{Value, json};

/// In the names of the catalog's files.
const CATALOG: &str = "catalog.sqlite";

/// All that is logged from now on.
#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn files(folder: &Path, all: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, all);
        } else {
            all.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// As clients do it: a request of the service, signed by the user for a while.
async fn delegate(play: &Play) -> String {
    let (_, who) = play.request("certificate", "GET", "/whoami", "").await;
    let who: Value = serde_json::from_str(&who).unwrap();
    let id = who["delegation_id"].as_str().unwrap().to_owned();
    let (status, request) =
        play.request("certificate", "GET", &format!("/delegation/{id}/request"), "").await;
    assert_eq!(status, 200, "{request}");
    let folder = play.folder().join("authority");
    let [holder, key] = ["dora.pem", "dora.key"].map(|name| folder.join(name).display().to_string());
    fs::write(folder.join("lent.csr"), request).unwrap();
    let [csr, extensions] = ["lent.csr", "lent.ext"].map(|name| folder.join(name).display().to_string());
    fs::write(
        &extensions,
        "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature,keyEncipherment\n\
         proxyCertInfo=critical,language:id-ppl-inheritAll\n",
    )
    .unwrap();
    let subject = format!("{}/CN=4712", crate::people::dn("dora"));
    let words = [
        "x509",
        "-req",
        "-in",
        &csr,
        "-CA",
        &holder,
        "-CAkey",
        &key,
        "-set_serial",
        "4712",
        "-days",
        "1",
        "-extfile",
        &extensions,
        "-subj",
        &subject,
    ];
    let proxy = String::from_utf8(openssl(&words, b"")).unwrap();
    let chain = format!("{proxy}{}", fs::read_to_string(&holder).unwrap());
    let (status, answer) =
        play.request("certificate", "PUT", &format!("/delegation/{id}/credential"), &chain).await;
    assert_eq!(status, 201, "{answer}");
    proxy
}

#[tokio::test(flavor = "multi_thread")]
async fn what_users_lend_is_in_no_file_and_in_no_log() {
    let said = LogBuffer::default();
    let to = said.clone();
    let logs = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(Mutex::new(to))
        .try_init()
        .is_ok();
    let mut play = Play::new().await;

    // By tokens of its files, of the submission, and by a proxy; each is tried, and fails at a storage that
    // says nothing.
    let [source_token, target_token] =
        ["source", "target"].map(|side| play.token(&format!("/canary-{side}")));
    let url = |side: &str| format!("{}/{side}/canary", play.storage());
    let tokens = json!({
        "files": [{ "sources": [url("from")], "destinations": [url("to")],
                    "source_tokens": [source_token], "destination_tokens": [target_token] }],
        "params": { "timeout": 1, "retry": -1 },
    });
    let (status, answer) = play.request("issuer", "POST", "/jobs", &tokens.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    let proxy = delegate(&play).await;
    let by_proxy = json!({
        "files": [{ "sources": [url("from2")], "destinations": [url("to2")] }],
        "params": { "timeout": 1, "retry": -1 },
    });
    let (status, by_proxy) = play.request("certificate", "POST", "/jobs", &by_proxy.to_string()).await;
    assert_eq!(status, 200, "{by_proxy}");
    for (who, answer) in [("issuer", answer), ("certificate", by_proxy)] {
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let job = answer["job_id"].as_str().unwrap();
        play.ended(who, job).await;
        let (_, shown) = play.request(who, "GET", &format!("/jobs/{job}/files"), "").await;
        assert!(!shown.contains(&source_token) && !shown.contains("PRIVATE"), "{shown}");
    }

    // A token is its signature, which nothing else has; a proxy is its key, and the lines of its certificate.
    let submission = play.tokens["issuer"].clone();
    let mut secrets: Vec<String> = Vec::new();
    for token in [&source_token, &target_token, &submission] {
        secrets.push(token.clone());
        secrets.push(token.rsplit('.').next().unwrap().to_owned());
    }
    let line = proxy.lines().filter(|line| !line.starts_with('-')).nth(3).unwrap();
    secrets.push(line.to_owned());
    play.world.stop().await;
    let mut all = Vec::new();
    files(&play.world.config.state_dir, &mut all);
    assert!(
        all.iter().any(|(name, bytes)| name.contains(CATALOG) && holds(bytes, "canary")),
        "jobs are here"
    );
    for (name, bytes) in &all {
        for secret in &secrets {
            assert!(!holds(bytes, secret), "{name} holds {secret}");
        }
        // The deployment's own keys are files; what was lent is in the catalog.
        assert!(!name.contains(CATALOG) || !holds(bytes, "PRIVATE KEY"), "{name} holds a key");
    }
    let said = said.0.lock().unwrap();
    assert!(!logs || holds(&said, "longhaul_service"), "it has said something");
    for secret in &secrets {
        assert!(!holds(&said, secret), "a log holds {secret}");
    }
    assert!(!holds(&said, "PRIVATE KEY"), "a log holds a key");
}
