//! Produce, consume, replay, ack.

use serde_json::json;
use veena_api::ApiConfig;

use crate::support::Node;

const CLIENT: (&str, &str) = ("X-Narad-Client", "test");

#[tokio::test]
async fn a_message_goes_in_comes_out_and_is_settled_once() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":3}"#).await;
    let mut client = node.connect().await;
    let produced = client
        .request(
            "POST",
            "/v1/topics/t/produce?key=a%FF&partition=2",
            &[CLIENT, ("Veena-Header-Kind", "x"), ("traceparent", "00-1")],
            b"{\"a\": 1}",
        )
        .await;
    assert_eq!((produced.status, produced.header("content-length"), produced.body.len()), (202, Some("0"), 0));
    let answer = client.request("GET", "/v1/topics/t/consume?wait=10s", &[], b"").await;
    assert_eq!(answer.status, 200);
    let message = answer.json();
    assert!(
        answer
            .text()
            .starts_with(r#"{"topic":"t","partition":2,"offset":0,"key":"Yf8=","key_encoding":"base64","payload":{"a": 1},"timestamp":17"#)
    );
    assert_eq!(message["headers"], json!({"kind": "x", "traceparent": "00-1"}));
    assert_eq!(message["delivery_count"], 1);
    let handle = message["receipt_handle"].as_str().expect("leased").to_owned();
    let ack = |extend: &str| format!("/v1/topics/t/ack?receipt_handle={handle}{extend}");
    assert_eq!(client.request("GET", "/v1/topics/t/consume", &[], b"").await.status, 204);
    assert_eq!(client.request("POST", &ack("&extend=true"), &[CLIENT], b"").await.status, 204);
    assert_eq!(client.request("POST", &ack("&extend=0"), &[CLIENT], b"").await.status, 204);
    let lost = client.request("POST", &ack(""), &[CLIENT], b"").await;
    assert_eq!(lost.refusal(410, "lease_lost"), "receipt handle no longer matches an active reservation");
    let again = client.request("GET", "/v1/topics/t/consume?wait=10s", &[], b"").await.json();
    assert_eq!((&again["id"], &again["delivery_count"]), (&message["id"], &json!(2)));
    let handle = again["receipt_handle"].as_str().expect("leased");
    assert_eq!(client.request("POST", &format!("/v1/topics/t/ack?receipt_handle={handle}"), &[CLIENT], b"").await.status, 204);
    let replayed = client.request("GET", "/v1/topics/t/consume?partition=2&offset=0", &[], b"").await.json();
    assert_eq!(replayed["id"], message["id"]);
    assert!(replayed.get("receipt_handle").is_none());
    assert_eq!(client.request("GET", "/v1/topics/t/consume?partition=2&offset=1", &[], b"").await.status, 204);
}

#[tokio::test]
async fn a_produce_that_waits_for_its_commit_says_where_it_went() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    for offset in 0..2 {
        let answer = node.send("POST", "/v1/topics/t/produce?wait_for=commit", "x").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let body = answer.json();
        assert_eq!((&body["partition"], &body["offset"]), (&json!(0), &json!(offset)));
        assert!(body["id"].is_string() && body["timestamp"].as_u64() >= Some(1_700_000_000));
    }
    assert_eq!(node.consume("t").await["payload"], "x");
}

#[tokio::test]
async fn a_bad_produce_is_refused() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    let large = "x".repeat(1024 * 1024 + 1);
    for (query, body, status, code, text) in [
        ("", "", 400, "invalid_argument", "message required"),
        ("?partition=1", "x", 400, "invalid_argument", "invalid partition: "),
        ("?partition=", "x", 400, "invalid_argument", "invalid partition: "),
        ("?key=%G1", "x", 400, "malformed_request", "invalid key: "),
        ("?key=a&key=a", "x", 400, "invalid_argument", "duplicate key query parameter"),
        ("?wait_for=x", "x", 400, "invalid_argument", "invalid wait_for"),
        ("", large.as_str(), 413, "body_too_large", "request body too large"),
    ] {
        let found = node.send("POST", &format!("/v1/topics/t/produce{query}"), body).await.refusal(status, code);
        assert!(found.starts_with(text), "{query}: {found}");
    }
    let fits = "x".repeat(1024 * 1024);
    assert_eq!(node.send("POST", "/v1/topics/t/produce", fits).await.status, 202);
    node.send("POST", "/v1/topics/none/produce", "x").await.refusal(404, "topic_not_found");
    node.send("POST", "/v1/topics/a%20b/produce", "x").await.refusal(404, "topic_not_found");
    let mut client = node.connect().await;
    let long = "k".repeat(256);
    for keys in [&["\u{e9}"][..], &[""], &[&long], &["k", "k"]] {
        let headers: Vec<_> = keys.iter().map(|key| ("Idempotency-Key", *key)).chain([CLIENT]).collect();
        let answer = client.request("POST", "/v1/topics/t/produce", &headers, b"x").await;
        answer.refusal(400, "invalid_argument");
    }
    let batch = br#"{"messages":[{"payload":1}]}"#;
    let answer = client.request("POST", "/v1/topics/t/produce/batch", &[CLIENT, ("Idempotency-Key", "k")], batch).await;
    let text = answer.refusal(400, "invalid_argument");
    assert_eq!(text, "idempotency_key is set per message in a batch produce, not as a header");
}

#[tokio::test]
async fn a_batch_of_messages_is_consumed_and_settled_together() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    for n in 0..3 {
        let answer = node.send("POST", "/v1/topics/t/produce?wait_for=commit", format!("{n}")).await;
        assert_eq!(answer.status, 200);
    }
    let mut client = node.connect().await;
    let bare = client.request("HEAD", "/v1/topics/t/consume?max=2", &[], b"").await;
    assert_eq!(bare.status, 400);
    let answer = client.request("GET", "/v1/topics/t/consume?max=100&wait=1h", &[CLIENT], b"").await;
    assert_eq!(answer.header("x-narad-wait-clamped"), Some("10s"));
    let messages = answer.json()["messages"].as_array().expect("a list").clone();
    assert_eq!(messages.iter().map(|m| m["payload"].as_u64().expect("a number")).collect::<Vec<_>>(), [0, 1, 2]);
    let handles: Vec<_> = messages.iter().map(|m| m["receipt_handle"].clone()).collect();
    let body = json!({"receipt_handles": [handles[0], "nonsense", handles[1], handles[0]]}).to_string();
    let settled = client.request("POST", "/v1/topics/t/ack", &[CLIENT], body.as_bytes()).await.json();
    let statuses: Vec<_> = settled["results"].as_array().expect("a list").iter().map(|r| r["status"].as_u64().expect("a status")).collect();
    assert_eq!(statuses, [204, 400, 204, 410]);
    assert_eq!(settled["results"][1]["error"], "receipt handle is malformed");
    let empty = client.request("GET", "/v1/topics/t/consume?max=2", &[CLIENT], b"").await;
    assert_eq!(empty.status, 204);
}

#[tokio::test]
async fn an_ack_is_judged_in_the_contracts_order() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t"}"#).await;
    let many = format!(r#"{{"receipt_handles":[{}]}}"#, vec!["\"1:1:1\""; 101].join(","));
    let large = format!(r#"{{"receipt_handles":["{}"]}}"#, "x".repeat(64 * 1024));
    for (topic, query, body, status, code, text) in [
        ("none", "?receipt_handle=%zz&extend=x", "", 400, "malformed_request", "invalid receipt_handle: "),
        ("none", "", "", 400, "invalid_argument", "receipt_handle required"),
        ("none", "?receipt_handle=", "", 400, "invalid_argument", "receipt_handle required"),
        (
            "none",
            "?receipt_handle=x&extend=2",
            "",
            400,
            "invalid_argument",
            "invalid extend: want \"true\" (renew lease) or \"0\" (release for redelivery)",
        ),
        ("none", "?receipt_handle=x", "", 400, "malformed_request", "receipt handle is malformed"),
        ("none", "?receipt_handle=0:0:1", "", 404, "topic_not_found", "topic not found"),
        ("t", "?receipt_handle=0:0:1", "", 410, "lease_lost", "receipt handle no longer matches an active reservation"),
        ("t", "?receipt_handle=999:0:1", "", 410, "lease_lost", "receipt handle no longer matches an active reservation"),
        ("t", "", r#"{"receipt_handles":[]}"#, 400, "invalid_argument", "receipt_handles required"),
        ("t", "", many.as_str(), 400, "invalid_argument", "too many receipt_handles: more than 100"),
        ("t", "", large.as_str(), 413, "body_too_large", "request body too large"),
        ("none", "", r#"{"receipt_handles":["0:0:1"]}"#, 404, "topic_not_found", "topic not found"),
    ] {
        let found = node.send("POST", &format!("/v1/topics/{topic}/ack{query}"), body).await.refusal(status, code);
        assert!(found.starts_with(text), "{topic}{query}: {found}");
    }
}

#[tokio::test]
async fn one_identity_may_wait_for_only_so_many_messages() {
    let node = Node::start_with(ApiConfig { max_consume_in_flight_per_identity: 2, ..ApiConfig::default() }).await;
    node.topic(r#"{"name":"t"}"#).await;
    let mut parked = node.connect().await;
    parked.start("GET", "/v1/topics/t/consume?wait=10s&max=50", &[CLIENT], b"").await;
    crate::support::until("the first consume is parked", || async {
        let second = node.get("/v1/topics/t/consume").await;
        second.status == 429
            && second.refusal(429, "rate_limited") == "too many in-flight consume requests for this identity (limit 2 per node)"
    })
    .await;
    drop(parked);
    crate::support::until("the place is free again", || async { node.get("/v1/topics/t/consume").await.status == 204 }).await;
}
