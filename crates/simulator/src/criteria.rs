//! Acceptance criteria for `best`, and whether a world meets them: against FTS3's nine strategies, with our
//! order and concurrency and with its own, and against the lower bound of the makespan.
//!
//! Start with [`compare`]; [`Comparison::criteria`] says what is met and what is missed.

use std::collections::BTreeMap;

use crate::plan::Plan;
use crate::report::Report;
use crate::{Policy, simulate};

/// Largest mean time until a dataset is complete, as a multiple of the best of all others.
pub const RATIO_MAX: f64 = 1.01;
/// The same where replicas or routes leave a choice.
pub const RATIO_WITH_CHOICE_MAX: f64 = 0.9;
/// Smallest share of the makespan that the bound proves, where all work is known at the start.
pub const BOUND_SHARE_MIN: f64 = 0.95;
/// There is headroom where the best of the nine stays below this share of the bound.
pub const HEADROOM_BOUND_SHARE_MAX: f64 = 0.85;
/// Shipped scenarios that must leave headroom.
pub const HEADROOM_SCENARIOS_MIN: usize = 6;

/// The best way of a kind, by its mean dataset.
#[derive(Clone, Debug)]
pub struct BestPolicy {
    pub strategy: String,
    pub mean_s: f64,
    pub makespan_s: Option<f64>,
    pub bound_s: f64,
}

impl BestPolicy {
    /// None where something never came complete: that is worse than anything that does.
    fn of_complete(report: &Report) -> Option<Self> {
        let summary = &report.summary;
        let mean_s = summary.dataset_mean_s.filter(|_| report.unfinished == 0)?;
        let strategy = summary.strategy.split('/').next().unwrap_or_default().to_owned();
        Some(BestPolicy {
            strategy,
            mean_s,
            makespan_s: summary.makespan_s,
            bound_s: summary.makespan_bound_s,
        })
    }

    /// What of the makespan no schedule could have saved.
    pub fn bound_share(&self) -> Option<f64> {
        self.makespan_s.map(|makespan| self.bound_s / makespan)
    }
}

/// A world under all strategies.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub ours: Option<BestPolicy>,
    pub nine: Option<BestPolicy>,
    pub theirs: Option<BestPolicy>,
    /// Full report of `best`.
    pub report: Option<Report>,
    pub has_choice: bool,
    pub known_at_start: bool,
}

/// Something that is asked, and what was measured; none where something never came complete.
#[derive(Clone, Copy, Debug)]
pub struct Criterion {
    pub what: &'static str,
    pub threshold: f64,
    /// Else at least.
    pub at_most: bool,
    pub measured: Option<f64>,
}

impl Criterion {
    pub fn is_met(&self) -> bool {
        self.measured.is_some_and(|measured| {
            if self.at_most { measured <= self.threshold } else { measured >= self.threshold }
        })
    }

    /// With three digits: 1.013 is above 1.01.
    pub fn summary(&self) -> String {
        let met = if self.is_met() { "met" } else { "MISSED" };
        let sign = if self.at_most { "≤" } else { "≥" };
        let measured = self.measured.map_or("nothing".to_owned(), |measured| format!("{measured:.3}"));
        format!("{} {sign} {}: {measured}, {met}", self.what, self.threshold)
    }
}

/// Runs a world under `best`, the nine, and the nine by FTS3's rules.
pub fn compare(plan: &Plan) -> Comparison {
    let mut compared = Comparison {
        ours: None,
        nine: None,
        theirs: None,
        report: None,
        has_choice: has_choice(plan),
        known_at_start: is_known_at_start(plan),
    };
    for policy in Policy::all() {
        let report = simulate(plan, &policy, None);
        let one = BestPolicy::of_complete(&report);
        if policy.name == "best" {
            (compared.ours, compared.report) = (one, Some(report));
            continue;
        }
        let best = if policy.name.contains('/') { &mut compared.theirs } else { &mut compared.nine };
        if let Some(one) = one
            && best.as_ref().is_none_or(|known| one.mean_s < known.mean_s)
        {
            *best = Some(one);
        }
    }
    compared
}

impl Comparison {
    /// `best` to the best of all others.
    pub fn ratio(&self) -> Option<f64> {
        let others = [&self.nine, &self.theirs].into_iter().flatten().map(|of| of.mean_s);
        Some(self.ours.as_ref()?.mean_s / others.reduce(f64::min)?)
    }

    pub fn bound_share(&self) -> Option<f64> {
        self.ours.as_ref()?.bound_share()
    }

    /// Whether the nine leave something to win.
    pub fn has_headroom(&self) -> bool {
        self.nine
            .as_ref()
            .and_then(BestPolicy::bound_share)
            .is_some_and(|part| part < HEADROOM_BOUND_SHARE_MAX)
    }

    pub fn criteria(&self) -> Vec<Criterion> {
        let ratio = if self.has_choice { RATIO_WITH_CHOICE_MAX } else { RATIO_MAX };
        let mut bars =
            vec![Criterion { what: "ratio", threshold: ratio, at_most: true, measured: self.ratio() }];
        if self.known_at_start {
            let measured = self.bound_share();
            bars.push(Criterion {
                what: "bound / makespan",
                threshold: BOUND_SHARE_MIN,
                at_most: false,
                measured,
            });
        }
        bars
    }
}

/// Whether half of what is wanted, by bytes, can come from several sites or by several ways: directly, or
/// over relays.
pub fn has_choice(plan: &Plan) -> bool {
    let layout = &plan.layout;
    let relays: Vec<usize> = (0..layout.sites.len()).filter(|&site| layout.sites[site].relay).collect();
    let routes = |from: usize, to: usize| {
        let over = relays.iter().filter(|&&relay| {
            relay != from && relay != to && layout.pair(from, relay).open && layout.pair(relay, to).open
        });
        usize::from(layout.pair(from, to).open) + over.count()
    };
    let (mut all, mut free) = (0.0, 0.0);
    for request in &plan.work.requests {
        for block in plan.work.datasets[request.dataset as usize].blocks.clone() {
            let block = &plan.work.blocks[block as usize];
            if block.at.contains(&request.target) {
                continue;
            }
            let bytes: u64 = block.files.clone().map(|file| plan.work.sizes[file as usize]).sum();
            let routes: usize =
                block.at.iter().map(|&from| routes(from as usize, request.target as usize)).sum();
            all += bytes as f64;
            free += if routes > 1 { bytes as f64 } else { 0.0 };
        }
    }
    free >= all / 2.0 && free > 0.0
}

/// Whether nothing is asked for later.
pub fn is_known_at_start(plan: &Plan) -> bool {
    plan.work.requests.iter().all(|request| request.at <= 0.0)
}

/// A mean of datasets, in seconds, that no schedule can beat; none where something is asked for later or goes
/// wrong.
///
/// Whatever a request lacks must pass the port of its target and be written there, one byte after the other.
/// The mean completion time of one machine is least in shortest-job-first order (W. E. Smith, 1956); each
/// target is at best such a machine, at its full intake rate.
pub fn mean_bound(plan: &Plan) -> Option<f64> {
    if !is_known_at_start(plan) || !plan.failures.is_empty() || plan.work.requests.is_empty() {
        return None;
    }
    // By target and dataset: what it lacks, and how many ask for it.
    let mut lacks: BTreeMap<u32, BTreeMap<u32, (u64, u64)>> = BTreeMap::new();
    for request in &plan.work.requests {
        let blocks = plan.work.datasets[request.dataset as usize].blocks.clone();
        let missing = blocks.filter(|&block| !plan.work.blocks[block as usize].at.contains(&request.target));
        let bytes = |block: u32| -> u64 {
            let files = plan.work.blocks[block as usize].files.clone();
            files.map(|file| plan.work.sizes[file as usize]).sum()
        };
        let bytes: u64 = missing.map(bytes).sum();
        let row = lacks.entry(request.target).or_default().entry(request.dataset).or_default();
        *row = (bytes, row.1 + 1);
    }
    let ends = lacks.iter().map(|(&target, jobs)| {
        // Numbers that are not negative are ordered as their bits are.
        let part = |&(bytes, asked): &(u64, u64)| ((bytes as f64 / asked as f64).to_bits(), bytes, asked);
        let mut jobs: Vec<(u64, u64, u64)> = jobs.values().map(part).collect();
        jobs.sort_unstable();
        let (mut bytes, mut sum) = (0.0, 0.0);
        for (_, more, asked) in jobs {
            bytes += more as f64;
            sum += asked as f64 * bytes;
        }
        sum / intake_rate(plan, target as usize)
    });
    Some(ends.sum::<f64>() / plan.work.requests.len() as f64)
}

/// What a site can take, bytes a second, if nobody else uses its port.
fn intake_rate(plan: &Plan, target: usize) -> f64 {
    let layout = &plan.layout;
    let site = &layout.sites[target];
    let rate = |policy: u32| layout.capacities[policy as usize].rate;
    let port = site.in_capacities.iter().map(|&policy| rate(policy)).fold(f64::INFINITY, f64::min);
    let pools = layout.pools[site.pools.clone()].iter();
    port.min(pools.map(|pool| pool.write.map_or(f64::INFINITY, rate)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;

    fn plan(sites: &str, work: &str) -> Plan {
        let text = format!("name = \"x\"\nuntil = \"1 d\"\n{sites}\n{work}");
        Plan::new(&Scenario::parse(&text).unwrap(), None).unwrap()
    }

    const SITES: &str = "[[site]]\nname = \"a\"\nport = \"8 Gbit/s\"\n[[site]]\nname = \"b\"\nport = \"8 \
        Gbit/s\"\n\
        [[site]]\nname = \"c\"\nport = \"8 Gbit/s\"\n";

    fn data(at: &str, when: &str) -> String {
        format!(
            "[[dataset]]\nname = \"data\"\nfiles = 4\nat = [{at}]\n[[campaign]]\nat = \"{when}\"\ndatasets = \
                [\"data\"]\nto = [\"c\"]\n"
        )
    }

    #[test]
    fn replicas_and_relays_leave_a_choice() {
        let choice = |sites: &str, at: &str| has_choice(&plan(sites, &data(at, "0 s")));
        assert!(!choice(SITES, "\"a\""));
        assert!(choice(SITES, "\"a\", \"b\""));
        assert!(choice(&SITES.replacen("name = \"b\"", "name = \"b\"\nrelay = true", 1), "\"a\""));
        let one_way = format!(
            "[links]\ntopology = \"listed\"\n{SITES}[[link]]\nfrom = \"a\"\nto = \"c\"\n[[link]]\nfrom \
                = \"c\"\nto = \"b\"\n"
        );
        assert!(!choice(&one_way, "\"a\", \"b\""), "no link leads from the second");
    }

    #[test]
    fn the_bound_of_the_mean_is_that_of_the_shortest_first() {
        let sites = SITES.replace(
            "[[site]]\nname = \"c\"\nport = \"8 Gbit/s\"",
            "[[site]]\nname = \"c\"\nport = \"8 Gbit/s\"\nwrite = \"100 MB/s\"",
        );
        let work = "[[dataset]]\nname = \"small\"\nfiles = 1\nsizes = \"1 GB\"\nat = [\"a\"]\n\
             [[dataset]]\nname = \"large\"\nfiles = 3\nsizes = \"1 GB\"\nat = [\"b\"]\n\
             [[campaign]]\ndatasets = [\"small\", \"large\"]\nto = [\"c\"]\n";
        let world = plan(&sites, work);
        let bound = mean_bound(&world).unwrap();
        assert!((bound - 25.0).abs() < 1e-6, "10 s and 40 s: {bound}");
        let mean = compare(&world).ours.unwrap().mean_s;
        assert!(mean >= bound, "{mean} {bound}");
        assert!(mean_bound(&plan(SITES, &data("\"a\"", "1 s"))).is_none());
    }

    #[test]
    fn what_is_asked_for_later_is_not_known() {
        assert!(is_known_at_start(&plan(SITES, &data("\"a\"", "0 s"))));
        assert!(!is_known_at_start(&plan(SITES, &data("\"a\"", "1 s"))));
    }

    #[test]
    fn bars_say_what_is_missed() {
        let bar = |at_most, measured| Criterion { what: "ratio", threshold: 0.9, at_most, measured };
        assert!(
            bar(true, Some(0.9)).is_met() && !bar(true, Some(0.901)).is_met() && !bar(true, None).is_met()
        );
        assert!(
            bar(false, Some(0.9)).is_met() && !bar(false, Some(0.899)).is_met() && !bar(false, None).is_met()
        );
        assert_eq!(bar(true, Some(1.0)).summary(), "ratio ≤ 0.9: 1.000, MISSED");
    }
}
