//! An agent by its certificate that tells the service of everything that is not its own: every kind of claim,
//! about every object of others, with the most extreme numbers and texts, in random order.

use longhaul_api::agent::{
    AttemptTimes, CheckedFile, DoorDecision, Fact, FoundFile, LeftOut, LeftOutReason, Outcome,
};
use longhaul_api::probe::{PathSample, ProbeResult, UplinkSample};
use longhaul_api::{AGENT_PROTOCOL, routes};
use longhaul_catalog::Claim;
use longhaul_model::{
    AgentId, AttemptId, Blame, DigestOrigin, DigestSet, Epoch, Executor, Fault, FaultCode, Lfn, StorageName,
    TaskId, Timestamp, Verification,
};
use longhaul_security::agent_client_tls;
use longhaul_testbed::http::{Api, Reply};
use longhaul_testbed::{Deployment, Random};
use serde_json::{Value, json};

const NONCE: u64 = 666;
/// What is said in one report.
const FACTS_PER_REPORT: usize = 40;
/// One report in so many is spoiled as a whole, so that none of it can be understood.
const SPOILED_EVERY: u64 = 8;
const NUMBERS: [u64; 9] =
    [0, 1, 2, 1 << 20, u32::MAX as u64, 1 << 53, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];

/// All that can be named in the deployment.
pub struct Victims {
    /// Those that are leased, and those that have ended.
    pub attempts: [Vec<(AttemptId, Epoch)>; 2],
    /// Those that are open, and those that have ended.
    pub tasks: [Vec<TaskId>; 2],
    pub storages: Vec<StorageName>,
    pub files: Vec<(Lfn, u64)>,
    pub agents: Vec<AgentId>,
}

pub struct HostileReporter {
    api: Api,
    random: Random,
    starts: u64,
    acknowledged: u64,
    /// Claims that were sent, whatever became of them.
    pub claims: u64,
    pub reports_refused: u64,
}

impl HostileReporter {
    /// Joins the site as an agent of it.
    pub fn join(deployment: &Deployment, site: &str, random: Random) -> HostileReporter {
        let credentials = deployment.join_by_hand(site, "mallory");
        let api = deployment.api().with_token(None).with_tls(agent_client_tls(&credentials).unwrap());
        let reporter =
            HostileReporter { api, random, starts: 1, acknowledged: 0, claims: 0, reports_refused: 0 };
        let storages = offer_of(site);
        reporter.report(json!({ "hello": reporter.hello(storages, &[]) })).expect(200);
        reporter
    }

    /// Sends one report with claims of all these kinds, as its random numbers have it.
    pub fn round(&mut self, claims: &[Claim], victims: &Victims) {
        let mut said = json!({});
        let mut facts = Vec::new();
        let mut held = Vec::new();
        for _ in 0..FACTS_PER_REPORT {
            let claim = claims[self.random.below(claims.len() as u64) as usize];
            match claim {
                Claim::Outcome => facts.push(self.outcome(victims)),
                Claim::Scanned => facts.push(self.scanned(victims)),
                Claim::Checked => facts.push(self.checked(victims)),
                Claim::TaskDone => {
                    let (task, fault) = (self.task(victims), self.maybe_fault());
                    facts.push(Fact::TaskDone { task, fault });
                }
                Claim::DoorDecision => facts.push(self.decided(victims)),
                Claim::HeldLease => held.push(self.attempt(victims).0),
                Claim::Progress => {
                    let progress = json!({ "attempt": self.attempt(victims).0, "bytes_done": self.number() });
                    push(&mut said, "progress", progress);
                }
                Claim::Space => {
                    let space = json!({ "storage": self.storage(victims), "total_bytes": self.number(),
                        "free_bytes": self.number(), "trouble": self.maybe_fault() });
                    push(&mut said, "spaces", space);
                }
                Claim::Probe => push(&mut said, "probes", json!(self.probe(victims))),
                Claim::Path => push(&mut said, "paths", json!(self.path(victims))),
                Claim::Uplink => push(&mut said, "uplinks", json!(self.uplink())),
                Claim::Circuit => {
                    let link = self.circuit(victims);
                    push(&mut said, "circuits", link);
                }
            }
            self.claims += 1;
        }
        if !held.is_empty() {
            said["hello"] = self.hello(self.offer(victims), &held);
        }
        let entries = facts.into_iter().zip(self.acknowledged + 1..);
        said["entries"] =
            entries.map(|(fact, sequence)| json!({ "sequence": sequence, "fact": fact })).collect();
        self.spoil(&mut said, &held);
        let reply = self.report(said);
        match reply.status {
            200 => self.acknowledged = reply.json()["acknowledged"].as_u64().unwrap(),
            400..=499 => self.ask_how_far(),
            status => panic!("{status}: {}", reply.text()),
        }
    }

    /// Starts anew, and says that it holds all that others hold. A greater number of starts is believed:
    /// whoever has the certificate can start anew.
    pub fn start_anew(&mut self, victims: &Victims) {
        self.starts += 1_000;
        let held: Vec<AttemptId> = victims.attempts.iter().flatten().map(|(attempt, _)| *attempt).collect();
        self.report(json!({ "hello": self.hello(json!([]), &held) })).expect(200);
        self.claims += held.len() as u64;
    }

    /// A report that is refused as a whole may have been applied in part.
    fn ask_how_far(&mut self) {
        self.reports_refused += 1;
        let reply = self.report(json!({ "hello": self.hello(json!([]), &[]) })).expect(200);
        self.acknowledged = reply.json()["acknowledged"].as_u64().unwrap();
    }

    fn report(&self, mut said: Value) -> Reply {
        let defaults = json!({ "versions": AGENT_PROTOCOL, "now": Timestamp::from_seconds(1_790_000_000),
            "incarnation": { "number": self.starts, "nonce": NONCE } });
        for (name, value) in defaults.as_object().unwrap() {
            if said.get(name).is_none() {
                said[name] = value.clone();
            }
        }
        self.api.call(&routes::AGENT_REPORT, &[], &[], &said).unwrap()
    }

    fn hello(&self, storages: Value, held: &[AttemptId]) -> Value {
        json!({ "host": "mallory", "version": "0.0.0", "data_addresses": ["127.0.0.1:9"],
            "storages": storages, "held": held })
    }

    /// Its own storage, and now and then one of others.
    fn offer(&self, victims: &Victims) -> Value {
        let name = match self.claims % 3 {
            0 => victims.storages[self.claims as usize % victims.storages.len()].as_str(),
            _ => "mallory",
        };
        offer_of(name)
    }

    /// Some reports break the rules that hold for a report as a whole.
    fn spoil(&mut self, said: &mut Value, held: &[AttemptId]) {
        if self.random.below(SPOILED_EVERY) > 0 {
            return;
        }
        let number = self.number();
        match self.random.below(6) {
            0 => said["incarnation"] = json!({ "number": self.starts + 1_000, "nonce": number }),
            1 => said["incarnation"] = json!({ "number": self.starts, "nonce": number }),
            2 => said["now"] = json!(self.time()),
            3 => {
                let entries = said["entries"].as_array_mut().unwrap();
                entries.iter_mut().for_each(|entry| entry["sequence"] = json!(number));
            }
            4 => said["entries"].as_array_mut().unwrap().reverse(),
            _ => said["versions"] = json!({ "lowest": 0, "highest": 65_535 }),
        }
        if said["incarnation"]["number"] == json!(self.starts + 1_000) {
            self.starts += 1_000;
            said["incarnation"]["nonce"] = json!(NONCE);
            // What is held is looked at when a session begins.
            said["hello"] = self.hello(json!([]), held);
        }
    }

    // ---- claims -------------------------------------------------------------------------------------------

    fn outcome(&mut self, victims: &Victims) -> Fact {
        let (attempt, epoch) = self.attempt(victims);
        let fault = self.maybe_fault();
        let (bytes_moved, bytes_resent) = (self.number(), self.number());
        let mut time = || Some(self.time());
        let times = AttemptTimes {
            received: time().unwrap(),
            started: time(),
            first_byte: time(),
            last_byte: time(),
            committed: time(),
        };
        Fact::Outcome(Outcome {
            attempt,
            epoch,
            fault,
            digests: DigestSet::default(),
            verification: Verification::EndToEnd,
            already_there: self.random.below(2) == 0,
            bytes_moved,
            bytes_resent,
            times,
            executor: Some(Executor::ALL[self.random.below(Executor::ALL.len() as u64) as usize]),
        })
    }

    fn scanned(&mut self, victims: &Victims) -> Fact {
        let (lfn, size) = self.file(victims);
        let found =
            vec![FoundFile { lfn, size, digests: DigestSet::default(), origin: DigestOrigin::Computed }];
        let left_out =
            LeftOut { path: self.text(), reason: LeftOutReason::ChangedWhileReading, detail: self.text() };
        Fact::Scanned { task: self.task(victims), found, left_out: vec![left_out] }
    }

    fn checked(&mut self, victims: &Victims) -> Fact {
        let files =
            (0..3).map(|_| CheckedFile { lfn: self.file(victims).0, fault: self.maybe_fault() }).collect();
        Fact::Checked { task: self.task(victims), files }
    }

    fn decided(&mut self, victims: &Victims) -> Fact {
        let (since, at) = (self.time(), self.time());
        Fact::Decided {
            decisions: vec![DoorDecision {
                storage: self.storage(victims),
                allowed: self.random.below(2) == 0,
                since,
                at,
                times: self.number(),
                who: self.text(),
                credential: self.text(),
                origin: self.text(),
                operation: self.text(),
                object: self.text(),
                why: self.text(),
            }],
        }
    }

    fn probe(&mut self, victims: &Victims) -> ProbeResult {
        let (agent, at) = (self.agent(victims), self.time());
        ProbeResult { agent, at, ways: Vec::new(), fault: Some(self.text()) }
    }

    fn path(&mut self, victims: &Victims) -> PathSample {
        PathSample {
            source: self.agent(victims),
            at: self.time(),
            seconds: self.number() as f64,
            ipv6: None,
            streams: self.number() as u32,
            bytes: self.number(),
            packets: self.number(),
            resent: self.number(),
            rtt_us: self.number() as u32,
            limit: None,
        }
    }

    fn uplink(&mut self) -> UplinkSample {
        UplinkSample {
            interface: self.text(),
            at: self.time(),
            seconds: self.number() as f64,
            into_bytes_per_s: -(self.number() as f64),
            out_bytes_per_s: f64::MAX,
            capacity_bytes_per_s: Some(self.number() as f64),
        }
    }

    fn circuit(&mut self, victims: &Victims) -> Value {
        let look = json!({ "pending_bytes": self.number(), "threshold_s": f64::MAX, "checks_found": 0,
            "checks_wanted": 1, "mbit": self.number(), "words": self.text() });
        json!({ "source": self.storage(victims), "provider": "static", "state": "established",
            "until": self.time(), "look": look, "notes": [{ "at": self.time(), "words": self.text() }],
            "ended": [], "orders": [] })
    }

    // ---- what they are made of ----------------------------------------------------------------------------

    fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.random.below(all.len().max(1) as u64) as usize)
    }

    fn number(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.random.word(),
            _ => NUMBERS[self.random.below(NUMBERS.len() as u64) as usize],
        }
    }

    fn time(&mut self) -> Timestamp {
        // What cannot be written as a date cannot be sent.
        let seconds = [0, 1, 1_790_000_000, 1_900_000_000, 32_503_680_000, 253_402_207_000, -62_135_596_000];
        Timestamp::from_seconds(seconds[self.random.below(seconds.len() as u64) as usize])
    }

    fn text(&mut self) -> String {
        match self.random.below(5) {
            0 => String::new(),
            1 => "\u{1b}[2J\nINFO forged: all is well\r\u{202e}".to_owned(),
            2 => "x".repeat(20_000),
            3 => "'; DROP TABLE replicas; --\u{0}".to_owned(),
            _ => "<script>alert(1)</script>".to_owned(),
        }
    }

    fn maybe_fault(&mut self) -> Option<Fault> {
        let code = FaultCode::ALL[self.random.below(FaultCode::ALL.len() as u64) as usize];
        let blame = [Blame::Source, Blame::Target, Blame::Ourselves][self.random.below(3) as usize];
        let text = self.text();
        (self.random.below(3) > 0).then(|| Fault::new(code, text).blaming(blame))
    }

    fn attempt(&mut self, victims: &Victims) -> (AttemptId, Epoch) {
        let state = self.random.below(2) as usize;
        let known = self.pick(&victims.attempts[state]).copied();
        known.unwrap_or((AttemptId(self.random.word()), Epoch(self.number())))
    }

    fn task(&mut self, victims: &Victims) -> TaskId {
        let state = self.random.below(2) as usize;
        let known = self.pick(&victims.tasks[state]).copied();
        known.unwrap_or(TaskId(self.random.word()))
    }

    fn storage(&mut self, victims: &Victims) -> StorageName {
        self.pick(&victims.storages).cloned().unwrap_or_else(|| "nowhere".parse().unwrap())
    }

    fn file(&mut self, victims: &Victims) -> (Lfn, u64) {
        let known = self.pick(&victims.files).cloned();
        let (lfn, size) = known.unwrap_or_else(|| ("/nothing".parse().unwrap(), 1));
        (lfn, if self.random.below(2) == 0 { size } else { self.number() })
    }

    fn agent(&mut self, victims: &Victims) -> AgentId {
        self.pick(&victims.agents).copied().unwrap_or(AgentId(1))
    }
}

fn push(said: &mut Value, list: &str, item: Value) {
    match said[list].as_array_mut() {
        Some(items) => items.push(item),
        None => said[list] = json!([item]),
    }
}

/// A hello's list with this storage.
fn offer_of(name: &str) -> Value {
    json!([{ "name": name, "kind": "posix", "rules": longhaul_model::NameRules::default(),
        "writable": true, "case_insensitive": false }])
}
