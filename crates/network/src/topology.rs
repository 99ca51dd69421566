//! Topology: the site of each storage and the region of each site. Links between the same localities are
//! assumed to be alike. The catalog's owner sets it; nothing is inferred here.

use std::collections::BTreeMap;

use longhaul_model::{SiteId, StorageId};
use serde::{Deserialize, Serialize};

use crate::observation::{Endpoint, ObservationError};

/// The site of a storage; a storage whose site is unknown stands for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    Site(SiteId),
    #[serde(rename = "alone")]
    Storage(StorageId),
}

/// A region by number; all sites without a region share the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RegionId(pub u32);

impl RegionId {
    /// FNV-1a of the name, so that a name has the same number after a restart without a table. A collision
    /// among some dozens of names is as good as impossible, and would only merge two regions. Never the
    /// default region.
    pub fn from_name(name: &str) -> Self {
        let sum =
            name.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        RegionId(sum.max(1))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Topology {
    pub(crate) storages: BTreeMap<StorageId, SiteId>,
    pub(crate) sites: BTreeMap<SiteId, RegionId>,
}

impl Topology {
    pub(crate) fn locality(&self, storage: StorageId) -> Locality {
        self.storages.get(&storage).map_or(Locality::Storage(storage), |&site| Locality::Site(site))
    }

    pub(crate) fn region(&self, home: Locality) -> RegionId {
        match home {
            Locality::Site(site) => self.sites.get(&site).copied().unwrap_or_default(),
            Locality::Storage(_) => RegionId::default(),
        }
    }

    /// Resolves an endpoint; `used` says whether a storage took part in a transfer.
    pub(crate) fn resolve(
        &self,
        place: Endpoint,
        used: impl Fn(StorageId) -> bool,
    ) -> Result<Locality, ObservationError> {
        match place {
            Endpoint::Site(site) if self.sites.contains_key(&site) => Ok(Locality::Site(site)),
            Endpoint::Site(site) => Err(ObservationError::UnknownSite(site)),
            Endpoint::Storage(storage) => match self.locality(storage) {
                Locality::Storage(_) if !used(storage) => Err(ObservationError::UnknownStorage(storage)),
                home => Ok(home),
            },
        }
    }
}
