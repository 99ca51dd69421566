//! Estimates between sites, whatever their storages: the form in which instances exchange knowledge.

use longhaul_model::{SiteId, Timestamp};

use super::{Knowledge, PathKey};
use crate::advice::Family;
use crate::observation::PathSelector;
use crate::topology::Locality;

pub(crate) struct SitePairEstimate {
    pub source: SiteId,
    pub target: SiteId,
    pub family: Option<Family>,
    pub bytes_per_s: f64,
    pub spread: f64,
    pub seconds: f64,
    pub seen_at: Timestamp,
    pub rtt_us: Option<f64>,
    pub loss: Option<f64>,
}

impl Knowledge {
    /// Each ordered pair of sites with a known rate, and each address family of it that was tested
    /// separately.
    pub(crate) fn site_pair_estimates(&self, now: Timestamp) -> impl Iterator<Item = SitePairEstimate> + '_ {
        let pairs = self.pairs.iter().filter_map(move |(&(source, target), pair)| {
            let path = self.paths_between(source, target).find(|path| path.rtt_us().is_some());
            let (Locality::Site(source), Locality::Site(target)) = (source, target) else { return None };
            Some(SitePairEstimate {
                source,
                target,
                family: None,
                bytes_per_s: pair.mean().exp(),
                spread: pair.variance().sqrt(),
                seconds: pair.weight_at(pair.last()),
                seen_at: pair.last().min(now),
                rtt_us: path.and_then(|path| path.rtt_us()),
                loss: path.and_then(|path| path.loss_share()),
            })
        });
        let families = self.paths.iter().filter_map(move |(key, path)| {
            let PathKey { source: Locality::Site(source), target: Locality::Site(target), path: selector } =
                *key
            else {
                return None;
            };
            let PathSelector { family: Some(family), circuit: None } = selector else { return None };
            path.rate.has_data().then(|| SitePairEstimate {
                source,
                target,
                family: Some(family),
                bytes_per_s: path.rate.mean().exp(),
                spread: path.rate.variance().sqrt(),
                seconds: path.rate.weight_at(path.rate.last()),
                seen_at: path.rate.last().min(now),
                rtt_us: path.rtt_us(),
                loss: path.loss_share(),
            })
        });
        pairs.chain(families)
    }

    /// Seconds of observation between two sites that still count, and the time of the last.
    pub(crate) fn observed_seconds(
        &self,
        source: SiteId,
        target: SiteId,
        now: Timestamp,
    ) -> Option<(f64, Timestamp)> {
        let pair = self.pairs.get(&(Locality::Site(source), Locality::Site(target)))?;
        Some((pair.weight_at(now), pair.last()))
    }
}
