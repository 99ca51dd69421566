//! pSConfig templates: which host measures to which, and how often; from that, pairs that have gone silent.
//!
//! Start with [`read`], then keep a [`Watch`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Timestamp};
use serde_json::{Map, Value};

use super::{Host, Measurement, Reading, documents, host};
use crate::lenient::{at, count, document, duration, kind, list, seconds, text, wrong};

const WHAT: &str = "pSConfig template";
/// The largest published mesh has about 500 hosts and 2 MB.
pub const MESH_BYTES_MAX: usize = 16 << 20;
/// Ordered pairs of all tasks together: a full mesh of 400 hosts, or several smaller ones.
pub const PAIRS_MAX: usize = 200_000;
/// Archives named by all tasks together.
const ARCHIVES_MAX: usize = 100;
/// Without data for so many intervals, something is wrong.
const INTERVALS_MAX: u32 = 3;
/// Between results where neither schedule nor test says: pScheduler's own default for traces.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(600);

/// The pairs of a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mesh {
    pub name: Option<String>,
    pub expected: Vec<Expected>,
    /// Archives that receive the results.
    pub archives: Vec<String>,
    /// Further templates to be read.
    pub includes: Vec<String>,
    /// Names that lead nowhere, kinds of groups that are not known: counted, the rest is used.
    pub refused: u64,
    pub first_fault: Option<Fault>,
}

/// One ordered pair of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub source: Host,
    pub target: Host,
    /// The test type as in results: `throughput`, `latencybg`, …
    pub test: String,
    /// Between two results.
    pub interval: Duration,
}

/// Reads and expands a template. Disabled addresses and tasks, and keys that begin with `_`, count for
/// nothing.
pub fn read(bytes: &[u8]) -> Result<Mesh, Fault> {
    let template = document(bytes, MESH_BYTES_MAX, WHAT)?;
    let Some(whole) = template.as_object() else {
        return Err(wrong(WHAT, &format!("an object is expected, not {}", kind(&template))));
    };
    if !whole.contains_key("tasks") && !whole.contains_key("includes") {
        return Err(wrong(WHAT, "it has neither tasks nor includes"));
    }
    let mut mesh = Mesh {
        name: at(&template, "_meta.display-name").and_then(text),
        includes: list(at(&template, "includes")).iter().filter_map(text).take(ARCHIVES_MAX).collect(),
        ..Mesh::default()
    };
    let sections = Sections { template: &template };
    let mut archives = BTreeSet::new();
    for (name, task) in sections.all("tasks").filter(|(name, task)| !hidden(name) && !disabled(task)) {
        if let Err(why) = sections.expand(task, &mut mesh)? {
            mesh.refused += 1;
            mesh.first_fault.get_or_insert(wrong(WHAT, &format!("task {name}: {why}")));
        }
        let named = list(at(task, "archives")).iter().filter_map(Value::as_str);
        archives.extend(named.filter_map(|name| sections.archive(name)).take(ARCHIVES_MAX));
    }
    mesh.archives = archives.into_iter().take(ARCHIVES_MAX).collect();
    Ok(mesh)
}

fn hidden(name: &str) -> bool {
    name.starts_with('_')
}

fn disabled(value: &Value) -> bool {
    at(value, "disabled") == Some(&Value::Bool(true))
}

struct Sections<'t> {
    template: &'t Value,
}

/// An address of a group, with the name that excludes refer to and the host that it is of.
struct Member<'t> {
    name: &'t str,
    of_host: Option<&'t str>,
    host: Host,
}

/// Why a task is left out, within what may go wrong with the whole.
type SkippedTask = Result<Result<(), String>, Fault>;

impl<'t> Sections<'t> {
    fn section(&self, section: &str) -> Option<&'t Map<String, Value>> {
        self.template.get(section).and_then(Value::as_object)
    }

    fn all(&self, section: &str) -> impl Iterator<Item = (&'t String, &'t Value)> {
        self.section(section).into_iter().flatten()
    }

    fn one(&self, section: &str, name: Option<&Value>) -> Result<&'t Value, String> {
        let name = name.and_then(Value::as_str).ok_or_else(|| format!("it names none of the {section}"))?;
        let shown = longhaul_model::units::printable(&name.chars().take(100).collect::<String>());
        self.section(section)
            .and_then(|all| all.get(name))
            .ok_or_else(|| format!("there is no {shown} in {section}"))
    }

    fn expand(&self, task: &Value, mesh: &mut Mesh) -> SkippedTask {
        let found = (|| {
            let group = self.one("groups", at(task, "group"))?;
            let test = self.one("tests", at(task, "test"))?;
            let schedule = at(task, "schedule").map(|name| self.one("schedules", Some(name))).transpose()?;
            Ok((group, test, schedule))
        })();
        let (group, test, schedule) = match found {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        if disabled(group) || disabled(test) {
            return Ok(Ok(()));
        }
        let kind = at(test, "type").and_then(text).unwrap_or_default();
        if !documents::WANTED.contains(&kind.as_str()) {
            return Ok(Ok(()));
        }
        let every = test_interval(test, schedule, &kind);
        let backwards = |key: &str| {
            at(test, &format!("spec.{key}"))
                .and_then(Value::as_str)
                .is_some_and(|text| text.contains("address[1]"))
        };
        let swapped = backwards("source");
        let pairs = match self.pairs(group, mesh.expected.len())? {
            Ok(pairs) => pairs,
            Err(why) => return Ok(Err(why)),
        };
        mesh.expected.extend(pairs.into_iter().map(|(from, to)| {
            let (source, target) = if swapped { (to, from) } else { (from, to) };
            Expected { source, target, test: kind.clone(), interval: every }
        }));
        Ok(Ok(()))
    }

    fn pairs(&self, group: &'t Value, already: usize) -> Result<Result<Vec<(Host, Host)>, String>, Fault> {
        let members = |key: &str| -> Vec<Member<'t>> {
            list(group.get(key)).iter().filter_map(|selector| self.member(selector, group)).collect()
        };
        let (from, to, both_ways) = match at(group, "type").and_then(Value::as_str) {
            Some("mesh") => (members("addresses"), members("addresses"), false),
            Some("disjoint") => {
                let one_way = at(group, "unidirectional") == Some(&Value::Bool(true));
                (members("a-addresses"), members("b-addresses"), !one_way)
            }
            // Single addresses measure nothing between two.
            Some("list") => return Ok(Ok(Vec::new())),
            _ => return Ok(Err("its group is neither mesh, disjoint nor list".to_owned())),
        };
        let most = from.len().saturating_mul(to.len()).saturating_mul(if both_ways { 2 } else { 1 });
        if most > PAIRS_MAX.saturating_sub(already) {
            return Err(Fault::new(FaultCode::TooLarge, format!("{WHAT}: more than {PAIRS_MAX} pairs")));
        }
        let excludes = Excludes::from_group(group);
        let mut pairs = Vec::new();
        for a in &from {
            for b in to.iter().filter(|b| excludes.allows(a, b)) {
                pairs.push((a.host.clone(), b.host.clone()));
            }
        }
        if both_ways {
            for b in &to {
                for a in from.iter().filter(|a| excludes.allows(b, a)) {
                    pairs.push((b.host.clone(), a.host.clone()));
                }
            }
        }
        Ok(Ok(pairs))
    }

    fn member(&self, selector: &'t Value, group: &'t Value) -> Option<Member<'t>> {
        let name = at(selector, "name")?.as_str().filter(|name| !hidden(name))?;
        let entry = self.section("addresses")?.get(name).filter(|entry| !disabled(entry))?;
        let label = at(selector, "label").or(at(group, "default-address-label")).and_then(Value::as_str);
        let labelled =
            label.and_then(|label| entry.get("labels")?.get(label)).filter(|entry| !disabled(entry));
        let host = host(labelled.and_then(|entry| entry.get("address")).or(entry.get("address")));
        let of = at(entry, "host").and_then(Value::as_str);
        host.is_known().then_some(Member { name, of_host: of, host })
    }

    fn archive(&self, name: &str) -> Option<String> {
        let data = at(self.section("archives")?.get(name)?, "data")?;
        at(data, "_url").or(at(data, "url")).and_then(text)
    }
}

/// Pairs of a group that are left out.
struct Excludes<'t> {
    pairs: BTreeSet<(&'t str, &'t str)>,
    /// Which tests to itself are excluded; none: all are allowed.
    same: Option<SelfTest>,
}

#[derive(Clone, Copy, PartialEq)]
enum SelfTest {
    Address,
    Host,
}

impl<'t> Excludes<'t> {
    fn from_group(group: &'t Value) -> Self {
        let mut pairs = BTreeSet::new();
        for exclude in list(group.get("excludes")) {
            let Some(local) = at(exclude, "local-address.name").and_then(Value::as_str) else { continue };
            let targets = list(exclude.get("target-addresses")).iter();
            pairs.extend(targets.filter_map(|target| Some((local, at(target, "name")?.as_str()?))));
        }
        let same = match at(group, "excludes-self").and_then(Value::as_str) {
            Some("disabled") => None,
            Some("address") => Some(SelfTest::Address),
            _ => Some(SelfTest::Host),
        };
        Excludes { pairs, same }
    }

    fn allows(&self, a: &Member<'_>, b: &Member<'_>) -> bool {
        let itself = match self.same {
            None => false,
            Some(SelfTest::Address) => a.name == b.name,
            Some(SelfTest::Host) => a.name == b.name || (a.of_host.is_some() && a.of_host == b.of_host),
        };
        !itself && !self.pairs.contains(&(a.name, b.name))
    }
}

/// Between two results of a test: its schedule's repetition, or for what goes on without end the length of a
/// sample.
fn test_interval(test: &Value, schedule: Option<&Value>, kind: &str) -> Duration {
    if let Some(repeat) = schedule.and_then(|schedule| at(schedule, "repeat")).and_then(duration) {
        return repeat.max(Duration::from_secs(1));
    }
    let sample = || {
        let packets = at(test, "spec.packet-count").and_then(count).unwrap_or(600).min(1_000_000);
        let gap = at(test, "spec.packet-interval").and_then(seconds).unwrap_or(0.1).clamp(1e-4, 60.0);
        Duration::from_secs_f64(packets as f64 * gap)
    };
    if kind == "latencybg" { sample().max(Duration::from_secs(1)) } else { INTERVAL_DEFAULT }
}

/// Pairs from which data is expected, and when it last came.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    pairs: BTreeMap<(String, String, &'static str), ExpectedPair>,
}

#[derive(Clone, Debug)]
struct ExpectedPair {
    interval: Duration,
    heard: Timestamp,
}

/// A pair of which there should have been data.
#[derive(Clone, Debug, PartialEq)]
pub struct Silence {
    pub source: String,
    pub target: String,
    pub test: &'static str,
    pub since: Timestamp,
    pub interval: Duration,
}

impl Watch {
    /// Awaits what a template asks for, from now on; what was awaited before and is no longer in it is not.
    pub fn expect(&mut self, expected: &[Expected], now: Timestamp) {
        let before = std::mem::take(&mut self.pairs);
        for one in expected {
            let Some(test) = family_of_tests(&one.test) else { continue };
            let key = (one.source.to_string(), one.target.to_string(), test);
            let heard = before.get(&key).map_or(now, |awaited| awaited.heard);
            let awaited = self.pairs.entry(key).or_insert(ExpectedPair { interval: one.interval, heard });
            awaited.interval = awaited.interval.min(one.interval);
        }
    }

    pub fn heard(&mut self, measurement: &Measurement) {
        let test = match measurement.value {
            Reading::Throughput { .. } => "throughput",
            Reading::Delay { .. } | Reading::Loss { .. } | Reading::LossShare { .. } => "latency",
            Reading::RoundTrip { .. } => "rtt",
            Reading::Path(_) => "trace",
            // A test that failed was not heard of.
            Reading::PathMtu { .. } | Reading::Failed { .. } => return,
        };
        // A template may name hosts either way.
        let names = |host: &Host| {
            [host.name.clone(), host.address.map(|address| address.to_string())]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        for source in names(&measurement.source) {
            for target in names(&measurement.target) {
                if let Some(awaited) = self.pairs.get_mut(&(source.clone(), target, test)) {
                    awaited.heard = awaited.heard.max(measurement.at);
                }
            }
        }
    }

    /// Pairs without data for more than three of their intervals, longest silent first.
    pub fn silent(&self, now: Timestamp) -> Vec<Silence> {
        let mut silent: Vec<Silence> = self
            .pairs
            .iter()
            .filter(|(_, awaited)| now.since(awaited.heard) > awaited.interval.saturating_mul(INTERVALS_MAX))
            .map(|((source, target, test), awaited)| Silence {
                source: source.clone(),
                target: target.clone(),
                test,
                since: awaited.heard,
                interval: awaited.interval,
            })
            .collect();
        silent.sort_by(|a, b| {
            a.since.cmp(&b.since).then_with(|| (&a.source, &a.target).cmp(&(&b.source, &b.target)))
        });
        silent
    }

    pub fn expected(&self) -> usize {
        self.pairs.len()
    }
}

fn family_of_tests(test: &str) -> Option<&'static str> {
    Some(match test {
        "throughput" => "throughput",
        "latency" | "latencybg" => "latency",
        "rtt" => "rtt",
        "trace" => "trace",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn template() -> Value {
        json!({
            "_meta": {"display-name": "Example mesh"},
            "addresses": {
                "a": {"address": "ps.alpha.example", "host": "alpha",
                    "labels": {"v6": {"address": "2001:db8::a"}}, "_meta": {"x": 1}},
                "a2": {"address": "ps2.alpha.example", "host": "alpha"},
                "b": {"address": "PS.beta.example"},
                "c": {"address": "192.0.2.3"},
                "d": {"address": "ps.delta.example", "disabled": true},
            },
            "hosts": {"alpha": {"archives": ["central"]}},
            "groups": {
                "mesh": {"type": "mesh", "addresses": [{"name": "a"}, {"name": "a2"}, {"name": "b"},
                    {"name": "c"}, {"name": "d"}, {"name": "lost"}],
                    "excludes": [{"local-address": {"name": "b"}, "target-addresses": [{"name": "c"}]}]},
                "cross": {"type": "disjoint", "a-addresses": [{"name": "a", "label": "v6"}],
                    "b-addresses": [{"name": "b"}, {"name": "c"}]},
                "oneway": {"type": "disjoint", "unidirectional": true, "a-addresses": [{"name": "a"}],
                    "b-addresses": [{"name": "b"}]},
                "each": {"type": "list", "addresses": [{"name": "a"}]},
            },
            "tests": {
                "bw": {"type": "throughput", "spec": {"source": "{% address[0] %}", "dest": "{% address[1] \
                    %}", "duration": "PT30S"}},
                "wb": {"type": "throughput", "spec": {"source": "{% address[1] %}", "dest": "{% address[0] \
                    %}"}},
                "ow": {"type": "latencybg", "spec": {"source": "{% address[0] %}",
                    "dest": "{% address[1] %}", "packet-count": 600, "packet-interval": 0.1}},
                "name": {"type": "dns", "spec": {}},
            },
            "schedules": {"rare": {"repeat": "PT4H", "slip": "PT4H", "sliprand": true}},
            "archives": {"central": {"archiver": "http", "data": {"schema": 3,
                "_url": "https://archive.example/push", "op": "put"}}},
            "tasks": {
                "m": {"group": "mesh", "test": "bw", "schedule": "rare", "archives": ["central", "nowhere"]},
                "x": {"group": "cross", "test": "ow"},
                "o": {"group": "oneway", "test": "wb", "schedule": "rare"},
                "l": {"group": "each", "test": "bw"},
                "n": {"group": "mesh", "test": "name"},
                "off": {"group": "mesh", "test": "bw", "disabled": true},
                "bad": {"group": "none", "test": "bw"},
                "_old": {"group": "none"},
            },
        })
    }

    fn pairs(mesh: &Mesh, test: &str) -> Vec<String> {
        mesh.expected
            .iter()
            .filter(|one| one.test == test)
            .map(|one| format!("{}>{}", one.source, one.target))
            .collect()
    }

    #[test]
    fn groups_expand_as_the_reference_says() {
        let mesh = read(template().to_string().as_bytes()).unwrap();
        assert_eq!(mesh.name.as_deref(), Some("Example mesh"));
        // Neither to itself, nor within one host, nor what is excluded, nor what is disabled or unknown. The
        // last is the one-way group with its addresses swapped by the test.
        assert_eq!(
            pairs(&mesh, "throughput"),
            [
                "ps.alpha.example>ps.beta.example",
                "ps.alpha.example>192.0.2.3",
                "ps2.alpha.example>ps.beta.example",
                "ps2.alpha.example>192.0.2.3",
                "ps.beta.example>ps.alpha.example",
                "ps.beta.example>ps2.alpha.example",
                "192.0.2.3>ps.alpha.example",
                "192.0.2.3>ps2.alpha.example",
                "192.0.2.3>ps.beta.example",
                "ps.beta.example>ps.alpha.example",
            ]
        );
        assert_eq!(
            pairs(&mesh, "latencybg"),
            [
                "2001:db8::a>ps.beta.example",
                "2001:db8::a>192.0.2.3",
                "ps.beta.example>2001:db8::a",
                "192.0.2.3>2001:db8::a",
            ]
        );
        let every = |test: &str| mesh.expected.iter().find(|one| one.test == test).unwrap().interval;
        assert_eq!(
            (every("throughput"), every("latencybg")),
            (Duration::from_secs(4 * 3_600), Duration::from_secs(60))
        );
        assert_eq!(mesh.archives, ["https://archive.example/push"]);
        assert_eq!(mesh.refused, 1);
        assert!(mesh.first_fault.unwrap().detail.contains("task bad"));
    }

    #[test]
    fn no_data_is_a_signal_after_three_intervals() {
        let mesh = read(template().to_string().as_bytes()).unwrap();
        let begin = Timestamp::from_seconds(1_800_000_000);
        let mut watch = Watch::default();
        watch.expect(&mesh.expected, begin);
        let minute = |n: u64| begin + Duration::from_secs(60 * n);
        assert!(watch.silent(minute(3)).is_empty(), "three intervals are no silence yet");
        let measured = |value| Measurement {
            source: Host { name: Some("ps.beta.example".into()), address: None },
            target: Host { name: Some("other".into()), address: "2001:db8::a".parse().ok() },
            family: None,
            at: minute(3),
            lasted: None,
            id: String::new(),
            tool: String::new(),
            value,
        };
        watch.heard(&measured(Reading::Loss { sent: 600, lost: 0 }));
        watch.heard(&measured(Reading::Failed { why: "x".into() }));
        let silent = watch.silent(minute(4));
        assert_eq!(silent.len(), 3, "{silent:?}");
        assert!(silent.iter().all(|one| one.test == "latency" && one.source != "ps.beta.example"));
        // Reading the template again begins nothing anew.
        watch.expect(&mesh.expected, minute(4));
        assert_eq!(watch.silent(minute(4)).len(), 3);
        watch.expect(&[], minute(5));
        assert!(watch.silent(minute(500)).is_empty());
    }

    #[test]
    fn what_is_no_template_says_so() {
        assert!(read(b"{}").unwrap_err().detail.contains("neither tasks nor includes"));
        assert!(read(b"[]").unwrap_err().detail.contains("not a list"));
        let addresses: Map<String, Value> =
            (0..460).map(|n| (n.to_string(), json!({"address": format!("h{n}.example")}))).collect();
        let selectors: Vec<Value> = addresses.keys().map(|name| json!({"name": name})).collect();
        let huge = json!({"addresses": addresses, "groups": {"g": {"type": "mesh", "addresses": selectors}},
            "tests": {"t": {"type": "rtt", "spec": {}}}, "tasks": {"t": {"group": "g", "test": "t"}}});
        assert_eq!(read(huge.to_string().as_bytes()).unwrap_err().code, FaultCode::TooLarge);
    }

    proptest! {
        #[test]
        fn damaged_templates_never_panic(at in 0usize..3_000, byte: u8, cut in 0usize..6_000) {
            let mut bytes = template().to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let keep = cut.min(bytes.len());
            if let Ok(mesh) = read(&bytes[..keep]) {
                prop_assert!(mesh.expected.iter().all(|one| one.interval >= Duration::from_secs(1)));
            }
        }
    }
}
