//! What every route has in common.

use veena_api::ApiConfig;

use crate::support::Node;

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_answered_in_plain_text() {
    let node = Node::start().await;
    let unknown = node.get("/v1/nothing").await;
    assert_eq!((unknown.status, unknown.text().as_str()), (404, "404 page not found\n"));
    assert_eq!(unknown.header("veena-error-code"), Some("not_found"));
    let wrong = node.send("DELETE", "/v1/topics", "").await;
    assert_eq!((wrong.status, wrong.text().as_str()), (405, "Method Not Allowed\n"));
    assert_eq!(wrong.header("allow"), Some("GET, HEAD, POST"));
    assert_eq!(wrong.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(wrong.header("x-content-type-options"), Some("nosniff"));
}

#[tokio::test]
async fn a_write_from_another_site_is_refused_before_its_method_is_judged() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    for (method, path, status) in
        [("POST", "/v1/topics", 415), ("POST", "/v1/topics/t/consume", 415), ("DELETE", "/v1/topics/t", 404), ("POST", "/v1/other", 404)]
    {
        assert_eq!(client.request(method, path, &[], b"").await.status, status, "{method} {path}");
    }
    let refused = client.request("POST", "/v1/topics", &[], b"").await;
    let text = refused.refusal(415, "unsupported_media_type");
    assert!(text.contains("X-Narad-Client or X-Veena-Client"), "it must name both headers that help: {text}");
    for header in [("X-Narad-Client", "x"), ("X-Veena-Client", "x"), ("Content-Type", "application/octet-stream")] {
        assert_eq!(client.request("POST", "/v1/topics/t/consume", &[header], b"").await.status, 405);
    }
    let open = Node::start_with(ApiConfig { cross_site_guard: false, ..ApiConfig::default() }).await;
    let answer = open.connect().await.request("POST", "/v1/topics/t/ack", &[], b"").await;
    assert_eq!(answer.refusal(400, "invalid_argument"), "receipt_handle required");
}

#[tokio::test]
async fn a_head_over_the_limit_is_431_and_one_within_is_served() {
    let node = Node::start().await;
    let fits = "x".repeat(60 * 1024);
    assert_eq!(node.connect().await.request("GET", "/healthz", &[("X-Pad", &fits)], b"").await.status, 200);
    let over = "x".repeat(66 * 1024);
    let answer = node.connect().await.request("GET", "/healthz", &[("X-Pad", &over)], b"").await;
    assert_eq!((answer.status, answer.header("connection")), (431, Some("close")));
    assert_eq!(answer.header("veena-error-code"), Some("headers_too_large"));
    let far_over = "x".repeat(200 * 1024);
    assert_eq!(node.connect().await.request("GET", "/healthz", &[("X-Pad", &far_over)], b"").await.status, 431);
}

#[tokio::test]
async fn head_is_served_wherever_get_is() {
    let node = Node::start().await;
    let mut client = node.connect().await;
    let head = client.request("HEAD", "/healthz", &[], b"").await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("16")));
    let get = client.request("GET", "/healthz", &[], b"").await;
    assert_eq!(get.text(), "{\"status\":\"ok\"}\n");
}

#[tokio::test]
async fn probes_and_counters_answer() {
    let node = Node::start().await;
    assert_eq!(node.get("/readyz").await.text(), "{\"status\":\"ready\"}\n");
    node.topic(r#"{"name":"a","partitions":4}"#).await;
    let metrics = node.get("/metrics").await.text();
    for line in [
        "veena_build_info{version=\"0.0.0\"} 1",
        "veena_topics_total 1",
        "veena_partitions_total 4",
        "veena_messages_accepted_total 0",
        "veena_ingress_wal_failed 0",
        "veena_http_requests_total{route=\"POST /v1/topics\",method=\"POST\",status=\"201\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}\n{metrics}");
    }
    let hidden = Node::start_with(ApiConfig { metrics_on_api_port: false, ..ApiConfig::default() }).await;
    assert_eq!(hidden.get("/metrics").await.status, 404);
}
