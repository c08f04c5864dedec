//! Which documents are taken as a schema.

use std::sync::Arc;

use serde_json::Value;
use veena_contract::limits;

use super::keywords::{self, REFERENCES};
use super::payload::ParseError;
use super::validate::compile;
use super::{cost, cut, payload};
use crate::problem::Problem;

const DRAFTS: [&str; 5] = [
    "http://json-schema.org/draft-04/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
];

/// Takes a document as a client wrote it: an object or `true`, within every bound, and usable.
pub(crate) fn admit(document: &str) -> Result<Arc<str>, Problem> {
    check(document).map(|()| Arc::from(document)).map_err(|reason| Problem::invalid(cut(format!("invalid argument: schema: {reason}"))))
}

fn check(document: &str) -> Result<(), String> {
    if document.len() > limits::SCHEMA_BYTES_MAX {
        return Err(format!("the document is {} bytes; the limit is {} bytes", document.len(), limits::SCHEMA_BYTES_MAX));
    }
    let root = payload::parse(document.as_bytes(), limits::SCHEMA_DEPTH_MAX).map_err(|error| match error {
        ParseError::TooDeep { max } => format!("the document nests deeper than {max} levels"),
        other => other.to_string(),
    })?;
    if !(root.is_object() || root == Value::Bool(true)) {
        return Err("the document has to be an object or true".into());
    }
    if let Some(draft) = root.get("$schema") {
        let known = draft.as_str().is_some_and(|text| DRAFTS.contains(&text.trim_end_matches('#')));
        if !known {
            return Err(format!("$schema {draft} is not served: want draft 04, 06, 07, 2019-09 or 2020-12"));
        }
    }
    let mut refused = None;
    keywords::each(&root, &mut |schema| {
        if refused.is_none() {
            refused = inner(schema, std::ptr::eq(schema, &root)).err();
        }
    });
    if let Some(reason) = refused {
        return Err(reason);
    }
    cost::check(&root)?;
    compile(&root).map(|_| ())
}

/// What no schema inside a document may have.
fn inner(schema: &Value, is_root: bool) -> Result<(), String> {
    let Value::Object(map) = schema else {
        return if schema.is_boolean() { Ok(()) } else { Err(format!("{schema} is not a schema")) };
    };
    for keyword in REFERENCES {
        match map.get(keyword) {
            None => {}
            Some(Value::String(text)) if text.starts_with('#') => {}
            Some(other) => return Err(format!("{keyword} {other} is not served: only references within the document are")),
        }
    }
    if !is_root {
        if map.contains_key("$schema") {
            return Err("$schema is only taken at the top".into());
        }
        let embedded = ["$id", "id"].iter().filter_map(|key| map.get(*key)?.as_str()).find(|id| !id.starts_with('#'));
        if let Some(id) = embedded {
            return Err(format!("$id {id:?} inside the document is not served"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usable_document_is_kept_as_it_was_written() {
        let text =
            r#"{ "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {"pattern": "^x+$"}} }"#;
        assert_eq!(admit(text).expect("usable").as_ref(), text);
        assert!(admit("true").is_ok() && admit("{}").is_ok());
    }

    #[test]
    fn anything_else_is_refused_with_a_reason() {
        let deep = format!("{}{}{}", r#"{"not":"#.repeat(64), "{}", "}".repeat(64));
        let large = format!(r#"{{"enum":["{}"]}}"#, "x".repeat(limits::SCHEMA_BYTES_MAX));
        for (text, want) in [
            ("null", "object or true"),
            ("false", "object or true"),
            ("1", "object or true"),
            (r#"{"$schema":"http://json-schema.org/draft-03/schema#"}"#, "$schema"),
            (r#"{"$ref":"http://x/y"}"#, "within the document"),
            (r#"{"properties":{"a":{"$ref":"other.json#/x"}}}"#, "within the document"),
            (r##"{"$ref":"#/nope"}"##, "points at no schema"),
            (r##"{"$ref":"#"}"##, "refers to itself"),
            (r#"{"type":"nonsense"}"#, "schema: "),
            (r#"{"pattern":"("}"#, "schema: "),
            (r#"{"pattern":"(a{1000}){1000}"}"#, "schema: "),
            (r#"{"pattern":"(?=a)"}"#, "schema: "),
            (r#"{"properties":{"a":{"$id":"http://x/y"}}}"#, "$id"),
            (r#"{"properties":{"a":7}}"#, "not a schema"),
            (deep.as_str(), "deeper than 64"),
            (large.as_str(), "the limit is 262144 bytes"),
        ] {
            let problem = admit(text).expect_err(&text[..text.len().min(60)]);
            assert_eq!(problem.status, 400);
            assert!(problem.text.starts_with("invalid argument: schema: "), "{}", problem.text);
            assert!(problem.text.contains(want), "{}: {}", &text[..text.len().min(60)], problem.text);
        }
    }
}
