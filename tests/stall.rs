//! A disk that stands still: who waits is told that the outcome is not known, who comes later is refused, and nothing is lost.

use std::path::Path;
use std::time::Duration;

use veena_loadtest_driver::api::Client;
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
    let refused = loop {
        // Whoever comes in the first seconds waits too, on a connection of its own.
        tokio::time::sleep(Duration::from_millis(5_500)).await;
        let reply = later.produce("orders", None, b"refused").await.expect("an answer");
        if reply.status == 503 {
            break reply;
        }
    };
    assert!(refused.retry_after.is_some(), "a refusal says when to come again");
    let unknown = first.await.expect("no panic").expect("an answer");
    assert_eq!(unknown.status, 502, "{}", String::from_utf8_lossy(&unknown.body));

    std::fs::remove_file(&stall).expect("the disk moves again");
    let mut recovered = false;
    for _ in 0..100 {
        if later.produce("orders", None, b"after").await.expect("an answer").status == 202 {
            recovered = true;
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(recovered, "produce is accepted again");
    let messages = support::consume_exactly(&mut later, "orders", 3).await;
    let texts: Vec<_> = messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect();
    assert_eq!(texts, ["before", "unknown", "after"], "what was staged was carried through, what was refused was not stored");
}
