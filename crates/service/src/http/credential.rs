//! The credential that opened a stream: what goes on for a caller ends when it does.

use std::sync::Arc;
use std::time::Duration;

use longhaul_identity::Caller;

use crate::operations::Operations;

/// The credential is looked at this often at least, whether or not somebody says that one has ended.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The right of one caller to a stream: it lasts as long as the credential that was shown.
pub struct StreamCredential {
    pub operations: Arc<Operations>,
    pub caller: Caller,
    pub cookie: Option<String>,
}

impl StreamCredential {
    pub fn holds(&self) -> bool {
        self.operations.identity().still_holds(&self.caller, self.cookie.as_deref())
    }

    /// How long it may be until the next look at it: to its end at most.
    pub fn check_wait(&self) -> Duration {
        let now = self.operations.identity().now();
        self.caller.expires.map_or(CHECK_INTERVAL, |expires| expires.since(now).min(CHECK_INTERVAL))
    }

    /// Returns once the credential has ended.
    pub async fn ended(&self) {
        let mut ended = self.operations.identity().ended_credentials();
        while self.holds() {
            tokio::select! {
                () = tokio::time::sleep(self.check_wait()) => {}
                Ok(()) = ended.changed() => {}
            }
        }
    }
}
