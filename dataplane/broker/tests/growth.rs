//! A child that grows while records are on their way into it gets each of them once, and in order where the order is promised.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use veena_contract::{Offset, TopicRecord};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::support::{FakeCatalog, Node, link, replay_all, topic};

/// A parent of one partition, its child of two.
fn family() -> (Arc<FakeCatalog>, TopicRecord) {
    let catalog = FakeCatalog::new();
    let (mut parent, mut child) = (topic("parent", 1, 1), topic("child", 2, 2));
    link(&mut parent, &mut child, 0, vec![Offset(0)]);
    catalog.put(child.clone());
    catalog.put(parent);
    (catalog, child)
}

fn grow(catalog: &FakeCatalog, child: &mut TopicRecord) {
    child.partitions += 1;
    child.revision += 1;
    catalog.put(child.clone());
}

/// The child's second partition cannot be written.
fn break_second(disk: &MemDisk) {
    let path_contains = "0000000000000002/p00001".to_owned();
    disk.inject(Fault { op: Op::Create, path_contains, after: 0, times: u64::MAX, kind: FaultKind::Eio });
}

async fn start(disk: &MemDisk, catalog: &Arc<FakeCatalog>, seed: u64) -> Node {
    Node::start(Arc::new(disk.clone()), catalog, seed).await
}

async fn kill(disk: &MemDisk, node: Node) -> MemDisk {
    disk.crash_kill();
    node.tasks.token().cancel();
    disk.reopen()
}

/// Keyless records go by their offset in the parent.
async fn produce(node: &Node, from: u64, to: u64) {
    for n in from..to {
        assert!(node.produce("parent", None, &format!("{n:03}")).await);
    }
}

/// What each partition of the child holds; every one of `count` records is in one of them, once.
async fn held(node: &Node, partitions: u32, count: u64, what: &str) -> Vec<Vec<String>> {
    let mut held = Vec::new();
    let mut times = BTreeMap::new();
    for partition in 0..partitions {
        let log: Vec<String> = replay_all(node, "child", partition).await.into_iter().map(|(_, payload)| payload).collect();
        assert!(log.is_sorted(), "{what}: partition {partition} has them in order: {log:?}");
        log.iter().for_each(|payload| *times.entry(payload.clone()).or_insert(0) += 1);
        held.push(log);
    }
    let expected: BTreeMap<String, i32> = (0..count).map(|n| (format!("{n:03}"), 1)).collect();
    assert_eq!(times, expected, "{what}");
    held
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_a_child_grew_is_finished_the_way_it_went() {
    for is_killed in [false, true] {
        let what = if is_killed { "killed in between" } else { "one life" };
        let (disk, (catalog, mut child)) = (MemDisk::new(), family());
        let mut node = start(&disk, &catalog, 1).await;
        break_second(&disk);
        produce(&node, 0, 20).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        // The first partition has its half; the second has nothing.
        grow(&catalog, &mut child);
        let mut disk = disk;
        if is_killed {
            disk = kill(&disk, node).await;
            node = start(&disk, &catalog, 2).await;
        }
        produce(&node, 20, 26).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        disk.clear_faults();
        tokio::time::sleep(Duration::from_secs(30)).await;
        held(&node, 3, 26, what).await;
        // From a flushed position on the new partition takes part.
        produce(&node, 26, 32).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let held = held(&node, 3, 32, what).await;
        assert_eq!(held[2], ["026", "029"], "{what}");
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_that_grew_while_a_power_cut_took_the_position_gets_nothing_twice() {
    let (disk, (catalog, mut child)) = (MemDisk::new(), family());
    let node = start(&disk, &catalog, 1).await;
    produce(&node, 0, 20).await;
    while node.broker.cursor_numbers().iter().any(|cursor| cursor.committed < 20) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Positions are synced once a second at most: what was copied within it is not known after a power cut.
    disk.crash_power(&mut || 0);
    node.tasks.token().cancel();
    let disk = disk.reopen();
    grow(&catalog, &mut child);
    let node = start(&disk, &catalog, 2).await;
    produce(&node, 20, 26).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    held(&node, 3, 26, "power cut").await;
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_to_a_child_that_grew_before_its_new_count_is_durable() {
    let (disk, (catalog, mut child)) = (MemDisk::new(), family());
    let node = start(&disk, &catalog, 1).await;
    produce(&node, 0, 10).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    held(&node, 2, 10, "before").await;
    let settle = || Fault { op: Op::Sync, path_contains: "/data/settle".into(), after: 0, times: u64::MAX, kind: FaultKind::Eio };
    disk.inject(settle());
    grow(&catalog, &mut child);
    produce(&node, 10, 16).await;
    // Many repeats of the flush, which fails each time.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(node.broker.metrics().settle_writes_failed.get() > 5, "{}", node.broker.metrics().settle_writes_failed.get());
    held(&node, 3, 10, "the count is not durable").await;
    disk.clear_faults();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let logs = held(&node, 3, 16, "the count is durable").await;
    assert_eq!(logs[2], ["011", "014"]);
    // Whatever a power cut takes now, what was sent is found again where it went.
    disk.crash_power(&mut || 0);
    node.tasks.token().cancel();
    let disk = disk.reopen();
    let node = start(&disk, &catalog, 2).await;
    produce(&node, 16, 20).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    held(&node, 3, 20, "after a power cut").await;
    node.broker.stop().await;
}
