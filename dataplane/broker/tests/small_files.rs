//! Small files of an older time, and positions that point to nowhere: they cost repeats, never a record, and nothing is appended twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use veena_broker::consume::frontier;
use veena_broker::consume::lease::SettleState;
use veena_broker::fanout::position::{self, Position};
use veena_contract::{LogId, Offset};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode, read_full_at, write_all_at};
use veena_storage::journal::{Journal, JournalConfig};

use crate::support::{FakeCatalog, Node, link, replay_all, topic};

const KIND_SETTLE: u8 = 1;
const KIND_CURSOR: u8 = 2;

fn family() -> Arc<FakeCatalog> {
    let catalog = FakeCatalog::new();
    let (mut orders, mut copy) = (topic("orders", 1, 2), topic("copy", 2, 2));
    link(&mut orders, &mut copy, 0, vec![Offset(0), Offset(0)]);
    catalog.put(orders);
    catalog.put(copy);
    catalog
}

async fn start(disk: &MemDisk, seed: u64) -> Node {
    Node::start(Arc::new(disk.reopen()), &family(), seed).await
}

/// Sends twenty messages and acks what of both topics can be had, but for the last five of a batch.
async fn a_life(node: &Node, life: u32) -> BTreeSet<String> {
    let mut sent = BTreeSet::new();
    for n in 0..20 {
        let payload = format!("{life}-{n}");
        assert!(node.produce("orders", Some(&format!("k{}", n % 5)), &payload).await);
        sent.insert(payload);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    for topic in ["orders", "copy"] {
        for delivery in node.consume_many(topic, 15, 1_000).await {
            assert!(node.ack(topic, &delivery));
        }
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    sent
}

fn bytes_of(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("small")];
    read_full_at(file.as_ref(), &mut bytes, 0).expect("read");
    bytes
}

/// Every file but the logs themselves.
fn small_files(disk: &MemDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::from("/data")];
    while let Some(folder) = folders.pop() {
        for entry in disk.list(&folder).expect("listed") {
            let path = folder.join(&entry.name);
            if entry.is_dir {
                folders.push(path);
            } else if path.extension().is_none_or(|extension| extension != "log" && extension != "wal" && extension != "spare") {
                found.insert(path.clone(), bytes_of(disk, &path));
            }
        }
    }
    found
}

/// A disk after two lives, what was sent in them, and the small files as they were after the first.
async fn two_lives() -> (MemDisk, BTreeSet<String>, BTreeMap<PathBuf, Vec<u8>>) {
    let disk = MemDisk::new();
    let node = start(&disk, 1).await;
    let mut sent = a_life(&node, 1).await;
    node.broker.stop().await;
    let old = small_files(&disk.reopen());
    let node = start(&disk, 2).await;
    sent.extend(a_life(&node, 2).await);
    node.broker.stop().await;
    (disk.reopen(), sent, old)
}

/// A node goes on with what there is: everything is in both logs once, and what is new is delivered.
async fn check(disk: &MemDisk, mut sent: BTreeSet<String>, story: &str) -> Node {
    let node = start(disk, 3).await;
    assert!(node.produce("orders", Some("k1"), "new").await, "{story}");
    sent.insert("new".to_owned());
    tokio::time::sleep(Duration::from_secs(5)).await;
    for topic in ["orders", "copy"] {
        let mut found = Vec::new();
        for partition in 0..2 {
            found.extend(replay_all(&node, topic, partition).await.into_iter().map(|(_, payload)| payload));
        }
        assert_eq!(found.len(), sent.len(), "{story}: {topic} holds something twice, or lacks it: {found:?}");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), sent, "{story}: {topic}");
        assert!(node.drain(topic).await.contains_key("new"), "{story}: {topic}");
    }
    node
}

#[tokio::test(start_paused = true)]
async fn small_files_of_an_older_time_cost_at_most_repeats_alone_and_two_at_once() {
    let (disk, _, old) = two_lives().await;
    let now = small_files(&disk);
    let changed: Vec<PathBuf> = old.keys().filter(|path| now.get(*path) != old.get(*path)).cloned().collect();
    assert!(changed.len() >= 3, "checkpoint, streams, settle journal: {changed:?}");
    for (nth, first) in changed.iter().enumerate() {
        for second in &changed[nth..] {
            let (disk, sent, old) = two_lives().await;
            for path in [first, second] {
                if disk.exists(path).expect("asked") {
                    disk.remove_file(path).expect("removed");
                }
                let file = disk.open(path, OpenMode::CreateNew).expect("created");
                write_all_at(file.as_ref(), &old[path], 0).expect("written");
                file.sync_data().expect("synced");
            }
            check(&disk, sent, &format!("{} and {}", first.display(), second.display())).await.broker.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn positions_that_point_to_nowhere_are_told_and_cost_no_record() {
    for moved in [0, 1, 7, 41, 1_000_000] {
        let (disk, sent, _) = two_lives().await;
        let (mut journal, entries) =
            Journal::open(Arc::new(disk.reopen()), Path::new("/data/settle"), JournalConfig::default()).expect("opens");
        for ((kind, key), value) in &entries {
            let bytes = match *kind {
                KIND_SETTLE => {
                    let log = LogId(u128::from_be_bytes(key[..].try_into().expect("a log's id")));
                    let kept = frontier::decode(value).expect("readable");
                    assert!(kept.frontier <= 40, "{log}");
                    frontier::encode(&SettleState { frontier: moved, ..SettleState::default() })
                }
                KIND_CURSOR => {
                    let kept = position::decode(value).expect("readable");
                    position::encode(&Position { next: Offset(moved), ..kept })
                }
                _ => continue,
            };
            journal.append(&[(*kind, key, Some(&bytes))]).expect("appended");
        }
        journal.sync().expect("synced");
        drop(journal);
        let node = check(&disk, sent, &format!("moved to {moved}")).await;
        assert_eq!(node.broker.metrics().damage_found.get() > 0, moved > 40, "moved to {moved}");
        node.broker.stop().await;
    }
}
