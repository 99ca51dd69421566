//! `longhaul simulate`: runs the scheduler in a world of a scenario, and tells what it achieved.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use longhaul_model::units::{bytes, count, duration};
use longhaul_scheduler::Strategy;
use longhaul_simulator::{Mistake, Plan, Report, Scenario, Way, simulate};

use super::Context;
use crate::failure::{Exit, Failure};
use crate::output::Format;
use crate::table::{Cell, Table, left, right};
use crate::terminal::{Style, Tone};

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The world: docs/reference/scenarios.md
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,
    /// How to schedule; may be given several times [default: best]
    #[arg(long, value_name = "NAME")]
    strategy: Vec<String>,
    /// In place of the scenario's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the report, its curves and the certificate of the bound there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(context: &Context, args: SimulateArgs) -> Result<Exit, Failure> {
    let text = std::fs::read_to_string(&args.scenario)
        .map_err(|error| Failure::file("reading", &args.scenario, &error))?;
    let wrong = |mistake: Mistake| {
        let title = format!("{} is no scenario", args.scenario.display());
        Failure::usage(title, format!("{}: {}", mistake.place, mistake.what), mistake.next)
    };
    let plan = Scenario::parse(&text).and_then(|scenario| Plan::new(&scenario, args.seed)).map_err(wrong)?;
    let names = if args.strategy.is_empty() { vec!["best".to_owned()] } else { args.strategy.clone() };
    let strategies = names.iter().map(|name| Strategy::named(name));
    let strategies: Vec<Strategy> = strategies
        .collect::<Result<_, _>>()
        .map_err(|why| Failure::usage("no such strategy", why, "longhaul simulate --help"))?;
    let mut reports = Vec::new();
    for strategy in &strategies {
        let begin = Instant::now();
        let mut report = simulate(&plan, strategy, None);
        let wall = begin.elapsed().as_secs_f64();
        report.summary.wall_s = wall;
        report.summary.decisions_per_s = report.leases as f64 / wall.max(1e-9);
        reports.push(report);
    }
    match context.output.format {
        Format::Json => {
            for report in &reports {
                context.output.json_line(&report.summary)?;
            }
        }
        Format::Plain => context.output.write(&table(&reports).plain())?,
        Format::Human => context.output.write(&human(&plan, &reports, context))?,
    }
    Ok(Exit::Ok)
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::new([
        left("strategy"),
        right("makespan"),
        right("of bound"),
        right("dataset mean"),
        right("95 %"),
        right("file mean"),
        right("95 %"),
        right("moved twice"),
        right("fair"),
        right("failed"),
        right("forecasts off by"),
        right("leases/s"),
    ]);
    let time = |seconds: Option<f64>| {
        Cell::maybe(seconds, |seconds| {
            Cell::both(duration(std::time::Duration::from_secs_f64(seconds)), format!("{seconds:.3}"))
        })
    };
    let share = |share: Option<f64>| {
        Cell::maybe(share, |share| Cell::both(format!("{:.1} %", share * 100.0), format!("{share:.4}")))
    };
    for report in reports {
        let row = &report.summary;
        table.row([
            Cell::text(&row.strategy),
            time(row.makespan_s),
            share(row.makespan_s.map(|makespan| row.makespan_bound_s / makespan)),
            time(row.dataset_mean_s),
            time(row.dataset_p95_s),
            time(row.transfer_mean_s),
            time(report.transfer_p95_s),
            Cell::bytes(u64::try_from(row.bytes_moved.saturating_sub(row.bytes_wanted)).unwrap_or(u64::MAX)),
            Cell::both(format!("{:.3}", row.jain), format!("{:.6}", row.jain)),
            Cell::count(row.failed + report.unfinished)
                .toned_if(row.failed + report.unfinished > 0, Tone::Bad),
            share(report.forecast_error),
            Cell::count(row.decisions_per_s as u64),
        ]);
    }
    table
}

fn human(plan: &Plan, reports: &[Report], context: &Context) -> String {
    let style: Style = context.output.out.style;
    let mut text = String::new();
    text.push_str(&style.paint(Tone::Strong, &plan.name));
    text.push_str(&format!(": {}\n", plan.about.replace('\n', " ")));
    if let Some(first) = reports.first() {
        text.push_str(&style.paint(
            Tone::Faint,
            &format!(
                "{} sites, {} requests, {} files, {} wanted, seed {}\n",
                plan.layout.sites.len(),
                count(plan.work.requests.len() as u64),
                count(first.files + first.unfinished + first.summary.failed),
                bytes(u64::try_from(first.summary.bytes_wanted).unwrap_or(u64::MAX)),
                plan.seed
            ),
        ));
    }
    text.push('\n');
    text.push_str(&table(reports).human(style, context.output.out.width()));
    text.push('\n');
    for report in reports {
        let most: Vec<String> =
            report.use_most.iter().map(|(name, part)| format!("{name} {:.0} %", part * 100.0)).collect();
        text.push_str(&style.paint(
            Tone::Faint,
            &format!(
                "{}: busiest {}; {} attempts failed; {:.1} s of this machine\n",
                report.summary.strategy,
                most.join(", "),
                count(report.attempts_failed),
                report.summary.wall_s
            ),
        ));
    }
    text
}
