//! Which sites' agents may stream copies between foreign storages: shown, and changed with a record.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_api::Problem;
use longhaul_api::native::{ChangeKind, Page};
use longhaul_api::rights;
use longhaul_api::steering::{MoverGrantChange, MoverGrantView};
use longhaul_control::mover_grants::{Grantee, MOVER_GRANTS, MoverGrants};
use longhaul_identity::Caller;
use longhaul_model::{Fault, SiteName};

use super::steering::Refused;
use super::{Operations, bad_request, problem};

const ALL_COMMUNITIES: &str = "*";

impl Operations {
    pub fn mover_list(&self) -> Result<Page<MoverGrantView>, Problem> {
        let setting = self.shared.kernel.catalog.setting(MOVER_GRANTS).map_err(problem)?;
        Ok(self.mover_views(&MoverGrants::read(setting.as_deref()).map_err(problem)?))
    }

    pub fn mover_set(
        &self,
        caller: &Caller,
        change: &MoverGrantChange,
    ) -> Result<Page<MoverGrantView>, Problem> {
        caller.check(&rights::MOVER_SET, &[])?;
        // What a site that is no more may do can still be withdrawn.
        if change.allowed {
            self.site_row(&change.site)?;
        }
        let grantee = match change.community.as_str() {
            ALL_COMMUNITIES => Grantee::AllCommunities,
            name => Grantee::Community(name.parse().map_err(|error| bad_request(format!("{error}")))?),
        };
        let MoverGrantChange { site, community, allowed } = change;
        let verb = if *allowed { "may" } else { "may no longer" };
        let what = format!("agents of {site} {verb} stream for {community}");
        let by = &caller.principal.name;
        let grants = self.change_movers(by, &what, |grants| grants.set(site, grantee, *allowed))?;
        tracing::info!(%by, "{what}");
        let shown = self.mover_views(&grants);
        self.shared.control.mover_grants.replace(grants);
        self.shared.kernel.changes.touch(ChangeKind::Status, "", self.now());
        Ok(shown)
    }

    /// No agent of the site may stream any more: it was removed.
    pub(super) fn withdraw_movers(&self, site: &SiteName, by: &str) -> Result<(), Problem> {
        let kept = self.shared.kernel.catalog.setting(MOVER_GRANTS).map_err(problem)?;
        if !MoverGrants::read(kept.as_deref()).map_err(problem)?.withdraw(site) {
            return Ok(());
        }
        let what = format!("agents of {site} may no longer stream");
        let grants = self.change_movers(by, &what, |grants| {
            grants.withdraw(site);
            Ok(())
        })?;
        self.shared.control.mover_grants.replace(grants);
        Ok(())
    }

    /// Changes the grants in the catalog, with a record; returns them.
    fn change_movers(
        &self,
        by: &str,
        what: &str,
        change: impl FnOnce(&mut MoverGrants) -> Result<(), Fault>,
    ) -> Result<MoverGrants, Problem> {
        let mut grants = MoverGrants::default();
        let changed =
            self.shared.kernel.catalog.change_setting::<Refused>(MOVER_GRANTS, by, self.now(), |present| {
                grants = MoverGrants::read(present)?;
                change(&mut grants).map_err(|fault| Refused::Change(fault.into()))?;
                Ok((grants.write(), what.to_owned()))
            });
        changed.map_err(Problem::from)?;
        Ok(grants)
    }

    /// Sites that have a grant, and those whose agents offer to stream.
    fn mover_views(&self, grants: &MoverGrants) -> Page<MoverGrantView> {
        let mut rows: BTreeMap<SiteName, (BTreeSet<Grantee>, u32)> = BTreeMap::new();
        for (site, grantees) in grants.iter() {
            rows.entry(site.clone()).or_default().0 = grantees.clone();
        }
        for (agent, offer) in self.shared.control.agents.movers(self.now()) {
            let files = &mut rows.entry(agent.site_name).or_default().1;
            *files = files.saturating_add(offer.files);
        }
        let view = |(site, (grantees, files)): (SiteName, (BTreeSet<Grantee>, u32))| MoverGrantView {
            site,
            communities: grantees.into_iter().map(grantee_name).collect(),
            files,
        };
        Page { items: rows.into_iter().map(view).collect(), next: None }
    }
}

fn grantee_name(grantee: Grantee) -> String {
    match grantee {
        Grantee::AllCommunities => ALL_COMMUNITIES.to_owned(),
        Grantee::Community(name) => name.to_string(),
    }
}
