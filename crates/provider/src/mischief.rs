//! How the provider misbehaves: rules that are used up, one after the other, by what is asked and what is
//! called back.

use serde::{Deserialize, Serialize};

/// What an operation (`reserve`, `hold`, `intent`, ...) or a callback (`reserveConfirmed`, ...) meets instead
/// of what it should.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) on: String,
    #[serde(rename = "do")]
    pub(crate) deed: Deed,
    /// How often; once if it is not said.
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
    /// A fault with this error id, and nothing is done.
    Fault(String),
    /// This status, with a page for people.
    Status(u16),
    /// The connection is closed before anything is done.
    Lose,
    /// It is done, and the connection is closed instead of an acknowledgement.
    LoseAnswer,
    /// It is done, and answered after so many real seconds.
    Hang(f64),
    /// It is done, and the answer is of this form: `garbage`, `huge`, `entities`, `deep`, `cut`.
    Answer(String),
    // Of operations: what comes of it.
    /// Nothing is ever done about it.
    Silence,
    /// It takes so many of the provider's seconds.
    Take(f64),
    /// It is refused later with this error id.
    Refuse(String),
    /// So many Mb/s are granted, whatever was asked for.
    Less(u64),
    /// It is done twice.
    Twice,
    /// It is said to be done, and is not.
    Lie,
    /// It never reaches the network behind, and the requester is told so.
    Undelivered,
    // Of callbacks.
    Drop,
    Repeat,
    /// Sent so many of the provider's seconds later.
    Delay(f64),
    /// Sent after the next callback, whatever that is.
    Swap,
    /// Done at once and sent before the acknowledgement of what caused it.
    BeforeAnswer,
}

#[derive(Debug, Default)]
pub(crate) struct Mischief(Vec<Rule>);

impl Mischief {
    pub(crate) fn set(&mut self, rules: Vec<Rule>) {
        self.0 = rules;
    }

    /// The first rule about it for which `fits`, which is used up by that.
    pub(crate) fn take(&mut self, on: &str, fits: impl Fn(&Deed) -> bool) -> Option<Deed> {
        let at = self.0.iter().position(|rule| rule.on == on && rule.times > 0 && fits(&rule.deed))?;
        self.0[at].times -= 1;
        Some(self.0[at].deed.clone())
    }

    /// Rules that nothing has met yet.
    pub(crate) fn unused_rules(&self) -> Vec<&Rule> {
        self.0.iter().filter(|rule| rule.times > 0).collect()
    }
}

impl Deed {
    /// Whether it decides the answer to an operation, instead of the machine.
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
