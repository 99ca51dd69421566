//! Where things are: which site a storage belongs to, which region a site. What is close together is believed
//! to be alike. Told by whoever keeps the catalog; nothing is guessed here.

use std::collections::BTreeMap;

use longhaul_model::{SiteId, StorageId};
use serde::{Deserialize, Serialize};

use crate::observation::{Endpoint, ObservationError};

/// The site of a storage; a storage whose site nobody told stands for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    Site(SiteId),
    #[serde(rename = "alone")]
    Storage(StorageId),
}

/// A region by number; sites whose region nobody told share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RegionId(pub u32);

impl RegionId {
    /// The same for the same name, today and after a restart, so that nobody has to keep a table; that two of
    /// some dozens of names share a number is as good as impossible, and would only make two regions one.
    /// Never that of no region.
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

    /// `used` says whether a storage took part in a transfer.
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
