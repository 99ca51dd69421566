//! A requester agent of NSI CS 2.1: reserve, commit, provision and terminate, with callbacks, with polling,
//! or with both.
//!
//! A confirmation counts if it has the correlation id of a call of ours, which nobody else knows. Everything
//! else that is said, by whomever, is a reason to ask the provider and no more. Whatever a call came to, a
//! query decides: a lost acknowledgement is looked for in the provider's list under our own name of the
//! request before it is asked for again.
//!
//! Start with [`Nsi`], which has neither socket nor clock.

mod answers;
mod connection;
mod dialogue;
mod discovery;
mod handlers;
mod listing;
mod messages;
#[cfg(test)]
mod tests;
mod xml;

use std::net::SocketAddr;
use std::time::Duration;

use longhaul_circuits::CircuitEndpoints;
use longhaul_model::{Fault, FaultCode};

use super::Provider;
use super::config::Access;
use super::remote::{Caller, Ground};
use dialogue::{Ids, Nsi};
pub(super) use messages::acknowledge;

/// A provider that speaks NSI, and what is wanted of it.
#[derive(Clone, Debug, PartialEq)]
pub struct NsiConfig {
    /// The connection service; with who it is, or to be found by `discovery`.
    pub(crate) url: Option<String>,
    pub(crate) provider_nsa: Option<String>,
    pub(crate) discovery: Option<String>,
    /// Our own NSA id.
    pub(crate) requester_nsa: String,
    pub(crate) source_stp: String,
    pub(crate) target_stp: String,
    /// Where the provider calls back; none: poll.
    pub(crate) listen: Option<SocketAddr>,
    /// The callback URL for the provider, if it differs from `listen`.
    pub(crate) reply_to: Option<String>,
    /// A hold that lasts longer is taken for lost.
    pub(crate) hold: Duration,
    pub(crate) access: Access,
    pub(crate) ends: CircuitEndpoints,
}

pub(super) fn open(
    config: &NsiConfig,
    link: &str,
    ground: Ground,
    caller: Caller,
) -> Result<Box<dyn Provider>, Fault> {
    let listened = config.listen.map(|address| ground.listen(address, acknowledge)).transpose()?;
    let reply_to = config.reply_to.clone().or(listened.map(|at| format!("http://{at}/nsi/requester")));
    let names = ground.read_names()?;
    let nsi = Nsi::new(config.clone(), link, reply_to, names, random_numbers()?);
    Ok(Box::new(ground.start(caller, Box::new(nsi))))
}

/// A dialogue with deterministic ids: 1, 2, 3, ...
#[cfg(any(test, feature = "testing"))]
pub(super) fn rehearsed(config: &NsiConfig, link: &str) -> Nsi {
    let reply_to = config.listen.map(|at| format!("http://{at}/nsi/requester"));
    let mut count = 0;
    let ids = move || {
        count += 1;
        count
    };
    Nsi::new(config.clone(), link, reply_to, Default::default(), Box::new(ids))
}

/// Nothing is confirmed by a number that could be guessed.
fn random_numbers() -> Result<Ids, Fault> {
    let mut key = [0; 32];
    aws_lc_rs::rand::fill(&mut key)
        .map_err(|_| Fault::new(FaultCode::Internal, "the system gives no random numbers"))?;
    let mut count = 0_u64;
    Ok(Box::new(move || {
        count += 1;
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::keyed_hash(&key, &count.to_be_bytes()).as_bytes()[..16]);
        u128::from_be_bytes(bytes)
    }))
}
