//! A tape that is a directory: scripts copy files from it and to it.

use super::*;
use crate::config::StorageConfig;
use crate::config::tape::TapeConfig;
use longhaul_doors::StageState;
use longhaul_testkit::until_met;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};

/// `DISK TAPE` come before the paths. A file named `wait` is not staged before `TAPE/go` exists.
const SCRIPT: &str = r#"
verb=$1 disk=$2 tape=$3; shift 3
for path; do
    name=${path#"$disk"/}
    echo "$verb $name" >> "$tape.said"
    case $verb in
    stage)
        test -e "$tape/$name" || { echo "no such volume" >&2; exit 4; }
        case $name in wait*) until test -e "$tape/go"; do sleep 0.02; done ;; esac
        cp "$tape/$name" "$path.part" && mv "$path.part" "$path" ;;
    migrate) cp "$path" "$tape/$name" ;;
    remove) truncate -s "$(stat -c %s "$tape/$name")" "$path.stub" && mv "$path.stub" "$path" ;;
    locality)
        on_disk= on_tape=
        test -e "$path" && test "$(stat -c %b "$path")" -gt 0 && on_disk=1
        test -e "$tape/$name" && on_tape=1
        case $on_disk$on_tape in
            11) echo DISK_AND_TAPE ;;
            1) test $on_disk && echo DISK || echo TAPE ;;
            *) echo NONE ;;
        esac ;;
    esac
done
"#;

pub(in crate::tape) struct TapeSite {
    folder: tempfile::TempDir,
    clock_us: Arc<AtomicI64>,
    config: TapeConfig,
}

impl TapeSite {
    pub(in crate::tape) fn new() -> TapeSite {
        let folder = tempfile::tempdir().unwrap();
        let (disk, tape) = (folder.path().join("disk"), folder.path().join("tape"));
        fs::create_dir(&disk).unwrap();
        fs::create_dir(&tape).unwrap();
        let (disk, tape) = (disk.to_str().unwrap(), tape.to_str().unwrap());
        let command =
            |verb: &str| ["/bin/sh", "-c", SCRIPT, "tape", verb, disk, tape].map(str::to_owned).to_vec();
        let config = TapeConfig {
            locality: command("locality"),
            migrate: command("migrate"),
            remove: command("remove"),
            timeout_s: 60,
            pin_s: 100,
            migrate_after_s: 10,
            ..TapeConfig::new(command("stage"))
        };
        config.check().unwrap();
        TapeSite { clock_us: Arc::new(AtomicI64::new(1_760_000_000_000_000)), folder, config }
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.folder.path().join("disk").join(name)
    }

    fn tape(&self, name: &str) -> PathBuf {
        self.folder.path().join("tape").join(name)
    }

    pub(in crate::tape) fn put_on_tape(&self, name: &str) {
        fs::write(self.tape(name), vec![b'x'; 5_000]).unwrap();
        fs::File::create(self.disk(name)).unwrap().set_len(5_000).unwrap();
    }

    pub(in crate::tape) fn said(&self, verb: &str) -> Vec<String> {
        let said = fs::read_to_string(self.folder.path().join("tape.said")).unwrap_or_default();
        let mut said: Vec<String> =
            said.lines().filter_map(|line| Some(line.strip_prefix(verb)?.trim().to_owned())).collect();
        said.sort();
        said
    }

    pub(in crate::tape) fn open(&self) -> Arc<TapeDriver> {
        let storage = StorageConfig::new("alpha".parse().unwrap(), self.folder.path().join("disk"));
        let site = Arc::new(TapeSystem::open(&storage, &self.config).unwrap());
        let time = self.clock_us.clone();
        let clock = ServiceClock::new(Arc::new(move || Timestamp(time.load(Ordering::SeqCst))), 0);
        Arc::new(TapeDriver::open(site, &self.folder.path().join("log"), clock).unwrap())
    }

    fn pass(&self, seconds: i64) {
        self.clock_us.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    pub(in crate::tape) fn is_stub(&self, name: &str) -> bool {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(self.disk(name)).unwrap().blocks() == 0
    }
}

fn wanted(path: &str) -> RequestedFile {
    RequestedFile { path: path.into(), lifetime: None, metadata: None }
}

fn states(driver: &TapeDriver, id: &str) -> Vec<StageState> {
    driver.report(id).unwrap().files.iter().map(|file| file.state).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_staged_pinned_and_removed() {
    let place = TapeSite::new();
    for name in ["a", "b"] {
        place.put_on_tape(name);
    }
    fs::write(place.disk("here"), vec![b'h'; 5_000]).unwrap();
    fs::File::create(place.disk("broken")).unwrap().set_len(5_000).unwrap();
    let driver = place.open();
    let running = tokio::spawn(driver.clone().run());
    let id = driver.stage(["a", "b", "here", "broken"].map(wanted).to_vec()).unwrap();
    let ended = || driver.report(&id).unwrap().files.iter().all(|file| file.finished.is_some());
    until_met("the end of a request", ended).await;
    use StageState::{Completed, Failed};
    assert_eq!(states(&driver, &id), [Completed, Completed, Completed, Failed]);
    let why = driver.report(&id).unwrap().files[3].error.clone().unwrap();
    assert_eq!(why, "file does not exist");
    assert_eq!(fs::read(place.disk("a")).unwrap(), vec![b'x'; 5_000]);
    assert_eq!(place.said("stage"), ["a", "b"], "what is here is not brought");

    // Let go, and its time over: the disk forgets what the tape has, and nothing else.
    driver.release(&id, &["a".into(), "here".into()]).unwrap();
    until_met("a removal", || place.is_stub("a")).await;
    assert!(!place.is_stub("b"));
    place.pass(101);
    until_met("the end of a pin", || place.is_stub("b")).await;
    until_met("the end of all pins", || driver.lock_state().removals.is_empty()).await;
    assert_eq!(place.said("remove"), ["a", "b"]);
    assert_eq!(fs::read(place.disk("here")).unwrap(), vec![b'h'; 5_000]);
    driver.end(&id).unwrap();
    assert!(driver.report(&id).is_none());
    running.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_survive_and_unwanted_commands_end() {
    let place = TapeSite::new();
    for name in ["wait1", "wait2"] {
        place.put_on_tape(name);
    }
    let driver = place.open();
    let running = tokio::spawn(driver.clone().run());
    let id = driver.stage(["wait1", "wait2"].map(wanted).to_vec()).unwrap();
    until_met("the site's commands", || place.said("stage").len() == 2).await;
    assert_eq!(states(&driver, &id), [StageState::Started; 2]);
    // A kill: the commands end with it, and the next run begins them again.
    running.abort();
    let _ = running.await;
    drop(driver);
    let driver = place.open();
    assert_eq!(states(&driver, &id), [StageState::Submitted; 2]);
    let running = tokio::spawn(driver.clone().run());
    until_met("the site's commands", || place.said("stage").len() == 4).await;
    driver.cancel(&id, &["wait1".into()]).unwrap();
    assert_eq!(states(&driver, &id)[0], StageState::Cancelled);
    until_met("the end of a command", || driver.staging.available_permits() == 9).await;
    fs::write(place.tape("go"), b"").unwrap();
    until_met("a file", || states(&driver, &id)[1] == StageState::Completed).await;
    assert!(place.is_stub("wait1"));
    // A log that is written anew says the same.
    {
        let mut state = driver.lock_state();
        state.rewrite_at = 0;
        state.rewrite().unwrap();
    }
    let before = driver.report(&id).unwrap();
    running.abort();
    let _ = running.await;
    drop(driver);
    let again = place.open().report(&id).unwrap();
    let plain = |report: Report| {
        report.files.into_iter().map(|file| (file.path, file.state, file.pinned, file.finished))
    };
    assert!(plain(before).eq(plain(again)));
}

#[tokio::test(flavor = "multi_thread")]
async fn arrived_files_are_migrated() {
    let place = TapeSite::new();
    let driver = place.open();
    let running = tokio::spawn(driver.clone().run());
    let come = |name: &str| {
        driver.arriving(name).unwrap();
        fs::write(place.disk(name), name.repeat(1_000)).unwrap();
        driver.arrived(name);
    };
    come("one");
    come(".longhaul-1-pull");
    driver.arriving("given-up").unwrap();
    driver.arrived("given-up");
    driver.queue_migration(&["two".parse().unwrap()]).unwrap();
    fs::write(place.disk("two"), b"by the engine").unwrap();
    // The agent dies while one gets its name.
    driver.arriving("three").unwrap();
    running.abort();
    let _ = running.await;
    fs::write(place.disk("three"), vec![3; 3_000]).unwrap();
    drop(driver);
    let driver = place.open();
    let running = tokio::spawn(driver.clone().run());
    until_met("the tape", || place.tape("three").exists() && place.tape("one").exists()).await;
    until_met("all of them", || driver.lock_state().tape.arrivals() == 0).await;
    assert_eq!(fs::read(place.tape("two")).unwrap(), b"by the engine");
    assert_eq!(place.said("migrate"), ["one", "three", "two"]);
    let found = driver.site.locate(&["one".into(), "given-up".into()]).await;
    assert_eq!(found, [Locality::DiskAndTape, Locality::None]);
    running.abort();
}

#[test]
fn the_disk_has_the_last_word() {
    let ended = |code: i32, said: &str| {
        Ok(CommandExit { code: Some(code), stderr_tail: said.into(), ..CommandExit::default() })
    };
    let failed = |why: &str| End::Failed(why.to_owned());
    for (at, ended, end) in [
        (Locality::DiskAndTape, ended(3, ""), End::OnDisk),
        (Locality::Unavailable, ended(0, ""), End::OnDisk),
        (
            Locality::Tape,
            ended(0, ""),
            failed("the site's command ended well, and the file is not on disk (TAPE)"),
        ),
        (
            Locality::Tape,
            ended(4, "no such volume\n"),
            failed("the site's command does not bring it (exit code 4): no such volume"),
        ),
        (Locality::Unavailable, Err(Fault::new(FaultCode::HookRefused, "late")), failed("late")),
    ] {
        assert_eq!(stage_end(at, &ended), end);
    }
}
