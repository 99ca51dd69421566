//! One file a case.

pub(crate) mod build;
pub(crate) mod doors;
pub(crate) mod floor;
pub(crate) mod fts;
pub(crate) mod large;
pub(crate) mod limits;
pub(crate) mod register;
pub(crate) mod small;
pub(crate) mod trust;
