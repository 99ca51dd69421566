//! A storage that speaks S3: moto's server from a Python environment of its own, over TLS. It can be made to check every
//! signature and every right, which it computes by botocore: by others' reading of the same description.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{ForeignAuthority, open_folder, wait_until_listening};
use crate::{Log, Process, free_port};

/// A client of others, as the storage's owner: not by us, so that we do not look at ourselves in a mirror.
const CLIENT: &str = r#"
import json, os, boto3, urllib.request, ssl
from botocore.config import Config
endpoint, ca = os.environ["S3_ENDPOINT"], os.environ["S3_CA"]
def client(name):
    return boto3.client(name, endpoint_url=endpoint, region_name="us-east-1", verify=ca,
        aws_access_key_id=os.environ["S3_KEY"], aws_secret_access_key=os.environ["S3_SECRET"],
        config=Config(s3={"addressing_style": "path"}))
s3 = client("s3")
"#;
/// One user, with rights to the buckets that begin with `open`, and then no request without a signature.
const GUARD: &str = r#"
iam = client("iam")
iam.create_user(UserName="u")
allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": ["arn:aws:s3:::open*"]}]}
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(allow))
key = iam.create_access_key(UserName="u")["AccessKey"]
urllib.request.urlopen(urllib.request.Request(endpoint + "/moto-api/reset-auth", method="POST", data=b"0", headers={"content-type": "text/plain"}), context=ssl.create_default_context(cafile=ca))
print(key["AccessKeyId"], key["SecretAccessKey"])
"#;

pub struct S3Server {
    python: PathBuf,
    folder: tempfile::TempDir,
    ca_file: PathBuf,
    port: u16,
    pub access_key: String,
    pub secret: String,
    process: Process,
}

impl S3Server {
    /// The interpreter that has moto, if there is one: as the test command says, or where it installs it.
    pub fn python() -> Option<PathBuf> {
        let made = crate::binary().parent()?.parent()?.join("tools/s3/bin/python");
        let made = made.exists().then_some(made);
        std::env::var_os("LONGHAUL_S3_PYTHON").map(PathBuf::from).or(made)
    }

    /// Serves, when this returns, and has the buckets `open`, `open2` and `closed`.
    pub fn start(authority: &ForeignAuthority, python: PathBuf, guarded: bool) -> S3Server {
        let folder = open_folder();
        let port = free_port();
        let (certificate, key) = authority.issue_files(folder.path(), "s3");
        let mut command = Command::new(&python);
        command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
        command.arg("-c").arg(&certificate).arg("-k").arg(&key);
        let log = Log::default();
        let mut process = Process::start("moto", &mut command, &log, &folder.path().join("log"));
        wait_until_listening(&mut process, port);
        let mut server = S3Server {
            python,
            folder,
            ca_file: authority.ca_file(),
            port,
            access_key: "AKIATEST".to_owned(),
            secret: "secret/of+the=test".to_owned(),
            process,
        };
        server.ask("for bucket in ['open', 'open2', 'closed']: s3.create_bucket(Bucket=bucket)");
        if guarded {
            let keys = server.ask(GUARD);
            let (access_key, secret) = keys.trim().split_once(' ').expect("a key and its secret");
            (server.access_key, server.secret) = (access_key.to_owned(), secret.to_owned());
        }
        server
    }

    /// What a script with boto3 prints; `s3` is its client.
    ///
    /// # Panics
    /// If the script fails.
    pub fn ask(&self, script: &str) -> String {
        let output = Command::new(&self.python)
            .arg("-c")
            .arg(format!("{CLIENT}{script}"))
            .current_dir(self.folder.path())
            .env("S3_ENDPOINT", format!("https://localhost:{}", self.port))
            .env("S3_CA", &self.ca_file)
            .env("S3_KEY", &self.access_key)
            .env("S3_SECRET", &self.secret)
            .output()
            .expect("python");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {errors}\n{}", self.process.log.tail());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Of an object of a bucket.
    pub fn url(&self, name: &str) -> String {
        format!("s3s://localhost:{}/{name}", self.port)
    }

    pub fn put(&self, name: &str, content: &[u8]) {
        let file = self.folder.path().join("content");
        fs::write(&file, content).expect("a file");
        let (bucket, key) = name.split_once('/').expect("a bucket and a key");
        self.ask(&format!(
            "s3.put_object(Bucket={bucket:?}, Key={key:?}, Body=open('content', 'rb').read())"
        ));
    }

    pub fn get(&self, name: &str) -> Vec<u8> {
        let (bucket, key) = name.split_once('/').expect("a bucket and a key");
        self.ask(&format!(
            "open('content', 'wb').write(s3.get_object(Bucket={bucket:?}, Key={key:?})['Body'].read())"
        ));
        fs::read(self.folder.path().join("content")).expect("a file")
    }

    /// The keys of a bucket, and how many uploads are begun and not ended.
    pub fn listed(&self, bucket: &str) -> (Vec<String>, usize) {
        let found = self.ask(&format!(
            "print(json.dumps([[one['Key'] for one in s3.list_objects_v2(Bucket={bucket:?}).get('Contents', [])], \
             len(s3.list_multipart_uploads(Bucket={bucket:?}).get('Uploads', []))]))"
        ));
        serde_json::from_str(&found).expect("a list")
    }

    /// How often it has been asked for something whose line in its log has all these parts.
    pub fn asked(&self, parts: &[&str]) -> usize {
        self.process.log.lines_with(parts).len()
    }
}
