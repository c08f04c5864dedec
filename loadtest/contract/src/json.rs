//! Raw JSON, read without losing how it was written: order of keys, spelling of numbers, spacing of embedded values.

use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object in the order they were written, values as written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// The keys of an object in the order they were written; none when `raw` is not an object.
pub(crate) fn keys(raw: &str) -> Option<Vec<String>> {
    let members: Members<'_> = serde_json::from_str(raw).ok()?;
    Some(members.0.into_iter().map(|(key, _)| key).collect())
}

/// The elements of an array as written; none when `raw` is not an array.
pub(crate) fn elements(raw: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// The value at `path` (members and array positions joined by dots; empty is the whole), as written.
pub(crate) fn at<'a>(raw: &'a str, path: &str) -> Option<&'a str> {
    let mut here: &'a str = serde_json::from_str::<&RawValue>(raw).ok()?.get();
    for part in path.split('.').filter(|part| !part.is_empty()) {
        here = match part.parse::<usize>() {
            Ok(index) => elements(here)?.get(index).copied()?,
            Err(_) => {
                let members: Members<'a> = serde_json::from_str(here).ok()?;
                members.0.into_iter().find(|(key, _)| key == part)?.1.get()
            }
        };
    }
    Some(here)
}

/// Decodes a JSON string; none when `raw` is something else.
pub(crate) fn string(raw: &str) -> Option<String> {
    serde_json::from_str(raw).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_the_spelling_they_were_written_with() {
        let raw = r#"{"b":[1e400,{"x": { "y" :1.0}}],"a":"z"}"#;
        assert_eq!(at(raw, "b.0"), Some("1e400"));
        assert_eq!(at(raw, "b.1.x"), Some(r#"{ "y" :1.0}"#));
        assert_eq!(at(raw, "c"), None);
        assert_eq!(keys(raw), Some(vec!["b".to_owned(), "a".to_owned()]));
        assert_eq!(string(at(raw, "a").expect("there")), Some("z".to_owned()));
    }
}
