//! Data types that the operations take and return. Names and ids are `model`'s.

mod accounts;
mod audit;
mod circuits;
pub(crate) mod codec;
mod datasets;
mod decisions;
mod hosts;
mod jobs;
pub(crate) mod live;
mod login_sessions;
mod refusals;
mod removals;
mod sites;
mod subscriptions;
mod tape;
mod tasks;
mod transfers;

pub use accounts::*;
pub use audit::*;
pub use circuits::*;
pub use datasets::*;
pub use decisions::*;
pub use hosts::*;
pub use jobs::*;
pub use login_sessions::*;
pub use refusals::*;
pub use removals::*;
pub use sites::*;
pub use subscriptions::*;
pub use tape::*;
pub use tasks::*;
pub use transfers::*;
