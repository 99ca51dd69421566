//! `longhaul agent`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Subcommand};
use longhaul_agent::{Agent, JoinedAgent, StorageConfig};
use longhaul_api::native::{AgentRefusal, AgentRefused, AgentRemoval, AgentRemoved};
use longhaul_api::routes;
use longhaul_model::units::{bytes, printable};
use longhaul_model::{AgentId, Fault, FaultCode, StorageName};
use longhaul_security::JoinToken;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Context, Threads, block_on, words};
use crate::clock;
use crate::config::Layers;
use crate::failure::{Exit, Failure};
use crate::signals;

#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Make this host an agent of a site, with the token printed by `longhaul site add`
    Join(JoinArgs),
    /// Run this host's agent
    Run(RunArgs),
    /// Take the root that a storage has now for the right one, after its disk was replaced on purpose; stop
    /// the agent first
    AcceptRoot(AcceptRootArgs),
    /// Refuse an agent from now on, such as one whose key was stolen; shows what that means, unless --yes
    Refuse(RefuseArgs),
    /// Show what removing an agent that is gone for good would mean; remove it with --yes
    Remove(RemoveArgs),
}

#[derive(Debug, Args)]
pub struct AcceptRootArgs {
    /// Name of the storage
    storage: StorageName,
    /// Directory for the agent's identity and journals [default: /var/lib/longhaul/agent]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RefuseArgs {
    /// Id of the agent, as `longhaul site show SITE` lists it
    agent: AgentId,
    /// Reason, shown to whoever meets the refusal
    #[arg(long, short)]
    reason: Option<String>,
    /// Really refuse it; there is no way back but to join again
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Id of the agent, as `longhaul site show SITE` lists it
    agent: AgentId,
    /// Really remove it; without it nothing is changed
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// URL of the service, if not the one in the token
    #[arg(value_name = "URL")]
    service: Option<String>,
    /// Directory for the agent's identity and journals [default: /var/lib/longhaul/agent]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Directory for the agent's identity and journals [default: /var/lib/longhaul/agent]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
    /// Export a directory as a storage; may be repeated, and replaces the storages in the configuration file.
    /// Options: NAME=DIRECTORY,read-only,append-only,direct-io,parallel=COUNT,work=DIRECTORY,prefix=LFN:PATH
    #[arg(long = "storage", value_name = "NAME=DIRECTORY")]
    storages: Vec<StorageOption>,
    /// Offer a virtual storage for tests: it generates what is read, and verifies and discards what is
    /// written; may be repeated
    #[arg(long = "virtual", value_name = "NAME")]
    virtual_storages: Vec<StorageName>,
    /// Move nothing: report attempts with the link rates in this file. All storages must be virtual
    #[arg(long, value_name = "FILE")]
    null_mover: Option<PathBuf>,
    /// Address to listen on for other agents [default: 0.0.0.0:7470]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Addresses for other agents to dial instead, in order of preference
    #[arg(long, value_name = "HOST:PORT,...")]
    advertise: Option<String>,
    /// Memory for buffers in user space and in kernel sockets, such as 256MiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
}

/// A storage as one argument of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageOption(StorageConfig);

impl FromStr for StorageOption {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or("write NAME=DIRECTORY")?;
        let name: StorageName = name.parse().map_err(|error| format!("{error}"))?;
        let mut parts = rest.split(',');
        let root = parts.next().filter(|root| !root.is_empty()).ok_or("write NAME=DIRECTORY")?;
        let mut storage = StorageConfig::new(name, absolute(root)?);
        for part in parts {
            match part.split_once('=') {
                None if part == "read-only" => storage.writable = false,
                None if part == "append-only" => storage.append_only = true,
                None if part == "direct-io" => storage.direct_io = Some(true),
                Some(("parallel", count)) => {
                    storage.parallel =
                        count.parse().map_err(|_| format!("{count:?} is not a number of operations"))?;
                }
                Some(("work", directory)) => storage.work = Some(absolute(directory)?),
                Some(("prefix", rule)) => {
                    let (lfn, pfn) =
                        rule.split_once(':').ok_or("write prefix=LFN:PATH; either part may be empty")?;
                    storage.rules = longhaul_model::NameRules::prefix(lfn, pfn).rules;
                }
                _ => {
                    return Err(format!(
                        "{part:?} is not one of: read-only, append-only, direct-io, parallel=COUNT, \
                            work=DIRECTORY, \
                         prefix=LFN:PATH"
                    ));
                }
            }
        }
        Ok(StorageOption(storage))
    }
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| format!("{text:?}: {error}"))
}

pub fn run(context: &Context, command: AgentCommand) -> Result<Exit, Failure> {
    match command {
        AgentCommand::Join(args) => {
            let mut layers = context.layers()?;
            apply_state_dir(&mut layers, args.state.as_deref())?;
            let config: longhaul_agent::Config = layers.section("agent")?;
            let token = join_token(context)?;
            let joined = block_on(Threads::One, join(args.service.as_deref(), &token, &config.state_dir))?;
            context.output.sentence(&JoinedView::from_joined(&joined), |shown| {
                format!(
                    "this host is agent {} of {} in {}; next: longhaul agent run",
                    shown.agent,
                    shown.site,
                    printable(&shown.deployment)
                )
            })?;
            Ok(Exit::Ok)
        }
        AgentCommand::Run(args) => {
            let mut layers = context.layers()?;
            apply_options(&mut layers, &args)?;
            let config: longhaul_agent::Config = layers.section("agent")?;
            config.check().map_err(|fault| {
                Failure::from(fault)
                    .with_remedy(
                        "longhaul agent run --storage NAME=DIRECTORY, or \
                    [[agent.storages]] in the configuration file",
                    )
                    .with_exit(Exit::Usage)
            })?;
            context.start_log(&layers)?;
            block_on(Threads::Several, async {
                let shutdown = signals::shutdown()?;
                Ok(Agent::run(config, clock::clock(), shutdown).await?)
            })?;
            Ok(Exit::Ok)
        }
        AgentCommand::AcceptRoot(args) => accept_root(context, args),
        AgentCommand::Refuse(args) => block_on(Threads::One, refuse(context, args)),
        AgentCommand::Remove(args) => block_on(Threads::One, remove(context, args)),
    }
}

fn accept_root(context: &Context, args: AcceptRootArgs) -> Result<Exit, Failure> {
    let mut layers = context.layers()?;
    apply_state_dir(&mut layers, args.state.as_deref())?;
    let config: longhaul_agent::Config = layers.section("agent")?;
    let storage = args.storage;
    let was_known = longhaul_agent::accept_root(&config.state_dir, &storage)?;
    let view = AcceptedRoot { storage, was_known };
    context.output.sentence(&view, |view| {
        let storage = &view.storage;
        match view.was_known {
            true => format!(
                "the next start takes the root that {storage} has then; files that are not there become \
                    suspect when they are verified\nto go on: longhaul agent run"
            ),
            false => format!("no root of {storage} was known here: the next start takes the one that it has"),
        }
    })?;
    Ok(Exit::Ok)
}

async fn refuse(context: &Context, args: RefuseArgs) -> Result<Exit, Failure> {
    let remote = context.remote()?;
    let reason = args.reason.unwrap_or_else(|| "refused by an administrator".to_owned());
    let request = AgentRefusal { reason, dry_run: !args.yes };
    let reply: AgentRefused =
        remote.post(&routes::AGENT_REFUSE, &[&args.agent.to_string()], &request).await?;
    context.output.sentence(&reply, |reply| refusal(reply, args.yes))?;
    Ok(Exit::Ok)
}

/// What the refusal of an agent means.
fn refusal(reply: &AgentRefused, done: bool) -> String {
    let (agent, site) = (reply.agent, &reply.site);
    let mut text = match done {
        true => format!("agent {agent} of {site} is refused: its certificates open nothing any more"),
        false => format!("would refuse agent {agent} of {site}"),
    };
    let storages: Vec<&str> = reply.storages.iter().map(|name| name.as_str()).collect();
    if !storages.is_empty() {
        text.push_str(&format!(
            "\n  {} there ({}, {}) stay where they are; nobody reaches them until another agent offers {}",
            words::files(reply.files),
            storages.join(", "),
            bytes(reply.bytes),
            if storages.len() == 1 { "it" } else { "them" },
        ));
    }
    push_work(&mut text, [reply.leases_in, reply.leases_out, reply.tasks, reply.subscriptions]);
    if done {
        text.push_str(&format!("\nto go on there: longhaul site add {site} --another-agent"));
    } else if reply.refused {
        text.push_str("\nit is refused already");
    } else {
        text.push_str(&format!("\nnothing was changed; to refuse it: longhaul agent refuse {agent} --yes"));
    }
    text
}

/// What becomes of an agent's work.
fn push_work(text: &mut String, [leases_in, leases_out, tasks, subscriptions]: [u64; 4]) {
    let becomes = [
        (leases_in, "transfer to it", "transfers to it", "given back, to wait for the next agent"),
        (leases_out, "transfer from it", "transfers from it", "given another source, or to wait"),
        (tasks, "task", "tasks", "to wait for the next agent"),
        (subscriptions, "subscription", "subscriptions", "to wait for the next agent"),
    ];
    words::push_counts(text, &becomes);
}

fn names(storages: &[StorageName]) -> String {
    let names: Vec<&str> = storages.iter().map(|name| name.as_str()).collect();
    names.join(", ")
}

async fn remove(context: &Context, args: RemoveArgs) -> Result<Exit, Failure> {
    let remote = context.remote()?;
    let request = AgentRemoval { dry_run: !args.yes };
    let reply: AgentRemoved =
        remote.post(&routes::AGENT_REMOVE, &[&args.agent.to_string()], &request).await?;
    context.output.sentence(&reply, removal)?;
    Ok(Exit::Ok)
}

/// What the removal of an agent means, or what it has done.
fn removal(reply: &AgentRemoved) -> String {
    let (agent, site) = (reply.agent, &reply.site);
    let mut text = match reply.removed {
        true => format!("agent {agent} of {site} is removed: its certificates open nothing any more"),
        false => format!("would remove agent {agent} of {site}"),
    };
    if !reply.storages.is_empty() {
        text.push_str(&format!(
            "\n  {} with {} ({}): without an agent, until another one of {site} offers it",
            names(&reply.storages),
            words::files(reply.files),
            bytes(reply.bytes),
        ));
    }
    if !reply.storages_removed.is_empty() {
        text.push_str(&format!("\n  {}: removed, since nothing is there", names(&reply.storages_removed)));
    }
    push_work(&mut text, [reply.leases_in, reply.leases_out, reply.tasks, reply.subscriptions]);
    if reply.removed {
        text.push_str(&format!("\nto go on there: longhaul site add {site} --another-agent"));
    } else if reply.connected {
        text.push_str(&format!(
            "\nnothing was changed; it is connected: stop it on its host, or: longhaul agent refuse {agent} \
                --yes"
        ));
    } else {
        text.push_str(&format!("\nnothing was changed; to remove it: longhaul agent remove {agent} --yes"));
    }
    text
}

/// What `agent join` does; also used by the demo.
pub async fn join(url: Option<&str>, token: &str, state_dir: &Path) -> Result<JoinedAgent, Failure> {
    let token: JoinToken = token.parse()?;
    longhaul_agent::join(url, &token, state_dir).await.map_err(join_failure)
}

const JOINED_REMEDY: &str = "start the agent that is there: longhaul agent run; for another agent choose \
                             another directory with --state";

/// The general step where something exists is to delete it: here that is the identity of an agent.
fn join_failure(fault: Fault) -> Failure {
    let exists = fault.code == FaultCode::AlreadyExists;
    let failure = Failure::from(fault);
    if exists { failure.with_remedy(JOINED_REMEDY) } else { failure }
}

/// The token from the option, or from a variable, which does not show in the process list.
fn join_token(context: &Context) -> Result<String, Failure> {
    let given = context.global.token.clone().or_else(|| std::env::var("LONGHAUL_JOIN_TOKEN").ok());
    given.filter(|token| !token.is_empty()).ok_or_else(|| {
        Failure::usage(
            "the join token is missing",
            "an agent needs a token to join its site",
            "longhaul agent join --token TOKEN (or set LONGHAUL_JOIN_TOKEN); an administrator gets one with: \
                longhaul site add NAME",
        )
    })
}

#[derive(Serialize)]
struct AcceptedRoot {
    storage: StorageName,
    /// Whether the agent had noted a root of this storage.
    was_known: bool,
}

#[derive(Serialize)]
struct JoinedView {
    agent: String,
    site: String,
    deployment: String,
}

impl JoinedView {
    fn from_joined(joined: &JoinedAgent) -> Self {
        JoinedView {
            agent: joined.agent.to_string(),
            site: joined.site.to_string(),
            deployment: joined.deployment.clone(),
        }
    }
}

fn apply_state_dir(layers: &mut Layers, directory: Option<&Path>) -> Result<(), Failure> {
    if let Some(directory) = directory {
        let directory =
            std::path::absolute(directory).map_err(|error| Failure::file("finding", directory, &error))?;
        layers.add_option_value("agent.state_dir", "--state", json!(directory));
    }
    Ok(())
}

fn apply_options(layers: &mut Layers, args: &RunArgs) -> Result<(), Failure> {
    apply_state_dir(layers, args.state.as_deref())?;
    let made = args.virtual_storages.iter().cloned().map(StorageConfig::new_virtual);
    let storages: Vec<StorageConfig> =
        args.storages.iter().map(|storage| storage.0.clone()).chain(made).collect();
    if !storages.is_empty() {
        let option = if args.storages.is_empty() { "--virtual" } else { "--storage" };
        let value = serde_json::to_value(storages).unwrap_or(Value::Null);
        layers.add_option_value("agent.storages", option, value);
    }
    if let Some(file) = &args.null_mover {
        let file = std::path::absolute(file).map_err(|error| Failure::file("finding", file, &error))?;
        layers.add_option_value("agent.null_mover", "--null-mover", json!(file));
    }
    for (key, option, value) in [
        ("agent.listen", "--listen", &args.listen),
        ("agent.advertise", "--advertise", &args.advertise),
        ("agent.memory_bytes", "--memory", &args.memory),
    ] {
        if let Some(value) = value {
            layers.add_option(key, option, value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_join_leads_to_the_agent_that_is_there() {
        let remedy = |code| join_failure(Fault::new(code, "x")).problem.remedy;
        let exists = remedy(FaultCode::AlreadyExists);
        assert!(exists.contains("longhaul agent run") && !exists.contains("delete"), "{exists}");
        assert!(remedy(FaultCode::JoinTokenUsed).contains("longhaul site add"));
    }

    #[test]
    fn a_storage_fits_in_a_word() {
        let StorageOption(storage) = "beta=/data,work=/data/.w,prefix=store:disk,read-only".parse().unwrap();
        assert_eq!(storage.root, Path::new("/data"));
        assert_eq!(storage.work.as_deref(), Some(Path::new("/data/.w")));
        assert!(!storage.writable);
        assert_eq!(storage.rules, longhaul_model::NameRules::prefix("store", "disk").rules);
        let StorageOption(storage) = "beta=/data,append-only,direct-io,parallel=8".parse().unwrap();
        assert!(storage.append_only && storage.direct_io == Some(true) && storage.writable);
        assert_eq!(storage.parallel, 8);
        let all =
            ["beta", "beta=", "=x", "be ta=/x", "beta=/x,prefix=a", "beta=/x,fast", "beta=/x,parallel=many"];
        for bad in all {
            assert!(bad.parse::<StorageOption>().is_err(), "{bad}");
        }
    }
}
