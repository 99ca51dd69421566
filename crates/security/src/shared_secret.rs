//! Ad-hoc trust from one shared secret: a whole certificate authority derived by HKDF (RFC 5869), without
//! files, service or enrolment.
//!
//! Both ends derive the same certificate authority and the same permit key from a 32-byte seed, each
//! certifies itself with a key of its own, and from there on everything is as between agents of a deployment
//! (TLS 1.3 with certificates of both ends, permits with file lists): no second way to trust a peer exists.
//!
//! The consequence: everyone who holds the secret is an equal member of that deployment, and can also pose as
//! the server towards another holder. So a secret is for one party; two parties get two servers, with a
//! secret each.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hkdf;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use longhaul_model::hex;
use longhaul_model::{AgentId, SiteName, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair as RcgenKey, KeyUsagePurpose, SanType, SerialNumber, date_time_ymd,
};
use zeroize::Zeroizing;

use crate::authority::random_bytes;
use crate::identity::PeerIdentity;
use crate::tls::AGENT_NAME;
use crate::{Credentials, Permit, PermitVerifier, SecurityError, text};

/// Bytes of the seed.
const SEED_BYTES: usize = 32;
/// Validity of certificates, longer than any copy runs.
const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(90 * 86_400);
/// Certificates are valid from this long before now: the hosts of an ad-hoc copy may never have seen a time
/// server.
const BACKDATING: Duration = Duration::from_secs(2 * 86_400);
/// The HKDF salt of this use; labels separate the derived values.
const SALT: &[u8] = b"longhaul shared secret 1";
/// Names the secret in errors.
const SUBJECT: &str = "shared secret";

/// The seed. Never in `Debug`, wiped when dropped; [`SharedSecret::reveal`] is the one way to its text.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedSecret(Zeroizing<[u8; SEED_BYTES]>);

/// The authority derived from a secret, in memory only.
pub struct SharedAuthority {
    deployment: String,
    ca_pem: String,
    issuer: Issuer<'static, RcgenKey>,
    permit_key: Ed25519KeyPair,
}

impl SharedSecret {
    pub fn new() -> Self {
        SharedSecret(Zeroizing::new(random_bytes()))
    }

    /// The secret's text for URLs: 43 characters of base64url. Whoever reads it has all of its rights.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(text::to_base64(&self.0[..]))
    }

    /// The deployment's name, the same at both ends; it reveals nothing about the secret.
    pub fn deployment(&self) -> Result<String, SecurityError> {
        Ok(format!("adhoc-{}", hex::encode(&self.derive::<8>(b"name")?[..])))
    }

    /// The authority, the same at both ends except for the CA's own certificate: trust in a CA depends on its
    /// name and key alone.
    pub fn authority(&self, now: Timestamp) -> Result<SharedAuthority, SecurityError> {
        let deployment = self.deployment()?;
        let ca_key = rcgen_key(&ed25519(&self.derive::<SEED_BYTES>(b"certificate authority")?[..])?)?;
        let permit_key = ed25519(&self.derive::<SEED_BYTES>(b"permits")?[..])?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("Longhaul CA {deployment}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        set_validity(&mut params, now);
        let ca_pem = params.self_signed(&ca_key).map_err(unusable)?.pem();
        Ok(SharedAuthority { deployment, ca_pem, issuer: Issuer::new(params, ca_key), permit_key })
    }

    fn derive<const N: usize>(&self, label: &[u8]) -> Result<Zeroizing<[u8; N]>, SecurityError> {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let mut value = Zeroizing::new([0; N]);
        hkdf::Salt::new(hkdf::HKDF_SHA256, SALT)
            .extract(&self.0[..])
            .expand(&[label], Length(N))
            .and_then(|material| material.fill(&mut value[..]))
            .map_err(|_| SecurityError::unusable(SUBJECT, "a key could not be derived"))?;
        Ok(value)
    }
}

impl SharedAuthority {
    pub fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Creates a key with a certificate.
    pub fn credentials(
        &self,
        agent: AgentId,
        site: &SiteName,
        now: Timestamp,
    ) -> Result<Credentials, SecurityError> {
        let key = RcgenKey::generate().map_err(unusable)?;
        let mut params = CertificateParams::new(vec![AGENT_NAME.to_owned()]).map_err(unusable)?;
        let identity = PeerIdentity::Agent { deployment: self.deployment.clone(), agent, site: site.clone() };
        let uri = identity.to_string().try_into().map_err(unusable)?;
        params.subject_alt_names.push(SanType::URI(uri));
        params.distinguished_name = common_name(&format!("Longhaul agent {agent}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, now);
        let certificate = params.signed_by(&key, &self.issuer).map_err(unusable)?;
        Ok(Credentials {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            ca_pem: self.ca_pem.clone(),
        })
    }

    /// # Panics
    /// If the permit names another deployment.
    pub fn sign_permit(&self, permit: &Permit) -> Arc<str> {
        assert_eq!(permit.deployment, self.deployment, "a permit for another deployment");
        permit.sign_with(&self.permit_key)
    }

    pub fn permit_verifier(&self) -> Result<PermitVerifier, SecurityError> {
        let public = rcgen_key(&self.permit_key)?;
        PermitVerifier::new(&public.public_key_pem())
    }
}

impl Default for SharedSecret {
    fn default() -> Self {
        SharedSecret::new()
    }
}

impl FromStr for SharedSecret {
    type Err = SecurityError;
    /// The text is never repeated in the error: it may be a secret with one letter wrong.
    fn from_str(text: &str) -> Result<Self, SecurityError> {
        let bytes = Zeroizing::new(text::from_base64(text).unwrap_or_default());
        let seed = <[u8; SEED_BYTES]>::try_from(bytes.as_slice()).map_err(|_| {
            SecurityError::unusable(SUBJECT, "43 letters, digits, - and _ are expected: was the URL cut off?")
        })?;
        Ok(SharedSecret(Zeroizing::new(seed)))
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(hidden)")
    }
}

impl fmt::Debug for SharedAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedAuthority({}, keys hidden)", self.deployment)
    }
}

fn ed25519(seed: &[u8]) -> Result<Ed25519KeyPair, SecurityError> {
    let key = Ed25519KeyPair::from_seed_unchecked(seed).map_err(unusable)?;
    assert_eq!(key.public_key().as_ref().len(), 32, "a public key of Ed25519");
    Ok(key)
}

fn rcgen_key(key: &Ed25519KeyPair) -> Result<RcgenKey, SecurityError> {
    let document = key.to_pkcs8v1().map_err(unusable)?;
    RcgenKey::try_from(document.as_ref()).map_err(unusable)
}

fn unusable(why: impl ToString) -> SecurityError {
    SecurityError::unusable(SUBJECT, why)
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn set_validity(params: &mut CertificateParams, now: Timestamp) {
    let at =
        |time: Timestamp| date_time_ymd(1970, 1, 1) + Duration::from_secs((time.0 / 1_000_000).max(0) as u64);
    params.not_before = at(now - BACKDATING);
    params.not_after = at(now + CERTIFICATE_VALIDITY);
    let mut serial = random_bytes::<16>();
    serial[0] = serial[0] & 0x7f | 0x40; // positive and of full length
    params.serial_number = Some(SerialNumber::from_slice(&serial));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agent_client_tls, data_server_tls, list_digest, server_identity};
    use proptest::prelude::*;
    use rustls::pki_types::ServerName;

    const NOW: Timestamp = Timestamp(1_780_000_000_000_000);

    fn now() -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Timestamp(since.as_micros() as i64)
    }

    fn credentials(secret: &SharedSecret, agent: u64) -> Credentials {
        secret.authority(now()).unwrap().credentials(AgentId(agent), &"copy".parse().unwrap(), now()).unwrap()
    }

    /// Runs a handshake in memory; the error of whichever side refuses.
    fn handshake(client: &Credentials, server: &Credentials) -> Result<PeerIdentity, rustls::Error> {
        let name = ServerName::try_from(AGENT_NAME).unwrap();
        let mut client = rustls::ClientConnection::new(agent_client_tls(client).unwrap(), name).unwrap();
        let mut server = rustls::ServerConnection::new(data_server_tls(server).unwrap()).unwrap();
        for _ in 0..10 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            let mut unread = bytes.as_slice();
            while !unread.is_empty() {
                server.read_tls(&mut unread).unwrap();
                server.process_new_packets()?;
            }
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            let mut unread = bytes.as_slice();
            while !unread.is_empty() {
                client.read_tls(&mut unread).unwrap();
                client.process_new_packets()?;
            }
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        let deployment = server.peer_certificates().map(|chain| crate::peer_identity(&chain[0]).unwrap());
        server_identity(&client, deployment.unwrap().deployment())
            .map_err(|fault| rustls::Error::General(fault.to_string()))
    }

    #[test]
    fn two_processes_with_one_secret_trust_each_other_and_nobody_else() {
        let secret = SharedSecret::new();
        let same: SharedSecret = secret.reveal().parse().unwrap();
        let (client, server) = (credentials(&secret, 1), credentials(&same, 2));
        let seen = handshake(&client, &server).unwrap();
        assert_eq!(seen.require_agent().unwrap().0, AgentId(2));
        let stranger = credentials(&SharedSecret::new(), 3);
        assert!(handshake(&client, &stranger).is_err(), "a server with another secret");
        assert!(handshake(&stranger, &server).is_err(), "a client with another secret");
    }

    #[test]
    fn permits_hold_at_the_other_end() {
        let secret = SharedSecret::new();
        let permit = Permit {
            deployment: secret.deployment().unwrap(),
            target_agent: AgentId(1),
            source_agent: AgentId(2),
            source_storage: "export".parse().unwrap(),
            list_digest: list_digest(std::iter::empty()),
            expires: NOW + Duration::from_secs(60),
        };
        let text = secret.authority(NOW).unwrap().sign_permit(&permit);
        let other_end = secret.reveal().parse::<SharedSecret>().unwrap().authority(NOW).unwrap();
        assert_eq!(other_end.permit_verifier().unwrap().verify(&text, NOW).unwrap(), permit);
        let stranger = SharedSecret::new().authority(NOW).unwrap();
        assert!(stranger.permit_verifier().unwrap().verify(&text, NOW).is_err());
    }

    #[test]
    fn stays_out_of_sight() {
        let secret = SharedSecret::new();
        let text = secret.reveal();
        assert_eq!(text.len(), 43);
        assert_eq!(format!("{secret:?}"), "SharedSecret(hidden)");
        let authority = secret.authority(NOW).unwrap();
        assert!(!format!("{authority:?}").contains(text.as_str()));
        assert!(!secret.deployment().unwrap().contains(&text[..6]));
        let damaged = &text[..40];
        let error = damaged.parse::<SharedSecret>().unwrap_err().to_string();
        assert!(!error.contains(damaged) && error.contains("cut off"), "{error}");
    }

    proptest! {
        #[test]
        fn only_whole_secrets_are_read(text in "[A-Za-z0-9_=-]{0,60}") {
            if let Ok(secret) = text.parse::<SharedSecret>() {
                let again = secret.reveal();
                prop_assert_eq!(again.as_str(), text.as_str());
            }
        }
    }
}
