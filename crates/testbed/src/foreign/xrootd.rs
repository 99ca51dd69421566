//! XRootD as Debian has it, serving a folder over HTTPS, with third-party copies and checksums.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ForeignAuthority, give_away, is_root, open_folder, wait_until_listening};
use crate::{Log, Process, free_port};

pub struct Xrootd {
    folder: tempfile::TempDir,
    port: u16,
    process: Process,
}

/// Where Debian puts plug-ins, whatever the machine.
const PLUG_INS: &str = "/usr/lib";

/// Clients that a server admits.
enum Opens<'a> {
    All,
    /// Those with a token of this issuer.
    Tokens(&'a str),
    Subject(&'a str),
}

impl Opens<'_> {
    /// What its configuration says about that; files that this needs are made in the folder.
    fn settings(&self, folder: &Path) -> String {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("a mode");
            give_away(&path);
            path.display().to_string()
        };
        match self {
            Opens::All => String::new(),
            Opens::Tokens(issuer) => {
                let rules = format!(
                    "[Global]\naudience = localhost\n[Issuer testbed]\nissuer = {issuer}\nbase_path = /data\n"
                );
                let rules = write("scitokens.cfg", &rules);
                format!(
                    "ofs.authorize\nofs.authlib libXrdAccSciTokens.so config={rules}\nhttp.header2cgi \
                        Authorization authz\n"
                )
            }
            Opens::Subject(subject) => {
                let map = write("gridmap", &format!("\"{subject}\" user\n"));
                let rights = write("authdb", "u user /data a\n");
                let secret = write(
                    "macaroon.key",
                    "YSBzZWNyZXQgb2YgYSBzZXJ2ZXIgb2YgdGhlIHRlc3RiZWQsIGFuZCBvZiBubyBvdGhlcg==\n",
                );
                format!(
                    "all.sitename testbed\nhttp.exthandler xrdmacaroons \
                        libXrdMacaroons.so\nmacaroons.secretkey {secret}\n\
                     http.gridmap {map}\nhttp.header2cgi Authorization authz\nofs.authorize\n\
                     ofs.authlib ++ libXrdMacaroons.so\nacc.authdb {rights}\n"
                )
            }
        }
    }
}

/// Starts a server on a folder that holds its configuration.
fn serve(folder: &Path, port: u16) -> Process {
    let mut command = Command::new("xrootd");
    if is_root() {
        command.args(["-R", "nobody"]);
    }
    command.arg("-c").arg(folder.join("xrootd.cfg")).current_dir(folder.join("admin"));
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    let mut process = Process::start("xrootd", &mut command, &Log::default(), &folder.join("log"));
    wait_until_listening(&mut process, port);
    process
}

impl Xrootd {
    /// Whether the plug-in for tokens is here, which is a package of its own.
    pub fn knows_tokens() -> bool {
        let folders = fs::read_dir(PLUG_INS).into_iter().flatten().flatten();
        folders.map(|folder| folder.path().join("libXrdAccSciTokens-5.so")).any(|plug_in| plug_in.exists())
    }

    /// Serves, when this returns. It believes what the authority has issued.
    pub fn start(authority: &ForeignAuthority) -> Xrootd {
        Xrootd::with(authority, Opens::All)
    }

    /// One that lets in whoever has a certificate with this subject (`/CN=robot`), and gives macaroons;
    /// nobody else.
    pub fn for_certificates(authority: &ForeignAuthority, subject: &str) -> Xrootd {
        Xrootd::with(authority, Opens::Subject(subject))
    }

    /// One that lets in whoever has a token of that issuer for `localhost`, and nobody else; by the plug-in
    /// for SciTokens.
    pub fn for_tokens(authority: &ForeignAuthority, issuer: &str) -> Xrootd {
        Xrootd::with(authority, Opens::Tokens(issuer))
    }

    fn with(authority: &ForeignAuthority, opens: Opens<'_>) -> Xrootd {
        let folder = open_folder();
        let port = free_port();
        for name in ["data", "admin", "cache"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
            give_away(&folder.path().join(name));
        }
        let (certificate, key) = authority.issue_files(folder.path(), "xrootd");
        let (here, believed) = (folder.path().display(), authority.ca_folder());
        let (certificate, key, believed) = (certificate.display(), key.display(), believed.display());
        let mut config = format!(
            "all.export /data\noss.localroot {here}\nall.adminpath {here}/admin\nall.pidpath {here}/admin\n\
             xrd.port {port}\nxrd.network nodnr\nxrd.protocol http:{port} libXrdHttp.so\n\
             xrd.tls {certificate} {key}\nxrd.tlsca certdir {believed}\n\
             http.exthandler xrdtpc libXrdHttpTPC.so\nhttp.cadir {believed}\n\
             http.cert {certificate}\nhttp.key {key}\nhttp.listingdeny no\nhttp.desthttps yes\n\
             xrootd.chksum max 2 adler32 md5 crc32c\n"
        );
        config += &opens.settings(folder.path());
        fs::write(folder.path().join("xrootd.cfg"), config).expect("a file");
        let process = serve(folder.path(), port);
        Xrootd { folder, port, process }
    }

    /// Ends it at once and starts it on the same files, at the same port.
    pub fn start_again(&mut self) {
        self.process.kill();
        self.process = serve(self.folder.path(), self.port);
    }

    /// As Debian's unit does after a crash (`Restart=on-abort`), and its administrator where it takes no
    /// connection any more. What was wrong with it.
    pub fn start_again_if_it_is_dead(&mut self) -> Option<&'static str> {
        let wrong = if !self.process.is_running() {
            "crashed"
        } else if !self.answers() {
            "stood still"
        } else {
            return None;
        };
        self.start_again();
        Some(wrong)
    }

    /// Whatever it answers, if it does while somebody would wait.
    fn answers(&self) -> bool {
        let mut command = Command::new("curl");
        command.args(["-sk", "--max-time", "20", "-o", "/dev/null"]).arg(self.url(""));
        command.status().expect("curl").success()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its files lie.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Where its library of tokens looks for keys of issuers that it knows already.
    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// URL of one of its files.
    pub fn url(&self, name: &str) -> String {
        format!("https://localhost:{}/data/{name}", self.port)
    }

    /// A file as others have left it.
    pub fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.data().join(name), content).expect("a file");
        give_away(&self.data().join(name));
    }

    /// What lies there becomes its own.
    pub fn own(&self, path: &Path) {
        give_away(path);
    }

    /// Whether a line of its log has all these parts.
    pub fn has_said(&self, parts: &[&str]) -> bool {
        !self.process.log.lines_with(parts).is_empty()
    }

    pub fn log(&self) -> String {
        self.process.log.tail()
    }
}
