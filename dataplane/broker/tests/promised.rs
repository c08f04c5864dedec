//! What a log published is remembered outside the log: last frames that were promised and are damaged, cut or gone are told, and their
//! offsets are not given again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use veena_broker::errors::ReplayError;
use veena_broker::offline::PromisedEnds;
use veena_contract::{Entropy, Offset, PartitionIndex};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode, read_full_at, write_all_at};
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::offline::{self, Span};
use veena_storage::partition::recover;

use crate::support::{FakeCatalog, Node, Seeded, name, small_config, tenant, text, topic};

const PARTITION: &str = "/data/topics/default/0000000000000001/p00000";
const KIND_PROMISE: u8 = 3;

fn orders() -> Arc<FakeCatalog> {
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, 1));
    catalog
}

async fn start(disk: &MemDisk, seed: u64) -> Node {
    Node::start(Arc::new(disk.reopen()), &orders(), seed).await
}

fn bytes_of(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("has a length")).expect("small")];
    assert_eq!(read_full_at(file.as_ref(), &mut bytes, 0).expect("read"), bytes.len());
    bytes
}

fn segments(disk: &MemDisk) -> Vec<PathBuf> {
    let entries = disk.list(Path::new(PARTITION)).expect("listed");
    entries.into_iter().filter(|entry| entry.name.ends_with(".log")).map(|entry| Path::new(PARTITION).join(entry.name)).collect()
}

/// The last segment and the place of its last frame.
fn last_frame(disk: &MemDisk) -> (PathBuf, u64) {
    let path = segments(disk).pop().expect("a segment");
    let (_, scan) = recover::scan(&bytes_of(disk, &path)).expect("known").expect("has a header");
    (path, scan.frames.last().expect("a frame").position)
}

fn flip_last_frame(disk: &MemDisk) {
    let (path, position) = last_frame(disk);
    disk.flip_bit(&path, (position + 90) * 8).expect("flips");
}

async fn produce(node: &Node, from: usize, to: usize) {
    for n in from..to {
        assert!(node.produce("orders", None, &format!("{n}")).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Five messages in a frame each, two of them acked.
async fn five_messages(disk: &MemDisk) -> Node {
    let node = Node::start(Arc::new(disk.clone()), &orders(), 1).await;
    produce(&node, 0, 5).await;
    for n in 0..2 {
        let delivery = node.consume("orders", 5_000).await.expect("a message");
        assert_eq!(text(&delivery), format!("{n}"));
        assert!(node.ack("orders", &delivery));
    }
    node
}

fn damage(node: &Node) -> u64 {
    node.broker.metrics().damage_found.get()
}

fn once(messages: &[&str]) -> BTreeMap<String, usize> {
    messages.iter().map(|text| ((*text).to_owned(), 1)).collect()
}

/// After the last of five messages was hurt: the others and new ones are delivered once, the loss is told once, no offset is given again.
async fn check_last_is_lost(disk: &MemDisk, expected: &[&str]) {
    let node = start(disk, 10).await;
    assert!(node.produce("orders", None, "new").await);
    let seen = node.drain("orders").await;
    let mut all = expected.to_vec();
    all.push("new");
    assert_eq!(seen, once(&all));
    assert_eq!(damage(&node), 1, "the damage is counted");
    assert_eq!(node.broker.metrics().messages_corrupt_skipped.get(), 1);
    let lost = node.broker.replay(&tenant(), &name("orders"), PartitionIndex(0), Offset(4)).await;
    assert!(matches!(lost, Err(ReplayError::Unreadable { offset: Offset(4) })), "{lost:?}");
    let new = node.broker.replay(&tenant(), &name("orders"), PartitionIndex(0), Offset(5)).await.expect("reads").expect("is there");
    assert_eq!(text(&new), "new", "the lost message's offset is not given again");
    node.broker.stop().await;
    let node = start(disk, 11).await;
    produce(&node, 6, 7).await;
    assert_eq!(node.drain("orders").await, once(&["6"]));
    assert_eq!(damage(&node), 0, "told once");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_last_frame_after_a_clean_stop_is_told_and_its_offset_not_given_again() {
    let disk = MemDisk::new();
    five_messages(&disk).await.broker.stop().await;
    flip_last_frame(&disk);
    let (path, before) = segments(&disk).pop().map(|path| (path.clone(), bytes_of(&disk, &path))).expect("a segment");
    check_last_is_lost(&disk, &["2", "3"]).await;
    assert_eq!(bytes_of(&disk.reopen(), &path), before, "nothing is cut");
}

#[tokio::test(start_paused = true)]
async fn a_last_frame_that_is_cut_off_is_told_and_its_offset_not_given_again() {
    for kept in [0, 1, 71, 80] {
        let disk = MemDisk::new();
        five_messages(&disk).await.broker.stop().await;
        let (path, position) = last_frame(&disk);
        disk.truncate(&path, position + kept).expect("cut");
        check_last_is_lost(&disk, &["2", "3"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_last_frame_is_told_after_a_kill_and_after_a_power_cut() {
    for is_power_cut in [false, true] {
        let disk = MemDisk::new();
        let node = five_messages(&disk).await;
        if is_power_cut {
            tokio::time::sleep(Duration::from_secs(3)).await;
            disk.crash_power(&mut || 0);
        } else {
            tokio::time::sleep(Duration::from_millis(500)).await;
            disk.crash_kill();
        }
        node.tasks.token().cancel();
        let disk = disk.reopen();
        flip_last_frame(&disk);
        check_last_is_lost(&disk, &["2", "3"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_damaged_while_its_log_is_closed_for_idleness_is_told() {
    let disk = MemDisk::new();
    let mut config = small_config();
    config.idle_log_eviction_ms = 1_000;
    let node = Node::start_with(Arc::new(disk.clone()), &orders(), 1, config).await;
    produce(&node, 0, 5).await;
    assert_eq!(node.drain("orders").await.len(), 5);
    tokio::time::timeout(Duration::from_secs(60), async {
        while node.broker.open_logs() > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("the log is closed");
    flip_last_frame(&disk);
    produce(&node, 5, 6).await;
    assert_eq!(node.drain("orders").await, once(&["5"]));
    assert_eq!(damage(&node), 1);
    let new = node.broker.replay(&tenant(), &name("orders"), PartitionIndex(0), Offset(5)).await.expect("reads").expect("is there");
    assert_eq!(text(&new), "5");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_whose_directory_is_gone_is_told_and_delivery_goes_on_behind_it() {
    for is_emptied in [false, true] {
        let disk = MemDisk::new();
        five_messages(&disk).await.broker.stop().await;
        disk.remove_dir_all(Path::new(PARTITION)).expect("removes");
        if is_emptied {
            disk.create_dir_all(Path::new(PARTITION)).expect("created");
        }
        let node = start(&disk, 10).await;
        assert!(node.produce("orders", None, "new").await);
        assert_eq!(node.drain("orders").await, once(&["new"]));
        assert_eq!(damage(&node), 1);
        let new = node.broker.replay(&tenant(), &name("orders"), PartitionIndex(0), Offset(5)).await.expect("reads").expect("is there");
        assert_eq!(text(&new), "new");
        node.broker.stop().await;
        let node = start(&disk, 11).await;
        produce(&node, 6, 7).await;
        assert_eq!(node.drain("orders").await, once(&["6"]));
        assert_eq!(damage(&node), 0, "told once");
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_log_in_the_place_of_the_one_that_was_published_is_told_and_served() {
    let (disk, other) = (MemDisk::new(), MemDisk::new());
    five_messages(&disk).await.broker.stop().await;
    let node = Node::start(Arc::new(other.clone()), &orders(), 77).await;
    for text in ["a", "b"] {
        assert!(node.produce("orders", None, text).await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.broker.stop().await;
    disk.remove_dir_all(Path::new(PARTITION)).expect("removes");
    disk.create_dir_all(Path::new(PARTITION)).expect("created");
    for entry in other.list(Path::new(PARTITION)).expect("listed") {
        let path = Path::new(PARTITION).join(entry.name);
        let file = disk.open(&path, OpenMode::CreateNew).expect("created");
        write_all_at(file.as_ref(), &bytes_of(&other, &path), 0).expect("written");
        file.sync_data().expect("synced");
    }
    disk.sync_dir(Path::new(PARTITION)).expect("synced");
    let node = start(&disk, 10).await;
    assert!(node.produce("orders", None, "new").await);
    assert_eq!(node.drain("orders").await, once(&["a", "b", "new"]));
    assert!(damage(&node) > 0);
    let new = node.broker.replay(&tenant(), &name("orders"), PartitionIndex(0), Offset(5)).await.expect("reads").expect("is there");
    assert_eq!(text(&new), "new");
    node.broker.stop().await;
    let node = start(&disk, 11).await;
    produce(&node, 6, 7).await;
    assert_eq!(node.drain("orders").await, once(&["6"]));
    assert_eq!(damage(&node), 0, "told once");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_ends_below_its_settle_state_is_told_when_nothing_else_speaks_for_it() {
    let disk = MemDisk::new();
    five_messages(&disk).await.broker.stop().await;
    flip_last_frame(&disk);
    let disk = disk.reopen();
    let (mut journal, entries) = Journal::open(Arc::new(disk.clone()), Path::new("/data/settle"), JournalConfig::default()).expect("opens");
    let keys: Vec<Vec<u8>> = entries.keys().filter(|(kind, _)| *kind == KIND_PROMISE).map(|(_, key)| key.clone()).collect();
    assert_eq!(keys.len(), 1, "one partition was published");
    journal.append(&[(KIND_PROMISE, &keys[0], None)]).expect("appended");
    journal.sync().expect("synced");
    let node = start(&disk, 10).await;
    assert!(node.produce("orders", None, "new").await);
    assert_eq!(node.drain("orders").await, once(&["2", "3", "new"]));
    assert_eq!(damage(&node), 1);
    node.broker.stop().await;
    let node = start(&disk, 11).await;
    assert_eq!(node.drain("orders").await, BTreeMap::new());
    assert_eq!(damage(&node), 0, "told once");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_never_leaves_a_log_that_ends_below_its_promise() {
    for seed in 0..20 {
        let random = Seeded::new(seed);
        let catalog = orders();
        let mut disk = MemDisk::new();
        for life in 0..6 {
            let mut config = small_config();
            config.partition.segment_bytes_max = 2_000;
            config.settle_sync_ms = 100;
            let node = Node::start_with(Arc::new(disk.clone()), &catalog, seed * 100 + life, config).await;
            for n in 0..(5 + random.next_u64() % 40) {
                assert!(node.produce("orders", None, &format!("{life}-{n}")).await);
                tokio::time::sleep(Duration::from_millis(random.next_u64() % 30)).await;
            }
            assert_eq!(damage(&node), 0, "seed {seed}, life {life}");
            if random.next_u64().is_multiple_of(2) {
                disk.crash_power(&mut || random.next_u64());
            } else {
                disk.crash_power_in_write(&mut || random.next_u64());
            }
            node.tasks.token().cancel();
            disk = disk.reopen();
        }
        let node = Node::start(Arc::new(disk.clone()), &catalog, seed * 100 + 99).await;
        assert!(node.drain("orders").await.values().all(|count| *count == 1), "seed {seed}");
        assert_eq!(damage(&node), 0, "seed {seed}");
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_the_node_down_a_damaged_last_frame_is_named_by_what_the_journal_remembers() {
    let data = Path::new("/data");
    let disk = MemDisk::new();
    assert!(PromisedEnds::read(&disk, data).expect("read").is_none(), "there is no journal");
    five_messages(&disk).await.broker.stop().await;
    let (path, position) = last_frame(&disk);
    flip_last_frame(&disk);
    let ends = PromisedEnds::read(&disk, data).expect("read").expect("a journal");
    assert_eq!(ends.of(Path::new(PARTITION)), Offset(5));
    assert_eq!(ends.of(Path::new("/data/topics/default/0000000000000001/p00001")), Offset(0));
    let found = offline::find(&disk, data).expect("ours");
    let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let findings = offline::survey(&dyn_disk, &found, &|dir| ends.of(dir), &mut |_| {}).expect("read").findings;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((&findings[0].path, findings[0].at, findings[0].span), (&path, position, Span::Offsets(Offset(4), Offset(5))));
}
