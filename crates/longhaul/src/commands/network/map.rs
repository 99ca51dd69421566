//! `longhaul network map`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use longhaul_api::measured::{HostOfSite, HostView, HostsChange, HostsChanged};
use longhaul_api::native::{Page, SiteView};
use longhaul_api::routes;
use longhaul_gateways::cric;
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::units::{count, printable};
use longhaul_model::{Fault, SiteName};
use longhaul_network::mapping::Role;
use serde::Serialize;

use crate::clock;
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left};

#[derive(Debug, Subcommand)]
pub enum MapCommand {
    /// Map a host or network to a site; repeating it changes the mapping
    Add(AddArgs),
    /// List mappings, added and imported
    List,
    /// Remove the mapping of a host or network
    Remove {
        /// Host name, address or network, as listed
        host: String,
    },
    /// Import hosts and networks from CRIC exports; mappings added by hand stay
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub struct AddArgs {
    /// Host name or address as in its measurements, or a network such as 192.0.2.0/24
    host: String,
    /// Site it belongs to
    site: SiteName,
    /// Role of the host [default: both]
    #[arg(long, value_enum)]
    role: Option<RoleArg>,
    /// Only for measurements over this address family
    #[arg(long, value_enum)]
    family: Option<FamilyArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleArg {
    /// Measures throughput
    Bandwidth,
    /// Measures delay, loss and routes
    Latency,
    /// Measures everything
    Both,
    /// Measures nothing: a storage endpoint, whose domain maps nearby hosts
    Storage,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FamilyArg {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Export of sites with their networks: …/api/core/rcsite/query/?json
    #[arg(long, value_name = "FILE", required_unless_present = "services")]
    sites: Option<PathBuf>,
    /// Export of services with their hosts: …/api/core/service/query/list/?json
    #[arg(long, value_name = "FILE")]
    services: Option<PathBuf>,
    /// Their name of a site and ours, if they differ; may be repeated
    #[arg(long, value_name = "THEIRS=OURS", value_parser = parse_alias)]
    alias: Vec<(String, SiteName)>,
}

fn parse_alias(text: &str) -> Result<(String, SiteName), String> {
    let (theirs, ours) = text.split_once('=').ok_or("write THEIRS=OURS")?;
    Ok((theirs.to_owned(), SiteName::parse(ours).map_err(|error| error.to_string())?))
}

pub async fn run(context: &Context, remote: &Remote, command: MapCommand) -> Result<Exit, Failure> {
    match command {
        MapCommand::Add(args) => add(context, remote, args).await,
        MapCommand::List => {
            let items: Vec<HostView> = remote.list_all(&routes::HOST_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
            Ok(Exit::Ok)
        }
        MapCommand::Remove { host } => {
            remote.delete(&routes::HOST_REMOVE, &[&host]).await?;
            context.output.print_message(&format!("{} no longer belongs to a site", printable(&host)));
            Ok(Exit::Ok)
        }
        MapCommand::Import(args) => import(context, remote, args).await,
    }
}

async fn add(context: &Context, remote: &Remote, args: AddArgs) -> Result<Exit, Failure> {
    let role = args.role.map(|role| {
        let role = match role {
            RoleArg::Bandwidth => Role::Bandwidth,
            RoleArg::Latency => Role::Latency,
            RoleArg::Both => Role::Both,
            RoleArg::Storage => Role::Storage,
        };
        role.to_string()
    });
    let family = args.family.map(|family| match family {
        FamilyArg::V4 => "v4".to_owned(),
        FamilyArg::V6 => "v6".to_owned(),
    });
    let site = args.site.clone();
    let shown = printable(&args.host);
    let host = HostOfSite { host: args.host, site: args.site, role, family };
    let change = HostsChange { mapping: None, hosts: vec![host] };
    let changed: HostsChanged = remote.post(&routes::HOST_SET, &[], &change).await?;
    if !changed.unknown_sites.is_empty() {
        let fault = Fault::new(longhaul_model::FaultCode::NotFound, format!("there is no site {site}"));
        return Err(Failure::from(fault).with_remedy("longhaul site list"));
    }
    context.output.sentence(&changed, |_| format!("{shown} belongs to {site}"))?;
    Ok(Exit::Ok)
}

fn table(hosts: &[HostView]) -> Table {
    let now = clock::now();
    let mut table =
        Table::new([left("host"), left("site"), left("role"), left("family"), left("by"), left("since")]);
    for host in hosts {
        table.row([
            Cell::text(&host.host),
            Cell::text(host.site.as_str()),
            Cell::maybe(host.role.as_ref(), Cell::text),
            Cell::maybe(host.family.as_ref(), Cell::text),
            Cell::text(&host.mapping),
            Cell::time(host.created, now),
        ]);
    }
    table
}

/// Result of an import.
#[derive(Debug, Default, Serialize)]
struct ImportSummary {
    set: u64,
    unchanged: u64,
    kept_explicit: u64,
    /// Invalid entries of the exports.
    refused: u64,
    /// Sites of the exports that do not exist here.
    foreign_sites: BTreeSet<String>,
}

async fn import(context: &Context, remote: &Remote, args: ImportArgs) -> Result<Exit, Failure> {
    let here: Vec<SiteView> = remote.list_all(&routes::SITE_LIST, &[], &[]).await?;
    let mut names: BTreeMap<String, SiteName> =
        here.into_iter().map(|site| (site.name.as_str().to_lowercase(), site.name)).collect();
    names.extend(args.alias.into_iter().map(|(theirs, ours)| (theirs.to_lowercase(), ours)));
    let mut done = ImportSummary::default();
    let mut hosts = Vec::new();
    let mut take = |done: &mut ImportSummary, theirs: String, host: String, role: Option<String>| match names
        .get(&theirs.to_lowercase())
    {
        Some(site) => hosts.push(HostOfSite { host, site: site.clone(), role, family: None }),
        None => drop(done.foreign_sites.insert(theirs)),
    };
    if let Some(path) = &args.sites {
        let export = cric::sites(&read(path)?).map_err(|fault| export_failure(path, fault))?;
        done.refused += export.refused;
        for network in export.items {
            take(&mut done, network.site, network.prefix.to_string(), None);
        }
    }
    if let Some(path) = &args.services {
        let export = cric::services(&read(path)?).map_err(|fault| export_failure(path, fault))?;
        done.refused += export.refused;
        for host in export.items {
            take(&mut done, host.site, host.host, Some(host.role.to_string()));
        }
    }
    for batch in hosts.chunks(BATCH_ITEMS_MAX) {
        let change = HostsChange { mapping: Some("imported".into()), hosts: batch.to_vec() };
        let changed: HostsChanged = remote.post(&routes::HOST_SET, &[], &change).await?;
        done.set += changed.set;
        done.unchanged += changed.unchanged;
        done.kept_explicit += changed.kept_explicit;
        done.foreign_sites.extend(changed.unknown_sites.iter().map(ToString::to_string));
    }
    context.output.sentence(&done, import_text)?;
    Ok(Exit::Ok)
}

fn import_text(done: &ImportSummary) -> String {
    const SITES_NAMED_MAX: usize = 10;
    let mut text = format!(
        "{} set, {} unchanged, {} added by hand and kept, {} invalid",
        count(done.set),
        count(done.unchanged),
        count(done.kept_explicit),
        count(done.refused)
    );
    if !done.foreign_sites.is_empty() {
        let named: Vec<&str> = done.foreign_sites.iter().map(String::as_str).take(SITES_NAMED_MAX).collect();
        let more = done.foreign_sites.len().saturating_sub(SITES_NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        text.push_str(&format!(
            "\n{} of their sites do not exist here: {}{more}; if only the names differ: --alias THEIRS=OURS",
            count(done.foreign_sites.len() as u64),
            named.join(", ")
        ));
    }
    text
}

/// Reads a file up to the size limit.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::file("reading", path, &error);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    let most = cric::EXPORT_BYTES_MAX as u64 + 1;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, most), &mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn export_failure(path: &Path, fault: Fault) -> Failure {
    let detail = format!("{}: {}", path.display(), fault.detail);
    Failure::from(Fault::new(fault.code, detail))
        .with_remedy("export it again with ?json at the end of the address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_import_did_is_told_with_what_to_do_next() {
        let mut done = ImportSummary { set: 1_200, kept_explicit: 2, ..ImportSummary::default() };
        assert_eq!(import_text(&done), "1,200 set, 0 unchanged, 2 added by hand and kept, 0 invalid");
        done.foreign_sites = (0..12).map(|number| format!("T2-{number:02}")).collect();
        let text = import_text(&done);
        assert!(
            text.contains("12 of their sites do not exist here: T2-00,") && text.contains("and 2 more"),
            "{text}"
        );
        assert_eq!(parse_alias("CERN-PROD=cern").unwrap(), ("CERN-PROD".into(), "cern".parse().unwrap()));
        assert!(parse_alias("cern").is_err() && parse_alias("A=no spaces here").is_err());
    }
}
