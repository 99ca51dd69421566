//! Recall from tape: many files of many cartridges, wanted at once through a disk that holds a part of them.
//! How often cartridges are mounted, and how much of the disk is used.
//!
//! Service and agents are the real programs; the tape system is a script that counts mounts. Start with
//! [`Experiment::run`].

mod outcome;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use longhaul_model::{Algorithm, Hasher};
use serde_json::json;

use crate::{Deployment, Random, SiteOptions, tree};

pub use outcome::Outcome;
use outcome::Sample;

const DATASET: &str = "recall";
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
/// An experiment that takes longer is stuck.
const WITHIN: Duration = Duration::from_secs(900);

/// `VERB DISK TAPE CARTRIDGES PATH…`. File `fN` is on cartridge N modulo CARTRIDGES. A cartridge is in one
/// drive at a time; whoever wants another one in a drive mounts it, which is noted.
const SCRIPT: &str = r#"#!/usr/bin/env python3
import fcntl, json, os, sys
verb, disk, tape, cartridges, *paths = sys.argv[1:]
cartridges = int(cartridges)
number = lambda path: int(os.path.basename(path)[1:])
cartridge = lambda path: number(path) % cartridges
copy = lambda path: os.path.join(tape, os.path.relpath(path, disk))

def drives(change):
    with open(tape + ".drives", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        state = json.loads(file.read() or "{}")
        change(state)
        file.truncate(0)
        file.write(json.dumps(state))

def mount(wanted):
    def change(state):
        mounted = state.setdefault("mounted", {})
        for drive, (name, user) in mounted.items():
            if name == wanted or user == 0:
                break
        else:
            drive = str(len(mounted))
        has = [drive for drive, (name, _) in mounted.items() if name == wanted]
        drive = has[0] if has else drive
        state["mounts"] = state.get("mounts", 0) + (0 if has else 1)
        mounted[drive] = (wanted, os.getpid())
    drives(change)

def leave(state):
    for drive, (name, user) in state.get("mounted", {}).items():
        if user == os.getpid():
            state["mounted"][drive] = (name, 0)

if verb == "place":
    for path in paths:
        print(f"C{cartridge(path)} {number(path) // cartridges}")
elif verb == "locality":
    for path in paths:
        here = os.path.exists(path) and os.stat(path).st_blocks > 0
        there = os.path.exists(copy(path))
        print({(1, 1): "DISK_AND_TAPE", (1, 0): "DISK", (0, 1): "TAPE", (0, 0): "NONE"}[here, there])
elif verb == "stage":
    current = None
    for path in paths:
        if cartridge(path) != current:
            drives(leave)
            current = cartridge(path)
            mount(current)
        with open(copy(path), "rb") as source, open(path + ".part", "wb") as target:
            target.write(source.read())
        os.rename(path + ".part", path)
    drives(leave)
elif verb == "remove":
    for path in paths:
        with open(path + ".stub", "wb") as stub:
            stub.truncate(os.stat(copy(path)).st_size)
        os.rename(path + ".stub", path)
"#;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub files: usize,
    pub file_bytes: u64,
    pub cartridges: usize,
    /// Commands of the site at a time.
    pub drives: usize,
    /// What staged files may take up of the disk.
    pub buffer_bytes: u64,
    /// Whether the site tells where files lie.
    pub tells_places: bool,
}

impl Default for Experiment {
    fn default() -> Self {
        Experiment {
            files: 10_000,
            file_bytes: 10_000,
            cartridges: 20,
            drives: 2,
            buffer_bytes: 40_000_000,
            tells_places: true,
        }
    }
}

impl Experiment {
    /// Brings all files from tape to another site.
    pub fn run(&self) -> Result<Outcome, String> {
        let mut deployment = Deployment::new();
        let world = World::new(&deployment, self)?;
        deployment.add_site(world.site(self));
        deployment.add_site(SiteOptions::new("beta"));
        let manifest = world.manifest.to_str().ok_or("a path that is no text")?;
        deployment.json(&["dataset", "register", DATASET, "--manifest", manifest, "--at", "alpha"]);
        let begun = Instant::now();
        deployment.json(&["subscribe", DATASET, "beta"]);
        let mut outcome = Outcome { experiment: self.clone(), ..Outcome::default() };
        let (_never, tick) = mpsc::channel::<()>();
        loop {
            let subscriptions = deployment.json(&["subscription", "list", "--dataset", DATASET]);
            let subscription = &subscriptions["items"][0];
            let arrived = subscription["files_present"].as_u64().unwrap_or_default();
            let seconds = begun.elapsed().as_secs_f64();
            outcome.samples.push(Sample { seconds, staged_files: world.staged_files(), arrived });
            if subscription["complete"] == json!(true) {
                break;
            }
            if begun.elapsed() > WITHIN {
                return Err(format!("{arrived} of {} files after {} s", self.files, WITHIN.as_secs()));
            }
            let _ = tick.recv_timeout(SAMPLE_INTERVAL);
        }
        outcome.seconds = begun.elapsed().as_secs_f64();
        outcome.mounts = world.mounts();
        outcome.right_files = world.right_files(&deployment.storage("beta"));
        deployment.check();
        Ok(outcome)
    }
}

struct World {
    disk: PathBuf,
    tape: PathBuf,
    script: PathBuf,
    manifest: PathBuf,
    content: Vec<u8>,
}

impl World {
    /// Files that are on tape, with stubs on the disk.
    fn new(deployment: &Deployment, experiment: &Experiment) -> Result<World, String> {
        let here = deployment.directory();
        let [disk, tape, script, manifest] =
            ["tape-disk", "tape", "tape.py", "manifest.jsonl"].map(|name| here.join(name));
        let content = tree::content(&mut Random::new(34), experiment.file_bytes);
        let mut hasher = Hasher::new([Algorithm::Blake3]);
        hasher.update(&content);
        let digests = serde_json::to_value(hasher.finish()).map_err(|error| error.to_string())?;
        let failed = |error: std::io::Error| format!("{}: {error}", here.display());
        let mut lines = String::new();
        for root in [&disk, &tape] {
            fs::create_dir_all(root.join(DATASET)).map_err(failed)?;
        }
        for number in 0..experiment.files {
            let name = format!("{DATASET}/f{number}");
            fs::write(tape.join(&name), &content).map_err(failed)?;
            let stub = fs::File::create(disk.join(&name)).map_err(failed)?;
            stub.set_len(experiment.file_bytes).map_err(failed)?;
            let line = json!({ "lfn": name, "size": experiment.file_bytes, "digests": digests });
            lines.push_str(&format!("{line}\n"));
        }
        fs::write(&manifest, lines).map_err(failed)?;
        fs::write(&script, SCRIPT).map_err(failed)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        Ok(World { disk, tape, script, manifest, content })
    }

    fn site(&self, experiment: &Experiment) -> SiteOptions {
        let Experiment { cartridges, drives, buffer_bytes, tells_places, .. } = experiment;
        let World { disk, tape, script, .. } = self;
        let command =
            |verb: &str| format!("{verb} = [{script:?}, {verb:?}, {disk:?}, {tape:?}, \"{cartridges}\"]\n");
        let place = tells_places.then_some("place");
        let commands: String =
            ["stage", "locality", "remove"].into_iter().chain(place).map(command).collect();
        SiteOptions {
            storage_settings: format!(
                "[agent.storages.tape]\n{commands}bulk = 1000\nat_once = {drives}\n\
                 buffer_bytes = {buffer_bytes}\n"
            ),
            ..SiteOptions::new("alpha").root(disk.clone())
        }
    }

    /// Files of which the disk has more than a stub.
    fn staged_files(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir(self.disk.join(DATASET)).into_iter().flatten();
        let is_staged = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|found| found.blocks() > 0);
        entries.filter_map(Result::ok).filter(is_staged).count() as u64
    }

    fn mounts(&self) -> u64 {
        let text = fs::read_to_string(self.tape.with_extension("drives")).unwrap_or_default();
        let state: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        state["mounts"].as_u64().unwrap_or_default()
    }

    fn right_files(&self, root: &Path) -> usize {
        let entries = fs::read_dir(root.join(DATASET)).into_iter().flatten().filter_map(Result::ok);
        entries.filter(|entry| fs::read(entry.path()).is_ok_and(|bytes| bytes == self.content)).count()
    }
}
