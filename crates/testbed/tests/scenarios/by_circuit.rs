//! Copies between storages that know nothing of circuits, by a circuit of their sites: real agents have one,
//! and two nginx are reached by other names on it.

use std::fs;
use std::time::Duration;

use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules};
use longhaul_testbed::{Deployment, ServiceOptions, SiteOptions, free_port, needs};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(180);
const LINK: &str = "beta:alpha";
const SIZE: usize = 1_000_000;
const FILES: usize = 16;
/// The name of one that comes at once.
const SMALL: usize = FILES;

struct World {
    deployment: Deployment,
    source: Nginx,
    target: Nginx,
}

impl World {
    /// Two sites with a static circuit, for which the agent asks by these rules; the source is called that on
    /// it. Its answers are slow, so that a queue takes a while.
    fn new(on_circuit: &str, rules: &str) -> World {
        World::with(1_000_000, on_circuit, rules)
    }

    /// With a source that answers at this rate.
    fn with(bytes_per_s: u32, on_circuit: &str, rules: &str) -> World {
        let authority = ForeignAuthority::new("storages");
        let slow = NginxRules { bytes_per_s: Some(bytes_per_s), ..NginxRules::default() };
        let (source, target) =
            (Nginx::start(&authority, slow), Nginx::start(&authority, NginxRules::default()));
        for at in 0..FILES {
            source.put(&at.to_string(), &vec![at as u8; SIZE]);
        }
        source.put(&SMALL.to_string(), b"small");
        let settings = format!(
            "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = \
                [{:?}]\nhost_copies = 4\n\
             [[service.circuits.hosts]]\nsite = \"beta\"\nhost = \"localhost\"\non_circuit \
             = \"{on_circuit}\"\n\
             [[service.circuits.hosts]]\nsite = \"alpha\"\nhost = \"127.0.0.1\"\non_circuit = \"localhost\"\n\
             [[service.marking.rules]]\nactivity = \"tests\"\ncircuits = \"never\"\n",
            authority.ca_file()
        );
        let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
        let port = free_port();
        deployment.add_site(SiteOptions { port: Some(port), ..SiteOptions::new("beta") });
        let file = deployment.directory().join("circuit.toml");
        let circuit = format!(
            "provider = \"static\"\nsource = \"127.0.0.1:{port}\"\ntarget = \"127.0.0.1\"\nmbit = 100000\n"
        );
        fs::write(&file, circuit).unwrap();
        let settings = format!(
            "[[agent.circuits]]\nfrom = \"beta\"\nfile = {file:?}\n{rules}[[agent.circuits]]\nfrom \
                = \"gamma\"\nfile = {file:?}\n"
        );
        deployment.add_site(SiteOptions { settings, ..SiteOptions::new("alpha") });
        let world = World { deployment, source, target };
        world.explained("the link is known", |detail| detail["look"]["words"].is_string());
        world
    }

    fn submit(&self, files: std::ops::Range<usize>, folder: &str) -> String {
        self.submit_as("default", files, folder)
    }

    fn submit_as(&self, activity: &str, files: std::ops::Range<usize>, folder: &str) -> String {
        let files = files.map(|at| {
            let target = self.target.url(&format!("{folder}/{at}")).replace("localhost", "127.0.0.1");
            let source = self.source.url(&at.to_string());
            json!({ "sources": [source], "destinations": [target], "activity": activity })
        });
        let job = json!({ "files": files.collect::<Vec<_>>() }).to_string();
        let json = [("content-type", "application/json")];
        let reply = self.deployment.api().send("POST", "/jobs", &json, job.as_bytes()).unwrap();
        reply.expect(200).json()["job_id"].as_str().unwrap().to_owned()
    }

    /// By which way each file of a job came, when all have.
    #[track_caller]
    fn ways(&self, job: &str) -> Vec<String> {
        let done = self.deployment.until("the job ends", WITHIN, || {
            let job = self.deployment.json(&["job", "show", job]);
            let counts = &job["counts"];
            assert_eq!(counts["failed"], 0, "{job}");
            (counts["running"] == 0 && counts["waiting"] == 0).then_some(job)
        });
        let files = done["files"].as_array().unwrap();
        files.iter().map(|file| file["mode"].as_str().unwrap().to_owned()).collect()
    }

    /// The link as `longhaul circuit explain` has it, when it fits. Before its agent has told of it there is
    /// none.
    #[track_caller]
    fn explained(&self, what: &str, mut fits: impl FnMut(&Value) -> bool) -> Value {
        let ask = || self.deployment.longhaul(&["circuit", "explain", LINK, "--json"]);
        let found = self.deployment.await_answer(WITHIN, || {
            let told = Some(ask()).filter(|told| told.status == 0)?;
            Some(told.json()).filter(|detail| fits(detail))
        });
        found.unwrap_or_else(|| panic!("never: {what}\n{}", ask()))
    }

    fn request(&self) {
        self.deployment
            .longhaul(&["circuit", "request", "beta", "alpha", "--mbit", "1000", "--for", "1h"])
            .ok();
        self.explained("transfers go by it", |detail| detail["link"]["circuit"]["used"].is_string());
    }
}

fn may_run(what: &str) -> bool {
    needs::programs(what, &[("nginx", "-v"), ("openssl", "version")])
}

/// What jobs want moved is what the circuit is asked for; what begins when it is there goes by it.
#[test]
fn a_queue_of_jobs_brings_a_circuit_and_goes_by_it() {
    if !may_run("jobs that bring a circuit") {
        return;
    }
    let rules = "work_s = 1\ncheck_s = 1\nleave_work_s = 0\nrate_over_s = 10\ndrain_s = 1\n";
    let mut world = World::new("127.0.0.1", rules);
    // While there is no circuit there is a queue, however slow this machine is.
    let mut jobs = vec![world.submit(0..FILES, "queue0")];
    let seen = world.explained("transfers go by it", |detail| {
        let used = detail["link"]["circuit"]["used"].is_string();
        let last = world.deployment.json(&["job", "show", &jobs[jobs.len() - 1]]);
        if !used && last["counts"]["waiting"] == 0 {
            jobs.push(world.submit(0..FILES, &format!("queue{}", jobs.len())));
        }
        used
    });
    assert!(seen["link"]["circuit"]["why"].as_str().unwrap().contains("what waits takes"), "{seen}");
    // Whose work never goes by circuits stays on the plain way beside it.
    jobs.push(world.submit(0..2, "late"));
    let tests = world.submit_as("tests", 0..2, "tests");
    let ways: Vec<Vec<String>> = jobs.iter().map(|job| world.ways(job)).collect();
    assert_eq!(ways[0][0], "stream", "it began on the plain way: {ways:?}");
    let by_circuit = ways.iter().flatten().filter(|way| *way == "stream by circuit").count();
    assert!(by_circuit > 0, "{ways:?}");
    assert_eq!(world.ways(&tests), ["stream", "stream"]);
    for (folder, files) in [("queue0", FILES), ("late", 2)] {
        for at in 0..files {
            let file = world.target.data().join(format!("{folder}/{at}"));
            assert!(fs::read(&file).unwrap() == vec![at as u8; SIZE], "{}", file.display());
        }
    }
    let id = seen["link"]["circuit"]["id"].as_str().unwrap();
    world.deployment.longhaul(&["circuit", "release", id]).ok();
    let carried = world.explained("it is accounted for", |detail| {
        let circuit = &detail["circuits"][0]["circuit"];
        circuit["carried_bytes"].as_u64() == Some((by_circuit * SIZE) as u64)
    });
    assert!(carried["circuits"][0]["circuit"]["carried_s"].as_f64() > Some(0.0), "{carried}");
    world.deployment.assert_alive();
}

/// Copies of others use a circuit as streams do: what is released is given back when they are done.
#[test]
fn a_circuit_is_not_given_back_under_copies() {
    if !may_run("copies on a circuit that is released") {
        return;
    }
    let mut world = World::with(100_000, "127.0.0.1", "work_s = 100000\ndrain_s = 600\n");
    world.request();
    let job = world.submit(0..4, "released");
    world.deployment.until("some run", WITHIN, || {
        let job = world.deployment.json(&["job", "show", &job]);
        (job["counts"]["running"].as_u64() > Some(0)).then_some(())
    });
    world.deployment.longhaul(&["circuit", "release", LINK]).ok();
    let waits = world.explained("it is left", |detail| detail["link"]["state"] != "established");
    assert_eq!(waits["link"]["state"], "draining", "{waits}");
    let gone = world.explained("it is given back", |detail| detail["link"]["state"] != "draining");
    // By then each that went by it has told what it brought, and none had to be made again.
    let by_circuit = world.ways(&job).iter().filter(|way| *way == "stream by circuit").count();
    assert!(by_circuit > 0, "{gone}");
    let circuit = &gone["circuits"][0]["circuit"];
    assert_eq!(circuit["carried_bytes"].as_u64(), Some((by_circuit * SIZE) as u64), "{gone}");
    // What begins now has none.
    let after = world.submit(SMALL..SMALL + 1, "after");
    assert_eq!(world.ways(&after), ["stream"]);
    world.deployment.assert_alive();
}

/// Where the storage does not answer on the circuit, each file arrives on the plain way in the same attempt;
/// and after some, no further one tries the circuit.
#[test]
fn a_circuit_without_the_storage_costs_no_file() {
    if !may_run("jobs beside a bad circuit") {
        return;
    }
    let mut world = World::new("127.0.0.9", "work_s = 100000\n");
    let words = world.deployment.longhaul(&["circuit", "explain", "gamma", "alpha"]).ok().stdout;
    assert!(words.contains("no storage is called gamma"), "{words}");
    world.request();
    for round in 0..3 {
        let job = world.submit(0..2, &format!("round{round}"));
        assert_eq!(world.ways(&job), ["stream", "stream"]);
    }
    let told = "a copy of a job failed on the circuit";
    let tried = world.deployment.log("service").lines_with(&[told]).len();
    assert!((3..=4).contains(&tried), "{tried} copies tried it");
    world.deployment.assert_alive();
}
