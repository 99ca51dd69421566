//! Tokens, idempotency keys and settings.
use crate::*;
use longhaul_model::*;
impl Catalog {
    pub fn add_join_token(
        &self,
        _hash: [u8; 32],
        _site: SiteId,
        _expires: Timestamp,
        _now: Timestamp,
    ) -> Result<(), CatalogError> {
        todo!()
    }
    /// Uses the token up.
    pub fn redeem_join_token(
        &self,
        _hash: [u8; 32],
        _now: Timestamp,
    ) -> Result<Result<SiteRow, JoinRefusal>, CatalogError> {
        todo!()
    }
    pub fn add_api_token(
        &self,
        _hash: [u8; 32],
        _name: &str,
        _role: &str,
        _expires: Option<Timestamp>,
        _now: Timestamp,
    ) -> Result<(), CatalogError> {
        todo!()
    }
    /// Also returns expired ones: the caller knows the time.
    pub fn api_token(&self, _hash: [u8; 32]) -> Result<Option<ApiTokenRow>, CatalogError> {
        todo!()
    }
    pub fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, CatalogError> {
        todo!()
    }
    pub fn remove_api_token(&self, _name: &str) -> Result<bool, CatalogError> {
        todo!()
    }
    pub fn idempotent(&self, _key: &str) -> Result<Option<String>, CatalogError> {
        todo!()
    }
    /// Keeps the reply given first; forgets those older than a day.
    pub fn remember_idempotent(&self, _key: &str, _reply: &str, _now: Timestamp) -> Result<(), CatalogError> {
        todo!()
    }
    pub fn setting(&self, _name: &str) -> Result<Option<String>, CatalogError> {
        todo!()
    }
    pub fn set_setting(&self, _name: &str, _value: &str) -> Result<(), CatalogError> {
        todo!()
    }
    /// The highest stamped id in use, for `IdMaker::after`.
    pub fn last_id(&self) -> Result<u64, CatalogError> {
        todo!()
    }
}
