//! The pairings, and the two ends of a copy between storages that stands still at a gate before the passive
//! one.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::third_party::gate::Gate;
use crate::third_party::world::{By, CREDENTIALS, KINDS, Kind, World, below};

pub const WITHIN: Duration = Duration::from_secs(90);
/// More than buffers of sockets hold of what a gate lets through.
pub const FILE_BYTES: u64 = 32 << 20;
const GATE_BYTES: u64 = 2 << 20;
/// Attempts of one copy, as XRootD 5.5 may break a connection off or crash (its issues 2226 and 2913).
pub const TRIES_MAX: usize = 3;
/// Cases tried with each program.
const PAIRINGS: usize = 6;

/// The end that acts: the target pulls, the source pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Pull,
    Push,
}

impl Direction {
    pub fn word(self) -> &'static str {
        match self {
            Direction::Pull => "pull",
            Direction::Push => "push",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub source: Kind,
    pub target: Kind,
    pub direction: Direction,
    pub by: By,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { source, target, direction: way, by } = self;
        let words = format!("{source:?} {target:?} {way:?} {by:?}").to_lowercase();
        f.pad(&words)
    }
}

pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for by in CREDENTIALS {
        for way in [Direction::Pull, Direction::Push] {
            for source in KINDS {
                cases.extend(KINDS.map(|target| Case { source, target, direction: way, by }));
            }
        }
    }
    cases
}

/// Those of them that are cancelled too: XRootD takes a minute to see that it was left, so what it does by
/// itself is cancelled by `cargo xtask soak third-party` only.
pub fn cancelled(mut cases: Vec<Case>) -> Vec<Case> {
    let is_in_full = std::env::var_os("LONGHAUL_SOAK_PAIRINGS").is_some();
    cases.retain(|case| is_in_full || case.active() != Kind::Xrootd);
    cases
}

/// Those of a program: all of them by `cargo xtask soak third-party`, else a part, another one for each
/// program.
pub fn some(turn: usize) -> Vec<Case> {
    let mut cases = all();
    let pairings = std::env::var("LONGHAUL_SOAK_PAIRINGS");
    let most = pairings.map_or(PAIRINGS, |pairings| pairings.parse().unwrap());
    // Neighbours differ in one end only: each fifth is of another way and credential as well.
    let count = cases.len();
    cases = (0..count).map(|number| cases[(turn + number * 5) % count]).collect();
    cases.truncate(most);
    cases
}

/// Each in a thread of its own, so that none stands still while another one is begun or looked at.
pub fn at_once<T: Send, R: Send>(all: Vec<T>, body: impl Fn(T) -> R + Sync) -> Vec<R> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || body(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A file at its source, and where it shall go.
pub struct Ends {
    pub case: Case,
    pub source: String,
    pub target: String,
    pub gate: Gate,
    /// The target's folder, which no other case uses.
    pub folder: PathBuf,
    pub file: PathBuf,
}

impl Case {
    /// The URLs lead through the gate to the passive side, past it to the other.
    pub fn ends(self, world: &World, bytes: &[u8], tag: &str, scheme: &str) -> Ends {
        let folder = format!("{tag}-{}", self.to_string().replace(' ', "-"));
        let from = format!("from-{folder}");
        world.put(self.source, self.by, &from, bytes);
        let [source, target] =
            [(self.source, 0), (self.target, 1)].map(|(kind, side)| world.place(kind, self.by, side));
        let (mut source_port, mut target_port) = (source.port, target.port);
        let passive = match self.direction {
            Direction::Pull => &mut source_port,
            Direction::Push => &mut target_port,
        };
        let gate = Gate::before(*passive, GATE_BYTES);
        *passive = gate.port;
        Ends {
            case: self,
            source: source.url(scheme, source_port, &from),
            target: target.url(scheme, target_port, &format!("{folder}/f")),
            gate,
            file: target.file(&folder).join("f"),
            folder: target.file(&folder),
        }
    }

    /// The kind of server that moves the bytes.
    pub fn active(self) -> Kind {
        match self.direction {
            Direction::Pull => self.target,
            Direction::Push => self.source,
        }
    }

    pub fn uses_xrootd(self) -> bool {
        [self.source, self.target].contains(&Kind::Xrootd)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.gate.close();
    }
}

impl Ends {
    /// The one that is asked to copy, and the other.
    pub fn active(&self) -> &str {
        match self.case.direction {
            Direction::Pull => &self.target,
            Direction::Push => &self.source,
        }
    }

    pub fn passive(&self) -> &str {
        match self.case.direction {
            Direction::Pull => &self.source,
            Direction::Push => &self.target,
        }
    }

    /// All of it is at the target, and nothing else.
    pub fn is_whole(&self, bytes: &[u8]) {
        let arrived = std::fs::read(&self.file).unwrap_or_else(|error| panic!("{}: {error}", self.case));
        assert!(arrived == bytes, "{}", self.case);
        assert_eq!(below(&self.folder), ["f"], "{}: nothing beside it", self.case);
    }
}
