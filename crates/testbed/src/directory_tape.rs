//! A tape system that is a directory: the site's commands are one script.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::SiteOptions;

/// `VERB DISK TAPE PATH…`. Each run is noted, and what it is asked for; nothing is staged before `TAPE.go` is
/// there. A file gets its name when it is whole: two runs may be at work on one, or somebody look for it.
const SCRIPT: &str = r#"#!/bin/sh
verb=$1 disk=$2 tape=$3; shift 3
echo "$verb" >> "$tape.runs"
if test "$verb" = stage; then until test -e "$tape.go"; do sleep 0.05; done; fi
for path; do
    copy=$tape/${path#"$disk"/}
    echo "$verb ${path#"$disk"/} $LONGHAUL_METADATA" >> "$tape.said"
    case $verb in
    stage) cp "$copy" "$path.part.$$" && mv "$path.part.$$" "$path" || exit 1 ;;
    migrate) mkdir -p "$(dirname "$copy")" && cp "$path" "$copy.$$" && mv "$copy.$$" "$copy" || exit 1 ;;
    remove) truncate -s "$(stat -c %s "$copy")" "$path.stub" && mv "$path.stub" "$path" || exit 1 ;;
    delete) rm -f "$copy" ;;
    locality)
        here= there=
        test -e "$path" && test "$(stat -c %b "$path")" -gt 0 && here=1
        test -e "$copy" && there=1
        case $here-$there in
        1-1) echo DISK_AND_TAPE ;; 1-) echo DISK ;; -1) echo TAPE ;; *) echo NONE ;;
        esac ;;
    esac
done
"#;

/// The disk in front of a tape, and the tape.
pub struct DirectoryTape {
    pub disk: PathBuf,
    pub tape: PathBuf,
    script: PathBuf,
}

impl DirectoryTape {
    /// An empty one below a directory.
    pub fn new(below: &Path) -> DirectoryTape {
        let [disk, tape, script] = ["tape-disk", "tape", "tape.sh"].map(|name| below.join(name));
        fs::write(&script, SCRIPT).unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        [&disk, &tape].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
        DirectoryTape { disk, tape, script }
    }

    /// A site whose storage it is. `settings` are further lines of the table of the tape.
    pub fn site(&self, name: &str, settings: &str) -> SiteOptions {
        let DirectoryTape { disk, tape, script } = self;
        let command = |verb: &str| format!("{verb} = [{script:?}, {verb:?}, {disk:?}, {tape:?}]\n");
        let commands: String = ["stage", "locality", "migrate", "remove", "delete"].map(command).concat();
        SiteOptions {
            root: Some(disk.clone()),
            storage_settings: format!("[agent.storages.tape]\n{commands}{settings}"),
            ..SiteOptions::new(name)
        }
    }

    /// A file of which the disk has a stub.
    pub fn put(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = path.as_ref();
        let (copy, stub) = (self.tape.join(path), self.disk.join(path));
        for file in [&copy, &stub] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
        }
        fs::write(copy, bytes).unwrap();
        let _ = fs::remove_file(&stub);
        fs::File::create(stub).unwrap().set_len(bytes.len() as u64).unwrap();
    }

    /// A file of the disk is only on tape from now on.
    pub fn take_off_disk(&self, path: impl AsRef<Path>) {
        let bytes = fs::read(self.disk.join(&path)).unwrap();
        self.put(path, &bytes);
    }

    pub fn is_stub(&self, path: impl AsRef<Path>) -> bool {
        fs::metadata(self.disk.join(path)).unwrap().blocks() == 0
    }

    /// Files may be staged from now on.
    pub fn let_go(&self) {
        fs::write(self.tape.with_extension("go"), "").unwrap();
    }

    /// How often a command was run.
    pub fn runs(&self, verb: &str) -> usize {
        let runs = fs::read_to_string(self.tape.with_extension("runs")).unwrap_or_default();
        runs.lines().filter(|line| *line == verb).count()
    }

    /// What the commands were asked for, and with which metadata.
    pub fn said(&self) -> String {
        fs::read_to_string(self.tape.with_extension("said")).unwrap_or_default()
    }
}
