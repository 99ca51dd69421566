//! Maps errno values to faults, by operation.

use std::fmt::Display;

use longhaul_model::{Fault, FaultCode};
use rustix::io::Errno;

/// Reads blame the source, writes the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Read,
    Write,
}

pub(super) fn fault(role: Role, errno: Errno, doing: impl Display) -> Fault {
    let code = match role {
        Role::Read => reading(errno),
        Role::Write => writing(errno),
    };
    let error = std::io::Error::from(errno);
    let why = match errno {
        Errno::XDEV => "it lies on another file system than the work directory".to_owned(),
        Errno::LOOP => "a link stands in the way, and links are not followed for writing".to_owned(),
        _ => error.to_string(),
    };
    Fault::new(code, format!("{doing}: {why}")).with_source(error)
}

fn reading(errno: Errno) -> FaultCode {
    match errno {
        Errno::NOENT | Errno::NOTDIR => FaultCode::SourceMissing,
        // Whether for reading or writing: the storage cannot hold it.
        Errno::NAMETOOLONG => FaultCode::NameTooLong,
        _ => FaultCode::SourceUnreadable,
    }
}

fn writing(errno: Errno) -> FaultCode {
    match errno {
        Errno::NOSPC | Errno::DQUOT => FaultCode::TargetFull,
        Errno::ROFS | Errno::ACCESS | Errno::PERM => FaultCode::TargetReadOnly,
        Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP => FaultCode::NameClash,
        Errno::NAMETOOLONG => FaultCode::NameTooLong,
        _ => FaultCode::TargetWrite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Blame;

    #[test]
    fn blame_follows_the_role() {
        assert_eq!(fault(Role::Read, Errno::IO, "reading a").blame, Blame::Source);
        assert_eq!(fault(Role::Write, Errno::IO, "writing a").blame, Blame::Target);
        assert_eq!(fault(Role::Write, Errno::DQUOT, "writing a").code, FaultCode::TargetFull);
        assert_eq!(fault(Role::Write, Errno::ROFS, "writing a").code, FaultCode::TargetReadOnly);
        assert_eq!(fault(Role::Write, Errno::NOTDIR, "naming a").code, FaultCode::NameClash);
        let text = fault(Role::Write, Errno::NOSPC, "writing a").to_string();
        assert!(text.contains("writing a") && text.contains("space"), "{text}");
    }

    #[test]
    fn the_errno_stays_as_the_source() {
        let plain = fault(Role::Write, Errno::NOSPC, "writing a");
        let source =
            std::error::Error::source(&plain).and_then(|error| error.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(plain.chain().to_string(), plain.to_string(), "its text is in the detail already");

        let explained = fault(Role::Write, Errno::XDEV, "naming a").chain().to_string();
        assert!(explained.contains("another file system") && explained.contains("os error"), "{explained}");
    }
}
