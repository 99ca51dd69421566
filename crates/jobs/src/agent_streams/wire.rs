//! The order of a copy in the form that agents receive.

use longhaul_api::foreign::{
    AddressFamily, CompareWith, ForeignCopy, ForeignCredential, ForeignEnd, Replace, Secret,
};
use longhaul_model::Epoch;
use longhaul_storage_remote::{ChecksumMode, CopyOrder, Credential, End, Family, Overwrite};

use crate::mover;

/// None for a copy that only the service can make: S3 keys open more than one file, and stay here.
pub async fn to_wire(order: &mover::CopyOrder, epoch: Epoch, wanted: &CopyOrder) -> Option<ForeignCopy> {
    Some(ForeignCopy {
        attempt: order.attempt,
        epoch,
        source: end(&wanted.source).await?,
        target: end(&wanted.target).await?,
        size: wanted.size,
        checksum: wanted.checksum.as_ref().map(ToString::to_string),
        compare: match wanted.checksum_mode {
            ChecksumMode::None => CompareWith::None,
            ChecksumMode::Source => CompareWith::Source,
            ChecksumMode::Target => CompareWith::Target,
            ChecksumMode::Both => CompareWith::Both,
        },
        replace: match wanted.overwrite {
            Overwrite::Never => Replace::Never,
            Overwrite::Always => Replace::Always,
            Overwrite::OnlyOnDisk => Replace::OnlyOnDisk,
        },
        unchecked: wanted.unchecked,
        keeps_partial: wanted.keeps_partial,
        timeout_ms: wanted.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        streams: wanted.streams,
        family: order.family.map(|family| match family {
            Family::V4 => AddressFamily::V4,
            Family::V6 => AddressFamily::V6,
        }),
        scitag: wanted.scitag,
    })
}

async fn end(end: &End) -> Option<ForeignEnd> {
    let credential = match &end.credential {
        Credential::None => ForeignCredential::None,
        Credential::Bearer(token) => ForeignCredential::Bearer { token: Secret::new(token.clone()) },
        // The present token; if it expires during the copy, the next attempt gets another.
        Credential::Refreshing(token) => {
            ForeignCredential::Bearer { token: Secret::new(token.current().await) }
        }
        Credential::Certificate { chain_pem, key_pem } => ForeignCredential::Certificate {
            chain: Secret::new(chain_pem.clone()),
            key: Secret::new(key_pem.clone()),
        },
        Credential::S3(_) => return None,
    };
    Some(ForeignEnd { url: Secret::new(end.url.clone()), credential })
}
