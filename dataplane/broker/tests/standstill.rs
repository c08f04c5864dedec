//! One log that stands still at its owner holds up no other node, but for what is in that log.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use veena_broker::Broker;
use veena_broker::message::{ConsumeRequest, Delivery, NewMessage, Settle};
use veena_broker::owners::bodies::lease::Claim;
use veena_broker::owners::bodies::{Tenures, look};
use veena_broker::owners::wire::{self, Tenure};
use veena_broker::partition::PartitionId;
use veena_broker::streams::StreamKey;
use veena_contract::{CallerGone, Offset, OwnershipEpoch, PartitionIndex, PeerClass, PeerOp, PeerRequest, StreamId, TopicId};
use veena_storage::disk::mem::{Fault, FaultKind, Hold, Op};

use crate::net::{Cluster, node_id, owned_by};
use crate::support::{name, tenant, text, topic};

/// How long a condition may take to come true, in real time.
const DEADLINE: Duration = Duration::from_secs(20);
/// The partition whose log stands still, and one of the same owner that does not.
const HELD: u32 = 0;
const FREE: u32 = 1;

/// Both partitions are of node b.
async fn cluster() -> (Cluster, Hold) {
    let cluster = Cluster::start_on_threads(1).await;
    let hold = cluster.members[1].disk.hold(Op::Create, "0000000000000001/p00000");
    cluster.catalog.put(owned_by(topic("orders", 1, 2), &["b", "b"]));
    (cluster, hold)
}

fn message(partition: u32, payload: &str) -> NewMessage {
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    NewMessage { key: None, partition: Some(PartitionIndex(partition)), headers: Vec::new(), idempotency_key: None, payload }
}

async fn commit(broker: &Broker, partition: u32, payload: &str) {
    let results = broker.produce_committed(&tenant(), &name("orders"), vec![message(partition, payload)]).await.expect("accepted");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// One message of any partition that reached its client.
async fn take(broker: &Broker, wait: Duration) -> Option<Delivery> {
    let (tenant, topic) = (tenant(), name("orders"));
    let request = ConsumeRequest { tenant, topic, partition: None, messages_max: 1, bytes_max: 1_000, wait };
    let found = broker.consume(request).await.expect("consume");
    let message = found.messages().first().cloned();
    found.written();
    message
}

async fn ack(broker: &Broker, message: &Delivery) {
    let handle = message.lease.expect("a lease").handle;
    broker.settle(&tenant(), &name("orders"), handle, Settle::Ack).await.expect("acked");
}

#[tokio::test]
async fn calls_that_come_for_a_log_that_stands_still_end_when_nobody_waits_for_them_any_more() {
    const CALLS: u64 = 300;
    let (cluster, hold) = cluster().await;
    let owner = cluster.node("b").broker.clone();
    let tenure = Tenure { partition: PartitionId { topic: TopicId(1), index: PartitionIndex(HELD) }, epoch: OwnershipEpoch(1) };
    let tenures = Tenures { topic: TopicId(1), partitions: vec![(PartitionIndex(HELD), OwnershipEpoch(1))] };
    let calls = (0..CALLS).map(|n| {
        let key = StreamKey { stream: StreamId(n.into()), source: 1 };
        let claim = Claim { tenures: tenures.clone(), number: n, token: None, messages_max: 1, bytes_max: 1 };
        let (op, body) = match n % 4 {
            0 => (PeerOp::OWNER_OPEN, wire::open(&tenure, key)),
            1 => (PeerOp::OWNER_READ, look::ask_read(&tenure, Offset(0))),
            2 => (PeerOp::OWNER_DESCRIBE, look::ask(&tenures)),
            _ => (PeerOp::OWNER_CLAIM, claim.encode()),
        };
        let remaining = Duration::from_millis(100);
        let request = PeerRequest { from: node_id("a"), class: PeerClass::Data, op, remaining, caller: CallerGone::default(), body };
        owner.serve_peer(request).expect("one of the engine's")
    });
    let ended = timeout(DEADLINE, join_all(calls)).await.expect("each ends, though the log stands still");
    let refused = ended.iter().filter(|answer| answer.is_err()).count();
    assert!(refused as u64 >= CALLS * 3 / 4, "{refused} of {CALLS} were refused");
    commit(&cluster.node("a").broker, FREE, "one").await;
    let consumer = &cluster.node("c").broker;
    let message = take(consumer, DEADLINE).await.expect("of the other log");
    ack(consumer, &message).await;
    drop(hold);
    commit(&cluster.node("a").broker, HELD, "two").await;
    assert_eq!(text(&take(consumer, DEADLINE).await.expect("of the log that stood still")), "two");
}

#[tokio::test]
async fn a_claim_gets_what_is_in_open_logs_and_its_owner_is_not_silent_though_another_log_stands_still() {
    let (cluster, hold) = cluster().await;
    let consumer = &cluster.node("c").broker;
    for n in 0..8 {
        commit(&cluster.node("b").broker, FREE, &n.to_string()).await;
        let message = take(consumer, Duration::ZERO).await.expect("what is there is had at once");
        assert_eq!(text(&message), n.to_string());
    }
    for asked in 9..11 {
        assert!(take(consumer, Duration::ZERO).await.is_none());
        assert_eq!(cluster.net.calls(PeerOp::OWNER_CLAIM), asked, "it is asked, since it answers");
    }
    drop(hold);
}

#[tokio::test]
async fn a_consumer_that_waits_is_told_of_other_logs_while_one_stands_still() {
    let (cluster, hold) = cluster().await;
    let consumer = cluster.node("c").broker.clone();
    let waiting = tokio::spawn(async move { take(&consumer, DEADLINE).await });
    let in_line = async {
        while cluster.node("b").broker.parked() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, in_line).await.expect("it stands in line");
    commit(&cluster.node("a").broker, FREE, "one").await;
    assert_eq!(text(&waiting.await.expect("no panic").expect("told")), "one");
    drop(hold);
}

#[tokio::test]
async fn what_was_set_aside_is_not_told_as_nothing_by_a_node_whose_disk_does_not_answer() {
    let cluster = Cluster::start_on_threads(1).await;
    let (node, disk) = (&cluster.members[0], &cluster.members[0].disk);
    let broker = &cluster.node(node.name).broker;
    assert_eq!(broker.quarantined().await, Some(Vec::new()));
    disk.inject(Fault { op: Op::List, path_contains: "/quarantine".into(), after: 0, times: 1, kind: FaultKind::Eio });
    assert_eq!(broker.quarantined().await, None, "it cannot be read");
    let hold = disk.hold(Op::List, "/quarantine");
    let asked = join_all((0..40).map(|_| broker.quarantined()));
    let told = timeout(DEADLINE, asked).await.expect("nobody waits for what does not come");
    assert!(told.iter().all(Option::is_none));
    assert_eq!(disk.standing(), 1, "one has looked for all, and holds no other read up");
    drop(hold);
    while broker.quarantined().await.is_none() {}
}
