//! How an agent asks another one for access to files of its storages (calls of the engine), so that a server
//! at its own end can pull them: the two messages, as JSON.
//!
//! Pure.

use longhaul_model::units::printable_prefix;
use longhaul_model::{AttemptId, Fault, FaultCode, Lfn, StorageName};
use longhaul_storage_remote::{FileAccess, ServerCopyFault};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Files of one call: their answers fit into one, whatever their tokens are.
pub(super) const ACCESS_FILES_MAX: usize = 8;
/// Bytes of a refusal's text.
const DETAIL_BYTES_MAX: usize = 300;

/// Asks for some files of a list under a permit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileAccessRequest {
    pub(super) storage: StorageName,
    pub(super) permit: String,
    /// The permit's list: attempt, name and size of each file.
    pub(super) files: Vec<(AttemptId, Lfn, u64)>,
    /// Places in the list.
    pub(super) wanted: Vec<u32>,
}

/// A message that an agent takes. Others are answered with a refusal, so that more can follow.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentCall {
    FileAccess(FileAccessRequest),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentAnswer {
    /// In the order in which they were wanted.
    Files(Vec<FileAnswer>),
    Refused(Refusal),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FileAnswer {
    Access { url: String, token: Option<String> },
    Refused(Refusal),
}

/// Why there is no access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) detail: String,
    /// It is for the storage and its server, so that it awaits other files too; otherwise for this file.
    pub(super) is_of_servers: bool,
}

impl Refusal {
    /// For every file of the storage.
    pub(super) fn of_storage(detail: impl Into<String>) -> Refusal {
        Refusal { detail: detail.into(), is_of_servers: true }
    }
}

impl From<ServerCopyFault> for Refusal {
    fn from(ServerCopyFault { fault, is_of_servers }: ServerCopyFault) -> Refusal {
        Refusal { detail: fault.to_string(), is_of_servers }
    }
}

impl From<Refusal> for ServerCopyFault {
    /// Another agent's text, which is shown in the log.
    fn from(Refusal { detail, is_of_servers }: Refusal) -> ServerCopyFault {
        let detail = format!("the source's agent: {}", printable_prefix(&detail, DETAIL_BYTES_MAX));
        ServerCopyFault { fault: Fault::new(FaultCode::NotAllowed, detail), is_of_servers }
    }
}

impl From<Result<FileAccess, ServerCopyFault>> for FileAnswer {
    fn from(given: Result<FileAccess, ServerCopyFault>) -> FileAnswer {
        match given {
            Ok(access) => FileAnswer::Access {
                url: access.whole_url().to_string(),
                token: access.token().map(str::to_owned),
            },
            Err(fault) => FileAnswer::Refused(fault.into()),
        }
    }
}

impl From<FileAnswer> for Result<FileAccess, ServerCopyFault> {
    fn from(answer: FileAnswer) -> Result<FileAccess, ServerCopyFault> {
        match answer {
            FileAnswer::Access { url, token } => {
                FileAccess::parse(&url, token.map(Zeroizing::new)).map_err(ServerCopyFault::of_file)
            }
            FileAnswer::Refused(refusal) => Err(refusal.into()),
        }
    }
}

/// What an answer gives for each of `count` files.
///
/// # Errors
/// It refuses all of them, is for another number of files, or is not understood.
pub(super) fn read_answer(
    answer: &[u8],
    count: usize,
) -> Result<Vec<Result<FileAccess, ServerCopyFault>>, ServerCopyFault> {
    let bad = |detail: String| ServerCopyFault {
        fault: Fault::new(FaultCode::ProtocolError, detail),
        is_of_servers: true,
    };
    match serde_json::from_slice(answer) {
        Ok(AgentAnswer::Files(files)) if files.len() == count => {
            Ok(files.into_iter().map(Into::into).collect())
        }
        Ok(AgentAnswer::Files(files)) => {
            Err(bad(format!("the source's agent answers for {} files, {count} were asked for", files.len())))
        }
        Ok(AgentAnswer::Refused(refusal)) => Err(refusal.into()),
        // Not its text: it may hold a token.
        Err(_) => Err(bad("the source's agent answers what is not understood".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn access_and_refusals_come_as_they_were_given() {
        let access = FileAccess::parse("https://dav.example/f?a=b", Some("MDAx".to_owned().into())).unwrap();
        let missing = ServerCopyFault::of_file(Fault::new(FaultCode::SourceMissing, "f is not there"));
        let given = [Ok(access.clone()), Err(missing)].map(FileAnswer::from);
        let answer = serde_json::to_vec(&AgentAnswer::Files(given.into())).unwrap();
        let read = read_answer(&answer, 2).unwrap();
        assert_eq!(read[0].as_ref().unwrap(), &access);
        let refused = read[1].as_ref().unwrap_err();
        assert!(!refused.is_of_servers && refused.fault.detail.contains("f is not there"), "{refused:?}");
        assert!(read_answer(&answer, 1).unwrap_err().is_of_servers);

        let all = AgentAnswer::Refused(Refusal::of_storage("no\nmacaroons"));
        let refused = read_answer(&serde_json::to_vec(&all).unwrap(), 2).unwrap_err();
        assert!(refused.is_of_servers && !refused.fault.detail.contains('\n'), "{refused:?}");
    }

    proptest! {
        #[test]
        fn no_answer_breaks_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_answer(&bytes, 1);
        }
    }
}
