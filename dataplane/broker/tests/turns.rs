//! Tenants take turns: what one of them has waiting, however much, holds up nobody else for more than one turn.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use veena_broker::Broker;
use veena_broker::message::{ConsumeRequest, NewMessage, Settle};
use veena_contract::{PartitionIndex, PeerOp, TenantId, TopicRecord, limits};
use veena_storage::disk::mem::{MemDisk, Op};
use veena_storage::io::Io;

use crate::net::{Cluster, owned_by};
use crate::support::{FakeCatalog, Node, name, small_config, text, topic};

/// How long a condition may take to come true, in real time.
const DEADLINE: Duration = Duration::from_secs(20);
/// Short of the patience of a node with another.
const SOON: Duration = Duration::from_secs(5);

fn flood() -> TenantId {
    TenantId::parse("flood").expect("a tenant")
}

fn light() -> TenantId {
    TenantId::parse("light").expect("a tenant")
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let looking = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, looking).await.unwrap_or_else(|_| panic!("not within the deadline: {what}"));
}

fn messages(partition: u32, count: usize) -> Vec<NewMessage> {
    let partition = Some(PartitionIndex(partition));
    let payload = Bytes::from_static(b"a message");
    vec![NewMessage { key: None, partition, headers: Vec::new(), idempotency_key: None, payload }; count]
}

async fn send(broker: &Broker, tenant: &TenantId, partition: u32, count: usize) {
    broker.produce_batch(tenant, &name("orders"), messages(partition, count)).await.expect("accepted");
}

/// Takes a message and acks it; says whether there was one.
async fn take(broker: &Broker, tenant: &TenantId, partition: u32, wait: Duration) -> bool {
    let (partition, topic) = (Some(PartitionIndex(partition)), name("orders"));
    let request = ConsumeRequest { tenant: tenant.clone(), topic, partition, messages_max: 1, bytes_max: 1_000, wait };
    let found = broker.consume(request).await.expect("consume");
    let Some(message) = found.messages().first().cloned() else { return false };
    found.written();
    assert_eq!(text(&message), "a message");
    broker.settle(tenant, &name("orders"), message.lease.expect("a lease").handle, Settle::Ack).await.expect("acked");
    true
}

/// How many messages of partition 0 consumers can see.
async fn visible(broker: &Broker, tenant: &TenantId) -> u64 {
    let stats = broker.describe(tenant, &name("orders"), Some(PartitionIndex(0))).await.expect("known");
    stats[0].as_ref().expect("open").high_watermark.0
}

#[tokio::test]
async fn ten_thousand_waiting_records_of_one_tenant_are_one_turn_for_another() {
    const PARTITIONS: u32 = 40;
    const EACH: usize = 250;
    let (disk, catalog, io) = (MemDisk::new(), FakeCatalog::new(), Io::threads(1));
    for (tenant, id, partitions) in [(flood(), 1, PARTITIONS), (light(), 2, 1)] {
        catalog.put_tenant(&tenant);
        catalog.put(TopicRecord { tenant, ..topic("orders", id, partitions) });
    }
    let node = Node::try_start_on(Arc::new(disk.clone()), &catalog, 1, small_config(), io.clone()).await.expect("starts");
    // From here on all logs are open, so that only commits wait.
    for partition in 0..PARTITIONS {
        send(&node.broker, &flood(), partition, 1).await;
        assert!(take(&node.broker, &flood(), partition, DEADLINE).await);
    }
    send(&node.broker, &light(), 0, 1).await;
    assert!(take(&node.broker, &light(), 0, DEADLINE).await);

    let hold = |partition| disk.hold(Op::Sync, &format!("0000000000000001/p{partition:05}"));
    let first = hold(0);
    let others: Vec<_> = (2..PARTITIONS).map(hold).collect();
    send(&node.broker, &flood(), 0, EACH).await;
    until("the only place is taken", || disk.standing() == 1).await;
    let idle = io.waiting();
    send(&node.broker, &flood(), 1, EACH).await;
    until("the next waits", || io.waiting() > idle).await;
    for partition in 2..PARTITIONS {
        send(&node.broker, &flood(), partition, EACH).await;
    }
    let all = usize::try_from(PARTITIONS - 1).expect("few");
    until("the flood waits", || io.waiting() >= all).await;
    let waiting = io.waiting();
    send(&node.broker, &light(), 0, 1).await;
    until("the other waits behind it", || io.waiting() > waiting).await;
    drop(first);
    // That one and the next of the flood go. The third takes the place for good, and whoever would read would wait for it too: so it is asked how long the log is.
    let is_there = async {
        while visible(&node.broker, &light()).await < 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(SOON, is_there).await.is_ok(), "it waits behind more than a turn of the flood");
    drop(others);
    for partition in 0..PARTITIONS {
        for _ in 0..EACH {
            assert!(take(&node.broker, &flood(), partition, DEADLINE).await);
        }
    }
    node.broker.stop().await;
}

#[tokio::test]
async fn partitions_of_one_tenant_that_stand_still_leave_others_room_for_calls_to_their_owner() {
    let cluster = Cluster::start_on_threads(1).await;
    let (from, owner) = (&cluster.node("a").broker, &cluster.node("b").broker);
    for (tenant, id, partitions) in [(flood(), 1, 250), (light(), 2, 2)] {
        cluster.catalog.put_tenant(&tenant);
        cluster.catalog.put(TopicRecord { tenant: tenant.clone(), ..owned_by(topic("orders", id, 1), &vec!["b"; partitions]) });
        // Both nodes know both.
        send(from, &tenant, 0, 1).await;
        assert!(take(owner, &tenant, 0, DEADLINE).await);
    }
    let calls = || cluster.net.calls(PeerOp::OWNER_OPEN) + cluster.net.calls(PeerOp::OWNER_COMMIT);
    let calls_before = calls();
    let hold = cluster.members[1].disk.hold(Op::Sync, "0000000000000001/p");
    for partition in 0..250 {
        send(from, &flood(), partition, 1).await;
    }
    let most = limits::PEER_TENANT_CALLS_MAX - limits::PEER_TENANT_CALLS_MAX / 8;
    until("there are as many calls as there may be", || calls() - calls_before >= most as u64).await;
    send(from, &light(), 0, 1).await;
    assert!(take(owner, &light(), 0, SOON).await, "what was accepted comes to its owner");
    let (tenant, topic) = (light(), name("orders"));
    let results = timeout(SOON, from.produce_committed(&tenant, &topic, messages(1, 1))).await.expect("in time").expect("accepted");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    drop(hold);
}
