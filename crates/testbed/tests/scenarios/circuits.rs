//! `longhaul copy --circuit` over real TCP: streams move onto the circuit in mid-file and back, whatever the
//! provider and the circuit do, and nothing is lost.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_testbed::wan::{Change, Counters, Direction, Lab, PathConfig, Side, Stall};
use longhaul_testbed::{AdHoc, Process, Random, TICK, needs, tree};

const SIZE: u64 = 48_000_000;
/// Size of copies that stay on the plain path.
const SMALL: u64 = 16_000_000;
/// The longest time without data, by the emulator's clock: whoever gets no processor takes longer than the
/// 3 s that `wire` tests in simulated time.
const STALL_NS_MAX: u64 = 20_000_000_000;
const BOOKED_MBIT: f64 = 100.0;
/// Chunks that were asked for, at most.
const IN_FLIGHT: u64 = 10 << 20;
/// More than handshakes and probes take: so much is payload.
const BESIDE_PAYLOAD: u64 = 100_000;
const WITHIN: Duration = Duration::from_secs(600);
/// The plain way, and the circuit.
const PLAIN: usize = 0;
const CIRCUIT: usize = 1;
/// Ways to fail of which nobody is told: in both directions, where nothing gets to the source, where nothing
/// comes from it, and where packets as large as the ends send do not pass.
const FAILURES: [Change; 4] = [
    Change::Cut,
    Change::CutOneWay(Direction::LeftToRight),
    Change::CutOneWay(Direction::RightToLeft),
    Change::BlackHole(Some(1_300)),
];

struct World {
    ground: AdHoc,
    size: u64,
    expected: tree::Survey,
    file: PathBuf,
    server: Process,
    /// The copy was on the plain way when the circuit was ready, as on a busy machine: it changed to it.
    moved_onto_circuit: bool,
}

/// A thin plain way and a circuit four times as wide; `more` is what the file about it says besides.
fn world(test: &str, more: &str) -> Option<World> {
    world_of(SIZE, test, more)
}

fn world_of(size: u64, test: &str, more: &str) -> Option<World> {
    if let Err(why) = Lab::available() {
        needs::not_run(test, &why);
        return None;
    }
    let path = |rate| PathConfig::new(20.0).rate_mbit(rate);
    let ground = AdHoc::new(Lab::start(&[path(50.0), path(200.0)]).unwrap());
    fs::write(ground.source().join("large"), tree::content(&mut Random::new(4), size)).unwrap();
    let expected = tree::survey(&ground.source());
    let address = |side| ground.lab.address(side, CIRCUIT);
    let (source, target) = (address(Side::Right), address(Side::Left));
    let file = ground.source().with_file_name("circuit.toml");
    let text =
        format!("provider = \"static\"\nsource = \"{source}\"\ntarget = \"{target}\"\nmbit = 200\n{more}");
    fs::write(&file, text).unwrap();
    let server = ground.serve_on(&[PLAIN], &[]);
    Some(World { ground, size, expected, file, server, moved_onto_circuit: false })
}

impl World {
    /// It carries less than was granted, so that there is work for it while things happen to it.
    fn slow_circuit(&self, mbit: f64) {
        self.ground.lab.set(CIRCUIT, Change::RateMbit(Some(mbit))).unwrap();
    }

    fn copy(&self) -> Process {
        self.ground.copy(&["--circuit", self.file.to_str().unwrap()])
    }

    fn counters(&self, path: usize) -> Counters {
        self.ground.lab.counters(path, Direction::RightToLeft)
    }

    fn carried(&self, path: usize) -> u64 {
        self.counters(path).bytes_carried
    }

    /// A copy of which the circuit has carried so much.
    #[track_caller]
    fn copy_until(&mut self, bytes: u64) -> Process {
        let mut copy = self.copy();
        self.until(&mut copy, BESIDE_PAYLOAD);
        self.moved_onto_circuit = self.carried(PLAIN) > BESIDE_PAYLOAD;
        self.until(&mut copy, bytes);
        copy
    }

    #[track_caller]
    fn until(&self, copy: &mut Process, bytes: u64) {
        let begun = std::time::Instant::now();
        while self.carried(CIRCUIT) < bytes {
            assert!(copy.wait(TICK).is_none(), "it ended before: {}", copy.log.tail());
            assert!(begun.elapsed() < WITHIN, "it does not move: {}", copy.log.tail());
        }
    }

    /// What a copy that has ended well said in the end.
    fn ended(&mut self, mut copy: Process) -> String {
        let status = copy.wait(WITHIN).expect("it ends");
        assert!(status.success(), "{}", copy.log.tail());
        tree::assert_same(&self.expected.files, &self.ground.target(), "");
        self.server.kill();
        let said = copy.log.lines_with(&[]).join("\n");
        println!("{said}");
        said
    }

    /// Only what was under way on a path when it was left comes twice, for each change of path after
    /// [`World::copy_until`].
    fn assert_once(&self, path_changes: u64) {
        let path_changes = path_changes + u64::from(self.moved_onto_circuit);
        let carried = self.carried(PLAIN) + self.carried(CIRCUIT);
        let size = self.size;
        let carried_max = size + size / 20 + path_changes * IN_FLIGHT;
        assert!(carried < carried_max, "{carried} bytes were carried for {size}");
    }
}

#[test]
fn a_copy_moves_onto_a_circuit_in_mid_file_and_gives_it_back() {
    let test = "a copy moves onto a circuit";
    let Some(mut world) = world_of(2 * SIZE, test, "setup_s = 1\n") else { return };
    let copy = world.copy();
    let said = world.ended(copy);
    assert!(said.contains("transfers go by the circuit of 200 Mbit/s"), "{said}");
    assert!(said.contains("is released"), "{said}");
    // Onto the circuit, and back when it is released.
    world.assert_once(2);
    let (plain, circuit) = (world.carried(PLAIN), world.carried(CIRCUIT));
    assert!(
        plain > 1_000_000 && circuit > SIZE / 4,
        "{plain} bytes went the best-effort path, {circuit} by the circuit"
    );
}

#[test]
fn a_circuit_that_expires_is_left_before_it_ends() {
    // Granted for 65 s, of which the last minute is not used.
    let Some(mut world) = world("a circuit that expires", "lasts_s = 65\n") else { return };
    world.slow_circuit(25.0);
    let copy = world.copy_until(BESIDE_PAYLOAD);
    let said = world.ended(copy);
    assert!(said.contains("about to expire"), "{said}");
    world.assert_once(1);
    assert!(world.carried(PLAIN) > 1_000_000 && world.carried(CIRCUIT) > 1_000_000);
}

/// The circuit's line could carry twice as much; headers count.
#[test]
fn a_paced_circuit_carries_what_was_booked_and_no_more() {
    let more = "ask_mbit = 100\npace = true\n";
    let Some(mut world) = world_of(2 * SIZE, "a paced circuit", more) else { return };
    let mut copy = world.copy_until(SIZE / 8);
    let begin = world.counters(CIRCUIT);
    world.until(&mut copy, SIZE);
    let end = world.counters(CIRCUIT);
    // What was due before and came late is carried in that time, too.
    let late_s = end.late_ns_max as f64 * 1e-9;
    let seconds = (end.last_out_ns - begin.last_out_ns) as f64 * 1e-9 + late_s;
    let mbit = (end.bytes_carried - begin.bytes_carried) as f64 * 8e-6 / seconds;
    let said = world.ended(copy);
    assert!(said.contains("transfers go by the circuit of 100 Mbit/s"), "{said}");
    assert!((20.0..=BOOKED_MBIT * 1.06).contains(&mbit), "{mbit} Mbit/s on a circuit of {BOOKED_MBIT}");
}

/// The provider takes it back before its time: what was asked for on it still comes, and nothing stops.
#[test]
fn a_circuit_that_the_provider_loses_is_left_at_once() {
    let Some(mut world) = world("a circuit that is lost", "setup_s = 0.5\nlose_after_s = 4\n") else {
        return;
    };
    world.slow_circuit(25.0);
    let copy = world.copy_until(BESIDE_PAYLOAD);
    let said = world.ended(copy);
    assert!(said.contains("has ended before its time: its file says that it is lost now"), "{said}");
    assert!(said.contains("no circuit is requested on this link until"), "{said}");
    assert!(world.carried(CIRCUIT) > 1_000_000 && world.carried(PLAIN) > SIZE / 4);
    world.assert_once(1);
}

/// However it dies: the file goes on over the plain way soon, and twice comes no more than was under way.
#[test]
fn a_circuit_that_dies_silently_is_left_and_not_asked_for_again() {
    for failure in FAILURES {
        let Some(mut world) = world("a circuit that dies silently", "") else { return };
        world.slow_circuit(40.0);
        let mut copy = world.copy_until(SIZE / 6);
        world.ground.lab.set(CIRCUIT, failure).unwrap();
        let mut stall = Stall::after(&world.counters(CIRCUIT), &world.counters(PLAIN));
        while copy.wait(TICK).is_none() {
            stall.observe(&world.counters(PLAIN));
        }
        let late_ns = world.counters(PLAIN).late_ns_max;
        println!("{failure:?}: nothing came for {} ms", stall.longest_ns() / 1_000_000);
        let said = world.ended(copy);
        assert!(stall.longest_ns() <= STALL_NS_MAX + late_ns, "{failure:?}: {} ns", stall.longest_ns());
        assert!(said.contains("has ended before its time: streams on it fell silent"), "{said}");
        assert!(said.contains("no circuit is requested on this link until"), "{said}");
        assert!(world.carried(PLAIN) > SIZE / 4, "the rest went the plain way");
        world.assert_once(1);
    }
}

#[test]
fn a_provider_that_refuses_or_says_nothing_costs_nothing() {
    for (more, words) in
        [("refuse = \"maintenance\"\n", "were refused: maintenance"), ("silent = true\n", "are requested")]
    {
        let Some(mut world) = world_of(SMALL, "a provider that refuses", more) else { return };
        let copy = world.copy();
        let said = world.ended(copy);
        assert!(said.contains(words), "{said}");
        assert!(world.carried(CIRCUIT) < 100_000);
    }
}

/// Whether nothing passes, or nothing in one direction.
#[test]
fn a_circuit_whose_ends_do_not_answer_is_never_used() {
    for failure in FAILURES.into_iter().filter(|failure| !matches!(failure, Change::BlackHole(_))) {
        let Some(mut world) = world_of(SMALL, "a circuit without ends", "") else { return };
        world.ground.lab.set(CIRCUIT, failure).unwrap();
        let copy = world.copy();
        let said = world.ended(copy);
        assert!(said.contains("has 200 Mbit/s"), "{failure:?}: {said}");
        assert!(!said.contains("transfers go by the circuit"), "{failure:?}: {said}");
        world.assert_once(1);
    }
}

/// Its ends answer, since the packets of a question are small.
#[test]
fn a_circuit_with_a_smaller_mtu_from_the_beginning_is_left_and_rests() {
    let Some(mut world) = world("a circuit with a smaller MTU", "") else { return };
    world.ground.lab.set(CIRCUIT, Change::BlackHole(Some(1_300))).unwrap();
    let copy = world.copy();
    let said = world.ended(copy);
    assert!(said.contains("transfers go by the circuit"), "{said}");
    assert!(said.contains("has ended before its time"), "{said}");
    assert!(said.contains("no circuit is requested on this link until"), "{said}");
    assert!(world.carried(CIRCUIT) < 100_000, "no data came by it");
    world.assert_once(1);
}

/// A copy that was killed leaves its circuit in the book: the same command takes it up again.
#[test]
fn a_killed_copy_takes_its_circuit_up_again() {
    let Some(mut world) = world("a killed copy", "") else { return };
    let mut copy = world.copy_until(SIZE / 4);
    copy.kill();
    let copy = world.copy();
    let said = world.ended(copy);
    assert!(said.contains("the circuit of the previous run stays in use"), "{said}");
    assert!(said.contains("transfers go by the circuit"), "{said}");
}
