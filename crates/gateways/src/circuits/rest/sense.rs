//! SENSE-O: an instance with an intent, compiled, provisioned, and cancelled before it is deleted.

use std::path::PathBuf;

use longhaul_circuits::CircuitEndpoints;
use longhaul_model::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{AnswerError, Job, Next, Protocol, Stage, encode_component, no, unexpected};
use crate::circuits::config::Access;
use crate::circuits::remote::{Call, HttpAnswer};

/// Looks at something that was provisioned and is compiled still, before it is provisioned again.
const LOOKS: u32 = 3;
const CONNECTION: &str = "Connection 1";

#[derive(Clone, Debug, PartialEq)]
pub struct SenseConfig {
    /// Up to and with `restapi`, without a slash at its end.
    pub(crate) url: String,
    /// The token endpoint.
    pub(crate) token_url: String,
    pub(crate) client_id: String,
    /// The file with it.
    pub(crate) client_secret: PathBuf,
    pub(crate) username: String,
    /// The file with it.
    pub(crate) password: PathBuf,
    pub(crate) source_uri: String,
    pub(crate) target_uri: String,
    /// `any`, a VLAN or a range of them.
    pub(crate) vlans: String,
    pub(crate) access: Access,
    pub(crate) ends: CircuitEndpoints,
}

pub(crate) struct Sense {
    config: SenseConfig,
    client_secret: Zeroizing<String>,
    password: Zeroizing<String>,
    mark: String,
}

impl Sense {
    pub(crate) fn new(
        config: SenseConfig,
        client_secret: Zeroizing<String>,
        password: Zeroizing<String>,
        link: &str,
    ) -> Sense {
        Sense { config, client_secret, password, mark: format!("longhaul {link}") }
    }

    fn call(&self, method: http::Method, path: &str, body: String) -> Call {
        let headers = match body.is_empty() {
            true => Vec::new(),
            false => vec![("content-type", "application/json".to_owned())],
        };
        Call { method, url: format!("{}{path}", self.config.url), headers, body }
    }

    fn intent(&self, job: &Job) -> Value {
        let terminal = |uri: &str| json!({ "uri": uri, "vlan_tag": self.config.vlans, "assign_ip": false });
        let connection = json!({
            "name": CONNECTION,
            "bandwidth": { "qos_class": "guaranteedCapped", "capacity": job.mbit.to_string() },
            "terminals": [terminal(&self.config.source_uri), terminal(&self.config.target_uri)],
        });
        let until = match job.lifetime {
            Some(lifetime) => format!("+{}m", lifetime.as_secs().div_ceil(60)),
            None => "+24h".to_owned(),
        };
        json!({
            "service": "dnc",
            "alias": format!("{} {}", self.mark, job.key),
            "data": { "type": "Multi-Path P2P VLAN", "connections": [connection] },
            "queries": [{
                "ask": "total-block-maximum-bandwidth",
                "options": [{ "name": CONNECTION, "start": "now", "end-before": until }],
            }],
        })
    }
}

/// Above and below: `CREATE - READY`. Words are matched by their beginning and end, for there may be more
/// between.
struct Status {
    above: String,
    below: String,
}

impl Status {
    fn from_answer(heard: &HttpAnswer) -> Option<Status> {
        let text = heard.body.trim().trim_matches('"').to_uppercase();
        let (above, below) = text.split_once('-')?;
        Some(Status { above: above.trim().to_owned(), below: below.trim().to_owned() })
    }

    fn is_cancelled(&self) -> bool {
        self.above.starts_with("CANCEL")
    }

    fn is(&self, below: &str) -> bool {
        self.below.ends_with(below)
    }
}

/// The largest free bandwidth, in Mbit/s; the answer is in bit/s.
fn free_mbit(answer: &Value) -> Option<u64> {
    let results = answer["queries"]
        .as_array()?
        .iter()
        .flat_map(|query| query["results"].as_array().into_iter().flatten());
    let bits = results.filter_map(|result| {
        let told = &result["bandwidth"];
        told.as_f64().or_else(|| told.as_str()?.trim().parse().ok())
    });
    bits.filter(|bits: &f64| bits.is_finite() && *bits >= 0.0).map(|bits| (bits / 1e6) as u64).min()
}

impl Protocol for Sense {
    fn login(&self) -> Option<Call> {
        let form: Vec<String> = [
            ("grant_type", "password"),
            ("client_id", &self.config.client_id),
            ("client_secret", &self.client_secret),
            ("username", &self.config.username),
            ("password", &self.password),
        ]
        .into_iter()
        .map(|(name, value)| format!("{name}={}", encode_component(value)))
        .collect();
        Some(Call {
            method: http::Method::POST,
            url: self.config.token_url.clone(),
            headers: vec![("content-type", "application/x-www-form-urlencoded".to_owned())],
            body: form.join("&"),
        })
    }

    fn token(&self, heard: &HttpAnswer) -> Result<String, AnswerError> {
        let answer: Value = serde_json::from_str(&heard.body).unwrap_or_default();
        let token = answer["access_token"].as_str().filter(|token| {
            heard.status == 200 && token.len() < 16_384 && token.bytes().all(|byte| byte.is_ascii_graphic())
        });
        token.map(str::to_owned).ok_or(AnswerError::NoToken { status: heard.status })
    }

    fn authorise(&self, token: &str) -> (&'static str, String) {
        ("authorization", format!("Bearer {token}"))
    }

    fn next_call(&self, job: &Job, _there: Timestamp) -> Call {
        let name = encode_component(job.name.as_deref().unwrap_or_default());
        let put =
            |what: &str| self.call(http::Method::PUT, &format!("/instance/{name}/{what}"), String::new());
        match job.stage {
            Stage::Name | Stage::Availability | Stage::Path => {
                self.call(http::Method::GET, "/instance", String::new())
            }
            Stage::Hold => {
                self.call(http::Method::POST, &format!("/instance/{name}"), self.intent(job).to_string())
            }
            Stage::Commit => put("provision?sync=false&intent=last"),
            Stage::Settle => {
                self.call(http::Method::GET, &format!("/instance/{name}/status/configuration"), String::new())
            }
            Stage::Cancel => put("cancel?sync=false&force=true"),
            Stage::Remove => put("delete"),
            Stage::Wait | Stage::Up | Stage::Examine => self.examine(job.name.as_deref().unwrap_or_default()),
        }
    }

    fn examine(&self, name: &str) -> Call {
        self.call(http::Method::GET, &format!("/instance/{}/status", encode_component(name)), String::new())
    }

    fn hear(&self, job: &mut Job, heard: &HttpAnswer, _skew: i64) -> Next {
        match (job.stage, heard.status) {
            (Stage::Name, 200) => Next::Named(heard.body.trim().trim_matches('"').to_owned(), Stage::Hold),
            (Stage::Hold, 200) => compiled(job, heard),
            // Licences that are used up come this way too.
            (Stage::Hold, _) => no(heard, heard.status == 403),
            // What came of it is looked at, whatever was said.
            (Stage::Commit, _) => Next::Go(Stage::Wait),
            (Stage::Cancel | Stage::Remove, _) => Next::Later(Stage::Examine),
            (Stage::Examine | Stage::Wait | Stage::Settle | Stage::Up, 404) => Next::Gone,
            (Stage::Wait | Stage::Up, 200) => waited(job, heard),
            (Stage::Settle, 200) => match heard.body.trim().trim_matches('"') {
                "STABLE" => Next::Granted,
                "EXPIRED" => Next::Refused { less: false, detail: "it has expired".to_owned() },
                _ => Next::Unchanged,
            },
            (Stage::Examine, 200) => examined(heard),
            _ => no(heard, false),
        }
    }

    fn is_up(&self, heard: &HttpAnswer) -> Result<Option<bool>, AnswerError> {
        match (heard.status, Status::from_answer(heard)) {
            (404, _) => Ok(None),
            (200, Some(status)) if status.is_cancelled() && status.is("READY") => Ok(None),
            (200, Some(status)) => Ok(Some(!status.is_cancelled() && status.is("READY"))),
            _ => Err(unexpected(heard)),
        }
    }

    fn ends(&self) -> CircuitEndpoints {
        self.config.ends.clone()
    }
}

fn compiled(job: &Job, heard: &HttpAnswer) -> Next {
    let Ok(answer @ Value::Object(_)) = serde_json::from_str::<Value>(&heard.body) else {
        return Next::Unclear("the intent's answer makes no sense".to_owned());
    };
    match free_mbit(&answer) {
        Some(free) if free < job.mbit => {
            Next::Refused { less: true, detail: format!("there are {free} Mbit/s") }
        }
        _ => Next::Go(Stage::Commit),
    }
}

fn waited(job: &Job, heard: &HttpAnswer) -> Next {
    let Some(status) = Status::from_answer(heard) else {
        return Next::Unclear(unexpected(heard).to_string());
    };
    match () {
        () if status.is_cancelled() => Next::Refused { less: false, detail: "it was cancelled".to_owned() },
        () if status.is("FAILED") => Next::Refused { less: true, detail: "it could not be built".to_owned() },
        () if status.is("READY") => Next::Go(Stage::Settle),
        () if status.is("COMPILED") && job.polls >= LOOKS => Next::Go(Stage::Commit),
        () => Next::Unchanged,
    }
}

fn examined(heard: &HttpAnswer) -> Next {
    let Some(status) = Status::from_answer(heard) else {
        return Next::Unclear(unexpected(heard).to_string());
    };
    match () {
        () if status.is("COMPILED") || (status.is_cancelled() && status.is("READY")) => {
            Next::Go(Stage::Remove)
        }
        () if status.is_cancelled() && !status.is("FAILED") => Next::Unchanged,
        () => Next::Go(Stage::Cancel),
    }
}
