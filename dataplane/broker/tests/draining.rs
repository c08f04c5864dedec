//! A node that is taken out of its cluster takes no new messages, and says when others have all that it took.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::sleep;
use veena_broker::errors::ProduceError;
use veena_broker::message::NewMessage;
use veena_contract::{Effect, PartitionIndex, Reroute, TopicRecord};

use crate::net::{Cluster, Fault, NODES, owned_by};
use crate::support::{Node, name, replay_all, tenant, topic};

fn to_b(payload: &str) -> NewMessage {
    let partition = Some(PartitionIndex(1));
    NewMessage { key: None, partition, headers: Vec::new(), idempotency_key: None, payload: Bytes::copy_from_slice(payload.as_bytes()) }
}

async fn produce(node: &Node, payload: &str) -> Result<(), ProduceError> {
    node.broker.produce(&tenant(), &name("orders"), to_b(payload)).await
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_takes_nothing_new_and_is_empty_once_owners_have_what_it_took() {
    let cluster = Cluster::start(1).await;
    cluster.catalog.put(TopicRecord { reroute: Reroute::Never, ..owned_by(topic("orders", 1, 3), &NODES) });
    let leaving = &cluster.node("a").broker;
    cluster.net.fail("a", "b", Fault::Cut);
    produce(cluster.node("a"), "kept").await.expect("accepted");
    assert!(leaving.drained().is_none(), "it does not leave");

    cluster.catalog.drain("a", true);
    let (tenant, orders) = (tenant(), name("orders"));
    let refusals = [
        produce(cluster.node("a"), "late").await.expect_err("refused"),
        leaving.produce_batch(&tenant, &orders, vec![to_b("late")]).await.expect_err("refused").error,
        leaving.produce_committed(&tenant, &orders, vec![to_b("late")]).await.expect_err("refused").error,
    ];
    for error in refusals {
        assert!(matches!(error, ProduceError::Draining) && error.effect() == Effect::None, "{error}");
    }
    produce(cluster.node("b"), "elsewhere").await.expect("others take it");
    sleep(Duration::from_secs(60)).await;
    assert!(leaving.drained().is_none(), "the owner has not got it");

    cluster.net.heal();
    cluster.settle_down().await;
    while leaving.drained().is_none() {
        sleep(Duration::from_millis(50)).await;
    }
    let mut stored: Vec<String> = replay_all(cluster.node("b"), "orders", 1).await.into_iter().map(|(_, payload)| payload).collect();
    stored.sort_unstable();
    assert_eq!(stored, ["elsewhere", "kept"]);
    let before = leaving.drained();
    cluster.catalog.drain("a", false);
    assert!(leaving.drained().is_none());
    produce(cluster.node("a"), "again").await.expect("it stays after all");
    cluster.catalog.drain("a", true);
    while leaving.drained().is_none() {
        sleep(Duration::from_millis(50)).await;
    }
    assert_ne!(leaving.drained(), before, "what it said before is not of this time");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_is_not_empty_while_a_message_is_being_produced_at_it() {
    let cluster = Cluster::start(2).await;
    cluster.catalog.put(TopicRecord { reroute: Reroute::Never, ..owned_by(topic("orders", 1, 3), &NODES) });
    let leaving = &cluster.node("a").broker;
    cluster.net.fail("a", "b", Fault::LoseRequests);
    let (tenant, orders) = (tenant(), name("orders"));
    let mut committing = Box::pin(leaving.produce_committed(&tenant, &orders, vec![to_b("under way")]));
    assert!((&mut committing).now_or_never().is_none(), "it waits for the owner");
    cluster.catalog.drain("a", true);
    assert!(leaving.drained().is_none(), "one is under way");
    drop(committing);
    assert!(leaving.drained().is_some(), "whoever sent it has left");
}
