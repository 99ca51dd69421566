//! Storages and people that are kept out, and what becomes of what waits for them.

use http::Method;
use longhaul_api::fts::{Ban, BanStatus, Level, Refusal};
use longhaul_catalog::StorageStep;
use longhaul_model::JobId;

use super::jobs::cancel_where;
use super::request::{FtsRequest, Reply};
use super::routes;
use crate::operations::Operations;

const STORAGE_BANNED: &str = "Storage banned";
const USER_BANNED: &str = "User banned";

/// The VO that the caller's bans are about: their own, or everybody's for an administrator.
fn whose(ask: &FtsRequest) -> String {
    if ask.person.is_root { "*".to_owned() } else { ask.person.vo().to_owned() }
}

fn at(operations: &Operations) -> i64 {
    operations.now().as_micros() / 1_000_000
}

pub fn storages(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let level = ask.person.needs("config")?;
    let kept = || operations.shared.job_control.config_store.get();
    let vo = whose(ask);
    if ask.method == Method::GET {
        let kept = kept()?;
        let shown = kept.banned_storages.iter();
        let shown = shown.filter(|ban| level == Level::All || ban.vo == "*" || ban.vo == ask.person.vo());
        return Reply::json(&shown.map(Ban::storage_view).collect::<Vec<_>>());
    }
    if ask.method == Method::POST {
        let (storage, status, message) = Ban::storage(&ask.dictionary()?)?;
        let ban = Ban {
            who: storage.clone(),
            message,
            since: at(operations),
            admin_dn: ask.person.dn.clone(),
            vo: vo.clone(),
            status,
        };
        change(operations, ask, |objects| {
            objects.banned_storages.retain(|kept| !(kept.who == ban.who && kept.vo == ban.vo));
            let what = format!("storage {} banned for {} ({:?})", ban.who, ban.vo, ban.status);
            objects.banned_storages.push(ban);
            Ok(((), what))
        })?;
        let step =
            if status == BanStatus::Cancel { StorageStep::Cancel(STORAGE_BANNED) } else { StorageStep::Hold };
        return Reply::json(&step_all(operations, &storage, &vo, step)?);
    }
    if ask.method == Method::DELETE {
        let storage = ask.query.get("storage").ok_or_else(|| Refusal::bad("Missing storage parameter"))?;
        let storage = longhaul_model::job::storage_element(storage).unwrap_or_else(|| storage.to_owned());
        change(operations, ask, |objects| {
            objects
                .banned_storages
                .retain(|ban| !(ban.who == storage && (ban.vo == vo || ask.person.is_root)));
            Ok(((), format!("storage {storage} no longer banned for {vo}")))
        })?;
        // What another ban still keeps out stays where it is.
        if kept()?.ban_of(&storage, &vo).is_none() {
            step_all(operations, &storage, &vo, StorageStep::Release)?;
        }
        return Ok(Reply::nothing());
    }
    Err(routes::refused(ask))
}

/// A change of the configuration, recorded.
pub fn change<T>(
    operations: &Operations,
    ask: &FtsRequest,
    change: impl FnOnce(&mut longhaul_jobs::config_store::Objects) -> Result<(T, String), Refusal>,
) -> Result<T, Refusal> {
    operations.shared.job_control.config_store.change(&ask.person.dn, operations.now(), change)
}

/// Piece by piece, so that others get their turn at the catalog.
fn step_all(
    operations: &Operations,
    storage: &str,
    vo: &str,
    step: StorageStep<'static>,
) -> Result<Vec<JobId>, Refusal> {
    let vo = (vo != "*").then_some(vo);
    let mut all: Vec<JobId> = Vec::new();
    loop {
        let jobs = operations.shared.job_control.step_storage_jobs(storage, vo, step)?;
        if jobs.is_empty() {
            all.sort();
            all.dedup();
            return Ok(all);
        }
        all.extend(jobs);
    }
}

pub fn people(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    ask.person.needs_all("config")?;
    if ask.method == Method::GET {
        let kept = operations.shared.job_control.config_store.get()?;
        return Reply::json(&kept.banned_people.iter().map(Ban::person_view).collect::<Vec<_>>());
    }
    if ask.method == Method::POST {
        let (dn, message) = Ban::person(&ask.dictionary()?)?;
        if dn == ask.person.dn {
            return Err(Refusal::new(409, "The user tried to ban (her|his)self"));
        }
        let ban = Ban {
            who: dn.clone(),
            message,
            since: at(operations),
            admin_dn: ask.person.dn.clone(),
            vo: "*".to_owned(),
            status: BanStatus::Cancel,
        };
        change(operations, ask, |objects| {
            objects.banned_people.retain(|kept| kept.who != ban.who);
            let what = format!("person {} banned", ban.who);
            objects.banned_people.push(ban);
            Ok(((), what))
        })?;
        let (jobs, _) = cancel_where(operations, USER_BANNED, |query| query.user = Some(dn.clone()))?;
        return Reply::json(&jobs);
    }
    if ask.method == Method::DELETE {
        let dn = ask.query.get("user_dn").ok_or_else(|| Refusal::bad("Missing user_dn parameter"))?;
        change(operations, ask, |objects| {
            objects.banned_people.retain(|ban| ban.who != dn);
            Ok(((), format!("person {dn} no longer banned")))
        })?;
        return Ok(Reply::nothing());
    }
    Err(routes::refused(ask))
}
