//! TCP connections to hosts that outsiders name: a name is resolved once, its addresses are checked, and one
//! of those is dialled, so that a name that changes in between (DNS rebinding) leads nowhere else.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use longhaul_model::address::Family;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::policy::AddressPolicy;
use crate::resolver::Resolver;

/// After this part of the time for a connection a second one is tried beside it.
const SECOND_DIAL_DIVISOR: u32 = 4;

/// Dials one address of a host after the other until one answers. The caller limits the whole time.
#[derive(Clone, Debug)]
pub struct Connector {
    pub resolver: Resolver,
    pub policy: AddressPolicy,
    /// Addresses of the other family are as if they were not there.
    pub family: Option<Family>,
    /// Addresses of one name that are tried.
    pub addresses_max: usize,
    /// Then the next address is tried.
    pub address_timeout: Duration,
}

/// Why no address of a host could be connected to; of several reasons, that of the last address.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the name is not resolved: {0}")]
    Unresolved(#[source] io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("the name has no {0} address, and no other is to be used")]
    NoAddressOf(Family),
    /// The kind of address that it is.
    #[error("{0}, which is not allowed here")]
    Refused(&'static str),
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    #[error("no answer")]
    TimedOut,
}

impl Connector {
    /// By the system's resolver, over both families.
    pub fn new(policy: AddressPolicy, addresses_max: usize, address_timeout: Duration) -> Connector {
        Connector { resolver: Resolver::system(), policy, family: None, addresses_max, address_timeout }
    }

    pub async fn connect(&self, host: &str, port: u16) -> Result<(TcpStream, SocketAddr), ConnectError> {
        let found = self.resolver.resolve(host, port).await.map_err(ConnectError::Unresolved)?;
        let mut last = self.family.map_or(ConnectError::NoAddress, ConnectError::NoAddressOf);
        let usable = |address: &SocketAddr| self.family.is_none_or(|family| family.contains(address.ip()));
        for address in found.into_iter().filter(usable).take(self.addresses_max) {
            if let Err(kind) = self.policy.check(host, address.ip()) {
                last = ConnectError::Refused(kind);
                continue;
            }
            match timeout(self.address_timeout, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Requests are small and wait for nothing.
                    let _ = stream.set_nodelay(true);
                    return Ok((stream, address));
                }
                Ok(Err(error)) => last = ConnectError::Unreachable(error),
                Err(_) => last = ConnectError::TimedOut,
            }
        }
        Err(last)
    }

    /// Checks a host that another server is to be sent to, by every address that its name has here. That
    /// server resolves it by itself, so this keeps out who names a forbidden host, and not who controls a
    /// name.
    pub async fn check_host(&self, host: &str, port: u16) -> Result<(), ConnectError> {
        let found = self.resolver.resolve(host, port).await.map_err(ConnectError::Unresolved)?;
        if found.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let mut addresses = found.iter();
        addresses.try_for_each(|address| self.policy.check(host, address.ip())).map_err(ConnectError::Refused)
    }
}

/// A server can lose a connection between its kernel and itself: XRootD 5.5 does, where a socket's number is
/// used again while the one before it is closed. So a connection that hangs gets a second beside it, and
/// whichever stands first is taken. `within` is the time for a connection; the caller limits the whole time.
pub async fn dial_twice<T, E>(
    within: Duration,
    first: impl Future<Output = Result<T, E>>,
    second: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut first = pin!(first);
    if let Ok(dialled) = timeout(within / SECOND_DIAL_DIVISOR, &mut first).await {
        return dialled;
    }
    let mut second = pin!(second);
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Whoever another server is sent to may be dialled at any of its addresses.
    #[tokio::test]
    async fn a_host_is_allowed_by_all_of_its_addresses() {
        let check = async |hosts: &'static [[u8; 4]]| {
            let policy = AddressPolicy::public(vec!["127.0.0.2/32".parse().unwrap()]);
            let answer = |port| hosts.iter().map(|host| SocketAddr::from((*host, port))).collect();
            let connector = Connector {
                resolver: Resolver::fixed(answer),
                ..Connector::new(policy, 8, Duration::from_secs(20))
            };
            connector.check_host("storage.example", 443).await.map_err(|error| error.to_string())
        };
        assert_eq!(check(&[[127, 0, 0, 2], [8, 8, 8, 8]]).await, Ok(()));
        let refused = check(&[[127, 0, 0, 2], [169, 254, 169, 254]]).await.unwrap_err();
        assert_eq!(refused, "a link-local address, which is not allowed here");
        assert_eq!(check(&[]).await.unwrap_err(), "the name has no address");
    }

    /// A private address that stands beside a good one in an answer is passed over.
    #[tokio::test]
    async fn only_allowed_addresses_of_an_answer_are_dialled() {
        let (good, private, port) = loop {
            let good = TcpListener::bind("127.0.0.2:0").await.unwrap();
            let port = good.local_addr().unwrap().port();
            // The port may be taken at the other address.
            if let Ok(private) = TcpListener::bind(("127.0.0.1", port)).await {
                break (good, private, port);
            }
        };
        let policy = AddressPolicy::public(vec!["127.0.0.2/32".parse().unwrap()]);
        let resolver = Resolver::fixed(|port| {
            [[127, 0, 0, 1], [10, 0, 0, 1], [169, 254, 169, 254], [127, 0, 0, 2]]
                .map(|host| SocketAddr::from((host, port)))
                .to_vec()
        });
        let connector = Connector { resolver, ..Connector::new(policy, 8, Duration::from_secs(20)) };
        let (_stream, address) = connector.connect("storage.example", port).await.unwrap();
        assert_eq!(address.ip().to_string(), "127.0.0.2");
        good.accept().await.unwrap();
        let few = Connector { addresses_max: 3, ..connector.clone() };
        let refused = few.connect("storage.example", port).await.unwrap_err();
        assert_eq!(refused.to_string(), "a link-local address, which is not allowed here");
        let other = Connector { family: Some(Family::V6), ..connector };
        let none = other.connect("storage.example", port).await.unwrap_err();
        assert!(none.to_string().contains("no IPv6 address"), "{none}");
        // A connection that was made would wait in the kernel's queue.
        let waiting = private.into_std().unwrap().accept();
        assert_eq!(waiting.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
