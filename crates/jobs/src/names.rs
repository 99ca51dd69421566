//! Name rules of storages that jobs name by URLs which nobody here serves (`srm://`, `gsiftp://`, `root://`):
//! whose hosts have which rules. Rules are the administrator's own, or those that a site's agent uploaded for
//! a storage; which hosts a site may speak for, the administrator says either way.

use std::sync::Arc;

use longhaul_api::fts::{HostNames, UrlNames};
use longhaul_control::Kernel;
use longhaul_model::rules::{Direction, NameRule};
use longhaul_model::{Fault, FaultCode, NameRules, SiteName, StorageName};
use serde::{Deserialize, Serialize};

/// Entries of `service.jobs.names`, and hosts of one.
const ENTRIES_MAX: usize = 1_000;
const HOSTS_MAX: usize = 100;

/// The rules for URLs of some hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamesConfig {
    /// As in URLs, in small letters and without port.
    pub hosts: Vec<String>,
    /// What conditions on the target of other sites' rules call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteName>,
    /// The rules that the agent of this storage uploaded. None: `rules`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<NameRule>,
    /// Whether rules for custodial copies are meant.
    #[serde(default)]
    pub custodial: bool,
}

impl NamesConfig {
    pub(crate) fn check_all(of: &[NamesConfig]) -> Result<(), Fault> {
        let wrong =
            |text: String| Err(Fault::new(FaultCode::BadRequest, format!("service.jobs.names: {text}")));
        if of.len() > ENTRIES_MAX {
            return wrong(format!("{} entries, the limit is {ENTRIES_MAX}", of.len()));
        }
        for (place, entry) in of.iter().enumerate() {
            let before = of[..place].iter().flat_map(|entry| &entry.hosts);
            if let Some(twice) = before.clone().find(|host| entry.hosts.contains(host)) {
                return wrong(format!("{twice} is named twice"));
            }
            entry.check().or_else(|why| wrong(format!("entry {}: {why}", place + 1)))?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let plain = |host: &String| {
            let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-_[]:".contains(c);
            !host.is_empty() && host.len() <= 255 && host.chars().all(known)
        };
        if self.hosts.is_empty() || self.hosts.len() > HOSTS_MAX || !self.hosts.iter().all(plain) {
            return Err(format!(
                "hosts has to hold 1 to {HOSTS_MAX} names in small letters, without scheme and port"
            ));
        }
        match (&self.storage, self.rules.is_empty()) {
            (None, true) => {
                Err("rules is empty: write them, or name the storage whose uploaded rules count".into())
            }
            (Some(storage), false) => {
                Err(format!("it has rules of its own and those of {storage}: leave one out"))
            }
            (Some(_), true) => Ok(()),
            (None, false) => self.own_rules().check().map_err(|error| error.to_string()),
        }
    }

    /// They name files of others; there is no storage of ours whose own names they could be.
    fn own_rules(&self) -> NameRules {
        let mut rules = NameRules::new(1, self.rules.clone());
        if let Some(first) = rules.protocols(Direction::LfnToPfn).first().map(|&first| first.to_owned()) {
            rules.own.protocol = first;
        }
        rules.own.custodial = self.custodial;
        rules
    }
}

/// All that are configured, as they are now. A storage that is not known (yet) has no rules: its hosts' URLs
/// are refused.
pub fn url_names(config: &[NamesConfig], kernel: &Kernel) -> UrlNames {
    if config.is_empty() {
        return UrlNames::default();
    }
    let directory = kernel.directory();
    let uploaded = |storage: &StorageName| {
        let known = directory.storage(storage.as_str());
        known.map_or_else(|| NameRules::new(0, Vec::new()), |row| row.rules.clone())
    };
    let of = config.iter().map(|entry| {
        let mut rules = entry.storage.as_ref().map_or_else(|| entry.own_rules(), uploaded);
        rules.own.custodial = entry.custodial;
        HostNames {
            hosts: entry.hosts.clone(),
            site: entry.site.as_ref().map(|site| site.as_str().to_owned()),
            rules: Arc::new(rules),
        }
    });
    UrlNames::new(of.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    use serde_json::{Value, json};

    fn config(entry: Value) -> NamesConfig {
        serde_json::from_value(entry).unwrap()
    }

    fn rule(direction: &str, protocol: &str, path_match: &str, result: &str) -> Value {
        json!({ "direction": direction, "protocol": protocol, "path_match": path_match, "result": result })
    }

    #[test]
    fn what_could_not_be_used_is_refused() {
        let from = rule("pfn-to-lfn", "srm", "^srm://a(/.*)", "$1");
        let to = rule("lfn-to-pfn", "https", "(.*)", "https://a$1");
        let back = rule("pfn-to-lfn", "https", "^https://a(/.*)", "$1");
        let good = config(json!({ "hosts": ["a"], "rules": [from, to, back] }));
        let uploaded = config(json!({ "hosts": ["b"], "storage": "beta", "site": "B" }));
        NamesConfig::check_all(&[good.clone(), uploaded]).unwrap();
        let why = |of: &[NamesConfig]| NamesConfig::check_all(of).unwrap_err().detail;
        assert!(why(&[good.clone(), good.clone()]).contains("a is named twice"));
        assert!(why(&[config(json!({ "hosts": ["a"] }))]).contains("entry 1: rules is empty"));
        assert!(why(&[config(json!({ "hosts": ["https://A"], "storage": "b" }))]).contains("small letters"));
        let both = json!({ "hosts": ["a"], "storage": "b", "rules": [from] });
        assert!(why(&[config(both)]).contains("leave one out"));
        let one_way = why(&[config(json!({ "hosts": ["a"], "rules": [from, to] }))]);
        assert!(one_way.contains("https has rules from LFN to PFN and none back"), "{one_way}");
    }
}
