//! What is sent, what is understood, and what is repeated.

use std::time::Duration;

use bytes::Bytes;
use veena_client::bodies::{AttachChild, BatchEntry, CreateTopic, ProduceBatch};
use veena_client::{Client, ProduceOptions, SettleMode};
use veena_contract::Effect;

use crate::server::Server;

const TOPIC: &str = r#"{"name":"orders","partitions":3,"retention_ms":0,"visibility_timeout_ms":30000,"max_in_flight_per_partition":1024,
    "max_acked_ahead_per_partition":1024,"created_at":1}"#;

#[tokio::test]
async fn every_request_names_its_client() {
    let server = Server::start(&[(201, &[], TOPIC)]).await;
    let topic = server.client().create_topic(&CreateTopic { name: "orders".into(), ..CreateTopic::default() }).await.expect("created");
    assert_eq!(topic.partitions, 3);
    let asked = &server.asked()[0];
    assert_eq!((asked.method.as_str(), asked.uri.as_str()), ("POST", "/v1/topics"));
    assert_eq!(asked.body, r#"{"name":"orders"}"#);
    assert!(asked.headers.contains_key("x-veena-client") && asked.headers.contains_key("x-narad-client"));
    assert_eq!(asked.headers["content-type"], "application/json");
}

#[tokio::test]
async fn a_produce_carries_key_partition_and_headers() {
    let server = Server::start(&[(202, &[], ""), (200, &[], r#"{"id":"a-1","partition":2,"offset":7,"timestamp":9}"#)]).await;
    let options = ProduceOptions {
        key: Some(Bytes::from_static(&[0xff])),
        partition: Some(2),
        headers: vec![("trace".into(), "x".into())],
        idempotency_key: Some("once".into()),
    };
    server.client().produce("orders", Bytes::from_static(b"hi"), &options).await.expect("accepted");
    let committed = server.client().produce_committed("orders", Bytes::from_static(b"hi"), &options).await.expect("committed");
    assert_eq!((committed.partition, committed.offset), (2, 7));
    let asked = server.asked();
    assert_eq!(asked[0].uri, "/v1/topics/orders/produce?key=%FF&partition=2");
    assert_eq!(asked[0].headers["veena-header-trace"], "x");
    assert_eq!(asked[0].headers["idempotency-key"], "once");
    assert_eq!(asked[1].uri, "/v1/topics/orders/produce?key=%FF&partition=2&wait_for=commit");
}

#[tokio::test]
async fn a_produce_without_an_answer_is_sent_once_and_said_to_be_possible() {
    let server = Server::start(&[(0, &[], ""), (202, &[], "")]).await;
    let error = server.client().produce("orders", Bytes::from_static(b"hi"), &ProduceOptions::default()).await.expect_err("no answer");
    assert_eq!(error.effect, Effect::Possible);
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_produce_under_an_idempotency_key_is_sent_until_it_is_answered() {
    let unknown = r#"{"error":"no outcome in time","code":"outcome_unknown","effect":"possible","retryable":false}"#;
    let server = Server::start(&[(0, &[], ""), (502, &[], unknown), (202, &[], "")]).await;
    let options = ProduceOptions { idempotency_key: Some("once".into()), ..ProduceOptions::default() };
    server.client().produce("orders", Bytes::from_static(b"hi"), &options).await.expect("answered in the end");
    let asked = server.asked();
    assert_eq!(asked.iter().map(|asked| asked.headers["idempotency-key"].as_bytes()).collect::<Vec<_>>(), [b"once"; 3]);
    let server = Server::start(&[(0, &[], ""), (202, &[], r#"{"accepted":2}"#), (0, &[], ""), (202, &[], "")]).await;
    let keyed = |key: &str| BatchEntry { idempotency_key: Some(key.into()), ..BatchEntry::from_bytes(b"1") };
    let all = ProduceBatch { messages: vec![keyed("a"), keyed("b")] };
    assert_eq!(server.client().produce_batch("orders", &all).await.expect("answered in the end").accepted, 2);
    let some = ProduceBatch { messages: vec![keyed("a"), BatchEntry::from_bytes(b"1")] };
    let error = server.client().produce_batch("orders", &some).await.expect_err("a repeat would store one twice");
    assert_eq!((error.effect, server.asked().len()), (Effect::Possible, 3));
}

#[tokio::test]
async fn a_produce_that_was_certainly_not_stored_is_repeated() {
    let refusal = r#"{"error":"retry later","code":"overloaded","effect":"none","retryable":true}"#;
    let server = Server::start(&[(503, &[], refusal), (202, &[], "")]).await;
    server.client().produce("orders", Bytes::from_static(b"hi"), &ProduceOptions::default()).await.expect("the repeat is accepted");
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn a_limit_that_does_not_pass_is_not_asked_again() {
    let refusal = r#"{"error":"quota exceeded","code":"quota_exceeded","effect":"none","retryable":false,"limit":"stored_bytes"}"#;
    let server = Server::start(&[(429, &[], refusal), (202, &[], "")]).await;
    let error = server.client().produce("orders", Bytes::from_static(b"hi"), &ProduceOptions::default()).await.expect_err("refused");
    assert_eq!((error.status, error.is_retryable, server.asked().len()), (Some(429), false, 1));
}

#[tokio::test]
async fn a_refusal_in_plain_text_carries_its_code_and_effect_in_headers() {
    let headers = &[("veena-error-code", "owner_down"), ("veena-effect", "none"), ("retry-after", "1")];
    let server = Server::start(&[(503, headers, "partition owner is down; retry later\n")]).await;
    let client = Client::builder(&server.address).repeats(0).build().expect("a valid address");
    let error = client.consume("orders", Duration::ZERO, None).await.expect_err("refused");
    assert_eq!(error.code.as_deref(), Some("owner_down"));
    assert_eq!(error.text, "partition owner is down; retry later");
    assert_eq!((error.status, error.effect, error.retry_after), (Some(503), Effect::None, Some(Duration::from_secs(1))));
}

#[tokio::test]
async fn an_ack_that_is_gone_after_a_lost_answer_has_landed() {
    let gone = r#"{"error":"receipt handle no longer matches an active reservation"}"#;
    let server = Server::start(&[(0, &[], ""), (410, &[], gone)]).await;
    server.client().ack("orders", "0:1:2").await.expect("the first attempt landed");
    assert_eq!(server.asked()[1].uri, "/v1/topics/orders/ack?receipt_handle=0%3A1%3A2");
}

#[tokio::test]
async fn an_ack_that_is_gone_at_once_is_a_lost_lease() {
    let gone =
        r#"{"error":"receipt handle no longer matches an active reservation","code":"lease_lost","effect":"none","retryable":false}"#;
    let server = Server::start(&[(410, &[], gone)]).await;
    let error = server.client().ack("orders", "0:1:2").await.expect_err("lost");
    assert_eq!((error.status, error.code.as_deref()), (Some(410), Some("lease_lost")));
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn an_extend_that_is_gone_after_a_lost_answer_is_a_lost_lease() {
    let server = Server::start(&[(0, &[], ""), (410, &[], r#"{"error":"gone"}"#)]).await;
    let error = server.client().settle("orders", "0:1:2", SettleMode::Extend).await.expect_err("lost");
    assert!(error.is(410));
}

#[tokio::test]
async fn consume_asks_for_its_wait_and_reads_both_shapes() {
    let single = r#"{"topic":"orders","partition":0,"offset":4,"payload":"hi","timestamp":1,"receipt_handle":"0:4:9","delivery_count":1}"#;
    let batch = r#"{"messages":[{"topic":"orders","partition":0,"offset":5,"payload":{"a":1},"timestamp":1,"receipt_handle":"0:5:9"}]}"#;
    let server = Server::start(&[(200, &[], single), (200, &[], batch), (204, &[], ""), (204, &[], "")]).await;
    let client = server.client();
    let message = client.consume("orders", Duration::from_millis(1500), Some(0)).await.expect("answered").expect("a message");
    assert_eq!((message.offset, message.payload_bytes().expect("as encoded")), (4, Bytes::from_static(b"hi")));
    let messages = client.consume_batch("orders", 10, Duration::ZERO, None).await.expect("answered");
    assert_eq!(messages[0].payload_bytes().expect("as encoded"), r#"{"a":1}"#);
    assert!(client.consume("orders", Duration::ZERO, None).await.expect("answered").is_none());
    assert!(client.replay("orders", 1, 0).await.expect("answered").is_none());
    let asked = server.asked();
    assert_eq!(asked[0].uri, "/v1/topics/orders/consume?wait=1%2E5s&partition=0");
    assert_eq!(asked[1].uri, "/v1/topics/orders/consume?max=10");
    assert_eq!(asked[3].uri, "/v1/topics/orders/consume?partition=1&offset=0");
}

#[tokio::test]
async fn batches_are_sent_whole_and_answered_one_by_one() {
    let acked = r#"{"results":[{"status":204},{"status":410,"error":"gone"}]}"#;
    let server = Server::start(&[(202, &[], r#"{"accepted":1}"#), (200, &[], acked)]).await;
    let client = server.client();
    let batch = ProduceBatch { messages: vec![BatchEntry::from_bytes(b"{}").with_key(b"k")] };
    assert_eq!(client.produce_batch("orders", &batch).await.expect("accepted").accepted, 1);
    let results = client.settle_batch("orders", vec!["a".into(), "b".into()], SettleMode::Nack).await.expect("answered");
    assert_eq!(results.iter().map(|result| result.status).collect::<Vec<_>>(), [204, 410]);
    let asked = server.asked();
    assert_eq!(asked[0].body, r#"{"messages":[{"payload":{},"key":"k"}]}"#);
    assert_eq!(asked[1].uri, "/v1/topics/orders/ack?extend=0");
}

#[tokio::test]
async fn topics_are_listed_page_by_page() {
    let first = r#"{"topics":[],"next_page_token":"m"}"#;
    let second = r#"{"topics":[],"next_page_token":""}"#;
    let server = Server::start(&[(200, &[], first), (200, &[], second), (204, &[], ""), (200, &[], TOPIC)]).await;
    let client = server.client();
    assert!(client.topics().await.expect("listed").is_empty());
    client.detach("a", "b").await.expect("detached");
    client.attach("a", &AttachChild { child: "b".into(), delay_ms: None }).await.expect("attached");
    let asked = server.asked();
    assert_eq!(asked[1].uri, "/v1/topics?limit=1000&page_token=m");
    assert_eq!((asked[2].method.as_str(), asked[2].uri.as_str()), ("DELETE", "/v1/topics/a/children/b"));
    assert_eq!(asked[3].body, r#"{"child":"b"}"#);
}

#[tokio::test]
async fn nothing_that_listens_is_said_plainly_and_has_no_effect() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let client = Client::builder(&address).repeats(1).build().expect("a valid address");
    let error = client.produce("orders", Bytes::from_static(b"hi"), &ProduceOptions::default()).await.expect_err("nobody listens");
    assert_eq!((error.status, error.effect), (None, Effect::None));
    assert!(error.text.starts_with("cannot connect to http://127.0.0.1:"), "{}", error.text);
}

#[tokio::test]
async fn an_address_that_is_not_http_is_refused() {
    for address in ["", "localhost:7942", "ftp://h", "https://", "http://"] {
        assert!(Client::new(address).is_err(), "{address:?}");
    }
}
