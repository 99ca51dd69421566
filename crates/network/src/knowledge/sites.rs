//! What is known between sites, whatever their storages: the form in which instances tell each other.

use longhaul_model::{SiteId, Timestamp};

use super::{Knowledge, PathKey};
use crate::advice::Family;
use crate::observation::Way;
use crate::places::Home;

pub(crate) struct Known {
    pub source: SiteId,
    pub target: SiteId,
    pub family: Option<Family>,
    pub bytes_per_s: f64,
    pub spread: f64,
    pub seconds: f64,
    pub seen: Timestamp,
    pub rtt_us: Option<f64>,
    pub loss: Option<f64>,
}

impl Knowledge {
    /// Each ordered pair of sites of which a rate is known, and each address family of it that was tested for
    /// itself.
    pub(crate) fn between_sites(&self, now: Timestamp) -> impl Iterator<Item = Known> + '_ {
        let pairs = self.pairs.iter().filter_map(move |(&(source, target), pair)| {
            let path = self.paths_between(source, target).find(|path| path.rtt_us().is_some());
            let (Home::Site(source), Home::Site(target)) = (source, target) else { return None };
            Some(Known {
                source,
                target,
                family: None,
                bytes_per_s: pair.mean().exp(),
                spread: pair.variance().sqrt(),
                seconds: pair.weight_at(pair.last()),
                seen: pair.last().min(now),
                rtt_us: path.and_then(|path| path.rtt_us()),
                loss: path.and_then(|path| path.loss_share()),
            })
        });
        let families = self.paths.iter().filter_map(move |(key, path)| {
            let PathKey { source: Home::Site(source), target: Home::Site(target), way } = *key else {
                return None;
            };
            let Way { family: Some(family), circuit: None } = way else { return None };
            path.rate.known().then(|| Known {
                source,
                target,
                family: Some(family),
                bytes_per_s: path.rate.mean().exp(),
                spread: path.rate.variance().sqrt(),
                seconds: path.rate.weight_at(path.rate.last()),
                seen: path.rate.last().min(now),
                rtt_us: path.rtt_us(),
                loss: path.loss_share(),
            })
        });
        pairs.chain(families)
    }

    /// Seconds of observation between two sites that still count, and when the last was.
    pub(crate) fn known_seconds(
        &self,
        source: SiteId,
        target: SiteId,
        now: Timestamp,
    ) -> Option<(f64, Timestamp)> {
        let pair = self.pairs.get(&(Home::Site(source), Home::Site(target)))?;
        Some((pair.weight_at(now), pair.last()))
    }
}
