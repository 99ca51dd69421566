//! Happy Eyeballs (RFC 8305): connection attempts to several addresses of a peer, started with a delay
//! between them; the first that authenticates as the peer wins.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Retry};
use parking_lot::Mutex;

use super::Dialler;
use crate::paths::ResolvedPath;

/// The connection attempt delay of RFC 8305 for an address that has not connected.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The delay for an address that has connected but has not completed the handshake.
const CONNECTED_ATTEMPT_DELAY: Duration = Duration::from_secs(1);
/// The delay before a spare path, which is no equal of the others: it is for when they do not answer, and not
/// for being the faster. A lost SYN is sent again after 1 s (RFC 6298, 2.1), and long paths need some round
/// trips to answer.
const SPARE_ATTEMPT_DELAY: Duration = Duration::from_secs(2);

pub(crate) struct DialRace {
    pub(super) dialler: Dialler,
    state: Mutex<State>,
}

struct State {
    others: VecDeque<ResolvedPath>,
    tried: Vec<ResolvedPath>,
    running: usize,
    /// Counts the running attempts.
    connected: usize,
    begun: Duration,
    won: bool,
    fault: Option<Fault>,
}

impl State {
    /// How long after the last attempt the next one begins if none has failed.
    fn delay(&self) -> Duration {
        let is_spare = |way: Option<&ResolvedPath>| way.is_some_and(|way| way.path.spare);
        match is_spare(self.others.front()) && !is_spare(self.tried.last()) {
            true => SPARE_ATTEMPT_DELAY,
            false if self.connected == 0 => ATTEMPT_DELAY,
            false => CONNECTED_ATTEMPT_DELAY,
        }
    }
}

/// What the event loop does next about a dialling.
#[derive(Debug, PartialEq)]
pub(super) enum RaceStep {
    Begin(ResolvedPath),
    Wait,
    Won,
    Lost(Fault),
}

impl DialRace {
    pub(super) fn new(dialler: Dialler, ways: Vec<ResolvedPath>, now: Duration) -> DialRace {
        let others = ways.into();
        let (tried, fault) = (Vec::new(), None);
        let state = State { others, tried, running: 0, connected: 0, begun: now, won: false, fault };
        DialRace { dialler, state: Mutex::new(state) }
    }

    pub(super) fn step(&self, now: Duration) -> RaceStep {
        let mut state = self.state.lock();
        if state.won {
            return RaceStep::Won;
        }
        if state.running == 0 || now.saturating_sub(state.begun) >= state.delay() {
            if let Some(way) = state.others.pop_front() {
                state.running += 1;
                state.begun = now;
                state.tried.push(way.clone());
                return RaceStep::Begin(way);
            }
            if state.running == 0 {
                let none = || Fault::new(FaultCode::Unreachable, "the peer has no address");
                return RaceStep::Lost(state.fault.take().unwrap_or_else(none));
            }
        }
        RaceStep::Wait
    }

    pub(super) fn connected(&self) {
        self.state.lock().connected += 1;
    }

    /// Called when the peer is authenticated at an address. None if another address was faster; otherwise the
    /// paths that were tried before a spare path and have not answered in time.
    pub(super) fn win(&self, way: &ResolvedPath) -> Option<Vec<ResolvedPath>> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.won, true) {
            return None;
        }
        let is_late = |tried: &ResolvedPath| way.path.spare && !tried.path.spare;
        Some(std::mem::take(&mut state.tried).into_iter().filter(is_late).collect())
    }

    pub(super) fn is_won(&self) -> bool {
        self.state.lock().won
    }

    /// Records the failure of one address.
    pub(super) fn lost(&self, connected: bool, fault: Fault) {
        let mut state = self.state.lock();
        state.running -= 1;
        state.connected -= usize::from(connected);
        // A refusal by a reached peer is more informative than an unreachable address.
        if state.fault.as_ref().is_none_or(|known| known.retry != Retry::Never) {
            state.fault = Some(fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::CallClient;
    use crate::interface::Path;

    #[test]
    fn the_next_attempt_starts_when_the_first_is_late_or_fails() {
        let at = Duration::from_millis;
        let address = |number: u16| {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], number));
            let path = Path::new(address.to_string());
            ResolvedPath { address, path: std::sync::Arc::new(path) }
        };
        let race = |count: u16| {
            DialRace::new(Dialler::Calls(CallClient::new(None)), (1..=count).map(address).collect(), at(0))
        };
        let refused = || Fault::new(FaultCode::Unreachable, "refused");
        let slow = race(3);
        assert_eq!(slow.step(at(0)), RaceStep::Begin(address(1)));
        assert_eq!(slow.step(at(249)), RaceStep::Wait);
        assert_eq!(slow.step(at(250)), RaceStep::Begin(address(2)));
        slow.lost(false, refused());
        assert_eq!(slow.step(at(260)), RaceStep::Wait, "the first may still make it");
        slow.connected();
        assert_eq!(slow.step(at(1_200)), RaceStep::Wait, "what connects is given more time");
        assert_eq!(slow.step(at(1_250)), RaceStep::Begin(address(3)));
        assert_eq!(slow.step(at(5_000)), RaceStep::Wait, "there is no other");
        assert_eq!((slow.win(&address(2)), slow.win(&address(1))), (Some(Vec::new()), None));
        assert_eq!(slow.step(at(5_001)), RaceStep::Won);

        let bad = race(2);
        assert_eq!(bad.step(at(0)), RaceStep::Begin(address(1)));
        bad.connected();
        bad.lost(true, Fault::new(FaultCode::ForeignDeployment, "of another deployment"));
        assert_eq!(bad.step(at(1)), RaceStep::Begin(address(2)), "at once after a failure");
        bad.lost(false, refused());
        let RaceStep::Lost(fault) = bad.step(at(2)) else { panic!("nothing is left") };
        assert_eq!(fault.code, FaultCode::ForeignDeployment);
        assert!(matches!(race(0).step(at(0)), RaceStep::Lost(_)));

        let plain = address(2);
        let spare = ResolvedPath {
            path: std::sync::Arc::new(Path { spare: true, ..(*plain.path).clone() }),
            ..plain
        };
        let mute =
            DialRace::new(Dialler::Calls(CallClient::new(None)), vec![address(1), spare.clone()], at(0));
        mute.step(at(0));
        mute.connected();
        assert_eq!(mute.step(at(2_000)), RaceStep::Begin(spare.clone()));
        assert_eq!(mute.win(&spare), Some(vec![address(1)]));
    }

    #[test]
    fn a_spare_path_waits_until_the_others_are_late() {
        let at = Duration::from_millis;
        let way = |number: u16, spare: bool| {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], number));
            let path = Path { spare, ..Path::new(address.to_string()) };
            ResolvedPath { address, path: std::sync::Arc::new(path) }
        };
        let race = |ways: Vec<ResolvedPath>| {
            let race = DialRace::new(Dialler::Calls(CallClient::new(None)), ways.clone(), at(0));
            assert_eq!(race.step(at(0)), RaceStep::Begin(ways[0].clone()));
            race
        };
        // A long path, or a busy machine: it connects after 1.4 s and answers before 2 s.
        let long = race(vec![way(1, false), way(2, true)]);
        assert_eq!(long.step(at(1_399)), RaceStep::Wait);
        long.connected();
        assert_eq!(long.step(at(1_999)), RaceStep::Wait);
        assert_eq!(long.win(&way(1, false)), Some(Vec::new()));

        let dead = race(vec![way(1, false), way(2, false), way(3, true), way(4, true)]);
        assert_eq!(dead.step(at(250)), RaceStep::Begin(way(2, false)), "equals follow each other soon");
        assert_eq!(dead.step(at(2_249)), RaceStep::Wait);
        assert_eq!(dead.step(at(2_250)), RaceStep::Begin(way(3, true)));
        assert_eq!(dead.step(at(2_500)), RaceStep::Begin(way(4, true)), "spare ones are equals too");

        let refused = race(vec![way(1, false), way(2, true)]);
        refused.lost(false, Fault::new(FaultCode::Unreachable, "refused"));
        assert_eq!(refused.step(at(1)), RaceStep::Begin(way(2, true)), "at once after a failure");
    }
}
