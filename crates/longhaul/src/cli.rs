//! The command line: options for every command, and the list of nouns. What a noun can do, and how, is
//! written together in `commands`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::{
    account, agent, as_account, audit, bench, circuit, completion, config, copy, dataset, digest, doctor,
    job, limit, link, load, login, man, network, replica, serve, service, share, simulate, site, status,
    storage, submit, subscription, task, token, transfer, tune, verify,
};
use crate::demo;

const AFTER_HELP: &str = "\
Connecting
  Commands find the service by --url, --token and --ca; else by LONGHAUL_URL, LONGHAUL_TOKEN and \
  LONGHAUL_CA; else by
  the configuration file; else by what `longhaul login` saved (~/.config/longhaul/client.toml). --dir STATE \
  takes the
  connection of a demo, or of a service on this machine, from its state directory.

Output
  Data goes to standard output, progress and messages to standard error. --json gives one document, whose \
  types are
  those of the HTTP API (GET /api/v1/openapi.json); after an error that is the problem. --plain gives \
  tab-separated
  values under a heading, with bytes as numbers and times in UTC.

Exit status
  0 done   1 other error   2 wrong use   3 not found   4 not allowed   5 try again later   6 will not work
  7 partly done   8 waited too long   10 content differs   130 interrupted";

#[derive(Debug, Parser)]
#[command(
    name = "longhaul",
    version,
    about = "Places datasets at sites and moves them there, verified",
    after_long_help = AFTER_HELP,
    after_help = "`longhaul --help` also explains how commands connect, what they print and their exit \
        status.",
    disable_help_subcommand = false,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// One JSON document on standard output
    #[arg(long, global = true, help_heading = "Output", conflicts_with = "plain")]
    pub json: bool,
    /// Tab-separated values under a heading
    #[arg(long, global = true, help_heading = "Output")]
    pub plain: bool,
    /// No progress, no messages; errors only
    #[arg(long, short, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// No colour (so does the variable NO_COLOR)
    #[arg(long = "no-color", global = true, help_heading = "Output", hide_short_help = true)]
    pub no_color: bool,

    /// The service, such as https://longhaul.example:8443
    #[arg(long, global = true, help_heading = "Connection", value_name = "URL")]
    pub url: Option<String>,
    /// API token
    #[arg(long, global = true, help_heading = "Connection", hide_short_help = true)]
    pub token: Option<String>,
    /// The deployment's CA: a PEM file, or sha256: and its fingerprint
    #[arg(long, global = true, help_heading = "Connection", value_name = "FILE", hide_short_help = true)]
    pub ca: Option<String>,
    /// State directory of a demo (where it is made), or of a service on this machine: connect to that one
    #[arg(long, global = true, help_heading = "Connection", value_name = "STATE")]
    pub dir: Option<PathBuf>,
    /// Configuration file [default: /etc/longhaul/longhaul.toml, if there is one]
    #[arg(long, global = true, help_heading = "Connection", value_name = "FILE", hide_short_help = true)]
    pub config: Option<PathBuf>,

    /// Form of the log
    #[arg(
        long,
        global = true,
        help_heading = "Logging",
        value_enum,
        value_name = "FORM",
        hide_short_help = true
    )]
    pub log: Option<LogForm>,
    /// error, warn, info, debug or trace; or a list: info,longhaul_engine=debug
    #[arg(long, global = true, help_heading = "Logging", value_name = "LEVEL", hide_short_help = true)]
    pub log_level: Option<String>,
    /// Where the log goes, instead of standard error
    #[arg(long, global = true, help_heading = "Logging", value_name = "FILE", hide_short_help = true)]
    pub log_file: Option<PathBuf>,

    /// End when standard input ends: whoever started this process has died
    #[arg(long, global = true, hide = true)]
    pub exit_with_parent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// One JSON object a line
    Json,
    /// Lines for people
    Human,
}

impl LogForm {
    pub fn word(self) -> &'static str {
        match self {
            LogForm::Json => "json",
            LogForm::Human => "human",
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// See it work: a service and three sites on this machine, and a dataset that travels between them
    Demo(demo::DemoArgs),
    /// What moves, what waits, what is wrong
    Status(status::StatusArgs),
    /// What is wrong, whose turn it is, and what to do
    Problems(status::ProblemsArgs),
    /// Datasets: register, list, show, close, delete
    #[command(subcommand)]
    Dataset(dataset::DatasetCommand),
    /// Wish that a dataset or block be at a storage, and stay there
    Subscribe(subscription::SubscribeArgs),
    /// Subscriptions: list, show, suspend, resume, cancel, change
    #[command(subcommand)]
    Subscription(subscription::SubscriptionCommand),
    /// Replicas: where data is, and how it was verified; delete them
    #[command(subcommand)]
    Replica(replica::ReplicaCommand),
    /// Transfers: list, show, explain, retry
    #[command(subcommand)]
    Transfer(transfer::TransferCommand),
    /// Have files copied from URL to URL, between storages that need not know Longhaul
    Submit(submit::SubmitArgs),
    /// Jobs, copies between URLs: list, show, wait, cancel, priority
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Read a dataset's files at a storage again and compare them with the catalog
    Verify(verify::VerifyArgs),
    /// Tasks: scans, verifications and deletions
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Sites: add, list, show, pause, resume, drain, limit
    #[command(subcommand)]
    Site(site::SiteCommand),
    /// Storages: list, whether files may pass through one on their way, name rules
    #[command(subcommand)]
    Storage(storage::StorageCommand),
    /// Shares of communities and activities where they want more than there is: list, set, remove
    #[command(subcommand)]
    Share(share::ShareCommand),
    /// Limits of links, storages and communities: list, set, remove
    #[command(subcommand)]
    Limit(limit::LimitCommand),
    /// Links that are used between storages: list, only, add, remove, open-all, commission, decommission
    #[command(subcommand)]
    Link(link::LinkCommand),
    /// Circuits, bandwidth reserved by agents: list, show, explain, request, release
    #[command(subcommand)]
    Circuit(circuit::CircuitCommand),
    /// Who changed shares, links, storages and accounts, requested or gave back circuits, and logged in, and
    /// when
    Audit(audit::AuditArgs),
    /// The network: what links give, why, what changed; whose measurement hosts are; exchange with other
    /// instances
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// The service: set up, run, check
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// A site's agent: join a service, run
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Settings and where they come from
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Copy files and directories, now: from and to `longhaul serve`, over ssh, or on this host
    Copy(copy::CopyArgs),
    /// Export one directory to whoever gets the URL that this prints
    Serve(serve::ServeArgs),
    /// Digests of files on this host: blake3 for `longhaul copy --blake3`, and others
    Digest(digest::DigestArgs),
    /// Accounts of people who log in with a password: add, list, password, set, disable, enable, remove
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// API tokens: create, list, revoke
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Is this host ready for long paths, and does a peer answer? Findings with remedies
    Doctor(doctor::DoctorArgs),
    /// Kernel settings for a path; applies none
    Tune(tune::TuneArgs),
    /// What the scheduler achieves in a world of a scenario, and what nobody could beat
    Simulate(simulate::SimulateArgs),
    /// Measure disk, network and encryption alone, and which of them limits
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Load a service with test subscriptions, and see what comes of them
    Load(load::LoadArgs),
    /// Save how to reach a service, for the commands that follow
    Login(login::LoginArgs),
    /// Whose credential this is, and what it allows
    Whoami,
    /// Becomes an account, for good, and runs this program as that account
    #[command(hide = true)]
    AsAccount(as_account::AsAccountArgs),
    /// Completions for a shell
    #[command(alias = "completions")]
    Completion(completion::CompletionArgs),
    /// Manual pages
    Man(man::ManArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does() {
        fn walk(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                assert!(sub.get_about().is_some(), "{path} has no help");
                for argument in sub.get_arguments().filter(|argument| !argument.is_hide_set()) {
                    assert!(argument.get_help().is_some(), "{path}: {} has no help", argument.get_id());
                }
                walk(sub, &path);
            }
        }
        walk(&Cli::command(), "longhaul");
    }

    #[test]
    fn global_options_stand_anywhere() {
        let cli = Cli::try_parse_from(["longhaul", "site", "list", "--json", "--dir", "/tmp/x"]).unwrap();
        assert!(cli.global.json && cli.global.dir.is_some());
        let cli = Cli::try_parse_from(["longhaul", "--json", "site", "list"]).unwrap();
        assert!(cli.global.json);
        assert!(Cli::try_parse_from(["longhaul", "site", "list", "--json", "--plain"]).is_err());
    }
}
