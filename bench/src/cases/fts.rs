//! The FTS3 API under load, as frameworks make it: jobs submitted, polled and listed over connections that
//! are kept, with a few jobs in the database and with many; how soon a job starts behind a long queue; copies
//! of small files between two WebDAV servers.
//!
//! The queue is of files between storages that take connections and never say a word, so that what waits goes
//! on waiting, on 3,025 links with priorities and activities of different shares. Load and service share the
//! machine.

use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules, PostgreSql};
use longhaul_testbed::http::{Api, KeptAlive};
use longhaul_testbed::{Deployment, ServiceOptions};
use serde_json::{Value, json};

use crate::Rounds;
use crate::measure::{Row, cpu_seconds, median, peak_memory};

const SUBMITTERS: usize = 32;
const POLLERS: usize = 20;
/// Jobs in the database at the start.
const JOBS_FEW: usize = 1_000;
/// Jobs in the database in the end.
const JOBS_MANY: usize = 1_000_000;
const JOBS_MANY_QUICK: usize = 50_000;
/// Enough to see whether it is flat; a run of everything is long as it is.
const JOBS_MANY_POSTGRESQL: usize = 200_000;
/// Jobs submitted last, whose submission is measured.
const JOBS_TIMED: usize = 20_000;
const FILES_OF_LARGE: usize = 200;
const LARGE_JOBS: usize = 500;
const POLLED: usize = 100;
const POLLS: usize = 1_000;
/// Pause between the polls of one connection, which makes 200 a second over all of them.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const SIDES: usize = 55;
/// Shares of the activities, in percent.
const SHARES: [u32; 5] = [40, 25, 20, 10, 5];
/// With many jobs in the database submissions keep at least this share of their rate.
const RATE_FRACTION_MIN: f64 = 0.8;
/// Copies at one host, so that the silent storages do not take up all of them.
const COPIES_PER_HOST_MAX: usize = 16;
const STARTS: usize = 20;
/// Enough that the first seconds, in which two at a time are tried, are few of them.
const COPIED: usize = 8_000;
const COPIED_BYTES: usize = 1_000;
const JOB_TIMEOUT: Duration = Duration::from_secs(300);
/// Pause between two polls of a job until it has ended.
const END_POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) fn run(rounds: &Rounds) -> Vec<Row> {
    measured(if rounds.0 > 1 { JOBS_MANY } else { JOBS_MANY_QUICK }, None)
}

pub(crate) fn run_on_postgresql(rounds: &Rounds) -> Vec<Row> {
    let database = PostgreSql::start_durable();
    let rows = measured(if rounds.0 > 1 { JOBS_MANY_POSTGRESQL } else { JOBS_MANY_QUICK }, Some(&database));
    rows.into_iter().map(|row| Row { case: "fts-postgresql", ..row }).collect()
}

fn measured(many: usize, database: Option<&PostgreSql>) -> Vec<Row> {
    let scene = Scene::new(database);
    let mut rows = Vec::new();

    let first = scene.submit(JOBS_FEW);
    let before = scene.read(&first.ids);
    let grown = scene.submit(many - JOBS_FEW - JOBS_TIMED);
    let last = scene.submit(JOBS_TIMED);
    let ids: Vec<String> = [&first.ids[..], &grown.ids, &last.ids].concat();
    rows.push(at_least("jobs/s of one file, 32 connections", last.load.per_s(), 2_000.0, "≥ 2,000"));
    rows.push(at_most("the same, p95 ms", last.load.p95_ms(), 50.0, "≤ 50"));
    rows.push(at_most("the same, CPU ms of the service per job", last.cpu_ms, 1.0, "≤ 1"));
    rows.push(flat("jobs/s, many to few in the database", last.load.per_s(), grown.load.per_s(), many));

    let after = scene.read(&ids);
    for (name, now, few, bound, bar) in [
        ("poll of 100 jobs, 200/s over 20 connections, p95 ms", &after.poll, &before.poll, 15.0, "≤ 15"),
        ("list of 100 jobs, p95 ms", &after.list, &before.list, 5.0, "≤ 5"),
        ("list of 100 by a rare state, p95 ms", &after.rare, &before.rare, 5.0, "≤ 5"),
    ] {
        let yardstick = format!("{:.1} at {JOBS_FEW} jobs", few.p95_ms());
        rows.push(Row { yardstick, ..at_most(name, now.p95_ms(), bound, bar) });
    }
    rows.push(at_least("polls/s over 20 connections, flat out", after.flat_out.per_s(), 200.0, "≥ 200"));
    let memory = peak_memory(scene.deployment.pid("service")) as f64 / 1e6;
    rows.push(at_most("service, peak MB", memory, 500.0, "≤ 500"));

    let beside = scene.submit_beside_readers(&ids);
    let share = beside.per_s() / last.load.per_s();
    rows.push(at_least("jobs/s beside polls and lists, of those alone", share, 0.7, "≥ 0.7"));
    let large = scene.submit_large();
    rows.push(at_least("files/s in jobs of 200", large, 50_000.0, "≥ 50,000"));

    rows.push(at_most("submission to start, median ms", scene.start_s() * 1e3, 500.0, "≤ 500"));
    rows.push(at_least("copies/s of 1 kB, WebDAV to WebDAV, streamed", scene.copies_per_s(), 300.0, "≥ 300"));
    rows
}

fn at_least(figure: &'static str, value: f64, bound: f64, bar: &'static str) -> Row {
    Row::at_least("fts", figure, value, bound, bar)
}

fn at_most(figure: &'static str, value: f64, bound: f64, bar: &'static str) -> Row {
    Row::at_most("fts", figure, value, bound, bar)
}

fn flat(figure: &'static str, now: f64, before: f64, many: usize) -> Row {
    let ratio = Some(now / before);
    let yardstick = format!("{before:.0} on the way to {many}");
    Row {
        yardstick,
        ratio,
        bar: "≥ 0.8",
        reached: now >= RATE_FRACTION_MIN * before,
        ..Row::plain("fts", figure, now)
    }
}

/// What many requests of one kind took.
struct Load {
    seconds: f64,
    /// In order.
    each_ms: Vec<f64>,
}

impl Load {
    fn per_s(&self) -> f64 {
        self.each_ms.len() as f64 / self.seconds
    }

    fn p95_ms(&self) -> f64 {
        self.each_ms[self.each_ms.len() * 95 / 100]
    }
}

struct Submitted {
    ids: Vec<String>,
    load: Load,
    cpu_ms: f64,
}

struct Read {
    /// At the rate that is asked for, and as fast as it goes.
    poll: Load,
    flat_out: Load,
    list: Load,
    rare: Load,
}

struct Scene {
    deployment: Deployment,
    api: Api,
    /// Port of the storages that never answer.
    port: u16,
    /// Numbers of files, all different.
    next: AtomicUsize,
    near: Nginx,
    far: Nginx,
}

impl Scene {
    fn new(database: Option<&PostgreSql>) -> Scene {
        let authority = ForeignAuthority::new("storages");
        let nginx = || Nginx::start(&authority, NginxRules::default());
        let (near, far) = (nginx(), nginx());
        let database = database.map(|server| format!("url = \"postgresql://{}\"\n", server.location()));
        let settings = format!(
            "[service.database]\n{}[service.limits]\nuser_requests_per_s = 0\n\
             [service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = [{:?}]\n\
             copies = 1000\nhost_copies = {COPIES_PER_HOST_MAX}\n",
            database.unwrap_or_default(),
            authority.ca_file()
        );
        let deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
        let scene = Scene { api: deployment.api(), port: silent(), next: 0.into(), near, far, deployment };
        scene.share_among_activities();
        scene
    }

    fn share_among_activities(&self) {
        let mut connection = self.connection();
        let who = connection.send("GET", "/whoami", &[]).expect("an answer").expect(200).json();
        let share: serde_json::Map<_, _> = (0..)
            .zip(SHARES)
            .map(|(number, percent)| (activity(number), json!(f64::from(percent) / 100.0)))
            .collect();
        let shares = json!({ "vo": who["vos"][0], "active": true, "share": share });
        let set = connection.send("POST", "/config/activity_shares", shares.to_string().as_bytes());
        set.expect("an answer").expect(200);
    }

    /// One between two of the silent storages.
    fn pair(&self) -> Value {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let host =
            |side: usize, of: usize| format!("https://127.{side}.0.{}:{}/f{number}", of + 1, self.port);
        let (source, target) = (number % SIDES, number / SIDES % SIDES);
        json!({
            "sources": [host(1, source)], "destinations": [host(2, target)], "filesize": 1_000_000,
            "activity": activity(number % SHARES.len()),
        })
    }

    fn job(&self, files: usize) -> Vec<u8> {
        let files: Vec<Value> = (0..files).map(|_| self.pair()).collect();
        let priority = 1 + self.next.load(Ordering::Relaxed) % 5;
        json!({ "files": files, "params": { "priority": priority, "retry": -1 } }).to_string().into_bytes()
    }

    /// Jobs of one file each.
    fn submit(&self, count: usize) -> Submitted {
        let pid = self.deployment.pid("service");
        let cpu = cpu_seconds(pid);
        let (load, answers) =
            self.flood(SUBMITTERS, count, Duration::ZERO, |connection, _| post(connection, &self.job(1)));
        let cpu_ms = (cpu_seconds(pid) - cpu) * 1e3 / count as f64;
        eprintln!("  {count} jobs of one file: {:.0}/s, p95 {:.1} ms", load.per_s(), load.p95_ms());
        Submitted { ids: answers, load, cpu_ms }
    }

    /// Files a second.
    fn submit_large(&self) -> f64 {
        let (load, _) = self.flood(SUBMITTERS, LARGE_JOBS, Duration::ZERO, |connection, _| {
            post(connection, &self.job(FILES_OF_LARGE))
        });
        load.per_s() * FILES_OF_LARGE as f64
    }

    fn read(&self, ids: &[String]) -> Read {
        // Some that are rare.
        let canceled: Vec<String> = ids.iter().step_by(ids.len() / 5).cloned().collect();
        let gone = self.connection().send("DELETE", &format!("/jobs/{}", canceled.join(",")), &[]);
        gone.expect("jobs are cancelled").expect(200);
        let of = |number: usize| {
            let chosen = (0..POLLED).map(|place| &*ids[(number * 7_919 + place * 104_729) % ids.len()]);
            format!("/jobs/{}", chosen.collect::<Vec<_>>().join(","))
        };
        let get = |target: &(dyn Fn(usize) -> String + Sync), connections: usize, every: Duration| {
            self.flood(connections, POLLS, every, |connection, number| {
                let reply = connection.send("GET", &target(number), &[]).expect("an answer");
                assert!(matches!(reply.status, 200 | 207), "{}: {}", reply.status, reply.text());
            })
            .0
        };
        let read = Read {
            poll: get(&of, POLLERS, POLL_INTERVAL),
            flat_out: get(&of, POLLERS, Duration::ZERO),
            list: get(&|_| "/jobs?limit=100".into(), 1, Duration::ZERO),
            rare: get(&|_| "/jobs?limit=100&state_in=CANCELED".into(), 1, Duration::ZERO),
        };
        eprintln!(
            "  with {} jobs: a poll of 100 p95 {:.1} ms, up to {:.0}/s; a list {:.1} ms, by a rare state \
                {:.1} ms",
            ids.len(),
            read.poll.p95_ms(),
            read.flat_out.per_s(),
            read.list.p95_ms(),
            read.rare.p95_ms()
        );
        read
    }

    /// While two others poll and list as fast as they can.
    fn submit_beside_readers(&self, ids: &[String]) -> Load {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let poll = format!("/jobs/{}", ids.iter().take(POLLED).cloned().collect::<Vec<_>>().join(","));
            for target in [poll, "/jobs?limit=100".to_owned()] {
                let done = &done;
                scope.spawn(move || {
                    let mut connection = self.connection();
                    while !done.load(Ordering::Relaxed) {
                        connection.send("GET", &target, &[]).expect("an answer");
                    }
                });
            }
            let load = self.submit(JOBS_TIMED).load;
            done.store(true, Ordering::Relaxed);
            load
        })
    }

    /// From the answer to a submission until the file is on its way, at the median.
    fn start_s(&self) -> f64 {
        let mut connection = self.connection();
        let one = |number: usize| {
            let name = format!("start{number}");
            self.near.put(&name, &[7; COPIED_BYTES]);
            let pair = json!({ "sources": [self.near.url(&name)], "destinations": [self.far.url(&name)] });
            let id = post(&mut connection, json!({ "files": [pair] }).to_string().as_bytes());
            let begun = Instant::now();
            loop {
                let reply = connection.send("GET", &format!("/jobs/{id}"), &[]).expect("an answer");
                if reply.json()["job_state"] != "SUBMITTED" {
                    return begun.elapsed().as_secs_f64();
                }
                assert!(begun.elapsed() < JOB_TIMEOUT, "job {id} does not start");
            }
        };
        median((0..STARTS).map(one).collect())
    }

    fn copies_per_s(&self) -> f64 {
        let names: Vec<String> = (0..COPIED).map(|number| format!("copy{number}")).collect();
        names.iter().for_each(|name| self.near.put(name, &[7; COPIED_BYTES]));
        let pair =
            |name: &String| json!({ "sources": [self.near.url(name)], "destinations": [self.far.url(name)] });
        let files: Vec<Value> = names.iter().map(pair).collect();
        COPIED as f64 / copied_in_s(&mut self.connection(), &files)
    }

    fn connection(&self) -> KeptAlive {
        self.api.kept_alive().expect("a connection")
    }

    /// So many requests over so many connections, each as soon as the one before is answered, but no sooner
    /// than this after that was due. What is late is measured from when it was due.
    fn flood<T: Send>(
        &self,
        connections: usize,
        count: usize,
        every: Duration,
        ask: impl Fn(&mut KeptAlive, usize) -> T + Sync,
    ) -> (Load, Vec<T>) {
        let mut open: Vec<KeptAlive> = (0..connections).map(|_| self.connection()).collect();
        let next = AtomicUsize::new(0);
        let begun = Instant::now();
        let work = |place: usize, connection: &mut KeptAlive| {
            // Not all at the same moment.
            let first = begun + every * place as u32 / connections as u32;
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return done;
                }
                let due = first + every * done.len() as u32;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let asked = if every.is_zero() { Instant::now() } else { due };
                let answer = ask(connection, number);
                done.push((asked.elapsed().as_secs_f64() * 1e3, answer));
            }
        };
        let done: Vec<(f64, T)> = std::thread::scope(|scope| {
            let numbered = open.iter_mut().enumerate();
            let work = &work;
            let threads: Vec<_> =
                numbered.map(|(place, one)| scope.spawn(move || work(place, one))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("its requests work")).collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        let (mut each_ms, answers): (Vec<f64>, Vec<T>) = done.into_iter().unzip();
        each_ms.sort_by(f64::total_cmp);
        (Load { seconds, each_ms }, answers)
    }
}

fn activity(number: usize) -> String {
    format!("activity{number}")
}

/// Seconds until these files are copied, in jobs of 200.
pub(super) fn copied_in_s(connection: &mut KeptAlive, files: &[Value]) -> f64 {
    let begun = Instant::now();
    let jobs: Vec<String> = files
        .chunks(FILES_OF_LARGE)
        .map(|files| post(connection, json!({ "files": files }).to_string().as_bytes()))
        .collect();
    for id in jobs {
        loop {
            let reply = connection.send("GET", &format!("/jobs/{id}"), &[]).expect("an answer");
            match reply.json()["job_state"].as_str() {
                Some("FINISHED") => break,
                Some("SUBMITTED" | "ACTIVE") => std::thread::sleep(END_POLL_INTERVAL),
                other => panic!("job {id} is {other:?}"),
            }
            assert!(begun.elapsed() < JOB_TIMEOUT, "job {id} does not end");
        }
    }
    begun.elapsed().as_secs_f64()
}

fn post(connection: &mut KeptAlive, body: &[u8]) -> String {
    let reply = connection.send("POST", "/jobs", body).expect("an answer").expect(200);
    reply.json()["job_id"].as_str().expect("the job's id").to_owned()
}

/// A port of all loopback addresses where connections are taken, and nothing is ever said. Until this process
/// ends.
fn silent() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            kept.push(stream);
        }
    });
    port
}
