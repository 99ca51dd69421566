//! Fault injection at the system call boundary for tests, which observe the order of calls and make them
//! fail; empty in the program.

use rustix::io;

/// A system call about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syscall {
    ReadDirectory,
    MayRead,
    Reserve,
    OpenDirect,
    SetAttributes,
    FlushData,
    FlushFileSystem,
    MakeDirectory,
    Rename,
    /// A rename that replaces an existing file.
    Replace,
    Link,
    FlushDirectory,
}

#[derive(Clone, Default)]
pub(super) struct FaultInjector {
    #[cfg(test)]
    hook: Option<Hook>,
}

#[cfg(test)]
pub(super) type Hook = std::sync::Arc<dyn Fn(Syscall, &str) -> io::Result<()> + Send + Sync>;

impl FaultInjector {
    #[cfg(test)]
    pub(super) fn with(hook: Hook) -> Self {
        FaultInjector { hook: Some(hook) }
    }

    /// An error replaces the result of the call, which is then not made.
    pub(super) fn before(&self, call: Syscall, what: &str) -> io::Result<()> {
        #[cfg(test)]
        if let Some(hook) = &self.hook {
            return hook(call, what);
        }
        let _ = (call, what);
        Ok(())
    }
}
