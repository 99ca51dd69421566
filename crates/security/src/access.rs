//! Who may come in at a data port: by address before anything else is done, and by the name in the
//! certificate after it.
//!
//! An empty list allows everybody: what is needed then is a certificate of the deployment, as always.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};

use crate::PeerIdentity;

/// Entries of one list. Each stream is compared with all of them.
pub const ALLOWED_MAX: usize = 1_000;
const ANY: &str = "*";

/// One address, or a network such as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allow {
    network: IpAddr,
    bits: u32,
}

/// Identities of one shape: `longhaul://DEPLOYMENT/agent/SITE/AGENTID`, where `*` stands for any one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPattern {
    deployment: String,
    site: String,
    agent: String,
}

/// Both lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub addresses: Vec<Allow>,
    pub subjects: Vec<SubjectPattern>,
}

impl Access {
    pub fn allows_address(&self, from: IpAddr) -> bool {
        self.addresses.is_empty() || self.addresses.iter().any(|allow| allow.contains(from))
    }

    pub fn check_subject(&self, subject: &PeerIdentity) -> Result<(), Fault> {
        if self.subjects.is_empty() || self.subjects.iter().any(|pattern| pattern.fits(subject)) {
            return Ok(());
        }
        let detail = format!("{subject} is none of those that are allowed here");
        Err(Fault::new(FaultCode::NotAllowed, detail))
    }
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
        let wrong =
            || format!("\"{}\" is neither an address nor a network such as 10.1.0.0/16", printable(text));
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let given = address.parse::<IpAddr>().map_err(|_| wrong())?;
        let network = given.to_canonical();
        let all = if given.is_ipv4() { 32 } else { 128 };
        let mut bits = bits.unwrap_or(all);
        if bits > all {
            return Err(wrong());
        }
        if given.is_ipv6() && network.is_ipv4() {
            // ::ffff:10.1.0.0/112 is a network of IPv4; with fewer than 96 bits it would be more than that.
            bits = bits.checked_sub(96).ok_or_else(wrong)?;
        }
        Ok(Allow { network, bits })
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

impl SubjectPattern {
    pub fn fits(&self, subject: &PeerIdentity) -> bool {
        let PeerIdentity::Agent { deployment, agent, site } = subject else { return false };
        let part = |pattern: &str, value: &str| pattern == ANY || pattern == value;
        part(&self.deployment, deployment)
            && part(&self.site, &site.to_string())
            && part(&self.agent, &agent.to_string())
    }
}

impl FromStr for SubjectPattern {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let shown = printable(text);
            format!(
                "\"{shown}\" is no subject: longhaul://DEPLOYMENT/agent/SITE/AGENTID is expected, * for any \
                    part"
            )
        };
        let mut parts = text.strip_prefix("longhaul://").ok_or_else(wrong)?.split('/');
        let mut next = || parts.next().map(str::to_owned).ok_or_else(wrong);
        let (deployment, agent_word, site, agent) = (next()?, next()?, next()?, next()?);
        let is_over = parts.next().is_none();
        // With every * filled in it has to be an identity: a typing error would fit nobody, and silently so.
        let filled = |part: &str, with: &str| if part == ANY { with.to_owned() } else { part.to_owned() };
        let example = format!(
            "longhaul://{}/{agent_word}/{}/{}",
            filled(&deployment, "any"),
            filled(&site, "any"),
            filled(&agent, &longhaul_model::AgentId(1).to_string())
        );
        if !is_over || !matches!(example.parse(), Ok(PeerIdentity::Agent { .. })) {
            return Err(wrong());
        }
        Ok(SubjectPattern { deployment, site, agent })
    }
}

impl fmt::Display for SubjectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "longhaul://{}/agent/{}/{}", self.deployment, self.site, self.agent)
    }
}

/// Both are written as text in configuration files.
macro_rules! as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(Allow);
as_text!(SubjectPattern);

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::AgentId;
    use proptest::prelude::*;

    #[test]
    fn networks_hold_their_addresses() {
        let holds =
            |allow: &str, address: &str| allow.parse::<Allow>().unwrap().contains(address.parse().unwrap());
        assert!(holds("10.1.0.0/16", "10.1.2.3") && !holds("10.1.0.0/16", "10.2.2.3"));
        assert!(holds("10.1.2.3", "10.1.2.3") && !holds("10.1.2.3", "10.1.2.4"));
        assert!(holds("0.0.0.0/0", "192.0.2.1") && holds("::/0", "2001:db8::1"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1") && !holds("::/0", "192.0.2.1"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1") && !holds("2001:db8::/32", "2001:db9::1"));
        assert!(holds("10.1.0.0/16", "::ffff:10.1.2.3"), "an IPv4 client at a socket for both families");
        assert!(holds("::ffff:10.1.0.0/112", "10.1.2.3") && !holds("::ffff:10.1.0.0/112", "10.2.0.1"));
        for bad in ["", "10.1.0.0/33", "::/129", "10.1/16", "far.example", "10.0.0.1/x", "::ffff:10.0.0.0/90"]
        {
            assert!(bad.parse::<Allow>().is_err(), "{bad}");
        }
    }

    #[test]
    fn subjects_are_compared_part_by_part() {
        let subject = |site: &str, agent| PeerIdentity::Agent {
            deployment: "grid".into(),
            agent: AgentId(agent),
            site: site.parse().unwrap(),
        };
        let beta =
            Access { subjects: vec!["longhaul://*/agent/beta/*".parse().unwrap()], ..Access::default() };
        assert!(beta.check_subject(&subject("beta", 1)).is_ok());
        let fault = beta.check_subject(&subject("betab", 1)).unwrap_err();
        assert_eq!(fault.code, FaultCode::NotAllowed);
        assert!(fault.detail.contains("agent/betab/"), "{fault}");
        assert!(beta.check_subject(&PeerIdentity::Service { deployment: "grid".into() }).is_err());
        let one: SubjectPattern = format!("longhaul://grid/agent/beta/{}", AgentId(7)).parse().unwrap();
        assert!(one.fits(&subject("beta", 7)) && !one.fits(&subject("beta", 8)));
        assert!(Access::default().check_subject(&subject("anyone", 3)).is_ok());
        for bad in [
            "",
            "beta",
            "longhaul://*/agent/beta",
            "longhaul://*/agent/beta/*/*",
            "longhaul://*/service",
            "longhaul://*/agent/be*/*",
            "longhaul://*/agents/beta/*",
            "longhaul://*/agent/beta/x y",
        ] {
            assert!(bad.parse::<SubjectPattern>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-f:./]{0,30}|(longhaul://)?[a-z*/0-9]{0,40}") {
            if let Ok(allow) = text.parse::<Allow>() {
                prop_assert_eq!(allow.to_string().parse::<Allow>().unwrap(), allow);
            }
            if let Ok(pattern) = text.parse::<SubjectPattern>() {
                prop_assert_eq!(pattern.to_string(), text);
            }
        }

        #[test]
        fn a_network_holds_what_shares_its_bits(network: u32, address: u32, bits in 0u32..=32) {
            let allow = Allow { network: IpAddr::V4(network.into()), bits };
            let shared = (network ^ address).leading_zeros() >= bits;
            prop_assert_eq!(allow.contains(IpAddr::V4(address.into())), shared);
        }
    }
}
