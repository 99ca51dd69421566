//! What agents found on the path between two storages, and the uplinks of their sites.

use longhaul_api::network::{NetworkLink, NetworkLinkDetail};
use longhaul_api::probe::{ProbeShort, ProbeView, ProbedWay, Reach, UplinkView};
use longhaul_model::Timestamp;

use super::links::{bullet_list, changes_table, link_title};
use crate::clock;
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::{Style, Tone};

/// Routers shown by address; further ones are only counted.
const HOPS_SHOWN_MAX: usize = 12;

/// Text of `longhaul network show SOURCE TARGET`.
pub fn human(detail: &NetworkLinkDetail, style: Style, width: Option<usize>) -> String {
    let mut text = link_title(&detail.link, style);
    if detail.probes.is_empty() {
        text.push_str(
            "  no agent of one site has probed one of the other yet; each probes one peer every few \
         seconds\n",
        );
    } else {
        text.push_str(&table(&detail.probes).human(style, width));
    }
    for probe in &detail.probes {
        let mut lines = probe.remarks.clone();
        lines.extend(probe.ways.iter().flat_map(|way| &way.unknown).map(|what| format!("unknown: {what}")));
        lines.extend(probe.ways.iter().filter_map(route_text));
        if !lines.is_empty() {
            text.push_str(&format!("\n{} → {}\n", probe.from, probe.to));
            text.push_str(&bullet_list(&lines, width));
        }
    }
    if !detail.uplinks.is_empty() {
        text.push('\n');
        text.push_str(&uplinks_table(&detail.uplinks).human(style, width));
    }
    if !detail.changes.is_empty() {
        text.push('\n');
        text.push_str(&changes_table(&detail.changes, clock::now()).human(style, width));
    }
    text
}

fn route_text(way: &ProbedWay) -> Option<String> {
    if way.hops.is_empty() {
        return None;
    }
    let named =
        way.hops.iter().take(HOPS_SHOWN_MAX).map(|hop| hop.map_or("*".to_owned(), |hop| hop.to_string()));
    let named: Vec<String> = named.collect();
    let more = way.hops.len().saturating_sub(HOPS_SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("route over {}: {}{more}", way.family(), named.join(" ")))
}

pub fn table(probes: &[ProbeView]) -> Table {
    let now = clock::now();
    let mut table = Table::new([
        left("from"),
        left("to"),
        left("probed").plain_title("looked"),
        left("family"),
        right("rtt"),
        right("mtu"),
        right("hops"),
        left("address"),
        prose("result").plain_title("found"),
    ]);
    for probe in probes {
        let ends = |table: &mut Table, rest: [Cell; 6]| {
            let [family, rtt, mtu, hops, address, found] = rest;
            let from = Cell::text(format!("{} ({})", probe.from, probe.from_host));
            let to = Cell::text(format!("{} ({})", probe.to, probe.to_host));
            table.row([from, to, Cell::time(probe.at, now), family, rtt, mtu, hops, address, found]);
        };
        for way in &probe.ways {
            ends(&mut table, path_cells(way));
        }
        if let Some(fault) = &probe.fault {
            let empty = || Cell::text("");
            let found = Cell::text(fault).toned(Tone::Bad);
            ends(&mut table, [empty(), empty(), empty(), empty(), empty(), found]);
        }
    }
    table
}

fn path_cells(way: &ProbedWay) -> [Cell; 6] {
    let answers = way.reach == Reach::Answers;
    let tone = if way.reach == Reach::NoRoute { Tone::Faint } else { Tone::Bad };
    let hops = (!way.hops.is_empty()).then_some(way.hops.len() as u64);
    [
        Cell::text(way.family()),
        Cell::maybe(way.rtt_us(), |us| Cell::both(format!("{:.1} ms", f64::from(us) / 1e3), us.to_string())),
        Cell::maybe(way.mtu, |mtu| mtu_cell(mtu, way.black_hole)),
        Cell::maybe(hops, Cell::count),
        Cell::text(way.address.to_string()),
        Cell::text(way.reach.words()).toned_if(!answers, tone),
    ]
}

/// The MTU cell in the list of links.
pub fn link_mtu_cell(link: &NetworkLink) -> Cell {
    let black_hole = link.probed.as_ref().is_some_and(|probed| probed.black_hole);
    Cell::maybe(link.mtu, |mtu| mtu_cell(mtu, black_hole))
}

fn mtu_cell(mtu: u32, black_hole: bool) -> Cell {
    let shown = if black_hole { format!("{mtu} black hole") } else { mtu.to_string() };
    Cell::both(shown, mtu.to_string()).toned_if(black_hole, Tone::Bad)
}

/// When the link was last probed, or since when nothing answers.
pub fn last_probe_cell(probed: &ProbeShort, now: Timestamp) -> Cell {
    match probed.unreachable_since {
        Some(since) => Cell::both(
            format!("silent since {}", crate::time_format::local(since, now)),
            format!("silent since {since}"),
        )
        .toned(Tone::Bad),
        None => Cell::time(probed.at, now),
    }
}

fn uplinks_table(all: &[UplinkView]) -> Table {
    let now = clock::now();
    let mut table = Table::new([
        left("uplink of"),
        left("host"),
        left("interface"),
        right("in"),
        right("out"),
        right("capacity"),
        right("used"),
        left("measured").plain_title("counted"),
    ]);
    for uplink in all {
        let sample = &uplink.sample;
        let most = sample.into_bytes_per_s.max(sample.out_bytes_per_s);
        table.row([
            Cell::text(uplink.site.as_str()),
            Cell::text(&uplink.host),
            Cell::text(&sample.interface),
            Cell::rate(sample.into_bytes_per_s),
            Cell::rate(sample.out_bytes_per_s),
            Cell::maybe(sample.capacity_bytes_per_s, Cell::rate),
            Cell::maybe(sample.capacity_bytes_per_s, |capacity| {
                let used = most / capacity * 100.0;
                Cell::text(format!("{used:.0} %")).toned_if(used >= 90.0, Tone::Warn)
            }),
            Cell::time(sample.at, now),
        ]);
    }
    table
}
