//! What a former life of the node accepted and did not dispatch goes before what this life accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_broker::message::NewMessage;
use veena_broker::ports::BrokerConfig;
use veena_contract::Key;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::support::{FakeCatalog, Node, name, replay_all, small_config, tenant, text, topic};

const MIB: usize = 1024 * 1024;
const PARTITIONS: u32 = 3;
const KEYS: usize = 11;
const BATCH: usize = 50;
/// The reader of former records takes 8 MiB at a time; this is more than two of its pieces.
const FORMER_RECORDS: usize = 5_000;
const FORMER_BYTES: usize = 4 * 1024;

/// A budget of which one piece of former records is more than half: the reader stops behind each piece until it is dispatched.
fn tight_config() -> BrokerConfig {
    BrokerConfig { undispatched_bytes_max: 15 * MIB, ..small_config() }
}

fn fault(op: Op, path: &str, times: u64) -> Fault {
    Fault { op, path_contains: path.into(), after: 0, times, kind: FaultKind::Eio }
}

fn message(n: usize, life: &str, bytes: usize) -> NewMessage {
    let key = Key::parse(Bytes::from(format!("k{}", n % KEYS))).expect("short key");
    NewMessage {
        key,
        partition: None,
        headers: Vec::new(),
        idempotency_key: None,
        payload: Bytes::from(format!("{life} {n:06} {}", "x".repeat(bytes))),
    }
}

/// Accepts records that no partition below `path` can take, and dies.
async fn leave_behind(disk: &MemDisk, catalog: &Arc<FakeCatalog>, orders: &[(&str, usize)], path: &str) {
    let node = Node::start(Arc::new(disk.clone()), catalog, 1).await;
    disk.inject(fault(Op::Create, path, u64::MAX));
    for (topic, count) in orders {
        for first in (0..*count).step_by(BATCH) {
            let batch = (first..(first + BATCH).min(*count)).map(|n| message(n, "former", FORMER_BYTES)).collect();
            node.broker.produce_batch(&tenant(), &name(topic), batch).await.expect("accepted");
        }
    }
    disk.crash_kill();
    node.tasks.token().cancel();
}

/// Waits until so many records are committed.
async fn committed(node: &Node, count: usize) {
    let all = async {
        while node.broker.metrics().messages_committed.get() < count as u64 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("everything is committed");
}

/// The life and the number of a record.
fn parse(payload: &str) -> (&str, usize) {
    let mut words = payload.split(' ');
    let life = words.next().expect("a life");
    (life, words.next().and_then(|number| number.parse().ok()).expect("a number"))
}

#[tokio::test(start_paused = true)]
async fn records_of_a_former_life_are_not_overtaken_by_new_ones_of_their_partition() {
    const NEW_RECORDS: usize = 400;
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, PARTITIONS));
    leave_behind(&disk, &catalog, &[("orders", FORMER_RECORDS)], "/p0000").await;
    disk.clear_faults();
    let disk = disk.reopen();
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, tight_config()).await;
    // The reader cannot begin for two seconds, and stops again behind each piece; new records come all the while.
    disk.inject(fault(Op::Read, ".wal", 2));
    let produce = async {
        let mut taken = 0;
        while taken < NEW_RECORDS {
            let batch = vec![message(taken, "new", 10)];
            // Over the budget a produce is refused: the producer comes again.
            taken += usize::from(node.broker.produce_batch(&tenant(), &name("orders"), batch).await.is_ok());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), produce).await.expect("everything is accepted");
    committed(&node, FORMER_RECORDS + NEW_RECORDS).await;
    let mut seen = BTreeSet::new();
    for partition in 0..PARTITIONS {
        let log = replay_all(&node, "orders", partition).await;
        let lives: Vec<&str> = log.iter().map(|(_, payload)| parse(payload).0).collect();
        let formers = lives.iter().filter(|life| **life == "former").count();
        assert!(formers > 0 && formers < lives.len(), "partition {partition} has records of both lives");
        assert!(lives[..formers].iter().all(|life| *life == "former"), "partition {partition}: a former record was overtaken");
        let mut last = BTreeMap::new();
        for (_, payload) in &log {
            let (life, n) = parse(payload);
            assert!(seen.insert((life.to_owned(), n)), "partition {partition}: {life} {n} came twice");
            let before = last.insert((n % KEYS, life), n);
            assert!(before.is_none_or(|before| before < n), "partition {partition}: the order of a key");
        }
    }
    assert_eq!(seen.len(), FORMER_RECORDS + NEW_RECORDS, "nothing is lost");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn new_records_wait_no_longer_when_a_partition_that_stands_still_holds_the_former_ones_up() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("stuck", 1, 1));
    catalog.put(topic("orders", 2, 1));
    // What stands still is more than half of the budget; what the other topic had comes behind it in the WAL.
    let stuck = tight_config().undispatched_bytes_max * 3 / 4 / FORMER_BYTES;
    leave_behind(&disk, &catalog, &[("stuck", stuck), ("orders", 2 * MIB / FORMER_BYTES)], "/p0000").await;
    disk.clear_faults();
    let disk = disk.reopen();
    disk.inject(fault(Op::Create, "0000000000000001/p0000", u64::MAX));
    // There is no room to park what stands still.
    let config = BrokerConfig { parked_bytes_max: 0, ..tight_config() };
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 3, config).await;
    node.broker.produce_batch(&tenant(), &name("orders"), vec![message(0, "new", 10)]).await.expect("accepted");
    assert!(node.consume("orders", 4_000).await.is_none(), "the reader may still bring earlier records");
    let delivery = node.consume("orders", 4_000).await.expect("the topic is not held up for longer");
    assert_eq!(parse(&text(&delivery)).0, "new");
    assert!(node.ack("orders", &delivery));
    // Once the partition can be written, everything comes, once.
    disk.clear_faults();
    let rest = 2 * MIB / FORMER_BYTES;
    committed(&node, stuck + rest + 1).await;
    for (topic, count) in [("stuck", stuck), ("orders", rest)] {
        let seen = node.drain(topic).await;
        assert_eq!(seen.len(), count);
        assert!(seen.values().all(|times| *times == 1), "{topic}: nothing comes twice");
    }
    node.broker.stop().await;
}
