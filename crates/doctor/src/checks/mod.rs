//! Facts in, findings out. Each module is one subject; none reads anything but what it is given, except
//! `disk` and `credentials`, whose facts are files that the caller names.

pub(crate) mod credentials;
pub(crate) mod disk;
pub(crate) mod host;
pub(crate) mod network;
