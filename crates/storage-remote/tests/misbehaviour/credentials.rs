//! Credentials that end in the midst of a copy: another is shown once where there is one, and else it is said
//! whose turn it is.

use std::pin::Pin;
use std::sync::Mutex;

use longhaul_storage_remote::{RefreshResult, RefreshingToken, TokenRefresher};

use super::*;

/// Gives these, one after the other; counts how often it was asked after a refusal.
#[derive(Clone, Default)]
struct FixedTokens {
    tokens: Arc<Mutex<Vec<&'static str>>>,
    refused: Arc<AtomicUsize>,
}

impl FixedTokens {
    fn new(tokens: &[&'static str]) -> FixedTokens {
        FixedTokens { tokens: Arc::new(Mutex::new(tokens.to_vec())), refused: Arc::default() }
    }

    fn credential(&self) -> Credential {
        Credential::Refreshing(RefreshingToken::new(Zeroizing::new("OLD".to_owned()), self.clone()))
    }

    fn asked(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }
}

impl TokenRefresher for FixedTokens {
    fn renew<'a>(
        &'a self,
        _token: &'a str,
        refused: bool,
    ) -> Pin<Box<dyn Future<Output = RefreshResult> + Send + 'a>> {
        Box::pin(async move {
            if !refused {
                return Ok(None);
            }
            self.refused.fetch_add(1, Ordering::SeqCst);
            let mut tokens = self.tokens.lock().unwrap();
            if tokens.is_empty() {
                return Err("the issuer does not answer".to_owned());
            }
            Ok(Some(Zeroizing::new(tokens.remove(0).to_owned())))
        })
    }
}

struct Sites {
    remote: Remote,
    acceptor: TlsAcceptor,
}

impl Sites {
    fn new() -> Sites {
        let authority = CertificateAuthority::new("storages");
        let acceptor = acceptor(&authority);
        let config = RemoteConfig { trust: Trust::Pem(authority.ca_pem), ..config() };
        Sites { remote: Remote::new(config).unwrap(), acceptor }
    }

    async fn server(
        &self,
        rule: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> Server {
        Server::start_with(Some(self.acceptor.clone()), rule).await
    }

    async fn copy(&self, order: &CopyOrder) -> Result<CopyDone, Fault> {
        self.remote.copy(order, &|_| {}, &Cancel::never()).await
    }
}

fn shows(asked: &ReceivedRequest, token: &str) -> bool {
    asked.header("authorization") == Some(&format!("Bearer {token}"))
}

fn refused() -> Reply {
    reply("401 Unauthorized", "Content-Type: text/plain\r\n", "the token is not valid any more")
}

/// The source breaks off in the middle, and does not take the token any more when it is asked for the rest.
fn ends_at_the_rest() -> impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static {
    let mut half = with_body("200 OK", "Accept-Ranges: bytes\r\n", &content(LARGE));
    half.truncate(half.len() - LARGE / 2);
    move |asked| match (asked.method.as_str(), asked.header("range")) {
        ("GET", None) => Some(Reply::SayAndClose(half.clone())),
        ("GET", Some(_)) if !shows(asked, "NEW") => Some(refused()),
        _ => None,
    }
}

#[tokio::test]
async fn a_read_goes_on_with_another_token() {
    let sites = Sites::new();
    for (given, works) in [
        (FixedTokens::new(&["NEW"]), true),
        (FixedTokens::new(&["BAD", "NEW"]), false),
        (FixedTokens::new(&[]), false),
    ] {
        let (source, target) = (sites.server(ends_at_the_rest()).await, sites.server(none).await);
        source.put("/source", &content(LARGE));
        let mut order = order(&source, &target, &[Mode::Stream]);
        order.source.credential = given.credential();
        let ended = sites.copy(&order).await;
        assert_eq!(given.asked(), 1, "once in a copy");
        if works {
            assert_eq!(ended.unwrap().bytes, LARGE as u64);
            assert_eq!(target.get("/target").unwrap(), content(LARGE));
            continue;
        }
        let fault = ended.unwrap_err();
        assert!(fault.detail.starts_with("SOURCE [13] GET ") && fault.detail.contains("401"), "{fault}");
        assert_eq!((fault.blame, fault.code), (Blame::Credential, FaultCode::NotAuthenticated));
        assert_eq!(target.names(), Vec::<String>::new(), "{fault}");
        let no_other = fault.detail.contains("the token could not be renewed: the issuer does not answer");
        assert_eq!(no_other, given.tokens.lock().unwrap().is_empty(), "{fault}");
    }
}

#[tokio::test]
async fn a_token_that_cannot_be_had_anew_is_told_as_that() {
    let sites = Sites::new();
    let (source, target) = (sites.server(ends_at_the_rest()).await, sites.server(none).await);
    source.put("/source", &content(LARGE));
    let mut order = order(&source, &target, &[Mode::Stream]);
    order.source.credential = Credential::Bearer(Zeroizing::new("OLD".to_owned()));
    let fault = sites.copy(&order).await.unwrap_err();
    assert!(fault.detail.starts_with("SOURCE [13] GET "), "{fault}");
    assert!(fault.detail.contains("the token is not valid any more"), "{fault}");
    assert_eq!((fault.blame, fault.code), (Blame::Credential, FaultCode::NotAuthenticated));
    assert!(!format!("{fault:?}").contains("OLD"), "{fault:?}");
}

/// The storages have copied, and the target does not take the token any more when it is asked what it has.
#[tokio::test]
async fn what_has_arrived_is_looked_at_with_another_token() {
    let sites = Sites::new();
    for renewed in [true, false] {
        let here = Arc::new(std::sync::OnceLock::<Server>::new());
        let itself = here.clone();
        let copied = Arc::new(AtomicUsize::new(0));
        let (source, target) = (
            sites.server(none).await,
            sites
                .server(move |asked: &ReceivedRequest| match asked.method.as_str() {
                    "COPY" => {
                        itself.get().unwrap().put(&asked.path, &content(1_000));
                        copied.fetch_add(1, Ordering::SeqCst);
                        Some(markers("success: Created\n"))
                    }
                    _ if copied.load(Ordering::SeqCst) > 0 && !shows(asked, "NEW") => Some(refused()),
                    _ => None,
                })
                .await,
        );
        assert!(here.set(target.clone()).is_ok());
        source.put("/source", &content(1_000));
        let given = FixedTokens::new(if renewed { &["NEW"] } else { &[] });
        let mut order = order(&source, &target, &[Mode::Pull]);
        order.target.credential = given.credential();
        let ended = sites.copy(&order).await;
        assert_eq!((target.asked("COPY").len(), given.asked()), (1, 1), "{ended:?}");
        if renewed {
            assert_eq!(ended.unwrap().mode, Mode::Pull);
            assert_eq!(target.get("/target").unwrap(), content(1_000));
            continue;
        }
        let fault = ended.unwrap_err();
        assert!(fault.detail.starts_with("DESTINATION [13] HEAD "), "{fault}");
        assert!(fault.detail.contains("the issuer does not answer"), "{fault}");
        assert_eq!(fault.blame, Blame::Credential);
        assert_eq!(target.get("/target"), None, "what was not looked at has no name");
    }
}

/// One storage refuses what the other one shows it: the copy is asked for again with another token.
#[tokio::test]
async fn a_copy_between_storages_is_asked_for_again_with_another_token() {
    let sites = Sites::new();
    let here = Arc::new(std::sync::OnceLock::<Server>::new());
    let itself = here.clone();
    let (source, target) = (
        sites.server(none).await,
        sites
            .server(move |asked: &ReceivedRequest| {
                (asked.method == "COPY").then(|| {
                    if asked.header("transferheaderauthorization") != Some("Bearer NEW") {
                        return markers("failure: rejected GET: 401 Unauthorized\n");
                    }
                    itself.get().unwrap().put(&asked.path, &content(1_000));
                    markers("success: Created\n")
                })
            })
            .await,
    );
    assert!(here.set(target.clone()).is_ok());
    source.put("/source", &content(1_000));
    let given = FixedTokens::new(&["NEW"]);
    let mut order = order(&source, &target, &[Mode::Pull]);
    order.source.credential = given.credential();
    let done = sites.copy(&order).await.unwrap();
    assert_eq!((done.mode, target.asked("COPY").len(), given.asked()), (Mode::Pull, 2, 1));
    assert_eq!(target.get("/target").unwrap(), content(1_000));
}

/// A PUT that is refused before anything of it was sent is sent with another token.
#[tokio::test]
async fn what_is_sent_is_sent_again_while_all_of_it_is_here() {
    let sites = Sites::new();
    for size in [1_000, LARGE] {
        let (source, target) = (
            sites.server(none).await,
            sites
                .server(|asked: &ReceivedRequest| {
                    (asked.method == "PUT" && !shows(asked, "NEW")).then(refused)
                })
                .await,
        );
        source.put("/source", &content(size));
        let given = FixedTokens::new(&["NEW"]);
        let mut order = order(&source, &target, &[Mode::Stream]);
        order.target.credential = given.credential();
        assert_eq!(sites.copy(&order).await.unwrap().bytes, size as u64);
        assert_eq!((target.get("/target").unwrap(), given.asked()), (content(size), 1));
    }
}
