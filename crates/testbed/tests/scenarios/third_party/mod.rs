//! Third-party copies in all pairings of XRootD as Debian has it and the door of a real agent: pulled and
//! pushed, with certificates and with tokens; ordered by our service, and by the programs that people have.
//!
//! `cargo test --release --workspace --test scenarios third_party`

mod cases;
mod clients;
mod gate;
mod issuer;
mod jobs;
mod world;
