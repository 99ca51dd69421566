//! JSON that people, programs, agents and services send each other: what is taken means the same after it was
//! written.

use longhaul_api::Problem;
use longhaul_api::agent::{
    JoinReply, JoinRequest, RenewReply, RenewRequest, Report, ReportReply, Work, WorkRequest,
};
use longhaul_api::native::{
    ChangeEvent, DatasetCreate, DatasetView, DeletionReply, DeletionRequest, FileReplicas, FileView,
    JoinTokenCreate, LoginRequest, ManifestLine, Page, ScanRequest, SiteAdd, SiteChange, SiteView, Status,
    Subscribe, SubscriptionChange, SubscriptionView, TaskView, TokenCreate, TransferDetail, TransferQuery,
    VerificationRequest,
};
use longhaul_model::limits::MANIFEST_LINE_BYTES_MAX;
use longhaul_model::{BlockName, DatasetName};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One type: read, written, read, written.
fn document<T: Serialize + DeserializeOwned>(json: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(json).ok()?;
    let written = serde_json::to_string(&value).expect("what was read can be written");
    let again: T = serde_json::from_str(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
    assert_eq!(serde_json::to_string(&again).ok(), Some(written));
    Some(value)
}

/// The first byte says which document it is.
pub fn agent_documents(bytes: &[u8]) {
    let Some((&which, json)) = bytes.split_first() else { return };
    match which % 8 {
        0 => drop(document::<JoinRequest>(json)),
        1 => drop(document::<JoinReply>(json)),
        2 => drop(document::<WorkRequest>(json)),
        3 => drop(document::<Work>(json)),
        4 => drop(document::<ReportReply>(json)),
        5 => drop(document::<RenewRequest>(json)),
        6 => drop(document::<RenewReply>(json)),
        _ => drop(document::<Report>(json)),
    }
}

pub fn documents(bytes: &[u8]) {
    let Some((&which, json)) = bytes.split_first() else { return };
    match which % 24 {
        0 => drop(document::<Subscribe>(json)),
        1 => drop(document::<SubscriptionChange>(json)),
        2 => drop(document::<DatasetCreate>(json)),
        3 => drop(document::<ScanRequest>(json)),
        4 => drop(document::<DeletionRequest>(json)),
        5 => drop(document::<VerificationRequest>(json)),
        6 => drop(document::<SiteAdd>(json)),
        7 => drop(document::<SiteChange>(json)),
        8 => drop(document::<TokenCreate>(json)),
        9 => drop(document::<JoinTokenCreate>(json)),
        10 => drop(document::<LoginRequest>(json)),
        11 => drop(document::<TransferQuery>(json)),
        12 => drop(document::<ChangeEvent>(json)),
        13 => drop(document::<Problem>(json)),
        14 => drop(document::<TransferDetail>(json)),
        15 => drop(document::<SubscriptionView>(json)),
        16 => drop(document::<SiteView>(json)),
        17 => drop(document::<Status>(json)),
        18 => drop(document::<Page<FileView>>(json)),
        19 => drop(document::<DatasetView>(json)),
        20 => drop(document::<TaskView>(json)),
        21 => drop(document::<DeletionReply>(json)),
        22 => drop(document::<FileReplicas>(json)),
        _ => drop(document::<ManifestLine>(json)),
    }
}

/// A manifest, line by line, with what the service checks of each.
pub fn manifests(bytes: &[u8]) {
    let dataset: DatasetName = "fuzzed".parse().expect("it is a name");
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| line.len() <= MANIFEST_LINE_BYTES_MAX) {
        let Some(file) = document::<ManifestLine>(line) else { continue };
        assert!(!file.lfn.as_str().split('/').any(|component| matches!(component, "" | "." | "..")));
        if let Some(block) = &file.block
            && let Ok(name) = BlockName::parse(&format!("{dataset}#{block}"))
        {
            assert_eq!(name.dataset(), dataset, "a block stays in its dataset");
        }
    }
}
