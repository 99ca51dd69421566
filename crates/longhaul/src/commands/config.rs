//! `longhaul config`.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::Context;
use crate::config::layers::environment_name;
use crate::config::{ClientConfig, Layers, LogConfig, Origin};
use crate::failure::{Exit, Failure};
use crate::table::{Cell, Table, left, prose};
use crate::terminal::Tone;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show all effective settings
    Show(ShowArgs),
    /// Read the configuration as `service run` and `agent run` do, and report errors
    Check,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Also show where each value comes from and the variable that overrides it
    #[arg(long)]
    origin: bool,
    /// Show only settings that differ from the default
    #[arg(long)]
    changed: bool,
}

#[derive(Serialize)]
struct SettingView {
    key: String,
    value: Value,
    origin: String,
    variable: String,
}

pub fn run(context: &Context, command: ConfigCommand) -> Result<Exit, Failure> {
    let layers = context.layers()?;
    match command {
        ConfigCommand::Show(args) => {
            context.output.table(&setting_views(&layers, args.changed), |list| table(list, args.origin))?;
        }
        ConfigCommand::Check => {
            check(&layers)?;
            context.output.print_message("the configuration is valid");
        }
    }
    Ok(Exit::Ok)
}

/// Checks everything that can be checked without starting anything. The agent's section is checked only if it
/// has storages.
fn check(layers: &Layers) -> Result<(), Failure> {
    let service: longhaul_service::Config = layers.section("service")?;
    service.check()?;
    let agent: longhaul_agent::Config = layers.section("agent")?;
    if !agent.storages.is_empty() {
        agent.check()?;
    }
    let _: ClientConfig = layers.section("client")?;
    let _: LogConfig = layers.section("log")?;
    let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    match layers.unknown_variables(names.iter().map(String::as_str)).as_slice() {
        [] => Ok(()),
        strangers => Err(Failure::usage(
            "unknown environment variable",
            strangers.join(", "),
            "`longhaul config show --origin` lists the known variables",
        )),
    }
}

fn setting_views(layers: &Layers, changed: bool) -> Vec<SettingView> {
    layers
        .settings()
        .filter(|(_, setting)| !changed || setting.origin != Origin::Default)
        .map(|(key, setting)| {
            let secret =
                key.ends_with("token") && setting.value.as_str().is_some_and(|text| !text.is_empty());
            SettingView {
                key: key.to_owned(),
                value: if secret { Value::from("(secret)") } else { setting.value.clone() },
                origin: setting.origin.to_string(),
                variable: environment_name(key),
            }
        })
        .collect()
}

fn table(list: &[SettingView], origins: bool) -> Table {
    let mut columns = vec![left("key"), prose("value")];
    if origins {
        columns.extend([left("from"), left("variable")]);
    }
    let mut table = Table::new(columns);
    for one in list {
        let value = match &one.value {
            Value::Null => "(none)".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let mut cells = vec![Cell::text(&one.key), Cell::text(value)];
        if origins {
            let default = one.origin == "default";
            cells.push(Cell::text(&one.origin).toned_if(!default, Tone::Strong));
            cells.push(Cell::text(&one.variable).toned(Tone::Faint));
        }
        table.row(cells);
    }
    table
}
