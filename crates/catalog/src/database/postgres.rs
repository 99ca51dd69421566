//! The catalog in PostgreSQL: one connection writes, a few read, and each reconnects when it was lost.
//!
//! If the connection breaks during a commit, the transaction may be committed or not. The next connection
//! asks the server (`pg_xact_status`), so a caller's answer is as certain as with SQLite.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use longhaul_model::Timestamp;
use parking_lot::Mutex;

use super::pool::Pool;
use super::postgres_config::PostgresConfig;
use super::{BUSY_WAIT, format_since, next_format};
use crate::CatalogError;
use crate::sql::{Session, Transaction, translate_definitions};

/// Advisory lock of the connection that writes: "LHCATALG" in ASCII. One service writes to a database.
const WRITER_ADVISORY_LOCK: i64 = 0x4c48_4341_5441_4c47;
/// Wait between two questions to a server that has not released a lock, or resolved a commit, yet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Planner settings of every connection: use indexes only. Every statement reads an index or a page of one,
/// but a plan that was cached while its table was small would scan the whole table when it is large.
const PLANNER_SETTINGS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off";
/// Functions of SQLite that our statements use and PostgreSQL lacks.
const COMPATIBILITY_FUNCTIONS: &str =
    "CREATE FUNCTION json_extract(document TEXT, path TEXT) RETURNS TEXT LANGUAGE SQL IMMUTABLE
    AS $$ SELECT document::jsonb #>> string_to_array(substr(path, 3), '.') $$";

pub(super) struct Postgres {
    config: PostgresConfig,
    readers: Pool<RefCell<Session>>,
    /// None after the connection was lost.
    writer: Mutex<Option<Session>>,
}

impl Postgres {
    pub(super) fn open(place: &PostgresConfig, now: Timestamp) -> Result<Postgres, CatalogError> {
        let mut writer = connect_writer(place)?;
        migrate(&mut writer, now)?;
        Ok(Postgres { config: place.clone(), readers: Pool::default(), writer: Mutex::new(Some(writer)) })
    }

    pub(super) fn write<T, E: From<CatalogError>>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut slot = self.writer.lock();
        // Taken out while a transaction is open: a panic drops it, and the server rolls back.
        let (session, number) = self.begin_write(slot.take())?;
        let session = RefCell::new(session);
        let changed = change(&Transaction::Postgres(&session));
        let mut session = session.into_inner();
        let value = match changed {
            Ok(value) => value,
            Err(error) => {
                *slot = session.roll_back().is_ok().then_some(session);
                return Err(error);
            }
        };
        let (session, refused) = match session.commit() {
            Ok(()) => (session, None),
            Err(error) if !session.is_closed() => (session, Some(error)),
            Err(error) => {
                let (session, committed) = self.resolve_commit(&number)?;
                (session, (!committed).then_some(error))
            }
        };
        *slot = Some(session);
        refused.map_or(Ok(value), |error| Err(CatalogError::from(error).into()))
    }

    /// Begins a transaction and returns its number. Reconnects if the connection was lost, since nothing was
    /// written yet.
    fn begin_write(&self, slot: Option<Session>) -> Result<(Session, String), CatalogError> {
        if let Some(mut session) = slot {
            match session.begin_write() {
                Ok(number) => return Ok((session, number)),
                Err(error) if !session.is_closed() => return Err(error.into()),
                Err(_) => tracing::warn!("the connection to the database was lost; connecting again"),
            }
        }
        let mut session = connect_writer(&self.config)?;
        let number = session.begin_write()?;
        Ok((session, number))
    }

    /// Finds out on a new connection whether a transaction was committed whose commit got no answer.
    fn resolve_commit(&self, number: &str) -> Result<(Session, bool), CatalogError> {
        let until = Instant::now() + BUSY_WAIT;
        loop {
            let outcome = connect_writer(&self.config).and_then(|mut session| {
                let stands = session.query_text(&format!("SELECT pg_xact_status('{number}'::xid8)"))?;
                Ok((session, stands))
            });
            match outcome {
                Ok((session, stands)) if stands == "committed" => return Ok((session, true)),
                Ok((session, stands)) if stands == "aborted" => return Ok((session, false)),
                Err(error) if Instant::now() >= until => return Err(error),
                Ok(_) if Instant::now() >= until => {
                    return Err(CatalogError::Busy(
                        "the connection broke during a commit, and the server cannot tell its outcome yet"
                            .into(),
                    ));
                }
                Ok(_) | Err(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    pub(super) fn read<T>(
        &self,
        limit: Duration,
        query: impl FnOnce(&Transaction<'_>) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let connect = || Ok(RefCell::new(connect(&self.config)?));
        self.readers.acquire(connect)?.with(|session| {
            if session.get_mut().begin_read(limit).is_err() {
                *session = connect()?;
                session.get_mut().begin_read(limit)?;
            }
            let value = query(&Transaction::Postgres(session));
            // Nothing was written. If this fails, so does the next `begin_read`, which reconnects.
            let _ = session.get_mut().roll_back();
            value
        })
    }
}

fn connect(place: &PostgresConfig) -> Result<Session, CatalogError> {
    let mut session = place.connect()?;
    session.batch_execute(PLANNER_SETTINGS)?;
    Ok(session)
}

fn connect_writer(place: &PostgresConfig) -> Result<Session, CatalogError> {
    let until = Instant::now() + BUSY_WAIT;
    let mut session = connect(place)?;
    // A broken connection may hold the lock until the server notices.
    while session.query_text(&format!("SELECT pg_try_advisory_lock({WRITER_ADVISORY_LOCK})"))? != "t" {
        if Instant::now() >= until {
            return Err(CatalogError::Unusable(
                format!(
                    "another service uses {place}: stop it first, or give this one a database of its own"
                )
                .into(),
            ));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let durable = session.query_text("SHOW synchronous_commit")?;
    if durable == "off" {
        return Err(CatalogError::Unusable(
            format!("{place} has synchronous_commit = off: acknowledged changes could be lost; set it to on")
                .into(),
        ));
    }
    Ok(session)
}

/// Applies the missing migrations. The number of the present format is in a table of its own.
fn migrate(writer: &mut Session, now: Timestamp) -> Result<(), CatalogError> {
    writer.batch_execute("CREATE TABLE IF NOT EXISTS format (number BIGINT NOT NULL)")?;
    loop {
        let found = writer.query_text("SELECT coalesce(max(number), 0) FROM format")?;
        let found =
            found.parse().map_err(|_| CatalogError::Corrupt(format!("a format of number {found}").into()))?;
        let Some((script, next)) = next_format(found)? else { return Ok(()) };
        let before = if found == 0 { COMPATIBILITY_FUNCTIONS } else { "" };
        let (name, since) = format_since(next, now);
        writer.batch_execute(&format!(
            "BEGIN; {before}; {}; INSERT INTO settings (name, value) VALUES ('{name}', '{since}'); \
             DELETE FROM format; INSERT INTO format VALUES ({next}); COMMIT",
            translate_definitions(script)
        ))?;
        tracing::info!(format = next, "the database has a new format");
    }
}
