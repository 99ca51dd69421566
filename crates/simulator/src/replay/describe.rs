//! Decisions in words, and the fields in which two of them differ.

use std::collections::BTreeMap;

use longhaul_model::{StorageId, StorageName, Timestamp, units};
use longhaul_scheduler::{Candidate, Decision, Lease, Strategy};
use serde_json::Value;

/// Differing fields listed: as many as a person reads, the first says most.
const FIELDS_MAX: usize = 5;

pub(super) fn storage_name(id: StorageId, names: &BTreeMap<StorageId, StorageName>) -> String {
    names.get(&id).map_or_else(|| format!("storage {id}"), ToString::to_string)
}

pub(super) fn describe_decision(
    decision: Option<&Decision>,
    names: &BTreeMap<StorageId, StorageName>,
) -> String {
    let name = |id: StorageId| storage_name(id, names);
    match decision {
        None => "nothing: it waits".to_owned(),
        Some(Decision::Lease(lease)) => format!(
            "file {} ({}) for {} from {}{}, try {}",
            lease.file,
            units::bytes(lease.size),
            name(lease.target),
            name(lease.source),
            lease.choice.candidates.first().map(describe_expected).unwrap_or_default(),
            lease.try_number
        ),
        Some(Decision::Expand { block, target, after, limit, .. }) => {
            let after = after.map_or_else(String::new, |file| format!(" after file {file}"));
            let files = units::plural(u64::from(*limit), "file", "files");
            format!("ask for {files} of block {block} that {} lacks{after}", name(*target))
        }
        Some(Decision::Cancel { transfer, why, .. }) => format!("take transfer {transfer} back: {why:?}"),
        Some(Decision::Recall(asked)) => format!(
            "ask for transfer {} back from {}: {:.1} s there at {}, {:.1} s from {}",
            asked.transfer,
            name(asked.source),
            asked.finish.as_secs_f64(),
            units::rate(asked.rate_bytes_per_s),
            asked.other_finish.as_secs_f64(),
            name(asked.other)
        ),
        Some(Decision::Drop { transfer }) => format!("forget transfer {transfer}"),
        Some(Decision::Suspect { file, source, fault, .. }) => {
            format!("suspect file {file} at {}: {fault}", name(*source))
        }
        Some(Decision::Fail { file, target, fault, .. }) => {
            format!("give up file {file} for {}: {fault}", name(*target))
        }
    }
}

fn describe_expected(candidate: &Candidate) -> String {
    format!(" in {:.1} s at {}", candidate.finish.as_secs_f64(), units::rate(candidate.rate_bytes_per_s))
}

/// One case in which another strategy would have chosen another source.
pub(super) fn describe_other_choice(
    strategy: Strategy,
    lease: &Lease,
    preferred: StorageId,
    now: Timestamp,
    names: &BTreeMap<StorageId, StorageName>,
) -> String {
    let of = |id: StorageId| {
        let candidate = lease.choice.candidates.iter().find(|candidate| candidate.storage == id);
        format!("{}{}", storage_name(id, names), candidate.map(describe_expected).unwrap_or_default())
    };
    let (size, target) = (units::bytes(lease.size), storage_name(lease.target, names));
    format!(
        "file {} ({size}) for {target} at {now}: from {}; {strategy} would have taken {}",
        lease.file,
        of(lease.source),
        of(preferred)
    )
}

/// Which fields of two bodies differ, and how.
pub(super) fn differing_fields(recorded: &str, replayed: &str) -> Vec<String> {
    let value = |text| serde_json::from_str(text).unwrap_or(Value::Null);
    let mut found = Vec::new();
    collect_differences(String::new(), &value(recorded), &value(replayed), &mut found);
    found
}

fn collect_differences(path: String, one: &Value, other: &Value, found: &mut Vec<String>) {
    if found.len() >= FIELDS_MAX || one == other {
        return;
    }
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let part =
                    |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
                collect_differences(below(key), &part(one), &part(other), found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (at, (one, other)) in one.iter().zip(other).enumerate() {
                collect_differences(below(&(at + 1).to_string()), one, other, found);
            }
        }
        _ => {
            let path = if path.is_empty() { "it".to_owned() } else { path };
            found.push(format!("{path}: {} then, {} now", shorten(one), shorten(other)));
        }
    }
}

fn shorten(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    let text = match value {
        Value::Null => return "nothing".to_owned(),
        value => value.to_string(),
    };
    match text.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_with_both_values() {
        let found = differing_fields(
            r#"{"Lease":{"source":3,"why":[1,2]}}"#,
            r#"{"Lease":{"source":4,"why":[1,5]}}"#,
        );
        assert_eq!(found, ["Lease.source: 3 then, 4 now", "Lease.why.2: 2 then, 5 now"]);
        assert_eq!(differing_fields("null", r#"{"Drop":1}"#), [r#"it: nothing then, {"Drop":1} now"#]);
        assert_eq!(differing_fields("7", "7").len(), 0);
    }
}
