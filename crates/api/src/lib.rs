//! Types of requests and replies: the native HTTP API under `/api/v1`, the control protocol of agents, and
//! the FTS3 API; and the errors that all of them use.
//!
//! Pure but for [`client`], the typed HTTP client that commands and agents share; `examples/client.rs` shows
//! it in use. Not here: routing and authorisation (`service`), pages (`web`). Start with [`agent`] for the
//! control protocol and [`native`] for people and programs; [`routes`] lists every route.

#![warn(missing_docs, clippy::missing_errors_doc)]

/// What carries a secret shows nothing of itself in logs.
macro_rules! hides_secrets {
    ($($name:ident),*) => { $(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(secret)"))
            }
        }
    )* };
}
pub(crate) use hides_secrets;

pub mod accounts;
pub mod agent;
pub mod circuits;
#[cfg(feature = "client")]
pub mod client;
pub mod commissioning;
pub mod foreign;
pub mod formats;
pub mod fts;
pub mod jobs;
pub mod limits;
pub mod measured;
pub mod native;
pub mod network;
pub mod openapi;
pub mod pools;
pub mod probe;
pub mod problem;
pub mod rights;
pub mod routes;
pub mod steering;

pub use problem::Problem;

/// Versions of the agent protocol that this build speaks. A version works with the one before it.
pub const AGENT_PROTOCOL: VersionRange = VersionRange { lowest: 1, highest: 5 };

/// An inclusive range of protocol versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct VersionRange {
    /// The lowest version, itself included.
    pub lowest: u16,
    /// The highest version, itself included.
    pub highest: u16,
}

impl VersionRange {
    /// The highest version that both sides speak; none if the ranges do not overlap.
    pub fn agree(self, other: VersionRange) -> Option<u16> {
        let version = self.highest.min(other.highest);
        (version >= self.lowest && version >= other.lowest).then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_out_of_debug_output() {
        let request = native::LoginRequest { token: "lht_canary".into() };
        let created = native::TokenCreated { token: "lht_canary".into(), expires: None };
        let change = accounts::AccountChange { password: Some("canary".into()), ..Default::default() };
        let shown = format!("{request:?} {created:?} {change:?}");
        assert_eq!(shown, "LoginRequest(secret) TokenCreated(secret) AccountChange(secret)");
    }

    #[test]
    fn neighbours_agree_and_strangers_do_not() {
        let old = VersionRange { lowest: 1, highest: 2 };
        let new = VersionRange { lowest: 2, highest: 3 };
        assert_eq!(old.agree(new), Some(2));
        assert_eq!(old.agree(VersionRange { lowest: 3, highest: 4 }), None);
    }
}
