//! Which addresses may be dialled. What outsiders name must not lead into the network of this host (SSRF):
//! loopback, link-local, private and special addresses are refused unless they are configured.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Which addresses a connection may go over, where that is not left to the resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn has(self, address: IpAddr) -> bool {
        (self == Family::V4) == address.is_ipv4()
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

/// A run of addresses: `10.0.0.0/8`, `fd00::/8`, `127.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                u32::from(ours) & mask == u32::from(theirs) & mask
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                u128::from(ours) & mask == u128::from(theirs) & mask
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network: write 192.0.2.0/24, 2001:db8::/32 or an address");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.trim().parse().map_err(|_| wrong()))?;
        if bits <= most { Ok(Network { address, bits }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Whether the address may be dialled; if not, what it is.
pub fn may_dial(address: IpAddr, allowed: &[Network]) -> Result<(), &'static str> {
    let plain = unwrapped(address);
    match special(plain) {
        None => Ok(()),
        Some(_) if allowed.iter().any(|network| network.holds(plain) || network.holds(address)) => Ok(()),
        Some(what) => Err(what),
    }
}

/// IPv6 addresses that stand for one of IPv4 are judged as that one.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(address) = address else { return address };
    let segments = address.segments();
    let tail = || Ipv4Addr::from(((u32::from(segments[6])) << 16) | u32::from(segments[7]));
    match segments {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => IpAddr::V4(tail()),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low))),
        _ => IpAddr::V6(address),
    }
}

fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) => Some("no address of a host"),
        (127, ..) => Some("a loopback address"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("a private address"),
        (169, 254, _) => Some("a link-local address"),
        (100, 64..=127, _) => Some("an address shared by a provider's customers"),
        (192, 0, 0) | (192, 0, 2) | (198, 51, 100) | (203, 0, 113) | (198, 18..=19, _) => {
            Some("a reserved address")
        }
        (224..=239, ..) => Some("a multicast address"),
        (240.., ..) => Some("a reserved address"),
        _ => None,
    }
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    match segments {
        _ if address.is_loopback() => Some("a loopback address"),
        // Also those that once stood for IPv4 addresses, ::a.b.c.d.
        [0, 0, 0, 0, 0, 0, ..] => Some("no address of a host"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Some("a private address"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some("a link-local address"),
        [first, ..] if first & 0xffc0 == 0xfec0 => Some("a site-local address"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("a multicast address"),
        // Teredo hides an IPv4 address; discarded; local NAT64; documentation.
        [0x2001, 0, ..] | [0x100, 0, 0, 0, ..] | [0x64, 0xff9b, 1, ..] | [0x2001, 0xdb8, ..] => {
            Some("a reserved address")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_dialled_by_themselves() {
        for address in [
            "127.0.0.1",
            "127.255.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:0:1::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
        ] {
            assert!(may_dial(address.parse().unwrap(), &[]).is_err(), "{address}");
        }
        for address in ["192.1.2.3", "172.32.0.1", "100.128.0.1", "2600:900:6::1", "::ffff:129.93.3.4"] {
            assert!(may_dial(address.parse().unwrap(), &[]).is_ok(), "{address}");
        }
    }

    #[test]
    fn configured_ones_are_and_no_others() {
        let allowed: Vec<Network> =
            ["127.0.0.1", "10.1.0.0/16", "fd00::/8"].map(|text| text.parse().unwrap()).to_vec();
        for (address, may) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.2", false),
            ("10.1.255.255", true),
            ("10.2.0.0", false),
            ("fd12::1", true),
            ("fc12::1", false),
            ("::1", false),
        ] {
            assert_eq!(may_dial(address.parse().unwrap(), &allowed).is_ok(), may, "{address}");
        }
        let all: Vec<Network> = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        assert!(may_dial("10.0.0.1".parse().unwrap(), &all).is_ok());
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "a/8", "::/129", "10.0.0.0/x"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
