//! Scenarios of many processes, subject by subject. One program, for each would be linked anew, and one would
//! wait for another.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::expect_used, clippy::print_stdout, clippy::unwrap_used)]

mod agent_circuits;
mod agent_mover;
mod away;
mod by_circuit;
mod campaign;
mod circuits;
mod commission;
mod copy_memory;
mod copy_path;
mod copy_resume;
mod copy_terminal;
mod corpus;
mod deletions;
mod demo;
mod docs;
mod doors;
mod exchange;
mod faults_identity;
mod faults_input;
mod faults_manifest;
mod faults_source;
mod faults_state;
mod faults_target;
mod foreign_storage;
mod hooks;
mod host_certificate;
mod hostile;
mod hostile_reporter;
mod instances;
mod jobs;
mod kill;
mod lifecycle;
mod logins;
mod messages;
mod name_rules;
mod outside_mover;
mod pages;
mod plain_servers;
mod pooled_storage;
mod postgresql;
mod probe_path;
mod recording;
mod remedies;
mod remote_storages;
mod routes;
mod rucio;
mod s3;
mod schemathesis;
mod shared_storage;
mod shift;
mod staged_subscription;
mod steer;
mod tape;
mod third_party;
mod upgrade;
mod wan;
