//! JSON from outside, read into types: an object is only ever an object, and `4.0` is a whole number.
//!
//! What serde derives for a struct reads a list as well, field by field: `["paused", "storm"]` would be a
//! change of a site. Nobody means that, no document describes it, and a new field would shift the meaning of
//! the others. [`Objects`] reads structs as maps, at every depth.
//!
//! What serde buffers before it knows the type (internally tagged and untagged enums, flattened fields) is
//! read by serde's own means below that point.

use std::fmt;

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

/// Reads the whole of `bytes` as one JSON value.
///
/// # Errors
/// They are not JSON, or not of this type, or an object is written as a list.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = T::deserialize(Objects(&mut reader))?;
    reader.end()?;
    Ok(value)
}

/// Reads the whole of `text` as one JSON value.
///
/// # Errors
/// As [`from_slice`].
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, serde_json::Error> {
    from_slice(text.as_bytes())
}

/// Reads a value that was parsed already.
///
/// # Errors
/// It is not of this type, or an object in it is a list.
pub fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, serde_json::Error> {
    T::deserialize(Objects(value))
}

/// A deserializer, visitor, seed or access of another one, with structs read as maps only. It serves any
/// format that describes itself, so configuration files as well.
pub struct Objects<T>(pub T);

macro_rules! forward {
    ($($method:ident($($argument:ident: $kind:ty),*);)*) => { $(
        fn $method<V: Visitor<'de>>(self, $($argument: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($argument,)* Objects(visitor))
        }
    )* };
}

macro_rules! forward_integers {
    ($($method:ident;)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method(Integer(visitor))
        }
    )* };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Objects<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Fields(visitor))
    }

    forward! {
        deserialize_any();
        deserialize_bool();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    forward_integers! {
        deserialize_i8;
        deserialize_i16;
        deserialize_i32;
        deserialize_i64;
        deserialize_i128;
        deserialize_u8;
        deserialize_u16;
        deserialize_u32;
        deserialize_u64;
        deserialize_u128;
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($kind:ty);)*) => { $(
        fn $method<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )* };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Objects<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_i128(i128);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_u128(u128);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Objects(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Objects(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Objects(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Objects(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variants: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(Objects(variants))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Objects<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Objects(inner))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(Objects(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Objects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Objects<A> {
    type Error = A::Error;
    type Variant = Objects<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(Objects(seed))?;
        Ok((value, Objects(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Objects<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(Objects(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, Objects(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.newtype_variant_seed(Fields(visitor))
    }
}

/// The visitor of a whole number, which gets one also where it is written with a fraction of zero: to JSON
/// Schema `4.0` is an integer, and some programs write all their numbers so.
struct Integer<V>(V);

/// 2^64: every whole number below it that a `f64` can hold is a `u64`.
const U64_END: f64 = 18_446_744_073_709_551_616.0;

impl<'de, V: Visitor<'de>> Visitor<'de> for Integer<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_i64(i64);
        visit_i128(i128);
        visit_u64(u64);
        visit_u128(u128);
        visit_str(&str);
        visit_bool(bool);
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        match value {
            value if value.fract() != 0.0 => self.0.visit_f64(value),
            value if (0.0..U64_END).contains(&value) => self.0.visit_u64(value as u64),
            value if (-U64_END / 2.0..0.0).contains(&value) => self.0.visit_i64(value as i64),
            value => self.0.visit_f64(value),
        }
    }
}

/// The visitor of a struct, which gets maps only: some formats give what is there, whatever they are asked
/// for.
struct Fields<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Fields<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Objects(map))
    }
}

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Fields<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        inner.deserialize_map(self)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use serde::Deserialize;
    use serde::de::value::SeqDeserializer;
    use serde_json::{Value, json};

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct Change {
        state: Option<String>,
        bounds: Option<Bounds>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Bounds {
        low: u8,
        high: u8,
    }

    #[test]
    fn a_number_is_read_as_it_was_written() {
        for number in
            [3_979_342_008_958_954.0_f64, 0.1 + 0.2, 1e23, f64::MIN_POSITIVE, 123_456.789_012_345_67]
        {
            let text = serde_json::to_string(&number).unwrap();
            assert_eq!(from_str::<f64>(&text).unwrap().to_bits(), number.to_bits(), "{text}");
        }
    }

    #[test]
    fn a_list_is_no_object() {
        let list = r#"["paused",null]"#;
        assert!(serde_json::from_str::<Change>(list).is_ok(), "what serde derives takes it");
        let error = from_str::<Change>(list).unwrap_err().to_string();
        assert!(error.contains("sequence") && error.contains("Change"), "{error}");
        let change: Change = from_str(r#"{"state":"paused"}"#).unwrap();
        assert_eq!(change, Change { state: Some("paused".to_owned()), bounds: None });
        for list in ["[]", "[null]", "[[]]"] {
            assert!(from_str::<Change>(list).is_err(), "{list}");
        }
    }

    #[test]
    fn a_list_is_no_object_at_any_depth_either() {
        let within = r#"{"bounds":[1,2]}"#;
        assert!(serde_json::from_str::<Change>(within).is_ok(), "what serde derives takes it");
        assert!(from_str::<Change>(within).is_err());
        assert!(from_str::<Option<Vec<Change>>>(&format!("[{within}]")).is_err());
        assert!(from_value::<Change>(json!({"bounds": [1, 2]})).is_err());
        let right: Vec<Change> = from_str(r#"[{"bounds":{"low":1,"high":2}}]"#).unwrap();
        assert_eq!(right[0].bounds, Some(Bounds { low: 1, high: 2 }));
    }

    #[test]
    fn a_format_that_gives_a_list_for_a_map_is_refused_as_well() {
        let list = || SeqDeserializer::<_, serde::de::value::Error>::new([1_u8, 2].into_iter());
        assert!(Bounds::deserialize(list()).is_ok(), "what serde derives takes it");
        assert!(Bounds::deserialize(Objects(list())).is_err());
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        let read = |low: &str| from_str::<Bounds>(&format!(r#"{{"low":{low},"high":2.0}}"#));
        assert_eq!(read("4.0").unwrap(), Bounds { low: 4, high: 2 });
        assert_eq!(read("4e1").unwrap().low, 40);
        for wrong in ["4.5", "-4.0", "256.0", "1e300", "\"4\"", "null", "true"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let most: u64 = from_str("18446744073709549568.0").unwrap();
        assert_eq!(most, u64::MAX - 2_047, "the largest below 2^64 that a double can hold");
        assert!(from_str::<u64>("18446744073709551616.0").is_err());
        assert_eq!(from_str::<i64>("-9223372036854775808.0").unwrap(), i64::MIN);
        assert_eq!(from_value::<Vec<u8>>(json!([1.0, 2])).unwrap(), [1, 2]);
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    enum Shape {
        Point,
        Line(u8),
        Pair(u8, u8),
        Circle { x: u8, r: u8 },
    }

    #[test]
    fn variants_with_fields_are_objects_and_all_others_as_before() {
        let all = r#"["Point",{"Line":1},{"Pair":[1,2]},{"Circle":{"x":1,"r":2}}]"#;
        let shapes = vec![Shape::Point, Shape::Line(1), Shape::Pair(1, 2), Shape::Circle { x: 1, r: 2 }];
        assert_eq!(from_str::<Vec<Shape>>(all).unwrap(), shapes);
        assert!(serde_json::from_str::<Shape>(r#"{"Circle":[1,2]}"#).is_ok(), "what serde derives takes it");
        assert!(from_str::<Shape>(r#"{"Circle":[1,2]}"#).is_err());
    }

    #[test]
    fn what_follows_the_value_is_refused_and_values_without_a_type_are_read_whole() {
        assert!(from_str::<Value>("{} {}").is_err());
        let text = r#"{"a":[1,-2,2.5,null,true,"x",{"b":[]}],"c":18446744073709551615}"#;
        assert_eq!(from_str::<Value>(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }
}
