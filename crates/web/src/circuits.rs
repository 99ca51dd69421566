//! Routes of the page of circuits.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use longhaul_api::circuits::CircuitRecord;
use longhaul_service::{Operations, PageQuery};

use crate::pages::{self, CircuitsView};
use crate::router::{Shared, page};

/// Circuits that the time lines go back to.
const PAST_MAX: u32 = 1_000;

pub(crate) fn routes() -> Router<Shared> {
    Router::new().route("/ui/circuits", get(circuits))
}

async fn circuits(State(operations): State<Shared>, headers: HeaderMap) -> Response {
    let view = |operations: &Operations| {
        let query = PageQuery { limit: Some(PAST_MAX), after: None };
        let mut past: BTreeMap<String, Vec<CircuitRecord>> = BTreeMap::new();
        for record in operations.circuit_history(&query)?.items {
            past.entry(record.link.clone()).or_default().push(record);
        }
        Ok(CircuitsView {
            links: operations.circuit_list()?.items,
            plan: operations.circuit_plan_lately()?,
            past,
        })
    };
    page(operations, headers, view, pages::circuits).await
}
