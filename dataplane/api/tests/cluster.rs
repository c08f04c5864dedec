//! The members, as a node alone tells them; and what a member whose catalog is behind has to ask the leader first. Nodes of a cluster are
//! processes: see `tests/cluster.rs` of the program.

use serde_json::json;
use veena_contract::{
    Catalog as _, CatalogWriter as _, Command, MoveToken, NodeId, OwnershipEpoch, PartitionAt, PartitionIndex, TenantId, TopicName,
};

use crate::support::{Node, until};

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

#[tokio::test]
async fn a_member_in_detail_says_what_it_has_to_do_and_what_it_has_set_aside() {
    let node = Node::start_member().await;
    node.topic(r#"{"name":"gone","partitions":1}"#).await;
    node.produce("gone", "x").await;
    node.consume("gone").await;
    let id = node.get("/v1/topics/gone").await.json()["id"].clone();
    let status = async || {
        let mut status = node.get("/v1/cluster/members?detail=true").await.json()["members"][0]["node_status"].take();
        let applied = status.as_object_mut().expect("a status").remove("applied");
        assert!(applied.is_some_and(|applied| applied.as_u64() > Some(0)));
        status
    };
    let quarantine = json!({"copies": 0, "bytes": 0, "list": []});
    let expected = json!({"node": "node-1", "draining": false, "produce_in_flight": 0, "dispatch_backlog": 0, "quarantine": quarantine,
                          "moves": []});
    until("nothing is to be done", async || status().await == expected).await;
    assert_eq!(node.send("DELETE", "/v1/topics/gone", "").await.status, 204);
    until("what it left is set aside", async || status().await["quarantine"]["copies"] == 1).await;
    let set_aside = status().await["quarantine"]["list"][0].clone();
    assert_eq!((&set_aside["kind"], &set_aside["topic"], set_aside.get("partition")), (&json!("topic"), &id, None));
    assert!(set_aside["bytes"].as_u64() > Some(0) && set_aside["mod_time"].is_u64(), "{set_aside}");
    assert!(set_aside["dir"].as_str().is_some_and(|dir| dir.contains("topic-default-")), "{set_aside}");
}

#[tokio::test]
async fn a_node_alone_has_no_member_to_take_out_and_no_move() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    for (method, path, status) in [
        ("POST", "/v1/cluster/members/node-1/decommission", 404),
        ("DELETE", "/v1/cluster/members/node-1/decommission", 404),
        ("POST", "/v1/cluster/members/node-2/forget", 404),
        ("POST", "/v1/cluster/moves/a/0/abort", 404),
        ("GET", "/v1/cluster/members/node-1/decommission", 405),
    ] {
        assert_eq!(node.send(method, path, "").await.status, status, "{method} {path}");
    }
    assert_eq!(node.get("/v1/cluster/moves").await.json(), json!({"moves": []}));
}

#[tokio::test]
async fn a_member_is_taken_out_only_if_that_can_be_completed_and_kept_whenever_asked() {
    let node = Node::start_member().await;
    let path = "/v1/cluster/members/node-1/decommission";
    let dry = node.send("POST", &format!("{path}?dry_run=true"), "").await;
    let reason = json!({"code": "below_min_voters", "message": "0 voters would be left"});
    let expected = json!({"member": "node-1", "would_decommission": false, "reasons": [reason], "voter": true, "owned_partitions": 0,
                          "inbound_moves": 0});
    assert_eq!((dry.status, dry.json()), (200, expected));
    let refused = node.send("POST", path, "").await;
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("blocked")));
    assert!(refused.text().contains("0 voters would be left"), "{}", refused.text());
    for (method, path, status) in [
        ("POST", "/v1/cluster/members/node-2/decommission", 404),
        ("POST", "/v1/cluster/members/node-1/decommission?dry_run=perhaps", 400),
        ("DELETE", "/v1/cluster/members/node-1/decommission?dry_run=true", 400),
        ("DELETE", "/v1/cluster/members/node-1/decommission", 204),
        ("DELETE", "/v1/cluster/members/node-2/decommission", 404),
        ("POST", "/v1/cluster/members/node-1/forget", 400),
    ] {
        assert_eq!(node.send(method, path, "").await.status, status, "{method} {path}");
    }
    node.catalog.set_leaderless(true);
    assert_eq!(node.send("POST", "/v1/cluster/members/node-2/decommission", "").await.status, 503, "who knows whether there is one");
}

#[tokio::test]
async fn a_node_that_was_taken_out_refuses_everything_and_answers_who_waits() {
    let node = Node::start_member().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    let parked = async { node.get("/v1/topics/a/consume?wait=10s").await };
    let taken_out = async {
        until("it waits", || async { node.get("/metrics").await.text().contains("veena_consumers_parked 1") }).await;
        node.is_out.send_replace(true);
    };
    let (parked, ()) = tokio::join!(parked, taken_out);
    assert_eq!(parked.status, 503, "{}", parked.text());
    for (method, path) in [("GET", "/v1/topics/a/consume"), ("POST", "/v1/topics/a/produce"), ("POST", "/v1/topics/a/produce/batch")] {
        let refused = node.send(method, path, "{}").await;
        let told = refused.json();
        assert_eq!((refused.status, &told["code"], &told["effect"]), (503, &json!("not_ready"), &json!("none")), "{method} {path}");
        assert!(refused.text().contains("was taken out"), "{}", refused.text());
    }
    assert_eq!(node.get("/healthz").await.status, 200);
    node.is_out.send_replace(false);
    assert_eq!(node.get("/v1/topics/a").await.status, 200, "it is a member again");
}

#[tokio::test]
async fn what_moves_is_told_and_can_be_ended() {
    let node = Node::start_member().await;
    node.topic(r#"{"name":"a","partitions":2}"#).await;
    let record = node.catalog.view().topic(&TenantId::default_tenant(), &TopicName::parse("a").expect("a name")).cloned().expect("there");
    let at = PartitionAt { tenant: record.tenant.clone(), topic: record.id, index: PartitionIndex(1), epoch: OwnershipEpoch(1) };
    let begin = Command::BeginMove { at, to: NodeId("node-2".into()), token: MoveToken(1) };
    node.catalog.newest().propose(begin).await.expect("taken");
    let plain = json!({"topic": "a", "partition": 1, "from": "node-1", "to": "node-2", "frozen": false});
    assert_eq!(node.get("/v1/cluster/moves").await.json(), json!({"moves": [plain]}));
    let detailed = json!({"topic": "a", "partition": 1, "from": "node-1", "to": "node-2", "frozen": false, "from_status": "alive",
                          "to_status": "not_a_member", "blocked": "target_not_member"});
    assert_eq!(node.get("/v1/cluster/moves?detail=true").await.json(), json!({"moves": [detailed]}));
    assert_eq!(node.get("/v1/cluster/members").await.json()["members"][0]["outbound_moves"], 1);

    for (path, status, code) in [
        ("a/0/abort", 404, "not_found"),
        ("a/2/abort", 404, "not_found"),
        ("a/x/abort", 400, "invalid_argument"),
        ("b/0/abort", 404, "topic_not_found"),
        ("a/1/abort?target=node-3", 409, "conflict"),
    ] {
        let refused = node.send("POST", &format!("/v1/cluster/moves/{path}"), "").await;
        assert_eq!((refused.status, &refused.json()["code"]), (status, &json!(code)), "{path}");
    }
    let ended = node.send("POST", "/v1/cluster/moves/a/1/abort?target=node-2", "").await;
    assert_eq!((ended.status, &ended.json()["move"]), (202, &detailed));
    assert_eq!(node.get("/v1/cluster/moves").await.json(), json!({"moves": []}));
    assert_eq!(node.send("POST", "/v1/cluster/moves/a/1/abort", "").await.status, 404, "it has ended");
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
