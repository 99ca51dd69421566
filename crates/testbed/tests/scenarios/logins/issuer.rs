//! An issuer of the test's own, over real TLS, that follows OpenID Connect to the letter, and lies when it is
//! told to.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use longhaul_testbed::foreign::ForeignAuthority;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

pub const CLIENT: &str = "longhaul web";
/// With what a form or a URL would have to escape.
pub const SECRET: &str = "s3cret&of=us:+%";

pub struct Issuer {
    pub url: String,
    pub address: SocketAddr,
    pub state: Arc<Mutex<State>>,
}

/// What it does, and what it saw.
pub struct State {
    /// Put over those of everybody else.
    pub claims: Value,
    pub signing: Signing,
    /// Instead of what its document would say.
    pub document: Value,
    /// Whether people have to press something on its page.
    pub asks: bool,
    codes: BTreeMap<String, Begun>,
    next: u32,
    /// Forms that came for a code, and what was answered.
    pub exchanges: Vec<(BTreeMap<String, String>, u16)>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Signing {
    Good,
    OtherKey,
    /// `"alg": "none"`, and no signature.
    None,
}

struct Begun {
    nonce: String,
    challenge: String,
    redirect: String,
}

struct Keys {
    good: EcdsaKeyPair,
    other: EcdsaKeyPair,
}

struct Asked {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    authorization: String,
    form: BTreeMap<String, String>,
}

struct Answer {
    status: u16,
    header: Option<(&'static str, String)>,
    body: String,
}

impl Issuer {
    /// `host`: `localhost` or `127.0.0.1`, which browsers take for two sites.
    pub fn start(authority: &ForeignAuthority, host: &str) -> Issuer {
        let (certificate, key) = authority.issue("issuer");
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            claims: json!({}),
            signing: Signing::Good,
            document: json!({}),
            asks: false,
            codes: BTreeMap::new(),
            next: 0,
            exchanges: Vec::new(),
        }));
        let issuer = Issuer { url: format!("https://{host}:{}/realms/lab", address.port()), address, state };
        let pair = || EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let keys = Arc::new(Keys { good: pair(), other: pair() });
        let (url, state, tls) = (issuer.url.clone(), issuer.state.clone(), Arc::new(tls));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (url, state, tls, keys) = (url.clone(), state.clone(), tls.clone(), keys.clone());
                // Browsers open connections and say nothing on them.
                std::thread::spawn(move || drop(serve(socket, tls, &url, &state, &keys)));
            }
        });
        issuer
    }

    pub fn lie(&self, how: impl FnOnce(&mut State)) {
        how(&mut self.state.lock().unwrap());
    }

    /// As it was at the beginning.
    pub fn be_honest(&self) {
        self.lie(|state| {
            (state.claims, state.document, state.signing) = (json!({}), json!({}), Signing::Good);
        });
    }
}

pub fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Names and values of a query or a form.
pub fn pairs(text: &str) -> BTreeMap<String, String> {
    let decoded = |text: &str| {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            bytes.push(match byte {
                b'+' => b' ',
                b'%' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                byte => byte,
            });
        }
        String::from_utf8(bytes).unwrap()
    };
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(value))).collect()
}

fn serve(
    socket: TcpStream,
    tls: Arc<ServerConfig>,
    url: &str,
    state: &Mutex<State>,
    keys: &Keys,
) -> io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, socket));
    let asked = read(&mut stream)?;
    let answer = answer(&asked, url, &mut state.lock().unwrap(), keys);
    let header = answer.header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let (status, body) = (answer.status, answer.body);
    let stream = stream.get_mut();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nconnection: close\r\n{header}content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

fn read(stream: &mut impl BufRead) -> io::Result<Asked> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut asked = Asked {
        method: method.to_owned(),
        path: path.to_owned(),
        query: pairs(query),
        authorization: String::new(),
        form: BTreeMap::new(),
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => asked.authorization = value.to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    asked.form = pairs(&String::from_utf8_lossy(&body));
    Ok(asked)
}

fn answer(asked: &Asked, url: &str, state: &mut State, keys: &Keys) -> Answer {
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/realms/lab/.well-known/openid-configuration") => Answer::ok(&document(url, state)),
        ("GET", "/keys") => {
            let point = keys.good.public_key().as_ref();
            let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig",
                              "x": encode(&point[1..33]), "y": encode(&point[33..65]) });
            Answer::ok(&json!({ "keys": [jwk] }))
        }
        ("GET", "/authorize") => authorize(&asked.query, state),
        ("POST", "/token") => {
            let answer = token(asked, url, state, keys);
            state.exchanges.push((asked.form.clone(), answer.status));
            answer
        }
        // Nobody may follow it.
        ("POST", "/elsewhere") => {
            Answer { status: 307, header: Some(("location", "/token".into())), body: String::new() }
        }
        _ => Answer { status: 404, header: None, body: String::new() },
    }
}

fn document(url: &str, state: &State) -> Value {
    let base = url.strip_suffix("/realms/lab").unwrap();
    let mut document = json!({
        "issuer": url,
        "authorization_endpoint": format!("{base}/authorize"),
        "token_endpoint": format!("{base}/token"),
        "jwks_uri": format!("{base}/keys"),
        "code_challenge_methods_supported": ["S256"],
    });
    put_over(&mut document, &state.document);
    document
}

fn put_over(base: &mut Value, changes: &Value) {
    for (name, value) in changes.as_object().unwrap() {
        base[name] = value.clone();
    }
}

/// Whoever comes here is logged in already, and is sent back with a code.
fn authorize(query: &BTreeMap<String, String>, state: &mut State) -> Answer {
    let of = |name: &str| query.get(name).cloned().unwrap_or_default();
    assert_eq!(
        (of("response_type"), of("client_id"), of("code_challenge_method")),
        ("code".into(), CLIENT.into(), "S256".into())
    );
    assert!(of("scope").split(' ').any(|scope| scope == "openid") && of("code_challenge").len() == 43);
    state.next += 1;
    let code = format!("code-{}/+", state.next);
    let redirect = of("redirect_uri");
    let back =
        format!("{redirect}?code={}&state={}", code.replace('/', "%2F").replace('+', "%2B"), of("state"));
    let begun = Begun { nonce: of("nonce"), challenge: of("code_challenge"), redirect };
    state.codes.insert(code, begun);
    if state.asks {
        let page = format!(
            "<!DOCTYPE html><title>Lab</title><link rel=icon href=\"data:,\"><h1>Lab</h1><a id=allow \
                href=\"{back}\">Go on</a>"
        );
        return Answer { status: 200, header: Some(("content-type", "text/html".into())), body: page };
    }
    Answer { status: 302, header: Some(("location", back)), body: String::new() }
}

fn token(asked: &Asked, url: &str, state: &mut State, keys: &Keys) -> Answer {
    let refuse = |error: &str| Answer { status: 400, ..Answer::ok(&json!({ "error": error })) };
    let of = |name: &str| asked.form.get(name).cloned().unwrap_or_default();
    // Both are escaped before they are joined (RFC 6749 section 2.3.1).
    let escaped = "longhaul%20web:s3cret%26of%3Dus%3A%2B%25";
    if asked.authorization != format!("Basic {}", STANDARD.encode(escaped)) {
        return refuse("invalid_client");
    }
    let Some(begun) = state.codes.remove(&of("code")) else { return refuse("invalid_grant") };
    let challenge = encode(digest(&SHA256, of("code_verifier").as_bytes()));
    if challenge != begun.challenge
        || of("redirect_uri") != begun.redirect
        || of("grant_type") != "authorization_code"
    {
        return refuse("invalid_grant");
    }
    let now = now_s();
    let mut claims = json!({ "iss": url, "sub": "a1b2", "aud": CLIENT, "exp": now + 300, "iat": now,
        "nonce": begun.nonce,
                             "preferred_username": "anna", "groups": ["lab", "shift"] });
    put_over(&mut claims, &state.claims);
    Answer::ok(
        &json!({ "access_token": "opaque", "token_type": "Bearer", "id_token": sign(&claims, state.signing,
            keys) }),
    )
}

fn sign(claims: &Value, signing: Signing, keys: &Keys) -> String {
    let algorithm = if signing == Signing::None { "none" } else { "ES256" };
    let header = json!({ "alg": algorithm, "kid": "k1" });
    let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
    let key = match signing {
        Signing::None => return format!("{message}."),
        Signing::Good => &keys.good,
        Signing::OtherKey => &keys.other,
    };
    let signature = key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
    format!("{message}.{}", encode(signature))
}

impl Answer {
    fn ok(body: &Value) -> Answer {
        Answer {
            status: 200,
            header: Some(("content-type", "application/json".into())),
            body: body.to_string(),
        }
    }
}
