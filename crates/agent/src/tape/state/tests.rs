use super::*;
use proptest::prelude::*;

const PIN_LIFETIME: Duration = Duration::from_secs(100);
const PIN_LIFETIME_MAX: Duration = Duration::from_secs(1_000);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

fn wanted(path: &str, lifetime_s: Option<u64>) -> RequestedFile {
    RequestedFile { path: path.into(), lifetime: lifetime_s.map(Duration::from_secs), metadata: None }
}

impl TapeState {
    fn request(&mut self, id: &str, files: Vec<RequestedFile>, now: Timestamp) {
        let record = self.new_request(id, files, now, (PIN_LIFETIME, PIN_LIFETIME_MAX)).unwrap();
        self.apply(record);
    }

    fn apply_all(&mut self, records: impl IntoIterator<Item = Record>) {
        records.into_iter().for_each(|record| self.apply(record));
    }

    fn states(&self, id: &str, now: i64) -> Vec<(StageState, bool)> {
        let report = self.report(id, at(now)).unwrap();
        report.files.iter().map(|file| (file.state, file.pinned)).collect()
    }
}

fn paths(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|&path| path.to_owned()).collect()
}

#[test]
fn a_file_is_staged_once_for_all_and_pinned_for_the_longest() {
    use StageState::{Completed, Failed, Started, Submitted};
    let mut tape = TapeState::default();
    tape.request("1", vec![wanted("a", None), wanted("b", None)], at(0));
    tape.request("2", vec![wanted("a", Some(5_000))], at(1));
    assert_eq!(tape.states("1", 1), [(Submitted, false); 2]);
    assert_eq!(tape.next_stage(1, at(2), |_| true), Some((paths(&["a"]), None)));
    assert_eq!(tape.next_stage(5, at(2), |_| true), Some((paths(&["b"]), None)));
    assert_eq!(tape.next_stage(5, at(2), |_| true), None);
    assert_eq!(tape.states("2", 2), [(Started, false)]);
    let record = tape.staged("a", End::OnDisk, at(10));
    tape.apply_all(record);
    let record = tape.staged("b", End::Failed("no such volume".into()), at(11));
    tape.apply_all(record);
    tape.release_path("a", at(0));
    tape.release_path("b", at(0));
    assert_eq!(tape.states("1", 12), [(Completed, true), (Failed, false)]);
    assert_eq!(tape.report("1", at(12)).unwrap().files[1].error.as_deref(), Some("no such volume"));
    // The first pin ends: the other goes on, for no longer than anybody gets.
    let over = tape.take_expired_pins(at(110), true);
    assert_eq!(over.iter().map(|over| (&*over.path, over.last)).collect::<Vec<_>>(), [("a", false)]);
    tape.apply_all([Record::Spent { files: over[0].files.clone() }]);
    assert_eq!((tape.states("1", 110)[0], tape.states("2", 110)[0]), ((Completed, false), (Completed, true)));
    assert!(tape.take_expired_pins(at(1_009), true).is_empty());
    let over = tape.take_expired_pins(at(1_010), true);
    assert!(over[0].last && tape.take_expired_pins(at(1_010), true).is_empty(), "taken out once");
    // While it is being removed it is not staged; a request that came meanwhile is served afterwards.
    tape.request("3", vec![wanted("a", None)], at(1_011));
    assert_eq!(tape.next_stage(5, at(1_011), |_| true), None);
    tape.apply_all([Record::Spent { files: over[0].files.clone() }]);
    tape.release_path("a", at(0));
    assert_eq!(tape.next_stage(5, at(1_012), |_| true), Some((paths(&["a"]), None)));
}

#[test]
fn cancelled_released_and_ended_files_are_not_pinned() {
    let mut tape = TapeState::default();
    tape.request("1", vec![wanted("a", None), wanted("b", None), wanted("c", None)], at(0));
    let record = tape.cancel("1", &paths(&["a", "zz"]), at(1));
    tape.apply_all(record);
    assert!(!tape.is_awaited("a") && tape.is_awaited("b"));
    assert_eq!(tape.next_stage(5, at(1), |_| true), Some((paths(&["b", "c"]), None)));
    let record = tape.staged("b", End::OnDisk, at(2));
    tape.apply_all(record);
    tape.release_path("b", at(0));
    assert_eq!(tape.cancel("1", &paths(&["b"]), at(3)), None, "it is on disk already");
    let record = tape.release("1", &paths(&["b", "c", "zz"]), at(3));
    tape.apply_all(record);
    assert_eq!(tape.release("1", &paths(&["b"]), at(4)), None);
    assert_eq!(tape.take_expired_pins(at(3), false)[0].files.len(), 1);
    let records = tape.end_request("1", at(5));
    tape.apply_all(records);
    assert!(tape.report("1", at(5)).is_none() && !tape.is_awaited("c"));
    assert!(tape.end_request("1", at(5)).is_empty() && tape.cancel("1", &paths(&["c"]), at(5)).is_none());
    // It waits for the end of its last pin, and is gone.
    assert_eq!(tape.expired_requests(at(6)), []);
    tape.apply_all([Record::Spent { files: vec![("1".into(), 1)] }]);
    let old = tape.expired_requests(at(6));
    tape.apply_all(old);
    assert_eq!((tape.requests.len(), tape.files, tape.pin_counts.len()), (0, 0, 0));
}

#[test]
fn finished_requests_are_told_of_for_a_day() {
    let mut tape = TapeState::default();
    tape.request("1", vec![wanted("a", None)], at(0));
    let record = tape.staged("a", End::Failed("x".into()), at(50));
    tape.apply_all(record);
    assert_eq!(tape.expired_requests(at(86_449)), []);
    assert_eq!(tape.expired_requests(at(86_450)), [Record::Dropped { id: "1".into() }]);
}

#[test]
fn files_are_brought_together_that_clients_said_the_same_of() {
    let mut tape = TapeState::default();
    let said =
        |path: &str, metadata: &str| RequestedFile { metadata: Some(metadata.into()), ..wanted(path, None) };
    tape.request("1", vec![said("a", "1"), said("b", "1"), said("c", "2"), said("d", "1")], at(0));
    let mut bulks = Vec::new();
    while let Some((paths, metadata)) = tape.next_stage(10, at(0), |_| true) {
        bulks.push((paths.join(""), metadata.unwrap().to_string()));
    }
    let expected = [("ab", "1"), ("c", "2"), ("d", "1")];
    assert_eq!(bulks, expected.map(|(paths, said)| (paths.to_owned(), said.to_owned())));
}

#[test]
fn requests_and_files_are_bounded() {
    let mut tape = TapeState::default();
    let many = || (0..10_000).map(|n| wanted(&n.to_string(), None)).collect::<Vec<_>>();
    for id in 0..FILES_MAX / 10_000 {
        tape.request(&id.to_string(), many(), at(0));
    }
    let refused =
        tape.new_request("x", vec![wanted("a", None)], at(0), (PIN_LIFETIME, PIN_LIFETIME_MAX)).unwrap_err();
    assert!(
        refused.code == FaultCode::Busy && refused.detail.contains("200000 of 200000 files"),
        "{refused}"
    );
    let mut tape = TapeState::default();
    for id in 0..REQUESTS_MAX {
        tape.request(&id.to_string(), vec![wanted("a", None)], at(0));
    }
    let refused =
        tape.new_request("x", vec![wanted("a", None)], at(0), (PIN_LIFETIME, PIN_LIFETIME_MAX)).unwrap_err();
    assert!(refused.code == FaultCode::Busy && refused.detail.contains("10000 requests"), "{refused}");
}

#[test]
fn a_file_goes_to_tape_when_it_is_there_and_again_if_another_has_come() {
    let mut tape = TapeState::default();
    let record = tape.arriving("a");
    tape.apply_all([record]);
    assert!(tape.next_migrate(5, at(1_000)).is_empty(), "it has no name yet");
    tape.arrived("a", at(60));
    assert!(tape.next_migrate(5, at(59)).is_empty());
    let first = tape.next_migrate(5, at(60));
    assert_eq!(first.len(), 1);
    assert!(tape.next_migrate(5, at(61)).is_empty(), "it is on its way");
    // Another file under its name while the site takes the first.
    let record = tape.arriving("a");
    tape.apply_all([record]);
    tape.arrived("a", at(100));
    assert!(tape.next_migrate(5, at(100)).is_empty());
    assert_eq!(tape.migrated("a", first[0].1), None);
    let second = tape.next_migrate(5, at(100));
    assert_ne!(first[0].1, second[0].1);
    tape.retry_migration("a", Some(at(700)));
    assert!(tape.next_migrate(5, at(699)).is_empty());
    let third = tape.next_migrate(5, at(700));
    let record = tape.migrated("a", third[0].1);
    tape.apply_all(record);
    assert_eq!((tape.arrivals(), tape.due.len()), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Vec<(u8, u16)>),
    Cancel(u8, u8),
    Release(u8, u8),
    End(u8),
    Stage(bool),
    Pass(u16),
    Arrive(u8),
    Migrate(bool),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        prop::collection::vec((0u8..5, 1u16..300), 1..4).prop_map(Step::Ask),
        (0u8..6, 0u8..5).prop_map(|(id, path)| Step::Cancel(id, path)),
        (0u8..6, 0u8..5).prop_map(|(id, path)| Step::Release(id, path)),
        (0u8..6).prop_map(Step::End),
        any::<bool>().prop_map(Step::Stage),
        (0u16..400).prop_map(Step::Pass),
        (0u8..5).prop_map(Step::Arrive),
        any::<bool>().prop_map(Step::Migrate),
        Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// As it is written and read again.
fn reread(records: impl Iterator<Item = Record>, now: Timestamp) -> TapeState {
    let mut tape = TapeState::default();
    for record in records {
        let text = serde_json::to_vec(&record).unwrap();
        assert!(!text.contains(&b'\n'));
        tape.apply(serde_json::from_slice(&text).unwrap());
    }
    tape.all_arrived(now);
    tape
}

/// A state with all records that were written of it.
#[derive(Default)]
struct Played {
    tape: TapeState,
    log: Vec<Record>,
    ids: u8,
    now: i64,
}

impl Played {
    fn apply_all(&mut self, records: impl IntoIterator<Item = Record>) {
        for record in records {
            self.log.push(record.clone());
            self.tape.apply(record);
        }
    }

    fn play(&mut self, step: Step) {
        let now = at(self.now);
        match step {
            Step::Ask(files) => {
                let files: BTreeMap<u8, u16> = files.into_iter().collect();
                let files =
                    files.into_iter().map(|(path, s)| wanted(&path.to_string(), Some(s.into()))).collect();
                let record = self
                    .tape
                    .new_request(&self.ids.to_string(), files, now, (PIN_LIFETIME, PIN_LIFETIME_MAX))
                    .unwrap();
                self.ids += 1;
                self.apply_all([record]);
            }
            Step::Cancel(id, path) => {
                self.apply_all(self.tape.cancel(&id.to_string(), &[path.to_string()], now))
            }
            Step::Release(id, path) => {
                self.apply_all(self.tape.release(&id.to_string(), &[path.to_string()], now))
            }
            Step::End(id) => self.apply_all(self.tape.end_request(&id.to_string(), now)),
            Step::Stage(well) => {
                let Some((paths, _)) = self.tape.next_stage(2, now, |_| true) else { return };
                for path in paths {
                    let end = if well { End::OnDisk } else { End::Failed("x".into()) };
                    self.apply_all(self.tape.staged(&path, end, now));
                    self.tape.release_path(&path, at(0));
                }
            }
            Step::Pass(seconds) => {
                self.now += i64::from(seconds);
                for over in self.tape.take_expired_pins(at(self.now), true) {
                    self.apply_all([Record::Spent { files: over.files }]);
                    self.tape.release_path(&over.path, at(0));
                }
                self.apply_all(self.tape.expired_requests(at(self.now)));
            }
            Step::Arrive(path) => {
                self.apply_all([self.tape.arriving(&path.to_string())]);
                self.tape.arrived(&path.to_string(), now);
            }
            Step::Migrate(well) => {
                for (path, stamp) in self.tape.next_migrate(2, now) {
                    match well {
                        true => {
                            let record = self.tape.migrated(&path, stamp);
                            self.apply_all(record);
                        }
                        false => self.tape.retry_migration(&path, Some(now)),
                    }
                }
            }
            Step::Restart => {
                self.log = self.tape.records().collect();
                self.tape = reread(self.log.iter().cloned(), now);
            }
        }
    }

    /// Indexes say what the requests say.
    fn check(&self) {
        let tape = &self.tape;
        let files = || tape.requests.values().flat_map(|request| &request.files);
        assert_eq!(tape.files, files().count());
        let held = files().filter(|file| matches!(file.state, FileState::Completed { .. })).count();
        assert_eq!((tape.pin_counts.values().sum::<u32>() as usize, tape.pins.len()), (held, held));
        let waiting = files().filter(|file| file.state == FileState::Submitted).count();
        assert_eq!(tape.waiters.values().map(Vec::len).sum::<usize>(), waiting);
        assert!(tape.waiters.keys().all(|path| tape.queue.contains(path) || tape.in_command.contains(path)));
        for request in tape.requests.values() {
            let open =
                |file: &&File| matches!(file.state, FileState::Submitted | FileState::Completed { .. });
            assert_eq!(request.open, request.files.iter().filter(open).count());
        }
        assert_eq!(tape.due.len(), tape.arrivals.values().filter(|arrival| arrival.due.is_some()).count());
        // Promise 3: what was written gives the same again, whether from the beginning or from a new log.
        for again in [reread(self.log.iter().cloned(), at(self.now)), reread(tape.records(), at(self.now))] {
            assert_eq!(again.pins, tape.pins);
            assert_eq!(again.pin_counts, tape.pin_counts);
            assert_eq!(again.arrivals.keys().collect::<Vec<_>>(), tape.arrivals.keys().collect::<Vec<_>>());
            let keys = |tape: &TapeState| tape.waiters.keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys(&again), keys(tape));
            for (id, request) in &tape.requests {
                let state = |request: &Request| {
                    request.files.iter().map(|file| (file.state.clone(), file.finished)).collect::<Vec<_>>()
                };
                assert_eq!(state(&again.requests[id]), state(request));
                assert_eq!(
                    (again.requests[id].open, again.requests[id].forgotten),
                    (request.open, request.forgotten)
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn any_history_keeps_the_state_sound_and_replayable(steps in steps()) {
        let mut played = Played::default();
        for step in steps {
            played.play(step);
            played.check();
        }
        // In the end everything ends.
        while let Some((paths, _)) = played.tape.next_stage(10, at(played.now), |_| true) {
            for path in paths {
                played.apply_all(played.tape.staged(&path, End::OnDisk, at(played.now)));
                played.tape.release_path(&path, at(0));
            }
        }
        played.play(Step::Pass(2_000));
        played.now += 86_400;
        played.play(Step::Pass(1));
        prop_assert!(played.tape.requests.is_empty());
        prop_assert!(played.tape.pins.is_empty() && played.tape.pin_counts.is_empty());
        prop_assert!(played.tape.waiters.is_empty());
    }
}
