//! `longhaul demo`: a whole deployment on this machine. One service and several agents, each in its own
//! process; a dataset registered at the first site and subscribed at all others; progress, a summary, and the
//! web pages.
//!
//! It uses only the public commands and API. Start with [`run`].

mod generate;
mod plan;
mod report;
mod steps;
mod supervisor;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use longhaul_model::units::{duration, parse_bytes};
use longhaul_model::{DatasetName, FaultCode};
use tokio::task::JoinHandle;

use crate::clock;
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::progress::ProgressBoard;
use crate::remote::is_retryable;
use crate::signals;
use crate::terminal::wrapped;
use plan::DemoPlan;
use supervisor::{ChildSpec, Event, Supervisor};

const DATASET: &str = "demo/set1";
/// Time limit for the service and the agents to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
#[command(
    after_help = "The state directory of --dir must be new or empty, and is kept. Without --dir a temporary \
        one is used and removed."
)]
pub struct DemoArgs {
    /// Copy the files of this directory, which is only read [default: generated files]
    #[arg(long, value_name = "DIRECTORY")]
    pub data: Option<PathBuf>,
    /// Total size of the generated files
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1GB",
        value_parser = parse_bytes,
        conflicts_with = "data"
    )]
    pub size: u64,
    /// Number of generated files
    #[arg(long, value_name = "NUMBER", default_value_t = 2_000, conflicts_with = "data")]
    pub files: usize,
    /// Number of sites; the first has the data
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(2..=i64::from(plan::SITES_MAX))
    )]
    pub sites: u8,
    /// Address of the web pages, on this machine [default: 127.0.0.1:8080, or a free port]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// Address of the service for agents and commands [default: 127.0.0.1:8443, or a free port]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Exit when everything is complete, instead of running until Ctrl-C
    #[arg(long)]
    pub exit: bool,
}

impl Default for DemoArgs {
    fn default() -> Self {
        DemoArgs {
            data: None,
            size: 1_000_000_000,
            files: 2_000,
            sites: 3,
            http: None,
            listen: None,
            exit: false,
        }
    }
}

pub async fn run(context: &Context, args: DemoArgs) -> Result<Exit, Failure> {
    let ending = signals::shutdown()?;
    tokio::pin!(ending);
    let plan = DemoPlan::make(&args, context.global.dir.as_deref())?;
    let mut demo = Demo {
        context,
        board: ProgressBoard::new(context.output.error, context.output.quiet),
        supervisor: Supervisor::new(),
        restarts: 0,
        complete: false,
        stop_writing: Arc::default(),
        writer: None,
    };
    demo.board.print_wrapped(&plan.headline(), 2);
    let result = tokio::select! {
        result = demo.run_steps(&plan, args.exit) => result,
        () = &mut ending => Ok(Exit::Interrupted),
    };
    demo.board.clear();
    if result.as_ref().is_ok_and(|exit| *exit == Exit::Interrupted) {
        demo.board.print_message("\nstopping the service and the sites");
    }
    demo.stop_writing.store(true, Ordering::Relaxed);
    if let Some(writer) = demo.writer.take() {
        let _ = writer.await;
    }
    demo.supervisor.stop().await;
    let failed = result.is_err();
    // Once everything is complete and reported, Ctrl-C is no interruption.
    let result = if demo.complete { result.map(|_| Exit::Ok) } else { result };
    if let Some(told) = plan.state.finish(failed) {
        context.output.print_message(&told);
    }
    result
}

struct Demo<'a> {
    context: &'a Context,
    board: ProgressBoard,
    supervisor: Supervisor,
    restarts: u64,
    complete: bool,
    stop_writing: Arc<AtomicBool>,
    /// Writes the data; must end before its directory is removed.
    writer: Option<JoinHandle<std::io::Result<()>>>,
}

impl Demo<'_> {
    async fn run_steps(&mut self, plan: &DemoPlan, exit: bool) -> Result<Exit, Failure> {
        self.prepare_data(plan).await?;
        let (remote, page) = self.start_service(plan).await?;
        let url = format!("https://{}", plan.service);
        self.board.print_message(&format!("  service  {url}\n  open     {page}"));
        self.start_sites(plan, &remote).await?;
        let dataset = DatasetName::parse(DATASET)?;
        let scanned = self.register(plan, &remote, &dataset).await?;
        let begun = clock::now();
        self.subscribe(plan, &remote, &scanned).await?;
        let subscriptions = self.watch(plan, &remote, &dataset, exit).await?;
        let seconds = steps::completed_at(&subscriptions).since(begun).as_secs_f64();
        let mut report = self.collect_report(plan, &remote, subscriptions, seconds, url, page).await?;
        report.check();
        self.context.output.sentence(&report, |report| {
            let out = self.context.output.out;
            let text = report.summary(out.style);
            text.lines().map(|line| wrapped(line, out.width(), 4)).collect::<Vec<_>>().join("\n")
        })?;
        if !report.complete {
            return Err(Failure::new(FaultCode::Internal, report.wrong.join("; "))
                .with_title("the demo's counts do not match")
                .with_exit(Exit::Mismatch));
        }
        self.complete = true;
        if exit {
            return Ok(Exit::Ok);
        }
        self.board.print_message(report.suggestions(&steps::program_name()).trim_end());
        self.keep_serving(plan, &remote).await
    }

    fn start(
        &mut self,
        name: &str,
        directory: &std::path::Path,
        noun: &str,
        config: &serde_json::Value,
    ) -> Result<(), Failure> {
        let file = directory.join("longhaul.toml");
        let text = toml::to_string(&steps::without_nulls(config)).map_err(|error| {
            Failure::new(FaultCode::Internal, format!("a configuration cannot be written as TOML: {error}"))
        })?;
        std::fs::write(&file, text).map_err(|error| Failure::file("writing", &file, &error))?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::file("finding", std::path::Path::new("this program"), &error))?;
        let file = file.to_string_lossy().into_owned();
        let mut arguments =
            [noun, "run", "--exit-with-parent", "--config", &file].map(str::to_owned).to_vec();
        if let Some(level) = &self.context.global.log_level {
            arguments.extend(["--log-level".to_owned(), level.clone()]);
        }
        self.supervisor.supervise(ChildSpec {
            name: name.to_owned(),
            directory: directory.to_owned(),
            program,
            arguments,
        })
    }

    /// Prints a blank line around the progress block, on a terminal only.
    fn print_blank_line(&mut self) {
        if self.board.terminal().is_terminal {
            self.board.print_message("");
        }
    }

    /// Polls until the answer is yes.
    async fn wait_until(
        &mut self,
        what: &str,
        question: impl AsyncFn() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let begun = clock::now();
        loop {
            let answer = question().await;
            let late = clock::now().since(begun) > START_TIMEOUT;
            match answer {
                Ok(true) => return Ok(()),
                Ok(false) if late => {
                    let why = format!("{what}: not within {}", duration(START_TIMEOUT));
                    return Err(Failure::new(FaultCode::Stalled, why)
                        .with_remedy("see the logs; a slow disk may need more time"));
                }
                Err(failure) if late || !is_retryable(&failure) => return Err(failure),
                Ok(false) | Err(_) => self.wait(POLL_INTERVAL).await?,
            }
        }
    }

    /// The answer, or the previous one while the service is being restarted.
    fn or_previous<T>(&mut self, answer: Result<T, Failure>, before: T) -> Result<T, Failure> {
        match answer {
            Err(failure) if is_retryable(&failure) => Ok(before),
            result => result,
        }
    }

    /// Waits, and reports what happens to the processes meanwhile.
    async fn wait(&mut self, time: Duration) -> Result<(), Failure> {
        let over = tokio::time::sleep(time);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return Ok(()),
                event = self.supervisor.next_event() => self.handle_event(event)?,
            }
        }
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Failure> {
        match &event {
            Event::Restarted { .. } => {
                self.restarts += 1;
                self.board.print_message(&format!("  {}", event.line()));
                Ok(())
            }
            Event::GaveUp { name, why } => Err(Failure::new(FaultCode::Internal, why.clone())
                .with_title(format!("{name} does not start"))
                .with_remedy("see the end of its log")),
        }
    }
}
