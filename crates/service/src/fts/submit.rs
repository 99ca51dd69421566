//! `POST /jobs`: checked, accepted, durable, and only then answered.

use longhaul_api::fts::{Refusal, Submission};
use longhaul_identity::AuthMethod;
use longhaul_jobs::TOO_MANY;
use serde_json::json;

use super::delegation;
use super::request::{FtsRequest, Reply};
use crate::operations::Operations;

/// A delegated credential that lives no longer is not worth beginning with.
const CREDENTIAL_LIFE_S: u64 = 3_600;

pub fn submit(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    let person = &ask.person;
    person.needs("transfer")?;
    let body = serde_json::Value::Object(ask.dictionary()?);
    let submission = Submission::parse(&body, &operations.shared.job_control.job_rules(person))?;
    if person.method == AuthMethod::Certificate {
        delegation::needs_credential(operations, person, CREDENTIAL_LIFE_S)?;
    }
    let id = operations.shared.job_control.accept_job(person, submission).map_err(|refusal| match refusal
        .status
    {
        // Of 429 the client shows nothing but the number.
        TOO_MANY => Refusal { status: 403, ..refusal },
        _ => refusal,
    })?;
    Reply::json(&json!({ "job_id": id }))
}
