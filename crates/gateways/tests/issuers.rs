//! An issuer of tokens that the test plays, over real TLS: its keys are found, and asked for once.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use longhaul_gateways::issuers::Issuers;
use longhaul_model::{FaultCode, Timestamp};
use longhaul_security::bearer::{Audience, IssuerRule, TokenSettings, TokenTrust};
use longhaul_security::{Authority, Credentials, service_server_tls};
use serde_json::{Value, json};

const US: &str = "https://fts.example.org";

struct Issuer {
    url: String,
    ca_pem: String,
    key: EcdsaKeyPair,
    requests: Arc<AtomicUsize>,
    /// Path and answer.
    pages: Arc<Mutex<Vec<(String, String)>>>,
}

fn clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    Timestamp(since.as_micros() as i64)
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "issuer", clock()).unwrap();
        let pair = authority.issue_service(&["localhost".into()], clock()).unwrap();
        let ca_pem = authority.ca_pem().to_owned();
        let credentials = Credentials {
            certificate_pem: pair.certificate_pem,
            key_pem: pair.key_pem,
            ca_pem: ca_pem.clone(),
        };
        let tls = service_server_tls(&credentials).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let point = key.public_key().as_ref();
        let jwk = json!({"kty": "EC", "crv": "P-256", "kid": "k1", "x": encode(&point[1..33]),
            "y": encode(&point[33..65])});
        let document = json!({"issuer": url, "jwks_uri": format!("{url}/jwk")});
        let pages = Arc::new(Mutex::new(vec![
            ("/.well-known/openid-configuration".to_owned(), document.to_string()),
            ("/jwk".to_owned(), json!({"keys": [jwk]}).to_string()),
        ]));
        let requests = Arc::new(AtomicUsize::new(0));
        let (served, counted) = (pages.clone(), requests.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let _ = serve(socket, tls.clone(), &served, &counted);
            }
        });
        Issuer { url, ca_pem, key, requests, pages }
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
        let header = json!({"alg": "ES256", "kid": kid});
        let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encode(signature))
    }
}

fn serve(
    mut socket: TcpStream,
    tls: Arc<rustls::ServerConfig>,
    pages: &Mutex<Vec<(String, String)>>,
    requests: &AtomicUsize,
) -> std::io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut connection = rustls::ServerConnection::new(tls).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(rustls::Stream::new(&mut connection, &mut socket));
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while line.trim() != "" {
        line.clear();
        stream.read_line(&mut line)?;
    }
    requests.fetch_add(1, Ordering::SeqCst);
    let found = pages.lock().unwrap().iter().find(|(page, _)| *page == path).map(|(_, body)| body.clone());
    let (status, body) = found.map_or(("404 Not Found", String::new()), |body| ("200 OK", body));
    let stream = stream.get_mut();
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    stream.conn.send_close_notify();
    stream.flush()
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
