//! Where sources are placed, by rsync's rule: `SRC` becomes `TARGET/SRC`, the contents of `SRC/` go into
//! `TARGET`.

use std::collections::BTreeSet;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, Lfn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
}

/// One source as it was named, and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// For messages; without secrets.
    pub shown: String,
    /// Its last component; none for a root, `.` and `..`, of which only the contents can be meant.
    pub name: Option<String>,
    /// It was written with a trailing slash.
    pub contents: bool,
    pub kind: Kind,
}

impl Source {
    /// Parses `path` as written, without the part of a URL before it.
    pub fn of_path(shown: impl Into<String>, path: &str, kind: Kind) -> Source {
        let contents = path.ends_with('/');
        let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let name = (!matches!(last, "" | "." | "..")).then(|| last.to_owned());
        Source { shown: shown.into(), name, contents, kind }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    Missing,
    File,
    Directory,
}

/// The target as it was named, and what exists there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// For messages; without secrets.
    pub shown: String,
    pub name: Option<String>,
    /// A directory is meant, since it was written with a trailing slash.
    pub directory_meant: bool,
    pub kind: TargetKind,
}

impl Target {
    /// Parses `path` as written, without the part of a URL before it.
    pub fn of_path(shown: impl Into<String>, path: &str, kind: TargetKind) -> Target {
        let Source { shown, name, contents, .. } = Source::of_path(shown, path, Kind::Directory);
        let directory_meant = contents || name.is_none();
        Target { shown, name, directory_meant, kind }
    }
}

/// The directory that all placements are relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetRoot {
    /// The target is a directory; `make` it (but not its parents) if it is missing.
    Target { make: bool },
    /// The target is the name of a file in this directory, which must exist.
    Parent,
}

/// Where one source is placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Paths of the source go beneath this directory, or directly beneath the root.
    Beneath(Option<Lfn>),
    /// A single file gets this name.
    As(Lfn),
}

impl Placement {
    /// The path from the root of what has the path `relative` in the source (for a single file: its name).
    pub fn path(&self, relative: &Lfn) -> Result<Lfn, Fault> {
        match self {
            Placement::Beneath(None) => Ok(relative.clone()),
            Placement::Beneath(Some(directory)) => {
                Lfn::parse(&format!("{directory}/{relative}")).map_err(|error| {
                    Fault::new(FaultCode::BadName, format!("at the target: {error}")).with_source(error)
                })
            }
            Placement::As(name) => Ok(name.clone()),
        }
    }

    /// The prefix of the source's paths that filters see ([`crate::walk::WalkOptions::prefix`]).
    pub fn filter_prefix(&self) -> &str {
        match self {
            Placement::Beneath(Some(directory)) => directory.as_str(),
            Placement::Beneath(None) | Placement::As(_) => "",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placements {
    pub root: TargetRoot,
    /// One for each source, in order.
    pub placements: Vec<Placement>,
    /// Two sources may claim the same name, so [`super::Collisions`] must be checked.
    pub may_collide: bool,
}

/// Places every source, or says why that is not possible.
pub fn place_sources(sources: &[Source], target: &Target, recursive: bool) -> Result<Placements, Fault> {
    let refuse = |code, text: String| Err(Fault::new(code, text));
    for source in sources {
        let shown = &source.shown;
        if source.kind == Kind::Directory && !recursive {
            return refuse(FaultCode::BadRequest, format!("{shown} is a directory: add --recursive"));
        }
        if source.kind == Kind::File && source.contents {
            return refuse(FaultCode::BadRequest, format!("{shown} is a file: remove the trailing slash"));
        }
    }
    let shown = &target.shown;
    let single_file = match sources {
        [] => return refuse(FaultCode::BadRequest, "no source is given".to_owned()),
        [only] => only.kind == Kind::File,
        _ => false,
    };
    let root = match target.kind {
        TargetKind::Directory => TargetRoot::Target { make: false },
        TargetKind::File if target.directory_meant => {
            return refuse(FaultCode::NameClash, format!("{shown} is a file, not a directory"));
        }
        TargetKind::File if !single_file => {
            let first = sources.iter().find(|source| source.kind == Kind::Directory);
            let what = match first {
                Some(directory) => format!("the directory {}", directory.shown),
                None => format!("{} files", sources.len()),
            };
            return refuse(FaultCode::NameClash, format!("{shown} is a file and cannot take {what}"));
        }
        TargetKind::Missing if target.directory_meant || !single_file => TargetRoot::Target { make: true },
        TargetKind::File | TargetKind::Missing => TargetRoot::Parent,
    };
    let landings: Result<Vec<Placement>, Fault> = match root {
        TargetRoot::Parent => Ok(vec![Placement::As(component(target.name.as_deref(), shown)?)]),
        TargetRoot::Target { .. } => sources.iter().map(beneath).collect(),
    };
    Ok(Placements { root, placements: landings?, may_collide: may_collide(sources) })
}

fn beneath(source: &Source) -> Result<Placement, Fault> {
    if source.kind == Kind::File || source.contents || source.name.is_none() {
        return Ok(Placement::Beneath(None));
    }
    component(source.name.as_deref(), &source.shown).map(|name| Placement::Beneath(Some(name)))
}

fn component(name: Option<&str>, shown: &str) -> Result<Lfn, Fault> {
    let bad = |why: String| Fault::new(FaultCode::BadName, format!("{}: {why}", printable(shown)));
    let name = name.ok_or_else(|| bad("has no file name".to_owned()))?;
    Lfn::parse(name).map_err(|error| bad(error.to_string()).with_source(error))
}

/// Whether two sources could produce the same name. Sources with different first components never collide.
fn may_collide(sources: &[Source]) -> bool {
    if sources.len() < 2 {
        return false;
    }
    let mut seen = BTreeSet::new();
    sources.iter().any(|source| match &source.name {
        Some(name) if !source.contents => !seen.insert(name.as_str()),
        // Contents may have any name.
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(path: &str) -> Source {
        Source::of_path(path, path, Kind::File)
    }

    fn directory(path: &str) -> Source {
        Source::of_path(path, path, Kind::Directory)
    }

    fn target(path: &str, kind: TargetKind) -> Target {
        Target::of_path(path, path, kind)
    }

    fn where_to(source: Source, target: Target, relative: &str) -> (TargetRoot, String) {
        let landings = place_sources(&[source], &target, true).unwrap();
        let path = landings.placements[0].path(&relative.parse().unwrap()).unwrap();
        (landings.root, path.to_string())
    }

    #[test]
    fn the_slash_rule() {
        let there = TargetRoot::Target { make: false };
        let new = TargetRoot::Target { make: true };
        let parent = TargetRoot::Parent;
        let at = |text: &str| text.to_owned();
        use TargetKind::{Directory, File, Missing};
        for (source, kind, target_path, relative, root, path) in [
            (directory("a/run7"), Directory, "t", "x/f", there, "run7/x/f"),
            (directory("a/run7/"), Directory, "t", "x/f", there, "x/f"),
            (directory("a/run7"), Missing, "t", "f", new, "run7/f"),
            (directory("a/run7/"), Missing, "t", "f", new, "f"),
            (directory("."), Directory, "t/", "f", there, "f"),
            (directory("a/.."), Directory, "t/", "f", there, "f"),
            (directory("/"), Directory, "t/", "f", there, "f"),
            (file("a/f"), Directory, "t", "f", there, "f"),
            (file("a/f"), Missing, "t/g", "f", parent, "g"),
            (file("a/f"), Missing, "t/g/", "f", new, "f"),
            (file("a/f"), File, "t/g", "f", parent, "g"),
        ] {
            let said = format!("{source:?} to {target_path} ({kind:?})");
            assert_eq!(where_to(source, target(target_path, kind), relative), (root, at(path)), "{said}");
        }
    }

    #[test]
    fn several_sources_need_a_directory() {
        let both = [file("a/x"), file("b/y")];
        assert_eq!(
            place_sources(&both, &target("t", TargetKind::Missing), false).unwrap().root,
            TargetRoot::Target { make: true }
        );
        let fault = place_sources(&both, &target("t", TargetKind::File), false).unwrap_err();
        assert_eq!(fault.code, FaultCode::NameClash);
    }

    #[test]
    fn what_cannot_be_names_both() {
        let fault = place_sources(&[directory("a/d")], &target("t/f", TargetKind::File), true).unwrap_err();
        assert!(fault.detail.contains("a/d") && fault.detail.contains("t/f"), "{fault}");
        let fault =
            place_sources(&[directory("a/d")], &target("t", TargetKind::Directory), false).unwrap_err();
        assert!(fault.detail.contains("--recursive"), "{fault}");
        assert!(place_sources(&[file("a/f/")], &target("t", TargetKind::Directory), true).is_err());
        assert!(place_sources(&[file("a/f")], &target("t/", TargetKind::File), true).is_err());
        assert!(place_sources(&[], &target("t", TargetKind::Directory), true).is_err());
        let long = format!("t/{}", "x".repeat(300));
        assert_eq!(
            place_sources(&[file("f")], &target(&long, TargetKind::Missing), true).unwrap_err().code,
            FaultCode::BadName
        );
        let deep = Placement::Beneath(Some("d".parse().unwrap()));
        let path: Lfn = format!("{}x", "y/".repeat(511)).parse().unwrap();
        assert!(deep.path(&path).is_err(), "the combined path is too long");
    }

    #[test]
    fn sources_with_names_of_their_own_never_meet() {
        let may = |sources: &[Source]| {
            place_sources(sources, &target("t", TargetKind::Directory), true).unwrap().may_collide
        };
        assert!(!may(&[directory("a/x"), directory("a/y"), file("z")]));
        assert!(may(&[directory("a/x"), directory("b/x")]));
        assert!(may(&[directory("a/x"), file("b/x")]));
        assert!(may(&[directory("a/x/"), file("y")]));
        assert!(!may(&[directory("a/x/")]));
    }

    proptest! {
        /// Promise 9: every placement is beneath the root.
        #[test]
        fn nothing_lands_outside(
            source in "[./a]{0,8}",
            to in "[./a]{0,8}",
            is_file: bool,
            relative in "[a.]{1,3}(/[a.]{1,3})?",
        ) {
            let kind = if is_file { Kind::File } else { Kind::Directory };
            let Ok(relative) = relative.parse::<Lfn>() else { return Ok(()) };
            for kind_there in [TargetKind::Missing, TargetKind::File, TargetKind::Directory] {
                let source = Source::of_path("s", &source, kind);
                if let Ok(landings) = place_sources(&[source], &target(&to, kind_there), true) {
                    let path = landings.placements[0].path(&relative).unwrap();
                    prop_assert!(!path.as_str().split('/').any(|part| matches!(part, "" | "." | "..")));
                }
            }
        }
    }
}
