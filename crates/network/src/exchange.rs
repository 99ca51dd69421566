//! Exchange of network knowledge between instances: a JSON document with names instead of numbers. Made by
//! [`Knowledge::export`], combined by [`merge`], read by [`Knowledge::import`]; described in
//! `docs/reference/network-exchange.md`.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_model::units::{self, printable};
use longhaul_model::{Fault, FaultCode, SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::advice::Family;
use crate::knowledge::Knowledge;
use crate::observation::{
    Endpoint, Mapping, Metric, OBSERVATION_AGE_MAX, Observation, ObservationError, ObservationId, Origin,
    PathSelector, Subject,
};

/// Identifies the document.
pub const FORMAT: &str = "longhaul-network";
/// Version of its form.
pub const VERSION: u32 = 1;
/// Links per document: all pairs of a thousand sites.
pub const LINKS_MAX: usize = 1_000_000;
/// Length of a name; longer ones are refused, since they are shown to people.
const NAME_BYTES_MAX: usize = 200;
/// Half-life of an estimate in a merge: a day.
const HALF_LIFE_S: f64 = 86_400.0;
/// No instance can claim more seconds of observation for a link.
const OBSERVED_S_MAX: f64 = 1e6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    pub format: String,
    pub version: u32,
    /// Instances whose estimates these are; several after a merge.
    pub instances: Vec<String>,
    pub written: Timestamp,
    pub links: Vec<ExchangeLink>,
}

/// Estimate of the links between two sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeLink {
    pub source: String,
    pub target: String,
    /// Address family; none means whichever was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    pub bytes_per_s: f64,
    /// Standard deviation of log(rate).
    pub spread: f64,
    /// Seconds of observation that it rests on, as they counted at `seen_at`.
    pub seconds: f64,
    #[serde(rename = "seen")]
    pub seen_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

fn bad(text: impl Into<String>) -> Fault {
    Fault::new(FaultCode::BadRequest, text)
}

impl Exchange {
    /// Checks format, version, limits and ranges.
    pub fn check(&self) -> Result<(), Fault> {
        if self.format != FORMAT {
            return Err(bad(format!(
                "this is no network knowledge: its format is \"{}\", not \"{FORMAT}\"",
                printable(&self.format)
            )));
        }
        if self.version != VERSION {
            return Err(bad(format!("its version is {}; this program understands {VERSION}", self.version)));
        }
        if self.links.len() > LINKS_MAX || self.instances.len() > 1_000 {
            return Err(bad(format!("it has {} links; at most {LINKS_MAX} are taken", self.links.len())));
        }
        for instance in &self.instances {
            name(instance)?;
        }
        for (place, link) in self.links.iter().enumerate() {
            link.check().map_err(|why| bad(format!("link {} of the document: {}", place + 1, why.detail)))?;
        }
        Ok(())
    }
}

fn name(text: &str) -> Result<(), Fault> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        let shown: String = text.chars().take(40).collect();
        return Err(bad(format!("\"{}\" is no name", printable(&shown))));
    }
    Ok(())
}

impl ExchangeLink {
    fn check(&self) -> Result<(), Fault> {
        name(&self.source)?;
        name(&self.target)?;
        let between = |what: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) { Ok(()) } else { Err(bad(format!("{what} is {value}"))) }
        };
        between("bytes_per_s", self.bytes_per_s, 1e-3, 1e13)?;
        between("spread", self.spread, 0.0, 10.0)?;
        between("seconds", self.seconds, 0.0, OBSERVED_S_MAX)?;
        between("rtt_us", self.rtt_us.unwrap_or(1.0), 1e-3, 60e6)?;
        between("loss", self.loss.unwrap_or(0.0), 0.0, 1.0)?;
        if self.source == self.target { Err(bad("source and target are the same")) } else { Ok(()) }
    }

    fn weight(&self, newest: Timestamp) -> f64 {
        self.seconds * (-newest.since(self.seen_at).as_secs_f64() / HALF_LIFE_S).exp2()
    }
}

/// Names that other instances use for our sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases(BTreeMap<String, String>);

impl Aliases {
    /// From pairs (their name, our name). Ambiguous names are refused.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Fault> {
        let mut aliases = BTreeMap::new();
        for (theirs, ours) in pairs {
            name(theirs)?;
            name(ours)?;
            match aliases.insert(theirs.to_owned(), ours.to_owned()) {
                Some(before) if before != ours => {
                    return Err(bad(format!(
                        "the alias {} cannot stand for both {} and {}; name it once",
                        printable(theirs),
                        printable(&before),
                        printable(ours)
                    )));
                }
                _ => {}
            }
        }
        if let Some((theirs, ours)) = aliases.iter().find(|(theirs, ours)| {
            theirs != ours && aliases.contains_key(*ours) && aliases.get(*ours) != Some(*ours)
        }) {
            return Err(bad(format!(
                "the alias {} stands for {}, which is an alias itself; name the site that is meant",
                printable(theirs),
                printable(ours)
            )));
        }
        Ok(Aliases(aliases))
    }

    fn resolve<'a>(&'a self, theirs: &'a str) -> &'a str {
        self.0.get(theirs).map_or(theirs, String::as_str)
    }

    /// Checks that each alias names a site of ours and hides none.
    fn check_against(&self, sites: &BTreeMap<String, SiteId>) -> Result<(), Fault> {
        for (theirs, ours) in &self.0 {
            let (theirs, ours) = (printable(theirs), printable(ours));
            if !sites.contains_key(&ours) {
                return Err(bad(format!("the alias {theirs} stands for {ours}, but no site has this name")));
            }
            if theirs != ours && sites.contains_key(&theirs) {
                return Err(bad(format!(
                    "{theirs} is a site of its own here and cannot be an alias for {ours}; rename one of \
                        them at its origin"
                )));
            }
        }
        Ok(())
    }
}

/// Combines documents: each link is weighted by its observation time and age. Names are resolved through the
/// aliases.
pub fn merge(documents: &[Exchange], aliases: &Aliases) -> Result<Exchange, Fault> {
    let mut groups: BTreeMap<(String, String, Option<Family>), Vec<ExchangeLink>> = BTreeMap::new();
    let mut instances = BTreeSet::new();
    let mut written = Timestamp::ZERO;
    for document in documents {
        document.check()?;
        instances.extend(document.instances.iter().cloned());
        written = written.max(document.written);
        for link in &document.links {
            let source = aliases.resolve(&link.source).to_owned();
            let target = aliases.resolve(&link.target).to_owned();
            if source != target {
                groups.entry((source, target, link.family)).or_default().push(link.clone());
            }
        }
    }
    if groups.len() > LINKS_MAX {
        return Err(bad(format!("together they have {} links; at most {LINKS_MAX} are taken", groups.len())));
    }
    let links = groups
        .into_iter()
        .filter_map(|((source, target, family), all)| combine(source, target, family, &all));
    Ok(Exchange {
        format: FORMAT.to_owned(),
        version: VERSION,
        instances: instances.into_iter().collect(),
        written,
        links: links.collect(),
    })
}

fn combine(
    source: String,
    target: String,
    family: Option<Family>,
    all: &[ExchangeLink],
) -> Option<ExchangeLink> {
    let newest = all.iter().map(|link| link.seen_at).max()?;
    let latest = |value: fn(&ExchangeLink) -> Option<f64>| {
        all.iter()
            .filter_map(|link| Some((link.seen_at, value(link)?)))
            .max_by_key(|(seen, _)| *seen)
            .map(|(_, value)| value)
    };
    let weights: Vec<f64> = all.iter().map(|link| link.weight(newest)).collect();
    let total: f64 = weights.iter().sum();
    let share = |weight: f64| if total > 0.0 { weight / total } else { 1.0 / all.len() as f64 };
    let mean: f64 =
        all.iter().zip(&weights).map(|(link, &weight)| share(weight) * link.bytes_per_s.ln()).sum();
    let square = |link: &ExchangeLink| link.spread.powi(2) + (link.bytes_per_s.ln() - mean).powi(2);
    let variance: f64 = all.iter().zip(&weights).map(|(link, &weight)| share(weight) * square(link)).sum();
    Some(ExchangeLink {
        source,
        target,
        family,
        bytes_per_s: mean.exp(),
        spread: variance.max(0.0).sqrt().min(10.0),
        seconds: total.min(OBSERVED_S_MAX),
        seen_at: newest,
        rtt_us: latest(|link| link.rtt_us),
        loss: latest(|link| link.loss),
    })
}

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Links whose rate, round trip or loss was imported.
    #[serde(rename = "taken")]
    pub imported: u32,
    /// Links for which our own knowledge is better.
    #[serde(rename = "own_is_better")]
    pub kept_own: u32,
    /// Links that were imported before, or are too old.
    pub nothing_new: u32,
    /// Names that match no site of ours.
    pub unmapped: Vec<String>,
    /// The first refusals, with reasons.
    pub refused: Vec<String>,
}

/// Refusals shown: enough to see the pattern.
const REFUSED_SHOWN: usize = 20;

impl Knowledge {
    /// Exports the estimates between sites by name. Sites without a name are left out.
    pub fn export(&self, instance: &str, names: &BTreeMap<SiteId, String>, now: Timestamp) -> Exchange {
        let links = self.site_pair_estimates(now).filter_map(|known| {
            let (source, target) = (names.get(&known.source)?, names.get(&known.target)?);
            Some(ExchangeLink {
                source: source.clone(),
                target: target.clone(),
                family: known.family,
                bytes_per_s: known.bytes_per_s,
                spread: known.spread.clamp(0.0, 10.0),
                seconds: known.seconds.clamp(0.0, OBSERVED_S_MAX),
                seen_at: known.seen_at,
                rtt_us: known.rtt_us.filter(|us| *us > 0.0 && *us <= 60e6),
                loss: known.loss,
            })
        });
        let links = links.filter(|link| link.check().is_ok()).take(LINKS_MAX).collect();
        Exchange {
            format: FORMAT.to_owned(),
            version: VERSION,
            instances: vec![instance.to_owned()],
            written: now,
            links,
        }
    }

    /// Imports the estimates of others where our own knowledge is not better.
    pub fn import(
        &mut self,
        document: &Exchange,
        sites: &BTreeMap<String, SiteId>,
        aliases: &Aliases,
        now: Timestamp,
    ) -> Result<Imported, Fault> {
        document.check()?;
        aliases.check_against(sites)?;
        let instance = document.instances.join("+");
        let mut imported = Imported::default();
        let mut unmapped = BTreeSet::new();
        for link in &document.links {
            let mut find = |theirs: &str| {
                let site = sites.get(aliases.resolve(theirs)).copied();
                if site.is_none() {
                    unmapped.insert(theirs.to_owned());
                }
                site
            };
            let (source, target) = (find(&link.source), find(&link.target));
            let (Some(source), Some(target)) = (source, target) else { continue };
            match self.import_link(&instance, link, source, target, now) {
                Ok(true) => imported.imported += 1,
                Ok(false) => imported.kept_own += 1,
                Err(ObservationError::Duplicate | ObservationError::OutOfOrder { .. }) => {
                    imported.nothing_new += 1
                }
                Err(ObservationError::TooOld { .. }) => imported.nothing_new += 1,
                Err(refused) if imported.refused.len() < REFUSED_SHOWN => {
                    let (source, target) = (printable(&link.source), printable(&link.target));
                    imported.refused.push(format!("{source} to {target}: {refused}"));
                }
                Err(_) => {}
            }
        }
        imported.unmapped = unmapped.into_iter().collect();
        Ok(imported)
    }

    /// Returns false if our own knowledge is better.
    fn import_link(
        &mut self,
        instance: &str,
        link: &ExchangeLink,
        source: SiteId,
        target: SiteId,
        now: Timestamp,
    ) -> Result<bool, ObservationError> {
        let observation = |kind: &str, seen: Metric| Observation {
            id: ObservationId::from_parts(&[
                instance,
                kind,
                &link.source,
                &link.target,
                &format!("{:?} {}", link.family, link.seen_at.as_micros()),
            ]),
            at: link.seen_at,
            subject: Subject::Path {
                source: Endpoint::Site(source),
                target: Endpoint::Site(target),
                path: PathSelector { family: link.family, circuit: None },
            },
            metric: seen,
            origin: Origin::Instance(instance.to_owned()),
            mapping: Mapping::Explicit,
        };
        let own = self.observed_seconds(source, target, now);
        let theirs = link.weight(now);
        let own_is_better = own.is_some_and(|(seconds, seen)| {
            seconds >= theirs.min(OWN_OBSERVED_S_MIN) && seen + OWN_AGE_ADVANTAGE > link.seen_at
        });
        // Round trip and loss do no harm beside our own: they decay soon.
        if !own_is_better {
            if let Some(us) = link.rtt_us {
                self.observe(&observation("rtt", Metric::Rtt { us }), now).or_else(ignore_duplicates)?;
            }
            if let Some(loss) = link.loss {
                let (sent, lost) = (100_000, (loss * 1e5) as u64);
                self.observe(&observation("loss", Metric::Loss { sent, lost }), now)
                    .or_else(ignore_duplicates)?;
            }
            let (bytes_per_s, spread, seconds) = (link.bytes_per_s, link.spread, link.seconds.max(1e-3));
            let bytes = (bytes_per_s * seconds) as u64;
            self.observe(&observation("rate", Metric::Summary { bytes_per_s, spread, seconds, bytes }), now)?;
        } else if now.since(link.seen_at) > OBSERVATION_AGE_MAX {
            return Err(ObservationError::TooOld { age: now.since(link.seen_at) });
        }
        Ok(!own_is_better)
    }
}

/// Seconds of own observation that we trust over those of others.
const OWN_OBSERVED_S_MIN: f64 = 10.0;
/// Unless theirs is newer by this much.
const OWN_AGE_ADVANTAGE: std::time::Duration = std::time::Duration::from_secs(3_600);

/// Duplicates within a document must not keep the rest from being imported.
fn ignore_duplicates(refused: ObservationError) -> Result<(), ObservationError> {
    match refused {
        ObservationError::Duplicate | ObservationError::OutOfOrder { .. } => Ok(()),
        other => Err(other),
    }
}

impl Imported {
    /// One sentence per line, for people.
    pub fn describe(&self) -> Vec<String> {
        let count = |number: u32| units::count(u64::from(number));
        let mut lines = vec![format!(
            "{} taken; of {} we know more ourselves; {} brought nothing new",
            units::plural(self.imported.into(), "link", "links"),
            count(self.kept_own),
            count(self.nothing_new)
        )];
        if !self.unmapped.is_empty() {
            let names: Vec<String> = self.unmapped.iter().map(|name| printable(name)).collect();
            lines.push(format!(
                "no site here has these names (give --alias THEIRS=OURS): {}",
                names.join(", ")
            ));
        }
        lines.extend(self.refused.iter().map(|refused| format!("refused: {refused}")));
        lines
    }
}
