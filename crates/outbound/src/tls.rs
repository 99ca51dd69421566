//! TLS towards servers known by host names: handshakes, and settings for each client certificate.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::WantsClientCert;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use sha2::Digest as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Client certificates whose settings are kept ready; beyond that all are made again.
const CERTIFICATES_MAX: usize = 256;
/// Certificates of one chain.
const CHAIN_MAX: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("no name of a host")]
    HostName,
    #[error("TLS: {0}")]
    Handshake(#[source] io::Error),
}

/// Why no TLS settings could be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    #[error("TLS settings: {0}")]
    Settings(#[source] rustls::Error),
    #[error("{0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The library cannot use the private key.
    #[error("{0}")]
    Key(#[source] rustls::Error),
    #[error("there is no certificate")]
    NoCertificate,
}

/// The caller limits the time. `buffer_bytes_max`: what may be encrypted before the socket takes it; none:
/// the library's own limit.
pub async fn handshake_tls<S>(
    stream: S,
    host: &str,
    config: Arc<ClientConfig>,
    buffer_bytes_max: Option<usize>,
) -> Result<TlsStream<S>, TlsError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::HostName)?;
    let handshake = TlsConnector::from(config).connect_with(name, stream, |tls| {
        if buffer_bytes_max.is_some() {
            tls.set_buffer_limit(buffer_bytes_max);
        }
    });
    handshake.await.map_err(TlsError::Handshake)
}

/// Which certificate a connection was made with: connections are not shared between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CertificateId(Option<[u8; 32]>);

impl CertificateId {
    pub const NONE: CertificateId = CertificateId(None);

    pub fn of_pem(chain_pem: &str, key_pem: &str) -> CertificateId {
        let mut hash = sha2::Sha256::new();
        hash.update((chain_pem.len() as u64).to_be_bytes());
        hash.update(chain_pem.as_bytes());
        hash.update(key_pem.as_bytes());
        CertificateId(Some(hash.finalize().into()))
    }
}

/// Settings of clients that trust the same authorities: one without a certificate, and one for each
/// certificate.
pub struct TlsConfigs {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    anonymous: Arc<ClientConfig>,
    certified: Mutex<HashMap<CertificateId, Arc<ClientConfig>>>,
}

impl TlsConfigs {
    pub fn new(roots: RootCertStore) -> Result<TlsConfigs, TlsConfigError> {
        let (provider, roots) = (Arc::new(aws_lc_rs::default_provider()), Arc::new(roots));
        let anonymous = Arc::new(builder(&provider, &roots)?.with_no_client_auth());
        Ok(TlsConfigs { provider, roots, anonymous, certified: Mutex::default() })
    }

    pub fn anonymous(&self) -> Arc<ClientConfig> {
        self.anonymous.clone()
    }

    /// For a client that shows a certificate, which may be a proxy with the chain behind it.
    pub fn with_certificate(
        &self,
        chain_pem: &str,
        key_pem: &str,
    ) -> Result<Arc<ClientConfig>, TlsConfigError> {
        let id = CertificateId::of_pem(chain_pem, key_pem);
        let mut certified = self.certified.lock();
        if let Some(found) = certified.get(&id) {
            return Ok(found.clone());
        }
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(chain_pem.as_bytes()).take(CHAIN_MAX).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())?;
        let key = self.provider.key_provider.load_private_key(key).map_err(TlsConfigError::Key)?;
        if chain.is_empty() {
            return Err(TlsConfigError::NoCertificate);
        }
        // Not by `with_client_auth_cert`: that reads the certificate as a server's, and a proxy has critical
        // extensions that none of a server has.
        let resolver = SingleCertAndKey::from(CertifiedKey::new(chain, key));
        let config = builder(&self.provider, &self.roots)?.with_client_cert_resolver(Arc::new(resolver));
        let config = Arc::new(config);
        if certified.len() >= CERTIFICATES_MAX {
            certified.clear();
        }
        certified.insert(id, config.clone());
        Ok(config)
    }
}

fn builder(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsConfigError> {
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(TlsConfigError::Settings)?;
    Ok(builder.with_root_certificates(roots.clone()))
}
