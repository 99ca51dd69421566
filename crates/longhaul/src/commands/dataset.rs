//! `longhaul dataset`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use longhaul_api::native::{
    BlockView, DatasetCreate, DatasetView, FileView, Page, Registered, ReplicaView, ScanRequest, TaskView,
};
use longhaul_api::routes;
use longhaul_model::units::{bytes, count, printable};
use longhaul_model::{
    Algorithm, BlockName, CommunityName, DatasetName, DigestOrigin, FaultCode, StorageName, Timestamp,
};
use serde::Serialize;

use super::{Context, task, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::{LIST_ITEMS_MAX, Remote};
use crate::table::{Cell, Table, facts, left, path, prose, right};
use crate::terminal::{Style, Tone};
use crate::time_format;

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// Create a dataset from the files in a storage or from a manifest
    Register(RegisterArgs),
    /// Add files to an existing dataset; subscriptions to it include them
    Add(RegisterArgs),
    /// List datasets by name
    List(ListArgs),
    /// Show a dataset: its size, where it is, and what was left out
    Show(ShowArgs),
    /// Close a dataset: no more files can be added
    Close {
        /// Name of the dataset
        dataset: DatasetName,
    },
    /// Delete an empty dataset from the catalog (first: longhaul replica delete)
    Delete {
        /// Name of the dataset
        dataset: DatasetName,
    },
}

#[derive(Debug, Args)]
pub struct RegisterArgs {
    /// Name of the dataset, such as higgs/run7-aod
    dataset: DatasetName,
    /// Let the agent of STORAGE register the files it finds (under PATH) with their digests
    #[arg(
        long,
        value_name = "STORAGE[:PATH]",
        required_unless_present = "manifest",
        conflicts_with = "manifest"
    )]
    scan: Option<ScanRoot>,
    /// Register the files listed here, one JSON object per line:
    /// {"lfn":"run7/f1","size":12,"digests":["adler32:0a1b2c3d"]}
    #[arg(long, value_name = "FILE|-")]
    manifest: Option<PathBuf>,
    /// Storage that already has the files of the manifest
    #[arg(long, value_name = "STORAGE", requires = "manifest")]
    at: Option<StorageName>,
    /// Digests for a scan to compute: adler32, crc32c, blake3, sha256, md5 [default: adler32,crc32c]
    #[arg(long = "digests", value_name = "LIST", value_delimiter = ',', conflicts_with = "manifest")]
    algorithms: Vec<Algorithm>,
    /// Take a digest that the storage's server tells, and read only the files of which it tells none: the
    /// replicas are claimed until you verify them
    #[arg(long, requires = "scan")]
    server_digests: bool,
    /// Community that owns the dataset
    #[arg(long)]
    community: Option<CommunityName>,
    /// Do not wait for the scan
    #[arg(long)]
    detach: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Maximum number of datasets [default: all, up to 100,000]
    #[arg(long, default_value_t = LIST_ITEMS_MAX, hide_default_value = true)]
    limit: usize,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the dataset
    dataset: DatasetName,
    /// List its blocks instead
    #[arg(long, conflicts_with = "files")]
    blocks: bool,
    /// List its files instead
    #[arg(long)]
    files: bool,
    /// With --files: only files of this block
    #[arg(long, requires = "files")]
    block: Option<BlockName>,
    /// Maximum number of blocks or files [default: all, up to 100,000]
    #[arg(long, default_value_t = LIST_ITEMS_MAX, hide_default_value = true)]
    limit: usize,
}

/// What to scan: `STORAGE` or `STORAGE:PATH`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanRoot {
    pub storage: StorageName,
    pub path: String,
}

impl FromStr for ScanRoot {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (storage, path) = text.split_once(':').unwrap_or((text, ""));
        let storage = storage.parse().map_err(|error| format!("{error}"))?;
        let path = path.trim_end_matches('/').to_owned();
        if !path.is_empty() {
            longhaul_model::Lfn::parse(&path)
                .map_err(|error| format!("the path within {storage}: {}", error.why))?;
        }
        Ok(ScanRoot { storage, path })
    }
}

pub async fn run(context: &Context, remote: &Remote, command: DatasetCommand) -> Result<Exit, Failure> {
    match command {
        DatasetCommand::Register(args) => {
            let new = is_new(remote, &args.dataset).await?;
            let create = DatasetCreate { name: args.dataset.clone(), community: args.community.clone() };
            let _: DatasetView = remote.post(&routes::DATASET_CREATE, &[], &create).await?;
            let name = args.dataset.clone();
            let added = add(context, remote, args).await;
            if new && added.is_err() {
                // Only what is empty can be deleted: files that were registered stay.
                let _ = remote.delete(&routes::DATASET_DELETE, &[name.as_str()]).await;
            }
            added
        }
        DatasetCommand::Add(args) => add(context, remote, args).await,
        DatasetCommand::List(args) => {
            let page: Page<DatasetView> = remote.list(&routes::DATASET_LIST, &[], &[], args.limit).await?;
            context.output.list(&page, |page| table(&page.items))?;
            Ok(Exit::Ok)
        }
        DatasetCommand::Show(args) => show(context, remote, args).await,
        DatasetCommand::Close { dataset } => {
            let view: DatasetView = remote.post(&routes::DATASET_CLOSE, &[dataset.as_str()], &()).await?;
            context.output.sentence(&view, |view| {
                format!("{} is closed with {}, {}", view.name, words::files(view.files), bytes(view.bytes))
            })?;
            Ok(Exit::Ok)
        }
        DatasetCommand::Delete { dataset } => {
            remote.delete(&routes::DATASET_DELETE, &[dataset.as_str()]).await?;
            context.output.print_message(&format!("{dataset} is deleted"));
            Ok(Exit::Ok)
        }
    }
}

/// Whether there is no dataset of that name yet.
async fn is_new(remote: &Remote, name: &DatasetName) -> Result<bool, Failure> {
    match remote.get::<DatasetView>(&routes::DATASET_SHOW, &[name.as_str()], &[]).await {
        Ok(_) => Ok(false),
        Err(failure) if failure.problem.code == FaultCode::NotFound => Ok(true),
        Err(failure) => Err(failure),
    }
}

async fn add(context: &Context, remote: &Remote, args: RegisterArgs) -> Result<Exit, Failure> {
    match (&args.scan, &args.manifest) {
        (Some(place), _) => scan(context, remote, &args, place).await,
        (None, Some(file)) => manifest(context, remote, &args, file).await,
        (None, None) => unreachable!("clap requires one of them"),
    }
}

async fn scan(
    context: &Context,
    remote: &Remote,
    args: &RegisterArgs,
    place: &ScanRoot,
) -> Result<Exit, Failure> {
    let request = ScanRequest {
        storage: place.storage.clone(),
        path: place.path.clone(),
        algorithms: args.algorithms.clone(),
        digests: if args.server_digests { DigestOrigin::Told } else { DigestOrigin::Computed },
    };
    let scan: TaskView = remote.post(&routes::DATASET_SCAN, &[args.dataset.as_str()], &request).await?;
    if args.detach {
        let next =
            |scan: &TaskView| format!("{} is scanning; see: longhaul task show {}", scan.storage, scan.id);
        context.output.sentence(&scan, next)?;
        return Ok(Exit::Ok);
    }
    let begun = scan.created;
    let Some(done) = task::wait(context, remote, &scan, None).await? else { return Ok(Exit::Interrupted) };
    task::ensure_succeeded(&done)?;
    let dataset: DatasetView = remote.get(&routes::DATASET_SHOW, &[args.dataset.as_str()], &[]).await?;
    let scanned = Scanned { dataset, scan: done };
    let verb = if args.server_digests { "found" } else { "read" };
    context.output.view(
        &scanned,
        |scanned, style, width| {
            let problems = task::problems_table(&scanned.scan);
            registered_text(scanned, verb, begun, style)
                + &problems.map_or(String::new(), |table| table.human(style, width))
        },
        |scanned| {
            task::problems_table(&scanned.scan)
                .unwrap_or_else(|| table(std::slice::from_ref(&scanned.dataset)))
        },
    )?;
    Ok(if scanned.scan.files_bad > 0 { Exit::Partly } else { Exit::Ok })
}

/// A dataset after a scan, and what the scan found.
#[derive(Serialize)]
struct Scanned {
    #[serde(flatten)]
    dataset: DatasetView,
    scan: TaskView,
}

fn registered_text(scanned: &Scanned, verb: &str, begun: Timestamp, style: Style) -> String {
    let Scanned { dataset: view, scan } = scanned;
    let took = longhaul_model::units::duration(clock::now().since(begun));
    let mut text = format!(
        "{} has {}, {}; the scan of {} {verb} {}, {} in {took}\n",
        view.name,
        words::files(view.files),
        bytes(view.bytes),
        scan.storage,
        words::files(scan.files_done),
        bytes(scan.bytes_done)
    );
    for line in words::left_out(&view.left_out, 3) {
        text.push_str(&format!("  {} {line}\n", style.paint(Tone::Warn, "left out:")));
    }
    if scan.files_bad > 0 {
        let bad = words::files(scan.files_bad);
        let found = if scan.files_bad == 1 { "does NOT agree" } else { "do NOT agree" };
        text.push_str(&format!("  {} {bad} {found} with the catalog\n", style.paint(Tone::Bad, "differs:")));
    }
    text
}

async fn manifest(
    context: &Context,
    remote: &Remote,
    args: &RegisterArgs,
    file: &std::path::Path,
) -> Result<Exit, Failure> {
    let query = [("storage", args.at.as_ref().map(|storage| storage.as_str().to_owned()))];
    let begun = clock::now();
    let name = [args.dataset.as_str()];
    let upload = remote.upload(&routes::DATASET_ADD_FILES, &name, &query, file);
    let goes_on = || "nothing was registered; run the same command to start again".to_owned();
    let Some(done) = super::unless_interrupted(context, goes_on, upload).await? else {
        return Ok(Exit::Interrupted);
    };
    let took = clock::now().since(begun);
    context.output.sentence(&done, |done: &Registered| {
        let rate = (done.files_added + done.files_known) as f64 / took.as_secs_f64().max(0.001);
        format!(
            "{}: {} added, {}; {} already known ({} files/s)",
            args.dataset,
            words::files(done.files_added),
            bytes(done.bytes_added),
            count(done.files_known),
            count(rate as u64)
        )
    })?;
    Ok(Exit::Ok)
}

async fn show(context: &Context, remote: &Remote, args: ShowArgs) -> Result<Exit, Failure> {
    let name = args.dataset.as_str();
    if args.blocks {
        let page: Page<BlockView> = remote.list(&routes::DATASET_BLOCKS, &[name], &[], args.limit).await?;
        context.output.list(&page, |page| blocks_table(&page.items))?;
    } else if args.files {
        let query = [("block", args.block.as_ref().map(|block| block.as_str().to_owned()))];
        let page: Page<FileView> = remote.list(&routes::DATASET_FILES, &[name], &query, args.limit).await?;
        context.output.list(&page, |page| files_table(&page.items))?;
    } else {
        let view: DatasetView = remote.get(&routes::DATASET_SHOW, &[name], &[]).await?;
        context
            .output
            .view(&view, human, |view| super::replica::table(&view.replicas, (view.files, view.bytes)))?;
    }
    Ok(Exit::Ok)
}

fn human(view: &DatasetView, style: Style, width: Option<usize>) -> String {
    let now = clock::now();
    let mut lines = vec![
        ("dataset", view.name.to_string()),
        ("community", view.community.to_string()),
        ("state", if view.open { "open: files can be added" } else { "closed" }.to_owned()),
        (
            "size",
            format!(
                "{}, {}, {}",
                words::files(view.files),
                bytes(view.bytes),
                words::plural(view.blocks, "block")
            ),
        ),
        ("created", time_format::local(view.created, now)),
    ];
    if let Some(scan) = &view.scan {
        let waits =
            scan.waits_for.as_ref().map(|why| format!("; waiting: {}", printable(why))).unwrap_or_default();
        lines.push((
            "scan",
            format!("{} at {}: {} so far{waits}", scan.id, scan.storage, words::files(scan.files_done)),
        ));
    }
    let left_out = words::left_out(&view.left_out, 3);
    lines.extend(left_out.into_iter().map(|line| ("left out", line)));
    let mut text = facts(style, width, &lines);
    text.push('\n');
    if view.replicas.is_empty() {
        text.push_str("no replicas: no storage is known to have any of it\n");
    } else {
        text.push_str(&super::replica::table(&view.replicas, (view.files, view.bytes)).human(style, width));
    }
    text
}

fn table(datasets: &[DatasetView]) -> Table {
    let mut table = Table::new([
        left("dataset"),
        left("state"),
        right("files"),
        right("bytes"),
        right("blocks"),
        prose("complete at"),
        prose("partial at").plain_title("also partly at"),
    ]);
    for dataset in datasets {
        let names = |complete: bool| {
            let fits = |replica: &&ReplicaView| replica.complete == complete;
            let names: Vec<&str> =
                dataset.replicas.iter().filter(fits).map(|replica| replica.storage.as_str()).collect();
            if names.is_empty() { Cell::none() } else { Cell::text(names.join(", ")) }
        };
        table.row([
            Cell::text(dataset.name.as_str()),
            Cell::text(if dataset.open { "open" } else { "closed" }),
            Cell::count(dataset.files),
            Cell::bytes(dataset.bytes),
            Cell::count(dataset.blocks),
            names(true),
            names(false),
        ]);
    }
    table
}

fn blocks_table(blocks: &[BlockView]) -> Table {
    let mut table =
        Table::new([left("block"), left("state"), right("files"), right("bytes"), prose("complete at")]);
    for block in blocks {
        let at: Vec<&str> = block
            .replicas
            .iter()
            .filter(|replica| replica.complete)
            .map(|replica| replica.storage.as_str())
            .collect();
        table.row([
            Cell::text(block.name.as_str()),
            Cell::text(if block.open { "open" } else { "closed" }),
            Cell::count(block.files),
            Cell::bytes(block.bytes),
            Cell::text(at.join(", ")),
        ]);
    }
    table
}

fn files_table(files: &[FileView]) -> Table {
    let mut table = Table::new([path("lfn"), right("size"), left("block"), left("digests")]);
    for file in files {
        table.row([
            Cell::text(file.lfn.as_str()),
            Cell::bytes(file.size),
            Cell::text(file.block.as_str()),
            Cell::text(file.digests.to_string()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place: ScanRoot = "alpha:raw/run7/".parse().unwrap();
        assert_eq!((place.storage.as_str(), place.path.as_str()), ("alpha", "raw/run7"));
        assert_eq!("alpha".parse::<ScanRoot>().unwrap().path, "");
        for bad in ["", ":x", "alpha:/abs", "alpha:../up", "al pha"] {
            assert!(bad.parse::<ScanRoot>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_dataset_at_many_storages_stays_within_the_terminal() {
        let replica = |number: u32| ReplicaView {
            storage: format!("storage-{number}").parse().unwrap(),
            files: 1,
            bytes: 1,
            complete: true,
            suspect_files: 0,
            suspect_bytes: 0,
            verified: Vec::new(),
        };
        let dataset = DatasetView {
            name: "higgs/run7".parse().unwrap(),
            community: "higgs".parse().unwrap(),
            open: false,
            files: 1,
            bytes: 1,
            blocks: 1,
            created: Timestamp::ZERO,
            left_out: Vec::new(),
            replicas: (0..100).map(replica).collect(),
            scan: None,
        };
        let text = table(&[dataset]).human(Style::plain(), Some(100));
        assert!(text.lines().all(|line| crate::terminal::columns(line) <= 100), "{text}");
    }
}
