//! The catalog in a database of PostgreSQL: one connection writes, a few read, and each is made again when it
//! was lost.
//!
//! What the server is asked to commit while the connection breaks may be committed or not. The next
//! connection asks what became of it, so that an answer to a caller is as sure as one of SQLite's.

use std::cell::RefCell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use longhaul_model::Timestamp;

use super::pool::Pool;
use super::postgres_config::PostgresConfig;
use super::{BUSY_WAIT, format_since, next_format};
use crate::CatalogError;
use crate::sql::{Session, Transaction, translate_definitions};
use crate::sync::locked;

/// Held by the connection that writes: "LHCATALG", for one catalog in each database.
const WRITER_ADVISORY_LOCK: i64 = 0x4c48_4341_5441_4c47;
/// Between two looks at a server that does not know yet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Every statement is a look into an index, or a page of one. A plan that was made while a table was small,
/// and kept, would read all of it when it is large.
const PLANNER_SETTINGS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off";
/// What of SQLite our statements use and PostgreSQL lacks.
const COMPATIBILITY_FUNCTIONS: &str =
    "CREATE FUNCTION json_extract(document TEXT, path TEXT) RETURNS TEXT LANGUAGE SQL IMMUTABLE
    AS $$ SELECT document::jsonb #>> string_to_array(substr(path, 3), '.') $$";

pub(super) struct Postgres {
    config: PostgresConfig,
    readers: Pool<RefCell<Session>>,
    /// None after it was lost.
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
        let mut kept = locked(&self.writer);
        // Out of its place as long as a transaction is open: a panic closes it, and the server goes back.
        let (session, number) = self.begin_write(kept.take())?;
        let session = RefCell::new(session);
        let changed = change(&Transaction::Postgres(&session));
        let mut session = session.into_inner();
        let value = match changed {
            Ok(value) => value,
            Err(error) => {
                *kept = session.roll_back().is_ok().then_some(session);
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
        *kept = Some(session);
        refused.map_or(Ok(value), |error| Err(CatalogError::from(error).into()))
    }

    /// With the number of the transaction. A connection that was lost is made again, since nothing was asked
    /// yet.
    fn begin_write(&self, kept: Option<Session>) -> Result<(Session, String), CatalogError> {
        if let Some(mut session) = kept {
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

    /// Whether a transaction was committed whose commit has no answer, and a new connection.
    fn resolve_commit(&self, number: &str) -> Result<(Session, bool), CatalogError> {
        let until = Instant::now() + BUSY_WAIT;
        loop {
            let asked = connect_writer(&self.config).and_then(|mut session| {
                let stands = session.query_text(&format!("SELECT pg_xact_status('{number}'::xid8)"))?;
                Ok((session, stands))
            });
            match asked {
                Ok((session, stands)) if stands == "committed" => return Ok((session, true)),
                Ok((session, stands)) if stands == "aborted" => return Ok((session, false)),
                Err(error) if Instant::now() >= until => return Err(error),
                Ok(_) if Instant::now() >= until => {
                    return Err(CatalogError::Busy(
                        "the connection broke while it committed, and the server does not know yet".into(),
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
            // Nothing was written; if this fails, so does the next beginning, and connects again.
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
    // A connection that broke may hold it until the server has noticed.
    while session.query_text(&format!("SELECT pg_try_advisory_lock({WRITER_ADVISORY_LOCK})"))? != "t" {
        if Instant::now() >= until {
            return Err(CatalogError::Unusable(format!(
                "another service uses {place}: stop it first, or give this one a database of its own"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let durable = session.query_text("SHOW synchronous_commit")?;
    if durable == "off" {
        return Err(CatalogError::Unusable(format!(
            "{place} has synchronous_commit = off: what was answered could be lost; set it to on"
        )));
    }
    Ok(session)
}

/// The number of the format lies in a table of its own, beside the others.
fn migrate(writer: &mut Session, now: Timestamp) -> Result<(), CatalogError> {
    writer.batch_execute("CREATE TABLE IF NOT EXISTS format (number BIGINT NOT NULL)")?;
    loop {
        let found = writer.query_text("SELECT coalesce(max(number), 0) FROM format")?;
        let found =
            found.parse().map_err(|_| CatalogError::Corrupt(format!("a format of number {found}")))?;
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
