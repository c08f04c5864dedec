//! A child that grows while records are on their way into it gets each of them once, and in order where the order is promised.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use veena_broker::message::NewMessage;
use veena_contract::{Offset, PeerOp, TopicRecord};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::net::{self, Cluster, owned_by};
use crate::support::{FakeCatalog, Node, link, name, replay_all, small_config, tenant, topic};

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
    held_at(&vec![node; partitions as usize], count, what).await
}

/// The same, of partitions that these nodes own, in this order.
async fn held_at(owners: &[&Node], count: u64, what: &str) -> Vec<Vec<String>> {
    let mut held = Vec::new();
    let mut times = BTreeMap::new();
    for (partition, node) in (0..).zip(owners) {
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

/// As `produce`; all of them become visible at once.
async fn produce_at_once(node: &Node, from: u64, to: u64) {
    let message =
        |n| NewMessage { key: None, partition: None, headers: Vec::new(), idempotency_key: None, payload: format!("{n:03}").into() };
    let results = node.broker.produce_committed(&tenant(), &name("parent"), (from..to).map(message).collect()).await.expect("checked");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

/// Waits until the only cursor of a node has copied so many records in this life.
async fn copied(cluster: &Cluster, name: &str, count: u64) {
    while cluster.node(name).broker.cursor_numbers().iter().any(|cursor| cursor.committed < count) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_former_life_sent_and_comes_late_is_not_copied_a_second_time_into_a_child_that_grew() {
    // With a position that is behind what was committed, the next life's first slab is not the one that is under way.
    for is_position_behind in [false, true] {
        let mut config = small_config();
        config.fanout.batch_records_max = 4;
        let mut cluster = Cluster::start_with(1, config).await;
        let (mut parent, mut child) = (owned_by(topic("parent", 1, 1), &["a"]), owned_by(topic("child", 2, 1), &["b"]));
        link(&mut parent, &mut child, 0, vec![Offset(0)]);
        cluster.catalog.put(child.clone());
        cluster.catalog.put(parent);
        produce_at_once(cluster.node("a"), 0, 4).await;
        copied(&cluster, "a", 4).await;
        if !is_position_behind {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        cluster.net.fail_op("a", "b", PeerOp::OWNER_COMMIT, net::Fault::Delay(Duration::from_secs(8)));
        let sent = cluster.net.calls(PeerOp::OWNER_COMMIT);
        produce_at_once(cluster.node("a"), 4, 10).await;
        while cluster.net.calls(PeerOp::OWNER_COMMIT) == sent {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cluster.kill("a");
        // What the next life sends comes behind it.
        cluster.net.fail_op("a", "b", PeerOp::OWNER_COMMIT, net::Fault::Cut);
        child = TopicRecord { revision: child.revision + 1, ..owned_by(child, &["b", "c"]) };
        cluster.catalog.put(child);
        cluster.revive("a").await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        cluster.net.heal();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let what = format!("position behind: {is_position_behind}");
        held_at(&[cluster.node("b"), cluster.node("c")], 10, &what).await;
        // From a flushed position on the new partition takes part.
        produce(cluster.node("a"), 10, 14).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let held = held_at(&[cluster.node("b"), cluster.node("c")], 14, &what).await;
        assert_eq!(held[1], ["011", "013"], "{what}");
    }
}
