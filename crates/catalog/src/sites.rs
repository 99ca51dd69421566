//! Sites, agents and storages.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// The site of that name, made if need be; says whether it was made.
    pub fn add_site(&self, _name: &SiteName, _now: Timestamp) -> Result<(SiteRow, bool), CatalogError> {
        todo!()
    }
    pub fn sites(&self) -> Result<Vec<SiteRow>, CatalogError> {
        todo!()
    }
    pub fn site(&self, _name: &SiteName) -> Result<Option<SiteRow>, CatalogError> {
        todo!()
    }
    pub fn change_site(&self, _name: &SiteName, _patch: &SitePatch) -> Result<SiteRow, CatalogError> {
        todo!()
    }
    pub fn add_agent(
        &self,
        _id: AgentId,
        _site: SiteId,
        _host: &str,
        _certificate_expires: Timestamp,
        _now: Timestamp,
    ) -> Result<(), CatalogError> {
        todo!()
    }
    pub fn agents(&self) -> Result<Vec<AgentRow>, CatalogError> {
        todo!()
    }
    pub fn agent(&self, _id: AgentId) -> Result<Option<AgentRow>, CatalogError> {
        todo!()
    }
    /// Records who the agent is this time and its storages. Refused with `StaleIncarnation` if a newer start,
    /// or another one of the same number, was accepted before; with `Conflict` if a storage is another site's.
    pub fn agent_hello(
        &self,
        _id: AgentId,
        _incarnation: Incarnation,
        _host: &str,
        _version: &str,
        _addresses: &[String],
        _storages: &[StorageOfferRow],
        _now: Timestamp,
    ) -> Result<Vec<StorageRow>, CatalogError> {
        todo!()
    }
    pub fn set_agent_certificate(&self, _id: AgentId, _expires: Timestamp) -> Result<(), CatalogError> {
        todo!()
    }
    /// Sequence number up to which the agent's entries are applied.
    pub fn acknowledged(&self, _id: AgentId) -> Result<u64, CatalogError> {
        todo!()
    }
    pub fn storages(&self) -> Result<Vec<StorageRow>, CatalogError> {
        todo!()
    }
    pub fn storage(&self, _name: &StorageName) -> Result<Option<StorageRow>, CatalogError> {
        todo!()
    }
    pub fn record_spaces(&self, _spaces: &[SpaceRow]) -> Result<(), CatalogError> {
        todo!()
    }
}
