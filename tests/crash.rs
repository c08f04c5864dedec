//! kill -9, stops and pauses under load, with the checker's verdict.

use std::path::Path;
use std::time::Duration;

use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::chance::Chance;
use veena_loadtest_driver::chaos::{self, ChaosPlan, Fault};

use crate::support::{BIN, LOG_ALLOWED, assert_clean_log, consume_exactly, create_narrow, produce_all, scratch, start};

/// How long faults go on: ten seconds, or `VEENA_CHAOS_MINUTES`.
fn fault_time() -> Duration {
    let minutes = std::env::var("VEENA_CHAOS_MINUTES").ok().map(|text| text.parse::<u64>().expect("a number of minutes"));
    minutes.map_or(Duration::from_secs(10), |minutes| Duration::from_secs(minutes * 60))
}

#[tokio::test]
async fn a_node_that_is_killed_stopped_and_frozen_under_load_keeps_every_promise() {
    let mut dir = scratch();
    let given = std::env::var("VEENA_CHAOS_SEED").ok().map(|text| text.parse().expect("a number"));
    let seed = given.unwrap_or_else(|| Chance::new_seed().expect("entropy"));
    println!("VEENA_CHAOS_SEED={seed}");
    let mut plan = ChaosPlan::new(Path::new(BIN), dir.path(), fault_time(), seed);
    plan.faults = Fault::PROCESS.to_vec();
    plan.log_allowed = LOG_ALLOWED.iter().map(|text| (*text).to_owned()).collect();
    let outcome = chaos::run(&plan).await;
    if outcome.as_ref().map_or(true, |report| !report.complaints().is_empty()) {
        // What happened stays to be looked at.
        dir.disable_cleanup(true);
        println!("data, log and history: {}", dir.path().display());
    }
    let report = outcome.expect("the node comes back after every fault");
    println!("{report}");
    let complaints = report.complaints();
    assert!(complaints.is_empty(), "seed {seed}: {report}\n{}", complaints.join("\n"));
}

#[tokio::test]
async fn what_was_answered_202_is_there_after_kill_9() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    let texts: Vec<String> = (0..50).map(|number| format!("message {number}")).collect();
    produce_all(&mut client, "orders", &texts).await;
    node.kill().expect("the node was alive");
    node.start_again().await.expect("the node starts again");
    let got = consume_exactly(&mut client, "orders", texts.len()).await;
    let got: Vec<&[u8]> = got.iter().map(|message| message.payload.as_slice()).collect();
    assert_eq!(got, texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
    assert_clean_log(&node);
}

#[tokio::test]
async fn a_lease_ends_with_the_process_and_its_handle_settles_nothing_afterwards() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 600_000).await;
    produce_all(&mut client, "orders", &["only one".to_owned()]).await;
    let old = consume_exactly(&mut client, "orders", 1).await;
    let old = old[0].handle.clone().expect("a lease has a handle");
    node.kill().expect("the node was alive");
    node.start_again().await.expect("the node starts again");
    let new = consume_exactly(&mut client, "orders", 1).await;
    let new = new[0].handle.clone().expect("a lease has a handle");
    assert_ne!(old, new);
    let how = veena_loadtest_checker::How::Ack;
    assert_eq!(client.settle("orders", &old, how).await.expect("an answer").status, 410);
    assert_eq!(client.settle("orders", &new, how).await.expect("an answer").status, 204);
}

#[tokio::test]
async fn a_topic_that_was_answered_201_is_there_after_kill_9_and_a_deleted_one_is_not() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "kept", 30_000).await;
    create_narrow(&mut client, "gone", 30_000).await;
    client.delete_topic("gone").await.expect("a topic is deleted");
    node.kill().expect("the node was alive");
    node.start_again().await.expect("the node starts again");
    client.describe("kept").await.expect("the topic is there");
    assert_eq!(client.get("/v1/topics/gone").await.expect("an answer").status, 404);
}
