//! What stands in for a storage that speaks S3: moto's server from a Python environment of its own. It checks
//! signatures and rights by botocore: by others' reading of the same description.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::s3::output;

/// Makes the buckets, and one user with rights to those that begin with `open`; and then no request goes
/// without a signature.
const FURNISH: &str = r#"
import json, os, boto3, urllib.request, ssl
endpoint, ca = os.environ["S3_ENDPOINT"], os.environ["S3_CA"]
def client(name):
    return boto3.client(name, endpoint_url=endpoint, region_name="us-east-1", verify=ca,
        aws_access_key_id="any", aws_secret_access_key="any")
for bucket in os.environ["S3_BUCKETS"].split():
    client("s3").create_bucket(Bucket=bucket)
iam = client("iam")
iam.create_user(UserName="u")
allow = {"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Action": "s3:*", "Resource": ["arn:aws:s3:::open*"]}]}
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(allow))
key = iam.create_access_key(UserName="u")["AccessKey"]
reset = urllib.request.Request(endpoint + "/moto-api/reset-auth", method="POST", data=b"0",
    headers={"content-type": "text/plain"})
urllib.request.urlopen(reset, context=ssl.create_default_context(cafile=ca))
print(key["AccessKeyId"], key["SecretAccessKey"])
"#;

pub(super) fn command(python: &Path, port: u16, (certificate, key): &(PathBuf, PathBuf)) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()]);
    command.arg("-c").arg(certificate).arg("-k").arg(key);
    command
}

/// Returns the user's access key and its secret.
pub(super) fn furnish(
    python: &Path,
    endpoint: &str,
    ca_file: &Path,
    open: &[&str],
    closed: &str,
) -> (String, String) {
    let buckets = format!("{} {closed}", open.join(" "));
    let mut command = Command::new(python);
    command
        .args(["-c", FURNISH])
        .env("S3_ENDPOINT", endpoint)
        .env("S3_CA", ca_file)
        .env("S3_BUCKETS", buckets);
    let keys = String::from_utf8(output(&mut command, String::new)).expect("keys are ASCII");
    let (access_key, secret) = keys.trim().split_once(' ').expect("a key and its secret");
    (access_key.to_owned(), secret.to_owned())
}
