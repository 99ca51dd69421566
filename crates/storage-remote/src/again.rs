//! Requests that are sent again when what came of them is passing trouble.

use std::time::Duration;

use http::StatusCode;
use longhaul_model::{Backoff, Jitter};
use tokio::time::sleep;

use crate::exchange::{Answer, Call, Exchange};
use crate::failure::{Failure, Kind};

/// One request waits for itself alone: no jitter. Its tries are few, so the longest wait is never reached.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(250), max: Duration::from_secs(60), jitter: Jitter::None };

/// How often a request is sent, and after what it is sent again.
pub(crate) struct Again {
    pub(crate) tries: u32,
    /// Statuses that tell of passing trouble.
    pub(crate) answers: &'static [u16],
    /// Nobody could be connected to: the request was not sent.
    pub(crate) unreachable: bool,
    /// Nobody knows what became of it.
    pub(crate) unknown: bool,
}

impl Again {
    pub(crate) fn is_passing(&self, status: StatusCode) -> bool {
        self.answers.contains(&status.as_u16())
    }

    fn follows(&self, failure: &Failure) -> bool {
        match failure.kind {
            Kind::Unreachable => self.unreachable,
            Kind::Lost | Kind::TimedOut => self.unknown,
            _ => false,
        }
    }
}

impl Exchange {
    /// Sends what `call` makes until it brings more than passing trouble, or has been tried often enough:
    /// then the last answer is given, whatever it is. `what` names it in the log.
    pub(crate) async fn send_again<'a>(
        &self,
        again: &Again,
        what: &str,
        call: impl Fn() -> Result<Call<'a>, Failure>,
    ) -> Result<Answer, Failure> {
        for tries in 1..again.tries {
            let failure = match self.send(call()?).await {
                Ok(answer) if again.is_passing(answer.status) => answer.into_failure(what).await,
                Err(failure) if again.follows(&failure) => failure,
                end => return end,
            };
            tracing::debug!(tries, "{what} again after: {}", failure.text);
            sleep(BACKOFF.delay(tries, 0.0)).await;
        }
        self.send(call()?).await
    }
}
