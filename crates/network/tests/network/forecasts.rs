//! Forecasts promise what they keep: nine in ten outcomes lie within their interval, whatever the link's
//! history, and the interval is not much wider than what a link's former rates say here, where bursts of like
//! files are all there is. What they say of whole worlds, in which forecasts have to be much better:
//! `simulator/tests/simulator/forecasts.rs`.

use std::time::Duration;

use longhaul_model::Blame;
use longhaul_network::{AttemptEnd, Backlog, Basis, Forecast, Knowledge, Link, WhatIfQuery, Work};
use longhaul_testkit::Dice;

use crate::world::{at, link, sites};

/// What one link really gives.
#[derive(Clone, Copy)]
struct Truth {
    link: Link,
    file_max: f64,
    capacity: f64,
    start: f64,
}

struct Running {
    left: f64,
    told: u64,
    start: f64,
    noise: f64,
    began: f64,
    bytes: u64,
    forecast: Forecast,
}

/// Transfers of files of all sizes that share a link, in bursts over many links, with forecasts asked and
/// scored.
fn live(knowledge: &mut Knowledge, truths: &[Truth], bursts: u32, noise: &mut Dice) {
    let mut now = 0.0;
    for _ in 0..bursts {
        // Links see work of very different frequency.
        let truth = truths[(noise.uniform().powi(2) * truths.len() as f64) as usize];
        now = burst(knowledge, truth, now, noise) + 30.0 * noise.uniform();
    }
}

/// A queue of files of which some are under way at once.
fn burst(knowledge: &mut Knowledge, truth: Truth, mut now: f64, noise: &mut Dice) -> f64 {
    let at_once = (2_f64.powf(noise.uniform() * 4.5)) as usize;
    let mut queue = at_once * 3;
    let wander = f64::exp(0.15 * noise.normal());
    let mut running: Vec<Running> = Vec::new();
    while queue > 0 || !running.is_empty() {
        while queue > 0 && running.len() < at_once {
            queue -= 1;
            let bytes = (f64::exp(20.0 + 1.5 * noise.normal())).clamp(1e5, 2e10) as u64;
            let forecast = knowledge.forecast(truth.link, Work::file(bytes), at(now));
            knowledge.attempt_began(truth.link, at(now));
            let (start, noise) =
                (truth.start * f64::exp(0.2 * noise.normal()), f64::exp(0.2 * noise.normal()));
            running.push(Running { left: bytes as f64, told: 0, start, noise, began: now, bytes, forecast });
        }
        let each = truth.file_max.min(truth.capacity / running.len() as f64) * wander;
        let ends = |one: &Running| one.start + one.left / (each * one.noise);
        let next =
            (0..running.len()).min_by(|&a, &b| ends(&running[a]).total_cmp(&ends(&running[b]))).unwrap();
        let step = ends(&running[next]);
        for one in &mut running {
            let waits = one.start.min(step);
            one.start -= waits;
            one.left = (one.left - (step - waits) * each * one.noise).max(0.0);
        }
        now += step;
        // As agents do: what has come is told before all of it is there.
        for one in &mut running {
            let come = (one.bytes as f64 - one.left) as u64;
            knowledge.bytes_arrived(truth.link, come.saturating_sub(one.told), at(now));
            one.told = one.told.max(come);
        }
        let done = running.swap_remove(next);
        knowledge.attempt_ended(
            truth.link,
            done.bytes.saturating_sub(done.told),
            AttemptEnd::Arrived,
            at(now),
        );
        let took = Duration::from_secs_f64(now - done.began);
        knowledge.score(truth.link, &done.forecast, done.bytes, took, at(now));
        knowledge.record_completion(truth.link, done.bytes, took);
    }
    now
}

fn truths(noise: &mut Dice) -> Vec<Truth> {
    let mut all = Vec::new();
    for source in 1..=6 {
        for target in 1..=6 {
            if source != target {
                let file_max = 50e6 * f64::exp(0.7 * noise.normal());
                let capacity = file_max * 2_f64.powf(1.0 + 4.0 * noise.uniform());
                all.push(Truth {
                    link: link(source, target),
                    file_max,
                    capacity,
                    start: 0.5 + 3.0 * noise.uniform(),
                });
            }
        }
    }
    all
}

#[test]
fn intervals_cover_nine_in_ten_outcomes() {
    let mut sums = [[0.0; 4]; 4];
    for seed in 0..8 {
        let mut noise = Dice(1_000 + seed);
        let mut knowledge = sites(6);
        let truths = truths(&mut noise);
        live(&mut knowledge, &truths, 1_500, &mut noise);
        for (sum, quality) in sums.iter_mut().zip(knowledge.quality()) {
            let outcomes = quality.outcomes as f64;
            let more = [outcomes, outcomes * quality.within, outcomes * quality.score];
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            sum[3] = quality.score_ratio.unwrap_or(0.0).max(sum[3]);
        }
    }
    for [outcomes, within, score, ratio] in sums {
        println!(
            "{outcomes} outcomes: {:.3} within, score {:.2}, ratio at most {ratio:.2}",
            within / outcomes,
            score / outcomes
        );
    }
    for [outcomes, within, _, ratio] in sums {
        assert!((0.85..=0.95).contains(&(within / outcomes)));
        assert!(ratio <= 1.8);
    }
}

#[test]
fn the_rate_grows_with_concurrency_until_the_link_saturates() {
    let mut noise = Dice(5);
    let mut knowledge = sites(3);
    let truth = Truth { link: link(1, 2), file_max: 20e6, capacity: 160e6, start: 0.1 };
    live(&mut knowledge, &[truth], 600, &mut noise);
    let now = at(1e6);
    for c in knowledge.changes() {
        println!("{}", c.describe("a", "b"));
    }
    for t in [10.0, 100.0, 1000.0, 5000.0, 10000.0, 20000.0, 1e5] {
        println!("{:?}", knowledge.rate(truth.link, at(t)));
    }
    let rate = |more| knowledge.rate_with(truth.link, more, now).bytes_per_s;
    let rates: Vec<f64> = [1, 2, 4, 8, 16].map(rate).to_vec();
    println!("{rates:?}");
    assert!(rates[0] < 45e6 && rates[2] > 1.5 * rates[0] && rates[3] > 1.3 * rates[2], "{rates:?}");
    assert!(rates[4] < 1.4 * rates[3], "{rates:?}");
    let seconds = |at_once| {
        let work = Work { bytes: 100_000_000_000, files: 100, at_once, backlog: Backlog::default() };
        knowledge.forecast(truth.link, work, now).seconds
    };
    assert!(seconds(1) > 3.0 * seconds(16), "{} {}", seconds(1), seconds(16));
}

/// One answer to all that may be asked before work is given to a link.
#[test]
fn what_if_answers_rates_times_and_failures() {
    let mut noise = Dice(6);
    let mut knowledge = sites(3);
    let truth = Truth { link: link(1, 2), file_max: 20e6, capacity: 160e6, start: 0.1 };
    live(&mut knowledge, &[truth], 600, &mut noise);
    let now = at(1e6);
    for (count, blame) in [(30, None), (6, Some(Blame::Target)), (3, Some(Blame::Network))] {
        for _ in 0..count {
            knowledge.attempt_began(truth.link, now);
            knowledge.attempt_ended(
                truth.link,
                0,
                blame.map_or(AttemptEnd::Arrived, AttemptEnd::Failed),
                now,
            );
        }
    }
    let ask = |questions: &WhatIfQuery| knowledge.what_if(truth.link, questions, now);
    let many = WhatIfQuery {
        more: vec![1, 8, 64],
        bytes: vec![10_000_000_000, 100_000_000_000],
        ..WhatIfQuery::default()
    };
    let answer = ask(&many);
    let rates: Vec<f64> = answer.rates.iter().map(|(_, rate)| rate.bytes_per_s).collect();
    assert!(rates[1] > 2.0 * rates[0] && rates[2] < 1.5 * rates[1], "{rates:?}");
    assert_eq!(answer.times[1].0.files, 100);
    let seconds = |answer: &longhaul_network::WhatIfAnswer, of: usize| answer.times[of].1.seconds;
    assert!(seconds(&answer, 1) > 5.0 * seconds(&answer, 0), "{answer:?}");
    let alone = ask(&WhatIfQuery { at_once: Some(1), ..many.clone() });
    assert!(seconds(&alone, 1) > 2.0 * seconds(&ask(&WhatIfQuery { at_once: Some(16), ..many.clone() }), 1));
    // Here nothing ever waited for anything: a link that has not learned so shows it.
    let cold = |ahead| sites(3).what_if(truth.link, &WhatIfQuery { backlog: ahead, ..many.clone() }, now);
    let behind = Backlog { link: 1_000_000_000_000, ..Backlog::default() };
    assert!(seconds(&cold(behind), 0) > 10.0 * seconds(&cold(Backlog::default()), 0));

    let odds = &answer.failures;
    assert_eq!(odds.iter().map(|one| one.0).collect::<Vec<_>>(), [Blame::Target, Blame::Network]);
    let sum: f64 = odds.iter().map(|one| one.1).sum();
    assert!((odds[0].1 / odds[1].1 - 2.0).abs() < 1e-6, "{odds:?}");
    let share = knowledge.failure_share(truth.link, now);
    assert!(
        share >= odds[1].1 && share < sum,
        "what the target did not take says nothing of the link: {odds:?} {share}"
    );
    assert!((0.1..0.2).contains(&odds[0].1), "6 of 39 and as many as are remembered before: {odds:?}");
}

/// What answers nobody is expected to fail by the network, though no attempt has failed yet.
#[test]
fn an_unreachable_pair_is_expected_to_fail_by_the_network() {
    let mut knowledge = sites(2);
    crate::world::probe(&mut knowledge, 1, 2, longhaul_network::Metric::Reach { up: false }, 1.0);
    let odds = knowledge.what_if(link(1, 2), &WhatIfQuery::default(), at(2.0)).failures;
    assert_eq!(odds.iter().map(|one| one.0).collect::<Vec<_>>(), [Blame::Network]);
    assert!(odds[0].1 > 0.8, "{odds:?}");
}

#[test]
fn other_work_of_an_end_lowers_the_rate() {
    let mut knowledge = sites(4);
    let mut now = 0.0;
    for _ in 0..50 {
        for target in [2, 3] {
            knowledge.attempt_began(link(1, target), at(now));
        }
        now += 1.0;
        for target in [2, 3] {
            knowledge.attempt_ended(link(1, target), 50_000_000, AttemptEnd::Arrived, at(now));
        }
    }
    let alone = knowledge.rate_with(link(1, 2), 1, at(now)).bytes_per_s;
    (0..20).for_each(|_| knowledge.attempt_began(link(1, 3), at(now)));
    let shared = knowledge.rate_with(link(1, 2), 1, at(now)).bytes_per_s;
    assert!(shared < alone / 3.0, "{shared} beside 20 others, {alone} without");
}

#[test]
fn the_prior_of_a_cold_path_is_bounded_by_its_loss() {
    let mut knowledge = sites(3);
    for number in 0..50 {
        crate::world::transfer(&mut knowledge, link(1, 3), 1_000_000_000, 1.0, f64::from(number) * 2.0);
    }
    let before = knowledge.rate(link(1, 2), at(200.0));
    crate::world::probe(&mut knowledge, 1, 2, longhaul_network::Metric::Rtt { us: 150_000.0 }, 150.0);
    crate::world::probe(
        &mut knowledge,
        1,
        2,
        longhaul_network::Metric::Loss { sent: 100_000, lost: 1_000 },
        151.0,
    );
    let after = knowledge.rate(link(1, 2), at(200.0));
    assert_eq!(before.basis, Basis::Endpoints);
    assert!(after.bytes_per_s < before.bytes_per_s / 10.0, "{before:?} {after:?}");
}

/// Outcomes of small files that say little of the rate, as of a link that is busy with them.
fn small_files(bytes: u64, seconds: f64, rate: f64) -> (Knowledge, f64) {
    let mut knowledge = sites(2);
    let mut noise = Dice(5);
    let mut now = 0.0;
    for _ in 0..400 {
        let forecast = knowledge.forecast(link(1, 2), Work::file(bytes), at(now));
        knowledge.attempt_began(link(1, 2), at(now));
        let took = (bytes as f64 / rate).max(seconds) * (0.2 * noise.normal()).exp();
        now += took;
        knowledge.attempt_ended(link(1, 2), bytes, AttemptEnd::Arrived, at(now));
        knowledge.score(link(1, 2), &forecast, bytes, Duration::from_secs_f64(took * 0.1), at(now));
    }
    (knowledge, now)
}

/// A forecast for far more bytes than ever came at once goes by the rate, whatever small files taught.
#[test]
fn a_long_extrapolation_promises_no_more_than_the_rate() {
    for (bytes, seconds, rate) in [(2_000_000, 0.6, 3.25e6), (300_000, 0.1, 3.25e6), (50_000_000, 0.3, 167e6)]
    {
        let (knowledge, now) = small_files(bytes, seconds, rate);
        let estimate = knowledge.rate_with(link(1, 2), 1, at(now));
        assert!((estimate.bytes_per_s / rate).ln().abs() < 0.4, "{estimate:?}");
        let mut last = 0.0;
        for work in [1_000_000_000, 100_000_000_000, 10_000_000_000_000, 1_800_000_000_000_000] {
            let query = WhatIfQuery { bytes: vec![work], ..WhatIfQuery::default() };
            for forecast in [
                knowledge.forecast(link(1, 2), Work::file(work), at(now)),
                knowledge.what_if(link(1, 2), &query, at(now)).times[0].1,
            ] {
                let [low, middle, high] = [forecast.low_s, forecast.seconds, forecast.high_s]
                    .map(|seconds| f64::from(seconds) * 1.001);
                let at_rate = |per_s: f64| work as f64 / per_s;
                assert!(low >= at_rate(estimate.high), "{work} bytes at {estimate:?}: {forecast:?}");
                assert!(
                    middle >= at_rate(estimate.bytes_per_s),
                    "{work} bytes at {estimate:?}: {forecast:?}"
                );
                assert!(high >= at_rate(estimate.low) && low <= middle && middle <= high, "{forecast:?}");
                assert!(middle > last, "more bytes take longer");
            }
            last = f64::from(knowledge.forecast(link(1, 2), Work::file(work), at(now)).seconds);
        }
    }
}

/// Files of all sizes over one link, of which large ones are slower by a rule that no model has.
#[test]
fn forecasts_are_calibrated_in_each_decade_of_size() {
    let mut knowledge = sites(2);
    let mut noise = Dice(8);
    let mut now = 0.0;
    for _ in 0..6_000 {
        let bytes = 10_f64.powf(4.0 + 7.0 * noise.uniform());
        let slower = 1.0 + (bytes / 1e9).ln().max(0.0);
        let took = (0.1 + bytes / 20e6 * slower) * (0.2 * noise.normal()).exp();
        let forecast = knowledge.forecast(link(1, 2), Work::file(bytes as u64), at(now));
        knowledge.attempt_began(link(1, 2), at(now));
        now += took;
        knowledge.attempt_ended(link(1, 2), bytes as u64, AttemptEnd::Arrived, at(now));
        knowledge.score(link(1, 2), &forecast, bytes as u64, Duration::from_secs_f64(took), at(now));
    }
    let decades = knowledge.size_decades();
    assert_eq!(decades.len(), 7);
    for decade in decades {
        println!("{decade:?}");
        let within = decade.quality.within;
        assert!((0.8..=0.98).contains(&within), "{decade:?}");
    }
}
