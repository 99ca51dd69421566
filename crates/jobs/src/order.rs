//! What a mover is told of a file.

use std::sync::Arc;

use longhaul_catalog::{CatalogError, JobFileRow, JobRow, JobWork};
use longhaul_model::mark::{MarkTable, Treatment};
use longhaul_model::{CircuitUse, Fault, JobKind};
use longhaul_scheduler::Lease;
use longhaul_storage_remote::RemoteUrl;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::cloud_keys;
use crate::ids;
use crate::job_control::JobControl;
use crate::job_options::Terms;
use crate::mover::{CopyOrder, Credential, End};

/// Tokens of the two ends, sealed, where a job came with tokens; and its mark, where it came with one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    source_token: Option<String>,
    destination_token: Option<String>,
    scitag: Option<u32>,
}

pub fn order(
    job_control: &JobControl,
    work: &JobWork,
    terms: &Terms,
    lease: &Lease,
) -> Result<CopyOrder, Fault> {
    let (job, file) = (&work.job, &work.file);
    let (mut source, mut target) = ends(job_control, job, file)?;
    for end in [&mut source, &mut target] {
        let url = RemoteUrl::parse(&end.url).ok().filter(RemoteUrl::is_s3);
        let keys = url.and_then(|url| {
            let objects = job_control.config_store.get().ok()?;
            cloud_keys::keys(&objects.clouds, &job_control.kernel.vault, job, &url, terms.s3alternate)
        });
        if let Some(keys) = keys {
            end.credential = Credential::Keys(keys);
        }
    }
    let details: Details = serde_json::from_str(&file.details).unwrap_or_default();
    Ok(CopyOrder {
        attempt: lease.attempt,
        epoch: lease.epoch,
        community: job.vo.clone(),
        job: Arc::new(job.clone()),
        source,
        target,
        size: file.size,
        checksum: file.checksum.clone(),
        verify: terms.verify,
        may_be_there: work.tried_before,
        overwrite: terms.overwrites(file.retries, is_last_hop(work)),
        reports_standing: terms.reports_standing && is_last_hop(work),
        strict: terms.strict,
        keeps_partial: terms.keeps_partial,
        family: terms.family,
        asks_tape: may_lie_on_tape(work, terms),
        timeout: terms.timeout,
        streams: terms.streams,
        path_style: terms.s3alternate,
        scitag: details.scitag,
        circuits: CircuitUse::default(),
        modes: terms.modes,
        unmanaged_tokens: terms.unmanaged_tokens,
    })
}

/// Where a file comes from and goes to, with what its user may show there.
pub fn ends(job_control: &JobControl, job: &JobRow, file: &JobFileRow) -> Result<(End, End), Fault> {
    let details: Details = serde_json::from_str(&file.details).unwrap_or_default();
    let delegated = delegated(job_control, &job.credential)?;
    let end = |url: &str, token: Option<String>| -> Result<End, Fault> {
        let credential = match token {
            Some(sealed) => Credential::Bearer(job_control.identity.credentials().unseal_token(&sealed)?),
            None => delegated.clone(),
        };
        Ok(End { url: url.to_owned(), credential })
    };
    Ok((end(&file.source, details.source_token)?, end(&file.target, details.destination_token)?))
}

/// Replicas of a job that says nothing of tape; what was brought from there is known to be on disk.
fn may_lie_on_tape(work: &JobWork, terms: &Terms) -> bool {
    let brought = work.file.tape.staging_ended.is_some();
    work.job.kind == JobKind::Replicas && terms.bring_online.is_none() && !brought
}

pub fn is_last_hop(work: &JobWork) -> bool {
    work.job.kind != JobKind::Hops || u64::from(work.file.index) + 1 >= work.job.files
}

impl CopyOrder {
    /// What the job does not say, the rules of the deployment do.
    pub(crate) fn marked(mut self, marks: &MarkTable, file: &JobFileRow) -> CopyOrder {
        let party = ids::party_of(&file.vo, &file.activity);
        let Treatment { mark, circuits, .. } = marks.treatment(&party.community, party.activity.as_ref());
        self.scitag = self.scitag.or_else(|| mark.scitag.map(|scitag| scitag.number().into()));
        self.circuits = circuits;
        self
    }
}

/// The proxy that a user gave us, if one.
pub fn delegated(job_control: &JobControl, credential: &str) -> Result<Credential, CatalogError> {
    let proxy = job_control.identity.credentials().get(credential)?.and_then(|row| row.proxy);
    let pem = proxy.and_then(|proxy| String::from_utf8(proxy).ok());
    Ok(pem.map_or(Credential::None, |pem| Credential::Pem(Zeroizing::new(pem))))
}
