//! A storage that speaks S3, over TLS, which checks every signature and every right by others' code:
//! versitygw over a folder, with an owner of buckets beside its root. Where it cannot be built the mock of
//! `moto` stands in. Tests look into it by rclone: not by us, so that we do not look at ourselves in a
//! mirror.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ForeignAuthority, moto, open_folder, wait_until_listening};
use crate::{Log, Process, free_port};

/// Keys of the server's root user, which owns the bucket that is closed to the tests' keys.
const ROOT: (&str, &str) = ("root", "root/of+the=test");
/// Keys of the tests, which own the open buckets.
const OWNER: (&str, &str) = ("AKIATEST", "secret/of+the=test");
const OPEN: [&str; 2] = ["open", "open2"];
const CLOSED: &str = "closed";

/// Where there is one.
#[derive(Clone)]
pub enum S3Program {
    Versitygw(PathBuf),
    /// A mock: the interpreter that has it.
    Moto(PathBuf),
}

impl S3Program {
    /// As the test command says, or where it installs it: the real one before the mock.
    pub fn find() -> Option<S3Program> {
        let tools = crate::binary().parent()?.parent()?.join("tools");
        let named = |variable: &str, installed: &str| {
            let installed = tools.join(installed);
            let installed = installed.exists().then_some(installed);
            std::env::var_os(variable).map(PathBuf::from).or(installed)
        };
        named("LONGHAUL_VERSITYGW", "versitygw/bin/versitygw")
            .map(S3Program::Versitygw)
            .or_else(|| named("LONGHAUL_S3_PYTHON", "s3/bin/python").map(S3Program::Moto))
    }
}

/// What may have been asked of an object.
#[derive(Clone, Copy)]
pub enum S3Request {
    Get,
    Put,
    Begin,
    Part,
    Abort,
}

impl S3Request {
    /// As it is called by S3, and so in an access log.
    fn operation(self) -> &'static str {
        match self {
            S3Request::Get => "GetObject",
            S3Request::Put => "PutObject",
            S3Request::Begin => "CreateMultipartUpload",
            S3Request::Part => "UploadPart",
            S3Request::Abort => "AbortMultipartUpload",
        }
    }

    /// Its method, and what its query has.
    fn line(self) -> (&'static str, &'static str) {
        match self {
            S3Request::Get => ("GET", ""),
            S3Request::Put => ("PUT", ""),
            S3Request::Begin => ("POST", "?uploads"),
            S3Request::Part => ("PUT", "partNumber="),
            S3Request::Abort => ("DELETE", "?uploadId="),
        }
    }
}

pub struct S3Server {
    folder: tempfile::TempDir,
    ca_file: PathBuf,
    port: u16,
    pub access_key: String,
    pub secret: String,
    /// What it writes of each request before it answers; the mock says it in its log.
    access_log: Option<PathBuf>,
    process: Process,
}

impl S3Server {
    /// Serves, when this returns, and has the buckets `open`, `open2` and, of somebody else, `closed`.
    pub fn start(authority: &ForeignAuthority, program: &S3Program) -> S3Server {
        let folder = open_folder();
        let port = free_port();
        let files = authority.issue_files(folder.path(), "s3");
        let (name, mut command, access_log) = match program {
            S3Program::Versitygw(path) => {
                let access_log = folder.path().join("access");
                ("versitygw", versitygw(path, folder.path(), port, &files, &access_log), Some(access_log))
            }
            S3Program::Moto(python) => ("moto", moto::command(python, port, &files), None),
        };
        let log = Log::default();
        let mut process = Process::start(name, &mut command, &log, &folder.path().join("log"));
        wait_until_listening(&mut process, port);
        let ca_file = authority.ca_file();
        let (access_key, secret) = match program {
            S3Program::Versitygw(path) => {
                let admin = |words: &[&str]| admin(path, port, &ca_file, words);
                let (access, secret) = OWNER;
                admin(&["create-user", "--access", access, "--secret", secret, "--role", "user"]);
                for bucket in OPEN {
                    admin(&["create-bucket", "--owner", access, "--bucket", bucket]);
                }
                admin(&["create-bucket", "--owner", ROOT.0, "--bucket", CLOSED]);
                (access.to_owned(), secret.to_owned())
            }
            S3Program::Moto(python) => {
                moto::furnish(python, &format!("https://localhost:{port}"), &ca_file, &OPEN, CLOSED)
            }
        };
        S3Server { folder, ca_file, port, access_key, secret, access_log, process }
    }

    /// What rclone says, as the owner of the buckets.
    ///
    /// # Panics
    /// If it fails.
    fn rclone(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Vec<u8> {
        let mut command = Command::new("rclone");
        command.args(words).args(["--retries", "1", "--s3-no-check-bucket", "--ca-cert"]).arg(&self.ca_file);
        // Of whoever runs the tests, and refused by rclone.
        command.env_remove("AWS_CA_BUNDLE");
        command
            .env("RCLONE_CONFIG", self.folder.path().join("rclone.conf"))
            .env("RCLONE_CONFIG_S3_TYPE", "s3")
            .env("RCLONE_CONFIG_S3_PROVIDER", "Other")
            .env("RCLONE_CONFIG_S3_REGION", "us-east-1")
            .env("RCLONE_CONFIG_S3_ENDPOINT", format!("https://localhost:{}", self.port))
            .env("RCLONE_CONFIG_S3_ACCESS_KEY_ID", &self.access_key)
            .env("RCLONE_CONFIG_S3_SECRET_ACCESS_KEY", &self.secret);
        output(&mut command, || self.process.log.tail().to_string())
    }

    /// URL of an object.
    pub fn url(&self, name: &str) -> String {
        format!("s3s://localhost:{}/{name}", self.port)
    }

    pub fn put(&self, name: &str, content: &[u8]) {
        let file = self.folder.path().join("content");
        fs::write(&file, content).expect("a file");
        self.rclone([OsStr::new("copyto"), file.as_os_str(), OsStr::new(&format!("s3:{name}"))]);
    }

    pub fn get(&self, name: &str) -> Vec<u8> {
        self.rclone(["cat", &format!("s3:{name}")])
    }

    /// The keys of a bucket, and how many uploads are begun and not ended.
    pub fn listed(&self, bucket: &str) -> (Vec<String>, usize) {
        let root = format!("s3:{bucket}");
        let keys = self.rclone(["lsf", "--recursive", "--files-only", &root]);
        let keys =
            String::from_utf8(keys).expect("names of tests are UTF-8").lines().map(str::to_owned).collect();
        let uploads = self.rclone(["backend", "list-multipart-uploads", &root]);
        let uploads: serde_json::Value = serde_json::from_slice(&uploads).expect("JSON");
        (keys, uploads[bucket].as_array().map_or(0, Vec::len))
    }

    /// How often it has been asked for this of an object (a bucket and a key), with success, by a request
    /// whose query has all these parts.
    pub fn asked(&self, request: S3Request, name: &str, query: &[&str]) -> usize {
        let with_query = |line: &&str| query.iter().all(|part| line.contains(part));
        let Some(file) = &self.access_log else {
            let (method, part) = request.line();
            let begins = [format!("{method} /{name} "), format!("{method} /{name}?")];
            let lines = self.process.log.lines_with(&[part, " 20"]);
            let lines = lines.iter().map(String::as_str).filter(with_query);
            return lines.filter(|line| begins.iter().any(|begin| line.contains(begin))).count();
        };
        let operation = format!(" s3_{} ", request.operation());
        let uris = [format!(" /{name} 20"), format!(" /{name}?")];
        let log = fs::read_to_string(file).expect("an access log");
        log.lines()
            .filter(|line| line.contains(&operation) && uris.iter().any(|uri| line.contains(uri)))
            .filter(|line| line.contains(" 200 - "))
            .filter(with_query)
            .count()
    }
}

fn versitygw(
    program: &Path,
    folder: &Path,
    port: u16,
    (certificate, key): &(PathBuf, PathBuf),
    access_log: &Path,
) -> Command {
    let inner = |name: &str| {
        let inner = folder.join(name);
        fs::create_dir(&inner).expect("a folder");
        inner
    };
    let mut command = Command::new(program);
    command.args(["--port", &format!("127.0.0.1:{port}"), "--region", "us-east-1", "--quiet"]);
    command.arg("--cert").arg(certificate).arg("--key").arg(key);
    command.arg("--iam-dir").arg(inner("accounts")).arg("--access-log").arg(access_log);
    // Beside the files: not every file system of a machine of tests has extended attributes.
    command.arg("posix").arg("--sidecar").arg(inner("attributes")).arg(inner("buckets"));
    command.env("ROOT_ACCESS_KEY", ROOT.0).env("ROOT_SECRET_KEY", ROOT.1);
    command
}

/// A word of its root.
fn admin(program: &Path, port: u16, ca_file: &Path, words: &[&str]) {
    let endpoint = format!("https://localhost:{port}");
    let mut command = Command::new(program);
    command.args(["admin", "--endpoint-url", &endpoint]).args(words).env("SSL_CERT_FILE", ca_file);
    command.env("ADMIN_ACCESS_KEY", ROOT.0).env("ADMIN_SECRET_KEY", ROOT.1);
    output(&mut command, String::new);
}

pub(super) fn output(command: &mut Command, log: impl Fn() -> String) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}\n{}", log());
    output.stdout
}
