//! `longhaul service`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use longhaul_api::native::CheckReport;
use longhaul_api::routes;
use longhaul_model::FaultCode;
use longhaul_model::units::{count, printable};
use longhaul_service::{Config, Operations, Service};
use serde::Serialize;
use serde_json::json;

use super::{Context, Threads, block_on, login, words};
use crate::clock;
use crate::config::{ClientConfig, Layers, PROFILE};
use crate::failure::{Exit, Failure};
use crate::hardening::make_files_private;
use crate::signals;
use crate::table::{Cell, Table, facts, left, prose, right};
use crate::terminal::{Style, Tone};

/// Certificate of the service's CA, beside its state; it is no secret.
const CA_FILE: &str = "ca.pem";

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Set up a new deployment: CA, database and first administrator token
    Init(InitArgs),
    /// Run the service
    Run(RunArgs),
    /// Check the invariants of the service's state
    Check,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    #[command(flatten)]
    location: ServiceLocation,
    /// Name of the deployment, part of every certificate [default: longhaul]
    #[arg(long, value_name = "NAME")]
    deployment: Option<String>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    location: ServiceLocation,
    /// Also serve the web pages as plain HTTP to browsers on this machine: a loopback address such as
    /// 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
}

#[derive(Debug, Args)]
struct ServiceLocation {
    /// Directory for the service's database, CA and keys [default: /var/lib/longhaul/service]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
    /// Address to listen on for agents and users [default: 0.0.0.0:8443]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// URL by which others reach the service, if not by this host's name
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// More names and addresses for the service's certificate
    #[arg(long, value_name = "NAME,...")]
    names: Option<String>,
}

pub fn run(context: &Context, command: ServiceCommand) -> Result<Exit, Failure> {
    match command {
        ServiceCommand::Init(args) => {
            let mut layers = context.layers()?;
            args.location.apply(&mut layers)?;
            if let Some(deployment) = &args.deployment {
                layers.add_option("service.deployment", "--deployment", deployment)?;
            }
            make_files_private();
            let made = InitResult { run: args.location.run_command(), ..init(&layers.section("service")?)? };
            context.output.view(&made, init_text, |made| {
                let mut table = Table::new([left("url"), left("token"), left("ca"), left("fingerprint")]);
                table.row([&made.url, &made.token, &made.ca, &made.ca_fingerprint].map(Cell::text));
                table
            })?;
            Ok(Exit::Ok)
        }
        ServiceCommand::Run(args) => {
            let mut layers = context.layers()?;
            args.location.apply(&mut layers)?;
            if let Some(http) = &args.http {
                layers.add_option("service.http", "--http", http)?;
            }
            let config: Config = layers.section("service")?;
            config.check()?;
            make_files_private();
            context.start_log(&layers)?;
            block_on(Threads::Several, serve(config))?;
            Ok(Exit::Ok)
        }
        ServiceCommand::Check => {
            let remote = context.remote()?;
            let report: CheckReport = block_on(Threads::One, remote.get(&routes::CHECK, &[], &[]))?;
            context.output.view(&report, check_text, check_table)?;
            Ok(if report.sound { Exit::Ok } else { Exit::Permanent })
        }
    }
}

impl ServiceLocation {
    /// The command that runs the service with these options: only a file keeps them.
    fn run_command(&self) -> String {
        let state = self.state.as_ref().map(|state| state.to_string_lossy().into_owned());
        let options = [
            ("--state", state.as_ref()),
            ("--listen", self.listen.as_ref()),
            ("--public-url", self.public_url.as_ref()),
            ("--names", self.names.as_ref()),
        ];
        let given = options.into_iter().filter_map(|(option, value)| {
            value.map(|value| format!(" {option} {}", words::shell_word(value)))
        });
        format!("longhaul service run{}", given.collect::<String>())
    }

    fn apply(&self, layers: &mut Layers) -> Result<(), Failure> {
        if let Some(state) = &self.state {
            let path = std::path::absolute(state).map_err(|error| Failure::file("finding", state, &error))?;
            layers.add_option_value("service.state_dir", "--state", json!(path));
        }
        for (key, option, value) in [
            ("service.listen", "--listen", &self.listen),
            ("service.public_url", "--public-url", &self.public_url),
            ("service.names", "--names", &self.names),
        ] {
            if let Some(value) = value {
                layers.add_option(key, option, value)?;
            }
        }
        Ok(())
    }
}

/// Result of `service init`; the token is shown only this once.
#[derive(Debug, Serialize)]
pub struct InitResult {
    pub url: String,
    pub token: String,
    /// File with the CA's certificate, for clients.
    pub ca: String,
    pub ca_fingerprint: String,
    /// Client profile with all of these, for `--dir`.
    pub profile: String,
    pub deployment: String,
    /// The command that runs the service where it was set up.
    #[serde(skip)]
    pub run: String,
}

const INIT_REMEDY: &str = "start what is there: longhaul service run; for another deployment choose another \
                           directory with --state";

/// Sets up a deployment; leaves the CA's certificate and a first profile beside its state.
pub fn init(config: &Config) -> Result<InitResult, Failure> {
    let reply = longhaul_service::init(config, clock::now()).map_err(|fault| {
        let exists = fault.code == FaultCode::AlreadyExists;
        let failure = Failure::from(fault);
        // The general remedy is to delete what exists: here that is the authority of the whole deployment.
        if exists { failure.with_remedy(INIT_REMEDY) } else { failure }
    })?;
    let (ca, profile) = (config.state_dir.join(CA_FILE), config.state_dir.join(PROFILE));
    std::fs::write(&ca, &reply.ca_pem).map_err(|error| Failure::file("writing", &ca, &error))?;
    let url = public_url(config);
    let kept = ClientConfig { url: url.clone(), token: reply.admin_token.clone(), ca: CA_FILE.to_owned() };
    login::save(&profile, &kept)?;
    Ok(InitResult {
        url,
        token: reply.admin_token,
        ca: ca.to_string_lossy().into_owned(),
        ca_fingerprint: reply.ca_fingerprint,
        profile: profile.to_string_lossy().into_owned(),
        deployment: reply.deployment,
        run: "longhaul service run".to_owned(),
    })
}

/// Runs the service until shutdown.
async fn serve(mut config: Config) -> Result<(), Failure> {
    let shutdown = signals::shutdown()?;
    config.public_url = public_url(&config);
    let pages = |operations: &Arc<Operations>| longhaul_web::router(operations.clone());
    let service = Service::start(config, clock::clocks(), pages).await?;
    shutdown.await;
    service.stop().await;
    Ok(())
}

/// The configured URL; otherwise the first listening address, with this host's name for "any address".
fn public_url(config: &Config) -> String {
    match config.listen.first() {
        Some(address) if config.public_url.is_empty() && address.ip().is_unspecified() => {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            format!("https://{host}:{}", address.port())
        }
        Some(address) if config.public_url.is_empty() => format!("https://{address}"),
        _ => config.public_url.trim_end_matches('/').to_owned(),
    }
}

fn init_text(made: &InitResult, style: Style, width: Option<usize>) -> String {
    let lines = facts(
        style,
        width,
        &[
            ("url", made.url.clone()),
            ("token", made.token.clone()),
            ("ca", printable(&made.ca)),
            ("fingerprint", made.ca_fingerprint.clone()),
        ],
    );
    let directory = Path::new(&made.profile).parent().unwrap_or(Path::new("."));
    let directory = printable(&directory.to_string_lossy());
    let next = format!(
        "This is the administrator's token; it is shown only this once. Next:\n  {}\n  longhaul site add \
         NAME --dir {directory}\non other machines:\n  longhaul login {} --ca sha256:{} --token TOKEN\n",
        made.run, made.url, made.ca_fingerprint
    );
    format!("{lines}\n{next}")
}

fn check_text(report: &CheckReport, style: Style, width: Option<usize>) -> String {
    let last = if report.sound {
        style.paint(Tone::Good, &format!("all {} hold", report.checks.len()))
    } else {
        style
            .paint(Tone::Bad, "the state is NOT sound: keep the state directory and report this with the log")
    };
    format!("{}{last}\n", check_table(report).human(style, width))
}

fn check_table(report: &CheckReport) -> Table {
    let mut table = Table::new([left("invariant"), right("violations"), prose("examples")]);
    for check in &report.checks {
        table.row([
            Cell::text(&check.name),
            Cell::both(count(check.violations), check.violations.to_string())
                .toned_if(check.violations > 0, Tone::Bad),
            Cell::text(check.examples.join(", ")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The general step is to delete what exists: here the authority of the whole deployment.
    #[test]
    fn a_second_init_leads_to_the_deployment_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { state_dir: directory.path().join("state"), ..Config::default() };
        init(&config).unwrap();
        let problem = init(&config).unwrap_err().problem;
        assert_eq!(problem.code, FaultCode::AlreadyExists);
        assert!(problem.remedy.contains("longhaul service run"), "{}", problem.remedy);
        assert!(!problem.remedy.contains("delete"), "{}", problem.remedy);
    }

    /// With other options it would be another service: one of the default address, for instance.
    #[test]
    fn the_next_step_runs_the_service_that_was_set_up() {
        let location = ServiceLocation {
            state: Some("/srv/a b".into()),
            listen: Some("127.0.0.1:9443".to_owned()),
            public_url: None,
            names: Some("lh.example.org".to_owned()),
        };
        let expected =
            "longhaul service run --state '/srv/a b' --listen 127.0.0.1:9443 --names lh.example.org";
        assert_eq!(location.run_command(), expected);
    }
}
