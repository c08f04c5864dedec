//! Schemas over HTTP.

use serde_json::json;

use crate::support::Node;

#[tokio::test]
async fn a_schema_judges_what_is_produced_and_what_may_follow_it() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1,"schema":{"type":"object","properties":{"a":{"type":"integer"}}}}"#).await;
    assert_eq!(node.send("POST", "/v1/topics/t/produce", r#"{"a":1}"#).await.status, 202);
    for body in [r#"{"a":"x"}"#, "text", "[]"] {
        let found = node.send("POST", "/v1/topics/t/produce", body).await.refusal(400, "schema_violation");
        assert!(found.starts_with("invalid argument: schema: "), "{found}");
    }
    let batch = r#"{"messages":[{"payload":{"a":1}},{"payload":{"a":"x"}}]}"#;
    let found = node.send("POST", "/v1/topics/t/produce/batch", batch).await.refusal(400, "schema_violation");
    assert!(found.starts_with("message 1: invalid argument: schema: "), "{found}");

    let patch = |schema: serde_json::Value, base: u32| json!({"schema": schema, "schema_base_version": base}).to_string();
    let wider = json!({"type": "object", "properties": {"a": {"type": "number"}, "b": {}}});
    let stale = node.send("PATCH", "/v1/topics/t", patch(wider.clone(), 0)).await.refusal(409, "conflict");
    assert!(stale.contains("schema_base_version"), "{stale}");
    let narrower = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}});
    let found = node.send("PATCH", "/v1/topics/t", patch(narrower, 1)).await.refusal(400, "schema_incompatible");
    assert!(found.contains("schema incompatible with previous version"), "{found}");
    assert_eq!(node.send("PATCH", "/v1/topics/t", patch(wider.clone(), 1)).await.status, 200);
    let same = json!({"title": "other words", "type": "object", "properties": {"a": {"type": "number"}, "b": {}}});
    assert_eq!(node.send("PATCH", "/v1/topics/t", patch(same, 2)).await.status, 200);

    let history = node.get("/v1/topics/t/schema").await.json();
    assert_eq!((&history["version"], history["versions"].as_array().map(Vec::len)), (&json!(2), Some(2)));
    assert_eq!(history["versions"][1]["schema"], wider);
    let described = node.get("/v1/topics/t").await.json();
    assert_eq!((&described["schema_version"], &described["schema"]), (&json!(2), &wider));
    assert_eq!(node.send("POST", "/v1/topics/t/produce", r#"{"a":1.5}"#).await.status, 202);
    node.send("PATCH", "/v1/topics/t", r#"{"schema":null}"#).await.refusal(400, "invalid_argument");

    node.topic(r#"{"name":"plain"}"#).await;
    let none = node.get("/v1/topics/plain/schema").await.json();
    assert_eq!(none, json!({"topic": "plain", "version": 0, "versions": []}));
}

#[tokio::test]
async fn a_payload_that_nests_too_deep_for_a_schema_is_told_so() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","schema":true}"#).await;
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(node.send("POST", "/v1/topics/t/produce", nested(256)).await.status, 202);
    let found = node.send("POST", "/v1/topics/t/produce", nested(257)).await.refusal(400, "schema_violation");
    assert!(found.contains("payload nests deeper than 256 levels"), "{found}");
}
