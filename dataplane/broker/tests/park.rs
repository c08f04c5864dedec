//! Partitions that take nothing for long: their records are set aside, nobody else notices, and all of it arrives once and in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_broker::errors::ProduceError;
use veena_broker::message::NewMessage;
use veena_broker::ports::BrokerConfig;
use veena_contract::{PartitionIndex, TopicId, limits};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode, read_full_at, write_all_at};
use veena_storage::io::Io;
use veena_storage::wal::parked::HEAD_BYTES;

use crate::support::{FakeCatalog, Node, name, replay_all, small_config, tenant, topic};

const PARKED: &str = "/data/parked";

/// Limits that a test reaches within moments.
fn config() -> BrokerConfig {
    let mut config = small_config();
    config.wal.undispatched_bytes_max = 2 * 1024 * 1024;
    config.undispatched_bytes_max = 192 * 1024;
    config.undispatched_partition_bytes_max = 64 * 1024;
    config
}

fn topics(partitions: u32) -> Arc<FakeCatalog> {
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, partitions));
    catalog
}

/// The log of a partition of `orders` cannot be opened.
fn break_log(disk: &MemDisk, partition: u32) {
    let path_contains = format!("0000000000000001/p{partition:05}");
    disk.inject(Fault { op: Op::Create, path_contains, after: 0, times: u64::MAX, kind: FaultKind::Eio });
}

fn parked(disk: &MemDisk) -> Vec<PathBuf> {
    disk.list(Path::new(PARKED)).expect("listed").into_iter().map(|entry| Path::new(PARKED).join(entry.name)).collect()
}

fn payload(n: usize, bytes: usize) -> String {
    format!("{n:06}-{}", "x".repeat(bytes))
}

async fn send(node: &Node, partition: u32, payload: &str) -> Result<(), ProduceError> {
    let message = NewMessage {
        key: None,
        partition: Some(PartitionIndex(partition)),
        headers: Vec::new(),
        idempotency_key: None,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    };
    node.broker.produce(&tenant(), &name("orders"), message).await
}

/// What a test has sent to one partition.
#[derive(Default)]
struct Sent(Vec<String>);

impl Sent {
    async fn send(&mut self, node: &Node, partition: u32, bytes: usize) -> Result<(), ProduceError> {
        let payload = payload(self.0.len(), bytes);
        send(node, partition, &payload).await?;
        self.0.push(payload);
        Ok(())
    }

    /// Sends three to partition 0 and waits until they may be parked.
    async fn send_three(&mut self, node: &Node) {
        for _ in 0..3 {
            self.send(node, 0, 400).await.expect("accepted");
        }
        pause(5_000).await;
    }

    /// Everything arrives once and in order.
    async fn arrives(&self, node: &Node, partition: u32) {
        pause(1_000).await;
        for _ in 0..600 {
            if node.broker.undispatched() == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let found: Vec<String> = replay_all(node, "orders", partition).await.into_iter().map(|(_, payload)| payload).collect();
        assert_eq!(found.len(), self.0.len(), "partition {partition}");
        assert!(found == self.0, "partition {partition}: everything once and in order");
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

#[tokio::test(start_paused = true)]
async fn one_stuck_partition_costs_the_others_nothing() {
    let (disk, catalog) = (MemDisk::new(), topics(2));
    break_log(&disk, 0);
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config()).await;
    let (mut stuck, mut free) = (Sent::default(), Sent::default());
    // Eight times what the WAL may keep, and now and then a record that would keep it.
    for round in 0..800 {
        if round % 40 == 0 {
            stuck.send(&node, 0, 100).await.expect("within its own budget");
        }
        free.send(&node, 1, 20_000).await.expect("nobody else is refused");
        pause(50).await;
    }
    assert!(node.broker.wal_status().live_bytes < 2 * 1024 * 1024);
    assert!(!parked(&disk).is_empty());
    free.arrives_of_two(&node, 1, stuck.0.len()).await;
    disk.clear_faults();
    pause(15_000).await;
    stuck.arrives(&node, 0).await;
    assert!(parked(&disk).is_empty(), "files go when their records are committed");
    assert!(node.broker.stop().await);
}

impl Sent {
    /// As `arrives`, while `stuck` records wait elsewhere.
    async fn arrives_of_two(&self, node: &Node, partition: u32, stuck: usize) {
        for _ in 0..600 {
            if node.broker.undispatched() == stuck {
                break;
            }
            pause(100).await;
        }
        assert_eq!(node.broker.undispatched(), stuck);
        let found: Vec<String> = replay_all(node, "orders", partition).await.into_iter().map(|(_, payload)| payload).collect();
        assert!(found == self.0, "partition {partition}: everything once and in order");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stuck_partition_is_refused_at_its_own_budget_and_no_other_is() {
    let (disk, catalog) = (MemDisk::new(), topics(5));
    for partition in 0..4 {
        break_log(&disk, partition);
    }
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config()).await;
    let mut sent: Vec<Sent> = (0..5).map(|_| Sent::default()).collect();
    let mut refused = 0;
    for _ in 0..400 {
        for (partition, sent) in (0..).zip(&mut sent) {
            match sent.send(&node, partition, 400).await {
                Err(ProduceError::OwnerDown) if partition < 4 => refused += 1,
                outcome => outcome.expect("only the stuck ones are refused, and only at their own budget"),
            }
        }
        pause(50).await;
    }
    assert!(refused > 100, "parked bytes count in the budget of their partition: {refused}");
    assert!(node.broker.directory_numbers().parked_bytes > 3 * 60 * 1024, "{:?}", node.broker.directory_numbers());
    disk.clear_faults();
    pause(15_000).await;
    for (partition, sent) in (0..).zip(&sent) {
        sent.arrives(&node, partition).await;
    }
    assert_eq!(node.broker.directory_numbers().parked_bytes, 0);
    assert!(parked(&disk).is_empty());
    sent[0].send(&node, 0, 400).await.expect("taken again");
}

/// A WAL with more of two stuck partitions than the reader of a former life may hold, and of a third one behind it.
async fn filled(disk: &MemDisk, catalog: &Arc<FakeCatalog>) -> Vec<Sent> {
    let mut roomy = config();
    roomy.undispatched_bytes_max = usize::MAX;
    roomy.undispatched_partition_bytes_max = usize::MAX / 4;
    roomy.wal.undispatched_bytes_max = u64::MAX;
    for partition in 0..3 {
        break_log(disk, partition);
    }
    let node = Node::start_with(Arc::new(disk.clone()), catalog, 1, roomy).await;
    let mut sent: Vec<Sent> = (0..3).map(|_| Sent::default()).collect();
    for _ in 0..60 {
        for partition in 0..2 {
            sent[usize::try_from(partition).expect("small")].send(&node, partition, 100_000).await.expect("accepted");
        }
    }
    for _ in 0..20 {
        sent[2].send(&node, 2, 10_000).await.expect("accepted");
    }
    disk.crash_kill();
    node.tasks.token().cancel();
    disk.clear_faults();
    sent
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_stuck_partitions_hold_up_nobody_and_lose_no_order() {
    let (disk, catalog) = (MemDisk::new(), topics(3));
    let mut sent = filled(&disk, &catalog).await;
    let disk = disk.reopen();
    break_log(&disk, 0);
    break_log(&disk, 1);
    let mut config = config();
    config.wal.undispatched_bytes_max = u64::MAX;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config.clone()).await;
    pause(4_000).await;
    // The stuck ones are behind the reader by now: the third one has its records of both lives, in order.
    for _ in 0..20 {
        sent[2].send(&node, 2, 500).await.expect("accepted");
    }
    pause(1_000).await;
    let found: Vec<String> = replay_all(&node, "orders", 2).await.into_iter().map(|(_, payload)| payload).collect();
    assert!(found == sent[2].0, "{} of {} arrived", found.len(), sent[2].0.len());
    assert!(parked(&disk).len() >= 2);
    // A third life, without a clean end: the files are what the WAL no longer has.
    disk.crash_power(&mut || 1);
    node.tasks.token().cancel();
    let disk = disk.reopen();
    disk.clear_faults();
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 3, config).await;
    for (partition, sent) in (0..).zip(&sent) {
        sent.arrives(&node, partition).await;
    }
    assert!(parked(&disk).is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_record_of_this_life_is_parked_before_those_of_former_lives_are_read() {
    let (disk, catalog) = (MemDisk::new(), topics(3));
    let mut config = config();
    config.undispatched_bytes_max = 14 * 1024 * 1024;
    config.undispatched_partition_bytes_max = usize::MAX / 4;
    config.wal.undispatched_bytes_max = u64::MAX;
    (0..3).for_each(|partition| break_log(&disk, partition));
    let mut roomy = config.clone();
    roomy.undispatched_bytes_max = usize::MAX;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, roomy).await;
    let mut sent: Vec<Sent> = (0..3).map(|_| Sent::default()).collect();
    sent[2].send(&node, 2, 10).await.expect("accepted");
    for _ in 0..45 {
        sent[0].send(&node, 0, 100_000).await.expect("accepted");
        sent[1].send(&node, 1, 100_000).await.expect("accepted");
    }
    sent[2].send(&node, 2, 10).await.expect("accepted");
    disk.crash_kill();
    node.tasks.token().cancel();
    let disk = disk.reopen();
    // The reader stops behind the first two partitions; the third one has a record before, a record behind, and most bytes of this life.
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config).await;
    for _ in 0..50 {
        sent[2].send(&node, 2, 100_000).await.expect("accepted");
    }
    pause(10_000).await;
    assert!(parked(&disk).len() >= 3, "{:?}", parked(&disk));
    disk.clear_faults();
    pause(15_000).await;
    for (partition, sent) in (0..).zip(&sent) {
        sent.arrives(&node, partition).await;
    }
}

/// In real time: a call that does not come back blocks a thread, and with it the clock of the other tests.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_sync_does_not_come_back_is_parked_and_loses_and_repeats_nothing() {
    let (disk, catalog) = (MemDisk::new(), topics(2));
    let mut config = config();
    config.undispatched_bytes_max = 20 * 1024;
    let node = Node::try_start_on(Arc::new(disk.clone()), &catalog, 1, config, Io::threads(8)).await.expect("opens");
    let (mut stuck, mut free) = (Sent::default(), Sent::default());
    stuck.send(&node, 0, 100).await.expect("accepted");
    stuck.arrives(&node, 0).await;
    let hold = disk.hold(Op::Sync, "0000000000000001/p00000");
    for _ in 0..15 {
        stuck.send(&node, 0, 1_000).await.expect("accepted");
    }
    for _ in 0..600 {
        if node.broker.metrics().records_parked.get() > 0 {
            break;
        }
        pause(100).await;
    }
    assert_eq!(node.broker.metrics().records_parked.get(), 15);
    for _ in 0..5 {
        stuck.send(&node, 0, 100).await.expect("accepted");
        free.send(&node, 1, 1_000).await.expect("accepted");
    }
    free.arrives_of_two(&node, 1, 20).await;
    drop(hold);
    stuck.arrives(&node, 0).await;
    assert!(node.broker.stop().await);
    assert!(parked(&disk).is_empty());
}

/// One partition whose records were parked by a life that ended in a crash.
async fn parked_once(disk: &MemDisk, catalog: &Arc<FakeCatalog>, count: usize) -> Sent {
    break_log(disk, 0);
    let mut config = config();
    config.undispatched_bytes_max = 20 * 1024;
    let node = Node::start_with(Arc::new(disk.clone()), catalog, 1, config).await;
    let mut sent = Sent::default();
    for _ in 0..3 * count {
        if sent.0.len() < count && sent.send(&node, 0, 1_000).await.is_err() {
            pause(1_000).await;
        }
    }
    assert_eq!(sent.0.len(), count);
    pause(10_000).await;
    disk.crash_kill();
    node.tasks.token().cancel();
    disk.clear_faults();
    sent
}

fn bytes_of(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("measured")).expect("small")];
    read_full_at(file.as_ref(), &mut bytes, 0).expect("read");
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_call_of_the_disk_leaves_every_record_once_and_in_order() {
    let mut cuts = 0;
    for (cut_at, how) in (0..100).flat_map(|cut_at| [(cut_at, 0), (cut_at, 1), (cut_at, 2)]) {
        let (disk, catalog) = (MemDisk::new(), topics(1));
        let mut sent = parked_once(&disk, &catalog, 60).await;
        let disk = disk.reopen();
        assert!(!parked(&disk).is_empty());
        // The second life works again, and dies while it reads back, commits, parks no more, and removes.
        disk.cut_power_at(cut_at + 2);
        let mut config = config();
        config.undispatched_bytes_max = 20 * 1024;
        if let Ok(node) = Node::try_start(Arc::new(disk.clone()), &catalog, 2, config.clone()).await {
            for _ in 0..10 {
                let payload = payload(sent.0.len(), 1_000);
                match send(&node, 0, &payload).await {
                    Ok(()) => sent.0.push(payload),
                    Err(_) => break,
                }
                pause(20).await;
            }
            pause(3_000).await;
            node.tasks.token().cancel();
        }
        cuts += usize::from(disk.list(Path::new("/data")).is_err());
        let mut seed = cut_at;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        match how {
            0 => disk.crash_kill(),
            1 => disk.crash_power(&mut random),
            _ => disk.crash_power_in_write(&mut random),
        }
        let disk = disk.reopen();
        disk.clear_faults();
        let node = Node::start_with(Arc::new(disk.clone()), &catalog, 3, config).await;
        // The reader of the WAL's backlog has its turn first.
        pause(1_000).await;
        for _ in 0..100 {
            if node.broker.undispatched() == 0 && parked(&disk).is_empty() {
                break;
            }
            pause(100).await;
        }
        let found: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, payload)| payload).collect();
        let what = format!("cut at {cut_at}, crash {how}");
        assert!(found.len() >= sent.0.len() && found[..sent.0.len()] == sent.0[..], "{what}: {} of {}", found.len(), sent.0.len());
        assert!(found.len() <= sent.0.len() + 1, "{what}: one more may have been in flight");
        assert!(parked(&disk).is_empty(), "{what}");
        assert_eq!(node.broker.metrics().streams_forked.get() + node.broker.metrics().damage_found.get(), 0, "{what}");
        node.tasks.token().cancel();
    }
    assert!(cuts > 100, "the power went {cuts} times");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_written_is_no_file_and_loses_nothing() {
    for (op, kind) in [
        (Op::Create, FaultKind::Eio),
        (Op::Write, FaultKind::Eio),
        (Op::Write, FaultKind::Error(std::io::ErrorKind::StorageFull)),
        (Op::Sync, FaultKind::Eio),
        (Op::Rename, FaultKind::Eio),
        (Op::SyncDir, FaultKind::Eio),
    ] {
        let (disk, catalog) = (MemDisk::new(), topics(1));
        break_log(&disk, 0);
        let mut config = config();
        config.undispatched_bytes_max = 20 * 1024;
        let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config.clone()).await;
        disk.inject(Fault { op, path_contains: PARKED.into(), after: 0, times: u64::MAX, kind });
        let mut sent = Sent::default();
        for _ in 0..15 {
            sent.send(&node, 0, 1_000).await.expect("accepted");
        }
        pause(8_000).await;
        assert_eq!(node.broker.metrics().records_parked.get(), 0, "{op:?}");
        assert_eq!(node.broker.undispatched(), 15, "{op:?}");
        disk.clear_faults();
        break_log(&disk, 0);
        pause(15_000).await;
        assert_eq!(node.broker.metrics().records_parked.get(), 15, "{op:?}: tried again");
        disk.crash_power(&mut || 1);
        node.tasks.token().cancel();
        let disk = disk.reopen();
        disk.clear_faults();
        let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config).await;
        sent.arrives(&node, 0).await;
        pause(1_000).await;
        assert!(parked(&disk).is_empty(), "{op:?}: {:?}", parked(&disk));
    }
}

#[tokio::test(start_paused = true)]
async fn many_files_of_one_partition_become_one() {
    let (disk, catalog) = (MemDisk::new(), topics(1));
    break_log(&disk, 0);
    let mut config = config();
    config.undispatched_bytes_max = 2 * 1024;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config.clone()).await;
    let mut sent = Sent::default();
    for _ in 0..40 {
        sent.send(&node, 0, 1_200).await.expect("accepted");
        pause(1_500).await;
        assert!(parked(&disk).len() <= 16, "{:?}", parked(&disk));
    }
    assert!(node.broker.metrics().records_parked.get() > 40, "some were parked again");
    disk.crash_kill();
    node.tasks.token().cancel();
    let disk = disk.reopen();
    disk.clear_faults();
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config).await;
    sent.arrives(&node, 0).await;
    assert!(parked(&disk).is_empty());
}

/// A copy of a node's files.
fn copied(origin: &MemDisk) -> MemDisk {
    let disk = MemDisk::new();
    let mut left = vec![PathBuf::from("/data")];
    while let Some(dir) = left.pop() {
        disk.create_dir_all(&dir).expect("created");
        for entry in origin.list(&dir).expect("listed") {
            let path = dir.join(entry.name);
            if entry.is_dir {
                left.push(path);
                continue;
            }
            let file = disk.open(&path, OpenMode::CreateNew).expect("created");
            write_all_at(file.as_ref(), &bytes_of(origin, &path), 0).expect("written");
        }
    }
    disk
}

/// Damages every byte of a part of a file. A part that reaches beyond its end is cut off.
fn damage(disk: &MemDisk, path: &Path, part: std::ops::Range<usize>) {
    let (bytes, file) = (bytes_of(disk, path), disk.open(path, OpenMode::ReadWrite).expect("opens"));
    if part.end > bytes.len() {
        return file.set_len(part.start as u64).expect("cut");
    }
    let damaged: Vec<u8> = bytes[part.clone()].iter().map(|byte| byte ^ 4).collect();
    write_all_at(file.as_ref(), &damaged, part.start as u64).expect("written");
}

/// The head; the head of a record; a body; several records; the end of the file; all of its records; its first sector, and its last bytes, cut
/// off. And how often damage is told.
fn parts(len: usize) -> [(std::ops::Range<usize>, u64); 8] {
    let one = [20..21, 82..83, 372..373, 1_000..4_000, len - 500..len - 499, 72..len - 40].map(|part| (part, 1));
    let [a, b, c, d, e, f] = one;
    // With the head another place is damaged: the first record, the end.
    [a, b, c, d, e, f, (0..512, 2), (len - 500..len + 1, 2)]
}

#[tokio::test(start_paused = true)]
async fn what_is_damaged_in_a_file_is_told_and_comes_from_the_wal() {
    let (origin, catalog) = (MemDisk::new(), topics(1));
    let sent = parked_once(&origin, &catalog, 30).await;
    let origin = origin.reopen();
    let path = parked(&origin).first().expect("a file").clone();
    for (part, told) in parts(bytes_of(&origin, &path).len()) {
        let disk = copied(&origin);
        damage(&disk, &path, part.clone());
        let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config()).await;
        sent.arrives(&node, 0).await;
        assert_eq!(node.broker.metrics().damage_found.get(), told, "{part:?}: told once");
        assert_eq!(node.broker.metrics().stream_gaps.get(), 0, "{part:?}: nothing is lost");
        pause(1_000).await;
        assert!(parked(&disk).is_empty(), "{part:?}: set aside");
        assert_eq!(disk.list(Path::new("/data/quarantine")).expect("listed").len(), 1, "{part:?}: for a while");
        node.tasks.token().cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_damaged_in_a_file_and_gone_from_the_wal_is_told_and_leaves_a_gap_in_its_partition() {
    let (origin, catalog) = (MemDisk::new(), topics(2));
    break_log(&origin, 0);
    let mut roomy = config();
    roomy.undispatched_bytes_max = 20 * 1024;
    let node = Node::start_with(Arc::new(origin.clone()), &catalog, 1, roomy).await;
    let (mut sent, mut others) = (Sent::default(), Sent::default());
    for _ in 0..15 {
        sent.send(&node, 0, 1_000).await.expect("accepted");
    }
    pause(10_000).await;
    assert_eq!(node.broker.metrics().records_parked.get(), 15);
    // The WAL is used again from its beginning.
    for _ in 0..400 {
        others.send(&node, 1, 10_000).await.expect("accepted");
        pause(10).await;
    }
    pause(1_000).await;
    origin.crash_kill();
    node.tasks.token().cancel();
    let origin = origin.reopen();
    origin.clear_faults();
    let path = parked(&origin).first().expect("a file").clone();
    let losses = [0..0, 0..1, 0..1, 0..4, 14..15, 0..15, 0..1, 14..15];
    for ((part, told), lost) in parts(bytes_of(&origin, &path).len()).into_iter().zip(losses) {
        let disk = copied(&origin);
        damage(&disk, &path, part.clone());
        let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config()).await;
        pause(5_000).await;
        let found: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, payload)| payload).collect();
        let expected: Vec<String> = sent.0[..lost.start].iter().chain(&sent.0[lost.end..]).cloned().collect();
        assert!(found == expected, "{part:?}: {} of {} in order, each once", found.len(), expected.len());
        assert_eq!(node.broker.metrics().damage_found.get(), told, "{part:?}: told once");
        let gaps: Vec<u64> = node.broker.topic_numbers().remove(0).partitions.iter().map(|numbers| numbers.gaps).collect();
        assert_eq!(gaps.first(), Some(&u64::from(!lost.is_empty())), "{part:?}: {gaps:?}");
        assert_eq!(node.broker.metrics().stream_gaps.get(), u64::from(!lost.is_empty()), "{part:?}");
        assert!(!parked(&disk).contains(&path), "{part:?}: set aside");
        assert_eq!(node.broker.undispatched(), 0, "{part:?}: nothing is waited for that cannot come");
        send(&node, 0, "next").await.expect("accepted");
        pause(1_000).await;
        assert_eq!(replay_all(&node, "orders", 0).await.last().map(|(_, payload)| payload.as_str()), Some("next"), "{part:?}");
        node.tasks.token().cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_without_its_beginning_takes_nothing_of_finished_streams_from_the_wal() {
    let (disk, catalog) = (MemDisk::new(), topics(2));
    let (mut sent, mut config) = (Sent::default(), config());
    config.undispatched_bytes_max = 20 * 1024;
    // The second life tells the owner that the first one has no more, the third one parks, the fourth one's checkpoint passes it. The WAL still
    // holds them all.
    for (life, count) in [(1, 3), (2, 3), (3, 15), (4, 0)] {
        if life == 3 {
            let path_contains = "0000000000000001/p00000".to_owned();
            disk.inject(Fault { op: Op::Open, path_contains, after: 0, times: u64::MAX, kind: FaultKind::Eio });
        }
        let node = Node::start_with(Arc::new(disk.reopen()), &catalog, life, config.clone()).await;
        for _ in 0..count {
            sent.send(&node, 0, 1_000).await.expect("accepted");
        }
        pause(10_000).await;
        send(&node, 1, "other").await.expect("accepted");
        pause(10_000).await;
        disk.crash_kill();
        node.tasks.token().cancel();
    }
    let disk = disk.reopen();
    disk.clear_faults();
    damage(&disk, &parked(&disk)[0], 0..512);
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 5, config).await;
    sent.arrives(&node, 0).await;
    assert_eq!((node.broker.metrics().streams_forked.get(), node.broker.metrics().stream_gaps.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_neither_a_file_nor_the_wal_has_is_a_gap_although_its_stream_lies_below_the_checkpoint() {
    let (disk, catalog) = (MemDisk::new(), topics(2));
    let sent = parked_once(&disk, &catalog, 15).await;
    let disk = disk.reopen();
    break_log(&disk, 0);
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config()).await;
    send(&node, 1, "other").await.expect("accepted");
    pause(10_000).await;
    disk.crash_kill();
    node.tasks.token().cancel();
    let disk = disk.reopen();
    disk.clear_faults();
    let file = parked(&disk).first().expect("a file").clone();
    let wal = disk.list(Path::new("/data/ingress")).expect("listed").into_iter().find(|entry| entry.name.ends_with(".wal"));
    let wal = Path::new("/data/ingress").join(wal.expect("a segment").name);
    let place = |path: &Path, n: usize| {
        let text = format!("{n:06}-xxx").into_bytes();
        bytes_of(&disk, path).windows(text.len()).position(|bytes| bytes == text).expect("there")
    };
    // Three records of the file, and of the middle one the header in the WAL.
    let to_payload = place(&file, 0) - HEAD_BYTES;
    damage(&disk, &file, place(&file, 4)..place(&file, 6) + 1);
    let header = place(&wal, 5) - to_payload;
    damage(&disk, &wal, header..header + 8);
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 3, config()).await;
    pause(5_000).await;
    let found: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, payload)| payload).collect();
    let expected: Vec<String> = sent.0[..5].iter().chain(&sent.0[6..]).cloned().collect();
    assert!(found == expected, "{} of {} in order, each once", found.len(), expected.len());
    assert_eq!(node.broker.metrics().stream_gaps.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn more_damage_than_memory_may_hold_at_once_comes_from_the_wal_in_pieces() {
    let (disk, catalog) = (MemDisk::new(), topics(1));
    break_log(&disk, 0);
    disk.inject(Fault { op: Op::Create, path_contains: "/ingress/checkpoint".into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    let mut config = config();
    config.undispatched_bytes_max = 14 * 1024 * 1024;
    config.undispatched_partition_bytes_max = usize::MAX / 4;
    config.wal.undispatched_bytes_max = u64::MAX;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config.clone()).await;
    let mut sent = Sent::default();
    for _ in 0..80 {
        sent.send(&node, 0, 100_000).await.expect("accepted");
    }
    pause(10_000).await;
    disk.crash_kill();
    node.tasks.token().cancel();
    let disk = disk.reopen();
    disk.clear_faults();
    let path = parked(&disk).first().expect("a file").clone();
    let len = bytes_of(&disk, &path).len();
    assert!(len > 5 * 1024 * 1024, "{len} bytes");
    damage(&disk, &path, 150_000..len - 150_000);
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config).await;
    sent.arrives(&node, 0).await;
    assert_eq!((node.broker.metrics().damage_found.get(), node.broker.metrics().stream_gaps.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn damage_met_when_files_become_one_comes_from_the_wal_too() {
    let (disk, catalog) = (MemDisk::new(), topics(1));
    break_log(&disk, 0);
    let mut config = config();
    config.undispatched_bytes_max = 2 * 1024;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config.clone()).await;
    let mut sent = Sent::default();
    let (mut has_damaged, mut has_failed) = (false, false);
    for _ in 0..40 {
        sent.send(&node, 0, 1_200).await.expect("accepted");
        pause(1_500).await;
        if parked(&disk).len() == 10 && !has_damaged {
            damage(&disk, &parked(&disk)[5], 372..373);
            has_damaged = true;
        }
        if parked(&disk).len() == limits::PARKED_FILES_PER_PARTITION_MAX && !has_failed {
            // The first attempts to make one of them find the damage and write no file.
            disk.inject(Fault { op: Op::Rename, path_contains: PARKED.into(), after: 0, times: 2, kind: FaultKind::Eio });
            has_failed = true;
            sent.send(&node, 0, 1_200).await.expect("accepted");
            pause(40_000).await;
        }
    }
    assert!(has_failed && parked(&disk).len() < limits::PARKED_FILES_PER_PARTITION_MAX, "{:?}", parked(&disk));
    assert_eq!((has_damaged, node.broker.metrics().damage_found.get()), (true, 1), "told");
    assert_eq!(disk.list(Path::new("/data/quarantine")).expect("listed").len(), 1, "kept for a while");
    disk.clear_faults();
    pause(15_000).await;
    sent.arrives(&node, 0).await;
    assert_eq!(node.broker.metrics().stream_gaps.get(), 0);
    assert!(parked(&disk).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_file_without_its_head_that_becomes_part_of_another_is_kept_for_a_while() {
    let (origin, catalog) = (MemDisk::new(), topics(1));
    break_log(&origin, 0);
    let mut config = config();
    config.undispatched_bytes_max = 2 * 1024;
    let node = Node::start_with(Arc::new(origin.clone()), &catalog, 1, config.clone()).await;
    let mut before = Sent::default();
    for _ in 0..10 {
        before.send_three(&node).await;
    }
    origin.crash_kill();
    node.tasks.token().cancel();
    let origin = origin.reopen();
    let path = parked(&origin).swap_remove(3);
    // Without its first record it does not say either where it begins.
    for (part, told) in [(20..21, 1), (0..300, 2)] {
        let disk = copied(&origin);
        break_log(&disk, 0);
        damage(&disk, &path, part);
        let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config.clone()).await;
        let mut sent = Sent(before.0.clone());
        for _ in 0..30 {
            sent.send_three(&node).await;
        }
        assert!(!parked(&disk).contains(&path), "{:?}", parked(&disk));
        let kept = disk.list(Path::new("/data/quarantine")).expect("listed");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(kept.len() == 1 && kept[0].name.ends_with(&name), "{kept:?}");
        assert_eq!(node.broker.metrics().damage_found.get(), told, "told once");
        disk.clear_faults();
        pause(15_000).await;
        sent.arrives(&node, 0).await;
        assert_eq!(node.broker.metrics().stream_gaps.get(), 0);
        node.tasks.token().cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_of_another_log_is_left_alone() {
    let (origin, catalog) = (MemDisk::new(), topics(1));
    parked_once(&origin, &catalog, 30).await;
    let origin = origin.reopen();
    let path = parked(&origin).first().expect("a file").clone();
    let disk = MemDisk::new();
    disk.create_dir_all(Path::new(PARKED)).expect("created");
    let file = disk.open(&path, OpenMode::CreateNew).expect("created");
    write_all_at(file.as_ref(), &bytes_of(&origin, &path), 0).expect("written");
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 7, config()).await;
    send(&node, 0, "one").await.expect("accepted");
    pause(2_000).await;
    assert_eq!(replay_all(&node, "orders", 0).await, [(0, "one".to_owned())]);
    assert_eq!(parked(&disk), [path]);
    assert_eq!(node.broker.metrics().damage_found.get(), 1, "told");
}

#[tokio::test(start_paused = true)]
async fn files_of_a_deleted_topic_go_once_the_leader_has_confirmed() {
    for is_restarted in [false, true] {
        let (disk, catalog) = (MemDisk::new(), topics(1));
        parked_once(&disk, &catalog, 30).await;
        let disk = disk.reopen();
        catalog.set_leaderless(true);
        let node = if is_restarted {
            catalog.remove(TopicId(1));
            Node::start_with(Arc::new(disk.clone()), &catalog, 2, config()).await
        } else {
            break_log(&disk, 0);
            let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config()).await;
            pause(2_000).await;
            catalog.remove(TopicId(1));
            node
        };
        pause(30_000).await;
        assert!(!parked(&disk).is_empty(), "nothing goes on this node's own view");
        catalog.set_leaderless(false);
        pause(10_000).await;
        assert!(parked(&disk).is_empty());
        assert_eq!(node.broker.undispatched(), 0);
        assert_eq!(node.broker.directory_numbers().parked_bytes, 0);
        assert!(!disk.list(Path::new("/data/quarantine")).expect("listed").is_empty(), "set aside, not removed");
        node.tasks.token().cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_becomes_known_late_gets_its_files_first() {
    let (disk, catalog) = (MemDisk::new(), topics(1));
    let mut sent = parked_once(&disk, &catalog, 30).await;
    let disk = disk.reopen();
    let late = FakeCatalog::new();
    late.set_leaderless(true);
    let node = Node::start_with(Arc::new(disk.clone()), &late, 2, config()).await;
    // Between two questions to the leader.
    pause(3_300).await;
    late.put(topic("orders", 1, 1));
    for _ in 0..20 {
        sent.send(&node, 0, 300).await.expect("accepted");
    }
    pause(5_000).await;
    sent.arrives(&node, 0).await;
    assert!(parked(&disk).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_file_that_comes_back_is_recognised_whatever_was_committed_since() {
    let (disk, catalog) = (MemDisk::new(), topics(1));
    let mut sent = parked_once(&disk, &catalog, 30).await;
    let disk = disk.reopen();
    // Files go, and that they go is not durable.
    disk.inject(Fault { op: Op::SyncDir, path_contains: PARKED.into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config()).await;
    for _ in 0..10 {
        pause(2_000).await;
        sent.send(&node, 0, 100).await.expect("accepted");
    }
    sent.arrives(&node, 0).await;
    assert!(parked(&disk).is_empty());
    disk.crash_power(&mut || 0);
    node.tasks.token().cancel();
    let disk = disk.reopen();
    disk.clear_faults();
    assert!(!parked(&disk).is_empty(), "they are back");
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 3, config()).await;
    pause(5_000).await;
    sent.send(&node, 0, 100).await.expect("accepted");
    sent.arrives(&node, 0).await;
    assert!(parked(&disk).is_empty());
    assert_eq!(node.broker.metrics().streams_forked.get(), 0, "a stream of which a file may be found is not finished");
}

#[tokio::test(start_paused = true)]
async fn what_is_in_a_file_and_in_the_wal_waits_once() {
    let (disk, catalog) = (MemDisk::new(), topics(1));
    disk.inject(Fault { op: Op::Create, path_contains: "/ingress/checkpoint".into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    let sent = parked_once(&disk, &catalog, 30).await;
    let disk = disk.reopen();
    break_log(&disk, 0);
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 2, config()).await;
    pause(5_000).await;
    assert_eq!(node.broker.undispatched(), 30);
    disk.clear_faults();
    pause(15_000).await;
    sent.arrives(&node, 0).await;
    assert!(parked(&disk).is_empty());
}
