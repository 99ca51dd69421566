//! Tokens that are had anew while a copy runs: one that ends soon, before it is shown; one that a storage
//! does not take any more, once. Where others come from is not known here.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use zeroize::Zeroizing;

/// Who gave no other token is not asked again for so long, unless a storage has refused the one that there
/// is.
const ASKED_EVERY: Duration = Duration::from_secs(30);

/// What came of asking for another token: one, or none because this one is good for long enough, or why there
/// is none.
pub type Renewed = Result<Option<Zeroizing<String>>, String>;

/// Where other tokens come from.
pub trait Renewal: Send + Sync {
    /// Another in place of this one, which a storage has `refused`, or which may end soon.
    fn renew<'a>(
        &'a self,
        token: &'a str,
        refused: bool,
    ) -> Pin<Box<dyn Future<Output = Renewed> + Send + 'a>>;
}

/// A token of one end of one copy; clones of it are the same token.
#[derive(Clone)]
pub struct Lasting(Arc<Inner>);

struct Inner {
    renewal: Box<dyn Renewal>,
    state: Mutex<State>,
    /// One question at a time.
    asking: tokio::sync::Mutex<()>,
}

struct State {
    token: Zeroizing<String>,
    /// Of another since a storage refused one.
    refusals: u32,
    asked: Option<Instant>,
}

impl Lasting {
    pub fn new(token: Zeroizing<String>, renewal: impl Renewal + 'static) -> Lasting {
        let state = State { token, refusals: 0, asked: None };
        Lasting(Arc::new(Inner {
            renewal: Box::new(renewal),
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
        }))
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The one to be shown now.
    pub async fn current(&self) -> Zeroizing<String> {
        let _asking = self.0.asking.lock().await;
        let (token, waits) = self.state(|state| {
            let waits = state.asked.is_some_and(|asked| asked.elapsed() < ASKED_EVERY);
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

    /// Another one, since a storage has refused this: once in a copy, so that who refuses all is not asked
    /// for ever.
    pub(crate) async fn another(&self, refused: &str) -> Renewed {
        let _asking = self.0.asking.lock().await;
        let (token, refusals) = self.state(|state| (state.token.clone(), state.refusals));
        // Somebody else has asked meanwhile.
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

impl PartialEq for Lasting {
    fn eq(&self, other: &Lasting) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Lasting {}

impl fmt::Debug for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lasting(..)")
    }
}
