//! Configuration of an agent: one struct per part, composed here.

pub(crate) mod circuits;
pub(crate) mod doors;
pub(crate) mod foreign;
pub(crate) mod hooks;
pub(crate) mod marking;
pub(crate) mod mover;
pub(crate) mod pools;
pub(crate) mod server;
pub(crate) mod source_names;
mod storage;
pub(crate) mod tape;
pub(crate) mod uplinks;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use longhaul_api::circuits::LINKS_MAX;
use longhaul_api::probe::UPLINKS_MAX;
use longhaul_model::address::IpNetwork;
use longhaul_model::{DataSecurity, Fault, FaultCode, StorageName};
use longhaul_security::{ALLOWED_MAX, Access, SubjectPattern};
use longhaul_storage::PARALLEL_MAX;
use serde::{Deserialize, Serialize};

use circuits::CircuitLinkConfig;
use doors::{DOORS_MAX, DoorConfig};
use foreign::ForeignMoverConfig;
use marking::MarkingConfig;
use uplinks::UplinkConfig;

pub use storage::{Flush, StorageConfig};

/// Maximum number of storages of one agent.
pub const STORAGES_MAX: usize = 64;
/// Minimum memory of an engine: a few chunks in each direction.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Settings of one agent. All but `state_dir` and `storages` have a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Identity, leases, unsent facts and journals; belongs to one agent alone.
    pub state_dir: PathBuf,
    /// The service's address, if it is no longer the one the agent joined at.
    #[serde(default)]
    pub service_url: Option<String>,
    /// Where other agents reach this one. Port 0 takes a free one.
    #[serde(default = "default_listen")]
    pub listen: Vec<SocketAddr>,
    /// `host:port` as other agents should dial, best first. Empty: derived from `listen`, with this host's
    /// name in place of an unspecified address.
    #[serde(default)]
    pub advertise: Vec<String>,
    /// Bytes for buffers in user space and in the kernel's sockets together.
    #[serde(default = "default_memory_bytes")]
    pub memory_bytes: u64,
    /// Most TCP connections to one source agent; as many of them are opened as the path needs.
    #[serde(default = "default_streams_per_session")]
    pub streams_per_session: usize,
    /// What others may see of the data on its way.
    #[serde(default)]
    pub data_security: DataSecurity,
    /// Addresses and networks that may dial the data port. Empty: all.
    #[serde(default)]
    pub allow: Vec<IpNetwork>,
    /// Agents that may, as `longhaul://DEPLOYMENT/agent/SITE/AGENTID` with `*` for any part. Empty: all of
    /// the deployment.
    #[serde(default)]
    pub allow_subjects: Vec<SubjectPattern>,
    /// Addresses of this host from which data streams are opened, from all of them at once; empty: the
    /// system's choice.
    #[serde(default)]
    pub bind: Vec<IpAddr>,
    /// Event loops for data; 0: as many as cores.
    #[serde(default)]
    pub network_threads: usize,
    /// Processor cores that the threads which move data are pinned to, in turn; empty: the system's choice.
    #[serde(default)]
    pub data_cores: Vec<usize>,
    /// Threads that read and digest files for one task; 0: as many as cores.
    #[serde(default)]
    pub digest_threads: usize,
    /// Seconds between checks of the storages.
    #[serde(default = "default_space_check_s")]
    pub space_check_s: u32,
    /// A file of link rates and failure rates. With it nothing is moved: attempts take as long, and end, as
    /// it says. For trying a service; all storages have to be virtual.
    #[serde(default)]
    pub null_mover: Option<PathBuf>,
    /// Whether paths to other agents are probed when the service requests it.
    #[serde(default = "yes")]
    pub probes: bool,
    /// Interfaces that connect the site to the world, whose traffic is counted.
    #[serde(default)]
    pub uplinks: Vec<UplinkConfig>,
    /// Storages that are open to outside clients by HTTPS and WebDAV.
    #[serde(default)]
    pub doors: Vec<DoorConfig>,
    /// Packet marking.
    #[serde(default)]
    pub marking: MarkingConfig,
    /// Links for which circuits may be requested.
    #[serde(default)]
    pub circuits: Vec<CircuitLinkConfig>,
    /// Copies between foreign storages.
    #[serde(default)]
    pub mover: ForeignMoverConfig,
    pub storages: Vec<StorageConfig>,
}

impl Config {
    /// Settings with every default.
    pub fn new(state_dir: impl Into<PathBuf>, storages: Vec<StorageConfig>) -> Self {
        Config {
            state_dir: state_dir.into(),
            service_url: None,
            listen: default_listen(),
            advertise: Vec::new(),
            memory_bytes: default_memory_bytes(),
            streams_per_session: default_streams_per_session(),
            data_security: DataSecurity::Tls,
            allow: Vec::new(),
            allow_subjects: Vec::new(),
            bind: Vec::new(),
            network_threads: 0,
            data_cores: Vec::new(),
            digest_threads: 0,
            space_check_s: default_space_check_s(),
            null_mover: None,
            probes: true,
            uplinks: Vec::new(),
            doors: Vec::new(),
            marking: MarkingConfig::default(),
            circuits: Vec::new(),
            mover: ForeignMoverConfig::default(),
            storages,
        }
    }

    /// Checks everything that can be checked before anything is opened.
    pub fn check(&self) -> Result<(), Fault> {
        let wrong = |why: String| Err(Fault::new(FaultCode::BadRequest, why));
        if self.storages.is_empty() {
            return wrong("no storage is configured".into());
        }
        if self.storages.len() > STORAGES_MAX {
            return wrong(format!("{} storages, the limit is {STORAGES_MAX}", self.storages.len()));
        }
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return wrong(format!("memory_bytes is {}, the least is {MEMORY_BYTES_MIN}", self.memory_bytes));
        }
        if self.streams_per_session == 0 || self.space_check_s == 0 {
            return wrong("streams_per_session and space_check_s must be at least 1".into());
        }
        if self.allow.len() > ALLOWED_MAX || self.allow_subjects.len() > ALLOWED_MAX {
            return wrong(format!("allow and allow_subjects hold {ALLOWED_MAX} entries each at most"));
        }
        if self.uplinks.len() > UPLINKS_MAX {
            return wrong(format!("{} uplinks, the limit is {UPLINKS_MAX}", self.uplinks.len()));
        }
        for (place, uplink) in self.uplinks.iter().enumerate() {
            uplink.check()?;
            if self.uplinks[..place].iter().any(|other| other.interface == uplink.interface) {
                return wrong(format!("uplink {} is configured twice", uplink.interface));
            }
        }
        if self.doors.len() > DOORS_MAX {
            return wrong(format!("{} doors, the limit is {DOORS_MAX}", self.doors.len()));
        }
        let names: Vec<StorageName> = self.storages.iter().map(|storage| storage.name.clone()).collect();
        for door in &self.doors {
            door.check(&names).or_else(wrong)?;
            let is_open = |storage: &&StorageConfig| storage.name == door.storage && storage.server.is_some();
            if let Some(storage) = self.storages.iter().find(is_open) {
                let name = &storage.name;
                return wrong(format!("door of {name}: a server holds this storage: open it there"));
            }
        }
        self.marking.check()?;
        self.mover.check().or_else(wrong)?;
        self.check_circuits()?;
        for (place, storage) in self.storages.iter().enumerate() {
            if self.storages[..place].iter().any(|other| other.name == storage.name) {
                return wrong(format!("storage {} is configured twice", storage.name));
            }
            if storage.parallel > PARALLEL_MAX {
                let (name, parallel) = (&storage.name, storage.parallel);
                return wrong(format!("storage {name}: parallel is {parallel}, the most is {PARALLEL_MAX}"));
            }
            if let Some(hooks) = &storage.hooks {
                hooks.check().or_else(|why| wrong(format!("storage {}: {why}", storage.name)))?;
            }
            if let Some(tape) = &storage.tape {
                tape.check().or_else(|why| wrong(format!("storage {}: {why}", storage.name)))?;
            }
            if let Some(mover) = &storage.mover {
                mover.check().or_else(|why| wrong(format!("storage {}: {why}", storage.name)))?;
            }
            storage.check_kind(self.null_mover.is_some()).or_else(wrong)?;
            storage.check_rules()?;
        }
        Ok(())
    }

    fn check_circuits(&self) -> Result<(), Fault> {
        let wrong = |why: String| Err(Fault::new(FaultCode::BadRequest, why));
        if self.circuits.len() > LINKS_MAX {
            return wrong(format!("{} circuits, the limit is {LINKS_MAX}", self.circuits.len()));
        }
        if self.null_mover.is_some() && !self.circuits.is_empty() {
            return wrong("circuits beside a null mover, which has no streams: leave one of them out".into());
        }
        for (place, link) in self.circuits.iter().enumerate() {
            link.check()?;
            if self.circuits[..place].iter().any(|other| other.from == link.from) {
                return wrong(format!("circuits from {} are configured twice", link.from));
            }
        }
        Ok(())
    }

    pub(crate) fn access(&self) -> Access {
        Access { addresses: self.allow.clone(), subjects: self.allow_subjects.clone() }
    }

    pub(crate) fn digest_threads(&self) -> usize {
        or_cores(self.digest_threads)
    }

    pub(crate) fn network_threads(&self) -> usize {
        or_cores(self.network_threads)
    }

    /// Addresses for other agents to dial, given where the engine listens.
    pub(crate) fn data_addresses(&self, listening: &[SocketAddr], host: &str) -> Vec<String> {
        if !self.advertise.is_empty() {
            return self.advertise.clone();
        }
        let reachable = |at: &SocketAddr| {
            if at.ip().is_unspecified() { format!("{host}:{}", at.port()) } else { at.to_string() }
        };
        let mut addresses: Vec<String> = listening.iter().map(reachable).collect();
        addresses.dedup();
        addresses
    }
}

fn or_cores(configured: usize) -> usize {
    match configured {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get()),
        some => some,
    }
}

fn yes() -> bool {
    true
}

fn default_listen() -> Vec<SocketAddr> {
    vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7470)]
}

fn default_memory_bytes() -> u64 {
    256 << 20
}

/// One stream fills a path whose window autotuning can open; four more than make up for one that is stalled
/// by a loss.
fn default_streams_per_session() -> usize {
    16
}

fn default_space_check_s() -> u32 {
    5
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::NameRules;
    use longhaul_storage::{DirectIo, PosixTuning};

    const MINIMAL_TOML: &str =
        "state_dir = '/var/lib/longhaul'\n[[storages]]\nname = 'alpha'\nroot = '/data'\n";

    #[test]
    fn a_minimal_file_is_enough() {
        let config: Config = toml::from_str(MINIMAL_TOML).unwrap();
        config.check().unwrap();
        assert_eq!(
            config,
            Config::new("/var/lib/longhaul", vec![StorageConfig::new("alpha".parse().unwrap(), "/data")])
        );
        assert_eq!(config.memory_bytes, 256 << 20);
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn disk_settings_of_a_storage_are_read() {
        let text = format!("{MINIMAL_TOML}append_only = true\ndirect_io = true\nparallel = 8\n");
        let config: Config = toml::from_str(&text).unwrap();
        config.check().unwrap();
        let tuning = PosixTuning { append_only: true, direct_io: DirectIo::Always, parallel: Some(8) };
        assert_eq!(config.storages[0].posix_tuning(), tuning);
        assert_eq!(
            toml::from_str::<Config>(MINIMAL_TOML).unwrap().storages[0].posix_tuning(),
            PosixTuning::default()
        );
        let never: Config = toml::from_str(&format!("{MINIMAL_TOML}direct_io = false\n")).unwrap();
        assert_eq!(never.storages[0].posix_tuning().direct_io, DirectIo::Never);
    }

    #[test]
    fn a_shared_storage_is_a_directory_with_its_temporary_files_in_it() {
        let check = |lines: &str| {
            let config: Config = toml::from_str(&format!("{MINIMAL_TOML}shared = true\n{lines}")).unwrap();
            config.check().map_err(|fault| fault.detail.to_string())
        };
        check("").unwrap();
        assert!(check("work = '/data/work'\n").unwrap_err().contains("leave out work and tape"));
        let virtual_one = "state_dir = '/s'\n[[storages]]\nname = 'a'\nkind = 'virtual'\nshared = true\n";
        let config: Config = toml::from_str(virtual_one).unwrap();
        assert!(config.check().unwrap_err().detail.contains("kind = \"posix\""));
    }

    #[test]
    fn a_virtual_storage_has_nothing_but_a_name() {
        let text = "state_dir = '/s'\n[[storages]]\nname = 'alpha-test'\nkind = 'virtual'\n";
        let config: Config = toml::from_str(text).unwrap();
        config.check().unwrap();
        assert_eq!(config.storages, [StorageConfig::new_virtual("alpha-test".parse().unwrap())]);
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap(), config);
        let said = |text: &str| toml::from_str::<Config>(text).unwrap().check().unwrap_err().detail;
        assert!(
            said(&format!("{text}root = '/data'\n"))
                .contains("alpha-test: a virtual storage has no directory")
        );
        assert!(said(&format!("{text}parallel = 4\n")).contains("alpha-test: a virtual storage has no disk"));
        assert!(said(&text.replace("virtual", "posix")).contains("alpha-test: root is missing"));
        let null = format!("null_mover = 'links.toml'\n{MINIMAL_TOML}");
        assert!(said(&null).contains("alpha: beside a null mover all storages have to be virtual"));
    }

    #[test]
    fn a_storage_of_a_server_has_no_directory_commands_or_door_here() {
        let text = "state_dir = '/s'\n[[storages]]\nname = 'alpha-dav'\nkind = 'webdav'\n";
        let server = "[storages.server]\nurl = 'https://a.example/data'\n";
        let read = |more: &str| toml::from_str::<Config>(&format!("{text}{more}{server}")).unwrap();
        read("").check().unwrap();
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&read("")).unwrap()).unwrap(), read(""));
        let said = |config: Config| config.check().unwrap_err().detail;
        assert!(said(toml::from_str(text).unwrap()).contains("server is missing"));
        assert!(said(read("root = '/data'\n")).contains("has no directory here"));
        assert!(said(read("append_only = true\n")).contains("has no directory here"));
        let posix: Config = toml::from_str(&format!("{MINIMAL_TOML}{server}")).unwrap();
        assert!(said(posix).contains("server belongs to storages of kind"));
        let mut config = read("");
        let door = "storage = 'alpha-dav'\nlisten = ['[::1]:0']\ncertificate = '/c'\nkey = '/k'\n";
        config.doors.push(toml::from_str(door).unwrap());
        assert!(said(config).contains("open it there"));
    }

    #[test]
    fn allowed_peers_are_lists_of_texts() {
        let text = format!(
            "allow = ['10.1.0.0/16']\nallow_subjects = ['longhaul://*/agent/beta/*']\n{MINIMAL_TOML}"
        );
        let config: Config = toml::from_str(&text).unwrap();
        let access = config.access();
        let allows = |address: &str| access.allows_address(address.parse().unwrap());
        assert!(allows("10.1.2.3") && !allows("10.2.2.3"));
        assert!(access.check_subject(&"longhaul://d/agent/beta/0CMZ85KX70000".parse().unwrap()).is_ok());
        assert!(access.check_subject(&"longhaul://d/agent/alpha/0CMZ85KX70000".parse().unwrap()).is_err());
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap(), config);
        for bad in ["allow = ['10.1.0.0/99']", "allow_subjects = ['beta']"] {
            assert!(toml::from_str::<Config>(&format!("{bad}\n{MINIMAL_TOML}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn mistakes_are_reported() {
        assert!(
            toml::from_str::<Config>(&format!("memory = 5\n{MINIMAL_TOML}"))
                .unwrap_err()
                .to_string()
                .contains("memory")
        );
        let broken = |change: &dyn Fn(&mut Config)| {
            let mut config: Config = toml::from_str(MINIMAL_TOML).unwrap();
            change(&mut config);
            config.check().unwrap_err().detail
        };
        assert!(broken(&|c| c.storages.clear()).contains("no storage"));
        assert!(broken(&|c| c.memory_bytes = 1).contains("memory_bytes"));
        let uplink = || UplinkConfig { interface: "eth0".into(), bits_per_s: None, every_s: 30 };
        assert!(broken(&|c| c.uplinks = vec![uplink(), uplink()]).contains("eth0 is configured twice"));
        assert!(broken(&|c| c.storages.push(c.storages[0].clone())).contains("alpha is configured twice"));
        assert!(broken(&|c| c.storages[0].parallel = 65).contains("alpha: parallel is 65, the most is 64"));
        let hooks = "[storages.hooks]\nvalidate = ['relative']\n";
        let hooks: Config = toml::from_str(&format!("{MINIMAL_TOML}{hooks}")).unwrap();
        assert!(hooks.check().unwrap_err().detail.contains("storage alpha: hooks.validate begins"));
        assert!(
            broken(&|c| c.storages[0].rules = NameRules::prefix("", "../up").rules)
                .contains("alpha: rule 1 (pfn)")
        );
    }

    #[test]
    fn pattern_rules_are_checked_with_the_sites_test_names() {
        let rules = "rules_version = 2\nrules_protocol = 'disk'\nrules_base = '/data'\nrules_test = \
            ['run7/f1']\n\
             [[storages.rules]]\ndirection = 'lfn-to-pfn'\nprotocol = 'disk'\npath_match = '/+(.*)'\nresult \
             = '/data/$1'\n\
             [[storages.rules]]\ndirection = 'pfn-to-lfn'\nprotocol = 'disk'\npath_match = \
             '^/data/(.*)'\nresult = '/$1'\n";
        let config: Config = toml::from_str(&format!("{MINIMAL_TOML}{rules}")).unwrap();
        config.check().unwrap();
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        let wrong = |from: &str, to: &str| {
            let text = format!("{MINIMAL_TOML}{}", rules.replace(from, to));
            toml::from_str::<Config>(&text).unwrap().check().unwrap_err().detail
        };
        assert!(
            wrong("'/$1'", "'/x/$1'")
                .contains("rules_test: name rules of alpha map run7/f1 to alpha:run7/f1")
        );
        assert!(
            wrong("'pfn-to-lfn'\nprotocol = 'disk'", "'pfn-to-lfn'\nprotocol = 'tape'").contains("none back")
        );
        assert!(wrong("'/+(.*)'", "'/+(.*'").contains("alpha: rule 1 (lfn-to-pfn of disk): path_match: "));
    }

    #[test]
    fn other_agents_get_an_address_they_can_dial() {
        let mut config: Config = toml::from_str(MINIMAL_TOML).unwrap();
        let listening = ["127.0.0.1:4000".parse().unwrap(), "0.0.0.0:4001".parse().unwrap()];
        assert_eq!(config.data_addresses(&listening, "host7"), ["127.0.0.1:4000", "host7:4001"]);
        config.advertise = vec!["dtn.example.org:7470".into()];
        assert_eq!(config.data_addresses(&listening, "host7"), ["dtn.example.org:7470"]);
    }
}
