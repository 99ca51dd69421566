//! Which certificate the service shows to whom: the deployment's own to our own processes, which know its CA
//! and nothing else, and a host's, of a public or grid authority, to people and programs.
//!
//! Server names do not tell them apart, since agents dial the host of a URL as everybody does. Our own
//! processes offer [`SERVICE_PROTOCOL`] by ALPN (RFC 7301).

use std::sync::Arc;

use longhaul_model::Fault;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::SecurityError;
use crate::tls::{certificates, provider};

/// ALPN protocol of whoever trusts the deployment's CA: HTTP/1.1 with the service under its own certificate.
pub const SERVICE_PROTOCOL: &[u8] = b"longhaul";

/// What the service offers by ALPN: all of it is HTTP/1.1.
pub(crate) fn service_protocols() -> Vec<Vec<u8>> {
    vec![SERVICE_PROTOCOL.to_vec(), b"http/1.1".to_vec()]
}

/// Certificate chain and key of the host, both PEM, by which people and programs know the service.
#[derive(Clone, PartialEq, Eq)]
pub struct HostCertificate {
    pub certificate_pem: String,
    pub key_pem: zeroize::Zeroizing<String>,
}

#[derive(Debug)]
pub(crate) struct ServiceCertificates {
    own: Arc<CertifiedKey>,
    host: Option<Arc<CertifiedKey>>,
}

impl ServiceCertificates {
    /// `own` is the deployment's, with its CA.
    pub(crate) fn new(own: CertifiedKey, host: Option<&HostCertificate>) -> Result<Self, Fault> {
        let host = host.map(HostCertificate::certified_key).transpose()?;
        Ok(ServiceCertificates { own: Arc::new(own), host: host.map(Arc::new) })
    }
}

impl HostCertificate {
    fn certified_key(&self) -> Result<CertifiedKey, Fault> {
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|error| SecurityError::unusable("host key", error))?;
        let key = CertifiedKey::from_der(certificates(&self.certificate_pem)?, key, &provider());
        Ok(key.map_err(|error| SecurityError::unusable("host certificate and key", error))?)
    }
}

impl ResolvesServerCert for ServiceCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let host = self.host.as_ref().filter(|_| !is_own_process(&hello));
        Some(host.unwrap_or(&self.own).clone())
    }
}

/// What processes of release 0.1 offer, in this order: all suites of their library, AES-128-GCM first, and no
/// renegotiation, since they speak TLS 1.3 alone. Numbers of RFC 8446, RFC 5289 and RFC 7905.
const RELEASE_0_1_SUITES: [u16; 9] = [0x1301, 0x1302, 0x1303, 0xc02c, 0xc02b, 0xcca9, 0xc030, 0xc02f, 0xcca8];

/// Processes of release 0.1 offer no protocol and are known by their cipher suites. Whoever offers the same
/// without being one sees the deployment's certificate, as everybody did then.
fn is_own_process(hello: &ClientHello<'_>) -> bool {
    match hello.alpn() {
        Some(mut protocols) => protocols.any(|protocol| protocol == SERVICE_PROTOCOL),
        None => hello.cipher_suites().iter().copied().map(u16::from).eq(RELEASE_0_1_SUITES),
    }
}
