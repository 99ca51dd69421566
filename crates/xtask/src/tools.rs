//! Running other programs, and finding or installing those that tests need.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The root of the checkout: two levels above this crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// With `CI=true` a check that cannot run is a failure; elsewhere it is said.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Runs to the end; the error names the command.
pub(crate) fn run_command(command: &mut Command) -> Result<(), String> {
    let shown = shown(command);
    // What the command itself prints may be for another program.
    eprintln!("$ {shown}");
    let status = command.status().map_err(|error| format!("cannot run {shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A Chromium for the page tests: one that is installed, else Debian's package, as root into the system and
/// otherwise unpacked below the target folder.
pub(crate) fn chromium() -> Result<PathBuf, String> {
    if let Some(found) = chromium_if_installed() {
        return Ok(found);
    }
    if !works("apt-get", &["--version"]) {
        return Err("no Chromium here, and no apt-get to install Debian's".into());
    }
    if is_root() {
        install(&["chromium", "fonts-dejavu-core"])?;
        return Ok(PathBuf::from("chromium"));
    }
    let unpacked = target().join(CHROMIUM_FOLDER);
    let wrapper = unpacked.join(CHROMIUM_WRAPPER);
    unpack_chromium(&unpacked, &wrapper)?;
    Ok(wrapper)
}

/// Where Chromium is unpacked below the target folder, and the script there that runs it.
const CHROMIUM_FOLDER: &str = "tools/chromium";
const CHROMIUM_WRAPPER: &str = "run";

/// A Chromium that is there without installing anything.
pub(crate) fn chromium_if_installed() -> Option<PathBuf> {
    let candidates = ["chromium", "chromium-browser", "google-chrome"];
    if let Some(found) = candidates.iter().find(|name| works(name, &["--version"])) {
        return Some(PathBuf::from(found));
    }
    Some(target().join(CHROMIUM_FOLDER).join(CHROMIUM_WRAPPER)).filter(|wrapper| wrapper.exists())
}

/// A small program that some tests need, from a package. Returns a folder to search for it, if it had to be
/// unpacked.
pub(crate) fn program(name: &str, package: &str, probe: &str) -> Result<Option<PathBuf>, String> {
    let unpacked = target().join("tools").join(name);
    let folder = unpacked.join("usr/bin");
    let is_there = match probe {
        "" => works("sh", &["-c", "command -v \"$0\"", name]),
        probe => works(name, &[probe]),
    };
    if is_there {
        return Ok(None);
    }
    if folder.join(name).exists() {
        return Ok(Some(folder));
    }
    if !works("apt-get", &["--version"]) {
        return Err(format!("no {name} here, and no apt-get to install Debian's"));
    }
    if is_root() {
        return install(&[package]).map(|()| None);
    }
    let script = "set -e; mkdir -p \"$1\"; cd \"$1\"; apt-get download \"$2\"; dpkg-deb -x \"$2\"_*.deb .";
    run_command(
        Command::new("sh")
            .args(["-c", script, "sh", &unpacked.to_string_lossy(), package])
            .stdout(Stdio::null()),
    )?;
    Ok(Some(folder))
}

/// A file of it, and its Debian package.
pub(crate) const POSTGRESQL: (&str, &str) = ("/usr/lib/postgresql/*/bin/initdb", "postgresql");
pub(crate) const XROOTD_TOKENS: (&str, &str) =
    ("/usr/lib/*/libXrdAccSciTokens-5.so", "xrootd-scitokens-plugins");

/// What no search path leads to: known by a file of it, any of a pattern of the shell.
pub(crate) fn file(pattern: &str, package: &str) -> Result<(), String> {
    if works("sh", &["-c", &format!("ls {pattern}")]) {
        return Ok(());
    }
    if is_root() && works("apt-get", &["--version"]) {
        return install(&[package]);
    }
    Err(format!("{package} is not installed"))
}

/// What is published as source in Go, built by the Go of this machine: the path of a module's program, and
/// its version.
pub(crate) const VERSITYGW: (&str, &str) = ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0");

/// A program in Go, built once for each version below the target folder. None if there is no Go.
pub(crate) fn go_program((module, version): (&str, &str)) -> Result<Option<PathBuf>, String> {
    let name = module.rsplit('/').next().unwrap_or(module);
    let folder = target().join("tools").join(name);
    let (bin, mark) = (folder.join("bin"), folder.join("version"));
    let program = bin.join(name);
    if program.exists() && std::fs::read_to_string(&mark).is_ok_and(|built| built == version) {
        return Ok(Some(program));
    }
    // Go's own installer puts it into no search path.
    let Some(go) = ["go", "/usr/local/go/bin/go"].into_iter().find(|go| works(go, &["version"])) else {
        return Ok(None);
    };
    let build = folder.join("build");
    let told = |error: std::io::Error| format!("cannot write below {}: {error}", folder.display());
    std::fs::create_dir_all(&build).map_err(told)?;
    // It is minutes of work that nobody waits for who does something else on this machine.
    let mut command = Command::new("nice");
    command.args([go, "install", &format!("{module}@{version}")]).current_dir(&build).env("GOBIN", &bin);
    command.env("GOPATH", build.join("path")).env("GOCACHE", build.join("cache"));
    // What Go keeps for reading only could not be removed with the target folder. A program that serves tests
    // for seconds is not worth the time that optimising it, describing it to debuggers and collecting the
    // compiler's garbage take.
    command.env("GOFLAGS", "-modcacherw -ldflags=-s '-gcflags=all=-N -l -dwarf=false'");
    command.env("CGO_ENABLED", "0").env("GOGC", "400");
    run_command(&mut command)?;
    std::fs::remove_dir_all(&build).map_err(told)?;
    std::fs::write(&mark, version).map_err(told)?;
    Ok(Some(program))
}

pub(crate) fn is_root() -> bool {
    works("sh", &["-c", "test \"$(id -u)\" = 0"])
}

/// Debian packages, into the system. The lists of packages are fetched once.
pub(crate) fn install(packages: &[&str]) -> Result<(), String> {
    static UPDATE: OnceLock<Result<(), String>> = OnceLock::new();
    let update = || run_command(Command::new("apt-get").args(["-q", "-y", "update"]).stdout(Stdio::null()));
    UPDATE.get_or_init(update).clone()?;
    run_command(
        Command::new("apt-get")
            .args(["-q", "-y", "install", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null()),
    )
}

/// Without root: downloads the package with what it depends on and unpacks all of it into one folder.
fn unpack_chromium(folder: &Path, wrapper: &Path) -> Result<(), String> {
    let script = r#"set -e
mkdir -p "$1/debs" && cd "$1/debs"
apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
  --no-enhances chromium \
  | grep '^[a-z0-9]' | sort -u > ../packages
xargs apt-get download < ../packages
for deb in *.deb; do dpkg-deb -x "$deb" ../root; done
cat > ../run <<EOF
#!/bin/sh
here="$1/root"
export LD_LIBRARY_PATH="\$here/usr/lib/x86_64-linux-gnu:\$here/usr/lib/chromium:\$here/lib/x86_64-linux-gnu"
exec "\$here/usr/lib/chromium/chromium" "\$@"
EOF
chmod +x ../run"#;
    let folder_text = folder.to_string_lossy();
    run_command(Command::new("sh").args(["-c", script, "sh", &folder_text]).stdout(Stdio::null()))?;
    if wrapper.exists() { Ok(()) } else { Err("unpacking Chromium left nothing to run".into()) }
}
