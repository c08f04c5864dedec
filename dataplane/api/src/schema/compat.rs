//! Does every message that was valid stay valid? Judged from the documents alone, and closed: what is not known to be safe is refused.
//!
//! One hole is deliberate (http-contract 3): a new optional property under an open model, although an old message may have used its name
//! for something else.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::keywords::{REFERENCES, resolve};

/// Checks a stripped document against the stripped one before it.
pub(crate) fn check(old: &Value, new: &Value) -> Result<(), String> {
    if old.get("$schema") != new.get("$schema") {
        return Err("$schema may not change".into());
    }
    let draft = old.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let refs_stand_alone = ["draft-04", "draft-06", "draft-07"].iter().any(|name| draft.contains(name));
    Comparison { old_root: old, new_root: new, refs_stand_alone, assumed: BTreeSet::new() }.schema(old, new, "#")
}

struct Comparison<'a> {
    old_root: &'a Value,
    new_root: &'a Value,
    /// Up to draft 07 a `$ref` hides everything beside it.
    refs_stand_alone: bool,
    /// Pairs of references that are being compared further out: a value is finite, so they may be assumed further in.
    assumed: BTreeSet<(String, String)>,
}

type Verdict = Result<(), String>;

impl<'a> Comparison<'a> {
    fn schema(&mut self, old: &'a Value, new: &'a Value, at: &str) -> Verdict {
        static NOTHING: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
        if is_anything(new) || *old == Value::Bool(false) {
            return Ok(());
        }
        let new = match new {
            Value::Object(new) => new,
            Value::Bool(false) => return Err(format!("{at}: values that were valid would all be refused")),
            _ => return Err(format!("{at}: not a schema")),
        };
        let old = match old {
            Value::Object(old) => old,
            _ => &NOTHING,
        };
        if self.refs_stand_alone && (old.contains_key("$ref") || new.contains_key("$ref")) {
            return match (old.get("$ref"), new.get("$ref")) {
                (Some(old), Some(new)) => self.reference(old, new, at),
                _ => Err(format!("{at}: $ref may not come or go")),
            };
        }
        self.unevaluated(old, new, at)?;
        self.references(old, new, at)?;
        types(old, new, at)?;
        enumeration(old, new, at)?;
        bounds(old, new, at)?;
        self.objects(old, new, at)?;
        self.arrays(old, new, at)?;
        self.combinations(old, new, at)?;
        for (keyword, value) in new {
            if !is_handled(keyword) && !old.get(keyword).is_some_and(|old| self.is_identical(old, value)) {
                return Err(format!("{at}: {keyword} may only stay as it is or go"));
            }
        }
        Ok(())
    }

    /// What `unevaluated…` refuses depends on everything beside it.
    fn unevaluated(&self, old: &'a Map<String, Value>, new: &'a Map<String, Value>, at: &str) -> Verdict {
        for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
            let is_strict = new.get(keyword).is_some_and(|value| !is_anything(value));
            if is_strict && !(old.len() == new.len() && old.iter().all(|(k, v)| new.get(k).is_some_and(|n| self.is_identical(v, n)))) {
                return Err(format!("{at}: nothing beside {keyword} may change"));
            }
        }
        Ok(())
    }

    fn references(&mut self, old: &'a Map<String, Value>, new: &'a Map<String, Value>, at: &str) -> Verdict {
        for keyword in REFERENCES {
            match (old.get(keyword), new.get(keyword)) {
                (_, None) => {}
                (Some(old), Some(new)) => self.reference(old, new, at)?,
                (None, Some(_)) => return Err(format!("{at}: {keyword} may not be added")),
            }
        }
        Ok(())
    }

    fn reference(&mut self, old: &'a Value, new: &'a Value, at: &str) -> Verdict {
        let (Some(old), Some(new)) = (old.as_str(), new.as_str()) else { return Err(format!("{at}: a reference has to be a string")) };
        if !self.assumed.insert((old.to_owned(), new.to_owned())) {
            return Ok(());
        }
        match (resolve(self.old_root, old), resolve(self.new_root, new)) {
            (Some(old_target), Some(new_target)) => self.schema(old_target, new_target, new),
            _ => Err(format!("{at}: {new:?} points at no schema")),
        }
    }

    fn objects(&mut self, old: &'a Map<String, Value>, new: &'a Map<String, Value>, at: &str) -> Verdict {
        if let Some(Value::Array(required)) = new.get("required") {
            let before = old.get("required").and_then(Value::as_array);
            if let Some(name) = required.iter().find(|name| !before.is_some_and(|before| before.contains(name))) {
                return Err(format!("{at}: {name} may not become required"));
            }
        }
        let has_patterns =
            |map: &Map<String, Value>| map.get("patternProperties").and_then(Value::as_object).is_some_and(|m| !m.is_empty());
        let (old_properties, new_properties) = (object(old, "properties"), object(new, "properties"));
        for (name, old_property) in old_properties.into_iter().flatten() {
            match new_properties.and_then(|properties| properties.get(name)) {
                Some(property) => self.schema(old_property, property, &format!("{at}/properties/{name}"))?,
                None => return Err(format!("{at}: property {name:?} may not be removed")),
            }
        }
        let old_rest = old.get("additionalProperties").unwrap_or(&Value::Bool(true));
        for (name, property) in new_properties.into_iter().flatten() {
            if old_properties.is_some_and(|properties| properties.contains_key(name)) || is_anything(old_rest) {
                continue;
            }
            if has_patterns(old) {
                return Err(format!("{at}: property {name:?} may not be added beside patternProperties"));
            }
            self.schema(old_rest, property, &format!("{at}/properties/{name}"))?;
        }
        if let Some(new_rest) = new.get("additionalProperties") {
            self.schema(old_rest, new_rest, &format!("{at}/additionalProperties"))?;
            if has_patterns(old) && !has_patterns(new) && !is_anything(new_rest) {
                return Err(format!("{at}: patternProperties may not go while additionalProperties is bounded"));
            }
        }
        if let Some(names) = new.get("propertyNames") {
            self.schema(old.get("propertyNames").unwrap_or(&Value::Bool(true)), names, &format!("{at}/propertyNames"))?;
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            for (name, value) in object(new, keyword).into_iter().flatten() {
                let before = old.get(keyword).and_then(|map| map.get(name));
                if !before.is_some_and(|before| self.is_identical(before, value)) {
                    return Err(format!("{at}: {keyword} of {name:?} may only stay as it is or go"));
                }
            }
        }
        Ok(())
    }

    fn arrays(&mut self, old: &'a Map<String, Value>, new: &'a Map<String, Value>, at: &str) -> Verdict {
        let ((old_first, old_rest), (new_first, new_rest)) = (items(old), items(new));
        let old_rest = old_rest.unwrap_or(&Value::Bool(true));
        if new_first.len() == old_first.len() {
            for (place, (old, new)) in old_first.iter().zip(new_first).enumerate() {
                self.schema(old, new, &format!("{at}/items/{place}"))?;
            }
        } else if !new_first.is_empty() || new_rest.is_some_and(|rest| !is_anything(rest)) {
            return Err(format!("{at}: the number of items with a schema of their own may not change"));
        }
        if let Some(rest) = new_rest {
            self.schema(old_rest, rest, &format!("{at}/items"))?;
        }
        if new.contains_key("contains") {
            let is_same = |keyword| match (old.get(keyword), new.get(keyword)) {
                (None, None) => true,
                (Some(old), Some(new)) => self.is_identical(old, new),
                _ => false,
            };
            if !["contains", "minContains", "maxContains"].into_iter().all(is_same) {
                return Err(format!("{at}: contains may only stay as it is or go"));
            }
        }
        Ok(())
    }

    fn combinations(&mut self, old: &'a Map<String, Value>, new: &'a Map<String, Value>, at: &str) -> Verdict {
        for (keyword, may_grow) in [("allOf", false), ("anyOf", true)] {
            let Some(Value::Array(new_list)) = new.get(keyword) else { continue };
            let Some(Value::Array(old_list)) = old.get(keyword) else { return Err(format!("{at}: {keyword} may not be added")) };
            let fits = if may_grow { new_list.len() >= old_list.len() } else { new_list.len() == old_list.len() };
            if !fits {
                return Err(format!("{at}: the branches of {keyword} may not change in number this way"));
            }
            for (place, (old, new)) in old_list.iter().zip(new_list).enumerate() {
                self.schema(old, new, &format!("{at}/{keyword}/{place}"))?;
            }
        }
        if new.contains_key("if") {
            let is_same = |keyword| match (old.get(keyword), new.get(keyword)) {
                (None, None) => true,
                (Some(old), Some(new)) => self.is_identical(old, new),
                _ => false,
            };
            if !["if", "then", "else"].into_iter().all(is_same) {
                return Err(format!("{at}: if, then and else may only stay as they are or go together"));
            }
        }
        Ok(())
    }

    /// The same text, and everything it refers to the same as well.
    fn is_identical(&self, old: &Value, new: &Value) -> bool {
        old == new && self.targets_are_identical(new, &mut BTreeSet::new())
    }

    fn targets_are_identical(&self, value: &Value, seen: &mut BTreeSet<String>) -> bool {
        match value {
            Value::Array(list) => list.iter().all(|value| self.targets_are_identical(value, seen)),
            Value::Object(map) => map.iter().all(|(keyword, value)| {
                let is_reference = REFERENCES.contains(&keyword.as_str());
                match value.as_str().filter(|_| is_reference) {
                    Some(reference) if seen.insert(reference.to_owned()) => {
                        let (old, new) = (resolve(self.old_root, reference), resolve(self.new_root, reference));
                        old == new && new.is_none_or(|target| self.targets_are_identical(target, seen))
                    }
                    Some(_) => true,
                    None => self.targets_are_identical(value, seen),
                }
            }),
            _ => true,
        }
    }
}

/// Keywords with a rule of their own above or below, and those that only name or hold.
fn is_handled(keyword: &str) -> bool {
    matches!(
        keyword,
        "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$defs" | "definitions" | "$vocabulary"
    ) || REFERENCES.contains(&keyword)
        || matches!(keyword, "type" | "enum" | "const" | "required" | "properties" | "additionalProperties" | "propertyNames")
        || matches!(keyword, "dependentRequired" | "dependentSchemas" | "dependencies")
        || matches!(keyword, "items" | "prefixItems" | "additionalItems" | "contains" | "minContains" | "maxContains" | "uniqueItems")
        || matches!(keyword, "unevaluatedProperties" | "unevaluatedItems")
        || matches!(keyword, "allOf" | "anyOf" | "if" | "then" | "else" | "multipleOf")
        || LOWER.contains(&keyword)
        || UPPER.contains(&keyword)
}

const LOWER: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
const UPPER: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];

fn is_anything(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

fn object<'a>(map: &'a Map<String, Value>, keyword: &str) -> Option<&'a Map<String, Value>> {
    map.get(keyword).and_then(Value::as_object)
}

/// The schemas of the first items, and the schema of the rest, in either of the two spellings.
fn items(map: &Map<String, Value>) -> (&[Value], Option<&Value>) {
    match (map.get("prefixItems"), map.get("items")) {
        (_, Some(Value::Array(first))) => (first, map.get("additionalItems")),
        (Some(Value::Array(first)), rest) => (first, rest),
        (_, rest) => (&[], rest),
    }
}

fn types(old: &Map<String, Value>, new: &Map<String, Value>, at: &str) -> Verdict {
    let Some(new) = new.get("type") else { return Ok(()) };
    let Some(old) = old.get("type") else { return Err(format!("{at}: type may not be added")) };
    let names = |value: &Value| match value {
        Value::Array(list) => list.clone(),
        one => vec![one.clone()],
    };
    let new = names(new);
    let holds = |name: &Value| new.contains(name) || (*name == "integer" && new.contains(&Value::from("number")));
    match names(old).iter().find(|name| !holds(name)) {
        Some(name) => Err(format!("{at}: type {name} may not be removed")),
        None => Ok(()),
    }
}

fn enumeration(old: &Map<String, Value>, new: &Map<String, Value>, at: &str) -> Verdict {
    let fixed = old.get("const");
    if new.get("const").is_some_and(|value| fixed != Some(value)) {
        return Err(format!("{at}: const may only stay as it is or go"));
    }
    let Some(Value::Array(new)) = new.get("enum") else { return Ok(()) };
    let is_kept = match (old.get("enum"), fixed) {
        (Some(Value::Array(old)), _) => old.iter().all(|value| new.contains(value)),
        (_, Some(value)) => new.contains(value),
        _ => false,
    };
    if is_kept { Ok(()) } else { Err(format!("{at}: enum may only grow or go")) }
}

fn bounds(old: &Map<String, Value>, new: &Map<String, Value>, at: &str) -> Verdict {
    let looser = |keyword: &str, fits: fn(f64, f64) -> bool| match (old.get(keyword), new.get(keyword)) {
        (_, None) => true,
        (Some(old), Some(new)) if old == new => true,
        // Draft 04 has the exclusive bounds as switches.
        (_, Some(Value::Bool(is_on))) => !is_on,
        (Some(Value::Number(old)), Some(Value::Number(new))) => old.as_f64().zip(new.as_f64()).is_some_and(|(old, new)| fits(old, new)),
        (None, Some(new)) => keyword.starts_with("min") && keyword != "minimum" && new.as_u64() == Some(0),
        _ => false,
    };
    let tightened = LOWER
        .iter()
        .find(|keyword| !looser(keyword, |old, new| new <= old))
        .or_else(|| UPPER.iter().find(|keyword| !looser(keyword, |old, new| new >= old)));
    if let Some(keyword) = tightened {
        return Err(format!("{at}: {keyword} may not be tightened"));
    }
    if new.get("uniqueItems") == Some(&Value::Bool(true)) && old.get("uniqueItems") != Some(&Value::Bool(true)) {
        return Err(format!("{at}: uniqueItems may not be added"));
    }
    let divides = |old: &Value, new: &Value| old == new || old.as_u64().zip(new.as_u64()).is_some_and(|(o, n)| n > 0 && o % n == 0);
    match (old.get("multipleOf"), new.get("multipleOf")) {
        (_, None) => Ok(()),
        (Some(old), Some(new)) if divides(old, new) => Ok(()),
        _ => Err(format!("{at}: multipleOf may not be tightened")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fits(old: &Value, new: &Value) -> bool {
        check(old, new).is_ok()
    }

    #[test]
    fn loosening_is_compatible() {
        let object = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maxLength": 5}}, "required": ["a"]});
        for new in [
            json!({}),
            json!(true),
            json!({"type": ["object", "null"], "properties": {"a": {"type": "number", "minimum": 2, "maxLength": 6}}}),
            json!({"properties": {"a": true, "b": {"type": "string"}}, "required": ["a"]}),
        ] {
            assert_eq!(check(&object, &new), Ok(()), "{new}");
        }
        for (old, new) in [
            (json!({"enum": [1, 2]}), json!({"enum": [2, 1, 3]})),
            (json!({"const": 1}), json!({"enum": [1, 2]})),
            (json!({"multipleOf": 6}), json!({"multipleOf": 3})),
            (json!({"anyOf": [{"type": "string"}]}), json!({"anyOf": [{"type": "string"}, {"type": "null"}]})),
            (json!({"allOf": [{"minimum": 1}]}), json!({"allOf": [{"minimum": 0}]})),
            (json!({"not": {"type": "null"}}), json!({})),
            (json!({"pattern": "a"}), json!({})),
            (json!({"items": {"type": "integer"}}), json!({"items": {"type": "number"}})),
            (json!({"prefixItems": [{"const": 1}], "items": false}), json!({"prefixItems": [true], "items": false})),
            (
                json!({"properties": {"a": true}, "additionalProperties": false}),
                json!({"properties": {"a": true, "b": {"type": "null"}}, "additionalProperties": false}),
            ),
            (
                json!({"additionalProperties": {"type": "integer"}}),
                json!({"properties": {"a": {"type": "number"}}, "additionalProperties": {"type": "number"}}),
            ),
            (json!({"$defs": {"x": {"minimum": 1}}, "$ref": "#/$defs/x"}), json!({"$defs": {"y": {"minimum": 0}}, "$ref": "#/$defs/y"})),
            (json!(false), json!({"type": "string"})),
        ] {
            assert_eq!(check(&old, &new), Ok(()), "{old} -> {new}");
        }
    }

    #[test]
    fn tightening_is_refused() {
        for (old, new) in [
            (json!({}), json!({"type": "object"})),
            (json!(true), json!(false)),
            (json!({"type": ["object", "null"]}), json!({"type": "object"})),
            (json!({"type": "number"}), json!({"type": "integer"})),
            (json!({"properties": {"a": true}}), json!({"properties": {}})),
            (json!({"properties": {"a": true}}), json!({"required": ["a"], "properties": {"a": true}})),
            (json!({"properties": {"a": {}}}), json!({"properties": {"a": {"type": "string"}}})),
            (json!({}), json!({"additionalProperties": false})),
            (json!({"additionalProperties": {"type": "number"}}), json!({"additionalProperties": {"type": "integer"}})),
            (
                json!({"additionalProperties": {"type": "number"}}),
                json!({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "number"}}),
            ),
            (json!({"enum": [1, 2]}), json!({"enum": [1]})),
            (json!({"const": 1}), json!({"const": 2})),
            (json!({"minimum": 1}), json!({"minimum": 2})),
            (json!({}), json!({"maximum": 2})),
            (json!({"minimum": 1}), json!({"exclusiveMinimum": 0})),
            (json!({"maxLength": 3}), json!({"maxLength": 2})),
            (json!({"multipleOf": 3}), json!({"multipleOf": 6})),
            (json!({"pattern": "a"}), json!({"pattern": "b"})),
            (json!({}), json!({"format": "date"})),
            (json!({"oneOf": [{"type": "string"}]}), json!({"oneOf": [{"type": "string"}, {"type": "null"}]})),
            (json!({"not": {"minimum": 1}}), json!({"not": {"minimum": 0}})),
            (json!({"contains": {"const": 1}, "minContains": 0}), json!({"contains": {"const": 1}})),
            (json!({"if": {"const": 1}}), json!({"if": {"const": 1}, "then": false})),
            (json!({"if": {"const": 1}, "else": {"type": "null"}}), json!({"else": {"type": "null"}, "if": {"const": 2}})),
            (json!({"prefixItems": [{"const": 1}], "items": {"const": 2}}), json!({"items": {"const": 2}})),
            (json!({"patternProperties": {"^x": true}, "additionalProperties": false}), json!({"additionalProperties": false})),
            (
                json!({"patternProperties": {"^x": true}, "additionalProperties": false}),
                json!({"patternProperties": {"^x": true}, "properties": {"xa": {"type": "null"}}, "additionalProperties": false}),
            ),
            (
                json!({"unevaluatedProperties": false, "properties": {"a": true, "b": {"type": "null"}}}),
                json!({"unevaluatedProperties": false, "properties": {"a": true, "b": true}}),
            ),
            (json!({"uniqueItems": false}), json!({"uniqueItems": true})),
            (json!({"allOf": [{"minimum": 1}]}), json!({"allOf": [{"minimum": 1}, {"maximum": 5}]})),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), json!({"anyOf": [{"type": "string"}]})),
            (json!({}), json!({"$schema": "https://json-schema.org/draft/2020-12/schema"})),
            (json!({"$defs": {"x": {"minimum": 1}}, "$ref": "#/$defs/x"}), json!({"$defs": {"x": {"minimum": 2}}, "$ref": "#/$defs/x"})),
            (json!({"dependentRequired": {"a": ["b"]}}), json!({"dependentRequired": {"a": ["b", "c"]}})),
        ] {
            assert!(!fits(&old, &new), "{old} -> {new}");
        }
    }

    #[test]
    fn a_loosened_definition_tightens_what_negates_it() {
        let document = |minimum| json!({"$defs": {"x": {"minimum": minimum}}, "not": {"$ref": "#/$defs/x"}});
        assert!(!fits(&document(2), &document(1)));
        let recursive = |minimum| json!({"properties": {"a": {"$ref": "#"}, "n": {"minimum": minimum}}});
        assert!(fits(&recursive(2), &recursive(1)));
        assert!(!fits(&recursive(1), &recursive(2)));
    }

    #[test]
    fn up_to_draft_07_a_reference_hides_what_stands_beside_it() {
        let draft = "http://json-schema.org/draft-07/schema#";
        let hidden = json!({"$schema": draft, "definitions": {"x": true}, "properties": {"a": {"$ref": "#/definitions/x", "minimum": 5}}});
        let bare = json!({"$schema": draft, "definitions": {"x": true}, "properties": {"a": {"minimum": 5}}});
        assert!(!fits(&hidden, &bare), "the hidden minimum would begin to count");
    }
}
