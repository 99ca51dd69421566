//! Reading what is sent, within its limits of size and time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use longhaul_api::Problem;
use longhaul_model::{Fault, FaultCode, units};

use crate::HttpLimits;

/// A body of an ordinary request comes within this many times the stall limit, however it trickles.
const STALLS_MAX: u32 = 4;

/// The whole body in memory.
pub async fn collect(body: Body, limits: &HttpLimits) -> Result<Bytes, Problem> {
    let all = limits.stall().saturating_mul(STALLS_MAX);
    let mut collected = Vec::new();
    let read = read(body, limits.body_bytes, limits, |bytes| {
        collected.extend_from_slice(&bytes);
        std::future::ready(Ok(()))
    });
    match tokio::time::timeout(all, read).await {
        Ok(result) => result.map(|()| collected.into()),
        Err(_) => Err(too_slow(all)),
    }
}

/// Gives each piece of the body to `take`, as fast as that takes them.
pub async fn read<F>(
    mut body: Body,
    limit: u64,
    limits: &HttpLimits,
    mut take: impl FnMut(Bytes) -> F,
) -> Result<(), Problem>
where
    F: Future<Output = Result<(), Problem>>,
{
    let mut total: u64 = 0;
    loop {
        let frame = tokio::time::timeout(limits.stall(), body.frame());
        let frame = match frame.await {
            Err(_) => return Err(too_slow(limits.stall())),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => {
                return Err(Fault::new(FaultCode::BadRequest, format!("the body broke off: {error}"))
                    .with_source(error)
                    .into());
            }
            Ok(Some(Ok(frame))) => frame,
        };
        if let Ok(bytes) = frame.into_data() {
            total += bytes.len() as u64;
            if total > limit {
                return Err(too_large(limit));
            }
            take(bytes).await?;
        }
    }
}

/// Refuses by the announced length, before anything is read.
pub fn check_length(headers: &http::HeaderMap, limit: u64) -> Result<(), Problem> {
    let length = headers.get(http::header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|text| text.parse::<u64>().ok()) {
        Some(length) if length > limit => Err(too_large(limit)),
        _ => Ok(()),
    }
}

fn too_large(limit: u64) -> Problem {
    Fault::new(
        FaultCode::TooLarge,
        format!("the body is larger than {} ({limit} bytes)", units::bytes(limit)),
    )
    .into()
}

fn too_slow(wait: Duration) -> Problem {
    let mut problem = Problem::from(Fault::new(
        FaultCode::BadRequest,
        format!("the body did not come within {}", units::duration(wait)),
    ));
    problem.status = 408;
    problem
}
