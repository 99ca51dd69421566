//! The native API by its document: whatever a program makes up from `openapi/native.json` is answered as the
//! document says, and nothing brings the service into trouble.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use longhaul_testbed::{CommandOutput, Deployment, Random, ServiceOptions, SiteOptions, needs, tree};

/// Requests made up for each operation and each caller; `LONGHAUL_SOAK_EXAMPLES` for more.
const EXAMPLES: &str = "10";
/// What is held open, and what agents say under certificates of their own.
const NOT_ASKED: &str = "^/api/v1/(events|agent/|join)";

/// Takes lines of JSON, which the program cannot write; the manifests' own tests do.
const NOT_WRITTEN: &str = "dataset_add_files";

/// What the document cannot say is answered 422: a deadline that has passed, a link from a storage to itself.
/// A path or query that is too long is one of a head that is too long, too.
const CONFIGURATION: &str = "\
[checks.positive_data_acceptance]
expected-statuses = [\"2xx\", \"401\", \"403\", \"404\", \"409\", \"422\", \"429\"]
[checks.negative_data_rejection]
expected-statuses = [\"400\", \"401\", \"403\", \"404\", \"405\", \"409\", \"415\", \"422\", \"429\", \"431\"]
";

#[test]
fn answers_are_those_of_the_document() {
    let Some(python) = std::env::var_os("LONGHAUL_SCHEMATHESIS_PYTHON") else {
        return needs::not_run("the API by its document", "LONGHAUL_SCHEMATHESIS_PYTHON is not set");
    };
    let mut deployment = Deployment::with(ServiceOptions::default());
    for name in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(name));
    }
    tree::make(&deployment.storage("alpha"), 10, 100_000, &mut Random::new(4));
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);
    let token = |name: &str, role: &[&str]| {
        let words = [&["token", "create", name, "--role"][..], role].concat();
        deployment.json(&words)["token"].as_str().unwrap().to_owned()
    };
    let viewer = token("reader", &["viewer"]);
    let manager = token("operator", &["manager", "--site", "alpha"]);
    // The administrator last, who changes most.
    let callers = [None, Some(&viewer), Some(&manager), Some(&deployment.token)];
    let ran = callers.map(|caller| make_up_requests(&deployment, &python, caller.map(String::as_str)));
    let failed: Vec<_> = ran.iter().filter(|ran| ran.status != 0).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    deployment.check();
    deployment.assert_alive();
}

/// By the caller with this token, or by nobody.
fn make_up_requests(deployment: &Deployment, python: &OsStr, token: Option<&str>) -> CommandOutput {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/native.json");
    let soak = std::env::var("LONGHAUL_SOAK_EXAMPLES").ok();
    let examples = soak.as_deref().unwrap_or(EXAMPLES);
    let mut command = Command::new(python);
    command.args(["-m", "schemathesis.cli", "run"]).arg(document);
    command.args(["--url", &deployment.url, "--tls-verify"]).arg(&deployment.ca);
    if let Some(token) = token {
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    command.args(["--max-examples", examples, "--seed", "1", "--workers", "1", "--no-color"]);
    if soak.is_none() && token != Some(&deployment.token) {
        // Each value at its bounds, and calls that follow from others: once will do, as the administrator.
        command.args(["--phases", "fuzzing"]);
    }
    // Ten seconds otherwise, which a busy disk may take for one write.
    command.args(["--request-timeout", "60"]);
    command.args(["--exclude-path-regex", NOT_ASKED, "--exclude-operation-id", NOT_WRITTEN]);
    command.args(["--checks", "all", "--suppress-health-check", "all"]);
    // Read from the working directory.
    std::fs::write(deployment.directory().join("schemathesis.toml"), CONFIGURATION).unwrap();
    command.current_dir(deployment.directory());
    CommandOutput::from_command(&mut command, std::time::Duration::from_secs(1_800))
}
