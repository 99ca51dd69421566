//! What is known about links: rates and their causes, forecasts, and exchange between instances.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use longhaul_api::native::Page;
use longhaul_api::network::{
    ForecastQuality, NetworkChange, NetworkImport, NetworkImported, NetworkLink, NetworkLinkDetail,
    NetworkView,
};
use longhaul_api::routes;
use longhaul_model::units::{count, printable, rate};
use longhaul_model::{FaultCode, StorageName, Timestamp};
use longhaul_network::exchange::{Aliases, Exchange, Imported, merge};

use super::explain::{ExplainArgs, explanation_text};
use super::probes;
use crate::clock;
use crate::commands::{Context, words};
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, facts, left, prose, right};
use crate::terminal::{Style, Tone, wrapped};
use crate::time_format;

/// Size of an exported document; one of a million links is about this large.
const DOCUMENT_BYTES_MAX: u64 = 256 << 20;
/// Changes shown by `show`.
const CHANGES_SHOWN_MAX: usize = 10;

#[derive(Debug, Subcommand)]
pub enum LinksCommand {
    /// Show known links, forecast quality and recent changes; for one link: what agents found on its path
    Show(ShowArgs),
    /// List links: rates, limits and what holds them up
    Links(LinksArgs),
    /// Explain a link: its rate, what changed, and what more work on it would take
    Explain(ExplainArgs),
    /// Recommend what would make a link faster or safer; changes nothing
    Advise(LinkArgs),
    /// Export what is known about links between sites, for another instance
    Export(ExportArgs),
    /// Merge exported documents; needs no service
    Merge(MergeArgs),
    /// Import what another instance knows, where less is known here
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub struct LinksArgs {
    /// Only links from this storage
    #[arg(long)]
    source: Option<StorageName>,
    /// Only links to this storage
    #[arg(long)]
    target: Option<StorageName>,
    /// Maximum number of links
    #[arg(long, default_value_t = 200)]
    limit: usize,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Source storage
    #[arg(requires = "target")]
    source: Option<StorageName>,
    /// Target storage
    target: Option<StorageName>,
}

#[derive(Debug, Args)]
pub struct LinkArgs {
    /// Source storage
    pub(super) source: StorageName,
    /// Target storage
    pub(super) target: StorageName,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Exported documents
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Rename the site THEIRS to OURS; may be repeated
    #[arg(long = "alias", value_name = "THEIRS=OURS", value_parser = parse_alias)]
    aliases: Vec<(String, String)>,
    /// File to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Exported or merged document; - is standard input
    file: PathBuf,
    /// Their name of a site and ours; may be repeated
    #[arg(long = "alias", value_name = "THEIRS=OURS", value_parser = parse_alias)]
    aliases: Vec<(String, String)>,
}

fn parse_alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((theirs, ours)) if !theirs.is_empty() && !ours.is_empty() => {
            Ok((theirs.to_owned(), ours.to_owned()))
        }
        _ => Err(format!("{text:?} is not of the form THEIRS=OURS")),
    }
}

fn check_aliases(pairs: &[(String, String)]) -> Result<Aliases, Failure> {
    let pairs = pairs.iter().map(|(theirs, ours)| (theirs.as_str(), ours.as_str()));
    Aliases::new(pairs).map_err(|fault| Failure::from(longhaul_api::Problem::from(fault)))
}

pub async fn run(context: &Context, remote: &Remote, command: LinksCommand) -> Result<Exit, Failure> {
    let output = &context.output;
    match command {
        LinksCommand::Show(ShowArgs { source: Some(source), target: Some(target) }) => {
            let detail = detail(remote, &LinkArgs { source, target }, &[]).await?;
            output.view(&detail, probes::human, |detail| probes::table(&detail.probes))?;
        }
        LinksCommand::Show(_) => {
            let view: NetworkView = remote.get(&routes::NETWORK_SHOW, &[], &[]).await?;
            output.view(&view, human, |view| changes_table(&view.changes, view.now))?;
        }
        LinksCommand::Links(args) => {
            let query = [
                ("source", args.source.as_ref().map(|name| name.as_str().to_owned())),
                ("target", args.target.as_ref().map(|name| name.as_str().to_owned())),
            ];
            let page: Page<NetworkLink> =
                remote.list(&routes::NETWORK_LINKS, &[], &query, args.limit).await?;
            output.list(&page, |page| links_table(&page.items))?;
        }
        LinksCommand::Explain(args) => {
            let detail = detail(remote, &args.link, &args.query()).await?;
            output
                .view(&detail, explanation_text, |detail| links_table(std::slice::from_ref(&detail.link)))?;
        }
        LinksCommand::Advise(args) => {
            let detail = detail(remote, &args, &[]).await?;
            output.view(&detail, advice_text, |detail| sentences_table("advice", &detail.advice))?;
        }
        LinksCommand::Export(args) => {
            let document: Exchange = remote.get(&routes::NETWORK_EXPORT, &[], &[]).await?;
            write(context, &document, args.out.as_deref())?;
        }
        LinksCommand::Import(args) => import(context, remote, args).await?,
        LinksCommand::Merge(args) => return run_merge(context, &args),
    }
    Ok(Exit::Ok)
}

async fn detail(
    remote: &Remote,
    link: &LinkArgs,
    query: &[(&'static str, Option<String>)],
) -> Result<NetworkLinkDetail, Failure> {
    remote.get(&routes::NETWORK_LINK, &[link.source.as_str(), link.target.as_str()], query).await
}

/// `longhaul network merge`: merges files into one document.
pub fn run_merge(context: &Context, args: &MergeArgs) -> Result<Exit, Failure> {
    let documents = args.files.iter().map(|file| read(file)).collect::<Result<Vec<Exchange>, Failure>>()?;
    let document = merge(&documents, &check_aliases(&args.aliases)?)
        .map_err(|fault| Failure::from(longhaul_api::Problem::from(fault)))?;
    write(context, &document, args.out.as_deref())?;
    Ok(Exit::Ok)
}

async fn import(context: &Context, remote: &Remote, args: ImportArgs) -> Result<(), Failure> {
    check_aliases(&args.aliases)?;
    let document = serde_json::to_value(read(&args.file)?)
        .map_err(|error| Failure::new(FaultCode::Internal, error.to_string()))?;
    let request = NetworkImport { document, aliases: args.aliases.into_iter().collect() };
    let imported: NetworkImported = remote.post(&routes::NETWORK_IMPORT, &[], &request).await?;
    context.output.sentence(&imported, |imported| {
        let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let imported = Imported {
            imported: number(imported.taken),
            kept_own: number(imported.own_is_better),
            nothing_new: number(imported.nothing_new),
            unmapped: imported.unmapped.clone(),
            refused: imported.refused.clone(),
        };
        imported.describe().join("\n")
    })
}

/// Reads and checks one document; `-` is standard input.
fn read(file: &Path) -> Result<Exchange, Failure> {
    let failed = |error: &std::io::Error| Failure::file("reading", file, error);
    let mut text = Vec::new();
    let input: Box<dyn std::io::Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file).map_err(|error| failed(&error))?)
    };
    input.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| failed(&error))?;
    let shown = printable(&file.to_string_lossy());
    let usage = |why: String| {
        Failure::usage(
            format!("{shown} is not a network export"),
            why,
            "create one with: longhaul network export; the format is in docs/reference/network-exchange.md",
        )
    };
    if text.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(usage(format!("it is larger than {} MB", DOCUMENT_BYTES_MAX / 1_000_000)));
    }
    let document: Exchange = serde_json::from_slice(&text).map_err(|error| usage(error.to_string()))?;
    document.check().map_err(|fault| usage(fault.detail))?;
    Ok(document)
}

fn write(context: &Context, document: &Exchange, out: Option<&Path>) -> Result<(), Failure> {
    let Some(out) = out else { return context.output.json(document) };
    let text = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::new(FaultCode::Internal, error.to_string()))?;
    std::fs::write(out, text + "\n").map_err(|error| Failure::file("writing", out, &error))?;
    let shown = printable(&out.to_string_lossy());
    let links = words::plural(document.links.len() as u64, "link");
    context.output.print_message(&format!("{links} written to {shown}"));
    Ok(())
}

fn human(view: &NetworkView, style: Style, width: Option<usize>) -> String {
    let mut text = facts(style, width, &[("links", format!("{} known", count(view.links)))]);
    let scored: Vec<&ForecastQuality> =
        view.forecasts.iter().filter(|quality| quality.outcomes > 0).collect();
    if scored.is_empty() {
        text.push_str("no forecast has been scored yet\n");
    } else {
        text.push('\n');
        text.push_str(&forecasts_table(&scored).human(style, width));
    }
    text.push('\n');
    if view.changes.is_empty() {
        text.push_str("no changes were detected\n");
    } else {
        let shown = &view.changes[..view.changes.len().min(CHANGES_SHOWN_MAX)];
        text.push_str(&changes_table(shown, view.now).human(style, width));
        if view.changes.len() > CHANGES_SHOWN_MAX {
            text.push_str(&format!(
                "and {} earlier ones; list all with --json\n",
                view.changes.len() - CHANGES_SHOWN_MAX
            ));
        }
    }
    text
}

fn forecasts_table(all: &[&ForecastQuality]) -> Table {
    let mut table = Table::new([
        left("history of the link").plain_title("forecasts for links with"),
        right("outcomes"),
        right("in 90 % interval").plain_title("within their 90 %"),
        right("interval score"),
        right("vs. past rates").plain_title("of former rates'"),
    ]);
    let mut from = 0;
    for quality in all {
        let history = match quality.history_below {
            Some(below) => format!("{from} to {} outcomes", below.saturating_sub(1)),
            None => format!("{from} outcomes and more"),
        };
        from = quality.history_below.unwrap_or(from);
        table.row([
            Cell::text(history),
            Cell::count(quality.outcomes),
            Cell::text(format!("{:.0} %", quality.within * 100.0)),
            Cell::text(format!("{:.2}", quality.score)),
            Cell::maybe(quality.score_ratio, |ratio| Cell::text(format!("{:.0} %", ratio * 100.0))),
        ]);
    }
    table
}

pub(super) fn changes_table(all: &[NetworkChange], now: Timestamp) -> Table {
    let mut table = Table::new([left("since"), left("noticed"), prose("what changed")]);
    for change in all {
        let tone = if change.worse { Tone::Warn } else { Tone::Good };
        table.row([
            Cell::time(change.from, now),
            Cell::time(change.noticed, now),
            Cell::both(time_format::sentence(&change.what, now), change.what.as_str()).toned(tone),
        ]);
    }
    table
}

fn links_table(all: &[NetworkLink]) -> Table {
    let mut table = Table::new([
        left("source"),
        left("target"),
        right("now"),
        right("estimate").plain_title("believed"),
        right("80 % range"),
        right("rtt"),
        right("loss"),
        right("mtu"),
        left("probed"),
        right("window limit"),
        right("loss limit"),
        right("failed"),
        prose("held up by"),
    ]);
    let now = clock::now();
    for link in all {
        let range = format!("{} – {}", rate(link.rate_low), rate(link.rate_high));
        let plain = format!("{:.0}-{:.0}", link.rate_low, link.rate_high);
        let failed = (link.failure_share * 100.0).round();
        table.row([
            Cell::text(link.source.as_str()),
            Cell::text(link.target.as_str()),
            Cell::rate(link.rate_now),
            Cell::rate(link.rate).toned_if(link.worse_since.is_some(), Tone::Warn),
            Cell::both(range, plain),
            Cell::maybe(link.rtt_us, |us| Cell::both(format!("{:.1} ms", us / 1e3), format!("{us:.0}"))),
            Cell::maybe(link.loss, |loss| {
                Cell::text(if loss > 0.0 { format!("{loss:.0e}") } else { "0".into() })
            }),
            probes::link_mtu_cell(link),
            Cell::maybe(link.probed.as_ref(), |probed| probes::last_probe_cell(probed, now)),
            Cell::maybe(link.window_limit, Cell::rate),
            Cell::maybe(link.loss_limit, Cell::rate),
            Cell::text(format!("{failed:.0} %")).toned_if(failed >= 5.0, Tone::Bad),
            Cell::text(&link.held_up_by),
        ]);
    }
    table
}

fn sentences_table(title: &'static str, all: &[String]) -> Table {
    let mut table = Table::new([prose(title)]);
    all.iter().for_each(|line| table.row([Cell::text(line)]));
    table
}

pub(super) fn bullet_list(all: &[String], width: Option<usize>) -> String {
    all.iter().map(|line| wrapped(&format!("  {}", printable(line)), width, 4) + "\n").collect()
}

pub(super) fn link_title(link: &NetworkLink, style: Style) -> String {
    let arrow = format!("{} → {}", link.source, link.target);
    let since =
        link.worse_since.map(|since| format!("   worse since {}", time_format::local(since, clock::now())));
    format!("{}{}\n", style.paint(Tone::Strong, &arrow), since.unwrap_or_default())
}

fn advice_text(detail: &NetworkLinkDetail, style: Style, width: Option<usize>) -> String {
    let text = link_title(&detail.link, style);
    if detail.advice.is_empty() {
        return text + "  no recommendations\n";
    }
    text + &bullet_list(&detail.advice, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_has_two_names() {
        assert_eq!(parse_alias("T2_X=alpha"), Ok(("T2_X".to_owned(), "alpha".to_owned())));
        for wrong in ["", "alpha", "=alpha", "alpha="] {
            assert!(parse_alias(wrong).unwrap_err().contains("THEIRS=OURS"), "{wrong}");
        }
    }

    #[test]
    fn a_file_that_is_no_document_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.json");
        let say = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let failure = read(&file).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            failure.problem.detail
        };
        assert!(say("{").contains("EOF"), "truncated");
        assert!(say("[]").contains("invalid"), "of another type");
        let other =
            r#"{"format":"other","version":1,"instances":[],"written":"2026-01-01T00:00:00Z","links":[]}"#;
        assert!(say(other).contains("its format is"), "{}", say(other));
        assert_eq!(read(Path::new("/nowhere/at/all")).unwrap_err().exit, Exit::NotFound);
    }
}
