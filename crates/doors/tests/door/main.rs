//! A real door over a real directory, spoken to byte by byte and by the programs that people have.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod as_storage;
mod audit;
mod basics;
mod clients;
mod hostile;
mod house;
mod links;
mod locks;
mod macaroons;
mod revoked_tokens;
mod subjects;
mod tape;
mod third_party;
mod trusted_issuers;
