//! The state machine that all REST providers share: calls, log-ins, failures, and the events for its owner.

use std::collections::{BTreeMap, VecDeque};

use longhaul_circuits::{Answer, CircuitRequest, Event, Grant, ProviderReservation, RequestKey};
use longhaul_model::{ErrorChain, Fault, Timestamp};

use super::{AnswerError, Job, Next, Protocol, Stage, unexpected};
use crate::circuits::remote::{Call, CallId, Dialogue, HttpAnswer, Names, Step, poll_delay};

/// Calls of one stage that fail in a row, before a request is given up.
const TRIES: u32 = 4;
/// Clocks that differ by less are the same: dates are told in whole seconds.
const SKEW_MIN_US: u64 = 2_000_000;
const NAME_BYTES_MAX: usize = 200;

enum CallSubject {
    Login,
    Job(u64),
    /// One of the queries that make up a listing.
    List(RequestKey),
}

/// A listing under way: the reservations, queried name by name.
struct List {
    asked: Timestamp,
    open: usize,
    held: Vec<ProviderReservation>,
    /// One query failed, so that the listing would prove nothing.
    is_broken: bool,
}

pub(crate) struct Rest {
    protocol: Box<dyn Protocol>,
    names: Names,
    jobs: BTreeMap<u64, Job>,
    calls: BTreeMap<CallId, CallSubject>,
    token: Option<String>,
    login: Option<CallId>,
    login_next: Timestamp,
    login_failures: u32,
    list: Option<List>,
    is_list_wanted: bool,
    /// The provider's clock minus ours, in microseconds.
    skew: i64,
    count: u64,
    steps: VecDeque<Step>,
}

impl Rest {
    pub(crate) fn new(protocol: Box<dyn Protocol>, names: Names) -> Rest {
        Rest {
            token: protocol.given_token(),
            protocol,
            names,
            jobs: BTreeMap::new(),
            calls: BTreeMap::new(),
            login: None,
            login_next: Timestamp::ZERO,
            login_failures: 0,
            list: None,
            is_list_wanted: false,
            skew: 0,
            count: 0,
            steps: VecDeque::new(),
        }
    }

    fn add(&mut self, key: RequestKey, mbit: u64, stage: Stage, now: Timestamp) -> u64 {
        self.count += 1;
        let job = Job {
            key,
            mbit,
            lifetime: None,
            end: None,
            name: None,
            stage,
            polls: 0,
            vlans: None,
            route: Vec::new(),
            call: None,
            next: now,
            failures: 0,
            is_releasing: false,
            is_stray: false,
            is_reported: false,
        };
        self.jobs.insert(self.count, job);
        self.count
    }

    fn push_event(&mut self, event: Event) {
        self.steps.push_back(Step::Emit(event));
    }

    fn persist_name(&mut self, key: RequestKey, name: Option<String>) {
        match name {
            Some(name) => self.names.insert(key, name),
            None => self.names.remove(&key),
        };
        self.steps.push_back(Step::PersistNames(self.names.clone()));
    }

    fn call(&mut self, mut call: Call, asked: CallSubject) -> CallId {
        self.count += 1;
        if !matches!(asked, CallSubject::Login)
            && let Some(token) = &self.token
        {
            call.headers.push(self.protocol.authorise(token));
        }
        self.calls.insert(self.count, asked);
        self.steps.push_back(Step::Call(self.count, call));
        self.count
    }

    /// Whether calls can be made; logs in if not.
    fn is_in(&mut self, now: Timestamp) -> bool {
        if self.token.is_some() {
            return true;
        }
        if self.login.is_none() && now >= self.login_next {
            match self.protocol.login() {
                Some(login) => self.login = Some(self.call(login, CallSubject::Login)),
                None => return true,
            }
        }
        false
    }

    /// Drops a token that was refused; the next login gets another.
    fn forget_token(&mut self) {
        self.token = self.protocol.given_token();
    }

    fn logged_in(&mut self, answer: Result<HttpAnswer, Fault>, now: Timestamp) {
        self.login = None;
        let token = answer.map_err(AnswerError::from).and_then(|heard| self.protocol.token(&heard));
        match token {
            Ok(token) => {
                self.token = Some(token);
                self.login_failures = 0;
            }
            Err(why) => {
                self.login_failures += 1;
                self.login_next = now.plus(poll_delay(self.login_failures));
                if self.login_failures >= TRIES {
                    let waiting: Vec<u64> = self.jobs.keys().copied().collect();
                    for serial in waiting {
                        self.refuse(serial, false, format!("no login: {why}"), now);
                    }
                    if let Some(list) = &mut self.list {
                        list.is_broken = true;
                    }
                }
            }
        }
        self.tick(now);
    }

    fn drive(&mut self, serial: u64, now: Timestamp) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        if job.call.is_some() {
            return;
        }
        if job.is_releasing {
            match (job.stage, &job.name) {
                (_, None) => return self.finish(serial),
                (Stage::Examine | Stage::Cancel | Stage::Remove, _) => {}
                _ => job.turn(Stage::Examine, now),
            }
        }
        if job.due().is_none_or(|due| due > now) || !self.is_in(now) {
            return;
        }
        let Some(job) = self.jobs.get(&serial) else { return };
        let there = Timestamp(now.0.saturating_add(self.skew));
        let call = match (job.stage, &job.name) {
            (Stage::Examine, Some(name)) => self.protocol.examine(name),
            _ => self.protocol.next_call(job, there),
        };
        let call = self.call(call, CallSubject::Job(serial));
        if let Some(job) = self.jobs.get_mut(&serial) {
            job.call = Some(call);
        }
    }

    fn answered(&mut self, serial: u64, answer: Result<HttpAnswer, Fault>, now: Timestamp) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        job.call = None;
        let next = match answer {
            Err(fault) => Next::Unclear(fault.to_string()),
            // The token is too old, or the provider has forgotten it.
            Ok(heard) if heard.status == 401 => {
                self.forget_token();
                Next::Unclear(unexpected(&heard).to_string())
            }
            Ok(heard) => self.protocol.hear(job, &heard, self.skew),
        };
        self.follow(serial, next, now);
        self.drive(serial, now);
    }

    fn follow(&mut self, serial: u64, next: Next, now: Timestamp) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        match next {
            Next::Named(name, stage) => {
                let is_good = !name.is_empty()
                    && name.len() <= NAME_BYTES_MAX
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
                if !is_good {
                    return self.unclear(serial, format!("{name:?} is no name of a reservation"), now);
                }
                job.name = Some(name.clone());
                job.turn(stage, now);
                let key = job.key;
                self.persist_name(key, Some(name));
            }
            Next::Go(stage) => job.turn(stage, now),
            Next::Later(stage) => {
                job.turn(stage, now.plus(poll_delay(job.failures)));
                job.failures = job.failures.saturating_add(1);
            }
            Next::Unchanged => {
                job.failures = 0;
                job.next = now.plus(poll_delay(job.polls));
                job.polls = job.polls.saturating_add(1);
            }
            Next::Granted => self.grant(serial, now),
            Next::Refused { .. } if job.is_releasing => {
                self.unclear(serial, "it is not given back".to_owned(), now)
            }
            Next::Refused { less, detail } => self.refuse(serial, less, detail, now),
            Next::Unclear(why) => self.unclear(serial, why, now),
            Next::Gone if job.is_releasing => self.finish(serial),
            Next::Gone => {
                self.refuse(serial, false, "the provider does not know it any more".to_owned(), now)
            }
        }
    }

    /// Again after a while. What is given back is tried for ever.
    fn unclear(&mut self, serial: u64, why: String, now: Timestamp) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        job.failures = job.failures.saturating_add(1);
        job.next = now.plus(poll_delay(job.failures));
        if job.is_releasing {
            // What a cancellation came to, an examination tells.
            let next = job.next;
            job.turn(Stage::Examine, next);
            tracing::debug!(why, "a circuit could not be given back yet");
        } else if job.failures >= TRIES {
            self.refuse(serial, false, why, now);
        }
    }

    fn refuse(&mut self, serial: u64, less: bool, detail: String, now: Timestamp) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        if job.is_releasing || job.is_reported {
            return;
        }
        (job.is_reported, job.is_releasing, job.is_stray) = (true, true, true);
        let key = job.key;
        self.push_event(Event::Answer { key, answer: Answer::Refused { less, detail } });
        self.drive(serial, now);
    }

    fn grant(&mut self, serial: u64, now: Timestamp) {
        let ends = self.protocol.ends();
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        job.turn(Stage::Up, now);
        if job.is_reported || job.is_releasing {
            return;
        }
        if job.mbit == 0 {
            return self.refuse(serial, true, "the provider gives 0 Mbit/s".to_owned(), now);
        }
        job.is_reported = true;
        // What does not end by itself is given back in time.
        let expires = job.end.or(job.lifetime.map(|lifetime| now.plus(lifetime)));
        let (key, grant) = (job.key, Grant { mbit: job.mbit, ends, expires });
        self.push_event(Event::Answer { key, answer: Answer::Granted(grant) });
    }

    fn finish(&mut self, serial: u64) {
        let Some(job) = self.jobs.remove(&serial) else { return };
        if self.names.contains_key(&job.key) {
            self.persist_name(job.key, None);
        }
        if !job.is_stray {
            self.push_event(Event::TornDown(job.key));
        }
    }

    /// All names are asked about at once: there are a few.
    fn start_list(&mut self, now: Timestamp) {
        if self.list.is_some() || !self.is_in(now) {
            return;
        }
        self.is_list_wanted = false;
        let names: Vec<_> = self.names.iter().map(|(key, name)| (*key, name.clone())).collect();
        self.list = Some(List { asked: now, open: names.len(), held: Vec::new(), is_broken: false });
        for (key, name) in names {
            let call = self.protocol.examine(&name);
            self.call(call, CallSubject::List(key));
        }
        self.end_list();
    }

    fn list_answered(&mut self, key: RequestKey, answer: Result<HttpAnswer, Fault>) {
        if answer.as_ref().is_ok_and(|heard| heard.status == 401) {
            self.forget_token();
        }
        let up = answer.map_err(AnswerError::from).and_then(|heard| self.protocol.is_up(&heard));
        // What is cleared away is nobody's any more.
        let is_stray = self.jobs.values().any(|job| job.is_stray && job.key == key);
        let Some(list) = &mut self.list else { return };
        list.open = list.open.saturating_sub(1);
        match up {
            Ok(Some(_)) if is_stray => {}
            Ok(Some(up)) => list.held.push(ProviderReservation { key, up }),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(why = %ErrorChain::new(&error), "what the provider holds is not known");
                list.is_broken = true;
            }
        }
        self.end_list();
    }

    fn end_list(&mut self) {
        let Some(list) = self.list.take_if(|list| list.open == 0) else { return };
        match list.is_broken {
            true => self.is_list_wanted = self.token.is_none(),
            false => self.push_event(Event::Listed { asked: list.asked, held: list.held }),
        }
    }
}

impl Job {
    fn turn(&mut self, stage: Stage, now: Timestamp) {
        if self.stage != stage {
            self.polls = 0;
            // What does not go away is asked more and more rarely.
            if !self.is_releasing {
                self.failures = 0;
            }
        }
        (self.stage, self.next) = (stage, now);
    }

    fn due(&self) -> Option<Timestamp> {
        let waits = self.call.is_some() || (self.stage == Stage::Up && !self.is_releasing);
        (!waits).then_some(self.next)
    }
}

impl Dialogue for Rest {
    fn request(&mut self, wish: &CircuitRequest, now: Timestamp) {
        let serial = self.add(wish.key, wish.mbit, Stage::Name, now);
        if let Some(job) = self.jobs.get_mut(&serial) {
            job.lifetime = wish.lifetime;
        }
        self.drive(serial, now);
    }

    fn tear_down(&mut self, key: RequestKey, now: Timestamp) {
        let current = self.jobs.iter_mut().find(|(_, job)| job.key == key && !job.is_stray);
        let serial = match current {
            Some((serial, job)) => {
                (job.is_releasing, job.next) = (true, now);
                *serial
            }
            // One of an earlier run of ours. Without a name nothing was ever done about it.
            None => {
                let name = self.names.get(&key).cloned();
                let serial = self.add(key, 0, Stage::Examine, now);
                if let Some(job) = self.jobs.get_mut(&serial) {
                    (job.name, job.is_releasing) = (name, true);
                }
                serial
            }
        };
        self.drive(serial, now);
    }

    fn list(&mut self, now: Timestamp) {
        self.is_list_wanted = true;
        self.start_list(now);
    }

    fn heard(&mut self, call: CallId, answer: Result<HttpAnswer, Fault>, now: Timestamp) {
        if let Ok(HttpAnswer { date: Some(date), .. }) = &answer {
            let skew = date.0.saturating_sub(now.0);
            self.skew = if skew.unsigned_abs() < SKEW_MIN_US { 0 } else { skew };
        }
        match self.calls.remove(&call) {
            Some(CallSubject::Login) => self.logged_in(answer, now),
            Some(CallSubject::Job(serial)) => self.answered(serial, answer, now),
            Some(CallSubject::List(key)) => self.list_answered(key, answer),
            None => {}
        }
    }

    /// These never call.
    fn called(&mut self, _body: &str, _now: Timestamp) {}

    fn tick(&mut self, now: Timestamp) {
        let serials: Vec<u64> = self.jobs.keys().copied().collect();
        for serial in serials {
            self.drive(serial, now);
        }
        if self.is_list_wanted {
            self.start_list(now);
        }
    }

    fn next_wake(&self) -> Option<Timestamp> {
        if self.login.is_some() {
            return None;
        }
        let list = (self.is_list_wanted && self.list.is_none()).then_some(Timestamp::ZERO);
        let first = self.jobs.values().filter_map(Job::due).chain(list).min()?;
        let is_out = self.token.is_none() && self.protocol.login().is_some();
        Some(if is_out { first.max(self.login_next) } else { first })
    }

    fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }
}
