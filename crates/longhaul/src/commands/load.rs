//! `longhaul load`: load test with subscriptions of virtual files at a given rate. With null movers
//! (`longhaul agent run --null-mover`) it loads the service alone.

use std::time::{Duration, Instant};

use clap::Args;
use longhaul_api::native::{SiteView, SubscriptionView};
use longhaul_api::routes;
use longhaul_model::units::{bytes, duration, parse_bytes, printable};
use longhaul_model::{DatasetName, FaultCode, StorageName};
use longhaul_simulator::random::Random;
use serde::Serialize;

use super::trial::{self, Trial};
use super::{Context, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, facts, left, right};

/// Time between two polls of incomplete subscriptions.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const SUBSCRIPTIONS_MAX: u64 = 100_000;
const SIZES_MAX: usize = 16;

#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Subscriptions per second
    #[arg(long, value_name = "NUMBER", default_value_t = 2.0, value_parser = parse_rate)]
    rate: f64,
    /// Total number of subscriptions
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=SUBSCRIPTIONS_MAX)
    )]
    count: u64,
    /// Files per subscription
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    files: u64,
    /// File sizes with weights: SIZE or SIZE:WEIGHT,...
    #[arg(long, value_name = "MIX", default_value = "1MB:70,100MB:25,2GB:5")]
    sizes: SizeMix,
    /// Seed: the same seed gives the same requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds to wait for completion after the last request
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
    /// Keep the test datasets
    #[arg(long)]
    keep: bool,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 10_000.0 => Ok(rate),
        _ => Err(format!("{text:?} is not a number above 0 and up to 10000")),
    }
}

/// Sizes with weights, at least one of which is not zero.
#[derive(Clone, Debug, PartialEq)]
struct SizeMix(Vec<(u64, f64)>);

impl std::str::FromStr for SizeMix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let part = |part: &str| {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            let weight: f64 = weight.trim().parse().map_err(|_| format!("{weight:?} is not a weight"))?;
            if !(0.0..=1e9).contains(&weight) {
                return Err(format!("a weight must be 0 to 1000000000, not {weight}"));
            }
            Ok((parse_bytes(size)?, weight))
        };
        let parts: Vec<(u64, f64)> = text.split(',').map(part).collect::<Result<_, String>>()?;
        if parts.len() > SIZES_MAX {
            return Err(format!("{} sizes; the limit is {SIZES_MAX}", parts.len()));
        }
        if parts.iter().map(|(_, weight)| weight).sum::<f64>() <= 0.0 {
            return Err("all weights are 0".into());
        }
        Ok(SizeMix(parts))
    }
}

impl SizeMix {
    fn draw(&self, random: &mut Random) -> u64 {
        let all: f64 = self.0.iter().map(|(_, weight)| weight).sum();
        let mut place = random.uniform() * all;
        for &(size, weight) in &self.0 {
            if place < weight {
                return size;
            }
            place -= weight;
        }
        // Rounding may leave a remainder beyond the last weight.
        self.0.last().map_or(0, |&(size, _)| size)
    }
}

/// One request, as determined by the seed.
#[derive(Debug, PartialEq)]
struct Request {
    at: Duration,
    source: StorageName,
    target: StorageName,
    sizes: Vec<u64>,
}

/// All requests in order. Intervals are exponential (a Poisson process), as with independent users.
fn requests(args: &LoadArgs, storages: &[StorageName]) -> Vec<Request> {
    let mut random = Random::stream(args.seed, "load");
    let mut at = 0.0;
    let mut make = |_| {
        at += -(1.0 - random.uniform()).ln() / args.rate;
        let source = random.below(storages.len());
        let target = (source + 1 + random.below(storages.len() - 1)) % storages.len();
        Request {
            at: Duration::from_secs_f64(at),
            source: storages[source].clone(),
            target: storages[target].clone(),
            sizes: (0..args.files).map(|_| args.sizes.draw(&mut random)).collect(),
        }
    };
    (0..args.count).map(&mut make).collect()
}

/// Results of the load test.
#[derive(Debug, Default, Serialize)]
struct Report {
    seed: u64,
    sites: u64,
    submitted: u64,
    refused: u64,
    complete: u64,
    incomplete: u64,
    files_wanted: u64,
    files_done: u64,
    files_failed: u64,
    retries: u64,
    bytes_done: u64,
    seconds: f64,
    /// Seconds until the service accepted a request with its files; `complete_s`: from then until all of it
    /// had arrived.
    submit_s: Quantiles,
    complete_s: Quantiles,
    interrupted: bool,
    /// The first refusals.
    refusals: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Quantiles {
    p50: f64,
    p95: f64,
    max: f64,
}

impl Quantiles {
    fn from_values(mut values: Vec<f64>) -> Quantiles {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let rank = (values.len() as f64 * part).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Quantiles { p50: at(0.5), p95: at(0.95), max: values.last().copied().unwrap_or_default() }
    }
}

struct SubmittedTrial {
    trial: Trial,
    view: SubscriptionView,
}

pub async fn run(context: &Context, remote: &Remote, args: &LoadArgs) -> Result<Exit, Failure> {
    let storages = storages(remote).await?;
    let mut report = Report { seed: args.seed, sites: storages.len() as u64, ..Report::default() };
    context.output.print_message(&format!(
        "{} of {} each between {}, {} per second",
        words::plural(args.count, "subscription"),
        words::files(args.files),
        words::plural(storages.len() as u64, "virtual storage"),
        args.rate
    ));
    let mut sent = Vec::new();
    let mut submits = Vec::new();
    let began = Instant::now();
    let work = async {
        submit(context, remote, requests(args, &storages), &mut sent, &mut submits, &mut report).await;
        watch(context, remote, &mut sent, Duration::from_secs(args.wait)).await
    };
    tokio::select! {
        done = work => done?,
        _ = tokio::signal::ctrl_c() => {
            context.output.print_message("\nInterrupted. Results so far:");
            report.interrupted = true;
        }
    }
    report.seconds = began.elapsed().as_secs_f64();
    report.submit_s = Quantiles::from_values(submits);
    count_results(&mut report, &sent);
    context.output.view(&report, |report, style, width| facts(style, width, &report_facts(report)), table)?;
    if !args.keep {
        clean(context, remote, &sent).await?;
    }
    Ok(match (report.interrupted, report.incomplete + report.refused) {
        (true, _) => Exit::Interrupted,
        (false, 0) => Exit::Ok,
        (false, _) => Exit::Partly,
    })
}

/// Virtual storages of connected sites, by name.
async fn storages(remote: &Remote) -> Result<Vec<StorageName>, Failure> {
    let sites: Vec<SiteView> = remote.list_all(&routes::SITE_LIST, &[], &[]).await?;
    let ready = sites.iter().filter(|site| trial::is_connected(site));
    let mut names: Vec<StorageName> =
        ready.filter_map(trial::virtual_storage).map(|storage| storage.name.clone()).collect();
    names.sort();
    if names.len() < 2 {
        let detail = format!("{} connected sites have a virtual storage; two are needed", names.len());
        return Err(Failure::new(FaultCode::NotFound, detail)
            .with_title("there is nothing to load")
            .with_remedy(
                "longhaul agent run --virtual NAME; add --null-mover FILE to load the service alone",
            ));
    }
    Ok(names)
}

/// Sends each request at its time, or as soon as the previous one is accepted.
async fn submit(
    context: &Context,
    remote: &Remote,
    requests: Vec<Request>,
    sent: &mut Vec<SubmittedTrial>,
    submits: &mut Vec<f64>,
    report: &mut Report,
) {
    let began = Instant::now();
    let stamp: String = clock::now().to_string().chars().filter(char::is_ascii_digit).collect();
    for (number, request) in requests.iter().enumerate() {
        tokio::time::sleep(request.at.saturating_sub(began.elapsed())).await;
        let asked = Instant::now();
        match submit_one(remote, request, &format!("load/{stamp}/{number}")).await {
            Ok(one) => {
                submits.push(asked.elapsed().as_secs_f64());
                sent.push(one);
            }
            Err(failure) => {
                report.refused += 1;
                if report.refusals.len() < 8 {
                    report.refusals.push(printable(&failure.problem.detail));
                }
                if report.refused == 1 {
                    context.output.print_failure(&failure);
                }
            }
        }
    }
    context.output.print_message(&format!("all submitted after {}", duration(began.elapsed())));
}

async fn submit_one(remote: &Remote, request: &Request, dataset: &str) -> Result<SubmittedTrial, Failure> {
    let dataset = DatasetName::parse(dataset)
        .map_err(|error| Failure::new(FaultCode::Internal, format!("the name of a test: {error}")))?;
    let trial = Trial::create(remote, dataset, (&request.source, &request.target), &request.sizes).await?;
    let view = trial.subscribe(remote).await?;
    Ok(SubmittedTrial { trial, view })
}

/// Polls until everything is complete or has failed, or the time is over.
async fn watch(
    context: &Context,
    remote: &Remote,
    sent: &mut [SubmittedTrial],
    most: Duration,
) -> Result<(), Failure> {
    let began = Instant::now();
    let mut told = Instant::now();
    loop {
        let mut left = 0;
        for one in sent.iter_mut().filter(|one| !is_finished(&one.view)) {
            one.view = remote.get_with_retry(&routes::SUBSCRIPTION_SHOW, &[&one.view.id.to_string()]).await?;
            left += u64::from(!is_finished(&one.view));
        }
        if left == 0 {
            return Ok(());
        }
        if began.elapsed() > most {
            context.output.print_message(&format!(
                "{} not complete after {}",
                words::plural(left, "subscription"),
                duration(most)
            ));
            return Ok(());
        }
        if told.elapsed() > Duration::from_secs(5) {
            context
                .output
                .print_message(&format!("  {} not complete yet", words::plural(left, "subscription")));
            told = Instant::now();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn is_finished(view: &SubscriptionView) -> bool {
    view.complete || view.files_present + view.failed_files >= view.files_wanted
}

fn count_results(report: &mut Report, sent: &[SubmittedTrial]) {
    report.submitted = sent.len() as u64;
    for SubmittedTrial { view, .. } in sent {
        report.complete += u64::from(view.complete);
        report.incomplete += u64::from(!view.complete);
        report.files_wanted += view.files_wanted;
        report.files_done += view.files_present;
        report.files_failed += view.failed_files;
        report.retries += view.retries;
        report.bytes_done += view.bytes_present;
    }
    let times = sent.iter().filter_map(|one| Some(one.view.completed?.since(one.view.created).as_secs_f64()));
    report.complete_s = Quantiles::from_values(times.collect());
}

async fn clean(context: &Context, remote: &Remote, sent: &[SubmittedTrial]) -> Result<(), Failure> {
    context.output.print_message("Cleaning up …");
    let stopped = async {
        for one in sent {
            one.trial.clean_up(remote).await?;
        }
        Ok(())
    };
    let left = || "some test datasets remain: longhaul dataset list".to_owned();
    super::unless_interrupted(context, left, stopped).await.map(|_| ())
}

fn report_facts(report: &Report) -> Vec<(&'static str, String)> {
    let quantiles =
        |of: Quantiles| format!("{:.2} s (median), {:.2} s (95 %), {:.2} s (max)", of.p50, of.p95, of.max);
    let mut lines = vec![
        (
            "submitted",
            format!(
                "{}, {} refused, in {:.1} s",
                words::plural(report.submitted, "subscription"),
                report.refused,
                report.seconds
            ),
        ),
        ("complete", format!("{}, {} not", report.complete, report.incomplete)),
        (
            "files",
            format!(
                "{} of {} arrived ({}), {} failed for good, {}",
                report.files_done,
                report.files_wanted,
                bytes(report.bytes_done),
                report.files_failed,
                words::retries(report.retries)
            ),
        ),
        ("to submit", quantiles(report.submit_s)),
        ("to complete", quantiles(report.complete_s)),
    ];
    lines.extend(report.refusals.iter().map(|why| ("refused", why.clone())));
    lines
}

fn table(report: &Report) -> Table {
    let mut table = Table::new([left("what"), right("value")]);
    for (what, value) in [
        ("submitted", report.submitted),
        ("refused", report.refused),
        ("complete", report.complete),
        ("incomplete", report.incomplete),
        ("files done", report.files_done),
        ("files failed", report.files_failed),
        ("retries", report.retries),
        ("bytes done", report.bytes_done),
    ] {
        table.row([Cell::text(what), Cell::count(value)]);
    }
    for (what, value) in [
        ("submit p50 s", report.submit_s.p50),
        ("submit p95 s", report.submit_s.p95),
        ("complete p50 s", report.complete_s.p50),
        ("complete p95 s", report.complete_s.p95),
    ] {
        table.row([Cell::text(what), Cell::text(format!("{value:.3}"))]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LoadArgs,
    }

    fn args(line: &str) -> Result<LoadArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("load").chain(line.split_whitespace())).map(|line| line.args)
    }

    fn names() -> Vec<StorageName> {
        ["a", "b", "c"].map(|name| name.parse().unwrap()).to_vec()
    }

    #[test]
    fn requests_follow_from_the_seed() {
        let of = |line| requests(&args(line).unwrap(), &names());
        let first = of("--count 2000 --rate 10 --sizes 1MB:3,2MB:1 --files 2");
        assert_eq!(first, of("--count 2000 --rate 10 --sizes 1MB:3,2MB:1 --files 2"));
        assert_ne!(first, of("--count 2000 --rate 10 --sizes 1MB:3,2MB:1 --files 2 --seed 2"));
        assert!(first.iter().all(|request| request.source != request.target && request.sizes.len() == 2));
        // Four standard deviations: 200 s ± 18, and a quarter of 4,000 files ± 110.
        let last = first.last().unwrap().at.as_secs_f64();
        assert!((182.0..218.0).contains(&last), "{last}");
        let large =
            first.iter().flat_map(|request| &request.sizes).filter(|&&size| size == 2_000_000).count();
        assert!((890..1_110).contains(&large), "{large}");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "--rate 0",
            "--rate nan",
            "--count 0",
            "--sizes x",
            "--sizes 1MB:0",
            "--sizes 1MB:-1",
            "--sizes 1MB:x",
        ] {
            assert!(args(bad).is_err(), "{bad}");
        }
        assert_eq!(args("--sizes 5").unwrap().sizes, SizeMix(vec![(5, 1.0)]));
    }

    #[test]
    fn quantiles_are_of_the_ranks() {
        let of = Quantiles::from_values((1..=100).rev().map(f64::from).collect());
        assert_eq!(of, Quantiles { p50: 50.0, p95: 95.0, max: 100.0 });
        assert_eq!(Quantiles::from_values(vec![]), Quantiles::default());
    }
}
