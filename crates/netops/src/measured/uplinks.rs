//! Counters of sites' uplinks, as agents report them: an interface each, put together for the site. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::probe::UplinkSample;
use longhaul_model::{AgentId, SiteId, Timestamp};
use longhaul_network::{CLOCK_AHEAD_MAX, Mapping, Metric, Observation, ObservationId, Origin, Subject};

use super::error::MeasurementError;

/// Interfaces remembered of all agents.
pub(super) const UPLINKS_MAX: usize = 10_000;
const NAME_CHARS_MAX: usize = 15;
/// What was not counted for so long is not counted any more.
pub const SAMPLE_AGE_MAX: Duration = Duration::from_secs(900);
/// One of several uplinks is full while another is idle: flows are not spread over them.
const FULL_UTILISATION_MIN: f64 = 0.9;
const IDLE_UTILISATION_MAX: f64 = 0.5;
const BYTES_PER_S_MAX: f64 = 1e13;

#[derive(Default)]
pub struct Uplinks {
    rows: BTreeMap<(SiteId, AgentId, String), UplinkSample>,
}

impl Uplinks {
    pub fn note(
        &mut self,
        site: SiteId,
        agent: AgentId,
        sample: UplinkSample,
        now: Timestamp,
    ) -> Result<(), MeasurementError> {
        check(&sample, now)?;
        let key = (site, agent, sample.interface.clone());
        if self.rows.get(&key).is_some_and(|known| known.at >= sample.at) {
            return Err(MeasurementError::NotNewer);
        }
        self.rows.retain(|_, known| now.since(known.at) < SAMPLE_AGE_MAX);
        if self.rows.len() >= UPLINKS_MAX {
            return Err(MeasurementError::TooManyInterfaces);
        }
        self.rows.insert(key, sample);
        Ok(())
    }

    /// All that are counted at a site.
    pub fn samples_of(&self, site: SiteId, now: Timestamp) -> impl Iterator<Item = (AgentId, &UplinkSample)> {
        let all = self.rows.range((site, AgentId(0), String::new())..);
        all.take_while(move |((at, _, _), _)| *at == site)
            .filter(move |(_, sample)| now.since(sample.at) < SAMPLE_AGE_MAX)
            .map(|((_, agent, _), sample)| (*agent, sample))
    }

    /// The site's connection as a whole: what its interfaces carry together, and can if that is known of
    /// each.
    pub fn observation(&self, site: SiteId, now: Timestamp) -> Option<Observation> {
        let all: Vec<&UplinkSample> = self.samples_of(site, now).map(|(_, sample)| sample).collect();
        let at = all.iter().map(|sample| sample.at).max()?;
        Some(Observation {
            id: ObservationId::from_parts(&["uplink", &site.to_string(), &at.to_string()]),
            at,
            subject: Subject::Uplink { site },
            metric: Metric::Uplink {
                into_bytes_per_s: all.iter().map(|sample| sample.into_bytes_per_s).sum(),
                out_bytes_per_s: all.iter().map(|sample| sample.out_bytes_per_s).sum(),
                capacity_bytes_per_s: all.iter().map(|sample| sample.capacity_bytes_per_s).sum(),
            },
            origin: Origin::Probe,
            mapping: Mapping::Explicit,
        })
    }

    /// An interface that is full while another of the site is idle.
    pub fn uneven(&self, site: SiteId, now: Timestamp) -> Option<String> {
        let used = |sample: &UplinkSample| {
            let most = sample.into_bytes_per_s.max(sample.out_bytes_per_s);
            Some(most / sample.capacity_bytes_per_s?)
        };
        let all: Vec<(&str, f64)> = self
            .samples_of(site, now)
            .filter_map(|(_, sample)| Some((sample.interface.as_str(), used(sample)?)))
            .collect();
        let full =
            all.iter().max_by(|a, b| a.1.total_cmp(&b.1)).filter(|one| one.1 >= FULL_UTILISATION_MIN)?;
        let idle =
            all.iter().min_by(|a, b| a.1.total_cmp(&b.1)).filter(|one| one.1 <= IDLE_UTILISATION_MAX)?;
        Some(format!(
            "uplink {} is used to {:.0} % and {} to {:.0} %: flows are not spread over them",
            full.0,
            full.1 * 100.0,
            idle.0,
            idle.1 * 100.0
        ))
    }
}

fn check(sample: &UplinkSample, now: Timestamp) -> Result<(), MeasurementError> {
    let ahead = sample.at.since(now);
    if ahead > CLOCK_AHEAD_MAX {
        return Err(MeasurementError::Future(ahead));
    }
    let age = now.since(sample.at);
    if age >= SAMPLE_AGE_MAX {
        return Err(MeasurementError::TooOld(age));
    }
    let name = &sample.interface;
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(|c| c.is_ascii_graphic()) {
        return Err(MeasurementError::BadInterfaceName);
    }
    let fine = |rate: f64| rate.is_finite() && (0.0..=BYTES_PER_S_MAX).contains(&rate);
    let capacity = sample.capacity_bytes_per_s;
    if !fine(sample.into_bytes_per_s)
        || !fine(sample.out_bytes_per_s)
        || capacity.is_some_and(|capacity| !fine(capacity) || capacity < 1.0)
    {
        return Err(MeasurementError::ImplausibleRate { interface: name.clone() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    fn sample(interface: &str, seconds: i64, out_bytes_per_s: f64, capacity: Option<f64>) -> UplinkSample {
        UplinkSample {
            interface: interface.into(),
            at: at(seconds),
            seconds: 30.0,
            into_bytes_per_s: 1e6,
            out_bytes_per_s,
            capacity_bytes_per_s: capacity,
        }
    }

    #[test]
    fn interfaces_are_added_up_and_an_uneven_bond_is_told() {
        let mut uplinks = Uplinks::default();
        let (site, agent) = (SiteId(1), AgentId(1));
        uplinks.note(site, agent, sample("eth0", 0, 1.2e9, Some(1.25e9)), at(0)).unwrap();
        assert_eq!(uplinks.uneven(site, at(0)), None, "there is but one");
        uplinks.note(site, AgentId(2), sample("eth0", 10, 0.1e9, Some(1.25e9)), at(10)).unwrap();
        uplinks.note(SiteId(2), AgentId(3), sample("eth9", 10, 1e9, None), at(10)).unwrap();
        let whole = uplinks.observation(site, at(10)).unwrap();
        assert_eq!(
            whole.metric,
            Metric::Uplink {
                into_bytes_per_s: 2e6,
                out_bytes_per_s: 1.3e9,
                capacity_bytes_per_s: Some(2.5e9)
            }
        );
        whole.check(at(10)).unwrap();
        assert!(uplinks.uneven(site, at(10)).unwrap().contains("used to 96 % and eth0 to 8 %"));
        assert!(uplinks.observation(site, at(2_000)).is_none(), "nobody counts any more");
        let unknown = uplinks.observation(SiteId(2), at(10)).unwrap().metric;
        assert!(matches!(unknown, Metric::Uplink { capacity_bytes_per_s: None, .. }));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let mut uplinks = Uplinks::default();
        let mut say = |sample: UplinkSample, now| match uplinks.note(SiteId(1), AgentId(1), sample, at(now)) {
            Ok(()) => "taken".to_owned(),
            Err(why) => why.to_string(),
        };
        assert!(say(sample("eth0", 500, 1.0, None), 0).contains("in the future"));
        assert!(say(sample("eth0", 0, 1.0, None), 1_000).contains("old"));
        for name in ["", "a b", "far-too-long-a-name"] {
            assert!(say(sample(name, 0, 1.0, None), 0).contains("no name"));
        }
        for absurd in [f64::NAN, f64::INFINITY, -1.0, 1e30] {
            assert!(say(sample("eth0", 0, absurd, None), 0).contains("no network has"));
            assert!(say(sample("eth0", 0, 1.0, Some(absurd)), 0).contains("no network has"));
        }
        assert_eq!(say(sample("eth0", 0, 0.0, Some(1e9)), 0), "taken");
        assert!(say(sample("eth0", 0, 0.0, Some(1e9)), 0).contains("not newer"));
    }
}
