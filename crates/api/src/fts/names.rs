//! Name rules for the URLs of jobs: map `srm://`, `gsiftp://` and `root://` names of a host to names that are
//! served. The rules of one protocol map a URL to its LFN, those of another map the LFN to a served name;
//! that name has to map back to the same LFN.

use std::sync::Arc;

use longhaul_model::NameRules;
use longhaul_model::job::storage_element;
use longhaul_model::rules::{Direction, NameQuery};
use longhaul_model::units::printable;

/// Name rules of all hosts that have any.
#[derive(Clone, Debug, Default)]
pub struct UrlNames {
    of: Vec<HostNames>,
    elsewhere: bool,
}

/// Name rules of the hosts of one site.
#[derive(Clone, Debug)]
pub struct HostNames {
    /// Host names in lower case, without port.
    pub hosts: Vec<String>,
    /// Name by which rules of other sites refer to this site.
    pub site: Option<String>,
    /// Name rules that hold for all these hosts.
    pub rules: Arc<NameRules>,
}

impl UrlNames {
    /// Name rules by host.
    pub fn new(of: Vec<HostNames>) -> Self {
        UrlNames { of, elsewhere: false }
    }

    /// The recipient of the job has the rules: URLs are neither mapped nor refused for their scheme.
    pub fn elsewhere() -> Self {
        UrlNames { of: Vec::new(), elsewhere: true }
    }

    pub(super) fn are_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// Maps `url`, on its way to `target`, to a name that `served` accepts. None if the host has no rules.
    ///
    /// # Errors
    /// Why the host's rules give no name, in words.
    pub(super) fn map<T>(
        &self,
        url: &str,
        target: &str,
        served: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(of) = self.find(url) else { return Ok(None) };
        let target = self.find(target).and_then(|of| of.site.as_deref());
        let asked = |protocol| NameQuery { protocol, target, custodial: of.rules.own.custodial };
        let mut why = "no rule from PFN to LFN fits".to_owned();
        for protocol in of.rules.protocols(Direction::PfnToLfn) {
            let lfn = match of.rules.pfn_to_lfn(url, &asked(protocol)) {
                Ok(Some(lfn)) => lfn,
                Ok(None) => continue,
                Err(error) => {
                    why = error.to_string();
                    continue;
                }
            };
            why = format!("{} has no name there that is served and leads back to it", lfn.shown());
            for protocol in of.rules.protocols(Direction::LfnToPfn) {
                let Ok(Some(there)) = of.rules.lfn_to_pfn(&lfn, &asked(protocol)) else { continue };
                let Some(taken) = served(&there.name) else { continue };
                if of
                    .rules
                    .pfn_to_lfn(&there.name, &asked(protocol))
                    .is_ok_and(|back| back.as_ref() == Some(&lfn))
                {
                    return Ok(Some(taken));
                }
            }
        }
        Err(format!(
            "the name rules of {} map it to none of them: {why}",
            printable(&host(url).unwrap_or_default())
        ))
    }

    fn find(&self, url: &str) -> Option<&HostNames> {
        let host = host(url)?;
        self.of.iter().find(|of| of.hosts.contains(&host))
    }
}

fn host(url: &str) -> Option<String> {
    storage_element(url)?.split_once("://").map(|(_, host)| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::url::served;
    use super::*;

    fn names() -> UrlNames {
        let rule = |direction: &str, protocol: &str, path: &str, result: &str| {
            serde_json::json!({
                "direction": direction, "protocol": protocol, "path_match": path, "result": result
            })
        };
        let mut only = rule("lfn-to-pfn", "davs", "/+(.*)", "davs://only.example.org/d/$1");
        only["target_match"] = "^T2_".into();
        let rules: NameRules = serde_json::from_value(serde_json::json!({
            "version": 1,
            "rules": [
                rule("pfn-to-lfn", "srm", r"^srm://[^/]+/.*\?SFN=/pool(/.*)", "$1"),
                rule("pfn-to-lfn", "gsiftp", "^gsiftp://[^/]+/pool(/.*)", "$1"),
                rule("lfn-to-pfn", "gsiftp", "/+(.*)", "gsiftp://door.example.org/pool/$1"),
                only,
                rule("lfn-to-pfn", "https", "^/+(d/.*)", "https://lost.example.org/$1"),
                rule("lfn-to-pfn", "https", "/+(.*)", "https://door.example.org:443/pool/$1"),
                rule("pfn-to-lfn", "https", "^https://door[^/]+/pool(/.*)", "$1"),
                rule("pfn-to-lfn", "davs", "^davs://[^/]+/d(/.*)", "$1"),
            ],
        }))
        .unwrap();
        let hosts = vec!["srm.example.org".to_owned(), "door.example.org".to_owned()];
        let far = HostNames {
            hosts: vec!["far.example.org".into()],
            site: Some("T3_FAR".into()),
            rules: Arc::default(),
        };
        UrlNames::new(vec![HostNames { hosts, site: Some("T1_A".into()), rules: Arc::new(rules) }, far])
    }

    #[test]
    fn foreign_names_become_such_that_are_served() {
        let names = names();
        let to = |url: &str, target: &str| {
            served(url, &names, target).map(|(url, _)| url).map_err(|refused| refused.message)
        };
        let srm = "srm://SRM.example.org:8446/srm/v2?SFN=/pool/store/f";
        assert_eq!(
            to(srm, "https://far.example.org/x").unwrap(),
            "https://door.example.org:443/pool/store/f"
        );
        // To nobody in particular, conditions on the target are met.
        assert_eq!(to(srm, "https://elsewhere/x").unwrap(), "davs://only.example.org/d/store/f");
        let gsiftp = to(" gsiftp://door.example.org/pool/store/f\n", "https://far.example.org/x").unwrap();
        assert_eq!(gsiftp, "https://door.example.org:443/pool/store/f");
        assert_eq!(to("https://a/x", "https://b/x").unwrap(), "https://a/x");
        // What does not come back is not used.
        let lost = to("gsiftp://door.example.org/pool/d/f", "https://far.example.org/x").unwrap_err();
        assert!(
            lost.contains("known are https, davs, http, dav, s3s, s3; the name rules of door.example.org"),
            "{lost}"
        );
        assert!(lost.ends_with("d/f has no name there that is served and leads back to it"), "{lost}");
        let other = to("root://door.example.org//pool/f", "https://b/x").unwrap_err();
        assert!(
            other.starts_with("Invalid value within the request: root is no scheme that is served"),
            "{other}"
        );
        assert!(other.ends_with("no rule from PFN to LFN fits"), "{other}");
        let unknown = to("root://b//pool/f", "https://b/x").unwrap_err();
        assert!(unknown.ends_with("known are https, davs, http, dav, s3s, s3"), "{unknown}");
        assert!(to("srm:///x", "https://b/x").is_err() && to("file:///x", "https://b/x").is_err());
    }

    #[test]
    fn whoever_has_the_rules_decides() {
        let (url, element) = served("srm://a:8446/x", &UrlNames::elsewhere(), "https://b/x").unwrap();
        assert_eq!((url.as_str(), element.as_str()), ("srm://a:8446/x", "srm://a"));
        assert!(served("https://a", &UrlNames::elsewhere(), "https://b/x").is_err());
    }
}
