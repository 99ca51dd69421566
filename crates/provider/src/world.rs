//! State of the simulated provider: clock, network, reservations of each protocol, scheduled jobs, recorded
//! messages.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::clock::Clock;
use crate::http::Reply;
use crate::mischief::{Deed, Mischief};
use crate::network::Network;
use crate::{nsi, oscars, sense};

/// Messages recorded.
const MESSAGES_MAX: usize = 10_000;
/// Size of an oversized reply.
const HUGE_BYTES: usize = 24 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Domain of its network, such as `example.net:2026`.
    pub(crate) domain: String,
    /// Processing time in seconds of its clock.
    pub(crate) think_s: f64,
    /// How long an uncommitted reservation is held.
    pub(crate) hold_s: f64,
    /// File in which its state survives restarts.
    pub(crate) state: Option<PathBuf>,
}

#[derive(Clone, Debug)]
pub(crate) enum Job {
    Nsi(nsi::Job),
    Oscars(oscars::Job),
    Sense(sense::Job),
    Call(nsi::Callback),
}

/// A received request, or a call that was due.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RecordedMessage {
    pub(crate) what: String,
    pub(crate) of: String,
    pub(crate) body: String,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    pub(crate) nsi: nsi::Agent,
    pub(crate) oscars: oscars::Manager,
    pub(crate) sense: sense::Orchestrator,
    pub(crate) mischief: Mischief,
    pub(crate) seen: VecDeque<RecordedMessage>,
    /// Scheduled jobs by time and order of scheduling.
    jobs: Vec<(f64, u64, Job)>,
    /// Calls to send now, in order.
    pub(crate) calls: VecDeque<nsi::Callback>,
    /// A call to send after the next one.
    swapped: Option<nsi::Callback>,
    /// Whether calls are sent before the present reply.
    pub(crate) calls_first: bool,
    count: u64,
}

/// State that survives a restart.
#[derive(Serialize, Deserialize)]
struct PersistedState {
    network: Network,
    nsi: nsi::Agent,
    oscars: oscars::Manager,
    sense: sense::Orchestrator,
    count: u64,
}

impl World {
    pub(crate) fn new(settings: Settings, clock: Clock, network: Network) -> World {
        World {
            settings,
            clock,
            network,
            nsi: nsi::Agent::default(),
            oscars: oscars::Manager::default(),
            sense: sense::Orchestrator::default(),
            mischief: Mischief::default(),
            seen: VecDeque::new(),
            jobs: Vec::new(),
            calls: VecDeque::new(),
            swapped: None,
            calls_first: false,
            count: 0,
        }
    }

    pub(crate) fn nsa(&self) -> String {
        format!("urn:ogf:network:{}:nsa", self.settings.domain)
    }

    pub(crate) fn network_id(&self) -> String {
        format!("{}:topology", self.settings.domain)
    }

    pub(crate) fn record_message(&mut self, what: &str, of: &str, body: &str) {
        if self.seen.len() == MESSAGES_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(RecordedMessage {
            what: what.to_owned(),
            of: of.to_owned(),
            body: body.to_owned(),
        });
    }

    /// A fresh, random-looking number.
    fn new_number(&mut self) -> u64 {
        self.count += 1;
        let mixed = (self.count ^ 0x5bd1_e995_9e37_79b9).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    pub(crate) fn new_id(&mut self, prefix: &str, digits: usize) -> String {
        let number = format!("{:016x}", self.new_number());
        format!("{prefix}{}", &number[..digits])
    }

    pub(crate) fn uuid(&mut self) -> String {
        let hex = format!("{:016x}{:016x}", self.new_number(), self.new_number());
        format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
    }

    pub(crate) fn schedule_at(&mut self, at: f64, job: Job) {
        self.count += 1;
        self.jobs.push((at, self.count, job));
    }

    pub(crate) fn schedule_in(&mut self, seconds: f64, job: Job) {
        self.schedule_at(self.clock.now() + seconds, job);
    }

    pub(crate) fn queue_callback(&mut self, callback: nsi::Callback) {
        self.record_message(&format!("call {}", callback.name), &callback.to, &callback.body);
        match self.mischief.take(callback.name, Deed::is_of_callbacks) {
            Some(Deed::Drop) => return,
            Some(Deed::Repeat) => self.calls.push_back(callback.clone()),
            Some(Deed::Delay(seconds)) => return self.schedule_in(seconds, Job::Call(callback)),
            Some(Deed::Swap) => return self.swapped = Some(callback),
            _ => {}
        }
        self.calls.push_back(callback);
        self.calls.extend(self.swapped.take());
    }

    /// Runs due jobs; returns when the next is due.
    pub(crate) fn run_due_jobs(&mut self) -> Option<f64> {
        loop {
            let first = self.jobs.iter().enumerate().min_by(|(_, a), (_, b)| {
                (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap_or(std::cmp::Ordering::Equal)
            });
            let (place, at) = first.map(|(place, job)| (place, job.0))?;
            if at > self.clock.now() {
                return Some(at);
            }
            match self.jobs.swap_remove(place).2 {
                Job::Nsi(job) => nsi::run_job(self, job),
                Job::Oscars(job) => oscars::run_job(self, job),
                Job::Sense(job) => sense::run_job(self, job),
                Job::Call(callback) => self.calls.push_back(callback),
            }
        }
    }

    /// State for tests, as JSON.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        json!({
            "now": self.clock.now(),
            "connections": self.nsi.connections.values().collect::<Vec<_>>(),
            "oscars": self.oscars,
            "sense": self.sense,
            "booked": self.network.owners(),
            "seen": self.seen,
            "mischief_left": self.mischief.unused_rules(),
            "due": self.jobs.len() + self.calls.len(),
        })
    }

    /// Persisted before any reply, as a provider that keeps its records does.
    pub(crate) fn persist(&self) -> Result<(), String> {
        let Some(path) = &self.settings.state else { return Ok(()) };
        let kept = json!({
            "network": self.network,
            "nsi": self.nsi,
            "oscars": self.oscars,
            "sense": self.sense,
            "count": self.count,
        });
        let new = path.with_extension("new");
        std::fs::write(&new, kept.to_string())
            .and_then(|()| std::fs::rename(&new, path))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(crate) fn load(&mut self) -> Result<(), String> {
        let Some(path) = self.settings.state.clone().filter(|path| path.exists()) else { return Ok(()) };
        let told = |error: String| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|error| told(error.to_string()))?;
        let kept: PersistedState = serde_json::from_str(&text).map_err(|error| told(error.to_string()))?;
        self.network = kept.network;
        (self.nsi, self.oscars, self.sense, self.count) = (kept.nsi, kept.oscars, kept.sense, kept.count);
        nsi::Agent::resume(self);
        oscars::resume(self);
        sense::resume(self);
        Ok(())
    }
}

/// Reply that replaces the operation.
pub(crate) fn replacement_reply(deed: &Deed) -> Option<Reply> {
    match deed {
        Deed::Status(status) => {
            Some(Reply::new(*status, "text/html", "<html><body>Something is wrong<br></body></html>"))
        }
        Deed::Lose => Some(Reply { drops_connection: true, ..Reply::default() }),
        _ => None,
    }
}

/// Applies a fault to the reply of an executed operation.
pub(crate) fn apply_to_reply(reply: Reply, deed: Option<Deed>) -> Reply {
    match deed {
        Some(Deed::LoseAnswer) => Reply { drops_connection: true, ..reply },
        Some(Deed::Hang(seconds)) => Reply { delay: Duration::from_secs_f64(seconds), ..reply },
        Some(Deed::Answer(form)) => Reply { body: malformed_body(&reply.body, &form), ..reply },
        _ => reply,
    }
}

fn malformed_body(body: &str, form: &str) -> String {
    match form {
        "huge" => format!("{body}{}", " ".repeat(HUGE_BYTES)),
        "cut" => body[..body.len() / 2].to_owned(),
        "deep" => format!("{}{}", "<a>".repeat(100_000), "[".repeat(100_000)),
        "entities" => {
            let mut text = String::from("<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY e0 \"ha\">");
            for level in 1..=12 {
                text.push_str(&format!("<!ENTITY e{level} \"{}\">", format!("&e{};", level - 1).repeat(10)));
            }
            text + "]><a>&e12;</a>"
        }
        _ => "\u{0}\u{1}%%% this is no answer at all }{ ><".to_owned(),
    }
}
