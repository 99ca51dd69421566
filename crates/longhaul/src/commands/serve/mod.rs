//! `longhaul serve`.

mod accounts;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use longhaul_copy::{DataSecurity, RetainedKey, ServeOptions, Server, Stop};
use longhaul_model::address::IpNetwork;
use longhaul_model::{Fault, FaultCode, units};
use longhaul_security::SharedSecret;
use serde::Serialize;
use zeroize::Zeroizing;

use super::Context;
use super::copy::{RateOption, SecurityOption, SizeOption, stop_at_signals};
use crate::failure::{Exit, Failure};
use crate::logging::{LogFormat, Logging};
use crate::output::Format;

const AFTER_HELP: &str = "\
The printed URL contains a secret key: anyone who has it can read the directory (with --write also write to
it) until the command ends, and can impersonate this server to others who have it. Run one server per party.
Nothing outside the directory is accessible, whatever names and links say.

After a crash, the same command with the same --url-file gives the same URL, and clients resume. A clean
shutdown (Ctrl-C) makes the URL worthless, unless --keep-url is given.

With --grid-map, as root: every subject of the map gets its own URL, and whoever uses it reads and writes as
the account that the map gives to that subject.";

/// Passes a secret chosen by a parent process of ours: not on the command line, where others could read it.
pub const SECRET_VARIABLE: &str = "LONGHAUL_SERVE_SECRET";

/// Default port, so that firewalls can be configured; a free port if it is taken.
const PORT_DEFAULT: u16 = 7471;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ServeArgs {
    /// Directory to export
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Address to listen on: ADDRESS:PORT, :PORT or ADDRESS [default: port 7471 of all addresses, or a free
    /// one]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Address in the URL instead of this host's; may be repeated, in order of preference
    #[arg(long, value_name = "HOST[:PORT]")]
    advertise: Vec<String>,
    /// Write the URL to this file, readable only by you, once the server is listening
    #[arg(long, value_name = "FILE")]
    url_file: Option<PathBuf>,
    /// Keep the URL valid after a clean shutdown: the same --url-file gives the same URL again
    #[arg(long)]
    keep_url: bool,
    /// Serve as local accounts, mapped from subjects by this grid-map file (as root)
    #[arg(long, value_name = "FILE", requires = "url_dir", conflicts_with_all = ["url_file", "once"])]
    grid_map: Option<PathBuf>,
    /// With --grid-map: directory for the URL files, ACCOUNT.url for each subject
    #[arg(long, value_name = "DIR", requires = "grid_map")]
    url_dir: Option<PathBuf>,
    /// With --grid-map: accounts with a lower uid are system accounts, to which nobody is mapped
    #[arg(long, value_name = "UID", default_value_t = longhaul_copy::accounts::UID_MIN)]
    uid_min: u32,
    /// With --grid-map: allow this system account (never root); may be repeated
    #[arg(long, value_name = "NAME", requires = "grid_map")]
    system_account: Vec<String>,
    /// Certificate subject of the client that this server is for
    #[arg(long, hide = true)]
    party: Option<String>,
    /// Clients may only read (default)
    #[arg(long, conflicts_with = "write")]
    read_only: bool,
    /// Clients may also write, and order copies from other servers
    #[arg(long)]
    write: bool,
    /// Accept only this address or network, such as 10.1.0.0/16; may be repeated
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<IpNetwork>,
    /// Exit when the first client has disconnected
    #[arg(long)]
    once: bool,
    /// Limit the rate in each direction, such as 100MB (per second)
    #[arg(long, value_name = "RATE")]
    limit: Option<RateOption>,
    /// Memory for buffers, such as 64MiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<SizeOption>,
    /// How data is protected in transit
    #[arg(long, value_enum, value_name = "HOW", default_value_t = SecurityOption::Tls)]
    data_security: SecurityOption,
}

#[derive(Serialize)]
struct ServerView<'a> {
    url: &'a str,
    directory: String,
    writable: bool,
    addresses: &'a [String],
}

pub fn run(context: &Context, args: ServeArgs) -> Result<Exit, Failure> {
    start_log(context)?;
    let stop = Stop::default();
    stop_at_signals(&stop)?;
    if let Some(map) = &args.grid_map {
        return accounts::run(context, &args, map, &stop);
    }
    if let Some(file) = &args.url_file
        && longhaul_copy::url::read_url_file(file).is_ok()
    {
        // Left by a server that was killed: whoever waits for the file must not read the old URL.
        let _ = std::fs::remove_file(file);
    }
    let (secret, kept) = match &args.url_file {
        Some(file) => retained_key(file, &args.directory),
        None => (secret_from_parent()?, Vec::new()),
    };
    let server = start(&args, &secret, &kept)?;
    let url = server.url().reveal("");
    if let Some(file) = &args.url_file {
        // Stored before the URL, so that a client can reconnect to the next server too.
        RetainedKey { secret, listen: server.listening() }.store(file, &args.directory)?;
        // Written only by a server that listens.
        longhaul_security::write_private(file, format!("{}\n", *url).as_bytes()).map_err(|error| {
            Failure::from(longhaul_model::Fault::from(error)).with_title("cannot write the URL file")
        })?;
    }
    let directory = units::printable(&server.root().to_string_lossy());
    if context.output.format == Format::Json {
        let shown =
            ServerView { url: &url, directory, writable: args.write, addresses: &server.url().addresses };
        context.output.json(&shown)?;
    } else {
        context.output.write(&format!("{}\n", *url))?;
        let may = if args.write { "read and write" } else { "read" };
        let until = if args.once { "the first client has disconnected" } else { "Ctrl-C" };
        context.output.print_message(&format!(
            "      (contains the key; anyone with it can {may} {directory} until {until})"
        ));
    }
    server.wait(&stop);
    let ((sent, received), refused) = (server.bytes(), server.refused());
    server.stop();
    if let Some(file) = &args.url_file {
        // The URL is dead from now on.
        let _ = std::fs::remove_file(file);
        if !args.keep_url {
            RetainedKey::remove(file);
        }
    }
    let refused = match refused {
        0 => String::new(),
        count => {
            let connections = units::plural(count, "connection", "connections");
            format!("; {connections} from addresses that are not allowed (--allow)")
        }
    };
    context.output.print_message(&format!(
        "{} sent, {} received{refused}",
        units::bytes(sent),
        units::bytes(received)
    ));
    // Being told to stop is the normal end of a server.
    Ok(Exit::Ok)
}

/// Logs who connects and disconnects, for people, unless logging is configured.
fn start_log(context: &Context) -> Result<(), Failure> {
    let global = &context.global;
    if global.log.is_some() || global.log_level.is_some() || global.log_file.is_some() || context.output.quiet
    {
        return Ok(());
    }
    Logging { format: LogFormat::Human, level: "warn,longhaul_copy=info".to_owned(), file: None }.start()
}

/// The key of an earlier server at this URL file and its addresses; otherwise a new key.
fn retained_key(url_file: &Path, directory: &Path) -> (SharedSecret, Vec<SocketAddr>) {
    match RetainedKey::load(url_file, directory) {
        Ok(Some(kept)) => return (kept.secret, kept.listen),
        Ok(None) => {}
        Err(why) => {
            let file = RetainedKey::path(url_file);
            tracing::warn!(
                file = %units::printable(&file.to_string_lossy()),
                why,
                "the retained key is not used; the URL is new"
            );
        }
    }
    (SharedSecret::new(), Vec::new())
}

/// The secret chosen by our parent process; otherwise a new one.
fn secret_from_parent() -> Result<SharedSecret, Failure> {
    match std::env::var(SECRET_VARIABLE) {
        Ok(text) => Ok(Zeroizing::new(text).parse().map_err(Fault::from)?),
        Err(_) => Ok(SharedSecret::new()),
    }
}

fn start(args: &ServeArgs, secret: &SharedSecret, kept: &[SocketAddr]) -> Result<Server, Failure> {
    let mut options = ServeOptions {
        root: args.directory.clone(),
        listen: Vec::new(),
        advertise: args.advertise.iter().map(|host| with_port(host)).collect(),
        writable: args.write,
        once: args.once,
        memory_bytes: args.memory.map_or(longhaul_copy::MEMORY_BYTES, |size| size.0),
        limit: args.limit.map(|rate| rate.0),
        data_security: DataSecurity::from(args.data_security),
        allow: args.allow.clone(),
        secret: Some(secret.clone()),
        party: args.party.clone(),
    };
    let mut last = None;
    for listen in prefer_retained(kept, listen_candidates(args.listen.as_deref())?) {
        options.listen = vec![listen];
        match Server::start(&options) {
            Ok(server) => return Ok(server),
            Err(fault) if is_refused_address(fault.code) => last = Some(fault),
            Err(fault) => return Err(start_failure(fault)),
        }
    }
    Err(last.map_or_else(
        || Failure::usage("no address to listen on", "", "longhaul serve --help"),
        |fault| Failure::from(fault).with_remedy("choose another port: --listen :PORT (0 for a free one)"),
    ))
}

/// The failure of a server that cannot start whatever its address.
fn start_failure(fault: Fault) -> Failure {
    let missing = fault.code == FaultCode::NotFound;
    let failure = Failure::from(fault);
    if missing { failure.with_remedy("check the path of the directory") } else { failure }
}

/// Whether a server with that fault may start at another address.
fn is_refused_address(code: FaultCode) -> bool {
    matches!(code, FaultCode::AddressInUse | FaultCode::BadRequest)
}

/// Puts the earlier server's addresses first, where any port will do.
fn prefer_retained(kept: &[SocketAddr], candidates: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let any_port = |known: &&SocketAddr| candidates.contains(&SocketAddr::new(known.ip(), 0));
    kept.iter().filter(any_port).copied().chain(candidates.iter().copied()).collect()
}

fn with_port(host: &str) -> String {
    let bracketed = host.starts_with('[');
    let has_port = if bracketed { host.contains("]:") } else { host.contains(':') };
    if has_port { host.to_owned() } else { format!("{host}:0") }
}

/// Addresses in the order to try. Without IPv6, "all addresses" are those of IPv4.
fn listen_candidates(listen: Option<&str>) -> Result<Vec<SocketAddr>, Failure> {
    let all = |port: u16| [SocketAddr::from(([0u16; 8], port)), SocketAddr::from(([0u8; 4], port))];
    let Some(text) = listen else {
        return Ok(all(PORT_DEFAULT).into_iter().chain(all(0)).collect());
    };
    let wrong = || {
        Failure::usage(
            format!("cannot listen on \"{}\"", units::printable(text)),
            "it is not an address with a port",
            "longhaul serve DIR --listen 10.0.0.1:7000, or --listen :7000",
        )
    };
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    // Checked before a port alone: `::1` begins with a colon too.
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<std::net::IpAddr>() {
        return Ok(vec![SocketAddr::new(address, PORT_DEFAULT), SocketAddr::new(address, 0)]);
    }
    let port = text.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or_else(wrong)?;
    Ok(all(port).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listens_where_people_say() {
        let first = |text: &str| listen_candidates(Some(text)).unwrap()[0].to_string();
        assert_eq!(first(":7000"), "[::]:7000");
        assert_eq!(first("10.0.0.1:7000"), "10.0.0.1:7000");
        assert_eq!(first("10.0.0.1"), "10.0.0.1:7471");
        assert_eq!(first("[::1]:5"), "[::1]:5");
        assert_eq!(first("::1"), "[::1]:7471");
        assert_eq!(listen_candidates(None).unwrap().len(), 4);
        for bad in [":x", "host", "1.2.3.4:99999", ""] {
            assert!(listen_candidates(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_earlier_address_goes_first_where_any_will_do() {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let first = |kept: &str, listen: Option<&str>| {
            prefer_retained(&[at(kept)], listen_candidates(listen).unwrap())[0]
        };
        assert_eq!(first("[::]:9", None), at("[::]:9"));
        assert_eq!(first("127.0.0.1:9", Some("127.0.0.1:0")), at("127.0.0.1:9"));
        assert_eq!(first("127.0.0.1:9", Some("127.0.0.1:7")), at("127.0.0.1:7"));
        assert_eq!(first("10.0.0.1:9", Some("127.0.0.1:0")), at("127.0.0.1:0"));
    }

    #[test]
    fn what_cannot_be_served_has_a_next_step_of_its_own() {
        let missing = start_failure(Fault::new(FaultCode::NotFound, "x")).problem;
        assert!(missing.remedy.contains("path of the directory"), "{}", missing.remedy);
        assert!(is_refused_address(FaultCode::AddressInUse) && !is_refused_address(FaultCode::NotFound));
    }

    #[test]
    fn a_host_without_a_port_gets_ours() {
        assert_eq!(with_port("far.example"), "far.example:0");
        assert_eq!(with_port("far.example:9"), "far.example:9");
        assert_eq!(with_port("[::1]"), "[::1]:0");
        assert_eq!(with_port("[::1]:9"), "[::1]:9");
    }
}
