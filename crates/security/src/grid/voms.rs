//! VOMS attribute certificates (RFC 5755): a user's groups and roles in a virtual organisation.
//!
//! They are embedded in a proxy. A bad one costs its holder these attributes, not the identity.

use longhaul_model::{Fault, Timestamp};
use rustls::pki_types::CertificateDer;

use super::certificate::{Certificate, Extension, SignedData, extensions};
use super::chain;
use super::der::{
    DerResult, INTEGER, Malformed, OCTET_STRING, OID, Reader, SEQUENCE, SET, context, context_primitive, only,
};
use super::name::{Name, canonical};
use super::trust_store::TrustStore;

/// Attribute certificates of one proxy.
const ATTRIBUTE_CERTIFICATES_MAX: usize = 16;
/// Certificates in one attribute certificate.
const CERTIFICATES_MAX: usize = 8;
/// FQANs of one attribute certificate, and of one identity.
const FQANS_MAX: usize = 256;
/// Bytes of one FQAN.
const FQAN_BYTES_MAX: usize = 512;
/// Names of the holders of an attribute certificate, at most.
const TARGETS_MAX: usize = 64;

/// 1.3.6.1.4.1.8005.100.100.5
const ATTRIBUTE_CERTIFICATES: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0xbe, 0x45, 0x64, 0x64, 0x05];
/// 1.3.6.1.4.1.8005.100.100.4
const FQANS: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0xbe, 0x45, 0x64, 0x64, 0x04];
/// 1.3.6.1.4.1.8005.100.100.10
const CERTIFICATES: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0xbe, 0x45, 0x64, 0x64, 0x0a];
/// 2.5.29.55
const TARGETS: &[u8] = &[0x55, 0x1d, 0x37];
/// 2.5.29.56, no revocation available: ignored, critical or not.
const NO_REVOCATION: &[u8] = &[0x55, 0x1d, 0x38];
/// 2.5.29.35, authority key identifier: ignored, critical or not.
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];

/// The accepted attributes of a chain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) fqans: Vec<String>,
    /// Why some were not accepted.
    pub(super) problem: Option<String>,
    /// When the first of those that count expires.
    pub(super) not_after: Option<Timestamp>,
}

/// Why attributes do not count.
#[derive(Debug, thiserror::Error)]
enum VomsError {
    #[error("the list of attribute certificates is malformed: {0}")]
    MalformedList(Malformed),
    #[error("an attribute certificate is malformed: {0}")]
    Malformed(Malformed),
    #[error("the attributes of {vo} are of another user")]
    OtherHolder { vo: String },
    #[error("the attributes of {vo} are valid from {not_before} to {not_after}: make a new proxy")]
    OutOfDate { vo: String, not_before: Timestamp, not_after: Timestamp },
    #[error("the server of {vo} speaks for others: {fqan}")]
    ForeignFqan { vo: String, fqan: String },
    #[error("its targets are malformed: {0}")]
    MalformedTargets(Malformed),
    #[error("the attributes of {vo} are for other services than this")]
    OtherTarget { vo: String },
    #[error("the attributes of {vo} have a condition that is not understood: {oid}")]
    UnknownCondition { vo: String, oid: String },
    #[error("nothing here says which server speaks for the organisation {vo}")]
    UnknownOrganisation { vo: String },
    #[error("the server's certificates are malformed: {0}")]
    MalformedServerCertificates(Malformed),
    #[error("the attributes of {vo} do not bring the certificate of their server")]
    NoServerCertificate { vo: String },
    #[error("the attributes of {vo} are not signed by {subject}")]
    BadSignature { vo: String, subject: String },
    #[error("{}", .0.detail)]
    ServerChain(#[source] Fault),
    #[error("{subject} is not a server that speaks for {vo} here")]
    OtherServer { vo: String, subject: String },
}

/// Reads the attributes from the proxy nearest to the leaf that has some.
pub(super) fn attributes(
    proxies: &[Certificate<'_>],
    end_entity: &Certificate<'_>,
    trusted: &TrustStore,
    now: Timestamp,
) -> Attributes {
    let mut result = Attributes::default();
    let Some(extension) = proxies.iter().find_map(|proxy| proxy.extension(ATTRIBUTE_CERTIFICATES)) else {
        return result;
    };
    let list = match list(extension.value) {
        Ok(list) => list,
        Err(why) => {
            result.problem = Some(VomsError::MalformedList(why).to_string());
            return result;
        }
    };
    for raw in list {
        let verified = AttributeCertificate::parse(raw)
            .map_err(VomsError::Malformed)
            .and_then(|attributes| attributes.verify(end_entity, trusted, now).map(|()| attributes));
        match verified {
            Ok(attributes) => {
                let ends = attributes.not_after;
                result.not_after = Some(result.not_after.map_or(ends, |first| first.min(ends)));
                for fqan in attributes.fqans {
                    if result.fqans.len() < FQANS_MAX && !result.fqans.contains(&fqan) {
                        result.fqans.push(fqan);
                    }
                }
            }
            // The first cause says most.
            Err(why) => drop(result.problem.get_or_insert(why.to_string())),
        }
    }
    result
}

fn list(value: &[u8]) -> DerResult<Vec<&[u8]>> {
    let mut outer = only(value, SEQUENCE)?;
    let mut inner = outer.open(SEQUENCE)?;
    outer.end()?;
    let mut list = Vec::new();
    while !inner.is_empty() {
        if list.len() == ATTRIBUTE_CERTIFICATES_MAX {
            return Err(Malformed("it has too many"));
        }
        list.push(inner.element(SEQUENCE)?.raw);
    }
    Ok(list)
}

struct AttributeCertificate<'a> {
    signed: SignedData<'a>,
    holder: Name<'a>,
    holder_serial: &'a [u8],
    issuer: Name<'a>,
    not_before: Timestamp,
    not_after: Timestamp,
    vo: String,
    fqans: Vec<String>,
    extensions: Vec<Extension<'a>>,
}

impl<'a> AttributeCertificate<'a> {
    fn parse(der: &'a [u8]) -> DerResult<Self> {
        let signed = SignedData::parse(der)?;
        let mut parts = only(signed.message, SEQUENCE)?;
        let _version = parts.expect(INTEGER)?;
        let (holder, holder_serial) = holder(parts.open(SEQUENCE)?)?;
        // v2Form; version 1 named the issuer without the tag.
        let mut issuer = match parts.optional(context(0))? {
            Some(form) => Reader::new(form).open(SEQUENCE)?,
            None => parts.open(SEQUENCE)?,
        };
        let issuer = directory_name(&mut issuer)?;
        if parts.expect(SEQUENCE)? != signed.algorithm {
            return Err(Malformed("it names two methods of signature"));
        }
        let _serial = parts.expect(INTEGER)?;
        let mut validity = parts.open(SEQUENCE)?;
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let (vo, fqans) = fqans(parts.open(SEQUENCE)?)?;
        let _unique = parts.optional(super::der::BIT_STRING)?;
        let extensions = match parts.is_empty() {
            true => Vec::new(),
            false => extensions(parts.element(SEQUENCE)?.raw)?,
        };
        parts.end()?;
        Ok(AttributeCertificate {
            signed,
            holder,
            holder_serial,
            issuer,
            not_before,
            not_after,
            vo,
            fqans,
            extensions,
        })
    }

    fn verify(
        &self,
        end_entity: &Certificate<'_>,
        trusted: &TrustStore,
        now: Timestamp,
    ) -> Result<(), VomsError> {
        let vo = || self.vo.clone();
        // VOMS's older servers and tools put the holder's own name where the standard wants the issuer's.
        let named = self.holder == end_entity.issuer || self.holder == end_entity.subject;
        if !named || self.holder_serial != end_entity.serial {
            return Err(VomsError::OtherHolder { vo: vo() });
        }
        if now < self.not_before || now > self.not_after {
            let (not_before, not_after) = (self.not_before, self.not_after);
            return Err(VomsError::OutOfDate { vo: vo(), not_before, not_after });
        }
        self.check_extensions(trusted)?;
        for fqan in &self.fqans {
            let rest = fqan.strip_prefix('/').and_then(|rest| rest.strip_prefix(self.vo.as_str()));
            if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
                return Err(VomsError::ForeignFqan { vo: vo(), fqan: fqan.clone() });
            }
        }
        self.check_server(trusted, now)
    }

    fn check_extensions(&self, trusted: &TrustStore) -> Result<(), VomsError> {
        for extension in &self.extensions {
            match extension.oid {
                TARGETS => {
                    let targets = targets(extension.value).map_err(VomsError::MalformedTargets)?;
                    if !targets.iter().any(|target| trusted.is_our_host(target)) {
                        return Err(VomsError::OtherTarget { vo: self.vo.clone() });
                    }
                }
                NO_REVOCATION | AUTHORITY_KEY_ID | CERTIFICATES => {}
                other if extension.critical => {
                    let oid = super::der::dotted_oid(other);
                    return Err(VomsError::UnknownCondition { vo: self.vo.clone(), oid });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a server that speaks for the organisation signed it.
    fn check_server(&self, trusted: &TrustStore, now: Timestamp) -> Result<(), VomsError> {
        let vo = || self.vo.clone();
        let Some(voms) = trusted.voms(&self.vo) else {
            return Err(VomsError::UnknownOrganisation { vo: vo() });
        };
        let brought = self.certificates().map_err(VomsError::MalformedServerCertificates)?;
        let known = voms.certificates().filter_map(|der| Certificate::parse(der).ok());
        let mut servers: Vec<(Certificate<'_>, bool)> = known.map(|server| (server, true)).collect();
        let mut brought = brought.into_iter();
        let first = brought.next();
        let others: Vec<Certificate<'_>> = brought.collect();
        servers.extend(first.map(|server| (server, false)));
        let mut refusal = VomsError::NoServerCertificate { vo: vo() };
        for (server, known) in servers.iter().filter(|(server, _)| server.subject == self.issuer) {
            match self.check_one_server(server, *known, &others, voms.chains(), trusted, now) {
                Ok(()) => return Ok(()),
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    fn check_one_server(
        &self,
        server: &Certificate<'_>,
        known: bool,
        others: &[Certificate<'_>],
        chains: &[Vec<String>],
        trusted: &TrustStore,
        now: Timestamp,
    ) -> Result<(), VomsError> {
        let (vo, subject) = (self.vo.clone(), server.subject_text());
        if self.signed.verify(server.key).is_err() {
            return Err(VomsError::BadSignature { vo, subject });
        }
        let path = chain::server_path(server, others, trusted, now).map_err(VomsError::ServerChain)?;
        let mut names = vec![canonical(&subject)];
        names.extend(path.issuers.iter().map(|issuer| canonical(issuer)));
        // A file that ends at an intermediate authority is for all above it.
        if known || chains.iter().any(|chain| names.starts_with(chain)) {
            return Ok(());
        }
        Err(VomsError::OtherServer { vo, subject })
    }

    fn certificates(&self) -> DerResult<Vec<Certificate<'a>>> {
        let Some(extension) = self.extensions.iter().find(|extension| extension.oid == CERTIFICATES) else {
            return Ok(Vec::new());
        };
        let mut outer = only(extension.value, SEQUENCE)?;
        let mut list = outer.open(SEQUENCE)?;
        outer.end()?;
        let mut all = Vec::new();
        while !list.is_empty() {
            if all.len() == CERTIFICATES_MAX {
                return Err(Malformed("there are too many"));
            }
            all.push(Certificate::parse(list.element(SEQUENCE)?.raw)?);
        }
        Ok(all)
    }
}

/// Issuer and serial number of the holder's certificate. Other ways to say who it is are not understood.
fn holder<'a>(mut holder: Reader<'a>) -> DerResult<(Name<'a>, &'a [u8])> {
    let mut base = holder.open(context(0))?;
    holder.end()?;
    let issuer = directory_name(&mut base.open(SEQUENCE)?)?;
    let serial = base.expect(INTEGER)?;
    let _unique = base.optional(super::der::BIT_STRING)?;
    base.end()?;
    Ok((issuer, serial))
}

/// The one directory name in a list of general names.
fn directory_name<'a>(names: &mut Reader<'a>) -> DerResult<Name<'a>> {
    let mut name = names.open(context(4))?;
    names.end()?;
    let inside = name.expect(SEQUENCE)?;
    name.end()?;
    Ok(Name(inside))
}

/// The organisation and its attributes.
fn fqans(mut attributes: Reader<'_>) -> DerResult<(String, Vec<String>)> {
    while !attributes.is_empty() {
        let mut attribute = attributes.open(SEQUENCE)?;
        if attribute.expect(OID)? != FQANS {
            continue;
        }
        let mut syntax = attribute.open(SET)?.open(SEQUENCE)?;
        let authority = syntax.optional(context(0))?;
        let mut values = syntax.open(SEQUENCE)?;
        let mut fqans = Vec::new();
        while !values.is_empty() {
            if fqans.len() == FQANS_MAX {
                return Err(Malformed("it has too many attributes"));
            }
            fqans.push(fqan(values.expect(OCTET_STRING)?)?);
        }
        let Some(first) = fqans.first() else { return Err(Malformed("it has no attribute")) };
        let by_first = || first.split('/').nth(1).map(str::to_owned);
        let vo = match authority.map(organisation).transpose()?.flatten().or_else(by_first) {
            Some(vo) if is_organisation(&vo) => vo,
            _ => return Err(Malformed("it names no organisation")),
        };
        return Ok((vo, fqans));
    }
    Err(Malformed("it has no attributes of VOMS"))
}

/// `atlas` of `atlas://voms.example.org:15001`.
fn organisation(names: &[u8]) -> DerResult<Option<String>> {
    let uri = Reader::new(names).expect(context_primitive(6))?;
    let uri = std::str::from_utf8(uri).map_err(|_| Malformed("the address of its server is no text"))?;
    Ok(uri.split_once("://").map(|(vo, _)| vo.to_owned()))
}

/// It becomes the name of a directory and a part of a name.
pub(super) fn is_organisation(vo: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    vo.len() <= 255 && vo.starts_with(|c: char| c.is_ascii_alphanumeric()) && vo.bytes().all(fits)
}

fn fqan(bytes: &[u8]) -> DerResult<String> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed("an attribute is no text"))?;
    let printable = text.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
    if !text.starts_with('/') || text.len() > FQAN_BYTES_MAX || !printable {
        return Err(Malformed("an attribute is none (/vo/group/Role=role)"));
    }
    Ok(text.to_owned())
}

/// Names of services, from three levels of lists.
fn targets(value: &[u8]) -> DerResult<Vec<String>> {
    let mut found = Vec::new();
    let mut lists = only(value, SEQUENCE)?;
    while !lists.is_empty() {
        let mut list = lists.open(SEQUENCE)?;
        while !list.is_empty() {
            if found.len() == TARGETS_MAX {
                return Err(Malformed("there are too many"));
            }
            let mut target = Reader::new(list.next()?.content);
            let name = target.next()?;
            if name.tag == context_primitive(6) || name.tag == context_primitive(2) {
                let text = std::str::from_utf8(name.content).map_err(|_| Malformed("one is no text"))?;
                found.push(text.to_owned());
            }
        }
    }
    Ok(found)
}

/// What a site says about one organisation.
#[derive(Debug, Default)]
pub(super) struct Organisation {
    pub(super) chains: Vec<Vec<String>>,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

impl Organisation {
    fn chains(&self) -> &[Vec<String>] {
        &self.chains
    }

    fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.certificates.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::der::dotted_oid;
    use proptest::prelude::*;

    #[test]
    fn identifiers_are_those_of_the_standards() {
        for (oid, text) in [
            (ATTRIBUTE_CERTIFICATES, "1.3.6.1.4.1.8005.100.100.5"),
            (FQANS, "1.3.6.1.4.1.8005.100.100.4"),
            (CERTIFICATES, "1.3.6.1.4.1.8005.100.100.10"),
            (TARGETS, "2.5.29.55"),
            (NO_REVOCATION, "2.5.29.56"),
            (AUTHORITY_KEY_ID, "2.5.29.35"),
        ] {
            assert_eq!(dotted_oid(oid), text);
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = (list(&bytes), targets(&bytes), fqans(Reader::new(&bytes)).is_ok());
            prop_assert!(AttributeCertificate::parse(&bytes).is_err());
        }
    }
}
