//! A failed command: the four parts a person reads (what, why, what next, an id) and the exit code a script
//! reads.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use longhaul_api::Problem;
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, IncidentId, NameError};

use crate::terminal::{Style, Tone, wrapped};

/// Exit codes; `longhaul --help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    Other = 1,
    Usage = 2,
    NotFound = 3,
    Denied = 4,
    /// The same command may succeed later.
    Temporary = 5,
    Permanent = 6,
    /// Some files failed.
    Partly = 7,
    /// The time given to `--wait` is over.
    TimedOut = 8,
    Mismatch = 10,
    Interrupted = 130,
}

impl Exit {
    fn from_code(code: u8) -> Exit {
        use Exit::*;
        [Ok, Usage, NotFound, Denied, Temporary, Permanent, Partly, TimedOut, Mismatch]
            .into_iter()
            .find(|exit| *exit as u8 == code)
            .unwrap_or(Other)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Boxed, since results are passed up through every call and mostly succeed.
    pub problem: Box<Problem>,
    pub exit: Exit,
}

impl Failure {
    /// A failure with details `why`; title and remedy follow from the code unless set below.
    pub fn new(code: FaultCode, why: impl Into<String>) -> Self {
        Problem::new(code, code.title(), why).into()
    }

    /// The command line or the configuration is wrong.
    pub fn usage(title: impl Into<String>, why: impl Into<String>, next: impl Into<String>) -> Self {
        let failure = Failure::new(FaultCode::BadRequest, why).with_title(title).with_remedy(next);
        Failure { exit: Exit::Usage, ..failure }
    }

    /// The operating system failed an operation on a file.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let shown = printable(&path.to_string_lossy());
        let next = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check its owner and permissions, and the user you run as",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space there, or use another directory"
            }
            _ => "see the reason; if it persists, use another directory",
        };
        let failure = Failure::new(FaultCode::StateDirectory, plain_io(error));
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Other };
        Failure { exit, ..failure.with_title(format!("{doing} {shown} failed")).with_remedy(next) }
    }

    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.problem.title = title.into();
        self
    }

    pub fn with_remedy(mut self, next: impl Into<String>) -> Self {
        self.problem.remedy = next.into();
        self
    }

    pub fn with_exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Adds an id unless the service gave one.
    pub fn with_id(mut self, make: impl FnOnce() -> IncidentId) -> Self {
        self.problem.instance.get_or_insert_with(make);
        self
    }

    /// The text for standard error. `width` wraps it with a hanging indent.
    pub fn render(&self, style: Style, width: Option<usize>) -> String {
        let problem = &self.problem;
        let mut text = style.paint(Tone::Bad, &format!("error[{}]", problem.code));
        let _ = writeln!(text, ": {}", printable(&problem.title));
        let mut part = |name: &str, value: &str| {
            if !value.is_empty() {
                let line = format!("  {name:<5} {}", printable(value));
                let _ = writeln!(text, "{}", wrapped(&line, width, 8));
            }
        };
        part("why:", &problem.detail);
        part("next:", &problem.remedy);
        if let Some(id) = problem.instance {
            part("id:", &id.to_string());
        }
        text
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = Exit::from_code(problem.exit_code());
        Failure { problem: Box::new(problem), exit }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Problem::from(fault).into()
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        Failure::new(FaultCode::BadName, error.to_string()).with_exit(Exit::Usage)
    }
}

/// The message without the OS error number: `No space left on device`.
pub fn plain_io(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{IdMaker, Timestamp};

    /// Promise 10: what, why, what next, and an id.
    #[test]
    fn has_four_parts() {
        let id = IdMaker::default().next(Timestamp::from_seconds(1_763_717_531));
        let failure = Failure::new(FaultCode::NoSpaceForRequest, "needs 100 TB, epsilon has 61 TB free")
            .with_title("epsilon cannot hold higgs/run7-raw")
            .with_remedy("choose blocks")
            .with_id(|| id);
        assert_eq!(
            failure.render(Style::plain(), None),
            format!(
                "error[E1102]: epsilon cannot hold higgs/run7-raw\n  why:  needs 100 TB, epsilon has 61 TB \
                    free\n  \
                 next: choose blocks\n  id:   {id}\n"
            )
        );
    }

    #[test]
    fn what_others_wrote_cannot_move_the_cursor() {
        let failure =
            Failure::new(FaultCode::NotFound, "no \u{1b}[2Jdataset\nerror[E0]: forged").with_title("a\rb");
        let text = failure.render(Style::plain(), None);
        assert_eq!(text.lines().count(), 3);
        assert!(!text.contains('\u{1b}') && !text.contains('\r'));
    }

    #[test]
    fn wraps_with_a_hanging_indent() {
        let failure = Failure::new(FaultCode::NotFound, "word ".repeat(30).trim_end());
        let text = failure.render(Style::plain(), Some(40));
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("\n        word"), "{text}");
    }

    #[test]
    fn exit_codes_follow_the_fault() {
        let exit = |code| Failure::new(code, "").exit;
        assert_eq!(exit(FaultCode::BadManifest), Exit::Usage);
        assert_eq!(exit(FaultCode::NotFound), Exit::NotFound);
        assert_eq!(exit(FaultCode::NotAuthenticated), Exit::Denied);
        assert_eq!(exit(FaultCode::Busy), Exit::Temporary);
        assert_eq!(exit(FaultCode::AlreadyExists), Exit::Permanent);
        assert_eq!(exit(FaultCode::WrongDigest), Exit::Mismatch);
    }
}
