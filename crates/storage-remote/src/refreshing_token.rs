//! Bearer tokens that are refreshed while a copy runs (RFC 6749, section 6): before use if they expire soon,
//! and once after a storage has refused one. Where fresh tokens come from is behind [`TokenRefresher`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// A failed refresh is not repeated sooner, unless a storage has refused the token: issuers limit requests.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_secs(30);

/// The outcome of a refresh: a fresh token, none because the present one is good for long enough, or why
/// there is none.
pub type RefreshResult = Result<Option<Zeroizing<String>>, String>;

/// Gets fresh tokens from an issuer.
pub trait TokenRefresher: Send + Sync {
    /// Replaces a token that a storage has `refused`, or that may expire soon.
    fn renew<'a>(
        &'a self,
        token: &'a str,
        refused: bool,
    ) -> Pin<Box<dyn Future<Output = RefreshResult> + Send + 'a>>;
}

/// The token of one end of one copy. Clones share it.
#[derive(Clone)]
pub struct RefreshingToken(Arc<Inner>);

struct Inner {
    renewal: Box<dyn TokenRefresher>,
    state: Mutex<State>,
    /// Refreshes run one at a time.
    asking: tokio::sync::Mutex<()>,
}

struct State {
    token: Zeroizing<String>,
    /// Refreshes after a refusal by a storage.
    refusals: u32,
    asked: Option<Instant>,
}

impl RefreshingToken {
    pub fn new(token: Zeroizing<String>, renewal: impl TokenRefresher + 'static) -> RefreshingToken {
        let state = State { token, refusals: 0, asked: None };
        RefreshingToken(Arc::new(Inner {
            renewal: Box::new(renewal),
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
        }))
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.state.lock())
    }

    /// The token to send now, refreshed if it expires soon.
    pub async fn current(&self) -> Zeroizing<String> {
        let _asking = self.0.asking.lock().await;
        let (token, waits) = self.state(|state| {
            let waits = state.asked.is_some_and(|asked| asked.elapsed() < REFRESH_INTERVAL_MIN);
            (state.token.clone(), waits)
        });
        if waits {
            return token;
        }
        match self.0.renewal.renew(&token, false).await {
            Ok(Some(fresh)) => {
                self.state(|state| state.token = fresh.clone());
                fresh
            }
            Ok(None) => token,
            Err(why) => {
                tracing::info!(why, "a token that ends soon is not renewed");
                self.state(|state| state.asked = Some(Instant::now()));
                token
            }
        }
    }

    /// Refreshes a token that a storage has refused: once in a copy, so that a storage that refuses all of
    /// them causes no loop.
    pub(crate) async fn refresh_refused(&self, refused: &str) -> RefreshResult {
        let _asking = self.0.asking.lock().await;
        let (token, refusals) = self.state(|state| (state.token.clone(), state.refusals));
        // Another request has refreshed it meanwhile.
        if token.as_str() != refused {
            return Ok(Some(token));
        }
        if refusals > 0 {
            return Err("another was asked for in this copy already".to_owned());
        }
        self.state(|state| state.refusals += 1);
        let fresh = self.0.renewal.renew(&token, true).await?;
        if let Some(fresh) = &fresh {
            self.state(|state| state.token = fresh.clone());
        }
        Ok(fresh)
    }
}

impl PartialEq for RefreshingToken {
    fn eq(&self, other: &RefreshingToken) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RefreshingToken {}

impl fmt::Debug for RefreshingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refreshing(..)")
    }
}
