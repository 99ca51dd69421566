//! Test data of a command: a dataset of virtual files at one virtual storage, copied to another, and removed
//! again.

use std::time::Duration;

use longhaul_api::native::{
    AttemptView, DatasetCreate, DatasetView, DeletionReply, DeletionRequest, ManifestLine, Registered,
    SiteView, StorageView, Subscribe, SubscriptionChange, SubscriptionView, TaskView, TransferDetail,
    TransferView,
};
use longhaul_api::routes;
use longhaul_api::steering::Terms;
use longhaul_model::{
    CommunityName, DatasetName, FaultCode, Lfn, SiteName, StorageKind, StorageName, SubscriptionState,
    Timestamp,
};
use longhaul_storage::VirtualContent;

use crate::clock;
use crate::failure::Failure;
use crate::remote::Remote;

/// Community of test data; the service gives it a small share.
pub const COMMUNITY: &str = "commissioning";
/// The lowest priority.
const PRIORITY: u8 = 1;
const CLEAN_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time limit of cleaning up, which disconnected agents would hold up; the next clean-up reports the same.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(60);

/// The dataset of one test.
#[derive(Clone, Debug)]
pub struct Trial {
    pub dataset: DatasetName,
    pub source: StorageName,
    pub target: StorageName,
}

/// A site's writable virtual storage, if it has one.
pub fn virtual_storage(site: &SiteView) -> Option<&StorageView> {
    site.storages.iter().find(|storage| storage.kind == StorageKind::Virtual && storage.writable)
}

pub fn is_connected(site: &SiteView) -> bool {
    site.agents.iter().any(|agent| agent.connected)
}

/// The remedy for a site without a virtual storage.
pub fn virtual_storage_remedy(site: &SiteName) -> String {
    format!(
        "give its agent one: kind = \"virtual\" in [[agent.storages]] of its configuration, or longhaul \
            agent run --virtual \
         {site}-test"
    )
}

impl Trial {
    /// Registers files of these sizes at the source.
    pub async fn create(
        remote: &Remote,
        dataset: DatasetName,
        (source, target): (&StorageName, &StorageName),
        sizes: &[u64],
    ) -> Result<Trial, Failure> {
        let lines = manifest(&dataset, source, sizes)?;
        let community: Option<CommunityName> = COMMUNITY.parse().ok();
        let create = DatasetCreate { name: dataset.clone(), community };
        let _: DatasetView = remote.post(&routes::DATASET_CREATE, &[], &create).await?;
        let at = [("storage", Some(source.to_string()))];
        let _: Registered = remote
            .upload_from(&routes::DATASET_ADD_FILES, &[dataset.as_str()], &at, std::io::Cursor::new(lines))
            .await?;
        Ok(Trial { dataset, source: source.clone(), target: target.clone() })
    }

    /// Subscribes the target, which starts the transfers.
    pub async fn subscribe(&self, remote: &Remote) -> Result<SubscriptionView, Failure> {
        let wish = Subscribe {
            dataset: self.dataset.clone(),
            block: None,
            storage: self.target.clone(),
            priority: Some(PRIORITY),
            verification: None,
            custodial: false,
            terms: Terms::default(),
        };
        remote.post(&routes::SUBSCRIPTION_CREATE, &[], &wish).await
    }

    /// All attempts for `files` files.
    pub async fn attempts(&self, remote: &Remote, files: usize) -> Result<Vec<AttemptView>, Failure> {
        let of = [("dataset", Some(self.dataset.to_string()))];
        let transfers: Vec<TransferView> = remote.list(&routes::TRANSFER_LIST, &[], &of, files).await?.items;
        let mut attempts = Vec::new();
        for transfer in transfers {
            let id = transfer.id.to_string();
            let detail: TransferDetail = remote.get(&routes::TRANSFER_SHOW, &[&id], &[]).await?;
            attempts.extend(detail.attempts);
        }
        Ok(attempts)
    }

    /// Cancels transfers, deletes the replicas and then the dataset. May be repeated.
    pub async fn clean_up(&self, remote: &Remote) -> Result<(), Failure> {
        let of = [("dataset", Some(self.dataset.to_string()))];
        // Queried, not remembered: an interruption may come between a request and its reply.
        let wishes: Vec<SubscriptionView> = match remote.list_all(&routes::SUBSCRIPTION_LIST, &[], &of).await
        {
            Err(failure) if failure.problem.code == FaultCode::NotFound => return Ok(()),
            listed => listed?,
        };
        let cancel =
            SubscriptionChange { state: Some(SubscriptionState::Cancelled), ..SubscriptionChange::default() };
        for wish in wishes.iter().filter(|wish| wish.state != SubscriptionState::Cancelled) {
            let _: SubscriptionView =
                remote.patch(&routes::SUBSCRIPTION_CHANGE, &[&wish.id.to_string()], &cancel).await?;
        }
        let until = clock::now().plus(CLEAN_TIMEOUT);
        loop {
            // Files in flight at cancellation may still arrive.
            self.delete_replicas(remote, &self.target, until).await?;
            self.delete_replicas(remote, &self.source, until).await?;
            match remote.delete(&routes::DATASET_DELETE, &[self.dataset.as_str()]).await {
                Err(failure) if failure.problem.code == FaultCode::Conflict && clock::now() < until => {
                    tokio::time::sleep(CLEAN_POLL_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    async fn delete_replicas(
        &self,
        remote: &Remote,
        storage: &StorageName,
        until: Timestamp,
    ) -> Result<(), Failure> {
        let request = DeletionRequest {
            dataset: self.dataset.clone(),
            storage: storage.clone(),
            dry_run: false,
            force: true,
        };
        let reply: DeletionReply = match remote.post(&routes::DELETION_CREATE, &[], &request).await {
            Ok(reply) => reply,
            Err(failure) if failure.problem.code == FaultCode::NotFound => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let Some(task) = reply.task else { return Ok(()) };
        loop {
            let view: TaskView = remote.get(&routes::TASK_SHOW, &[&task.to_string()], &[]).await?;
            if view.done || clock::now() >= until {
                return Ok(());
            }
            tokio::time::sleep(CLEAN_POLL_INTERVAL).await;
        }
    }
}

/// One line per file; the digests are known without generating the bytes.
fn manifest(dataset: &DatasetName, source: &StorageName, sizes: &[u64]) -> Result<Vec<u8>, Failure> {
    let internal = |why: String| Failure::new(FaultCode::Internal, format!("the manifest of a test: {why}"));
    let mut lines = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        let path = format!("{dataset}/from-{source}/{size}-{number}");
        let content =
            VirtualContent::parse(&path).ok_or_else(|| internal(format!("{path} is no virtual file")))?;
        let lfn: Lfn =
            path.parse().map_err(|error: longhaul_model::name::NameError| internal(error.to_string()))?;
        let line = ManifestLine { lfn, size: *size, digests: content.digest().digests(), block: None };
        serde_json::to_writer(&mut lines, &line).map_err(|error| internal(error.to_string()))?;
        lines.push(b'\n');
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_states_what_the_names_stand_for() {
        let lines = manifest(&"load/1".parse().unwrap(), &"alpha-test".parse().unwrap(), &[1_000, 2_000_000])
            .unwrap();
        let lines: Vec<ManifestLine> = lines
            .split(|&b| b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert_eq!(lines[1].lfn.as_str(), "load/1/from-alpha-test/2000000-1");
        assert_eq!((lines[0].size, lines[1].size), (1_000, 2_000_000));
        let content = VirtualContent::parse("from-alpha-test/2000000-1").unwrap();
        assert_eq!(lines[1].digests, content.digest().digests());
    }
}
