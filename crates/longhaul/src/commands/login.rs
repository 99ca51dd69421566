//! `longhaul login` and `longhaul whoami`.

use std::path::Path;

use clap::Args;
use longhaul_api::native::WhoAmI;
use longhaul_api::{rights as table, routes};
use longhaul_model::units::printable;

use super::Context;
use crate::clock;
use crate::config::{ClientConfig, user_profile};
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::time_format;

#[derive(Debug, Args)]
#[command(after_help = "Also give --token, and --ca unless it is configured: \
                  longhaul login URL --token TOKEN --ca FILE")]
pub struct LoginArgs {
    /// URL of the service, such as https://longhaul.example:8443
    #[arg(value_name = "URL")]
    service: String,
}

/// Tries the credential before saving it.
pub async fn run(context: &Context, args: LoginArgs) -> Result<Exit, Failure> {
    let mut config: ClientConfig = context.layers()?.section("client")?;
    config.url = args.service;
    if config.token.is_empty() {
        return Err(Failure::usage(
            "the token is missing",
            "logging in needs an API token",
            "longhaul login URL --token TOKEN; an administrator creates one with: longhaul token create NAME",
        ));
    }
    let me: WhoAmI = Remote::connect(&config)?.get(&routes::WHOAMI, &[], &[]).await?;
    let path = user_profile().ok_or_else(|| {
        Failure::usage(
            "there is no home directory",
            "neither HOME nor XDG_CONFIG_HOME is set",
            "set HOME, or use LONGHAUL_URL, LONGHAUL_TOKEN and LONGHAUL_CA",
        )
    })?;
    save(&path, &config)?;
    context.output.sentence(&me, |me| {
        format!(
            "{} ({}) at {}; saved in {}",
            printable(&me.name),
            me.role,
            config.url,
            printable(&path.to_string_lossy())
        )
    })?;
    Ok(Exit::Ok)
}

pub async fn whoami(context: &Context, remote: &Remote) -> Result<Exit, Failure> {
    let me: WhoAmI = remote.get(&routes::WHOAMI, &[], &[]).await?;
    context.output.sentence(&me, |me| {
        let may = rights(me);
        let until = me.expires.map_or("does not expire".to_owned(), |at| {
            format!("expires {}", time_format::local(at, clock::now()))
        });
        format!("{} ({}): {may}; {until}", printable(&me.name), printable(&me.role))
    })?;
    Ok(Exit::Ok)
}

/// What the credential allows, in words. A role of a later release promises nothing.
fn rights(me: &WhoAmI) -> String {
    let mut words = match me.role.as_str() {
        "admin" => "sees and changes everything".to_owned(),
        "manager" => format!("sees everything; {}", managed(me)),
        "viewer" => "sees everything, changes nothing".to_owned(),
        "observer" => "sends measurements, sees and changes nothing".to_owned(),
        _ => "its rights are not known to this version".to_owned(),
    };
    if !me.scopes.is_empty() {
        words.push_str(&format!("; confined to {}", printable(&me.scopes.join(", "))));
    }
    if let Some(community) = &me.community {
        words.push_str(&format!("; jobs of the community {community} only"));
    }
    words
}

/// So end changes at a site that only those who register a community's data can make.
const OF_COMMUNITY: &str = "of the own community";

/// What a manager may change, from the table by which the service judges.
fn managed(me: &WhoAmI) -> String {
    let sites: Vec<String> = me.sites.iter().map(ToString::to_string).collect();
    let noun = if sites.len() == 1 { "site" } else { "sites" };
    // A site's right to what a community registers there goes with the right to the community's data.
    let is_theirs = |change: &&str| me.community.is_some() || !change.ends_with(OF_COMMUNITY);
    let may = |by_community| {
        let changes: Vec<&str> = table::managed(by_community).into_iter().filter(is_theirs).collect();
        changes.join(", ")
    };
    let at_sites =
        (!sites.is_empty()).then(|| format!("at the {noun} {} may {}", sites.join(", "), may(false)));
    let of_community =
        me.community.as_ref().map(|name| format!("for the community {name} may {}", may(true)));
    let parts: Vec<String> = at_sites.into_iter().chain(of_community).collect();
    parts.join("; ")
}

/// Writes a profile that only its owner can read.
pub fn save(path: &Path, config: &ClientConfig) -> Result<(), Failure> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| Failure::file("making", parent, &error))?;
    }
    let text = toml::to_string(&std::collections::BTreeMap::from([("client", config)])).map_err(|error| {
        Failure::new(
            longhaul_model::FaultCode::Internal,
            format!("the profile cannot be written as TOML: {error}"),
        )
    })?;
    longhaul_security::write_private(path, text.as_bytes())
        .map_err(|error| Failure::new(longhaul_model::FaultCode::StateDirectory, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(role: &str, sites: &[&str], community: Option<&str>, scopes: &[&str]) -> WhoAmI {
        WhoAmI {
            name: "gina".to_owned(),
            role: role.to_owned(),
            expires: None,
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            community: community.map(|name| name.parse().unwrap()),
            sites: sites.iter().map(|name| name.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn a_manager_reads_what_they_may_change() {
        let both = rights(&credential("manager", &["alpha", "beta"], Some("higgs"), &[]));
        let (at_sites, of_community) = both.split_once("; for the community higgs may ").unwrap();
        assert!(at_sites.starts_with("sees everything; at the sites alpha, beta may "), "{both}");
        assert!(at_sites.contains("make join tokens") && !at_sites.contains("close datasets"), "{both}");
        assert!(of_community.contains("close datasets") && of_community.contains("delete last replicas"));
        assert!(!of_community.contains("make join tokens"), "{both}");
        let site = rights(&credential("manager", &["alpha"], None, &[]));
        assert!(site.contains("; at the site alpha may ") && site.contains("delete replicas"), "{site}");
        assert!(!site.contains("last replicas") && !site.contains("community"), "{site}");
    }

    #[test]
    fn a_confined_administrator_is_not_promised_everything() {
        let confined = rights(&credential("admin", &[], Some("higgs"), &["data:read"]));
        assert!(
            confined.ends_with("; confined to data:read; jobs of the community higgs only"),
            "{confined}"
        );
    }

    #[test]
    fn an_observer_and_an_unknown_role_see_nothing_promised() {
        assert_eq!(
            rights(&credential("observer", &[], None, &[])),
            "sends measurements, sees and changes nothing"
        );
        assert!(!rights(&credential("steward", &[], None, &[])).contains("sees"));
    }
}
