//! `longhaul site commission`: test transfers between a site and others, link by link, first one file and
//! then several in parallel; each link gets a grade, which the service keeps.
//!
//! The files are virtual, so disks do not matter and nothing is left behind. Not here: the grades (`grade`),
//! creating and removing test data (`super::trial`).

mod grade;
mod report;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use longhaul_api::commissioning::{CommissionStep, Commissioning, Grade, LinkTest};
use longhaul_api::native::{AttemptView, SiteState, SiteView, SubscriptionView};
use longhaul_api::network::NetworkLinkDetail;
use longhaul_api::routes;
use longhaul_model::units::{bytes, duration, parse_bytes, printable, rate};
use longhaul_model::{DatasetName, FaultCode, SiteName, StorageName};
use parking_lot::{Mutex, MutexGuard};

use super::trial::{self, Trial};
use super::{Context, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;

pub use report::links_table;

const PROBE_BYTES: u64 = 1_000_000;
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A step may take this many times its intended duration before it is cut short, since rates are not known in
/// advance.
const STEP_OVERRUN_FACTOR_MAX: u32 = 3;
/// Faults of a link that the service stores.
const FAULTS_PER_LINK_MAX: usize = 8;

#[derive(Debug, Args)]
pub struct CommissionArgs {
    /// Name of the site
    site: SiteName,
    /// Test only links with this site; may be repeated [default: all other sites with a virtual storage]
    #[arg(long = "with", value_name = "SITE")]
    with: Vec<SiteName>,
    /// Test only links into or out of the site
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    direction: Direction,
    /// Maximum number of files in parallel: 1, then 2, 4, … up to this
    #[arg(
        long,
        value_name = "FILES",
        default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    files: u32,
    /// Maximum bytes of a step
    #[arg(long, value_name = "BYTES", default_value = "1GB", value_parser = parse_positive_bytes)]
    step_bytes: u64,
    /// Intended maximum duration of a step, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3_600)
    )]
    step_time: u64,
    /// Seconds to wait for the first small file
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..=3_600)
    )]
    patience: u64,
    /// Minimum rate; a link below it is graded slow
    #[arg(long, value_name = "RATE", default_value = "20MB/s", value_parser = parse_positive_rate)]
    at_least: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    In,
    Out,
    Both,
}

fn parse_positive_bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .and_then(|size| if size > 0 { Ok(size) } else { Err("must be at least one byte".into()) })
}

fn parse_positive_rate(text: &str) -> Result<u64, String> {
    parse_positive_bytes(text.trim_end_matches("/s"))
}

/// A link to test.
#[derive(Clone)]
struct Link {
    source: SiteName,
    target: SiteName,
    source_storage: StorageName,
    target_storage: StorageName,
    addresses: Vec<String>,
}

/// What must be cleaned up if we are interrupted.
#[derive(Default)]
struct PendingCleanup {
    trial: Option<Trial>,
    /// Links reported to the service as being tested, without a result yet.
    begun: Vec<(SiteName, SiteName)>,
}

struct CommissionRun<'a> {
    context: &'a Context,
    remote: &'a Remote,
    args: &'a CommissionArgs,
    pending: Mutex<PendingCleanup>,
    /// Part of the names of this run's datasets.
    stamp: String,
}

pub async fn run(context: &Context, remote: &Remote, args: &CommissionArgs) -> Result<Exit, Failure> {
    let sites: Vec<SiteView> = remote.list_all(&routes::SITE_LIST, &[], &[]).await?;
    let links = select_links(args, &sites)?;
    let stamp = clock::now().to_string().chars().filter(char::is_ascii_digit).collect();
    let run = CommissionRun { context, remote, args, pending: Mutex::default(), stamp };
    run.print_plan(&links);
    let done = tokio::select! {
        done = run.test_all(&links) => done,
        _ = tokio::signal::ctrl_c() => {
            context.output.print_message("\nInterrupted: cancelling the test transfer and cleaning up …");
            run.clean_up().await?;
            context.output.print_message("Cleaned up. Grades given before are kept; the other links are \
                unchanged.");
            return Ok(Exit::Interrupted);
        }
    };
    if done.is_err()
        && let Err(failure) = run.clean_up().await
    {
        // The first failure is the one to report.
        context
            .output
            .print_message(&format!("cleaning up failed too: {}", printable(&failure.problem.detail)));
    }
    let view = done?;
    let tested = |source: &SiteName, target: &SiteName| {
        links.iter().any(|link| link.source == *source && link.target == *target)
    };
    let mut shown = view.links;
    shown.retain(|link| tested(&link.source, &link.target));
    let all_good =
        shown.iter().all(|link| link.test.as_ref().is_some_and(|test| test.grade == Grade::Commissioned));
    context.output.view(
        &shown,
        |shown, style, width| report::report_text(shown, style, width),
        |shown| report::links_table(shown),
    )?;
    Ok(if all_good { Exit::Ok } else { Exit::Partly })
}

/// Selects the links to test, or says why there are none.
fn select_links(args: &CommissionArgs, sites: &[SiteView]) -> Result<Vec<Link>, Failure> {
    let find = |name: &SiteName| {
        sites.iter().find(|site| site.name == *name).ok_or_else(|| {
            Failure::new(FaultCode::NotFound, format!("there is no site {name}"))
                .with_remedy("longhaul site list")
        })
    };
    let own = find(&args.site)?;
    check_testable(own)?;
    let mut others = Vec::new();
    if args.with.is_empty() {
        others.extend(sites.iter().filter(|site| site.name != own.name && check_testable(site).is_ok()));
    }
    for name in &args.with {
        let other = find(name)?;
        if other.name == own.name {
            let why = format!("{name} has no link to itself");
            return Err(Failure::usage("nothing to test", why, "name another site"));
        }
        check_testable(other)?;
        others.push(other);
    }
    if others.is_empty() {
        let why = "no other site is open and connected and has a virtual storage";
        return Err(Failure::new(FaultCode::NotFound, why)
            .with_title("nothing to test")
            .with_remedy("use --with SITE to see what a site lacks"));
    }
    let mut links = Vec::new();
    for other in others {
        if args.direction != Direction::Out {
            links.extend(link_between(other, own));
        }
        if args.direction != Direction::In {
            links.extend(link_between(own, other));
        }
    }
    Ok(links)
}

fn link_between(source: &SiteView, target: &SiteView) -> Option<Link> {
    Some(Link {
        source: source.name.clone(),
        target: target.name.clone(),
        source_storage: trial::virtual_storage(source)?.name.clone(),
        target_storage: trial::virtual_storage(target)?.name.clone(),
        addresses: source.agents.iter().flat_map(|agent| agent.data_addresses.clone()).take(8).collect(),
    })
}

/// Checks that a site can be tested; otherwise says what to do.
fn check_testable(site: &SiteView) -> Result<(), Failure> {
    let name = &site.name;
    let conflict =
        |detail: String| Failure::new(FaultCode::Conflict, detail).with_title("the site cannot be tested");
    if !trial::is_connected(site) {
        return Err(conflict(format!("no agent of {name} is connected"))
            .with_remedy(format!("longhaul site show {name}")));
    }
    if site.state != SiteState::Open {
        return Err(
            conflict(format!("{name} is not open")).with_remedy(format!("longhaul site resume {name}"))
        );
    }
    if trial::virtual_storage(site).is_none() {
        let detail = format!("{name} has no virtual storage for test data");
        return Err(conflict(detail).with_remedy(trial::virtual_storage_remedy(name)));
    }
    Ok(())
}

impl CommissionRun<'_> {
    fn print_plan(&self, links: &[Link]) {
        let steps = concurrency_steps(self.args.files).len() as u32;
        let each = Duration::from_secs(self.args.step_time) * steps;
        self.context.output.print_message(&format!(
            "Testing {} of {}: a probe, then {steps} steps of up to {} and about {} each; up to {} per link.",
            words::plural(links.len() as u64, "link"),
            self.args.site,
            bytes(self.args.step_bytes),
            duration(Duration::from_secs(self.args.step_time)),
            duration(Duration::from_secs(self.args.patience) + each * STEP_OVERRUN_FACTOR_MAX),
        ));
    }

    async fn test_all(&self, links: &[Link]) -> Result<SiteView, Failure> {
        for (place, link) in links.iter().enumerate() {
            self.post_result(Commissioning { begin: vec![link.names()], ..Commissioning::default() }).await?;
            self.lock_pending().begun.push(link.names());
            let test = self.test(link, place).await?;
            let grade = report::grade_word(test.grade);
            self.context
                .output
                .print_message(&format!("  {} → {}: {grade}; {}", link.source, link.target, test.why));
            self.post_result(Commissioning { tests: vec![test], ..Commissioning::default() }).await?;
            self.lock_pending().begun.clear();
        }
        self.remote.get(&routes::SITE_SHOW, &[self.args.site.as_str()], &[]).await
    }

    async fn post_result(&self, said: Commissioning) -> Result<SiteView, Failure> {
        self.remote.post(&routes::SITE_COMMISSION, &[self.args.site.as_str()], &said).await
    }

    async fn clean_up(&self) -> Result<(), Failure> {
        let PendingCleanup { trial, begun } = std::mem::take(&mut *self.lock_pending());
        if let Some(trial) = trial {
            trial.clean_up(self.remote).await?;
        }
        if !begun.is_empty() {
            self.post_result(Commissioning { give_up: begun, ..Commissioning::default() }).await?;
        }
        Ok(())
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingCleanup> {
        self.pending.lock()
    }

    async fn test(&self, link: &Link, place: usize) -> Result<LinkTest, Failure> {
        let mut faults = BTreeSet::new();
        let patience = Duration::from_secs(self.args.patience);
        let name = |step: &str| format!("commissioning/{}/{}/{place}-{step}", self.args.site, self.stamp);
        let probe = self.step(link, &name("probe"), &[PROBE_BYTES], patience, &mut faults).await?;
        let mut steps = Vec::new();
        let mut last = probe.rate;
        let longest = Duration::from_secs(self.args.step_time) * STEP_OVERRUN_FACTOR_MAX;
        for files in concurrency_steps(self.args.files) {
            if probe.files == 0 {
                break;
            }
            let total = grade::step_bytes(last, self.args.step_time, self.args.step_bytes);
            let sizes = vec![(total / u64::from(files)).max(1); files as usize];
            let step = self.step(link, &name(&files.to_string()), &sizes, longest, &mut faults).await?;
            self.context.output.print_message(&format!(
                "  {} → {}: {} at once, {} in {:.1} s: {}{}",
                link.source,
                link.target,
                words::files(files.into()),
                bytes(step.bytes),
                step.seconds,
                rate(step.rate),
                if step.cut_short { " (cut short)" } else { "" },
            ));
            let hopeless = step.bytes == 0;
            // The probe says little about the rate; a step is a lower bound for the next one.
            last = if step.rate > 0.0 { step.rate } else { last };
            steps.push(step);
            if hopeless {
                break;
            }
        }
        let (grade, why) = grade::grade(&probe, &steps, self.args.at_least);
        let seen = self.link_detail(link).await;
        Ok(LinkTest {
            source: link.source.clone(),
            target: link.target.clone(),
            source_storage: link.source_storage.clone(),
            target_storage: link.target_storage.clone(),
            grade,
            why,
            addresses: link.addresses.clone(),
            rtt_us: seen.as_ref().and_then(|seen| seen.link.rtt_us),
            rate_best: grade::best_rate(&steps),
            steps,
            limited_by: seen.map(|seen| seen.link.held_up_by).unwrap_or_default(),
            faults: faults.into_iter().take(FAULTS_PER_LINK_MAX).collect(),
        })
    }

    /// What the service now knows about the link; none if nothing has arrived over it.
    async fn link_detail(&self, link: &Link) -> Option<NetworkLinkDetail> {
        let ends = [link.source_storage.as_str(), link.target_storage.as_str()];
        self.remote.get(&routes::NETWORK_LINK, &ends, &[]).await.ok()
    }

    /// Transfers files of these sizes in parallel, and cleans up.
    async fn step(
        &self,
        link: &Link,
        dataset: &str,
        sizes: &[u64],
        longest: Duration,
        faults: &mut BTreeSet<String>,
    ) -> Result<CommissionStep, Failure> {
        let dataset = DatasetName::parse(dataset)
            .map_err(|error| Failure::new(FaultCode::Internal, format!("the name of a test: {error}")))?;
        let ends = (&link.source_storage, &link.target_storage);
        // Recorded before it is created, so that cleaning up finds it whenever we are interrupted.
        let planned = Trial { dataset: dataset.clone(), source: ends.0.clone(), target: ends.1.clone() };
        self.lock_pending().trial = Some(planned);
        let trial = Trial::create(self.remote, dataset, ends, sizes).await?;
        let began = Instant::now();
        let mut view = trial.subscribe(self.remote).await?;
        while !is_finished(&view) && began.elapsed() < longest {
            tokio::time::sleep(POLL_INTERVAL).await;
            view = self.remote.get_with_retry(&routes::SUBSCRIPTION_SHOW, &[&view.id.to_string()]).await?;
        }
        let waited = began.elapsed();
        let attempts = trial.attempts(self.remote, sizes.len()).await?;
        for fault in attempts.iter().filter_map(|attempt| attempt.fault.as_ref()) {
            faults.insert(longhaul_model::units::printable(&fault.to_string()).chars().take(300).collect());
        }
        let step = measure_step(sizes, &attempts, !view.complete, waited);
        trial.clean_up(self.remote).await?;
        self.lock_pending().trial = None;
        Ok(step)
    }
}

impl Link {
    fn names(&self) -> (SiteName, SiteName) {
        (self.source.clone(), self.target.clone())
    }
}

/// Whether everything has arrived or failed for good.
fn is_finished(view: &SubscriptionView) -> bool {
    view.complete || view.files_present + view.failed_files >= view.files_wanted
}

/// 1, 2, 4, … and `most`.
fn concurrency_steps(most: u32) -> Vec<u32> {
    let mut all: Vec<u32> =
        std::iter::successors(Some(1u32), |last| Some(last * 2)).take_while(|&n| n < most).collect();
    all.push(most);
    all
}

/// Measures from the first start to the last commit as the target's agent reports them, without waiting times
/// in the service.
fn measure_step(
    sizes: &[u64],
    attempts: &[AttemptView],
    cut_short: bool,
    waited: Duration,
) -> CommissionStep {
    let done = || attempts.iter().filter(|attempt| attempt.finished && attempt.fault.is_none());
    let moved: u64 = done().map(|attempt| attempt.bytes_moved).sum();
    let first = done().filter_map(|attempt| attempt.times.started).min();
    let last = done().filter_map(|attempt| attempt.times.committed).max();
    let took = first.zip(last).map(|(first, last)| last.since(first).as_secs_f64());
    CommissionStep {
        files_at_once: sizes.len() as u32,
        files: done().count() as u64,
        bytes: moved,
        seconds: took.unwrap_or(waited.as_secs_f64()),
        // Times below a millisecond are not exact.
        rate: took.map_or(0.0, |took| moved as f64 / took.max(0.001)),
        attempts: attempts.iter().filter(|attempt| attempt.finished).count() as u64,
        attempts_failed: attempts.iter().filter(|attempt| attempt.finished && attempt.fault.is_some()).count()
            as u64,
        cut_short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrency_doubles_up_to_the_most() {
        assert_eq!(concurrency_steps(1), [1]);
        assert_eq!(concurrency_steps(8), [1, 2, 4, 8]);
        assert_eq!(concurrency_steps(6), [1, 2, 4, 6]);
        assert_eq!(concurrency_steps(64).len(), 7);
    }
}
