//! Name resolution: the system's, or that of a test.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

type Answer = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Gives the addresses of a host and a port. It is asked once for a connection, so that what was checked is
/// what is dialled.
#[derive(Clone)]
pub struct Resolver(Arc<dyn Fn(String, u16) -> Answer + Send + Sync>);

impl Resolver {
    pub fn system() -> Resolver {
        Resolver(Arc::new(|host, port| {
            Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
        }))
    }

    /// Every name has the addresses that `answer` gives for a port: for tests of names that change.
    #[cfg(any(test, feature = "testing"))]
    pub fn fixed(answer: impl Fn(u16) -> Vec<SocketAddr> + Send + Sync + 'static) -> Resolver {
        Resolver(Arc::new(move |_, port| Box::pin(std::future::ready(Ok(answer(port))))))
    }

    pub async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        (self.0)(host.to_owned(), port).await
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}
