//! `longhaul audit`.

use clap::Args;
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_api::steering::AuditEntry;

use super::Context;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose};

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// At most so many
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

pub async fn run(context: &Context, remote: &Remote, args: AuditArgs) -> Result<Exit, Failure> {
    let items: Vec<AuditEntry> = remote.some(&routes::AUDIT_LIST, &[], &[], args.limit).await?;
    context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
    Ok(Exit::Ok)
}

fn table(entries: &[AuditEntry]) -> Table {
    let mut table = Table::new([left("when"), left("who"), prose("what")]);
    for entry in entries {
        table.row([Cell::time(entry.at, clock::now()), Cell::text(&entry.who), Cell::text(&entry.what)]);
    }
    table
}
