//! The main job under `kill -9`: service, source and target die at random moments and are started again, and
//! at the end all is as if nothing had happened. `LONGHAUL_SOAK_KILLS` sets how often; `LONGHAUL_SOAK_SEED`
//! repeats a run.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use longhaul_api::routes;
use longhaul_testbed::tree::{self, Content};
use longhaul_testbed::{
    CommandOutput, Deployment, Random, SERVICE, SiteOptions, WatchReport, Watcher, effort, processes,
};
use serde_json::{Value, json};

/// Into each target, so that bytes move for most of the test.
const RATE_BYTES_PER_S: u64 = 2_500_000;
/// Mean seconds between two kills while bytes move.
const GAP_S: u64 = 1;
/// A kill with what goes before and after takes less than this on average: so many data there are that some
/// are left at the end.
const ROUND_MS: u64 = 6_000;
/// A dead process is started again within this.
const DOWN_MAX_US: u64 = 500_000;
/// Memory budget of each agent, which bounds what is in flight.
const MEMORY_BYTES: u64 = 16 << 20;
/// What is on its way to an agent, or has arrived and is not noted yet: what two seconds of the limited rate
/// bring.
const IN_FLIGHT_BYTES: u64 = 2 * RATE_BYTES_PER_S;
/// Small files travel in packs of a chunk and are committed in groups: a group that is not committed is sent
/// again.
const GROUP_BYTES: u64 = 4 << 20;
/// Bytes move if at least so many were written at the targets within [`MOVES_WITHIN`].
const MOVES_BYTES: u64 = 100_000;
const MOVES_WITHIN: Duration = Duration::from_millis(800);
/// Between two looks at what was written.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Half of all bytes are in files of this size: several of them are under way at any moment, and none would
/// ever be whole if each kill began it anew.
const LARGE_BYTES: u64 = 15_000_000;
/// After a kill bytes must move again by then.
const RECOVERY: Duration = Duration::from_secs(45);
/// All of that is less than an agent can hold.
const _: () = assert!(IN_FLIGHT_BYTES + GROUP_BYTES < MEMORY_BYTES);
const SITES: [&str; 3] = ["alpha", "beta", "gamma"];
const TARGETS: [&str; 2] = ["beta", "gamma"];

/// The victims in order: each kind at least a quarter of the kills, the rest at random.
fn victims(kills: u64, random: &mut Random) -> Vec<&'static str> {
    let mut kinds: Vec<u64> = (0..kills)
        .map(|kill| if kill < kills.div_ceil(4) * 3 { kill % 3 } else { random.below(3) })
        .collect();
    random.shuffle(&mut kinds);
    kinds
        .into_iter()
        .map(|kind| match kind {
            0 => SERVICE,
            1 => "alpha",
            _ => TARGETS[random.below(2) as usize],
        })
        .collect()
}

struct Campaign {
    deployment: Deployment,
    files: BTreeMap<Vec<u8>, Content>,
    watchers: Vec<Watcher>,
    random: Random,
    /// Bytes that alpha's killed processes had read since the dataset was registered.
    alpha_read: u64,
    alpha_base: u64,
    kills: BTreeMap<&'static str, u64>,
    while_moving: u64,
    slowest_recovery: Duration,
    /// Nothing is ever sent to it: a wait on it is a tick.
    never: (mpsc::Sender<()>, mpsc::Receiver<()>),
}

impl Campaign {
    fn new(kills: u64, mut random: Random) -> Self {
        let mut deployment = Deployment::new();
        for site in SITES {
            deployment.add_site(SiteOptions::new(site).memory(MEMORY_BYTES));
        }
        // Long enough that bytes still move at the last kill, with some to spare for slow restarts of others.
        let bytes = kills * ROUND_MS * RATE_BYTES_PER_S / 1_000;
        let root = deployment.storage("alpha");
        tree::make(&root, 1_500, bytes / 2, &mut random);
        std::fs::create_dir(root.join("large")).unwrap();
        for number in 0..(bytes / 2).div_ceil(LARGE_BYTES) {
            let content = tree::content(&mut random, LARGE_BYTES);
            std::fs::write(root.join(format!("large/{number}.dat")), content).unwrap();
        }
        let files = tree::survey(&root).files;
        deployment.register("run7", "alpha");
        for target in TARGETS {
            deployment.json(&["site", "limit", target, "--in", &RATE_BYTES_PER_S.to_string()]);
        }
        let watchers =
            TARGETS.iter().map(|target| Watcher::start(&deployment.storage(target), files.clone())).collect();
        for target in TARGETS {
            deployment.json(&["subscribe", "run7", target]);
        }
        let alpha_base = processes::bytes_read(deployment.pid("alpha"));
        Campaign {
            deployment,
            files,
            watchers,
            random,
            alpha_read: 0,
            alpha_base,
            kills: BTreeMap::new(),
            while_moving: 0,
            slowest_recovery: Duration::ZERO,
            never: mpsc::channel(),
        }
    }

    fn pass(&self, time: Duration) {
        let _ = self.never.1.recv_timeout(time);
    }

    /// Bytes written by the agents of the targets, which write nothing else of any size.
    fn written(&self) -> u64 {
        TARGETS.iter().map(|target| processes::bytes_written(self.deployment.pid(target))).sum()
    }

    /// Looks for a moment whether bytes arrive at either target.
    fn moves(&self) -> bool {
        let (begun, before) = (Instant::now(), self.written());
        loop {
            self.pass(LOOK_INTERVAL);
            if self.written() >= before + MOVES_BYTES {
                return true;
            }
            if begun.elapsed() >= MOVES_WITHIN {
                return false;
            }
        }
    }

    /// Bytes move again after the last kill; false if there is nothing left to move.
    fn recovered(&mut self) -> bool {
        let begun = Instant::now();
        while !self.moves() {
            if self.complete() {
                return false;
            }
            self.deployment.assert_alive();
            assert!(
                begun.elapsed() < RECOVERY,
                "nothing moves {} s after a kill, and it is not complete",
                RECOVERY.as_secs()
            );
        }
        self.slowest_recovery = self.slowest_recovery.max(begun.elapsed());
        true
    }

    fn complete(&self) -> bool {
        let reply = self.deployment.api().call(&routes::SUBSCRIPTION_LIST, &[], &[], &Value::Null);
        reply.is_ok_and(|reply| {
            reply.status == 200
                && reply.json()["items"].as_array().unwrap().iter().all(|one| one["complete"] == json!(true))
        })
    }

    /// Kills at a random moment: mostly some time after bytes move again, sometimes in the middle of a
    /// recovery.
    fn kill(&mut self, victim: &'static str) {
        let in_recovery = self.random.below(100) < 10;
        if !in_recovery {
            assert!(self.recovered(), "all is complete before the last kill: {:?}", self.kills);
        }
        let gap = Duration::from_micros(self.random.below(2_000_000 * GAP_S));
        self.pass(gap);
        let moving = if in_recovery { self.moves() } else { self.recovered() };
        if victim == "alpha" {
            self.alpha_read += processes::bytes_read(self.deployment.pid("alpha")) - self.alpha_base;
            self.alpha_base = 0;
        }
        self.deployment.kill(victim);
        let down = Duration::from_micros(self.random.below(DOWN_MAX_US));
        self.pass(down);
        self.deployment.start(victim);
        *self.kills.entry(if victim == "gamma" { "beta" } else { victim }).or_default() += 1;
        self.while_moving += u64::from(moving);
        self.deployment.until_ready();
        self.deployment.check();
    }
}

/// Promises 1, 3, 4 and 5.
#[test]
fn nothing_is_lost_or_doubled_under_kills() {
    let kills = effort::kills();
    let mut random = effort::random("kill");
    let victims = victims(kills, &mut random);
    let mut campaign = Campaign::new(kills, random);
    for victim in victims {
        campaign.kill(victim);
    }
    println!(
        "{:?} killed, {} while bytes moved; slowest recovery {:.1} s",
        campaign.kills,
        campaign.while_moving,
        campaign.slowest_recovery.as_secs_f64()
    );
    assert!(
        campaign.kills.len() == 3 && campaign.kills.values().all(|count| count * 4 >= kills),
        "{:?}",
        campaign.kills
    );
    assert!(
        campaign.while_moving * 5 >= kills * 3,
        "{} of {kills} kills while bytes moved",
        campaign.while_moving
    );

    for target in TARGETS {
        campaign.deployment.json(&["site", "limit", target, "--in", "none"]);
        campaign.deployment.deliver("run7", target, 180);
    }
    campaign.deployment.check();
    for (target, watcher) in TARGETS.iter().zip(std::mem::take(&mut campaign.watchers)) {
        assert_watched(target, &watcher.finish(), campaign.files.len());
        tree::assert_same(&campaign.files, &campaign.deployment.storage(target), "");
    }
    assert_recorded_once(&campaign);
    assert_resent_little(&campaign);
}

/// The watcher has seen every file arrive, each complete on sight.
fn assert_watched(target: &str, seen: &WatchReport, files: usize) {
    println!("{target}: {} listings, {} names", seen.listings, seen.right.len());
    assert!(seen.wrong.is_empty(), "at {target}: {:#?}", seen.wrong);
    assert_eq!(seen.right.len(), files, "at {target}");
    assert!(seen.listings > 20, "at {target}: only {} listings", seen.listings);
}

/// Each file has one transfer to each target that is done, and one replica there.
fn assert_recorded_once(campaign: &Campaign) {
    let api = campaign.deployment.api();
    for target in TARGETS {
        let done = api.all(&routes::TRANSFER_LIST, &[], &[("target", target), ("state", "done")]);
        let mut count: BTreeMap<&str, u64> = BTreeMap::new();
        for transfer in &done {
            *count.entry(transfer["lfn"].as_str().unwrap()).or_default() += 1;
        }
        let doubled: Vec<_> = count.iter().filter(|(_, count)| **count != 1).collect();
        assert!(doubled.is_empty(), "recorded more than once at {target}: {doubled:?}");
        assert_eq!(count.len(), campaign.files.len(), "at {target}");
    }
    let replicas = campaign.deployment.json(&["replica", "list", "run7"]);
    for replica in replicas["items"].as_array().unwrap() {
        assert_eq!(replica["files"], json!(campaign.files.len()), "{replica}");
        assert_eq!(replica["suspect_files"], json!(0), "{replica}");
    }
    assert_eq!(replicas["items"].as_array().unwrap().len(), SITES.len());
    // Nothing waits or runs any more, and no attempt has failed for good.
    for state in ["waiting", "leased", "failed"] {
        assert!(
            api.all(&routes::TRANSFER_LIST, &[], &[("state", state)]).is_empty(),
            "transfers are {state}"
        );
    }
}

/// What was sent again is within what was in flight: a kill of the service costs nothing; a kill of an agent
/// at most what was in flight, less than its buffers could hold, and a group of small files that was not
/// committed. Measured from outside, by what the source that is no target has read off its disk; an attempt's
/// own count ends with the process that counts.
fn assert_resent_little(campaign: &Campaign) {
    let api = campaign.deployment.api();
    let agent_kills: u64 =
        campaign.kills.iter().filter(|(kind, _)| **kind != SERVICE).map(|(_, count)| count).sum();
    let bound = agent_kills * (IN_FLIGHT_BYTES + GROUP_BYTES);
    let whole: u64 = campaign.files.values().map(|content| content.size).sum();
    let (mut reported, mut from_alpha) = (0, 0);
    for transfer in api.all(&routes::TRANSFER_LIST, &[], &[("state", "done")]) {
        let detail = api.get(&routes::TRANSFER_SHOW, &[transfer["id"].as_str().unwrap()], &[]);
        let attempts = detail["attempts"].as_array().unwrap();
        reported += attempts.iter().map(|attempt| attempt["bytes_moved"].as_u64().unwrap()).sum::<u64>();
        let last = attempts.iter().find(|attempt| attempt["fault"].is_null()).unwrap();
        from_alpha += if last["source"] == json!("alpha") { transfer["size"].as_u64().unwrap() } else { 0 };
    }
    let read =
        campaign.alpha_read + processes::bytes_read(campaign.deployment.pid("alpha")) - campaign.alpha_base;
    let again = read.saturating_sub(from_alpha);
    println!(
        "{} bytes arrived, {from_alpha} of them from alpha, which has read {read}: {again} again; at most \
            {bound}",
        2 * whole
    );
    assert!(again <= bound, "{again} bytes sent again, {bound} were in flight at {agent_kills} kills");
    assert!(reported <= 2 * whole + bound, "attempts report {reported} bytes for {}", 2 * whole);
}

/// Registration is resumed where it was, and the command that waits for it does not notice.
#[test]
fn a_scan_survives_kills() {
    let mut deployment = Deployment::new();
    deployment.add_site(SiteOptions::new("alpha"));
    let root = deployment.storage("alpha");
    tree::make(&root, 3_000, 400_000_000, &mut Random::new(91));
    let survey = tree::survey(&root);
    let (_never, tick) = mpsc::channel::<()>();
    let mut command = deployment.command(&[
        "dataset",
        "register",
        "run7",
        "--scan",
        "alpha",
        "--digests",
        "md5,sha256,adler32",
        "--json",
    ]);
    let register =
        std::thread::spawn(move || CommandOutput::from_command(&mut command, Duration::from_secs(120)));
    let log = deployment.log("alpha");
    assert!(log.wait_for(0, &["scan begins"], RECOVERY).is_some(), "{}", log.tail());
    let mut cut_off = 0;
    for victim in ["alpha", SERVICE, "alpha"] {
        cut_off += u32::from(log.lines_with(&["task done"]).is_empty());
        deployment.restart(victim);
        deployment.until_ready();
        deployment.check();
        // The scan may get on a little before the next kill.
        let _ = tick.recv_timeout(Duration::from_millis(250));
    }
    let ran = register.join().unwrap().ok();
    println!("{cut_off} of 3 kills while it scanned");
    assert!(cut_off >= 1, "it was over before the first kill");
    let view = ran.json();
    assert_eq!(
        (&view["files"], &view["bytes"]),
        (&json!(survey.files.len()), &json!(survey.bytes())),
        "{ran}"
    );
    let read = deployment.json(&["verify", "alpha", "run7"]);
    assert_eq!((&read["files_done"], &read["files_bad"]), (&json!(survey.files.len()), &json!(0)), "{read}");
    deployment.check();
}
