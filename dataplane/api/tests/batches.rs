//! Batch produce.

use std::io::Write;

use serde_json::json;
use veena_api::ApiConfig;

use crate::support::Node;

const PATH: &str = "/v1/topics/t/produce/batch";

async fn payloads(node: &Node, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        found.push(node.consume("t").await["payload"].to_string());
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_batch_is_taken_as_a_whole_packed_or_not() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":2}"#).await;
    let body = br#"{"messages":[{"payload":{"a":1}},{"payload":"aGk=","payload_encoding":"base64"}]}"#;
    let mut client = node.connect().await;
    let kind = ("Content-Type", "application/json");
    let plain = client.request("POST", PATH, &[kind], body).await;
    assert_eq!((plain.status, plain.text().as_str()), (202, "{\"accepted\":2}\n"));
    let zstd = zstd::stream::encode_all(body.as_slice(), 3).expect("packs");
    assert_eq!(client.request("POST", PATH, &[kind, ("Content-Encoding", "zstd")], &zstd).await.status, 202);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(body).expect("packs");
    let gzip = gzip.finish().expect("packs");
    assert_eq!(client.request("POST", PATH, &[kind, ("Content-Encoding", "gzip")], &gzip).await.status, 202);
    let other = client.request("POST", PATH, &[kind, ("Content-Encoding", "br")], body).await;
    assert_eq!(other.refusal(415, "unsupported_media_type"), "unsupported Content-Encoding: want zstd, gzip or none");
    assert_eq!(payloads(&node, 6).await, ["\"hi\"", "\"hi\"", "\"hi\"", "{\"a\":1}", "{\"a\":1}", "{\"a\":1}"]);
}

#[tokio::test]
async fn one_bad_message_refuses_all() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":2}"#).await;
    for (body, status, code, text) in [
        (r#"{"messages":[]}"#.to_owned(), 400, "invalid_argument", "messages required"),
        (
            format!(r#"{{"messages":[{}]}}"#, vec![r#"{"payload":1}"#; 1001].join(",")),
            400,
            "invalid_argument",
            "too many messages: more than 1000 (max 1000)",
        ),
        (
            r#"{"messages":[{"payload":1},{"payload":2,"partition":2}]}"#.to_owned(),
            400,
            "invalid_argument",
            "message 1: invalid partition: ",
        ),
        (r#"{"messages":[{"payload":1},{}]}"#.to_owned(), 400, "invalid_argument", "message 1: message required"),
        (format!(r#"{{"messages":[{{"payload":"{}"}}]}}"#, "x".repeat(1024 * 1024)), 413, "body_too_large", "message 0: message too large"),
        ("x".repeat(16 * 1024 * 1024 + 1), 413, "body_too_large", "request body too large"),
    ] {
        let found = node.send("POST", PATH, body).await.refusal(status, code);
        assert!(found.starts_with(text), "{found}");
    }
    let found = node.send("POST", &format!("{PATH}?key=a"), "{}").await.refusal(400, "invalid_argument");
    assert_eq!(found, "key is set per message in a batch produce, not as a query parameter");
    node.send("POST", "/v1/topics/none/produce/batch", r#"{"messages":[{"payload":1}]}"#).await.refusal(404, "topic_not_found");
    node.produce("t", "last").await;
    assert_eq!(payloads(&node, 1).await, ["\"last\""], "nothing of the refused batches was stored");
}

#[tokio::test]
async fn a_committed_batch_has_one_result_per_message() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    let body = r#"{"messages":[{"payload":1},{"payload":2}]}"#;
    let answer = node.send("POST", &format!("{PATH}?wait_for=commit"), body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let results = answer.json()["results"].as_array().expect("a list").clone();
    let places: Vec<_> = results.iter().map(|r| (r["status"].clone(), r["partition"].clone(), r["offset"].clone())).collect();
    assert_eq!(places, [(json!(200), json!(0), json!(0)), (json!(200), json!(0), json!(1))]);
}

#[tokio::test]
async fn bodies_over_the_budget_are_asked_to_come_back() {
    let node = Node::start_with(ApiConfig { max_batch_body_bytes_in_flight: 2 * 1024 * 1024, ..ApiConfig::default() }).await;
    node.topic(r#"{"name":"t"}"#).await;
    let of = |count: usize| {
        let one = format!(r#"{{"payload":"{}"}}"#, "x".repeat(512 * 1024));
        format!(r#"{{"messages":[{}]}}"#, vec![one; count].join(","))
    };
    assert_eq!(node.send("POST", PATH, of(3)).await.status, 202);
    let found = node.send("POST", PATH, of(5)).await.refusal(503, "overloaded");
    assert_eq!(found, "batch produce bodies in flight on this node are at their limit; retry");
    assert_eq!(node.send("POST", PATH, of(3)).await.status, 202, "what was reserved came back");
    assert_eq!(node.metric("veena_http_batch_body_budget_rejections_total").await, 1);
}
