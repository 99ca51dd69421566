//! What test transfers said of the links between sites: kept in the catalog, one record a link.
//!
//! Whoever runs the tests (`longhaul site commission`) says when one begins, and what it found. Not here: the
//! tests.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::commissioning::{CommissionState, Commissioning, Grade, LinkCommission, LinkTest};
use longhaul_api::native::{ChangeKind, SiteView};
use longhaul_api::rights;
use longhaul_api::steering::{AllowedLink, LinksChange};
use longhaul_catalog::StorageRow;
use longhaul_identity::{Belonging, Caller};
use longhaul_model::{Fault, FaultCode, SiteName, StorageKind, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Operations, bad_request, problem, unprocessable};

/// The setting of the catalog that holds the records.
const SETTING: &str = "commissioning";
/// A test that has begun this long ago and did not end was given up without a word.
const TEST_LENGTH_MAX: Duration = Duration::from_secs(3_600);
/// Stored links; further ones are refused. Enough for all pairs of 140 sites.
const LINKS_MAX: usize = 20_000;
/// Links that one request may name.
const LINKS_PER_REQUEST_MAX: usize = 1_000;
const STEPS_MAX: usize = 16;
const FAULTS_MAX: usize = 8;
const WORDS_BYTES_MAX: usize = 1_000;

#[derive(Clone, Serialize, Deserialize)]
struct Record {
    source: SiteName,
    target: SiteName,
    /// Result of the last test that ended.
    state: CommissionState,
    since: Timestamp,
    begun: Option<Timestamp>,
    test: Option<LinkTest>,
}

impl Operations {
    /// Keeps what is said of links of this site.
    pub fn site_commission(
        &self,
        caller: &Caller,
        name: &SiteName,
        said: Commissioning,
    ) -> Result<SiteView, Problem> {
        caller.check(&rights::SITE_COMMISSION, &[Belonging::Site(name)])?;
        self.site_show(name)?;
        check(name, &said)?;
        let known = self.shared.kernel.catalog.sites().map_err(problem)?;
        let ends = said.begin.iter().flat_map(|(source, target)| [source, target]);
        let ends = ends.chain(said.tests.iter().flat_map(|test| [&test.source, &test.target]));
        for end in ends {
            if !known.iter().any(|site| site.name == *end) {
                return Err(super::not_found("site", end, "longhaul site list"));
            }
        }
        let now = self.now();
        // One at a time reads and writes the whole.
        let _one = self.commissioning.lock();
        let mut records = self.records()?;
        let ended: Vec<(SiteName, SiteName)> =
            said.tests.iter().map(|test| (test.source.clone(), test.target.clone())).collect();
        records.take(said, now)?;
        let good = |link: &(SiteName, SiteName)| {
            records.links.get(link).is_some_and(|record| record.state == CommissionState::Commissioned)
        };
        let (open, close): (Vec<_>, Vec<_>) = ended.into_iter().partition(good);
        // What may be refused goes first: a refused request leaves no record of its tests.
        if self.shared.config.links_by_tests {
            self.commission_by_tests(caller, &open, &close)?;
        }
        self.keep_records(records)?;
        self.shared.kernel.changes.touch(ChangeKind::Site, name, now);
        self.site_show(name)
    }

    /// After a good test the links between two sites carry production, after another test transfers only.
    fn commission_by_tests(
        &self,
        caller: &Caller,
        open: &[(SiteName, SiteName)],
        close: &[(SiteName, SiteName)],
    ) -> Result<(), Problem> {
        let closed = self.uncommissioned()?;
        let directory = self.shared.kernel.directory();
        let links = |of: &[(SiteName, SiteName)], now_closed: bool| -> Vec<AllowedLink> {
            let at = |site: &SiteName| {
                let real = |row: &&StorageRow| row.kind != StorageKind::Virtual;
                directory
                    .storages
                    .values()
                    .filter(|row| row.site_name == *site)
                    .filter(real)
                    .collect::<Vec<_>>()
            };
            let mut links = Vec::new();
            for (source, target) in of {
                for (source, target) in
                    at(source).into_iter().flat_map(|row| at(target).into_iter().map(move |to| (row, to)))
                {
                    if closed.contains(&(source.id, target.id)) == now_closed {
                        links.push(AllowedLink { source: source.name.clone(), target: target.name.clone() });
                    }
                }
            }
            links
        };
        let change = LinksChange {
            commission: links(open, true),
            decommission: links(close, false),
            ..LinksChange::default()
        };
        if change.commission.is_empty() && change.decommission.is_empty() {
            return Ok(());
        }
        self.commissioning_change(caller, &change)
    }

    /// Commissioning of the links from and to a site, by name.
    pub(super) fn commissioned(&self, site: &SiteName) -> Result<Vec<LinkCommission>, Problem> {
        let now = self.now();
        let records = self.records()?.links.into_values();
        let own = records.filter(|record| record.source == *site || record.target == *site);
        Ok(own.map(|record| record.view(now)).collect())
    }

    /// Nothing is known of links from or to the site: it was removed, and another may take its name.
    pub(super) fn forget_commissioning(&self, site: &SiteName) -> Result<(), Problem> {
        let _one = self.commissioning.lock();
        let mut records = self.records()?;
        let count = records.links.len();
        records.links.retain(|(source, target), _| source != site && target != site);
        if records.links.len() < count { self.keep_records(records) } else { Ok(()) }
    }

    fn keep_records(&self, records: ByLink) -> Result<(), Problem> {
        let text =
            serde_json::to_string(&records.links.into_values().collect::<Vec<_>>()).map_err(|error| {
                Problem::from(Fault::new(FaultCode::Internal, error.to_string()).with_source(error))
            })?;
        self.shared.kernel.catalog.set_setting(SETTING, &text).map_err(problem)
    }

    fn records(&self) -> Result<ByLink, Problem> {
        let text = self.shared.kernel.catalog.setting(SETTING).map_err(problem)?;
        let links: Vec<Record> = match text {
            None => Vec::new(),
            Some(text) => serde_json::from_str(&text).map_err(|error| {
                let detail = format!("what is kept of commissioned links cannot be read: {error}");
                Problem::from(Fault::new(FaultCode::Internal, detail))
            })?,
        };
        let links = links.into_iter().map(|record| ((record.source.clone(), record.target.clone()), record));
        Ok(ByLink { links: links.collect() })
    }
}

struct ByLink {
    links: BTreeMap<(SiteName, SiteName), Record>,
}

impl ByLink {
    fn take(&mut self, said: Commissioning, now: Timestamp) -> Result<(), Problem> {
        for (source, target) in said.begin {
            self.link(source, target, now)?.begun = Some(now);
        }
        for link in said.give_up {
            if let Some(record) = self.links.get_mut(&link) {
                record.begun = None;
            }
        }
        for test in said.tests {
            let record = self.link(test.source.clone(), test.target.clone(), now)?;
            record.begun = None;
            record.since = now;
            record.state = match test.grade {
                Grade::Commissioned => CommissionState::Commissioned,
                Grade::Slow | Grade::Failing | Grade::Unreachable => CommissionState::Degraded,
            };
            record.test = Some(test);
        }
        Ok(())
    }

    fn link(&mut self, source: SiteName, target: SiteName, now: Timestamp) -> Result<&mut Record, Problem> {
        let full = self.links.len() >= LINKS_MAX;
        match self.links.entry((source, target)) {
            std::collections::btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::btree_map::Entry::Vacant(_) if full => {
                Err(bad_request(format!("at most {LINKS_MAX} links are remembered")))
            }
            std::collections::btree_map::Entry::Vacant(place) => {
                let (source, target) = place.key().clone();
                let state = CommissionState::Untested;
                Ok(place.insert(Record { source, target, state, since: now, begun: None, test: None }))
            }
        }
    }
}

impl Record {
    fn view(self, now: Timestamp) -> LinkCommission {
        let (state, since) = match self.begun {
            Some(begun) if now.since(begun) < TEST_LENGTH_MAX => (CommissionState::Commissioning, begun),
            _ => (self.state, self.since),
        };
        LinkCommission { source: self.source, target: self.target, state, since, test: self.test }
    }
}

fn check(site: &SiteName, said: &Commissioning) -> Result<(), Problem> {
    if said.begin.len() + said.give_up.len() + said.tests.len() > LINKS_PER_REQUEST_MAX {
        return Err(bad_request(format!("at most {LINKS_PER_REQUEST_MAX} links at a time")));
    }
    let links = said.begin.iter().chain(&said.give_up).map(|(source, target)| (source, target));
    for (source, target) in links.chain(said.tests.iter().map(|test| (&test.source, &test.target))) {
        if source == target || (source != site && target != site) {
            return Err(unprocessable(format!("{source} → {target} is no link of {site} with another site")));
        }
    }
    for test in &said.tests {
        let shown = format!("{} → {}", test.source, test.target);
        let words = test.faults.iter().chain([&test.why, &test.limited_by]).chain(&test.addresses);
        let long = words.into_iter().any(|text| text.len() > WORDS_BYTES_MAX);
        if long
            || test.steps.len() > STEPS_MAX
            || test.faults.len() > FAULTS_MAX
            || test.addresses.len() > STEPS_MAX
        {
            let limits = format!(
                "{STEPS_MAX} steps, {STEPS_MAX} addresses, {FAULTS_MAX} faults, {WORDS_BYTES_MAX} bytes a \
                    text"
            );
            return Err(bad_request(format!("the test of {shown} is too long: at most {limits}")));
        }
        let numbers = test.steps.iter().flat_map(|step| [step.rate, step.seconds]).chain([test.rate_best]);
        if numbers.chain(test.rtt_us).any(|number| !number.is_finite() || number < 0.0) {
            return Err(bad_request(format!("the test of {shown} has a number that is negative or none")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> SiteName {
        name.parse().unwrap()
    }

    fn test(grade: Grade) -> LinkTest {
        LinkTest {
            source: site("alpha"),
            target: site("beta"),
            source_storage: "alpha-test".parse().unwrap(),
            target_storage: "beta-test".parse().unwrap(),
            grade,
            why: String::new(),
            addresses: Vec::new(),
            rtt_us: None,
            rate_best: 1.0,
            steps: Vec::new(),
            limited_by: String::new(),
            faults: Vec::new(),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    fn state(records: &ByLink, seconds: i64) -> CommissionState {
        records.links[&(site("alpha"), site("beta"))].clone().view(at(seconds)).state
    }

    #[test]
    fn a_link_is_what_its_last_test_said() {
        let mut records = ByLink { links: BTreeMap::new() };
        let begin =
            || Commissioning { begin: vec![(site("alpha"), site("beta"))], ..Commissioning::default() };
        let found = |grade| Commissioning { tests: vec![test(grade)], ..Commissioning::default() };
        records.take(begin(), at(0)).unwrap();
        assert_eq!(state(&records, 1), CommissionState::Commissioning);
        assert_eq!(state(&records, 4_000), CommissionState::Untested, "nobody came back");
        records.take(found(Grade::Commissioned), at(5_000)).unwrap();
        assert_eq!(state(&records, 5_001), CommissionState::Commissioned);
        records.take(begin(), at(6_000)).unwrap();
        let given_up =
            Commissioning { give_up: vec![(site("alpha"), site("beta"))], ..Commissioning::default() };
        records.take(given_up, at(6_010)).unwrap();
        assert_eq!(state(&records, 6_011), CommissionState::Commissioned, "as before");
        records.take(found(Grade::Failing), at(7_000)).unwrap();
        assert_eq!(state(&records, 7_001), CommissionState::Degraded);
    }

    #[test]
    fn nonsense_is_refused_with_words() {
        let beta = site("beta");
        let refused = |change: &dyn Fn(&mut LinkTest)| {
            let mut test = test(Grade::Slow);
            change(&mut test);
            check(&beta, &Commissioning { tests: vec![test], ..Commissioning::default() }).unwrap_err().detail
        };
        assert!(refused(&|test| test.rate_best = f64::NAN).contains("alpha → beta has a number"));
        assert!(refused(&|test| test.why = "x".repeat(2_000)).contains("too long"));
        assert!(refused(&|test| test.target = site("alpha")).contains("is no link of beta"));
        assert!(refused(&|test| test.target = site("gamma")).contains("is no link of beta"));
        let many =
            Commissioning { begin: vec![(site("alpha"), beta.clone()); 2_000], ..Commissioning::default() };
        assert!(check(&beta, &many).unwrap_err().detail.contains("at most 1000 links"));
    }
}
