//! A real door over a real directory, spoken to byte by byte and by the programs that people have.
#![allow(clippy::unwrap_used, clippy::expect_used)] // tests end by panicking

mod basics;
mod clients;
mod hostile;
mod house;
mod third_party;
