//! Causes of errors (`Error::source`): kept inside the process, rendered as one line for its logs.

use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::units::printable;

/// Errors in one line of a log: a chain that is longer comes from a loop or a hostile peer.
const CAUSES_MAX: usize = 16;

/// The error behind an error, shared by its clones. It is for this process only, which is why a field of this
/// type needs `#[serde(skip)]`; and since the same error read back from a peer or a database has none, all
/// causes are equal.
#[derive(Clone, Default)]
pub struct Cause(Option<Arc<dyn Error + Send + Sync>>);

impl Cause {
    /// The cause of what is reported: `error` itself, with its own sources.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Cause(Some(Arc::new(error)))
    }

    /// For an implementation of [`Error::source`].
    pub fn as_source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_deref().map(|error| error as &(dyn Error + 'static))
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq for Cause {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Cause {}

impl Hash for Cause {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Renders an error with its causes, `a: b: c`, on one line that a hostile text can neither break nor forge.
/// Many errors name their cause already; what the line contains is not written a second time.
pub struct ErrorChain<'e> {
    head: &'e dyn fmt::Display,
    source: Option<&'e (dyn Error + 'static)>,
}

impl<'e> ErrorChain<'e> {
    /// The chain that begins with `error` itself.
    pub fn new<E: Error>(error: &'e E) -> Self {
        ErrorChain { head: error, source: error.source() }
    }

    /// Like [`ErrorChain::new`], with another text for the error itself.
    pub fn with_head(head: &'e dyn fmt::Display, source: Option<&'e (dyn Error + 'static)>) -> Self {
        ErrorChain { head, source }
    }
}

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = printable(&self.head.to_string());
        for cause in std::iter::successors(self.source, |&error| error.source()).take(CAUSES_MAX) {
            let text = match cause.downcast_ref::<crate::Fault>() {
                // Its title repeats that of the fault around it.
                Some(fault) if !fault.detail.is_empty() => fault.detail.clone(),
                _ => printable(&cause.to_string()),
            };
            if !line.contains(&text) {
                line.push_str(": ");
                line.push_str(&text);
            }
        }
        f.write_str(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, FaultCode};

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Nested {
        text: &'static str,
        #[source]
        source: Option<Box<Nested>>,
    }

    fn nested(texts: &[&'static str]) -> Option<Box<Nested>> {
        let (&text, rest) = texts.split_first()?;
        Some(Box::new(Nested { text, source: nested(rest) }))
    }

    fn chain(texts: &[&'static str]) -> String {
        ErrorChain::new(&*nested(texts).unwrap()).to_string()
    }

    #[test]
    fn renders_each_cause_once() {
        assert_eq!(chain(&["a", "b", "c"]), "a: b: c");
        assert_eq!(
            chain(&["reading a: disk on fire", "disk on fire", "smoke"]),
            "reading a: disk on fire: smoke"
        );
        assert_eq!(chain(&["alone"]), "alone");
    }

    #[test]
    fn a_chain_is_one_line_of_bounded_length() {
        assert_eq!(chain(&["a\nb", "\u{1b}[2J"]), "a\\nb: \\u{1b}[2J");
        let texts: Vec<&'static str> = (0..100).map(|n| &*format!("<{n}>").leak()).collect();
        assert!(chain(&texts).ends_with(": <16>"));
    }

    #[test]
    fn a_fault_in_a_fault_repeats_neither_title_nor_detail() {
        let inner = Fault::new(FaultCode::StateDirectory, "journal: disk on fire");
        let outer =
            Fault::new(FaultCode::StateDirectory, "starting: journal: disk on fire").with_source(inner);
        assert_eq!(
            ErrorChain::new(&outer).to_string(),
            "the state directory cannot be used: starting: journal: disk on fire"
        );
    }
}
