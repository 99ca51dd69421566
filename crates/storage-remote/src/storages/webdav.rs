//! What is particular to WebDAV servers (RFC 4918): files are sent to names of their own in a work collection
//! by one PUT each, and get their final names by MOVE.

use std::sync::Arc;

use bytes::Bytes;
use longhaul_model::{Fault, FaultCode};
use longhaul_storage::{Commit, TempName};

use super::Root;
use super::upload::FileUpload;
use crate::exchange::Payload;
use crate::failure::{Failure, Kind, Scope};
use crate::url::RemoteUrl;
use crate::webdav::RenameOutcome;

impl Root {
    /// The names of temporary files that the server has.
    pub(super) async fn list_temporary(&self) -> Result<Vec<TempName>, Fault> {
        let work = self.work("")?;
        let members = match self.remote.members(self.resource(&work)).await {
            Ok(members) => members,
            // Nothing was sent yet, or the server lists nothing.
            Err(Failure { kind: Kind::Status(status), .. }) if matches!(status.as_u16(), 404 | 405 | 501) => {
                Vec::new()
            }
            Err(failure) => return Err(failure.in_storage(Scope::Target)),
        };
        Ok(members.iter().filter_map(|member| TempName::parse(&member.name).ok()).collect())
    }

    /// Waits until the file was sent, compares its size, and gives it its name.
    pub(super) async fn commit_temporary(
        &self,
        item: &Commit,
        upload: Option<Arc<FileUpload>>,
    ) -> Result<(), Fault> {
        let target = self.url_of(&item.target)?;
        let temp = self.work(item.temp.as_str())?;
        if let Some(upload) = upload {
            upload.finished().await?;
        }
        let at_target = |failure: Failure| failure.in_storage(Scope::Target);
        let incomplete = |what: String| {
            Err(Fault::new(FaultCode::TargetWrite, format!("{}: its temporary file {what}", item.target)))
        };
        match self.stat(&temp).await.map_err(at_target)? {
            None => return incomplete("is gone".to_owned()),
            Some(stat) if stat.size != item.size => {
                return incomplete(format!("has {} bytes, {} are expected", stat.size, item.size));
            }
            Some(_) => {}
        }
        let overwrite = self.may_be_replaced(item, &target).await?;
        if let Err(failure) = self.remote.make_parents(self.resource(&target)).await {
            return Err(self.explain_refusal(item, &target, failure).await);
        }
        let destination = self.spelled(&target).await.map_err(at_target)?;
        match self.remote.move_to_spelled(self.resource(&temp), &destination, overwrite).await {
            Ok(RenameOutcome::Done) => Ok(()),
            Ok(RenameOutcome::Exists) => Err(self.clash(item)),
            Err(failure) => {
                // The answer may be lost and the rename done.
                let is_there = self.stat(&target).await.map_err(at_target)?;
                let is_gone = self.stat(&temp).await.map_err(at_target)?.is_none();
                match is_there {
                    Some(stat) if is_gone && stat.size == item.size => Ok(()),
                    // Somebody was faster.
                    Some(_) if !overwrite => Err(self.clash(item)),
                    _ => Err(self.explain_refusal(item, &target, failure).await),
                }
            }
        }
    }

    /// The URL of a new name as the server wants to read it in a header: percent-encoded (RFC 4918), or
    /// literally, as XRootD does.
    async fn spelled(&self, target: &RemoteUrl) -> Result<Vec<u8>, Failure> {
        if !target.path().contains('%') || *self.decodes_headers.get_or_try_init(|| self.try_escape()).await?
        {
            return Ok(target.whole().into_bytes());
        }
        Ok(target.whole_decoded())
    }

    /// Renames an empty file to a name with an escape, and looks which name it got.
    async fn try_escape(&self) -> Result<bool, Failure> {
        let url = |name: &str| self.work(name).map_err(|fault| Failure::of_fault(&fault));
        let (from, decoded, literal) = (url("escape-probe")?, url("escape probe")?, url("escape%20probe")?);
        self.remote.make_parents(self.resource(&from)).await?;
        self.remote.put(self.resource(&from), Payload::Bytes(Bytes::new())).await?;
        self.remote.move_to(self.resource(&from), &decoded, true).await?;
        let is_decoded = self.find(&decoded).await?.is_some();
        let got = if is_decoded { &decoded } else { &literal };
        self.remote.delete(self.resource(got), None).await?;
        Ok(is_decoded)
    }

    /// The fault of a commit that the server refuses. It cannot make a collection below a file.
    async fn explain_refusal(&self, item: &Commit, target: &RemoteUrl, failure: Failure) -> Fault {
        let is_refused = matches!(failure.kind, Kind::Status(_));
        match is_refused && self.has_file_above(target).await {
            true => self.clash(item),
            false => failure.in_storage(Scope::Target),
        }
    }
}
