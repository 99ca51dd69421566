//! OSCARS 1.x: a VLAN at a port of each site and a pipe between the two devices, held, then committed.

use std::path::PathBuf;
use std::time::Duration;

use longhaul_circuits::CircuitEndpoints;
use longhaul_model::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{AnswerError, Job, Next, Protocol, Stage, encode_component, no, unexpected};
use crate::circuits::config::Access;
use crate::circuits::remote::{Call, HttpAnswer};

/// It wants an end; what is not limited is asked for a day.
const LIFETIME: Duration = Duration::from_secs(86_400);
/// Devices and ports of a way through a network.
const ROUTE_MAX: usize = 300;
const VLANS_MAX: usize = 4_096;
/// Looks at something that was committed and is held still, before it is committed again.
const LOOKS: u32 = 3;

#[derive(Clone, Debug, PartialEq)]
pub struct OscarsConfig {
    /// Without a slash at its end.
    pub(crate) url: String,
    /// An account; none has a token that was given from outside.
    pub(crate) username: Option<String>,
    /// The file with the account's password, or with the token.
    pub(crate) secret: PathBuf,
    /// How the token is shown: `Authentication`, or `Authorization` as a bearer.
    pub(crate) is_bearer: bool,
    /// As `device:port`, and the VLANs that the site's own network has there.
    pub(crate) source_port: String,
    pub(crate) target_port: String,
    pub(crate) vlans: String,
    pub(crate) access: Access,
    pub(crate) ends: CircuitEndpoints,
}

pub(crate) struct Oscars {
    config: OscarsConfig,
    secret: Zeroizing<String>,
    mark: String,
}

impl Oscars {
    pub(crate) fn new(config: OscarsConfig, secret: Zeroizing<String>, link: &str) -> Oscars {
        Oscars { config, secret, mark: format!("longhaul {link}") }
    }

    fn call(&self, method: http::Method, path: &str, kind: &str, body: String) -> Call {
        let headers = match body.is_empty() {
            true => Vec::new(),
            false => vec![("content-type", kind.to_owned())],
        };
        Call { method, url: format!("{}{path}", self.config.url), headers, body }
    }

    fn get(&self, path: &str) -> Call {
        self.call(http::Method::GET, path, "", String::new())
    }

    fn post(&self, path: &str, value: &Value) -> Call {
        self.call(http::Method::POST, path, "application/json", value.to_string())
    }

    fn post_name(&self, path: &str, name: &str) -> Call {
        self.call(http::Method::POST, path, "text/plain", name.to_owned())
    }

    fn span(job: &Job, there: Timestamp) -> (i64, i64) {
        let begin = there.0.div_euclid(1_000_000);
        let lifetime = job.lifetime.unwrap_or(LIFETIME).as_secs();
        (begin, begin.saturating_add_unsigned(lifetime))
    }

    fn hold(&self, job: &Job, name: &str, there: Timestamp) -> Value {
        let (begin, end) = Oscars::span(job, there);
        let (a, z) = (device(&self.config.source_port), device(&self.config.target_port));
        let (source_vlan, target_vlan) = job.vlans.unwrap_or_default();
        let fixture = |port: &str, vlan: u16| {
            json!({ "junction": device(port), "port": port, "vlan": vlan,
            "mbps": job.mbit, "strict": true })
        };
        let (junctions, pipes) = match a == z {
            true => (json!([{ "device": a }]), json!([])),
            false => (
                json!([{ "device": a }, { "device": z }]),
                json!([{ "a": a, "z": z, "azMbps": job.mbit, "zaMbps": job.mbit, "protect": true,
                    "ero": job.route }]),
            ),
        };
        json!({
            "connectionId": name,
            "begin": begin,
            "end": end,
            "mode": "AUTOMATIC",
            "description": format!("{} {}", self.mark, job.key),
            "tags": [],
            "junctions": junctions,
            "pipes": pipes,
            "fixtures": [fixture(&self.config.source_port, source_vlan), fixture(&self.config.target_port,
                target_vlan)],
        })
    }

    /// The lowest VLAN that is free and ours, at each end; and the least bandwidth of both.
    fn choose(&self, job: &mut Job, free: &Value) -> Next {
        let mut chosen = Vec::new();
        for port in [&self.config.source_port, &self.config.target_port] {
            let Some(there) = free.get(port) else {
                let detail = format!("the provider has no port {port}");
                return Next::Refused { less: false, detail };
            };
            let wanted = vlans(&self.config.vlans).unwrap_or_default();
            let free = there["vlanExpression"].as_str().and_then(vlans).unwrap_or_default();
            let Some(vlan) = wanted.into_iter().find(|vlan| free.contains(vlan)) else {
                let detail = format!("no VLAN of {} is free at {port}", self.config.vlans);
                return Next::Refused { less: false, detail };
            };
            chosen.push(vlan);
            let widths = ["ingressBandwidth", "egressBandwidth"].map(|name| there[name].as_u64());
            let left = widths.into_iter().flatten().min();
            if let Some(left) = left.filter(|left| *left < job.mbit) {
                return Next::Refused { less: true, detail: format!("there are {left} Mbit/s at {port}") };
            }
        }
        job.vlans = chosen.first().copied().zip(chosen.last().copied());
        Next::Go(Stage::Path)
    }
}

/// `1780-1787,1790`
pub(crate) fn vlans(text: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').or_else(|| part.split_once(':')).unwrap_or((part, part));
        all.extend(from.trim().parse::<u16>().ok()?..=to.trim().parse::<u16>().ok()?);
        if all.len() > VLANS_MAX {
            return None;
        }
    }
    Some(all)
}

fn device(port: &str) -> &str {
    port.split(':').next().unwrap_or(port)
}

fn route(answer: &Value) -> Option<Vec<String>> {
    let hops = answer["fits"]["azEro"].as_array()?;
    let route: Option<Vec<String>> = hops.iter().map(|hop| hop["urn"].as_str().map(str::to_owned)).collect();
    // Device, port, and then three more for each hop.
    route.filter(|route| route.len() <= ROUTE_MAX && route.len() % 3 == 1)
}

/// The state of the part that counts in this phase.
fn granted(connection: &Value, job: &mut Job, skew: i64) {
    let part = &connection["reserved"];
    let fixtures = part["cmp"]["fixtures"].as_array();
    let widths = fixtures.into_iter().flatten().filter_map(|fixture| {
        let one = fixture["ingressBandwidth"].as_u64();
        one.into_iter().chain(fixture["egressBandwidth"].as_u64()).min()
    });
    if let Some(mbit) = widths.min() {
        job.mbit = mbit;
    }
    let end = part["schedule"]["ending"].as_f64().filter(|end| (0.0..1e11).contains(end));
    if let Some(end) = end {
        job.end = Some(Timestamp(((end * 1e6) as i64).saturating_sub(skew)));
    }
}

impl Protocol for Oscars {
    fn login(&self) -> Option<Call> {
        let username = self.config.username.as_ref()?;
        let body = json!({ "username": username, "password": *self.secret });
        Some(self.post("/api/account/login", &body))
    }

    fn token(&self, heard: &HttpAnswer) -> Result<String, AnswerError> {
        let answer: Value = serde_json::from_str(&heard.body).unwrap_or_default();
        let token = answer["token"].as_str().filter(|token| {
            heard.status == 200 && token.len() < 8_192 && token.bytes().all(|byte| byte.is_ascii_graphic())
        });
        token.map(str::to_owned).ok_or(AnswerError::NoToken { status: heard.status })
    }

    fn given_token(&self) -> Option<String> {
        self.config.username.is_none().then(|| self.secret.to_string())
    }

    fn authorise(&self, token: &str) -> (&'static str, String) {
        match self.config.is_bearer {
            true => ("authorization", format!("Bearer {token}")),
            false => ("authentication", token.to_owned()),
        }
    }

    fn next_call(&self, job: &Job, there: Timestamp) -> Call {
        let name = job.name.as_deref().unwrap_or_default();
        let (begin, end) = Oscars::span(job, there);
        match job.stage {
            Stage::Availability => {
                self.post("/api/topo/available", &json!({ "beginning": begin, "ending": end }))
            }
            Stage::Path => {
                let (a, z) = (device(&self.config.source_port), device(&self.config.target_port));
                let interval = json!({ "beginning": begin, "ending": end });
                let body = json!({ "interval": interval, "a": a, "z": z, "azBw": job.mbit, "zaBw": job.mbit,
                    "include": [], "exclude": [] });
                self.post("/api/pce/paths", &body)
            }
            Stage::Hold => self.post("/protected/hold", &self.hold(job, name, there)),
            Stage::Commit => self.post_name("/protected/conn/commit", name),
            Stage::Remove => self.post_name("/protected/conn/release", name),
            Stage::Cancel => self.get(&format!("/protected/held/clear/{}", encode_component(name))),
            Stage::Wait | Stage::Settle | Stage::Up | Stage::Examine => self.examine(name),
            Stage::Name => self.get("/protected/conn/generateId"),
        }
    }

    fn examine(&self, name: &str) -> Call {
        self.get(&format!("/api/conn/info/{}", encode_component(name)))
    }

    fn hear(&self, job: &mut Job, heard: &HttpAnswer, skew: i64) -> Next {
        let answer = || serde_json::from_str::<Value>(&heard.body).unwrap_or_default();
        match (job.stage, heard.status) {
            (Stage::Name, 200) => {
                Next::Named(heard.body.trim().trim_matches('"').to_owned(), Stage::Availability)
            }
            (Stage::Availability, 200) => match answer() {
                free @ Value::Object(_) => self.choose(job, &free),
                _ => Next::Unclear("what is free is not told".to_owned()),
            },
            (Stage::Path, 200) => match route(&answer()) {
                Some(found) => {
                    job.route = found;
                    Next::Go(Stage::Hold)
                }
                None if answer()["fits"].is_null() && answer().is_object() => {
                    Next::Refused { less: true, detail: "there is no way with so much bandwidth".to_owned() }
                }
                None => Next::Unclear("the way makes no sense".to_owned()),
            },
            (Stage::Hold, 200) => match answer()["phase"].as_str() {
                Some("HELD") => Next::Go(Stage::Commit),
                _ => Next::Unclear("it is not held".to_owned()),
            },
            (Stage::Hold, _) => no(heard, true),
            // What came of it is looked at, whatever was said.
            (Stage::Commit, _) => Next::Go(Stage::Wait),
            (Stage::Cancel | Stage::Remove, _) => Next::Later(Stage::Examine),
            (Stage::Wait | Stage::Settle | Stage::Up, 200) => waited(job, &answer(), skew),
            (Stage::Examine, 200) => match answer()["phase"].as_str() {
                Some("ARCHIVED") => Next::Gone,
                Some("HELD") => Next::Go(Stage::Cancel),
                Some("RESERVED") => Next::Go(Stage::Remove),
                _ => Next::Unclear("its phase is not told".to_owned()),
            },
            // Named, and nothing was done under the name.
            (Stage::Examine | Stage::Wait | Stage::Up, 404) => Next::Gone,
            _ => no(heard, false),
        }
    }

    fn is_up(&self, heard: &HttpAnswer) -> Result<Option<bool>, AnswerError> {
        let answer: Value = serde_json::from_str(&heard.body).unwrap_or_default();
        match (heard.status, answer["phase"].as_str()) {
            (404, _) | (200, Some("ARCHIVED")) => Ok(None),
            (200, Some(_)) => Ok(Some(is_active(&answer))),
            _ => Err(unexpected(heard)),
        }
    }

    fn ends(&self) -> CircuitEndpoints {
        self.config.ends.clone()
    }
}

fn is_active(connection: &Value) -> bool {
    let deployment = connection["deploymentState"].as_str();
    connection["phase"] == "RESERVED"
        && connection["state"] == "ACTIVE"
        && deployment.is_none_or(|state| state == "DEPLOYED")
}

fn waited(job: &mut Job, connection: &Value, skew: i64) -> Next {
    if is_active(connection) {
        granted(connection, job, skew);
        return Next::Granted;
    }
    let failed = connection["state"] == "FAILED" || connection["deploymentState"] == "DEPLOY_FAILED";
    match connection["phase"].as_str() {
        _ if failed => Next::Refused { less: false, detail: "it could not be built".to_owned() },
        Some("ARCHIVED") => Next::Refused { less: false, detail: "it has ended".to_owned() },
        Some("HELD") if job.polls >= LOOKS => Next::Go(Stage::Commit),
        Some(_) => Next::Unchanged,
        None => Next::Unclear("its phase is not told".to_owned()),
    }
}
