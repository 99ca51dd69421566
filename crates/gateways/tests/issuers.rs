//! An issuer of tokens that the test plays, over real TLS: its keys are found, and asked for once.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_gateways::issuers::Issuers;
use longhaul_model::{FaultCode, Timestamp};
use longhaul_security::bearer::{Audience, IssuerRule, TokenSettings, TokenTrust};
use longhaul_testkit::http::{self, Response};
use longhaul_testkit::{CertificateAuthority, TokenSigner, server_tls};
use serde_json::{Value, json};

const US: &str = "https://fts.example.org";

struct Issuer {
    url: String,
    ca_pem: String,
    signer: TokenSigner,
    requests: Arc<AtomicUsize>,
    /// Path and answer.
    pages: Arc<Mutex<Vec<(String, Value)>>>,
}

fn clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    Timestamp(since.as_micros() as i64)
}

impl Issuer {
    fn start() -> Self {
        let authority = CertificateAuthority::new("issuer");
        let tls = server_tls(&authority.issue("issuer", &["localhost"]));
        let (listener, port) = http::listen();
        let url = format!("https://localhost:{port}");
        let signer = TokenSigner::new();
        let pages = Arc::new(Mutex::new(vec![
            (
                "/.well-known/openid-configuration".to_owned(),
                json!({"issuer": url, "jwks_uri": format!("{url}/jwk")}),
            ),
            ("/jwk".to_owned(), signer.key_set("k1")),
        ]));
        let requests = Arc::new(AtomicUsize::new(0));
        let (served, counted) = (pages.clone(), requests.clone());
        http::serve(listener, Some(tls), move |request| {
            counted.fetch_add(1, Ordering::SeqCst);
            let pages = served.lock().unwrap();
            let found = pages.iter().find(|(page, _)| page == request.path());
            found.map_or_else(Response::not_found, |(_, body)| Response::json(200, body))
        });
        Issuer { url, ca_pem: authority.ca_pem, signer, requests, pages }
    }

    fn issuers(&self) -> Issuers {
        let settings = TokenSettings {
            issuers: vec![IssuerRule { issuer: self.url.clone(), vo: None, required_scope: None }],
            audiences: vec![US.into()],
            leeway: Duration::from_secs(60),
        };
        Issuers::new(Arc::new(TokenTrust::new(settings).unwrap()), &self.ca_pem).unwrap()
    }

    fn token(&self, kid: &str) -> String {
        let now = clock().as_micros() / 1_000_000;
        let claims: Value =
            json!({"iss": self.url, "sub": "alice", "aud": US, "exp": now + 600, "nbf": now - 10});
        self.signer.sign(kid, &claims)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_asked_for_once_however_many_tokens_come() {
    let issuer = Issuer::start();
    let issuers = Arc::new(issuer.issuers());
    let token = issuer.token("k1");
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let (issuers, token) = (issuers.clone(), token.clone());
            tokio::spawn(async move { issuers.verify(&token, Audience::Ours, clock()).await })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap().unwrap().subject, "alice");
    }
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 2, "the document and the keys");
    // A key that nobody publishes: no further question within a minute.
    for _ in 0..3 {
        let fault = issuers.verify(&issuer.token("k9"), Audience::Ours, clock()).await.unwrap_err();
        assert!(fault.detail.contains("publishes no key"), "{fault}");
    }
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 2);
    assert!(issuers.refresh(clock()).await.is_empty());
    assert!(issuers.refresh(clock() + Duration::from_secs(7 * 3600)).await.is_empty());
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn issuers_that_do_not_answer_well_are_told() {
    let issuer = Issuer::start();
    issuer.pages.lock().unwrap().clear();
    let issuers = issuer.issuers();
    let fault = issuers.verify(&issuer.token("k1"), Audience::Ours, clock()).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotAuthenticated);
    assert!(fault.detail.contains("answered 404"), "{fault}");
    // A server of another authority is not the issuer.
    let other = Issuer::start();
    let settings = TokenSettings {
        issuers: vec![IssuerRule { issuer: issuer.url.clone(), vo: None, required_scope: None }],
        audiences: vec![US.into()],
        leeway: Duration::ZERO,
    };
    let issuers = Issuers::new(Arc::new(TokenTrust::new(settings).unwrap()), &other.ca_pem).unwrap();
    let fault = issuers.verify(&issuer.token("k1"), Audience::Ours, clock()).await.unwrap_err();
    assert!(fault.detail.contains("are not known"), "{fault}");
    assert_eq!(issuers.refresh(clock() + Duration::from_secs(120)).await.len(), 1);
}
