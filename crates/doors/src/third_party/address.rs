//! Which addresses a door dials for others: public ones, and those that an administrator names. So nobody
//! reaches this site's own network, or this host, through a copy that he asks for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use longhaul_security::Allow;

/// Whether `address` may be dialled.
pub(crate) fn may_dial(address: IpAddr, allowed: &[Allow]) -> bool {
    is_public(address) || allowed.iter().any(|network| network.contains(address))
}

fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = matches!(
        (a, b, c),
        // This network, shared space of providers, protocol assignments, documentation, benchmarks, multicast
        // and above.
        (0, ..)
            | (100, 64..=127, _)
            | (192, 0, 0)
            | (192, 0, 2)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113)
            | (224.., ..)
    );
    !reserved && !address.is_loopback() && !address.is_private() && !address.is_link_local()
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match segments {
        // Translated to IPv4 by NAT64, and tunnelled by 6to4: what counts is where it comes out.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => is_public_v4(embedded(high, low)),
        // Documentation, Teredo, and other assignments that no server has.
        [0x2001, 0xdb8, ..] | [0x2001, 0..=0x1ff, ..] => false,
        // Global unicast; all else is local, multicast, mapped or unassigned.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_dialled() {
        for inside in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "198.18.0.1",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "::127.0.0.1",
            "2001::1",
        ] {
            assert!(!may_dial(inside.parse().unwrap(), &[]), "{inside}");
        }
        for outside in ["192.16.186.1", "8.8.8.8", "2001:1458:201::1", "2a00:1450::1", "64:ff9b::808:808"] {
            assert!(may_dial(outside.parse().unwrap(), &[]), "{outside}");
        }
        let allowed = ["10.0.0.0/8".parse().unwrap()];
        assert!(may_dial("10.1.2.3".parse().unwrap(), &allowed));
        assert!(may_dial("::ffff:10.1.2.3".parse().unwrap(), &allowed));
        assert!(!may_dial("127.0.0.1".parse().unwrap(), &allowed));
    }
}
