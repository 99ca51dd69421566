//! `longhaul replica`.

use clap::{Args, Subcommand};
use longhaul_api::native::{
    CopyView, DatasetView, DeletionReply, DeletionRequest, FileReplicas, Page, ReplicaView, TaskView,
};
use longhaul_api::routes;
use longhaul_model::units::bytes;
use longhaul_model::{DatasetName, Lfn, StorageName};

use super::status::percent_present;
use super::{Context, task, words};
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::Tone;

#[derive(Debug, Subcommand)]
pub enum ReplicaCommand {
    /// List the replicas of a dataset, or of one file with --file, and how each was verified
    List(ListArgs),
    /// Show what deleting a dataset's replicas at a storage would do; delete them with --yes
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Name of the dataset
    #[arg(required_unless_present = "file")]
    dataset: Option<DatasetName>,
    /// List the replicas of this file instead
    #[arg(long, value_name = "LFN", conflicts_with = "dataset")]
    file: Option<Lfn>,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Name of the dataset
    dataset: DatasetName,
    /// Storage to delete it from
    storage: StorageName,
    /// Really delete; without it nothing is changed
    #[arg(long, short)]
    yes: bool,
    /// Delete even files of which no other storage has a good copy: they are lost
    #[arg(long)]
    force: bool,
    /// Do not wait for completion
    #[arg(long)]
    detach: bool,
}

pub async fn run(context: &Context, remote: &Remote, command: ReplicaCommand) -> Result<Exit, Failure> {
    match command {
        ReplicaCommand::List(ListArgs { file: Some(lfn), .. }) => {
            let query = [("lfn", Some(lfn.as_str().to_owned()))];
            let file: FileReplicas = remote.get(&routes::REPLICA_OF_FILE, &[], &query).await?;
            context.output.table(&file, file_table)?;
            Ok(Exit::Ok)
        }
        ReplicaCommand::List(ListArgs { dataset, .. }) => {
            let name = dataset.as_ref().map(|name| name.as_str()).unwrap_or_default();
            let dataset: DatasetView = remote.get(&routes::DATASET_SHOW, &[name], &[]).await?;
            let items: Vec<ReplicaView> = remote.list_all(&routes::DATASET_REPLICAS, &[name], &[]).await?;
            let all = (dataset.files, dataset.bytes);
            context.output.table(&Page { items, next: None }, |page| table(&page.items, all))?;
            Ok(Exit::Ok)
        }
        ReplicaCommand::Delete(args) => delete(context, remote, args).await,
    }
}

/// Table of replicas, given the files and bytes of the whole dataset.
pub fn table(replicas: &[ReplicaView], (files, bytes): (u64, u64)) -> Table {
    let mut table = Table::new([
        left("storage"),
        right("have"),
        right("files"),
        right("bytes"),
        right("suspect"),
        prose("verified"),
    ]);
    for replica in replicas {
        let have = if replica.complete {
            Cell::both("all", "100")
        } else {
            let good = (replica.good_files(), replica.good_bytes());
            let share = percent_present(false, (good.0, files), (good.1, bytes));
            Cell::both(format!("{share} %"), share.to_string())
        };
        table.row([
            Cell::text(replica.storage.as_str()),
            have.toned_if(replica.complete, Tone::Good),
            Cell::count(replica.files),
            Cell::bytes(replica.bytes),
            Cell::count(replica.suspect_files).toned_if(replica.suspect_files > 0, Tone::Bad),
            Cell::text(words::verified(&replica.verified)),
        ]);
    }
    table
}

fn file_table(file: &FileReplicas) -> Table {
    let mut table = Table::new([left("storage"), left("state"), left("verified"), left("digest")]);
    for replica in &file.replicas {
        table.row([
            Cell::text(replica.storage.as_str()),
            Cell::text(if replica.suspect { "suspect" } else { "good" }).toned_if(replica.suspect, Tone::Bad),
            Cell::text(&replica.verified),
            Cell::maybe(replica.digest.as_ref(), |digest| Cell::text(digest.to_string())),
        ]);
    }
    table
}

async fn delete(context: &Context, remote: &Remote, args: DeleteArgs) -> Result<Exit, Failure> {
    let request = DeletionRequest {
        dataset: args.dataset.clone(),
        storage: args.storage.clone(),
        dry_run: !args.yes,
        force: args.force,
    };
    let reply: DeletionReply = remote.post(&routes::DELETION_CREATE, &[], &request).await?;
    let Some(task) = reply.task else {
        context.output.view(
            &reply,
            |reply, style, width| {
                let copies = copies_table(&reply.copies);
                let table = if copies.is_empty() { String::new() } else { copies.human(style, width) };
                format!("{table}{}\n", preview(reply, &args))
            },
            |reply| copies_table(&reply.copies),
        )?;
        return Ok(Exit::Ok);
    };
    if args.detach {
        context
            .output
            .sentence(&reply, |_| format!("{} is deleting; see: longhaul task show {task}", args.storage))?;
        return Ok(Exit::Ok);
    }
    let view: TaskView = remote.get(&routes::TASK_SHOW, &[&task.to_string()], &[]).await?;
    let total = Some((reply.files, reply.bytes));
    let Some(done) = task::wait(context, remote, &view, total).await? else { return Ok(Exit::Interrupted) };
    task::ensure_succeeded(&done)?;
    context.output.sentence(&done, |done| {
        format!("{} of {} deleted at {}", words::files(done.files_done), args.dataset, args.storage)
    })?;
    if done.files_bad > 0 {
        task::print_problems(context, &done);
        return Ok(Exit::Partly);
    }
    Ok(Exit::Ok)
}

/// The copies of files that are to be deleted, and whether each counts as a good one.
fn copies_table(copies: &[CopyView]) -> Table {
    let mut table = Table::new([
        left("storage"),
        right("files"),
        left("agent"),
        left("verified"),
        left("at"),
        left("counts"),
        prose("why not"),
    ]);
    for copy in copies {
        let name = copy.storage.as_str();
        let shown = if copy.to_delete { format!("{name} (to delete)") } else { name.to_owned() };
        table.row([
            Cell::both(shown, name),
            Cell::count(copy.files),
            Cell::text(if copy.connected { "connected" } else { "away" })
                .toned_if(!copy.connected, Tone::Bad),
            Cell::text(&copy.verified),
            Cell::maybe(copy.verified_at.as_ref(), |at| Cell::text(at.to_string())),
            Cell::text(if copy.counts { "yes" } else { "no" }).toned_if(!copy.counts, Tone::Bad),
            Cell::text(copy.reason.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

fn preview(reply: &DeletionReply, args: &DeleteArgs) -> String {
    let (dataset, storage) = (&args.dataset, &args.storage);
    let mut text = format!(
        "would delete {} of {dataset} at {storage}, {}",
        words::files(reply.files),
        bytes(reply.bytes)
    );
    if reply.last_replicas > 0 {
        text.push_str(&format!(
            "\n  {} no other good copy and would be lost: this needs --force",
            if reply.last_replicas == 1 {
                "1 of them has".to_owned()
            } else {
                format!("{} of them have", reply.last_replicas)
            },
        ));
    }
    for subscription in &reply.subscriptions {
        text.push_str(&format!(
            "\n  subscription {subscription} needs them: longhaul subscription cancel {subscription}"
        ));
    }
    if reply.files > 0 && reply.subscriptions.is_empty() {
        let force = if reply.last_replicas > 0 { " --force" } else { "" };
        text.push_str(&format!(
            "\nnothing was changed; to delete: longhaul replica delete {dataset} {storage} --yes{force}"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(storage: &str, verified: &str, reason: Option<&str>) -> CopyView {
        CopyView {
            storage: storage.parse().unwrap(),
            to_delete: false,
            files: 3,
            connected: reason != Some("its agent is not connected"),
            verified: verified.to_owned(),
            verified_at: None,
            counts: reason.is_none(),
            reason: reason.map(str::to_owned),
        }
    }

    #[test]
    fn a_damaged_file_counts_in_no_list() {
        let replica = |suspect_files: u64| ReplicaView {
            storage: "beta".parse().unwrap(),
            files: 5,
            bytes: 500,
            complete: suspect_files == 0,
            suspect_files,
            suspect_bytes: 100 * suspect_files,
            verified: Vec::new(),
        };
        let have = |replica: ReplicaView, all| {
            let plain = table(&[replica], all).plain();
            plain.lines().nth(1).and_then(|line| line.split('\t').nth(1)).map(str::to_owned).unwrap()
        };
        assert_eq!(have(replica(1), (5, 500)), "80");
        assert_eq!(have(replica(0), (5, 500)), "100");
        let partial = ReplicaView { complete: false, ..replica(0) };
        assert_eq!(have(partial, (10, 1_000)), "50", "of the dataset, not of the fullest storage");
        assert_eq!(percent_present(false, (4, 5), (400, 500)), 80, "as a subscription shows it");
    }

    #[test]
    fn the_dry_run_tells_of_each_copy_whether_it_counts_and_why_not() {
        let copies = [
            CopyView { to_delete: true, ..copy("alpha", "readback", None) },
            copy("beta", "registered", Some("claimed when it was registered, never verified")),
            copy("gamma", "end-to-end", Some("its agent is not connected")),
        ];
        let plain = copies_table(&copies).plain();
        let lines: Vec<Vec<&str>> = plain.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(lines[0], ["storage", "files", "agent", "verified", "at", "counts", "why_not"]);
        assert_eq!(lines[1][..6], ["alpha", "3", "connected", "readback", "", "yes"]);
        assert_eq!(lines[2][5..], ["no", "claimed when it was registered, never verified"]);
        assert_eq!((lines[3][2], lines[3][5]), ("away", "no"));
    }
}
