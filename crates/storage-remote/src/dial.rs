//! Connections to storages: a name is resolved once, the addresses are judged, and one of those is dialled,
//! so that a name that changes meanwhile leads nowhere else.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_model::address::{Family, IpNetwork, check_dial};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};
use sha2::Digest as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::failure::{Failure, Kind};
use crate::names::Names;
use crate::order::Credential;
use crate::url::RemoteUrl;

/// Certificates whose settings are kept ready; beyond that all are made again.
const CERTIFICATES_KEPT: usize = 256;
/// Of one chain.
const CHAIN_MAX: usize = 16;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
/// Then the next address is tried.
const ADDRESS_WITHIN: Duration = Duration::from_secs(15);
/// After this part of the time for a connection a second one is tried beside it.
const SECOND_AFTER: u32 = 4;

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Which certificate a connection was made with: connections are not shared between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity(Option<[u8; 32]>);

impl Identity {
    pub(crate) fn of(credential: &Credential) -> Identity {
        let Credential::Certificate { chain_pem, key_pem } = credential else { return Identity(None) };
        let mut hash = sha2::Sha256::new();
        hash.update((chain_pem.len() as u64).to_be_bytes());
        hash.update(chain_pem.as_bytes());
        hash.update(key_pem.as_bytes());
        Identity(Some(hash.finalize().into()))
    }
}

pub(crate) struct Dialler {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    anonymous: Arc<ClientConfig>,
    certified: Mutex<HashMap<Identity, Arc<ClientConfig>>>,
    allow: Vec<IpNetwork>,
    names: Names,
    /// Other addresses are as if they were not there.
    family: Option<Family>,
    within: Duration,
}

impl Dialler {
    pub(crate) fn new(
        roots: RootCertStore,
        allow: Vec<IpNetwork>,
        within: Duration,
    ) -> Result<Dialler, Failure> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let roots = Arc::new(roots);
        let anonymous = builder(&provider, &roots)?.with_no_client_auth();
        Ok(Dialler {
            provider,
            roots,
            anonymous: Arc::new(anonymous),
            certified: Mutex::default(),
            allow,
            names: Names::of_system(),
            family: None,
            within,
        })
    }

    /// One that knows addresses of this family only.
    pub(crate) fn over(&self, family: Family) -> Dialler {
        Dialler {
            provider: self.provider.clone(),
            roots: self.roots.clone(),
            anonymous: self.anonymous.clone(),
            certified: Mutex::default(),
            allow: self.allow.clone(),
            names: self.names.clone(),
            family: Some(family),
            within: self.within,
        }
    }

    pub(crate) async fn dial(
        &self,
        url: &RemoteUrl,
        credential: &Credential,
    ) -> Result<Box<dyn Duplex>, Failure> {
        match timeout(self.within, self.dial_twice(url, credential)).await {
            Ok(dialled) => dialled,
            Err(_) => {
                let text = format!("{}: no connection within {} s", url.authority(), self.within.as_secs());
                Err(Failure::new(Kind::Unreachable, text))
            }
        }
    }

    /// A server can lose a connection between its kernel and itself: XRootD 5.5 does, where a socket's number
    /// is used again while the one before it is closed. So one that hangs gets a second beside it, and
    /// whichever stands first is taken.
    async fn dial_twice(&self, url: &RemoteUrl, credential: &Credential) -> Result<Box<dyn Duplex>, Failure> {
        let mut first = pin!(self.dial_once(url, credential));
        if let Ok(dialled) = timeout(self.within / SECOND_AFTER, &mut first).await {
            return dialled;
        }
        tracing::debug!(to = url.authority(), "a connection hangs; a second is tried beside it");
        let mut second = pin!(self.dial_once(url, credential));
        tokio::select! {
            dialled = &mut first => match dialled {
                Ok(stream) => Ok(stream),
                Err(_) => second.await,
            },
            dialled = &mut second => match dialled {
                Ok(stream) => Ok(stream),
                Err(_) => first.await,
            },
        }
    }

    async fn dial_once(&self, url: &RemoteUrl, credential: &Credential) -> Result<Box<dyn Duplex>, Failure> {
        let tcp = self.connect(url).await?;
        // Small requests wait for nothing.
        let _ = tcp.set_nodelay(true);
        if !url.is_secure() {
            return Ok(Box::new(tcp));
        }
        let tls = TlsConnector::from(self.tls(credential)?);
        let name = ServerName::try_from(url.host().to_owned())
            .map_err(|_| Failure::new(Kind::Order, format!("{}: no name of a host", url.host())))?;
        let stream = tls
            .connect(name, tcp)
            .await
            .map_err(|error| Failure::new(Kind::Tls, format!("{}: TLS: {error}", url.authority())))?;
        Ok(Box::new(stream))
    }

    async fn connect(&self, url: &RemoteUrl) -> Result<TcpStream, Failure> {
        let unreachable =
            |text: String| Failure::new(Kind::Unreachable, format!("{}: {text}", url.authority()));
        let found: Vec<SocketAddr> = self
            .names
            .addresses(url.host(), url.port())
            .await
            .map_err(|error| unreachable(format!("the name is not resolved: {error}")))?
            .into_iter()
            .filter(|address| self.family.is_none_or(|family| family.contains(address.ip())))
            .take(ADDRESSES_MAX)
            .collect();
        let mut last = unreachable(match self.family {
            Some(family) => format!("the name has no {family} address, and no other is to be used"),
            None => "the name has no address".into(),
        });
        for address in found {
            if let Err(what) = check_dial(address.ip(), &self.allow) {
                let text = format!("{} is {what}, which is not allowed here", url.host());
                last = Failure::new(Kind::Refused, text);
                continue;
            }
            match timeout(ADDRESS_WITHIN, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = unreachable(error.to_string()),
                Err(_) => last = unreachable("no answer".into()),
            }
        }
        Err(last)
    }

    fn tls(&self, credential: &Credential) -> Result<Arc<ClientConfig>, Failure> {
        let Credential::Certificate { chain_pem, key_pem } = credential else {
            return Ok(self.anonymous.clone());
        };
        let identity = Identity::of(credential);
        let mut certified = self.certified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = certified.get(&identity) {
            return Ok(found.clone());
        }
        let bad = |why: &str| Failure::new(Kind::Order, format!("the certificate or its key: {why}"));
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain_pem.as_bytes())
            .take(CHAIN_MAX)
            .collect::<Result<_, _>>()
            .map_err(|error| bad(&error.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|error| bad(&error.to_string()))?;
        let key =
            self.provider.key_provider.load_private_key(key).map_err(|error| bad(&error.to_string()))?;
        if chain.is_empty() {
            return Err(bad("there is no certificate"));
        }
        // Not by `with_client_auth_cert`: that reads the certificate as a server's, and a proxy has critical
        // extensions that none of a server has.
        let resolver = SingleCertAndKey::from(CertifiedKey::new(chain, key));
        let config = builder(&self.provider, &self.roots)?.with_client_cert_resolver(Arc::new(resolver));
        let config = Arc::new(config);
        if certified.len() >= CERTIFICATES_KEPT {
            certified.clear();
        }
        certified.insert(identity, config.clone());
        Ok(config)
    }
}

fn builder(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, Failure> {
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| Failure::new(Kind::Order, format!("TLS settings: {error}")))?;
    Ok(builder.with_root_certificates(roots.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpListener;

    /// Two servers of one port: one may be dialled, which stands for a public one, the other may not.
    async fn servers() -> (TcpListener, TcpListener, Vec<IpNetwork>) {
        loop {
            let good = TcpListener::bind("127.0.0.2:0").await.unwrap();
            let port = good.local_addr().unwrap().port();
            // Somebody may have the port there.
            let Ok(private) = TcpListener::bind(("127.0.0.1", port)).await else { continue };
            return (good, private, vec!["127.0.0.2/32".parse().unwrap()]);
        }
    }

    /// Whether a connection waits there: one that was made is in the kernel's hands at once.
    fn was_dialled(listener: TcpListener) -> bool {
        let listener = listener.into_std().unwrap();
        match listener.accept() {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                false
            }
        }
    }

    /// A name that leads to a public address when it is judged and to a private one a moment later
    /// ("rebinding"): the address that was judged is the one that is dialled, and each connection is judged
    /// for itself.
    #[tokio::test]
    async fn a_name_that_changes_leads_nowhere_else() {
        let (good, private, allow) = servers().await;
        let port = good.local_addr().unwrap().port();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let names = Names::told(move |port| {
            let host =
                if count.fetch_add(1, Ordering::SeqCst) == 0 { [127, 0, 0, 2] } else { [127, 0, 0, 1] };
            vec![SocketAddr::from((host, port))]
        });
        let roots = RootCertStore::empty();
        let dialler = Dialler { names, ..Dialler::new(roots, allow, Duration::from_secs(20)).unwrap() };
        let url = RemoteUrl::parse(&format!("http://storage.example:{port}/x")).unwrap();

        let stream = dialler.dial(&url, &Credential::None).await;
        assert!(stream.is_ok(), "{:?}", stream.err().map(|failure| failure.text));
        assert_eq!(asked.load(Ordering::SeqCst), 1, "one answer is judged and dialled");
        good.accept().await.unwrap();
        for _ in 0..3 {
            let refused = dialler.dial(&url, &Credential::None).await.err().unwrap();
            assert_eq!(refused.kind, Kind::Refused, "{}", refused.text);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 4);
        assert!(!was_dialled(private) && !was_dialled(good));
    }

    /// Beside a good address in one answer, a private one is passed over.
    #[tokio::test]
    async fn of_an_answer_only_what_may_be_dialled_is() {
        let (good, private, allow) = servers().await;
        let port = good.local_addr().unwrap().port();
        let names = Names::told(|port| {
            [[127, 0, 0, 1], [10, 0, 0, 1], [169, 254, 169, 254], [127, 0, 0, 2]]
                .map(|host| SocketAddr::from((host, port)))
                .to_vec()
        });
        let roots = RootCertStore::empty();
        let dialler = Dialler { names, ..Dialler::new(roots, allow, Duration::from_secs(20)).unwrap() };
        let url = RemoteUrl::parse(&format!("http://storage.example:{port}/x")).unwrap();
        assert!(dialler.dial(&url, &Credential::None).await.is_ok());
        good.accept().await.unwrap();
        assert!(!was_dialled(private));
    }
}
