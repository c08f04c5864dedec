//! A disk that stands still: who waits is told that the outcome is not known, who comes later is refused, and nothing is lost.

use std::path::Path;

use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::http::RequestBytes;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

use crate::support;

#[tokio::test]
async fn a_disk_that_stands_still_is_told_to_those_who_wait_and_refuses_those_who_come() {
    let dir = support::scratch();
    let stall = dir.path().join("stall");
    let mut config = NodeConfig::in_dir(Path::new(support::BIN), dir.path()).flag("--slow-flush").flag("1ns");
    config.env.push(("VEENA_STALL_FILE".to_owned(), stall.display().to_string()));
    let node = NodeProcess::start(config).await.expect("a node starts");
    let mut waiting = Client::new(node.addr());
    support::create_narrow(&mut waiting, "orders", 30_000).await;
    assert_eq!(waiting.produce("orders", None, b"before").await.expect("an answer").status, 202);

    std::fs::write(&stall, b"").expect("the disk stands still");
    let addr = node.addr();
    let first = tokio::spawn(async move { waiting.produce("orders", None, b"unknown").await });
    let mut later = Client::new(addr);
    // Whoever comes in the first seconds waits too, and may find its message stored.
    let mut expected = vec!["before".to_owned(), "unknown".to_owned()];
    let refused = loop {
        let text = format!("attempt {}", expected.len());
        let reply = later.produce("orders", None, text.as_bytes()).await.expect("an answer");
        if reply.status == 503 {
            break reply;
        }
        assert_eq!(reply.status, 502, "{}", String::from_utf8_lossy(&reply.body));
        expected.push(text);
    };
    assert!(refused.retry_after.is_some(), "a refusal says when to come again");
    let ready = later.get("/readyz").await.expect("an answer");
    let text = String::from_utf8_lossy(&ready.body).into_owned();
    assert!(ready.status == 503 && text.contains("the disk does not answer"), "a node that refuses is not ready, and says why: {text}");
    assert_eq!(support::metric(addr, "veena_ready").await, 0.0);
    assert_eq!(later.get("/healthz").await.expect("an answer").status, 200);
    let unknown = first.await.expect("no panic").expect("an answer");
    assert_eq!(unknown.status, 502, "{}", String::from_utf8_lossy(&unknown.body));

    std::fs::remove_file(&stall).expect("the disk moves again");
    let accepted = || async { Client::new(addr).produce("orders", None, b"after").await.expect("an answer").status == 202 };
    support::until("produce is accepted again", accepted).await;
    assert_eq!(later.get("/readyz").await.expect("an answer").status, 200);
    expected.push("after".to_owned());
    let mut texts = support::texts(&support::consume_exactly(&mut later, "orders", expected.len()).await);
    // The two that waited first went in side by side.
    texts[1..expected.len() - 1].sort();
    expected[1..].sort_by_key(|text| (text == "after", text.clone()));
    assert_eq!(texts, expected, "what was staged was carried through, what was refused was not stored");
    support::assert_empty(&mut later, "orders").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_stands_still_holds_up_nobody_who_needs_no_sync() {
    let dir = support::scratch();
    let stall = dir.path().join("stall");
    let mut config = NodeConfig::in_dir(Path::new(support::BIN), dir.path()).flag("--slow-flush").flag("1ns");
    // With one thread that answers, a call that blocks it blocks everybody.
    config.env.push(("TOKIO_WORKER_THREADS".to_owned(), "1".to_owned()));
    config.env.push(("VEENA_STALL_FILE".to_owned(), stall.display().to_string()));
    let node = NodeProcess::start(config).await.expect("a node starts");
    let addr = node.addr();
    let mut client = Client::new(addr);
    for topic in ["orders", "other"] {
        support::create_narrow(&mut client, topic, 30_000).await;
    }
    support::produce_all(&mut client, "orders", &["one".to_owned(), "two".to_owned()]).await;
    let first = client.consume("orders", support::DEADLINE, 1).await.expect("an answer").expect("a message");

    std::fs::write(&stall, b"").expect("the disk stands still");
    let mut stuck = tokio::task::JoinSet::new();
    for number in 0..20 {
        let target = format!("/v1/topics/{}/produce?wait_for=commit", if number % 2 == 0 { "orders" } else { "other" });
        stuck.spawn(async move { Client::new(addr).call(&RequestBytes::post_json(&target, b"late")).await });
        stuck.spawn(async move { Client::new(addr).produce("orders", None, b"late").await });
    }
    support::until("they wait for the disk", || async { support::metric(addr, "veena_http_requests_in_flight").await > 40.0 }).await;
    for _ in 0..20 {
        assert_eq!(client.get("/healthz").await.expect("an answer").status, 200);
        assert!(client.get("/metrics").await.expect("an answer").status == 200 && client.get("/readyz").await.is_ok());
        client.describe("orders").await.expect("described");
    }
    assert_eq!(
        client.ack_batch("orders", &support::handles(&first)).await.expect("an answer"),
        [204],
        "an ack is for the memory, and later for the disk"
    );
    let second = client.consume("orders", support::DEADLINE, 1).await.expect("an answer").expect("a message");
    assert_eq!(support::texts(&second), ["two"], "what is visible is handed out");

    std::fs::remove_file(&stall).expect("the disk moves again");
    while let Some(answered) = stuck.join_next().await {
        answered.expect("no panic").expect("an answer");
    }
}
