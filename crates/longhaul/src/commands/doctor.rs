//! `longhaul doctor`: checks whether this host is ready and the peer answers.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use longhaul_doctor::tune::{self, bits, milliseconds};
use longhaul_doctor::{
    Examination, ExaminationRequest, FigureSource, Finding, PathOverrides, Peer, Severity, examine,
};
use longhaul_model::units::{plural, printable};

use super::Context;
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::table::{Cell, Table, left, prose};
use crate::terminal::{Style, Tone, wrapped};

const AFTER_HELP: &str = "\
Changes nothing. Each line is ok, advice (works, but costs rate or safety), problem (transfers fail, or the
given path cannot be filled) or unknown (this host does not tell), followed by the cost and what to do.

Exit status: 0 no problem, 1 problems";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArgs {
    /// Peer to check too: HOST, HOST:PORT, a URL, or @FILE that contains one
    #[arg(value_name = "PEER")]
    peer: Option<String>,
    /// Round-trip time of the path that buffers are checked for [default: measured to PEER, else 150ms]
    #[arg(long, value_name = "TIME", value_parser = tune::parse_rtt)]
    rtt: Option<u64>,
    /// Bandwidth of the path [default: that of the fastest interface, else 10Gbit]
    #[arg(long, value_name = "RATE", value_parser = tune::parse_bandwidth)]
    bandwidth: Option<u64>,
    /// Number of streams that share the path [default: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    streams: Option<u32>,
    /// Directory for data: check its space and speed (writes and removes 0.2 GB)
    #[arg(long, value_name = "DIR")]
    disk: Vec<PathBuf>,
    /// Certificate to check, with its chain
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Private key that should match the certificate
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Grid-map file to check line by line
    #[arg(long, value_name = "FILE")]
    gridmap: Vec<PathBuf>,
    /// Seconds to wait for the peer in each step
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    timeout: u64,
}

pub fn run(context: &Context, args: DoctorArgs) -> Result<Exit, Failure> {
    let order = ExaminationRequest {
        path: PathOverrides { rtt_us: args.rtt, rate_bytes_per_s: args.bandwidth, streams: args.streams },
        peer: args.peer.as_deref().map(parse_peer).transpose()?,
        directories: args.disk,
        certificate: args.cert,
        key: args.key,
        grid_maps: args.gridmap,
        timeout: Duration::from_secs(args.timeout),
        ..ExaminationRequest::default()
    };
    let done = examine(&order, clock::now());
    context.output.view(&done, human, table)?;
    Ok(if done.problems == 0 { Exit::Ok } else { Exit::Other })
}

/// Keeps only host and port of a URL; errors do not repeat it, since it may be secret.
fn parse_peer(text: &str) -> Result<Peer, Failure> {
    let read = match text.strip_prefix('@') {
        Some(file) => {
            let path = PathBuf::from(file);
            std::fs::read_to_string(&path).map_err(|error| Failure::file("reading", &path, &error))?
        }
        None => text.to_owned(),
    };
    read.trim()
        .parse()
        .map_err(|error| Failure::usage("PEER is not valid", format!("{error}"), "longhaul doctor --help"))
}

fn human(done: &Examination, style: Style, width: Option<usize>) -> String {
    let mut text = String::new();
    let from = |from| match from {
        FigureSource::Assumed => "assumed",
        FigureSource::Given => "as given",
        FigureSource::Measured => "measured",
    };
    let path = format!(
        "Checked for a path of {} ({}) × {} ({}) with {}.",
        bits(done.path.path.rate_bytes_per_s),
        if done.path.rate_from == FigureSource::Measured {
            "the interface's"
        } else {
            from(done.path.rate_from)
        },
        milliseconds(done.path.path.rtt_us),
        from(done.path.rtt_from),
        plural(done.path.streams.into(), "stream", "streams")
    );
    let _ = writeln!(text, "{}", wrapped(&path, width, 0));
    let checks =
        done.findings.iter().map(|finding| crate::terminal::columns(&finding.check).min(CHECK_COLUMNS_MAX));
    let column = checks.max().unwrap_or(0);
    let mut group = None;
    for finding in &done.findings {
        if group != Some(finding.group) {
            group = Some(finding.group);
            let _ = writeln!(text, "\n{}", style.paint(Tone::Strong, finding.group.word()));
        }
        write_finding(&mut text, finding, column, style, width);
    }
    let count = |number: usize, one: &str, more: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {more}"),
    };
    let all = done.findings.len();
    let _ = writeln!(
        text,
        "\n{}: {}, {}. Nothing was changed.",
        count(all, "check", "checks"),
        count(done.problems, "problem", "problems"),
        count(done.advice, "recommendation", "recommendations")
    );
    if done.findings.iter().any(|finding| finding.remedy.iter().any(|remedy| remedy.starts_with("sysctl "))) {
        let keep = format!(
            "sysctl -w lasts until the next boot. To make it permanent: longhaul tune --rtt {} --bandwidth \
             {} > /etc/sysctl.d/90-longhaul.conf",
            milliseconds(done.path.path.rtt_us).replace(' ', ""),
            bits(done.path.path.rate_bytes_per_s).replace(' ', "")
        );
        let _ = writeln!(text, "{}", wrapped(&keep, width, 0));
    }
    text
}

/// Longer names of checks (directories) push the rest of the line to the right.
const CHECK_COLUMNS_MAX: usize = 26;
const LEVEL_COLUMNS: usize = 8;

fn write_finding(text: &mut String, finding: &Finding, column: usize, style: Style, width: Option<usize>) {
    let word = finding.severity.word();
    let tone = match finding.severity {
        Severity::Ok => Tone::Good,
        Severity::Unknown => Tone::Faint,
        Severity::Advice => Tone::Warn,
        Severity::Problem => Tone::Bad,
    };
    let indent = LEVEL_COLUMNS + column + 2;
    let check = printable(&finding.check);
    let pad = " ".repeat(column.saturating_sub(crate::terminal::columns(&check)));
    let line = format!("{word:LEVEL_COLUMNS$}{check}{pad}  {}", printable(&finding.found));
    let line = wrapped(&line, width, indent);
    // Painted after wrapping, which counts columns of plain text.
    let _ = writeln!(text, "{}{}", style.paint(tone, word), &line[word.len()..]);
    let mut below = |name: &str, value: &str| {
        let line = format!("{}{name:<6}{}", " ".repeat(indent), printable(value));
        let _ = writeln!(text, "{}", wrapped(&line, width, indent + 6));
    };
    if let Some(cost) = &finding.cost {
        below("cost:", cost);
    }
    for (place, remedy) in finding.remedy.iter().enumerate() {
        below(if place == 0 { "next:" } else { "" }, remedy);
    }
}

fn table(done: &Examination) -> Table {
    let mut table = Table::new([
        left("group"),
        left("check"),
        left("level"),
        prose("found"),
        prose("cost"),
        prose("remedy"),
    ]);
    for finding in &done.findings {
        table.row([
            Cell::text(finding.group.word()),
            Cell::text(&finding.check),
            Cell::text(finding.severity.word()),
            Cell::text(&finding.found),
            Cell::maybe(finding.cost.as_ref(), Cell::text),
            Cell::text(finding.remedy.join("; ")),
        ]);
    }
    table
}
