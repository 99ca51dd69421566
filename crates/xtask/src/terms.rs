//! `cargo xtask terms`: the words by which an expert of the field searches for a mechanism, with how many
//! lines of the product's sources have them. None may be missing: a mechanism nobody finds is written twice.

use std::path::Path;

use crate::tools::root;

/// Terms of textbooks, RFCs and peers for what the product does; any spelling of a row counts.
const TERMS: &[&[&str]] = &[
    &["backpressure"],
    &["token bucket"],
    &["throttle", "throttling"],
    &["ewma", "exponentially weighted"],
    &["cusum"],
    &["quantile tracking"],
    &["conformal"],
    &["pinball"],
    &["hill climbing"],
    &["concurrency control"],
    &["straggler"],
    &["hedged request"],
    &["endgame"],
    &["brute force", "brute-force"],
    &["login throttling"],
    &["admission control"],
    &["load shedding"],
    &["head-of-line"],
    &["exclusive"],
    &["cache"],
    &["ttl"],
    &["lru"],
    &["evict"],
    &["backoff"],
    &["jitter"],
    &["audit"],
    &["write-ahead"],
    &["group commit"],
    &["outbox"],
    &["fencing"],
    &["circuit breaker"],
    &["max-min fair"],
    &["multiplicative weights"],
    &["weighted fair queueing"],
    &["ssrf"],
];

pub(crate) fn run() -> Result<(), String> {
    let counts = count(&sources()?);
    println!("{:24} lines", "term");
    for (spellings, lines) in TERMS.iter().zip(&counts) {
        println!("{:24} {lines}", spellings[0]);
    }
    let missing: Vec<&str> =
        TERMS.iter().zip(&counts).filter(|(_, lines)| **lines == 0).map(|(term, _)| term[0]).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("no source of the product says {}: name the mechanism where it is", missing.join(", ")))
}

/// The lines of `crates/*/src`, in lower case.
fn sources() -> Result<Vec<String>, String> {
    let listed = crate::tidy::tracked_files()?;
    let sources = listed.iter().filter(|name| {
        let mut parts = Path::new(name).iter();
        let is_source = parts.next().is_some_and(|part| part == "crates")
            && parts.nth(1).is_some_and(|part| part == "src");
        is_source && name.ends_with(".rs") && !name.starts_with("crates/xtask/")
    });
    let mut lines = Vec::new();
    for name in sources {
        let text = std::fs::read_to_string(root().join(name)).map_err(|error| format!("{name}: {error}"))?;
        lines.extend(text.lines().map(str::to_lowercase));
    }
    Ok(lines)
}

/// How many lines have any spelling of each term.
fn count(lines: &[String]) -> Vec<usize> {
    let has = |line: &str, term: &[&str]| term.iter().any(|spelling| line.contains(spelling));
    TERMS.iter().map(|term| lines.iter().filter(|line| has(line, term)).count()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expert_finds_every_mechanism() {
        let counts = count(&sources().unwrap());
        let missing: Vec<_> = TERMS.iter().zip(counts).filter(|(_, lines)| *lines == 0).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
