//! The members, as a node alone tells them. Nodes of a cluster are processes: see `tests/cluster.rs` of the program.

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
