//! Work that takes long is done apart: who asks for something else on the same thread is answered meanwhile.

use std::sync::mpsc;

use axum::body::Body;
use http::Request;
use serde_json::json;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::support::Node;

fn request(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder().method(method).uri(path).header("X-Veena-Client", "t").body(body.into()).expect("a request")
}

/// There is one thread that answers and one that may block, which is kept busy here. What is refused needs nothing else: it has either been
/// done on the thread that answers, or waits.
async fn is_done_apart(node: &Node, heavy: Request<Body>, status: u16) {
    let what = heavy.uri().to_string();
    let (let_go, held) = mpsc::channel();
    let busy = tokio::task::spawn_blocking(move || held.recv());
    let mut under_way = JoinSet::new();
    under_way.spawn(node.router.clone().oneshot(heavy));
    for _ in 0..10 {
        tokio::task::yield_now().await;
        let health = node.router.clone().oneshot(request("GET", "/healthz", Body::empty())).await.expect("infallible");
        assert_eq!(health.status(), 200);
    }
    assert!(under_way.try_join_next().is_none(), "{what} held up the thread that answers");
    let_go.send(()).expect("it waits");
    let answer = under_way.join_next().await.expect("under way").expect("no panic").expect("infallible");
    assert_eq!(answer.status(), status, "{what}");
    busy.await.expect("no panic").expect("let go");
}

/// A document near the bound on its size.
fn large_schema(last: &str) -> String {
    let patterns: Vec<String> = (0..15_000).map(|n| format!(r#""^{n}$":true"#)).collect();
    format!(r#"{{"patternProperties":{{{}}},{last}}}"#, patterns.join(","))
}

#[test]
fn large_bodies_schemas_and_payloads_hold_up_nobody_on_the_thread_that_answers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().expect("a runtime");
    runtime.block_on(async {
        let node = Node::start().await;
        let mut batch = format!(r#"{{"messages":[{}"#, r#"{"payload":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},"#.repeat(990));
        batch.push_str(&format!(r#"{{"payload":"{}"}},{{}}]}}"#, "x".repeat(900 * 1024)));
        node.topic(r#"{"name":"plain"}"#).await;
        is_done_apart(&node, request("POST", "/v1/topics/plain/produce/batch", batch), 400).await;

        let bad = large_schema(r#""type":"nonsense""#);
        let create = json!({"name": "t", "schema": null}).to_string().replace("null", &bad);
        is_done_apart(&node, request("POST", "/v1/topics", create), 400).await;
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
        is_done_apart(&node, request("GET", "/metrics", Body::empty()), 200).await;
    });
}
