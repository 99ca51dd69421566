//! Proxy certificates (RFC 3820): certificates that a user signs to delegate their identity for some hours.

use longhaul_model::{Fault, Timestamp};

use super::certificate::{BadSignature, Certificate, Extension, oid};
use super::chain::refused;
use super::der::{DerResult, INTEGER, OCTET_STRING, OID, SEQUENCE, dotted_oid, only, small_integer};

/// Proxies of one chain.
pub(super) const PROXIES_MAX: usize = 10;

/// 1.3.6.1.5.5.7.1.14
const PROXY_INFO: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x01, 0x0e];
/// 1.3.6.1.4.1.3536.1.222, of drafts before the RFC.
const DRAFT_PROXY_INFO: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x9b, 0x50, 0x01, 0x81, 0x5e];
/// 1.3.6.1.5.5.7.21.1
const INHERIT_ALL: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x15, 0x01];
/// 1.3.6.1.5.5.7.21.2
const INDEPENDENT: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x15, 0x02];
/// 1.3.6.1.4.1.3536.1.1.1.9
const LIMITED: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x9b, 0x50, 0x01, 0x01, 0x01, 0x09];

/// 2.5.29.35
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
/// 2.5.29.14
const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
/// 2.5.29.32
const CERTIFICATE_POLICIES: &[u8] = &[0x55, 0x1d, 0x20];

/// Key usage bit `digitalSignature`, as in [`Certificate::key_usage`].
const DIGITAL_SIGNATURE: u16 = 0x8000;
/// Key usage bit `nonRepudiation`.
const NON_REPUDIATION: u16 = 0x4000;
/// Key usage bit `keyCertSign`.
const SIGNS_CERTIFICATES: u16 = 0x0400;

/// What a proxy says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProxyInfo {
    /// Proxies that may follow it.
    pub(super) path_length: Option<u32>,
    pub(super) limited: bool,
}

/// The proxy extension of a certificate, if it has one; its signature is not checked here.
pub(super) fn proxy_info(certificate: &Certificate<'_>) -> Result<Option<ProxyInfo>, Fault> {
    let shown = || certificate.subject_text();
    if certificate.extension(DRAFT_PROXY_INFO).is_some() {
        return Err(legacy(&shown(), "of a draft before RFC 3820"));
    }
    let Some(extension) = certificate.extension(PROXY_INFO) else { return Ok(None) };
    if !extension.critical {
        return Err(refused(format!("{} is no proxy: its proxy extension is not critical", shown())));
    }
    let (path_length, policy, details) = read(extension)
        .map_err(|why| refused(format!("the proxy extension of {} is malformed: {why}", shown())))?;
    let limited = match policy {
        INHERIT_ALL if details.is_none() => false,
        LIMITED => true,
        INDEPENDENT => {
            let detail = format!("{} is an independent proxy, which has no right of its user", shown());
            return Err(refused(detail));
        }
        INHERIT_ALL => {
            return Err(refused(format!("{} inherits all and has a policy: it cannot be both", shown())));
        }
        other => {
            let detail = format!(
                "the proxy {} has a policy in a language that is not understood: {}",
                shown(),
                dotted_oid(other)
            );
            return Err(refused(detail));
        }
    };
    Ok(Some(ProxyInfo { path_length, limited }))
}

/// Checks a proxy against the certificate of its issuer.
pub(super) fn check(proxy: &Certificate<'_>, issuer: &Certificate<'_>, now: Timestamp) -> Result<(), Fault> {
    let no = |why: &str| Err(refused(format!("the proxy {} {why}", proxy.subject_text())));
    match proxy.subject.split_common_name() {
        Some((before, _)) if before == issuer.subject => {}
        _ => return no("does not have its issuer's name and one common name more"),
    }
    if now < proxy.not_before {
        return no("is not valid yet: are the clocks right?");
    }
    if now > proxy.not_after {
        return no("has expired: make a new one");
    }
    match proxy.signed.verify(issuer.key) {
        Ok(()) => {}
        Err(BadSignature::Wrong) => return no("has a signature that is not its issuer's"),
        Err(BadSignature::Refused) => {
            return no("is signed by a method or key that is not accepted (SHA-1, MD5, RSA below 2048 bits)");
        }
    }
    let (Ok(proxy_is_authority), Ok(issuer_is_authority)) = (proxy.is_authority(), issuer.is_authority())
    else {
        return no("or its issuer has basic constraints that cannot be read");
    };
    if proxy_is_authority || issuer_is_authority {
        return no("is, or is signed by, an authority");
    }
    if proxy.extension(oid::SUBJECT_ALTERNATIVE).is_some()
        || proxy.extension(oid::ISSUER_ALTERNATIVE).is_some()
    {
        return no("has alternative names");
    }
    let (Ok(usage), Ok(issuer_usage)) = (proxy.key_usage(), issuer.key_usage()) else {
        return no("or its issuer has a key usage that cannot be read");
    };
    if usage.is_some_and(|usage| usage & (SIGNS_CERTIFICATES | NON_REPUDIATION) != 0) {
        return no("has a key usage that proxies may not have");
    }
    if usage.is_some_and(|usage| usage & DIGITAL_SIGNATURE == 0) {
        return no("has a key that may not sign");
    }
    if issuer_usage.is_some_and(|usage| usage & DIGITAL_SIGNATURE == 0) {
        return no("is signed by a key that may not sign");
    }
    match proxy.extensions.iter().find(|extension| extension.critical && !is_understood(extension)) {
        Some(unknown) => {
            no(&format!("has a critical extension that is not understood: {}", dotted_oid(unknown.oid)))
        }
        None => Ok(()),
    }
}

/// Refuses legacy proxies (before RFC 3820), which are recognised by their name alone.
pub(super) fn refuse_legacy(certificate: &Certificate<'_>) -> Result<(), Fault> {
    match certificate.subject.split_common_name() {
        Some((before, b"proxy" | b"limited proxy")) if before == certificate.issuer => {
            Err(legacy(&certificate.subject_text(), "of the Globus Toolkit 2 kind"))
        }
        _ => Ok(()),
    }
}

fn legacy(subject: &str, kind: &str) -> Fault {
    refused(format!(
        "{subject} is a legacy proxy, {kind}, which is not accepted: make one by RFC 3820 (voms-proxy-init \
            -rfc, grid-proxy-init -rfc)"
    ))
}

type Fields<'a> = (Option<u32>, &'a [u8], Option<&'a [u8]>);

fn read<'a>(extension: &Extension<'a>) -> DerResult<Fields<'a>> {
    let mut parts = only(extension.value, SEQUENCE)?;
    let path_length = match parts.optional(INTEGER)? {
        None => None,
        Some(number) => {
            Some(small_integer(number).ok_or(super::der::Malformed("its path length is no number"))?)
        }
    };
    let mut policy = parts.open(SEQUENCE)?;
    let language = policy.expect(OID)?;
    let details = policy.optional(OCTET_STRING)?;
    policy.end()?;
    parts.end()?;
    Ok((path_length, language, details))
}

fn is_understood(extension: &Extension<'_>) -> bool {
    let understood = [
        PROXY_INFO,
        oid::KEY_USAGE,
        oid::BASIC_CONSTRAINTS,
        oid::EXTENDED_KEY_USAGE,
        AUTHORITY_KEY_ID,
        SUBJECT_KEY_ID,
        CERTIFICATE_POLICIES,
    ];
    understood.contains(&extension.oid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_those_of_the_standards() {
        for (oid, text) in [
            (PROXY_INFO, "1.3.6.1.5.5.7.1.14"),
            (DRAFT_PROXY_INFO, "1.3.6.1.4.1.3536.1.222"),
            (INHERIT_ALL, "1.3.6.1.5.5.7.21.1"),
            (INDEPENDENT, "1.3.6.1.5.5.7.21.2"),
            (LIMITED, "1.3.6.1.4.1.3536.1.1.1.9"),
            (AUTHORITY_KEY_ID, "2.5.29.35"),
            (SUBJECT_KEY_ID, "2.5.29.14"),
            (CERTIFICATE_POLICIES, "2.5.29.32"),
        ] {
            assert_eq!(dotted_oid(oid), text);
        }
    }
}
