//! What users of the grid show: chains of certificates, bearer tokens; and the files that say whom to
//! believe.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use longhaul_model::{Fault, Timestamp};
use longhaul_security::Authority;
use longhaul_security::bearer::{
    Audience, ExpectedLogin, FetchResponse, FetchStep, IssuerRule, KeyFetch, ProviderMetadata, StorageAction,
    TokenRefusal, TokenSettings, TokenTrust, extract_id_token,
};
use longhaul_security::grid::{GridSettings, GridTrust};
use rustls::pki_types::CertificateDer;

use super::security::{base64, pem};

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
const ISSUER: &str = "https://issuer.example.org";

fn assert_told(fault: &Fault) {
    assert!(fault.detail.len() < 700 && !fault.detail.chars().any(char::is_control), "{fault:?}");
}

/// A directory with one authority of ours, whose user nobody is.
fn directory() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a temporary directory");
    let authority = Authority::create(&home.path().join("authority"), "fuzzed", NOW).expect("an authority");
    let trusted = home.path().join("certificates");
    std::fs::create_dir_all(home.path().join("vomsdir/atlas")).expect("a directory");
    std::fs::create_dir(&trusted).expect("a directory");
    std::fs::write(trusted.join("11111111.0"), authority.ca_pem()).expect("a file");
    home
}

fn load(home: &Path) -> Result<GridTrust, Fault> {
    let settings = GridSettings {
        voms_directory: Some(home.join("vomsdir")),
        ..GridSettings::new(home.join("certificates"))
    };
    GridTrust::load(settings, NOW)
}

/// A chain that a client shows: each certificate after two bytes of its length. Nobody who is not of the
/// authority gets in.
pub fn grid_chains(bytes: &[u8]) {
    static TRUST: OnceLock<GridTrust> = OnceLock::new();
    let trust = TRUST.get_or_init(|| load(directory().path()).expect("a directory of authorities"));
    let mut chain = Vec::new();
    let mut rest = bytes;
    while let [high, low, after @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
        chain.push(CertificateDer::from(&after[..length]));
        rest = &after[length..];
    }
    for chain in [&chain[..], &[CertificateDer::from(bytes)]] {
        match trust.verify_chain(chain, NOW) {
            Ok(user) => panic!("{} got in", user.subject),
            Err(fault) => assert_told(&fault),
        }
    }
    let uploaded: String = chain.iter().map(|der| pem("CERTIFICATE", der)).collect();
    for uploaded in [uploaded.as_bytes(), bytes] {
        match longhaul_security::delegation::accept_proxy("no key", uploaded) {
            Ok(_) => panic!("a proxy for no key was accepted"),
            Err(fault) => assert_told(&fault),
        }
    }
}

struct Issuer {
    key: EcdsaKeyPair,
    trust: TokenTrust,
}

fn issuer() -> &'static Issuer {
    static ISSUER_OF_TOKENS: OnceLock<Issuer> = OnceLock::new();
    ISSUER_OF_TOKENS.get_or_init(|| {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let settings = TokenSettings {
            issuers: vec![IssuerRule { issuer: ISSUER.into(), vo: None, required_scope: None }],
            audiences: vec!["https://us.example.org".into()],
            leeway: Duration::from_secs(60),
        };
        let trust = TokenTrust::new(settings).expect("they are good settings");
        let point = key.public_key().as_ref();
        let keys = format!(
            r#"{{"keys":[{{"kty":"EC","crv":"P-256","kid":"k","x":"{}","y":"{}"}}]}}"#,
            base64(&point[1..33]),
            base64(&point[33..65])
        );
        let fetched = FetchResponse { body: keys.into_bytes(), max_age: None };
        trust.install(ISSUER, Ok(fetched), NOW).expect("they are keys");
        Issuer { key, trust }
    })
}

/// Tokens as they come, and claims under a good signature: whoever they name is of the issuer, and scopes do
/// not leave their path.
pub fn bearer_tokens(bytes: &[u8]) {
    let Issuer { key, trust } = issuer();
    let message = format!("{}.{}", base64(br#"{"alg":"ES256","kid":"k"}"#), base64(bytes));
    let signature = key.sign(&SystemRandom::new(), message.as_bytes()).expect("it signs");
    let signed = format!("{message}.{}", base64(signature.as_ref()));
    if let Ok(text) = std::str::from_utf8(bytes) {
        match trust.verify(text, Audience::Ours, NOW) {
            // Only this process has the key.
            Ok(user) => panic!("{} forged a signature", user.subject),
            Err(TokenRefusal::Refused(fault)) => assert_told(&fault),
            Err(TokenRefusal::KeysWanted(issuer)) => assert_eq!(issuer, ISSUER),
        }
    }
    match trust.verify(&signed, Audience::Others, NOW) {
        Ok(user) => {
            assert_eq!(user.issuer, ISSUER);
            assert!(
                !user.subject.is_empty()
                    && user.expires > NOW
                    && user.groups.iter().all(|group| group.starts_with('/'))
            );
            assert!(
                !user.scopes.allows(StorageAction::Read, "/a/../b")
                    && !user.scopes.allows(StorageAction::Modify, "a")
            );
        }
        Err(TokenRefusal::Refused(fault)) => assert_told(&fault),
        Err(TokenRefusal::KeysWanted(issuer)) => panic!("{issuer} has given its keys"),
    }
}

/// What an issuer answers: its document and its keys. Keys are never fetched but over https.
pub fn issuer_answers(bytes: &[u8]) {
    let settings = TokenSettings {
        issuers: vec![IssuerRule { issuer: ISSUER.into(), vo: None, required_scope: None }],
        audiences: Vec::new(),
        leeway: Duration::ZERO,
    };
    let trust = TokenTrust::new(settings).expect("they are good settings");
    let fetched = || Ok(FetchResponse { body: bytes.to_vec(), max_age: None });
    if let Err(fault) = trust.install(ISSUER, fetched(), NOW) {
        assert_told(&fault);
    }
    let mut fetch: KeyFetch =
        TokenTrust::fetch(&trust, ISSUER, NOW + Duration::from_secs(3600)).expect("it is time to ask");
    for _ in 0..4 {
        assert!(fetch.url().starts_with("https://"));
        if let FetchStep::Done(_) = fetch.handle_response(fetched()) {
            return;
        }
    }
    panic!("an issuer is asked without end");
}

/// What comes of a login at an issuer: an ID token as it is, its claims under a good signature, the issuer's
/// document and what it gives for a code.
pub fn login_answers(bytes: &[u8]) {
    let Issuer { key, trust } = issuer();
    let expected = ExpectedLogin { issuer: ISSUER, client_id: "us", nonce: "n" };
    if let Ok(text) = std::str::from_utf8(bytes) {
        match trust.verify_login(text, &expected, NOW) {
            // Only this process has the key.
            Ok(user) => panic!("{} forged a signature", user.subject),
            Err(TokenRefusal::Refused(fault)) => assert_told(&fault),
            Err(TokenRefusal::KeysWanted(issuer)) => assert_eq!(issuer, ISSUER),
        }
    }
    let message = format!("{}.{}", base64(br#"{"alg":"ES256","kid":"k"}"#), base64(bytes));
    let signature = key.sign(&SystemRandom::new(), message.as_bytes()).expect("it signs");
    match trust.verify_login(&format!("{message}.{}", base64(signature.as_ref())), &expected, NOW) {
        Ok(user) => {
            assert_eq!((user.issuer.as_str(), user.text("nonce")), (ISSUER, Some("n")));
            assert!(user.texts("aud").contains(&"us") && !user.subject.is_empty());
            let _ = (user.texts("groups"), user.text("a.b.c"));
        }
        Err(TokenRefusal::Refused(fault)) => assert_told(&fault),
        Err(TokenRefusal::KeysWanted(issuer)) => panic!("{issuer} has given its keys"),
    }
    match ProviderMetadata::parse(ISSUER, bytes) {
        Ok(document) => {
            for endpoint in [document.authorization_endpoint, document.token_endpoint] {
                assert!(
                    endpoint.starts_with("https://") && endpoint.bytes().all(|byte| byte.is_ascii_graphic())
                );
            }
        }
        Err(fault) => assert_told(&fault),
    }
    if let Err(fault) = extract_id_token(bytes) {
        assert_told(&fault);
    }
}

/// Files of the directories that say whom to believe: what cannot be read is told, and what was good stays.
pub fn grid_files(bytes: &[u8]) {
    static HOME: OnceLock<tempfile::TempDir> = OnceLock::new();
    let home = HOME.get_or_init(directory).path();
    let files = [
        "certificates/22222222.0",
        "certificates/11111111.signing_policy",
        "certificates/11111111.namespaces",
        "certificates/11111111.r0",
        "vomsdir/atlas/voms.lsc",
    ];
    for file in files {
        let path = home.join(file);
        std::fs::write(&path, bytes).expect("a file");
        let trust = load(home).expect("the good authority is there");
        let problems = trust.reload(NOW).expect("the directory is there").problems;
        assert!(problems.iter().all(|problem| problem.len() < 20_000));
        std::fs::remove_file(&path).expect("it was written");
    }
}
