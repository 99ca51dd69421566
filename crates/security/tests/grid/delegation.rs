//! Delegation as a client of FTS does it: ask for a request, sign a proxy for its key, send it with the
//! chain.

use std::sync::{Arc, OnceLock};

use crate::pki::*;
use longhaul_model::FaultCode;
use longhaul_security::delegation::{self, DelegatedCredential, DelegationRequest};
use rcgen::{CertificateSigningRequestParams, KeyPair, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// One for all tests, since it takes long to make.
fn request() -> &'static DelegationRequest {
    static REQUEST: OnceLock<DelegationRequest> = OnceLock::new();
    REQUEST.get_or_init(|| delegation::new_request(2048).unwrap())
}

fn requested_key() -> Arc<KeyPair> {
    Arc::new(KeyPair::from_pem_and_sign_algo(&request().key_pem, &rcgen::PKCS_RSA_SHA256).unwrap())
}

fn refusal(credential: &str) -> String {
    match delegation::accept_proxy(&request().key_pem, credential.as_bytes()) {
        Ok(_) => panic!("it was accepted"),
        Err(fault) => {
            assert_eq!(fault.code, FaultCode::BadRequest);
            fault.detail
        }
    }
}

fn upload(holders: &[&Holder]) -> String {
    holders.iter().map(|holder| holder.pem()).collect()
}

fn delegated(grid: &Grid) -> (Holder, DelegatedCredential) {
    let mut draft = grid.alice.proxy().key(&requested_key());
    // As the fts3 client writes it.
    draft.subject = format!("{ALICE}/CN=1780000000");
    draft.extensions.push(basic_constraints(false));
    let proxy = draft.sign();
    let uploaded = upload(&[&proxy, &grid.alice]);
    (proxy, delegation::accept_proxy(&request().key_pem, uploaded.as_bytes()).unwrap())
}

#[test]
fn a_request_is_signed_by_its_own_key() {
    let parsed = CertificateSigningRequestParams::from_pem(&request().request_pem).unwrap();
    assert_eq!(parsed.public_key.subject_public_key_info(), requested_key().subject_public_key_info());
    assert_eq!(request().bits, 2048);
    assert!(delegation::new_request(1024).is_err());
    let sizes = [None, Some(1024), Some(2048), Some(3072), Some(4096), Some(8192)].map(delegation::key_bits);
    assert_eq!(sizes, [2048, 2048, 2048, 3072, 4096, 4096]);
}

#[test]
fn a_proxy_for_the_requested_key_is_stored_with_it() {
    let grid = Grid::new();
    let (proxy, delegated) = delegated(&grid);
    assert_eq!(delegated.not_after, NOW + DAY / 2);
    assert_eq!(delegated.chain_pem, upload(&[&proxy, &grid.alice]));
    let expected = format!("{}{}{}", proxy.pem(), *request().key_pem, grid.alice.pem());
    assert_eq!(*delegated.credential_pem, expected);
    // What is stored works as a credential.
    let stored: Vec<_> =
        CertificateDer::pem_slice_iter(delegated.credential_pem.as_bytes()).flatten().collect();
    assert_eq!(stored.len(), 2);
    PrivateKeyDer::from_pem_slice(delegated.credential_pem.as_bytes()).unwrap();
    delegation::check_owner(&delegated, &grid.trust(), ALICE, NOW).unwrap();
}

#[test]
fn the_first_certificate_to_expire_counts() {
    let grid = Grid::new();
    let short = grid.alice.proxy().until(NOW + DAY / 8).sign();
    let proxy = short.proxy().key(&requested_key()).sign();
    let uploaded = upload(&[&proxy, &short, &grid.alice]);
    let delegated = delegation::accept_proxy(&request().key_pem, uploaded.as_bytes()).unwrap();
    assert_eq!(delegated.not_after, NOW + DAY / 8);
    delegation::check_owner(&delegated, &grid.trust(), ALICE, NOW).unwrap();
}

#[test]
fn what_is_no_proxy_of_the_key_is_refused_in_the_words_of_fts() {
    let grid = Grid::new();
    let alice = &grid.alice;
    let good = alice.proxy().key(&requested_key());
    let says = |uploaded: String, text: &str| {
        let detail = refusal(&uploaded);
        assert!(
            detail.starts_with("Could not process the proxy: ") && detail.contains(text),
            "{text}: {detail}"
        );
    };
    says(String::new(), "Malformed proxy");
    says("hello".into(), "Malformed proxy");
    says(good.clone().sign().pem(), "Malformed proxy");
    says("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".into(), "no PEM");
    says(
        upload(&[&alice.proxy().sign(), alice]),
        "The proxy does not match the stored associated private key",
    );
    let mut forged = good.clone();
    forged.signer = ec_key();
    says(upload(&[&forged.sign(), alice]), "not signed by");
    let mut renamed = good.clone();
    renamed.subject = "/DC=org/CN=mallory/CN=1".into();
    says(upload(&[&renamed.sign(), alice]), "one common name more");
    let mut other_issuer = good.clone();
    other_issuer.issuer = "/DC=org/CN=bob".into();
    other_issuer.subject = "/DC=org/CN=bob/CN=1".into();
    says(upload(&[&other_issuer.sign(), alice]), "one common name more");
    let many: Vec<&Holder> = std::iter::repeat_n(alice, 17).collect();
    says(upload(&many), "more than 16");
    says("x".repeat(delegation::CREDENTIAL_BYTES_MAX + 1), "bytes");
    assert!(delegation::accept_proxy("no key", upload(&[&good.sign(), alice]).as_bytes()).is_err());
}

#[test]
fn proxies_of_others_and_of_strangers_are_told() {
    let grid = Grid::new();
    let (_, delegated) = delegated(&grid);
    let trust = grid.trust();
    let refused = |subject: &str, trust, at| {
        delegation::check_owner(&delegated, trust, subject, at).unwrap_err().detail
    };
    assert!(refused("/DC=org/CN=bob", &trust, NOW).contains("you are /DC=org/CN=bob"));
    let strangers = Grid::new().trust();
    assert!(refused(ALICE, &strangers, NOW).contains("not by the authority"));
    assert!(refused(ALICE, &trust, NOW + DAY).contains("expired"));
}
