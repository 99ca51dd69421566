//! What a person writes down about the circuits of a link: TOML, checked as a whole.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use longhaul_circuits::{Ends, Settings};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::{OutsideIdentity, OutsideTrust, outside_client_tls_as, read_private};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::nsi::NsiConfig;
use super::remote::{Caller, Trust};

/// A file about one link is a few lines.
pub const FILE_BYTES_MAX: usize = 64 << 10;
/// A petabit per second, and a hundred years.
const MBIT_MAX: u64 = 1_000_000_000;
const SECONDS_MAX: f64 = 3.2e9;
/// Of names and addresses.
const TEXT_BYTES_MAX: usize = 1_000;
/// Hold times of providers are two minutes, of which half is ours.
const HOLD_S: f64 = 60.0;

/// The provider of a link's circuits, and what it is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitConfig {
    pub provider: ProviderConfig,
    pub settings: Settings,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ProviderConfig {
    Static(FixedConfig),
    Nsi(NsiConfig),
}

/// Address pairs that are always there. Whatever else is set is for trying out what happens.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedConfig {
    pub ends: Ends,
    pub mbit: u64,
    /// From a request to its answer.
    pub setup: Duration,
    /// How long it lasts once granted; none is for ever.
    pub lasts: Option<Duration>,
    /// It refuses everything, with this text.
    pub refuse: Option<String>,
    /// It never answers a request.
    pub silent: bool,
}

/// How a provider is spoken to, and who is believed to be it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// Authorities in PEM; none: those of the system.
    pub(crate) authorities: Option<PathBuf>,
    /// What we show, and its key, in PEM.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// How long an answer may take.
    pub(crate) answer: Option<Duration>,
}

impl Access {
    pub(super) fn caller(&self) -> Result<Caller, Fault> {
        Ok(Caller::new(self.tls()?, self.answer))
    }

    fn tls(&self) -> Result<Trust, Fault> {
        let authorities = crate::authorities::read(self.authorities.as_deref())?;
        let trust = OutsideTrust::Authorities(&authorities);
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return outside_client_tls_as(trust, None);
        };
        let read = |path: &PathBuf| {
            read_private(path).map_err(|error| Fault::new(FaultCode::BadRequest, error.to_string()))
        };
        let (chain, key) = (read(certificate)?, read(key)?);
        outside_client_tls_as(trust, Some(OutsideIdentity { chain: &chain, key: &key }))
    }
}

/// What is said of every provider.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Common {
    provider: String,
    source: String,
    target: String,
    mbit: u64,
    /// What is asked for; none is all there is.
    ask_mbit: Option<u64>,
    lasts_s: Option<f64>,
}

const COMMON: &[&str] = &["provider", "source", "target", "mbit", "ask_mbit", "lasts_s"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Static {
    #[serde(default)]
    setup_s: f64,
    refuse: Option<String>,
    #[serde(default)]
    silent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nsi {
    url: Option<String>,
    provider_nsa: Option<String>,
    discovery: Option<String>,
    requester_nsa: String,
    source_stp: String,
    target_stp: String,
    listen: Option<SocketAddr>,
    reply_to: Option<String>,
    hold_s: Option<f64>,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    answer_s: Option<f64>,
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
        table.try_into().map_err(|error: toml::de::Error| self.wrong(error.to_string().trim_end()))
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

    fn ends(&self, common: &Common) -> Result<Ends, Fault> {
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
        Ok(Ends { source: common.source.clone(), target: common.target.clone() })
    }

    /// A name that goes into a document: printable, and not without end.
    fn text(&self, name: &str, value: String) -> Result<String, Fault> {
        let sound = !value.is_empty()
            && value.len() <= TEXT_BYTES_MAX
            && value.bytes().all(|byte| byte.is_ascii_graphic());
        match sound {
            true => Ok(value),
            false => Err(self.wrong(format!("{name} is to be a name without spaces, not {value:?}"))),
        }
    }

    fn url(&self, name: &str, value: String) -> Result<String, Fault> {
        let value = self.text(name, value)?;
        let parsed = value.parse::<http::Uri>().ok();
        let has_host = parsed.is_some_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let begins = value.starts_with("https://") || value.starts_with("http://");
        match begins && has_host && !value.contains('@') {
            true => Ok(value),
            false => Err(self.wrong(format!("{name} is to be an address like https://host/path, not {value:?}"))),
        }
    }

    fn access(
        &self,
        authorities: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        answer_s: Option<f64>,
    ) -> Result<Access, Fault> {
        if certificate.is_some() != key.is_some() {
            return Err(self.wrong("certificate and key come together"));
        }
        let answer = answer_s.map(|value| self.seconds("answer_s", value)).transpose()?;
        Ok(Access { authorities, certificate, key, answer })
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
        }))
    }

    fn nsi(&self, common: &Common, rest: toml::Table) -> Result<ProviderConfig, Fault> {
        let file: Nsi = self.part(rest)?;
        let url = |name: &str, value: Option<String>| value.map(|value| self.url(name, value)).transpose();
        let known = file.url.is_some() && file.provider_nsa.is_some();
        if known == file.discovery.is_some() {
            return Err(self.wrong("either url and provider_nsa say where the provider is, or discovery"));
        }
        Ok(ProviderConfig::Nsi(NsiConfig {
            url: url("url", file.url)?,
            provider_nsa: file.provider_nsa.map(|value| self.text("provider_nsa", value)).transpose()?,
            discovery: url("discovery", file.discovery)?,
            requester_nsa: self.text("requester_nsa", file.requester_nsa)?,
            source_stp: self.text("source_stp", file.source_stp)?,
            target_stp: self.text("target_stp", file.target_stp)?,
            listen: file.listen,
            reply_to: url("reply_to", file.reply_to)?,
            hold: self.seconds("hold_s", file.hold_s.unwrap_or(HOLD_S))?,
            access: self.access(file.authorities, file.certificate, file.key, file.answer_s)?,
            ends: self.ends(common)?,
        }))
    }
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
        let (common, rest): (toml::Table, toml::Table) =
            table.into_iter().partition(|(name, _)| COMMON.contains(&name.as_str()));
        let common: Common = reader.part(common)?;
        let provider = match common.provider.as_str() {
            "static" => reader.fixed(&common, rest)?,
            "nsi" => reader.nsi(&common, rest)?,
            other => {
                return Err(reader.wrong(format!("provider {other:?} is not known; known are \"static\" and \"nsi\"")));
            }
        };
        let capacity = reader.mbit("mbit", common.mbit)?;
        let mbit = reader.mbit("ask_mbit", common.ask_mbit.unwrap_or(capacity))?;
        let lasts = common.lasts_s.map(|value| reader.seconds("lasts_s", value)).transpose()?;
        // The static one lasts as long whatever it is asked for.
        let lifetime = lasts.filter(|_| !matches!(provider, ProviderConfig::Static(_)));
        Ok(CircuitConfig { provider, settings: Settings { mbit, lifetime, ..Settings::default() } })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "provider = \"static\"\nsource = \"10.1.0.1\"\ntarget = \"10.1.0.2\"\nmbit = 1000\n";
    const NSI: &str = "requester_nsa = \"urn:r\"\nsource_stp = \"urn:a?vlan=1\"\ntarget_stp = \"urn:b?vlan=1\"\n";

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
    }

    #[test]
    fn an_nsi_provider_is_known_or_found() {
        let config = nsi("url = \"https://p.example/cs\"\nprovider_nsa = \"urn:p\"\nlasts_s = 3600").unwrap();
        assert_eq!(config.settings.lifetime, Some(Duration::from_secs(3600)));
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
        fn any_text_is_read_or_refused(text in ".{0,300}", tail in "(setup_s|lasts_s|mbit|refuse) = [-0-9a-z.\"]{0,30}") {
            let _ = CircuitConfig::parse(&text, "file");
            let _ = CircuitConfig::parse(&format!("{GOOD}{tail}\n"), "file");
            let _ = nsi(&tail);
        }
    }
}
