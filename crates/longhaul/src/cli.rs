//! The command line: global options and the list of commands. What a command does, with its own options, is
//! in `commands`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::{
    account, agent, as_account, audit, bench, circuit, completion, config, copy, dataset, digest, doctor,
    job, limit, link, load, login, man, mover, network, replica, serve, service, share, simulate, site,
    status, storage, submit, subscription, task, token, transfer, tune, verify,
};
use crate::demo;

const AFTER_HELP: &str = "\
Connecting
  Commands find the service by --url, --token and --ca, then LONGHAUL_URL, LONGHAUL_TOKEN and LONGHAUL_CA,
  then the configuration file, then what `longhaul login` saved (~/.config/longhaul/client.toml).
  --dir STATE connects to a demo, or to a service on this machine, by its state directory.

Output
  Data goes to standard output, progress and messages to standard error.
  --json prints one document with the types of the HTTP API (GET /api/v1/openapi.json), or the problem after
  an error. --plain prints tab-separated values under a heading line, with sizes in bytes and times in UTC.

Exit status
  0 success   1 other error   2 usage error   3 not found   4 not allowed   5 temporary failure, try again
  6 permanent failure   7 partial success   8 timed out   10 content differs   70 the core of a service or
  agent ended   130 interrupted";

#[derive(Debug, Parser)]
#[command(
    name = "longhaul",
    version,
    about = "Moves datasets between sites and verifies every byte",
    after_long_help = AFTER_HELP,
    after_help = "`longhaul --help` also explains connecting, output and exit status.",
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

/// Options that every command accepts.
#[derive(Clone, Debug, Default, Args)]
pub struct Global {
    /// Print one JSON document to standard output
    #[arg(long, global = true, help_heading = "Output", conflicts_with = "plain")]
    pub json: bool,
    /// Print tab-separated values under a heading line
    #[arg(long, global = true, help_heading = "Output")]
    pub plain: bool,
    /// Print errors only, no progress or messages
    #[arg(long, short, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Disable colour (also: set NO_COLOR)
    #[arg(long = "no-color", global = true, help_heading = "Output", hide_short_help = true)]
    pub no_color: bool,

    /// URL of the service, such as https://longhaul.example:8443
    #[arg(long, global = true, help_heading = "Connection", value_name = "URL")]
    pub url: Option<String>,
    /// API token
    #[arg(long, global = true, help_heading = "Connection", hide_short_help = true)]
    pub token: Option<String>,
    /// CA of the deployment: a PEM file, or sha256:FINGERPRINT; "system": the authorities of this machine
    #[arg(long, global = true, help_heading = "Connection", value_name = "FILE", hide_short_help = true)]
    pub ca: Option<String>,
    /// Connect to the demo, or the service on this machine, with this state directory (for `demo`: where to
    /// create it)
    #[arg(long, global = true, help_heading = "Connection", value_name = "STATE")]
    pub dir: Option<PathBuf>,
    /// Configuration file [default: /etc/longhaul/longhaul.toml, if it exists]
    #[arg(long, global = true, help_heading = "Connection", value_name = "FILE", hide_short_help = true)]
    pub config: Option<PathBuf>,

    /// Log format
    #[arg(
        long,
        global = true,
        help_heading = "Logging",
        value_enum,
        value_name = "FORM",
        hide_short_help = true
    )]
    pub log: Option<LogForm>,
    /// Log level: error, warn, info, debug or trace; or a list such as info,longhaul_engine=debug
    #[arg(long, global = true, help_heading = "Logging", value_name = "LEVEL", hide_short_help = true)]
    pub log_level: Option<String>,
    /// Write the log to this file instead of standard error
    #[arg(long, global = true, help_heading = "Logging", value_name = "FILE", hide_short_help = true)]
    pub log_file: Option<PathBuf>,

    /// Exit when standard input is closed, that is when the parent process has died
    #[arg(long, global = true, hide = true)]
    pub exit_with_parent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// One JSON object per line
    Json,
    /// Human-readable lines
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
    /// Run a demo: a service and three sites on this machine, and a dataset that is copied between them
    Demo(demo::DemoArgs),
    /// Show what is moving, what is waiting and what is wrong
    Status(status::StatusArgs),
    /// Show problems: what is wrong, who has to act, and what to do
    Problems(status::ProblemsArgs),
    /// Manage datasets: register, list, show, close, delete
    #[command(subcommand)]
    Dataset(dataset::DatasetCommand),
    /// Create a subscription: keep a dataset or block at a storage
    Subscribe(subscription::SubscribeArgs),
    /// Manage subscriptions: list, show, suspend, resume, cancel, change
    #[command(subcommand)]
    Subscription(subscription::SubscriptionCommand),
    /// Manage replicas: list where data is and how it was verified, delete
    #[command(subcommand)]
    Replica(replica::ReplicaCommand),
    /// Inspect transfers: list, show, explain, retry
    #[command(subcommand)]
    Transfer(transfer::TransferCommand),
    /// Submit a copy job from URL to URL, between storages that need not know Longhaul
    Submit(submit::SubmitArgs),
    /// Manage copy jobs: list, show, wait, cancel, priority
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Verify a replica: read its files again and compare them with the catalog
    Verify(verify::VerifyArgs),
    /// Manage tasks (scans, verifications, deletions): list, show, cancel
    #[command(subcommand)]
    Task(task::TaskCommand),
    /// Manage sites: add, list, show, pause, resume, drain, limit, set, commission
    #[command(subcommand)]
    Site(site::SiteCommand),
    /// Manage storages: list, set relay and strategy, check name rules
    #[command(subcommand)]
    Storage(storage::StorageCommand),
    /// Manage who streams copies between foreign storages: list, allow, refuse
    #[command(subcommand)]
    Mover(mover::MoverCommand),
    /// Manage fair shares of communities and activities: list, set, remove
    #[command(subcommand)]
    Share(share::ShareCommand),
    /// Manage limits of links, storages and communities: list, set, remove
    #[command(subcommand)]
    Limit(limit::LimitCommand),
    /// Manage allowed links between storages: list, only, add, remove, open-all, commission, decommission
    #[command(subcommand)]
    Link(link::LinkCommand),
    /// Manage circuits (reserved bandwidth): list, show, explain, plan, request, release
    #[command(subcommand)]
    Circuit(circuit::CircuitCommand),
    /// Show the audit log: changes, logins and access decisions
    Audit(audit::AuditArgs),
    /// Inspect the network: rates and bottlenecks of links, changes, measurement hosts, exchange with other
    /// instances
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// Operate the service: init, run, check
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Operate an agent: join a service, run, refuse, remove
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Show or check the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Copy files and directories now: from and to `longhaul serve`, over ssh, or on this host
    Copy(copy::CopyArgs),
    /// Export a directory to anyone who has the URL that this prints
    Serve(serve::ServeArgs),
    /// Compute digests of local files: blake3 for `longhaul copy --blake3`, and others
    Digest(digest::DigestArgs),
    /// Manage accounts for password login: add, list, password, set, disable, enable, remove
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Manage API tokens: create, list, revoke
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Check whether this host is ready for long paths and whether a peer answers, with remedies
    Doctor(doctor::DoctorArgs),
    /// Print kernel settings for a path; changes nothing
    Tune(tune::TuneArgs),
    /// Simulate the scheduler in a scenario and compare it with the theoretical bound
    Simulate(simulate::SimulateArgs),
    /// Measure disk, network and encryption separately, and find the bottleneck
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Load-test a service with subscriptions of virtual files
    Load(load::LoadArgs),
    /// Save the connection to a service for later commands
    Login(login::LoginArgs),
    /// Show whose credential this is and what it allows
    Whoami,
    /// Become an account permanently and run this program as that account
    #[command(hide = true)]
    AsAccount(as_account::AsAccountArgs),
    /// Print shell completions
    #[command(alias = "completions")]
    Completion(completion::CompletionArgs),
    /// Write manual pages
    Man(man::ManArgs),
}

#[cfg(test)]
mod named_command_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

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

    /// Words in capitals stand for names, and are parsed as such.
    #[test]
    fn commands_that_remedies_name_exist() {
        let mut named = 0;
        for code in longhaul_model::FaultCode::ALL {
            let remedy = code.next_step();
            assert!(!remedy.contains("invalidate"), "{code}: there is no such command: {remedy}");
            for (at, _) in remedy.match_indices("longhaul ") {
                let words = remedy[at..].split([',', ';', '(', ')', '`']).next().unwrap_or_default();
                let word = |word: &str| match word {
                    "SUBSCRIPTION" => "01JD3QW8V0G01".to_owned(),
                    _ => word.to_lowercase(),
                };
                let words: Vec<String> = words.split_whitespace().map(word).collect();
                named += 1;
                // Without its arguments it exists all the same.
                if let Err(error) = Cli::try_parse_from(&words) {
                    let exists = matches!(
                        error.kind(),
                        ErrorKind::DisplayHelp
                            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                            | ErrorKind::MissingRequiredArgument
                    );
                    assert!(exists, "{code}: {words:?}: {error}");
                }
            }
        }
        assert!(named >= 3, "{named} commands are named");
    }

    /// Whoever wants fewer says so.
    #[test]
    fn lists_have_no_short_end_of_their_own() {
        for [of, action] in [["dataset", "list"], ["dataset", "show"], ["subscription", "list"]] {
            let mut command = Cli::command();
            let listing = command.find_subcommand_mut(of).and_then(|of| of.find_subcommand_mut(action));
            let listing = listing.unwrap();
            let limit = listing.get_arguments().find(|argument| argument.get_id().as_str() == "limit");
            let usual = limit.unwrap().get_default_values();
            let all = crate::remote::LIST_ITEMS_MAX.to_string();
            assert!(usual.len() == 1 && usual[0].to_string_lossy() == all, "{of} {action}: {usual:?}");
        }
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
