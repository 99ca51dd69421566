//! Routes of the circuits page.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use longhaul_api::circuits::CircuitRecord;
use longhaul_service::{Operations, PageQuery};

use crate::pages::{self, CircuitsView};
use crate::router::{AppState, render_page};

/// Past circuits that the time lines show, over all links: a few per link in a large deployment.
const CIRCUIT_HISTORY_MAX: u32 = 1_000;

pub(crate) fn routes() -> Router<AppState> {
    Router::new().route("/ui/circuits", get(circuits))
}

async fn circuits(State(operations): State<AppState>, headers: HeaderMap) -> Response {
    let view = |operations: &Operations| {
        let query = PageQuery { limit: Some(CIRCUIT_HISTORY_MAX), after: None };
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
    render_page(operations, headers, view, pages::circuits).await
}
