//! Copies between storages of others: given, held, ended and told, with a storage that does not answer.

use longhaul_api::agent::Work;
use longhaul_api::foreign::{CompareWith, ForeignCopy, ForeignCredential, ForeignEnd, Replace, Secret};
use longhaul_model::{AttemptId, Blame, Epoch, FaultCode};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::one_agent::TestSite;
use crate::ForeignMoverConfig;

/// A site that makes such copies, and may reach these networks.
fn site(allow: &str) -> TestSite {
    let mut site = TestSite::new();
    site.config.mover = ForeignMoverConfig {
        files: 2,
        bytes_per_s: None,
        allow_networks: vec![allow.to_owned()],
        authorities: Vec::new(),
    };
    site
}

fn copy(attempt: u64, at: &TcpListener) -> ForeignCopy {
    let end = |name: &str| ForeignEnd {
        url: Secret::new(format!("http://{}/{name}", at.local_addr().unwrap())),
        credential: ForeignCredential::None,
    };
    ForeignCopy {
        attempt: AttemptId(attempt),
        epoch: Epoch(9),
        source: end("from"),
        target: end("to"),
        size: None,
        checksum: None,
        compare: CompareWith::None,
        replace: Replace::Never,
        unchecked: false,
        keeps_partial: false,
        timeout_ms: None,
        streams: 1,
        family: None,
        scitag: None,
    }
}

async fn storage() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Ends when the other side has hung up.
async fn until_closed(mut connection: TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = connection.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn an_agent_offers_copies_and_refuses_forbidden_networks() {
    let site = site("10.0.0.0/8");
    let agent = site.start();
    let storage = storage().await;
    site.service.send_work(Work { copies: vec![copy(5, &storage)], ..Work::default() });
    let outcomes = site.service.wait_for_outcomes(1).await;
    let fault = outcomes[0].fault.as_ref().unwrap();
    assert_eq!((outcomes[0].attempt, outcomes[0].epoch), (AttemptId(5), Epoch(9)));
    assert_eq!((fault.code, fault.blame), (FaultCode::NotAllowed, Blame::Request), "{fault}");
    assert!(fault.detail.contains("127.0.0.1"), "it says what it does not reach: {fault}");
    let hello = site.service.change(|state| state.hellos[0].1.clone());
    assert_eq!(hello.mover.unwrap().files, 2);
    agent.end().await;
}

#[tokio::test]
async fn a_cancelled_copy_ends_without_an_outcome() {
    let site = site("127.0.0.0/8");
    let agent = site.start();
    let storage = storage().await;
    site.service.send_work(Work { copies: vec![copy(5, &storage)], ..Work::default() });
    let (connection, _) = storage.accept().await.unwrap();
    site.service.cancel(vec![AttemptId(5)]);
    until_closed(connection).await;
    // The next one has an outcome, and is the only one that has.
    site.service.send_work(Work { copies: vec![copy(6, &storage)], ..Work::default() });
    drop(storage.accept().await.unwrap());
    drop(storage);
    let outcomes = site.service.wait_for_outcomes(1).await;
    assert_eq!(outcomes[0].attempt, AttemptId(6));
    agent.end().await;
}

#[tokio::test]
async fn a_copy_interrupted_by_shutdown_is_reported_once_and_not_repeated() {
    let site = site("127.0.0.0/8");
    let agent = site.start();
    let storage = storage().await;
    site.service.send_work(Work { copies: vec![copy(5, &storage)], ..Work::default() });
    let (connection, _) = storage.accept().await.unwrap();
    site.service.change(|state| state.away = true);
    agent.end().await;
    until_closed(connection).await;
    site.service.change(|state| state.away = false);
    let agent = site.start();
    let outcomes = site.service.wait_for_outcomes(1).await;
    let fault = outcomes[0].fault.as_ref().unwrap();
    assert_eq!(
        (outcomes[0].attempt, outcomes[0].epoch, fault.code),
        (AttemptId(5), Epoch(9), FaultCode::Interrupted)
    );
    let hello = site.service.change(|state| state.hellos.last().unwrap().1.clone());
    assert_eq!(hello.held, [AttemptId(5)], "its end is not told yet");
    agent.end().await;
    assert_eq!(site.service.change(|state| state.outcomes().len()), 1);
}

#[tokio::test]
async fn a_restarted_service_ends_all_copies() {
    let site = site("127.0.0.0/8");
    let agent = site.start();
    let storage = storage().await;
    site.service.send_work(Work { copies: vec![copy(5, &storage)], ..Work::default() });
    let (connection, _) = storage.accept().await.unwrap();
    site.service.restart();
    until_closed(connection).await;
    let outcomes = site.service.wait_for_outcomes(1).await;
    assert_eq!(outcomes[0].fault.as_ref().unwrap().code, FaultCode::Interrupted);
    agent.end().await;
}
