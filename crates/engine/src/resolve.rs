//! Name resolution of peers. The system's resolver may block for long, so it has its own thread.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};

use crate::context::EngineContext;
use crate::interface::Path;
use crate::net::{Command, Dialler};
use crate::paths::ResolvedPath;

/// Paths tried for one stream.
const PATHS_PER_STREAM_MAX: usize = 16;
/// Local addresses of one host.
const LOCAL_ADDRESSES_MAX: usize = 8;

pub(crate) struct ResolveRequest {
    pub(crate) dialler: Dialler,
    pub(crate) paths: Vec<Arc<Path>>,
}

/// The default paths to the addresses, from each local address if any are configured. Neighbours in the list
/// differ at both ends, so that as many streams as there are local addresses use all of them. `turn` is the
/// start position, for streams that do not know of each other.
pub(crate) fn default_paths(addresses: &[String], locals: &[IpAddr], turn: usize) -> Vec<Arc<Path>> {
    if locals.is_empty() {
        return addresses.iter().map(|address| Arc::new(Path::new(address))).collect();
    }
    let pairs = addresses.len() * locals.len();
    let way = |number: usize| {
        let place = number % locals.len();
        let address = &addresses[(place + number / locals.len()) % addresses.len()];
        Arc::new(Path { local: Some(locals[place]), ..Path::new(address) })
    };
    (0..pairs).map(|number| way((number + turn) % pairs)).take(PATHS_PER_STREAM_MAX).collect()
}

/// Whether these addresses are local to this host.
pub(crate) fn check_locals(locals: &[IpAddr]) -> Result<(), Fault> {
    if locals.len() > LOCAL_ADDRESSES_MAX {
        let why = format!(
            "{} addresses of this host to send from; the limit is {LOCAL_ADDRESSES_MAX}",
            locals.len()
        );
        return Err(Fault::new(FaultCode::BadRequest, why));
    }
    for local in locals {
        UdpSocket::bind((*local, 0)).map_err(|error| {
            let why = format!(
                "streams cannot be opened from {local}: {error}; `ip address` lists what this host has"
            );
            Fault::new(FaultCode::BadRequest, why)
        })?;
    }
    Ok(())
}

/// The main loop of the resolver thread.
pub(crate) fn run_resolver(shared: &Arc<EngineContext>) {
    while let Some(ResolveRequest { dialler, paths }) = shared.resolver.take() {
        match resolve(&paths) {
            Ok(ways) => {
                let ways = dialler.rank_paths(ways, shared.now());
                shared.network.next().command(Command::Dial { dialler, ways });
            }
            Err(fault) => dialler.failed(fault, shared),
        }
    }
}

/// All paths, in order of preference.
fn resolve(paths: &[Arc<Path>]) -> Result<Vec<ResolvedPath>, Fault> {
    let mut found: Vec<ResolvedPath> = Vec::new();
    let mut last = "the peer has told no address".to_owned();
    for path in paths {
        let name = &path.address;
        match name.to_socket_addrs() {
            Ok(addresses) => {
                let fits = |address: &SocketAddr| {
                    path.local.is_none_or(|local| local.is_ipv6() == address.is_ipv6())
                };
                let addresses: Vec<SocketAddr> = addresses.filter(fits).collect();
                if addresses.is_empty() {
                    last = format!("{name}: no address of the same family as {:?}", path.local);
                }
                for address in interleave_families(addresses) {
                    let way = ResolvedPath { address, path: path.clone() };
                    if !found.iter().any(|known| known.endpoints() == way.endpoints())
                        && found.len() < PATHS_PER_STREAM_MAX
                    {
                        found.push(way);
                    }
                }
            }
            Err(error) => last = format!("{name}: {error}"),
        }
    }
    if found.is_empty() { Err(Fault::new(FaultCode::Unreachable, last)) } else { Ok(found) }
}

/// Interleaves the address families (RFC 8305 section 4), so that a family that does not work costs one delay
/// and not one per address.
fn interleave_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
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
    fn address_families_alternate() {
        let all: Vec<SocketAddr> = ["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        assert_eq!(interleave_families(all.clone()), [all[0], all[3], all[1], all[2]]);
        assert_eq!(interleave_families(Vec::new()), Vec::<SocketAddr>::new());
    }

    #[test]
    fn order_is_kept_and_failures_are_reported() {
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            resolve(&default_paths(&names, &[], 0))
                .map(|ways| ways.iter().map(|way| way.address).collect::<Vec<_>>())
        };
        let found = of(&["127.0.0.1:7", "no port", "[::1]:8", "127.0.0.1:7"]).unwrap();
        assert_eq!(found, vec!["127.0.0.1:7".parse().unwrap(), "[::1]:8".parse().unwrap()]);
        let fault = of(&["no port"]).unwrap_err();
        assert_eq!(fault.code, FaultCode::Unreachable);
        assert!(fault.detail.contains("no port"));
        assert!(of(&[]).is_err());
    }

    #[test]
    fn every_local_address_is_paired_with_every_remote_one() {
        let theirs: Vec<String> = ["10.0.0.1:7", "10.0.1.1:7"].map(str::to_owned).to_vec();
        let ours: Vec<IpAddr> = ["10.0.0.2", "10.0.1.2"].map(|ip| ip.parse().unwrap()).to_vec();
        let of = |turn| -> Vec<(String, u8)> {
            let last = |local: Option<IpAddr>| match local {
                Some(IpAddr::V4(ip)) => ip.octets()[2],
                other => panic!("{other:?}"),
            };
            let paths = default_paths(&theirs, &ours, turn);
            paths.iter().map(|path| (path.address.clone(), last(path.local))).collect()
        };
        let way = |their: usize, our: u8| (theirs[their].clone(), our);
        assert_eq!(of(0), [way(0, 0), way(1, 1), way(1, 0), way(0, 1)]);
        assert_eq!(of(1), [way(1, 1), way(1, 0), way(0, 1), way(0, 0)]);
        assert_eq!(default_paths(&[], &ours, 3), []);
        assert_eq!(default_paths(&theirs, &[], 1)[0].local, None);
        let one_of_theirs = default_paths(&theirs[..1], &ours, 0);
        assert_eq!(one_of_theirs.len(), 2);
    }

    #[test]
    fn a_foreign_local_address_is_refused() {
        check_locals(&["127.0.0.1".parse().unwrap()]).unwrap();
        let fault = check_locals(&["192.0.2.77".parse().unwrap()]).unwrap_err();
        assert!(fault.detail.contains("from 192.0.2.77") && fault.detail.contains("ip address"), "{fault}");
        assert!(check_locals(&["127.0.0.1".parse().unwrap(); LOCAL_ADDRESSES_MAX + 1]).is_err());
    }

    /// One remote address with two local addresses is two paths; there is none between different address
    /// families.
    #[test]
    fn paths_differ_by_either_endpoint() {
        let path = |local: Option<&str>| {
            let local = local.map(|local| local.parse().unwrap());
            Arc::new(Path { local, ..Path::new("127.0.0.1:7") })
        };
        let found = resolve(&[path(Some("127.0.0.2")), path(Some("127.0.0.3")), path(None)]).unwrap();
        assert_eq!(found.len(), 3);
        assert!(resolve(&[path(Some("::1"))]).unwrap_err().detail.contains("family"));
    }
}
