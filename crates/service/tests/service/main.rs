//! The service over real sockets, subject by subject. One program, for each would be linked with all of the
//! service.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod absent;
mod bombs;
mod bounds;
mod circuits;
mod confined;
mod connections;
mod copies;
mod decisions;
mod door;
mod facts;
mod fts;
mod host_certificate;
mod isolation;
mod jobs;
mod managed;
mod mapping;
mod marks;
mod measured;
mod movers;
mod names;
mod network;
mod owners;
mod path;
mod people;
mod plan;
mod probes;
mod refusals;
mod removals;
mod secrets;
mod sessions;
mod shared_storages;
mod space;
mod staging;
mod steering;
mod storage_names;
mod streams;
mod tape;
mod tape_system;
mod world;
