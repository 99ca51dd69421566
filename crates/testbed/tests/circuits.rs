//! `longhaul copy --circuit` over real TCP: streams move onto the circuit in mid-file and back, whatever the provider and the
//! circuit do, and nothing is lost.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_testbed::wan::{Change, Direction, Lab, PathConfig, Side};
use longhaul_testbed::{AdHoc, Process, Random, TICK, needs, tree};

const SIZE: u64 = 48_000_000;
/// Chunks that were asked for, at most.
const IN_FLIGHT: u64 = 10 << 20;
const WITHIN: Duration = Duration::from_secs(600);
/// The plain way, and the circuit.
const PLAIN: usize = 0;
const CIRCUIT: usize = 1;

struct World {
    ground: AdHoc,
    expected: tree::Survey,
    file: PathBuf,
    server: Process,
}

/// A thin plain way and a circuit four times as wide; `more` is what the file about it says besides.
fn world(test: &str, more: &str) -> Option<World> {
    if let Err(why) = Lab::available() {
        needs::not_run(test, &why);
        return None;
    }
    let path = |rate| PathConfig::new(20.0).rate_mbit(rate);
    let ground = AdHoc::new(Lab::start(&[path(50.0), path(200.0)]).unwrap());
    fs::write(ground.source().join("large"), tree::content(&mut Random::new(4), SIZE)).unwrap();
    let expected = tree::survey(&ground.source());
    let address = |side| ground.lab.address(side, CIRCUIT);
    let (source, target) = (address(Side::Right), address(Side::Left));
    let file = ground.source().with_file_name("circuit.toml");
    let text =
        format!("provider = \"static\"\nsource = \"{source}\"\ntarget = \"{target}\"\nmbit = 200\n{more}");
    fs::write(&file, text).unwrap();
    let server = ground.serve_on(&[PLAIN], &[]);
    Some(World { ground, expected, file, server })
}

impl World {
    fn copy(&self) -> Process {
        self.ground.copy(&["--circuit", self.file.to_str().unwrap()])
    }

    fn carried(&self, path: usize) -> u64 {
        self.ground.lab.counters(path, Direction::RightToLeft).bytes_carried
    }

    /// What a copy that has ended well said in the end.
    fn ended(&mut self, mut copy: Process) -> String {
        let status = copy.wait(WITHIN).expect("it ends");
        assert!(status.success(), "{}", copy.log.tail());
        tree::assert_same(&self.expected.files, &self.ground.target(), "");
        self.server.kill();
        let said = copy.log.tail();
        println!("{said}");
        said
    }

    /// Twice comes at the most what was under way on the way that was left.
    fn assert_once(&self) {
        let carried = self.carried(PLAIN) + self.carried(CIRCUIT);
        assert!(carried < SIZE + SIZE / 20 + IN_FLIGHT, "{carried} bytes were carried for {SIZE}");
    }
}

#[test]
fn a_copy_moves_onto_a_circuit_in_mid_file_and_gives_it_back() {
    let Some(mut world) = world("a copy moves onto a circuit", "setup_s = 1\n") else { return };
    let copy = world.copy();
    let said = world.ended(copy);
    assert!(said.contains("transfers go by the circuit of 200 Mbit/s"), "{said}");
    assert!(said.contains("is given back"), "{said}");
    world.assert_once();
    let (plain, circuit) = (world.carried(PLAIN), world.carried(CIRCUIT));
    assert!(
        plain > 1_000_000 && circuit > SIZE / 2,
        "{plain} bytes went the plain way, {circuit} by the circuit"
    );
}

#[test]
fn a_circuit_that_expires_is_left_before_it_ends() {
    // Granted for 62 s, of which the last minute is not used.
    let Some(mut world) = world("a circuit that expires", "lasts_s = 62\n") else { return };
    let copy = world.copy();
    let said = world.ended(copy);
    assert!(said.contains("about to expire"), "{said}");
    world.assert_once();
    assert!(world.carried(PLAIN) > 1_000_000 && world.carried(CIRCUIT) > 1_000_000);
}

#[test]
fn a_circuit_that_dies_silently_is_left_and_not_asked_for_again() {
    let Some(mut world) = world("a circuit that dies silently", "") else { return };
    let mut copy = world.copy();
    let begun = std::time::Instant::now();
    while world.carried(CIRCUIT) < SIZE / 4 {
        assert!(copy.wait(TICK).is_none(), "it ended before: {}", copy.log.tail());
        assert!(begun.elapsed() < WITHIN, "it does not move: {}", copy.log.tail());
    }
    world.ground.lab.set(CIRCUIT, Change::Cut).unwrap();
    let said = world.ended(copy);
    assert!(said.contains("has ended before its time: streams on it fell silent"), "{said}");
    assert!(said.contains("no circuit is asked for on this link until"), "{said}");
    assert!(world.carried(PLAIN) > SIZE / 4, "the rest went the plain way");
}

#[test]
fn a_provider_that_refuses_or_says_nothing_costs_nothing() {
    for (more, words) in
        [("refuse = \"maintenance\"\n", "were refused: maintenance"), ("silent = true\n", "are asked for")]
    {
        let Some(mut world) = world("a provider that refuses", more) else { return };
        let copy = world.copy();
        let said = world.ended(copy);
        assert!(said.contains(words), "{said}");
        assert!(world.carried(CIRCUIT) < 100_000);
    }
}

#[test]
fn a_circuit_whose_ends_do_not_answer_is_never_used() {
    let Some(mut world) = world("a circuit without ends", "") else { return };
    world.ground.lab.set(CIRCUIT, Change::Cut).unwrap();
    let copy = world.copy();
    let said = world.ended(copy);
    assert!(said.contains("has 200 Mbit/s"), "{said}");
    assert!(!said.contains("transfers go by the circuit"), "{said}");
}

/// A copy that was killed leaves its circuit in the book: the same command takes it up again.
#[test]
fn a_killed_copy_takes_its_circuit_up_again() {
    let Some(mut world) = world("a killed copy", "") else { return };
    let mut copy = world.copy();
    let begun = std::time::Instant::now();
    while world.carried(CIRCUIT) < SIZE / 4 {
        assert!(copy.wait(TICK).is_none(), "it ended before: {}", copy.log.tail());
        assert!(begun.elapsed() < WITHIN, "it does not move: {}", copy.log.tail());
    }
    copy.kill();
    let copy = world.copy();
    let said = world.ended(copy);
    assert!(said.contains("the circuit of the run before is used on"), "{said}");
    assert!(said.contains("transfers go by the circuit"), "{said}");
}
