//! TLS to foreign servers (measurement archives, storages and the like), verified by host name and public
//! authorities. Our own processes use `tls`.

use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::grid::Certificate;

/// Which servers a client trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignServerTrust<'a> {
    /// Servers with a certificate for their host name from one of these authorities, in PEM.
    Authorities(&'a str),
    /// Any server: what is read may be forged, and nothing secret may be sent.
    Anyone,
}

/// TLS settings of a client without a certificate.
pub fn foreign_client_tls(trust: ForeignServerTrust<'_>) -> Result<Arc<ClientConfig>, Fault> {
    Ok(Arc::new(client_builder(trust)?.with_no_client_auth()))
}

/// TLS settings of a client with a certificate or a proxy and its chain, such as a delegated one.
pub fn foreign_client_tls_with_certificate(
    trust: ForeignServerTrust<'_>,
    chain_pem: &str,
    key_pem: &str,
) -> Result<Arc<ClientConfig>, Fault> {
    let unusable =
        |why: String| Fault::new(FaultCode::NotAuthenticated, format!("the client's certificate: {why}"));
    let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(error.to_string()).with_source(error))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|error| unusable(error.to_string()).with_source(error))?;
    let key = aws_lc_rs::sign::any_supported_type(&key)
        .map_err(|error| unusable(error.to_string()).with_source(error))?;
    let Some(first) = chain.first() else { return Err(unusable("there is none".into())) };
    let first = Certificate::parse(first).map_err(|why| unusable(why.to_string()))?;
    if key.public_key().is_none_or(|public| *public != *first.key) {
        return Err(unusable("it does not belong to the key".into()));
    }
    // rustls's own check cannot read a proxy, whose extension webpki does not know.
    let shown = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    Ok(Arc::new(client_builder(trust)?.with_client_cert_resolver(Arc::new(shown))))
}

fn client_builder(
    trust: ForeignServerTrust<'_>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, Fault> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| {
            Fault::new(FaultCode::Internal, format!("TLS settings: {error}")).with_source(error)
        })?;
    Ok(match trust {
        ForeignServerTrust::Authorities(pem) => builder.with_root_certificates(roots(pem)?),
        ForeignServerTrust::Anyone => builder
            .dangerous() // asked for by name
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
    })
}

/// Bundles of operating systems hold some certificates that cannot be parsed: those are skipped, as is usual.
fn roots(pem: &str) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
    let (known, _) = roots.add_parsable_certificates(certificates);
    if known == 0 {
        return Err(Fault::new(FaultCode::BadRequest, "the file of authorities holds no certificate"));
    }
    Ok(roots)
}

/// Checks only that the server holds the key of its certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_authorities_is_refused() {
        assert!(foreign_client_tls(ForeignServerTrust::Anyone).is_ok());
        let refused = foreign_client_tls(ForeignServerTrust::Authorities("no certificates")).unwrap_err();
        assert!(refused.detail.contains("no certificate"), "{refused}");
    }

    #[test]
    fn a_key_that_is_not_the_certificates_is_refused() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        let with =
            |key: &str| foreign_client_tls_with_certificate(ForeignServerTrust::Anyone, &certificate, key);
        assert!(with(&key.serialize_pem()).is_ok());
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        assert!(with(&other).unwrap_err().detail.contains("does not belong"));
        assert!(with("none").is_err());
        assert!(
            foreign_client_tls_with_certificate(ForeignServerTrust::Anyone, "", &other)
                .unwrap_err()
                .detail
                .contains("there is none")
        );
    }
}
