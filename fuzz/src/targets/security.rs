//! Permits, certificates, signing requests, identities, tokens, origins: what strangers show to be let in.

use std::sync::OnceLock;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use longhaul_model::address::IpNetwork;
use longhaul_model::{AgentId, AttemptId, Fault, Lfn, SiteName, StorageName, Timestamp};
use longhaul_security::{
    Authority, JoinToken, PeerIdentity, Permit, PermitVerifier, Scopes, SubjectPattern, check_origin,
    expires, gridmap, list_digest, needs_renewal, parse_mapping_answer, peer_identity,
};
use rustls::pki_types::CertificateDer;

use super::dice::Dice;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

/// Base64url as permits and tokens use it, without padding.
pub(super) fn base64(bytes: &[u8]) -> String {
    encoded(bytes, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", false)
}

fn encoded(bytes: &[u8], alphabet: &[u8; 64], padded: bool) -> String {
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let three = [group[0], *group.get(1).unwrap_or(&0), *group.get(2).unwrap_or(&0)];
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..=group.len() {
            text.push(char::from(alphabet[(bits >> (18 - 6 * place)) as usize & 63]));
        }
        if padded {
            text.push_str(&"=".repeat(3 - group.len()));
        }
    }
    text
}

pub(super) fn pem(kind: &str, der: &[u8]) -> String {
    let body = encoded(der, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", true);
    format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n")
}

/// A deployment's service with a key that everybody knows.
struct Service {
    key: Ed25519KeyPair,
    verifier: PermitVerifier,
}

fn service() -> &'static Service {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("any seed is a key");
        // SubjectPublicKeyInfo of an Ed25519 key (RFC 8410 section 4).
        let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        der.extend_from_slice(key.public_key().as_ref());
        let verifier = PermitVerifier::new(&pem("PUBLIC KEY", &der)).expect("it is a key");
        Service { key, verifier }
    })
}

fn assert_told(fault: &Fault) {
    assert!(fault.detail.len() < 700 && !fault.detail.chars().any(char::is_control), "{fault:?}");
}

/// A permit opens only what it names.
fn assert_narrow(permit: &Permit) {
    let lfn = Lfn::parse("a").expect("it is a name");
    let list = list_digest([(AttemptId(1), &lfn, 1)].into_iter());
    let storage: StorageName = "elsewhere".parse().expect("it is a name");
    let (source, target) = (permit.source_agent, permit.target_agent);
    let covers = |target: AgentId, storage: &StorageName, list: &[u8; 32]| {
        permit.covers(&permit.deployment, source, target, storage, list).is_ok()
    };
    assert!(covers(target, &permit.source_storage, &permit.list_digest));
    if permit.list_digest != list {
        assert!(!covers(target, &permit.source_storage, &list));
    }
    if permit.source_storage != storage {
        assert!(!covers(target, &storage, &permit.list_digest));
    }
    let other = AgentId(target.0 ^ 1);
    assert!(!covers(other, &permit.source_storage, &permit.list_digest));
    let elsewhere = format!("{}x", permit.deployment);
    assert!(permit.covers(&elsewhere, source, target, &permit.source_storage, &permit.list_digest).is_err());
}

/// Texts that nobody signed are refused.
pub fn permits(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match service().verifier.verify(&text, NOW) {
        Ok(permit) => panic!("nobody signed {permit:?}"),
        Err(fault) => assert_told(&fault),
    }
}

/// Payloads that the service signed, whatever they say.
pub fn permit_payloads(bytes: &[u8]) {
    let signed = format!("lhp1.{}", base64(bytes));
    let text = format!("{signed}.{}", base64(service().key.sign(signed.as_bytes()).as_ref()));
    match service().verifier.verify(&text, NOW) {
        Ok(permit) => {
            assert!(permit.expires > NOW);
            assert_narrow(&permit);
        }
        Err(fault) => assert_told(&fault),
    }
}

pub fn certificates(bytes: &[u8]) {
    match peer_identity(&CertificateDer::from(bytes)) {
        Ok(identity) => {
            assert_eq!(identity.to_string().parse::<PeerIdentity>().ok(), Some(identity));
        }
        Err(fault) => assert_told(&fault),
    }
    let _ = expires(&pem("CERTIFICATE", bytes));
    let text = String::from_utf8_lossy(bytes);
    let _ = expires(&text);
    let _ = needs_renewal(&pem("CERTIFICATE", bytes), NOW);
}

/// What somebody with a join token sends to be certified: it gets the name that the service chose, or
/// nothing.
pub fn signing_requests(bytes: &[u8]) {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    let authority = AUTHORITY.get_or_init(|| {
        let home = tempfile::tempdir().expect("a temporary directory");
        Authority::create(&home.path().join("authority"), "fuzzed", NOW).expect("an authority")
    });
    let site: SiteName = "alpha".parse().expect("it is a name");
    for request in [pem("CERTIFICATE REQUEST", bytes), String::from_utf8_lossy(bytes).into_owned()] {
        let Ok(issued) = authority.issue_agent(&request, AgentId(5), &site, NOW) else { continue };
        let body: String = issued.certificate_pem.lines().filter(|line| !line.starts_with("---")).collect();
        assert!(!body.is_empty());
        let identity = longhaul_security::Credentials {
            certificate_pem: issued.certificate_pem,
            key_pem: String::new(),
            ca_pem: String::new(),
        }
        .identity();
        assert_eq!(
            identity.map(|identity| identity.to_string()).ok().as_deref(),
            Some("longhaul://fuzzed/agent/alpha/0000000000005")
        );
    }
}

pub fn identities(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for text in [text.to_string(), format!("longhaul://{text}")] {
        match text.parse::<PeerIdentity>() {
            Ok(identity) => assert_eq!(identity.to_string(), text, "one spelling of one identity"),
            Err(fault) => assert_told(&fault),
        }
    }
}

pub fn tokens(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for text in [text.to_string(), format!("lhj_{}", base64(bytes))] {
        match text.parse::<JoinToken>() {
            Ok(token) => {
                assert!(token.url.starts_with("https://"));
                assert_eq!(token.to_string().parse::<JoinToken>().ok().as_ref(), Some(&token));
                let other = JoinToken { secret: "another".into(), ..token.clone() };
                assert_eq!(format!("{token:?}"), format!("{other:?}"), "what is shown tells of no secret");
            }
            Err(fault) => assert_told(&fault),
        }
    }
}

/// Pages of others: only the very names that are allowed get through.
pub fn origins(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let allowed = ["127.0.0.1:8080".to_owned(), "localhost:8080".to_owned()];
    let (with_host, with_origin, len) = (dice.flag(), dice.flag(), dice.byte());
    let host = String::from_utf8_lossy(dice.bytes(usize::from(len)));
    let origin = String::from_utf8_lossy(dice.rest());
    match check_origin(with_host.then_some(&*host), with_origin.then_some(&*origin), &allowed) {
        Ok(()) => {
            let known = |name: &str| allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name));
            assert!(with_host && known(&host));
            assert!(
                !with_origin
                    || known(
                        origin.trim_start_matches("http").trim_start_matches("s").trim_start_matches("://")
                    )
            );
        }
        Err(fault) => assert_told(&fault),
    }
}

/// Grid-map files: whatever they hold, every line is good, bad or nothing; accounts are names; what is good
/// stays good when it is written again.
pub fn gridmaps(bytes: &[u8]) {
    let map = gridmap::parse(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').count();
    assert!(map.entries.len() + map.bad.len() <= lines);
    assert!(map.shadowed.len() <= map.entries.len());
    for entry in &map.entries {
        assert!(!entry.accounts.is_empty() && entry.line <= lines);
        for account in &entry.accounts {
            assert!(!account.starts_with('-') && !account.contains(['/', ' ', ':', '\n']), "{account}");
        }
        let quoted = |text: &String| format!("\"{}\" ", text.replace('\\', "\\\\").replace('"', "\\\""));
        let roles: String = entry.roles.iter().map(quoted).collect();
        let again = gridmap::parse(
            format!("{}{roles}{}", quoted(&entry.subject), entry.accounts.join(",")).as_bytes(),
        );
        assert_eq!(again.bad, []);
        assert_eq!(
            (&again.entries[0].subject, &again.entries[0].accounts),
            (&entry.subject, &entry.accounts)
        );
    }
}

/// Lists of who may come: what is read is written as the same, and an address is in its own network.
pub fn access(bytes: &[u8]) {
    if let Ok(Some(community)) = parse_mapping_answer(bytes) {
        assert_eq!(community.as_str().as_bytes(), bytes.strip_suffix(b"\n").unwrap_or(bytes));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(network) = text.parse::<IpNetwork>() {
        assert_eq!(network.to_string().parse::<IpNetwork>().as_ref(), Ok(&network));
        let address = text.split('/').next().and_then(|address| address.trim().parse().ok());
        assert!(address.is_some_and(|address| network.contains(address)), "{text}");
    }
    if let Ok(pattern) = text.parse::<SubjectPattern>() {
        assert_eq!(pattern.to_string(), text);
    }
    if let Ok(scopes) = text.parse::<Scopes>() {
        assert_eq!(scopes.to_string().parse::<Scopes>().as_ref(), Ok(&scopes));
        assert!(scopes.is_subset_of(&scopes));
    }
}
