//! Changes of one topic that are asked for at once: none is lost to another.

use serde_json::json;

use crate::support::Node;

#[tokio::test]
async fn changes_of_one_topic_at_once_lose_nothing_of_each_other() {
    let node = Node::start().await;
    for round in 0..5_u64 {
        let path = format!("/v1/topics/t{round}");
        node.topic(&json!({"name": format!("t{round}"), "partitions": 1}).to_string()).await;
        let patch = async |body: serde_json::Value| node.send("PATCH", &path, body.to_string()).await.status;
        let (retention, bytes, in_flight, ahead, window, reroute, few, many) = tokio::join!(
            patch(json!({"retention_ms": 3_600_000 + round})),
            patch(json!({"retention_bytes": 67_108_864 + round})),
            patch(json!({"max_in_flight_per_partition": 7 + round})),
            patch(json!({"max_acked_ahead_per_partition": 8 + round})),
            patch(json!({"dedup_window_ms": 1_000 + round})),
            patch(json!({"reroute": "never"})),
            patch(json!({"partitions": 3})),
            patch(json!({"partitions": 5})),
        );
        assert_eq!([retention, bytes, in_flight, ahead, window, reroute, many], [200; 7]);
        assert!(matches!(few, 200 | 400), "it came first, or asks for fewer than there are: {few}");
        let found = node.get(&path).await.json();
        for (name, value) in [
            ("retention_ms", json!(3_600_000 + round)),
            ("retention_bytes", json!(67_108_864 + round)),
            ("max_in_flight_per_partition", json!(7 + round)),
            ("max_acked_ahead_per_partition", json!(8 + round)),
            ("dedup_window_ms", json!(1_000 + round)),
            ("reroute", json!("never")),
            ("partitions", json!(5)),
        ] {
            assert_eq!(found[name], value, "{name}: {found}");
        }
    }
}
