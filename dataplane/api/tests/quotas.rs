//! Limits of tenants: what they refuse, what they never refuse, and what is told of them. No test here waits for a rate: one request that is
//! larger than a limit keeps its tenant out for longer than any test takes.

use serde_json::{Value, json};

use crate::support::{Answer, Node, until};

const QUOTA: &str = "/v1/admin/tenants/default/quota";
const CLIENT: (&str, &str) = ("X-Veena-Client", "test");

async fn limit(node: &Node, body: &Value) -> Value {
    let answer = node.send("PUT", QUOTA, body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// A batch of so many messages, which has to be taken.
async fn batch(node: &Node, topic: &str, count: usize) {
    let answer = node.send("POST", &format!("/v1/topics/{topic}/produce/batch"), messages(count)).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
}

fn messages(count: usize) -> String {
    json!({ "messages": vec![json!({"payload": 1}); count] }).to_string()
}

async fn produce(node: &Node, topic: &str, bytes: usize) -> Answer {
    node.send("POST", &format!("/v1/topics/{topic}/produce"), vec![b'x'; bytes]).await
}

/// A refusal is for this limit of this scope; its body.
fn exceeded(answer: &Answer, limit: &str, scope: &str) -> Value {
    answer.refusal(429, "quota_exceeded");
    let body = answer.json();
    assert_eq!((&body["limit"], &body["scope"], &body["raised_by"]), (&json!(limit), &json!(scope), &json!("operator")), "{body}");
    let passes = !["stored_bytes", "topics", "partitions", "keys"].contains(&limit) && body["quota"] != 0;
    assert_eq!((&body["effect"], &body["retryable"]), (&json!("none"), &json!(passes)), "{body}");
    assert_eq!(body["retry_after_ms"].is_u64(), passes, "{body}");
    let seconds = answer.header("retry-after").map(|text| text.parse::<u64>().expect("a number"));
    assert!(if passes { seconds.is_some_and(|seconds| (1..=60).contains(&seconds)) } else { seconds.is_none() }, "{body}");
    body
}

#[tokio::test]
async fn a_produce_over_the_limit_is_refused_and_what_makes_room_is_not() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    limit(&node, &json!({"quota": {"messages_in_per_s": 10}})).await;
    // A batch counts its messages.
    batch(&node, "a", 1_000).await;
    let body = exceeded(&produce(&node, "a", 1).await, "messages_in_per_s", "tenant");
    assert_eq!((&body["quota"], &body["allowed"]), (&json!(10), &json!(10)));
    assert!(body["current"].as_u64() > Some(500), "{body}");
    exceeded(&node.send("POST", "/v1/topics/a/produce/batch", messages(2)).await, "messages_in_per_s", "tenant");
    exceeded(&node.send("POST", "/v1/topics/a/produce?wait_for=commit", "x").await, "messages_in_per_s", "tenant");
    let keyed = node.connect().await.request("POST", "/v1/topics/a/produce", &[CLIENT, ("Idempotency-Key", "k")], b"x").await;
    exceeded(&keyed, "messages_in_per_s", "tenant");
    // What is there is consumed, acked, and deleted.
    let leased = node.consume("a").await;
    let handle = leased["receipt_handle"].as_str().expect("a handle");
    assert_eq!(node.send("POST", &format!("/v1/topics/a/ack?receipt_handle={handle}"), "").await.status, 204);
    limit(&node, &json!({"quota": {"messages_in_per_s": 10, "requests_per_s": 0}})).await;
    exceeded(&node.get("/v1/topics").await, "requests_per_s", "tenant");
    exceeded(&node.get("/v1/topics/a/consume").await, "requests_per_s", "tenant");
    assert_eq!(node.send("POST", &format!("/v1/topics/a/ack?receipt_handle={handle}"), "").await.status, 410, "acked before");
    for open in ["/v1/quota", "/v1/usage", "/healthz", "/readyz", "/metrics", QUOTA] {
        assert_eq!(node.get(open).await.status, 200, "{open}");
    }
    assert_eq!(node.send("DELETE", "/v1/topics/a", "").await.status, 204);
    limit(&node, &json!({"quota": {}})).await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    assert_eq!(produce(&node, "a", 1).await.status, 202, "no limits any more");
}

#[tokio::test]
async fn what_a_refused_produce_took_is_given_back() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    limit(&node, &json!({"quota": {"messages_in_per_s": 1}})).await;
    for _ in 0..50 {
        // The engine refuses it: more than one of these in a second are over the limit, unless each gives back what it took.
        assert_eq!(node.send("POST", "/v1/topics/a/produce?partition=7", "x").await.status, 400);
        assert_eq!(node.send("POST", "/v1/topics/b/produce", "x").await.status, 404);
        assert_eq!(node.send("POST", "/v1/topics/b/produce?wait_for=commit", "x").await.status, 404);
    }
    assert_eq!(produce(&node, "a", 1).await.status, 202);
}

#[tokio::test]
async fn a_topic_can_have_limits_of_its_own() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    node.topic(r#"{"name":"b","partitions":1}"#).await;
    let view = limit(&node, &json!({"topic": "a", "quota": {"bytes_in_per_s": 5}})).await;
    let expected = json!({"tenant": "default", "revision": 0, "quota": {},
                          "topics": [{"topic": "a", "revision": 1, "quota": {"bytes_in_per_s": 5}}]});
    assert_eq!((&view, &node.get("/v1/quota").await.json()), (&expected, &expected));
    assert_eq!(produce(&node, "a", 100_000).await.status, 202, "one request that is larger");
    exceeded(&produce(&node, "a", 1).await, "bytes_in_per_s", "topic");
    assert_eq!(produce(&node, "b", 100_000).await.status, 202);
    let refused = node.send("PUT", QUOTA, json!({"topic": "a", "quota": {"topics": 1}}).to_string()).await;
    assert_eq!(refused.refusal(400, "invalid_argument"), "topics limits a tenant, not a topic");
    assert_eq!(node.send("PUT", QUOTA, json!({"topic": "c", "quota": {}}).to_string()).await.status, 404);
}

#[tokio::test]
async fn what_was_delivered_is_waited_for_and_acks_are_not() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    let visible = node.send("POST", "/v1/topics/a/produce/batch?wait_for=commit", messages(200)).await;
    assert_eq!(visible.status, 200, "{}", visible.text());
    limit(&node, &json!({"quota": {"messages_out_per_s": 1}})).await;
    let mut client = node.connect().await;
    let answer = client.request("GET", "/v1/topics/a/consume?max=100&wait=10s", &[CLIENT], b"").await;
    let leased = answer.json()["messages"].as_array().expect("messages").clone();
    assert_eq!(leased.len(), 100);
    for path in ["/v1/topics/a/consume", "/v1/topics/a/consume?wait=10s", "/v1/topics/a/consume?partition=0&offset=0"] {
        exceeded(&node.get(path).await, "messages_out_per_s", "tenant");
    }
    let handles: Vec<&Value> = leased.iter().map(|message| &message["receipt_handle"]).collect();
    let acked = node.send("POST", "/v1/topics/a/ack", json!({ "receipt_handles": handles }).to_string()).await;
    assert_eq!(acked.status, 200, "{}", acked.text());
}

#[tokio::test]
async fn only_so_many_consumers_wait() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    limit(&node, &json!({"quota": {"parked_polls": 1}})).await;
    let mut first = node.connect().await;
    first.start("GET", "/v1/topics/a/consume?wait=20s", &[], b"").await;
    let second = || node.get("/v1/topics/a/consume?wait=1ms");
    until("the first one waits", || async { second().await.status == 429 }).await;
    exceeded(&second().await, "parked_polls", "tenant");
    assert_eq!(node.get("/v1/topics/a/consume").await.status, 204, "this one does not wait");
    drop(first);
    until("its place is free", || async { second().await.status == 204 }).await;
}

#[tokio::test]
async fn a_tenant_stores_what_it_may_with_what_is_copied_into_children() {
    let node = Node::start().await;
    for name in ["p", "c1", "c2"] {
        node.topic(&format!(r#"{{"name":"{name}","partitions":1}}"#)).await;
    }
    for child in ["c1", "c2"] {
        assert_eq!(node.send("POST", "/v1/topics/p/children", format!(r#"{{"child":"{child}"}}"#)).await.status, 200);
    }
    limit(&node, &json!({"quota": {"stored_bytes": 400_000}})).await;
    exceeded(&produce(&node, "p", 400_001).await, "stored_bytes", "tenant");
    assert_eq!(produce(&node, "p", 100_000).await.status, 202);
    until("copies are counted", || async {
        // Nothing is stored by this: it is more than all of the limit.
        let body = produce(&node, "p", 400_001).await.json();
        body["current"].as_u64().is_some_and(|current| current >= 300_000)
    })
    .await;
    let body = exceeded(&produce(&node, "p", 100_000).await, "stored_bytes", "tenant");
    assert_eq!(body["allowed"], 400_000);
    exceeded(&node.send("POST", "/v1/topics/p/produce?wait_for=commit", vec![b'x'; 100_000]).await, "stored_bytes", "tenant");
    node.consume("c1").await;
    assert_eq!(node.send("DELETE", "/v1/topics/c2", "").await.status, 204);
    until("there is room again", || async { produce(&node, "c1", 100_000).await.status == 202 }).await;
}

#[tokio::test]
async fn how_many_topics_and_partitions_there_are_is_limited_where_they_are_made() {
    let node = Node::start().await;
    limit(&node, &json!({"quota": {"topics": 2, "partitions": 5}})).await;
    node.topic(r#"{"name":"a","partitions":2}"#).await;
    let body = exceeded(&node.send("POST", "/v1/topics", r#"{"name":"b","partitions":4}"#).await, "partitions", "tenant");
    assert_eq!((&body["current"], &body["allowed"]), (&json!(6), &json!(5)));
    exceeded(&node.send("PATCH", "/v1/topics/a", r#"{"partitions":6}"#).await, "partitions", "tenant");
    node.topic(r#"{"name":"b","partitions":1}"#).await;
    exceeded(&node.send("POST", "/v1/topics", r#"{"name":"c","partitions":1}"#).await, "topics", "tenant");
}

#[tokio::test]
async fn limits_are_applied_by_revision() {
    let node = Node::start().await;
    let set = |revision: u64, topics: u64| json!({"revision": revision, "quota": {"topics": topics}});
    assert_eq!(limit(&node, &set(7, 1)).await["revision"], 7);
    assert_eq!(limit(&node, &set(7, 1)).await["revision"], 7);
    for stale in [set(7, 2), set(6, 1)] {
        node.send("PUT", QUOTA, stale.to_string()).await.refusal(409, "conflict");
    }
    assert_eq!(limit(&node, &json!({"quota": {}})).await, json!({"tenant": "default", "revision": 8, "quota": {}, "topics": []}));
    for bad in [json!({"quota": {"topics": -1}}), json!({"quota": {"messages": 1}}), json!({"quota": {"stored_bytes": 1e13}}), json!({})] {
        assert_eq!(node.send("PUT", QUOTA, bad.to_string()).await.status, 400, "{bad}");
    }
    assert_eq!(node.get("/v1/admin/tenants/No%20Name/quota").await.status, 404);
}

#[tokio::test]
async fn usage_tells_what_was_committed_copied_delivered_and_stored() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    node.topic(r#"{"name":"c","partitions":1}"#).await;
    assert_eq!(node.send("POST", "/v1/topics/a/children", r#"{"child":"c"}"#).await.status, 200);
    batch(&node, "a", 5).await;
    assert_eq!(produce(&node, "a", 1_000).await.status, 202);
    node.consume("c").await;
    assert_eq!(node.get("/v1/topics/a/consume?partition=0&offset=0").await.status, 200);
    let usage = || async { node.get("/v1/usage").await.json() };
    until("all is counted", || async { usage().await["messages_copied"] == 6 }).await;
    let told = usage().await;
    assert_eq!((&told["tenant"], &told["messages_in"], &told["messages_out"]), (&json!("default"), &json!(6), &json!(2)), "{told}");
    assert!(told["bytes_in"].as_u64() >= Some(1_005) && told["bytes_in"] == told["bytes_copied"], "{told}");
    assert_eq!((&told["nodes"], &told["nodes_silent"]), (&json!(1), &json!(0)));
    // While there is a limit it is added up every second.
    limit(&node, &json!({"quota": {"stored_bytes": 1_000_000}})).await;
    until("it is added up", || async { usage().await["stored_bytes"].as_u64() > Some(2_000) }).await;
    let peak = usage().await["stored_bytes_peak"].clone();
    for topic in ["a", "c"] {
        assert_eq!(node.send("DELETE", &format!("/v1/topics/{topic}"), "").await.status, 204);
    }
    until("nothing is stored", || async { usage().await["stored_bytes"] == 0 }).await;
    let told = node.get("/v1/admin/usage").await.json();
    assert_eq!((&told[0]["stored_bytes_peak"], &told[0]["messages_in"]), (&peak, &json!(6)), "{told}");
}
