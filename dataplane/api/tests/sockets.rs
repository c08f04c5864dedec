//! Clients that leave, crawl, or stay while the node stops.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use veena_api::ApiConfig;

use crate::support::{Node, until};

async fn parked(node: &Node) -> crate::support::Client {
    let before = in_flight(node).await;
    let mut client = node.connect().await;
    client.start("GET", "/v1/topics/t/consume?wait=10s", &[], b"").await;
    until("the consume is parked", || async { in_flight(node).await > before }).await;
    client
}

async fn in_flight(node: &Node) -> u64 {
    node.metric("veena_http_requests_in_flight").await
}

async fn left(node: &Node) -> u64 {
    node.metric("veena_http_requests_total{route=\"GET /v1/topics/{topic}/consume\",method=\"GET\",status=\"499\"}").await
}

#[tokio::test]
async fn a_message_never_goes_to_a_consumer_that_has_left() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    for reset in [false, true] {
        let before = left(&node).await;
        let client = parked(&node).await;
        if reset {
            client.stream.set_zero_linger().expect("an option of every socket");
        }
        drop(client);
        until("the handler is dropped", || async { left(&node).await > before }).await;
        node.produce("t", "x").await;
        let message = node.consume("t").await;
        assert_eq!(message["delivery_count"], 1);
        let handle = message["receipt_handle"].as_str().expect("leased");
        assert_eq!(node.send("POST", &format!("/v1/topics/t/ack?receipt_handle={handle}"), "").await.status, 204);
    }
}

#[tokio::test]
async fn a_lease_whose_answer_was_not_taken_is_released_and_not_counted() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    // More than the socket's buffers hold, so that the answer cannot be taken by a client that does not read.
    let one = "x".repeat(900 * 1024);
    for _ in 0..4 {
        assert_eq!(node.send("POST", "/v1/topics/t/produce?wait_for=commit", one.as_bytes()).await.status, 200);
    }
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("an option of every socket");
    let mut stream = socket.connect(node.address).await.expect("listening");
    let request = b"GET /v1/topics/t/consume?max=100 HTTP/1.1\r\nHost: t\r\nX-Narad-Client: t\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.expect("taken");
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.expect("the answer has begun");
    assert!(first.starts_with(b"HTTP/1.1 200"));
    assert_eq!(node.get("/v1/topics/t/consume").await.status, 204, "all are leased while the answer is under way");
    stream.set_zero_linger().expect("an option of every socket");
    drop(stream);
    until("the leases are released", || async {
        let mut client = node.connect().await;
        let answer = client.request("GET", "/v1/topics/t/consume?max=4", &[("X-Narad-Client", "t")], b"").await;
        if answer.status != 200 {
            return false;
        }
        let messages = answer.json()["messages"].as_array().expect("a list").clone();
        assert!(messages.iter().all(|message| message["delivery_count"] == 1), "an answer that nobody took is no delivery");
        true
    })
    .await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_answered_before_and_while_it_is_sent() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t"}"#).await;
    let mut sized = node.connect().await;
    sized.raw("POST /v1/topics/t/produce HTTP/1.1\r\nHost: t\r\nX-Narad-Client: t\r\nContent-Length: 17825792\r\n\r\n").await;
    assert_eq!(sized.answer(false).await.status, 413, "without waiting for the body");
    let mut patient = node.connect().await;
    patient
        .raw("POST /v1/topics/t/produce HTTP/1.1\r\nHost: t\r\nX-Narad-Client: t\r\nContent-Length: 17825792\r\nExpect: 100-continue\r\n\r\n")
        .await;
    assert_eq!(patient.answer(false).await.status, 413, "without asking for the body");
    let mut stubborn = node.connect().await;
    let mut request = b"POST /v1/topics/t/produce HTTP/1.1\r\nHost: t\r\nX-Narad-Client: t\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..272 {
        request.extend_from_slice(b"10000\r\n");
        request.extend_from_slice(&[b'x'; 0x10000]);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    stubborn.raw(request).await;
    assert_eq!(stubborn.answer(false).await.status, 413, "a client that sends all before it reads sees the answer too");
}

#[tokio::test]
async fn silent_and_crawling_connections_are_closed_and_long_polls_are_not() {
    let short = Duration::from_millis(200);
    let config = ApiConfig { read_timeout: short, write_timeout: short, idle_timeout: short, ..ApiConfig::default() };
    let node = Node::start_with(config).await;
    node.topic(r#"{"name":"t"}"#).await;
    let mut polling = parked(&node).await;
    let mut silent = node.connect().await;
    let mut crawling = node.connect().await;
    crawling.raw("GET /heal").await;
    let mut stalled = node.connect().await;
    stalled.raw("POST /v1/topics/t/produce HTTP/1.1\r\nHost: t\r\nX-Narad-Client: t\r\nContent-Length: 5\r\n\r\nab").await;
    let mut idle = node.connect().await;
    assert_eq!(idle.request("GET", "/healthz", &[], b"").await.status, 200);
    assert!(silent.is_closed().await);
    assert!(crawling.is_closed().await);
    assert!(idle.is_closed().await);
    let late = stalled.answer(false).await;
    assert_eq!(late.header("connection"), Some("close"));
    late.refusal(408, "request_timeout");
    assert!(stalled.is_closed().await);
    node.produce("t", "still there").await;
    assert_eq!(polling.answer(false).await.json()["payload"], "still there");
}

#[tokio::test]
async fn more_connections_than_allowed_wait_their_turn() {
    let node = Node::start_with(ApiConfig { max_connections: 2, ..ApiConfig::default() }).await;
    let mut first = node.connect().await;
    assert_eq!(first.request("GET", "/healthz", &[], b"").await.status, 200);
    let mut second = node.connect().await;
    assert_eq!(second.request("GET", "/healthz", &[], b"").await.status, 200);
    let mut third = node.connect().await;
    third.start("GET", "/healthz", &[], b"").await;
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(100), third.stream.peek(&mut byte)).await;
    assert!(early.is_err(), "no answer while the places are taken");
    drop(first);
    assert_eq!(third.answer(false).await.status, 200);
}

#[tokio::test]
async fn a_stop_answers_parked_consumers_turns_probes_red_and_ends() {
    let mut node = Node::start().await;
    node.topic(r#"{"name":"t"}"#).await;
    let mut polling = parked(&node).await;
    let mut idle = node.connect().await;
    assert_eq!(idle.request("GET", "/healthz", &[], b"").await.status, 200);
    let silent = node.connect().await;
    node.shutdown.cancel();
    let answer = polling.answer(false).await;
    assert_eq!((answer.status, answer.header("connection")), (204, Some("close")));
    assert!(polling.is_closed().await && idle.is_closed().await);
    node.stopped().await;
    drop(silent);
    assert!(tokio::net::TcpStream::connect(node.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn while_a_stopping_node_finishes_its_work_it_says_that_it_stops() {
    let mut node = Node::start().await;
    node.topic(r#"{"name":"t"}"#).await;
    let mut slow = node.connect().await;
    slow.raw("POST /v1/topics/t/produce HTTP/1.1\r\nHost: t\r\nX-Narad-Client: t\r\nContent-Length: 2\r\n\r\na").await;
    until("the produce is under way", || async { in_flight(&node).await > 1 }).await;
    node.shutdown.cancel();
    until("the probe is red", || async { node.get("/healthz").await.status == 503 }).await;
    let health = node.get("/healthz").await;
    assert_eq!((health.text().as_str(), health.header("connection")), ("{\"status\":\"shutting down\"}\n", Some("close")));
    assert_eq!(node.get("/readyz").await.refusal(503, "not_ready"), "shutting down");
    let consume = node.get("/v1/topics/t/consume?wait=1s").await;
    assert_eq!(consume.refusal(503, "not_ready"), "this node is stopping; ask another", "a consumer that comes back");
    slow.raw("b").await;
    let answer = slow.answer(false).await;
    assert_eq!((answer.status, answer.header("connection")), (202, Some("close")));
    node.stopped().await;
}

#[tokio::test]
async fn a_request_that_crosses_a_stop_on_a_kept_connection_is_answered_and_told_to_be_the_last() {
    let mut node = Node::start().await;
    node.topic(r#"{"name":"t"}"#).await;
    let mut kept = node.connect().await;
    assert_eq!(kept.request("GET", "/v1/topics/t", &[], b"").await.status, 200);
    node.shutdown.cancel();
    until("the node stops", || async { node.get("/healthz").await.status == 503 }).await;
    let answer = kept.request("POST", "/v1/topics/t/produce", &[("X-Narad-Client", "t")], b"x").await;
    assert_eq!(answer.header("connection"), Some("close"), "{}", answer.status);
    assert!(kept.is_closed().await);
    node.stopped().await;
}

#[tokio::test]
async fn who_is_in_the_queue_when_a_node_stops_is_answered_too() {
    // What is seen first, the place that is free or the last connection that has ended, is chance.
    for _ in 0..20 {
        let mut node = Node::start_with(ApiConfig { max_connections: 1, ..ApiConfig::default() }).await;
        let mut first = node.connect().await;
        assert_eq!(first.request("GET", "/healthz", &[], b"").await.status, 200);
        let mut waiting = node.connect().await;
        waiting.start("GET", "/healthz", &[], b"").await;
        node.shutdown.cancel();
        drop(first);
        let answer = waiting.answer(false).await;
        assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
        node.stopped().await;
    }
}

#[tokio::test]
async fn requests_sent_at_once_on_one_connection_are_answered_in_order() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":1}"#).await;
    let mut client = node.connect().await;
    let produce = "POST /v1/topics/t/produce HTTP/1.1\r\nHost: t\r\nX-Narad-Client: t\r\nContent-Length: 1\r\n\r\nx";
    let health = "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n";
    client.raw(format!("{produce}{health}{produce}{health}")).await;
    for status in [202, 200, 202, 200] {
        assert_eq!(client.answer(false).await.status, status);
    }
}
