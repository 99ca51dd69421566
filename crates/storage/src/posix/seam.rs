//! Where tests look at the order of system calls and make them fail; empty in the program.

use rustix::io;

/// A system call about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    ReadDirectory,
    MayRead,
    Reserve,
    OpenDirect,
    SetAttributes,
    FlushData,
    FlushFileSystem,
    MakeDirectory,
    Rename,
    /// A rename over what is there.
    Replace,
    Link,
    FlushDirectory,
}

#[derive(Clone, Default)]
pub(super) struct Seam {
    #[cfg(test)]
    hook: Option<Hook>,
}

#[cfg(test)]
pub(super) type Hook = std::sync::Arc<dyn Fn(Call, &str) -> io::Result<()> + Send + Sync>;

impl Seam {
    #[cfg(test)]
    pub(super) fn with(hook: Hook) -> Self {
        Seam { hook: Some(hook) }
    }

    /// An error stands for that of the call, which is then not made.
    pub(super) fn before(&self, call: Call, what: &str) -> io::Result<()> {
        #[cfg(test)]
        if let Some(hook) = &self.hook {
            return hook(call, what);
        }
        let _ = (call, what);
        Ok(())
    }
}
