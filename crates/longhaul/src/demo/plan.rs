//! Plans the demo and checks the plan before anything is done: directory, data, ports and space.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener};
use std::path::{Path, PathBuf};

use longhaul_model::units::{self, bytes, printable};
use longhaul_model::{FaultCode, SiteName};

use super::DemoArgs;
use crate::failure::{Exit, Failure, plain_io};

const SITE_NAMES: [&str; 24] = [
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu",
    "nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega",
];
pub const SITES_MAX: u8 = SITE_NAMES.len() as u8;

/// Space for databases, journals and logs in a demo, at most.
const STATE_BYTES_MAX: u64 = 100_000_000;
/// Space overhead of each file at each site: the rest of its last disk block, directory entries, database
/// rows.
const OVERHEAD_BYTES_PER_FILE: u64 = 6_000;

/// Inodes for directories, databases and temporary files.
const STATE_INODES_MAX: u64 = 10_000;

#[derive(Debug)]
pub struct DemoPlan {
    pub state: StateDir,
    pub data: DemoData,
    /// Sites; the first has the data.
    pub sites: Vec<SiteName>,
    pub service: SocketAddr,
    pub http: SocketAddr,
    pub needs_bytes: u64,
    pub free_bytes: u64,
    /// Keeps other demos off our ports.
    _claims: Vec<PortClaim>,
}

#[derive(Debug)]
pub enum DemoData {
    /// Files to generate.
    Generated { files: usize, bytes: u64 },
    /// The user's directory, served in place.
    Given { directory: PathBuf, files: u64, bytes: u64 },
}

impl DemoData {
    /// Number of files and bytes; an estimate where the user's directory contains what a scan leaves out.
    pub fn size(&self) -> (u64, u64) {
        match self {
            DemoData::Generated { files, bytes } => (*files as u64, *bytes),
            DemoData::Given { files, bytes, .. } => (*files, *bytes),
        }
    }
}

/// The state directory, and whether it is ours to remove.
#[derive(Debug)]
pub enum StateDir {
    Temporary(tempfile::TempDir),
    Named(PathBuf),
}

impl StateDir {
    fn make(named: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = named else {
            let made = tempfile::Builder::new().prefix("longhaul-demo-").rand_bytes(4).tempdir();
            let made =
                made.map_err(|error| Failure::file("making a directory in", &std::env::temp_dir(), &error))?;
            return Ok(StateDir::Temporary(made));
        };
        fs::create_dir_all(path).map_err(|error| Failure::file("making", path, &error))?;
        let path = fs::canonicalize(path).map_err(|error| Failure::file("finding", path, &error))?;
        let mut inside = fs::read_dir(&path).map_err(|error| Failure::file("listing", &path, &error))?;
        if inside.next().is_some() {
            return Err(Failure::usage(
                format!("{} is not empty", printable(&path.to_string_lossy())),
                "the demo needs an empty directory",
                "name an empty or new directory, or leave out --dir for a temporary one",
            ));
        }
        Ok(StateDir::Named(path))
    }

    pub fn path(&self) -> &Path {
        match self {
            StateDir::Temporary(made) => made.path(),
            StateDir::Named(path) => path,
        }
    }

    /// Removes a temporary directory at the end. After a failure it keeps the logs, without the data.
    pub fn finish(self, failed: bool) -> Option<String> {
        let StateDir::Temporary(made) = self else { return None };
        if !failed {
            let path = made.path().to_owned();
            return made.close().err().map(|error| {
                format!("{} could not be removed: {}", printable(&path.to_string_lossy()), plain_io(&error))
            });
        }
        let path = made.keep();
        for site in fs::read_dir(&path).into_iter().flatten().flatten() {
            for large in ["storage", "work"] {
                let large = site.path().join(large);
                // With --data, storage is a link: only the link is removed.
                let _ = if large.is_symlink() { fs::remove_file(&large) } else { fs::remove_dir_all(&large) };
            }
        }
        Some(format!("the logs are kept: {}/*/log", printable(&path.to_string_lossy())))
    }
}

impl DemoPlan {
    pub fn make(args: &DemoArgs, named: Option<&Path>) -> Result<Self, Failure> {
        if let Some(data) = &args.data {
            let data = fs::canonicalize(data).map_err(|error| Failure::file("opening", data, &error))?;
            // Checked before counting its files, which may take a while.
            let temporary = std::env::temp_dir().join("longhaul-demo-");
            check_disjoint(&data, named.unwrap_or(&temporary))?;
        }
        let given = args.data.as_deref().map(inspect_data).transpose()?;
        let data = match given {
            Some(data) => data,
            None => DemoData::Generated { files: args.files, bytes: args.size },
        };
        let state = StateDir::make(named)?;
        if let DemoData::Given { directory, .. } = &data {
            check_disjoint(directory, state.path())?;
        }
        let sites = SITE_NAMES.iter().take(usize::from(args.sites)).map(|name| SiteName::parse(name));
        let sites = sites.collect::<Result<Vec<_>, _>>()?;
        let needs_bytes = bytes_needed(&data, sites.len() as u64);
        let free_bytes = bytes_free(state.path())?;
        let (service, service_claim) =
            choose_port("--listen", args.listen, SocketAddr::from(([127, 0, 0, 1], 8443)))?;
        let (http, http_claim) = choose_port("--http", args.http, SocketAddr::from(([127, 0, 0, 1], 8080)))?;
        let plan = DemoPlan {
            service,
            http,
            _claims: service_claim.into_iter().chain(http_claim).collect(),
            state,
            data,
            sites,
            needs_bytes,
            free_bytes,
        };
        if plan.needs_bytes > plan.free_bytes {
            return Err(plan.no_space_failure());
        }
        plan.check_inodes()?;
        Ok(plan)
    }

    /// The first line:
    /// `longhaul demo: one service and three sites on this machine, in … (needs 3.1 GB, 41 GB free)`.
    pub fn headline(&self) -> String {
        let number = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
            .get(self.sites.len())
            .map_or_else(|| self.sites.len().to_string(), |word| (*word).to_owned());
        format!(
            "longhaul demo: one service and {number} sites on this machine, in {} (needs {}, {} free)",
            printable(&self.state.path().to_string_lossy()),
            bytes(self.needs_bytes),
            bytes(self.free_bytes)
        )
    }

    /// Checks for free inodes: a file system can run out of them although it has free bytes.
    fn check_inodes(&self) -> Result<(), Failure> {
        let path = self.state.path();
        let space = statvfs(path)?;
        let needs =
            self.data.size().0.saturating_mul(self.sites.len() as u64).saturating_add(STATE_INODES_MAX);
        // Some file systems create inodes on demand and report none.
        if space.f_files == 0 || needs <= space.f_favail {
            return Ok(());
        }
        let shown = printable(&path.to_string_lossy());
        let why =
            format!("{needs} files and directories are needed, {shown} has room for {}", space.f_favail);
        Err(Failure::new(FaultCode::NoSpaceForRequest, why)
            .with_title("not enough inodes for this demo")
            .with_remedy("use --dir on another file system, or fewer --files")
            .with_exit(Exit::Permanent))
    }

    fn no_space_failure(&self) -> Failure {
        let (files, size) = self.data.size();
        let next = match &self.data {
            DemoData::Generated { .. } => {
                "free some space, use --dir on a larger file system, or use a smaller --size"
            }
            DemoData::Given { .. } => {
                "free some space, use --dir on a larger file system, or use fewer --sites"
            }
        };
        Failure::new(
            FaultCode::NoSpaceForRequest,
            format!(
                "{} of {} at {} need {}, {} has {} free",
                units::plural(files, "file", "files"),
                bytes(size),
                units::plural(self.sites.len() as u64, "site", "sites"),
                bytes(self.needs_bytes),
                printable(&self.state.path().to_string_lossy()),
                bytes(self.free_bytes)
            ),
        )
        .with_title("not enough space for this demo")
        .with_remedy(next)
        .with_exit(Exit::Permanent)
    }
}

fn bytes_needed(data: &DemoData, sites: u64) -> u64 {
    let (files, size) = data.size();
    // The user's own directory is not copied at the first site.
    let copies = if matches!(data, DemoData::Given { .. }) { sites.saturating_sub(1) } else { sites };
    let each = size.saturating_add(files.saturating_mul(OVERHEAD_BYTES_PER_FILE));
    each.saturating_mul(copies).saturating_add(STATE_BYTES_MAX)
}

fn bytes_free(path: &Path) -> Result<u64, Failure> {
    let space = statvfs(path)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

fn statvfs(path: &Path) -> Result<rustix::fs::StatVfs, Failure> {
    rustix::fs::statvfs(path).map_err(|error| Failure::file("asking for the space of", path, &error.into()))
}

/// Counts the user's files as a scan will see them: links count as what they lead to.
fn inspect_data(directory: &Path) -> Result<DemoData, Failure> {
    let canonical =
        fs::canonicalize(directory).map_err(|error| Failure::file("opening", directory, &error))?;
    if !canonical.is_dir() {
        return Err(Failure::usage(
            format!("{} is not a directory", printable(&directory.to_string_lossy())),
            "--data takes the directory whose files are to be copied",
            "name a directory",
        ));
    }
    let (mut files, mut size) = (0u64, 0u64);
    let mut waiting = vec![canonical.clone()];
    while let Some(path) = waiting.pop() {
        // What is unreadable is reported by the scan, with the reason.
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if let Ok(metadata) = fs::metadata(entry.path())
                && metadata.is_file()
            {
                files += 1;
                size += metadata.len();
            }
        }
    }
    Ok(DemoData::Given { directory: canonical, files, bytes: size })
}

/// Data and copies must not be inside each other.
fn check_disjoint(data: &Path, state: &Path) -> Result<(), Failure> {
    let state = &resolve_links(state);
    if !state.starts_with(data) && !data.starts_with(state) {
        return Ok(());
    }
    Err(Failure::usage(
        "the data directory and the state directory are inside each other",
        format!(
            "--data is {}, the state directory is {}",
            printable(&data.to_string_lossy()),
            printable(&state.to_string_lossy())
        ),
        "name a state directory elsewhere: --dir DIRECTORY",
    ))
}

/// Resolves links as far as the path exists.
fn resolve_links(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = path.ancestors().find_map(|part| Some((part, fs::canonicalize(part).ok()?)));
    there.and_then(|(part, real)| Some(real.join(path.strip_prefix(part).ok()?))).unwrap_or(path)
}

/// An abstract socket name, which only one process can hold: it reserves a port between choosing it and the
/// service's use of it, a second later and after each restart.
type PortClaim = UnixListener;

fn claim_port(address: SocketAddr) -> io::Result<PortClaim> {
    UnixListener::bind_addr(&LocalAddr::from_abstract_name(format!("longhaul-demo-{address}"))?)
}

/// The requested address, or the default one, or a free port if the default is taken.
fn choose_port(
    option: &str,
    asked: Option<SocketAddr>,
    usual: SocketAddr,
) -> Result<(SocketAddr, Option<PortClaim>), Failure> {
    let wanted = asked.unwrap_or(usual);
    if !wanted.ip().is_loopback() {
        return Err(Failure::usage(
            format!("{wanted} is not a loopback address"),
            format!("a demo runs on this machine only; {option} takes a loopback address"),
            format!("{option} {}", SocketAddr::new(usual.ip(), wanted.port())),
        ));
    }
    let taken = |error: &io::Error| {
        Failure::usage(
            format!("cannot use {wanted}"),
            format!("{} (set by {option})", plain_io(error)),
            format!("name another address, or leave out {option} to use a free port"),
        )
    };
    let open = |address: SocketAddr| -> io::Result<(SocketAddr, Option<PortClaim>)> {
        let address = TcpListener::bind(address)?.local_addr()?;
        match claim_port(address) {
            Ok(claim) => Ok((address, Some(claim))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
            // Where such names are forbidden, demos that start at the same moment may collide.
            Err(_) => Ok((address, None)),
        }
    };
    match open(wanted) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && asked.is_none() => {
            open(SocketAddr::new(wanted.ip(), 0))
        }
        result => result,
    }
    .map_err(|error| taken(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_counts_every_copy() {
        let made = DemoData::Generated { files: 1_000, bytes: 1_000_000_000 };
        assert_eq!(bytes_needed(&made, 3), 3 * (1_000_000_000 + 6_000_000) + STATE_BYTES_MAX);
        let given = DemoData::Given { directory: "/x".into(), files: 0, bytes: 1_000 };
        assert_eq!(bytes_needed(&given, 3), 2_000 + STATE_BYTES_MAX);
        assert_eq!(bytes_needed(&DemoData::Generated { files: 1, bytes: u64::MAX }, 3), u64::MAX);
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let args = DemoArgs { size: 1 << 60, ..DemoArgs::default() };
        let error = DemoPlan::make(&args, None).unwrap_err();
        assert_eq!(error.problem.code, FaultCode::NoSpaceForRequest);
        assert!(error.problem.detail.contains("free"), "{error:?}");
    }

    #[test]
    fn refuses_directories_within_each_other_and_full_ones() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("file"), "x").unwrap();
        let args = DemoArgs { data: Some(data.path().to_owned()), ..DemoArgs::default() };
        let within = DemoPlan::make(&args, Some(&data.path().join("state"))).unwrap_err();
        assert!(within.problem.title.contains("inside each other"), "{within:?}");
        let same = DemoPlan::make(&args, Some(data.path())).unwrap_err();
        assert!(same.problem.title.contains("inside each other"), "{same:?}");
        let full = DemoPlan::make(&DemoArgs::default(), Some(data.path())).unwrap_err();
        assert!(full.problem.title.contains("not empty"), "{full:?}");
        let temporary = DemoArgs { data: Some(std::env::temp_dir()), ..DemoArgs::default() };
        let within = DemoPlan::make(&temporary, None).unwrap_err();
        assert!(within.problem.title.contains("inside each other"), "{within:?}");
        let missing = DemoArgs { data: Some(data.path().join("none")), ..DemoArgs::default() };
        assert_eq!(DemoPlan::make(&missing, None).unwrap_err().exit, Exit::NotFound);
        let file = DemoArgs { data: Some(data.path().join("file")), ..DemoArgs::default() };
        assert!(DemoPlan::make(&file, None).unwrap_err().problem.title.contains("not a directory"));
    }

    #[test]
    fn a_taken_port_is_replaced_only_if_nobody_asked_for_it() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap();
        let (free, claim) = choose_port("--http", None, taken).unwrap();
        assert_ne!(free.port(), taken.port());
        let (other, _claim) = choose_port("--http", None, free).unwrap();
        assert_ne!(other.port(), free.port(), "reserved although its owner does not listen yet");
        drop(claim);
        assert_eq!(choose_port("--http", None, free).unwrap().0, free);
        let error = choose_port("--http", Some(taken), taken).unwrap_err();
        assert!(error.problem.detail.contains("--http"), "{error:?}");
        let error = choose_port("--http", Some(SocketAddr::from(([0, 0, 0, 0], 0))), taken).unwrap_err();
        assert!(error.problem.detail.contains("loopback"), "{error:?}");
    }

    #[test]
    fn a_failed_demo_keeps_its_logs_only() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("precious"), "x").unwrap();
        let state = StateDir::make(None).unwrap();
        let site = state.path().join("alpha");
        fs::create_dir(&site).unwrap();
        fs::write(site.join("log"), "line").unwrap();
        std::os::unix::fs::symlink(data.path(), site.join("storage")).unwrap();
        let told = state.finish(true).unwrap();
        assert!(told.contains("log"), "{told}");
        assert!(site.join("log").exists() && !site.join("storage").exists());
        assert!(data.path().join("precious").exists());
        fs::remove_dir_all(site.parent().unwrap()).unwrap();
    }
}
