//! Exports of CRIC, the grid's directory: which host and which network belong to which site.
//!
//! Two documents: sites (`…/api/core/rcsite/query/?json`) with their networks, and services
//! (`…/api/core/service/query/list/?json`) with their end points. Names of sites are CRIC's own.

use longhaul_model::Fault;
use longhaul_network::mapping::{Prefix, Role};
use serde_json::Value;

use crate::lenient::{at, document, kind, list, text, wrong};

/// Either export has a few megabytes.
pub const EXPORT_BYTES_MAX: usize = 32 << 20;
/// Hosts and networks of one import.
const ITEMS_MAX: usize = 50_000;

/// A network of a site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SiteNetwork {
    pub site: String,
    pub prefix: Prefix,
}

/// A host of a site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SiteHost {
    pub site: String,
    /// Name or address, without port.
    pub host: String,
    pub role: Role,
}

/// The items of an export, and how many were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export<T> {
    pub items: Vec<T>,
    pub refused: u64,
}

/// Networks of the export of sites.
pub fn sites(bytes: &[u8]) -> Result<Export<SiteNetwork>, Fault> {
    let mut export = Export { items: Vec::new(), refused: 0 };
    for_each(bytes, "CRIC's export of sites", |name, site| {
        let site_name = at(site, "name").and_then(text).unwrap_or_else(|| name.to_owned());
        let routes = at(site, "netroutes").and_then(Value::as_object);
        for route in routes.into_iter().flat_map(|routes| routes.values()) {
            for family in ["networks.ipv4", "networks.ipv6"] {
                for network in list(at(route, family)) {
                    let prefix = network.as_str().and_then(|text| text.parse().ok());
                    export.take(prefix.map(|prefix| SiteNetwork { site: site_name.clone(), prefix }));
                }
            }
        }
    })?;
    Ok(export.sorted())
}

/// Hosts of the export of services: measurement hosts by their type or flavour, storage end points otherwise.
pub fn services(bytes: &[u8]) -> Result<Export<SiteHost>, Fault> {
    let mut export = Export { items: Vec::new(), refused: 0 };
    for_each(bytes, "CRIC's export of services", |_, service| {
        let Some(site) = at(service, "rcsite").and_then(text) else {
            export.refused += 1;
            return;
        };
        let role = role(service);
        let protocols = at(service, "protocols").and_then(Value::as_object);
        let of_protocols =
            protocols.into_iter().flat_map(|all| all.values()).filter_map(|one| at(one, "endpoint"));
        for endpoint in at(service, "endpoint").into_iter().chain(of_protocols).filter_map(text) {
            let host = host_of(&endpoint).map(|host| SiteHost { site: site.clone(), host, role });
            export.take(host);
        }
    })?;
    Ok(export.sorted())
}

impl<T: Ord> Export<T> {
    fn take(&mut self, item: Option<T>) {
        match item {
            Some(item) if self.items.len() < ITEMS_MAX => self.items.push(item),
            _ => self.refused += 1,
        }
    }

    fn sorted(mut self) -> Self {
        self.items.sort_unstable();
        self.items.dedup();
        self
    }
}

fn for_each(bytes: &[u8], what: &str, mut each: impl FnMut(&str, &Value)) -> Result<(), Fault> {
    let export = document(bytes, EXPORT_BYTES_MAX, what)?;
    match &export {
        Value::Object(entries) => entries.iter().for_each(|(name, entry)| each(name, entry)),
        other => return Err(wrong(what, &format!("an object is expected, not {}", kind(other)))),
    }
    Ok(())
}

/// GOCDB's types are `net.perfSONAR.Bandwidth` and `net.perfSONAR.Latency`.
fn role(service: &Value) -> Role {
    let words =
        ["type", "flavour"].map(|key| at(service, key).and_then(text).unwrap_or_default().to_lowercase());
    let says = |word: &str| words.iter().any(|text| text.contains(word));
    match (says("perfsonar"), says("bandwidth"), says("latency")) {
        (false, ..) => Role::Storage,
        (true, true, false) => Role::Bandwidth,
        (true, false, true) => Role::Latency,
        (true, ..) => Role::Both,
    }
}

/// `https://host:443/path`, `host:443`, `[2001:db8::1]:443` and `host` alike.
fn host_of(endpoint: &str) -> Option<String> {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next()?,
        None if authority.matches(':').count() > 1 => authority,
        None => authority.split(':').next()?,
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let plain =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
    (plain && (host.contains('.') || host.contains(':'))).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SITES: &str = r#"{"ALPHA-T2":{"name":"ALPHA-T2","rc_tier_level":2,"latitude":51.5,"longitude":0.0,
        "netroutes":{"7":{"networks":{"ipv4":["192.0.2.0/24","nonsense"],"ipv6":["2001:db8:a::/48"]}},
            "8":{"networks":null}},
        "netsites":[],"federations":[]},"BETA-T1":{"netroutes":{}}}"#;
    const SERVICES: &str = r#"{
        "1":{"endpoint":"ps-bw.alpha.example:443","protocols":{},"rcsite":"ALPHA-T2",
             "type":"net.perfSONAR.Bandwidth","flavour":null},
        "2":{"endpoint":null,"protocols":{"5":{"endpoint":"https://se.alpha.example:8443/store"},
             "6":{"endpoint":"davs://[2001:db8:a::5]:443/x"}},
             "rcsite":"ALPHA-T2","type":"SE","flavour":"WEBDAV"},
        "3":{"endpoint":"ps-lat.alpha.example","rcsite":"ALPHA-T2","type":"perfSONAR",
             "flavour":"net.perfSONAR.Latency"},
        "4":{"endpoint":"lost.example","rcsite":null},
        "5":{"endpoint":"bad host!","rcsite":"ALPHA-T2"},"6":9}"#;

    #[test]
    fn networks_and_hosts_are_found() {
        let found = sites(SITES.as_bytes()).unwrap();
        let shown: Vec<_> = found.items.iter().map(|one| format!("{} {}", one.site, one.prefix)).collect();
        assert_eq!(shown, ["ALPHA-T2 192.0.2.0/24", "ALPHA-T2 2001:db8:a::/48"]);
        assert_eq!(found.refused, 1);
        let found = services(SERVICES.as_bytes()).unwrap();
        let shown: Vec<_> = found.items.iter().map(|one| (one.host.as_str(), one.role)).collect();
        assert_eq!(
            shown,
            [
                ("2001:db8:a::5", Role::Storage),
                ("ps-bw.alpha.example", Role::Bandwidth),
                ("ps-lat.alpha.example", Role::Latency),
                ("se.alpha.example", Role::Storage),
            ]
        );
        assert_eq!(found.refused, 3);
        assert!(sites(b"[]").unwrap_err().detail.contains("CRIC's export of sites"));
    }

    proptest! {
        #[test]
        fn damaged_exports_never_panic(at in 0usize..2_000, byte: u8, cut in 0usize..2_000) {
            for whole in [SITES, SERVICES] {
                let mut bytes = whole.as_bytes().to_vec();
                let at = at % bytes.len();
                bytes[at] = byte;
                let keep = cut.min(bytes.len());
                let _ = (sites(&bytes), services(&bytes[..keep]));
            }
        }

        #[test]
        fn hosts_of_anything_are_plain(text in "\\PC{0,40}") {
            if let Some(host) = host_of(&text) {
                prop_assert!(!host.contains(['/', '@', '[', ' ']));
            }
        }
    }
}
