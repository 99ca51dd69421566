//! `longhaul login` and `longhaul whoami`.

use std::path::Path;

use clap::Args;
use longhaul_api::native::WhoAmI;
use longhaul_api::routes;
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
        let may = if me.role == "admin" {
            "sees and changes everything"
        } else {
            "sees everything, changes nothing"
        };
        let until = me.expires.map_or("does not expire".to_owned(), |at| {
            format!("expires {}", time_format::local(at, clock::now()))
        });
        format!("{} ({}): {may}; {until}", printable(&me.name), printable(&me.role))
    })?;
    Ok(Exit::Ok)
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
