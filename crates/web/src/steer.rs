//! Routes of the Steer page: shares, limits, links, and the source strategy of storages.

use axum::Router;
use axum::extract::{Form, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use longhaul_api::limits::{LimitChange, LimitKind};
use longhaul_api::steering::{AllowedLink, DecisionEntry, LinksChange, LinksSet, ShareChange, StorageChange};
use longhaul_api::{Problem, routes as api};
use longhaul_model::units::{parse_bytes, printable};
use longhaul_model::{Fault, FaultCode, StorageName};
use longhaul_service::{Operations, PageQuery};
use serde::Deserialize;

use crate::pages::{self, SteerView};
use crate::router::{AppState, apply_change, caller, parse, render_page};

/// The page itself, and where its forms return to.
const STEER_PATH: &str = "/ui/steer";
/// Latest changes and refusals shown on the page; the command line lists the rest.
const AUDIT_ROWS_SHOWN: u32 = 12;
/// Storages that the page lists: more do not fit a page that people can use.
const STORAGES_MAX: u32 = 1_000;

pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route(STEER_PATH, get(steer))
        .route("/ui/steer/share", post(set_share))
        .route("/ui/steer/limit", post(set_limit))
        .route("/ui/steer/link", post(change_link))
        .route("/ui/steer/storage", post(change_storage))
}

async fn steer(State(operations): State<AppState>, headers: HeaderMap) -> Response {
    let of = headers.clone();
    let view = move |operations: &Operations| {
        let who = caller(operations, &of)?;
        let rows = |limit| PageQuery { limit: Some(limit), after: None };
        Ok(SteerView {
            shares: operations.share_list()?.items,
            limits: operations.limit_list()?.items,
            links: operations.link_list()?,
            storages: operations.storage_list(&rows(STORAGES_MAX))?.items,
            strategies: Operations::strategies(),
            audit: operations.audit_list(&who, Some("changes"), &rows(AUDIT_ROWS_SHOWN))?.items,
            refused: refused(operations, &of, &rows(AUDIT_ROWS_SHOWN))?,
        })
    };
    render_page(operations, headers, view, pages::steer).await
}

/// Recent refusals: all for administrators, since they name people and jobs of all communities; those at
/// their sites for managers.
fn refused(
    operations: &Operations,
    headers: &HeaderMap,
    query: &PageQuery,
) -> Result<Option<Vec<DecisionEntry>>, Problem> {
    let who = caller(operations, headers)?;
    if who.may_open(&api::DECISION_LIST).is_err() {
        return Ok(None);
    }
    Ok(Some(operations.decision_list(&who, Some("refused"), None, None, query)?.items))
}

/// A field of a form without surrounding space; None if it is empty.
fn non_empty(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

fn bad_field(what: &str, error: impl std::fmt::Display) -> Problem {
    Fault::new(FaultCode::BadRequest, printable(&format!("{what}: {error}"))).into()
}

fn parse_number<T: std::str::FromStr<Err: std::fmt::Display>>(
    what: &str,
    text: &str,
) -> Result<Option<T>, Problem> {
    non_empty(text).map(|text| text.parse().map_err(|error: T::Err| bad_field(what, error))).transpose()
}

#[derive(Deserialize)]
pub(crate) struct ShareForm {
    form_token: String,
    community: String,
    #[serde(default)]
    activity: String,
    /// Empty removes the share.
    weight: String,
}

impl ShareForm {
    pub(crate) fn change(&self) -> Result<ShareChange, Problem> {
        Ok(ShareChange {
            community: self.community.trim().to_owned(),
            activity: non_empty(&self.activity).map(str::to_owned),
            weight: parse_number("weight", &self.weight)?,
        })
    }
}

async fn set_share(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Form(form): Form<ShareForm>,
) -> Response {
    let (who, token) = (headers.clone(), form.form_token.clone());
    let act =
        move |operations: &Operations| operations.share_set(&caller(operations, &who)?, &form.change()?);
    apply_change(operations, headers, &token, &api::SHARE_SET, STEER_PATH.into(), act).await
}

#[derive(Deserialize)]
pub(crate) struct LimitForm {
    form_token: String,
    of: LimitKind,
    name: String,
    /// Empty means no limit on parallel files.
    active: String,
    /// Empty means no rate limit.
    rate: String,
}

impl LimitForm {
    pub(crate) fn change(&self) -> Result<LimitChange, Problem> {
        let rate = non_empty(&self.rate).map(|text| text.strip_suffix("/s").unwrap_or(text));
        Ok(LimitChange {
            of: self.of,
            name: self.name.trim().to_owned(),
            active: parse_number("parallel files", &self.active)?,
            bytes_per_s: rate
                .map(|text| parse_bytes(text).map_err(|error| bad_field("rate", error)))
                .transpose()?,
        })
    }
}

async fn set_limit(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Form(form): Form<LimitForm>,
) -> Response {
    let (who, token) = (headers.clone(), form.form_token.clone());
    let act =
        move |operations: &Operations| operations.limit_set(&caller(operations, &who)?, &form.change()?);
    apply_change(operations, headers, &token, &api::LIMIT_SET, STEER_PATH.into(), act).await
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LinkAct {
    /// Allows this link alone; others can be added later.
    Only,
    Add,
    Remove,
    OpenAll,
    Commission,
    Decommission,
}

#[derive(Deserialize)]
pub(crate) struct LinkForm {
    form_token: String,
    act: LinkAct,
    #[serde(default)]
    source: String,
    #[serde(default)]
    target: String,
}

impl LinkForm {
    pub(crate) fn link(&self) -> Result<Vec<AllowedLink>, Problem> {
        let (source, target) = (parse::<StorageName>(&self.source)?, parse::<StorageName>(&self.target)?);
        Ok(vec![AllowedLink { source, target }])
    }
}

async fn change_link(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Form(form): Form<LinkForm>,
) -> Response {
    let (who, token) = (headers.clone(), form.form_token.clone());
    let act = move |operations: &Operations| {
        let caller = caller(operations, &who)?;
        let mut change = LinksChange::default();
        match form.act {
            LinkAct::OpenAll => return operations.link_set(&caller, &LinksSet { links: None }),
            LinkAct::Only => return operations.link_set(&caller, &LinksSet { links: Some(form.link()?) }),
            LinkAct::Add => change.add = form.link()?,
            LinkAct::Remove => change.remove = form.link()?,
            LinkAct::Commission => change.commission = form.link()?,
            LinkAct::Decommission => change.decommission = form.link()?,
        }
        operations.link_change(&caller, &change)
    };
    apply_change(operations, headers, &token, &api::LINK_CHANGE, STEER_PATH.into(), act).await
}

#[derive(Deserialize)]
pub(crate) struct StorageForm {
    form_token: String,
    storage: String,
    strategy: String,
    relay: bool,
}

async fn change_storage(
    State(operations): State<AppState>,
    headers: HeaderMap,
    Form(form): Form<StorageForm>,
) -> Response {
    let (who, token) = (headers.clone(), form.form_token.clone());
    let act = move |operations: &Operations| {
        let patch =
            StorageChange { relay: Some(form.relay), strategy: Some(form.strategy), space_policy: None };
        operations.storage_change(&caller(operations, &who)?, &parse(&form.storage)?, &patch)
    };
    apply_change(operations, headers, &token, &api::STORAGE_CHANGE, STEER_PATH.into(), act).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_parsed_as_people_write_it() {
        let of = |active: &str, rate: &str| {
            let form = LimitForm {
                form_token: String::new(),
                of: LimitKind::Into,
                name: " beta ".into(),
                active: active.into(),
                rate: rate.into(),
            };
            form.change().map(|change| (change.name, change.active, change.bytes_per_s))
        };
        assert_eq!(of("", "").unwrap(), ("beta".into(), None, None));
        assert_eq!(of("0", " 250 MB/s").unwrap(), ("beta".into(), Some(0), Some(250_000_000)));
        assert!(of("-1", "").unwrap_err().to_string().contains("parallel files"));
        assert!(of("1", "fast").unwrap_err().to_string().contains("rate"));
    }

    #[test]
    fn a_share_without_a_weight_is_removed() {
        let of = |weight: &str| {
            let (form_token, community) = (String::new(), "atlas".into());
            ShareForm { form_token, community, activity: " ".into(), weight: weight.into() }.change()
        };
        assert_eq!(of("").unwrap().weight, None);
        let change = of(" 2.5 ").unwrap();
        assert_eq!((change.weight, change.activity), (Some(2.5), None));
        assert!(of("much").unwrap_err().to_string().contains("weight"));
    }
}
