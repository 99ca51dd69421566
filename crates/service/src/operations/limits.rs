//! Limits of links, storages and communities, and which links are commissioned: changed while the service
//! runs, and recorded with who changed them.

use std::collections::BTreeSet;

use longhaul_api::Problem;
use longhaul_api::limits::{LimitChange, LimitKind, LimitView};
use longhaul_api::native::{ChangeKind, Page};
use longhaul_api::rights;
use longhaul_api::steering::LinksChange;
use longhaul_control::Directory;
use longhaul_control::brain::Input;
use longhaul_control::limits::{self, KeptLimits, LIMITS, Of, Pair, UNCOMMISSIONED, read_uncommissioned};
use longhaul_control::steering::LINKS_MAX;
use longhaul_identity::{Belonging, Caller};
use longhaul_model::units::{self, printable};
use longhaul_model::{StorageId, StorageName};
use longhaul_scheduler::Limit;

use super::steering::{Refused, listed};
use super::{Operations, bad_request, problem, unprocessable};

/// Links that one request commissions, and those that it takes out of production.
pub(super) struct CommissioningPairs {
    open: BTreeSet<Pair>,
    close: BTreeSet<Pair>,
    /// What of it the record of changes says.
    what: String,
}

impl CommissioningPairs {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.close.is_empty()
    }

    pub(super) fn describe(&self) -> &str {
        &self.what
    }

    /// Changes the links that are not commissioned.
    pub(super) fn apply(&self, uncommissioned: &mut BTreeSet<Pair>) -> Result<(), Problem> {
        uncommissioned.retain(|pair| !self.open.contains(pair));
        uncommissioned.extend(&self.close);
        let count = uncommissioned.len();
        if count > LINKS_MAX {
            return Err(bad_request(format!("{count} links, the limit is {LINKS_MAX}")));
        }
        Ok(())
    }
}

fn commissioning_in_words(change: &LinksChange) -> String {
    let mut what = Vec::new();
    for (verb, list) in
        [("commissioned", &change.commission), ("for test transfers only", &change.decommission)]
    {
        what.extend((!list.is_empty()).then(|| format!("links {verb}: {}", listed(list))));
    }
    what.join("; ")
}

impl Operations {
    pub fn limit_list(&self) -> Result<Page<LimitView>, Problem> {
        let kept = self.shared.kernel.catalog.setting(LIMITS).map_err(problem)?;
        let kept = KeptLimits::read(kept.as_deref()).map_err(problem)?;
        Ok(views(&kept, &self.shared.kernel.directory()))
    }

    pub fn limit_set(&self, caller: &Caller, change: &LimitChange) -> Result<Page<LimitView>, Problem> {
        let of = self.limit_scope(change)?;
        self.check_limit(caller, &of)?;
        let limit = Limit { active: change.active, bytes_per_s: change.bytes_per_s };
        let (who, what) = (&caller.principal.name, in_words(change));
        let mut kept = KeptLimits::default();
        let changed =
            self.shared.kernel.catalog.change_setting::<Refused>(LIMITS, who, self.now(), |present| {
                kept = KeptLimits::read(present)?;
                kept.set(of, limit).map_err(|fault| Refused::Change(fault.into()))?;
                Ok((kept.write(), what.clone()))
            });
        changed.map_err(Problem::from)?;
        tracing::info!(by = %who, "{what}");
        self.limits_changed()?;
        Ok(views(&kept, &self.shared.kernel.directory()))
    }

    /// What of a change of links is about their commissioning.
    pub(super) fn commissioning_change(&self, caller: &Caller, change: &LinksChange) -> Result<(), Problem> {
        let pairs = self.commissioning_pairs(change)?;
        let (who, what) = (&caller.principal.name, pairs.describe());
        let changed = self.shared.kernel.catalog.change_setting::<Refused>(
            UNCOMMISSIONED,
            who,
            self.now(),
            |present| {
                let mut links = read_uncommissioned(present)?;
                pairs.apply(&mut links).map_err(Refused::Change)?;
                Ok((serde_json::to_string(&links).unwrap_or_default(), what.to_owned()))
            },
        );
        changed.map_err(Problem::from)?;
        tracing::info!(by = %who, "{what}");
        self.limits_changed()
    }

    pub(super) fn commissioning_pairs(&self, change: &LinksChange) -> Result<CommissioningPairs, Problem> {
        let (open, close) = (self.pairs(&change.commission)?, self.pairs(&change.decommission)?);
        if let Some(pair) = open.intersection(&close).next() {
            let directory = self.shared.kernel.directory();
            let name = |id| directory.name(id).map(|name| name.to_string()).unwrap_or_default();
            let (source, target) = (name(pair.0), name(pair.1));
            return Err(unprocessable(format!("{source}:{target} cannot be commissioned and not, at once")));
        }
        Ok(CommissioningPairs { open, close, what: commissioning_in_words(change) })
    }

    pub(super) fn uncommissioned(&self) -> Result<BTreeSet<Pair>, Problem> {
        let kept = self.shared.kernel.catalog.setting(UNCOMMISSIONED).map_err(problem)?;
        read_uncommissioned(kept.as_deref()).map_err(problem)
    }

    pub(super) fn limits_changed(&self) -> Result<(), Problem> {
        let event = limits::event(
            &self.shared.kernel.catalog,
            &self.shared.control.marks,
            &*self.shared.job_control.config_store,
            self.now(),
        )
        .map_err(problem)?;
        self.shared.kernel.notify_scheduler(Input::Events(vec![event]));
        self.shared.kernel.changes.touch(ChangeKind::Status, "", self.now());
        Ok(())
    }

    /// A link is of both its ends: neither lifts what the other has set.
    fn check_limit(&self, caller: &Caller, of: &Of) -> Result<(), Problem> {
        let storages = match of {
            Of::Link(source, target) => vec![*source, *target],
            Of::Into(storage) | Of::Out(storage) => vec![*storage],
            Of::Community(_) => return caller.check(&rights::COMMUNITY_LIMIT_SET, &[]),
        };
        let directory = self.shared.kernel.directory();
        for storage in storages {
            match directory.storages.get(&storage) {
                Some(row) => caller.check(&rights::LIMIT_SET, &[Belonging::Site(&row.site_name)])?,
                None => caller.check(&rights::LIMIT_SET, &[])?,
            }
        }
        Ok(())
    }

    fn limit_scope(&self, change: &LimitChange) -> Result<Of, Problem> {
        let wrong = |error: String| unprocessable(printable(&format!("{}: {error}", change.name)));
        let storage = |name: StorageName| self.storage_row(&name).map(|row| row.id);
        let named =
            || StorageName::parse(&change.name).map_err(|error| wrong(error.to_string()).with_source(error));
        match change.of {
            LimitKind::Link => {
                let (source, target) = LimitChange::link(&change.name).map_err(wrong)?;
                Ok(Of::Link(storage(source)?, storage(target)?))
            }
            LimitKind::Into => Ok(Of::Into(storage(named()?)?)),
            LimitKind::Out => Ok(Of::Out(storage(named()?)?)),
            LimitKind::Community => {
                let name =
                    change.name.parse().map_err(|error| wrong(format!("{error}")).with_source(error))?;
                Ok(Of::Community(name))
            }
        }
    }
}

fn in_words(change: &LimitChange) -> String {
    let of = match change.of {
        LimitKind::Link => "link ",
        LimitKind::Into => "what comes to ",
        LimitKind::Out => "what leaves ",
        LimitKind::Community => "community ",
    };
    let active = change.active.map(|active| {
        let files = units::plural(active.into(), "file", "files");
        format!("{files} at once")
    });
    let rate = change.bytes_per_s.map(|rate| units::rate(rate as f64));
    let limit: Vec<String> = active.into_iter().chain(rate).collect();
    let limit = if limit.is_empty() { "none".to_owned() } else { limit.join(", ") };
    printable(&format!("limit of {of}{}: {limit}", change.name))
}

/// A storage that is gone has no name, and no limit.
fn views(kept: &KeptLimits, directory: &Directory) -> Page<LimitView> {
    let named = |id: &StorageId| directory.name(*id).map(|name| name.to_string());
    let view = |(of, limit): (&Of, &Limit)| {
        let (of, name) = match of {
            Of::Link(source, target) => (LimitKind::Link, format!("{}:{}", named(source)?, named(target)?)),
            Of::Into(storage) => (LimitKind::Into, named(storage)?),
            Of::Out(storage) => (LimitKind::Out, named(storage)?),
            Of::Community(name) => (LimitKind::Community, name.to_string()),
        };
        Some(LimitView { of, name, active: limit.active, bytes_per_s: limit.bytes_per_s })
    };
    Page { items: kept.all().iter().filter_map(view).collect(), next: None }
}
