//! Explanation of why a link has a circuit or none: the numbers behind the decision, and a sentence for
//! people.

use std::fmt;
use std::time::Duration;

use longhaul_model::{Timestamp, units};

use crate::note::duration_text;
use crate::{CooldownReason, State};

/// State of a link's circuit and the numbers behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub state: State,
    /// Deadline of the state, if any: of the answer, the circuit, its draining or the cool-down.
    pub until: Option<Timestamp>,
    /// Mbit/s requested or granted.
    pub mbit: u64,
    /// Mbit/s of a replacement, if one is requested.
    pub next_mbit: Option<u64>,
    /// The person who ordered it, if somebody did.
    pub ordered_by: Option<String>,
    /// A central planner decides whether the work deserves a circuit.
    pub planned_centrally: bool,
    pub pending_bytes: u64,
    /// Rate of the path in use.
    pub bytes_per_s: Option<f64>,
    pub rate_source: RateSource,
    /// Time to finish the pending bytes at this rate.
    pub time_to_finish: Option<Duration>,
    /// A circuit is requested above this.
    pub threshold: Duration,
    /// It is released below this.
    pub release_below: Option<Duration>,
    /// Consecutive checks that passed, and how many are needed.
    pub checks: (u32, u32),
}

/// Where the rate comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateSource {
    #[default]
    Unknown,
    /// Measured on this link.
    Measured,
    /// Forecast by the service.
    Forecast,
}

impl Default for Explanation {
    fn default() -> Self {
        Explanation {
            state: State::Off,
            until: None,
            mbit: 0,
            next_mbit: None,
            ordered_by: None,
            planned_centrally: false,
            pending_bytes: 0,
            bytes_per_s: None,
            rate_source: RateSource::Unknown,
            time_to_finish: None,
            threshold: Duration::ZERO,
            release_below: None,
            checks: (0, 0),
        }
    }
}

impl Explanation {
    pub(crate) fn is_used(&self) -> bool {
        matches!(self.state, State::Established { used: true, .. })
    }

    /// Without a circuit: whether the pending work deserves one.
    fn write_without_circuit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threshold = duration_text(self.threshold);
        if self.planned_centrally {
            return self.write_planned_centrally(f);
        }
        if self.pending_bytes == 0 {
            return write!(
                f,
                "nothing waits; a circuit is requested when what waits takes longer than {threshold}"
            );
        }
        let waits = units::bytes(self.pending_bytes);
        let (Some(rate), Some(work)) = (self.bytes_per_s, self.time_to_finish) else {
            return write!(
                f,
                "{waits} wait, but the link's rate is not known yet: no circuit is requested before it is"
            );
        };
        let by = if self.rate_source == RateSource::Forecast { "is expected to carry" } else { "carries" };
        let mbit = rate * 8e-6;
        write!(f, "{waits} wait = {} at the {mbit:.1} Mbit/s that the link {by}; ", duration_text(work))?;
        let needs = units::bytes((rate * self.threshold.as_secs_f64()) as u64);
        if mbit >= self.mbit as f64 {
            write!(f, "a circuit of {} Mbit/s would not be faster: none is requested", self.mbit)
        } else if work <= self.threshold {
            write!(f, "a circuit is requested above {threshold}, which is {needs}")
        } else {
            let (found, wanted) = self.checks;
            write!(
                f,
                "that is more than {threshold}, as {found} of {wanted} checks in a row have found: a circuit \
                    is worth requesting"
            )
        }
    }

    fn write_planned_centrally(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pending_bytes {
            0 => f.write_str("nothing waits")?,
            bytes => write!(f, "{} wait", units::bytes(bytes))?,
        }
        if let (Some(rate), Some(work)) =
            (self.bytes_per_s, self.time_to_finish.filter(|work| !work.is_zero()))
        {
            write!(f, " = {} at {:.1} Mbit/s", duration_text(work), rate * 8e-6)?;
        }
        f.write_str("; the service's plan decides whether a circuit is worth requesting")
    }

    /// With a circuit: why it is kept.
    fn write_with_circuit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.time_to_finish {
            Some(work) => write!(f, "{} wait = {}", units::bytes(self.pending_bytes), duration_text(work))?,
            None => write!(f, "{} wait", units::bytes(self.pending_bytes))?,
        }
        if let Some(rate) = self.bytes_per_s {
            write!(f, " at {:.1} Mbit/s", rate * 8e-6)?;
        }
        match (&self.ordered_by, self.release_below) {
            (Some(by), _) => write!(f, "; {by} requested it: it is kept for them")?,
            (None, Some(below)) => {
                write!(f, "; it is released when that stays below {}", duration_text(below))?
            }
            (None, None) => f.write_str("; it is kept until it expires")?,
        }
        if let Some(until) = self.until {
            write!(f, "; it expires at {until}")?;
        }
        match self.next_mbit {
            Some(mbit) => write!(f, "; another of {mbit} Mbit/s is requested to replace it"),
            None => Ok(()),
        }
    }
}

/// A sentence for people, with the numbers.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = |what: &str| self.until.map(|at| format!("{what}{at}")).unwrap_or_default();
        match self.state {
            State::Off => {
                f.write_str("no circuit now: ")?;
                self.write_without_circuit(f)
            }
            State::Requested { since } => {
                let deadline = until(", and may until ");
                write!(
                    f,
                    "{} Mbit/s were requested at {since}: the provider has not answered{deadline}",
                    self.mbit
                )
            }
            State::Established { used: false, .. } => {
                write!(f, "{} Mbit/s are granted: the circuit's ends have not answered yet", self.mbit)
            }
            State::Established { used: true, .. } => {
                write!(f, "transfers go by a circuit of {} Mbit/s: ", self.mbit)?;
                self.write_with_circuit(f)
            }
            State::Draining => {
                let deadline = until(", at the latest at ");
                write!(f, "the circuit is released when nothing is under way on it{deadline}")
            }
            State::Cooldown(rest) => {
                let why = match rest.reason {
                    CooldownReason::Request => "the last request failed",
                    CooldownReason::Transfer => {
                        "the last circuit failed, or was no better than the best-effort path"
                    }
                    CooldownReason::Released => "somebody released the last circuit",
                };
                write!(f, "no circuit now: {why}, so none is requested until {}; ", rest.until)?;
                self.write_without_circuit(f)
            }
        }
    }
}
