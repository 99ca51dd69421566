//! Retries of idempotent requests after transient failures.

use std::time::Duration;

use longhaul_model::{Backoff, Jitter};
use longhaul_outbound::{RetryPolicy, retry_after};
use tokio::time::sleep;

use crate::exchange::{Answer, Call, Exchange};
use crate::failure::{Failure, Kind};

/// One request waits for itself alone: no jitter. Its tries are few, so the longest wait is never reached.
pub(crate) const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), max: Duration::from_secs(60), jitter: Jitter::None };
/// The longest `Retry-After` that is waited out within a request. A storage that needs longer refuses all
/// tries, and the scheduler tries the copy again later.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(10);

fn is_retried(policy: &RetryPolicy, failure: &Failure) -> bool {
    match failure.kind {
        Kind::Unreachable => policy.unreachable,
        Kind::Lost => policy.lost,
        Kind::TimedOut => policy.timed_out,
        _ => false,
    }
}

impl Exchange {
    /// Sends what `call` makes until it brings more than passing trouble, or has been tried often enough:
    /// then the last answer is given, whatever it is. `what` names it in the log.
    pub(crate) async fn send_with_retries<'a>(
        &self,
        policy: &RetryPolicy,
        what: &str,
        call: impl Fn() -> Result<Call<'a>, Failure>,
    ) -> Result<Answer, Failure> {
        for tries in 1..policy.tries {
            let (failure, asked) = match self.send(call()?).await {
                Ok(answer) if policy.is_transient(answer.status) => {
                    let asked = retry_after(&answer.headers);
                    (answer.into_failure(what).await, asked)
                }
                Err(failure) if is_retried(policy, &failure) => (failure, None),
                end => return end,
            };
            tracing::debug!(tries, "{what} again after: {}", failure.text);
            sleep(policy.delay(tries, asked, 0.0)).await;
        }
        self.send(call()?).await
    }
}
