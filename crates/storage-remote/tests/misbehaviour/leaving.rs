//! Copies of which no byte is to go through us: what storages cannot do by themselves is left, and nothing is
//! left behind.

use longhaul_storage_remote::CopyOutcome;

use super::*;

async fn copy_or_leave(order: &CopyOrder) -> Result<CopyOutcome, Fault> {
    remote().copy_or_leave(order, &|_| {}, &Cancel::never()).await
}

#[tokio::test]
async fn what_would_be_streamed_is_left_and_no_byte_was_asked_for() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    source.put("/source", &content(1_000));
    let plain = order(&source, &target, Mode::ALL);
    let CopyOutcome::ToStream(before) = copy_or_leave(&plain).await.unwrap() else { panic!("it was copied") };
    assert!(
        before.len() == 2 && before[0].starts_with("pull: ") && before[1].starts_with("push: "),
        "{before:?}"
    );
    // A checksum that the source does not tell is computed on the way: by whoever streams it.
    let mut compared = order(&source, &target, Mode::ALL);
    (compared.checksum, compared.checksum_mode) = (Some("ADLER32".parse().unwrap()), ChecksumMode::Both);
    assert_eq!(copy_or_leave(&compared).await.unwrap(), CopyOutcome::ToStream(Vec::new()));
    assert!(source.asked("GET").is_empty() && target.asked("PUT").is_empty());
    assert_eq!(target.names(), Vec::<String>::new());
    // The same order with what was left of it is a copy like any other.
    compared.modes = vec![Mode::Stream];
    assert_eq!(copy(&compared).await.unwrap().mode, Mode::Stream);
    assert_eq!(target.get("/target"), Some(content(1_000)));
}

#[tokio::test]
async fn what_is_wrong_is_told_at_once_and_nothing_is_left_of_an_order_without_streams() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    let missing = copy_or_leave(&order(&source, &target, Mode::ALL)).await.unwrap_err();
    assert_eq!(missing.code, FaultCode::SourceMissing, "{missing}");
    source.put("/source", &content(1_000));
    target.put("/target", b"there");
    let clash = copy_or_leave(&order(&source, &target, Mode::ALL)).await.unwrap_err();
    assert_eq!(clash.code, FaultCode::NameClash, "{clash}");
    let never = copy_or_leave(&order(&source, &Server::start(none).await, &[Mode::Pull])).await;
    assert!(never.is_err(), "a stream is left only where the order has it");
}
