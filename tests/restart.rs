//! Clean stops: nothing that was acked comes again, nothing that was not is lost.

use std::time::Duration;

use veena_loadtest_checker::How;
use veena_loadtest_driver::api::Client;

use crate::support::{STOP_DEADLINE, assert_clean_log, assert_empty, consume_exactly, create_narrow, produce_all, scratch, start};

#[tokio::test]
async fn a_clean_stop_redelivers_nothing_that_was_acked() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    let texts: Vec<String> = (0..100).map(|number| format!("message {number}")).collect();
    produce_all(&mut client, "orders", &texts).await;
    let messages = consume_exactly(&mut client, "orders", 100).await;
    // Every other one, so that acks lie ahead of the frontier too.
    let (acked, left): (Vec<_>, Vec<_>) = messages.iter().partition(|message| message.offset % 2 == 1);
    for message in &acked {
        let handle = message.handle.as_deref().expect("a lease has a handle");
        assert_eq!(client.settle("orders", handle, How::Ack).await.expect("an answer").status, 204);
    }
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    node.start_again().await.expect("the node starts again");
    let again = consume_exactly(&mut client, "orders", left.len()).await;
    let offsets = |messages: &[&veena_loadtest_driver::api::Message]| messages.iter().map(|m| m.offset).collect::<Vec<_>>();
    assert_eq!(offsets(&again.iter().collect::<Vec<_>>()), offsets(&left));
    assert_empty(&mut client, "orders").await;
    assert_clean_log(&node);
}

#[tokio::test]
async fn a_node_that_stood_still_goes_on_where_it_was() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    produce_all(&mut client, "orders", &["before".to_owned()]).await;
    node.pause(Duration::from_millis(1_500)).await.expect("the node lives");
    produce_all(&mut client, "orders", &["after".to_owned()]).await;
    let got = consume_exactly(&mut client, "orders", 2).await;
    assert_eq!(got.iter().map(|m| m.payload.as_slice()).collect::<Vec<_>>(), [b"before".as_slice(), b"after"]);
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    assert_clean_log(&node);
}
