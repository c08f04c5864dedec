//! Topics and children.

use serde_json::json;

use crate::support::Node;

#[tokio::test]
async fn a_created_topic_is_described_changed_listed_and_deleted() {
    let node = Node::start().await;
    let created = node.send("POST", "/v1/topics", r#"{"name":"orders"}"#).await;
    assert_eq!(created.status, 201);
    let topic = created.json();
    assert_eq!(topic["id"].as_str().map(str::len), Some(16));
    assert!(topic.get("role").is_none() && topic.get("owner").is_none());
    for (field, value) in [
        ("partitions", 3_u64),
        ("retention_ms", 604_800_000),
        ("visibility_timeout_ms", 30_000),
        ("max_in_flight_per_partition", 1024),
        ("max_acked_ahead_per_partition", 1024),
        ("dedup_window_ms", 300_000),
        ("retention_bytes", 0),
        ("created_at", 1_700_000_000),
    ] {
        let found = topic[field].as_u64().expect(field);
        assert!(found == value || (field == "created_at" && found >= value && found < value + 60), "{field}: {found}");
    }
    let described = node.get("/v1/topics/orders").await.json();
    assert_eq!(described["role"], "standalone");
    assert_eq!(described["partition_stats"].as_array().map(Vec::len), Some(3));
    assert_eq!(described["partition_stats"][2]["index"], 2);
    assert_eq!(described["partition_stats"][2]["status"], "ok");
    assert_eq!(described["partition_stats"][2]["owner_node"], "node-1");
    assert_eq!(described["schema_version"], 0);
    assert!(described.get("partial").is_none() && described.get("schema").is_none());
    let one = node.get("/v1/topics/orders?partition=1").await.json();
    assert_eq!(one["partition_stats"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["partition_stats"][0]["index"], 1);
    assert!(node.get("/v1/topics/orders?partition=3").await.refusal(400, "invalid_argument").starts_with("invalid partition"));

    let change = r#"{"retention_ms":0,"max_in_flight_per_partition":7,"partitions":5,"reroute":"never","dedup_window_ms":0}"#;
    let patched = node.send("PATCH", "/v1/topics/orders", change).await.json();
    assert_eq!((&patched["retention_ms"], &patched["max_in_flight_per_partition"]), (&json!(0), &json!(7)));
    assert_eq!((&patched["partitions"], &patched["reroute"], &patched["dedup_window_ms"]), (&json!(5), &json!("never"), &json!(0)));
    let back = node.send("PATCH", "/v1/topics/orders", r#"{"max_in_flight_per_partition":0}"#).await.json();
    assert_eq!(back["max_in_flight_per_partition"], 1024);

    assert_eq!(node.send("DELETE", "/v1/topics/orders", "").await.status, 204);
    assert_eq!(node.send("DELETE", "/v1/topics/orders", "").await.refusal(404, "topic_not_found"), "topic not found");
    node.topic(r#"{"name":"orders"}"#).await;
    assert_ne!(node.get("/v1/topics/orders").await.json()["id"], topic["id"], "another life, another id");
}

#[tokio::test]
async fn a_bad_create_is_refused_with_a_reason() {
    let node = Node::start().await;
    node.topic(r#"{"name":"Taken"}"#).await;
    let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(201));
    for (body, status, code, text) in [
        (r#"{"name":"a""#, 400, "malformed_request", "invalid json: "),
        (r#"{"name":"a"} {}"#, 400, "malformed_request", "invalid json: multiple JSON values"),
        (r#"{"name":"a","colour":1}"#, 400, "malformed_request", "invalid json: "),
        (r#"{"name":7}"#, 400, "malformed_request", "invalid json: "),
        ("{}", 400, "invalid_argument", "topic name required"),
        (r#"{"name":"a/b"}"#, 400, "invalid_argument", ""),
        (long.as_str(), 400, "invalid_argument", "topic name is 201 bytes; new topic names are limited to 200 bytes"),
        (r#"{"name":"a","partitions":-1}"#, 400, "invalid_argument", "invalid argument: partitions"),
        (r#"{"name":"a","partitions":109}"#, 400, "invalid_argument", "invalid argument: partitions"),
        (r#"{"name":"a","retention_ms":3599999}"#, 400, "invalid_argument", "invalid argument: retention_ms"),
        (r#"{"name":"a","retention_ms":-1}"#, 400, "invalid_argument", "invalid argument: retention_ms"),
        (r#"{"name":"a","retention_bytes":1}"#, 400, "invalid_argument", "invalid argument: retention_bytes"),
        (r#"{"name":"a","dedup_window_ms":3600001}"#, 400, "invalid_argument", "invalid argument: dedup_window_ms"),
        (r#"{"name":"a","visibility_timeout_ms":31536000001}"#, 400, "invalid_argument", "invalid argument: visibility_timeout_ms"),
        (r#"{"name":"a","fanout_delay_ms":5}"#, 400, "invalid_argument", "invalid argument: fanout_delay_ms needs a parent"),
        (r#"{"name":"a","parent":"none"}"#, 404, "topic_not_found", "topic not found"),
        (r#"{"name":"Taken"}"#, 409, "already_exists", "topic already exists"),
        (r#"{"name":"taken"}"#, 409, "already_exists", "topic already exists: taken differs only in letter case from Taken"),
        (r#"{"name":"a","schema":null}"#, 400, "invalid_argument", "invalid argument: schema: "),
    ] {
        let found = node.send("POST", "/v1/topics", body).await.refusal(status, code);
        assert!(found.starts_with(text), "{body}: {found}");
    }
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(1024 * 1024));
    assert_eq!(node.send("POST", "/v1/topics", large).await.refusal(413, "body_too_large"), "request body too large");
    for body in ["{}", r#"{"partitions":0}"#, r#"{"schema_base_version":1}"#] {
        node.send("PATCH", "/v1/topics/Taken", body).await.refusal(400, "invalid_argument");
    }
    node.send("PATCH", "/v1/topics/Taken", r#"{"visibility_timeout_ms":5}"#).await.refusal(400, "malformed_request");
    node.send("PATCH", "/v1/topics/Taken", r#"{"partitions":3}"#).await.refusal(400, "invalid_argument");
    node.send("PATCH", "/v1/topics/none", r#"{"partitions":5}"#).await.refusal(404, "topic_not_found");
}

#[tokio::test]
async fn a_listing_goes_page_by_page_in_name_order() {
    let node = Node::start().await;
    for name in ["b", "-", "a.b", "a", "B"] {
        if name != "B" {
            node.topic(&format!(r#"{{"name":"{name}"}}"#)).await;
        }
    }
    let page = |path: &'static str| async {
        let body = node.get(path).await.json();
        let names: Vec<String> =
            body["topics"].as_array().expect("a list").iter().map(|t| t["name"].as_str().expect("a name").to_owned()).collect();
        (names.join(" "), body["next_page_token"].as_str().expect("a token").to_owned())
    };
    assert_eq!(page("/v1/topics").await, ("- a a.b b".to_owned(), String::new()));
    assert_eq!(page("/v1/topics?limit=2").await, ("- a".to_owned(), "a".to_owned()));
    assert_eq!(page("/v1/topics?limit=2&page_token=a").await, ("a.b b".to_owned(), String::new()));
    assert_eq!(page("/v1/topics?limit=5000&page_token=a.a").await, ("a.b b".to_owned(), String::new()));
    for limit in ["0", "-1", "x"] {
        let answer = node.get(&format!("/v1/topics?limit={limit}")).await;
        assert_eq!(answer.refusal(400, "invalid_argument"), "limit must be a positive integer");
    }
}

#[tokio::test]
async fn children_are_attached_fed_listed_and_detached() {
    let node = Node::start().await;
    node.topic(r#"{"name":"parent","partitions":2}"#).await;
    node.topic(r#"{"name":"late"}"#).await;
    let child = node.send("POST", "/v1/topics", r#"{"name":"child","parent":"parent"}"#).await;
    assert_eq!(child.status, 201);
    let child = child.json();
    assert_eq!((&child["role"], &child["parent"], &child["partitions"]), (&json!("child"), &json!("parent"), &json!(2)));
    assert_eq!(child["attach_offsets"], json!([0, 0]));
    assert_eq!(child["attach_epoch"].as_str().map(str::len), Some(16));

    let attached = node.send("POST", "/v1/topics/parent/children", r#"{"child":"late","delay_ms":1}"#).await;
    assert_eq!(attached.status, 200, "{}", attached.text());
    assert_eq!(attached.json()["children"], json!(["child", "late"]));
    for (body, status, code, text) in [
        ("{}", 400, "invalid_argument", "child is required"),
        (r#"{"child":"parent"}"#, 400, "invalid_argument", "invalid argument"),
        (r#"{"child":"late","delay_ms":-1}"#, 400, "invalid_argument", "invalid argument"),
        (r#"{"child":"late","delay_ms":31536000001}"#, 400, "invalid_argument", "invalid argument"),
        (r#"{"child":"none"}"#, 404, "topic_not_found", "topic not found"),
        (r#"{"child":"late"}"#, 409, "role_conflict", "fan-out role conflict"),
    ] {
        let found = node.send("POST", "/v1/topics/parent/children", body).await.refusal(status, code);
        assert!(found.starts_with(text), "{body}: {found}");
    }
    let direct = node.send("POST", "/v1/topics/late/produce", "x").await.refusal(409, "delayed_child");
    assert_eq!(direct, "direct produce to a delayed child topic is not allowed");

    node.produce("parent", "hello").await;
    assert_eq!(node.consume("child").await["payload"], "hello");
    assert_eq!(node.consume("late").await["payload"], "hello");
    let listed = node.get("/v1/topics/parent/children").await.json();
    assert_eq!(listed["parent"], "parent");
    assert_eq!(listed["children"][1]["name"], "late");
    assert_eq!(listed["children"][1]["delay_ms"], 1);
    assert_eq!(listed["children"][1]["lag_complete"], true);

    assert_eq!(node.send("DELETE", "/v1/topics/parent/children/late?force=true", "").await.status, 204);
    node.send("DELETE", "/v1/topics/parent/children/late", "").await.refusal(404, "not_found");
    node.send("DELETE", "/v1/topics/parent/children/child?force=1", "").await.refusal(400, "invalid_argument");
    assert_eq!(node.get("/v1/topics/late").await.json()["role"], "standalone");
}
