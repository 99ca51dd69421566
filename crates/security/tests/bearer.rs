//! Tokens of an issuer made by the test: who is let in, and every forgery that is known.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::OnceLock;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{self, EcdsaKeyPair, KeyPair, RsaKeyPair};
use aws_lc_rs::{hmac, rsa};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_security::bearer::{
    Audience, ExpectedLogin, FetchResponse, FetchStep, IssuerRule, LoginIdentity, Profile, StorageAction,
    TokenIdentity, TokenRefusal, TokenSettings, TokenTrust, WLCG_ANY,
};
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp(1_780_000_000_000_000);
const NOW_S: i64 = 1_780_000_000;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const ISSUER: &str = "https://iam.example.org/";
const US: &str = "https://fts.example.org:8446";

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

enum Signer {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl Signer {
    fn ec() -> Self {
        Signer::Ec(EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    /// One for all tests, since it takes long to make.
    fn rsa() -> &'static Self {
        static KEY: OnceLock<Signer> = OnceLock::new();
        KEY.get_or_init(|| Signer::Rsa(rsa::KeyPair::generate(KeySize::Rsa2048).unwrap()))
    }

    fn jwk(&self, kid: &str) -> Value {
        match self {
            Signer::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig",
                       "x": encode(&point[1..33]), "y": encode(&point[33..65])})
            }
            Signer::Rsa(key) => {
                let (modulus, exponent) = rsa_parts(key.public_key().as_ref());
                json!({"kty": "RSA", "kid": kid, "n": encode(modulus), "e": encode(exponent)})
            }
        }
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        match self {
            Signer::Ec(key) => key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Signer::Rsa(key) => {
                let padding: &'static dyn signature::RsaEncoding = if algorithm == "PS256" {
                    &signature::RSA_PSS_SHA256
                } else {
                    &signature::RSA_PKCS1_SHA256
                };
                let mut bytes = vec![0; key.public_modulus_len()];
                key.sign(padding, &SystemRandom::new(), message, &mut bytes).unwrap();
                bytes
            }
        }
    }
}

/// Modulus and exponent of PKCS#1's form of a public key of 2048 bits.
fn rsa_parts(der: &[u8]) -> (&[u8], &[u8]) {
    assert_eq!(der[..9], [0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00]);
    (&der[9..265], &der[267..])
}

fn token(signer: &Signer, header: Value, claims: &Value) -> String {
    let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
    let signature = signer.sign(header["alg"].as_str().unwrap(), message.as_bytes());
    format!("{message}.{}", encode(signature))
}

fn wlcg() -> Value {
    json!({"iss": ISSUER, "sub": "a1b2", "aud": US, "exp": NOW_S + 3600, "nbf": NOW_S - 10, "iat": NOW_S - 10,
           "jti": "t1", "wlcg.ver": "1.0", "scope": "openid fts storage.read:/foo"})
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut claims = wlcg();
    for (name, value) in changes {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(*name)),
            value => claims[*name] = value.clone(),
        }
    }
    claims
}

struct World {
    trust: TokenTrust,
    key: Signer,
}

impl World {
    fn new() -> Self {
        let rule = |issuer: &str| IssuerRule { issuer: issuer.into(), vo: None, required_scope: None };
        let other = IssuerRule { required_scope: Some("fts".into()), ..rule("https://strict.example.org") };
        let settings = TokenSettings {
            issuers: vec![rule(ISSUER), other],
            audiences: vec![US.into(), "https://alias.example.org".into()],
            leeway: MINUTE,
        };
        let world = World { trust: TokenTrust::new(settings).unwrap(), key: Signer::ec() };
        world.publish(&[world.key.jwk("k1")], NOW);
        world
    }

    fn publish(&self, keys: &[Value], now: Timestamp) {
        self.trust.install(ISSUER, Ok(answer(json!({"keys": keys}))), now).unwrap();
    }

    fn token(&self, claims: &Value) -> String {
        token(&self.key, json!({"alg": "ES256", "kid": "k1"}), claims)
    }

    fn accepted(&self, claims: &Value) -> TokenIdentity {
        self.trust.verify(&self.token(claims), Audience::Ours, NOW).unwrap()
    }

    fn refusal(&self, claims: &Value) -> String {
        self.refused(&self.token(claims), NOW).detail
    }

    fn refused(&self, token: &str, now: Timestamp) -> Fault {
        match self.trust.verify(token, Audience::Ours, now) {
            Err(TokenRefusal::Refused(fault)) => fault,
            other => panic!("{other:?}"),
        }
    }
}

fn answer(document: Value) -> FetchResponse {
    FetchResponse { body: document.to_string().into_bytes(), max_age: None }
}

#[test]
fn tokens_of_the_profile_say_who_and_what() {
    let world = World::new();
    let user = world.accepted(&with(&[("wlcg.groups", json!(["/atlas/prod", "/atlas"]))]));
    assert_eq!((user.issuer.as_str(), user.subject.as_str(), user.profile), (ISSUER, "a1b2", Profile::Wlcg));
    assert_eq!(user.scope.as_deref(), Some("openid fts storage.read:/foo"));
    assert_eq!(user.groups, ["/atlas/prod", "/atlas"]);
    assert!(user.effective_groups().is_empty(), "capabilities count, and then groups do not");
    assert_eq!((user.issuer_host(), user.id.as_deref()), ("iam.example.org", Some("t1")));
    assert_eq!(user.expires, NOW + HOUR);
    assert!(
        user.scopes.allows(StorageAction::Read, "/foo/x")
            && !user.scopes.allows(StorageAction::Read, "/foobar")
    );
    // printf 'https://iam.example.org/a1b2' | sha1sum
    assert_eq!(user.delegation_id(), "8677fb6da1525216");
    let by_groups = world.accepted(&with(&[("wlcg.groups", json!(["/atlas"])), ("scope", json!("openid"))]));
    assert_eq!(by_groups.effective_groups(), ["/atlas"]);
    // A slash at the end of the issuer does not matter; a newer minor version does not either.
    world.accepted(&with(&[("iss", json!("https://iam.example.org")), ("wlcg.ver", json!("1.9"))]));
    for audience in [json!([US, "x"]), json!(["x", "https://alias.example.org"]), json!(WLCG_ANY)] {
        world.accepted(&with(&[("aud", audience)]));
    }
    world.accepted(&with(&[("wlcg.ver", Value::Null), ("jti", Value::Null)]));
}

#[test]
fn keys_of_all_three_methods_verify() {
    let world = World::new();
    world.publish(&[world.key.jwk("k1"), Signer::rsa().jwk("r1")], NOW);
    for algorithm in ["RS256", "PS256"] {
        let token = token(Signer::rsa(), json!({"alg": algorithm, "kid": "r1"}), &wlcg());
        assert!(world.trust.verify(&token, Audience::Ours, NOW).is_ok(), "{algorithm}");
    }
    let mut pinned = Signer::rsa().jwk("r1");
    pinned["alg"] = json!("PS256");
    world.publish(&[pinned], NOW);
    assert!(
        world
            .refused(&token(Signer::rsa(), json!({"alg": "RS256", "kid": "r1"}), &wlcg()), NOW)
            .detail
            .contains("not by")
    );
}

#[test]
fn claims_that_are_missing_or_wrong_are_told() {
    let world = World::new();
    for (changes, text) in [
        (vec![("exp", json!(NOW_S))], "expired"),
        (vec![("exp", json!(NOW_S - 30))], "expired"),
        (vec![("exp", Value::Null)], "(exp)"),
        (vec![("exp", json!(1e300))], "no time"),
        (vec![("exp", json!(-5))], "no time"),
        (vec![("exp", json!("tomorrow"))], "cannot be read"),
        (vec![("nbf", json!(NOW_S + 61))], "(nbf)"),
        (vec![("iat", json!(NOW_S + 61))], "(iat)"),
        (vec![("aud", json!("https://evil.example.org"))], "we are https://fts.example.org:8446"),
        (vec![("aud", json!("https://fts.example.org:8446/"))], "the token is for"),
        (vec![("aud", json!(["HTTPS://fts.example.org:8446"]))], "the token is for"),
        (vec![("aud", json!([]))], "(aud)"),
        (vec![("aud", Value::Null)], "(aud)"),
        (vec![("sub", Value::Null)], "(sub)"),
        (vec![("sub", json!(""))], "(sub)"),
        (vec![("sub", json!("x".repeat(256)))], "255"),
        (vec![("sub", json!("a\nb"))], "ASCII"),
        (vec![("jti", Value::Null)], "jti"),
        (vec![("iat", Value::Null)], "iat"),
        (vec![("wlcg.ver", json!("2.0"))], "version"),
        (vec![("wlcg.ver", json!("1"))], "version"),
        (vec![("ver", json!("scitoken:2.0"))], "two profiles"),
        (vec![("wlcg.ver", Value::Null), ("ver", json!("scitoken:3.0"))], "version"),
        (vec![("iss", json!("https://evil.example.org/"))], "issuer=https://evil.example.org/"),
        (vec![("iss", json!("https://iam.example.org//"))], "not trusted"),
        (vec![("iss", json!("https://IAM.example.org/"))], "not trusted"),
        (vec![("scope", json!("storage.read:/foo/../bar"))], "no .."),
        (vec![("scope", json!("storage.read"))], "no path"),
        (vec![("scope", json!("storage.modify:/%2e%2e/x"))], "no .."),
        (vec![("wlcg.groups", json!(["atlas"]))], "/vo/group"),
        (vec![("wlcg.groups", json!(["/atlas/../root"]))], "/vo/group"),
        (vec![("wlcg.groups", json!("/atlas"))], "cannot be read"),
    ] {
        let detail = world.refusal(&with(&changes));
        assert!(detail.contains(text), "{changes:?}: {detail}");
    }
    world.accepted(&with(&[("nbf", json!(NOW_S + 60)), ("iat", json!(NOW_S + 60))]));
    // For storages the audience is theirs to check.
    let theirs = world.token(&with(&[("aud", json!("https://storage.example.org"))]));
    assert!(world.trust.verify(&theirs, Audience::Others, NOW).is_ok());
}

#[test]
fn forged_signatures_are_refused() {
    let world = World::new();
    world.publish(&[world.key.jwk("k1"), Signer::rsa().jwk("r1")], NOW);
    let refused = |token: &str, text: &str| {
        let detail = world.refused(token, NOW).detail;
        assert!(detail.contains(text), "{text}: {detail}");
    };
    let good = world.token(&wlcg());
    let (message, signature) = good.rsplit_once('.').unwrap();
    let (header, _) = message.split_once('.').unwrap();
    // Other claims under a good signature; another signature; none.
    let other_claims = encode(with(&[("sub", json!("root"))]).to_string());
    refused(&format!("{header}.{other_claims}.{signature}"), "not by");
    refused(&token(&Signer::ec(), json!({"alg": "ES256", "kid": "k1"}), &wlcg()), "not by");
    refused(&format!("{message}."), "no signature");
    refused(&format!("{message}.{}", encode([0; 64])), "not by");
    for header in
        [json!({"alg": "none"}), json!({"alg": "None", "kid": "k1"}), json!({"alg": "HS256", "kid": "r1"})]
    {
        refused(
            &format!("{}.{}.{signature}", encode(header.to_string()), encode(wlcg().to_string())),
            "not accepted",
        );
    }
    // A shared secret that is the public key, whatever method the header names.
    let Signer::Rsa(rsa) = Signer::rsa() else { unreachable!() };
    for secret in [rsa.public_key().as_ref().to_vec(), Signer::rsa().jwk("r1")["n"].as_str().unwrap().into()]
    {
        for algorithm in ["RS256", "PS256", "HS256"] {
            let message = format!(
                "{}.{}",
                encode(json!({"alg": algorithm, "kid": "r1"}).to_string()),
                encode(wlcg().to_string())
            );
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), message.as_bytes());
            assert!(!world.refused(&format!("{message}.{}", encode(tag)), NOW).detail.is_empty());
        }
    }
    // A key of one kind with a method of the other.
    refused(&token(&world.key, json!({"alg": "RS256", "kid": "k1"}), &wlcg()), "not by");
    refused(&token(Signer::rsa(), json!({"alg": "ES256", "kid": "r1"}), &wlcg()), "not by");
    refused(&token(Signer::rsa(), json!({"alg": "RS256", "kid": "k1"}), &wlcg()), "not by");
    // Keys, and addresses of keys, that the token brings along.
    let own = Signer::ec();
    let header = json!({"alg": "ES256", "kid": "k1", "jwk": own.jwk("k1"),
        "jku": "https://evil.example.org/keys",
                        "x5u": "https://evil.example.org/x", "x5c": ["MII"]});
    refused(&token(&own, header, &wlcg()), "not by");
    // A key's name is a name: no path, no address, no query.
    for kid in ["../../k1", "/dev/null", "https://evil.example.org/k1", "k1' or '1'='1", "K1", "k1\u{0}", ""]
    {
        refused(&token(&world.key, json!({"alg": "ES256", "kid": kid}), &wlcg()), "publishes no key");
    }
    refused(&token(&world.key, json!({"alg": "ES256"}), &wlcg()), "(kid)");
    refused(&token(&world.key, json!({"alg": "ES256", "kid": ["k1"]}), &wlcg()), "header cannot be read");
    // A claim that is there twice, once for each reader.
    let twice = format!(r#"{{"sub":"root",{}"#, &wlcg().to_string()[1..]);
    let message = format!("{}.{}", encode(json!({"alg": "ES256", "kid": "k1"}).to_string()), encode(twice));
    let signature = world.key.sign("ES256", message.as_bytes());
    refused(&format!("{message}.{}", encode(signature)), "duplicate field");
    refused(&world.token(&with(&[("sub", json!("x".repeat(9000)))])), "8192 bytes");
    // Signatures have one spelling.
    refused(&format!("{good}=="), "no signature");
    // An issuer's key is nobody else's.
    world
        .trust
        .install("https://strict.example.org", Ok(answer(json!({"keys": [Signer::rsa().jwk("k1")]}))), NOW)
        .unwrap();
    refused(&world.token(&with(&[("iss", json!("https://strict.example.org"))])), "not by");
}

#[test]
fn scitokens_and_issuers_with_a_scope_of_their_own() {
    let world = World::new();
    let sci = |changes: &[(&str, Value)]| {
        let base =
            [("wlcg.ver", Value::Null), ("ver", json!("scitoken:2.0")), ("scope", json!("read:/a write:/b"))];
        with(&[&base, changes].concat())
    };
    let user = world.accepted(&sci(&[("aud", json!("ANY"))]));
    assert_eq!(user.profile, Profile::SciToken);
    assert!(
        user.scopes.allows(StorageAction::Modify, "/b/x")
            && !user.scopes.allows(StorageAction::Modify, "/a/x")
    );
    assert!(world.refusal(&sci(&[("aud", Value::Null)])).contains("(aud)"));
    world.accepted(&sci(&[("aud", Value::Null), ("ver", json!("scitoken:1.0"))]));
    assert!(world.refusal(&sci(&[("aud", json!(WLCG_ANY))])).contains("the token is for"));
    assert!(world.refusal(&with(&[("aud", json!("ANY"))])).contains("the token is for"));
    let strict = |scope: &str| {
        world.token(&with(&[("iss", json!("https://strict.example.org")), ("scope", json!(scope))]))
    };
    world
        .trust
        .install("https://strict.example.org", Ok(answer(json!({"keys": [world.key.jwk("k1")]}))), NOW)
        .unwrap();
    assert!(world.trust.verify(&strict("openid fts"), Audience::Ours, NOW).is_ok());
    let fault = world.refused(&strict("openid ftsx"), NOW);
    assert_eq!((fault.code, fault.detail.as_str()), (FaultCode::NotAllowed, "the token lacks the scope fts"));
}

#[test]
fn keys_are_asked_for_when_wanted_and_not_more_than_once_a_minute() {
    let world = World::new();
    let wants = |token: &str, now| match world.trust.verify(token, Audience::Ours, now) {
        Err(TokenRefusal::KeysWanted(issuer)) => issuer == ISSUER,
        _ => false,
    };
    let next = Signer::ec();
    let rotated =
        token(&next, json!({"alg": "ES256", "kid": "k2"}), &with(&[("exp", json!(NOW_S + 900_000))]));
    assert!(world.refused(&rotated, NOW + MINUTE / 2).detail.contains("publishes no key \"k2\""));
    assert!(world.trust.fetch(ISSUER, NOW + MINUTE / 2).is_none());
    assert!(wants(&rotated, NOW + MINUTE));
    // The driver's part.
    let mut fetch = world.trust.fetch(ISSUER, NOW + MINUTE).unwrap();
    assert_eq!(fetch.url(), "https://iam.example.org/.well-known/openid-configuration");
    let document = json!({"issuer": "https://iam.example.org", "jwks_uri": "https://iam.example.org/jwk"});
    assert!(matches!(fetch.handle_response(Ok(answer(document))), FetchStep::More));
    assert_eq!(fetch.url(), "https://iam.example.org/jwk");
    let FetchStep::Done(keys) = fetch.handle_response(Ok(answer(json!({"keys": [next.jwk("k2")]})))) else {
        panic!("not done")
    };
    world.trust.install(fetch.issuer(), keys, NOW + MINUTE).unwrap();
    assert!(world.trust.verify(&rotated, Audience::Ours, NOW + MINUTE).is_ok());
    // The key that is no longer published is revoked at once.
    let old = world.token(&with(&[("exp", json!(NOW_S + 900_000))]));
    assert!(world.refused(&old, NOW + MINUTE).detail.contains("publishes no key"));
}

#[test]
fn keys_that_did_not_come_in_time_are_asked_for_twice_a_minute() {
    let world = World::new();
    let failed = |code, at| world.trust.install(ISSUER, Err(Fault::new(code, "no keys")), at).is_err();
    let is_asked = |at| world.trust.fetch(ISSUER, at).is_some();
    let late = NOW + HOUR;
    assert!(failed(FaultCode::Stalled, late) && !is_asked(late + MINUTE / 3) && is_asked(late + MINUTE / 2));
    let answered = NOW + 2 * HOUR;
    assert!(failed(FaultCode::ProtocolError, answered) && !is_asked(answered + MINUTE / 2));
    assert!(is_asked(answered + MINUTE));
}

/// Tokens are judged by the wall clock, which may be set back: new keys would not be asked for in as long.
#[test]
fn keys_are_asked_for_after_the_clock_was_set_back() {
    for back in [MINUTE, 3 * HOUR] {
        let world = World::new();
        assert!(world.trust.fetch(ISSUER, NOW).is_none(), "they were asked for just now");
        assert!(world.trust.fetch(ISSUER, NOW - back).is_some(), "{back:?}");
        let keys = Ok(answer(json!({"keys": [world.key.jwk("k1")]})));
        world.trust.install(ISSUER, keys, NOW - back).unwrap();
        assert!(world.trust.fetch(ISSUER, NOW - back + MINUTE / 2).is_none(), "once a minute at most");
        assert!(world.trust.fetch(ISSUER, NOW - back + MINUTE).is_some());
    }
}

#[test]
fn the_last_good_keys_serve_while_their_issuer_is_away_but_not_for_ever() {
    let world = World::new();
    let token = world.token(&with(&[("exp", json!(NOW_S + 900_000))]));
    assert!(world.trust.issuers_due(NOW).len() == 1, "the other issuer was never asked");
    assert!(world.trust.issuers_due(NOW + 5 * HOUR).len() == 1);
    assert!(world.trust.issuers_due(NOW + 6 * HOUR).contains(&ISSUER.to_owned()));
    let away = || Err(Fault::new(FaultCode::Unreachable, "nobody answers"));
    assert!(world.trust.install(ISSUER, away(), NOW + 6 * HOUR).is_err());
    assert!(!world.trust.issuers_due(NOW + 6 * HOUR + MINUTE / 2).contains(&ISSUER.to_owned()));
    assert!(world.trust.issuers_due(NOW + 6 * HOUR + MINUTE).contains(&ISSUER.to_owned()));
    assert!(world.trust.install(ISSUER, Ok(answer(json!({"keys": []}))), NOW + 7 * HOUR).is_err());
    assert!(world.trust.verify(&token, Audience::Ours, NOW + 48 * HOUR).is_ok());
    let late = NOW + 48 * HOUR + MINUTE;
    assert!(matches!(world.trust.verify(&token, Audience::Ours, late), Err(TokenRefusal::KeysWanted(_))));
    assert!(world.trust.install(ISSUER, away(), late).is_err());
    assert!(world.refused(&token, late).detail.contains("too old: nobody answers"));
    // What the server says about its age counts within an hour and six.
    let stale = |max_age: u64| {
        Ok(FetchResponse {
            max_age: Some(Duration::from_secs(max_age)),
            ..answer(json!({"keys": [world.key.jwk("k1")]}))
        })
    };
    for (max_age, hours) in [(0, 1), (2 * 3600, 2), (100 * 3600, 6)] {
        world.trust.install(ISSUER, stale(max_age), NOW).unwrap();
        assert!(!world.trust.issuers_due(NOW + hours * HOUR - MINUTE).contains(&ISSUER.to_owned()));
        assert!(world.trust.issuers_due(NOW + hours * HOUR).contains(&ISSUER.to_owned()));
    }
}

#[test]
fn sets_of_keys_are_bounded_and_weak_keys_left_out() {
    let world = World::new();
    let refused =
        |document: Value| world.trust.install(ISSUER, Ok(answer(document)), NOW).unwrap_err().detail;
    let good = world.key.jwk("k1");
    assert!(refused(json!({"keys": vec![good.clone(); 65]})).contains("64 are accepted"));
    assert!(refused(json!({"keys": [], "x": "y".repeat(300_000)})).contains("bytes"));
    assert!(refused(json!({})).contains("keys"));
    let short = json!({"kty": "RSA", "kid": "k1", "n": encode([0xff; 128]), "e": "AQAB"});
    let one = json!({"kty": "RSA", "kid": "k1", "n": Signer::rsa().jwk("k1")["n"], "e": "AQ"});
    let secret = json!({"kty": "oct", "kid": "k1", "k": "c2VjcmV0"});
    let off_curve =
        json!({"kty": "EC", "crv": "P-256", "kid": "k1", "x": encode([1; 32]), "y": encode([1; 32])});
    let mut encryption = good.clone();
    encryption["use"] = json!("enc");
    for key in [short, one, secret, off_curve, encryption, json!("x"), json!({"kty": "RSA"})] {
        assert!(refused(json!({"keys": [key]})).contains("none is"), "{key}");
    }
    // One bad key does not hide a good one.
    world.publish(&[json!({"kty": "oct", "k": "c2VjcmV0"}), good], NOW);
    world.accepted(&wlcg());
    let settings = |issuer: &str| TokenSettings {
        issuers: vec![IssuerRule { issuer: issuer.into(), vo: None, required_scope: None }],
        audiences: vec![],
        leeway: MINUTE,
    };
    for issuer in ["http://a.example", "a.example", "https://a@b.example", "https://a.example/?x"] {
        assert!(TokenTrust::new(settings(issuer)).is_err(), "{issuer}");
    }
}

const CLIENT: &str = "longhaul-web";
const NONCE: &str = "n-0s6_wza2mj";

fn id_claims(changes: &[(&str, Value)]) -> Value {
    let mut claims = json!({"iss": ISSUER, "sub": "a1b2", "aud": CLIENT, "exp": NOW_S + 300,
        "iat": NOW_S - 1, "nonce": NONCE,
        "name": "Anna", "groups": ["shift", "lab"], "realm_access": {"roles": ["admin"]},
            "https://x.org/role": "a.b"});
    for (name, value) in changes {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(*name)),
            value => claims[*name] = value.clone(),
        }
    }
    claims
}

fn login(world: &World, token: &str, now: Timestamp) -> Result<LoginIdentity, TokenRefusal> {
    let expected = ExpectedLogin { issuer: ISSUER, client_id: CLIENT, nonce: NONCE };
    world.trust.verify_login(token, &expected, now)
}

#[test]
fn an_id_token_says_who_logged_in() {
    let world = World::new();
    let user = login(&world, &world.token(&id_claims(&[])), NOW).unwrap();
    assert_eq!((user.issuer.as_str(), user.subject.as_str()), (ISSUER, "a1b2"));
    assert_eq!((user.text("name"), user.text("groups"), user.text("absent")), (Some("Anna"), None, None));
    assert_eq!((user.texts("groups"), user.texts("name")), (vec!["shift", "lab"], vec!["Anna"]));
    assert_eq!((user.texts("realm_access.roles"), user.texts("realm_access")), (vec!["admin"], vec![]));
    assert_eq!((user.text("https://x.org/role"), user.text("groups.x")), (Some("a.b"), None));
    assert_eq!(user.delegation_id(), "8677fb6da1525216", "as their bearer tokens have it");
    for good in [
        [("aud", json!([CLIENT, "other"])), ("azp", json!(CLIENT))],
        [("aud", json!([CLIENT])), ("azp", Value::Null)],
        [("iat", json!(NOW_S + 30)), ("nbf", json!(NOW_S + 30))],
        [("iss", json!("https://iam.example.org")), ("exp", json!(NOW_S + 1))],
    ] {
        login(&world, &world.token(&id_claims(&good)), NOW).unwrap_or_else(|why| panic!("{good:?}: {why:?}"));
    }
}

#[test]
fn id_tokens_that_are_forged_old_or_for_others_are_refused() {
    let world = World::new();
    let refused = |token: &str| match login(&world, token, NOW) {
        Err(TokenRefusal::Refused(fault)) => fault.detail,
        other => panic!("{other:?}"),
    };
    for (name, value, why) in [
        ("nonce", json!("n-of-another"), "another login"),
        ("nonce", Value::Null, "no nonce"),
        ("nonce", json!([NONCE]), "no nonce"),
        ("aud", json!("other"), "not for this client"),
        ("aud", json!([]), "not for this client"),
        ("aud", Value::Null, "not for this client"),
        ("aud", json!([CLIENT, "other"]), "another client"),
        ("azp", json!("other"), "another client"),
        ("azp", json!(7), "another client"),
        ("exp", json!(NOW_S), "expired"),
        ("exp", json!("soon"), "no time"),
        ("exp", Value::Null, "when it expires"),
        ("iat", Value::Null, "when it was made"),
        ("iat", json!(NOW_S + 61), "clocks"),
        ("nbf", json!(NOW_S + 61), "clocks"),
        ("sub", Value::Null, "whose it is"),
        ("sub", json!(""), "whose it is"),
        ("sub", json!("a\nb"), "ASCII"),
        ("iss", json!("https://strict.example.org"), "another issuer"),
        ("iss", json!("https://elsewhere.example.org"), "another issuer"),
    ] {
        let detail = refused(&world.token(&id_claims(&[(name, value.clone())])));
        assert!(detail.contains(why), "{name} {value}: {detail}");
    }
    let good = world.token(&id_claims(&[]));
    let (message, _) = good.rsplit_once('.').unwrap();
    let (_, claims) = message.split_once('.').unwrap();
    let none = encode(json!({"alg": "none"}).to_string());
    assert!(refused(&format!("{none}.{claims}.")).contains("\"none\""));
    assert!(refused(&format!("{none}.{claims}.{}", encode("x"))).contains("\"none\""));
    let other = token(&Signer::ec(), json!({"alg": "ES256", "kid": "k1"}), &id_claims(&[]));
    assert!(refused(&other).contains("signature"));
    // The public key as a shared secret, the old trick.
    let key = hmac::Key::new(hmac::HMAC_SHA256, world.key.jwk("k1").to_string().as_bytes());
    let header = encode(json!({"alg": "HS256", "kid": "k1"}).to_string());
    let tag = hmac::sign(&key, format!("{header}.{claims}").as_bytes());
    assert!(refused(&format!("{header}.{claims}.{}", encode(tag))).contains("HS256"));
    let twice = format!("{{\"nonce\":\"x\",{}", &id_claims(&[]).to_string()[1..]);
    let message = format!("{}.{}", encode(json!({"alg": "ES256", "kid": "k1"}).to_string()), encode(twice));
    let signature = encode(world.key.sign("ES256", message.as_bytes()));
    assert!(refused(&format!("{message}.{signature}")).contains("twice"));
    // Nor is an access token one, whomever it is for.
    assert!(refused(&world.token(&with(&[("aud", json!(CLIENT))]))).contains("nonce"));
    // And an ID token opens no API.
    assert!(world.refused(&good, NOW).detail.contains("the token is for"));
}
