//! Strict JSON bodies (http-contract 1.0): an unknown field, a wrong type or a second value is refused.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::problem::Problem;

/// Decodes exactly one object.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let ObjectOnly(value) =
        ObjectOnly::<T>::deserialize(&mut deserializer).map_err(|error| Problem::malformed(format!("invalid json: {error}")))?;
    deserializer.end().map_err(|_| Problem::malformed("invalid json: multiple JSON values"))?;
    Ok(value)
}

/// A struct that is written as an object; serde would take a list of its fields' values as well.
pub(crate) struct ObjectOnly<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ObjectOnly<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = ObjectOnly<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ObjectOnly<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(ObjectOnly)
            }
        }
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

/// For fields where `null` is a value and not absence.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body<'a> {
        #[serde(default)]
        count: Option<i64>,
        #[serde(default, borrow, deserialize_with = "present")]
        any: Option<&'a RawValue>,
    }

    #[test]
    fn one_value_of_the_right_shape_is_taken() {
        let body: Body<'_> = decode(br#" {"count":null,"any":null} "#).expect("valid");
        assert_eq!((body.count, body.any.map(RawValue::get)), (None, Some("null")));
        assert!(decode::<Body<'_>>(b"{}").expect("valid").any.is_none());
    }

    #[test]
    fn anything_else_is_refused_as_invalid_json() {
        for text in ["", "{", "[]", r#"{"other":1}"#, r#"{"count":"1"}"#, r#"{"count":1.5}"#, "{}{}", "{} x"] {
            let problem = decode::<Body<'_>>(text.as_bytes()).expect_err("refused");
            assert_eq!(problem.status, 400);
            assert!(problem.text.starts_with("invalid json: "), "{text:?}: {}", problem.text);
        }
        assert_eq!(decode::<Body<'_>>(b"{}{").expect_err("refused").text, "invalid json: multiple JSON values");
    }
}
