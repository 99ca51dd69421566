//! Conversion between the service's foreign copies and the orders of `storage-remote`.

use std::time::Duration;

use longhaul_api::agent::{AttemptTimes, Outcome};
use longhaul_api::foreign::{
    AddressFamily, CompareWith, ForeignCopy, ForeignCredential, ForeignEnd, Replace,
};
use longhaul_model::{AttemptId, DigestSet, Epoch, Fault, FaultCode, Verification};
use longhaul_storage_remote::{Checksum, ChecksumMode, CopyOrder, Credential, End, Family, Mode, Overwrite};

pub(super) fn copy_order(copy: &ForeignCopy) -> Result<CopyOrder, Fault> {
    let checksum = copy.checksum.as_deref().map(str::parse::<Checksum>).transpose();
    Ok(CopyOrder {
        size: copy.size,
        checksum: checksum.map_err(|error| Fault::new(FaultCode::BadRequest, error))?,
        checksum_mode: match copy.compare {
            CompareWith::None => ChecksumMode::None,
            CompareWith::Source => ChecksumMode::Source,
            CompareWith::Target => ChecksumMode::Target,
            CompareWith::Both => ChecksumMode::Both,
        },
        overwrite: match copy.replace {
            Replace::Never => Overwrite::Never,
            Replace::Always => Overwrite::Always,
            Replace::OnlyOnDisk => Overwrite::OnlyOnDisk,
        },
        unchecked: copy.unchecked,
        keeps_partial: copy.keeps_partial,
        modes: vec![Mode::Stream],
        timeout: copy.timeout_ms.map(Duration::from_millis),
        streams: copy.streams.max(1),
        scitag: copy.scitag,
        ..CopyOrder::new(copy.attempt.to_string(), copy_end(&copy.source), copy_end(&copy.target))
    })
}

fn copy_end(end: &ForeignEnd) -> End {
    let credential = match &end.credential {
        ForeignCredential::None => Credential::None,
        ForeignCredential::Bearer { token } => Credential::Bearer(token.get().clone()),
        ForeignCredential::Certificate { chain, key } => {
            Credential::Certificate { chain_pem: chain.get().clone(), key_pem: key.get().clone() }
        }
    };
    End::new(end.url.get().as_str(), credential)
}

pub(super) fn family(copy: &ForeignCopy) -> Option<Family> {
    copy.family.map(|family| match family {
        AddressFamily::V4 => Family::V4,
        AddressFamily::V6 => Family::V6,
    })
}

/// The outcome of a copy, with its bytes if it succeeded.
pub(super) fn copy_outcome(
    attempt: AttemptId,
    epoch: Epoch,
    result: Result<u64, Fault>,
    times: AttemptTimes,
) -> Outcome {
    let (bytes_moved, fault) = match result {
        Ok(bytes) => (bytes, None),
        Err(fault) => (0, Some(fault)),
    };
    Outcome {
        attempt,
        epoch,
        fault,
        digests: DigestSet::default(),
        verification: Verification::Wire,
        already_there: false,
        bytes_moved,
        bytes_resent: 0,
        executor: None,
        times,
    }
}
