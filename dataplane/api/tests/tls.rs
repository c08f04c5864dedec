//! Clients that speak TLS, and those that do not, or not to the end.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use rcgen::{CertificateParams, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use veena_api::ApiConfig;
use veena_auth::{Pair, ServerTls};
use veena_client::bodies::CreateTopic;
use veena_client::{Client, ProduceOptions, SettleMode};

use crate::support::{Node, until};

/// A certificate for this machine that is valid until a year's first day: its own authority, and the pair.
fn certificate(until: i32) -> (Vec<u8>, Arc<ServerTls>) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.subject_alt_names.push(rcgen::SanType::IpAddress([127, 0, 0, 1].into()));
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().expect("random");
    let pem = params.self_signed(&key).expect("signed").pem();
    let pair = Pair::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes()).expect("a pair");
    (pem.into_bytes(), Arc::new(ServerTls::new(pair)))
}

async fn start(config: ApiConfig) -> (Node, Vec<u8>) {
    let (authority, tls) = certificate(2090);
    let node = Node::start_tls(config, tls).await;
    let client = client(&node, &authority);
    until("the node is ready", || async { client.ready().await.is_ok() }).await;
    (node, authority)
}

fn client(node: &Node, authority: &[u8]) -> Client {
    let url = format!("https://{}", node.address);
    Client::builder(&url).repeats(0).trust(authority.to_vec()).build().expect("a client")
}

async fn metric(client: &Client, line: &str) -> u64 {
    let text = client.metrics().await.expect("served");
    text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok()).unwrap_or(0)
}

async fn failures(client: &Client, reason: &str) -> u64 {
    metric(client, &format!("veena_tls_handshake_failures_total{{reason=\"{reason}\"}}")).await
}

fn topic(name: &str) -> CreateTopic {
    CreateTopic { name: name.to_owned(), partitions: Some(1), ..CreateTopic::default() }
}

#[tokio::test]
async fn a_message_goes_from_produce_to_ack_over_tls() {
    let (node, authority) = start(ApiConfig::default()).await;
    let client = client(&node, &authority);
    client.create_topic(&topic("t")).await.expect("created");
    // More than one record and more than the socket's buffers take at once.
    let payload = Bytes::from(vec![b'x'; 1 << 20]);
    for _ in 0..4 {
        client.produce_committed("t", payload.clone(), &ProduceOptions::default()).await.expect("stored");
    }
    let messages = client.consume_batch("t", 4, Duration::from_secs(10), None).await.expect("leased");
    assert!(!messages.is_empty());
    for message in messages {
        assert_eq!(message.payload_bytes().expect("as encoded"), payload);
        let handle = message.receipt_handle.expect("a lease");
        client.settle("t", &handle, SettleMode::Extend).await.expect("the lease stands: the answer was taken");
        client.ack("t", &handle).await.expect("acked");
    }
    let until_s = metric(&client, "veena_client_tls_certificate_not_after_seconds").await;
    assert_eq!(until_s, 3_786_912_000, "the first day of 2090");
}

#[tokio::test]
async fn a_message_never_goes_to_a_tls_consumer_that_has_left() {
    let (node, authority) = start(ApiConfig::default()).await;
    let staying = client(&node, &authority);
    staying.create_topic(&topic("t")).await.expect("created");
    let in_flight = || metric(&staying, "veena_http_requests_in_flight");
    let leaving = client(&node, &authority);
    let mut tasks = tokio::task::JoinSet::new();
    let parked = tasks.spawn(async move { leaving.consume("t", Duration::from_secs(10), None).await });
    until("the consume is parked", || async { in_flight().await > 1 }).await;
    parked.abort();
    until("the handler is dropped", || async { in_flight().await == 1 }).await;
    staying.produce("t", Bytes::from_static(b"x"), &ProduceOptions::default()).await.expect("stored");
    let message = staying.consume("t", Duration::from_secs(10), None).await.expect("answered").expect("a message");
    assert_eq!(message.delivery_count, Some(1));
}

#[tokio::test]
async fn who_begins_a_handshake_and_does_not_end_it_is_closed_in_time_and_stops_nobody() {
    let config = ApiConfig { read_timeout: Duration::from_secs(2), ..ApiConfig::default() };
    let (node, authority) = start(config).await;
    let mut strangers = JoinSet::new();
    for nth in 0..200 {
        let address = node.address;
        strangers.spawn(async move {
            let mut stream = TcpStream::connect(address).await.expect("the backlog takes it");
            if nth % 2 == 0 {
                // A record of 512 bytes is announced, and a few of a ClientHello come.
                stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]).await.expect("taken");
            }
            let mut rest = Vec::new();
            let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await.expect("closed in time");
            assert!(read.is_err() || rest.is_empty(), "{rest:?}");
        });
    }
    let first = client(&node, &authority);
    let come = async || metric(&first, "veena_http_connections_open").await + failures(&first, "timeout").await;
    until("all of them have come", || async { come().await >= 200 }).await;
    let mut served = JoinSet::new();
    for _ in 0..20 {
        let client = client(&node, &authority);
        served.spawn(async move { client.health().await });
    }
    while let Some(answer) = served.join_next().await {
        answer.expect("no panic").expect("served");
    }
    while let Some(ended) = strangers.join_next().await {
        ended.expect("closed");
    }
    until("each is counted", || async { failures(&first, "timeout").await == 200 }).await;
    until("their places are free", || async { metric(&first, "veena_http_connections_open").await <= 21 }).await;
}

#[tokio::test]
async fn a_connection_in_its_handshake_takes_a_place() {
    let config = ApiConfig { max_connections: 1, read_timeout: Duration::from_secs(1), ..ApiConfig::default() };
    let (authority, tls) = certificate(2090);
    let node = Node::start_tls(config, tls).await;
    let silent = node.connect().await;
    let waiting = client(&node, &authority);
    waiting.health().await.expect("served once the silent one is closed");
    assert_eq!(failures(&waiting, "timeout").await, 1);
    drop(silent);
}

#[tokio::test]
async fn plain_http_on_the_tls_port_is_told_to_use_https() {
    let (node, authority) = start(ApiConfig::default()).await;
    let ask = async |method: &str, body: &[u8]| {
        let mut client = node.connect().await;
        client.start(method, "/healthz", &[], body).await;
        client.answer(false).await
    };
    let answer = ask("GET", b"").await;
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")));
    let body = answer.json();
    assert_eq!((&body["error"], &body["code"]), (&"this port speaks TLS only: use https://".into(), &"malformed_request".into()));
    // All of a body that was not asked for, and the answer still arrives.
    assert_eq!(ask("POST", &[b'x'; 4096]).await.status, 400);
    let plain = Client::builder(&format!("http://{}", node.address)).repeats(0).build().expect("a client");
    let error = plain.topics().await.expect_err("told");
    assert!(error.is(400) && error.text.contains("https://"), "{error}");
    let tls = client(&node, &authority);
    assert_eq!(failures(&tls, "not_tls").await, 3);
}

#[tokio::test]
async fn why_handshakes_fail_is_counted_and_the_client_is_told() {
    let (node, authority) = start(ApiConfig::default()).await;
    let good = client(&node, &authority);
    let other = client(&node, &certificate(2090).0);
    let error = other.health().await.expect_err("not whom it trusts");
    assert!(error.status.is_none() && error.text.contains("certificate"), "{error}");
    until("it is counted", || async { failures(&good, "refused_by_client").await == 1 }).await;
    let mut junk = node.connect().await;
    junk.raw([22, 3, 1, 0, 5, 9, 9, 9, 9, 9]).await;
    until("it is counted", || async { failures(&good, "protocol").await == 1 }).await;
    drop(node.connect().await);
    until("it is counted", || async { failures(&good, "ended").await == 1 }).await;
}

#[tokio::test]
async fn a_node_whose_certificate_has_expired_is_ready_and_says_so() {
    // The clock of these tests stands in November of 2023.
    for (until_year, degraded) in [(2023, "[\"client_tls_certificate_expired\"]"), (2024, "")] {
        let node = Node::start_tls(ApiConfig::default(), certificate(until_year).1).await;
        let ready = || async {
            let request = http::Request::get("/readyz").body(Body::empty()).expect("a request");
            let answer = node.router.clone().oneshot(request).await.expect("infallible");
            let status = answer.status();
            let body = answer.into_body().collect().await.expect("whole").to_bytes();
            (status, String::from_utf8_lossy(&body).into_owned())
        };
        until("the node is ready", || async { ready().await.0 == 200 }).await;
        let body = ready().await.1;
        assert_eq!(body.contains("degraded"), !degraded.is_empty(), "{body}");
        assert!(body.contains(degraded), "{body}");
    }
}

#[tokio::test]
async fn a_node_that_stops_does_not_wait_for_a_handshake() {
    let (mut node, _) = start(ApiConfig { shutdown_grace: Duration::from_secs(60), ..ApiConfig::default() }).await;
    let silent = node.connect().await;
    node.shutdown.cancel();
    node.stopped().await;
    drop(silent);
}
