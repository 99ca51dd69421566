//! Names of peers to addresses. The system's resolver may block for long, so it has a thread of its own.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};
use longhaul_wire::StreamNumber;

use crate::fetch::Session;
use crate::net::Command;
use crate::shared::Shared;

/// Addresses tried for one stream.
const ADDRESSES_MAX: usize = 16;

pub(crate) struct Resolve {
    pub(crate) session: Arc<Session>,
    pub(crate) stream: StreamNumber,
    pub(crate) addresses: Vec<String>,
}

/// The work of the resolving thread.
pub(crate) fn resolve_on(shared: &Arc<Shared>) {
    while let Some(Resolve { session, stream, addresses }) = shared.resolver.take() {
        match resolve(&addresses) {
            Ok(addresses) => shared.network.next().command(Command::Dial { session, stream, addresses }),
            Err(fault) => session.stream_down(stream, fault),
        }
    }
}

/// All addresses, in order of preference.
fn resolve(names: &[String]) -> Result<Vec<SocketAddr>, Fault> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let mut last = "the source has told no address".to_owned();
    for name in names {
        match name.to_socket_addrs() {
            Ok(addresses) => {
                for address in addresses {
                    if !found.contains(&address) && found.len() < ADDRESSES_MAX {
                        found.push(address);
                    }
                }
            }
            Err(error) => last = format!("{name}: {error}"),
        }
    }
    if found.is_empty() { Err(Fault::new(FaultCode::Unreachable, last)) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_and_says_what_is_wrong() {
        let found =
            resolve(&["127.0.0.1:7".into(), "no port".into(), "[::1]:8".into(), "127.0.0.1:7".into()])
                .unwrap();
        assert_eq!(found, vec!["127.0.0.1:7".parse().unwrap(), "[::1]:8".parse().unwrap()]);
        let fault = resolve(&["no port".into()]).unwrap_err();
        assert_eq!(fault.code, FaultCode::Unreachable);
        assert!(fault.detail.contains("no port"));
        assert!(resolve(&[]).is_err());
    }
}
