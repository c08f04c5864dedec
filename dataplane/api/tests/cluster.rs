//! The members, as a node alone tells them; and what a member whose catalog is behind has to ask the leader first. Nodes of a cluster are
//! processes: see `tests/cluster.rs` of the program.

use serde_json::json;

use crate::support::Node;

#[tokio::test]
async fn a_node_alone_is_the_only_member_and_owns_everything() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":2}"#).await;
    node.topic(r#"{"name":"b","partitions":3}"#).await;
    let plain = node.get("/v1/cluster/members").await;
    let member = json!({"id":"node-1","addr":"","status":"alive","draining":false,"owned_partitions":5,"outbound_moves":0});
    assert_eq!((plain.status, plain.json()), (200, json!({ "members": [member] })));
    let detailed = node.get("/v1/cluster/members?detail=true").await.json();
    assert_eq!((&detailed["members"][0]["voter"], &detailed["members"][0]["leader"]), (&json!(true), &json!(true)));
    assert_eq!(node.get("/v1/cluster/members?detail=perhaps").await.status, 400);
    assert_eq!(node.get("/v1/cluster").await.status, 404);
}

/// A topic whose second partition the node has not seen yet.
async fn grown(node: &Node, name: &str) {
    node.topic(&format!(r#"{{"name":"{name}","partitions":1}}"#)).await;
    node.catalog.stop_following();
    let grown = node.send("PATCH", &format!("/v1/topics/{name}"), r#"{"partitions":2}"#).await;
    assert_eq!(grown.status, 200, "{}", grown.text());
    assert_eq!(node.get(&format!("/v1/topics/{name}")).await.json()["partitions"], 1, "it is behind");
}

#[tokio::test]
async fn a_partition_that_a_member_does_not_know_is_judged_after_the_leader_was_asked() {
    const HANDLE: &str = "1:0:1";
    let node = Node::start_member().await;
    let acks = format!(r#"{{"receipt_handles":["{HANDLE}"]}}"#);
    let single = format!("ack?receipt_handle={HANDLE}");
    for (at, (method, path, body, known)) in [
        ("POST", "produce?partition=1", "x", 202),
        ("POST", "produce/batch", r#"{"messages":[{"payload":1},{"payload":2,"partition":1}]}"#, 202),
        ("GET", "consume?partition=1", "", 204),
        ("GET", "consume?partition=1&offset=0", "", 204),
        ("POST", single.as_str(), "", 410),
        ("POST", "ack", acks.as_str(), 200),
        ("GET", "?partition=1", "", 200),
    ]
    .into_iter()
    .enumerate()
    {
        let topic = format!("t{at}");
        grown(&node, &topic).await;
        let path = format!("/v1/topics/{topic}/{path}").replace("/?", "?");
        node.catalog.set_leaderless(true);
        let unknown = node.send(method, &path, body).await;
        assert_eq!((unknown.status, &unknown.json()["code"]), (503, &json!("metadata_unavailable")), "{method} {path}");
        node.catalog.set_leaderless(false);
        assert_eq!(node.send(method, &path, body).await.status, known, "{method} {path}");
    }
    for path in ["/v1/topics/t0/consume?partition=2", "/v1/topics/t0?partition=2"] {
        assert_eq!(node.get(path).await.status, 400, "{path}: the leader knows of none either");
    }
}
