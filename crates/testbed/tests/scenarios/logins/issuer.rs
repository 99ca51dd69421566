//! An issuer of the test's own, over real TLS, that follows OpenID Connect to the letter, and lies when it is
//! told to.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use longhaul_testbed::foreign::ForeignAuthority;
use longhaul_testkit::http::{self, Request, Response};
use longhaul_testkit::{TokenSigner, server_tls};
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
    codes: BTreeMap<String, PendingLogin>,
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

struct PendingLogin {
    nonce: String,
    challenge: String,
    redirect: String,
}

struct Keys {
    good: TokenSigner,
    other: TokenSigner,
}

impl Issuer {
    /// `host`: `localhost` or `127.0.0.1`, which browsers take for two sites.
    pub fn start(authority: &ForeignAuthority, host: &str) -> Issuer {
        let tls = server_tls(&authority.issue("issuer"));
        let (listener, port) = http::listen();
        let state = Arc::new(Mutex::new(State {
            claims: json!({}),
            signing: Signing::Good,
            document: json!({}),
            asks: false,
            codes: BTreeMap::new(),
            next: 0,
            exchanges: Vec::new(),
        }));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let issuer = Issuer { url: format!("https://{host}:{port}/realms/lab"), address, state };
        let keys = Keys { good: TokenSigner::new(), other: TokenSigner::new() };
        let (url, state) = (issuer.url.clone(), issuer.state.clone());
        http::serve(listener, Some(tls), move |request| {
            answer(request, &url, &mut state.lock().unwrap(), &keys)
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

fn answer(request: &Request, url: &str, state: &mut State, keys: &Keys) -> Response {
    match (request.method.as_str(), request.path()) {
        ("GET", "/realms/lab/.well-known/openid-configuration") => Response::json(200, &document(url, state)),
        ("GET", "/keys") => Response::json(200, &keys.good.key_set("k1")),
        ("GET", "/authorize") => authorize(&pairs(request.query()), state),
        ("POST", "/token") => {
            let form = pairs(&String::from_utf8_lossy(&request.body));
            let answer = token(request.header("authorization"), &form, url, state, keys);
            state.exchanges.push((form, answer.status));
            answer
        }
        // Nobody may follow it.
        ("POST", "/elsewhere") => {
            Response { status: 307, header: Some(("location", "/token".into())), body: String::new() }
        }
        _ => Response::not_found(),
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
fn authorize(query: &BTreeMap<String, String>, state: &mut State) -> Response {
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
    let begun = PendingLogin { nonce: of("nonce"), challenge: of("code_challenge"), redirect };
    state.codes.insert(code, begun);
    if state.asks {
        let page = format!(
            "<!DOCTYPE html><title>Lab</title><link rel=icon href=\"data:,\"><h1>Lab</h1><a id=allow \
                href=\"{back}\">Go on</a>"
        );
        return Response { status: 200, header: Some(("content-type", "text/html".into())), body: page };
    }
    Response { status: 302, header: Some(("location", back)), body: String::new() }
}

fn token(
    authorization: &str,
    form: &BTreeMap<String, String>,
    url: &str,
    state: &mut State,
    keys: &Keys,
) -> Response {
    let refuse = |error: &str| Response::json(400, &json!({ "error": error }));
    let of = |name: &str| form.get(name).cloned().unwrap_or_default();
    // Both are escaped before they are joined (RFC 6749 section 2.3.1).
    let escaped = "longhaul%20web:s3cret%26of%3Dus%3A%2B%25";
    if authorization != format!("Basic {}", STANDARD.encode(escaped)) {
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
    Response::json(
        200,
        &json!({ "access_token": "opaque", "token_type": "Bearer", "id_token": sign(&claims, state.signing,
            keys) }),
    )
}

fn sign(claims: &Value, signing: Signing, keys: &Keys) -> String {
    let key = match signing {
        Signing::None => {
            let header = json!({ "alg": "none", "kid": "k1" });
            return format!("{}.{}.", encode(header.to_string()), encode(claims.to_string()));
        }
        Signing::Good => &keys.good,
        Signing::OtherKey => &keys.other,
    };
    key.sign("k1", claims)
}
