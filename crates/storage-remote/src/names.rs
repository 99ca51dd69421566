//! What names of hosts lead to: as the system says, or as a test does.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

type Answer = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Gives the addresses of a host and a port. Asked once for a connection.
#[derive(Clone)]
pub(crate) struct Names(Arc<dyn Fn(String, u16) -> Answer + Send + Sync>);

impl Names {
    pub(crate) fn of_system() -> Names {
        Names(Arc::new(|host, port| {
            Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
        }))
    }

    pub(crate) async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        (self.0)(host.to_owned(), port).await
    }

    #[cfg(test)]
    pub(crate) fn told(tell: impl Fn(u16) -> Vec<SocketAddr> + Send + Sync + 'static) -> Names {
        Names(Arc::new(move |_, port| Box::pin(std::future::ready(Ok(tell(port))))))
    }
}
