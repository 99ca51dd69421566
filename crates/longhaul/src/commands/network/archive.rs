//! `longhaul network archive`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use longhaul_api::measured::ArchiveView;
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_gateways::perfsonar::archive::{Archive, Kind, Settings};
use longhaul_model::units::count;
use longhaul_model::{Fault, FaultCode};
use serde::Serialize;

use crate::clock;
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::Tone;

#[derive(Debug, Subcommand)]
pub enum ArchiveCommand {
    /// List archives and meshes that the service reads, with their state
    List,
    /// Query an archive once from here: whether it answers, in which format, with how much data
    Check(CheckArgs),
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Address: for esmond up to /archive/, for OpenSearch up to /pscheduler_…, for a mesh the template
    address: String,
    /// Format: esmond, opensearch or mesh
    #[arg(long, value_parser = kind)]
    kind: Kind,
    /// Do not verify the server's certificate
    #[arg(long)]
    no_verify: bool,
    /// PEM file of trusted certificate authorities [default: those of the system]
    #[arg(long, value_name = "FILE")]
    authorities: Option<PathBuf>,
}

fn kind(text: &str) -> Result<Kind, String> {
    text.parse()
}

#[derive(Serialize)]
struct CheckedArchive {
    url: String,
    kind: &'static str,
    verified: bool,
    found: String,
}

/// Checks an archive directly, without a service.
pub async fn check(context: &Context, args: CheckArgs) -> Result<Exit, Failure> {
    let verify = !args.no_verify;
    let settings = Settings { url: args.address, kind: args.kind, verify, authorities: args.authorities };
    let found = Archive::open(&settings)?.check(clock::now()).await.map_err(archive_failure)?;
    let checked = CheckedArchive { url: settings.url, kind: settings.kind.word(), verified: verify, found };
    context.output.sentence(&checked, |checked| format!("the archive answers: {}", checked.found))?;
    Ok(Exit::Ok)
}

/// Remedies for somebody else's server differ from those for ours.
fn archive_failure(fault: Fault) -> Failure {
    let next = match fault.code {
        FaultCode::NotAuthenticated => "give --authorities FILE, or --no-verify to trust any server",
        FaultCode::Unreachable | FaultCode::Stalled | FaultCode::ConnectionLost => {
            "check the address and the firewalls on the path"
        }
        _ => "check the address and --kind; see docs/howto/perfsonar.md",
    };
    Failure::from(fault).with_remedy(next)
}

pub async fn list(context: &Context, remote: &Remote) -> Result<Exit, Failure> {
    let items: Vec<ArchiveView> = remote.list_all(&routes::ARCHIVE_LIST, &[], &[]).await?;
    context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
    Ok(Exit::Ok)
}

fn table(archives: &[ArchiveView]) -> Table {
    let now = clock::now();
    let mut table = Table::new([
        left("archive"),
        left("kind"),
        left("last read"),
        right("accepted").plain_title("taken"),
        right("unmapped"),
        right("refused"),
        right("silent pairs"),
        prose("problem").plain_title("trouble"),
    ]);
    for archive in archives {
        let mut trouble: Vec<String> = archive.fault.iter().map(ToString::to_string).collect();
        trouble.extend(archive.found.why.clone());
        trouble.extend((!archive.verify).then(|| "its certificate is not verified".to_owned()));
        let pairs = format!("{} of {}", count(archive.silent), count(archive.pairs));
        table.row([
            Cell::text(&archive.url),
            Cell::text(&archive.kind),
            Cell::maybe(archive.last_read, |at| Cell::time(at, now)),
            Cell::count(archive.found.taken),
            Cell::count(archive.found.unmapped),
            Cell::count(archive.found.refused),
            Cell::both(if archive.pairs > 0 { pairs } else { String::new() }, archive.silent.to_string())
                .toned_if(archive.silent > 0, Tone::Warn),
            Cell::text(trouble.join("; ")).toned_if(archive.fault.is_some(), Tone::Bad),
        ]);
    }
    table
}
