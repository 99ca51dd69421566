//! Names of a source's files for a mover command.

use std::net::IpAddr;

use longhaul_model::rules::{Direction, NameQuery, NameRule, NameRules};
use longhaul_model::{Fault, FaultCode, Lfn, StorageName};
use serde::{Deserialize, Serialize};

/// Maximum length of a URL prefix.
const URL_BYTES_MAX: usize = 1_024;

/// The names of one source storage's files: the LFN after a URL, or what rules by pattern make of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceNames {
    pub storage: StorageName,
    /// Prefix before `/` and the LFN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The source's own rules, as in its `storage.xml`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<NameRule>,
    /// The protocol for which the rules are applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The host in these names while a circuit from there is used, see [`crate::CircuitLinkConfig`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_circuit: Option<String>,
}

impl SourceNames {
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some(host) = self.on_circuit.as_ref().filter(|host| !is_host(host)) {
            return Err(format!(
                "on_circuit is {host:?}: a name, an IPv4 address, or an IPv6 address without brackets is \
                    wanted, and no port"
            ));
        }
        match (&self.url, &self.protocol) {
            (Some(url), None) if self.rules.is_empty() => {
                if url.is_empty() || url.len() > URL_BYTES_MAX || url.chars().any(char::is_control) {
                    return Err(format!(
                        "url has to have 1 to {URL_BYTES_MAX} bytes, none of them control characters"
                    ));
                }
                Ok(())
            }
            (None, Some(protocol)) if !self.rules.is_empty() => {
                let rules = self.name_rules();
                if !rules.protocols(Direction::LfnToPfn).contains(&protocol.as_str()) {
                    return Err("there are no rules of its protocol from LFN to PFN".into());
                }
                rules.check_each().map_err(|error| error.to_string())
            }
            _ => Err("set either url, or rules and their protocol".into()),
        }
    }

    fn name_rules(&self) -> NameRules {
        NameRules::new(1, self.rules.clone())
    }

    /// Maps LFNs of a whole batch, so that patterns are compiled once.
    pub(crate) fn names_for_target<'a>(
        &'a self,
        target: &'a str,
    ) -> impl Fn(&Lfn) -> Result<String, Fault> + 'a {
        let rules = self.name_rules();
        move |lfn| {
            if let Some(url) = &self.url {
                return Ok(format!("{url}/{}", lfn.as_str()));
            }
            let wrong = |why: String| {
                Fault::new(
                    FaultCode::BadName,
                    format!("{} has no name at {}: {why}", lfn.shown(), self.storage),
                )
            };
            let protocol = self.protocol.as_deref().unwrap_or_default();
            let asked = NameQuery { protocol, target: Some(target), custodial: false };
            let mapped =
                rules.lfn_to_pfn(lfn, &asked).map_err(|error| wrong(error.to_string()).with_source(error))?;
            mapped.map(|mapped| mapped.name).ok_or_else(|| wrong("no name rule fits".into()))
        }
    }
}

fn is_host(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    text.parse::<IpAddr>().is_ok() || !text.is_empty() && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> SourceNames {
        toml::from_str(&format!("storage = 'alpha'\n{text}")).unwrap()
    }

    #[test]
    fn names_come_from_a_prefix_or_from_rules() {
        let lfn: Lfn = "run7/f1".parse().unwrap();
        let plain = names("url = 'fdt://dtn.example.org:8444/data'");
        plain.check().unwrap();
        assert_eq!(plain.names_for_target("beta")(&lfn).unwrap(), "fdt://dtn.example.org:8444/data/run7/f1");
        let rule = "protocol = 'fdt'\n[[rules]]\ndirection = 'lfn-to-pfn'\nprotocol = 'fdt'\ntarget_match = \
            '^be'\n\
                    path_match = '^/run(\\d)/(.*)'\nresult = 'fdt://dtn$1/$2'\n";
        let rules = names(rule);
        rules.check().unwrap();
        assert_eq!(rules.names_for_target("beta")(&lfn).unwrap(), "fdt://dtn7/f1");
        assert!(rules.names_for_target("gamma")(&lfn).unwrap_err().detail.contains("no name rule fits"));
        for (wrong, why) in [
            ("", "either url"),
            ("url = ''", "1 to 1024 bytes"),
            (&rule.replace("protocol = 'fdt'\n[[", "protocol = 'srm'\n[["), "no rules of its protocol"),
            (&rule.replace("(.*)", "(.*"), "rule 1 (lfn-to-pfn of fdt): path_match"),
            (&format!("url = 'x'\n{rule}"), "either url"),
            ("url = 'x'\non_circuit = 'b:9'", "on_circuit is"),
        ] {
            let refused = names(wrong).check().unwrap_err();
            assert!(refused.contains(why), "{wrong}: {refused}");
        }
    }
}
