//! Sites, their storages and agents; join tokens; and what an administrator decides for a site.

use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::formats::{JoinTokenSeconds, REASON_CHARS_MAX};
use longhaul_api::native::{
    ChangeKind, JoinTokenCreate, Page, SiteAdd, SiteAdded, SiteChange, SiteState, SiteView, StorageView,
};
use longhaul_api::rights;
use longhaul_catalog::{SitePatch, SiteRow, StorageRow};
use longhaul_control::limits::check_rate;
use longhaul_identity::{Belonging, Caller};
use longhaul_model::limits::AGENT_STORAGES_MAX;
use longhaul_model::{RegionName, SiteName, StorageId, StorageName};
use longhaul_security::{JoinToken, hash_secret, new_secret};

use super::{Operations, PageQuery, bad_request, not_found, page, problem, unprocessable};
use crate::views;

const TOKEN_LIFE_S: u64 = 24 * 3_600;

impl Operations {
    pub fn site_list(&self, query: &PageQuery) -> Result<Page<SiteView>, Problem> {
        let after: Option<SiteName> = query.after()?;
        let limit = query.limit();
        let mut rows = self.shared.kernel.catalog.sites().map_err(problem)?;
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows.retain(|row| after.as_ref().is_none_or(|after| row.name > *after));
        rows.truncate(limit + 1);
        let storages = self.shared.kernel.catalog.storages().map_err(problem)?;
        page(rows, limit, |row| row.name.to_string(), |row| Ok(self.site_view(row, &storages)))
    }

    /// Makes a site, if need be, allows it the storage names, and makes a token with which one agent can join
    /// it.
    pub fn site_add(&self, caller: &Caller, request: &SiteAdd) -> Result<SiteAdded, Problem> {
        let now = self.now();
        let life = token_life(request.token_seconds)?;
        let names = &request.storages;
        if names.len() > AGENT_STORAGES_MAX {
            return Err(unprocessable(format!("at most {AGENT_STORAGES_MAX} storage names at once")));
        }
        let (catalog, who) = (&self.shared.kernel.catalog, &caller.principal.name);
        let added = catalog.add_site_with_storages(&request.name, names, who, now);
        let (site, made) = added.map_err(|error| self.name_problem(error, &request.name, names))?;
        if made {
            tracing::info!(site = %site.name, "site added");
        }
        if made || !names.is_empty() {
            self.announce_names(&site.name, now)?;
        }
        self.join_token(&site, life)
    }

    pub fn site_join_token(
        &self,
        caller: &Caller,
        name: &SiteName,
        request: &JoinTokenCreate,
    ) -> Result<SiteAdded, Problem> {
        caller.check(&rights::SITE_JOIN_TOKEN, &[Belonging::Site(name)])?;
        let life = token_life(request.token_seconds)?;
        let site = self.site_row(name)?;
        self.join_token(&site, life)
    }

    pub fn site_show(&self, name: &SiteName) -> Result<SiteView, Problem> {
        let row = self.site_row(name)?;
        let storages = self.shared.kernel.catalog.storages().map_err(problem)?;
        Ok(SiteView { links: self.commissioned(name)?, ..self.site_view(row, &storages) })
    }

    pub fn site_change(
        &self,
        caller: &Caller,
        name: &SiteName,
        change: &SiteChange,
    ) -> Result<SiteView, Problem> {
        caller.check(&rights::SITE_CHANGE, &[Belonging::Site(name)])?;
        if change.reason.as_ref().is_some_and(|reason| reason.chars().count() > REASON_CHARS_MAX) {
            return Err(bad_request(format!("a reason has at most {REASON_CHARS_MAX} characters")));
        }
        let rates = change.limits.iter().flat_map(|limits| [limits.in_bytes_per_s, limits.out_bytes_per_s]);
        rates.flatten().try_for_each(check_rate)?;
        self.site_row(name)?;
        // Whoever opens a site again has dealt with why it was closed.
        let reason = match (&change.reason, change.state) {
            (Some(reason), _) => Some(Some(reason.clone()).filter(|reason| !reason.is_empty())),
            (None, Some(SiteState::Open)) => Some(None),
            (None, _) => None,
        };
        let region = change.region.as_ref().map(|name| match name.as_str() {
            "" => Ok(None),
            name => name.parse::<RegionName>().map(Some).map_err(|error| bad_request(error.to_string())),
        });
        let patch = SitePatch {
            region: region.transpose()?,
            state: change.state.map(views::to_site_state),
            reason,
            limits: change.limits.as_ref().map(views::to_limits),
        };
        let row = self.shared.kernel.catalog.change_site(name, &patch).map_err(problem)?;
        let by = &caller.principal.name;
        tracing::info!(site = %name, state = ?row.state, limits = ?row.limits, %by, "site changed");
        self.shared.kernel.refresh_directory().map_err(problem)?;
        self.shared.control.divide_site_rates(Some(row.id), self.now());
        self.shared.kernel.changes.touch(ChangeKind::Site, name, self.now());
        self.site_show(name)
    }

    pub fn storage_show(&self, name: &StorageName) -> Result<StorageView, Problem> {
        let row = self.storage_row(name)?;
        let promised_bytes = self.promised_bytes().get(&row.id).copied();
        Ok(StorageView { promised_bytes, ..self.storage_view(&row) })
    }

    pub fn storage_list(&self, query: &PageQuery) -> Result<Page<StorageView>, Problem> {
        let after: Option<StorageName> = query.after()?;
        let limit = query.limit();
        let mut rows = self.shared.kernel.catalog.storages().map_err(problem)?;
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows.retain(|row| after.as_ref().is_none_or(|after| row.name > *after));
        rows.truncate(limit + 1);
        let promised = self.promised_bytes();
        let view = |row: StorageRow| {
            let promised_bytes = promised.get(&row.id).copied();
            Ok(StorageView { promised_bytes, ..self.storage_view(&row) })
        };
        page(rows, limit, |row| row.name.to_string(), view)
    }

    fn storage_view(&self, row: &StorageRow) -> StorageView {
        let agents = &self.shared.control.agents;
        let serving = row.shared_root.as_ref().map(|_| {
            let mut serving = agents.serving(row.id, self.now());
            serving.sort_by_key(|agent| agents.of_storage(row.id) != Some(*agent));
            serving
        });
        let status = self.shared.control.staging.status(row.id);
        let tape_queue = status.as_ref().map(views::tape_queue);
        let pools = self.shared.control.pool_reports.of_storage(row.id);
        StorageView { agents: serving, tape_queue, pools, ..views::storage(row) }
    }

    pub(super) fn site_row(&self, name: &SiteName) -> Result<SiteRow, Problem> {
        let row = self.shared.kernel.catalog.site(name).map_err(problem)?;
        row.ok_or_else(|| not_found("site", name, "longhaul site list"))
    }

    fn join_token(&self, site: &SiteRow, life: Duration) -> Result<SiteAdded, Problem> {
        let now = self.now();
        let expires = now + life;
        let secret = new_secret("");
        self.shared
            .kernel
            .catalog
            .add_join_token(hash_secret(&secret), site.id, expires, now)
            .map_err(problem)?;
        let token = JoinToken {
            url: self.shared.public_url.clone(),
            ca_fingerprint: self.shared.control.authority.ca_fingerprint(),
            secret,
        };
        Ok(SiteAdded { name: site.name.clone(), join_token: token.to_string(), expires })
    }

    fn site_view(&self, row: SiteRow, storages: &[longhaul_catalog::StorageRow]) -> SiteView {
        let now = self.now();
        let live = &self.shared.control.live;
        let own: Vec<_> = storages.iter().filter(|storage| storage.site == row.id).collect();
        let ids: Vec<StorageId> = own.iter().map(|storage| storage.id).collect();
        let into: Vec<_> = ids.iter().map(|&id| live.arriving_at(id, now)).collect();
        let out: Vec<_> = ids.iter().map(|&id| live.leaving_from(id, now)).collect();
        let queued = self.query_scheduler(move |scheduler, _| {
            let counts: Vec<_> = ids.iter().map(|&id| scheduler.counts_of(id)).collect();
            counts.iter().fold((0, 0), |(files, bytes), counts| {
                (files + counts.queued + counts.in_backoff + counts.parked, bytes + counts.queued_bytes)
            })
        });
        let (queued_files, queued_bytes) = queued.unwrap_or_default();
        let directory = self.shared.kernel.directory();
        let storage_names = directory.name_owners.allowed_names(row.id).cloned().collect();
        SiteView {
            state: views::site_state(row.state),
            reason: row.reason,
            limits: views::limits(&row.limits),
            region: row.region,
            storages: own.into_iter().map(|row| self.storage_view(row)).collect(),
            storage_names,
            agents: self
                .shared
                .control
                .agents
                .views(row.id, now, |agent| self.shared.job_control.jobs.stream_ledger.busy(agent)),
            rate_in: into.iter().map(|now| now.rate).sum(),
            rate_out: out.iter().map(|now| now.rate).sum(),
            active_in: into.iter().map(|now| now.files).sum(),
            active_out: out.iter().map(|now| now.files).sum(),
            queued_files,
            queued_bytes,
            links: Vec::new(),
            name: row.name,
        }
    }
}

fn token_life(seconds: Option<u64>) -> Result<Duration, Problem> {
    match seconds.unwrap_or(TOKEN_LIFE_S) {
        0 => Err(bad_request("a join token must live for at least a second")),
        seconds if JoinTokenSeconds::RANGE.contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err(bad_request("a join token lives for at most 30 days")),
    }
}
