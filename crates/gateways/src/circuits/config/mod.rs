//! Configuration of the circuits of a link: TOML, checked as a whole.

mod remote;

use std::net::IpAddr;
use std::time::Duration;

use longhaul_circuits::{CircuitEndpoints, Settings};
use longhaul_model::json::Objects;
use longhaul_model::{Fault, FaultCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::nsi::NsiConfig;
use super::rest::{OscarsConfig, SenseConfig};
pub use remote::Access;

/// A file about one link is a few lines.
pub const FILE_BYTES_MAX: usize = 64 << 10;
/// A petabit per second, and a hundred years.
const MBIT_MAX: u64 = 1_000_000_000;
const SECONDS_MAX: f64 = 3.2e9;

/// The provider of a link's circuits, and what it is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitConfig {
    pub provider: ProviderConfig,
    pub settings: Settings,
    /// Senders keep to what was booked.
    pub paced: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ProviderConfig {
    Static(FixedConfig),
    Nsi(NsiConfig),
    Oscars(OscarsConfig),
    Sense(SenseConfig),
}

/// Address pairs that are always there. Whatever else is set is for trying out what happens.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedConfig {
    pub ends: CircuitEndpoints,
    pub mbit: u64,
    /// Simulated time from a request to its answer.
    pub setup: Duration,
    /// How long a granted circuit lasts; none: until it is released.
    pub lasts: Option<Duration>,
    /// Refuses everything, with this text.
    pub refuse: Option<String>,
    /// Never answers a request.
    pub silent: bool,
    /// So long after the grant it says that the circuit is gone; none is never.
    pub lose_after: Option<Duration>,
}

/// Settings that all providers share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Common {
    provider: String,
    source: String,
    target: String,
    mbit: u64,
    /// The bandwidth to request; none: all there is.
    ask_mbit: Option<u64>,
    lasts_s: Option<f64>,
    /// None is as the provider needs it.
    pace: Option<bool>,
    /// Parts of it that are asked for, one after the other.
    steps: Option<Vec<f64>>,
    consistency_s: Option<f64>,
    failures: Option<u32>,
    failures_percent: Option<f64>,
    failures_within_s: Option<f64>,
}

const COMMON: &[&str] = &[
    "provider",
    "source",
    "target",
    "mbit",
    "ask_mbit",
    "lasts_s",
    "pace",
    "steps",
    "consistency_s",
    "failures",
    "failures_percent",
    "failures_within_s",
];
/// Refusals that are answered by a smaller wish.
const STEPS_MAX: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Static {
    #[serde(default)]
    setup_s: f64,
    refuse: Option<String>,
    #[serde(default)]
    silent: bool,
    lose_after_s: Option<f64>,
}

/// Those of the names, and the others.
fn split(table: toml::Table, names: &[&str]) -> (toml::Table, toml::Table) {
    table.into_iter().partition(|(name, _)| names.contains(&name.as_str()))
}

/// Reads one file; `shown` names it in errors.
struct Reader<'a> {
    shown: &'a str,
}

impl Reader<'_> {
    fn wrong(&self, detail: impl std::fmt::Display) -> Fault {
        Fault::new(FaultCode::BadRequest, format!("{}: {detail}", self.shown))
    }

    fn part<T: DeserializeOwned>(&self, table: toml::Table) -> Result<T, Fault> {
        T::deserialize(Objects(toml::Value::Table(table)))
            .map_err(|error| self.wrong(error.to_string().trim_end()))
    }

    fn mbit(&self, name: &str, mbit: u64) -> Result<u64, Fault> {
        match mbit {
            1..=MBIT_MAX => Ok(mbit),
            _ => Err(self.wrong(format!("{name} is 1 to {MBIT_MAX} Mbit/s, not {mbit}"))),
        }
    }

    fn seconds(&self, name: &str, seconds: f64) -> Result<Duration, Fault> {
        match seconds {
            0.0..=SECONDS_MAX => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(self.wrong(format!("{name} is 0 to {SECONDS_MAX} seconds, not {seconds}"))),
        }
    }

    fn steps(&self, steps: Vec<f64>) -> Result<Vec<f64>, Fault> {
        let falls = steps.is_sorted_by(|one, next| one > next);
        let sound = steps.iter().all(|part| *part > 0.0 && *part <= 1.0);
        match falls && sound && (1..=STEPS_MAX).contains(&steps.len()) {
            true => Ok(steps),
            false => Err(self.wrong(format!(
                "steps are 1 to {STEPS_MAX} parts of ask_mbit, each smaller than the one before, like [1.0, \
                    0.5], not {steps:?}"
            ))),
        }
    }

    /// Applies the file's settings of when to request and leave a circuit.
    fn settings(&self, common: &Common, lifetime: Option<Duration>) -> Result<Settings, Fault> {
        let usual = Settings::default();
        let seconds = |name: &str, value: Option<f64>, usual: Duration| match value {
            Some(0.0) => Err(self.wrong(format!("{name} is 0: it would be done all the time"))),
            Some(value) => self.seconds(name, value),
            None => Ok(usual),
        };
        let percent = common.failures_percent.unwrap_or(usual.failure_share_min * 100.0);
        if !(0.0..100.0).contains(&percent) {
            return Err(self.wrong(format!("failures_percent is 0 to less than 100, not {percent}")));
        }
        let failures = common.failures.unwrap_or(usual.failures_min);
        if failures == 0 {
            return Err(self.wrong("failures is 0: every circuit would be left at once; the least is 1"));
        }
        Ok(Settings {
            mbit: self.mbit("ask_mbit", common.ask_mbit.unwrap_or(common.mbit))?,
            rate_steps: common.steps.clone().map_or(Ok(usual.rate_steps), |steps| self.steps(steps))?,
            lifetime,
            reconciliation_interval: seconds(
                "consistency_s",
                common.consistency_s,
                usual.reconciliation_interval,
            )?,
            failures_min: failures,
            failure_share_min: percent / 100.0,
            failure_window: seconds("failures_within_s", common.failures_within_s, usual.failure_window)?,
            ..Settings::default()
        })
    }

    fn ends(&self, common: &Common) -> Result<CircuitEndpoints, Fault> {
        for (name, value) in [("source", &common.source), ("target", &common.target)] {
            let sound =
                !value.is_empty() && value.len() <= 255 && value.bytes().all(|byte| byte.is_ascii_graphic());
            if !sound {
                return Err(self.wrong(format!("{name} is to be an address, not {value:?}")));
            }
        }
        if common.target.parse::<IpAddr>().is_err() {
            return Err(self.wrong(format!(
                "target is the local address of the circuit, an IP address, not {:?}",
                common.target
            )));
        }
        Ok(CircuitEndpoints { source: common.source.clone(), target: common.target.clone() })
    }

    fn fixed(&self, common: &Common, rest: toml::Table) -> Result<ProviderConfig, Fault> {
        let file: Static = self.part(rest)?;
        Ok(ProviderConfig::Static(FixedConfig {
            ends: self.ends(common)?,
            mbit: common.mbit,
            setup: self.seconds("setup_s", file.setup_s)?,
            lasts: common.lasts_s.map(|value| self.seconds("lasts_s", value)).transpose()?,
            refuse: file.refuse,
            silent: file.silent,
            lose_after: file.lose_after_s.map(|value| self.seconds("lose_after_s", value)).transpose()?,
        }))
    }
}

impl ProviderConfig {
    pub fn kind(&self) -> &'static str {
        match self {
            ProviderConfig::Static(_) => "static",
            ProviderConfig::Nsi(_) => "nsi",
            ProviderConfig::Oscars(_) => "oscars",
            ProviderConfig::Sense(_) => "sense",
        }
    }

    /// The provider's identity: files with the same name use the same provider.
    pub fn name(&self) -> String {
        let place = match self {
            ProviderConfig::Static(_) => None,
            ProviderConfig::Nsi(nsi) => {
                nsi.provider_nsa.clone().or_else(|| nsi.discovery.as_deref().or(nsi.url.as_deref()).map(host))
            }
            ProviderConfig::Oscars(oscars) => Some(host(&oscars.url)),
            ProviderConfig::Sense(sense) => Some(host(&sense.url)),
        };
        place.unwrap_or_else(|| self.kind().to_owned())
    }

    /// Whether its circuits are lines of their own, which take nothing from what the ends have beside them.
    pub fn is_own_line(&self) -> bool {
        matches!(self, ProviderConfig::Static(_))
    }
}

/// The value of an address that was checked when it was read.
fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest).to_owned()
}

impl CircuitConfig {
    /// `shown` names the text in errors.
    pub fn parse(text: &str, shown: &str) -> Result<CircuitConfig, Fault> {
        let reader = Reader { shown };
        if text.len() > FILE_BYTES_MAX {
            return Err(reader.wrong(format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        let table: toml::Table =
            toml::from_str(text).map_err(|error| reader.wrong(error.to_string().trim_end()))?;
        let (common, rest) = split(table, COMMON);
        let common: Common = reader.part(common)?;
        let provider = match common.provider.as_str() {
            "static" => reader.fixed(&common, rest)?,
            "nsi" => ProviderConfig::Nsi(reader.nsi(&common, rest)?),
            "oscars" => ProviderConfig::Oscars(reader.oscars(&common, rest)?),
            "sense" => ProviderConfig::Sense(reader.sense(&common, rest)?),
            other => {
                let known = "static, nsi, oscars, sense";
                return Err(reader.wrong(format!("provider {other:?} is not known; known are {known}")));
            }
        };
        reader.mbit("mbit", common.mbit)?;
        let lasts = common.lasts_s.map(|value| reader.seconds("lasts_s", value)).transpose()?;
        // The static one lasts as long whatever it is asked for.
        let lifetime = lasts.filter(|_| !matches!(provider, ProviderConfig::Static(_)));
        // A line of one's own has room for what it can carry, whatever the file says.
        let paced = common.pace.unwrap_or(!provider.is_own_line());
        Ok(CircuitConfig { provider, settings: reader.settings(&common, lifetime)?, paced })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "provider = \"static\"\nsource = \"10.1.0.1\"\ntarget = \"10.1.0.2\"\nmbit = 1000\n";
    const NSI: &str =
        "requester_nsa = \"urn:r\"\nsource_stp = \"urn:a?vlan=1\"\ntarget_stp = \"urn:b?vlan=1\"\n";

    fn nsi(more: &str) -> Result<CircuitConfig, Fault> {
        CircuitConfig::parse(&format!("{}{NSI}{more}\n", GOOD.replace("static", "nsi")), "uplink.toml")
    }

    #[test]
    fn a_static_circuit_is_a_few_lines() {
        let config = CircuitConfig::parse(GOOD, "file").unwrap();
        let ProviderConfig::Static(fixed) = config.provider else { panic!("it is static") };
        assert_eq!(fixed.ends.source, "10.1.0.1");
        assert_eq!((fixed.mbit, config.settings.mbit), (1000, 1000));
        assert_eq!((fixed.setup, fixed.lasts), (Duration::ZERO, None));
        let more = format!("{GOOD}ask_mbit = 400\nsetup_s = 0.5\nlasts_s = 60\n");
        let config = CircuitConfig::parse(&more, "file").unwrap();
        let ProviderConfig::Static(fixed) = config.provider else { panic!("it is static") };
        assert_eq!((config.settings.mbit, fixed.lasts), (400, Some(Duration::from_secs(60))));
        assert!(!config.paced, "a line of one's own");
        assert!(CircuitConfig::parse(&format!("{GOOD}pace = true\n"), "file").unwrap().paced);
    }

    #[test]
    fn thresholds_of_the_link_are_its_own() {
        let own = "steps = [1.0, 0.7, 0.1]\nconsistency_s = 30\nfailures = 5\nfailures_percent = \
            25\nfailures_within_s = 120\n";
        let settings = CircuitConfig::parse(&format!("{GOOD}{own}"), "file").unwrap().settings;
        assert_eq!(settings.rates().collect::<Vec<_>>(), [1000, 700, 100]);
        assert_eq!((settings.failures_min, settings.failure_share_min), (5, 0.25));
        let times = [settings.reconciliation_interval, settings.failure_window].map(|time| time.as_secs());
        assert_eq!(times, [30, 120]);
        let usual = CircuitConfig::parse(GOOD, "file").unwrap().settings;
        assert_eq!(usual, Settings { mbit: 1000, ..Settings::default() });
        for (more, expected) in [
            ("steps = []", "steps are 1 to 16 parts"),
            ("steps = [0.5, 0.5]", "each smaller than the one before"),
            ("steps = [1.0, 0.0]", "steps are"),
            ("steps = [nan]", "steps are"),
            ("consistency_s = 0", "consistency_s is 0"),
            ("failures = 0", "failures is 0"),
            ("failures_percent = 100", "failures_percent is 0 to less than 100"),
            ("failures_within_s = -1", "failures_within_s is 0 to"),
        ] {
            let fault = CircuitConfig::parse(&format!("{GOOD}{more}\n"), "file").unwrap_err();
            assert!(fault.detail.contains(expected), "{more}: {fault}");
        }
    }

    #[test]
    fn an_nsi_provider_is_known_or_found() {
        let config = nsi("url = \"https://p.example/cs\"\nprovider_nsa = \"urn:p\"\nlasts_s = 3600").unwrap();
        assert_eq!(config.settings.lifetime, Some(Duration::from_secs(3600)));
        assert!(config.paced, "what is more than booked may be dropped");
        assert!(nsi("discovery = \"https://p.example/d.xml\"\nlisten = \"127.0.0.1:0\"").is_ok());
        let cases = [
            ("", "either url and provider_nsa"),
            ("url = \"https://p/\"", "either url and provider_nsa"),
            ("discovery = \"ftp://p/\"", "discovery is to be an address"),
            ("discovery = \"https://me@p/\"", "discovery is to be an address"),
            ("discovery = \"https://p/\"\nkey = \"k\"", "certificate and key come together"),
            ("discovery = \"https://p/\"\nlisten = \"here\"", "invalid socket address"),
            ("discovery = \"https://p/\"\nsilent = true", "unknown field `silent`"),
        ];
        for (more, expected) in cases {
            let fault = nsi(more).unwrap_err();
            assert!(fault.detail.contains(expected), "{more}: {fault}");
        }
    }

    #[test]
    fn providers_that_are_asked_only_want_to_know_who_asks() {
        let read = |provider: &str, more: &str| {
            CircuitConfig::parse(&format!("{}{more}\n", GOOD.replace("static", provider)), "uplink.toml")
        };
        let ports = "url = \"https://o/\"\nsource_port = \"a:1\"\ntarget_port = \"b:1\"\n";
        let known = format!("{ports}vlans = \"7-9\"\ntoken_file = \"t\"\n");
        let ProviderConfig::Oscars(oscars) = read("oscars", &known).unwrap().provider else {
            panic!("it is OSCARS")
        };
        assert_eq!(oscars.url, "https://o");
        let named = |kind: &str, text: &str| read(kind, text).map(|config| config.provider.name()).unwrap();
        assert_eq!(named("oscars", &known), "o");
        for (more, expected) in [
            (format!("{ports}vlans = \"7\"\n"), "either username and password_file"),
            (format!("{ports}vlans = \"9-7\"\ntoken_file = \"t\"\n"), "vlans are numbers"),
            (known.replace("a:1", "a"), "source_port is device:port"),
        ] {
            let fault = read("oscars", &more).unwrap_err();
            assert!(fault.detail.contains(expected), "{more}: {fault}");
        }
        let sense = "url = \"https://s.example/StackV-web/restapi\"\nclient_id = \"c\"\nclient_secret_file \
            = \"f\"\n\
                     username = \"u\"\npassword_file = \"p\"\nsource_uri = \"urn:a\"\ntarget_uri \
                     = \"urn:b\"\n";
        let ProviderConfig::Sense(sense) = read("sense", sense).unwrap().provider else {
            panic!("it is SENSE")
        };
        assert_eq!(sense.token_url, "https://s.example/auth/realms/StackV/protocol/openid-connect/token");
        assert_eq!(sense.vlans, "any");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let changed = |from: &str, to: &str| GOOD.replace(from, to);
        let cases = [
            (changed("static", "aurora"), "provider \"aurora\" is not known"),
            (changed("1000", "0"), "mbit is 1 to"),
            (changed("10.1.0.2", "host.example"), "an IP address"),
            (changed("10.1.0.1", ""), "source is to be an address"),
            (changed("10.1.0.1", "a b"), "source is to be an address"),
            (changed("mbit = 1000", ""), "missing field `mbit`"),
            (format!("{GOOD}lasts_s = -1\n"), "lasts_s is 0 to"),
            (format!("{GOOD}setup_s = nan\n"), "setup_s is 0 to"),
            (format!("{GOOD}lose_after_s = -0.5\n"), "lose_after_s is 0 to"),
            (format!("{GOOD}mbits = 3\n"), "unknown field `mbits`"),
            (" ".repeat(FILE_BYTES_MAX + 1), "larger than"),
        ];
        for (text, expected) in cases {
            let fault = CircuitConfig::parse(&text, "uplink.toml").unwrap_err();
            assert!(fault.detail.starts_with("uplink.toml: "), "{fault}");
            assert!(fault.detail.contains(expected), "{fault}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,300}",
            tail in "(setup_s|lasts_s|lose_after_s|mbit|refuse|steps|failures) = [-0-9a-z.\"]{0,30}") {
            let _ = CircuitConfig::parse(&text, "file");
            let _ = CircuitConfig::parse(&format!("{GOOD}{tail}\n"), "file");
            let _ = nsi(&tail);
        }
    }
}
