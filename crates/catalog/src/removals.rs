//! Sites, storages and agents that are removed, and what becomes of what they had.
//!
//! A removed storage's replicas leave the catalog, whether their files still exist or not. Its row stays, for
//! history and for what arrived from it, under a name that says so: its own may be taken by a new storage,
//! which is another one in every respect. The same holds for a site.

use longhaul_model::{
    AgentId, AttemptId, BlockId, DatasetId, Fault, FaultCode, SiteName, StorageId, StorageName,
    SubscriptionId, TaskId, Timestamp, units,
};

use crate::accounts::withdraw_managers;
use crate::attempts::{end_transfers_of_target, requeue_attempts};
use crate::audit::record_change;
use crate::consequences;
use crate::database::{PAGE_ROWS_MAX, SCAN_TIME_MAX};
use crate::deletion::{blocks_at, count_last_replicas};
use crate::ledger::Ledger;
use crate::refusals::refuse;
use crate::rows::codec::{Columns, key};
use crate::sites::{find_storage, require_site};
use crate::sql::Transaction;
use crate::{
    AgentRemoval, Catalog, CatalogError, CopyTerms, DatasetAtStorage, SiteConcerns, SiteRemoval,
    StorageConcerns, StorageRemoval, StorageRow,
};

/// Most characters of the name of a storage or site.
const NAME_CHARS_MAX: usize = 64;

impl Catalog {
    /// What removing the storage would concern.
    pub fn storage_concerns(
        &self,
        name: &StorageName,
        terms: &CopyTerms,
    ) -> Result<StorageConcerns, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| load_concerns(tx, &require_named(tx, name)?, terms))
    }

    /// Removes the storage: its replicas are forgotten, transfers from it wait for another source, those
    /// through it end, and so do its tasks. Refused with `Conflict` while a subscription wants data there,
    /// and with `LastReplica` if a file would be left without a good copy, unless forced.
    pub fn remove_storage(
        &self,
        name: &StorageName,
        force: bool,
        who: &str,
        terms: &CopyTerms,
    ) -> Result<StorageRemoval, CatalogError> {
        self.write(|tx| {
            let storage = require_named(tx, name)?;
            let concerns = load_concerns(tx, &storage, terms)?;
            check_removal(name, std::slice::from_ref(&concerns), force)?;
            let removal = remove(tx, &storage, concerns, terms.now)?;
            let files = removal.concerns.files();
            let replicas = units::plural(files, "replica", "replicas");
            record_change(tx, who, &format!("storage {name} removed, with {replicas}"), terms.now)?;
            Ok(removal)
        })
    }

    /// Removes the agent: its certificates are refused from now on, and its leases, and those from its
    /// storages, wait again. Its storages stay with the site, for another agent; those that nothing depends
    /// on go with it.
    pub fn remove_agent(
        &self,
        id: AgentId,
        who: &str,
        terms: &CopyTerms,
    ) -> Result<AgentRemoval, CatalogError> {
        self.write(|tx| {
            let refused = refuse(tx, id, "it was removed by an administrator", terms.now)?;
            let mut storages = Vec::new();
            for (storage, concerns) in idle_storages(tx, id, terms)? {
                storages.push(remove(tx, &storage, concerns, terms.now)?);
            }
            tx.execute("DELETE FROM agents WHERE id = ?1", [key!(id)])?;
            record_change(tx, who, &format!("agent {id} removed"), terms.now)?;
            Ok(AgentRemoval { refused, storages })
        })
    }

    /// What removing the site would concern.
    pub fn site_concerns(&self, name: &SiteName, terms: &CopyTerms) -> Result<SiteConcerns, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| load_site_concerns(tx, name, terms))
    }

    /// Removes the site with its agents, whose certificates are refused from now on, its storages, join
    /// tokens, hosts and allowed storage names. Nobody is its manager any more. Refused with `Conflict` while
    /// a subscription wants data at one of its storages, and with `LastReplica` if a file would be left
    /// without a good copy, unless forced.
    pub fn remove_site(
        &self,
        name: &SiteName,
        force: bool,
        who: &str,
        terms: &CopyTerms,
    ) -> Result<SiteRemoval, CatalogError> {
        self.write(|tx| {
            let concerns = load_site_concerns(tx, name, terms)?;
            check_removal(name, &concerns.storages, force)?;
            let removal = remove_with_all(tx, concerns, terms.now)?;
            let files =
                removal.storages.iter().map(|gone| gone.concerns.files()).fold(0, u64::saturating_add);
            let agents = units::plural(removal.agents.len() as u64, "agent", "agents");
            let replicas = units::plural(files, "replica", "replicas");
            let storages = units::plural(removal.storages.len() as u64, "storage", "storages");
            let what = format!("site {name} removed, with {agents} and {replicas} at {storages}");
            record_change(tx, who, &what, terms.now)?;
            Ok(removal)
        })
    }

    /// Storages of the agent that nothing depends on: they go when it is removed.
    pub fn idle_storages(&self, id: AgentId, terms: &CopyTerms) -> Result<Vec<StorageName>, CatalogError> {
        self.read(|tx| {
            let idle = idle_storages(tx, id, terms)?.into_iter();
            Ok(idle.map(|(storage, _)| storage.name).collect())
        })
    }
}

fn idle_storages(
    tx: &Transaction<'_>,
    id: AgentId,
    terms: &CopyTerms,
) -> Result<Vec<(StorageRow, StorageConcerns)>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT name FROM storages WHERE agent = ?1 AND removed IS NULL AND files = 0 ORDER BY name",
    )?;
    let empty: Vec<StorageName> =
        select.query_map([key!(id)], |row| row.parsed(0))?.collect::<Result<_, _>>()?;
    let mut idle = Vec::new();
    for name in empty {
        let storage = require_named(tx, &name)?;
        let concerns = load_concerns(tx, &storage, terms)?;
        if concerns.is_idle() {
            idle.push((storage, concerns));
        }
    }
    Ok(idle)
}

/// Refuses the removal of a storage, or of a site with its storages, that its concerns forbid.
fn check_removal(
    what: &dyn std::fmt::Display,
    storages: &[StorageConcerns],
    force: bool,
) -> Result<(), CatalogError> {
    let (mut files, mut last) = (0_u64, 0_u64);
    for concerns in storages {
        let name = &concerns.name;
        if let Some(first) = concerns.subscriptions.first() {
            let more = match concerns.subscriptions.len() {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            return Err(CatalogError::conflict(format!(
                "subscription {first}{more} to {name} would never end"
            )));
        }
        files = files.saturating_add(concerns.files());
        last = last.saturating_add(concerns.last_replicas());
    }
    if last > 0 && !force {
        let (files, have) = (units::plural(files, "file", "files"), if last == 1 { "has" } else { "have" });
        let detail = format!("{last} of {files} at {what} {have} no other good copy");
        return Err(CatalogError::refused(FaultCode::LastReplica, detail));
    }
    Ok(())
}

fn load_site_concerns(
    tx: &Transaction<'_>,
    name: &SiteName,
    terms: &CopyTerms,
) -> Result<SiteConcerns, CatalogError> {
    let site = require_site(tx, name)?;
    let mut select = tx.prepare_cached("SELECT id FROM agents WHERE site = ?1 ORDER BY id")?;
    let agents = select.query_map([key!(site.id)], |row| row.id(0))?.collect::<Result<_, _>>()?;
    let mut select =
        tx.prepare_cached("SELECT name FROM storages WHERE site = ?1 AND removed IS NULL ORDER BY name")?;
    let names: Vec<StorageName> =
        select.query_map([key!(site.id)], |row| row.parsed(0))?.collect::<Result<_, _>>()?;
    let rows = names.iter().map(|name| require_named(tx, name)).collect::<Result<Vec<_>, _>>()?;
    let mut terms = terms.clone();
    terms.unreachable.extend(rows.iter().map(|row| row.id));
    let storages = rows.iter().map(|row| load_concerns(tx, row, &terms)).collect::<Result<_, _>>()?;
    Ok(SiteConcerns { site, agents, storages })
}

fn remove_with_all(
    tx: &Transaction<'_>,
    concerns: SiteConcerns,
    now: Timestamp,
) -> Result<SiteRemoval, CatalogError> {
    let SiteConcerns { site, agents, storages } = concerns;
    let reason = format!("site {} was removed", site.name);
    let refused = agents.into_iter().map(|agent| Ok((agent, refuse(tx, agent, &reason, now)?)));
    let agents = refused.collect::<Result<Vec<_>, CatalogError>>()?;
    let mut removed = Vec::new();
    for concerns in storages {
        let storage = require_named(tx, &concerns.name)?;
        removed.push(remove(tx, &storage, concerns, now)?);
    }
    for table in ["agents", "join_tokens", "site_hosts", "storage_names"] {
        tx.execute(&format!("DELETE FROM {table} WHERE site = ?1"), [key!(site.id)])?;
    }
    withdraw_managers(tx, &site.name)?;
    let former = former_name(tx, "sites", site.name.as_str(), site.id.0)?;
    tx.execute("UPDATE sites SET name = ?2, removed = ?3 WHERE id = ?1", (key!(site.id), former, now.0))?;
    Ok(SiteRemoval { site, agents, storages: removed })
}

fn require_named(tx: &Transaction<'_>, name: &StorageName) -> Result<StorageRow, CatalogError> {
    find_storage(tx, name)?.ok_or_else(|| CatalogError::not_found("storage", name))
}

fn load_concerns(
    tx: &Transaction<'_>,
    storage: &StorageRow,
    terms: &CopyTerms,
) -> Result<StorageConcerns, CatalogError> {
    let count = |sql: &str| -> Result<u64, CatalogError> {
        Ok(tx.prepare_cached(sql)?.query_row([key!(storage.id)], |row| row.number(0))?)
    };
    let mut select = tx.prepare_cached(
        "SELECT d.id, d.name, r.files, r.bytes FROM dataset_replicas r JOIN datasets d ON d.id = r.dataset
         WHERE r.storage = ?1 ORDER BY d.name",
    )?;
    let held = select.query_map([key!(storage.id)], |row| {
        let held = DatasetAtStorage {
            dataset: row.parsed(1)?,
            files: row.number(2)?,
            bytes: row.number(3)?,
            last_replicas: 0,
        };
        Ok((row.id::<DatasetId>(0)?, held))
    })?;
    let mut datasets = Vec::new();
    for (dataset, held) in held.collect::<Result<Vec<_>, _>>()? {
        let last_replicas = count_last_replicas(tx, dataset, storage.id, terms)?;
        datasets.push(DatasetAtStorage { last_replicas, ..held });
    }
    let mut select = tx.prepare_cached(
        "SELECT id FROM subscriptions WHERE target = ?1 AND state <> 'cancelled' ORDER BY id LIMIT ?2",
    )?;
    let open = select.query_map((key!(storage.id), PAGE_ROWS_MAX as i64), |row| row.id(0))?;
    Ok(StorageConcerns {
        id: storage.id,
        name: storage.name.clone(),
        site: storage.site,
        site_name: storage.site_name.clone(),
        datasets,
        leases_in: count("SELECT COUNT(*) FROM live WHERE leased = 1 AND target = ?1")?,
        leases_out: count("SELECT COUNT(*) FROM live WHERE leased = 1 AND source = ?1")?,
        tasks: count("SELECT COUNT(*) FROM tasks WHERE storage = ?1 AND done = 0")?,
        subscriptions: open.collect::<Result<Vec<SubscriptionId>, _>>()?,
    })
}

fn remove(
    tx: &Transaction<'_>,
    storage: &StorageRow,
    concerns: StorageConcerns,
    now: Timestamp,
) -> Result<StorageRemoval, CatalogError> {
    let name = &storage.name;
    let cancelled_fault = Fault::new(FaultCode::Cancelled, format!("storage {name} was removed"));
    let tasks = end_tasks(tx, storage.id, &cancelled_fault, now)?;
    let cancelled = end_transfers_of_target(tx, storage.id, &cancelled_fault, now)?;
    let mut select =
        tx.prepare_cached("SELECT attempt FROM live WHERE leased = 1 AND source = ?1 ORDER BY id")?;
    let leased: Vec<AttemptId> =
        select.query_map([key!(storage.id)], |row| row.id(0))?.collect::<Result<_, _>>()?;
    let interrupted = Fault::new(FaultCode::Interrupted, format!("source {name} was removed"));
    let released = requeue_attempts(tx, leased.into_iter(), &interrupted, now)?;
    let blocks = forget_replicas(tx, storage.id)?;
    tx.execute("DELETE FROM settings WHERE name = ?1", [&format!("space-policy/{name}")])?;
    tx.execute(
        "UPDATE storages SET name = ?2, removed = ?3, files = 0, bytes = 0, relay = 0, writable = 0,
         trouble = NULL WHERE id = ?1",
        (key!(storage.id), former_name(tx, "storages", name.as_str(), storage.id.0)?, now.0),
    )?;
    Ok(StorageRemoval { concerns, released, cancelled, tasks, blocks })
}

fn end_tasks(
    tx: &Transaction<'_>,
    storage: StorageId,
    fault: &Fault,
    now: Timestamp,
) -> Result<Vec<TaskId>, CatalogError> {
    let mut select = tx.prepare_cached("SELECT id FROM tasks WHERE storage = ?1 AND done = 0 ORDER BY id")?;
    let open: Vec<TaskId> = select.query_map([key!(storage)], |row| row.id(0))?.collect::<Result<_, _>>()?;
    let mut ledger = Ledger::new(tx, now);
    for &task in &open {
        let task = crate::tasks::require(tx, task)?;
        crate::tasks::finish(&mut ledger, &task, Some(fault))?;
    }
    // Nobody demands anything at a storage without subscriptions: nothing follows that would have to be told.
    consequences::flush(&mut ledger)?;
    Ok(open)
}

/// Takes all replicas of the storage from the catalog. No demand changes: demands are about what their target
/// holds, and this one has no subscription.
fn forget_replicas(tx: &Transaction<'_>, storage: StorageId) -> Result<Vec<BlockId>, CatalogError> {
    let mut select = tx.prepare_cached("SELECT dataset FROM dataset_replicas WHERE storage = ?1")?;
    let datasets: Vec<DatasetId> =
        select.query_map([key!(storage)], |row| row.id(0))?.collect::<Result<_, _>>()?;
    let mut blocks = Vec::new();
    let mut delete = tx.prepare_cached("DELETE FROM replicas WHERE block = ?1 AND storage = ?2")?;
    for dataset in datasets {
        for block in blocks_at(tx, dataset, storage)? {
            delete.execute_deferred((key!(block), key!(storage)))?;
            blocks.push(block);
        }
        let of_dataset = (key!(dataset), key!(storage));
        tx.execute("DELETE FROM block_replicas WHERE dataset = ?1 AND storage = ?2", of_dataset)?;
    }
    for table in ["dataset_replicas", "relayed", "accusations", "repairs", "left_out"] {
        tx.execute(&format!("DELETE FROM {table} WHERE storage = ?1"), [key!(storage)])?;
    }
    Ok(blocks)
}

/// A free name by which history calls a removed storage or site.
fn former_name(
    tx: &Transaction<'_>,
    table: &str,
    name: &str,
    number: impl std::fmt::Display,
) -> Result<String, CatalogError> {
    let mut taken = tx.prepare_cached(&format!("SELECT 1 FROM {table} WHERE name = ?1"))?;
    let mut suffix = format!(".removed-{number}");
    loop {
        let chars = NAME_CHARS_MAX.saturating_sub(suffix.len());
        let name: String = name.chars().take(chars).chain(suffix.chars()).collect();
        if !taken.exists([name.as_str()])? {
            return Ok(name);
        }
        suffix.push('x');
    }
}
