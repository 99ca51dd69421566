//! Whole conversations, as they are on the wire: `conversations/` has them to the letter.

use std::collections::BTreeMap;

use longhaul_circuits::{Answer, CircuitEndpoints, CircuitRequest, Event, RequestKey};
use serde_json::{Value, json};

use super::*;
use crate::circuits::config::Access;
use crate::circuits::remote::{Dialogue, Step};

const KEY: RequestKey = RequestKey(0xaa2d_6f5e_2b1b_4d0c_8a57_3f8f_1c9d_7e02);
/// 2026-12-01T10:00:00Z
const NOW: Timestamp = Timestamp(1_796_119_200_000_000);
const LIFETIME: Duration = Duration::from_secs(6 * 3600);
const WANTED_MBIT: u64 = 10_000;

fn ends() -> CircuitEndpoints {
    CircuitEndpoints { source: "192.0.2.7".to_owned(), target: "192.0.2.5".to_owned() }
}

fn oscars() -> Box<dyn Protocol> {
    let config = OscarsConfig {
        url: "https://oscars.example.net".to_owned(),
        username: Some("longhaul".to_owned()),
        secret: "password".into(),
        is_bearer: false,
        source_port: "alph-cr6:2/1/1".to_owned(),
        target_port: "beta-cr6:2/1/1".to_owned(),
        vlans: "1781-1785".to_owned(),
        access: Access::default(),
        ends: ends(),
    };
    Box::new(oscars::Oscars::new(config, Zeroizing::new("secret".to_owned()), "ALPHA→BETA"))
}

fn sense() -> Box<dyn Protocol> {
    let config = SenseConfig {
        url: "https://sense.example.net/StackV-web/restapi".to_owned(),
        token_url: "https://sense.example.net/auth/realms/StackV/protocol/openid-connect/token".to_owned(),
        client_id: "longhaul".to_owned(),
        client_secret: "client".into(),
        username: "placement".to_owned(),
        password: "password".into(),
        source_uri: "urn:ogf:network:alpha.example:2026".to_owned(),
        target_uri: "urn:ogf:network:beta.example:2026".to_owned(),
        vlans: "3602-3606".to_owned(),
        access: Access::default(),
        ends: ends(),
    };
    let secret = |text: &str| Zeroizing::new(text.to_owned());
    Box::new(sense::Sense::new(config, secret("client secret"), secret("pass+word"), "ALPHA→BETA"))
}

/// How a conversation goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plot {
    /// Granted, and given back.
    Good,
    /// It says that there is less.
    Less,
    /// It refuses what is asked for.
    No,
}

/// What has become of the reservation at a provider that does everything at once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum There {
    #[default]
    Nothing,
    Held,
    Up,
    Cancelled,
    Gone,
}

type Answered = (u16, String);
/// A provider, by the path of what it is asked.
type Answers = fn(Plot, &mut There, &str) -> Answered;
type Speaks = fn() -> Box<dyn Protocol>;

/// Answers in the words of the reference.
fn of_oscars(plot: Plot, there: &mut There, path: &str) -> Answered {
    let free = if plot == Plot::Less { 5_000 } else { 100_000 };
    let port = json!({ "vlanExpression": "1780:1790", "ingressBandwidth": free, "egressBandwidth": 100_000 });
    let hops = ["alph-cr6", "alph-cr6:1/1/1", "beta-cr6:1/1/1", "beta-cr6"].map(|urn| json!({ "urn": urn }));
    match path {
        "/api/account/login" => (200, json!({ "token": "one", "admin": false }).to_string()),
        "/protected/conn/generateId" => (200, "K7XT".to_owned()),
        "/api/topo/available" => (200, json!({ "alph-cr6:2/1/1": port, "beta-cr6:2/1/1": port }).to_string()),
        "/api/pce/paths" => (200, json!({ "fits": { "cost": 1, "azEro": hops } }).to_string()),
        "/protected/hold" if plot == Plot::No => (400, "alph-cr6:2/1/1 vlan 1781 is taken".to_owned()),
        "/protected/hold" => {
            *there = There::Held;
            let held = json!({ "connectionId": "K7XT", "phase": "HELD", "heldUntil": 1_796_120_100 });
            (200, held.to_string())
        }
        "/protected/conn/commit" => {
            *there = There::Up;
            (200, json!({ "what": "COMMITTED", "phase": "RESERVED" }).to_string())
        }
        "/protected/conn/release" => {
            *there = There::Gone;
            (200, json!({ "what": "ARCHIVED" }).to_string())
        }
        "/api/conn/info/K7XT" => match there {
            There::Up => {
                let fixture = json!({ "ingressBandwidth": WANTED_MBIT, "egressBandwidth": WANTED_MBIT });
                let schedule = json!({ "beginning": 1_796_119_200.0, "ending": 1_796_140_800.0 });
                let reserved = json!({ "cmp": { "fixtures": [fixture, fixture] }, "schedule": schedule });
                let up = json!({ "phase": "RESERVED", "state": "ACTIVE", "deploymentState": "DEPLOYED",
                    "reserved": reserved });
                (200, up.to_string())
            }
            There::Gone => (200, json!({ "phase": "ARCHIVED", "state": "FINISHED" }).to_string()),
            _ => (404, String::new()),
        },
        _ => panic!("it is not asked for {path}"),
    }
}

fn of_sense(plot: Plot, there: &mut There, path: &str) -> Answered {
    const INSTANCE: &str = "7d3f3a52-6c1e-4f0a-9d7e-0b6f2a4c1d11";
    let status = match there {
        There::Held => "CREATE - COMPILED",
        There::Up => "CREATE - READY",
        There::Cancelled => "CANCEL - READY",
        There::Nothing | There::Gone => "",
    };
    let path = path.strip_prefix("/StackV-web/restapi").unwrap_or(path);
    let of = path.strip_prefix("/instance/").and_then(|path| path.strip_prefix(INSTANCE));
    let mut turn = |to: There| {
        *there = to;
        (200, String::new())
    };
    match of.unwrap_or(path) {
        "/auth/realms/StackV/protocol/openid-connect/token" => {
            (200, json!({ "access_token": "one", "expires_in": 300 }).to_string())
        }
        "/instance" => (200, INSTANCE.to_owned()),
        "" if plot == Plot::No => (403, "the licence of this profile allows 5000 Mbps".to_owned()),
        "" => {
            turn(There::Held);
            let free = if plot == Plot::Less { "5000000000" } else { "100000000000" };
            let results = json!([{ "name": "Connection 1", "bandwidth": free }]);
            let query = json!({ "asked": "total-block-maximum-bandwidth", "results": results });
            (200, json!({ "service_uuid": INSTANCE, "queries": [query] }).to_string())
        }
        "/provision?sync=false&intent=last" => turn(There::Up),
        "/cancel?sync=false&force=true" => turn(There::Cancelled),
        "/delete" => turn(There::Gone),
        "/status/configuration" => (200, "STABLE".to_owned()),
        "/status" if status.is_empty() => (404, String::new()),
        "/status" => (200, status.to_owned()),
        _ => panic!("it is not asked for {path}"),
    }
}

struct Conversation {
    rest: Rest,
    answer: Answers,
    plot: Plot,
    there: There,
    now: Timestamp,
    written: String,
    told: Vec<Event>,
}

impl Conversation {
    fn run(mut self) -> Conversation {
        self.rest
            .request(&CircuitRequest { key: KEY, mbit: WANTED_MBIT, lifetime: Some(LIFETIME) }, self.now);
        if self.plot == Plot::Good {
            self.until(|this| !this.told.is_empty());
            self.rest.tear_down(KEY, self.now);
        }
        self.until(|this| this.rest.next_wake().is_none());
        self
    }

    fn until(&mut self, is_it: impl Fn(&Conversation) -> bool) {
        for _ in 0..100 {
            while let Some(step) = self.rest.poll() {
                match step {
                    Step::Call(id, call) => self.hear(id, &call),
                    Step::Emit(event) => self.told.push(event),
                    Step::PersistNames(names) => {
                        let name = names.get(&KEY).map(|name| format!("{KEY} is {name}"));
                        let name = name.unwrap_or_else(|| "nothing".to_owned());
                        self.written.push_str(&format!("written down: {name}\n\n"));
                    }
                }
            }
            if is_it(self) {
                return;
            }
            self.now = self.rest.next_wake().expect("something is due").max(self.now);
            self.rest.tick(self.now);
        }
        panic!("it does not happen: {}", self.written);
    }

    fn hear(&mut self, id: CallId, call: &Call) {
        let headers: String = call.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        let after = self.now.since(NOW).as_secs();
        self.written.push_str(&format!("after {after} s: {} {}\n{headers}", call.method, call.url));
        if !call.body.is_empty() {
            self.written.push_str(&format!("\n{}\n", shown(&call.body)));
        }
        let path = call.url.splitn(4, '/').nth(3).map(|path| format!("/{path}")).unwrap_or_default();
        let (status, body) = (self.answer)(self.plot, &mut self.there, &path);
        let answered = format!("\nanswered {status} {}", shown(&body));
        self.written.push_str(&format!("{}\n\n", answered.trim_end()));
        self.rest.heard(id, Ok(HttpAnswer { status, date: None, body }), self.now);
    }
}

/// JSON with its names in order, which say nothing and depend on how it is built; all else as it is.
fn shown(body: &str) -> String {
    fn sorted(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields: BTreeMap<String, Value> =
                    fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
                fields.into_iter().collect()
            }
            Value::Array(all) => all.into_iter().map(sorted).collect(),
            other => other,
        }
    }
    match serde_json::from_str(body) {
        Ok(value @ Value::Object(_)) => serde_json::to_string_pretty(&sorted(value)).unwrap(),
        _ => body.to_owned(),
    }
}

#[test]
fn conversations_are_as_written_down() {
    let protocols: [(&str, Speaks, Answers); 2] = [("oscars", oscars, of_oscars), ("sense", sense, of_sense)];
    for (name, protocol, answer) in protocols {
        for (plot, end) in [(Plot::Good, ""), (Plot::Less, "-less"), (Plot::No, "-refused")] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/circuits/rest/conversations");
            let path = format!("{folder}/{name}{end}.txt");
            let expected = std::fs::read_to_string(&path).unwrap_or_default();
            let (rest, there) = (Rest::new(protocol(), BTreeMap::new()), There::default());
            let begun = Conversation {
                rest,
                answer,
                plot,
                there,
                now: NOW,
                written: String::new(),
                told: Vec::new(),
            };
            let conversation = begun.run();
            let (written, told) = (conversation.written.trim(), &conversation.told);
            assert_eq!(written, expected.trim(), "\n{path} >>>\n{written}\n<<<");
            assert!(written.ends_with("written down: nothing"), "nothing is left of it");
            let Some(Event::Answer { key: KEY, answer }) = told.first() else { panic!("{told:?}") };
            match (plot, answer) {
                (Plot::Good, Answer::Granted(grant)) => {
                    assert_eq!((grant.mbit, &grant.ends), (WANTED_MBIT, &ends()));
                    let expires = grant.expires.expect("it ends");
                    assert!(expires.since(NOW.plus(LIFETIME)) < Duration::from_secs(60), "{expires}");
                    assert_eq!(told.last(), Some(&Event::TornDown(KEY)));
                }
                (Plot::Less | Plot::No, Answer::Refused { less: true, .. }) => {
                    assert_eq!(told.len(), 1, "{told:?}");
                }
                _ => panic!("{plot:?}: {told:?}"),
            }
        }
    }
}
