//! The built-in certificate authority (X.509, RFC 5280) and the key that signs permits, so that a deployment
//! needs no other PKI.
//!
//! It is a directory of the service's state with `ca.pem`, `ca.key`, `permit.key` and `deployment`. Only the
//! service has it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::signature::Ed25519KeyPair;
use longhaul_model::hex;
use longhaul_model::{AgentId, SiteName, Timestamp};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair as RcgenKey, KeyUsagePurpose, SanType,
    SerialNumber, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use crate::identity::PeerIdentity;
use crate::tls::{AGENT_NAME, SERVICE_NAME};
use crate::{Permit, SecurityError, private_files, text};

/// One day.
const DAY: Duration = Duration::from_secs(86_400);
/// Validity of the CA certificate, longer than a deployment lives: replacing the CA means joining every agent
/// again.
const CA_VALIDITY: Duration = Duration::from_secs(20 * 365 * 86_400);
/// Validity of agents' certificates: a stolen key that nobody missed is useless after this. Renewal begins at
/// half of it, so that a fortnight of outage does no harm.
const AGENT_VALIDITY: Duration = Duration::from_secs(30 * 86_400);
/// Validity of the service's certificate, which is replaced far sooner.
const SERVICE_VALIDITY: Duration = Duration::from_secs(90 * 86_400);
/// Certificates are valid from this long before their issue: a host whose clock is an hour behind still
/// accepts a new one, and the second hour is margin.
const BACKDATING: Duration = Duration::from_secs(2 * 3600);
/// Bytes of a signing request. One of a P-256 key has about 400.
const SIGNING_REQUEST_BYTES_MAX: usize = 16 << 10;
/// Host names in the service's certificate.
const SERVICE_NAMES_MAX: usize = 100;

/// File of the CA certificate.
const CA_CERTIFICATE: &str = "ca.pem";
/// File of the private key of the CA.
const CA_KEY: &str = "ca.key";
/// File of the private key that signs permits.
const PERMIT_KEY: &str = "permit.key";
/// File of the deployment's name.
const DEPLOYMENT: &str = "deployment";

/// The built-in CA and the permit key, in a directory of the service's state (0700; keys 0600).
pub struct Authority {
    deployment: String,
    ca_pem: String,
    ca_der: CertificateDer<'static>,
    issuer: Issuer<'static, RcgenKey>,
    permit_key: Ed25519KeyPair,
    permit_key_pem: String,
}

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct CertifiedKeyPair {
    pub certificate_pem: String,
    pub key_pem: String,
    pub expires: Timestamp,
}

/// A certificate for a key that the other side holds.
#[derive(Clone, Debug)]
pub struct IssuedCertificate {
    pub certificate_pem: String,
    pub expires: Timestamp,
}

impl Authority {
    /// Creates a CA with new keys. `directory` must not hold one yet: overwriting a CA would cut off every
    /// agent.
    pub fn create(directory: &Path, deployment: &str, now: Timestamp) -> Result<Self, SecurityError> {
        text::check_deployment(deployment)?;
        private_files::make_private_directory(directory)?;
        if directory.join(CA_CERTIFICATE).exists() {
            return Err(SecurityError::unusable("certificate authority", "this directory holds one already"));
        }
        let ca_key = RcgenKey::generate().map_err(|error| SecurityError::unusable("new CA key", error))?;
        let certificate = ca_params(deployment, now)
            .self_signed(&ca_key)
            .map_err(|error| SecurityError::unusable("new CA certificate", error))?;
        let permit_key = RcgenKey::generate_for(&rcgen::PKCS_ED25519)
            .map_err(|error| SecurityError::unusable("new permit key", error))?;
        private_files::write_private(&directory.join(DEPLOYMENT), format!("{deployment}\n").as_bytes())?;
        private_files::write_private(
            &directory.join(PERMIT_KEY),
            Zeroizing::new(permit_key.serialize_pem()).as_bytes(),
        )?;
        private_files::write_private(
            &directory.join(CA_KEY),
            Zeroizing::new(ca_key.serialize_pem()).as_bytes(),
        )?;
        // Written last: without it the directory is no authority yet, and what a killed `create` left there
        // certified nobody.
        private_files::write_private(&directory.join(CA_CERTIFICATE), certificate.pem().as_bytes())?;
        Self::open(directory)
    }

    pub fn open(directory: &Path) -> Result<Self, SecurityError> {
        let deployment = private_files::read_private(&directory.join(DEPLOYMENT))?.trim().to_owned();
        text::check_deployment(&deployment)?;
        let ca_pem = private_files::read_private(&directory.join(CA_CERTIFICATE))?;
        let ca_key_pem = Zeroizing::new(private_files::read_private(&directory.join(CA_KEY))?);
        let permit_pem = Zeroizing::new(private_files::read_private(&directory.join(PERMIT_KEY))?);

        let ca_der = CertificateDer::from_pem_slice(ca_pem.as_bytes())
            .map_err(|error| SecurityError::unusable("CA certificate", error))?;
        let ca_key =
            RcgenKey::from_pem(&ca_key_pem).map_err(|error| SecurityError::unusable("CA key", error))?;
        let issuer = Issuer::from_ca_cert_der(&ca_der, ca_key)
            .map_err(|error| SecurityError::unusable("CA certificate", error))?;
        let permit_pair =
            RcgenKey::from_pem(&permit_pem).map_err(|error| SecurityError::unusable("permit key", error))?;
        let permit_key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(permit_pair.serialized_der())
            .map_err(|error| SecurityError::unusable("permit key", error))?;
        Ok(Authority {
            deployment,
            ca_pem,
            ca_der,
            issuer,
            permit_key,
            permit_key_pem: permit_pair.public_key_pem(),
        })
    }

    pub fn deployment(&self) -> &str {
        &self.deployment
    }

    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// SHA-256 of the CA certificate, in hex, as in a join token.
    pub fn ca_fingerprint(&self) -> String {
        hex::encode(&text::sha256(&self.ca_der))
    }

    /// The public key of permits, PEM.
    pub fn permit_key_pem(&self) -> String {
        self.permit_key_pem.clone()
    }

    /// Issues a key and certificate for the service. `names` are DNS names or addresses by which people reach
    /// it.
    pub fn issue_service(&self, names: &[String], now: Timestamp) -> Result<CertifiedKeyPair, SecurityError> {
        if names.len() > SERVICE_NAMES_MAX {
            return Err(SecurityError::unusable("service names", format!("more than {SERVICE_NAMES_MAX}")));
        }
        let all = std::iter::once(SERVICE_NAME.to_owned()).chain(names.iter().cloned()).collect::<Vec<_>>();
        let params = CertificateParams::new(all)
            .map_err(|error| SecurityError::unusable("a name of the service", error))?;
        let identity = PeerIdentity::Service { deployment: self.deployment.clone() };
        let key = RcgenKey::generate().map_err(|error| SecurityError::unusable("new key", error))?;
        let (certificate, expires) = self.certify(params, &identity, &key, now)?;
        Ok(CertifiedKeyPair { certificate_pem: certificate.pem(), key_pem: key.serialize_pem(), expires })
    }

    /// Issues a certificate for the key in a signing request. Names and extensions in the request are
    /// ignored.
    pub fn issue_agent(
        &self,
        signing_request_pem: &str,
        agent: AgentId,
        site: &SiteName,
        now: Timestamp,
    ) -> Result<IssuedCertificate, SecurityError> {
        let what = "signing request";
        if signing_request_pem.len() > SIGNING_REQUEST_BYTES_MAX {
            return Err(SecurityError::unusable(
                what,
                format!("more than {SIGNING_REQUEST_BYTES_MAX} bytes"),
            ));
        }
        let request = CertificateSigningRequestParams::from_pem(signing_request_pem)
            .map_err(|error| SecurityError::unusable(what, error))?;
        let params = CertificateParams::new(vec![AGENT_NAME.to_owned()])
            .map_err(|error| SecurityError::unusable(what, error))?;
        let identity = PeerIdentity::Agent { deployment: self.deployment.clone(), agent, site: site.clone() };
        let (certificate, expires) = self.certify(params, &identity, &request.public_key, now)?;
        Ok(IssuedCertificate { certificate_pem: certificate.pem(), expires })
    }

    /// Signs a permit of this deployment.
    ///
    /// # Panics
    /// If the permit names another deployment.
    pub fn sign_permit(&self, permit: &Permit) -> Arc<str> {
        assert_eq!(permit.deployment, self.deployment, "a permit for another deployment");
        permit.sign_with(&self.permit_key)
    }

    fn certify(
        &self,
        mut params: CertificateParams,
        identity: &PeerIdentity,
        key: &impl rcgen::PublicKeyData,
        now: Timestamp,
    ) -> Result<(Certificate, Timestamp), SecurityError> {
        let what = "new certificate";
        let uri = identity.to_string().try_into().map_err(|error| SecurityError::unusable(what, error))?;
        params.subject_alt_names.push(SanType::URI(uri));
        params.distinguished_name = common_name(&match identity {
            PeerIdentity::Agent { agent, .. } => format!("Longhaul agent {agent}"),
            PeerIdentity::Service { .. } => "Longhaul service".to_owned(),
        });
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let expires = match identity {
            PeerIdentity::Agent { .. } => set_validity(&mut params, now, AGENT_VALIDITY),
            PeerIdentity::Service { .. } => set_validity(&mut params, now, SERVICE_VALIDITY),
        };
        let certificate =
            params.signed_by(key, &self.issuer).map_err(|error| SecurityError::unusable(what, error))?;
        Ok((certificate, expires))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({}, keys hidden)", self.deployment)
    }
}

impl fmt::Debug for CertifiedKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair(until {}, key hidden)", self.expires)
    }
}

/// Creates a key and a request to certify it: `(signing request, key)`, both PEM.
pub fn new_signing_request() -> Result<(String, String), SecurityError> {
    let key = RcgenKey::generate().map_err(|error| SecurityError::unusable("new key", error))?;
    let request = CertificateParams::default()
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .map_err(|error| SecurityError::unusable("new signing request", error))?;
    Ok((request, key.serialize_pem()))
}

fn ca_params(deployment: &str, now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    // The random part distinguishes two deployments of one name, for people and for chain building.
    params.distinguished_name =
        common_name(&format!("Longhaul CA {deployment} {}", hex::encode(&random_bytes::<4>())));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, CA_VALIDITY);
    params
}

/// Sets the validity and a random serial number; returns the expiry.
fn set_validity(params: &mut CertificateParams, now: Timestamp, life: Duration) -> Timestamp {
    // Certificates hold whole seconds of the years 1970 to 9999.
    let latest = Timestamp::from_seconds(250_000_000_000) - CA_VALIDITY;
    let now = now.clamp(Timestamp::ZERO + DAY, latest);
    let at =
        |time: Timestamp| date_time_ymd(1970, 1, 1) + Duration::from_secs((time.0 / 1_000_000).max(0) as u64);
    let expires = Timestamp::from_seconds((now + life).0 / 1_000_000);
    params.not_before = at(now - BACKDATING);
    params.not_after = at(expires);
    let mut serial = random_bytes::<16>();
    serial[0] = serial[0] & 0x7f | 0x40; // positive and of full length
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    expires
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

/// # Panics If the system provides no randomness: nothing safe can be done then.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    assert!(aws_lc_rs::rand::fill(&mut bytes).is_ok(), "no random numbers from the system");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Credentials, PeerIdentity};
    use std::os::unix::fs::PermissionsExt;

    const NOW: Timestamp = Timestamp(1_780_000_000_000_000);

    #[test]
    fn opens_again_as_the_same_authority() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca");
        let made = Authority::create(&path, "tier0", NOW).unwrap();
        let opened = Authority::open(&path).unwrap();
        assert_eq!(made.ca_fingerprint(), opened.ca_fingerprint());
        assert_eq!(made.permit_key_pem(), opened.permit_key_pem());
        assert_eq!(opened.deployment(), "tier0");
        assert!(opened.permit_key_pem().contains("PUBLIC KEY"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::metadata(path.join(CA_KEY)).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Authority::create(&path, "tier0", NOW).is_err(), "never overwritten");
        assert!(!format!("{made:?}").contains("PRIVATE"));
    }

    #[test]
    fn says_what_is_wrong_with_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Authority::open(directory.path()).unwrap_err().to_string().contains(DEPLOYMENT));
        std::fs::write(directory.path().join(CA_KEY), "left by a killed `create`").unwrap();
        Authority::create(directory.path(), "tier0", NOW).unwrap();
        std::fs::write(directory.path().join(CA_KEY), "garbage").unwrap();
        assert!(Authority::open(directory.path()).unwrap_err().to_string().contains("CA key"));
        assert!(Authority::create(directory.path(), "no/slash", NOW).is_err());
    }

    #[test]
    fn a_certificate_says_what_the_authority_says_not_what_the_request_says() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "tier0", NOW).unwrap();
        let key = RcgenKey::generate().unwrap();
        let mut wish = CertificateParams::new(vec![SERVICE_NAME.to_owned()]).unwrap();
        wish.subject_alt_names.push(SanType::URI("longhaul://tier0/service".try_into().unwrap()));
        wish.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let request = wish.serialize_request(&key).unwrap().pem().unwrap();
        let site: SiteName = "alpha".parse().unwrap();
        let issued = authority.issue_agent(&request, AgentId(7), &site, NOW).unwrap();
        assert_eq!(issued.expires, NOW + AGENT_VALIDITY);
        let credentials = Credentials {
            certificate_pem: issued.certificate_pem,
            key_pem: key.serialize_pem(),
            ca_pem: authority.ca_pem().to_owned(),
        };
        let expected = PeerIdentity::Agent { deployment: "tier0".into(), agent: AgentId(7), site };
        assert_eq!(credentials.identity().unwrap(), expected);
    }

    #[test]
    fn refuses_bad_requests_and_names() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path(), "tier0", NOW).unwrap();
        let site: SiteName = "alpha".parse().unwrap();
        let (good, _) = new_signing_request().unwrap();
        let forged = good.replacen(&good[60..70], "AAAAAAAAAA", 1);
        let garbage = "x".repeat(SIGNING_REQUEST_BYTES_MAX + 1);
        for bad in ["", "garbage", authority.ca_pem(), &forged, &garbage] {
            let error = authority.issue_agent(bad, AgentId(7), &site, NOW).unwrap_err();
            assert!(error.to_string().starts_with("signing request"), "{error}");
        }
        assert!(authority.issue_service(&["naïve host".into()], NOW).is_err());
        assert!(
            authority.issue_service(&["localhost".into(), "127.0.0.1".into(), "::1".into()], NOW).is_ok()
        );
        for odd in [Timestamp::ZERO, Timestamp(-5), Timestamp::MAX] {
            assert!(authority.issue_agent(&good, AgentId(7), &site, odd).is_ok(), "{odd}");
        }
    }
}
