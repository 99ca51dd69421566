//! `longhaul audit`.

use clap::{Args, ValueEnum};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_api::steering::{AuditEntry, DecisionEntry};
use longhaul_model::SiteName;

use super::Context;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose, right};

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Which entries to list [default: changes and logins]
    #[arg(long, value_enum)]
    of: Option<AuditKind>,
    /// Only decisions about this name
    #[arg(long)]
    who: Option<String>,
    /// Only decisions by the doors of this site
    #[arg(long)]
    site: Option<SiteName>,
    /// Maximum number of entries
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AuditKind {
    /// Changes
    Changes,
    /// Logins and refused logins, with the reason
    Logins,
    /// Access decisions: who was allowed or refused what, and why
    Decisions,
    /// Access decisions that allowed
    Allowed,
    /// Access decisions that refused
    Refused,
}

impl AuditKind {
    /// The `of` parameter of the decision log, for kinds that are in that log.
    fn decision_filter(self) -> Option<Option<&'static str>> {
        match self {
            AuditKind::Changes | AuditKind::Logins => None,
            AuditKind::Decisions => Some(None),
            AuditKind::Allowed => Some(Some("allowed")),
            AuditKind::Refused => Some(Some("refused")),
        }
    }

    fn word(self) -> &'static str {
        if matches!(self, AuditKind::Logins) { "logins" } else { "changes" }
    }
}

pub async fn run(context: &Context, remote: &Remote, args: AuditArgs) -> Result<Exit, Failure> {
    if let Some(of) = args.of.and_then(AuditKind::decision_filter) {
        return decisions(context, remote, of, &args).await;
    }
    if args.who.is_some() || args.site.is_some() {
        return Err(Failure::usage(
            "--who and --site do not apply",
            "--who and --site select access decisions only",
            "add --of decisions, --of allowed or --of refused",
        ));
    }
    let of = args.of.map(|of| of.word().to_owned());
    let page: Page<AuditEntry> = remote.list(&routes::AUDIT_LIST, &[], &[("of", of)], args.limit).await?;
    context.output.list(&page, |page| table(&page.items))?;
    Ok(Exit::Ok)
}

async fn decisions(
    context: &Context,
    remote: &Remote,
    of: Option<&'static str>,
    args: &AuditArgs,
) -> Result<Exit, Failure> {
    let site = args.site.as_ref().map(SiteName::to_string);
    let query = [("of", of.map(str::to_owned)), ("who", args.who.clone()), ("site", site)];
    let page: Page<DecisionEntry> = remote.list(&routes::DECISION_LIST, &[], &query, args.limit).await?;
    context.output.list(&page, |page| decision_table(&page.items))?;
    Ok(Exit::Ok)
}

fn table(entries: &[AuditEntry]) -> Table {
    let mut table = Table::new([left("when"), left("who"), prose("what")]);
    for entry in entries {
        table.row([Cell::time(entry.at, clock::now()), Cell::text(&entry.who), Cell::text(&entry.what)]);
    }
    table
}

/// Site and storage of a door, or the service.
fn door_location(entry: &DecisionEntry) -> String {
    match (&entry.site, &entry.storage) {
        (Some(site), Some(storage)) => format!("{site}, {storage}"),
        _ => "service".to_owned(),
    }
}

fn decision_table(entries: &[DecisionEntry]) -> Table {
    let heads = ["when", "who", "by", "from", "outcome", "at", "operation"].map(left);
    let mut table = Table::new(heads.into_iter().chain([right("times"), prose("on"), prose("why")]));
    for entry in entries {
        table.row([
            Cell::time(entry.at, clock::now()),
            Cell::text(&entry.who),
            Cell::text(&entry.credential),
            Cell::text(&entry.origin),
            Cell::text(if entry.allowed { "allowed" } else { "refused" }),
            Cell::text(door_location(entry)),
            Cell::text(&entry.operation),
            Cell::count(entry.times),
            Cell::text(&entry.object),
            Cell::text(&entry.why),
        ]);
    }
    table
}
