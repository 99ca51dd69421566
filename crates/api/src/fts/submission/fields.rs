//! Typed access to the fields of a dictionary, as loose about types as Python's clients are.

use longhaul_model::units::printable;
use serde_json::{Map, Value};

use super::Refusal;

/// A dictionary, with its name for error messages.
pub struct Fields<'a> {
    what: &'static str,
    values: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub fn new(what: &'static str, values: &'a Map<String, Value>) -> Self {
        Fields { what, values }
    }

    /// Value of a field; none if absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// An integer, or one written as text, since some options of the command line arrive so.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = match value {
            Value::Number(number) => number.as_i64(),
            Value::String(text) if text.trim().is_empty() => return Ok(None),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.expected(name, "int"))
    }

    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        let Some(value) = self.get(name) else { return Ok(false) };
        let flag = match value {
            Value::Bool(flag) => Some(*flag),
            Value::Number(number) => number.as_i64().map(|number| number != 0),
            Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" | "true" | "1" => Some(true),
                "" | "n" | "no" | "false" | "0" | "none" => Some(false),
                _ => None,
            },
            _ => None,
        };
        flag.ok_or_else(|| self.expected(name, "bool"))
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Refusal> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.expected(name, "str")),
        }
    }

    /// As [`Fields::text`], no longer than `most` bytes and without control characters.
    pub fn short_text(&self, name: &str, most: usize) -> Result<Option<&'a str>, Refusal> {
        let text = self.text(name)?;
        if text.is_some_and(|text| text.len() > most) {
            return Err(Refusal::malformed(format!("{} of {} is longer than {most} bytes", name, self.what)));
        }
        if text.is_some_and(|text| text.chars().any(char::is_control)) {
            return Err(Refusal::malformed(format!("{} of {} has control characters", name, self.what)));
        }
        Ok(text)
    }

    /// A list of texts; none if absent.
    pub fn texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.expected(name, "list"))?;
        let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
        texts.map(Some).ok_or_else(|| self.expected(name, "list of str"))
    }

    /// An object as it is; a text becomes the label of an object.
    pub fn metadata(&self, name: &str, most: usize) -> Result<Value, Refusal> {
        let metadata = match self.get(name) {
            None => return Ok(Value::Null),
            Some(Value::Object(object)) => Value::Object(object.clone()),
            Some(Value::String(text)) => serde_json::json!({ "label": text }),
            Some(other) => serde_json::json!({ "label": other.to_string() }),
        };
        self.bounded(name, metadata, most)
    }

    /// An object, or null if absent.
    pub fn object(&self, name: &str, most: usize) -> Result<Value, Refusal> {
        match self.get(name) {
            None => Ok(Value::Null),
            Some(value @ Value::Object(_)) => self.bounded(name, value.clone(), most),
            Some(_) => Err(self.expected(name, "dict")),
        }
    }

    fn bounded(&self, name: &str, metadata: Value, most: usize) -> Result<Value, Refusal> {
        if metadata.to_string().len() > most {
            let what = format!("{name} of {}", self.what);
            return Err(Refusal::bad(format!(
                "{what}: Job Submission Refused, metadata exceeds size limit of {most}"
            )));
        }
        Ok(metadata)
    }

    fn expected(&self, name: &str, kind: &str) -> Refusal {
        let given = self.get(name).map(Value::to_string).unwrap_or_default();
        let shown = printable(&given.chars().take(60).collect::<String>());
        Refusal::malformed(format!("{name} of {} is {shown}: {kind} is expected", self.what))
    }
}
