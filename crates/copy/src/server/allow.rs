//! Which client addresses a server talks to: single addresses and networks (`10.1.0.0/16`).

use std::net::IpAddr;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow {
    network: IpAddr,
    bits: u32,
}

impl Allow {
    pub fn contains(&self, address: IpAddr) -> bool {
        // A client of IPv4 at a socket for both families.
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (network.to_bits() ^ address.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                (network.to_bits() ^ address.to_bits()).checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Allow {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither an address nor a network such as 10.1.0.0/16");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let network = address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical();
        let all = if network.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        if bits > all {
            return Err(wrong());
        }
        Ok(Allow { network, bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn networks_hold_their_addresses() {
        let holds =
            |allow: &str, address: &str| allow.parse::<Allow>().unwrap().contains(address.parse().unwrap());
        assert!(holds("10.1.0.0/16", "10.1.2.3") && !holds("10.1.0.0/16", "10.2.2.3"));
        assert!(holds("10.1.2.3", "10.1.2.3") && !holds("10.1.2.3", "10.1.2.4"));
        assert!(holds("10.1.2.3", "::ffff:10.1.2.3"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && !holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("2001:db8::/32", "2001:db8:5::1") && !holds("2001:db8::/32", "2001:db9::1"));
        for bad in ["", "10.1.0.0/33", "10.1", "x/8", "10.1.0.0/", "::/129"] {
            assert!(bad.parse::<Allow>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-f:./]{0,30}") {
            let _ = text.parse::<Allow>();
        }
    }
}
