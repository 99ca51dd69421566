//! Delegation of proxy certificates (RFC 3820): a user signs a proxy for a key of ours, so that transfers run
//! with their rights, and no key travels.
//!
//! The rules and the texts are those of FTS, which clients know (`fts-rest` section 2.2). Not here: where
//! keys and proxies are kept (`catalog`, as opaque bytes), and whose delegation a caller may touch
//! (`service`).

use longhaul_model::{Fault, FaultCode, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use zeroize::{Zeroize, Zeroizing};

use crate::grid::{Certificate, GridTrust, same_subject};
use crate::{SecurityError, text};

/// Bytes of an uploaded credential: the longest chains with attributes fit.
pub const CREDENTIAL_BYTES_MAX: usize = 256 << 10;
/// Certificates of an uploaded credential.
const CERTIFICATES_MAX: usize = 16;

/// A key pair of ours that waits for its proxy.
pub struct DelegationRequest {
    /// PKCS#8, PEM.
    pub key_pem: Zeroizing<String>,
    /// PKCS#10, PEM: what the user signs a proxy for.
    pub request_pem: String,
    /// Size of the RSA key.
    pub bits: u32,
}

/// A proxy with its key, as it is stored and used: the proxy, its key, the chain behind it, all PEM.
pub struct DelegatedCredential {
    pub credential_pem: Zeroizing<String>,
    /// The chain without the key, the proxy first.
    pub chain_pem: String,
    /// The earliest expiry of all certificates.
    pub not_after: Timestamp,
}

/// The size of our key for a caller with a key of this size.
pub fn key_bits(caller: Option<u32>) -> u32 {
    match caller {
        Some(4097..) | Some(3073..=4096) => 4096,
        Some(2049..=3072) => 3072,
        _ => 2048,
    }
}

/// Makes a key and the request for a proxy. Takes a tenth of a second and more.
pub fn new_request(bits: u32) -> Result<DelegationRequest, Fault> {
    let size = match bits {
        2048 => RsaKeySize::_2048,
        3072 => RsaKeySize::_3072,
        4096 => RsaKeySize::_4096,
        other => return Err(Fault::new(FaultCode::BadRequest, format!("keys of {other} bits are not made"))),
    };
    let failed = |error: rcgen::Error| {
        Fault::new(FaultCode::Internal, format!("cannot make a key: {error}")).with_source(error)
    };
    let mut key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, size).map_err(failed)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // As FTS names it. Clients give the proxy the name that its rules ask for.
    params.distinguished_name.push(DnType::OrganizationName, "Dummy");
    let request = params.serialize_request(&key).and_then(|request| request.pem());
    let der = Zeroizing::new(key.serialize_der());
    key.zeroize();
    let key_pem = Zeroizing::new(text::to_pem("PRIVATE KEY", &der));
    Ok(DelegationRequest { key_pem, request_pem: request.map_err(failed)?, bits })
}

/// Checks an uploaded proxy with its chain against the key it was requested for.
pub fn accept_proxy(key_pem: &str, uploaded: &[u8]) -> Result<DelegatedCredential, Fault> {
    if uploaded.len() > CREDENTIAL_BYTES_MAX {
        return Err(rejected(&format!("it has more than {CREDENTIAL_BYTES_MAX} bytes")));
    }
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(uploaded) {
        chain.push(
            certificate.map_err(|error| rejected(&format!("it is no PEM: {error}")).with_source(error))?,
        );
        if chain.len() > CERTIFICATES_MAX {
            return Err(rejected(&format!("it has more than {CERTIFICATES_MAX} certificates")));
        }
    }
    let [first, second, ..] = &chain[..] else { return Err(rejected("Malformed proxy")) };
    let mut key = KeyPair::from_pem_and_sign_algo(key_pem, &PKCS_RSA_SHA256)
        .map_err(|error| SecurityError::unusable("the stored key of the delegation", error))?;
    let ours = rcgen::PublicKeyData::subject_public_key_info(&key);
    key.zeroize();
    check(&parsed(first)?, &parsed(second)?, &ours)?;
    let mut not_after = parsed(first)?.not_after;
    for other in &chain {
        not_after = not_after.min(parsed(other)?.not_after);
    }
    let chain: Vec<String> = chain.iter().map(|der| text::to_pem("CERTIFICATE", der)).collect();
    let mut credential_pem = Zeroizing::new(String::with_capacity(uploaded.len() + key_pem.len() + 64));
    credential_pem.push_str(&chain[0]);
    credential_pem.push_str(key_pem);
    chain[1..].iter().for_each(|certificate| credential_pem.push_str(certificate));
    Ok(DelegatedCredential { credential_pem, chain_pem: chain.concat(), not_after })
}

/// Checks that the proxy is of a trusted user, and of `subject`. FTS does not check, so transfers fail later,
/// elsewhere.
pub fn check_owner(
    delegated: &DelegatedCredential,
    trust: &GridTrust,
    subject: &str,
    now: Timestamp,
) -> Result<(), Fault> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(delegated.chain_pem.as_bytes()).collect();
    let chain = chain.map_err(|error| rejected(&error.to_string()).with_source(error))?;
    let identity = trust.verify_chain(&chain, now).map_err(|fault| rejected(&fault.detail))?;
    if !same_subject(&identity.subject, subject) {
        return Err(rejected(&format!("it is of {}, you are {subject}", identity.subject)));
    }
    Ok(())
}

fn check(proxy: &Certificate<'_>, issuer: &Certificate<'_>, key: &[u8]) -> Result<(), Fault> {
    if proxy.key != key {
        return Err(rejected("The proxy does not match the stored associated private key"));
    }
    if proxy.signed.verify(issuer.key).is_err() {
        return Err(rejected("The proxy is not signed by the certificate that follows it"));
    }
    match proxy.subject.split_common_name() {
        Some((before, _)) if before == proxy.issuer && before == issuer.subject => Ok(()),
        _ => Err(rejected("The subject of the proxy is not its issuer's with one common name more")),
    }
}

fn parsed<'a>(der: &'a CertificateDer<'_>) -> Result<Certificate<'a>, Fault> {
    Certificate::parse(der).map_err(|why| rejected(&format!("a certificate is malformed: {why}")))
}

fn rejected(why: &str) -> Fault {
    Fault::new(FaultCode::BadRequest, format!("Could not process the proxy: {why}"))
}
