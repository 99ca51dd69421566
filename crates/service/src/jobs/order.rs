//! What a mover is told of a file.

use longhaul_catalog::{Catalog, CatalogError, JobFileRow, JobRow, JobWork};
use longhaul_model::{AttemptId, Fault, JobKind};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::mover::{CopyOrder, Credential, End};
use super::terms::Terms;

/// Tokens of the two ends, where a job came with tokens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    source_token: Option<String>,
    destination_token: Option<String>,
}

pub fn order(
    catalog: &Catalog,
    work: &JobWork,
    terms: &Terms,
    attempt: AttemptId,
) -> Result<CopyOrder, Fault> {
    let (job, file) = (&work.job, &work.file);
    let (source, target) = ends(catalog, job, file)?;
    Ok(CopyOrder {
        attempt,
        community: job.vo.clone(),
        source,
        target,
        size: file.size,
        checksum: file.checksum.clone(),
        verify: terms.verify,
        may_be_there: work.tried_before,
        overwrite: terms.overwrites(file.retries, is_last_hop(work)),
        timeout: terms.timeout,
        streams: terms.streams,
        path_style: terms.s3alternate,
        ways: terms.ways,
    })
}

/// Where a file comes from and goes to, with what its user may show there.
pub fn ends(catalog: &Catalog, job: &JobRow, file: &JobFileRow) -> Result<(End, End), Fault> {
    let tokens: Tokens = serde_json::from_str(&file.details).unwrap_or_default();
    let delegated = delegated(catalog, &job.credential)?;
    let end = |url: &str, token: Option<String>| End {
        url: url.to_owned(),
        credential: token
            .map_or_else(|| delegated.clone(), |token| Credential::Bearer(Zeroizing::new(token))),
    };
    Ok((end(&file.source, tokens.source_token), end(&file.target, tokens.destination_token)))
}

pub fn is_last_hop(work: &JobWork) -> bool {
    work.job.kind != JobKind::Hops || u64::from(work.file.index) + 1 >= work.job.files
}

/// The proxy that the user of a job gave us, if one.
fn delegated(catalog: &Catalog, credential: &str) -> Result<Credential, CatalogError> {
    let proxy = catalog.delegation(credential)?.and_then(|row| row.proxy);
    let pem = proxy.and_then(|proxy| String::from_utf8(proxy).ok());
    Ok(pem.map_or(Credential::None, |pem| Credential::Pem(Zeroizing::new(pem))))
}
