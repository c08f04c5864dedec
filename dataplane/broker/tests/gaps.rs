//! Records that were accepted and are damaged in the WAL before they were dispatched: the log of who was to get them shows a gap in their
//! place, and everything else comes, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_broker::message::NewMessage;
use veena_contract::PartitionIndex;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode, read_full_at};
use veena_storage::partition::recover;
use veena_storage::wal::format::RECORD_HEADER_BYTES;
use veena_storage::wal::replay::{self, ScannedRecord};

use crate::support::{FakeCatalog, Node, name, replay_all, tenant, topic};

const PARTITIONS: u32 = 3;
const INGRESS: &str = "/data/ingress";

fn orders() -> Arc<FakeCatalog> {
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, PARTITIONS));
    catalog
}

async fn start(disk: &MemDisk, seed: u64) -> Node {
    Node::start(Arc::new(disk.clone()), &orders(), seed).await
}

fn bytes_of(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opens");
    let mut bytes = vec![0; usize::try_from(file.len().expect("measured")).expect("small")];
    assert_eq!(read_full_at(file.as_ref(), &mut bytes, 0).expect("read"), bytes.len());
    bytes
}

fn files(disk: &MemDisk, dir: &str, suffix: &str) -> Vec<PathBuf> {
    let entries = disk.list(Path::new(dir)).expect("listed").into_iter();
    entries.filter(|entry| entry.name.ends_with(suffix)).map(|entry| Path::new(dir).join(entry.name)).collect()
}

/// A node accepts records for these partitions in turn and dies; those whose paths contain `broken` have got none of them. The first is in
/// the WAL at sequence 0.
async fn leave_behind(partitions: &[u32], broken: &str) -> MemDisk {
    let disk = MemDisk::new();
    let node = start(&disk, 1).await;
    disk.inject(Fault { op: Op::Create, path_contains: broken.into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    for (n, partition) in partitions.iter().enumerate() {
        let payload = Bytes::from(format!("record {n}"));
        let message =
            NewMessage { key: None, partition: Some(PartitionIndex(*partition)), headers: Vec::new(), idempotency_key: None, payload };
        node.broker.produce(&tenant(), &name("orders"), message).await.expect("accepted");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    disk.crash_kill();
    node.tasks.token().cancel();
    disk.clear_faults();
    disk.reopen()
}

/// Flips one bit at this place of a record of the WAL.
fn flip(disk: &MemDisk, seq: u64, byte: usize) {
    let path = files(disk, INGRESS, ".wal").remove(0);
    let generation = u64::from_str_radix(path.file_stem().and_then(|stem| stem.to_str()).expect("a name"), 16).expect("a number");
    let found = replay::scan_segment(&bytes_of(disk, &path), generation).records;
    let record: &ScannedRecord = found.iter().find(|record| record.head.seq.0 == seq).expect("there");
    disk.flip_bit(&path, (record.at + byte as u64) * 8).expect("flipped");
}

const HEADER: usize = 30;
const BODY: usize = RECORD_HEADER_BYTES + 3;

/// One commit of the WAL as a partition's log holds it.
#[derive(Debug, PartialEq, Eq)]
enum Held {
    /// Records, the last of them of this sequence.
    Records(u64),
    /// A gap up to this sequence.
    Gap(u64),
}
use Held::{Gap, Records};

fn held(disk: &MemDisk, partition: u32) -> Vec<Held> {
    let dir = format!("/data/topics/default/0000000000000001/p{partition:05}");
    let mut held = Vec::new();
    for path in files(disk, &dir, ".log") {
        let (_, scan) = recover::scan(&bytes_of(disk, &path)).expect("known").expect("has a header");
        held.extend(scan.sections.iter().map(|(_, section)| section.last_record.map_or(Gap(section.last), |(last, _)| Records(last))));
    }
    held
}

/// How many gaps the node counts in all, and in each partition it has used.
fn counted(node: &Node) -> (u64, Vec<u64>) {
    let partitions = node.broker.topic_numbers().remove(0).partitions;
    (node.broker.metrics().stream_gaps.get(), partitions.iter().map(|numbers| numbers.gaps).collect())
}

async fn payloads(node: &Node, partition: u32) -> Vec<String> {
    replay_all(node, "orders", partition).await.into_iter().map(|(_, payload)| payload).collect()
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_leaves_a_gap_in_its_own_partition_and_nowhere_else() {
    let disk = leave_behind(&[0, 0, 1, 0, 1, 0], "/p0000").await;
    flip(&disk, 1, BODY);
    let node = start(&disk, 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(payloads(&node, 0).await, ["record 0", "record 3", "record 5"]);
    assert_eq!(payloads(&node, 1).await, ["record 2", "record 4"]);
    assert_eq!(counted(&node), (1, vec![1, 0]));
    assert!(node.broker.metrics().damage_found.get() > 0, "the damage is counted");
    assert!(node.produce("orders", None, "new").await);
    node.broker.stop().await;
    assert_eq!(held(&disk, 0)[..3], [Records(0), Gap(1), Records(5)]);
    assert_eq!(held(&disk, 1)[..1], [Records(4)]);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_with_nothing_behind_it_for_its_partition_leaves_a_gap_too() {
    let disk = leave_behind(&[0, 0, 1], "/p0000").await;
    flip(&disk, 1, BODY);
    let node = start(&disk, 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(node.broker.undispatched(), 0, "nothing is left to do");
    node.broker.stop().await;
    assert_eq!(held(&disk, 0), [Records(0), Gap(1)]);
    assert_eq!(held(&disk, 1), [Records(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_does_not_say_where_it_was_to_go_leaves_a_gap_in_every_partition_with_later_records() {
    let disk = leave_behind(&[2, 0, 1, 0, 1, 0], "/p0000").await;
    flip(&disk, 2, HEADER);
    let node = start(&disk, 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(counted(&node), (2, vec![1, 1, 0]));
    node.broker.stop().await;
    assert_eq!(held(&disk, 0), [Records(1), Gap(2), Records(5)]);
    assert_eq!(held(&disk, 1), [Gap(2), Records(4)]);
    assert_eq!(held(&disk, 2), [Records(0)], "it has nothing later");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_record_that_its_partition_has_already_leaves_no_gap() {
    // What the other partition cannot take holds the checkpoint.
    let disk = leave_behind(&[1, 0, 0, 0], "/p00001").await;
    let before = held(&disk, 0);
    flip(&disk, 2, BODY);
    let node = start(&disk, 2).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(counted(&node), (0, vec![0, 0]));
    assert!(node.broker.metrics().damage_found.get() > 0, "the damage is counted all the same");
    assert_eq!(payloads(&node, 0).await, ["record 1", "record 2", "record 3"]);
    assert_eq!(payloads(&node, 1).await, ["record 0"]);
    node.broker.stop().await;
    assert_eq!(held(&disk, 0), before);
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_declared_once_although_the_node_dies_before_its_checkpoint() {
    for byte in [BODY, HEADER] {
        let disk = leave_behind(&[0, 0, 0, 0], "/p0000").await;
        flip(&disk, 1, byte);
        let node = start(&disk, 2).await;
        let committed = async {
            while node.broker.metrics().messages_committed.get() < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), committed).await.expect("committed");
        disk.crash_kill();
        node.tasks.token().cancel();
        let disk = disk.reopen();
        let node = start(&disk, 3).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(node.broker.metrics().damage_found.get() > 0, "the WAL was read again");
        assert_eq!(node.broker.metrics().stream_gaps.get(), 0);
        node.broker.stop().await;
        assert_eq!(held(&disk, 0), [Records(0), Gap(1), Records(3)]);
    }
}
