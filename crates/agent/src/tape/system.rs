//! A site's tape system: its commands, and what the disk shows.
//!
//! ```text
//! stage|migrate|remove|delete WORDS… PATH…   exit code 0: done with all of them
//! locality WORDS… PATH…      a line per path: DISK, TAPE, DISK_AND_TAPE, LOST, NONE, UNAVAILABLE
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Lfn, Locality, NameRules, StorageName};
use longhaul_storage::NoLinks;
use rustix::fs::FileType;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::stage_queue::TapePlace;
use crate::command::{CommandExit, CommandSpec, run};
use crate::config::StorageConfig;
use crate::config::tape::TapeConfig;

/// Files of one `locality` command.
const LOCALITY_FILES_MAX: usize = 100;
/// Bytes of one line of its answer: the longest word with room for white space.
const LOCALITY_LINE_BYTES: usize = 32;
/// A file larger than its few sectors is a stub; some file systems count one sector for it.
const STUB_SECTORS: i64 = 1;
/// Smallest size of a stub: a smaller file may have all of its bytes in one sector.
const STUB_BYTES_MIN: i64 = 513;
/// The part of the disk for staged files. The rest is for what comes in and waits for its way to tape.
const BUFFER_PERCENT: u8 = 80;
/// Longest line about a place on tape.
const PLACE_LINE_BYTES: usize = 100;
/// Environment variable with the client's metadata for `stage`.
const METADATA_VARIABLE: &str = "LONGHAUL_METADATA";

/// What the disk has at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskState {
    Present,
    /// Name and size without the bytes.
    Stub,
    Absent,
    /// The disk cannot be read.
    Unknown,
}

/// The tape system behind one storage.
pub(crate) struct TapeSystem {
    pub(super) config: TapeConfig,
    pub(super) storage: StorageName,
    root: PathBuf,
    rules: NameRules,
    beneath: NoLinks,
    /// Quick commands at a time.
    quick_slots: Semaphore,
    /// Migrations that have ended since the start: a file that is deleted meanwhile may be on tape
    /// afterwards.
    migrations_ended: AtomicU64,
    runtime: Handle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Stage,
    Migrate,
    /// From the disk, of what the tape has.
    Remove,
    /// From the tape.
    Delete,
}

impl TapeSystem {
    /// Must be called within a runtime.
    pub(super) fn open(storage: &StorageConfig, config: &TapeConfig) -> Result<TapeSystem, Fault> {
        let failed = |why: String| {
            Fault::new(FaultCode::SourceUnreadable, format!("{}: {why}", storage.root.display()))
        };
        let runtime = Handle::try_current()
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
        Ok(TapeSystem {
            config: config.clone(),
            storage: storage.name.clone(),
            root: storage.root.clone(),
            rules: storage.name_rules(),
            beneath: NoLinks::open_root(&storage.root)
                .map_err(|error| failed(error.to_string()).with_source(error))?,
            quick_slots: Semaphore::new(config.at_once),
            migrations_ended: AtomicU64::new(0),
            runtime,
        })
    }

    pub(super) fn can(&self, verb: Verb) -> bool {
        !self.words(verb).is_empty()
    }

    fn words(&self, verb: Verb) -> &[String] {
        match verb {
            Verb::Stage => &self.config.stage,
            Verb::Migrate => &self.config.migrate,
            Verb::Remove => &self.config.remove,
            Verb::Delete => &self.config.delete,
        }
    }

    pub(super) fn knows_tape(&self) -> bool {
        !self.config.locality.is_empty()
    }

    pub(super) fn has_places(&self) -> bool {
        !self.config.place.is_empty()
    }

    /// What staged files may take up of the disk; everything if nobody says, and its size is not known.
    pub(super) fn buffer_bytes(&self) -> u64 {
        if let Some(bytes) = self.config.buffer_bytes {
            return bytes;
        }
        let Ok(disk) = rustix::fs::statvfs(&self.root) else { return u64::MAX };
        let bytes = u128::from(disk.f_blocks) * u128::from(disk.f_frsize);
        u64::try_from(bytes * u128::from(BUFFER_PERCENT) / 100).unwrap_or(u64::MAX)
    }

    /// The size of a file, also of one that is on tape only.
    pub(super) fn size_of(&self, path: &str) -> u64 {
        let found = self.beneath.stat(path.as_bytes());
        found.map_or(0, |found| u64::try_from(found.st_size).unwrap_or_default())
    }

    /// The path of a file of the catalog.
    pub(super) fn path_of(&self, lfn: &Lfn) -> Option<String> {
        self.rules.to_pfn(&self.storage, lfn).ok().map(|at| at.path().to_owned())
    }

    pub(super) fn disk_state(&self, path: &str) -> DiskState {
        match self.beneath.stat(path.as_bytes()) {
            Ok(found) => match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile
                    if found.st_blocks <= STUB_SECTORS && found.st_size >= STUB_BYTES_MIN =>
                {
                    DiskState::Stub
                }
                // A link's target is present, or the storage says that it is not.
                FileType::RegularFile | FileType::Symlink => DiskState::Present,
                _ => DiskState::Absent,
            },
            Err(Errno::NOENT | Errno::NOTDIR) => DiskState::Absent,
            // A directory of the path is a link.
            Err(Errno::LOOP) => DiskState::Present,
            Err(_) => DiskState::Unknown,
        }
    }

    /// Runs a command on these paths.
    pub(super) async fn run(
        &self,
        verb: Verb,
        paths: &[String],
        metadata: Option<&str>,
    ) -> Result<CommandExit, Fault> {
        let limit = match verb {
            Verb::Stage | Verb::Migrate => self.config.tape_timeout_s,
            Verb::Remove | Verb::Delete => self.config.timeout_s,
        };
        let told = metadata.map(|text| [(METADATA_VARIABLE, text.to_owned())]);
        run(CommandSpec {
            program: self.words(verb),
            arguments: &self.absolute_paths(paths),
            environment: told.as_ref().map_or(&[], |told| told),
            timeout: Duration::from_secs(limit.into()),
            ..CommandSpec::default()
        })
        .await
    }

    /// Runs a command that does all or says why not.
    pub(super) async fn complete(&self, verb: Verb, paths: &[String]) -> Result<(), String> {
        match self.run(verb, paths, None).await {
            Ok(ended) if ended.code == Some(0) => Ok(()),
            Ok(ended) => Err(ended.describe()),
            Err(fault) => Err(fault.detail),
        }
    }

    /// Migrates files. One that was deleted meanwhile leaves the tape again.
    pub(super) async fn migrate(self: &Arc<TapeSystem>, paths: &[String]) -> Result<(), String> {
        let ended = self.complete(Verb::Migrate, paths).await;
        self.migrations_ended.fetch_add(1, Ordering::SeqCst);
        let (system, mut gone) = (self.clone(), paths.to_vec());
        let look = move || {
            gone.retain(|path| system.disk_state(path) == DiskState::Absent);
            gone
        };
        for path in &tokio::task::spawn_blocking(look).await.unwrap_or_default() {
            if let Err(fault) = self.delete_from_tape(path).await {
                tracing::warn!(storage = %self.storage, fault = %fault.chain(), "a file that was deleted \
                    while it went to tape may be there");
            }
        }
        ended
    }

    /// Deletes a file by `unlink`, and what the tape has of it before: the name is there until the tape has
    /// let go of it. Not to be called from the runtime's own threads.
    ///
    /// # Errors
    /// `HookRefused` if the tape system keeps the file: then its name stays; and those of `unlink`.
    pub(super) fn delete_with(
        self: &Arc<TapeSystem>,
        path: &str,
        unlink: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let before = self.migrations_ended.load(Ordering::SeqCst);
        self.runtime.block_on(self.delete_from_tape(path))?;
        unlink()?;
        // A migration that ends from now on finds that the name is gone.
        if self.migrations_ended.load(Ordering::SeqCst) != before {
            self.runtime.block_on(self.delete_from_tape(path))?;
        }
        Ok(())
    }

    async fn delete_from_tape(self: &Arc<TapeSystem>, path: &str) -> Result<(), Fault> {
        let paths = [path.to_owned()];
        if self.can(Verb::Delete) {
            let _slot = self.quick_slots.acquire().await;
            let ended = self.run(Verb::Delete, &paths, None).await?;
            return match ended.code {
                Some(0) => Ok(()),
                _ => Err(kept_on_tape(path, &format!("tape.delete does not delete it {}", ended.describe()))),
            };
        }
        // The tape system sees by itself which names are gone from its disk.
        if !self.knows_tape() {
            return Ok(());
        }
        match self.locate(&paths).await.first() {
            Some(Locality::Unavailable) | None => {
                Err(kept_on_tape(path, "tape.locality does not tell whether it is there"))
            }
            Some(at) if at.is_on_tape() => {
                Err(kept_on_tape(path, "tape.delete of the storage names no command (docs/howto/tape.md)"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Absolute paths, as the site's programs know them.
    fn absolute_paths(&self, paths: &[String]) -> Vec<String> {
        paths.iter().map(|path| self.root.join(path).to_string_lossy().into_owned()).collect()
    }

    /// Localities of paths, in their order.
    pub(super) async fn locate(self: &Arc<TapeSystem>, paths: &[String]) -> Vec<Locality> {
        if !self.knows_tape() {
            let (system, paths) = (self.clone(), paths.to_vec());
            let count = paths.len();
            let looked = tokio::task::spawn_blocking(move || {
                paths.iter().map(|path| system.locality_on_disk(path)).collect()
            });
            return looked.await.unwrap_or_else(|_| vec![Locality::Unavailable; count]);
        }
        let query =
            |system: Arc<TapeSystem>, bulk: Vec<String>| async move { system.query_locality(&bulk).await };
        self.query_in_bulk(paths, Locality::Unavailable, query).await
    }

    /// Asks about all paths, in commands of [`LOCALITY_FILES_MAX`]; the answers are in their order.
    async fn query_in_bulk<T, F>(
        self: &Arc<TapeSystem>,
        paths: &[String],
        unknown: T,
        query: impl Fn(Arc<TapeSystem>, Vec<String>) -> F,
    ) -> Vec<T>
    where
        T: Clone + Send + 'static,
        F: Future<Output = Vec<T>> + Send + 'static,
    {
        let mut asked = JoinSet::new();
        for (number, bulk) in paths.chunks(LOCALITY_FILES_MAX).enumerate() {
            let answer = query(self.clone(), bulk.to_vec());
            asked.spawn(async move { (number, answer.await) });
        }
        let mut found = vec![unknown; paths.len()];
        while let Some(answer) = asked.join_next().await {
            let Ok((number, answers)) = answer else { continue };
            let from = found.iter_mut().skip(number * LOCALITY_FILES_MAX);
            from.zip(answers).for_each(|(found, answer)| *found = answer);
        }
        found
    }

    /// The same, blocking. Not to be called from the runtime's own threads.
    pub(super) fn locate_blocking(self: &Arc<TapeSystem>, paths: &[String]) -> Vec<Locality> {
        self.runtime.block_on(self.locate(paths))
    }

    /// Locality as far as the disk shows it.
    fn locality_on_disk(&self, path: &str) -> Locality {
        match self.disk_state(path) {
            DiskState::Present => Locality::Disk,
            DiskState::Stub => Locality::Tape,
            DiskState::Absent => Locality::None,
            DiskState::Unknown => Locality::Unavailable,
        }
    }

    async fn query_locality(&self, paths: &[String]) -> Vec<Locality> {
        match self.query_paths(&self.config.locality, paths, LOCALITY_LINE_BYTES).await {
            Ok(text) => parse_localities(&text, paths.len()),
            Err(why) => {
                tracing::warn!(storage = %self.storage, why, "localities could not be queried");
                vec![Locality::Unavailable; paths.len()]
            }
        }
    }

    /// Where files lie on tape, in their order; none where that is not known.
    pub(super) async fn places(self: &Arc<TapeSystem>, paths: &[String]) -> Vec<Option<TapePlace>> {
        let query = |system: Arc<TapeSystem>, bulk: Vec<String>| async move {
            match system.query_paths(&system.config.place, &bulk, PLACE_LINE_BYTES).await {
                Ok(text) => parse_places(&text, bulk.len()),
                Err(why) => {
                    tracing::warn!(storage = %system.storage, why, "places on tape could not be queried");
                    vec![None; bulk.len()]
                }
            }
        };
        self.query_in_bulk(paths, None, query).await
    }

    /// What a quick command writes about these paths.
    async fn query_paths(
        &self,
        program: &[String],
        paths: &[String],
        line_bytes: usize,
    ) -> Result<String, String> {
        let _slot = self.quick_slots.acquire().await;
        let ended = run(CommandSpec {
            program,
            arguments: &self.absolute_paths(paths),
            stdout_bytes_max: paths.len() * line_bytes,
            timeout: Duration::from_secs(self.config.timeout_s.into()),
            ..CommandSpec::default()
        })
        .await;
        match ended {
            Ok(ended) if ended.code == Some(0) => Ok(ended.stdout),
            Ok(ended) => Err(ended.describe()),
            Err(fault) => Err(fault.detail.to_string()),
        }
    }
}

fn kept_on_tape(path: &str, why: &str) -> Fault {
    Fault::new(FaultCode::HookRefused, format!("the tape may have {path}, and {why}"))
}

/// Parses one word a line; a missing or unknown word is `Unavailable`.
fn parse_localities(text: &str, count: usize) -> Vec<Locality> {
    let mut lines = text.lines();
    let word = |line: &str| Locality::parse(line.trim());
    (0..count).map(|_| lines.next().and_then(word).unwrap_or(Locality::Unavailable)).collect()
}

/// Parses a cartridge and a position a line: `V01234 17`. A line without a number has the position 0; a
/// missing or empty one tells nothing.
fn parse_places(text: &str, count: usize) -> Vec<Option<TapePlace>> {
    let mut lines = text.lines();
    let place = |line: &str| {
        let mut words = line.split_whitespace();
        let cartridge = words.next()?.into();
        let position = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
        Some(TapePlace { cartridge, position })
    };
    (0..count).map(|_| lines.next().and_then(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn system(root: &std::path::Path, config: TapeConfig) -> Arc<TapeSystem> {
        let storage = StorageConfig::new("alpha".parse().unwrap(), root);
        Arc::new(TapeSystem::open(&storage, &config).unwrap())
    }

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script, "tape"].map(str::to_owned).to_vec()
    }

    #[tokio::test]
    async fn without_a_command_the_disk_shows_stubs() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("there"), vec![7; 10_000]).unwrap();
        fs::write(root.join("empty"), b"").unwrap();
        fs::File::create(root.join("stub")).unwrap().set_len(10_000).unwrap();
        fs::create_dir(root.join("folder")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("link")).unwrap();
        let system = system(root, TapeConfig::new(shell("exit 0")));
        let paths = ["there", "stub", "empty", "missing", "folder", "there/x"].map(str::to_owned);
        use Locality::{Disk, None, Tape};
        assert_eq!(system.locate(&paths).await, [Disk, Tape, Disk, None, None, None]);
        assert_eq!(system.disk_state("link"), DiskState::Present);
    }

    #[tokio::test]
    async fn localities_are_queried_in_bulk_and_missing_answers_are_unavailable() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            r#"echo $# >> "$0"; for f; do case $f in */f7) echo no word;; */f*) echo tape;; esac; done"#;
        let said = folder.path().join("said");
        let mut locality = shell(script);
        locality[3] = said.to_str().unwrap().to_owned();
        let system = system(folder.path(), TapeConfig { locality, ..TapeConfig::new(shell("exit 0")) });
        let paths: Vec<String> = (0..250).map(|n| format!("f{n}")).collect();
        let found = system.locate(&paths).await;
        assert_eq!((found[7], found[8], found[249]), (Locality::Unavailable, Locality::Tape, Locality::Tape));
        let mut bulks: Vec<String> = fs::read_to_string(&said).unwrap().lines().map(str::to_owned).collect();
        bulks.sort();
        assert_eq!(bulks, ["100", "100", "50"]);

        let locality = shell("echo DISK; echo no >&2; exit 3");
        let broken = self::system(folder.path(), TapeConfig { locality, ..TapeConfig::new(shell("exit 0")) });
        assert_eq!(broken.locate(&paths[..2]).await, [Locality::Unavailable; 2]);
    }

    #[tokio::test]
    async fn commands_get_absolute_paths_and_the_clients_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let system =
            system(folder.path(), TapeConfig::new(shell("echo \"$1 $2 $LONGHAUL_METADATA\" >&2; exit 4")));
        let ended = system.run(Verb::Stage, &["a b".into(), "c".into()], Some("{\"n\":1}")).await.unwrap();
        let root = folder.path().display();
        assert_eq!(ended.describe(), format!("(exit code 4): {root}/a b {root}/c {{\"n\":1}}"));
        assert!(system.can(Verb::Stage) && !system.can(Verb::Remove));
    }

    #[tokio::test]
    async fn places_are_a_cartridge_and_a_position() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            r#"for f; do case $f in */f7) echo;; */f8) echo V2;; *) echo "V1 ${f##*f}";; esac; done"#;
        let told =
            system(folder.path(), TapeConfig { place: shell(script), ..TapeConfig::new(shell("exit 0")) });
        let paths: Vec<String> = (0..250).map(|n| format!("f{n}")).collect();
        let places = told.places(&paths).await;
        let place = |cartridge: &str, position| Some(TapePlace { cartridge: cartridge.into(), position });
        assert_eq!((places.len(), &places[249]), (250, &place("V1", 249)));
        assert_eq!((&places[7], &places[8]), (&None, &place("V2", 0)));
        let broken = TapeConfig { place: shell("echo V1 1; exit 3"), ..TapeConfig::new(shell("exit 0")) };
        assert_eq!(system(folder.path(), broken).places(&paths[..2]).await, [None, None]);
    }

    /// A system whose `delete` notes each run, and the file in which it does.
    fn noting_deletions(root: &std::path::Path, migrate: &str) -> (Arc<TapeSystem>, std::path::PathBuf) {
        let said = root.join("deleted");
        let mut delete = shell(r#"echo "$1" >> "$0""#);
        delete[3] = said.to_str().unwrap().to_owned();
        let config = TapeConfig { delete, migrate: shell(migrate), ..TapeConfig::new(shell("exit 0")) };
        (system(root, config), said)
    }

    fn lines(file: &std::path::Path) -> usize {
        fs::read_to_string(file).unwrap_or_default().lines().count()
    }

    #[test]
    fn a_file_that_is_deleted_while_it_goes_to_tape_leaves_it_again() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        let folder = tempfile::tempdir().unwrap();
        let path = ["f1".to_owned()];
        fs::write(folder.path().join("f1"), b"some").unwrap();
        // Its name goes while the command runs.
        let (going, said) = noting_deletions(folder.path(), r#"rm "$1""#);
        assert_eq!(runtime.block_on(going.migrate(&path)), Ok(()));
        assert_eq!(lines(&said), 1);

        // The command ends between the deletion from tape and that of the name.
        fs::write(folder.path().join("f1"), b"some").unwrap();
        let (staying, said) = noting_deletions(folder.path(), "exit 0");
        assert_eq!(runtime.block_on(staying.migrate(&path)), Ok(()));
        assert_eq!(lines(&said), 1, "what stays on disk stays on tape");
        let unlink = || {
            runtime.block_on(staying.migrate(&path)).unwrap();
            fs::remove_file(folder.path().join("f1")).unwrap();
            Ok(())
        };
        assert_eq!(staying.delete_with("f1", unlink), Ok(()));
        assert_eq!(lines(&said), 3);
    }

    proptest! {
        #[test]
        fn there_is_one_place_for_each_file(
            text in "([A-Z0-9]{1,3}|[ \t\n]|-?[0-9]{1,30}){0,20}",
            count in 0usize..10,
        ) {
            prop_assert_eq!(parse_places(&text, count).len(), count);
        }

        #[test]
        fn there_is_one_answer_for_each_file(
            text in "(DISK|TAPE|tape | |\n|[A-Z_]{0,5}){0,20}",
            count in 0usize..10,
        ) {
            prop_assert_eq!(parse_localities(&text, count).len(), count);
        }
    }
}
