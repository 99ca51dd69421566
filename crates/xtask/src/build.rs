//! Builds the product and all test programs, with the lints of clippy on the way.
//!
//! `cargo clippy` checks every crate of others for its types alone, and each of ours once more: five minutes
//! of two cores from nothing. Here clippy's compiler builds the crates of this workspace in place of rustc
//! (`RUSTC_WORKSPACE_WRAPPER`) and lints each as it comes, so that nothing is compiled for its lints alone
//! (decision 0035).
//!
//! Not here: how the programs are run (`runner`).

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::runner::{self, TestProgram};
use crate::tools::{self, cargo};

/// The compiler with lints, as a tool chain with clippy has it in the search path.
pub(crate) const CLIPPY: &str = "clippy-driver";

/// Package and program of the product.
const PRODUCT: &str = "longhaul";

/// Builds the product, all test programs and the programs that they start, and returns the test programs in
/// the order in which they are to be run.
///
/// # Errors
/// What cargo says when something does not build; any warning of the compiler and, with `lints`, of clippy.
pub(crate) fn build(profile: &str, lints: bool) -> Result<Vec<TestProgram>, String> {
    let mut programs = Vec::new();
    let (mut warnings, mut products) = (0, 0);
    // The product first, alone: without the feature `testing`, that its tests and with them all else enable.
    // What follows has no target for which cargo would build it again.
    let others = ["--bin", "longhaul-bench", "--bin", "xtask"];
    let tests = [&["--workspace", "--tests", "--examples"][..], &others].concat();
    for what in [&["--package", PRODUCT][..], &tests] {
        let mut command = cargo();
        command.args(["build", "--profile", profile]).args(what);
        if lints {
            command.env("RUSTC_WORKSPACE_WRAPPER", CLIPPY);
        }
        run_cargo(&mut command, |message| {
            programs.extend(runner::program(message));
            products += u32::from(is_product(message));
            if let Some(warning) = read_warning(message) {
                eprint!("{warning}");
                warnings += 1;
            }
        })?;
    }
    if warnings > 0 {
        return Err(format!(
            "{warnings} warnings, shown above: each is to be mended, or allowed where it stands"
        ));
    }
    if products != 1 {
        return Err(format!(
            "{PRODUCT} was built {products} times: once with what only tests need, which they then run"
        ));
    }
    Ok(runner::arrange(programs))
}

/// Whether a message of cargo says that the program of users was built, or need not be.
fn is_product(message: &Value) -> bool {
    message["reason"] == "compiler-artifact"
        && message["target"]["name"] == PRODUCT
        && message["profile"]["test"] == false
}

/// Runs a command of cargo that builds, handing on each of its messages.
fn run_cargo(command: &mut Command, mut message: impl FnMut(&Value)) -> Result<(), String> {
    let shown = tools::shown(command);
    eprintln!("$ {shown}");
    let failed = |error: std::io::Error| format!("cannot run {shown}: {error}");
    let mut child = command.arg("--message-format=json").stdout(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            if let Ok(value) = serde_json::from_str(&line.map_err(failed)?) {
                message(&value);
            }
        }
    }
    let status = child.wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

/// The text of a warning or an error in a message of cargo, which repeats the warnings of what it need not
/// build again.
fn read_warning(message: &Value) -> Option<&str> {
    let message = (message["reason"] == "compiler-message").then(|| &message["message"])?;
    matches!(message["level"].as_str(), Some("warning" | "error")).then(|| message["rendered"].as_str())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_program_of_users_is_not_its_tests() {
        let built = |name: &str, test: bool| {
            let (target, profile) = (json!({"name": name}), json!({"test": test}));
            json!({"reason": "compiler-artifact", "target": target, "profile": profile})
        };
        assert!(is_product(&built("longhaul", false)));
        assert!(!is_product(&built("longhaul", true)) && !is_product(&built("xtask", false)));
    }

    #[test]
    fn warnings_are_read_from_messages_of_the_compiler_alone() {
        let warning =
            json!({"reason": "compiler-message", "message": {"level": "warning", "rendered": "unused"}});
        assert_eq!(read_warning(&warning), Some("unused"));
        let note = json!({"reason": "compiler-message", "message": {"level": "note", "rendered": "see"}});
        assert_eq!(read_warning(&note), None);
        let artifact = json!({"reason": "compiler-artifact", "message": {"rendered": "unused"}});
        assert_eq!(read_warning(&artifact), None);
    }
}
