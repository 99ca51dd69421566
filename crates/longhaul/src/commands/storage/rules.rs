//! `longhaul storage rules`: checks name rules on the host that will use them, before they are deployed.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use longhaul_agent::{Config, StorageConfig};
use longhaul_gateways::storage_xml::{self, STORAGE_XML_BYTES_MAX};
use longhaul_model::rules::{Direction, NameQuery, NameRule, OwnNames};
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Lfn, NameRules, StorageName};
use serde::Serialize;

use super::super::{Context, words};
use crate::failure::{Exit, Failure};
use crate::output::Format;
use crate::table::{Cell, Table, left, prose};
use crate::terminal::Tone;

#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// Check the configured rules and how they map names in both directions
    Check(CheckArgs),
    /// Convert PhEDEx's storage.xml to a section of the configuration
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// LFNs to map
    #[arg(value_name = "LFN")]
    names: Vec<Lfn>,
    /// Only this storage
    #[arg(long)]
    storage: Option<StorageName>,
    /// Map to names of this protocol instead of the storage's own files
    #[arg(long)]
    protocol: Option<String>,
    /// Site at the other end, for rules that depend on it; only with --protocol
    #[arg(long, value_name = "SITE", requires = "protocol")]
    target: Option<String>,
    /// Use the rules for custodial copies; only with --protocol
    #[arg(long, requires = "protocol")]
    custodial: bool,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The storage.xml file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Storage that gets the rules
    #[arg(long)]
    storage: StorageName,
    /// Directory of the storage on this host
    #[arg(long, value_name = "DIRECTORY")]
    root: PathBuf,
    /// Protocol whose names are the storage's own files
    #[arg(long, default_value_t = OwnNames::default().protocol)]
    protocol: String,
    /// Prefix of such names that corresponds to the directory [default: the directory]
    #[arg(long)]
    base: Option<String>,
    /// Use the rules for custodial copies
    #[arg(long)]
    custodial: bool,
    /// Version of the rules; must be higher than the one the service has
    #[arg(long, default_value_t = 2, value_name = "NUMBER")]
    version: u32,
    /// LFN that must map back to itself, or nothing is written; may be repeated
    #[arg(long = "test", value_name = "LFN")]
    tests: Vec<Lfn>,
}

/// How one name was mapped.
#[derive(Serialize)]
struct NameTrial {
    storage: StorageName,
    lfn: Lfn,
    #[serde(skip_serializing_if = "Option::is_none")]
    pfn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    space_token: Option<String>,
    /// Why there is no name, or why it must not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

pub fn run(context: &Context, command: RulesCommand) -> Result<Exit, Failure> {
    match command {
        RulesCommand::Check(args) => check(context, &args),
        RulesCommand::Import(args) => import(context, &args),
    }
}

fn check(context: &Context, args: &CheckArgs) -> Result<Exit, Failure> {
    let config: Config = context.layers()?.section("agent")?;
    let chosen: Vec<&StorageConfig> = config
        .storages
        .iter()
        .filter(|storage| args.storage.as_ref().is_none_or(|name| *name == storage.name))
        .collect();
    if chosen.is_empty() {
        let what = args.storage.as_ref().map_or("no storage".to_owned(), |name| format!("no storage {name}"));
        let next = "name the configuration file with --config";
        return Err(Failure::usage(
            "there are no rules to check",
            format!("{what} is configured here"),
            next,
        ));
    }
    for storage in &chosen {
        storage.check_rules()?;
    }
    let tries = chosen.iter().flat_map(|storage| args.names.iter().map(|lfn| try_name(storage, lfn, args)));
    let tries: Vec<NameTrial> = tries.collect();
    let failed = tries.iter().filter(|one| one.trouble.is_some()).count();
    if args.names.is_empty() && context.output.format != Format::Json {
        context.output.print_message("the name rules are valid");
    } else {
        context.output.table(&tries, |tries| table(tries))?;
    }
    Ok(if failed == 0 { Exit::Ok } else { Exit::Other })
}

fn try_name(storage: &StorageConfig, lfn: &Lfn, args: &CheckArgs) -> NameTrial {
    let rules = storage.name_rules();
    let mut tried = NameTrial {
        storage: storage.name.clone(),
        lfn: lfn.clone(),
        pfn: None,
        space_token: None,
        trouble: None,
    };
    let Some(protocol) = &args.protocol else {
        match rules.to_pfn(&storage.name, lfn) {
            Ok(pfn) => tried.pfn = Some(storage.root.join(pfn.path()).to_string_lossy().into_owned()),
            Err(error) => tried.trouble = Some(error.to_string()),
        }
        return tried;
    };
    let asked = NameQuery { protocol, target: args.target.as_deref(), custodial: args.custodial };
    let known = rules.protocols(Direction::LfnToPfn).join(", ");
    tried.trouble = match rules.lfn_to_pfn(lfn, &asked) {
        Ok(Some(mapped)) => {
            let back = rules.pfn_to_lfn(&mapped.name, &asked);
            (tried.pfn, tried.space_token) = (Some(mapped.name), mapped.space_token);
            match back {
                Ok(Some(back)) if back == *lfn => None,
                Ok(Some(back)) => Some(format!("it maps back to {}", back.shown())),
                Ok(None) => Some("no rule maps it back".into()),
                Err(error) => Some(format!("on the way back: {error}")),
            }
        }
        Ok(None) => {
            Some(format!("no rule of protocol {} fits; there are rules for {known}", printable(protocol)))
        }
        Err(error) => Some(error.to_string()),
    };
    tried
}

fn table(tries: &[NameTrial]) -> Table {
    let mut table = Table::new([
        left("storage"),
        left("lfn"),
        left("name"),
        left("space"),
        prose("problem").plain_title("trouble"),
    ]);
    for one in tries {
        table.row([
            Cell::text(one.storage.as_str()),
            Cell::text(one.lfn.shown()),
            Cell::maybe(one.pfn.as_ref(), |name| Cell::text(printable(name))),
            Cell::maybe(one.space_token.as_ref(), Cell::text),
            Cell::text(one.trouble.as_deref().unwrap_or_default()).toned(Tone::Warn),
        ]);
    }
    table
}

/// A section of a configuration file; the nesting gives the headings.
#[derive(Serialize)]
struct ConfigSection {
    agent: AgentSection,
}

#[derive(Serialize)]
struct AgentSection {
    storages: [StorageSection; 1],
}

#[derive(Serialize)]
struct StorageSection {
    name: StorageName,
    root: PathBuf,
    rules_version: u32,
    rules_protocol: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    rules_base: String,
    rules_custodial: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules_test: Vec<Lfn>,
    rules: Vec<NameRule>,
}

fn import(context: &Context, args: &ImportArgs) -> Result<Exit, Failure> {
    let written = build_section(&read(&args.file)?, args)?;
    if context.output.format == Format::Json {
        context.output.json(&written)?;
        return Ok(Exit::Ok);
    }
    let text = toml::to_string(&written)
        .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
    context.output.write(&text)?;
    let rules = words::plural(written.agent.storages[0].rules.len() as u64, "rule");
    context.output.print_message(&format!("{rules}: add this to the agent's configuration file"));
    Ok(Exit::Ok)
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| Failure::file("reading", file, &error);
    let mut bytes = Vec::new();
    // One byte more than allowed, to detect a file that is too large.
    let limit = STORAGE_XML_BYTES_MAX as u64 + 1;
    File::open(file).map_err(failed)?.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn build_section(bytes: &[u8], args: &ImportArgs) -> Result<ConfigSection, Failure> {
    let shown = printable(&args.file.to_string_lossy());
    let bad = |why: String| {
        let next = "correct the file, or use --protocol and --base to say which names are the storage's own";
        Failure::usage(format!("the rules in {shown} are not valid"), why, next)
    };
    let rules = storage_xml::read(bytes).map_err(|fault| bad(fault.detail))?;
    let base = args.base.clone().unwrap_or_else(|| args.root.to_string_lossy().into_owned());
    let own = OwnNames {
        protocol: args.protocol.clone(),
        base: base.trim_end_matches('/').to_owned(),
        custodial: args.custodial,
    };
    let rules = NameRules { version: args.version, rules, own };
    rules.check().map_err(|error| bad(error.to_string()))?;
    rules.try_names(&args.storage, &args.tests).map_err(|error| bad(error.to_string()))?;
    let storage = StorageSection {
        name: args.storage.clone(),
        root: args.root.clone(),
        rules_version: rules.version,
        rules_protocol: rules.own.protocol,
        rules_base: rules.own.base,
        rules_custodial: rules.own.custodial,
        rules_test: args.tests.clone(),
        rules: rules.rules,
    };
    Ok(ConfigSection { agent: AgentSection { storages: [storage] } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<storage-mapping>
  <lfn-to-pfn protocol="disk" path-match="/+(.*)" result="/pool/$1"/>
  <lfn-to-pfn protocol="https" chain="disk" destination-match="^T2_" path-match="(.*)"
      result="https://door.example.org$1"/>
  <pfn-to-lfn protocol="disk" path-match="^/pool/(.*)" result="/$1"/>
  <pfn-to-lfn protocol="https" chain="disk" path-match="^https://[^/]+(/.*)" result="$1"/>
</storage-mapping>"#;

    fn args(protocol: &str) -> ImportArgs {
        ImportArgs {
            file: "storage.xml".into(),
            storage: "alpha".parse().unwrap(),
            root: "/pool".into(),
            protocol: protocol.into(),
            base: None,
            custodial: false,
            version: 7,
            tests: vec!["store/a".parse().unwrap()],
        }
    }

    #[test]
    fn what_is_imported_is_a_configuration() {
        let text = toml::to_string(&build_section(XML.as_bytes(), &args("disk")).unwrap()).unwrap();
        let value: toml::Table = toml::from_str(&text).unwrap();
        let mut agent = value["agent"].clone();
        agent.as_table_mut().unwrap().insert("state_dir".into(), "/var/lib/longhaul-agent".into());
        let config: Config = agent.try_into().unwrap();
        config.check().unwrap();
        let storage = &config.storages[0];
        let lfn: Lfn = "store/a".parse().unwrap();
        assert_eq!((storage.rules_version, storage.rules.len()), (7, 4));
        assert_eq!(storage.name_rules().to_pfn(&storage.name, &lfn).unwrap().path(), "store/a");
        let mut check =
            CheckArgs { names: Vec::new(), storage: None, protocol: None, target: None, custodial: false };
        assert_eq!(try_name(storage, &lfn, &check).pfn.as_deref(), Some("/pool/store/a"));
        check.protocol = Some("https".into());
        let one = try_name(storage, &lfn, &check);
        assert_eq!((one.pfn.as_deref(), one.trouble), (Some("https://door.example.org/pool/store/a"), None));
        check.target = Some("T3_X".into());
        let trouble = try_name(storage, &lfn, &check).trouble.unwrap();
        assert_eq!(trouble, "no rule of protocol https fits; there are rules for disk, https");
    }

    #[test]
    fn what_cannot_be_used_is_not_written() {
        let why = |xml: &str, args: &ImportArgs| {
            build_section(xml.as_bytes(), args).map(drop).unwrap_err().problem.detail
        };
        assert!(why("<storage-mapping>\n<x/>", &args("disk")).contains("line 2: "));
        assert!(why(XML, &args("direct")).contains("no rules of protocol direct"));
        let mut elsewhere = args("disk");
        elsewhere.base = Some("/data".into());
        assert!(why(XML, &elsewhere).contains("does not lie beneath /data"));
    }
}
