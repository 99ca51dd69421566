//! Sites, agents and storages.

use crate::sql::{Optional, Row, Transaction, damaged};
use longhaul_model::{AgentId, FaultCode, SiteId, SiteName, StorageId, StorageName, Timestamp};

use crate::name_owners::NameOwners;
use crate::refused_agents::ensure_admitted;
use crate::rows::codec::{Columns, key, maybe_json, number, to_json};
use crate::{
    AgentRow, Catalog, CatalogError, HelloResult, Incarnation, SiteLimits, SitePatch, SiteRow, SiteState,
    SpacePolicy, SpaceRow, StorageOfferRow, StorageRow,
};

/// The columns that [`site_row`] reads.
const SELECT_SITE: &str =
    "SELECT id, name, state, reason, active_in, active_out, in_bytes_per_s, out_bytes_per_s, created, region
    FROM sites";
/// The columns that [`agent_row`] reads.
const SELECT_AGENT: &str =
    "SELECT a.id, a.site, s.name, a.host, a.version, a.incarnation, a.nonce, a.addresses,
    a.certificate_expires, a.acknowledged, a.created, a.last_hello FROM agents a JOIN sites s ON s.id = \
    a.site";
/// The columns that [`storage_row`] reads.
const SELECT_STORAGE: &str =
    "SELECT t.id, t.name, t.site, s.name, t.agent, t.rules, t.writable, t.case_insensitive,
    t.total_bytes, t.free_bytes, t.trouble, t.files, t.bytes, t.relay, t.strategy, t.kind,
    coalesce((SELECT p.value FROM settings p WHERE p.name = 'space-policy/' || t.name), 'warn'),
    t.shared_root
    FROM storages t JOIN sites s ON s.id = t.site";

impl Catalog {
    /// Returns the site of that name, created if there was none, and whether it was created.
    pub fn add_site(&self, name: &SiteName, now: Timestamp) -> Result<(SiteRow, bool), CatalogError> {
        self.write(|tx| insert_site(tx, name, now))
    }

    pub fn sites(&self) -> Result<Vec<SiteRow>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached(&format!("{SELECT_SITE} WHERE removed IS NULL ORDER BY name"))?;
            let rows = select.query_map((), site_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn site(&self, name: &SiteName) -> Result<Option<SiteRow>, CatalogError> {
        self.read(|tx| find_site(tx, name))
    }

    pub fn change_site(&self, name: &SiteName, patch: &SitePatch) -> Result<SiteRow, CatalogError> {
        self.write(|tx| {
            let mut site = require_site(tx, name)?;
            site.state = patch.state.unwrap_or(site.state);
            site.reason = patch.reason.clone().unwrap_or(site.reason);
            site.limits = patch.limits.unwrap_or(site.limits);
            site.region = patch.region.clone().unwrap_or(site.region);
            let SiteLimits { active_in, active_out, in_bytes_per_s, out_bytes_per_s } = site.limits;
            tx.execute(
                "UPDATE sites SET state = ?2, reason = ?3, active_in = ?4, active_out = ?5, in_bytes_per_s = \
                    ?6,
                 out_bytes_per_s = ?7, region = ?8 WHERE id = ?1",
                (
                    key!(site.id),
                    site.state.word(),
                    &site.reason,
                    active_in,
                    active_out,
                    in_bytes_per_s.map(number),
                    out_bytes_per_s.map(number),
                    site.region.as_ref().map(|region| region.as_str()),
                ),
            )?;
            Ok(site)
        })
    }

    pub fn add_agent(
        &self,
        id: AgentId,
        site: SiteId,
        host: &str,
        certificate_expires: Timestamp,
        now: Timestamp,
    ) -> Result<(), CatalogError> {
        self.write(|tx| {
            ensure_not_removed(tx, site)?;
            tx.execute(
                "INSERT INTO agents (id, site, host, version, incarnation, nonce, addresses, \
                    certificate_expires,
                 acknowledged, created) VALUES (?1, ?2, ?3, '', 0, 0, '[]', ?4, 0, ?5)",
                (key!(id), key!(site), host, certificate_expires.0, now.0),
            )?;
            Ok(())
        })
    }

    pub fn agents(&self) -> Result<Vec<AgentRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!("{SELECT_AGENT} ORDER BY a.id"))?;
            let rows = select.query_map((), agent_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn agent(&self, id: AgentId) -> Result<Option<AgentRow>, CatalogError> {
        self.read(|tx| find_agent(tx, id))
    }

    /// Records an agent's start and its storages. Those whose names belong to another site, or to nobody, and
    /// new ones of a site that has [`SITE_STORAGES_MAX`](crate::SITE_STORAGES_MAX) are left out. Refused
    /// with `StaleIncarnation` if a newer start, or another one of the same number, was accepted before; with
    /// `Conflict` if a storage has other name rules under a version that is not newer.
    pub fn agent_hello(
        &self,
        id: AgentId,
        incarnation: Incarnation,
        host: &str,
        version: &str,
        addresses: &[String],
        storages: &[StorageOfferRow],
        now: Timestamp,
    ) -> Result<HelloResult, CatalogError> {
        self.write(|tx| {
            let agent = find_agent(tx, id)?.ok_or_else(|| CatalogError::not_found("agent", id))?;
            ensure_admitted(tx, id)?;
            let known = agent.incarnation;
            if incarnation.number < known.number
                || (incarnation.number == known.number && incarnation != known)
            {
                return Err(CatalogError::refused(
                    FaultCode::StaleIncarnation,
                    format!(
                        "start {} of agent {id} is stale: start {} was accepted already",
                        incarnation.number, known.number
                    ),
                ));
            }
            tx.execute(
                "UPDATE agents SET host = ?2, version = ?3, incarnation = ?4, nonce = ?5, addresses = ?6,
                 last_hello = ?7 WHERE id = ?1",
                (
                    key!(id),
                    host,
                    version,
                    number(incarnation.number),
                    incarnation.nonce.cast_signed(),
                    to_json(&addresses),
                    now.0,
                ),
            )?;
            let owners = NameOwners::load(tx)?;
            let (served, others): (Vec<_>, Vec<_>) =
                storages.iter().partition(|offer| owners.may_serve(agent.site, &offer.name));
            Ok(HelloResult {
                storages: served
                    .into_iter()
                    .map(|offer| offer_storage(tx, &agent, offer))
                    .collect::<Result<_, _>>()?,
                unconfirmed: others.into_iter().map(|offer| offer.name.clone()).collect(),
            })
        })
    }

    pub fn set_agent_certificate(&self, id: AgentId, expires: Timestamp) -> Result<(), CatalogError> {
        self.write(|tx| {
            // In the same transaction: nobody refused meanwhile gets a certificate.
            ensure_admitted(tx, id)?;
            let update = "UPDATE agents SET certificate_expires = ?2 WHERE id = ?1";
            match tx.execute(update, (key!(id), expires.0))? {
                0 => Err(CatalogError::not_found("agent", id)),
                _ => Ok(()),
            }
        })
    }

    /// The sequence number up to which the agent's items are applied.
    pub fn acknowledged(&self, id: AgentId) -> Result<u64, CatalogError> {
        self.read(|tx| acknowledged(tx, id))
    }

    pub fn storages(&self) -> Result<Vec<StorageRow>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached(&format!("{SELECT_STORAGE} WHERE t.removed IS NULL ORDER BY t.name"))?;
            let rows = select.query_map((), storage_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn storage(&self, name: &StorageName) -> Result<Option<StorageRow>, CatalogError> {
        self.read(|tx| find_storage(tx, name))
    }

    pub fn record_spaces(&self, spaces: &[SpaceRow]) -> Result<(), CatalogError> {
        self.write(|tx| {
            let mut update = tx.prepare_cached(
                "UPDATE storages SET total_bytes = ?2, free_bytes = ?3, trouble = ?4 WHERE id = ?1",
            )?;
            for space in spaces {
                update.execute((
                    key!(space.storage),
                    number(space.total_bytes),
                    number(space.free_bytes),
                    maybe_json(space.trouble.as_ref()),
                ))?;
            }
            Ok(())
        })
    }
}

impl SiteState {
    pub const ALL: &'static [SiteState] = &[SiteState::Open, SiteState::Draining, SiteState::Paused];

    pub fn word(self) -> &'static str {
        match self {
            SiteState::Open => "open",
            SiteState::Draining => "draining",
            SiteState::Paused => "paused",
        }
    }
}

impl std::str::FromStr for SiteState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = SiteState::ALL.iter().copied().find(|state| state.word() == text);
        found.ok_or_else(|| format!("{text:?} is not a state of a site"))
    }
}

impl SpacePolicy {
    pub const ALL: &'static [SpacePolicy] = &[SpacePolicy::Warn, SpacePolicy::Refuse];

    pub fn word(self) -> &'static str {
        match self {
            SpacePolicy::Warn => "warn",
            SpacePolicy::Refuse => "refuse",
        }
    }
}

impl std::str::FromStr for SpacePolicy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let policy = SpacePolicy::ALL.iter().copied().find(|policy| policy.word() == text);
        policy.ok_or_else(|| format!("{text:?} is no space policy: write warn or refuse"))
    }
}

/// The site of that name, made if there was none, and whether it was.
pub(crate) fn insert_site(
    tx: &Transaction<'_>,
    name: &SiteName,
    now: Timestamp,
) -> Result<(SiteRow, bool), CatalogError> {
    let inserted = tx.execute(
        "INSERT INTO sites (name, state, created) VALUES (?1, 'open', ?2) ON CONFLICT DO NOTHING",
        (name.as_str(), now.0),
    )?;
    match find_site(tx, name)? {
        Some(site) => Ok((site, inserted == 1)),
        None => Err(CatalogError::conflict(format!(
            "{name} is how history calls a site that was removed: give this one another name"
        ))),
    }
}

pub(crate) fn site_by_id(tx: &Transaction<'_>, id: SiteId) -> Result<SiteRow, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_SITE} WHERE id = ?1"))?;
    Ok(select.query_row([key!(id)], site_row)?)
}

pub(crate) fn acknowledged(tx: &Transaction<'_>, id: AgentId) -> Result<u64, CatalogError> {
    let mut select = tx.prepare_cached("SELECT acknowledged FROM agents WHERE id = ?1")?;
    let stored = select.query_row([key!(id)], |row| row.number(0)).optional()?;
    stored.ok_or_else(|| CatalogError::not_found("agent", id))
}

pub(crate) fn require_storage(tx: &Transaction<'_>, id: StorageId) -> Result<StorageName, CatalogError> {
    let mut select = tx.prepare_cached("SELECT name FROM storages WHERE id = ?1 AND removed IS NULL")?;
    let name = select.query_row([key!(id)], |row| row.parsed(0)).optional()?;
    name.ok_or_else(|| CatalogError::not_found("storage with number", id))
}

/// Records a storage whose name is the site's.
fn offer_storage(
    tx: &Transaction<'_>,
    agent: &AgentRow,
    offer: &StorageOfferRow,
) -> Result<StorageRow, CatalogError> {
    if let Some(known) = find_storage(tx, &offer.name)? {
        let version = known.rules.version;
        if known.rules != offer.rules && offer.rules.version <= version {
            return Err(CatalogError::conflict(format!(
                "the name rules of storage {} differ from those of version {version}, but have version {}: \
                 set rules_version to {} if they were changed on purpose",
                offer.name,
                offer.rules.version,
                version.saturating_add(1)
            )));
        }
    } else {
        ensure_not_former(tx, &offer.name)?;
    }
    tx.execute(
        "INSERT INTO storages (name, site, agent, rules, writable, case_insensitive, kind, shared_root)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (name) DO UPDATE SET agent = excluded.agent, rules = excluded.rules,
         writable = excluded.writable, case_insensitive = excluded.case_insensitive, kind = excluded.kind,
         shared_root = excluded.shared_root",
        (
            offer.name.as_str(),
            key!(agent.site),
            key!(agent.id),
            to_json(&offer.rules),
            offer.writable,
            offer.case_insensitive,
            offer.kind.word(),
            offer.shared_root.as_deref(),
        ),
    )?;
    find_storage(tx, &offer.name)?.ok_or_else(|| CatalogError::not_found("storage", &offer.name))
}

/// Refused with `Conflict` if history calls a removed storage so.
pub(crate) fn ensure_not_former(tx: &Transaction<'_>, name: &StorageName) -> Result<(), CatalogError> {
    let select = "SELECT 1 FROM storages WHERE name = ?1 AND removed IS NOT NULL";
    match tx.prepare_cached(select)?.exists([name.as_str()])? {
        false => Ok(()),
        true => Err(CatalogError::conflict(format!(
            "{name} is how history calls a storage that was removed: give this one another name"
        ))),
    }
}

/// Refused with `NotFound`: nobody joins a site that was removed meanwhile.
pub(crate) fn ensure_not_removed(tx: &Transaction<'_>, id: SiteId) -> Result<(), CatalogError> {
    match tx.prepare_cached("SELECT 1 FROM sites WHERE id = ?1 AND removed IS NULL")?.exists([key!(id)])? {
        true => Ok(()),
        false => Err(CatalogError::not_found("site with number", id)),
    }
}

pub(crate) fn require_site(tx: &Transaction<'_>, name: &SiteName) -> Result<SiteRow, CatalogError> {
    find_site(tx, name)?.ok_or_else(|| CatalogError::not_found("site", name))
}

pub(crate) fn find_site(tx: &Transaction<'_>, name: &SiteName) -> Result<Option<SiteRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_SITE} WHERE name = ?1 AND removed IS NULL"))?;
    Ok(select.query_row([name.as_str()], site_row).optional()?)
}

pub(crate) fn find_agent(tx: &Transaction<'_>, id: AgentId) -> Result<Option<AgentRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_AGENT} WHERE a.id = ?1"))?;
    Ok(select.query_row([key!(id)], agent_row).optional()?)
}

pub(crate) fn storage_by_id(tx: &Transaction<'_>, id: StorageId) -> Result<StorageRow, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_STORAGE} WHERE t.id = ?1"))?;
    Ok(select.query_row([key!(id)], storage_row)?)
}

pub(crate) fn find_storage(
    tx: &Transaction<'_>,
    name: &StorageName,
) -> Result<Option<StorageRow>, CatalogError> {
    let mut select =
        tx.prepare_cached(&format!("{SELECT_STORAGE} WHERE t.name = ?1 AND t.removed IS NULL"))?;
    Ok(select.query_row([name.as_str()], storage_row).optional()?)
}

fn site_row(row: &Row<'_>) -> crate::sql::Result<SiteRow> {
    Ok(SiteRow {
        id: row.id(0)?,
        name: row.parsed(1)?,
        state: row.parsed(2)?,
        reason: row.get(3)?,
        limits: SiteLimits {
            active_in: row.get(4)?,
            active_out: row.get(5)?,
            in_bytes_per_s: row.maybe_number(6)?,
            out_bytes_per_s: row.maybe_number(7)?,
        },
        created: row.time(8)?,
        region: row
            .get::<Option<String>>(9)?
            .map(|name| name.parse())
            .transpose()
            .map_err(|error| damaged(9, error))?,
    })
}

fn agent_row(row: &Row<'_>) -> crate::sql::Result<AgentRow> {
    Ok(AgentRow {
        id: row.id(0)?,
        site: row.id(1)?,
        site_name: row.parsed(2)?,
        host: row.get(3)?,
        version: row.get(4)?,
        incarnation: Incarnation { number: row.number(5)?, nonce: row.get::<i64>(6)?.cast_unsigned() },
        addresses: row.json(7)?,
        certificate_expires: row.time(8)?,
        acknowledged: row.number(9)?,
        created: row.time(10)?,
        last_hello: row.maybe_time(11)?,
    })
}

fn storage_row(row: &Row<'_>) -> crate::sql::Result<StorageRow> {
    Ok(StorageRow {
        id: row.id(0)?,
        name: row.parsed(1)?,
        site: row.id(2)?,
        site_name: row.parsed(3)?,
        agent: row.id(4)?,
        rules: row.json(5)?,
        writable: row.get(6)?,
        case_insensitive: row.get(7)?,
        total_bytes: row.number(8)?,
        free_bytes: row.number(9)?,
        trouble: row.fault(10)?,
        files: row.number(11)?,
        bytes: row.number(12)?,
        relay: row.get(13)?,
        strategy: row.get(14)?,
        kind: row.parsed(15)?,
        space_policy: row.parsed(16)?,
        shared_root: row.get(17)?,
    })
}
