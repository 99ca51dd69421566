//! `longhaul audit`.

use clap::{Args, ValueEnum};
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
    /// Only changes, or only logins [default: both]
    #[arg(long, value_enum)]
    of: Option<Of>,
    /// At most so many
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Of {
    /// What was changed
    Changes,
    /// Who logged in, or was refused and why
    Logins,
}

impl Of {
    fn word(self) -> &'static str {
        match self {
            Of::Changes => "changes",
            Of::Logins => "logins",
        }
    }
}

pub async fn run(context: &Context, remote: &Remote, args: AuditArgs) -> Result<Exit, Failure> {
    let of = args.of.map(|of| of.word().to_owned());
    let items: Vec<AuditEntry> = remote.some(&routes::AUDIT_LIST, &[], &[("of", of)], args.limit).await?;
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
