//! Fault injection: rules that are consumed one by one by operations and callbacks.

use serde::{Deserialize, Serialize};

/// A fault for one operation (`reserve`, `hold`, `intent`, ...) or callback (`reserveConfirmed`, ...).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) on: String,
    #[serde(rename = "do")]
    pub(crate) deed: Deed,
    /// How often; once by default.
    #[serde(default = "one_time")]
    pub(crate) times: u64,
}

fn one_time() -> u64 {
    1
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Deed {
    // Of operations: what is answered.
    /// Replies with a fault of this error id, and does nothing.
    Fault(String),
    /// Replies with this status and an HTML page.
    Status(u16),
    /// Closes the connection before anything is done.
    Lose,
    /// Executes, and closes the connection instead of acknowledging.
    LoseAnswer,
    /// Executes, and replies after so many real seconds.
    Hang(f64),
    /// Executes, and replies with a malformed body: `garbage`, `huge`, `entities`, `deep`, `cut`.
    Answer(String),
    // Of operations: what comes of it.
    /// Accepts, and never does anything.
    Silence,
    /// Takes so many seconds of the provider's clock.
    Take(f64),
    /// Refuses later with this error id.
    Refuse(String),
    /// Grants so many Mbit/s, whatever was requested.
    Less(u64),
    /// Executes twice.
    Twice,
    /// Reports success without executing.
    Lie,
    /// Never reaches the network behind, and the requester is notified.
    Undelivered,
    // Of callbacks.
    Drop,
    Repeat,
    /// Sends it so many seconds of the provider's clock later.
    Delay(f64),
    /// Sends it after the next callback.
    Swap,
    /// Executes at once, and sends it before the acknowledgement of its cause.
    BeforeAnswer,
}

#[derive(Debug, Default)]
pub(crate) struct Mischief(Vec<Rule>);

impl Mischief {
    pub(crate) fn set(&mut self, rules: Vec<Rule>) {
        self.0 = rules;
    }

    /// Consumes the first matching rule.
    pub(crate) fn take(&mut self, on: &str, fits: impl Fn(&Deed) -> bool) -> Option<Deed> {
        let at = self.0.iter().position(|rule| rule.on == on && rule.times > 0 && fits(&rule.deed))?;
        self.0[at].times -= 1;
        Some(self.0[at].deed.clone())
    }

    /// Rules that were not consumed.
    pub(crate) fn unused_rules(&self) -> Vec<&Rule> {
        self.0.iter().filter(|rule| rule.times > 0).collect()
    }
}

impl Deed {
    /// Whether it determines the reply instead of the state machine.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(
            self,
            Deed::Fault(_)
                | Deed::Status(_)
                | Deed::Lose
                | Deed::LoseAnswer
                | Deed::Hang(_)
                | Deed::Answer(_)
        )
    }

    pub(crate) fn is_outcome(&self) -> bool {
        matches!(
            self,
            Deed::Silence
                | Deed::Take(_)
                | Deed::Refuse(_)
                | Deed::Less(_)
                | Deed::Twice
                | Deed::Lie
                | Deed::Undelivered
        )
    }

    pub(crate) fn is_of_callbacks(&self) -> bool {
        matches!(self, Deed::Drop | Deed::Repeat | Deed::Delay(_) | Deed::Swap)
    }
}
