//! TLS towards servers that are not ours: measurement archives and the like, known by host names and public
//! authorities. Our own processes use `tls`.

use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Whom a client of an outside server believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutsideTrust<'a> {
    /// Servers with a certificate for their host name from one of these authorities, in PEM.
    Authorities(&'a str),
    /// Anyone who answers: what is read may be forged on the way, and nothing secret may be sent.
    Anyone,
}

/// Who a client says it is, to servers that ask.
#[derive(Clone, Copy, Debug)]
pub struct OutsideIdentity<'a> {
    /// In PEM, its own certificate first.
    pub chain: &'a str,
    pub key: &'a str,
}

/// Of a client that shows no certificate.
pub fn outside_client_tls(trust: OutsideTrust<'_>) -> Result<Arc<ClientConfig>, Fault> {
    outside_client_tls_as(trust, None)
}

/// Of a client that shows a certificate, if it has one.
pub fn outside_client_tls_as(
    trust: OutsideTrust<'_>,
    identity: Option<OutsideIdentity<'_>>,
) -> Result<Arc<ClientConfig>, Fault> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| Fault::new(FaultCode::Internal, format!("TLS settings: {error}")))?;
    let builder = match trust {
        OutsideTrust::Authorities(pem) => builder.with_root_certificates(roots(pem)?),
        OutsideTrust::Anyone => builder
            .dangerous() // asked for by name
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
    };
    let Some(identity) = identity else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let unusable = |what: &str, error: String| {
        Fault::new(FaultCode::BadRequest, format!("the {what} cannot be used: {error}"))
    };
    let chain = CertificateDer::pem_slice_iter(identity.chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable("certificate", error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
        .map_err(|error| unusable("private key", error.to_string()))?;
    let config = builder.with_client_auth_cert(chain, key);
    Ok(Arc::new(config.map_err(|error| unusable("certificate and key", error.to_string()))?))
}

/// Bundles of systems hold some certificates that are not understood: those are left out, as everywhere.
fn roots(pem: &str) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
    let (known, _) = roots.add_parsable_certificates(certificates);
    if known == 0 {
        return Err(Fault::new(FaultCode::BadRequest, "the file of authorities holds no certificate"));
    }
    Ok(roots)
}

/// Checks that the server holds the key of the certificate it shows, and nothing else.
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
        assert!(outside_client_tls(OutsideTrust::Anyone).is_ok());
        let refused = outside_client_tls(OutsideTrust::Authorities("no certificates")).unwrap_err();
        assert!(refused.detail.contains("no certificate"), "{refused}");
        let identity = OutsideIdentity { chain: "no certificate", key: "no key" };
        let refused = outside_client_tls_as(OutsideTrust::Anyone, Some(identity)).unwrap_err();
        assert!(refused.detail.contains("key cannot be used"), "{refused}");
    }
}
