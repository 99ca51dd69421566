//! Maps measurement hosts to sites: by an explicit table, then by a directory of sites, and last by inference
//! from domains and networks, which is marked as such and trusted less.
//!
//! Start with [`HostMap::find`]. The table itself is stored by the catalog.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use longhaul_model::SiteName;
use longhaul_model::address::IpNetwork;
use serde::{Deserialize, Serialize};

pub use crate::advice::Family;
pub use crate::observation::Mapping;

/// Labels of the shortest domain that identifies an owner, public suffix included.
const DOMAIN_LABELS_MIN: usize = 2;
/// Second-level domains under a country code that are public suffixes (`ac.uk`, `edu.au`, `co.jp`, `gov.br`).
const SHARED_SECOND_LEVEL_DOMAINS: &[&str] = &[
    "ac", "co", "com", "edu", "go", "gob", "gov", "govt", "ltd", "mil", "ne", "net", "nom", "or", "org",
    "plc", "re", "res", "sch",
];
/// A longer IPv4 prefix is widened to this length for inference: a /24 belongs to one site.
const SITE_PREFIX_BITS_V4: u32 = 24;
/// A longer IPv6 prefix is widened to this length for inference: a /48 belongs to one site.
const SITE_PREFIX_BITS_V6: u32 = 48;

/// Role of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Bandwidth,
    Latency,
    /// Bandwidth and latency.
    Both,
    /// Not a measurement host but a storage endpoint: its domain identifies hosts nearby.
    Storage,
}

/// What an entry maps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostOrNetwork {
    /// Host name or address, as the measurements spell it, in lower case.
    Host(String),
    Network(Prefix),
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub what: HostOrNetwork,
    pub site: SiteName,
    /// None for a network.
    pub role: Option<Role>,
    /// Restricts the entry to one address family.
    pub family: Option<Family>,
    pub mapping: Mapping,
}

/// An IP prefix of a site, such as `192.0.2.0/24`: never shorter than one bit, and without host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(IpNetwork);

/// The site of a host, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteMatch {
    pub site: SiteName,
    pub mapping: Mapping,
    /// Explanation for people.
    pub reason: String,
}

/// Lookup table from hosts to sites.
#[derive(Clone, Debug, Default)]
pub struct HostMap {
    hosts: BTreeMap<String, Entry>,
    networks: Vec<(Prefix, SiteName)>,
    /// Domains of storage endpoints; a domain shared by several sites maps to none.
    domains: BTreeMap<String, Option<SiteName>>,
}

impl HostMap {
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut mapping = HostMap::default();
        entries.into_iter().for_each(|entry| mapping.add(entry));
        mapping
    }

    fn add(&mut self, entry: Entry) {
        match &entry.what {
            HostOrNetwork::Network(prefix) => {
                self.networks.push((*prefix, entry.site));
                // Longest prefix first.
                self.networks.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.0.prefix_bits()));
            }
            HostOrNetwork::Host(host) if entry.role == Some(Role::Storage) => {
                self.add_storage(&host.clone(), entry.site)
            }
            HostOrNetwork::Host(host) => {
                let stands = self.hosts.get(host).is_some_and(|known| known.mapping > entry.mapping);
                if !stands {
                    self.hosts.insert(host.clone(), entry);
                }
            }
        }
    }

    /// Adds a storage endpoint: hosts in its domain may belong to its site.
    pub fn add_storage(&mut self, host: &str, site: SiteName) {
        let mut domain = host;
        while let Some((_, parent)) = domain.split_once('.') {
            if !is_registrable(parent) {
                break;
            }
            self.domains
                .entry(parent.to_ascii_lowercase())
                .and_modify(|known| {
                    if known.as_ref() != Some(&site) {
                        *known = None;
                    }
                })
                .or_insert_with(|| Some(site.clone()));
            domain = parent;
        }
    }

    /// Finds the site of a host by name, address or both.
    pub fn find(
        &self,
        name: Option<&str>,
        address: Option<IpAddr>,
        family: Option<Family>,
    ) -> Option<SiteMatch> {
        let name = name.map(str::to_ascii_lowercase);
        let spelt = address.map(|address| address.to_string());
        let fits = |entry: &&Entry| entry.family.is_none() || family.is_none() || entry.family == family;
        let listed = [name.as_deref(), spelt.as_deref()]
            .into_iter()
            .flatten()
            .filter_map(|key| self.hosts.get(key).filter(fits))
            .max_by_key(|entry| entry.mapping);
        if let Some(entry) = listed {
            let because = match entry.mapping {
                Mapping::Explicit => "it is in the table",
                Mapping::Imported | Mapping::Inferred => "the imported directory lists it",
            };
            return Some(SiteMatch {
                site: entry.site.clone(),
                mapping: entry.mapping,
                reason: because.to_owned(),
            });
        }
        self.find_by_domain(name.as_deref()).or_else(|| self.find_by_network(address))
    }

    /// By the longest domain shared with storage endpoints of one site.
    fn find_by_domain(&self, name: Option<&str>) -> Option<SiteMatch> {
        let mut domain = name?;
        while let Some((_, parent)) = domain.split_once('.') {
            if let Some(site) = self.domains.get(parent) {
                let site = site.clone()?;
                let because = format!("storages of {site} are in {parent} too");
                return Some(SiteMatch { site, mapping: Mapping::Inferred, reason: because });
            }
            domain = parent;
        }
        None
    }

    fn find_by_network(&self, address: Option<IpAddr>) -> Option<SiteMatch> {
        let address = address?;
        let near = |prefix: &Prefix| {
            prefix.contains(address) || prefix.widened().is_some_and(|wide| wide.contains(address))
        };
        let (prefix, site) = self
            .networks
            .iter()
            .find(|(prefix, _)| prefix.contains(address))
            .or_else(|| self.networks.iter().find(|(prefix, _)| near(prefix)))?;
        // Ambiguous if two sites share the widened network.
        let contested = !prefix.contains(address)
            && self.networks.iter().any(|(other, owner)| owner != site && near(other));
        if contested {
            return None;
        }
        let because = format!("it is in or beside {site}'s network {prefix}");
        Some(SiteMatch { site: site.clone(), mapping: Mapping::Inferred, reason: because })
    }
}

/// Whether a domain identifies an owner, by a short rule in place of the public suffix list: at least two
/// labels, and three under a country code whose second level is shared (`example.ac.uk`).
fn is_registrable(domain: &str) -> bool {
    let labels: Vec<&str> = domain.split('.').collect();
    if labels.len() < DOMAIN_LABELS_MIN || labels.iter().any(|label| label.is_empty()) {
        return false;
    }
    let (last, second) = (labels[labels.len() - 1], labels[labels.len() - 2]);
    let shared = last.len() == 2 && SHARED_SECOND_LEVEL_DOMAINS.contains(&second);
    !shared || labels.len() > DOMAIN_LABELS_MIN
}

impl Prefix {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(address)
    }

    /// The /24 or /48 that contains a longer prefix.
    fn widened(&self) -> Option<Prefix> {
        let most = if self.0.address().is_ipv4() { SITE_PREFIX_BITS_V4 } else { SITE_PREFIX_BITS_V6 };
        (self.0.prefix_bits() > most).then(|| Prefix(self.0.widened(most)))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Prefix {
    type Err = String;
    /// Host bits must be zero: a prefix with host bits is a mistake.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("{} {why}", longhaul_model::units::printable(&text.chars().take(60).collect::<String>()))
        };
        let (network, bits) =
            text.trim().split_once('/').ok_or_else(|| wrong("is no network such as 192.0.2.0/24"))?;
        let network: IpAddr = network.parse().map_err(|_| wrong("does not begin with an address"))?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let bits: u32 = bits
            .parse()
            .ok()
            .filter(|bits| (1..=most).contains(bits))
            .ok_or_else(|| wrong("has no sound length"))?;
        match IpNetwork::new(network, bits) {
            Some(network) if !network.has_host_bits() => Ok(Prefix(network)),
            _ => Err(wrong("has bits beyond its length")),
        }
    }
}

macro_rules! words {
    ($name:ident, $what:literal: $($variant:ident = $word:literal),*) => {
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|known| known.word() == text);
                found.ok_or_else(|| {
                    let words: Vec<&str> = Self::ALL.iter().map(|known| known.word()).collect();
                    format!(concat!($what, " is one of: {}"), words.join(", "))
                })
            }
        }
    };
}

words!(Role, "a role": Bandwidth = "bandwidth", Latency = "latency", Both = "both", Storage = "storage");
words!(Mapping, "a mapping": Explicit = "explicit", Imported = "imported", Inferred = "inferred");
words!(Family, "a family": Ipv4 = "v4", Ipv6 = "v6");

impl HostOrNetwork {
    /// Parses a host, or a network if there is a slash.
    pub fn parse(text: &str) -> Result<HostOrNetwork, String> {
        if text.contains('/') {
            return text.parse().map(HostOrNetwork::Network);
        }
        let host = text.trim().trim_end_matches('.').to_ascii_lowercase();
        let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
        if host.is_empty() || host.len() > 253 || !plain {
            let shown = longhaul_model::units::printable(&text.chars().take(60).collect::<String>());
            return Err(format!(
                "{shown:?} is neither a host name, an address nor a network such as 192.0.2.0/24"
            ));
        }
        // Canonical spelling of an address.
        Ok(HostOrNetwork::Host(host.parse::<IpAddr>().map_or(host, |address| address.to_string())))
    }
}

impl fmt::Display for HostOrNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostOrNetwork::Host(host) => f.write_str(host),
            HostOrNetwork::Network(prefix) => prefix.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn site(name: &str) -> SiteName {
        name.parse().unwrap()
    }

    fn entry(what: &str, at: &str, role: Option<Role>, mapping: Mapping) -> Entry {
        Entry { what: HostOrNetwork::parse(what).unwrap(), site: site(at), role, family: None, mapping }
    }

    fn found(mapping: &HostMap, host: &str) -> Option<(String, Mapping)> {
        let address = host.parse().ok();
        let name = if address.is_none() { Some(host) } else { None };
        mapping.find(name, address, None).map(|found| (found.site.to_string(), found.mapping))
    }

    #[test]
    fn the_table_precedes_the_directory_and_that_precedes_inference() {
        let ps = Some(Role::Bandwidth);
        let mut entries = vec![
            entry("ps.alpha.example", "beta", ps, Mapping::Explicit),
            entry("ps.alpha.example", "alpha", ps, Mapping::Imported),
            entry("lat.alpha.example", "gamma", ps, Mapping::Imported),
            entry("se.alpha.example", "alpha", Some(Role::Storage), Mapping::Imported),
        ];
        for _ in 0..2 {
            let mapping = HostMap::new(entries.clone());
            assert_eq!(found(&mapping, "PS.alpha.example"), Some(("beta".into(), Mapping::Explicit)));
            assert_eq!(found(&mapping, "lat.alpha.example"), Some(("gamma".into(), Mapping::Imported)));
            assert_eq!(found(&mapping, "new.alpha.example"), Some(("alpha".into(), Mapping::Inferred)));
            assert_eq!(found(&mapping, "new.other.example"), None);
            entries.reverse();
        }
    }

    #[test]
    fn the_longest_shared_domain_wins_and_public_suffixes_are_ignored() {
        let mut mapping = HostMap::default();
        mapping.add_storage("se.physics.qm.ac.uk", site("qmul"));
        mapping.add_storage("se.imperial.ac.uk", site("imperial"));
        mapping.add_storage("se1.big.example", site("one"));
        mapping.add_storage("se2.big.example", site("two"));
        mapping.add_storage("se.sub.big.example", site("sub"));
        for (host, at) in [
            ("ps.qm.ac.uk", Some("qmul")),
            ("ps.lab.physics.qm.ac.uk", Some("qmul")),
            ("ps.imperial.ac.uk", Some("imperial")),
            // ac.uk belongs to nobody, and big.example to two.
            ("ps.bristol.ac.uk", None),
            ("ps.big.example", None),
            ("ps.sub.big.example", Some("sub")),
            ("ps.example", None),
            ("localhost", None),
        ] {
            assert_eq!(found(&mapping, host).map(|(site, _)| site).as_deref(), at, "{host}");
        }
        let inferred = mapping.find(Some("ps.qm.ac.uk"), None, None).unwrap();
        assert!(
            inferred.mapping == Mapping::Inferred && inferred.reason.contains("qm.ac.uk"),
            "{inferred:?}"
        );
    }

    #[test]
    fn prefixes_map_addresses_in_and_near_them() {
        let mapping = HostMap::new([
            entry("192.0.2.0/25", "alpha", None, Mapping::Imported),
            entry("198.51.100.0/26", "beta", None, Mapping::Imported),
            entry("198.51.100.64/26", "gamma", None, Mapping::Imported),
            entry("2001:db8:a::/48", "alpha", None, Mapping::Imported),
            entry("2001:db8::/32", "beta", None, Mapping::Imported),
        ]);
        for (address, at) in [
            ("192.0.2.10", Some("alpha")),
            // The same /24.
            ("192.0.2.200", Some("alpha")),
            ("192.0.3.1", None),
            ("198.51.100.1", Some("beta")),
            ("198.51.100.200", None),
            ("2001:db8:a::1", Some("alpha")),
            ("2001:db8:b::1", Some("beta")),
        ] {
            assert_eq!(found(&mapping, address).map(|(site, _)| site).as_deref(), at, "{address}");
        }
    }

    #[test]
    fn an_entry_for_one_family_does_not_affect_the_other() {
        let mut only = entry("ps.alpha.example", "alpha", Some(Role::Both), Mapping::Explicit);
        only.family = Some(Family::Ipv6);
        let mapping = HostMap::new([only]);
        assert!(mapping.find(Some("ps.alpha.example"), None, Some(Family::Ipv4)).is_none());
        assert!(mapping.find(Some("ps.alpha.example"), None, Some(Family::Ipv6)).is_some());
    }

    #[test]
    fn hosts_are_canonicalized_and_invalid_text_is_rejected() {
        for (text, shown) in [
            ("PS.Alpha.Example.", "ps.alpha.example"),
            ("2001:DB8::1", "2001:db8::1"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            assert_eq!(HostOrNetwork::parse(text).unwrap().to_string(), shown);
        }
        for bad in ["", "a b", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/0", "x/8", "a\nb", "::/129"] {
            assert!(HostOrNetwork::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_host_round_trips_through_its_text(text in "\\PC{0,30}") {
            if let Ok(place) = HostOrNetwork::parse(&text) {
                prop_assert_eq!(HostOrNetwork::parse(&place.to_string()), Ok(place));
            }
        }

        #[test]
        fn a_prefix_contains_its_own_addresses(bits: u32, length in 1u8..=32, host: u32) {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let network = std::net::Ipv4Addr::from_bits(bits & mask);
            let prefix: Prefix = format!("{network}/{length}").parse().unwrap();
            prop_assert!(prefix.contains(std::net::Ipv4Addr::from_bits((bits & mask) |
                (host & !mask)).into()));
            prop_assert!(length == 32
                || !prefix.contains(std::net::Ipv4Addr::from_bits((bits ^ (1 <<
                    (32 - length))) & mask).into()));
        }
    }
}
