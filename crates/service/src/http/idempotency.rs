//! `Idempotency-Key`: a request sent again gets the first answer, and does nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::HeaderMap;
use longhaul_api::Problem;
use longhaul_api::routes::{IDEMPOTENCY_HEADER, IDEMPOTENCY_KEY_SYNTAX, Route};
use longhaul_model::hex;
use longhaul_model::{Fault, FaultCode};
use parking_lot::Mutex;

use super::answer::{Answer, Content};
use super::call::Call;
use super::{Http, dispatch};
use crate::operations::{bad_request, problem};

/// Keys whose first request is still being answered.
#[derive(Default)]
pub struct InFlight {
    keys: Arc<Mutex<BTreeSet<String>>>,
}

struct KeyGuard {
    keys: Arc<Mutex<BTreeSet<String>>>,
    key: String,
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        self.keys.lock().remove(&self.key);
    }
}

/// The key under which the answer is kept: of this caller and this route only.
pub fn key(route: &Route, headers: &HeaderMap, call: &Call) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_HEADER).filter(|_| route.idempotency_key) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    let plain = text.chars().all(|c| c.is_ascii_graphic());
    let chars_max = IDEMPOTENCY_KEY_SYNTAX.chars_max;
    if text.is_empty() || text.len() > chars_max || !plain {
        return Err(bad_request(format!("an Idempotency-Key has 1 to {chars_max} visible ASCII characters")));
    }
    Ok(Some(format!("{}/{}/{text}", call.caller()?.owner_key(), route.operation)))
}

/// Tells a repetition from another request under the same key.
fn fingerprint(call: &Call) -> String {
    let asked = format!("{:?} {}", call.parameters, String::from_utf8_lossy(&call.body));
    hex::encode(&longhaul_security::hash_secret(&asked))
}

pub async fn once(http: &Arc<Http>, key: String, call: Call) -> Result<Answer, Problem> {
    let keys = http.idempotency.keys.clone();
    if !keys.lock().insert(key.clone()) {
        let detail = "the same request is being answered just now";
        return Err(Fault::new(FaultCode::Busy, detail).into());
    }
    let _held = KeyGuard { keys, key: key.clone() };
    let asked = fingerprint(&call);
    let look = key.clone();
    let kept = http
        .operations
        .run(move |operations| operations.shared.kernel.catalog.idempotent(&look).map_err(problem))
        .await?;
    if let Some(text) = kept {
        let (first, reply) = text.split_once(' ').unwrap_or_default();
        if first != asked {
            let detail = "its Idempotency-Key was used for another request: nothing was done";
            return Err(Fault::new(FaultCode::Conflict, detail).into());
        }
        let content = Content::Json(reply.as_bytes().to_vec());
        return Ok(Answer { status: http::StatusCode::OK, content, headers: HeaderMap::new() });
    }
    let answer = dispatch(http, call).await?;
    if let Content::Json(text) = &answer.content {
        let text = format!("{asked} {}", String::from_utf8_lossy(text));
        let keep = move |operations: &crate::Operations| {
            let now = operations.now();
            operations.shared.kernel.catalog.remember_idempotent(&key, &text, now).map_err(problem)
        };
        // What was asked for is done: that its answer cannot be kept is no reason to say otherwise.
        if let Err(problem) = http.operations.run(keep).await {
            tracing::warn!(%problem, "an answer could not be kept for repetitions");
        }
    }
    Ok(answer)
}
