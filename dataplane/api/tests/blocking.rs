//! Work that takes long is done apart: who asks for something else on the same thread is answered meanwhile.

use axum::body::Body;
use http::Request;
use serde_json::json;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::support::Node;

fn request(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder().method(method).uri(path).header("X-Veena-Client", "t").body(body.into()).expect("a request")
}

/// The runtime of the test has one thread. What was not done apart is over when the test goes on, since it is refused without waiting for
/// anything else.
async fn is_done_apart(node: &Node, heavy: Request<Body>, status: u16) {
    let what = heavy.uri().to_string();
    let router = node.router.clone();
    let mut under_way = JoinSet::new();
    under_way.spawn(router.oneshot(heavy));
    tokio::task::yield_now().await;
    let health = node.router.clone().oneshot(request("GET", "/healthz", Body::empty())).await.expect("infallible");
    assert_eq!(health.status(), 200);
    assert!(under_way.try_join_next().is_none(), "{what} held up the thread that answers");
    let answer = under_way.join_next().await.expect("under way").expect("no panic").expect("infallible");
    assert_eq!(answer.status(), status, "{what}");
}

/// A document near the bound on its size.
fn large_schema(last: &str) -> String {
    let patterns: Vec<String> = (0..15_000).map(|n| format!(r#""^{n}$":true"#)).collect();
    format!(r#"{{"patternProperties":{{{}}},{last}}}"#, patterns.join(","))
}

#[tokio::test]
async fn large_bodies_schemas_and_payloads_hold_up_nobody_on_the_thread_that_answers() {
    let node = Node::start().await;
    let mut batch = format!(r#"{{"messages":[{}"#, r#"{"payload":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},"#.repeat(990));
    batch.push_str(&format!(r#"{{"payload":"{}"}},{{}}]}}"#, "x".repeat(900 * 1024)));
    node.topic(r#"{"name":"plain"}"#).await;
    is_done_apart(&node, request("POST", "/v1/topics/plain/produce/batch", batch), 400).await;

    let bad = large_schema(r#""type":"nonsense""#);
    is_done_apart(&node, request("POST", "/v1/topics", json!({"name": "t", "schema": null}).to_string().replace("null", &bad)), 400).await;
    is_done_apart(&node, request("PATCH", "/v1/topics/plain", format!(r#"{{"schema":{bad}}}"#)), 400).await;

    // Nobody has used this schema yet: the first message has it compiled.
    let strict = large_schema(r#""type":"object""#);
    assert_eq!(node.send("POST", "/v1/topics", format!(r#"{{"name":"large","schema":{strict}}}"#)).await.status, 201);
    is_done_apart(&node, request("POST", "/v1/topics/large/produce", "1"), 400).await;

    node.topic(r#"{"name":"strict","schema":{"type":"object"}}"#).await;
    is_done_apart(&node, request("POST", "/v1/topics/strict/produce", format!("[{}1]", "1,".repeat(300_000))), 400).await;
    let fine = format!(r#"{{"payload":{{"pad":"{}"}}}},"#, "x".repeat(15_000));
    let batch = format!(r#"{{"messages":[{}{{"payload":1}}]}}"#, fine.repeat(900));
    is_done_apart(&node, request("POST", "/v1/topics/strict/produce/batch", batch), 400).await;
}
