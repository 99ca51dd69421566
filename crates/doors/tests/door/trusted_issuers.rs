//! Tokens of an issuer: each of their scopes allows what its profile says, in the issuer's directory, and
//! nothing else.

use std::sync::Arc;
use std::time::Duration;

use longhaul_doors::{TokenVerifier, TrustedIssuers, VerifyFuture};
use longhaul_model::{Fault, Timestamp};
use longhaul_security::bearer::{
    Audience, FetchResponse, IssuerRule, TokenRefusal, TokenSettings, TokenTrust,
};
use longhaul_testkit::TokenSigner;
use serde_json::{Value, json};

use crate::house::{Changes, House, Reply};

const ISSUER: &str = "https://iam.example.org/";
const DOOR: &str = "https://door.example.org:2880";
const NOW_S: i64 = 1_780_000_000;

struct Iam {
    signer: TokenSigner,
    trust: TokenTrust,
}

impl TokenVerifier for Iam {
    fn verify<'a>(&'a self, token: &'a str) -> VerifyFuture<'a> {
        let verified = self.trust.verify(token, Audience::Ours, Timestamp::from_seconds(NOW_S));
        Box::pin(async {
            verified.map_err(|refusal| match refusal {
                TokenRefusal::Refused(fault) => fault,
                TokenRefusal::KeysWanted(issuer) => Fault::new(longhaul_model::FaultCode::Busy, issuer),
            })
        })
    }
}

impl Iam {
    fn new() -> Arc<Iam> {
        let signer = TokenSigner::new();
        let trust = TokenTrust::new(TokenSettings {
            issuers: vec![IssuerRule { issuer: ISSUER.into(), vo: None, required_scope: None }],
            audiences: vec![DOOR.into()],
            leeway: Duration::ZERO,
        })
        .unwrap();
        let keys = FetchResponse { body: signer.key_set("k").to_string().into_bytes(), max_age: None };
        trust.install(ISSUER, Ok(keys), Timestamp::from_seconds(NOW_S)).unwrap();
        Arc::new(Iam { signer, trust })
    }

    /// A door where this issuer's scopes count below `/vo`.
    fn house(self: &Arc<Self>) -> House {
        let areas = [(ISSUER.to_owned(), "vo".to_owned())].into();
        House::with(Changes {
            issued: Some(TrustedIssuers { verifier: self.clone(), areas }),
            ..Changes::default()
        })
    }

    fn token(&self, changes: Value) -> String {
        let mut claims = json!({"iss": ISSUER, "sub": "alice", "aud": DOOR, "exp": NOW_S + 600,
            "nbf": NOW_S - 10,
                                "iat": NOW_S - 10, "jti": "1", "wlcg.ver": "1.0"});
        changes.as_object().unwrap().iter().for_each(|(name, value)| claims[name] = value.clone());
        format!("Bearer {}", self.signer.sign("k", &claims))
    }
}

/// Somebody with the scopes.
struct Holder<'a> {
    house: &'a House,
    token: String,
}

impl Holder<'_> {
    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut all = vec![("Authorization", self.token.as_str())];
        all.extend_from_slice(headers);
        self.house.request(method, path, &all, body)
    }

    fn status(&self, method: &str, path: &str) -> u16 {
        self.request(method, path, &[("Depth", "0")], if method == "PUT" { b"new" } else { b"" }).status
    }
}

fn scoped<'a>(iam: &Iam, house: &'a House, scope: &str) -> Holder<'a> {
    Holder { house, token: iam.token(json!({ "scope": scope })) }
}

#[test]
fn scopes_are_rights_below_the_issuers_directory() {
    let iam = Iam::new();
    let house = iam.house();
    for path in ["vo/data/f", "vo/other/f", "data/f"] {
        let path = house.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "old").unwrap();
    }
    let reader = scoped(&iam, &house, "storage.read:/data");
    assert_eq!(reader.request("GET", "/vo/data/f", &[], b"").text(), "old");
    assert_eq!(reader.status("PROPFIND", "/vo/data"), 207);
    assert_eq!(reader.status("GET", "/vo/data/"), 200);
    let refused = reader.request("PUT", "/vo/data/g", &[], b"new");
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("scopes of the token do not allow to write"), "{}", refused.text());
    for elsewhere in ["/data/f", "/vo/other/f", "/vo/data2", "/vo", "/"] {
        assert_eq!(reader.status("GET", elsewhere), 403, "{elsewhere}");
        assert_eq!(reader.status("PROPFIND", elsewhere), 403, "{elsewhere}");
    }
    let modifier = scoped(&iam, &house, "storage.modify:/");
    assert_eq!(modifier.status("PUT", "/vo/data/f"), 204);
    assert_eq!(modifier.status("GET", "/vo/data/f"), 403, "to change is not to read");
    assert_eq!(modifier.status("PUT", "/data/f"), 403, "not the issuer's");
    assert_eq!(modifier.status("DELETE", "/vo/data/f"), 204);
    assert_eq!(std::fs::read(house.root.join("data/f")).unwrap(), b"old");
}

/// What is there stays there for who may only create, whatever method could replace it.
#[test]
fn who_may_create_replaces_nothing() {
    let iam = Iam::new();
    let house = iam.house();
    let creator = scoped(&iam, &house, "storage.create:/data storage.read:/data");
    assert_eq!(creator.status("MKCOL", "/vo/data"), 409, "the directory above is not there");
    assert_eq!(creator.status("MKCOL", "/vo"), 201, "what leads to what may be made may be made");
    assert_eq!(creator.status("MKCOL", "/vo/data"), 201);
    assert_eq!(creator.status("MKCOL", "/vo/other"), 403);
    assert_eq!(creator.status("PUT", "/vo/data/f"), 201);
    assert_eq!(creator.status("HEAD", "/vo/data/f"), 200);
    assert_eq!(creator.status("PUT", "/vo/data/f"), 403);
    assert_eq!(creator.status("DELETE", "/vo/data/f"), 403);
    let to = |path: &str| house.url(path);
    assert_eq!(creator.status("PUT", "/vo/data/g"), 201);
    let copy =
        |from: &str, path: &str| creator.request("COPY", from, &[("Destination", &to(path))], b"").status;
    assert_eq!(copy("/vo/data/g", "/vo/data/f"), 403);
    assert_eq!(copy("/vo/data/g", "/vo/data/h"), 201);
    let moved = creator.request("MOVE", "/vo/data/g", &[("Destination", &to("/vo/data/i"))], b"");
    assert_eq!(moved.status, 403, "to rename takes away");
    let url = house.url("/vo/data/g");
    let fetched = creator.request("COPY", "/vo/data/f", &[("Source", &url)], b"");
    assert_eq!(fetched.status, 403, "also by a third-party copy");
    assert_eq!(std::fs::read(house.root.join("vo/data/f")).unwrap(), b"new");
    assert!(house.root.join("vo/data/g").exists());
}

#[test]
fn tokens_that_are_not_right_open_nothing() {
    let iam = Iam::new();
    let house = iam.house();
    std::fs::create_dir_all(house.root.join("vo")).unwrap();
    std::fs::write(house.root.join("vo/f"), "x").unwrap();
    let scope = "storage.read:/";
    let get = |token: String| house.request("GET", "/vo/f", &[("Authorization", &token)], b"");
    assert_eq!(get(iam.token(json!({ "scope": scope }))).status, 200);
    let other = Iam::new();
    for (what, token, status) in [
        ("another key", other.token(json!({ "scope": scope })), 401),
        ("another audience", iam.token(json!({"scope": scope, "aud": "https://elsewhere.example.org"})), 401),
        ("another issuer", iam.token(json!({"scope": scope, "iss": "https://evil.example.org/"})), 401),
        ("expired", iam.token(json!({"scope": scope, "exp": NOW_S - 1})), 401),
        ("a path that leads out", iam.token(json!({"scope": "storage.read:/../"})), 401),
        ("no scope", iam.token(json!({})), 403),
        ("groups alone", iam.token(json!({"wlcg.groups": ["/vo"]})), 403),
        ("other scopes", iam.token(json!({"scope": "openid compute.read"})), 403),
        ("three parts of nothing", "Bearer a.b.c".to_owned(), 401),
    ] {
        let reply = get(token);
        assert_eq!(reply.status, status, "{what}: {}", reply.text());
        let challenge = reply.header("www-authenticate").unwrap_or_default();
        let error = if status == 401 { "invalid_token" } else { "insufficient_scope" };
        assert!(challenge.contains(error), "{what}: {challenge}");
    }
    let bare = House::new();
    let reply =
        bare.request("GET", "/vo/f", &[("Authorization", &iam.token(json!({ "scope": scope })))], b"");
    assert_eq!(reply.status, 401, "a door without issuers");
}
