//! The catalog: durable state of sites, agents, datasets, files, replicas, subscriptions, transfers, tasks
//! and their history, on SQLite or PostgreSQL.
//!
//! Callers see *intentional operations* ("begin these attempts", "apply this report"); no SQL leaves this
//! crate. Each statement is written once, in what both databases understand, and `sql` runs it on either.
//!
//! Every operation that changes anything is one transaction, on disk when the call returns. Counters (files,
//! bytes, kinds of verification, what a subscription still lacks) change in the transaction that changes what
//! they count, so no page and no start scans the files; [`Catalog::check`] compares the counters with their
//! sums. A complete block at a storage is one row.
//!
//! What follows when replicas come or go (demands, ended transfers, complete subscriptions) is stated in
//! `consequences`.
//!
//! Not here: what to move next (`scheduler`), beliefs about links (`network`), HTTP (`service`). Calls block:
//! make them from threads that may.
//!
//! Start with [`Catalog`]. Its operations are grouped by file in the order in which the data meets them:
//! `sites`, `storage_names`, `datasets`, `registration`, `subscriptions`, `expansion`, `attempts`, `report`,
//! `accusations`, `relay_cleanup`, `tasks`, `task_files`, `deletion`, `removals`, `history`, `check`; `jobs`,
//! `hosts`, `circuits`, `accounts`, `login_sessions`, `audit` and `decisions` are independent.

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod database;
mod error;

mod accounts;
mod accusations;
mod accused_replicas;
mod attempts;
mod audit;
mod block_replica;
mod check;
mod circuits;
mod consequences;
mod copies;
pub mod custody;
mod datasets;
mod decisions;
mod deletion;
mod expansion;
mod history;
mod hosts;
mod jobs;
mod ledger;
mod login_sessions;
mod lost_files;
mod name_owners;
mod presence_range;
mod read_cache;
mod refusals;
mod refused_agents;
mod registration;
mod relay_cleanup;
mod relays;
mod removals;
mod repairs;
mod replicas;
mod report;
mod row_ids;
mod sites;
mod sql;
mod storage_names;
mod subscriptions;
mod task_files;
mod tasks;
mod test_data;
mod tokens;

pub mod rows;

pub use accounts::ACCOUNTS_MAX;
pub use copies::{Copy, CopyDefect, CopyTerms};
#[cfg(feature = "testing")]
pub use database::MemoryDatabase;
pub use database::{Catalog, PAGE_ROWS_MAX, PostgresConfig, PostgresConfigError};
pub use decisions::{DECISIONS_MAX, DOOR_DECISIONS_MAX};
pub use error::{AddError, CatalogError, DatabaseFailure, ManifestError};
pub use hosts::HOSTS_MAX;
pub use jobs::{JobName, StorageStep};
pub use name_owners::{NameBasis, NameOwner, NameOwners, SITE_STORAGES_MAX};
pub use report::admission::{Admission, Claim, Owner, Phase, RULES, Rule, Subject, admit};
pub use rows::*;
pub use sql::DatabaseError;
pub use storage_names::ALLOWED_NAMES_MAX;
pub use tasks::{TASK_PROBLEMS_MAX, TaskResult};
