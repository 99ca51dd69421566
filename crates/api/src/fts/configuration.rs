//! Objects under `/config` and `/ban`: their fields, checks and replies.

use std::collections::BTreeMap;

use longhaul_model::job::storage_element;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Level, Moment, Refusal};

/// What happens to the jobs of a banned storage or person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BanStatus {
    /// Queued jobs are cancelled, new ones refused.
    #[serde(rename = "CANCEL")]
    Cancel,
    /// Queued jobs wait, new ones are refused.
    #[serde(rename = "WAIT")]
    Wait,
    /// Queued jobs wait, and so do new ones.
    #[serde(rename = "WAIT_AS")]
    WaitAndSubmit,
}

/// A banned storage or person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ban {
    /// Storage element of the storage, or DN of the person.
    pub who: String,
    /// Reason for the ban, for people.
    pub message: Option<String>,
    /// Time of the ban, in seconds since 1970.
    pub since: i64,
    /// DN of the administrator who banned it.
    pub admin_dn: String,
    /// VO whose jobs are banned; `*` means all. Used for storages only.
    pub vo: String,
    /// What happens to the jobs.
    pub status: BanStatus,
}

impl Ban {
    /// Parses a request to ban a storage: its storage element, the status and a message.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn storage(body: &Map<String, Value>) -> Result<(String, BanStatus, Option<String>), Refusal> {
        let text = |name: &str| body.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let storage = text("storage").ok_or_else(|| Refusal::bad("Missing storage parameter"))?;
        let storage = storage_element(storage).unwrap_or_else(|| storage.to_owned());
        let allow_submit = flag(body.get("allow_submit"));
        let status = match (text("status").unwrap_or("cancel").to_ascii_lowercase().as_str(), allow_submit) {
            ("cancel", false) => BanStatus::Cancel,
            ("cancel", true) => {
                return Err(Refusal::bad("allow_submit and status = CANCEL can not be combined"));
            }
            ("wait", false) => BanStatus::Wait,
            ("wait", true) => BanStatus::WaitAndSubmit,
            _ => return Err(Refusal::bad("status can only be cancel or wait")),
        };
        Ok((bounded("storage", &storage, 255)?, status, message(text("message"))?))
    }

    /// Parses a request to ban a person: the DN and a message.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn person(body: &Map<String, Value>) -> Result<(String, Option<String>), Refusal> {
        let text = |name: &str| body.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let dn = text("user_dn").ok_or_else(|| Refusal::bad("Missing user_dn parameter"))?;
        Ok((bounded("user_dn", dn, 1_024)?, message(text("message"))?))
    }

    /// The ban of a storage, as FTS lists it.
    pub fn storage_view(&self) -> Value {
        json!({ "se": self.who, "message": self.message, "addition_time": self.at(),
            "admin_dn": self.admin_dn,
            "vo": self.vo, "status": self.status })
    }

    /// The ban of a person, as FTS lists it.
    pub fn person_view(&self) -> Value {
        json!({ "dn": self.who, "message": self.message, "addition_time": self.at(),
            "admin_dn": self.admin_dn,
            "status": self.status })
    }

    fn at(&self) -> Moment {
        Moment(longhaul_model::Timestamp::from_seconds(self.since))
    }
}

fn flag(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(text)) => {
            matches!(text.to_ascii_lowercase().as_str(), "true" | "1" | "yes" | "on")
        }
        Some(Value::Number(number)) => number.as_i64() != Some(0),
        _ => false,
    }
}

fn message(text: Option<&str>) -> Result<Option<String>, Refusal> {
    text.map(|text| bounded("message", text, 1_024)).transpose()
}

fn bounded(name: &str, text: &str, most: usize) -> Result<String, Refusal> {
    if text.len() > most || text.chars().any(char::is_control) {
        return Err(Refusal::bad(format!("{name} has control characters or more than {most} bytes")));
    }
    Ok(text.to_owned())
}

/// Type that a field must have.
#[derive(Clone, Copy)]
enum Kind {
    Int,
    Bool,
    Text,
    Float,
}

/// Checks the fields of a body; nulls are skipped, unknown fields refused.
fn known(body: &Map<String, Value>, fields: &[(&str, Kind)]) -> Result<Map<String, Value>, Refusal> {
    let mut checked = Map::new();
    for (name, value) in body {
        let shown: String = name.chars().take(40).collect();
        let Some((_, kind)) = fields.iter().find(|(field, _)| field == name) else {
            return Err(Refusal::bad(format!("Field {} unknown", longhaul_model::units::printable(&shown))));
        };
        let (fits, wanted) = match (kind, value) {
            (_, Value::Null) => continue,
            (Kind::Int, value) => (value.as_i64().is_some(), "int"),
            (Kind::Bool, value) => (value.is_boolean(), "bool"),
            (Kind::Float, value) => (value.is_number(), "float"),
            (Kind::Text, value) => (value.as_str().is_some_and(|text| text.len() <= 1_024), "str"),
        };
        if !fits {
            return Err(Refusal::bad(format!("Field {name} is expected to be {wanted}")));
        }
        checked.insert(name.clone(), value.clone());
    }
    Ok(checked)
}

fn typed<T: for<'de> Deserialize<'de>>(checked: Map<String, Value>) -> Result<T, Refusal> {
    serde_json::from_value(Value::Object(checked))
        .map_err(|error| Refusal::bad(format!("Malformed configuration: {error}")))
}

/// Settings of a pair of storages, or of a storage with all others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSettings {
    /// Name of the entry, unique.
    pub symbolicname: String,
    /// Source storage element; `*` means any.
    #[serde(default = "any")]
    pub source: String,
    /// Target storage element; `*` means any.
    #[serde(default = "any")]
    pub destination: String,
    /// Fewest copies at the same time, at least 1.
    #[serde(default = "two")]
    pub min_active: u32,
    /// Most copies at the same time, at least `min_active`.
    #[serde(default = "two")]
    pub max_active: u32,
    /// Mode of FTS's optimizer, 0 to 3.
    #[serde(default)]
    pub optimizer_mode: u8,
    /// TCP buffer in bytes; 0 for the default.
    #[serde(default)]
    pub tcp_buffer_size: u64,
    /// TCP streams of a copy; 0 for the default.
    #[serde(default)]
    pub nostreams: u32,
    /// True: do not delegate credentials to the storages.
    #[serde(default)]
    pub no_delegation: bool,
}

fn any() -> String {
    "*".to_owned()
}

fn two() -> u32 {
    2
}

impl LinkSettings {
    /// Checks a body and completes it with the defaults of FTS.
    ///
    /// # Errors
    /// A field is missing, unknown or invalid.
    pub fn parse(body: &Map<String, Value>) -> Result<LinkSettings, Refusal> {
        const FIELDS: [(&str, Kind); 9] = [
            ("symbolicname", Kind::Text),
            ("source", Kind::Text),
            ("destination", Kind::Text),
            ("min_active", Kind::Int),
            ("max_active", Kind::Int),
            ("optimizer_mode", Kind::Int),
            ("tcp_buffer_size", Kind::Int),
            ("nostreams", Kind::Int),
            ("no_delegation", Kind::Bool),
        ];
        let checked = known(body, &FIELDS)?;
        if checked.get("symbolicname").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(Refusal::bad("Missing symbolicname"));
        }
        let mut link: LinkSettings = typed(checked)?;
        link.source = storage(&link.source)?;
        link.destination = storage(&link.destination)?;
        if link.min_active == 0 || link.max_active < link.min_active {
            return Err(Refusal::bad(
                "max_active must be equal or greater than min_active, and both positive",
            ));
        }
        if link.optimizer_mode > 3 {
            return Err(Refusal::bad("optimizer_mode must be between 0 and 3"));
        }
        Ok(link)
    }
}

/// Reduces a URL to its storage element; `*` means any.
fn storage(text: &str) -> Result<String, Refusal> {
    if text == "*" {
        return Ok(any());
    }
    let element = storage_element(text);
    element.ok_or_else(|| {
        Refusal::bad(format!(
            "{} is neither a storage (scheme://host) nor *",
            bounded("storage", text, 255).unwrap_or_default()
        ))
    })
}

/// Weight of a VO on a pair of storages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareSetting {
    /// Source storage element; `*` means any.
    pub source: String,
    /// Target storage element; `*` means any.
    pub destination: String,
    /// The VO.
    pub vo: String,
    /// Weight, above 0.
    pub share: f64,
}

impl ShareSetting {
    /// Checks a body.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn parse(body: &Map<String, Value>) -> Result<ShareSetting, Refusal> {
        let text = |name: &str| match body.get(name) {
            Some(Value::String(text)) if !text.is_empty() => bounded(name, text, 255),
            _ => Err(Refusal::bad(format!("Missing parameter: {name}"))),
        };
        let share = match body.get("share") {
            Some(Value::Number(number)) => number.as_f64(),
            Some(Value::String(text)) => text.trim().parse().ok(),
            _ => None,
        };
        let share = share.filter(|share: &f64| share.is_finite() && *share > 0.0);
        Ok(ShareSetting {
            source: storage(&text("source")?)?,
            destination: storage(&text("destination")?)?,
            vo: text("vo")?,
            share: share.ok_or_else(|| Refusal::bad("Shares values must be greater than 0"))?,
        })
    }
}

/// Limits of a storage, and how many operations each VO may run there at the same time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StorageSettings {
    /// Fields of FTS's object `se_info` that are set.
    pub se_info: Option<Map<String, Value>>,
    /// Most operations of a kind at the same time, by VO and kind.
    pub operations: Option<BTreeMap<String, BTreeMap<String, u32>>>,
}

const STORAGE_FIELDS: [(&str, Kind); 13] = [
    ("site", Kind::Text),
    ("se_metadata", Kind::Text),
    ("ipv6", Kind::Bool),
    ("udt", Kind::Bool),
    ("debug_level", Kind::Int),
    ("eviction", Kind::Bool),
    ("skip_eviction", Kind::Bool),
    ("inbound_max_active", Kind::Int),
    ("inbound_max_throughput", Kind::Float),
    ("outbound_max_active", Kind::Int),
    ("outbound_max_throughput", Kind::Float),
    ("tpc_support", Kind::Text),
    ("overwrite_disk_enabled", Kind::Bool),
];

impl StorageSettings {
    /// Checks a body that names several storages.
    ///
    /// # Errors
    /// A storage or field is malformed or unknown.
    pub fn parse(body: &Map<String, Value>) -> Result<Vec<(String, StorageSettings)>, Refusal> {
        let malformed = || Refusal::bad("Malformed configuration");
        let mut settings = Vec::new();
        for (name, value) in body {
            let element = storage(name).map_err(|_| malformed())?;
            let value = value.as_object().ok_or_else(malformed)?;
            let part = |key: &str| match value.get(key) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::Object(object)) => Ok(Some(object)),
                Some(_) => Err(malformed()),
            };
            let se_info = part("se_info")?.map(|info| known(info, &STORAGE_FIELDS)).transpose()?;
            if let Some(support) =
                se_info.as_ref().and_then(|info| info.get("tpc_support")).and_then(Value::as_str)
                && !["FULL", "PULL", "PUSH", "NONE"].contains(&support)
            {
                return Err(Refusal::bad("tpc_support must be one of FULL, PULL, PUSH, NONE"));
            }
            let operations = part("operations")?.map(|operations| {
                serde_json::from_value(Value::Object(operations.clone())).map_err(|_| malformed())
            });
            settings.push((element, StorageSettings { se_info, operations: operations.transpose()? }));
        }
        Ok(settings)
    }

    /// Overwrites the values that `change` has; an operation with the limit 0 is removed.
    pub fn merge(&mut self, change: &StorageSettings) {
        if let Some(info) = &change.se_info {
            let mine = self.se_info.get_or_insert_with(Map::new);
            mine.extend(info.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        for (vo, limits) in change.operations.iter().flatten() {
            let mine = self.operations.get_or_insert_with(BTreeMap::new).entry(vo.clone()).or_default();
            mine.extend(limits.iter().map(|(name, limit)| (name.clone(), *limit)));
            mine.retain(|_, limit| *limit > 0);
        }
        if let Some(operations) = &mut self.operations {
            operations.retain(|_, limits| !limits.is_empty());
        }
    }

    /// All fields, as `GET` returns them; unset ones are null.
    pub fn view(&self) -> Value {
        let info: Map<String, Value> = STORAGE_FIELDS
            .iter()
            .map(|(name, _)| {
                let value = self.se_info.as_ref().and_then(|info| info.get(*name)).cloned();
                ((*name).to_owned(), value.unwrap_or(Value::Null))
            })
            .collect();
        json!({ "se_info": info, "operations": self.operations.clone().unwrap_or_default() })
    }
}

/// Settings of a VO, or of all VOs (`*`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GlobalSettings {
    /// Fields of FTS's object that are set.
    pub values: Map<String, Value>,
}

impl GlobalSettings {
    /// Checks a body: the VO, and the fields to change.
    ///
    /// # Errors
    /// A field is unknown or invalid.
    pub fn parse(body: &Map<String, Value>) -> Result<(String, Map<String, Value>), Refusal> {
        const FIELDS: [(&str, Kind); 7] = [
            ("vo_name", Kind::Text),
            ("retry", Kind::Int),
            ("max_time_queue", Kind::Int),
            ("global_timeout", Kind::Int),
            ("sec_per_mb", Kind::Int),
            ("no_streaming", Kind::Bool),
            ("show_user_dn", Kind::Bool),
        ];
        let mut checked = known(body, &FIELDS)?;
        let vo = checked.remove("vo_name").and_then(|vo| vo.as_str().map(str::to_owned));
        if checked.values().any(|value| value.as_i64().is_some_and(|number| number < 0)) {
            return Err(Refusal::bad("No value may be negative"));
        }
        Ok((bounded("vo_name", &vo.unwrap_or_else(any), 50)?, checked))
    }
}

/// Weights of a VO's activities.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivityShares {
    /// The VO.
    pub vo: String,
    /// Weight of each activity, in lower case, at least 0.
    pub share: BTreeMap<String, f64>,
    /// False: the weights are stored but not used.
    #[serde(default = "yes")]
    pub active: bool,
}

fn yes() -> bool {
    true
}

impl ActivityShares {
    /// Checks a body.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn parse(body: &Map<String, Value>) -> Result<ActivityShares, Refusal> {
        let vo = body.get("vo").and_then(Value::as_str).filter(|vo| !vo.is_empty());
        let vo = vo.ok_or_else(|| Refusal::bad("Missing VO"))?;
        let mut share = BTreeMap::new();
        let mut add = |object: &Map<String, Value>| {
            for (activity, weight) in object {
                let weight = weight.as_f64().filter(|weight| weight.is_finite() && *weight >= 0.0);
                let weight =
                    weight.ok_or_else(|| Refusal::bad("Share values must be numbers of at least 0"))?;
                share.insert(bounded("an activity", activity, 255)?.to_lowercase(), weight);
            }
            Ok::<(), Refusal>(())
        };
        match body.get("share") {
            Some(Value::Object(object)) => add(object)?,
            // Older clients send one object for each activity.
            Some(Value::Array(list)) => {
                for one in list {
                    add(one.as_object().ok_or_else(|| Refusal::bad("share has to be a dictionary"))?)?;
                }
            }
            _ => return Err(Refusal::bad("Missing share")),
        }
        let active = !matches!(body.get("active"), Some(Value::Bool(false)));
        Ok(ActivityShares { vo: bounded("vo", vo, 50)?, share, active })
    }
}

/// A right that a person has beyond those of the VO.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// DN of the person.
    pub dn: String,
    /// `transfer`, `deleg`, `config` or `datamanagement`.
    pub operation: String,
}

impl Grant {
    /// How far a granted right reaches.
    pub const LEVEL: Level = Level::All;
    const OPERATIONS: [&'static str; 4] = ["transfer", "deleg", "config", "datamanagement"];

    /// Checks a body.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn parse(body: &Map<String, Value>) -> Result<Grant, Refusal> {
        let text = |name: &str| body.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (Some(dn), Some(operation)) = (text("dn"), text("operation")) else {
            return Err(Refusal::bad("Missing dn or operation"));
        };
        if !Self::OPERATIONS.contains(&operation) {
            return Err(Refusal::bad(format!(
                "The operation has to be one of {}",
                Self::OPERATIONS.join(", ")
            )));
        }
        Ok(Grant { dn: bounded("dn", dn, 1_024)?, operation: operation.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn bans_are_checked_as_fts_does() {
        let ban = |value: Value| Ban::storage(&object(value));
        assert_eq!(ban(json!({})).unwrap_err().message, "Missing storage parameter");
        let wrong = ban(json!({ "storage": "https://a", "status": "sometimes" })).unwrap_err();
        assert_eq!(wrong.message, "status can only be cancel or wait");
        let wrong = ban(json!({ "storage": "https://a", "allow_submit": true })).unwrap_err();
        assert_eq!(wrong.message, "allow_submit and status = CANCEL can not be combined");
        let (storage, status, _) =
            ban(json!({ "storage": "HTTPS://a:443/x", "status": "Wait", "allow_submit": true })).unwrap();
        assert_eq!((storage.as_str(), status), ("https://a", BanStatus::WaitAndSubmit));
    }

    #[test]
    fn links_have_defaults_and_refuse_what_they_do_not_know() {
        let link = |value: Value| LinkSettings::parse(&object(value));
        let plain = link(json!({ "symbolicname": "x", "source": "davs://A:443/p" })).unwrap();
        assert_eq!((plain.source.as_str(), plain.destination.as_str()), ("davs://a", "*"));
        assert_eq!((plain.min_active, plain.max_active), (2, 2));
        assert_eq!(
            link(json!({ "symbolicname": "x", "colour": 1 })).unwrap_err().message,
            "Field colour unknown"
        );
        let wrong = link(json!({ "symbolicname": "x", "max_active": "many" })).unwrap_err();
        assert_eq!(wrong.message, "Field max_active is expected to be int");
        assert!(link(json!({ "source": "*" })).is_err());
        assert!(link(json!({ "symbolicname": "x", "min_active": 5, "max_active": 4 })).is_err());
        assert!(link(json!({ "symbolicname": "x", "max_active": -4 })).is_err());
    }

    #[test]
    fn storages_merge_and_show_all_keys() {
        let parse = |value: Value| StorageSettings::parse(&object(value));
        let mut kept = StorageSettings::default();
        let change = json!({ "davs://x": { "se_info": { "inbound_max_active": 5, "site": null },
            "operations": { "atlas": { "staging": 100 } } } });
        let changes = parse(change).unwrap();
        kept.merge(&changes[0].1);
        let view = kept.view();
        assert_eq!(
            (&view["se_info"]["inbound_max_active"], &view["se_info"]["site"]),
            (&json!(5), &Value::Null)
        );
        assert_eq!(view["operations"], json!({ "atlas": { "staging": 100 } }));
        kept.merge(
            &parse(json!({ "davs://x": { "operations": { "atlas": { "staging": 0 } } } })).unwrap()[0].1,
        );
        assert_eq!(kept.view()["operations"], json!({}));
        assert!(parse(json!({ "davs://x": { "se_info": { "colour": 1 } } })).is_err());
        assert_eq!(parse(json!({ "nothing": {} })).unwrap_err().message, "Malformed configuration");
        assert!(parse(json!({ "*": {} })).is_ok());
    }

    #[test]
    fn shares_are_positive_and_activities_come_in_both_forms() {
        let share = |value: Value| ShareSetting::parse(&object(value));
        assert!(
            share(json!({ "source": "davs://a/x", "destination": "*", "vo": "atlas", "share": 0 })).is_err()
        );
        let kept = share(json!({ "source": "davs://a/x", "destination": "*", "vo": "atlas", "share": "80" }))
            .unwrap();
        assert_eq!((kept.source.as_str(), kept.share), ("davs://a", 80.0));
        let activities = |value: Value| ActivityShares::parse(&object(value)).unwrap().share;
        let wanted = BTreeMap::from([("a".to_owned(), 0.7), ("default".to_owned(), 0.3)]);
        assert_eq!(activities(json!({ "vo": "atlas", "share": { "A": 0.7, "default": 0.3 } })), wanted);
        assert_eq!(activities(json!({ "vo": "atlas", "share": [{ "A": 0.7 }, { "default": 0.3 }] })), wanted);
        assert!(Grant::parse(&object(json!({ "dn": "/CN=a", "operation": "admin" }))).is_err());
        let (vo, values) =
            GlobalSettings::parse(&object(json!({ "retry": 3, "no_streaming": null }))).unwrap();
        assert_eq!((vo.as_str(), values.len()), ("*", 1));
    }
}
