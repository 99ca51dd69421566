//! A provider agent of NSI CS 2.1 with the habits of those that are in use.

mod agent;
mod connection;
mod discovery;
mod jobs;
mod soap;

pub(crate) use agent::{Agent, Callback, Job, answer, handles};
pub(crate) use jobs::{break_down, carry_out, force_end, set_active, tell_of_unknown};
