//! The invariants of the state.
use crate::*;
impl Catalog {
    pub fn check(&self) -> Result<Vec<CheckResult>, CatalogError> {
        todo!()
    }
}
