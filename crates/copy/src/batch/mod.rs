//! Batch files: pairs of a source and a target, one a line, for `--from-file` and fdtcp's copyjobfile.
//!
//! A line is `SOURCE TARGET`, separated by white space; blank lines and lines that begin with `#` are
//! ignored. Names with blanks are quoted (see [`quoted`]). In a file for `--from-file`, a line with a tab
//! outside quotes is split at tabs only, so that lists of names with blanks need no quotes.
//!
//! A bad line does not affect the others: where fdtcp refuses the whole file, errors are reported line by
//! line here. [`Batch::strict`] is for callers that want all or nothing.
//!
//! Not here: the meaning of URLs; callers pass a check to [`read`]. Start with [`read`].

mod endpoint_spec;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use longhaul_gateways::copyjob as words;
use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};

pub use endpoint_spec::EndpointSpec;
pub use words::{Format, quoted};

/// Bytes of one line: enough for two URLs with paths of 1,024 bytes, every byte escaped.
pub const LINE_BYTES_MAX: usize = 8 << 10;
pub const PAIRS_MAX: usize = 1_000_000;
/// Bytes of a whole file, which bounds the memory of all pairs however long each is.
pub const BATCH_BYTES_MAX: u64 = 256 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Line number, from 1.
    pub line: u32,
    pub source: EndpointSpec,
    pub target: EndpointSpec,
}

/// A line that is not a valid pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {why}")]
pub struct BadLine {
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    pub why: String,
    /// The two words of the line, if it had two: a report then has a row for it.
    pub words: Option<(String, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: String, source: io::Error },
    #[error("{path} contains no pairs: write SOURCE TARGET on each line")]
    Empty { path: String },
    #[error("{path} has more than 1,000,000 pairs: split it")]
    TooManyPairs { path: String },
    #[error("{path} is larger than 256 MiB: split it")]
    TooLarge { path: String },
    #[error("{path}, {bad}")]
    Line { path: String, bad: BadLine },
}

impl From<BatchError> for Fault {
    fn from(error: BatchError) -> Fault {
        let code = match error {
            BatchError::TooManyPairs { .. } | BatchError::TooLarge { .. } => FaultCode::TooLarge,
            BatchError::Unreadable { .. } | BatchError::Empty { .. } | BatchError::Line { .. } => {
                FaultCode::BadRequest
            }
        };
        Fault::new(code, error.to_string()).with_source(error)
    }
}

/// The contents of a batch file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub pairs: Vec<Pair>,
    pub bad: Vec<BadLine>,
}

impl Batch {
    /// Returns the pairs, or the first bad line as an error. `path` is for the message.
    pub fn strict(self, path: &Path) -> Result<Vec<Pair>, BatchError> {
        match self.bad.into_iter().next() {
            None => Ok(self.pairs),
            Some(bad) => Err(BatchError::Line { path: shown(path), bad }),
        }
    }
}

/// Reads a batch file. `check` returns what is wrong with an `lh://` URL, if anything.
pub fn read(
    path: &Path,
    format: Format,
    check: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Batch, BatchError> {
    let unreadable = |source| BatchError::Unreadable { path: shown(path), source };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // Some systems open a directory successfully and then read nothing from it.
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(unreadable(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    parse(BufReader::new(file), path, format, check)
}

/// Parses a batch from any reader; `path` is for messages.
pub fn parse(
    mut reader: impl BufRead,
    path: &Path,
    format: Format,
    check: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Batch, BatchError> {
    let mut batch = Batch::default();
    let mut bytes_left = BATCH_BYTES_MAX;
    let mut line = Vec::new();
    let mut number = 0u32;
    loop {
        let taken = next_line(&mut reader, &mut line)
            .map_err(|source| BatchError::Unreadable { path: shown(path), source })?;
        if taken == 0 {
            break;
        }
        bytes_left =
            bytes_left.checked_sub(taken).ok_or_else(|| BatchError::TooLarge { path: shown(path) })?;
        number = number.saturating_add(1);
        match pair(&line, number, format, check) {
            Ok(None) => {}
            Ok(Some(pair)) => batch.pairs.push(pair),
            Err(bad) => batch.bad.push(bad),
        }
        if batch.pairs.len() + batch.bad.len() > PAIRS_MAX {
            return Err(BatchError::TooManyPairs { path: shown(path) });
        }
    }
    if batch.pairs.is_empty() && batch.bad.is_empty() {
        return Err(BatchError::Empty { path: shown(path) });
    }
    Ok(batch)
}

/// Reads a line without its line ending, and of an overlong line only the first bytes past the limit. Returns
/// the bytes that the line takes in the file.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<u64> {
    line.clear();
    let limit = LINE_BYTES_MAX as u64 + 2;
    let mut taken = reader.by_ref().take(limit).read_until(b'\n', line)? as u64;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if taken == limit {
        taken += reader.skip_until(b'\n')? as u64;
    }
    Ok(taken)
}

fn pair(
    line: &[u8],
    number: u32,
    format: Format,
    check: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Option<Pair>, BadLine> {
    let bad = |column: usize, why: String| BadLine { line: number, column: column as u32, why, words: None };
    if line.len() > LINE_BYTES_MAX {
        return Err(bad(LINE_BYTES_MAX + 1, format!("the line is longer than {LINE_BYTES_MAX} bytes")));
    }
    let text = std::str::from_utf8(line).map_err(|error| {
        let before = String::from_utf8_lossy(&line[..error.valid_up_to()]);
        bad(before.chars().count() + 1, "is not UTF-8".to_owned())
    })?;
    let words = words::words(text, format).map_err(|(column, why)| bad(column, why))?;
    let end = text.trim_end().chars().count() + 1;
    let (source, target) = match words.as_slice() {
        [] => return Ok(None),
        [source, target] => (source, target),
        [_] => return Err(bad(end, "the target is missing: a line is SOURCE TARGET".to_owned())),
        [_, _, more, ..] => {
            let why = "there is text after the target; put names with blanks in quotes";
            return Err(bad(more.column, why.to_owned()));
        }
    };
    let both = Some((source.text.clone(), target.text.clone()));
    let place = |word: &words::Word| {
        EndpointSpec::parse(&word.text, check)
            .map_err(|why| BadLine { words: both.clone(), ..bad(word.column, why) })
    };
    Ok(Some(Pair { line: number, source: place(source)?, target: place(target)? }))
}

/// Formats pairs as a file that `parse` reads back.
pub fn print(pairs: &[Pair], format: Format) -> String {
    let separator = if format == Format::FromFile { '\t' } else { ' ' };
    let line = |pair: &Pair| {
        format!("{}{separator}{}\n", quoted(&pair.source.to_string()), quoted(&pair.target.to_string()))
    };
    pairs.iter().map(line).collect()
}

/// Pairs between the same two endpoints, which one transfer moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<K> {
    pub source: K,
    pub target: K,
    /// Indices into the list of pairs, in order.
    pub pairs: Vec<usize>,
}

/// Groups pairs by `end` of source and target (host and port; all local paths are one end), in order of first
/// occurrence.
pub fn group<K: Ord + Clone>(pairs: &[Pair], mut end: impl FnMut(&EndpointSpec) -> K) -> Vec<Group<K>> {
    let mut groups: Vec<Group<K>> = Vec::new();
    let mut known: BTreeMap<(K, K), usize> = BTreeMap::new();
    for (index, pair) in pairs.iter().enumerate() {
        let (source, target) = (end(&pair.source), end(&pair.target));
        let at = *known.entry((source.clone(), target.clone())).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Group { source, target, pairs: Vec::new() });
        }
        groups[at].pairs.push(index);
    }
    groups
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}

/// The first three words of a report line.
#[cfg(test)]
pub(crate) fn words_of_report(line: &str) -> Option<Vec<String>> {
    Some(words::words(line, Format::Copyjob).ok()?.into_iter().map(|word| word.text).collect())
}

#[cfg(test)]
mod tests;
