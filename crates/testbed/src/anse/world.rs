//! Two sites and their service, in a laboratory with three paths.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use longhaul_storage::VirtualContent;
use serde_json::json;

use crate::run::{COMMAND_WITHIN, CommandOutput};
use crate::wan::{Counters, Direction, Lab, PathConfig, Side};
use crate::{Deployment, Log, SERVICE, ServiceOptions, SiteOptions, free_port};

/// The way that is there anyway.
pub const SHARED: usize = 0;
pub const CIRCUIT: usize = 1;
/// Between agents and service: what is said there is in nobody's way.
const CONTROL: usize = 2;
const CONTROL_RTT_MS: f64 = 2.0;
const SOURCE: &str = "beta";
const TARGET: &str = "alpha";

/// What the two sites have between them.
#[derive(Clone, Debug)]
pub struct Terms {
    pub rate_mbit: f64,
    pub circuit_rate_mbit: f64,
    /// What the provider says that the circuit has.
    pub promised_mbit: f64,
    pub rtt_ms: f64,
    /// Further lines of `[[agent.circuits]]`; none: the agent knows of no circuit.
    pub plan: Option<String>,
    /// Further lines of the file about the circuit.
    pub circuit: String,
    /// Further lines of `[service]`.
    pub service: String,
}

pub struct World<'a> {
    pub lab: &'a Lab,
    pub deployment: Deployment,
    terms: Terms,
}

/// Lets `work` run in a world of its own, on the target's side of the laboratory.
pub fn in_world<T: Send>(terms: Terms, work: impl FnOnce(&mut World<'_>) -> T + Send) -> Result<T, String> {
    let path = |rate| PathConfig::new(terms.rtt_ms).rate_mbit(rate);
    let lab =
        Lab::start(&[path(terms.rate_mbit), path(terms.circuit_rate_mbit), PathConfig::new(CONTROL_RTT_MS)])?;
    // All that this thread starts, and whatever connects, is inside as well.
    lab.inside(Side::Left, || work(&mut World::new(&lab, terms)))
}

impl<'a> World<'a> {
    fn new(lab: &'a Lab, terms: Terms) -> World<'a> {
        let listen = SocketAddr::from((lab.address(Side::Left, CONTROL), free_port()));
        let settings = format!("probe_every_s = 0\n{}", terms.service);
        let options = ServiceOptions { listen: Some(listen), settings, ..ServiceOptions::default() };
        let mut world = World { lab, deployment: Deployment::with(options), terms };
        world.add_source();
        let target = world.target();
        world.deployment.add_site(target);
        world
    }

    fn add_source(&mut self) {
        let mut options = SiteOptions::new(SOURCE).with_virtual_storage();
        options.launcher =
            ["ip", "netns", "exec", self.lab.namespace(Side::Right)].map(str::to_owned).to_vec();
        options.listen = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let port = free_port();
        let plain = self.lab.address(Side::Right, SHARED);
        options.settings = format!("probes = false\nadvertise = [\"{plain}:{port}\"]\n{}", options.settings);
        options.port = Some(port);
        self.deployment.add_site(options);
    }

    fn target(&self) -> SiteOptions {
        let mut options = SiteOptions::new(TARGET).with_virtual_storage();
        let mut settings = "probes = false\n".to_owned();
        if let Some(plan) = &self.terms.plan {
            self.set_provider("static", &self.terms.circuit);
            let file = self.circuit_file();
            settings.push_str(&format!(
                "[[agent.circuits]]\nfrom = \"{SOURCE}-test\"\nfile = {}\n{plan}\n",
                json!(file.to_str().expect("paths of tests are UTF-8"))
            ));
        }
        options.settings = settings + &options.settings;
        options
    }

    fn circuit_file(&self) -> PathBuf {
        self.deployment.directory().join("circuit.toml")
    }

    /// Configures the circuit provider, with further lines of its file; the agent reads it at its next start.
    pub fn set_provider(&self, provider: &str, more: &str) {
        let [source, target] = [Side::Right, Side::Left].map(|side| self.lab.address(side, CIRCUIT));
        let text = format!(
            "provider = \"{provider}\"\nsource = \"{source}\"\ntarget = \"{target}\"\nmbit = {:.0}\n{more}",
            self.terms.promised_mbit
        );
        fs::write(self.circuit_file(), text).expect("the file about the circuit is written");
    }

    // ---- the target's agent -------------------------------------------------------------------------------

    pub fn kill(&mut self) {
        self.deployment.kill(TARGET);
    }

    pub fn start(&mut self) {
        self.deployment.start(TARGET);
    }

    /// The service in the midst of things, and again at once.
    pub fn restart_service(&mut self) {
        self.deployment.kill(SERVICE);
        self.deployment.start(SERVICE);
        self.deployment.until_ready();
    }

    pub fn stop(&mut self) -> std::process::ExitStatus {
        self.deployment.stop(TARGET)
    }

    pub fn log(&self) -> Log {
        self.deployment.log(TARGET)
    }

    /// What it wrote down about its circuit.
    pub fn book(&self) -> Option<String> {
        let path = self.deployment.agent_state(TARGET).join(format!("circuits/{SOURCE}-test.json"));
        fs::read_to_string(path).ok()
    }

    // ---- jobs ---------------------------------------------------------------------------------------------

    /// Registers a job of so many files at the source; nothing moves yet.
    pub fn register(&self, job: &str, files: usize, size: u64) {
        let mut lines = String::new();
        for number in 0..files {
            let lfn = format!("{job}/from-{SOURCE}-test/{size}-{number}");
            let content = VirtualContent::parse(&lfn).expect("the name of a virtual file");
            let line = json!({ "lfn": lfn, "size": size, "digests": content.digest().digests() });
            lines.push_str(&format!("{line}\n"));
        }
        let manifest = self.deployment.directory().join("manifest");
        fs::write(&manifest, lines).expect("the manifest is written");
        let manifest = manifest.to_str().expect("paths of tests are UTF-8");
        let at = format!("{SOURCE}-test");
        self.deployment.longhaul(&["dataset", "register", job, "--manifest", manifest, "--at", &at]).ok();
    }

    pub fn submit(&self, job: &str) {
        self.submit_with(job, &[]);
    }

    /// With a priority of its own.
    pub fn submit_at(&self, job: &str, priority: u8) {
        self.submit_with(job, &["--priority", &priority.to_string()]);
    }

    /// With further words of `longhaul subscribe`.
    pub fn submit_with(&self, job: &str, more: &[&str]) {
        let target = format!("{TARGET}-test");
        self.deployment.longhaul(&[&["subscribe", job, &target], more].concat()).ok();
    }

    pub fn wait_for(&self, job: &str, within: Duration) {
        self.wait_with(job, &[], within);
    }

    /// For what was submitted with these words.
    pub fn wait_with(&self, job: &str, more: &[&str], within: Duration) {
        let (target, wait) = (format!("{TARGET}-test"), format!("--wait={}", within.as_secs()));
        let words = [&["subscribe", job, &target, &wait], more].concat();
        CommandOutput::from_command(&mut self.deployment.command(&words), within + COMMAND_WITHIN).ok();
    }

    /// What a path has carried towards the target, headers included.
    pub fn carried(&self, path: usize) -> u64 {
        self.counters(path).bytes_carried
    }

    /// The same with all that was counted of it.
    pub fn counters(&self, path: usize) -> Counters {
        self.lab.counters(path, Direction::RightToLeft)
    }
}
