//! Small files written in one step: everything is set while the descriptor is open, so that the commit only
//! renames.

use std::os::fd::{AsFd, OwnedFd};

use longhaul_model::Fault;
use rustix::fs::{self, Mode};
use rustix::io;

use super::Posix;
use super::commit::times;
use super::fault::{Role, fault};
use super::fault_injector::Syscall;
use super::file::write_all;
use crate::{Commit, MODE_BITS};

pub(super) fn put(posix: &Posix, item: &Commit, bytes: &[u8]) -> Result<(), Fault> {
    let (_, file) = posix.new_temporary(&item.temp, item.size)?;
    posix.flusher.begin(&item.temp);
    let shown = || format!("the temporary file {} in {}", item.temp, posix.name);
    write_all(&file, bytes, 0, &mut 0, &shown)?;
    set_attributes(posix, &file, item).map_err(|errno| {
        fault(Role::Write, errno, format_args!("setting time and permissions of {}", item.target))
    })?;
    if bytes.len() as u64 == item.size {
        posix.flusher.mark_put(item);
    }
    Ok(())
}

fn set_attributes(posix: &Posix, file: &OwnedFd, item: &Commit) -> io::Result<()> {
    if !item.sets_attributes() {
        return Ok(());
    }
    posix.fault_injector.before(Syscall::SetAttributes, item.temp.as_str())?;
    if let Some(mtime_ns) = item.mtime_ns {
        fs::futimens(file.as_fd(), &times(mtime_ns))?;
    }
    item.mode.map_or(Ok(()), |mode| fs::fchmod(file.as_fd(), Mode::from_raw_mode(mode & MODE_BITS)))
}
