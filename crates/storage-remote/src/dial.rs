//! Connections to storages, with the TLS settings that a credential needs.

use std::sync::Arc;
use std::time::Duration;

use longhaul_model::address::{Family, IpNetwork};
use longhaul_outbound::{
    AddressPolicy, CertificateId, ConnectError, Connector, TlsConfigError, TlsConfigs, TlsError, dial_twice,
    handshake_tls,
};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::failure::{Failure, Kind};
use crate::order::Credential;
use crate::url::RemoteUrl;

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
/// An address that does not answer by then is down; a few lost packets take less.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(crate) fn certificate_of(credential: &Credential) -> CertificateId {
    match credential {
        Credential::Certificate { chain_pem, key_pem } => CertificateId::of_pem(chain_pem, key_pem),
        _ => CertificateId::NONE,
    }
}

pub(crate) struct Dialler {
    connector: Connector,
    tls: Arc<TlsConfigs>,
    /// Timeout for resolving, connecting and the handshake together.
    within: Duration,
}

impl Dialler {
    pub(crate) fn new(
        roots: RootCertStore,
        allow: Vec<IpNetwork>,
        within: Duration,
    ) -> Result<Dialler, Failure> {
        let tls = TlsConfigs::new(roots).map_err(|error| Failure::new(Kind::Order, error.to_string()))?;
        let connector = Connector::new(AddressPolicy::public(allow), ADDRESSES_MAX, ADDRESS_TIMEOUT);
        Ok(Dialler { connector, tls: Arc::new(tls), within })
    }

    /// One that knows addresses of this family only.
    pub(crate) fn over(&self, family: Family) -> Dialler {
        let connector = Connector { family: Some(family), ..self.connector.clone() };
        Dialler { connector, tls: self.tls.clone(), within: self.within }
    }

    pub(crate) async fn dial(
        &self,
        url: &RemoteUrl,
        credential: &Credential,
    ) -> Result<Box<dyn Duplex>, Failure> {
        let second = async {
            tracing::debug!(to = url.authority(), "a connection hangs; a second is tried beside it");
            self.dial_once(url, credential).await
        };
        let dialled = dial_twice(self.within, self.dial_once(url, credential), second);
        match timeout(self.within, dialled).await {
            Ok(dialled) => dialled,
            Err(_) => {
                let text = format!("{}: no connection within {} s", url.authority(), self.within.as_secs());
                Err(Failure::new(Kind::Unreachable, text))
            }
        }
    }

    async fn dial_once(&self, url: &RemoteUrl, credential: &Credential) -> Result<Box<dyn Duplex>, Failure> {
        let tcp = self.connect(url).await?;
        if !url.is_secure() {
            return Ok(Box::new(tcp));
        }
        let config = self.tls(credential)?;
        let stream = handshake_tls(tcp, url.host(), config, None).await.map_err(|error| match error {
            TlsError::HostName => Failure::new(Kind::Order, format!("{}: {error}", url.host())),
            TlsError::Handshake(_) => Failure::new(Kind::Tls, format!("{}: {error}", url.authority())),
        })?;
        Ok(Box::new(stream))
    }

    /// Whether another server may be sent to this host.
    pub(crate) async fn check_host(&self, url: &RemoteUrl) -> Result<(), Failure> {
        let checked = timeout(self.within, self.connector.check_host(url.host(), url.port()));
        match checked.await {
            Ok(checked) => checked.map_err(|error| connect_failure(url, &error)),
            Err(_) => Err(connect_failure(url, &ConnectError::TimedOut)),
        }
    }

    async fn connect(&self, url: &RemoteUrl) -> Result<TcpStream, Failure> {
        let connected = self.connector.connect(url.host(), url.port()).await;
        connected.map(|(stream, _)| stream).map_err(|error| connect_failure(url, &error))
    }

    fn tls(&self, credential: &Credential) -> Result<Arc<ClientConfig>, Failure> {
        let Credential::Certificate { chain_pem, key_pem } = credential else {
            return Ok(self.tls.anonymous());
        };
        let bad =
            |why: TlsConfigError| Failure::new(Kind::Order, format!("the certificate or its key: {why}"));
        self.tls.with_certificate(chain_pem, key_pem).map_err(bad)
    }
}

fn connect_failure(url: &RemoteUrl, error: &ConnectError) -> Failure {
    match error {
        ConnectError::Refused(_) => Failure::new(Kind::Refused, format!("{} is {error}", url.host())),
        _ => Failure::new(Kind::Unreachable, format!("{}: {error}", url.authority())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_outbound::Resolver;
    use std::net::SocketAddr;
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
        let resolver = Resolver::fixed(move |port| {
            let host =
                if count.fetch_add(1, Ordering::SeqCst) == 0 { [127, 0, 0, 2] } else { [127, 0, 0, 1] };
            vec![SocketAddr::from((host, port))]
        });
        let roots = RootCertStore::empty();
        let dialler = Dialler::new(roots, allow, Duration::from_secs(20)).unwrap();
        let connector = Connector { resolver, ..dialler.connector.clone() };
        let dialler = Dialler { connector, ..dialler };
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
}
