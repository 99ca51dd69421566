//! Provider agent of NSI CS 2.1 with the quirks of real ones.

mod agent;
mod connection;
mod discovery;
mod jobs;
mod soap;

pub(crate) use agent::{Agent, Callback, Job, answer, handles};
pub(crate) use jobs::{fail_data_plane, force_end, notify_unknown, run_job, set_active};
