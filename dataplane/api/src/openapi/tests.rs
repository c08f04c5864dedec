use std::collections::BTreeSet;

use serde_json::Value;
use veena_contract::ErrorCode;

use super::*;
use crate::route::Route;

fn json() -> Value {
    serde_json::from_str(&openapi_json()).expect("the document is JSON")
}

fn operations_of(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().expect("paths");
    let pairs =
        paths.iter().flat_map(|(path, item)| item.as_object().expect("an item").keys().map(move |method| (path.clone(), method.clone())));
    pairs.collect()
}

#[test]
fn the_document_has_every_route_and_method_and_no_other() {
    let served: BTreeSet<(String, String)> = Route::ALL
        .iter()
        .flat_map(|route| route.methods().iter().map(|(verb, _)| (route.template().to_owned(), verb.name().to_lowercase())))
        .collect();
    assert_eq!(operations_of(&json()), served);
    assert_eq!(operations::ALL.len(), served.len(), "an operation is described twice");
}

#[test]
fn every_code_that_can_be_on_the_wire_is_documented_somewhere() {
    let document = json();
    let mut documented = BTreeSet::new();
    for (path, method) in operations_of(&document) {
        for response in document["paths"][&path][&method]["responses"].as_object().expect("responses").values() {
            for code in response["x-veena-codes"].as_array().into_iter().flatten() {
                documented.insert(code.as_str().expect("a code").to_owned());
            }
        }
    }
    let on_the_wire: BTreeSet<String> =
        ErrorCode::ALL.iter().filter(|code| **code != ErrorCode::ClientGone).map(|code| code.as_str().to_owned()).collect();
    assert_eq!(documented, on_the_wire);
}

#[test]
fn no_status_of_an_operation_is_described_twice() {
    for operation in operations::ALL {
        let mut seen = BTreeSet::new();
        let refused = operation.refusals.iter().chain(operations::everywhere(operation.verb)).map(|refusals| refusals.status);
        for status in operation.answers.iter().map(|answer| answer.status).chain(refused) {
            assert!(seen.insert(status), "{}: {status}", operation.id);
        }
    }
}

#[test]
fn every_reference_leads_to_a_schema() {
    fn walk(value: &Value, schemas: &Value, seen: &mut usize) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    let name = reference.strip_prefix("#/components/schemas/").expect("a local reference");
                    assert!(schemas.get(name).is_some(), "{reference}");
                    *seen += 1;
                }
                fields.values().for_each(|value| walk(value, schemas, seen));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(value, schemas, seen)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = json();
    let mut seen = 0;
    walk(&document, &document["components"]["schemas"], &mut seen);
    assert!(seen > 20, "only {seen} references");
}

#[test]
fn the_document_that_is_checked_in_is_the_one_that_is_made() {
    let kept = include_str!("../../../../docs/openapi/data.json");
    assert!(kept.trim_end() == openapi_json(), "docs/openapi/data.json is out of date: veena openapi > docs/openapi/data.json");
}
