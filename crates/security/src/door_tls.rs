//! TLS of doors, HTTPS servers for third-party clients, known by host name. A client may show a certificate
//! and is identified by its subject.

use std::sync::Arc;

use longhaul_model::{Fault, Timestamp};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{CommonState, RootCertStore, ServerConfig};

use crate::client_auth::agent_or_user_verifier;
use crate::grid::subject_line;
use crate::tls::{certificates, internal, provider};
use crate::{Credentials, SecurityError, peer_identity};

/// TLS settings from certificate chain, key, the authorities of client certificates and what these have
/// revoked, all PEM. Without authorities no client is asked for a certificate. One that is untrusted or
/// revoked ends the handshake, and so does any of an authority whose revocation list has expired; an
/// authority without a list revokes nothing.
pub fn door_server_tls(
    certificate_pem: &str,
    key_pem: &str,
    client_authorities_pem: &[&str],
    revocation_lists_pem: &[&str],
) -> Result<Arc<ServerConfig>, Fault> {
    let mut roots = RootCertStore::empty();
    for pem in client_authorities_pem {
        roots.add_parsable_certificates(certificates(pem)?);
    }
    let verifier = match roots.is_empty() {
        true => None,
        false => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            let verifier = verifier.with_crls(revocation_lists(revocation_lists_pem)?);
            let verifier = verifier.allow_unknown_revocation_status().enforce_revocation_expiration();
            let verifier = verifier.allow_unauthenticated().build();
            let verifier = verifier.map_err(|error| SecurityError::unusable("client authorities", error))?;
            Some(verifier as Arc<dyn ClientCertVerifier>)
        }
    };
    server_tls(certificate_pem, key_pem, verifier)
}

fn revocation_lists(pems: &[&str]) -> Result<Vec<CertificateRevocationListDer<'static>>, Fault> {
    let mut lists = Vec::new();
    for pem in pems {
        let before = lists.len();
        for list in CertificateRevocationListDer::pem_slice_iter(pem.as_bytes()) {
            lists.push(list.map_err(|error| SecurityError::unusable("revocation list", error))?);
        }
        if lists.len() == before {
            return Err(SecurityError::unusable("revocation list", "the file holds none in PEM").into());
        }
    }
    Ok(lists)
}

/// TLS settings of a door for grid users, with proxies too. The handshake only proves that a client holds the
/// key of its certificate, unless that names an agent of this deployment. Call [`crate::identify_client`]
/// after it.
pub fn door_grid_tls(
    certificate_pem: &str,
    key_pem: &str,
    own: &Credentials,
) -> Result<Arc<ServerConfig>, Fault> {
    server_tls(certificate_pem, key_pem, Some(agent_or_user_verifier(own)?))
}

fn server_tls(
    certificate_pem: &str,
    key_pem: &str,
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<ServerConfig>, Fault> {
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|error| SecurityError::unusable("private key", error))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(internal)?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let mut config = builder
        .with_single_cert(certificates(certificate_pem)?, key)
        .map_err(|error| SecurityError::unusable("certificate and key", error))?;
    // A resumed session could outlive the certificates that it rests on.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The names of a client as rules write them: its subject in the form `/DC=org/CN=name`, and its Longhaul
/// identity if it has one. Empty without a certificate. Set `identities` only where the deployment's CA is
/// the only trusted one: any other could issue certificates with such a name.
pub fn subject_names(connection: &CommonState, identities: bool) -> Vec<String> {
    let Some(certificate) = connection.peer_certificates().and_then(|chain| chain.first()) else {
        return Vec::new();
    };
    let identity =
        peer_identity(certificate).ok().filter(|_| identities).map(|identity| identity.to_string());
    subject_line(certificate).into_iter().chain(identity).collect()
}

/// When the first certificate of the chain expires that a peer showed, or at once if that cannot be read.
/// None without a certificate. What is derived from the certificate ends by then, this connection included.
pub fn peer_chain_expires(connection: &CommonState) -> Option<Timestamp> {
    chain_expires(connection.peer_certificates()?)
}

fn chain_expires(chain: &[CertificateDer<'_>]) -> Option<Timestamp> {
    let expires = |certificate: &CertificateDer<'_>| {
        x509_parser::parse_x509_certificate(certificate).map_or(Timestamp::ZERO, |(_, parsed)| {
            Timestamp::from_seconds(parsed.validity().not_after.timestamp())
        })
    };
    chain.iter().map(expires).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    #[test]
    fn a_chain_ends_with_the_first_of_its_certificates() {
        let until = |year| {
            let mut params = CertificateParams::default();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let (early, late) = (until(2030), until(2040));
        let end = Timestamp::from_seconds(1_893_456_000);
        assert_eq!(chain_expires(&[early.clone(), late.clone()]), Some(end));
        assert_eq!(chain_expires(&[late.clone(), early]), Some(end), "a proxy may outlive its user");
        assert_eq!(chain_expires(&[late, vec![1, 2, 3].into()]), Some(Timestamp::ZERO));
        assert_eq!(chain_expires(&[]), None);
    }

    #[test]
    fn a_slash_in_a_subject_is_no_separator() {
        let mut name = DistinguishedName::new();
        name.push(DnType::CustomDnType(vec![0, 9, 2342, 19200300, 100, 1, 25]), "org");
        name.push(DnType::OrganizationName, "Example");
        name.push(DnType::CommonName, "host/door.example");
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        assert_eq!(subject_line(certificate.der()).unwrap(), "/DC=org/O=Example/CN=host\\/door.example");
        assert!(door_server_tls(&certificate.pem(), &key.serialize_pem(), &[], &[]).is_ok());
        assert!(
            door_server_tls(&certificate.pem(), &key.serialize_pem(), &[&certificate.pem()], &[]).is_ok()
        );
        assert!(door_server_tls(&certificate.pem(), "no key", &[], &[]).is_err());
        assert!(door_server_tls("no certificate", &key.serialize_pem(), &[], &[]).is_err());
    }
}
