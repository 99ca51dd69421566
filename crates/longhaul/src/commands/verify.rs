//! `longhaul verify`.

use clap::Args;
use longhaul_api::native::{ReplicaView, TaskView, VerificationRequest};
use longhaul_api::routes;
use longhaul_model::units::{bytes, count};
use longhaul_model::{DatasetName, StorageName};

use super::{Context, task, words};
use crate::failure::{Exit, Failure};
use crate::remote::Remote;

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Storage whose replica to verify
    storage: StorageName,
    /// Dataset to verify
    dataset: DatasetName,
    /// Do not wait for completion
    #[arg(long)]
    detach: bool,
}

/// Exits with status 10 if any file differs, else with 7 if any was not read, since it is on tape.
pub async fn run(context: &Context, remote: &Remote, args: VerifyArgs) -> Result<Exit, Failure> {
    let request = VerificationRequest { dataset: args.dataset.clone(), storage: args.storage.clone() };
    let replicas: Vec<ReplicaView> =
        remote.list_all(&routes::DATASET_REPLICAS, &[args.dataset.as_str()], &[]).await?;
    let total =
        replicas.iter().find(|replica| replica.storage == args.storage).map(|one| (one.files, one.bytes));
    let begun: TaskView = remote.post(&routes::VERIFICATION_CREATE, &[], &request).await?;
    if args.detach {
        context.output.sentence(&begun, |task| {
            format!("{} is verifying; see: longhaul task show {}", task.storage, task.id)
        })?;
        return Ok(Exit::Ok);
    }
    let Some(done) = task::wait(context, remote, &begun, total).await? else { return Ok(Exit::Interrupted) };
    task::ensure_succeeded(&done)?;
    context.output.sentence(&done, |done| summary(done, &args))?;
    if done.files_bad > 0 {
        task::print_problems(context, &done);
    }
    Ok(exit_code(&done))
}

/// What differs goes before what was not read.
fn exit_code(done: &TaskView) -> Exit {
    match (done.files_bad, done.files_on_tape) {
        (0, 0) => Exit::Ok,
        (0, _) => Exit::Partly,
        _ => Exit::Mismatch,
    }
}

fn summary(done: &TaskView, args: &VerifyArgs) -> String {
    let files = done.files_done.saturating_add(done.files_bad);
    let (dataset, storage) = (&args.dataset, &args.storage);
    let read = format!("{}, {} read again at {storage}", words::files(files), bytes(done.bytes_done));
    let found = match done.files_bad {
        _ if files == 0 && done.files_on_tape > 0 => format!("{dataset}: nothing was read at {storage}"),
        0 => format!("{dataset}: {read}; all match the catalog"),
        1 => format!("{dataset}: {read}; 1 does NOT match the catalog"),
        bad => format!("{dataset}: {read}; {} do NOT match the catalog", count(bad)),
    };
    match done.files_on_tape {
        0 => found,
        unread => {
            let are = if unread == 1 { "is on tape and was" } else { "are on tape and were" };
            format!(
                "{found}. {} {are} not read: stage them first (docs/howto/tape.md), then: longhaul verify \
                    {storage} {dataset}",
                words::files(unread)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::{TaskId, Timestamp};

    use super::*;

    fn verified(files_done: u64, files_bad: u64, files_on_tape: u64) -> (String, Exit) {
        let args = VerifyArgs {
            storage: "beta".parse().unwrap(),
            dataset: "higgs/run7".parse().unwrap(),
            detach: false,
        };
        let done = TaskView {
            id: TaskId(1),
            kind: "verify".into(),
            dataset: args.dataset.clone(),
            storage: args.storage.clone(),
            done: true,
            files_done,
            bytes_done: files_done * 1_000_000,
            files_bad,
            files_on_tape,
            problems: Vec::new(),
            fault: None,
            created: Timestamp(0),
            waits_for: None,
        };
        (summary(&done, &args), exit_code(&done))
    }

    #[test]
    fn what_is_on_tape_was_not_read_and_does_not_differ() {
        let then = "stage them first (docs/howto/tape.md), then: longhaul verify beta higgs/run7";
        let cases = [
            ((3, 0, 0), "3 files, 3.00 MB read again at beta; all match the catalog".to_owned(), Exit::Ok),
            (
                (3, 0, 12),
                format!(
                    "3 files, 3.00 MB read again at beta; all match the catalog. 12 files are on \
                        tape and were not read: {then}"
                ),
                Exit::Partly,
            ),
            (
                (0, 0, 1),
                format!("nothing was read at beta. 1 file is on tape and was not read: {then}"),
                Exit::Partly,
            ),
            (
                (1, 1, 2),
                format!(
                    "2 files, 1.00 MB read again at beta; 1 does NOT match the catalog. 2 files are on \
                        tape and were not read: {then}"
                ),
                Exit::Mismatch,
            ),
            (
                (0, 1_200, 0),
                "1,200 files, 0 B read again at beta; 1,200 do NOT match the catalog".to_owned(),
                Exit::Mismatch,
            ),
        ];
        for ((done, bad, on_tape), text, exit) in cases {
            assert_eq!(verified(done, bad, on_tape), (format!("higgs/run7: {text}"), exit));
        }
    }
}
