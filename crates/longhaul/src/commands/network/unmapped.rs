//! `longhaul network unmapped`.

use longhaul_api::measured::UnmappedHost;
use longhaul_api::native::Page;
use longhaul_api::routes;

use crate::clock;
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::Tone;

pub async fn run(context: &Context, remote: &Remote) -> Result<Exit, Failure> {
    let items: Vec<UnmappedHost> = remote.list_all(&routes::UNMAPPED_LIST, &[], &[]).await?;
    let unnamed = !items.is_empty();
    context.output.table(&Page { items, next: None }, |page| table(&page.items))?;
    if unnamed {
        context.output.print_message("map a host to a site: longhaul network map add HOST SITE");
    }
    Ok(Exit::Ok)
}

fn table(hosts: &[UnmappedHost]) -> Table {
    let now = clock::now();
    let mut table = Table::new([
        left("host"),
        left("address"),
        left("site"),
        right("measurements"),
        left("last"),
        left("from"),
        prose("why"),
    ]);
    for host in hosts {
        table.row([
            Cell::text(&host.host),
            Cell::maybe(host.address.as_ref(), Cell::text),
            match &host.inferred {
                Some(site) => Cell::text(format!("{site}?")),
                None => Cell::text("none").toned(Tone::Warn),
            },
            Cell::count(host.measurements),
            Cell::time(host.last_seen, now),
            Cell::text(&host.reported_by),
            Cell::text(host.because.as_deref().unwrap_or("no entry, no storage in its domain, no network")),
        ]);
    }
    table
}
