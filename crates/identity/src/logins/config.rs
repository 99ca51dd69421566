//! What an administrator can set about logins to the pages.

use std::path::PathBuf;

use longhaul_model::address::IpNetwork;
use longhaul_model::{CommunityName, Fault, FaultCode, SiteName};
use longhaul_security::grid::same_subject;
use longhaul_security::{ManagerScope, Role};
use serde::{Deserialize, Serialize};

/// The value in a rule that matches everybody.
const ANYBODY: &str = "*";
const NAME_BYTES_MAX: usize = 32;
const ISSUERS_MAX: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoginConfig {
    /// How people's browsers reach the pages, if not by `public_url`: issuers send them back there.
    pub url: String,
    /// Issuers at which people log in by OpenID Connect.
    pub openid: Vec<OpenIdConfig>,
    /// Rules on certificates that open a session; none: no certificate does. The authorities are those of
    /// `service.fts.trust_dir`.
    pub certificates: Vec<CertificateRule>,
    /// A PEM file with the authorities that issuers' servers are believed by; none: those of the system.
    pub authorities: Option<PathBuf>,
    /// Private networks and loopback addresses into which issuers' documents may lead; their own hosts are
    /// always asked.
    pub allow_networks: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenIdConfig {
    /// A word of ours for it, in the address that browsers come back to.
    pub name: String,
    /// On the button; none: the name.
    #[serde(default)]
    pub title: Option<String>,
    /// As in its tokens: `https://login.example.org/realms/lab`.
    pub issuer: String,
    pub client_id: String,
    /// Holds the client's secret and nothing else; none: a public client.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
    #[serde(default = "scopes")]
    pub scopes: Vec<String>,
    /// The claim that people are called by; it has to be one that is never given to somebody else.
    #[serde(default = "subject")]
    pub person: String,
    /// The first that fits says what somebody may do; whom none fits is not let in.
    #[serde(default)]
    pub rules: Vec<ClaimRule>,
}

/// Whoever has this value (`*`: whatever it is) in this claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimRule {
    #[serde(default = "groups")]
    pub claim: String,
    pub value: String,
    pub role: LoginRole,
    #[serde(default)]
    pub community: Option<CommunityName>,
    /// The sites of a manager.
    #[serde(default)]
    pub sites: Vec<SiteName>,
}

/// Whoever has a certificate with this subject, or (`*`) any that is verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRule {
    pub subject: String,
    pub role: LoginRole,
    /// None: what `service.fts` says of them; a manager of a community is one of the community that stands
    /// here.
    #[serde(default)]
    pub community: Option<CommunityName>,
    /// The sites of a manager.
    #[serde(default)]
    pub sites: Vec<SiteName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoginRole {
    Viewer,
    Manager,
    Admin,
}

fn scopes() -> Vec<String> {
    vec!["openid".to_owned()]
}

fn subject() -> String {
    "sub".to_owned()
}

fn groups() -> String {
    "groups".to_owned()
}

impl From<LoginRole> for Role {
    fn from(role: LoginRole) -> Role {
        match role {
            LoginRole::Viewer => Role::Viewer,
            LoginRole::Manager => Role::Manager,
            LoginRole::Admin => Role::Admin,
        }
    }
}

impl LoginConfig {
    pub fn check(&self) -> Result<(), Fault> {
        let url = self.url.parse::<http::Uri>().ok().filter(|url| url.path() == "/" && url.query().is_none());
        if !self.url.is_empty() && (url.is_none() || !self.url.starts_with("https://")) {
            return Err(bad(format!("url is {:?}: https://host:port is expected", self.url)));
        }
        if self.openid.len() > ISSUERS_MAX {
            return Err(bad(format!("openid has {} issuers, at most {ISSUERS_MAX} fit", self.openid.len())));
        }
        for (place, issuer) in self.openid.iter().enumerate() {
            issuer.check().map_err(|why| bad(format!("openid, {:?}: {why}", issuer.name)))?;
            if self.openid[..place].iter().any(|other| other.name == issuer.name) {
                return Err(bad(format!("openid names {:?} twice", issuer.name)));
            }
        }
        if let Some(rule) = self.certificates.iter().find(|rule| {
            rule.subject != ANYBODY && (!rule.subject.starts_with('/') || !rule.subject.contains('='))
        }) {
            let why =
                format!("certificates: {:?} is no subject such as /DC=org/CN=anna, nor *", rule.subject);
            return Err(bad(why));
        }
        for rule in &self.certificates {
            rule.charge()
                .map_err(|fault| bad(format!("certificates, {}: {}", rule.subject, fault.detail)))?;
        }
        self.networks().map(drop)
    }

    /// The address of the pages.
    pub(super) fn base<'a>(&'a self, public_url: &'a str) -> &'a str {
        if self.url.is_empty() { public_url } else { self.url.trim_end_matches('/') }
    }

    pub(super) fn networks(&self) -> Result<Vec<IpNetwork>, Fault> {
        let parse = |text: &String| text.parse().map_err(|why| bad(format!("allow_networks: {why}")));
        self.allow_networks.iter().map(parse).collect()
    }
}

impl OpenIdConfig {
    fn check(&self) -> Result<(), String> {
        let word =
            self.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX || !word {
            return Err(format!("a name has 1 to {NAME_BYTES_MAX} letters (small ones), digits or -"));
        }
        let url = self.issuer.parse::<http::Uri>().ok().filter(|url| url.host().is_some());
        let odd = self.issuer.contains(['?', '#', '@', ' ']);
        if url.is_none() || odd || !self.issuer.starts_with("https://") {
            return Err(format!("{:?} is no issuer (https://host/path)", self.issuer));
        }
        if self.client_id.is_empty() {
            return Err(
                "client_id is empty: the issuer gave one when this service was registered there".into()
            );
        }
        if !self.scopes.iter().any(|scope| scope == "openid")
            || self.scopes.iter().any(|scope| scope.contains(' '))
        {
            return Err("scopes are words, and `openid` is among them".into());
        }
        if self.person.is_empty()
            || self.rules.iter().any(|rule| rule.claim.is_empty() || rule.value.is_empty())
        {
            return Err("a claim or a value is empty".into());
        }
        if self.rules.is_empty() {
            return Err("rules are missing: nobody would be let in".into());
        }
        for rule in &self.rules {
            rule.charge().map_err(|fault| format!("rules, {}: {}", rule.value, fault.detail))?;
        }
        Ok(())
    }

    pub(super) fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }
}

impl ClaimRule {
    pub(super) fn charge(&self) -> Result<ManagerScope, Fault> {
        ManagerScope::new(self.role.into(), self.sites.iter().cloned(), self.community.as_ref())
    }

    pub(super) fn fits(&self, values: &[&str]) -> bool {
        values.iter().any(|value| self.value == ANYBODY || *value == self.value)
    }
}

impl CertificateRule {
    pub(super) fn charge(&self) -> Result<ManagerScope, Fault> {
        ManagerScope::new(self.role.into(), self.sites.iter().cloned(), self.community.as_ref())
    }

    pub(super) fn fits(&self, subject: &str) -> bool {
        self.subject == ANYBODY || same_subject(&self.subject, subject)
    }
}

fn bad(why: String) -> Fault {
    Fault::new(FaultCode::BadRequest, format!("service.login.{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(change: impl FnOnce(&mut Value)) -> Result<(), String> {
        let mut config = json!({ "openid": [{ "name": "lab", "issuer": "https://login.example.org/realms/lab",
            "client_id": "longhaul", "rules": [{ "value": "shift", "role": "viewer" }] }] });
        change(&mut config);
        let config: LoginConfig = serde_json::from_value(config).map_err(|error| error.to_string())?;
        config.check().map_err(|fault| fault.detail)
    }

    #[test]
    fn what_would_let_nobody_in_or_is_no_issuer_is_told_at_the_start() {
        assert_eq!(with(|_| {}), Ok(()));
        let wrong = |name: &str, value: Value, why: &str| {
            let detail = with(|config| config["openid"][0][name] = value).unwrap_err();
            assert!(detail.contains(why), "{detail}");
        };
        wrong("name", json!("The Lab"), "small ones");
        wrong("issuer", json!("http://login.example.org"), "no issuer");
        wrong("issuer", json!("https://login.example.org/?a=b"), "no issuer");
        wrong("issuer", json!("https://"), "no issuer");
        wrong("client_id", json!(""), "client_id is empty");
        wrong("scopes", json!(["profile"]), "`openid`");
        wrong("rules", json!([]), "nobody");
        wrong("rules", json!([{ "value": "x", "role": "observer" }]), "observer");
        wrong("rules", json!([{ "value": "x", "role": "manager" }]), "name them");
        wrong("rules", json!([{ "value": "x", "role": "viewer", "sites": ["gamma"] }]), "role manager");
        wrong("rules", json!([{ "value": "x", "role": "manager", "sites": ["a/b"] }]), "site name");
        let managers = json!([{ "value": "x", "role": "manager", "sites": ["gamma"], "community": "higgs" }]);
        assert_eq!(with(|config| config["openid"][0]["rules"] = managers), Ok(()));
        wrong("rules", json!([{ "value": "x", "rule": "viewer" }]), "rule");
        let twice = with(|config| {
            let again = config["openid"][0].clone();
            config["openid"].as_array_mut().unwrap().push(again);
        });
        assert!(twice.unwrap_err().contains("\"lab\" twice"));
        let certificates = |subject: &str| {
            with(|config| config["certificates"] = json!([{ "subject": subject, "role": "viewer" }]))
        };
        let url = |url: &str| with(|config| config["url"] = json!(url));
        assert!(url("https://pages.example.org").is_ok() && url("https://pages.example.org:8443/").is_ok());
        for wrong in
            ["http://pages.example.org", "pages.example.org", "https://pages.example.org/ui/", "https://a?b"]
        {
            assert!(url(wrong).unwrap_err().contains("service.login.url"), "{wrong}");
        }
        assert!(certificates("*").is_ok() && certificates("/DC=org/CN=anna").is_ok());
        assert!(certificates("anna").unwrap_err().contains("no subject"));
        assert!(
            with(|config| config["allow_networks"] = json!(["10.0.0.0/99"]))
                .unwrap_err()
                .contains("10.0.0.0/99")
        );
    }

    #[test]
    fn rules_are_about_single_values() {
        let rule = |value: &str| ClaimRule {
            claim: "groups".into(),
            value: value.into(),
            role: LoginRole::Viewer,
            community: None,
            sites: Vec::new(),
        };
        assert!(rule("shift").fits(&["x", "shift"]) && !rule("shift").fits(&["shifts", "SHIFT", ""]));
        assert!(rule("*").fits(&["x"]) && !rule("*").fits(&[]));
    }
}
