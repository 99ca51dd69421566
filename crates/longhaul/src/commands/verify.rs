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

/// Exits with status 10 if any file differs.
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
        return Ok(Exit::Mismatch);
    }
    Ok(Exit::Ok)
}

fn summary(done: &TaskView, args: &VerifyArgs) -> String {
    let read = format!(
        "{}, {} read again at {}",
        words::files(done.files_done + done.files_bad),
        bytes(done.bytes_done),
        args.storage
    );
    match done.files_bad {
        0 => format!("{}: {read}; all match the catalog", args.dataset),
        bad => format!(
            "{}: {read}; {} NOT match the catalog",
            args.dataset,
            if bad == 1 { "1 does".into() } else { format!("{} do", count(bad)) }
        ),
    }
}
