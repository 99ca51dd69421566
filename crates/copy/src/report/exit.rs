//! fdtcp's exit codes, for `--copyjobfile`; all others are in docs/reference/exit-codes.md.

use longhaul_model::{Blame, Fault, FaultCode};

use super::Totals;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FdtcpExit {
    Ok = 0,
    /// Some file failed, or the copyjobfile is unusable.
    CopyError = 1,
    PortInUse = 2,
    ProcessStart = 3,
    /// The other end is unreachable or refuses us.
    Daemon = 4,
    Unexpected = 5,
    Interrupted = 6,
}

impl FdtcpExit {
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Exit code of a copy that could not begin.
    pub fn from_setup_fault(fault: &Fault) -> FdtcpExit {
        match fault.code {
            FaultCode::Interrupted | FaultCode::Cancelled => FdtcpExit::Interrupted,
            FaultCode::StateDirectory => FdtcpExit::ProcessStart,
            FaultCode::AddressInUse => FdtcpExit::PortInUse,
            FaultCode::Internal => FdtcpExit::Unexpected,
            code => match code.blame() {
                Blame::Network | Blame::Credential | Blame::Ourselves => FdtcpExit::Daemon,
                Blame::Source | Blame::Target | Blame::Request => FdtcpExit::CopyError,
            },
        }
    }

    /// Exit code of a server that could not listen.
    pub fn from_listen_error(error: &std::io::Error) -> FdtcpExit {
        match error.kind() {
            std::io::ErrorKind::AddrInUse => FdtcpExit::PortInUse,
            _ => FdtcpExit::ProcessStart,
        }
    }

    /// Exit code of a copy that ran to its end.
    pub fn from_totals(totals: &Totals, bad_lines: usize) -> FdtcpExit {
        let all_right = totals.files() == totals.ok && bad_lines == 0;
        if all_right { FdtcpExit::Ok } else { FdtcpExit::CopyError }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_as_fdtcp_has_them() {
        let setup = |code| FdtcpExit::from_setup_fault(&Fault::new(code, "")).code();
        assert_eq!(setup(FaultCode::BadRequest), 1);
        assert_eq!(setup(FaultCode::StateDirectory), 3);
        assert_eq!(setup(FaultCode::AddressInUse), 2);
        assert_eq!(setup(FaultCode::Unreachable), 4);
        assert_eq!(setup(FaultCode::NotAuthenticated), 4);
        assert_eq!(setup(FaultCode::VersionMismatch), 4);
        assert_eq!(setup(FaultCode::Internal), 5);
        assert_eq!(setup(FaultCode::Cancelled), 6);
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = std::net::TcpListener::bind(taken.local_addr().unwrap()).unwrap_err();
        assert_eq!(FdtcpExit::from_listen_error(&error).code(), 2);
        assert_eq!(FdtcpExit::from_listen_error(&std::io::Error::other("x")).code(), 3);
        let totals = Totals { ok: 3, ..Totals::default() };
        assert_eq!(FdtcpExit::from_totals(&totals, 0).code(), 0);
        assert_eq!(FdtcpExit::from_totals(&totals, 1).code(), 1);
        assert_eq!(FdtcpExit::from_totals(&Totals { exists: 1, ..totals }, 0).code(), 1);
    }
}
