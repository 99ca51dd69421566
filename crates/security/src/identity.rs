//! Identities in X.509 certificates (URI subject alternative names, RFC 5280 section 4.2.1.6), and the
//! credentials of a process.

use std::fmt;
use std::str::FromStr;

use longhaul_model::{AgentId, Fault, FaultCode, SiteName, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::{SecurityError, text};

/// Scheme of our URI names.
const SCHEME: &str = "longhaul://";

/// The holder of a certificate of ours, from its URI name: `longhaul://DEPLOYMENT/agent/SITE/AGENTID` or
/// `longhaul://DEPLOYMENT/service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    Agent { deployment: String, agent: AgentId, site: SiteName },
    Service { deployment: String },
}

impl PeerIdentity {
    pub fn deployment(&self) -> &str {
        match self {
            PeerIdentity::Agent { deployment, .. } | PeerIdentity::Service { deployment } => deployment,
        }
    }

    /// Returns this identity if it belongs to `deployment`.
    pub fn require_deployment(self, deployment: &str) -> Result<Self, Fault> {
        if self.deployment() == deployment {
            return Ok(self);
        }
        let detail =
            format!("the peer belongs to the deployment {}, this is {deployment}", self.deployment());
        Err(Fault::new(FaultCode::ForeignDeployment, detail))
    }

    /// Returns the agent; fails for the service.
    pub fn require_agent(&self) -> Result<(AgentId, &SiteName), Fault> {
        match self {
            PeerIdentity::Agent { agent, site, .. } => Ok((*agent, site)),
            PeerIdentity::Service { .. } => Err(Fault::new(
                FaultCode::NotAuthenticated,
                "the peer is the service, an agent is expected here",
            )),
        }
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerIdentity::Agent { deployment, agent, site } => {
                write!(f, "{SCHEME}{deployment}/agent/{site}/{agent}")
            }
            PeerIdentity::Service { deployment } => write!(f, "{SCHEME}{deployment}/service"),
        }
    }
}

impl FromStr for PeerIdentity {
    type Err = Fault;
    fn from_str(uri: &str) -> Result<Self, Fault> {
        // One spelling for one identity: ids of people's commands may be in lower case, those of certificates
        // not.
        parse(uri).filter(|identity| identity.to_string() == uri).ok_or_else(|| {
            Fault::new(FaultCode::NotAuthenticated, "the name in the certificate is malformed")
        })
    }
}

fn parse(uri: &str) -> Option<PeerIdentity> {
    let mut parts = uri.strip_prefix(SCHEME)?.split('/');
    let deployment = parts.next()?.to_owned();
    text::check_deployment(&deployment).ok()?;
    let identity = match parts.next()? {
        "service" => PeerIdentity::Service { deployment },
        "agent" => {
            let site = parts.next()?.parse().ok()?;
            PeerIdentity::Agent { deployment, agent: parts.next()?.parse().ok()?, site }
        }
        _ => return None,
    };
    parts.next().is_none().then_some(identity)
}

/// A process's certificate and key, and the CA that it trusts, all PEM.
#[derive(Clone)]
pub struct Credentials {
    pub certificate_pem: String,
    pub key_pem: String,
    pub ca_pem: String,
}

impl Credentials {
    /// The identity in the certificate.
    pub fn identity(&self) -> Result<PeerIdentity, Fault> {
        peer_identity(&first_certificate(&self.certificate_pem)?)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.identity() {
            Ok(identity) => write!(f, "Credentials({identity}, key hidden)"),
            Err(_) => f.write_str("Credentials(unusable, key hidden)"),
        }
    }
}

/// The identity in a certificate. It means something only if the chain has been verified, as every TLS
/// setting of this crate does. Read by the parser that verifies chains, so that no second one can understand
/// a certificate differently.
pub fn peer_identity(certificate: &CertificateDer<'_>) -> Result<PeerIdentity, Fault> {
    let refuse = |detail: &str| Err(Fault::new(FaultCode::NotAuthenticated, detail));
    let Ok(parsed) = webpki::EndEntityCert::try_from(certificate) else {
        return refuse("the peer's certificate cannot be parsed");
    };
    let mut uris = parsed.valid_uri_names().filter(|uri| uri.starts_with(SCHEME));
    match (uris.next(), uris.next()) {
        (Some(uri), None) => uri.parse(),
        (None, _) => refuse("the peer's certificate names neither an agent nor a service of Longhaul"),
        (Some(_), Some(_)) => refuse("the peer's certificate names more than one identity"),
    }
}

/// Whether a certificate claims an identity of ours, rightly or not: then our own CA decides about it.
pub(crate) fn claims_identity(certificate: &CertificateDer<'_>) -> bool {
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|parsed| parsed.valid_uri_names().any(|uri| uri.starts_with(SCHEME)))
}

/// When the first certificate of a PEM text expires.
pub fn expires(certificate_pem: &str) -> Result<Timestamp, SecurityError> {
    Ok(validity(certificate_pem)?.1)
}

/// Whether half of its validity has passed.
pub fn needs_renewal(certificate_pem: &str, now: Timestamp) -> Result<bool, SecurityError> {
    let (begins, ends) = validity(certificate_pem)?;
    Ok(now >= begins + ends.since(begins) / 2)
}

fn validity(certificate_pem: &str) -> Result<(Timestamp, Timestamp), SecurityError> {
    let der = first_certificate(certificate_pem)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der)
        .map_err(|_| SecurityError::unusable("certificate", "malformed"))?;
    let validity = certificate.validity();
    let at = |time: x509_parser::time::ASN1Time| Timestamp::from_seconds(time.timestamp());
    Ok((at(validity.not_before), at(validity.not_after)))
}

fn first_certificate(pem: &str) -> Result<CertificateDer<'static>, SecurityError> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| SecurityError::unusable("certificate", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, new_signing_request};
    use proptest::prelude::*;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp(1_780_000_000_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    fn credentials() -> Credentials {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "tier0", NOW).unwrap();
        let pair = authority.issue_service(&[], NOW).unwrap();
        Credentials {
            certificate_pem: pair.certificate_pem,
            key_pem: pair.key_pem,
            ca_pem: authority.ca_pem().into(),
        }
    }

    #[test]
    fn an_agents_certificate_lives_30_days_and_is_renewed_after_half() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "tier0", NOW).unwrap();
        let (request, _) = new_signing_request().unwrap();
        let site = "alpha".parse().unwrap();
        let certificate = authority.issue_agent(&request, AgentId(7), &site, NOW).unwrap().certificate_pem;
        assert_eq!(expires(&certificate).unwrap(), NOW + 30 * DAY);
        assert!(!needs_renewal(&certificate, NOW + 14 * DAY).unwrap());
        assert!(needs_renewal(&certificate, NOW + 15 * DAY).unwrap());
        let service = credentials().certificate_pem;
        assert_eq!(expires(&service).unwrap(), NOW + 90 * DAY);
        assert!(needs_renewal("garbage", NOW).is_err());
    }

    #[test]
    fn the_key_stays_out_of_debug_output() {
        let credentials = credentials();
        let shown = format!("{credentials:?}");
        assert!(shown.contains("longhaul://tier0/service") && !shown.contains("PRIVATE"), "{shown}");
    }

    #[test]
    fn foreign_certificates_have_no_identity() {
        let credentials = credentials();
        let ca = CertificateDer::from_pem_slice(credentials.ca_pem.as_bytes()).unwrap();
        assert_eq!(peer_identity(&ca).unwrap_err().code, FaultCode::NotAuthenticated);
        assert!(peer_identity(&CertificateDer::from(vec![0x30, 0x82, 0xff])).is_err());
        let (_, key) = new_signing_request().unwrap();
        let key = rcgen::KeyPair::from_pem(&key).unwrap();
        let mut params = rcgen::CertificateParams::default();
        for uri in ["longhaul://a/service", "longhaul://b/service"] {
            params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().unwrap()));
        }
        let two = params.self_signed(&key).unwrap();
        assert!(peer_identity(two.der()).unwrap_err().detail.contains("more than one"));
    }

    #[test]
    fn deployments_are_told_apart() {
        let identity: PeerIdentity = "longhaul://one/service".parse().unwrap();
        assert!(identity.clone().require_deployment("one").is_ok());
        let fault = identity.clone().require_deployment("two").unwrap_err();
        assert_eq!(fault.code, FaultCode::ForeignDeployment);
        assert!(fault.detail.contains("one") && fault.detail.contains("two"));
        assert!(identity.require_agent().is_err());
    }

    proptest! {
        #[test]
        fn identities_survive_their_text_form(site in "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
            id in 0..i64::MAX as u64) {
            let identity = PeerIdentity::Agent {
                deployment: "d".into(), agent: AgentId(id), site: site.parse().unwrap(),
            };
            prop_assert_eq!(identity.to_string().parse::<PeerIdentity>().unwrap(), identity);
        }

        #[test]
        fn foreign_text_is_no_identity(text in "(longhaul://)?[a-z/]{0,12}(agent|service|/|.){0,6}") {
            if let Ok(identity) = text.parse::<PeerIdentity>() {
                prop_assert_eq!(identity.to_string(), text);
            }
        }

        #[test]
        fn foreign_bytes_are_no_certificate(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(peer_identity(&CertificateDer::from(bytes)).is_err());
        }
    }
}
