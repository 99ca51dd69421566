//! Scopes of WLCG tokens and SciTokens: capabilities with paths, matched by whole path components.

use longhaul_model::{Fault, percent};

use super::refused;

/// Scopes of one token.
const SCOPES_MAX: usize = 512;

/// An operation on a file or directory of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageAction {
    Read,
    /// Whether it is there, and how large.
    Stat,
    /// Make a new file or directory; nothing is overwritten.
    Create,
    /// Overwrite, delete, rename.
    Modify,
    /// Bring online from tape, pin, release.
    Stage,
    /// Ask where it is: disk, tape.
    Poll,
}

/// `storage.read:/data`: a capability, and where it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// `storage.read`, `compute.create`.
    pub name: String,
    /// Always there for storage.
    pub path: Option<ScopePath>,
}

/// A path in a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopePath {
    components: Vec<String>,
    /// It ends with a slash, so it is a directory's.
    directory: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    pub capabilities: Vec<Capability>,
    /// All other scopes, as in the token: `openid`, `fts`.
    pub others: Vec<String>,
}

impl Scopes {
    /// By the WLCG profile.
    pub(super) fn wlcg(text: &str) -> Result<Self, Fault> {
        Self::parse(text, |name| is_wlcg(name).then(|| name.to_owned()), true)
    }

    /// SciTokens have shorter names; a missing path is the root.
    pub(super) fn scitoken(text: &str) -> Result<Self, Fault> {
        let name = |name: &str| match name {
            "read" => Some("storage.read".to_owned()),
            "write" => Some("storage.modify".to_owned()),
            name => is_wlcg(name).then(|| name.to_owned()),
        };
        Self::parse(text, name, false)
    }

    fn parse(
        text: &str,
        capability: impl Fn(&str) -> Option<String>,
        needs_path: bool,
    ) -> Result<Self, Fault> {
        let mut scopes = Scopes::default();
        for (place, scope) in text.split(' ').filter(|scope| !scope.is_empty()).enumerate() {
            if place == SCOPES_MAX {
                return Err(refused(format!("the token has more than {SCOPES_MAX} scopes")));
            }
            let (name, path) = match scope.split_once(':') {
                Some((name, path)) => (name, Some(path)),
                None => (scope, None),
            };
            let Some(name) = capability(name) else {
                scopes.others.push(scope.to_owned());
                continue;
            };
            let path = match path {
                Some(path) => Some(ScopePath::parse(path).ok_or_else(|| {
                    refused(format!("the scope {scope:?} has a path that is none (/a/b, no .. and no //)"))
                })?),
                None if !name.starts_with("storage.") => None,
                None if needs_path => return Err(refused(format!("the scope {scope:?} names no path"))),
                None => Some(ScopePath { components: Vec::new(), directory: true }),
            };
            scopes.capabilities.push(Capability { name, path });
        }
        Ok(scopes)
    }

    /// Whether a scope that is no capability is there.
    pub fn has_scope(&self, scope: &str) -> bool {
        self.others.iter().any(|other| other == scope)
    }

    /// Whether they allow it. `path` is relative to the area of the issuer and normal: `/a/b`, or `/a/b/` for
    /// a directory; any other is refused.
    pub fn allows(&self, action: StorageAction, path: &str) -> bool {
        let Some(path) = ScopePath::parse_plain(path) else { return false };
        let names: &[&str] = match action {
            StorageAction::Read => &["storage.read"],
            StorageAction::Stat => &["storage.read", "storage.create", "storage.modify", "storage.stage"],
            StorageAction::Create => &["storage.create", "storage.modify"],
            StorageAction::Modify => &["storage.modify"],
            StorageAction::Stage => &["storage.stage"],
            StorageAction::Poll => &["storage.poll", "storage.stage"],
        };
        self.paths_of(names).any(|scope| scope.covers(&path))
    }

    /// Whether they allow to make the directory `path`: one that a file may be made in, or that leads there.
    pub fn allows_directory(&self, path: &str) -> bool {
        let Some(mut path) = ScopePath::parse_plain(path) else { return false };
        path.directory = true;
        self.paths_of(&["storage.create", "storage.modify"])
            .any(|scope| scope.covers(&path) || scope.components.starts_with(&path.components))
    }

    fn paths_of<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a ScopePath> {
        let named = self.capabilities.iter().filter(|capability| names.contains(&capability.name.as_str()));
        named.filter_map(|capability| capability.path.as_ref())
    }
}

impl ScopePath {
    /// A path with percent escapes. None: it is not absolute, not normal, or its escapes are wrong.
    fn parse(text: &str) -> Option<Self> {
        Self::parse_plain(&decode_path(text)?)
    }

    fn parse_plain(text: &str) -> Option<Self> {
        let rest = text.strip_prefix('/')?;
        if text.chars().any(char::is_control) {
            return None;
        }
        if rest.is_empty() {
            return Some(ScopePath { components: Vec::new(), directory: true });
        }
        let (rest, directory) = match rest.strip_suffix('/') {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let components: Vec<String> = rest.split('/').map(str::to_owned).collect();
        let normal = components.iter().all(|part| !matches!(part.as_str(), "" | "." | ".."));
        normal.then_some(ScopePath { components, directory })
    }

    /// Whether `path` is this one or lies below. A scope for a directory does not cover a file of that name.
    fn covers(&self, path: &ScopePath) -> bool {
        let same = self.components.len() == path.components.len();
        path.components.starts_with(&self.components) && !(same && self.directory && !path.directory)
    }
}

fn is_wlcg(name: &str) -> bool {
    matches!(
        name,
        "storage.read"
            | "storage.create"
            | "storage.modify"
            | "storage.stage"
            | "storage.poll"
            | "compute.read"
            | "compute.modify"
            | "compute.create"
            | "compute.cancel"
    )
}

/// Decodes the path of a scope. Escaped slashes are refused, because they would move the border of a
/// component, and so are escaped NULs.
fn decode_path(text: &str) -> Option<String> {
    let is_refused =
        |rest: &str| rest.get(..2).is_some_and(|digits| digits.eq_ignore_ascii_case("2f") || digits == "00");
    if text.split('%').skip(1).any(is_refused) { None } else { percent::decode(text) }
}

#[cfg(test)]
mod tests {
    use super::StorageAction::*;
    use super::*;
    use proptest::prelude::*;

    fn scopes(text: &str) -> Scopes {
        Scopes::wlcg(text).unwrap()
    }

    #[test]
    fn paths_match_at_the_borders_of_components() {
        let read = scopes("openid storage.read:/foo compute.create");
        for (path, allowed) in [
            ("/foo", true),
            ("/foo/", true),
            ("/foo/x/y", true),
            ("/foobar", false),
            ("/", false),
            ("/fo", false),
            ("/foo/../bar", false),
            ("/foo//x", false),
            ("/foo/./x", false),
            ("foo/x", false),
            ("", false),
        ] {
            assert_eq!(read.allows(Read, path), allowed, "{path}");
        }
        assert!(read.has_scope("openid") && !read.has_scope("storage.read:/foo"));
        assert!(scopes("storage.read:/").allows(Read, "/anything/at all"));
    }

    #[test]
    fn each_capability_allows_what_the_profile_says() {
        let table = [
            ("storage.read:/a", [true, true, false, false, false, false]),
            ("storage.create:/a", [false, true, true, false, false, false]),
            ("storage.modify:/a", [false, true, true, true, false, false]),
            ("storage.stage:/a", [false, true, false, false, true, true]),
            ("storage.poll:/a", [false, false, false, false, false, true]),
            ("compute.modify", [false; 6]),
        ];
        for (scope, expected) in table {
            let found =
                [Read, Stat, Create, Modify, Stage, Poll].map(|action| scopes(scope).allows(action, "/a/f"));
            assert_eq!(found, expected, "{scope}");
        }
    }

    #[test]
    fn directories_and_what_leads_to_them() {
        let create = scopes("storage.create:/foo/bar/");
        assert!(create.allows(Create, "/foo/bar/f") && create.allows(Create, "/foo/bar/"));
        assert!(!create.allows(Create, "/foo/bar"), "a scope for a directory makes no file of its name");
        assert!(create.allows_directory("/foo") && create.allows_directory("/foo/bar"));
        assert!(create.allows_directory("/foo/bar/deep/er") && !create.allows_directory("/fo"));
        assert!(!create.allows(Create, "/foo/f"), "what leads there holds no file");
        assert!(!scopes("storage.read:/foo").allows_directory("/foo"));
    }

    #[test]
    fn scopes_that_could_mean_more_than_they_say_are_refused() {
        for scope in [
            "storage.read",
            "storage.read:",
            "storage.read:foo",
            "storage.read:/foo/..",
            "storage.read:/foo/../bar",
            "storage.modify:/./a",
            "storage.create://a",
            "storage.read:/a%2fb",
            "storage.read:/%2e%2e/b",
            "storage.read:/a%0",
            "storage.read:/a%zz",
            "storage.read:/a%00",
            "storage.read:/a\u{1}",
            "storage.read:/a%ff",
        ] {
            assert!(Scopes::wlcg(scope).is_err(), "{scope}");
        }
        assert!(Scopes::wlcg(&"x ".repeat(SCOPES_MAX + 1)).is_err());
        assert!(scopes("storage.read:/a%20b").allows(Read, "/a b/c"));
    }

    #[test]
    fn scitokens_have_their_own_names() {
        let scopes = Scopes::scitoken("read:/a write:/b/c queue").unwrap();
        assert!(
            scopes.allows(Read, "/a/x") && !scopes.allows(Modify, "/a/x") && !scopes.allows(Read, "/b/c")
        );
        assert!(
            scopes.allows(Modify, "/b/c/d") && scopes.allows(Create, "/b/c/d") && scopes.has_scope("queue")
        );
        assert!(Scopes::scitoken("read").unwrap().allows(Read, "/x"));
        assert!(Scopes::wlcg("read:/a").unwrap().capabilities.is_empty());
    }

    proptest! {
        #[test]
        fn what_is_allowed_lies_below(text in "[/.a-c%2e]{0,8}", path in "(/[a-c.]{0,2}){0,5}/?") {
            let Ok(scopes) = Scopes::wlcg(&format!("storage.read:{text}")) else { return Ok(()) };
            if scopes.allows(Read, &path) {
                prop_assert!(!path.split('/').any(|part| part == ".."));
                let below = decode_path(&text).unwrap();
                let below = below.trim_end_matches('/');
                prop_assert!(path == below || path.starts_with(&format!("{below}/")), "{} {}", text, path);
            }
        }

        #[test]
        fn nothing_panics(text in ".{0,60}") {
            let _ = (Scopes::wlcg(&text), Scopes::scitoken(&text));
        }
    }
}
