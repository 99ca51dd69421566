//! Path confinement (promise 9): opens paths beneath a root and nowhere else, safe against symbolic links and
//! races (time of check to time of use), after `openat2` with `RESOLVE_BENEATH` (Linux 5.6).
//!
//! Two layers. [`NoLinks`] follows no link at all: `openat2` where the kernel has it, otherwise component by
//! component with `O_NOFOLLOW`. [`RootedTree::resolve`] turns a path with links into one without, reading
//! each link itself, so that one set of rules holds in both modes: a link may have any text (absolute, or out
//! of the root and back in), and is valid if its target lies beneath the root. The first layer opens the
//! result again, so a link exchanged meanwhile leads to an error and not to another place.
//!
//! Rejected: `openat2` following links itself. It refuses every absolute link, even one that leads back in,
//! and would need the second layer for those and for older kernels anyway.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{self, Errno};

/// The kernel's own limit.
const LINKS_MAX: usize = 40;
/// The kernel returns `EAGAIN` when a directory is moved during the look-up.
const OPENAT2_TRIES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolver {
    Kernel,
    Components,
}

/// Why a path with links cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResolveError {
    Out,
    WorkDirectory,
    Broken,
    Loop,
    /// An error unrelated to links.
    Errno(Errno),
}

/// The first layer: opens paths beneath a root without following links, even if they are exchanged meanwhile.
pub struct NoLinks {
    root: OwnedFd,
    resolver: Resolver,
}

impl NoLinks {
    /// `root` itself may be reached by links: it comes from the configuration.
    ///
    /// # Errors
    /// `root` does not exist or is not a directory.
    pub fn open_root(root: &Path) -> io::Result<NoLinks> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(NoLinks::new(fs::open(root, flags, Mode::empty())?, None))
    }

    fn new(root: OwnedFd, resolver: Option<Resolver>) -> NoLinks {
        let resolver = resolver.unwrap_or_else(|| detect(&root));
        NoLinks { root, resolver }
    }

    /// As on a kernel without `openat2`.
    #[must_use]
    pub fn by_components(self) -> NoLinks {
        NoLinks { resolver: Resolver::Components, ..self }
    }

    /// Opens `path` (empty: the root) if no component of it is a link; `ELOOP` if one is, unless it is the
    /// last and `flags` have `PATH`: then the link itself is opened.
    ///
    /// # Errors
    /// The errno of the kernel; `ELOOP` if a component is a link.
    pub fn open(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if path.is_empty() {
            return fs::openat(&self.root, ".", flags, Mode::empty());
        }
        match self.resolver {
            Resolver::Kernel => self.open_by_kernel(path, flags),
            Resolver::Components => self.open_by_components(path, flags),
        }
    }

    fn open_by_kernel(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..OPENAT2_TRIES_MAX {
            match fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                done => return done,
            }
        }
        Err(Errno::AGAIN)
    }

    fn open_by_components(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let mut names = components(path).peekable();
        let mut at: Option<OwnedFd> = None;
        while let Some(name) = names.next() {
            if matches!(name, b"." | b"..") {
                return Err(Errno::INVAL);
            }
            let directory = at.as_ref().map_or(self.root.as_fd(), OwnedFd::as_fd);
            if names.peek().is_none() {
                return fs::openat(directory, name, flags, Mode::empty());
            }
            let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = fs::openat(directory, name, step, Mode::empty());
            // A link is "not a directory" here; return what `openat2` returns.
            if matches!(next, Err(Errno::NOTDIR)) && is_link(directory, name) {
                return Err(Errno::LOOP);
            }
            at = Some(next?);
        }
        fs::openat(&self.root, ".", flags, Mode::empty())
    }

    /// The metadata at a path without links; a link at its end is not followed.
    ///
    /// # Errors
    /// As [`NoLinks::open`].
    pub fn stat(&self, path: &[u8]) -> io::Result<fs::Stat> {
        fs::fstat(self.open(path, OFlags::PATH)?)
    }
}

pub(super) struct RootedTree {
    first: NoLinks,
    /// The root's own absolute path, without links, to judge where links lead.
    root_components: Vec<Vec<u8>>,
    /// Paths beneath the root that are reserved for this program's own files.
    reserved: Vec<Vec<u8>>,
}

impl RootedTree {
    pub(super) fn new(
        root: OwnedFd,
        root_path: &[u8],
        resolver: Option<Resolver>,
        reserved: Vec<Vec<u8>>,
    ) -> Self {
        let root_components = components(root_path).map(<[u8]>::to_vec).collect();
        RootedTree { first: NoLinks::new(root, resolver), root_components, reserved }
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.first.root
    }

    /// See [`NoLinks::open`].
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        self.first.open(path, flags)
    }

    /// See [`NoLinks::stat`].
    pub(super) fn stat(&self, path: &[u8]) -> io::Result<fs::Stat> {
        self.first.stat(path)
    }

    /// The equivalent path without links.
    pub(super) fn resolve(&self, path: &[u8]) -> Result<Vec<u8>, ResolveError> {
        let mut left: VecDeque<Vec<u8>> = components(path).map(<[u8]>::to_vec).collect();
        let mut place = ResolutionState { root: &self.root_components, inside: Vec::new(), outside: None };
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            match name.as_slice() {
                b"." => continue,
                b".." => {
                    place.up();
                    continue;
                }
                _ if place.outside.is_some() => {
                    place.down_outside(name);
                    continue;
                }
                _ => {}
            }
            let here = place.child(&name);
            let missing = |errno| match errno {
                Errno::NOENT | Errno::NOTDIR if links > 0 => ResolveError::Broken,
                errno => ResolveError::Errno(errno),
            };
            let entry = self.open(&here, OFlags::PATH).map_err(missing)?;
            let kind = FileType::from_raw_mode(fs::fstat(&entry).map_err(ResolveError::Errno)?.st_mode);
            if kind != FileType::Symlink {
                if !left.is_empty() && kind != FileType::Directory {
                    return Err(missing(Errno::NOTDIR));
                }
                place.inside.push(name);
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(ResolveError::Loop);
            }
            let text = fs::readlinkat(&entry, "", Vec::new()).map_err(ResolveError::Errno)?.into_bytes();
            if text.starts_with(b"/") {
                place.restart_at_system_root();
            }
            for name in components(&text).rev() {
                left.push_front(name.to_vec());
            }
        }
        if place.outside.is_some() {
            return Err(ResolveError::Out);
        }
        let path = place.inside.join(&b'/');
        if self.is_reserved(&path) { Err(ResolveError::WorkDirectory) } else { Ok(path) }
    }

    /// Whether `path` is a reserved directory or lies in one.
    pub(super) fn is_reserved(&self, path: &[u8]) -> bool {
        self.reserved.iter().any(|ours| within(path, ours))
    }

    /// The same on a case-insensitive storage.
    pub(super) fn is_reserved_in_any_case(&self, path: &[u8]) -> bool {
        let path = path.to_ascii_lowercase();
        self.reserved.iter().any(|ours| within(&path, &ours.to_ascii_lowercase()))
    }
}

/// The state of a path resolution: beneath the root, or outside it, judged by text alone. Nothing outside is
/// ever opened, so a link there is not followed.
struct ResolutionState<'a> {
    root: &'a [Vec<u8>],
    inside: Vec<Vec<u8>>,
    outside: Option<Vec<Vec<u8>>>,
}

impl ResolutionState<'_> {
    fn child(&self, name: &[u8]) -> Vec<u8> {
        let mut path = self.inside.join(&b'/');
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    fn up(&mut self) {
        match &mut self.outside {
            Some(place) => {
                place.pop();
            }
            None if self.inside.pop().is_some() => {}
            None => {
                self.outside = Some(self.root[..self.root.len().saturating_sub(1)].to_vec());
            }
        }
        self.come_in();
    }

    fn down_outside(&mut self, name: Vec<u8>) {
        if let Some(place) = &mut self.outside {
            place.push(name);
        }
        self.come_in();
    }

    fn restart_at_system_root(&mut self) {
        self.outside = Some(Vec::new());
        self.come_in();
    }

    fn come_in(&mut self) {
        if self.outside.as_deref() == Some(self.root) {
            self.outside = None;
            self.inside.clear();
        }
    }
}

pub(super) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

/// A path's directory (empty: the root) and its last component.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

fn within(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn is_link(directory: impl AsFd, name: &[u8]) -> bool {
    fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// `openat2` is absent before Linux 5.6, and blocked in some containers.
fn detect(root: &OwnedFd) -> Resolver {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match fs::openat2(root, ".", flags, Mode::empty(), ResolveFlags::BENEATH) {
        Ok(_) => Resolver::Kernel,
        Err(_) => Resolver::Components,
    }
}
