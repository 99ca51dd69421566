//! Path validation from the shown certificate to a trusted root: proxies by RFC 3820 here, the rest by webpki
//! (RFC 5280).

use longhaul_model::{Fault, FaultCode, Timestamp};
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage};

use super::certificate::Certificate;
use super::proxy::{self, PROXIES_MAX};
use super::trust_store::TrustStore;

/// Certificates of one chain, including the root.
pub(super) const CHAIN_MAX: usize = 16;
/// Bytes of one certificate: a proxy may hold the attribute certificates of several organisations.
pub(super) const CERTIFICATE_BYTES_MAX: usize = 32 << 10;

/// A verified chain.
pub(super) struct VerifiedChain<'a> {
    /// The proxies, the one shown first.
    pub(super) proxies: Vec<Certificate<'a>>,
    pub(super) end_entity: Certificate<'a>,
    pub(super) limited: bool,
    pub(super) not_after: Timestamp,
    /// When the chain must be verified again: something it rests on expires then.
    pub(super) recheck: Timestamp,
}

/// From an end-entity certificate to a root.
pub(super) struct Path {
    /// Subjects of the authorities, the nearest first.
    pub(super) issuers: Vec<String>,
    not_after: Timestamp,
    recheck: Timestamp,
}

pub(super) fn parse<'a>(chain: &'a [CertificateDer<'_>]) -> Result<Vec<Certificate<'a>>, Fault> {
    if chain.is_empty() {
        return Err(refused("no certificate was shown".into()));
    }
    if chain.len() > CHAIN_MAX {
        return Err(refused(format!("the chain has {} certificates, {CHAIN_MAX} are accepted", chain.len())));
    }
    let mut parsed = Vec::with_capacity(chain.len());
    for (place, der) in chain.iter().enumerate() {
        let place = place + 1;
        if der.len() > CERTIFICATE_BYTES_MAX {
            return Err(refused(format!(
                "certificate {place} of the chain has more than {CERTIFICATE_BYTES_MAX} bytes"
            )));
        }
        let certificate = Certificate::parse(der)
            .map_err(|why| refused(format!("certificate {place} of the chain is malformed: {why}")))?;
        parsed.push(certificate);
    }
    Ok(parsed)
}

pub(super) fn verify<'a>(
    mut sent: Vec<Certificate<'a>>,
    trusted: &TrustStore,
    now: Timestamp,
) -> Result<VerifiedChain<'a>, Fault> {
    let mut proxies: Vec<Certificate<'a>> = Vec::new();
    let mut limited = false;
    let mut current = sent.remove(0);
    while let Some(info) = proxy::proxy_info(&current)? {
        // Proxies nearer to the leaf were walked first; they are the ones that follow it.
        if info.path_length.is_some_and(|most| proxies.len() > most as usize) {
            let detail =
                format!("{} allows fewer proxies to follow it than there are", current.subject_text());
            return Err(refused(detail));
        }
        if proxies.len() == PROXIES_MAX {
            return Err(refused(format!("the chain has more than {PROXIES_MAX} proxies")));
        }
        limited |= info.limited;
        let issuer = take_issuer(&mut sent, &current)?;
        proxy::check(&current, &issuer, now)?;
        proxies.push(std::mem::replace(&mut current, issuer));
    }
    proxy::refuse_legacy(&current)?;
    let path = path(&current, &sent, trusted, now, Purpose::Client)?;
    let not_after = proxies.iter().map(|proxy| proxy.not_after).fold(path.not_after, Ord::min);
    let recheck = path.recheck.min(not_after);
    Ok(VerifiedChain { proxies, end_entity: current, limited, not_after, recheck })
}

/// Takes the certificate that signed a proxy. Several may have its name (after a renewal): the one with the
/// right key.
fn take_issuer<'a>(
    sent: &mut Vec<Certificate<'a>>,
    proxy: &Certificate<'_>,
) -> Result<Certificate<'a>, Fault> {
    let named = |other: &Certificate<'_>| other.subject == proxy.issuer;
    let signed = sent.iter().position(|other| named(other) && proxy.signed.verify(other.key).is_ok());
    match signed.or_else(|| sent.iter().position(named)) {
        Some(place) => Ok(sent.remove(place)),
        None => Err(refused(format!(
            "the certificate that signed the proxy {} was not shown: send the whole chain",
            proxy.subject_text()
        ))),
    }
}

/// The path of a VOMS server, whose certificate may be for servers only.
pub(super) fn server_path(
    server: &Certificate<'_>,
    others: &[Certificate<'_>],
    trusted: &TrustStore,
    now: Timestamp,
) -> Result<Path, Fault> {
    path(server, others, trusted, now, Purpose::Any)
}

#[derive(Clone, Copy)]
enum Purpose {
    Client,
    Any,
}

impl ExtendedKeyUsageValidator for Purpose {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        match self {
            Purpose::Client => KeyUsage::client_auth().validate(purposes),
            Purpose::Any => Ok(()),
        }
    }
}

fn path(
    end_entity: &Certificate<'_>,
    others: &[Certificate<'_>],
    trusted: &TrustStore,
    now: Timestamp,
    purpose: Purpose,
) -> Result<Path, Fault> {
    let subject = end_entity.subject_text();
    let flawed = |error: webpki::Error| refused(explain(&error, end_entity));
    let der = CertificateDer::from(end_entity.der);
    let parsed = EndEntityCert::try_from(&der).map_err(flawed)?;
    let mut intermediates: Vec<CertificateDer<'_>> =
        others.iter().map(|other| CertificateDer::from(other.der)).collect();
    intermediates.extend(trusted.intermediates().map(|der| CertificateDer::from(&der[..])));
    let time = UnixTime::since_unix_epoch(now.since(Timestamp(0)));
    let verified = parsed
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            trusted.anchors(),
            &intermediates,
            time,
            purpose,
            None, // revocation is looked at below, by rules of the grid
            None,
        )
        .map_err(flawed)?;
    let mut path =
        Path { issuers: Vec::new(), not_after: end_entity.not_after, recheck: end_entity.not_after };
    path.add(end_entity, trusted, now)?;
    for authority in verified.intermediate_certificates() {
        let der = authority.der();
        let authority = Certificate::parse(&der)
            .map_err(|why| refused(format!("an issuer of {subject} is malformed: {why}")))?;
        path.add(&authority, trusted, now)?;
    }
    Ok(path)
}

impl Path {
    /// Adds the issuer of `certificate`, if its policy permits the subject and it has not revoked the
    /// certificate.
    fn add(
        &mut self,
        certificate: &Certificate<'_>,
        trusted: &TrustStore,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let (issuer, until) = trusted.check_issued(certificate, now)?;
        self.issuers.push(issuer);
        self.not_after = self.not_after.min(certificate.not_after);
        self.recheck = until.map_or(self.recheck, |until| self.recheck.min(until)).min(certificate.not_after);
        Ok(())
    }
}

/// Explains webpki's error to the holder.
fn explain(error: &webpki::Error, end_entity: &Certificate<'_>) -> String {
    use webpki::Error::*;
    let subject = end_entity.subject_text();
    let issuer = end_entity.issuer.one_line().unwrap_or_default();
    match error {
        UnknownIssuer => format!("{subject} is from an authority that is not trusted here: {issuer}"),
        CertExpired { .. } => format!("{subject}, or an authority above it, has expired"),
        CertNotValidYet { .. } => {
            format!("{subject}, or an authority above it, is not valid yet: are the clocks right?")
        }
        CaUsedAsEndEntity => format!("{subject} is an authority's certificate, which is nobody's identity"),
        InvalidSignatureForPublicKey => {
            format!("{subject} has a signature that is not by the authority it names, {issuer}")
        }
        RequiredEkuNotFoundContext(_) => format!("{subject} is not meant for clients of TLS"),
        other => format!("{subject} cannot be verified: {other}"),
    }
}

pub(super) fn refused(detail: String) -> Fault {
    Fault::new(FaultCode::NotAuthenticated, detail)
}
