//! `longhaul simulate`: runs the scheduler in a simulated scenario and reports what it achieved.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use longhaul_model::units::{bytes, count, duration};
use longhaul_simulator::knowledge_report::KnowledgeReport;
use longhaul_simulator::rate_error::{RATE_ERROR_MAX, compare_rates};
use longhaul_simulator::scenario::{Rates, TEXT_BYTES_MAX};
use longhaul_simulator::{
    CircuitLevel, Plan, Policy, Report, Scenario, ScenarioError, generate, plots, simulate,
};

use super::{Context, words};
use crate::failure::{Exit, Failure};
use crate::output::Format;
use crate::table::{Cell, Table, left, right};
use crate::terminal::{Style, Tone};

/// A run that takes longer reports its end, so that nobody waits without news.
const WALL_S_REPORTED_MIN: f64 = 2.0;
/// With more strategies, the table is enough for those that finished.
const REPORTS_REMARKED_MAX: usize = 4;
/// Decisions about circuits shown as an example: the first ones.
const CIRCUIT_DECISIONS_SHOWN_MAX: usize = 4;

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Scenario file (docs/reference/scenarios.md)
    #[arg(
        value_name = "SCENARIO",
        required_unless_present_any = ["generate", "replay"],
        conflicts_with = "generate"
    )]
    scenario: Option<PathBuf>,
    /// Scheduling strategy; may be repeated: best, one of FTS3's nine, each with /fts3 (FTS3's order and
    /// concurrency), /legacy (PhEDEx's pauses after failures), /ask-back (leases are recalled from slow
    /// links) or /at-once-N (N parallel files on each link); or all [default: best]
    #[arg(long, value_name = "NAME")]
    strategy: Vec<String>,
    /// What decides about circuits, instead of the scenario's choice; may be repeated: none, agent, service
    #[arg(
        long,
        value_name = "LEVEL",
        value_parser = parse_level,
        conflicts_with_all = ["check_rates", "replay", "generate"]
    )]
    circuits: Vec<CircuitLevel>,
    /// Random seed instead of the scenario's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write summaries, plots and the proof of the bound to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only compare rates recomputed once per second with exact ones, over the first hour
    #[arg(long)]
    check_rates: bool,
    /// Replay a service's recording (service.record_dir) and check that the scheduler decides the same. With
    /// --strategy: show what another strategy would have chosen
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["scenario", "generate", "seed", "out", "check_rates"]
    )]
    replay: Option<PathBuf>,
    /// Print a random scenario instead: mesh, hierarchy, replicas, failures, streams or tape
    #[arg(long, value_name = "KIND")]
    generate: Option<String>,
}

/// Parses a level as in a scenario.
fn parse_level(text: &str) -> Result<CircuitLevel, String> {
    match text {
        "none" => Ok(CircuitLevel::None),
        "agent" => Ok(CircuitLevel::Agent),
        "service" => Ok(CircuitLevel::Service),
        _ => Err("use none, agent or service".to_owned()),
    }
}

pub fn run(context: &Context, args: SimulateArgs) -> Result<Exit, Failure> {
    if let Some(kind) = &args.generate {
        let text = generate::generate(kind, args.seed.unwrap_or(1))
            .map_err(|why| Failure::usage("unknown kind of scenario", why, "longhaul simulate --help"))?;
        context.output.write(&text)?;
        return Ok(Exit::Ok);
    }
    if let Some(path) = &args.replay {
        return super::replay::run(context, path, &args.strategy);
    }
    let path = args.scenario.clone().unwrap_or_default();
    let mut plan = read(&path, args.seed)?;
    let policies = parse_policies(&args.strategy)?;
    let levels = if args.circuits.is_empty() { vec![plan.circuits.level] } else { args.circuits.clone() };
    if args.check_rates {
        return check_rates(context, &plan, &policies);
    }
    let mut reports = Vec::new();
    for (level, policy) in levels.iter().flat_map(|level| policies.iter().map(move |policy| (level, policy)))
    {
        plan.circuits.level = *level;
        let mut policy = policy.clone();
        if levels.len() > 1 {
            policy.name = format!("{}:{}", policy.name, level.name());
        }
        let begin = Instant::now();
        let mut report = simulate(&plan, &policy, None);
        let wall = begin.elapsed().as_secs_f64();
        report.summary.wall_s = wall;
        report.summary.decisions_per_s = report.leases as f64 / wall.max(1e-9);
        if plan.model.rates == Rates::Second {
            report.summary.rates_error = Some(compare_rates(&plan, &policy).error());
        }
        if context.output.format == Format::Json {
            context.output.json_line(&report.summary)?;
        } else if wall > WALL_S_REPORTED_MIN {
            context.output.print_message(&format!("{}: {:.1} s", policy.name, wall));
        }
        reports.push(report);
    }
    match context.output.format {
        Format::Json => {}
        Format::Plain => context.output.write(&table(&reports).plain())?,
        Format::Human => context.output.write(&human(&plan, &reports, context))?,
    }
    if let Some(out) = &args.out {
        write_out(out, &reports)?;
    }
    let errors =
        reports.iter().filter_map(|report| Some((&report.summary.strategy, report.summary.rates_error?)));
    Ok(check_rates_error(context, errors))
}

/// Results too far from exact rates are not accepted.
fn check_rates_error<'a>(context: &Context, errors: impl Iterator<Item = (&'a String, f64)>) -> Exit {
    let mut exit = Exit::Ok;
    for (strategy, error) in errors.filter(|(_, error)| *error > RATE_ERROR_MAX) {
        exit = Exit::Mismatch;
        context.output.print_message(&format!(
            "{strategy}: rates once per second differ by {:.2} % from exact ones in the first hour, {:.0} % \
                is allowed: use rates = \"exact\"",
            error * 100.0,
            RATE_ERROR_MAX * 100.0
        ));
    }
    exit
}

fn read(path: &Path, seed: Option<u64>) -> Result<Plan, Failure> {
    let size = std::fs::metadata(path).map_err(|error| Failure::file("reading", path, &error))?.len();
    if size > TEXT_BYTES_MAX as u64 {
        let what = format!("it has {size} bytes; the limit is {TEXT_BYTES_MAX}");
        return Err(Failure::usage(
            format!("{} is not a scenario", path.display()),
            what,
            "see docs/reference/scenarios.md",
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file("reading", path, &error))?;
    let scenario = Scenario::parse(&text).map_err(|mistake| scenario_failure(path, mistake))?;
    Plan::new(&scenario, seed).map_err(|mistake| scenario_failure(path, mistake))
}

fn scenario_failure(path: &Path, mistake: ScenarioError) -> Failure {
    let title = format!("{} is not a scenario", path.display());
    Failure::usage(title, format!("{}: {}", mistake.place, mistake.what), mistake.next)
}

fn parse_policies(names: &[String]) -> Result<Vec<Policy>, Failure> {
    if names.is_empty() {
        return parse_policies(&["best".to_owned()]);
    }
    let mut all = Vec::new();
    for name in names {
        match name.as_str() {
            "all" => all.extend(Policy::all()),
            name => all.push(
                Policy::parse(name)
                    .map_err(|why| Failure::usage("unknown strategy", why, "longhaul simulate --help"))?,
            ),
        }
    }
    Ok(all)
}

/// Compares what the approximate and the exact calculation move in the first hour.
fn check_rates(context: &Context, plan: &Plan, policies: &[Policy]) -> Result<Exit, Failure> {
    let mut table = Table::new([
        left("strategy"),
        right("exact"),
        right("once per second").plain_title("once a second"),
        right("difference").plain_title("differs by"),
    ]);
    let mut errors = Vec::new();
    for policy in policies {
        let hour = compare_rates(plan, policy);
        let error = hour.error();
        table.row([
            Cell::text(&policy.name),
            Cell::bytes(hour.exact as u64),
            Cell::bytes(hour.second as u64),
            Cell::both(format!("{:.3} %", error * 100.0), format!("{error:.6}"))
                .toned_if(!hour.is_within_limit(), Tone::Bad),
        ]);
        errors.push((&policy.name, error));
    }
    context.output.write(&table.human(context.output.out.style, context.output.out.width()))?;
    Ok(check_rates_error(context, errors.into_iter()))
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
        right("moved again").plain_title("moved twice"),
        right("fairness").plain_title("fair"),
        right("failed"),
        right("left"),
        right("forecast error").plain_title("forecasts off"),
        right("leases/s"),
    ]);
    for report in reports {
        let row = &report.summary;
        let twice = row.bytes_moved.saturating_sub(row.bytes_wanted);
        table.row([
            Cell::text(&row.strategy),
            time_cell(row.makespan_s),
            share_cell(row.makespan_s.map(|makespan| row.makespan_bound_s / makespan)),
            time_cell(row.dataset_mean_s),
            time_cell(row.dataset_p95_s),
            time_cell(row.transfer_mean_s),
            time_cell(report.transfer_p95_s),
            Cell::bytes(u64::try_from(twice).unwrap_or(u64::MAX)),
            Cell::both(format!("{:.3}", row.jain), format!("{:.6}", row.jain)),
            Cell::count(row.failed).toned_if(row.failed > 0, Tone::Bad),
            Cell::count(report.unfinished).toned_if(report.unfinished > 0, Tone::Bad),
            share_cell(report.forecast_error),
            Cell::count(row.decisions_per_s as u64),
        ]);
    }
    table
}

fn time_cell(seconds: Option<f64>) -> Cell {
    Cell::maybe(seconds, |seconds| {
        Cell::both(duration(Duration::from_secs_f64(seconds)), format!("{seconds:.3}"))
    })
}

fn share_cell(share: Option<f64>) -> Cell {
    Cell::maybe(share, |share| Cell::both(format!("{:.1} %", share * 100.0), format!("{share:.4}")))
}

fn human(plan: &Plan, reports: &[Report], context: &Context) -> String {
    let style: Style = context.output.out.style;
    let mut text = String::new();
    let _ = writeln!(text, "{}: {}", style.paint(Tone::Strong, &plan.name), plan.about.replace('\n', " "));
    if let Some(first) = reports.first() {
        let line = format!(
            "{}, {}, {}; no scheduler can finish in less than {}; seed {}",
            words::plural(plan.layout.sites.len() as u64, "site"),
            words::plural(plan.work.requests.len() as u64, "request"),
            words::files(first.files + first.unfinished + first.summary.failed),
            duration(Duration::from_secs_f64(first.summary.makespan_bound_s)),
            plan.seed
        );
        let _ = writeln!(text, "{}\n", style.paint(Tone::Faint, &line));
    }
    text.push_str(&table(reports).human(style, context.output.out.width()));
    text.push('\n');
    let errors: Vec<f64> = reports.iter().filter_map(|report| report.summary.rates_error).collect();
    if let Some(most) = errors.into_iter().reduce(f64::max) {
        let line = format!(
            "rates once per second: at most {:.3} % off exact ones in bytes of the first hour",
            most * 100.0
        );
        let _ = writeln!(
            text,
            "{}",
            style.paint(if most > RATE_ERROR_MAX { Tone::Bad } else { Tone::Faint }, &line)
        );
    }
    for report in
        reports.iter().filter(|report| reports.len() <= REPORTS_REMARKED_MAX || report.unfinished > 0)
    {
        write_remarks(&mut text, report, style);
    }
    text
}

fn write_remarks(text: &mut String, report: &Report, style: Style) {
    let most: Vec<String> =
        report.busiest.iter().take(3).map(|(name, part)| format!("{name} {:.0} %", part * 100.0)).collect();
    let line = format!(
        "{}: moved {}; busiest {}; {} of {} attempts failed; took {:.1} s",
        report.summary.strategy,
        bytes(u64::try_from(report.summary.bytes_moved).unwrap_or(u64::MAX)),
        most.join(", "),
        count(report.attempts_failed),
        count(report.leases),
        report.summary.wall_s
    );
    let _ = writeln!(text, "{}", style.paint(Tone::Faint, &line));
    if report.shares.len() > 1 {
        let rows = report
            .shares
            .iter()
            .map(|(name, wanted, got)| format!("{name} {:.1} % of {:.1} %", got * 100.0, wanted * 100.0));
        let _ = writeln!(text, "  shares while all had work: {}", rows.collect::<Vec<_>>().join(", "));
    }
    write_circuits(text, report);
    write_learned(text, &report.knowledge);
    for wait in &report.wait_reasons {
        let _ = writeln!(text, "  left: {wait}");
    }
}

/// Time per priority, and the effect of circuits.
fn write_circuits(text: &mut String, report: &Report) {
    let Some(circuits) = &report.summary.circuits else { return };
    let hours = |seconds: Option<f64>| {
        seconds.map_or("–".to_owned(), |seconds| duration(Duration::from_secs_f64(seconds)))
    };
    let rows = report
        .summary
        .priorities
        .iter()
        .map(|row| format!("{} in {} (longest {})", row.priority, hours(row.mean_s), hours(row.worst_s)));
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        let _ = writeln!(text, "  datasets by priority (1 to 9): {}", rows.join(", "));
    }
    let _ = writeln!(
        text,
        "  circuits: {} requested, {} refused, {} used; {:.0} Gbit/s·h reserved, {} over them",
        count(circuits.asked),
        count(circuits.refused),
        count(circuits.used),
        circuits.gbit_hours,
        bytes(u64::try_from(circuits.bytes).unwrap_or(u64::MAX))
    );
    for line in circuits.decision_log.iter().take(CIRCUIT_DECISIONS_SHOWN_MAX) {
        let _ = writeln!(text, "    {line}");
    }
}

/// Quality of the scheduler's forecasts, and the changes it detected.
fn write_learned(text: &mut String, learned: &KnowledgeReport) {
    let scored: Vec<_> = learned.forecasts.iter().filter(|quality| quality.outcomes > 0).collect();
    if !scored.is_empty() {
        let within: Vec<_> =
            scored.iter().map(|quality| format!("{:.0} %", quality.within * 100.0)).collect();
        // Below one is better than a prediction from the link's past rates alone.
        let ratios: Vec<_> = scored
            .iter()
            .map(|quality| quality.score_ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}")))
            .collect();
        let _ = writeln!(
            text,
            "  forecasts, by quartile of links' history, shortest first: {} within 90 % intervals; score {} \
                relative to past rates",
            within.join(", "),
            ratios.join(", ")
        );
    }
    if let Some(first) = learned.changes.first() {
        let all = learned.changes.len() as u64;
        let _ = writeln!(
            text,
            "  link changes detected: {}, {} of them false alarms ({:.2} per link and month); first {}",
            count(all),
            count(learned.false_alarms),
            learned.false_alarms as f64 / learned.link_months.max(1e-9),
            first.change.describe(&first.source, &first.target)
        );
    }
}

/// Nothing in these files depends on this machine's speed: the same seed writes the same bytes.
fn write_out(out: &Path, reports: &[Report]) -> Result<(), Failure> {
    std::fs::create_dir_all(out).map_err(|error| Failure::file("making", out, &error))?;
    let write = |name: &str, text: String| {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| Failure::file("writing", &path, &error))
    };
    let mut summaries = String::new();
    for report in reports {
        let mut summary = report.summary.clone();
        (summary.decisions_per_s, summary.wall_s) = (0.0, 0.0);
        let line = serde_json::to_string(&summary).map_err(|error| {
            Failure::new(longhaul_model::FaultCode::Internal, format!("cannot write a summary: {error}"))
        })?;
        summaries.push_str(&line);
        summaries.push('\n');
        let name = report.summary.strategy.replace(['/', ':'], "-");
        write(&format!("bound-{name}.tsv"), report.certificate.text())?;
    }
    write("summaries.jsonl", summaries)?;
    write("goodput.svg", plots::goodput(reports))?;
    write("datasets.svg", plots::datasets(reports))
}
