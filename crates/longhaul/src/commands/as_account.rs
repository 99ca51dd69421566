//! `longhaul as-account`: drops privileges to a local account permanently and runs this program again as that
//! account.
//!
//! The small privileged step of `serve --grid-map`. It has one thread and has read nothing but its own
//! command line. The program it runs has no way back: real, effective and saved user and group ids are the
//! account's, other groups and capabilities are gone, set-user-id programs give nothing back (no_new_privs),
//! and root's terminal is not its terminal.

use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;
use longhaul_model::FaultCode;
use rustix::fs::Mode;
use rustix::process::{Gid, Uid, getegid, geteuid, getgid, getuid};
use rustix::thread;

use super::Context;
use crate::failure::{Exit, Failure};

/// Environment variables passed on; nothing else of root's environment is.
const INHERITED_VARIABLES: &[&str] = &["LANG", "LC_ALL", "TZ", super::serve::SECRET_VARIABLE];
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Files the account creates are not writable for group and others unless it says so.
const UMASK: u32 = 0o022;

#[derive(Debug, Args)]
pub struct AsAccountArgs {
    /// User id of the account
    #[arg(long)]
    uid: u32,
    /// Group id of the account
    #[arg(long)]
    gid: u32,
    /// Supplementary groups
    #[arg(long, value_delimiter = ',')]
    groups: Vec<u32>,
    /// Name of the account, for the environment
    #[arg(long)]
    name: String,
    /// Home directory, for the environment
    #[arg(long)]
    home: String,
    /// Command for this program to run as the account
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub fn run(_: &Context, args: AsAccountArgs) -> Result<Exit, Failure> {
    become_account(&args)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("longhaul").args(&args.command).env_clear().current_dir("/");
    for name in INHERITED_VARIABLES {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("PATH", PATH).env("HOME", &args.home).env("USER", &args.name).env("LOGNAME", &args.name);
    let error = command.exec();
    Err(denied("starting this program", &error))
}

fn become_account(args: &AsAccountArgs) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(args.uid), Gid::from_raw(args.gid));
    if uid.is_root() {
        return Err(Failure::new(FaultCode::NotAllowed, "refusing to become root"));
    }
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    // The calls below affect one thread only: a second thread would stay root.
    if threads != 1 {
        return Err(Failure::new(
            FaultCode::Internal,
            format!("{threads} threads are running, expected one"),
        ));
    }
    let groups: Vec<Gid> = args.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    rustix::process::umask(Mode::from_raw_mode(UMASK));
    let failed =
        |what: &'static str| move |errno: rustix::io::Errno| denied(what, &std::io::Error::from(errno));
    // A new session, without root's terminal: a process that shares it could type into it.
    rustix::process::setsid().map_err(failed("leaving the terminal"))?;
    thread::set_thread_groups(&groups).map_err(failed("setting the groups"))?;
    thread::set_thread_res_gid(gid, gid, gid).map_err(failed("setting the group"))?;
    thread::set_thread_res_uid(uid, uid, uid).map_err(failed("setting the user"))?;
    thread::set_no_new_privs(true).map_err(failed("giving up privileges"))?;
    let is_account = (getuid(), geteuid(), getgid(), getegid()) == (uid, uid, gid, gid);
    if !is_account || thread::set_thread_uid(Uid::ROOT).is_ok() {
        return Err(Failure::new(FaultCode::Internal, "dropping root privileges failed"));
    }
    Ok(())
}

fn denied(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(FaultCode::NotAllowed, format!("{what}: {}", crate::failure::plain_io(error)))
}
