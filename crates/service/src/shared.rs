//! The rooms of one service, as its facades and background tasks reach them.

use std::sync::Arc;

use longhaul_control::{Control, Kernel};
use longhaul_identity::Identity;
use longhaul_model::Timestamp;
use longhaul_netops::NetOps;
use longhaul_storage_remote::Remote;

use crate::Config;
use crate::jobs::by_circuit::CircuitBacklog;
use crate::jobs::{Jobs, QueuedFiles, Tokens};
use crate::messages::Messages;

pub struct Shared {
    pub config: Config,
    pub started: Timestamp,
    /// How agents reach this service, as join tokens say.
    pub public_url: String,
    pub kernel: Arc<Kernel>,
    pub control: Arc<Control>,
    pub identity: Arc<Identity>,
    pub netops: Arc<NetOps>,
    pub backlog: Arc<CircuitBacklog>,
    pub fts: Arc<crate::fts::ConfigStore>,
    pub tokens: Tokens,
    pub queued: QueuedFiles,
    /// The client that asks storages; none if no storage can be asked.
    pub remote: Option<Arc<Remote>>,
    pub jobs: Jobs,
    pub messages: Messages,
    /// The state directory is ours as long as this lives.
    pub _lock: std::fs::File,
}

impl Shared {
    /// The name of this service to those who come from elsewhere.
    pub fn own_host(&self) -> String {
        let url: Option<http::Uri> = self.public_url.parse().ok();
        url.and_then(|url| url.host().map(str::to_owned)).unwrap_or_default()
    }

    /// Whether an administrator lets no copy of a job begin.
    pub fn drains(&self) -> bool {
        self.fts.get().is_ok_and(|configured| configured.draining.contains(&self.own_host()))
    }
}
