//! The commands: one file per noun with its options, its calls of the API and its output.

pub mod account;
pub mod agent;
pub mod as_account;
pub mod audit;
pub mod bench;
pub mod circuit;
pub mod commission;
pub mod completion;
pub mod config;
pub mod copy;
pub mod dataset;
pub mod digest;
pub mod doctor;
pub mod job;
pub mod limit;
pub mod link;
pub mod load;
pub mod login;
pub mod man;
pub mod mover;
pub mod network;
pub mod replay;
pub mod replica;
pub mod serve;
pub mod service;
pub mod share;
pub mod simulate;
pub mod site;
pub mod status;
pub mod storage;
pub mod submit;
pub mod subscription;
pub mod task;
pub mod token;
pub mod transfer;
pub mod trial;
pub mod tune;
pub mod verify;
pub mod words;

use std::future::Future;

use longhaul_model::FaultCode;

use self::network::NetworkCommand;
use self::network::links::LinksCommand;
use self::storage::StorageCommand;
use crate::cli::{Cli, Command, Global};
use crate::config::{Files, Layers, LogConfig};
use crate::demo;
use crate::failure::{Exit, Failure};
use crate::logging::{LogFormat, Logging};
use crate::output::Output;
use crate::remote::Remote;

/// What a command gets besides its own options.
pub struct Context {
    pub global: Global,
    pub output: Output,
}

impl Context {
    /// Settings from files, environment and global options.
    pub fn layers(&self) -> Result<Layers, Failure> {
        let mut layers =
            Files { config: self.global.config.clone(), state: self.global.dir.clone() }.load()?;
        let mut option = |key: &str, name: &str, value: Option<&str>| match value {
            Some(value) => layers.add_option(key, name, value),
            None => Ok(()),
        };
        option("client.url", "--url", self.global.url.as_deref())?;
        option("client.token", "--token", self.global.token.as_deref())?;
        option("client.ca", "--ca", self.global.ca.as_deref())?;
        option("log.form", "--log", self.global.log.map(|form| form.word()))?;
        option("log.level", "--log-level", self.global.log_level.as_deref())?;
        option("log.file", "--log-file", self.global.log_file.as_ref().and_then(|path| path.to_str()))?;
        Ok(layers)
    }

    /// Starts logging as configured; for daemons.
    pub fn start_log(&self, layers: &Layers) -> Result<(), Failure> {
        let config: LogConfig = layers.section("log")?;
        let form = match config.form.as_str() {
            "json" => LogFormat::Json,
            "human" => LogFormat::Human,
            other => {
                let why =
                    format!("\"{}\" is neither json nor human", longhaul_model::units::printable(other));
                return Err(Failure::usage("log.form is wrong", why, "longhaul config show --origin"));
            }
        };
        let file = Some(config.file).filter(|file| !file.is_empty()).map(Into::into);
        Logging { format: form, level: config.level, file }.start()
    }

    pub fn remote(&self) -> Result<Remote, Failure> {
        Remote::connect(&self.layers()?.section("client")?)
    }
}

pub fn run(cli: Cli, output: Output) -> Result<Exit, Failure> {
    let context = Context { global: cli.global, output };
    if context.global.log_level.is_some() || context.global.log_file.is_some() {
        context.start_log(&context.layers()?)?;
    }
    match cli.command {
        Command::Demo(args) => block_on(Threads::Several, demo::run(&context, args)),
        Command::Service(command) => service::run(&context, command),
        Command::Agent(command) => agent::run(&context, command),
        Command::Config(command) => config::run(&context, command),
        Command::Completion(args) => completion::run(&context, args),
        Command::AsAccount(args) => as_account::run(&context, args),
        Command::Copy(args) => copy::run(&context, args),
        Command::Serve(args) => serve::run(&context, args),
        Command::Doctor(args) => doctor::run(&context, args),
        Command::Man(args) => man::run(&context, args),
        Command::Digest(args) => digest::run(&context, args),
        Command::Tune(args) => tune::run(&context, args),
        Command::Simulate(args) => simulate::run(&context, args),
        Command::Network(NetworkCommand::Links(LinksCommand::Merge(args))) => {
            network::links::run_merge(&context, &args)
        }
        Command::Storage(StorageCommand::Rules(command)) => storage::rules::run(&context, command),
        Command::Bench(command) => bench::run(&context, command),
        Command::Network(NetworkCommand::Archive(network::archive::ArchiveCommand::Check(args))) => {
            block_on(Threads::One, network::archive::check(&context, args))
        }
        Command::Login(args) => block_on(Threads::One, login::run(&context, args)),
        command => block_on(Threads::One, run_remote(&context, command)),
    }
}

/// Runs a command that talks to a service.
async fn run_remote(context: &Context, command: Command) -> Result<Exit, Failure> {
    let remote = context.remote()?;
    match command {
        Command::Status(args) => status::status(context, &remote, args).await,
        Command::Problems(args) => status::problems(context, &remote, args).await,
        Command::Dataset(command) => dataset::run(context, &remote, command).await,
        Command::Subscribe(args) => subscription::subscribe(context, &remote, args).await,
        Command::Subscription(command) => subscription::run(context, &remote, command).await,
        Command::Replica(command) => replica::run(context, &remote, command).await,
        Command::Transfer(command) => transfer::run(context, &remote, command).await,
        Command::Submit(args) => submit::run(context, &remote, args).await,
        Command::Job(command) => job::run(context, &remote, command).await,
        Command::Verify(args) => verify::run(context, &remote, args).await,
        Command::Task(command) => task::run(context, &remote, command).await,
        Command::Site(command) => site::run(context, &remote, command).await,
        Command::Network(command) => network::run(context, &remote, command).await,
        Command::Load(args) => load::run(context, &remote, &args).await,
        Command::Storage(command) => storage::run(context, &remote, command).await,
        Command::Mover(command) => mover::run(context, &remote, command).await,
        Command::Share(command) => share::run(context, &remote, command).await,
        Command::Limit(command) => limit::run(context, &remote, command).await,
        Command::Link(command) => link::run(context, &remote, command).await,
        Command::Circuit(command) => circuit::run(context, &remote, command).await,
        Command::Audit(args) => audit::run(context, &remote, args).await,
        Command::Account(command) => account::run(context, &remote, command).await,
        Command::Token(command) => token::run(context, &remote, command).await,
        Command::Whoami => login::whoami(context, &remote).await,
        Command::Demo(_)
        | Command::Service(_)
        | Command::Agent(_)
        | Command::Config(_)
        | Command::Completion(_)
        | Command::AsAccount(_)
        | Command::Copy(_)
        | Command::Man(_)
        | Command::Serve(_)
        | Command::Doctor(_)
        | Command::Digest(_)
        | Command::Tune(_)
        | Command::Simulate(_)
        | Command::Bench(_)
        | Command::Login(_) => unreachable!("run() took it"),
    }
}

#[derive(Clone, Copy)]
pub enum Threads {
    One,
    Several,
}

/// Runs a command's future to completion.
pub fn block_on<T>(threads: Threads, future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut builder = match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread(),
        Threads::Several => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::new(FaultCode::Internal, format!("cannot start the runtime: {error}")))?;
    let result = runtime.block_on(future);
    // The process ends in a moment. Threads of the core may be waiting for a server by this runtime, and
    // would panic if it shut down under them.
    std::mem::forget(runtime);
    result
}

/// Waits for `work` or Ctrl-C; after Ctrl-C says what continues without us.
pub async fn unless_interrupted<T>(
    context: &Context,
    goes_on: impl FnOnce() -> String,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<Option<T>, Failure> {
    tokio::select! {
        done = work => done.map(Some),
        _ = tokio::signal::ctrl_c() => {
            context.output.print_message(&format!("\n{}", goes_on()));
            Ok(None)
        }
    }
}
