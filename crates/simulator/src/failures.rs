//! Failure events: where and from when to when something goes wrong. The rows of a scenario become single
//! events, by the seed where they leave it open. Their effects on the world are in `events`.

use longhaul_model::FaultCode;

use crate::layout::Layout;
use crate::random::Random;
use crate::scenario::{Failure, FailureKind, Scenario, ScenarioError};

/// Scenarios with more failure events are refused.
const FAILURE_EVENTS_MAX: usize = 1_000_000;

#[derive(Clone, Debug)]
pub struct FailureEvent {
    pub kind: FailureKind,
    /// Sites, or pairs of them.
    pub at: Vec<usize>,
    pub to: Vec<usize>,
    pub begin: f64,
    pub end: f64,
    pub factor: f64,
    pub rtt_factor: f64,
    pub code: FaultCode,
    pub share: f64,
    /// Microseconds.
    pub jump: i64,
}

impl FailureEvent {
    pub fn affects_link(&self, from: usize, to: usize) -> bool {
        self.at.contains(&from) && self.to.contains(&to)
    }

    /// Whether it changes what a link gives: its own troubles, and those of its ends.
    pub fn affects_rate_of(&self, from: usize, to: usize) -> bool {
        if is_link_failure(self.kind) {
            self.affects_link(from, to)
        } else {
            self.at.contains(&from) || self.at.contains(&to)
        }
    }
}

fn is_link_failure(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::LinkDegraded | FailureKind::RouteChange)
}

pub fn build(scenario: &Scenario, layout: &Layout, seed: u64) -> Result<Vec<FailureEvent>, ScenarioError> {
    let mut all = Vec::new();
    for (number, failure) in scenario.failure.iter().enumerate() {
        let place = format!("[[failure]] {}", number + 1);
        let mut random = Random::stream(seed ^ number as u64, "failure");
        let pattern = failure_template(failure, layout, &place)?;
        match failure.per_day {
            Some(per_day) => {
                if !(per_day > 0.0 && per_day <= 10_000.0) {
                    return Err(ScenarioError::new(
                        place,
                        format!("{per_day} times a day"),
                        "give per_day above 0, at most 10000",
                    ));
                }
                add_random(&mut all, failure, &pattern, per_day, scenario.until.0, &mut random);
            }
            None => add_periodic(&mut all, failure, &pattern, scenario.until.0),
        }
        if all.len() > FAILURE_EVENTS_MAX {
            return Err(ScenarioError::new(
                place,
                format!("more than {FAILURE_EVENTS_MAX} troubles"),
                "make them rarer",
            ));
        }
    }
    all.sort_by(|one, other| one.begin.total_cmp(&other.begin));
    Ok(all)
}

fn failure_template(failure: &Failure, layout: &Layout, place: &str) -> Result<FailureEvent, ScenarioError> {
    let factor = failure.factor.unwrap_or(0.0);
    if !(0.0..=1.0).contains(&factor) {
        return Err(ScenarioError::new(
            place,
            format!("a factor of {factor}"),
            "what is left of a rate is 0 to 1",
        ));
    }
    let rtt_factor = failure.rtt_factor.unwrap_or(1.0);
    if !(1.0..=100.0).contains(&rtt_factor) {
        return Err(ScenarioError::new(
            place,
            format!("an rtt_factor of {rtt_factor}"),
            "1 to 100 are possible",
        ));
    }
    let usual = match failure.kind {
        FailureKind::SiteDown => FaultCode::Unreachable,
        FailureKind::CredentialOutage => FaultCode::PermitRefused,
        FailureKind::AgentRestart => FaultCode::Interrupted,
        FailureKind::TargetFull => FaultCode::TargetFull,
        _ => FaultCode::ConnectionLost,
    };
    let code = match &failure.code {
        None => usual,
        Some(text) => text.parse().map_err(|why: String| {
            ScenarioError::new(place, why, "docs/reference/errors.md lists the codes")
        })?,
    };
    let jump = failure.jump.unwrap_or(0.0);
    if jump.is_nan() || jump.abs() > 366.0 * 86_400.0 {
        return Err(ScenarioError::new(place, format!("a jump of {jump} s"), "a year at most, either way"));
    }
    if failure.every.is_some_and(|every| every.0 < 1.0) {
        return Err(ScenarioError::new(
            place,
            "it comes more often than every second",
            "give every, 1 s or more",
        ));
    }
    let none = failure.kind == FailureKind::ClockJump;
    let at = if none { Vec::new() } else { layout.sites_named(&failure.at, place)? };
    let to = if is_link_failure(failure.kind) { layout.sites_named(&failure.to, place)? } else { Vec::new() };
    Ok(FailureEvent {
        kind: failure.kind,
        at,
        to,
        begin: 0.0,
        end: 0.0,
        factor,
        rtt_factor,
        code,
        share: failure.share.map_or(1.0, |share| share.0),
        jump: (jump * 1e6) as i64,
    })
}

fn add_periodic(all: &mut Vec<FailureEvent>, failure: &Failure, pattern: &FailureEvent, until: f64) {
    let mut begin = failure.begin.0;
    while begin < until && all.len() <= FAILURE_EVENTS_MAX {
        let end = failure.lasts.map_or(until, |lasts| begin + lasts.0);
        all.push(FailureEvent { begin, end, ..pattern.clone() });
        match failure.every {
            Some(every) => begin += every.0,
            None => return,
        }
    }
}

fn add_random(
    all: &mut Vec<FailureEvent>,
    failure: &Failure,
    pattern: &FailureEvent,
    per_day: f64,
    until: f64,
    random: &mut Random,
) {
    let mean = failure.lasts.map_or(3_600.0, |lasts| lasts.0);
    let ends: Vec<(usize, Option<usize>)> = if is_link_failure(pattern.kind) {
        let pairs = pattern.at.iter().flat_map(|&from| pattern.to.iter().map(move |&to| (from, Some(to))));
        pairs.filter(|&(from, to)| Some(from) != to).collect()
    } else {
        pattern.at.iter().map(|&site| (site, None)).collect()
    };
    for (site, to) in ends {
        let mut begin = failure.begin.0;
        loop {
            begin += random.exponential(86_400.0 / per_day);
            if begin >= until || all.len() > FAILURE_EVENTS_MAX {
                break;
            }
            let end = begin + random.exponential(mean);
            let to = to.into_iter().collect();
            all.push(FailureEvent { at: vec![site], to, begin, end, ..pattern.clone() });
            begin = end;
        }
    }
}
