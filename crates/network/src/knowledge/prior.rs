//! Hierarchical prior of a link's rate with shrinkage (empirical Bayes, James–Stein): from other links
//! between the two sites, other links of each site, links between the two regions, all links.
//!
//! In logarithms, a rate is an additive effects model: a grand mean plus effects of the regions, the source
//! and the target. Each effect is shrunk towards zero while few observations support it (n / (n + k)).

use longhaul_model::Timestamp;

use super::{
    ASSUMED_VARIANCE, Basis, Estimate, Knowledge, Link, LinkState, NORMAL_QUANTILE_90, PRIOR_VARIANCE,
    PRIOR_WEIGHT,
};
use crate::ewma::{LogEwma, RATE_BYTES_PER_S_ASSUMED};
use crate::observation::PathSelector;
use crate::topology::Locality;

use super::PathKey;

/// EWMA of an effect: several minutes of work, with a half-life of a day.
pub(crate) type EffectEwma = LogEwma<86_400, 200>;

/// Shrinkage constant k: seconds of observation at which an effect counts half.
const EFFECT_PRIOR_S: f64 = 2.0;
/// Source and target effects are not identifiable separately; counting a bit less than all of each keeps both
/// small.
const EFFECT_SHRINKAGE_MAX: f64 = 0.9;
/// Weights below this count as no observation.
const EFFECT_WEIGHT_S_MIN: f64 = 1e-3;

/// Effects of one site, as a source and as a target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalityEffects {
    /// Effect on links with this source.
    pub out: EffectEwma,
    /// Effect on links with this target.
    pub into: EffectEwma,
}

/// Normal distribution of log(rate).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prior {
    pub mean: f64,
    pub variance: f64,
    pub basis: Basis,
}

impl Prior {
    /// Updated by own observations.
    pub(crate) fn updated_by<const H: u32, const W: u32>(self, own: &LogEwma<H, W>, now: Timestamp) -> Prior {
        self.combined_with(own, own.weight_at(now), Basis::Measured)
    }

    /// Updated by all observations of a path. The slow average contains what the fast one saw, so that counts
    /// once.
    fn updated_by_link(self, state: &LinkState, now: Timestamp) -> Prior {
        let (fast, slow) = (state.fast.weight_at(now), state.slow.weight_at(now));
        self.combined_with(&state.slow, (slow - fast).max(0.0), Basis::Measured).combined_with(
            &state.fast,
            fast,
            Basis::Measured,
        )
    }

    /// Combined with an average of the given weight.
    pub(crate) fn combined_with<const H: u32, const W: u32>(
        self,
        own: &LogEwma<H, W>,
        weight: f64,
        basis: Basis,
    ) -> Prior {
        let half = PRIOR_WEIGHT;
        if weight <= 0.0 {
            return self;
        }
        let total = weight + half;
        // Disagreement between the two adds variance.
        let between = weight * half / total / total * (own.mean() - self.mean).powi(2);
        Prior {
            mean: (weight * own.mean() + half * self.mean) / total,
            variance: ((weight * own.variance() + half * self.variance) / total + between).max(0.0),
            basis: if weight >= half / 2.0 { basis } else { self.basis },
        }
    }

    pub(crate) fn estimate(self) -> Estimate {
        let spread = self.variance.max(0.0).sqrt();
        Estimate {
            bytes_per_s: self.mean.exp(),
            low: (self.mean - NORMAL_QUANTILE_90 * spread).exp(),
            high: (self.mean + NORMAL_QUANTILE_90 * spread).exp(),
            spread,
            basis: self.basis,
        }
    }
}

/// Effects on one link, shrunk.
struct Effects {
    all: f64,
    regions: f64,
    out: f64,
    into: f64,
    /// Seconds of observation of all links, of the regions, of the ends.
    weights: [f64; 3],
}

/// Mean of an effect, shrunk towards zero while its weight is small.
fn shrunk(effect: &EffectEwma, now: Timestamp) -> f64 {
    let weight = effect.weight_at(now);
    effect.mean() * weight / (weight + EFFECT_PRIOR_S) * EFFECT_SHRINKAGE_MAX
}

impl Knowledge {
    pub(super) fn localities_of(&self, link: Link) -> (Locality, Locality) {
        (self.topology.locality(link.source), self.topology.locality(link.target))
    }

    /// Posterior of log(rate).
    pub(crate) fn posterior(&self, link: Link, now: Timestamp) -> Prior {
        self.posterior_of(self.links.get(&link), link, now)
    }

    pub(super) fn posterior_of(&self, state: Option<&LinkState>, link: Link, now: Timestamp) -> Prior {
        match state {
            Some(state) => {
                self.current_path_prior(link, state.slow.weight_at(now), now).updated_by_link(state, now)
            }
            None => self.current_path_prior(link, 0.0, now),
        }
    }

    /// Estimated rate without the circuit that the link uses now.
    pub fn best_effort_rate(&self, link: Link, now: Timestamp) -> Estimate {
        match self.circuits.best_effort_state(link) {
            Some(state) => self
                .best_effort_prior(link, state.slow.weight_at(now), now)
                .updated_by_link(state, now)
                .estimate(),
            None => self.rate(link, now),
        }
    }

    /// Estimated rate of links like it, without its own measurements.
    pub(crate) fn expected_rate(&self, link: Link, now: Timestamp) -> Estimate {
        let own = self.links.get(&link).map_or(0.0, |state| state.slow.weight_at(now));
        self.current_path_prior(link, own, now).estimate()
    }

    /// Prior of the current path: the reserved rate of its circuit, or what links like it yield.
    fn current_path_prior(&self, link: Link, own: f64, now: Timestamp) -> Prior {
        self.circuits.prior(link).unwrap_or_else(|| self.best_effort_prior(link, own, now))
    }

    /// Prior of the best-effort path, without the `own` seconds of the link itself.
    fn best_effort_prior(&self, link: Link, own: f64, now: Timestamp) -> Prior {
        let (source, target) = self.localities_of(link);
        let prior = self.prior_between(source, target, own, now);
        let cap = self.paths_between(source, target).filter_map(|path| path.rate_max()).reduce(f64::max);
        match cap {
            Some(cap) if cap.ln() < prior.mean => Prior { mean: cap.max(1.0).ln(), ..prior },
            _ => prior,
        }
    }

    fn prior_between(&self, source: Locality, target: Locality, own: f64, now: Timestamp) -> Prior {
        let addends = self.effects_between(source, target, now);
        let [all, regions, ends] = addends.weights;
        let prior = if all <= EFFECT_WEIGHT_S_MIN {
            Prior { mean: RATE_BYTES_PER_S_ASSUMED.ln(), variance: ASSUMED_VARIANCE, basis: Basis::Assumed }
        } else {
            let basis = if ends >= PRIOR_WEIGHT {
                Basis::Endpoints
            } else if regions >= PRIOR_WEIGHT && self.regions.len() > 1 {
                Basis::Regions
            } else {
                Basis::AllLinks
            };
            let mean = addends.all + addends.regions + addends.out + addends.into;
            Prior { mean, variance: PRIOR_VARIANCE, basis }
        };
        match self.pairs.get(&(source, target)) {
            Some(pair) => prior.combined_with(pair, (pair.weight_at(now) - own).max(0.0), Basis::SitePair),
            None => prior,
        }
    }

    fn effects_between(&self, source: Locality, target: Locality, now: Timestamp) -> Effects {
        let regions = (self.topology.region(source), self.topology.region(target));
        let part = |effect: Option<&EffectEwma>| {
            effect.map_or((0.0, 0.0), |effect| (shrunk(effect, now), effect.weight_at(now)))
        };
        let (out, out_weight) = part(self.localities.get(&source).map(|home| &home.out));
        let (into, into_weight) = part(self.localities.get(&target).map(|home| &home.into));
        let (regions, regions_weight) = part(self.regions.get(&regions));
        let weights = [self.all.weight_at(now), regions_weight, out_weight + into_weight];
        Effects { all: self.all.mean(), regions, out, into, weights }
    }

    /// Updates all effects by one measurement; each learns the residual of the others (backfitting). Returns
    /// what they predicted before.
    pub(super) fn learn(&mut self, link: Link, value: f64, weight: f64, now: Timestamp) -> f64 {
        let (source, target) = self.localities_of(link);
        self.learn_between(source, target, value, weight, now)
    }

    pub(super) fn learn_between(
        &mut self,
        source: Locality,
        target: Locality,
        value: f64,
        weight: f64,
        now: Timestamp,
    ) -> f64 {
        let parts = self.effects_between(source, target, now);
        let known = parts.weights[0] > EFFECT_WEIGHT_S_MIN;
        let expected = if known { parts.all + parts.regions + parts.out + parts.into } else { value };
        self.all.observe_log(value, weight, now);
        let left = value - self.all.mean();
        let regions =
            self.regions.entry((self.topology.region(source), self.topology.region(target))).or_default();
        regions.observe_log(left, weight, now);
        let left = left - shrunk(regions, now);
        // The second effect sees what the first has taken up, so that together they do not overshoot.
        let out = &mut self.localities.entry(source).or_default().out;
        out.observe_log(left - parts.into, weight, now);
        let left = left - shrunk(out, now);
        self.localities.entry(target).or_default().into.observe_log(left, weight, now);
        self.pairs.entry((source, target)).or_default().observe_log(value, weight, now);
        expected
    }

    pub(super) fn paths_between(
        &self,
        source: Locality,
        target: Locality,
    ) -> impl Iterator<Item = &crate::path_state::PathState> {
        let least = PathKey { source, target, path: PathSelector::default() };
        self.paths
            .range(least..)
            .take_while(move |(key, _)| key.source == source && key.target == target)
            .map(|(_, path)| path)
    }
}
