//! The rooms of one service, as its facades and background tasks reach them.

use std::sync::Arc;

use longhaul_control::{Control, Kernel};
use longhaul_identity::Identity;
use longhaul_jobs::JobControl;
use longhaul_model::Timestamp;
use longhaul_netops::NetOps;
use longhaul_storage_remote::Remote;

use crate::Config;
use crate::messages::Messages;
use crate::state_check::LastCheck;
use crate::state_place::PlaceChange;

pub struct ServiceContext {
    pub config: Config,
    pub started: Timestamp,
    /// How agents reach this service, as join tokens say.
    pub public_url: String,
    pub kernel: Arc<Kernel>,
    pub control: Arc<Control>,
    pub identity: Arc<Identity>,
    pub netops: Arc<NetOps>,
    pub job_control: Arc<JobControl>,
    /// The client that asks storages; none if no storage can be asked.
    pub remote: Option<Arc<Remote>>,
    pub messages: Arc<Messages>,
    /// What the last check of the state came to.
    pub(crate) last_check: LastCheck,
    /// Since the last start the state directory has come to another place.
    pub(crate) place_change: Option<PlaceChange>,
    /// The state directory is ours as long as this lives: here, and in each thread that works on it.
    pub state_lock: Arc<longhaul_security::LockFile>,
}
