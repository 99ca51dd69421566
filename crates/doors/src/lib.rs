//! A door: one storage, open to the world's HTTPS and WebDAV clients (curl, davix, gfal, rclone, XRootD,
//! dCache, browsers), and, where it is on tape, to those of the WLCG Tape REST API.
//!
//! What it promises: a file that comes in is whole or absent (it has its name only when all its bytes are
//! there, agree with every digest that the client sent, and are flushed); nothing outside the exported tree
//! is read or written; memory, connections and waiting have bounds, whatever clients do.
//!
//! Not here: the tree itself (`storage`), certificates (`security`), tape systems (behind [`Tape`]), leases
//! and permits between agents (`engine`: it moves data faster and knows what belongs where). A door decides
//! nothing but who may do what, by [`Rights`].
//!
//! Start with [`Door`]; then `serve`, which sees every request, and `put`, which holds the promise.

mod answer;
mod audit;
mod body;
mod browse;
mod buffers;
mod conditions;
mod digests;
mod get;
mod if_header;
mod least_rate;
mod linked;
mod listen;
mod lock;
mod locks;
mod macaroons;
#[cfg(feature = "testing")]
pub mod promises;
mod properties;
mod propfind;
mod proppatch;
mod put;
mod ranges;
mod request;
mod rights;
mod serve;
mod settings;
mod tape;
mod third_party;
mod tree;
mod trusted_issuers;
mod xml;

pub use audit::AuditSink;
pub use listen::{Door, Renewer};
pub use rights::{Grant, Right, Rights, Subjects, TokenFileError, read_tokens};
pub use settings::{Access, Limits, Outgoing, Settings, Users, VOMS};
pub use tape::{Report, ReportedFile, RequestedFile, StageState, Tape, TapeEnd};
pub use trusted_issuers::{TokenVerifier, TrustedIssuers, VerifyFuture};
