//! Opening paths beneath a root and nowhere else (promise 9).
//!
//! Two layers. [`NoLinks`] follows no link at all: `openat2` where the kernel has it, else component by
//! component with `O_NOFOLLOW`. [`Beneath::resolve`] turns a path with links into one without, reading each
//! link itself, so that one set of rules holds in both modes: a link may lead anywhere as text (absolute, or
//! out of the root and back in), and is good if what it means lies beneath the root. The result is opened by
//! the first layer again, so a link exchanged meanwhile leads to an error and not to another place.
//!
//! Rejected: `openat2` following links itself. It refuses every absolute link, also one that leads back in,
//! and would need the second layer for those and for kernels without it anyway.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{self, Errno};

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;
/// The kernel says "again" when a directory is moved during the look-up.
const MOVED_TRIES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolver {
    Kernel,
    Components,
}

/// Why a path with links leads to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Astray {
    Out,
    WorkDirectory,
    Broken,
    Loop,
    /// No link's fault.
    Errno(Errno),
}

/// The first layer: opens what lies beneath a root, whatever is exchanged for a link meanwhile.
pub struct NoLinks {
    root: OwnedFd,
    resolver: Resolver,
}

impl NoLinks {
    /// `root` itself may be reached by links: whoever names it may say so.
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
        for _ in 0..MOVED_TRIES {
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
            // A link is "not a directory" here; say what `openat2` says.
            if matches!(next, Err(Errno::NOTDIR)) && is_link(directory, name) {
                return Err(Errno::LOOP);
            }
            at = Some(next?);
        }
        fs::openat(&self.root, ".", flags, Mode::empty())
    }

    /// Type and the rest of what lies at a path without links; a link at its end is described itself.
    pub fn stat(&self, path: &[u8]) -> io::Result<fs::Stat> {
        fs::fstat(self.open(path, OFlags::PATH)?)
    }
}

pub(super) struct Beneath {
    first: NoLinks,
    /// The root's own absolute path, without links, to judge where links lead.
    root_components: Vec<Vec<u8>>,
    /// Paths beneath the root that belong to us: nothing in them is anybody's file.
    reserved: Vec<Vec<u8>>,
}

impl Beneath {
    pub(super) fn new(
        root: OwnedFd,
        root_path: &[u8],
        resolver: Option<Resolver>,
        reserved: Vec<Vec<u8>>,
    ) -> Self {
        let root_components = components(root_path).map(<[u8]>::to_vec).collect();
        Beneath { first: NoLinks::new(root, resolver), root_components, reserved }
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

    /// The same place without links in its path.
    pub(super) fn resolve(&self, path: &[u8]) -> Result<Vec<u8>, Astray> {
        let mut left: VecDeque<Vec<u8>> = components(path).map(<[u8]>::to_vec).collect();
        let mut place = Place { root: &self.root_components, inside: Vec::new(), outside: None };
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
                Errno::NOENT | Errno::NOTDIR if links > 0 => Astray::Broken,
                errno => Astray::Errno(errno),
            };
            let entry = self.open(&here, OFlags::PATH).map_err(missing)?;
            let kind = FileType::from_raw_mode(fs::fstat(&entry).map_err(Astray::Errno)?.st_mode);
            if kind != FileType::Symlink {
                if !left.is_empty() && kind != FileType::Directory {
                    return Err(missing(Errno::NOTDIR));
                }
                place.inside.push(name);
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Astray::Loop);
            }
            let text = fs::readlinkat(&entry, "", Vec::new()).map_err(Astray::Errno)?.into_bytes();
            if text.starts_with(b"/") {
                place.restart_at_system_root();
            }
            for name in components(&text).rev() {
                left.push_front(name.to_vec());
            }
        }
        if place.outside.is_some() {
            return Err(Astray::Out);
        }
        let path = place.inside.join(&b'/');
        if self.is_reserved(&path) { Err(Astray::WorkDirectory) } else { Ok(path) }
    }

    /// Whether `path` is one of our own directories or lies in one.
    pub(super) fn is_reserved(&self, path: &[u8]) -> bool {
        self.reserved.iter().any(|ours| within(path, ours))
    }

    /// The same where names that differ in case only are one.
    pub(super) fn is_reserved_in_any_case(&self, path: &[u8]) -> bool {
        let path = path.to_ascii_lowercase();
        self.reserved.iter().any(|ours| within(&path, &ours.to_ascii_lowercase()))
    }
}

/// Where a resolution stands: beneath the root, or somewhere else as far as text tells. What lies outside is
/// never looked at, so a link there is not followed.
struct Place<'a> {
    root: &'a [Vec<u8>],
    inside: Vec<Vec<u8>>,
    outside: Option<Vec<Vec<u8>>>,
}

impl Place<'_> {
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

/// `openat2` is absent before Linux 5.6, and forbidden by some containers.
fn detect(root: &OwnedFd) -> Resolver {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match fs::openat2(root, ".", flags, Mode::empty(), ResolveFlags::BENEATH) {
        Ok(_) => Resolver::Kernel,
        Err(_) => Resolver::Components,
    }
}
