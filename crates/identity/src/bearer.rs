//! Users who come with tokens of other issuers than this deployment: whose tokens count, and who their
//! holders are.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use longhaul_api::fts::{Levels, Refusal};
use longhaul_gateways::issuers::Issuers;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::TokenRestrictions;
use longhaul_security::bearer::{Audience, IssuerRule, Profile, TokenIdentity, TokenSettings, TokenTrust};

use crate::person::{Method, Token, unknown, user_levels};
use crate::{FtsConfig, FtsIssuer, FtsPerson, Identity, KnownBy, Person};

/// For clocks that are behind the issuers'.
const LEEWAY: Duration = Duration::from_secs(60);

/// The bearer token of an `Authorization` header.
pub enum PresentedToken {
    None,
    /// Looks like an API token of this deployment; not looked up yet.
    Local(String),
    /// Issued by another issuer, and verified.
    Verified(Box<TokenIdentity>, String),
}

/// The issuers of the settings; none if none is named.
pub(crate) fn open(config: &FtsConfig, public_url: &str, names: &[String]) -> Result<Option<Issuers>, Fault> {
    if config.issuers.is_empty() {
        return Ok(None);
    }
    let rule = |issuer: &FtsIssuer| IssuerRule {
        issuer: issuer.url.clone(),
        vo: issuer.community.as_ref().map(|name| name.as_str().to_owned()),
        required_scope: issuer.scope.clone(),
    };
    let settings = TokenSettings {
        issuers: config.issuers.iter().map(rule).collect(),
        audiences: audiences(config, public_url, names),
        leeway: LEEWAY,
    };
    let named = |fault: Fault| {
        Fault::new(fault.code, format!("service.fts.issuers: {}", fault.detail)).with_source(fault)
    };
    let trust = Arc::new(TokenTrust::new(settings).map_err(named)?);
    Issuers::open(trust, config.issuer_authorities.as_deref()).map(Some).map_err(named)
}

/// Rucio asks for tokens for the host, others for the address.
pub(crate) fn audiences(config: &FtsConfig, public_url: &str, names: &[String]) -> Vec<String> {
    if !config.audiences.is_empty() {
        return config.audiences.clone();
    }
    let host = public_url.parse::<http::Uri>().ok().and_then(|url| url.host().map(str::to_owned));
    std::iter::once(public_url.to_owned()).chain(host).chain(names.iter().cloned()).collect()
}

pub(crate) async fn presented(
    identity: &Identity,
    header: Option<&HeaderValue>,
) -> Result<PresentedToken, Refusal> {
    let Some(header) = header else { return Ok(PresentedToken::None) };
    let value = header.to_str().map_err(|_| unknown("the Authorization header is no text"))?;
    let parts = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let token = parts.map(|(_, token)| token.trim()).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| unknown("the Authorization header must be: Bearer TOKEN"))?;
    // A JSON web token has three parts; ours are in one piece.
    if !token.contains('.') {
        return Ok(PresentedToken::Local(token.to_owned()));
    }
    let Some(issuers) = &identity.issuers else {
        return Err(unknown("no issuer of tokens is trusted here (service.fts.issuers)"));
    };
    let verified = issuers.verify(token, Audience::Ours, identity.wall_time()).await;
    Ok(PresentedToken::Verified(Box::new(verified.map_err(refused)?), token.to_owned()))
}

fn refused(fault: Fault) -> Refusal {
    match fault.code {
        FaultCode::NotAllowed => Refusal::forbidden(fault.detail),
        FaultCode::Busy => Refusal::new(503, fault.detail),
        _ => unknown(fault.detail),
    }
}

/// What administrators call the holder of a token, as Rucio does.
fn name(identity: &TokenIdentity) -> String {
    format!("SUB={}, ISS={}", identity.subject, identity.issuer)
}

/// The holder of a verified token.
pub(crate) fn person(config: &FtsConfig, ours: &[String], identity: TokenIdentity, token: String) -> Person {
    let name = name(&identity);
    let token = Token {
        text: token,
        is_wlcg: identity.profile == Profile::Wlcg,
        for_storages: identity.audience.is_empty() || identity.audience.iter().any(|one| !ours.contains(one)),
    };
    let named = config.person(&name);
    let shown = shown_communities(&identity);
    let levels: Levels = named.map_or_else(user_levels, FtsPerson::levels);
    Person {
        vos: chosen(config, &identity.issuer, &shown, named),
        known_by: KnownBy::Issuer { url: identity.issuer.clone(), communities: shown },
        delegation_id: identity.delegation_id(),
        dn: identity.subject,
        name,
        fqans: Vec::new(),
        method: Method::Token,
        is_root: false,
        levels,
        scope: identity.scope,
        expires: Some(identity.expires),
        token: Some(token),
        certificate: None,
        confinement: TokenRestrictions::default(),
    }
}

/// What is written about them, what is written about their issuer, and what their token says.
fn chosen(config: &FtsConfig, issuer: &str, shown: &[String], named: Option<&FtsPerson>) -> Vec<String> {
    let of_issuer = || config.issuers.iter().find(|known| known.url == issuer)?.community.as_ref();
    match named.map(|named| &named.community).or_else(of_issuer) {
        Some(community) => vec![community.as_str().to_owned()],
        None => shown.to_vec(),
    }
}

/// The same for the holder of a token that was verified before, as long as its issuer is believed.
pub(crate) fn communities(
    config: &FtsConfig,
    issuer: &str,
    shown: &[String],
    named: Option<&FtsPerson>,
) -> Result<Vec<String>, Refusal> {
    if !config.issuers.iter().any(|known| known.url == issuer) {
        return Err(Refusal::forbidden(format!("the issuer {issuer} is no longer trusted")));
    }
    Ok(chosen(config, issuer, shown, named))
}

/// The groups of a token, and if there are none the issuer's host, as with FTS.
fn shown_communities(identity: &TokenIdentity) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for group in identity.effective_groups() {
        let community = group.trim_start_matches('/').to_owned();
        if !found.contains(&community) {
            found.push(community);
        }
    }
    if found.is_empty() {
        found.push(identity.issuer_host().to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::fts::Level;
    use longhaul_model::Timestamp;
    use longhaul_security::bearer::{Capability, Scopes};

    const URL: &str = "https://fts.example.org:8446";

    fn identity(is_capable: bool, groups: &[&str]) -> TokenIdentity {
        let compute = Capability { name: "compute.read".into(), path: None };
        TokenIdentity {
            issuer: "https://iam.example.org/".into(),
            subject: "robot".into(),
            profile: Profile::Wlcg,
            scope: None,
            scopes: Scopes {
                capabilities: is_capable.then_some(compute).into_iter().collect(),
                others: Vec::new(),
            },
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            audience: Vec::new(),
            not_before: None,
            expires: Timestamp(1),
            id: None,
        }
    }

    #[test]
    fn a_community_is_what_is_written_then_what_the_token_says() {
        let mut config = FtsConfig::default();
        let issuer = r#"{"url":"https://iam.example.org/"}"#;
        config.issuers = vec![serde_json::from_str(issuer).unwrap()];
        let of = |config: &FtsConfig, is_capable: bool, groups: &[&str]| {
            person(config, &audiences(config, URL, &[]), identity(is_capable, groups), "e.y.J".into()).vos
        };
        assert_eq!(of(&config, false, &["/atlas", "/atlas/prod", "/atlas"]), ["atlas", "atlas/prod"]);
        // What says what it is for by capabilities says nothing by groups.
        assert_eq!(of(&config, true, &["/atlas"]), ["iam.example.org"]);
        config.issuers[0].community = Some("cms".parse().unwrap());
        assert_eq!(of(&config, false, &["/atlas"]), ["cms"]);
        let named = r#"{"name":"SUB=robot, ISS=https://iam.example.org/","community":"lhcb","config":"all"}"#;
        config.people = vec![serde_json::from_str(named).unwrap()];
        let robot =
            person(&config, &audiences(&config, URL, &[]), identity(false, &["/atlas"]), "e.y.J".into());
        assert_eq!(
            (robot.vos, robot.levels["config"], robot.dn),
            (vec!["lhcb".to_owned()], Level::All, "robot".into())
        );
    }

    /// An issuer that is trusted for its own users must not make somebody of another one.
    #[test]
    fn the_subject_alone_names_nobody() {
        let people =
            vec![serde_json::from_str(r#"{"name":"robot","community":"lhcb","admin":"all"}"#).unwrap()];
        let config = FtsConfig { people, ..FtsConfig::default() };
        let robot = person(&config, &audiences(&config, URL, &[]), identity(false, &[]), "e.y.J".into());
        assert_eq!(robot.levels, user_levels());
        assert_eq!(robot.name, "SUB=robot, ISS=https://iam.example.org/");
    }

    #[test]
    fn a_token_for_us_alone_is_shown_to_no_storage() {
        let config = FtsConfig::default();
        let shown = |audience: &[&str]| {
            let mut identity = identity(false, &[]);
            identity.audience = audience.iter().map(|one| (*one).to_owned()).collect();
            person(&config, &audiences(&config, URL, &[]), identity, "e.y.J".into())
                .token
                .unwrap()
                .for_storages
        };
        assert!(!shown(&["fts.example.org"]) && !shown(&["fts.example.org", URL]));
        assert!(
            shown(&["https://wlcg.cern.ch/jwt/v1/any"])
                && shown(&["fts.example.org", "storage"])
                && shown(&[])
        );
    }

    #[test]
    fn the_service_is_meant_by_its_names() {
        let mut config = FtsConfig::default();
        assert_eq!(audiences(&config, URL, &["fts1".into()]), [URL, "fts.example.org", "fts1"]);
        config.audiences = vec!["x".into()];
        assert_eq!(audiences(&config, URL, &[]), ["x"]);
        assert!(open(&config, URL, &[]).unwrap().is_none());
        config.issuers = vec![serde_json::from_str(r#"{"url":"http://iam.example.org"}"#).unwrap()];
        assert!(open(&config, URL, &[]).err().unwrap().detail.starts_with("service.fts.issuers: "));
    }
}
