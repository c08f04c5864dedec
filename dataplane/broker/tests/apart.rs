//! One log that fails, stands still or is deleted holds up nobody else, and a task that dies is not missed in silence.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_broker::errors::ProduceError;
use veena_broker::message::NewMessage;
use veena_contract::{Effect, Offset, PartitionIndex, TopicId};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode, read_full_at};

use crate::support::{FakeCatalog, Node, link, name, replay_all, small_config, tenant, text, topic};

/// How long a condition may take to come true, in real time.
const DEADLINE: Duration = Duration::from_secs(20);

fn broken(disk: &MemDisk, path: &str) {
    for op in [Op::Open, Op::Create, Op::List] {
        disk.inject(Fault { op, path_contains: path.into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    }
}

async fn send(node: &Node, partition: u32, payload: &str) -> Result<(), ProduceError> {
    let payload = Bytes::copy_from_slice(payload.as_bytes());
    let message = NewMessage { key: None, partition: Some(PartitionIndex(partition)), headers: Vec::new(), idempotency_key: None, payload };
    node.broker.produce(&tenant(), &name("orders"), message).await
}

async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let looking = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, looking).await.unwrap_or_else(|_| panic!("not within the deadline: {what}"));
}

/// Sends to partition 1 until that is refused; what was accepted.
async fn fill(node: &Node, life: u32) -> Vec<String> {
    let mut accepted = Vec::new();
    loop {
        let payload = format!("{life}-{}-{}", accepted.len(), "x".repeat(4_000));
        match send(node, 1, &payload).await {
            Ok(()) => accepted.push(payload),
            Err(refused) => {
                assert!(matches!(refused, ProduceError::OwnerDown), "{refused}");
                assert_eq!(refused.effect(), Effect::None);
                return accepted;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_opened_stops_its_own_partition_at_its_budget_and_the_wal_shrinks_afterwards() {
    const BUDGET: usize = 100_000;
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 2));
    let mut config = small_config();
    config.undispatched_partition_bytes_max = BUDGET;
    let mut accepted = Vec::new();
    let mut disk_of_life = disk.clone();
    broken(&disk, "p00001");
    for life in 0..2 {
        let node = Node::start_with(Arc::new(disk_of_life.clone()), &catalog, u64::from(life), config.clone()).await;
        // What waits since a former life counts once it was read.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let taken = fill(&node, life).await;
        let bytes: usize = taken.iter().map(String::len).sum();
        assert!(bytes < BUDGET + 5_000, "life {life}: {bytes} bytes are more than the budget");
        assert_eq!(taken.is_empty(), life > 0, "life {life}: what waits since before counts");
        accepted.extend(taken);
        for n in 0..50 {
            assert!(send(&node, 0, &format!("{life}:{n}")).await.is_ok(), "the other partition takes messages");
            let delivery = node.consume("orders", 10_000).await.expect("and hands them out");
            assert_eq!(text(&delivery), format!("{life}:{n}"));
            assert!(node.ack("orders", &delivery));
        }
        assert!(fill(&node, life).await.is_empty(), "still refused");
        if life == 0 {
            node.broker.stop().await;
            disk_of_life = disk.reopen();
            continue;
        }
        disk.clear_faults();
        tokio::time::sleep(Duration::from_secs(30)).await;
        let status = node.broker.wal_status();
        assert!(status.segments <= 1 && status.live_bytes < config.wal.segment_bytes, "the WAL shrinks: {status:?}");
        assert!(send(&node, 1, "late").await.is_ok(), "and the partition takes messages again");
        accepted.push("late".to_owned());
        let seen = node.drain("orders").await;
        let expected: BTreeMap<String, usize> = accepted.iter().map(|payload| (payload.clone(), 1)).collect();
        assert!(seen == expected, "everything accepted once: {} of {}", seen.len(), expected.len());
        node.broker.stop().await;
    }
}

#[tokio::test]
async fn a_log_that_takes_long_to_open_or_to_delete_holds_up_no_other_topic() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let mut invoices = topic("invoices", 2, 1);
    invoices.visibility_timeout_ms = 300;
    catalog.put(topic("orders", 1, 1));
    catalog.put(invoices.clone());
    let node = Node::start_on_threads(Arc::new(disk.clone()), &catalog, 1, small_config()).await;
    assert!(node.produce("orders", None, "one").await);
    assert!(node.consume("orders", 5_000).await.is_some());
    node.broker.stop().await;

    let hold = disk.hold(Op::Open, "0000000000000001/p00000");
    let node = Arc::new(Node::start_on_threads(Arc::new(disk.clone()), &catalog, 2, small_config()).await);
    let opening = Arc::clone(&node);
    let slow = tokio::spawn(async move { opening.broker.describe(&tenant(), &name("orders"), None).await.is_ok() });
    assert!(node.produce("invoices", None, "first").await, "others are produced to");
    let first = node.consume("invoices", 5_000).await.expect("and consumed from");
    let again = node.consume("invoices", 10_000).await.expect("leases expire and wake who waits");
    assert_eq!((text(&again), again.offset), ("first".to_owned(), first.offset));
    assert!(node.ack("invoices", &again));
    assert_eq!(node.broker.topic_numbers().len(), 2, "numbers are given");

    // The topic is deleted while it opens; what comes behind it in the catalog is not kept waiting.
    catalog.remove(TopicId(1));
    let mut copy = topic("copy", 3, 1);
    link(&mut invoices, &mut copy, 0, vec![Offset(0)]);
    catalog.put(invoices);
    catalog.put(copy);
    assert_eq!(text(&node.consume("copy", 10_000).await.expect("a new child is fed")), "first");
    assert!(!slow.is_finished(), "it opens still");

    drop(hold);
    assert!(slow.await.expect("no panic"));
    let is_gone = || async { !disk.exists(Path::new("/data/topics/default/0000000000000001")).expect("asked") };
    until("its directory is set aside", is_gone).await;
    node.broker.stop().await;
}

#[tokio::test]
async fn a_log_that_takes_long_to_open_anew_holds_up_no_lease_of_another() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let mut invoices = topic("invoices", 2, 1);
    invoices.visibility_timeout_ms = 300;
    catalog.put(topic("orders", 1, 1));
    catalog.put(invoices);
    let node = Arc::new(Node::start_on_threads(Arc::new(disk.clone()), &catalog, 1, small_config()).await);
    assert!(node.produce("orders", None, "one").await);
    let delivery = node.consume("orders", 5_000).await.expect("the message");
    assert!(node.ack("orders", &delivery));
    let failing = Fault { op: Op::Sync, path_contains: "0000000000000001/p00000".into(), after: 0, times: 1, kind: FaultKind::Eio };
    let hold = disk.hold(Op::Open, "0000000000000001/p00000");
    disk.inject(failing);
    assert!(node.produce("orders", None, "two").await);
    until("the commit has failed", || async { node.broker.metrics().commits_failed.get() > 0 }).await;

    assert!(node.produce("invoices", None, "first").await);
    assert!(node.consume("invoices", 5_000).await.is_some());
    for _ in 0..3 {
        assert!(node.consume("invoices", 10_000).await.is_some(), "leases expire and wake who waits");
    }
    drop(hold);
    assert_eq!(text(&node.consume("orders", 10_000).await.expect("the log is open again")), "two");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn housekeeping_that_panics_stops_the_node_instead_of_dying_unnoticed() {
    for path in ["/data/quarantine", "/data/topics/default"] {
        let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
        catalog.put(topic("orders", 1, 1));
        let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
        assert!(node.produce("orders", None, "one").await);
        assert!(node.consume("orders", 5_000).await.is_some());
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(!node.tasks.token().is_cancelled(), "rounds without a panic go by");
        disk.inject(Fault { op: Op::List, path_contains: path.into(), after: 0, times: 1, kind: FaultKind::Panic });
        catalog.put(topic("invoices", 2, 1));
        tokio::time::timeout(Duration::from_secs(120), node.tasks.token().cancelled()).await.expect("the node is told to end");
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_deleted_in_the_middle_of_commits_and_acks_leaves_nothing_for_its_successor() {
    for seed in 0..10 {
        let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
        catalog.put(topic("orders", 1, 2));
        let node = Arc::new(Node::start(Arc::new(disk.clone()), &catalog, seed).await);
        let busy = |life: u64| {
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                for n in 0..200 {
                    let _refused = send(&node, n % 2, &format!("{life}-{n}")).await;
                    let request = veena_broker::message::ConsumeRequest {
                        tenant: tenant(),
                        topic: name("orders"),
                        partition: None,
                        messages_max: 2,
                        bytes_max: 1_000,
                        wait: Duration::from_millis(1),
                    };
                    let Ok(found) = node.broker.consume(request).await else { continue };
                    let taken = found.messages().to_vec();
                    found.written();
                    for delivery in &taken {
                        assert!(text(delivery).starts_with(&format!("{life}-")), "of another life: {}", text(delivery));
                        node.ack("orders", delivery);
                    }
                }
            })
        };
        // Settle state is written every 100 ms: the deletion falls into it.
        let mut working = busy(1);
        for life in 2..5 {
            tokio::time::sleep(Duration::from_millis(90 + seed * 7)).await;
            working.abort();
            catalog.remove(TopicId(life - 1));
            catalog.put(topic("orders", life, 2));
            working = busy(life);
        }
        working.await.expect("no panic");
        tokio::time::sleep(Duration::from_secs(30)).await;
        let left = disk.list(Path::new("/data/topics/default")).expect("listed");
        let left: Vec<String> = left.into_iter().map(|entry| entry.name).collect();
        assert_eq!(left, ["0000000000000004"], "seed {seed}: a directory came back");
        node.broker.stop().await;
        let node = Node::start(Arc::new(disk.reopen()), &catalog, seed + 100).await;
        for partition in 0..2 {
            let all = replay_all(&node, "orders", partition).await;
            assert!(all.iter().all(|(_, payload)| payload.starts_with("4-")), "seed {seed}: {all:?}");
        }
        assert_eq!(node.broker.metrics().damage_found.get(), 0);
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_made_again_around_a_kill_begins_at_its_first_message() {
    for after_ms in [0, 20, 150, 2_500] {
        let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
        catalog.put(topic("orders", 1, 1));
        let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
        for n in 0..10 {
            assert!(node.produce("orders", None, &format!("old {n}")).await);
        }
        assert_eq!(node.drain("orders").await.len(), 10);
        tokio::time::sleep(Duration::from_secs(3)).await;
        catalog.remove(TopicId(1));
        catalog.put(topic("orders", 2, 1));
        for n in 0..3 {
            assert!(node.produce("orders", None, &format!("new {n}")).await);
        }
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        disk.crash_kill();
        node.tasks.token().cancel();
        let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
        let new: BTreeMap<String, usize> = (0..3).map(|n| (format!("new {n}"), 1)).collect();
        assert_eq!(node.drain("orders").await, new, "killed after {after_ms} ms");
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn records_of_a_deleted_topic_wait_for_the_leader_who_is_asked_once_for_all_of_them() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 1));
    catalog.put(topic("invoices", 2, 1));
    broken(&disk, "topics/default/0000000000000001");
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for n in 0..200 {
        assert!(node.produce("orders", None, &format!("{n}")).await);
    }
    catalog.set_leaderless(true);
    catalog.remove(TopicId(1));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node.broker.metrics().records_discarded.get(), 0, "nothing goes on this node's own view");
    assert!(node.produce("invoices", None, "one").await);
    assert!(node.consume("invoices", 5_000).await.is_some(), "others are dispatched meanwhile");
    let before = catalog.asked();
    catalog.set_leaderless(false);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node.broker.metrics().records_discarded.get(), 200);
    assert!(catalog.asked() - before < 5, "{} times for 200 records", catalog.asked() - before);
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_waits_while_no_log_can_be_opened_is_told_when_one_can() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 2));
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(send(&node, 1, "one").await.is_ok());
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.broker.stop().await;
    broken(&disk, "topics/default/0000000000000001");
    let node = Arc::new(Node::start(Arc::new(disk.reopen()), &catalog, 2).await);
    let began = tokio::time::Instant::now();
    let consumer = Arc::clone(&node);
    let parked = tokio::spawn(async move { consumer.consume("orders", 600_000).await });
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!parked.is_finished(), "it waits, and is not told at once that there is nothing");
    disk.clear_faults();
    assert_eq!(text(&parked.await.expect("no panic").expect("the message")), "one");
    assert!(began.elapsed() < Duration::from_secs(60), "soon, not when its wait is over: {:?}", began.elapsed());
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_kills_its_consumers_costs_no_disk_and_keeps_its_count() {
    const DEATHS: u32 = 1_000;
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let mut record = topic("orders", 1, 1);
    record.visibility_timeout_ms = 200;
    catalog.put(record);
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for payload in ["poison", "innocent"] {
        assert!(node.produce("orders", None, payload).await);
    }
    let mut innocent = 0;
    let mut used = Vec::new();
    for death in 1..=DEATHS {
        // A batch that takes its neighbour along; every other time it is alone.
        let taken = node.consume_many("orders", 2 - usize::try_from(death % 2).expect("small"), 10_000).await;
        innocent += u32::from(taken.len() > 1);
        assert_eq!(taken[0].lease.expect("leased").delivery_count, death);
        tokio::time::sleep(Duration::from_millis(300)).await;
        if death % 250 == 0 {
            let dirs = ["/data/settle", "/data/topics/default/0000000000000001/p00000"];
            used.push(dirs.iter().flat_map(|dir| disk.list(Path::new(dir)).expect("listed")).map(|entry| entry.len).sum::<u64>());
        }
    }
    assert!(used[3] < used[0] + 100_000, "the disk fills: {used:?}");
    node.broker.stop().await;
    let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
    let counts: Vec<u32> =
        node.consume_many("orders", 2, 10_000).await.iter().map(|taken| taken.lease.expect("leased").delivery_count).collect();
    assert_eq!(counts, [DEATHS + 1, innocent + 1], "a restart forgets none, and nobody pays for another");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_steps_over_a_bad_record_gets_the_next_one_at_once() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 2));
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for (partition, payload) in [(0, "the bad record"), (0, "behind it"), (1, "the bad record"), (0, "the last")] {
        assert!(send(&node, partition, payload).await.is_ok());
        // Each in a frame of its own.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    node.broker.stop().await;
    for partition in 0..2 {
        let path = Path::new("/data/topics/default/0000000000000001").join(format!("p{partition:05}/{:020}.log", 0));
        let file = disk.open(&path, OpenMode::Read).expect("opens");
        let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("small")];
        read_full_at(file.as_ref(), &mut bytes, 0).expect("read");
        let at = bytes.windows(14).position(|window| window == b"the bad record").expect("it is there");
        disk.flip_bit(&path, 8 * at as u64).expect("flipped");
    }
    let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
    let began = tokio::time::Instant::now();
    for expected in ["behind it", "the last"] {
        assert_eq!(text(&node.consume("orders", 60_000).await.expect("a message")), expected);
    }
    assert!(began.elapsed() < Duration::from_secs(1), "not when the wait was over: {:?}", began.elapsed());
    assert_eq!(node.broker.metrics().messages_corrupt_skipped.get(), 2);
    node.broker.stop().await;
}
