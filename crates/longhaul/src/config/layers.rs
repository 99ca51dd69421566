//! Layered settings: defaults, files, environment, options. A later layer wins, and each value remembers its
//! origin. The known keys are those of the default values; no setting is known by name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use longhaul_model::json;
use longhaul_model::units::{parse_bytes, printable};
use serde_json::{Map, Value};

use super::SYSTEM_AUTHORITIES;
use super::file::Entry;
use crate::failure::Failure;

/// Our environment variables that are not settings.
const NON_SETTING_VARIABLES: [&str; 3] =
    ["LONGHAUL_CONFIG", "LONGHAUL_JOIN_TOKEN", crate::hardening::CORE_DUMPS_VARIABLE];

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", printable(&path.to_string_lossy())),
            Origin::Environment(name) => f.write_str(name),
            Origin::Option(name) => f.write_str(name),
        }
    }
}

/// A leaf value, a scalar or a list, with its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub value: Value,
    pub origin: Origin,
}

/// Settings by dotted key, such as `service.limits.connections`.
#[derive(Clone, Debug)]
pub struct Layers {
    defaults: BTreeMap<String, Value>,
    settings: BTreeMap<String, Setting>,
}

impl Layers {
    /// `defaults` is an object of sections; its keys are the known ones.
    pub fn new(defaults: &Value) -> Self {
        let mut leaves = BTreeMap::new();
        flatten(String::new(), defaults, &mut leaves);
        let settings = leaves
            .iter()
            .map(|(key, value)| (key.clone(), Setting { value: value.clone(), origin: Origin::Default }))
            .collect();
        Layers { defaults: leaves, settings }
    }

    /// All values with their origins, sorted by key.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.settings.iter().map(|(key, setting)| (key.as_str(), setting))
    }

    #[cfg(test)]
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.settings.get(key)
    }

    pub fn add_file(&mut self, path: &Path, text: &str) -> Result<(), Failure> {
        for Entry { key, line, value } in super::file::entries(path, text)? {
            let origin = Origin::File { path: path.to_owned(), line };
            let Some(default) = self.defaults.get(&key) else {
                return Err(self.unknown_key(&key, &origin));
            };
            let value = match &value {
                Value::String(text) if is_size(&key) => {
                    size(text).map_err(|why| bad_setting(&key, &origin, &why))?
                }
                _ => value,
            };
            // A relative path in a file is relative to that file.
            let value = match (&value, default) {
                (Value::String(text), _) if is_path(&key) => resolve_beside(path, text),
                _ => value,
            };
            self.settings.insert(key, Setting { value, origin });
        }
        Ok(())
    }

    /// Sets every known key that `variable` returns from the environment.
    pub fn add_environment(&mut self, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
        let keys: Vec<String> = self.defaults.keys().cloned().collect();
        for key in keys {
            let name = environment_name(&key);
            if let Some(text) = variable(&name).filter(|text| !text.is_empty()) {
                self.set(&key, &text, Origin::Environment(name))?;
            }
        }
        Ok(())
    }

    /// # Panics
    /// If the key is unknown: options are ours.
    pub fn add_option(&mut self, key: &str, option: &str, text: &str) -> Result<(), Failure> {
        self.set(key, text, Origin::Option(option.to_owned()))
    }

    /// As [`Layers::add_option`], for a value that is not text.
    pub fn add_option_value(&mut self, key: &str, option: &str, value: Value) {
        assert!(self.defaults.contains_key(key), "{key} is no key");
        let setting = Setting { value, origin: Origin::Option(option.to_owned()) };
        self.settings.insert(key.to_owned(), setting);
    }

    /// Variables that look like ours but are unknown, each with a suggestion.
    pub fn unknown_variables<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let known: Vec<String> = self.defaults.keys().map(|key| environment_name(key)).collect();
        names
            .filter(|name| name.starts_with("LONGHAUL_") && !NON_SETTING_VARIABLES.contains(name))
            .filter(|name| !known.iter().any(|known| known == name))
            .map(|name| match nearest(name, known.iter().map(String::as_str)) {
                Some(close) => format!("{} (did you mean {close}?)", printable(name)),
                None => printable(name),
            })
            .collect()
    }

    /// Deserialises one section.
    pub fn section<T: serde::de::DeserializeOwned>(&self, section: &str) -> Result<T, Failure> {
        let whole = unflatten(self.settings.iter().map(|(key, setting)| (key.as_str(), &setting.value)));
        let value = whole.get(section).cloned().unwrap_or(Value::Object(Map::new()));
        json::from_value(value).map_err(|error| self.find_bad_setting::<T>(section, &error))
    }

    /// Finds the setting at fault by trying each one among the defaults.
    fn find_bad_setting<T: serde::de::DeserializeOwned>(
        &self,
        section: &str,
        error: &serde_json::Error,
    ) -> Failure {
        let prefix = format!("{section}.");
        for (key, setting) in self.settings.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            let alone = self
                .defaults
                .iter()
                .map(|(other, value)| (other.as_str(), if other == key { &setting.value } else { value }));
            let value = unflatten(alone).get(section).cloned().unwrap_or_default();
            if setting.origin != Origin::Default
                && let Err(error) = json::from_value::<T>(value)
            {
                return bad_setting(key, &setting.origin, &error.to_string());
            }
        }
        Failure::usage(
            format!("the settings in [{section}] are inconsistent"),
            error.to_string(),
            "longhaul config show --origin",
        )
    }

    fn set(&mut self, key: &str, text: &str, origin: Origin) -> Result<(), Failure> {
        let default = self.defaults.get(key);
        assert!(default.is_some(), "{key} is no key");
        let value = parse(key, text, default.unwrap_or(&Value::Null))
            .map_err(|why| bad_setting(key, &origin, &why))?;
        self.settings.insert(key.to_owned(), Setting { value, origin });
        Ok(())
    }

    fn unknown_key(&self, key: &str, origin: &Origin) -> Failure {
        let next = match nearest(key, self.defaults.keys().map(String::as_str)) {
            Some(close) => format!("did you mean {close}? `longhaul config show` lists all keys"),
            None => "`longhaul config show` lists all keys".to_owned(),
        };
        Failure::usage(format!("unknown key {}", printable(key)), format!("set at {origin}"), next)
    }
}

/// The environment variable of a key: `LONGHAUL_SERVICE_LIMITS_HEAD_MS` for `service.limits.head_ms`; the
/// section `client` is left out.
pub fn environment_name(key: &str) -> String {
    let key = key.strip_prefix("client.").unwrap_or(key);
    format!("LONGHAUL_{}", key.replace('.', "_").to_ascii_uppercase())
}

fn bad_setting(key: &str, origin: &Origin, why: &str) -> Failure {
    let next = "correct it there; `longhaul config show --origin` shows the effective settings";
    Failure::usage(format!("{key} is not valid"), format!("{why} (set at {origin})"), next)
}

/// Whether the value is a size, which may be written as `256MiB`.
fn is_size(key: &str) -> bool {
    key.ends_with("_bytes") || key.ends_with("_bytes_per_s")
}

fn is_path(key: &str) -> bool {
    key.ends_with("_dir") || key.ends_with("_file") || key == "client.ca" || key == "log.file"
}

fn resolve_beside(file: &Path, text: &str) -> Value {
    let path = Path::new(text);
    match file.parent() {
        Some(directory)
            if path.is_relative()
                && !text.is_empty()
                && !text.starts_with("sha256:")
                && text != SYSTEM_AUTHORITIES =>
        {
            Value::String(directory.join(path).to_string_lossy().into_owned())
        }
        _ => Value::String(text.to_owned()),
    }
}

fn size(text: &str) -> Result<Value, String> {
    parse_bytes(text).map(Value::from)
}

/// Parses the text of an option or variable as the type of the default value.
fn parse(key: &str, text: &str, default: &Value) -> Result<Value, String> {
    let number = |text: &str| {
        text.parse::<u64>().map(Value::from).map_err(|_| format!("{text:?} is not a whole number"))
    };
    match default {
        _ if is_size(key) => size(text),
        Value::Bool(_) => match text {
            "true" | "yes" | "1" => Ok(Value::Bool(true)),
            "false" | "no" | "0" => Ok(Value::Bool(false)),
            _ => Err(format!("{text:?} is neither true nor false")),
        },
        Value::Number(_) => number(text),
        Value::Array(_) => {
            Ok(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Value::from).collect())
        }
        Value::Null if ["_s", "_ms", "_days", "_rows", "_gbit_h"].iter().any(|unit| key.ends_with(unit)) => {
            number(text)
        }
        _ => Ok(Value::String(text.to_owned())),
    }
}

fn flatten(prefix: String, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(key, value, into);
            }
        }
        _ => {
            into.insert(prefix, value.clone());
        }
    }
}

fn unflatten<'a>(leaves: impl Iterator<Item = (&'a str, &'a Value)>) -> Map<String, Value> {
    let mut root = Map::new();
    for (key, value) in leaves {
        let mut at = &mut root;
        let (parents, leaf) = key.rsplit_once('.').unwrap_or(("", key));
        for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
            let slot = at.entry(parent).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(next) = slot else { unreachable!("a key is a section or a value") };
            at = next;
        }
        at.insert(leaf.to_owned(), value.clone());
    }
    root
}

/// The known word nearest to `typed`, if it is near enough.
pub fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|word| (distance(typed, word), word))
        .min()
        .filter(|(far, word)| *far <= word.len() / 3 + 1)
        .map(|(_, w)| w)
}

/// Levenshtein distance of the first 64 bytes.
fn distance(one: &str, other: &str) -> usize {
    let one = &one.as_bytes()[..one.len().min(64)];
    let other = &other.as_bytes()[..other.len().min(64)];
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[derive(serde::Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        listen: Vec<std::net::SocketAddr>,
        memory_bytes: u64,
        http: Option<std::net::SocketAddr>,
        limits: Limits,
    }

    #[derive(serde::Deserialize, Debug)]
    struct Limits {
        head_ms: u32,
    }

    fn layers() -> Layers {
        Layers::new(&json!({
            "service": {
                "listen": ["0.0.0.0:8443"], "memory_bytes": 1000, "http": null, "limits": { "head_ms": 10 },
            },
            "client": { "url": "", "ca": "" },
        }))
    }

    const FILE: &str = "# comment\n[service]\nlisten = [\"127.0.0.1:1\"]\nmemory_bytes \
        = \"2MB\"\n\n[service.limits]\nhead_ms = 20\n";

    #[test]
    fn later_layers_win_and_origins_are_kept() {
        let mut layers = layers();
        layers.add_file(Path::new("/etc/l.toml"), FILE).unwrap();
        layers
            .add_environment(|name| (name == "LONGHAUL_SERVICE_LIMITS_HEAD_MS").then(|| "30".into()))
            .unwrap();
        layers.add_option("service.http", "--http", "127.0.0.1:8080").unwrap();
        let sample: Sample = layers.section("service").unwrap();
        assert_eq!(sample.listen[0].port(), 1);
        assert_eq!(sample.memory_bytes, 2_000_000);
        assert_eq!(sample.http.unwrap().port(), 8080);
        assert_eq!(sample.limits.head_ms, 30);
        let origin = |key: &str| layers.get(key).unwrap().origin.to_string();
        assert_eq!(origin("service.listen"), "/etc/l.toml:3");
        assert_eq!(origin("service.limits.head_ms"), "LONGHAUL_SERVICE_LIMITS_HEAD_MS");
        assert_eq!(origin("service.http"), "--http");
        assert_eq!(origin("client.url"), "default");
    }

    #[test]
    fn unknown_keys_name_file_line_and_the_nearest_key() {
        let error = layers().add_file(Path::new("l.toml"), "[service]\n\nlisen = []\n").unwrap_err();
        assert_eq!(error.problem.title, "unknown key service.lisen");
        assert!(error.problem.detail.contains("l.toml:3"), "{error:?}");
        assert!(error.problem.remedy.contains("did you mean service.listen?"), "{error:?}");
        let error = layers().add_file(Path::new("l.toml"), "[servce]\nlisten = []\n").unwrap_err();
        assert!(error.problem.remedy.contains("service.listen"), "{error:?}");
    }

    #[test]
    fn a_wrong_value_names_its_key_and_origin() {
        let mut layers = layers();
        layers.add_environment(|name| (name == "LONGHAUL_SERVICE_LISTEN").then(|| "nowhere".into())).unwrap();
        let error = layers.section::<Sample>("service").unwrap_err();
        assert_eq!(error.problem.title, "service.listen is not valid");
        assert!(error.problem.detail.contains("LONGHAUL_SERVICE_LISTEN"), "{error:?}");
        let error = layers.add_option("service.memory_bytes", "--memory", "lots").unwrap_err();
        assert!(
            error.problem.detail.contains("--memory") && error.problem.detail.contains("lots"),
            "{error:?}"
        );
        let error = layers
            .add_file(Path::new("l.toml"), "[service]\nlisten = 7\n")
            .and_then(|()| layers.section::<Sample>("service").map(|_| ()));
        assert!(error.unwrap_err().problem.detail.contains("l.toml:2"));
    }

    #[test]
    fn bad_toml_names_the_line() {
        let error = layers().add_file(Path::new("l.toml"), "[service]\nlisten = [\n").unwrap_err();
        assert!(error.problem.title.contains("l.toml"), "{error:?}");
        assert!(error.problem.detail.contains("line "), "{error:?}");
        let error = layers().add_file(Path::new("l.toml"), "service = 1\n").unwrap_err();
        assert!(error.problem.title.contains("unknown key service"), "{error:?}");
    }

    #[test]
    fn variables_that_look_like_ours_are_told() {
        let told = layers().unknown_variables(
            ["LONGHAUL_SERVICE_LISEN", "PATH", "LONGHAUL_URL", "LONGHAUL_CONFIG"].into_iter(),
        );
        assert_eq!(told, ["LONGHAUL_SERVICE_LISEN (did you mean LONGHAUL_SERVICE_LISTEN?)"]);
    }

    #[test]
    fn files_named_in_a_file_are_beside_it() {
        let mut layers = layers();
        layers.add_file(Path::new("/state/client.toml"), "[client]\nca = \"ca.pem\"\n").unwrap();
        assert_eq!(layers.get("client.ca").unwrap().value, "/state/ca.pem");
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(nearest("listn", ["listen", "names"].into_iter()), Some("listen"));
        assert_eq!(nearest("zzzz", ["listen", "names"].into_iter()), None);
    }
    proptest! {
        /// Any file is accepted or refused with its name, without a panic.
        #[test]
        fn any_file_is_taken_or_refused(text in "(\\[service\\]|listen|limits|=|\\.|\\[|\\]|\"x\"|7|\n|é| \
            ){0,20}|.{0,60}") {
            if let Err(failure) = layers().add_file(Path::new("l.toml"), &text) {
                prop_assert_eq!(failure.exit, crate::failure::Exit::Usage);
                let problem = &failure.problem;
                let text = format!("{} {}", problem.title, problem.detail);
                prop_assert!(text.contains("l.toml"), "{:?}", problem);
            }
        }
    }
}
