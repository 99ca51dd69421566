//! What a person writes down about the circuits of a link: TOML, checked as a whole.

use std::time::Duration;

use longhaul_circuits::{Ends, Settings};
use longhaul_model::{Fault, FaultCode};
use serde::Deserialize;

/// A file about one link is a few lines.
pub const FILE_BYTES_MAX: usize = 64 << 10;
/// A petabit per second, and a hundred years.
const MBIT_MAX: u64 = 1_000_000_000;
const SECONDS_MAX: f64 = 3.2e9;

/// The provider of a link's circuits, and what it is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitConfig {
    pub fixed: FixedConfig,
    pub settings: Settings,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    provider: String,
    source: String,
    target: String,
    mbit: u64,
    /// What is asked for; none is all there is.
    ask_mbit: Option<u64>,
    #[serde(default)]
    setup_s: f64,
    lasts_s: Option<f64>,
    refuse: Option<String>,
    #[serde(default)]
    silent: bool,
}

impl CircuitConfig {
    /// `shown` names the text in errors.
    pub fn parse(text: &str, shown: &str) -> Result<CircuitConfig, Fault> {
        let wrong = |detail: String| Fault::new(FaultCode::BadRequest, format!("{shown}: {detail}"));
        if text.len() > FILE_BYTES_MAX {
            return Err(wrong(format!("larger than {FILE_BYTES_MAX} bytes")));
        }
        let file: File =
            toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
        if file.provider != "static" {
            return Err(wrong(format!("provider {:?} is not known; known is \"static\"", file.provider)));
        }
        for (name, value) in [("source", &file.source), ("target", &file.target)] {
            let sound =
                !value.is_empty() && value.len() <= 255 && value.bytes().all(|byte| byte.is_ascii_graphic());
            if !sound {
                return Err(wrong(format!("{name} is to be an address, not {value:?}")));
            }
        }
        if file.target.parse::<std::net::IpAddr>().is_err() {
            return Err(wrong(format!(
                "target is the local address of the circuit, an IP address, not {:?}",
                file.target
            )));
        }
        let mbit = |name: &str, mbit: u64| match mbit {
            1..=MBIT_MAX => Ok(mbit),
            _ => Err(wrong(format!("{name} is 1 to {MBIT_MAX} Mbit/s, not {mbit}"))),
        };
        let seconds = |name: &str, seconds: f64| match seconds {
            0.0..=SECONDS_MAX => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(wrong(format!("{name} is 0 to {SECONDS_MAX} seconds, not {seconds}"))),
        };
        let capacity = mbit("mbit", file.mbit)?;
        let asked = mbit("ask_mbit", file.ask_mbit.unwrap_or(capacity))?;
        Ok(CircuitConfig {
            fixed: FixedConfig {
                ends: Ends { source: file.source, target: file.target },
                mbit: capacity,
                setup: seconds("setup_s", file.setup_s)?,
                lasts: file.lasts_s.map(|value| seconds("lasts_s", value)).transpose()?,
                refuse: file.refuse,
                silent: file.silent,
            },
            settings: Settings { mbit: asked, ..Settings::default() },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "provider = \"static\"\nsource = \"10.1.0.1\"\ntarget = \"10.1.0.2\"\nmbit = 1000\n";

    #[test]
    fn a_static_circuit_is_four_lines() {
        let config = CircuitConfig::parse(GOOD, "file").unwrap();
        assert_eq!((config.fixed.mbit, config.settings.mbit), (1000, 1000));
        assert_eq!((config.fixed.setup, config.fixed.lasts), (Duration::ZERO, None));
        let more = format!("{GOOD}ask_mbit = 400\nsetup_s = 0.5\nlasts_s = 60\n");
        let config = CircuitConfig::parse(&more, "file").unwrap();
        assert_eq!((config.settings.mbit, config.fixed.lasts), (400, Some(Duration::from_secs(60))));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let changed = |from: &str, to: &str| GOOD.replace(from, to);
        let cases = [
            (changed("static", "oscars"), "provider \"oscars\" is not known"),
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
        }
    }
}
