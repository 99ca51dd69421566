//! How names and ids are written, for descriptions of interfaces: beside the parsers, and tested against
//! them.

/// Syntax of a name or an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// Regular expression of ECMA-262, as JSON Schema has it, that matches the whole text.
    pub pattern: &'static str,
    /// Most characters.
    pub chars_max: usize,
}
