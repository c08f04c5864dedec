//! What a scrape says of topics, and what it leaves alone.

use veena_api::ApiConfig;

use crate::support::{Node, PASSWORD, until};

/// The series of one topic, by the start of their names.
async fn series(node: &Node, label: &str) -> Vec<String> {
    let text = node.get("/metrics").await.text();
    text.lines().filter(|line| line.contains(label)).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_topic_is_counted_from_produce_to_ack() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    for payload in ["one", "three", "x"] {
        node.produce("a", payload).await;
    }
    let first = node.consume("a").await;
    let second = node.consume("a").await;
    let replayed = node.get("/v1/topics/a/consume?partition=0&offset=0").await;
    assert_eq!(replayed.status, 200, "a replay is no consumption, and counts as none");
    let handle = second["receipt_handle"].as_str().expect("a handle");
    assert_eq!(node.send("POST", &format!("/v1/topics/a/ack?receipt_handle={handle}"), "").await.status, 204);
    let handle = first["receipt_handle"].as_str().expect("a handle");
    assert_eq!(node.send("POST", &format!("/v1/topics/a/ack?receipt_handle={handle}&extend=true"), "").await.status, 204);
    let of_a = "{topic=\"a\",partition=\"0\"} ";
    until("the last message is committed", || async { node.metric(&format!("veena_consumer_lag_messages{of_a}")).await == 2 }).await;
    for (name, value) in [
        ("messages_produced_total", 3),
        ("bytes_produced_total", 9),
        ("messages_consumed_total", 2),
        ("bytes_consumed_total", 8),
        ("inflight_size", 1),
        ("acked_ahead_size", 1),
        ("segments", 1),
        ("consumer_corrupt_skipped_total", 0),
    ] {
        assert_eq!(node.metric(&format!("veena_{name}{of_a}")).await, value, "{name}");
    }
    assert_eq!(node.metric("veena_ack_extended_total{topic=\"a\"} ").await, 1);
    assert_eq!(node.metric("veena_nack_total{topic=\"a\"} ").await, 0);
    let bytes = node.metric(&format!("veena_partition_size_bytes{of_a}")).await;
    assert!(bytes > 9);
    assert_eq!(node.metric("veena_topic_bytes{topic=\"a\"} ").await, bytes);
    for log in ["wal", "partition", "settle"] {
        let count = format!("veena_storage_fsync_duration_seconds_count{{log=\"{log}\"}} ");
        until("each kind of log was synced", || async { node.metric(&count).await >= 1 }).await;
    }
    let syncs = node.metric("veena_ingress_wal_syncs_total ").await;
    assert_eq!(node.metric("veena_storage_fsync_duration_seconds_count{log=\"wal\"} ").await, syncs, "a group's sync, and no other");
}

#[tokio::test]
async fn what_is_repeated_under_an_idempotency_key_is_counted_and_moves_have_their_series_on_every_node() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    let mut client = node.connect().await;
    for _ in 0..3 {
        let headers = [("Idempotency-Key", "one"), ("X-Veena-Client", "test")];
        assert!(client.request("POST", "/v1/topics/a/produce", &headers, b"x").await.status < 300);
    }
    assert_eq!(node.metric("veena_idempotent_repeats_total ").await, 2);
    let text = node.get("/metrics").await.text();
    for name in ["moves_begun_total", "moves_flipped_total", "moves_aborted_total", "move_bytes_copied_total", "moves_under_way"] {
        assert!(text.lines().any(|line| line == format!("veena_{name} 0")), "{name}");
    }
    assert!(text.contains("\nveena_move_freeze_seconds_count 0\n"));
}

#[tokio::test]
async fn a_deleted_topic_leaves_no_series() {
    let node = Node::start().await;
    node.topic(r#"{"name":"gone","partitions":2}"#).await;
    node.topic(r#"{"name":"child","parent":"gone"}"#).await;
    node.produce("gone", "x").await;
    until("the child has it", || async { node.metric("veena_fanout_committed_total{parent=\"gone\",child=\"child\"} ").await == 1 }).await;
    assert!(!series(&node, "topic=\"gone\"").await.is_empty());
    assert_eq!(node.send("DELETE", "/v1/topics/gone/children/child", "").await.status, 204);
    assert_eq!(node.send("DELETE", "/v1/topics/gone", "").await.status, 204);
    assert_eq!(series(&node, "\"gone\"").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_scrape_opens_no_log() {
    let node = Node::start().await;
    node.topic(r#"{"name":"quiet","partitions":3}"#).await;
    assert_eq!(series(&node, "topic=\"quiet\"").await, Vec::<String>::new());
    assert_eq!(node.metric("veena_open_partition_logs ").await, 0);
}

#[tokio::test]
async fn a_head_consume_takes_its_lease_when_the_head_is_out() {
    let node = Node::start().await;
    node.topic(r#"{"name":"a","partitions":1}"#).await;
    assert_eq!(node.send("POST", "/v1/topics/a/produce?wait_for=commit", "x").await.status, 200);
    let mut client = node.connect().await;
    assert_eq!(client.request("HEAD", "/v1/topics/a/consume", &[], b"").await.status, 200);
    assert_eq!(client.request("GET", "/v1/topics/a/consume", &[], b"").await.status, 204);
    let of_a = "{topic=\"a\",partition=\"0\"} ";
    assert_eq!(node.metric(&format!("veena_messages_consumed_total{of_a}")).await, 1);
    assert_eq!(node.metric(&format!("veena_inflight_size{of_a}")).await, 1);
}

#[tokio::test]
async fn many_header_lines_are_taken_and_too_many_are_not() {
    let node = Node::start_with(ApiConfig::default()).await;
    let request = |lines: usize| {
        let headers: String = (0..lines).map(|line| format!("X-H{line}: 1\r\n")).collect();
        format!("GET /healthz HTTP/1.1\r\nHost: test\r\n{headers}\r\n")
    };
    let mut client = node.connect().await;
    client.raw(request(1000)).await;
    assert_eq!(client.answer(false).await.status, 200);
    client.raw(request(1100)).await;
    assert_eq!(client.answer(false).await.status, 431);
}

#[tokio::test]
async fn operators_alone_see_what_each_tenant_uses_and_only_if_they_want_to() {
    let config = ApiConfig { metrics_tenant_labels: true, ..ApiConfig::default() };
    let node = Node::start_secured_with(config.clone()).await;
    node.tenant("acme").await;
    node.user("boss@acme", &[("admin", "")]).await;
    node.user("joe", &[("produce", "*")]).await;
    let as_user = |who: &'static str, method: &'static str, path: &'static str, body: &'static str| {
        let node = &node;
        async move { node.send_as(Some((who, PASSWORD)), method, path, body).await }
    };
    assert_eq!(as_user("boss@acme", "POST", "/v1/topics", r#"{"name":"t","partitions":1}"#).await.status, 201);
    assert_eq!(as_user("boss@acme", "POST", "/v1/topics/t/produce", "hello").await.status, 202);
    let quota = r#"{"quota":{"messages_out_per_s":0}}"#;
    assert_eq!(node.send_as_root("PUT", "/v1/admin/tenants/acme/quota", quota).await.status, 200);
    assert_eq!(as_user("boss@acme", "GET", "/v1/topics/t/consume", "").await.status, 429);
    let line = |text: &str, line: &str| text.lines().any(|found| found == line);
    until("it is committed", || async {
        let text = node.send_as_root("GET", "/metrics", "").await.text();
        assert!(line(&text, "veena_tenant_quota_refusals_total{tenant=\"acme\"} 1"), "{text}");
        assert!(line(&text, "veena_tenant_consumers_parked{tenant=\"acme\"} 0"), "{text}");
        line(&text, "veena_tenant_messages_in_total{tenant=\"acme\"} 1")
    })
    .await;
    let text = as_user("joe", "GET", "/metrics", "").await.text();
    assert!(text.contains("veena_topics_total") && !text.contains("tenant=") && !text.contains("acme"), "a user of the tenant default");
    assert_eq!(as_user("boss@acme", "GET", "/metrics", "").await.status, 403);
    assert_eq!(node.send_as_root("DELETE", "/v1/admin/tenants/acme", "").await.status / 100, 2);
    until("nothing is told of a tenant that is gone", || async { !node.send_as_root("GET", "/metrics", "").await.text().contains("acme") })
        .await;
    let open = Node::start_secured_with(ApiConfig { metrics_unauthenticated: true, ..config }).await;
    open.tenant("acme").await;
    let text = open.send_as(None, "GET", "/metrics", "").await.text();
    assert!(text.contains("veena_topics_total") && !text.contains("tenant="), "whoever does not sign in");
    let quiet = Node::start_secured().await;
    assert!(!quiet.send_as_root("GET", "/metrics", "").await.text().contains("tenant="), "nobody has asked for it");
}
