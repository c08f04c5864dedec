//! Cursors that end, wait, are held up or overtaken: a child gets everything once, and what it cannot get is counted once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use veena_broker::errors::ReplayError;
use veena_broker::ports::BrokerConfig;
use veena_contract::{Offset, PartitionIndex, TopicId, TopicRecord};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::support::{FakeCatalog, Node, link, name, replay_all, small_config, tenant, text, topic};

const PARENT: &str = "/data/topics/default/0000000000000001/p00000";

/// A parent of one partition, and a child of `partitions` that waits `delay_ms`.
fn family(partitions: u32, delay_ms: u64, change: impl FnOnce(&mut TopicRecord)) -> Arc<FakeCatalog> {
    let catalog = FakeCatalog::new();
    let (mut parent, mut child) = (topic("parent", 1, 1), topic("child", 2, partitions));
    change(&mut parent);
    link(&mut parent, &mut child, delay_ms, vec![Offset(0)]);
    catalog.put(parent);
    catalog.put(child);
    catalog
}

async fn start(disk: &MemDisk, catalog: &Arc<FakeCatalog>, seed: u64, config: BrokerConfig) -> Node {
    Node::start_with(Arc::new(disk.reopen()), catalog, seed, config).await
}

fn broken(disk: &MemDisk, path: &str) {
    for op in [Op::Open, Op::Create, Op::List] {
        disk.inject(Fault { op, path_contains: path.into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    }
}

/// How many records each payload has in the child.
async fn copies(node: &Node, partitions: u32) -> BTreeMap<String, usize> {
    let mut copies = BTreeMap::new();
    for partition in 0..partitions {
        for (_, payload) in replay_all(node, "child", partition).await {
            *copies.entry(payload).or_insert(0) += 1;
        }
    }
    copies
}

async fn dropped(node: &Node) -> u64 {
    let view = node.broker.catalog();
    let parent = view.topic_by_id(TopicId(1)).expect("lives");
    let lags = node.broker.child_lags(&tenant(), &name("parent"), &parent.children).await;
    lags[0].dropped_messages
}

#[tokio::test(start_paused = true)]
async fn the_lag_of_a_child_is_whole_before_its_cursors_have_run() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    let (mut parent, mut child) = (topic("parent", 1, 1), topic("child", 2, 1));
    catalog.put(parent.clone());
    let node = start(&disk, &catalog, 1, small_config()).await;
    for payload in ["one", "two", "three"] {
        assert!(node.produce("parent", None, payload).await);
        node.consume("parent", 60_000).await.expect("published");
    }
    link(&mut parent, &mut child, 3_600_000, vec![Offset(1)]);
    catalog.put(child);
    catalog.put(parent.clone());
    let lags = node.broker.child_lags(&tenant(), &name("parent"), &parent.children).await;
    assert!(lags[0].is_complete);
    assert_eq!(lags[0].lag_messages, 2);
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_has_ended_is_started_again_by_the_next_message() {
    let (disk, catalog) = (MemDisk::new(), family(1, 0, |_| ()));
    let mut config = small_config();
    config.idle_log_eviction_ms = 1_000;
    let node = start(&disk, &catalog, 1, config).await;
    for payload in ["one", "two", "three"] {
        assert!(node.produce("parent", None, payload).await);
        let delivery = node.consume("child", 60_000).await.expect("copied");
        assert_eq!(text(&delivery), payload);
        assert!(node.ack("child", &delivery));
        // Everything that runs for a reason has ended, and the logs are closed.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(node.broker.open_logs(), 0);
    }
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_cannot_be_written_holds_up_no_other_and_catches_up_by_itself() {
    let catalog = FakeCatalog::new();
    let (mut parent, mut child, mut other) = (topic("parent", 1, 1), topic("child", 2, 1), topic("other", 3, 1));
    for copy in [&mut child, &mut other] {
        link(&mut parent, copy, 0, vec![Offset(0)]);
    }
    for record in [parent, child, other] {
        catalog.put(record);
    }
    let disk = MemDisk::new();
    broken(&disk, "0000000000000002");
    let node = start(&disk, &catalog, 1, small_config()).await;
    for payload in ["one", "two"] {
        assert!(node.produce("parent", None, payload).await);
        assert_eq!(text(&node.consume("other", 60_000).await.expect("the other child is fed")), payload);
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(node.broker.metrics().fanout_records_committed.get(), 2);
    disk.clear_faults();
    for payload in ["one", "two"] {
        assert_eq!(text(&node.consume("child", 60_000).await.expect("copied, with nobody producing")), payload);
    }
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_child_partition_that_cannot_commit_has_the_others_sent_nothing_twice() {
    let (disk, catalog) = (MemDisk::new(), family(3, 0, |_| ()));
    broken(&disk, "0000000000000002/p00001");
    let sent: Vec<String> = (0..30).map(|n| format!("{n:02}")).collect();
    for life in 0..2 {
        let node = start(&disk, &catalog, life, small_config()).await;
        for payload in sent.iter().filter(|_| life == 0) {
            assert!(node.produce("parent", None, payload).await);
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let commits = node.broker.metrics().commits.get();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(node.broker.metrics().commits.get(), commits, "life {life}: nothing is committed again and again");
        node.broker.stop().await;
    }
    disk.clear_faults();
    let node = start(&disk, &catalog, 9, small_config()).await;
    assert_eq!(node.drain("child").await.len(), 30, "the slab is finished once it can be");
    let expected: BTreeMap<String, usize> = sent.into_iter().map(|payload| (payload, 1)).collect();
    assert_eq!(copies(&node, 3).await, expected);
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn records_that_retention_took_before_they_were_copied_are_counted_once() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let catalog = family(1, 10 * 3_600_000, |parent| parent.retention_ms = 3_600_000);
    let disk = MemDisk::new();
    let node = start(&disk, &catalog, 1, small_config()).await;
    for n in 0..60 {
        assert!(node.produce("parent", None, &format!("{n:04}{}", "x".repeat(4_000))).await);
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    // Retention goes on taking, segment after segment, while the cursor waits.
    let mut before = 0;
    for _ in 0..4 {
        tokio::time::sleep(HOUR / 2).await;
        let (oldest, counted) = (oldest(&node).await, dropped(&node).await);
        assert!(counted >= before && counted == oldest, "{counted} counted, {oldest} gone");
        assert_eq!(node.broker.metrics().fanout_records_dropped.get(), counted);
        before = counted;
    }
    assert_eq!(before, 60, "all are too old");
    let replayed = node.broker.replay(&tenant(), &name("parent"), PartitionIndex(0), Offset(0)).await;
    assert!(matches!(replayed, Err(ReplayError::AgedOut { offset: Offset(0), oldest: Offset(60) })), "{replayed:?}");
    node.broker.stop().await;
    let node = start(&disk, &catalog, 2, small_config()).await;
    assert!(node.produce("parent", None, "late").await);
    tokio::time::sleep(HOUR / 2).await;
    assert_eq!(dropped(&node).await, 60, "a restart forgets none and adds none");
    assert_eq!(node.broker.metrics().fanout_records_dropped.get(), 0, "this process has dropped none");
    node.broker.stop().await;
}

async fn oldest(node: &Node) -> u64 {
    let mut stats = node.broker.describe(&tenant(), &name("parent"), None).await.expect("known");
    stats.pop().flatten().expect("open").oldest.0
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_of_the_parent_is_counted_once_and_costs_the_child_nothing_else() {
    let (disk, catalog) = (MemDisk::new(), family(1, 20_000, |_| ()));
    let node = start(&disk, &catalog, 1, small_config()).await;
    for n in 0..10 {
        assert!(node.produce("parent", None, &format!("payload number {n}")).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    node.broker.stop().await;
    let path = Path::new(PARENT).join(format!("{:020}.log", 0));
    let file = disk.open(&path, veena_storage::disk::OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("small")];
    veena_storage::disk::read_full_at(file.as_ref(), &mut bytes, 0).expect("read");
    let at = bytes.windows(16).position(|window| window == b"payload number 4").expect("it is there");
    disk.flip_bit(&path, 8 * at as u64).expect("flipped");
    let node = start(&disk, &catalog, 2, small_config()).await;
    let seen = node.drain("child").await;
    assert_eq!(seen.len(), 0, "nothing is due yet");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let seen = node.drain("child").await;
    assert_eq!(seen.len(), 9);
    assert!(!seen.contains_key("payload number 4") && seen.values().all(|count| *count == 1), "{seen:?}");
    assert_eq!((dropped(&node).await, node.broker.metrics().fanout_records_dropped.get()), (1, 1));
    node.broker.stop().await;
    let node = start(&disk, &catalog, 3, small_config()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((dropped(&node).await, node.broker.metrics().fanout_records_dropped.get()), (1, 0));
    node.broker.stop().await;
}
