//! What the keywords of JSON Schema contain, for walks over documents.

use serde_json::{Map, Value};

/// Where a keyword's value holds schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Nowhere.
    Nothing,
    /// It is one.
    One,
    /// It is a list of them.
    List,
    /// It is one, or a list of them.
    OneOrList,
    /// It is an object of them; values that are lists of names are left alone.
    Map,
}

/// Where this keyword's value holds schemas.
pub(crate) fn holds(keyword: &str) -> Holds {
    match keyword {
        "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains"
        | "not"
        | "if"
        | "then"
        | "else" => Holds::One,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Holds::List,
        "items" => Holds::OneOrList,
        "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies" => Holds::Map,
        _ => Holds::Nothing,
    }
}

/// Keywords that never make a value invalid.
pub(crate) fn is_annotation(keyword: &str) -> bool {
    matches!(keyword, "title" | "description" | "default" | "example" | "examples" | "$comment" | "deprecated" | "readOnly" | "writeOnly")
}

/// A document without its annotations.
pub(crate) fn strip(schema: &Value) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let mut kept = Map::new();
    for (keyword, value) in map.iter().filter(|(keyword, _)| !is_annotation(keyword)) {
        let value = match (holds(keyword), value) {
            (Holds::One | Holds::OneOrList, Value::Object(_)) => strip(value),
            (Holds::List | Holds::OneOrList, Value::Array(list)) => Value::Array(list.iter().map(strip).collect()),
            (Holds::Map, Value::Object(map)) => Value::Object(map.iter().map(|(name, value)| (name.clone(), strip(value))).collect()),
            _ => value.clone(),
        };
        kept.insert(keyword.clone(), value);
    }
    Value::Object(kept)
}

/// Calls `visit` with this schema and every schema inside it.
pub(crate) fn each<'a>(schema: &'a Value, visit: &mut dyn FnMut(&'a Value)) {
    visit(schema);
    let Value::Object(map) = schema else { return };
    for (keyword, value) in map {
        match (holds(keyword), value) {
            (Holds::One | Holds::OneOrList, Value::Object(_) | Value::Bool(_)) => each(value, visit),
            (Holds::List | Holds::OneOrList, Value::Array(list)) => list.iter().for_each(|schema| each(schema, visit)),
            (Holds::Map, Value::Object(map)) => map.values().filter(|value| !value.is_array()).for_each(|schema| each(schema, visit)),
            _ => {}
        }
    }
}

/// The schema a local reference points at: `#`, `#/pointer` or `#anchor`.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let fragment = reference.strip_prefix('#')?;
    if fragment.is_empty() {
        return Some(root);
    }
    if fragment.starts_with('/') {
        let pointer = crate::query::unescape_segment(fragment)?;
        return root.pointer(&pointer).filter(|target| target.is_object() || target.is_boolean());
    }
    let mut found = None;
    each(root, &mut |schema| {
        let names = ["$anchor", "$dynamicAnchor"].iter().any(|key| schema.get(key).and_then(Value::as_str) == Some(fragment));
        let old_style = ["$id", "id"].iter().any(|key| schema.get(key).and_then(Value::as_str) == Some(reference));
        if (names || old_style) && found.is_none() {
            found = Some(schema);
        }
    });
    found
}

/// The keywords that refer to another schema.
pub(crate) const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_go_and_properties_of_that_name_stay() {
        let schema = json!({"title": "x", "properties": {"title": {"type": "string", "description": "y"}}, "enum": [{"title": 1}]});
        assert_eq!(strip(&schema), json!({"properties": {"title": {"type": "string"}}, "enum": [{"title": 1}]}));
    }

    #[test]
    fn local_references_are_found() {
        let root = json!({"$defs": {"a/b": {"type": "string"}, "c": {"$anchor": "here", "type": "null"}}});
        assert_eq!(resolve(&root, "#/$defs/a~1b"), Some(&json!({"type": "string"})));
        assert_eq!(resolve(&root, "#/%24defs/c").and_then(|s| s.get("type")), Some(&json!("null")));
        assert_eq!(resolve(&root, "#here").and_then(|s| s.get("type")), Some(&json!("null")));
        assert_eq!(resolve(&root, "#"), Some(&root));
        assert_eq!(resolve(&root, "#/nope"), None);
        assert_eq!(resolve(&root, "other.json"), None);
    }
}
