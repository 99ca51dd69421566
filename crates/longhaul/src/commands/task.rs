//! `longhaul task`, and waiting for a task with progress.

use std::time::Duration;

use clap::{Args, Subcommand};
use longhaul_api::native::{Page, TaskView};
use longhaul_api::routes;
use longhaul_model::units::{bytes, printable};
use longhaul_model::{DatasetName, StorageName, TaskId, Timestamp};

use super::{Context, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::progress::{Measure, ProgressBoard, lines};
use crate::remote::Remote;
use crate::table::{Cell, Table, facts, left, prose, right};
use crate::time_format;

const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List scans, verifications and deletions, newest first
    List(ListArgs),
    /// Show a task and its problems
    Show {
        /// Id of the task
        task: TaskId,
    },
    /// Cancel a task; what it has done stays
    Cancel {
        /// Id of the task
        task: TaskId,
    },
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only tasks of this dataset
    #[arg(long)]
    dataset: Option<DatasetName>,
    /// Only tasks at this storage
    #[arg(long)]
    storage: Option<StorageName>,
    /// Maximum number of tasks
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

pub async fn run(context: &Context, remote: &Remote, command: TaskCommand) -> Result<Exit, Failure> {
    match command {
        TaskCommand::List(args) => {
            let query = [
                ("dataset", args.dataset.as_ref().map(|name| name.as_str().to_owned())),
                ("storage", args.storage.as_ref().map(|name| name.as_str().to_owned())),
            ];
            let page: Page<TaskView> = remote.list(&routes::TASK_LIST, &[], &query, args.limit).await?;
            context.output.list(&page, |page| table(&page.items, clock::now()))?;
        }
        TaskCommand::Show { task } => {
            let task: TaskView = remote.get(&routes::TASK_SHOW, &[&task.to_string()], &[]).await?;
            show(context, &task)?;
        }
        TaskCommand::Cancel { task } => {
            let task: TaskView = remote.post(&routes::TASK_CANCEL, &[&task.to_string()], &()).await?;
            context
                .output
                .sentence(&task, |task| format!("{} of {} is cancelled", task.kind, task.dataset))?;
        }
    }
    Ok(Exit::Ok)
}

/// Prints everything about one task.
pub fn show(context: &Context, task: &TaskView) -> Result<(), Failure> {
    let human = |task: &TaskView, style, width| {
        facts(style, width, &task_facts(task))
            + &problems_table(task).map_or(String::new(), |table| table.human(style, width))
    };
    context.output.view(task, human, |task| {
        problems_table(task).unwrap_or_else(|| table(std::slice::from_ref(task), clock::now()))
    })
}

fn task_facts(task: &TaskView) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("task", format!("{} {} of {} at {}", task.id, task.kind, task.dataset, task.storage)),
        ("state", state_text(task)),
        ("done", format!("{}, {}", words::files(task.files_done), bytes(task.bytes_done))),
        ("bad", words::files(task.files_bad)),
    ];
    if task.files_on_tape > 0 {
        lines.push(("on tape", format!("{}, not read", words::files(task.files_on_tape))));
    }
    lines.push(("created", time_format::local(task.created, clock::now())));
    if let Some(fault) = &task.fault {
        lines.push(("fault", format!("{} {}", fault.code, printable(&fault.to_string()))));
        lines.push(("next", fault.code.next_step().to_owned()));
    }
    lines
}

fn state_text(task: &TaskView) -> String {
    match (task.done, &task.fault, &task.waits_for) {
        (true, Some(_), _) => "failed".to_owned(),
        (true, None, _) => "done".to_owned(),
        (false, _, Some(why)) => format!("waiting: {}", printable(why)),
        (false, _, None) => "running".to_owned(),
    }
}

fn table(tasks: &[TaskView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("task"),
        left("kind"),
        left("dataset"),
        left("storage"),
        right("files"),
        right("bytes"),
        right("bad"),
        left("created"),
        prose("state"),
    ]);
    for task in tasks {
        table.row([
            Cell::text(task.id.to_string()),
            Cell::text(&task.kind),
            Cell::text(task.dataset.as_str()),
            Cell::text(task.storage.as_str()),
            Cell::count(task.files_done),
            Cell::bytes(task.bytes_done),
            Cell::count(task.files_bad),
            Cell::time(task.created, now),
            Cell::text(state_text(task)),
        ]);
    }
    table
}

/// The files with problems; none if there are none.
pub fn problems_table(task: &TaskView) -> Option<Table> {
    let mut table = Table::new([left("code"), crate::table::path("file"), prose("why")]);
    for problem in &task.problems {
        table.row([
            Cell::text(problem.fault.code.to_string()),
            Cell::text(problem.lfn.as_str()),
            Cell::text(problem.fault.to_string()),
        ]);
    }
    (!table.is_empty()).then_some(table)
}

/// Shows progress until the task is done; none if the user pressed Ctrl-C.
pub async fn wait(
    context: &Context,
    remote: &Remote,
    task: &TaskView,
    total: Option<(u64, u64)>,
) -> Result<Option<TaskView>, Failure> {
    let id = task.id.to_string();
    let goes_on = || {
        format!(
            "the {} continues; see: longhaul task show {id}     cancel: longhaul task cancel {id}",
            task.kind
        )
    };
    super::unless_interrupted(context, goes_on, watch(context, remote, task, total)).await
}

async fn watch(
    context: &Context,
    remote: &Remote,
    task: &TaskView,
    total: Option<(u64, u64)>,
) -> Result<TaskView, Failure> {
    let mut board = ProgressBoard::new(context.output.error, context.output.quiet);
    let mut view = task.clone();
    let id = task.id.to_string();
    loop {
        let measure = measure(&view, total);
        let line = lines(&[(&view.kind, measure.clone())], context.output.error.width());
        board.show(clock::now(), &line, || measure.plain(&view.kind));
        if view.done {
            board.clear();
            return Ok(view);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        view = remote.get_with_retry(&routes::TASK_SHOW, &[&id]).await?;
    }
}

/// Progress of a task, such as `scan  1,200 files  610 MB  612 MB/s`; `total` is files and bytes, if known.
pub fn measure(task: &TaskView, total: Option<(u64, u64)>) -> Measure {
    let elapsed = clock::now().since(task.created).as_secs_f64();
    let average = if elapsed > 0.5 { task.bytes_done as f64 / elapsed } else { 0.0 };
    let notes = [(task.files_bad, "bad"), (task.files_on_tape, "on tape")];
    let notes = notes.into_iter().filter(|(files, _)| *files > 0);
    Measure {
        files_done: task.files_done.saturating_add(task.files_bad).saturating_add(task.files_on_tape),
        files: total.map(|(files, _)| files),
        bytes_done: task.bytes_done,
        bytes: total.map(|(_, bytes)| bytes),
        rate_now: 0.0,
        rate_average: average,
        end: task.waits_for.as_ref().map(|why| format!("waiting: {}", printable(why))).unwrap_or_default(),
        left: String::new(),
        notes: notes
            .map(|(files, what)| format!("{} {what}", words::files(files)))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Turns a task's fault into an error of the command that waited for it.
pub fn ensure_succeeded(task: &TaskView) -> Result<(), Failure> {
    match &task.fault {
        Some(fault) => Err(Failure::from(fault.clone()).with_title(format!(
            "the {} of {} at {} failed: {}",
            task.kind,
            task.dataset,
            task.storage,
            fault.code.title()
        ))),
        None => Ok(()),
    }
}

/// Prints the problems as a table to standard error.
pub fn print_problems(context: &Context, task: &TaskView) {
    if let Some(table) = problems_table(task) {
        let error = context.output.error;
        context.output.print_message(table.human(error.style, error.width()).trim_end());
    }
}
