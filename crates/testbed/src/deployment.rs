//! One service and its agents, made with the public commands and run as real processes.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use longhaul_api::{AGENT_PROTOCOL, routes};
use longhaul_model::PoolState;
use longhaul_security::{Credentials, JoinToken, new_signing_request};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::changes::Changes;
use crate::http::Api;
use crate::run::{self, COMMAND_WITHIN, CommandOutput};
use crate::{Log, Process, free_port};

/// A process that is not ready by then does not start.
const START_WITHIN: Duration = Duration::from_secs(180);
/// Memory of an agent unless a test says otherwise.
const MEMORY_BYTES: u64 = 64 << 20;
pub const SERVICE: &str = "service";

/// How the service shall run.
#[derive(Clone, Debug, Default)]
pub struct ServiceOptions {
    /// Where it listens, if not on a free port of the loopback.
    pub listen: Option<SocketAddr>,
    /// Serve the pages as plain HTTP too.
    pub pages: bool,
    /// Further lines of `[service]`.
    pub settings: String,
    /// Words before the command, such as those of [`crate::mounts::Mounts::launcher`].
    pub launcher: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Where the state lies, if not below the deployment's directory.
    pub state: Option<PathBuf>,
    pub deployment: Option<String>,
    /// Another `longhaul` than the one under test.
    pub binary: Option<PathBuf>,
}

/// A site with one agent and one storage of the same name.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    pub name: String,
    /// None: `NAME/storage` below the deployment's directory.
    pub root: Option<PathBuf>,
    /// Names, roots and states of the pools that the storage consists of, in place of a root.
    pub pools: Vec<(String, PathBuf, PoolState)>,
    pub work: Option<PathBuf>,
    pub writable: bool,
    /// LFN prefix and path prefix.
    pub prefix: (String, String),
    /// The name rules stand in `storage_settings`.
    pub own_rules: bool,
    /// Where the agent listens: the loopback, unless others reach it from elsewhere.
    pub listen: IpAddr,
    /// None: a free one.
    pub port: Option<u16>,
    pub memory_bytes: u64,
    /// What links are like, for an agent that moves nothing; its storage is virtual.
    pub null_mover: Option<PathBuf>,
    /// Further lines of `[agent]`.
    pub settings: String,
    /// Further lines of the storage, and tables in it.
    pub storage_settings: String,
    pub launcher: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Another `longhaul` than the one under test.
    pub binary: Option<PathBuf>,
}

impl SiteOptions {
    pub fn new(name: &str) -> Self {
        SiteOptions {
            name: name.to_owned(),
            root: None,
            pools: Vec::new(),
            work: None,
            writable: true,
            prefix: (String::new(), String::new()),
            own_rules: false,
            listen: Ipv4Addr::LOCALHOST.into(),
            port: None,
            memory_bytes: MEMORY_BYTES,
            null_mover: None,
            settings: String::new(),
            storage_settings: String::new(),
            launcher: Vec::new(),
            environment: Vec::new(),
            binary: None,
        }
    }

    pub fn root(self, root: impl Into<PathBuf>) -> Self {
        SiteOptions { root: Some(root.into()), ..self }
    }

    pub fn read_only(self) -> Self {
        SiteOptions { writable: false, ..self }
    }

    pub fn prefix(self, lfn: &str, path: &str) -> Self {
        SiteOptions { prefix: (lfn.to_owned(), path.to_owned()), ..self }
    }

    pub fn null_mover(self, links: impl Into<PathBuf>) -> Self {
        SiteOptions { null_mover: Some(links.into()), ..self }
    }

    /// Beside its other storage a virtual one, called `NAME-test`.
    pub fn with_virtual_storage(self) -> Self {
        let lines = format!("[[agent.storages]]\nname = \"{}-test\"\nkind = \"virtual\"\n", self.name);
        SiteOptions { settings: self.settings + &lines, ..self }
    }

    /// Beside its other storage one of a WebDAV server on loopback, called `NAME-dav`.
    pub fn with_webdav_storage(self, url: &str, authority: &Path) -> Self {
        self.with_further_webdav_storage("dav", url, authority)
    }

    /// Another one, called `NAME-SUFFIX`.
    pub fn with_further_webdav_storage(self, suffix: &str, url: &str, authority: &Path) -> Self {
        self.with_remote_storage(suffix, "webdav", url, authority, "")
    }

    /// Beside its other storage a bucket on loopback, called `NAME-s3`.
    pub fn with_s3_storage(self, url: &str, authority: &Path, access_key: &str, secret_file: &Path) -> Self {
        let keys = format!("access_key = {access_key:?}\nsecret_file = {}\n", quoted(secret_file));
        self.with_remote_storage("s3", "s3", url, authority, &keys)
    }

    fn with_remote_storage(
        self,
        suffix: &str,
        kind: &str,
        url: &str,
        authority: &Path,
        credential: &str,
    ) -> Self {
        let lines = format!(
            "[[agent.storages]]\nname = \"{}-{suffix}\"\nkind = {kind:?}\n[agent.storages.server]\nurl = \
             {url:?}\n{credential}authorities = [{}]\nallow_networks = [\"127.0.0.0/8\", \"::1\"]\n",
            self.name,
            quoted(authority),
        );
        SiteOptions { settings: self.settings + &lines, ..self }
    }

    pub fn memory(self, memory_bytes: u64) -> Self {
        SiteOptions { memory_bytes, ..self }
    }
}

/// What it takes to start a process, and the process.
struct Member {
    /// The launcher's words, the binary, and its arguments.
    program: Vec<String>,
    /// Words of the launcher.
    launcher_len: usize,
    environment: Vec<(String, String)>,
    process: Option<Process>,
    log: Log,
}

/// All its processes end when it is dropped. If the test is failing then, the ends of their logs are printed;
/// `LONGHAUL_TESTBED_KEEP` keeps the directory.
pub struct Deployment {
    directory: TempDir,
    members: BTreeMap<String, Member>,
    sites: BTreeMap<String, SiteOptions>,
    pub url: String,
    pub token: String,
    /// File with the CA's certificate.
    pub ca: PathBuf,
    pub service_address: SocketAddr,
    pub page_address: Option<SocketAddr>,
}

impl Deployment {
    /// `service init`, `service run`, and it answers.
    pub fn new() -> Self {
        Self::with(ServiceOptions::default())
    }

    pub fn with(options: ServiceOptions) -> Self {
        let mut deployment = Self::set_up(options);
        deployment.start(SERVICE);
        deployment.until_ready();
        deployment
    }

    /// `service init` only: nothing runs yet.
    pub fn set_up(options: ServiceOptions) -> Self {
        let directory =
            tempfile::Builder::new().prefix("longhaul-testbed-").tempdir().expect("a temporary directory");
        let loopback = || SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let service_address = options.listen.unwrap_or_else(loopback);
        let page_address = options.pages.then(loopback);
        let own = directory.path().join(SERVICE);
        fs::create_dir(&own).expect("a directory of our own");
        let state = options.state.clone().unwrap_or_else(|| own.join("state"));
        let mut settings = format!(
            "[service]\nstate_dir = {}\nlisten = [\"{service_address}\"]\npublic_url \
                = \"https://{service_address}\"\n",
            quoted(&state)
        );
        if let Some(deployment) = &options.deployment {
            settings.push_str(&format!("deployment = {deployment:?}\n"));
        }
        if let Some(page) = page_address {
            settings.push_str(&format!("http = \"{page}\"\n"));
        }
        let config = own.join("longhaul.toml");
        fs::write(&config, settings + &options.settings + &log_settings())
            .expect("the configuration is written");

        let words = |verb: &str| [SERVICE, verb, "--config", &shown(&config)].map(str::to_owned).to_vec();
        let binary = options.binary.clone().unwrap_or_else(run::binary);
        let mut init = launched(&binary, &options.launcher, &words("init"), &own, &options.environment);
        let made = CommandOutput::from_command(init.arg("--json"), COMMAND_WITHIN).ok().json();
        let text = |name: &str| {
            made[name].as_str().unwrap_or_else(|| panic!("service init gives no {name}")).to_owned()
        };
        let mut program = options.launcher.clone();
        program.push(shown(&binary));
        program.extend(words("run"));
        program.push("--exit-with-parent".to_owned());
        let member = Member {
            program,
            launcher_len: options.launcher.len(),
            environment: options.environment,
            process: None,
            log: Log::default(),
        };
        Deployment {
            members: BTreeMap::from([(SERVICE.to_owned(), member)]),
            sites: BTreeMap::new(),
            url: text("url"),
            token: text("token"),
            ca: PathBuf::from(text("ca")),
            service_address,
            page_address,
            directory,
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn service_state(&self) -> PathBuf {
        self.directory().join(SERVICE).join("state")
    }

    // ---- sites --------------------------------------------------------------------------------------------

    /// `site add`, `agent join`, `agent run`, and the service sees it.
    pub fn add_site(&mut self, options: SiteOptions) {
        let name = options.name.clone();
        self.join_site(options);
        self.start(&name);
        self.until_connected(&name);
    }

    /// `site add` and `agent join`.
    pub fn join_site(&mut self, options: SiteOptions) {
        let added = self.longhaul(&["site", "add", &options.name, "--json"]).ok().json();
        let token = added["join_token"].as_str().expect("site add gives a token").to_owned();
        let name = options.name.clone();
        self.configure(&name, options);
        self.join(&name, &token).ok();
    }

    /// Another agent of the site of that name in `options`, called `name` here: `site add --another-agent`,
    /// `agent join`, `agent run`.
    pub fn add_agent(&mut self, name: &str, options: SiteOptions) {
        let added = self.json(&["site", "add", &options.name, "--another-agent"]);
        self.configure(name, options);
        self.join(name, added["join_token"].as_str().expect("site add gives a token")).ok();
        self.start(name);
    }

    /// Writes the configuration of an agent; also to change it before a restart.
    pub fn configure(&mut self, name: &str, options: SiteOptions) {
        let own = self.directory().join(name);
        let root = options.root.clone().unwrap_or_else(|| own.join("storage"));
        fs::create_dir_all(&own).expect("a directory of our own");
        if options.root.is_none() {
            fs::create_dir_all(&root).expect("a storage");
        }
        let config = own.join("longhaul.toml");
        // The port stays, as that of a real agent does.
        let port = match self.sites.contains_key(name) {
            true => port_in(&config),
            false => options.port.unwrap_or_else(free_port),
        };
        let (root, null_mover) = match &options.null_mover {
            Some(links) => ("kind = \"virtual\"".to_owned(), format!("null_mover = {}", quoted(links))),
            None if !options.pools.is_empty() => (String::new(), String::new()),
            None => (format!("root = {}", quoted(&root)), String::new()),
        };
        let pool = |(name, root, state): &(String, PathBuf, PoolState)| {
            format!(
                "[[agent.storages.pools]]\nname = {name:?}\nroot = {}\nstate = {:?}\n",
                quoted(root),
                state.word()
            )
        };
        let pools: String = options.pools.iter().map(pool).collect();
        let work = options.work.as_ref().map(|work| format!("work = {}\n", quoted(work))).unwrap_or_default();
        let rules = match (options.own_rules, &options.prefix) {
            (true, _) => String::new(),
            (false, (lfn, pfn)) => format!("rules = [{{ lfn = {lfn:?}, pfn = {pfn:?} }}]\n"),
        };
        let settings = format!(
            "[agent]\nstate_dir = {}\nlisten = [\"{}:{port}\"]\nmemory_bytes = {}\nspace_check_s = \
                1\n{null_mover}\n{}\n\
             [[agent.storages]]\nname = {:?}\n{root}\n{work}writable = {}\n{rules}{}{pools}",
            quoted(&own.join("agent")),
            options.listen,
            options.memory_bytes,
            options.settings,
            options.name,
            options.writable,
            options.storage_settings,
        );
        fs::write(&config, settings + &log_settings()).expect("the configuration is written");
        let mut program = options.launcher.clone();
        program.push(shown(&options.binary.clone().unwrap_or_else(run::binary)));
        program
            .extend(["agent", "run", "--exit-with-parent", "--config", &shown(&config)].map(str::to_owned));
        let log = self.members.get(name).map(|member| member.log.clone()).unwrap_or_default();
        let member = Member {
            program,
            launcher_len: options.launcher.len(),
            environment: options.environment.clone(),
            process: None,
            log,
        };
        self.members.insert(name.to_owned(), member);
        self.sites.insert(name.to_owned(), options);
    }

    /// `agent join` with the configuration of that name.
    pub fn join(&self, name: &str, token: &str) -> CommandOutput {
        let options = &self.sites[name];
        let own = self.directory().join(name);
        let config = shown(&own.join("longhaul.toml"));
        let words = ["agent", "join", "--config", &config, "--token", token].map(str::to_owned);
        let binary = options.binary.clone().unwrap_or_else(run::binary);
        let mut join = launched(&binary, &options.launcher, &words, &own, &options.environment);
        CommandOutput::from_command(&mut join, COMMAND_WITHIN)
    }

    /// Joins a new site as its agent without the agent's program; returns what proves it.
    pub fn join_by_hand(&self, site: &str, host: &str) -> Credentials {
        let added = self.json(&["site", "add", site]);
        let token: JoinToken = added["join_token"].as_str().expect("a token").parse().expect("a token");
        let (signing_request, key_pem) = new_signing_request().expect("a key");
        let join = json!({ "versions": AGENT_PROTOCOL, "secret": token.secret,
            "signing_request": signing_request, "host": host });
        let joined = self.api().call(&routes::AGENT_JOIN, &[], &[], &join).expect("an answer");
        let joined = joined.expect(200).json();
        let pem = |name: &str| joined[name].as_str().expect("a certificate").to_owned();
        Credentials { certificate_pem: pem("certificate"), key_pem, ca_pem: pem("ca") }
    }

    /// Root of the storage of that name.
    pub fn storage(&self, name: &str) -> PathBuf {
        self.sites[name].root.clone().unwrap_or_else(|| self.directory().join(name).join("storage"))
    }

    pub fn agent_state(&self, name: &str) -> PathBuf {
        self.directory().join(name).join("agent")
    }

    /// With what an agent shows who it is, to be misused.
    pub fn credentials(&self, name: &str) -> Credentials {
        let text = fs::read_to_string(self.agent_state(name).join("identity.json")).expect("it has joined");
        let identity: Value = serde_json::from_str(&text).expect("an identity is JSON");
        let part = |name: &str| {
            identity[name].as_str().unwrap_or_else(|| panic!("no {name} in an identity")).to_owned()
        };
        Credentials { certificate_pem: part("certificate"), key_pem: part("key"), ca_pem: part("ca") }
    }

    /// Where an agent serves data.
    pub fn data_address(&self, name: &str) -> SocketAddr {
        let port = port_in(&self.directory().join(name).join("longhaul.toml"));
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }

    // ---- processes ----------------------------------------------------------------------------------------

    /// Starts `service` or a site's agent, and does not wait for it.
    pub fn start(&mut self, name: &str) {
        let own = self.directory().join(name);
        let member = self.members.get_mut(name).unwrap_or_else(|| panic!("there is no {name}"));
        assert!(member.process.is_none(), "{name} runs already");
        let mut command = Command::new(&member.program[0]);
        command.args(&member.program[1..]);
        run::clean(&mut command, &own);
        command.envs(member.environment.iter().cloned());
        member.process = Some(Process::start(name, &mut command, &member.log, &own.join("log")));
    }

    /// SIGKILL; it stays dead until [`Deployment::start`].
    pub fn kill(&mut self, name: &str) {
        self.take(name).kill();
    }

    /// SIGTERM.
    pub fn stop(&mut self, name: &str) -> ExitStatus {
        self.take(name).stop()
    }

    pub fn restart(&mut self, name: &str) {
        self.kill(name);
        self.start(name);
    }

    /// Has `service` or a site's agent run the `longhaul` under test from its next start on.
    pub fn upgrade(&mut self, name: &str) {
        let member = self.members.get_mut(name).unwrap_or_else(|| panic!("there is no {name}"));
        member.program[member.launcher_len] = shown(&run::binary());
    }

    /// Takes the process out: it ends when the caller drops it.
    pub fn take(&mut self, name: &str) -> Process {
        let member = self.members.get_mut(name).unwrap_or_else(|| panic!("there is no {name}"));
        member.process.take().unwrap_or_else(|| panic!("{name} does not run"))
    }

    pub fn process(&mut self, name: &str) -> &mut Process {
        let member = self.members.get_mut(name).unwrap_or_else(|| panic!("there is no {name}"));
        member.process.as_mut().unwrap_or_else(|| panic!("{name} does not run"))
    }

    pub fn pid(&self, name: &str) -> u32 {
        self.members[name].process.as_ref().unwrap_or_else(|| panic!("{name} does not run")).pid()
    }

    pub fn log(&self, name: &str) -> Log {
        self.members[name].log.clone()
    }

    /// All members that run must still run: nothing has ended by itself.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        for (name, member) in &mut self.members {
            if let Some(process) = &mut member.process {
                assert!(process.is_running(), "{name} has ended by itself:\n{}", member.log.tail());
            }
        }
    }

    // ---- commands -----------------------------------------------------------------------------------------

    /// A public command, as the administrator.
    pub fn longhaul(&self, words: &[&str]) -> CommandOutput {
        CommandOutput::from_command(&mut self.command(words), COMMAND_WITHIN)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        self.command_of(&run::binary(), words)
    }

    /// A public command of another `longhaul`, as the administrator.
    pub fn command_of(&self, binary: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(binary);
        run::clean(&mut command, self.directory());
        command
            .args(words)
            .env("LONGHAUL_URL", &self.url)
            .env("LONGHAUL_TOKEN", &self.token)
            .env("LONGHAUL_CA", &self.ca);
        command
    }

    /// A public command that must work, with `--json`.
    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        self.longhaul(&[words, &["--json"]].concat()).ok().json()
    }

    /// The API, with the administrator's token.
    pub fn api(&self) -> Api {
        let ca = fs::read_to_string(&self.ca).expect("the CA's certificate");
        Api::secure(self.service_address, &ca, &self.token)
    }

    // ---- what tests do all the time -----------------------------------------------------------------------

    #[track_caller]
    /// The value of a series of the service's metrics, such as
    /// `longhaul_leases_total{source="a",target="b"}`; 0 if it is not there.
    pub fn metric(&self, series: &str) -> f64 {
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        self.metrics().lines().find_map(value).unwrap_or(0.0)
    }

    /// All series, as Prometheus scrapes them.
    pub fn metrics(&self) -> String {
        let scraped = self.api().call(&routes::METRICS, &[], &[], &Value::Null);
        scraped.expect("the service answers").expect(200).text()
    }

    pub fn register(&self, dataset: &str, place: &str) -> Value {
        self.json(&["dataset", "register", dataset, "--scan", place])
    }

    /// `subscribe --wait`: returns when it is complete there.
    #[track_caller]
    pub fn deliver(&self, dataset: &str, storage: &str, within_s: u64) {
        let begun = Instant::now();
        let wait = format!("--wait={within_s}");
        let ran = CommandOutput::from_command(
            &mut self.command(&["subscribe", dataset, storage, &wait]),
            Duration::from_secs(within_s + 30),
        );
        if ran.status != 0 {
            let show = |words: &[&str]| println!("{}", self.longhaul(words));
            show(&["status"]);
            show(&["problems"]);
            show(&["transfer", "list", "-n", "10"]);
        }
        println!("{dataset} at {storage} after {:.1} s", begun.elapsed().as_secs_f64());
        ran.ok();
    }

    /// The invariants of the state hold.
    #[track_caller]
    pub fn check(&self) {
        let ran = self.longhaul(&["service", "check", "--json"]).ok();
        let report = ran.json();
        assert_eq!(report["sound"], json!(true), "{ran}");
        assert!(report["checks"].as_array().is_some_and(|checks| checks.len() >= 5), "{ran}");
    }

    /// No attempt has failed so far, unless for lack of a connection: a process that gets no processor for
    /// some seconds is cut off, and rightly.
    #[track_caller]
    pub fn assert_nothing_failed(&self) {
        self.assert_nothing_failed_but(&[]);
    }

    /// The same, but for faults of these codes, which what the test does brings about.
    #[track_caller]
    pub fn assert_nothing_failed_but(&self, codes: &[&str]) {
        let status = self.json(&["status"]);
        let list = |name: &str| status[name].as_array().expect("a list").iter();
        let mut failures = list("failures_by_blame").filter(|one| one["blame"] != json!("network"));
        let lawful = [&["E5001", "E5002", "E5004", "E5005"], codes].concat();
        let is_lawful =
            |one: &Value| one["fault"]["code"].as_str().is_some_and(|code| lawful.contains(&code));
        let problems: Vec<&Value> = list("problems").filter(|one| !is_lawful(one)).collect();
        let failed = failures.any(|one| one["count"] != json!(0));
        assert!(!failed && problems.is_empty(), "{problems:?}\n{}", status["failures_by_blame"]);
    }

    /// Asks again after each change that the service tells of (and now and then besides), until there is an
    /// answer.
    ///
    /// # Panics
    /// If there is none within that time.
    #[track_caller]
    pub fn until<T>(&self, what: &str, within: Duration, question: impl FnMut() -> Option<T>) -> T {
        self.await_answer(within, question)
            .unwrap_or_else(|| panic!("not within {} s: {what}", within.as_secs()))
    }

    /// The same; none if there is no answer in time.
    pub fn await_answer<T>(&self, within: Duration, mut question: impl FnMut() -> Option<T>) -> Option<T> {
        let until = Instant::now() + within;
        let mut changes = Changes::new(self.api());
        loop {
            if let Some(answer) = question() {
                return Some(answer);
            }
            let left = until.checked_duration_since(Instant::now())?;
            changes.wait(left);
        }
    }

    #[track_caller]
    pub fn until_ready(&self) {
        let api = self.api();
        let from = self.log(SERVICE);
        let ready = self.await_answer(START_WITHIN, || {
            let reply = api.call(&routes::READYZ, &[], &[], &Value::Null).ok()?;
            (reply.status == 200).then_some(())
        });
        assert!(ready.is_some(), "the service does not become ready:\n{}", from.tail());
    }

    /// The agent of that site is connected and its storage known. (After a kill the service may not have
    /// noticed yet.)
    #[track_caller]
    pub fn until_connected(&self, site: &str) {
        let api = self.api();
        let connected = self.await_answer(START_WITHIN, || {
            let reply = api.call(&routes::SITE_SHOW, &[site], &[], &Value::Null).ok()?;
            let view = if reply.status == 200 { reply.json() } else { return None };
            let agents = view["agents"].as_array()?;
            let here = agents.iter().any(|agent| agent["connected"] == json!(true));
            (here && !view["storages"].as_array()?.is_empty()).then_some(())
        });
        assert!(connected.is_some(), "the agent of {site} does not connect:\n{}", self.log(site).tail());
    }
}

impl Default for Deployment {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        for (name, member) in &mut self.members {
            member.process = None;
            if failing {
                println!("==== end of the log of {name}\n{}", member.log.tail());
            }
        }
        if std::env::var_os("LONGHAUL_TESTBED_KEEP").is_some() {
            self.directory.disable_cleanup(true);
            println!("kept: {}", self.directory.path().display());
        }
    }
}

/// A TOML string.
fn quoted(path: &Path) -> String {
    json!(path.to_str().expect("paths of tests are UTF-8")).to_string()
}

fn shown(path: &Path) -> String {
    path.to_str().expect("paths of tests are UTF-8").to_owned()
}

/// `LONGHAUL_TESTBED_LOG=debug` to see more.
fn log_settings() -> String {
    std::env::var("LONGHAUL_TESTBED_LOG")
        .map_or(String::new(), |level| format!("\n[log]\nlevel = {level:?}\n"))
}

fn port_in(config: &Path) -> u16 {
    let text = fs::read_to_string(config).expect("the configuration");
    let port = text
        .split_once("listen = [\"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .and_then(|(address, _)| address.rsplit_once(':'));
    port.and_then(|(_, port)| port.parse().ok()).expect("the configuration has a port")
}

fn launched(
    binary: &Path,
    launcher: &[String],
    words: &[String],
    home: &Path,
    environment: &[(String, String)],
) -> Command {
    let mut all = launcher.to_vec();
    all.push(shown(binary));
    all.extend_from_slice(words);
    let mut command = Command::new(&all[0]);
    command.args(&all[1..]);
    run::clean(&mut command, home);
    command.envs(environment.iter().cloned());
    command
}
