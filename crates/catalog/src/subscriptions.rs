//! Standing wishes and what they lack.
use crate::*;
use longhaul_model::*;
impl Catalog {
    /// If the same thing is subscribed at the same storage already, that subscription is returned unchanged.
    pub fn add_subscription(
        &self,
        _new: &NewSubscription,
        _now: Timestamp,
    ) -> Result<SubscriptionChanged, CatalogError> {
        todo!()
    }
    /// Suspending and cancelling drop the demands and cancel the transfers that serve nobody else.
    pub fn change_subscription(
        &self,
        _id: SubscriptionId,
        _patch: &SubscriptionPatch,
        _now: Timestamp,
    ) -> Result<SubscriptionChanged, CatalogError> {
        todo!()
    }
    pub fn subscription(&self, _id: SubscriptionId) -> Result<Option<SubscriptionRow>, CatalogError> {
        todo!()
    }
    pub fn subscriptions(&self, _filter: &SubscriptionFilter) -> Result<Vec<SubscriptionRow>, CatalogError> {
        todo!()
    }
    pub fn subscription_progress(&self, _id: SubscriptionId) -> Result<SubscriptionProgress, CatalogError> {
        todo!()
    }
    /// Everything that active subscriptions lack, per block.
    pub fn demands(&self) -> Result<Vec<DemandRow>, CatalogError> {
        todo!()
    }
}
