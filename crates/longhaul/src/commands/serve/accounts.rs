//! `longhaul serve --grid-map`: one server for each subject of the map, each in its own process that runs as
//! the subject's account. This process is root, starts them, and never reads a byte from the network.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use longhaul_copy::accounts::{self, Account, AccountPolicy, MappedSubject, UnmappedLine};
use longhaul_copy::url::{ServerUrl, URL_BYTES_MAX};
use longhaul_copy::{RetainedKey, Stop};
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use longhaul_security::SharedSecret;
use longhaul_security::gridmap;
use serde::Serialize;
use zeroize::Zeroizing;

use super::{SECRET_VARIABLE, ServeArgs};
use crate::commands::Context;
use crate::failure::{Exit, Failure};
use crate::output::Format;

/// Subjects of one map: each is a process with its own buffers.
const SUBJECTS_MAX: usize = 256;
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time from a server's start to its URL.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before a server that died is restarted; doubles with each early death.
const RESTART_BACKOFF_MIN: Duration = Duration::from_secs(1);
const RESTART_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A server that ran this long did not fail at its start.
const UPTIME_STABLE_MIN: Duration = Duration::from_secs(60);
/// Time for a clean shutdown, which keeps partial files resumable.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A subject and its server.
struct SubjectServer {
    mapped: MappedSubject,
    url_file: PathBuf,
    secret: SharedSecret,
    listen: Option<String>,
    process: Option<ServerProcess>,
    backoff: Duration,
    restart_at: Option<Instant>,
}

struct ServerProcess {
    child: Child,
    url: ServerUrl,
    since: Instant,
}

#[derive(Serialize)]
struct SubjectView<'a> {
    subject: &'a str,
    account: &'a str,
    uid: u32,
    url_file: &'a Path,
    addresses: &'a [String],
}

pub(super) fn run(context: &Context, args: &ServeArgs, map: &Path, stop: &Stop) -> Result<Exit, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(FaultCode::NotAllowed, "only root can switch to other accounts")
            .with_title("--grid-map needs root")
            .with_remedy("run it as root; to serve as yourself: longhaul serve DIR"));
    }
    let (mapped, unmapped) = read_map(args, map)?;
    for line in &unmapped {
        context.output.print_message(&format!(
            "warning: {}:{}: {}",
            printable(&map.to_string_lossy()),
            line.line,
            printable(&line.why)
        ));
    }
    let directory = args.url_dir.as_deref().unwrap_or_else(|| Path::new("."));
    let mut parties = subject_servers(args, mapped, directory)?;
    let started = start_all(context, args, &mut parties, directory);
    let ended = started.map(|()| supervise_all(args, &mut parties, stop));
    stop_all(&mut parties);
    for party in &parties {
        let _ = std::fs::remove_file(&party.url_file);
        if !args.keep_url {
            RetainedKey::remove(&party.url_file);
        }
        if args.write {
            accounts::remove_work(&args.directory, &party.mapped.account);
        }
    }
    ended.map(|()| Exit::Ok)
}

fn read_map(args: &ServeArgs, path: &Path) -> Result<(Vec<MappedSubject>, Vec<UnmappedLine>), Failure> {
    let failed = |error: std::io::Error| Failure::file("reading", path, &error);
    let file = std::fs::File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let shown = printable(&path.to_string_lossy());
    if found.uid() != 0 || found.mode() & 0o022 != 0 {
        let why = format!("users other than root can change {shown} and map themselves to any account");
        return Err(Failure::new(FaultCode::NotAllowed, why)
            .with_remedy(format!("chown root {shown}; chmod go-w {shown}")));
    }
    let mut bytes = Vec::new();
    file.take(gridmap::MAP_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > gridmap::MAP_BYTES_MAX {
        let why = format!("{shown} has more than {} bytes", gridmap::MAP_BYTES_MAX);
        return Err(Failure::new(FaultCode::TooLarge, why));
    }
    let policy = AccountPolicy { uid_min: args.uid_min, listed: args.system_account.clone() };
    let (mapped, unmapped) = accounts::map_subjects(&gridmap::parse(&bytes), &policy, &mut accounts::look_up);
    let next = format!("longhaul doctor --gridmap {shown}");
    if mapped.is_empty() {
        let first =
            unmapped.first().map_or_else(String::new, |line| format!("; line {} {}", line.line, line.why));
        let why = format!("no line of {shown} maps a subject to an account{first}");
        return Err(Failure::usage("no subject is mapped", why, next));
    }
    if mapped.len() > SUBJECTS_MAX {
        let why = format!(
            "{} subjects are mapped and each needs its own server; the limit is {SUBJECTS_MAX}",
            mapped.len()
        );
        return Err(Failure::usage(
            "too many subjects",
            why,
            "remove unused lines, or run several servers with a map each",
        ));
    }
    Ok((mapped, unmapped))
}

/// Determines URL files, retained secrets and ports.
fn subject_servers(
    args: &ServeArgs,
    mapped: Vec<MappedSubject>,
    directory: &Path,
) -> Result<Vec<SubjectServer>, Failure> {
    let mut parties: Vec<SubjectServer> = Vec::with_capacity(mapped.len());
    for (place, mapped) in mapped.into_iter().enumerate() {
        let earlier = parties.iter().filter(|party| party.mapped.account.name == mapped.account.name).count();
        let number = if earlier == 0 { String::new() } else { format!("-{}", earlier + 1) };
        let url_file = directory.join(format!("{}{number}.url", mapped.account.name));
        let (secret, kept) = super::retained_key(&url_file, &args.directory);
        let mut listen = args.listen.as_deref().map(|text| nth_port(text, place)).transpose()?;
        if let Some(kept) = kept.first().filter(|_| listen.as_deref().is_none_or(|text| text.ends_with(":0")))
        {
            listen =
                Some(if kept.ip().is_unspecified() { format!(":{}", kept.port()) } else { kept.to_string() });
        }
        let (server, again_at) = (None, None);
        parties.push(SubjectServer {
            mapped,
            url_file,
            secret,
            listen,
            process: server,
            backoff: RESTART_BACKOFF_MIN,
            restart_at: again_at,
        });
    }
    Ok(parties)
}

/// The address of the server at `place`: with `10.0.0.1:7000` for the first, the next has port 7001.
fn nth_port(text: &str, place: usize) -> Result<String, Failure> {
    let Some((host, port)) =
        text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)))
    else {
        return Ok(text.to_owned());
    };
    let nth = u16::try_from(place).ok().and_then(|place| port.checked_add(place));
    match (port, nth) {
        (0, _) => Ok(text.to_owned()),
        (_, Some(nth)) => Ok(format!("{host}:{nth}")),
        (_, None) => Err(Failure::usage(
            "not enough ports",
            format!("{} subjects need ports from {port} on", place + 1),
            "choose a lower port, or 0 for free ports",
        )),
    }
}

fn start_all(
    context: &Context,
    args: &ServeArgs,
    parties: &mut [SubjectServer],
    directory: &Path,
) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| Failure::file("making", directory, &error))?;
    if args.write {
        for party in parties.iter() {
            accounts::prepare_work(&args.directory, &party.mapped.account)?;
        }
    }
    for party in parties.iter_mut() {
        party.start(args)?;
    }
    let shown: Vec<SubjectView<'_>> = parties.iter().filter_map(SubjectServer::view).collect();
    if context.output.format == Format::Json {
        return context.output.json(&shown);
    }
    for one in &shown {
        let file = printable(&one.url_file.to_string_lossy());
        context.output.write(&format!(
            "{}  as {} (uid {})  {file}\n",
            printable(one.subject),
            one.account,
            one.uid
        ))?;
    }
    let what = if args.write { "reads and writes" } else { "reads" };
    let root = printable(&args.directory.to_string_lossy());
    context.output.print_message(&format!(
        "      (each file holds the key of one subject; whoever has it {what} {root} as \
        that account until Ctrl-C)"
    ));
    Ok(())
}

fn supervise_all(args: &ServeArgs, parties: &mut [SubjectServer], stop: &Stop) {
    while !stop.wait(CHECK_INTERVAL) {
        for party in parties.iter_mut() {
            party.supervise(args);
        }
    }
}

fn stop_all(parties: &mut [SubjectServer]) {
    let mut running: Vec<Child> =
        parties.iter_mut().filter_map(|party| party.process.take()).map(|one| one.child).collect();
    for child in &running {
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
    let begun = Instant::now();
    running.retain_mut(|child| {
        while begun.elapsed() < STOP_TIMEOUT {
            if !matches!(child.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    });
    for mut child in running {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Reads the first line of a server's output. The server is not trusted, so time and length are limited.
fn first_line(output: ChildStdout) -> Zeroizing<String> {
    let (to, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = Zeroizing::new(String::new());
        let _ = BufReader::new(output.take(URL_BYTES_MAX as u64 + 2)).read_line(&mut line);
        // The receiver may have given up.
        let _ = to.send(line);
    });
    said.recv_timeout(START_TIMEOUT).unwrap_or_default()
}

impl SubjectServer {
    fn start(&mut self, args: &ServeArgs) -> Result<(), Failure> {
        let mut command = self.command(args)?;
        command.env(SECRET_VARIABLE, self.secret.reveal().as_str());
        let mut child = command
            .spawn()
            .map_err(|error| Failure::new(FaultCode::Internal, format!("cannot start a process: {error}")))?;
        let line = child.stdout.take().map(first_line).unwrap_or_default();
        let Ok((url, _)) = ServerUrl::parse(line.trim_end()) else {
            // Its error message is on standard error already.
            let _ = child.kill();
            let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let Account { name, .. } = &self.mapped.account;
            return Err(Failure::new(
                FaultCode::Internal,
                format!("the server of {name} did not start ({status})"),
            )
            .with_remedy("see its messages above; the account must have access to the directory"));
        };
        longhaul_security::write_private(&self.url_file, format!("{}\n", line.trim_end()).as_bytes())
            .map_err(Fault::from)?;
        let port =
            url.addresses.first().and_then(|address| address.rsplit_once(':')).map_or("0", |(_, port)| port);
        // The same port after a restart: clients know no other.
        let host = self.listen.as_deref().and_then(|text| Some(text.rsplit_once(':')?.0)).unwrap_or("");
        self.listen = Some(format!("{host}:{port}"));
        let all = format!("[::]:{port}");
        let listen =
            self.listen.iter().filter_map(|text| text.parse().or_else(|_| all.parse()).ok()).collect();
        RetainedKey { secret: self.secret.clone(), listen }.store(&self.url_file, &args.directory)?;
        self.process = Some(ServerProcess { child, url, since: Instant::now() });
        Ok(())
    }

    fn command(&self, args: &ServeArgs) -> Result<Command, Failure> {
        let Account { name, uid, gid, groups, home } = &self.mapped.account;
        let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        let mut command = Command::new("/proc/self/exe");
        command.args(["as-account", "--uid", &uid.to_string(), "--gid", &gid.to_string()]);
        command.args([
            format!("--groups={}", groups.join(",")),
            format!("--name={name}"),
            format!("--home={home}"),
        ]);
        command.args(["--", "serve", "--quiet", "--exit-with-parent"]);
        command.arg(format!("--party={}", self.mapped.subject));
        command.args(self.listen.iter().map(|listen| format!("--listen={listen}")));
        command.args(args.advertise.iter().map(|host| format!("--advertise={host}")));
        command.args(args.allow.iter().map(|allow| format!("--allow={allow}")));
        command.args(args.limit.iter().map(|rate| format!("--limit={}", rate.0)));
        command.args(args.memory.iter().map(|size| format!("--memory={}", size.0)));
        if let Some(security) = args.data_security.to_possible_value() {
            command.arg(format!("--data-security={}", security.get_name()));
        }
        command.args(args.write.then_some("--write"));
        let root = args.directory.canonicalize();
        let root = root.map_err(|error| Failure::file("finding", &args.directory, &error))?;
        command.arg("--").arg(root);
        // The server ends with this pipe, however we end.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(command)
    }

    fn supervise(&mut self, args: &ServeArgs) {
        let account = &self.mapped.account.name;
        if let Some(running) = &mut self.process {
            let Ok(Some(status)) = running.child.try_wait() else { return };
            self.backoff = if running.since.elapsed() > UPTIME_STABLE_MIN {
                RESTART_BACKOFF_MIN
            } else {
                (self.backoff * 2).min(RESTART_BACKOFF_MAX)
            };
            tracing::warn!(account, %status, again_in = ?self.backoff, "server died");
            self.process = None;
            self.restart_at = Some(Instant::now() + self.backoff);
        }
        if self.restart_at.is_some_and(|at| Instant::now() >= at) {
            self.restart_at = match self.start(args) {
                Ok(()) => None,
                Err(failure) => {
                    self.backoff = (self.backoff * 2).min(RESTART_BACKOFF_MAX);
                    tracing::warn!(
                        account = self.mapped.account.name,
                        why = failure.problem.detail,
                        "server does not start"
                    );
                    Some(Instant::now() + self.backoff)
                }
            };
        }
    }

    fn view(&self) -> Option<SubjectView<'_>> {
        Some(SubjectView {
            subject: &self.mapped.subject,
            account: &self.mapped.account.name,
            uid: self.mapped.account.uid,
            url_file: &self.url_file,
            addresses: &self.process.as_ref()?.url.addresses,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_each_other() {
        assert_eq!(nth_port("10.0.0.1:7000", 3).unwrap(), "10.0.0.1:7003");
        assert_eq!(nth_port(":7000", 0).unwrap(), ":7000");
        assert_eq!(nth_port("[::1]:0", 5).unwrap(), "[::1]:0");
        assert_eq!(nth_port("10.0.0.1", 5).unwrap(), "10.0.0.1");
        assert!(nth_port(":65530", 6).is_err());
    }
}
