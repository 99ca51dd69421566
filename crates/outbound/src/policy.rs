//! SSRF filter of connections: which hosts may be at which addresses.

use std::net::IpAddr;

use longhaul_model::address::{IpNetwork, check_dial};

/// Where connections may lead.
#[derive(Clone, Debug)]
pub enum AddressPolicy {
    /// All addresses come from an administrator.
    Anywhere,
    /// Some come from outside and must not lead into the network of this host: to public addresses and those
    /// that are allowed, and anywhere for the one host that an administrator named, if there is one.
    Public { trusted_host: Option<String>, allow: Vec<IpNetwork> },
}

impl AddressPolicy {
    /// Public addresses, and these networks.
    pub fn public(allow: Vec<IpNetwork>) -> AddressPolicy {
        AddressPolicy::Public { trusted_host: None, allow }
    }

    /// Whether a host may be dialled at this address; if not, what kind of address it is.
    pub fn check(&self, host: &str, address: IpAddr) -> Result<(), &'static str> {
        match self {
            AddressPolicy::Anywhere => Ok(()),
            AddressPolicy::Public { trusted_host: Some(trusted), .. }
                if trusted.eq_ignore_ascii_case(host) =>
            {
                Ok(())
            }
            AddressPolicy::Public { allow, .. } => check_dial(address, allow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_lead_to_the_named_host_and_outside_only() {
        let policy = AddressPolicy::Public {
            trusted_host: Some("login.example.org".into()),
            allow: vec!["10.1.0.0/16".parse().unwrap()],
        };
        let may = |host: &str, address: &str| policy.check(host, address.parse().unwrap()).is_ok();
        assert!(may("login.example.org", "10.9.9.9") && may("LOGIN.example.org", "127.0.0.1"));
        assert!(may("keys.example.org", "192.1.2.3") && may("keys.example.org", "10.1.2.3"));
        for inside in ["127.0.0.1", "169.254.169.254", "10.9.9.9", "::1", "::ffff:127.0.0.1", "fd00::1"] {
            assert!(!may("keys.example.org", inside), "{inside}");
            let anywhere = AddressPolicy::Anywhere;
            assert!(anywhere.check("keys.example.org", inside.parse().unwrap()).is_ok());
        }
        assert_eq!(policy.check("x", "127.0.0.1".parse().unwrap()), Err("a loopback address"));
    }
}
