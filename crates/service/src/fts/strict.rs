//! JSON that says everything once: of a key that comes twice, two readers may see two things, one of which is
//! checked. And no more values than a request can mean: in memory, `[0,0,…]` is sixteen times what it is on
//! the wire.

use std::cell::Cell;
use std::fmt;

use longhaul_api::fts::Refusal;
use longhaul_model::units::printable;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

const REFUSED: &str = "Badly formatted JSON request";
/// Characters of a key, and of the parser's error, in a refusal.
const SHOWN_CHARS: usize = 120;
/// Bound on the values of one body: the longest body of a job holds some 1.4 million.
const VALUES_MAX: u32 = 2_000_000;

/// `serde_json` itself ends at 128 levels, so that nesting costs no stack.
pub fn value(bytes: &[u8]) -> Result<Value, Refusal> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let left = Cell::new(VALUES_MAX);
    let read = Strict { left: &left }.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    read.map_err(|error| {
        let why: String = error.to_string().chars().take(SHOWN_CHARS).collect();
        Refusal::bad(format!("{REFUSED}: {}", printable(&why)))
    })
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    left: &'a Cell<u32>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(D::Error::custom(format_args!("it has more than {VALUES_MAX} values")));
        };
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            if values.contains_key(&key) {
                let shown: String = key.chars().take(SHOWN_CHARS / 2).collect();
                return Err(A::Error::custom(format_args!("the key {shown:?} comes twice")));
            }
            values.insert(key, object.next_value_seed(self)?);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_comes_twice_is_refused_wherever_it_stands() {
        for text in
            [r#"{"a":1,"a":1}"#, r#"[{"b":{"a":null,"c":2,"a":3}}]"#, r#"{"vo":"mine","v\u006f":"theirs"}"#]
        {
            let refused = value(text.as_bytes()).unwrap_err();
            assert_eq!(refused.status, 400);
            assert!(refused.message.contains("comes twice"), "{}", refused.message);
        }
        assert!(value(br#"{"a":{"a":1},"A":[{"a":1},{"a":2}]}"#).is_ok());
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        for text in [&b""[..], b"{", b"{}x", b"[1e999]", b"\"\xff\"", b"nul", "[".repeat(1 << 20).as_bytes()]
        {
            let refused = value(text).unwrap_err().message;
            assert!(refused.starts_with(REFUSED) && refused.len() < 200, "{refused}");
        }
    }

    #[test]
    fn there_are_so_many_values_and_no_more() {
        let list = |values: u32| format!("[{}0]", "0,".repeat(values as usize - 2));
        assert!(value(list(VALUES_MAX).as_bytes()).is_ok());
        let refused = value(list(VALUES_MAX + 1).as_bytes()).unwrap_err().message;
        assert!(refused.contains("more than 2000000 values"), "{refused}");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn all_else_is_read_as_it_is(given in any_value()) {
            let text = given.to_string();
            prop_assert_eq!(value(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(&text).unwrap());
        }
    }
}
