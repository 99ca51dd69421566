//! Access to a data port: by address before anything else is done, and by the name in the
//! certificate after it.
//!
//! An empty list allows everybody: what is needed then is a certificate of the deployment, as always.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use longhaul_model::address::IpNetwork;
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};

use crate::PeerIdentity;

/// Entries of one list. Each stream is compared with all of them.
pub const ALLOWED_MAX: usize = 1_000;
/// Matches any part of an identity.
const ANY: &str = "*";

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
    pub addresses: Vec<IpNetwork>,
    pub subjects: Vec<SubjectPattern>,
}

impl Access {
    pub fn allows_address(&self, from: IpAddr) -> bool {
        self.addresses.is_empty() || self.addresses.iter().any(|network| network.contains(from))
    }

    pub fn check_subject(&self, subject: &PeerIdentity) -> Result<(), Fault> {
        if self.subjects.is_empty() || self.subjects.iter().any(|pattern| pattern.fits(subject)) {
            return Ok(());
        }
        let detail = format!("{subject} is none of those that are allowed here");
        Err(Fault::new(FaultCode::NotAllowed, detail))
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

/// Written as text in configuration files.
impl serde::Serialize for SubjectPattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for SubjectPattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::AgentId;
    use proptest::prelude::*;

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
        fn no_text_panics(text in "(longhaul://)?[a-z*/0-9]{0,40}") {
            if let Ok(pattern) = text.parse::<SubjectPattern>() {
                prop_assert_eq!(pattern.to_string(), text);
            }
        }
    }
}
