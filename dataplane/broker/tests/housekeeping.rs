//! Directories that cannot be listed: housekeeping says so, counts it, and does its part later. An error is not an empty directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use veena_contract::{Offset, TopicRecord};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode, write_all_at};

use crate::support::{FakeCatalog, Node, name, small_config, tenant, text, topic};

const DIR: &str = "/data/topics/default/0000000000000001/p00000";
/// When the scrubber has walked once, and before it does again.
const ONE_WALK: Duration = Duration::from_secs(900);

fn unlistable(disk: &MemDisk, path: &str) {
    disk.inject(Fault { op: Op::List, path_contains: path.into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
}

fn segments(disk: &MemDisk) -> usize {
    disk.list(Path::new(DIR)).expect("listed").iter().filter(|entry| entry.name.ends_with(".log")).count()
}

/// A node with a log of several segments, which is closed when nobody uses it.
async fn filled(disk: &MemDisk, change: impl FnOnce(&mut TopicRecord)) -> Node {
    let catalog = FakeCatalog::new();
    let mut record = topic("orders", 1, 1);
    change(&mut record);
    catalog.put(record);
    let mut config = small_config();
    config.idle_log_eviction_ms = 60_000;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config).await;
    for n in 0..60 {
        assert!(node.produce("orders", None, &format!("{n:04}{}", "x".repeat(4_000))).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(segments(disk) > 3, "there are sealed segments");
    node
}

fn failed(node: &Node) -> u64 {
    node.broker.metrics().housekeeping_failed.get()
}

async fn verified(node: &Node) -> Option<u64> {
    let mut stats = node.broker.describe(&tenant(), &name("orders"), None).await.expect("known");
    stats.pop().flatten().expect("open").verified_up_to.map(|offset| offset.0)
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_listed_is_told_and_checked_by_the_next_walk() {
    let disk = MemDisk::new();
    let node = filled(&disk, |_| ()).await;
    unlistable(&disk, DIR);
    tokio::time::sleep(ONE_WALK).await;
    assert!(failed(&node) > 0, "it is counted");
    disk.clear_faults();
    assert_eq!(verified(&node).await, None, "nothing was checked, and nothing else is said");
    tokio::time::sleep(ONE_WALK).await;
    assert!(verified(&node).await > Some(0), "not a day later");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_that_cannot_be_listed_is_told_and_emptied_when_it_can() {
    let disk = MemDisk::new();
    let old = PathBuf::from("/data/quarantine/1600000000000-topic-default-1");
    disk.create_dir_all(&old.join("p00000")).expect("created");
    let file = disk.open(&old.join("p00000/bytes"), OpenMode::CreateNew).expect("created");
    write_all_at(file.as_ref(), &[1; 1_000], 0).expect("written");
    unlistable(&disk, "/data/quarantine");
    let node = filled(&disk, |_| ()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let counted = failed(&node);
    assert!(counted >= 9, "every round counts: {counted}");
    disk.clear_faults();
    assert!(disk.exists(&old).expect("asked"));
    // The parts of it that cannot be listed are no reason to keep it.
    unlistable(&disk, "p00000");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!disk.exists(&old).expect("asked"), "its time was over long ago");
    assert!(failed(&node) > counted, "its size could not be told");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn retention_that_cannot_look_at_a_log_is_told_and_applied_when_it_can() {
    let disk = MemDisk::new();
    let node = filled(&disk, |record| record.retention_ms = 3_600_000).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((node.broker.open_logs(), failed(&node)), (0, 0), "nobody uses the log");
    let before = segments(&disk);
    unlistable(&disk, DIR);
    tokio::time::sleep(Duration::from_secs(3 * 3_600)).await;
    assert!(failed(&node) > 0, "it is counted");
    disk.clear_faults();
    assert_eq!(segments(&disk), before, "nothing was removed unseen");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(segments(&disk) < before, "it ages all the same");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_retention_has_overtaken_gets_what_is_left_at_once() {
    let disk = MemDisk::new();
    let node = filled(&disk, |record| record.retention_ms = 3_600_000).await;
    let first = node.consume("orders", 5_000).await.expect("the first message");
    assert!(node.ack("orders", &first));
    tokio::time::sleep(Duration::from_secs(3 * 3_600)).await;
    assert!(node.produce("orders", None, "left").await);
    let began = tokio::time::Instant::now();
    let found = node.consume("orders", 60_000).await.expect("not one offset a poll");
    assert_eq!((text(&found).as_str(), found.offset), ("left", Offset(60)));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(node.broker.metrics().messages_retention_dropped.get(), 59, "who was overtaken is told by a count");
    node.broker.stop().await;
}
