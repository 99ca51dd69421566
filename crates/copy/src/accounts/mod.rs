//! Maps the subjects of a grid-map file to local accounts, and refuses accounts that nobody may become.
//!
//! The account follows from the file and from the system's own account database, never from anything a client
//! says. Nobody is mapped to root; system accounts are allowed only if the administrator lists them. Not
//! here: the syntax of grid-map files (`security::gridmap`), becoming the account (the binary).

mod prepare;

use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};
use std::string::FromUtf8Error;

use longhaul_model::units::printable;
use longhaul_security::gridmap::GridMap;

pub(crate) use prepare::work_dir_name as work_name;
pub use prepare::{prepare_work, remove_work};

/// Accounts with a lower uid belong to the system, by the convention of every large distribution.
pub const UID_MIN: u32 = 1_000;
/// The uid of `nobody`, which owns whatever belongs to no account known here.
const UID_NOBODY: u32 = 65_534;
/// The kernel's own limit (NGROUPS_MAX): a longer list is not a real one.
const GROUPS_MAX: usize = 65_536;
/// Where `getent` and `id` are searched for; the caller's PATH is not trusted.
const PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";

/// An account as the system knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    pub home: String,
}

/// Which accounts subjects may be mapped to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountPolicy {
    pub uid_min: u32,
    /// System accounts that are allowed although their uid is below `uid_min`.
    pub listed: Vec<String>,
}

/// A subject of the grid-map file and its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedSubject {
    pub line: usize,
    pub subject: String,
    pub account: Account,
}

/// A line of the grid-map file that maps nobody, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmappedLine {
    pub line: usize,
    pub why: String,
}

/// Why an account is not mapped to.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("{0} is root, and nobody may be mapped to root")]
    Root(String),
    #[error("{name} (uid {uid}, gid {gid}) is a system account; allow it with --system-account {name}")]
    SystemAccount { name: String, uid: u32, gid: u32 },
    /// `getent` or `id` could not be started.
    #[error("cannot start {program}: {error}")]
    Lookup {
        program: String,
        #[source]
        error: io::Error,
    },
    #[error("there is no account {0} on this system")]
    Unknown(String),
    #[error("the output of {program} for {name} is not UTF-8")]
    NotUtf8 {
        program: String,
        name: String,
        #[source]
        error: FromUtf8Error,
    },
    /// The system's entry for the name, or its list of groups, has no such form.
    #[error("{0}")]
    Malformed(String),
}

impl Default for AccountPolicy {
    fn default() -> Self {
        AccountPolicy { uid_min: UID_MIN, listed: Vec::new() }
    }
}

impl AccountPolicy {
    fn check(&self, account: &Account) -> Result<(), AccountError> {
        let name = &account.name;
        if account.uid == 0 {
            return Err(AccountError::Root(name.clone()));
        }
        let of_system = account.uid < self.uid_min || account.uid == UID_NOBODY || account.gid == 0;
        if of_system && !self.listed.contains(name) {
            return Err(AccountError::SystemAccount {
                name: name.clone(),
                uid: account.uid,
                gid: account.gid,
            });
        }
        Ok(())
    }
}

/// Maps each subject. The first line of a subject counts, and the first account on that line.
pub fn map_subjects(
    lines: &GridMap,
    policy: &AccountPolicy,
    look_up: &mut dyn FnMut(&str) -> Result<Account, AccountError>,
) -> (Vec<MappedSubject>, Vec<UnmappedLine>) {
    let mut known: BTreeMap<&str, Result<Account, AccountError>> = BTreeMap::new();
    let mut mapped: Vec<MappedSubject> = Vec::new();
    let bad = lines.bad.iter().chain(&lines.shadowed);
    let mut unmapped: Vec<UnmappedLine> =
        bad.map(|bad| UnmappedLine { line: bad.line, why: bad.why.clone() }).collect();
    for entry in &lines.entries {
        if lines.shadowed.iter().any(|shadowed| shadowed.line == entry.line) {
            continue;
        }
        let mut leave = |why: String| unmapped.push(UnmappedLine { line: entry.line, why });
        let Some(name) = entry.accounts.first() else { continue };
        if entry.subject == "*" || !entry.roles.is_empty() || is_role(&entry.subject) {
            leave("maps a role, and roles cannot be checked here".into());
        } else if name.starts_with('.') {
            leave(format!("{name} is a pool of accounts; name a single account"));
        } else {
            let account = known.entry(name).or_insert_with(|| {
                let account = look_up(name)?;
                policy.check(&account).map(|()| account)
            });
            match account {
                Ok(account) => mapped.push(MappedSubject {
                    line: entry.line,
                    subject: entry.subject.clone(),
                    account: account.clone(),
                }),
                Err(error) => leave(error.to_string()),
            }
        }
    }
    unmapped.sort_by_key(|line| line.line);
    (mapped, unmapped)
}

/// Whether the subject is a VOMS attribute such as `/cms/Role=production` and not a distinguished name, whose
/// first component always contains `=`.
fn is_role(subject: &str) -> bool {
    subject.strip_prefix('/').is_some_and(|rest| !rest.split('/').next().unwrap_or_default().contains('='))
}

/// Looks an account up in the system's databases (files, LDAP, SSSD). Runs `getent` and `id`, without a
/// shell.
pub fn look_up(name: &str) -> Result<Account, AccountError> {
    let line = run_lookup("getent", &["passwd", name])?;
    let mut account = parse_passwd(name, line.trim_end()).map_err(AccountError::Malformed)?;
    account.groups = parse_groups(&run_lookup("id", &["-G", name])?).map_err(AccountError::Malformed)?;
    Ok(account)
}

fn run_lookup(program: &str, arguments: &[&str]) -> Result<String, AccountError> {
    let asked = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| AccountError::Lookup { program: program.to_owned(), error })?;
    let name = arguments.last().copied().unwrap_or_default();
    if !asked.status.success() {
        return Err(AccountError::Unknown(name.to_owned()));
    }
    String::from_utf8(asked.stdout).map_err(|error| {
        let (program, name) = (program.to_owned(), name.to_owned());
        AccountError::NotUtf8 { program, name, error }
    })
}

/// Parses `name:x:uid:gid:comment:home:shell`. The name must be the one that was looked up: a number would
/// find another account.
fn parse_passwd(name: &str, line: &str) -> Result<Account, String> {
    let fields: Vec<&str> = line.split(':').collect();
    let wrong = || format!("{name}: cannot parse the system's entry \"{}\"", printable(line));
    let [found, _, uid, gid, _, home, _] = fields[..] else { return Err(wrong()) };
    if found != name {
        return Err(format!("{name} is not an account name; the system found {}", printable(found)));
    }
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number != u32::MAX).ok_or_else(wrong);
    Ok(Account {
        name: name.to_owned(),
        uid: number(uid)?,
        gid: number(gid)?,
        groups: Vec::new(),
        home: home.to_owned(),
    })
}

fn parse_groups(text: &str) -> Result<Vec<u32>, String> {
    let groups: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    groups
        .ok()
        .filter(|groups| groups.len() <= GROUPS_MAX)
        .ok_or_else(|| format!("cannot parse the list of groups \"{}\"", printable(text.trim_end())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_security::gridmap;
    use proptest::prelude::*;

    fn account(name: &str, uid: u32) -> Account {
        Account { name: name.into(), uid, gid: uid.max(1), groups: vec![], home: "/".into() }
    }

    fn some(name: &str) -> Result<Account, AccountError> {
        match name {
            "root" => Ok(Account { gid: 0, ..account("root", 0) }),
            "daemon" => Ok(account("daemon", 2)),
            "jane" => Ok(account("jane", 1_000)),
            "nobody" => Ok(account("nobody", UID_NOBODY)),
            "wheel" => Ok(Account { gid: 0, ..account("wheel", 2_000) }),
            _ => Err(AccountError::Unknown(name.to_owned())),
        }
    }

    /// The number of each line, with its account or the reason why it maps nobody.
    type Lines = Vec<(usize, String)>;

    fn mapped(text: &str, policy: &AccountPolicy) -> (Lines, Lines) {
        let (mapped, unmapped) = map_subjects(&gridmap::parse(text.as_bytes()), policy, &mut some);
        (
            mapped.into_iter().map(|one| (one.line, one.account.name)).collect(),
            unmapped.into_iter().map(|one| (one.line, one.why)).collect(),
        )
    }

    #[test]
    fn only_people_are_mapped_to() {
        let text = "/CN=a jane,daemon\n/CN=b daemon\n/CN=c root\n/CN=d nobody\n/CN=e wheel\n/CN=f \
            ghost\n/CN=a root\n";
        let (good, bad) = mapped(text, &AccountPolicy::default());
        assert_eq!(good, [(1, "jane".to_owned())]);
        let lines: Vec<usize> = bad.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6, 7]);
        assert!(bad[0].1.contains("--system-account daemon") && bad[1].1.contains("is root"), "{bad:?}");
        assert!(bad[4].1.contains("there is no account") && bad[5].1.contains("line 1"), "{bad:?}");
        let policy = AccountPolicy {
            listed: vec!["daemon".into(), "root".into(), "nobody".into()],
            ..AccountPolicy::default()
        };
        let (good, _) = mapped(text, &policy);
        assert_eq!(good, [(1, "jane".to_owned()), (2, "daemon".to_owned()), (4, "nobody".to_owned())]);
        let (good, _) = mapped(text, &AccountPolicy { uid_min: 2, ..AccountPolicy::default() });
        assert_eq!(
            good,
            [(1, "jane".to_owned()), (2, "daemon".to_owned())],
            "gid 0, nobody and root stay out"
        );
    }

    #[test]
    fn roles_and_pools_map_nobody() {
        let text =
            "\"/CN=a\" /cms/Role=x jane\n* /atlas jane\n/cms/Role=pilot jane\n/CN=p .pool\n/CN=q jane\n";
        let (good, bad) = mapped(text, &AccountPolicy::default());
        assert_eq!(good, [(5, "jane".to_owned())]);
        assert_eq!(bad.len(), 4, "{bad:?}");
    }

    #[test]
    fn the_systems_entries_are_read_exactly() {
        let line = "jane:x:1001:1002:Jane, Doe:/users/jane:/bin/bash";
        let account = parse_passwd("jane", line).unwrap();
        assert_eq!((account.uid, account.gid, account.home.as_str()), (1_001, 1_002, "/users/jane"));
        assert!(parse_passwd("1001", line).unwrap_err().contains("not an account name"));
        for bad in ["", "jane:x:1001", "jane:x:-1:0::/:", "jane:x:4294967295:1::/:", "jane:x:1:1:::a:b"] {
            assert!(parse_passwd("jane", bad).is_err(), "{bad}");
        }
        assert_eq!(parse_groups("5 60\n").unwrap(), [5, 60]);
        assert!(parse_groups("5 x").is_err());
    }

    #[test]
    fn the_system_knows_root_and_no_ghosts() {
        let root = look_up("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(look_up("0").unwrap_err().to_string().contains("account"), "a uid is not an account name");
        assert!(look_up("no-such-account-here").is_err());
    }

    proptest! {
        #[test]
        fn no_map_reaches_root(
            text in "(/CN=[a-d] (root|jane|daemon|0|nobody)(,root)?\n){0,8}",
            uid_min in 0u32..3_000,
        ) {
            let policy = AccountPolicy { uid_min, listed: vec!["root".into(), "daemon".into()] };
            let (mapped, _) = map_subjects(&gridmap::parse(text.as_bytes()), &policy, &mut some);
            prop_assert!(mapped.iter().all(|one| one.account.uid != 0));
        }
    }
}
