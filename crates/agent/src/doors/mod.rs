//! Doors: the agent's protocol endpoints for outside clients. They open and close with the agent; files of
//! certificates, tokens and maps are reloaded when they change.

mod access;
mod users;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_doors::{
    Access, Door, Outgoing, Renewer, Settings, TapeEnd, TokenVerifier, TrustedIssuers, Users,
};
use longhaul_gateways::issuers::Issuers;
use longhaul_model::{Fault, FaultCode, SiteName, StorageName, Timestamp};
use longhaul_security::grid::GridTrust;
use longhaul_security::{Credentials, hash_secret};
use longhaul_storage::Storage;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::ServiceClock;
use crate::config::doors::DoorConfig;
use crate::door_audit::{DoorAudit, DoorAuditSink};
use crate::tape::Tapes;
use crate::threads::blocking;
use users::{DoorIssuers, DoorUsers};

/// Interval of checks whether certificates, tokens or maps have changed.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// The doors of an agent, checked and loaded, not open yet.
pub(crate) struct Doors {
    doors: Vec<PreparedDoor>,
    deployment: String,
    owner: [u8; 8],
    /// Parent of one directory per door for properties that clients set on files.
    properties: PathBuf,
}

struct PreparedDoor {
    config: DoorConfig,
    storage: Arc<dyn Storage>,
    access: Access,
    outgoing: Option<Arc<Outgoing>>,
    issuers: Option<Issuers>,
    users: Option<GridTrust>,
    tape: Option<TapeEnd>,
    /// Hash of the files from which the access was read.
    seen: [u8; 32],
}

impl Doors {
    pub(crate) fn prepare(
        configs: &[DoorConfig],
        storages: &[Arc<dyn Storage>],
        own: &Credentials,
        agent: u64,
        properties: PathBuf,
        now: Timestamp,
    ) -> Result<Doors, Fault> {
        let mut prepared = Vec::new();
        for config in configs {
            let found = storages.iter().find(|storage| *storage.name() == config.storage);
            let storage =
                found.ok_or_else(|| Fault::new(FaultCode::BadRequest, "a door without a storage"))?;
            let (access, seen) = config.read_access(own)?;
            let (outgoing, issuers, users) = (config.outgoing()?, config.issuers()?, config.users(now)?);
            prepared.push(PreparedDoor {
                config: config.clone(),
                storage: storage.clone(),
                access,
                outgoing,
                issuers,
                users,
                tape: None,
                seen,
            });
        }
        // The engine's files in a work directory have another prefix.
        let mut owner = [0; 8];
        owner.copy_from_slice(&hash_secret(&format!("doors of {agent}"))[..8]);
        let deployment = own.identity()?.deployment().to_owned();
        Ok(Doors { doors: prepared, deployment, owner, properties })
    }

    /// Gives the doors of tape-backed storages their tape drivers.
    pub(crate) fn attach_tapes(&mut self, tapes: &Tapes, site: &SiteName) {
        for door in &mut self.doors {
            let tape = tapes.tape_of(&door.config.storage);
            door.tape = tape.map(|tape| TapeEnd { tape, site: site.to_string() });
        }
    }

    /// Opens the doors and serves until told to stop; returns earlier only with a fault.
    pub(crate) async fn run(
        self,
        credentials: impl Fn() -> Option<Credentials> + Send + Sync + 'static,
        clock: ServiceClock,
        decided: Arc<DoorAudit>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Fault> {
        let mut open = JoinSet::new();
        let mut renewals = Vec::new();
        let mut doors_of: BTreeMap<StorageName, usize> = BTreeMap::new();
        for PreparedDoor { config, storage, access, outgoing, issuers, users, tape, seen } in self.doors {
            // Two doors of one storage do not share properties.
            let number = doors_of.entry(config.storage.clone()).or_default();
            *number += 1;
            let directory = format!("{}.{number}", config.storage);
            let issuers = issuers.map(|issuers| Arc::new(DoorIssuers { issuers, clock: clock.clone() }));
            let issued = issuers.clone().map(|issuers| TrustedIssuers {
                verifier: issuers as Arc<dyn TokenVerifier>,
                areas: config.issuer_areas(),
            });
            let users = users.map(|trust| {
                let (deployment, clock) = (self.deployment.clone(), clock.clone());
                Arc::new(DoorUsers { trust, deployment, clock, reported_problems: Mutex::default() })
            });
            let settings = Settings {
                storage,
                names: config.names.clone(),
                make_parents: config.make_parents,
                delete_trees: config.delete_trees,
                owner: self.owner,
                properties: Some(self.properties.join(directory)),
                outgoing,
                users: users.clone().map(|users| users as Arc<dyn Users>),
                issued,
                tape,
                audit: Some(Arc::new(DoorAuditSink(decided.clone()))),
                limits: config.limits(),
            };
            let door = Door::open(settings, access, &config.listen).await?;
            tracing::info!(storage = %config.storage, addresses = ?door.addresses(), "door open");
            renewals.push(DoorReload { config, renewer: door.renewer(), users, seen });
            open.spawn(door.run(stop.clone()));
            issuers.map(|issuers| open.spawn(issuers.refresh_on(stop.clone())));
        }
        while !stopped_within(RELOAD_INTERVAL, &mut stop).await {
            if let Some(own) = credentials() {
                renewals = reload_doors(renewals, own).await?;
            }
        }
        while open.join_next().await.is_some() {}
        Ok(())
    }
}

/// Waits that long; true if told to stop meanwhile.
async fn stopped_within(time: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => true,
        () = tokio::time::sleep(time) => false,
    }
}

/// What has to be reloaded for one door.
struct DoorReload {
    config: DoorConfig,
    renewer: Renewer,
    users: Option<Arc<DoorUsers>>,
    /// Hash of the files as last read.
    seen: [u8; 32],
}

/// Reloads what has changed; unreadable files leave the old state and a warning.
async fn reload_doors(mut renewals: Vec<DoorReload>, own: Credentials) -> Result<Vec<DoorReload>, Fault> {
    blocking(move || {
        for DoorReload { config, renewer, users, seen } in &mut renewals {
            users.iter().for_each(|users| users.reload());
            match config.read_access(&own) {
                Ok((_, now)) if now == *seen => {}
                Ok((access, now)) => {
                    tracing::info!(storage = %config.storage, "a door's certificates or rights have changed");
                    renewer.renew(access);
                    *seen = now;
                }
                Err(fault) => {
                    tracing::warn!(storage = %config.storage, fault = %fault.chain(),
                        "a door keeps its old certificates and \
                        rights")
                }
            }
        }
        Ok(renewals)
    })
    .await
}
