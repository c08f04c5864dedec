//! How often one place of a value may be checked: a document that lets this grow without bound is refused before it is ever used.
//!
//! Schemas are states, and a step into a value (a property, an item) leads from a set of states to another. Counting states with
//! multiplicity gives the number of checks at each place. All reachable counts are explored; too many of either refuses the document.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};
use veena_contract::limits;

use super::keywords::{REFERENCES, resolve};

/// A schema, by its place in memory, and how often it applies.
type Counts<'a> = BTreeMap<usize, (&'a Map<String, Value>, usize)>;
type Situation = Vec<(usize, usize)>;

/// Is the work for every value bounded? If not, why.
pub(crate) fn check(root: &Value) -> Result<(), String> {
    let mut explorer = Explorer { root, work: 0 };
    let mut start = Counts::new();
    explorer.enter(root, 1, &mut start, &mut Vec::new())?;
    let mut seen = BTreeSet::from([situation(&start)]);
    let mut queue = VecDeque::from([start]);
    while let Some(counts) = queue.pop_front() {
        for step in steps(&counts) {
            let mut next = Counts::new();
            for (schema, times) in counts.values() {
                explorer.step(schema, *times, step, &mut next)?;
            }
            if !next.is_empty() && seen.insert(situation(&next)) {
                if seen.len() > limits::SCHEMA_SITUATIONS_MAX {
                    return Err("the document has too many combinations of schemas".into());
                }
                queue.push_back(next);
            }
        }
    }
    Ok(())
}

fn situation(counts: &Counts<'_>) -> Situation {
    counts.iter().map(|(place, (_, times))| (*place, *times)).collect()
}

/// One way into a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step<'a> {
    /// Into the property of this name.
    Property(&'a str),
    /// Into a property that no schema names.
    OtherProperty,
    /// To the name of a property.
    Name,
    /// Into the item at this place.
    Item(usize),
    /// Into an item behind all that have a schema of their own.
    OtherItem,
}

fn steps<'a>(counts: &Counts<'a>) -> BTreeSet<Step<'a>> {
    let mut steps = BTreeSet::from([Step::OtherProperty, Step::Name, Step::OtherItem]);
    for (schema, _) in counts.values() {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            steps.extend(properties.keys().map(|name| Step::Property(name)));
        }
        for keyword in ["prefixItems", "items"] {
            if let Some(Value::Array(list)) = schema.get(keyword) {
                steps.extend((0..list.len()).map(Step::Item));
            }
        }
    }
    steps
}

struct Explorer<'a> {
    root: &'a Value,
    work: usize,
}

impl<'a> Explorer<'a> {
    /// Adds a schema and all that apply with it to the same place.
    fn enter(&mut self, schema: &'a Value, times: usize, counts: &mut Counts<'a>, inside: &mut Vec<usize>) -> Result<(), String> {
        self.work += 1;
        if self.work > limits::SCHEMA_WORK_STEPS_MAX {
            return Err("the document has too many combinations of schemas".into());
        }
        let Value::Object(map) = schema else { return Ok(()) };
        let place = std::ptr::from_ref(map).addr();
        if inside.contains(&place) {
            return Err("a schema refers to itself without stepping into the value".into());
        }
        counts.entry(place).or_insert((map, 0)).1 += times;
        if counts.values().map(|(_, times)| times).sum::<usize>() > limits::SCHEMA_PATHS_MAX {
            return Err(format!("more than {} schemas may apply to one place of a value", limits::SCHEMA_PATHS_MAX));
        }
        inside.push(place);
        for keyword in ["allOf", "anyOf", "oneOf"] {
            if let Some(Value::Array(list)) = map.get(keyword) {
                for schema in list {
                    self.enter(schema, times, counts, inside)?;
                }
            }
        }
        for keyword in ["not", "if", "then", "else"] {
            if let Some(schema) = map.get(keyword) {
                self.enter(schema, times, counts, inside)?;
            }
        }
        for keyword in ["dependentSchemas", "dependencies"] {
            if let Some(Value::Object(schemas)) = map.get(keyword) {
                for schema in schemas.values() {
                    self.enter(schema, times, counts, inside)?;
                }
            }
        }
        for keyword in REFERENCES {
            if let Some(reference) = map.get(keyword) {
                let text = reference.as_str().ok_or("a reference has to be a string")?;
                let target = resolve(self.root, text).ok_or_else(|| format!("{keyword} {text:?} points at no schema of this document"))?;
                self.enter(target, times, counts, inside)?;
            }
        }
        inside.pop();
        Ok(())
    }

    /// Adds what applies one step further in.
    fn step(&mut self, map: &'a Map<String, Value>, times: usize, step: Step<'_>, next: &mut Counts<'a>) -> Result<(), String> {
        let mut targets: Vec<&'a Value> = Vec::new();
        match step {
            Step::Property(_) | Step::OtherProperty => {
                let named = match step {
                    Step::Property(name) => map.get("properties").and_then(|properties| properties.get(name)),
                    _ => None,
                };
                targets.extend(named);
                if let Some(Value::Object(patterns)) = map.get("patternProperties") {
                    targets.extend(patterns.values());
                }
                if named.is_none() {
                    targets.extend(map.get("additionalProperties"));
                }
                targets.extend(map.get("unevaluatedProperties"));
            }
            Step::Name => targets.extend(map.get("propertyNames")),
            Step::Item(_) | Step::OtherItem => {
                let own = |keyword: &str| match (map.get(keyword), step) {
                    (Some(Value::Array(list)), Step::Item(at)) => list.get(at),
                    _ => None,
                };
                let placed = own("prefixItems").or_else(|| own("items"));
                targets.extend(placed);
                if placed.is_none() {
                    targets.extend(map.get("items").filter(|items| !items.is_array()));
                    targets.extend(map.get("additionalItems"));
                }
                targets.extend(map.get("contains"));
                targets.extend(map.get("unevaluatedItems"));
            }
        }
        for target in targets {
            self.enter(target, times, next, &mut Vec::new())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_and_recursive_documents_are_bounded() {
        for schema in [
            json!(true),
            json!({}),
            json!({"properties": {"a": {"$ref": "#"}, "b": {"items": {"$ref": "#"}}}, "additionalProperties": {"$ref": "#"}}),
            json!({"anyOf": [{"type": "null"}, {"properties": {"next": {"$ref": "#"}}}]}),
            json!({"$defs": {"t": {"prefixItems": [{"$ref": "#/$defs/t"}, {"type": "string"}], "items": false}}, "$ref": "#/$defs/t"}),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }

    #[test]
    fn work_that_doubles_with_each_level_is_refused() {
        let twice = json!({"$defs": {"n": {"allOf": [
            {"properties": {"a": {"$ref": "#/$defs/n"}}},
            {"properties": {"a": {"$ref": "#/$defs/n"}}}
        ]}}, "$ref": "#/$defs/n"});
        assert!(check(&twice).is_err());
        let items = json!({"anyOf": [{"items": {"$ref": "#"}}, {"contains": {"$ref": "#"}}]});
        assert!(check(&items).is_err());
        let mut definitions = Map::new();
        for level in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            definitions.insert(format!("d{level}"), json!({"allOf": [next, next]}));
        }
        definitions.insert("d40".into(), json!({}));
        assert!(check(&json!({"$defs": definitions, "$ref": "#/$defs/d0"})).is_err());
    }

    #[test]
    fn a_reference_that_leads_back_to_its_own_place_or_nowhere_is_refused() {
        assert!(check(&json!({"$ref": "#"})).is_err());
        assert!(check(&json!({"allOf": [{"not": {"$ref": "#"}}]})).is_err());
        assert!(check(&json!({"$ref": "#/$defs/none"})).is_err());
        assert!(check(&json!({"$ref": "http://example.com/x.json"})).is_err());
    }
}
