//! Durable state: sites, agents, datasets, files, replicas, subscriptions, transfers, tasks and their
//! history, behind one interface of *intentional operations* ("begin these attempts", "apply this report"),
//! on SQLite or PostgreSQL.
//!
//! Each statement is written once, in what both databases speak, and `sql` runs it on either.
//!
//! Every operation that changes anything is one transaction that is on disk when the call returns. What is
//! counted (files, bytes, verification kinds, what a subscription still lacks) is counted in the transaction
//! that changes it, so that no view and no start ever scans the files; [`Catalog::check`] compares the
//! counters with their sums. A complete block at a storage is one row.
//!
//! Not here: what to move next (`scheduler`), beliefs about links (`network`), HTTP (`service`), and no SQL
//! leaves this crate. The calls block: a service makes them from threads that may.
//!
//! Start with [`Catalog`]; its operations are grouped by file as the data meets them: `sites`, `datasets`,
//! `registration`, `subscriptions`, `expansion`, `attempts`, `report`, `relays`, `tasks`, `deletion`,
//! `history`, `check`; `jobs`, `hosts`, `circuits`, `accounts`, `audit` and `decisions` stand by themselves.

mod codec;
pub mod conformance;
mod database;
mod error;

mod accounts;
mod attempts;
mod audit;
mod check;
mod circuits;
mod datasets;
mod decisions;
mod deletion;
mod expansion;
mod history;
mod holding;
mod hosts;
mod jobs;
mod kept;
mod ledger;
mod pair;
mod registration;
mod relays;
mod replicas;
mod report;
mod sites;
mod sql;
mod subscriptions;
mod tasks;
mod tokens;

pub mod rows;

pub use accounts::ACCOUNTS_MAX;
pub use database::{BadPlace, Catalog, PAGE_ROWS_MAX, Place};
pub use decisions::{DECISIONS_MAX, DOOR_DECISIONS_MAX};
pub use error::{AddError, CatalogError, ManifestError};
pub use hosts::HOSTS_MAX;
pub use jobs::{JobName, StorageStep};
pub use rows::*;
pub use sql::DatabaseError;
pub use tasks::{TASK_PROBLEMS_MAX, TaskAdded};
