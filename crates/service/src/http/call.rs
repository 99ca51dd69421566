//! One request on its way to its operation: what was asked, by whom, with which parameters.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use axum::body::Bytes;
use longhaul_api::Problem;
use longhaul_api::routes::{QUERY_VALUE_BYTES_MAX, QueryKind, Route};
use longhaul_model::units::printable;
use longhaul_model::{Lfn, json};
use serde::de::DeserializeOwned;

use longhaul_identity::{Caller, Visitor, not_authenticated};

use super::credential::StreamCredential;
use crate::operations::{AgentPeer, Operations, PageQuery, bad_request, unprocessable};

#[derive(Clone)]
pub struct Call {
    pub route: &'static Route,
    pub caller: Option<Caller>,
    pub agent: Option<AgentPeer>,
    /// Value of the session's cookie, if that is how the caller came.
    pub cookie: Option<String>,
    pub secure: bool,
    /// From where they ask.
    pub visitor: Option<Visitor>,
    pub parameters: BTreeMap<String, String>,
    pub query: BTreeMap<String, String>,
    /// The measurement host that sends, by its own account.
    pub observer: Option<String>,
    pub body: Bytes,
}

impl Call {
    pub fn caller(&self) -> Result<&Caller, Problem> {
        self.caller.as_ref().ok_or_else(|| not_authenticated("no credential was shown"))
    }

    /// The credential that was shown, for what goes on as long as it holds.
    pub fn credential(&self, operations: &Arc<Operations>) -> Result<StreamCredential, Problem> {
        let (caller, cookie) = (self.caller()?.clone(), self.cookie.clone());
        Ok(StreamCredential { operations: operations.clone(), caller, cookie })
    }

    pub fn agent(&self) -> Result<&AgentPeer, Problem> {
        self.agent.as_ref().ok_or_else(|| not_authenticated("no agent's certificate was shown"))
    }

    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        json::from_slice(&self.body)
            .map_err(|error| bad_request(format!("the body: {}", printable(&error.to_string()))))
    }

    pub fn parameter<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, Problem> {
        let text = self.parameters.get(name).map(String::as_str).unwrap_or_default();
        parse(name, text)
    }

    pub fn query<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<Option<T>, Problem> {
        self.query.get(name).filter(|text| !text.is_empty()).map(|text| parse(name, text)).transpose()
    }

    pub fn lfn(&self) -> Result<Lfn, Problem> {
        let text = self.query.get("lfn").ok_or_else(|| bad_request("the parameter lfn is missing"))?;
        text.parse().map_err(|error| unprocessable(printable(&format!("lfn: {error}"))))
    }

    pub fn page(&self) -> Result<PageQuery, Problem> {
        Ok(PageQuery { limit: self.query("limit")?, after: self.query("after")? })
    }
}

/// The query, checked against what the route knows: a misspelt filter must not silently filter nothing.
pub fn parse_query(route: &Route, query: Option<&str>) -> Result<BTreeMap<String, String>, Problem> {
    let uri = format!("/?{}", query.unwrap_or_default());
    let uri: http::Uri = uri.parse().map_err(|_| bad_request("the query is malformed"))?;
    let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&uri)
        .map_err(|error| bad_request(format!("the query: {error}")))?;
    let mut known = BTreeMap::new();
    for (name, value) in pairs.0 {
        let Some(kind) = route.query.iter().find(|query| query.name == name).map(|query| query.kind) else {
            let names: Vec<&str> = route.query.iter().map(|query| query.name).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(bad_request(format!("there is no parameter {}; known: {known}", printable(&name))));
        };
        if value.is_empty() && matches!(kind, QueryKind::Integer(..) | QueryKind::Boolean) {
            return Err(bad_request(format!(
                "the parameter {name} is empty: leave it out, or give its value"
            )));
        }
        if value.len() > QUERY_VALUE_BYTES_MAX {
            return Err(bad_request(format!(
                "the parameter {name} is longer than {QUERY_VALUE_BYTES_MAX} bytes"
            )));
        }
        if known.insert(name.clone(), value).is_some() {
            return Err(bad_request(format!("the parameter {name} is given twice")));
        }
    }
    Ok(known)
}

fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| bad_request(printable(&format!("{name}: {error}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::routes;

    #[test]
    fn a_misspelt_or_repeated_parameter_is_refused() {
        let parse = |query| parse_query(&routes::TRANSFER_LIST, Some(query));
        assert_eq!(parse("state=done&limit=5").unwrap().len(), 2);
        assert!(parse("stat=done").unwrap_err().detail.contains("known: dataset"));
        assert!(parse("limit=").unwrap_err().detail.contains("empty"), "no number is written so");
        assert_eq!(parse("state=").unwrap().len(), 1, "as forms send what nobody chose");
        assert!(parse("limit=1&limit=2").unwrap_err().detail.contains("twice"));
        assert!(parse(&format!("dataset={}", "x".repeat(5_000))).is_err());
        assert_eq!(parse_query(&routes::REPLICA_OF_FILE, Some("lfn=a%2Fb%0A")).unwrap()["lfn"], "a/b\n");
        assert!(parse_query(&routes::STATUS, None).unwrap().is_empty());
    }
}
