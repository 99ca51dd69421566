//! Link properties for a null mover, read from a file.

use std::collections::BTreeMap;
use std::path::Path;

use longhaul_model::{Fault, FaultCode, StorageName, units};
use serde::Deserialize;

/// Links with their own settings: a full mesh of a hundred sites fits.
const LINKS_MAX: usize = 100_000;
/// Maximum size of the file.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Upper bound of a rate: 1 TB/s.
const RATE_MAX: u64 = 1_000_000_000_000;
/// Upper bound of a file's fixed cost: an hour.
const OVERHEAD_MS_MAX: u32 = 3_600_000;

/// The parsed and checked file.
#[derive(Clone, Debug, PartialEq)]
pub struct NullLinks {
    pub(super) seed: u64,
    default: NullLink,
    links: BTreeMap<(StorageName, StorageName), NullLink>,
}

/// Properties of one link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct NullLink {
    pub(super) bytes_per_s: u64,
    /// Fixed cost of each file.
    pub(super) overhead_ms: u32,
    /// Fraction of attempts that fail.
    pub(super) failure_rate: f64,
    pub(super) failure: FaultCode,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinksFile {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    default: LinkEntry,
    #[serde(default)]
    links: Vec<LinkPairEntry>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    rate: Option<String>,
    overhead_ms: Option<u32>,
    failure_rate: Option<f64>,
    failure: Option<String>,
}

/// `flatten` and `deny_unknown_fields` exclude each other, so the fields are repeated.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkPairEntry {
    source: StorageName,
    target: StorageName,
    rate: Option<String>,
    overhead_ms: Option<u32>,
    failure_rate: Option<f64>,
    failure: Option<String>,
}

impl NullLinks {
    pub fn read(path: &Path) -> Result<NullLinks, Fault> {
        let wrong = |why: String| Fault::new(FaultCode::BadRequest, format!("{}: {why}", path.display()));
        let size =
            std::fs::metadata(path).map_err(|error| wrong(error.to_string()).with_source(error))?.len();
        if size > FILE_BYTES_MAX {
            return Err(wrong(format!(
                "has {}, the limit is {}",
                units::bytes(size),
                units::bytes(FILE_BYTES_MAX)
            )));
        }
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()).with_source(error))?;
        NullLinks::parse(&text).map_err(wrong)
    }

    /// Errors name the link that they are about.
    pub fn parse(text: &str) -> Result<NullLinks, String> {
        let written: LinksFile =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        if written.links.len() > LINKS_MAX {
            return Err(format!("{} links, the limit is {LINKS_MAX}", written.links.len()));
        }
        let usual = NullLink {
            bytes_per_s: 100_000_000,
            overhead_ms: 0,
            failure_rate: 0.0,
            failure: FaultCode::Stalled,
        };
        let default = written.default.with_fallback(usual).map_err(|why| format!("[default]: {why}"))?;
        let mut links = BTreeMap::new();
        for LinkPairEntry { source, target, rate, overhead_ms, failure_rate, failure } in written.links {
            let shown = format!("link {source} → {target}");
            let link = LinkEntry { rate, overhead_ms, failure_rate, failure }.with_fallback(default);
            let link = link.map_err(|why| format!("{shown}: {why}"))?;
            if links.insert((source, target), link).is_some() {
                return Err(format!("{shown} stands there twice"));
            }
        }
        Ok(NullLinks { seed: written.seed, default, links })
    }

    pub(super) fn link(&self, source: &StorageName, target: &StorageName) -> NullLink {
        self.links.get(&(source.clone(), target.clone())).copied().unwrap_or(self.default)
    }
}

impl LinkEntry {
    fn with_fallback(self, old: NullLink) -> Result<NullLink, String> {
        let bytes_per_s = match self.rate {
            None => old.bytes_per_s,
            Some(text) => units::parse_bytes(text.trim_end_matches("/s"))
                .map_err(|why| format!("rate: {why}"))
                .and_then(|rate| within("rate", rate, 1, RATE_MAX))?,
        };
        let overhead = self.overhead_ms.unwrap_or(old.overhead_ms);
        let overhead_ms = within("overhead_ms", u64::from(overhead), 0, OVERHEAD_MS_MAX.into())? as u32;
        let failure_rate = self.failure_rate.unwrap_or(old.failure_rate);
        if !(0.0..=1.0).contains(&failure_rate) {
            return Err(format!("failure_rate is {failure_rate}, it has to be from 0 to 1"));
        }
        let failure = match self.failure {
            None => old.failure,
            Some(text) => failure(&text)?,
        };
        Ok(NullLink { bytes_per_s, overhead_ms, failure_rate, failure })
    }
}

fn within(what: &str, value: u64, least: u64, most: u64) -> Result<u64, String> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("{what} is {value}, it has to be from {least} to {most}"))
}

/// The fault code for a side that is to blame.
fn failure(text: &str) -> Result<FaultCode, String> {
    match text {
        "source" => Ok(FaultCode::SourceUnreadable),
        "target" => Ok(FaultCode::TargetWrite),
        "network" => Ok(FaultCode::Stalled),
        _ => Err(format!("failure is {text:?}, it has to be source, target or network")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn link(text: &str, source: &str, target: &str) -> NullLink {
        NullLinks::parse(text).unwrap().link(&source.parse().unwrap(), &target.parse().unwrap())
    }

    #[test]
    fn a_link_has_its_own_settings_or_the_default() {
        let text = "seed = 3\n[default]\nrate = '50MB/s'\nfailure_rate = 0.01\n\
                    [[links]]\nsource = 'alpha'\ntarget = 'beta'\nfailure_rate = 0.5\nfailure = 'source'\n";
        let (own, other) = (link(text, "alpha", "beta"), link(text, "beta", "alpha"));
        assert_eq!(
            (own.bytes_per_s, own.failure_rate, own.failure),
            (50_000_000, 0.5, FaultCode::SourceUnreadable)
        );
        assert_eq!(
            (other.bytes_per_s, other.failure_rate, other.failure),
            (50_000_000, 0.01, FaultCode::Stalled)
        );
        assert_eq!(link("", "a", "b").failure_rate, 0.0);
    }

    #[test]
    fn mistakes_are_reported_with_their_link() {
        let of_link = |line: &str| format!("[[links]]\nsource = 'alpha'\ntarget = 'beta'\n{line}\n");
        let twice = of_link("").repeat(2);
        for (text, words) in [
            (of_link("rate = '0'"), "link alpha → beta: rate is 0"),
            (of_link("rate = 'fast'"), "link alpha → beta: rate"),
            (of_link("failure_rate = 1.5"), "link alpha → beta: failure_rate is 1.5"),
            (of_link("failure_rate = nan"), "failure_rate is NaN"),
            (of_link("failure = 'moon'"), "it has to be source, target or network"),
            (of_link("overhead_ms = 9999999"), "overhead_ms is 9999999"),
            (of_link("rat = '1MB'"), "rat"),
            (twice, "link alpha → beta stands there twice"),
            ("[default]\nfailure_rate = -1.0\n".into(), "[default]: failure_rate is -1"),
        ] {
            let said = NullLinks::parse(&text).unwrap_err();
            assert!(said.contains(words), "{words}: {said}");
        }
        assert!(
            NullLinks::read(Path::new("/nonexistent/links.toml")).unwrap_err().detail.contains("links.toml")
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\[default\\]\n|\\[\\[links\\]\\]\n|rate = '[0-9kMG/s.]{0,5}'\n|seed = \
            [0-9]{1,20}\n|.{0,10}){0,8}") {
            let _ = NullLinks::parse(&text);
        }
    }
}
