//! Shares, links and what storages are for: changed while the service runs, and recorded with who changed
//! them.

use std::collections::BTreeSet;

use longhaul_api::Problem;
use longhaul_api::native::{ChangeKind, Page, StorageView};
use longhaul_api::rights;
use longhaul_api::steering::{
    AllowedLink, AuditEntry, LinksChange, LinksSet, LinksView, ShareChange, ShareView, StorageChange, Terms,
    TermsChange,
};
use longhaul_catalog as catalog;
use longhaul_catalog::CatalogError;
use longhaul_control::brain::Input;
use longhaul_control::limits::{UNCOMMISSIONED, read_uncommissioned};
use longhaul_control::steering::{
    KeptLinks, KeptShares, LINKS, LINKS_MAX, SHARES, Whose, links_event, read_links, write_links,
};
use longhaul_identity::{Belonging, Caller};
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, StorageId, StorageName, Timestamp};
use longhaul_scheduler::Strategy;

use super::{Operations, PageQuery, bad_request, page, problem, unprocessable, unprocessable_fault};
use crate::views;

const OTHERS: &str = "*";
const NONE: &str = "none";

/// Either the catalog's trouble or what is wrong with the change.
pub(super) enum Refused {
    Catalog(CatalogError),
    Change(Problem),
}

impl From<CatalogError> for Refused {
    fn from(error: CatalogError) -> Self {
        Refused::Catalog(error)
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        match refused {
            Refused::Catalog(error) => problem(error),
            Refused::Change(problem) => problem,
        }
    }
}

impl Operations {
    /// By which sources can be chosen.
    pub fn strategies() -> Vec<&'static str> {
        Strategy::ALL.map(Strategy::name).to_vec()
    }

    pub fn share_list(&self) -> Result<Page<ShareView>, Problem> {
        let kept = self.shared.kernel.catalog.setting(SHARES).map_err(problem)?;
        Ok(Page { items: share_views(&KeptShares::read(kept.as_deref())), next: None })
    }

    pub fn share_set(&self, caller: &Caller, change: &ShareChange) -> Result<Page<ShareView>, Problem> {
        // How much of all a community gets is not for it to say.
        match whose(change)? {
            Whose::Activity(community, _) | Whose::OtherActivities(community) => {
                caller.check(&rights::SHARE_SET, &[Belonging::Charge(&community)])?;
            }
            Whose::Community(_) | Whose::OtherCommunities => {
                caller.check(&rights::COMMUNITY_SHARE_SET, &[])?;
            }
        }
        let who = &caller.principal.name;
        let (whose, what) = (whose(change)?, share_in_words(change));
        let mut shares = KeptShares::default();
        let changed =
            self.shared.kernel.catalog.change_setting::<Refused>(SHARES, who, self.now(), |present| {
                shares = KeptShares::read(present);
                let set = shares.set(&whose, change.weight);
                set.map_err(|fault| Refused::Change(unprocessable_fault(fault)))?;
                let text = serde_json::to_string(&shares).unwrap_or_default();
                Ok((text, what.clone()))
            });
        changed.map_err(Problem::from)?;
        tracing::info!(by = %who, "{what}");
        self.put_shares_in_force(&shares);
        Ok(Page { items: share_views(&shares), next: None })
    }

    /// Hands the scheduler the shares that the catalog has from now on.
    pub(crate) fn put_shares_in_force(&self, shares: &KeptShares) {
        self.shared.kernel.notify_scheduler(Input::Events(vec![shares.event()]));
        self.shared.kernel.changes.touch(ChangeKind::Status, "", self.now());
    }

    pub fn link_list(&self) -> Result<LinksView, Problem> {
        let kept = self.shared.kernel.catalog.setting(LINKS).map_err(problem)?;
        self.links_view(&read_links(kept.as_deref()).map_err(problem)?)
    }

    pub fn link_set(&self, caller: &Caller, set: &LinksSet) -> Result<LinksView, Problem> {
        let links = match &set.links {
            None => None,
            Some(list) => Some(self.pairs(list)?),
        };
        let what = match &links {
            None => "links: from every storage to every other".to_owned(),
            Some(links) => format!("links: only the {} listed", links.len()),
        };
        self.links_changed(caller, |_| Ok((links, what)))
    }

    /// Lists and commissions links: all that one request names, or none of it.
    pub fn link_change(&self, caller: &Caller, change: &LinksChange) -> Result<LinksView, Problem> {
        let commissioning = self.commissioning_pairs(change)?;
        let (add, remove) = (self.pairs(&change.add)?, self.pairs(&change.remove)?);
        if commissioning.is_empty() {
            return self.links_changed(caller, |present| {
                Ok((self.relisted(present, &add, &remove)?, links_in_words(change)))
            });
        }
        if add.is_empty() && remove.is_empty() {
            self.commissioning_change(caller, change)?;
            return self.link_list();
        }
        let who = &caller.principal.name;
        let what = format!("{}; {}", commissioning.describe(), links_in_words(change));
        let (settings, mut links) = ([LINKS, UNCOMMISSIONED], None);
        let changed = self.shared.kernel.catalog.change_settings::<Refused, 2>(
            settings,
            who,
            self.now(),
            |[listed, uncommissioned]| {
                let listed = read_links(listed.as_deref())?;
                let mut closed = read_uncommissioned(uncommissioned.as_deref())?;
                links = self.relisted(listed, &add, &remove).map_err(Refused::Change)?;
                commissioning.apply(&mut closed).map_err(Refused::Change)?;
                let texts = [write_links(&links), serde_json::to_string(&closed).unwrap_or_default()];
                Ok((texts, what.clone()))
            },
        );
        changed.map_err(Problem::from)?;
        tracing::info!(by = %who, "{what}");
        self.shared.kernel.notify_scheduler(Input::Events(vec![links_event(&links)]));
        self.limits_changed()?;
        self.links_view(&links)
    }

    /// The listed links with some more and without others.
    fn relisted(
        &self,
        present: KeptLinks,
        add: &BTreeSet<(StorageId, StorageId)>,
        remove: &BTreeSet<(StorageId, StorageId)>,
    ) -> Result<KeptLinks, Problem> {
        let Some(mut links) = present else {
            let detail = "files may go from every storage to every other now: a single link can be neither \
                added nor taken away";
            return Err(Problem::from(Fault::new(FaultCode::Conflict, detail)).with_remedy(
                "name all links that shall be used, at once: longhaul link only SOURCE:TARGET…",
            ));
        };
        if let Some(pair) = remove.iter().find(|pair| !links.contains(pair)) {
            let directory = self.shared.kernel.directory();
            let name = |id| directory.name(id).map(|name| name.to_string()).unwrap_or_default();
            let detail = format!("{} to {} is no listed link", name(pair.0), name(pair.1));
            return Err(Problem::from(Fault::new(FaultCode::NotFound, detail))
                .with_remedy("see which there are: longhaul link list"));
        }
        links.retain(|pair| !remove.contains(pair));
        links.extend(add);
        if links.len() > LINKS_MAX {
            return Err(bad_request(format!("{} links, the limit is {LINKS_MAX}", links.len())));
        }
        Ok(Some(links))
    }

    fn links_changed(
        &self,
        caller: &Caller,
        change: impl FnOnce(KeptLinks) -> Result<(KeptLinks, String), Problem>,
    ) -> Result<LinksView, Problem> {
        let mut links = None;
        let changed = self.shared.kernel.catalog.change_setting::<Refused>(
            LINKS,
            &caller.principal.name,
            self.now(),
            |present| {
                let (new, what) = change(read_links(present)?).map_err(Refused::Change)?;
                tracing::info!(by = %caller.principal.name, "{what}");
                links = new;
                Ok((write_links(&links), what))
            },
        );
        changed.map_err(Problem::from)?;
        self.shared.kernel.notify_scheduler(Input::Events(vec![links_event(&links)]));
        self.shared.kernel.changes.touch(ChangeKind::Status, "", self.now());
        self.links_view(&links)
    }

    pub(super) fn pairs(&self, list: &[AllowedLink]) -> Result<BTreeSet<(StorageId, StorageId)>, Problem> {
        if list.len() > LINKS_MAX {
            return Err(bad_request(format!("{} links, the limit is {LINKS_MAX}", list.len())));
        }
        let mut pairs = BTreeSet::new();
        for link in list {
            let (source, target) = (self.storage_row(&link.source)?.id, self.storage_row(&link.target)?.id);
            if source == target {
                return Err(unprocessable(format!("{} to itself is no link", link.source)));
            }
            pairs.insert((source, target));
        }
        Ok(pairs)
    }

    fn links_view(&self, links: &KeptLinks) -> Result<LinksView, Problem> {
        let uncommissioned = self.uncommissioned()?;
        let directory = self.shared.kernel.directory();
        // A storage that is gone has no name, and no link.
        let named = |&(source, target): &(StorageId, StorageId)| {
            Some(AllowedLink { source: directory.name(source)?, target: directory.name(target)? })
        };
        let mut list: Vec<AllowedLink> = links.iter().flatten().filter_map(named).collect();
        list.sort();
        let relays = directory.storages.values().filter(|row| row.relay).map(|row| row.name.clone());
        Ok(LinksView {
            open: links.is_none(),
            links: list,
            relays: relays.collect(),
            uncommissioned: uncommissioned.iter().filter_map(named).collect(),
        })
    }

    pub fn storage_change(
        &self,
        caller: &Caller,
        name: &StorageName,
        change: &StorageChange,
    ) -> Result<StorageView, Problem> {
        self.check_storage(caller, &rights::STORAGE_CHANGE, name)?;
        let strategy = change.strategy.as_deref().map(maybe_strategy).transpose()?;
        let space_policy = change.space_policy.as_deref().map(str::parse::<catalog::SpacePolicy>);
        let space_policy = space_policy.transpose().map_err(bad_request)?;
        let row = self.storage_row(name)?;
        if change.relay == Some(true) && !row.writable {
            let detail = format!(
                "{name} takes no files: its agent serves it read-only, so nothing can pass through it"
            );
            let problem = Problem::from(Fault::new(FaultCode::Conflict, detail));
            return Err(problem.with_remedy("choose a storage that takes files: longhaul storage list"));
        }
        let patch = catalog::StoragePatch { relay: change.relay, strategy, space_policy };
        let row = self
            .shared
            .kernel
            .catalog
            .change_storage(name, &patch, &caller.principal.name, self.now())
            .map_err(problem)?;
        let by = &caller.principal.name;
        tracing::info!(storage = %name, relay = row.relay, strategy = row.strategy, %by, "storage changed");
        self.shared.kernel.refresh_directory().map_err(problem)?;
        if patch.strategy.is_some() {
            // What is wanted there goes by it from now on.
            let mut demands = self.shared.kernel.catalog.demands().map_err(problem)?;
            demands.retain(|demand| demand.target == row.id);
            self.shared.kernel.notify_scheduler(Input::Demands { now: demands, gone: Vec::new() });
        }
        self.shared.kernel.changes.touch(ChangeKind::Site, &row.site_name, self.now());
        Ok(views::storage(&row))
    }

    /// `of`: `changes` or `logins`; none: both.
    /// Only administrators of the deployment see from where people log in.
    pub fn audit_list(
        &self,
        caller: &Caller,
        of: Option<&str>,
        query: &PageQuery,
    ) -> Result<Page<AuditEntry>, Problem> {
        let kind = match of {
            None => None,
            Some("changes") => Some(catalog::AuditKind::Change),
            Some("logins") => Some(catalog::AuditKind::Login),
            Some(other) => return Err(bad_request(format!("of is {other:?}: changes or logins are there"))),
        };
        let limit = query.limit();
        let rows = self.shared.kernel.catalog.audit(kind, query.after()?, limit + 1).map_err(problem)?;
        let shows_addresses = caller.sees_only_sites().is_none() && caller.works_only_for().is_none();
        let view = |row: catalog::AuditRow| {
            let what = if shows_addresses { row.what } else { without_addresses(&row.what) };
            Ok(AuditEntry { id: row.id, at: row.at, who: row.who, what })
        };
        page(rows, limit, |row| row.id.to_string(), view)
    }
}

/// A text of the audit log without the addresses that log-ins came from.
fn without_addresses(what: &str) -> String {
    let shown = |word: &str| {
        // `2001:db8::` and the colon that begins a reason.
        let address = [word, word.strip_suffix(':').unwrap_or(word)]
            .into_iter()
            .find(|bare| bare.parse::<std::net::IpAddr>().is_ok());
        match address {
            Some(bare) => format!("an address not shown{}", &word[bare.len()..]),
            None => word.to_owned(),
        }
    };
    what.split(' ').map(shown).collect::<Vec<_>>().join(" ")
}

fn whose(change: &ShareChange) -> Result<Whose, Problem> {
    if change.community == OTHERS {
        return match change.activity {
            None => Ok(Whose::OtherCommunities),
            Some(_) => Err(unprocessable("activities are those of one community: name it")),
        };
    }
    let name = parse("community", &change.community)?;
    Ok(match change.activity.as_deref() {
        None => Whose::Community(name),
        Some(OTHERS) => Whose::OtherActivities(name),
        Some(activity) => Whose::Activity(name, parse("activity", activity)?),
    })
}

fn share_in_words(change: &ShareChange) -> String {
    let whose = match (&change.community, &change.activity) {
        (community, None) => community.clone(),
        (community, Some(activity)) => format!("{community}/{activity}"),
    };
    match change.weight {
        Some(weight) => format!("share of {whose}: {weight}"),
        None => format!("share of {whose}: as those not named"),
    }
}

/// The first few of many.
pub(super) fn listed(list: &[AllowedLink]) -> String {
    let first: Vec<String> =
        list.iter().take(5).map(|link| format!("{}:{}", link.source, link.target)).collect();
    let more = list.len().saturating_sub(first.len());
    if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") }
}

fn links_in_words(change: &LinksChange) -> String {
    let shown = listed;
    match (change.add.is_empty(), change.remove.is_empty()) {
        (false, true) => format!("links added: {}", shown(&change.add)),
        (true, false) => format!("links taken away: {}", shown(&change.remove)),
        (true, true) => "links: nothing changed".to_owned(),
        (false, false) => {
            format!("links added: {}; taken away: {}", shown(&change.add), shown(&change.remove))
        }
    }
}

fn share_views(shares: &KeptShares) -> Vec<ShareView> {
    let part = |weight: f64, sum: f64| if sum > 0.0 { weight / sum } else { 0.0 };
    let mut views = Vec::new();
    for (name, row) in &shares.communities {
        let mut view = |activity: Option<&str>, weight: f64, sum: f64| {
            views.push(ShareView {
                community: name.as_str().to_owned(),
                activity: activity.map(str::to_owned),
                weight,
                part: part(weight, sum),
            });
        };
        view(None, row.weight, shares.sum());
        row.activities
            .iter()
            .for_each(|(activity, weight)| view(Some(activity.as_str()), *weight, row.sum()));
        view(Some(OTHERS), row.others, row.sum());
    }
    views.push(ShareView {
        community: OTHERS.to_owned(),
        activity: None,
        weight: shares.others,
        part: part(shares.others, shares.sum()),
    });
    views
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(what: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| bad_request(printable(&format!("{what}: {error}"))))
}

/// A strategy under its own name, or none.
fn maybe_strategy(text: &str) -> Result<Option<String>, Problem> {
    if text == NONE {
        return Ok(None);
    }
    let strategy: Strategy = parse("strategy", text)?;
    Ok(Some(strategy.name().to_owned()))
}

/// A deadline that is over when it is set is a slip of the pen.
fn ahead(deadline: Timestamp, now: Timestamp) -> Result<Timestamp, Problem> {
    if deadline > now {
        return Ok(deadline);
    }
    Err(unprocessable(format!("the deadline {deadline} has passed already: it is {now}")))
}

pub(super) fn terms(terms: &Terms, now: Timestamp) -> Result<catalog::Terms, Problem> {
    Ok(catalog::Terms {
        community: terms.community.clone(),
        activity: terms.activity.clone(),
        strategy: terms.strategy.as_deref().map(maybe_strategy).transpose()?.flatten(),
        deadline: terms.deadline.map(|deadline| ahead(deadline, now)).transpose()?,
    })
}

pub(super) fn terms_patch(change: &TermsChange, now: Timestamp) -> Result<catalog::TermsPatch, Problem> {
    fn maybe<T: std::str::FromStr<Err: std::fmt::Display>>(
        what: &str,
        text: Option<&String>,
    ) -> Result<Option<Option<T>>, Problem> {
        let read = |text: &String| if text == NONE { Ok(None) } else { parse(what, text).map(Some) };
        text.map(read).transpose()
    }
    let deadline: Option<Option<Timestamp>> = maybe("deadline", change.deadline.as_ref())?;
    if let Some(Some(deadline)) = deadline {
        ahead(deadline, now)?;
    }
    Ok(catalog::TermsPatch {
        community: maybe("community", change.community.as_ref())?,
        activity: maybe("activity", change.activity.as_ref())?,
        strategy: change.strategy.as_deref().map(maybe_strategy).transpose()?,
        deadline,
    })
}

pub(super) fn terms_view(terms: catalog::Terms) -> Terms {
    Terms {
        community: terms.community,
        activity: terms.activity,
        strategy: terms.strategy,
        deadline: terms.deadline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_checked_and_none_takes_away() {
        let now = Timestamp::from_seconds(1_800_000_000);
        let bad = |terms_given: Terms| terms(&terms_given, now).unwrap_err().detail;
        let fastest = Terms { strategy: Some("fastest".into()), ..Terms::default() };
        assert!(bad(fastest).contains("known are best, orderly"));
        assert!(bad(Terms { deadline: Some(now), ..Terms::default() }).contains("has passed"));
        let auto = Terms { strategy: Some("auto".into()), ..Terms::default() };
        assert_eq!(terms(&auto, now).unwrap().strategy.as_deref(), Some("queue"));
        let change = TermsChange {
            activity: Some("none".into()),
            deadline: Some("soon".into()),
            ..TermsChange::default()
        };
        assert!(terms_patch(&change, now).unwrap_err().detail.starts_with("deadline:"));
        let patch = terms_patch(&TermsChange { deadline: None, ..change }, now).unwrap();
        assert_eq!((patch.activity, patch.community), (Some(None), None));
    }

    #[test]
    fn activities_are_those_of_one_community() {
        let change = |community: &str, activity: Option<&str>| {
            whose(&ShareChange {
                community: community.into(),
                activity: activity.map(Into::into),
                weight: None,
            })
        };
        assert!(change("*", Some("production")).is_err() && change("a b", None).is_err());
        assert_eq!(change("*", None).unwrap(), Whose::OtherCommunities);
        assert_eq!(change("atlas", Some("*")).unwrap(), Whose::OtherActivities("atlas".parse().unwrap()));
    }

    #[test]
    fn addresses_of_others_are_not_shown() {
        for (what, shown) in [
            ("logged in with a token from 192.0.2.7", "logged in with a token from an address not shown"),
            (
                "login refused (password) from 2001:db8::7: the password is wrong",
                "login refused (password) from an address not shown: the password is wrong",
            ),
            (
                "login refused (token) from ::1: expired",
                "login refused (token) from an address not shown: expired",
            ),
            ("limit of link a to b: 2 MB/s in", "limit of link a to b: 2 MB/s in"),
            ("storage a: weight 1.5", "storage a: weight 1.5"),
        ] {
            assert_eq!(without_addresses(what), shown);
        }
    }
}
