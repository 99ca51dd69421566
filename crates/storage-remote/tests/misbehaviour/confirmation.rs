//! Copies that somebody else reports as complete: what the target holds decides.

use longhaul_model::FaultCode;
use longhaul_storage_remote::{ChecksumMode, Mode};

use super::server::Server;
use super::{adler, content, none, order, remote};

const SIZE: usize = 10_000;

#[tokio::test]
async fn a_reported_copy_counts_when_the_target_holds_it() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    source.put("/source", &content(SIZE));
    target.put("/target", &content(SIZE));
    let mut order = order(&source, &target, &[Mode::Stream]);
    assert_eq!(remote().confirm_target(&order).await.unwrap(), SIZE as u64);
    order.checksum = Some(adler(&content(SIZE)));
    order.checksum_mode = ChecksumMode::Both;
    order.size = Some(SIZE as u64);
    assert_eq!(remote().confirm_target(&order).await.unwrap(), SIZE as u64);
}

#[tokio::test]
async fn a_reported_copy_that_is_not_there_is_none() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    source.put("/source", &content(SIZE));
    let fault = remote().confirm_target(&order(&source, &target, &[Mode::Stream])).await.unwrap_err();
    assert!(fault.detail.contains("has not"), "{fault}");
}

#[tokio::test]
async fn a_reported_copy_of_another_size_is_none() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    source.put("/source", &content(SIZE));
    target.put("/target", &content(SIZE - 1));
    let fault = remote().confirm_target(&order(&source, &target, &[Mode::Stream])).await.unwrap_err();
    assert!(fault.detail.contains("file size mismatch (10000 != 9999)"), "{fault}");
}

/// Also where the job asked for no comparison, or for one at the source only: the bytes went through somebody
/// who may say anything.
#[tokio::test]
async fn a_reported_copy_of_other_bytes_is_none() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    source.put("/source", &content(SIZE));
    let mut other = content(SIZE);
    other[SIZE / 2] ^= 1;
    target.put("/target", &other);
    for mode in [ChecksumMode::None, ChecksumMode::Source, ChecksumMode::Both] {
        let mut order = order(&source, &target, &[Mode::Stream]);
        order.checksum = Some(adler(&content(SIZE)));
        order.checksum_mode = mode;
        let fault = remote().confirm_target(&order).await.unwrap_err();
        assert!(fault.detail.contains("checksum do not match"), "{mode:?}: {fault}");
    }
}

#[tokio::test]
async fn a_reported_copy_whose_source_is_gone_is_not_confirmed() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    target.put("/target", &content(SIZE));
    let fault = remote().confirm_target(&order(&source, &target, &[Mode::Stream])).await.unwrap_err();
    assert_eq!(fault.code, FaultCode::SourceMissing);
}
