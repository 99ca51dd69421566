//! SSRF filter (OWASP: server-side request forgery): which addresses may be dialled on behalf of an outsider.
//! A name or URL from outside must not lead into the network of this host, so only globally reachable unicast
//! addresses pass (the registries of RFC 6890), and the networks that an administrator allows. The caller
//! resolves a name once and dials the address that was checked: a name that changes in between (DNS
//! rebinding) leads nowhere else.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::printable;

/// IP version that a connection has to use, where the resolver does not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Family {
    /// Whether an address belongs to this version; an IPv4-mapped IPv6 address counts as IPv6.
    pub fn contains(self, address: IpAddr) -> bool {
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

/// A CIDR block (RFC 4632), `10.0.0.0/8` or `fd00::/8`; a bare address is a block of one. An IPv4-mapped IPv6
/// address counts as the IPv4 address, both in the block and in the address compared with it.
///
/// Not `ipnet::IpNet`: that takes no bare address and holds no mapped one, so it would need this type around
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_bits: u32,
}

impl IpNetwork {
    /// None if the prefix is longer than the address, or shorter than the mapping of an IPv4 address.
    pub fn new(address: IpAddr, prefix_bits: u32) -> Option<IpNetwork> {
        let canonical = address.to_canonical();
        // ::ffff:10.1.0.0/112 is a network of IPv4; a prefix shorter than 96 bits would hold more than IPv4.
        let is_mapped = address.is_ipv6() && canonical.is_ipv4();
        let prefix_bits = if is_mapped { prefix_bits.checked_sub(96)? } else { prefix_bits };
        (prefix_bits <= bits_of(canonical)).then_some(IpNetwork { address: canonical, prefix_bits })
    }

    /// The address as it was given: bits beyond the prefix may be set.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits that all addresses of the network share: at most 32 or 128.
    pub fn prefix_bits(&self) -> u32 {
        self.prefix_bits
    }

    /// The network of a shorter prefix that contains this one; itself if the prefix is not longer.
    pub fn widened(self, prefix_bits: u32) -> IpNetwork {
        IpNetwork { prefix_bits: self.prefix_bits.min(prefix_bits), ..self }
    }

    /// Whether the address has bits beyond the prefix, as a host in the network has.
    pub fn has_host_bits(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => address.to_bits().checked_shl(self.prefix_bits).unwrap_or(0) != 0,
            IpAddr::V6(address) => address.to_bits().checked_shl(self.prefix_bits).unwrap_or(0) != 0,
        }
    }

    /// Whether an address lies in the block.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(32 - self.prefix_bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                (ours.to_bits() ^ theirs.to_bits()).checked_shr(128 - self.prefix_bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for IpNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed =
            || format!("\"{}\" is neither an address nor a network such as 10.1.0.0/16", printable(text));
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address = address.trim().parse::<IpAddr>().map_err(|_| malformed())?;
        let bits = match bits {
            Some(bits) => bits.trim().parse::<u32>().map_err(|_| malformed())?,
            None => bits_of(address),
        };
        IpNetwork::new(address, bits).ok_or_else(malformed)
    }
}

fn bits_of(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

impl Serialize for IpNetwork {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IpNetwork {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether an address may be dialled. `allowed` lists the networks that the administrator exempts.
///
/// # Errors
/// The kind of a forbidden address, for messages, such as "a loopback address".
pub fn check_dial(address: IpAddr, allowed: &[IpNetwork]) -> Result<(), &'static str> {
    match special(embedded_v4(address)) {
        Some(kind) if !allowed.iter().any(|network| network.contains(address)) => Err(kind),
        _ => Ok(()),
    }
}

/// The IPv4 address that an IPv6 address leads to through a translator; that one is checked instead.
fn embedded_v4(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address.to_canonical() else { return address.to_canonical() };
    let joined = |high: u16, low: u16| IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match v6.segments() {
        // NAT64 (RFC 6052) and 6to4 (RFC 3056).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => joined(high, low),
        _ => IpAddr::V6(v6),
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
        // The unspecified address, and the IPv4-compatible ones, ::a.b.c.d, which are deprecated.
        [0, 0, 0, 0, 0, 0, ..] => Some("no address of a host"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Some("a private address"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some("a link-local address"),
        [first, ..] if first & 0xffc0 == 0xfec0 => Some("a site-local address"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("a multicast address"),
        // IETF protocol assignments: Teredo, which hides an IPv4 address, benchmarking, ORCHID;
        // documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] => Some("a reserved address"),
        // Global unicast is 2000::/3 and nothing else; the rest is unassigned or translated locally.
        [first, ..] if first & 0xe000 != 0x2000 => Some("a reserved address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_public_addresses_are_dialled_by_themselves() {
        for address in [
            "127.0.0.1",
            "127.255.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
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
            "::7f00:1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:0:1::1",
            "2001:2::1",
            "2001:db8::1",
            "4000::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
        ] {
            assert!(check_dial(address.parse().unwrap(), &[]).is_err(), "{address}");
        }
        for address in [
            "192.1.2.3",
            "192.16.186.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2600:900:6::1",
            "2001:1458:201::1",
            "2a00:1450::1",
            "64:ff9b::808:808",
            "::ffff:129.93.3.4",
        ] {
            assert!(check_dial(address.parse().unwrap(), &[]).is_ok(), "{address}");
        }
    }

    #[test]
    fn configured_ones_are_and_no_others() {
        let allowed: Vec<IpNetwork> =
            ["127.0.0.1", "10.1.0.0/16", "fd00::/8"].map(|text| text.parse().unwrap()).to_vec();
        for (address, may) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.2", false),
            ("10.1.255.255", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.0", false),
            // RFC 6052, 3.1: NAT64's well-known prefix is not for private addresses.
            ("64:ff9b::10.1.2.3", false),
            ("fd12::1", true),
            ("fc12::1", false),
            ("::1", false),
        ] {
            assert_eq!(check_dial(address.parse().unwrap(), &allowed).is_ok(), may, "{address}");
        }
        let all: Vec<IpNetwork> = vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()];
        assert!(check_dial("10.0.0.1".parse().unwrap(), &all).is_ok());
    }

    #[test]
    fn networks_hold_their_addresses() {
        let holds = |network: &str, address: &str| {
            network.parse::<IpNetwork>().unwrap().contains(address.parse().unwrap())
        };
        assert!(holds("10.1.0.0/16", "10.1.2.3") && !holds("10.1.0.0/16", "10.2.2.3"));
        assert!(holds("10.1.2.3", "10.1.2.3") && !holds("10.1.2.3", "10.1.2.4"));
        assert!(holds("0.0.0.0/0", "192.0.2.1") && holds("::/0", "2001:db8::1"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1") && !holds("::/0", "192.0.2.1"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1") && !holds("2001:db8::/32", "2001:db9::1"));
        assert!(holds("10.1.0.0/16", "::ffff:10.1.2.3"), "an IPv4 client at a socket for both families");
        assert!(holds("::ffff:10.1.0.0/112", "10.1.2.3") && !holds("::ffff:10.1.0.0/112", "10.2.0.1"));
        for bad in [
            "",
            "10.0.0.0/33",
            "10.1.0.0/33",
            "10.0.0/8",
            "10.1/16",
            "a/8",
            "far.example",
            "::/129",
            "10.0.0.0/x",
            "10.0.0.1/x",
            "::ffff:10.0.0.0/90",
        ] {
            assert!(bad.parse::<IpNetwork>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-f:./]{0,30}") {
            if let Ok(network) = text.parse::<IpNetwork>() {
                prop_assert_eq!(network.to_string().parse::<IpNetwork>().unwrap(), network);
            }
        }

        #[test]
        fn a_network_holds_what_shares_its_bits(ours: u32, theirs: u32, prefix_bits in 0u32..=32) {
            let network = IpNetwork { address: IpAddr::V4(ours.into()), prefix_bits };
            let shared = (ours ^ theirs).leading_zeros() >= prefix_bits;
            prop_assert_eq!(network.contains(IpAddr::V4(theirs.into())), shared);
        }
    }
}
