//! Names of peers to addresses. The system's resolver may block for long, so it has a thread of its own.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};

use crate::net::{Command, Dialler};
use crate::shared::Shared;

/// Addresses tried for one stream.
const ADDRESSES_MAX: usize = 16;

pub(crate) struct Resolve {
    pub(crate) dialler: Dialler,
    pub(crate) addresses: Vec<String>,
}

/// The work of the resolving thread.
pub(crate) fn resolve_on(shared: &Arc<Shared>) {
    while let Some(Resolve { dialler, addresses }) = shared.resolver.take() {
        match resolve(&addresses) {
            Ok(addresses) => {
                let addresses = dialler.order(addresses, shared.now());
                shared.network.next().command(Command::Dial { dialler, addresses });
            }
            Err(fault) => dialler.failed(fault, shared),
        }
    }
}

/// All addresses, in order of preference.
fn resolve(names: &[String]) -> Result<Vec<SocketAddr>, Fault> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let mut last = "the peer has told no address".to_owned();
    for name in names {
        match name.to_socket_addrs() {
            Ok(addresses) => {
                for address in alternating(addresses.collect()) {
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

/// The families in turn, so that a family that does not work costs one wait and not one for each address.
fn alternating(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_family = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (same, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_family);
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut mixed = Vec::new();
    loop {
        let pair = [same.next(), other.next()];
        if pair == [None, None] {
            return mixed;
        }
        mixed.extend(pair.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let all: Vec<SocketAddr> = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        assert_eq!(alternating(all.clone()), [all[0], all[3], all[1], all[2]]);
        assert_eq!(alternating(Vec::new()), Vec::<SocketAddr>::new());
    }

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
