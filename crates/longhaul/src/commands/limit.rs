//! `longhaul limit`.

use clap::{Args, Subcommand, ValueEnum};
use longhaul_api::limits::{LimitChange, LimitKind, LimitView};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_model::units::parse_bytes;

use super::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, right};

#[derive(Debug, Subcommand)]
pub enum LimitCommand {
    /// List limits of links, storages and communities (for sites: longhaul site list)
    List,
    /// Limit parallel files, bytes per second, or both, replacing the present limit; takes effect at once
    Set(SetArgs),
    /// Remove a limit
    Remove(LimitSubject),
}

#[derive(Debug, Args)]
pub struct LimitSubject {
    /// What to limit
    kind: SubjectKind,
    /// SOURCE:TARGET for a link, otherwise the name of the storage or community
    name: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SubjectKind {
    /// Traffic from one storage to another
    Link,
    /// Traffic into a storage
    Into,
    /// Traffic out of a storage
    Out,
    /// All traffic of a community
    Community,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    subject: LimitSubject,
    #[command(flatten)]
    limit: Limit,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct Limit {
    /// Maximum number of parallel files; 0 starts nothing new
    #[arg(long)]
    active: Option<u32>,
    /// Average bytes per second, such as 250MB; files that have started are not slowed down
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<u64>,
}

fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_bytes(text.trim_end_matches("/s"))? {
        0 => Err("the rate must be more than 0; to start nothing new: --active 0".to_owned()),
        rate => Ok(rate),
    }
}

pub async fn run(context: &Context, remote: &Remote, command: LimitCommand) -> Result<Exit, Failure> {
    let (whose, active, bytes_per_s) = match command {
        LimitCommand::List => {
            let items: Vec<LimitView> = remote.list_all(&routes::LIMIT_LIST, &[], &[]).await?;
            context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
            return Ok(Exit::Ok);
        }
        LimitCommand::Set(args) => (args.subject, args.limit.active, args.limit.rate),
        LimitCommand::Remove(whose) => (whose, None, None),
    };
    let of = match whose.kind {
        SubjectKind::Link => LimitKind::Link,
        SubjectKind::Into => LimitKind::Into,
        SubjectKind::Out => LimitKind::Out,
        SubjectKind::Community => LimitKind::Community,
    };
    let change = LimitChange { of, name: whose.name, active, bytes_per_s };
    let page: Page<LimitView> = remote.post(&routes::LIMIT_SET, &[], &change).await?;
    context.output.table(&page, |page| table(&page.items))?;
    Ok(Exit::Ok)
}

fn table(limits: &[LimitView]) -> Table {
    let mut table = Table::new([
        left("limit of"),
        left("name"),
        right("parallel files").plain_title("files at once"),
        right("rate"),
    ]);
    for limit in limits {
        let kind = match limit.of {
            LimitKind::Link => "link",
            LimitKind::Into => "into",
            LimitKind::Out => "out",
            LimitKind::Community => "community",
        };
        table.row([
            Cell::text(kind),
            Cell::text(&limit.name),
            Cell::maybe(limit.active, |active| Cell::count(active.into())),
            Cell::maybe(limit.bytes_per_s, |rate| Cell::rate(rate as f64)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_more_than_nothing() {
        assert_eq!(parse_rate("250MB/s").unwrap(), 250_000_000);
        assert!(parse_rate("0").unwrap_err().contains("--active 0") && parse_rate("fast").is_err());
    }
}
