//! What the engine does when the disk or the leader fails it: it keeps the data, says so, and goes on.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_broker::errors::{ConsumeError, ProduceError};
use veena_broker::message::{ConsumeRequest, NewMessage, PartitionStats};
use veena_broker::ports::BrokerConfig;
use veena_contract::{Effect, Offset, TenantId, TopicId, limits};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::support::{FakeCatalog, Node, link, name, replay_all, small_config, tenant, text, topic};

const TOPIC: &str = "/data/topics/default/0000000000000001";

fn fault(op: Op, path: &str, times: u64) -> Fault {
    Fault { op, path_contains: path.into(), after: 0, times, kind: FaultKind::Eio }
}

fn orders() -> Arc<FakeCatalog> {
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, 1));
    catalog
}

fn is_there(disk: &MemDisk, path: &str) -> bool {
    disk.exists(Path::new(path)).expect("asked")
}

fn quarantined(disk: &MemDisk) -> usize {
    disk.list(Path::new("/data/quarantine")).map_or(0, |entries| entries.len())
}

/// Opens the log of `orders`.
async fn stats(node: &Node) -> Option<PartitionStats> {
    node.broker.describe(&tenant(), &name("orders"), None).await.expect("known").pop().flatten()
}

fn message(payload: &str) -> NewMessage {
    NewMessage {
        key: None,
        partition: None,
        headers: Vec::new(),
        idempotency_key: None,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_whose_last_write_fails_says_so() {
    let (disk, catalog) = (MemDisk::new(), orders());
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("orders", None, "one").await);
    let delivery = node.consume("orders", 5_000).await.expect("the message");
    assert!(node.ack("orders", &delivery));
    for op in [Op::Write, Op::Sync, Op::Create] {
        disk.inject(fault(op, "settle", u64::MAX));
    }
    assert!(!node.broker.stop().await, "the ack is not on the disk");
    disk.clear_faults();
    disk.crash_power(&mut || 0);
    let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
    assert_eq!(text(&node.consume("orders", 5_000).await.expect("it comes again")), "one");
    assert!(node.broker.stop().await, "nothing is wrong any more");
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_says_it_is_durable_is_whichever_write_failed() {
    let mut said = 0;
    let kinds = [FaultKind::Eio, FaultKind::Error(ErrorKind::StorageFull)];
    for (after, kind, kept) in (0..10).flat_map(|after| kinds.map(|kind| [(after, kind, 0), (after, kind, 1)])).flatten() {
        let (disk, catalog) = (MemDisk::new(), orders());
        let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
        assert!(node.produce("orders", None, "one").await);
        let delivery = node.consume("orders", 5_000).await.expect("the message");
        tokio::time::sleep(Duration::from_secs(2)).await;
        // No task writes the ack any more: it is the stop's own to write.
        node.tasks.stop().await;
        assert!(node.ack("orders", &delivery));
        disk.inject(Fault { after, kind, ..fault(Op::Write, "settle", 1) });
        let is_durable = node.broker.stop().await;
        disk.clear_faults();
        disk.crash_power(&mut || kept);
        if is_durable {
            said += 1;
            let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
            assert!(node.consume("orders", 1_000).await.is_none(), "write {after}, {kind:?}: the ack survived the power cut");
        }
    }
    assert!(said > 0, "one failed write is made good");
}

#[tokio::test(start_paused = true)]
async fn what_was_kept_of_topics_and_cursors_that_went_while_the_node_was_away_goes_too() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let (mut parent, mut child) = (topic("orders", 1, 1), topic("copies", 2, 1));
    link(&mut parent, &mut child, 0, vec![Offset(0)]);
    (parent.tenant, child.tenant) = (acme(), acme());
    catalog.put(parent);
    catalog.put(child);
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    node.broker.produce(&acme(), &name("orders"), message("one")).await.expect("taken");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let traces = async |node: &Node| node.broker.traces_of(&[acme()]).await.expect("told")[0];
    let before = traces(&node).await;
    assert_eq!((before.open_topics, before.positions, before.directories), (2, 0, 3), "all is of topics that live");
    node.broker.stop().await;
    catalog.remove(TopicId(1));
    catalog.remove(TopicId(2));

    let node = Node::start(Arc::new(disk.clone()), &catalog, 2).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = traces(&node).await;
    assert_eq!((after.open_topics, after.directories, after.positions, after.orphans), (0, 0, 0, 0), "{after:?}");
    assert_eq!(after.quarantined, 3, "both topics' directories, and the tenant's");
    tokio::time::sleep(Duration::from_millis(2 * limits::QUARANTINE_GRACE_MS)).await;
    assert_eq!(traces(&node).await, veena_broker::Traces::default());
    node.broker.stop().await;
}

fn acme() -> TenantId {
    TenantId::parse("acme").expect("a name")
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_keeps_its_directory_until_the_leader_confirms() {
    let (disk, catalog) = (MemDisk::new(), orders());
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("orders", None, "one").await);
    assert!(node.consume("orders", 5_000).await.is_some());
    catalog.set_leaderless(true);
    catalog.remove(TopicId(1));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(is_there(&disk, TOPIC), "nothing goes on this node's own view");
    assert_eq!(quarantined(&disk), 0);
    catalog.set_leaderless(false);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!is_there(&disk, TOPIC));
    assert_eq!(quarantined(&disk), 1, "set aside, not removed");
}

#[tokio::test(start_paused = true)]
async fn topic_directories_that_cannot_be_listed_are_looked_at_again() {
    let (disk, catalog) = (MemDisk::new(), orders());
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("orders", None, "one").await);
    assert!(node.consume("orders", 5_000).await.is_some());
    disk.inject(fault(Op::List, "/data/topics", 3));
    catalog.remove(TopicId(1));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(quarantined(&disk), 1, "an error is not an empty directory");
}

#[tokio::test(start_paused = true)]
async fn only_the_produce_in_flight_when_the_log_latches_is_in_doubt() {
    let (disk, catalog) = (MemDisk::new(), orders());
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("orders", None, "before").await);
    disk.inject(fault(Op::Sync, "/ingress", 1));
    let first = node.broker.produce(&tenant(), &name("orders"), message("in flight")).await.expect_err("the sync failed");
    assert!(matches!(first, ProduceError::LogPoisoned));
    let later = node.broker.produce(&tenant(), &name("orders"), message("later")).await.expect_err("latched");
    assert!(matches!(later, ProduceError::LogLatched));
    assert_eq!((first.effect(), later.effect()), (Effect::Possible, Effect::None));
    assert_eq!(first.to_string(), later.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_once_gives_its_lease_back() {
    let (disk, catalog) = (MemDisk::new(), orders());
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    assert!(node.produce("orders", None, "one").await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.broker.stop().await;
    let disk = disk.reopen();
    let node = Node::start(Arc::new(disk.clone()), &catalog, 2).await;
    // Opens the log, so that the fault meets the read of the message.
    assert!(stats(&node).await.is_some());
    disk.inject(fault(Op::Read, "/p00000", 1));
    let request = ConsumeRequest {
        tenant: tenant(),
        topic: name("orders"),
        partition: None,
        messages_max: 1,
        bytes_max: 1024 * 1024,
        wait: Duration::ZERO,
    };
    let refused = node.broker.consume(request).await.map(|_| ()).expect_err("the read fails");
    assert!(matches!(refused, ConsumeError::ReadFailed), "{refused}");
    let delivery = node.consume("orders", 0).await.expect("at once, not after the visibility timeout");
    assert_eq!(text(&delivery), "one");
}

#[tokio::test(start_paused = true)]
async fn consumers_at_a_log_that_stays_closed_do_not_wake_each_other_without_end() {
    let (disk, catalog) = (MemDisk::new(), orders());
    let node = Arc::new(Node::start(Arc::new(disk.clone()), &catalog, 1).await);
    assert!(node.produce("orders", None, "one").await);
    let request = ConsumeRequest {
        tenant: tenant(),
        topic: name("orders"),
        partition: None,
        messages_max: 1,
        bytes_max: 1024 * 1024,
        wait: Duration::from_secs(5),
    };
    let unwritten = node.broker.consume(request).await.expect("the message");
    assert_eq!(unwritten.messages().len(), 1);
    for op in [Op::Write, Op::Open, Op::Read] {
        disk.inject(fault(op, "/p00000", u64::MAX));
    }
    assert!(node.produce("orders", None, "two").await);
    let consumers = [(); 2].map(|()| {
        let node = Arc::clone(&node);
        tokio::spawn(async move { node.consume("orders", 60_000).await })
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(unwritten);
    // Time goes on only if all of them wait.
    tokio::time::sleep(Duration::from_secs(10)).await;
    disk.clear_faults();
    let mut seen = Vec::new();
    for consumer in consumers {
        seen.extend(consumer.await.expect("no panic").map(|delivery| text(&delivery)));
    }
    seen.sort();
    assert_eq!(seen, ["one", "two"], "told once the log is open again");
}

fn segments(disk: &MemDisk) -> Vec<PathBuf> {
    let dir = Path::new(TOPIC).join("p00000");
    let entries = disk.list(&dir).expect("listed");
    entries.into_iter().filter(|entry| entry.name.ends_with(".log")).map(|entry| dir.join(entry.name)).collect()
}

#[tokio::test(start_paused = true)]
async fn retention_reaches_a_log_that_nobody_has_open() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let mut record = topic("orders", 1, 1);
    record.retention_ms = 3_600_000;
    catalog.put(record);
    let mut config = small_config();
    config.idle_log_eviction_ms = 60_000;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config).await;
    for n in 0..60 {
        assert!(node.produce("orders", None, &format!("{n:04}{}", "x".repeat(4_000))).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let before = segments(&disk).len();
    assert!(before > 3, "there are sealed segments");
    assert_eq!(node.broker.open_logs(), 0, "nobody uses the log");
    tokio::time::sleep(Duration::from_secs(3 * 3_600)).await;
    assert!(segments(&disk).len() < before, "it ages all the same");
    assert_eq!(node.broker.open_logs(), 0, "the walk leaves no log open");
    assert_eq!(replay_from_oldest(&node).await, 0, "nothing that is too old is left");
}

/// How many messages can be read from the oldest offset on.
async fn replay_from_oldest(node: &Node) -> usize {
    let stats = stats(node).await.expect("open");
    usize::try_from(stats.log_end.0 - stats.oldest.0).expect("few")
}

#[tokio::test(start_paused = true)]
async fn a_read_error_lets_no_delayed_message_pass() {
    const DELAY: Duration = Duration::from_secs(60);
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let (mut parent, mut child) = (topic("orders", 1, 1), topic("later", 2, 1));
    link(&mut parent, &mut child, 60_000, vec![Offset(0)]);
    catalog.put(parent);
    catalog.put(child);
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for payload in ["one", "two", "three"] {
        assert!(node.produce("orders", None, payload).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    node.broker.stop().await;
    // The next life reads the parent from the disk, and cannot for a while. Its clock begins where the first one's did.
    let disk = disk.reopen();
    let started = tokio::time::Instant::now();
    let node = Node::start(Arc::new(disk.clone()), &catalog, 2).await;
    assert!(stats(&node).await.is_some());
    disk.inject(fault(Op::Read, "0000000000000001/p00000", 200));
    assert!(node.consume("later", 30_000).await.is_none(), "nothing is delivered early");
    disk.clear_faults();
    let mut seen = BTreeMap::new();
    for expected in ["one", "two", "three"] {
        let delivery = node.consume("later", 120_000).await.expect("delivered once it can be read");
        assert!(started.elapsed() >= DELAY, "never early: {:?}", started.elapsed());
        assert_eq!(text(&delivery), expected, "in order, none left out");
        assert!(node.ack("later", &delivery));
        *seen.entry(text(&delivery)).or_insert(0) += 1;
    }
    assert!(seen.values().all(|count| *count == 1));
    let copies: Vec<String> = replay_all(&node, "later", 0).await.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(copies, ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn acks_that_find_no_room_are_told_and_counted_and_written_once_there_is_room() {
    let kinds = [FaultKind::Error(ErrorKind::StorageFull), FaultKind::Eio];
    for kind in kinds {
        let (disk, catalog) = (MemDisk::new(), orders());
        let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
        assert!(node.produce("orders", None, "one").await);
        let delivery = node.consume("orders", 5_000).await.expect("the message");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(node.broker.not_ready_reason(), None);
        for op in [Op::Write, Op::Create] {
            disk.inject(Fault { kind, ..fault(op, "settle", u64::MAX) });
        }
        assert!(node.ack("orders", &delivery), "an ack needs no room");
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if node.broker.metrics().settle_writes_failed.get() > 0 {
                let reason = node.broker.not_ready_reason().expect("told as long as it lasts");
                assert!(reason.contains("settle journal"), "{reason}");
            }
        }
        assert!(node.broker.metrics().settle_writes_failed.get() > 10, "counted");

        disk.clear_faults();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(node.broker.not_ready_reason(), None, "written");
        disk.crash_power(&mut || 0);
        let node = Node::start(Arc::new(disk.reopen()), &catalog, 2).await;
        assert!(node.consume("orders", 1_000).await.is_none(), "the ack survived the power cut");
        assert!(node.broker.stop().await);
    }
}

#[tokio::test(start_paused = true)]
async fn once_a_commit_has_found_no_room_produce_is_refused_before_the_room_is_looked_at() {
    let (disk, catalog) = (MemDisk::new(), orders());
    let config = BrokerConfig { disk_reserve_bytes: 64 * 1024, ..small_config() };
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config).await;
    assert!(node.produce("orders", None, "one").await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A writer that is quicker than the next look has taken all there was, with what the WAL had laid out before.
    let used = |disk: &MemDisk| disk.space("/data".as_ref()).map(|space| space.total - space.available).expect("read");
    disk.set_capacity(used(&disk));
    let large = "x".repeat(100_000);
    assert!(node.produce("orders", None, &large).await, "the WAL has room");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(node.broker.metrics().commits_failed.get() > 0);
    assert!(!node.produce("orders", None, "two").await);
    assert!(node.broker.not_ready_reason().is_some_and(|reason| reason.contains("less free room")));

    disk.set_capacity(u64::MAX);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(node.broker.not_ready_reason(), None);
    assert!(node.produce("orders", None, "three").await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stored: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(stored, ["one", &large, "three"]);
}
