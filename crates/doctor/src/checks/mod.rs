//! Checks: facts in, findings out, one module per subject. None does I/O, except `disk` and `credentials`,
//! whose facts are files that the caller names.

pub(crate) mod credentials;
pub(crate) mod disk;
pub(crate) mod host;
pub(crate) mod network;
