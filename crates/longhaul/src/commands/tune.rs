//! `longhaul tune`: kernel settings for a path, as a file for `/etc/sysctl.d`. It applies none.

use std::path::Path;

use clap::Args;
use longhaul_doctor::facts::HostFacts;
use longhaul_doctor::tune::{self, Direction, TuningPlan, bits, buffer, milliseconds};
use longhaul_model::units::{bytes, plural, rate};

use super::Context;
use crate::failure::{Exit, Failure};
use crate::table::{Cell, Table, left, prose};
use crate::terminal::{Style, Tone};

#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Round-trip time of the path, such as 150ms
    #[arg(long, value_name = "TIME", value_parser = tune::parse_rtt)]
    rtt: u64,
    /// Bandwidth of the path, such as 10Gbit, 800Mbit/s or 1.2GB/s
    #[arg(long, value_name = "RATE", value_parser = tune::parse_bandwidth)]
    bandwidth: u64,
    /// Number of streams that share the path [default: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    streams: Option<u32>,
}

pub fn run(context: &Context, args: TuneArgs) -> Result<Exit, Failure> {
    let facts = HostFacts::read(Path::new("/"));
    let path = tune::path(args.bandwidth, args.rtt);
    let plan = tune::plan(&facts, path, args.streams);
    context.output.view(&plan, |plan, style, _| human(plan, style), table)?;
    Ok(Exit::Ok)
}

/// Everything but the settings is a comment, so that the output can go into a file as it is.
fn human(plan: &TuningPlan, style: Style) -> String {
    let mut text = String::new();
    for line in remarks(plan) {
        text.push_str(&style.paint(Tone::Faint, &format!("# {line}")));
        text.push('\n');
    }
    text.push('\n');
    for line in &plan.settings {
        let now = line.present.as_deref().unwrap_or("unknown");
        text.push_str(&style.paint(Tone::Faint, &format!("# now {now}: {}", line.why)));
        text.push('\n');
        text.push_str(&style.paint(Tone::Strong, &line.line));
        text.push('\n');
    }
    if plan.settings.is_empty() {
        text.push_str("# Nothing to change.\n");
    }
    text
}

fn remarks(plan: &TuningPlan) -> Vec<String> {
    let rtt = milliseconds(plan.path.rtt_us);
    let mut all = vec![
        format!(
            "{} × {rtt}: {} in flight; {} streams need {} of buffer each at each end, {} in total",
            bits(plan.path.rate_bytes_per_s),
            bytes(plan.bdp_bytes),
            plan.streams,
            bytes(plan.buffer_bytes),
            bytes(plan.bdp_bytes.saturating_mul(2)),
        ),
        direction_remark("send", plan.send.as_ref()),
        direction_remark("receive", plan.receive.as_ref()),
    ];
    let payload: Vec<String> = plan
        .payload
        .iter()
        .map(|one| {
            format!("{:.1} % with packets of {} ({})", one.share * 100.0, one.mtu, rate(one.bytes_per_s_max))
        })
        .collect();
    all.push(format!("payload: {}", payload.join(", ")));
    all.push(format!("a new connection takes {:.1} s to fill the path", plan.slow_start_s));
    let lossy: Vec<String> = plan
        .cubic_bytes_per_s_at_loss
        .iter()
        .map(|(loss, at)| format!("{} at {loss:e}", rate(at.min(plan.path.rate_bytes_per_s as f64))))
        .collect();
    all.push(format!(
        "one stream fills it up to a loss of {:.0e}; with cubic it carries {}; bbr tolerates such loss",
        plan.loss_max,
        lossy.join(", ")
    ));
    all.push(
        "to make it permanent: put this into /etc/sysctl.d/90-longhaul.conf, then run sysctl --system"
            .to_owned(),
    );
    all
}

fn direction_remark(name: &str, direction: Option<&Direction>) -> String {
    let Some(found) = direction else { return format!("{name}: this host's limits are unknown") };
    format!(
        "{name}, this host now: autotuned up to {}, set up to {}; one stream carries {} to {}; {} the path",
        buffer(found.ceilings.autotuned_bytes),
        buffer(found.ceilings.granted_bytes()),
        rate(found.one_stream.guaranteed_bytes_per_s as f64),
        rate(found.one_stream.most_bytes_per_s as f64),
        plural(found.streams_needed, "stream fills", "streams fill")
    )
}

fn table(plan: &TuningPlan) -> Table {
    let mut table = Table::new([left("setting"), left("present"), left("wanted"), prose("why")]);
    for line in &plan.settings {
        table.row([
            Cell::text(&line.setting),
            Cell::maybe(line.present.as_ref(), Cell::text),
            Cell::text(&line.wanted),
            Cell::text(&line.why),
        ]);
    }
    table
}
