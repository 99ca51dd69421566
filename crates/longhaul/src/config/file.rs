//! Reads a TOML file into a flat list of keys, values and line numbers.

use std::path::Path;

use longhaul_model::units::printable;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use crate::failure::Failure;

#[derive(Debug, PartialEq)]
pub struct Entry {
    /// Dotted key, including the names of its tables.
    pub key: String,
    pub line: usize,
    pub value: Value,
}

pub fn entries(path: &Path, text: &str) -> Result<Vec<Entry>, Failure> {
    let shown = printable(&path.to_string_lossy());
    let root = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        let why = format!("line {line}: {}", printable(error.message()));
        Failure::usage(
            format!("{shown} is not valid TOML"),
            why,
            "correct that line; for the syntax see https://toml.io",
        )
    })?;
    let mut entries = Vec::new();
    collect("", text, root.get_ref(), &mut entries)?;
    Ok(entries)
}

fn collect(prefix: &str, text: &str, table: &DeTable<'_>, into: &mut Vec<Entry>) -> Result<(), Failure> {
    for (key, value) in table.iter() {
        let name = key.get_ref();
        let full = if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => collect(&full, text, inner, into)?,
            DeValue::Table(_) => {}
            leaf => {
                let line = line_of(text, key.span().start);
                into.push(Entry { key: full, line, value: json(leaf) });
            }
        }
    }
    Ok(())
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::String(number.as_str().to_owned()), Value::from),
        DeValue::Float(number) => number
            .as_str()
            .parse::<f64>()
            .map_or_else(|_| Value::String(number.as_str().to_owned()), Value::from),
        DeValue::Datetime(at) => Value::String(at.to_string()),
        DeValue::Array(items) => items.iter().map(|item| json(item.get_ref())).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_have_their_lines() {
        let text = "[agent]\nmemory_bytes = 0x10\n[[agent.storage]]\nname \
            = \"beta\"\n[[agent.storage]]\nname = \"tape\"\nwritable = false\n";
        let entries = entries(Path::new("x"), text).unwrap();
        assert_eq!(entries.len(), 2);
        let storage = entries.iter().find(|entry| entry.key == "agent.storage").unwrap();
        assert_eq!(storage.line, 3);
        assert_eq!(storage.value, json!([{ "name": "beta" }, { "name": "tape", "writable": false }]));
        let memory = entries.iter().find(|entry| entry.key == "agent.memory_bytes").unwrap();
        assert_eq!((memory.line, &memory.value), (2, &json!(16)));
    }
}
