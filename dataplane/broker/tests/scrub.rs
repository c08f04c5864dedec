//! Housekeeping that looks for damage, and what waits in quarantine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use veena_contract::limits::SCRUB_PASS_MS;
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode, write_all_at};

use crate::support::{FakeCatalog, Node, name, small_config, tenant, topic};

const DIR: &str = "/data/topics/default/0000000000000001/p00000";

fn segments(disk: &MemDisk) -> Vec<PathBuf> {
    let entries = disk.list(Path::new(DIR)).expect("listed");
    entries.into_iter().filter(|entry| entry.name.ends_with(".log")).map(|entry| Path::new(DIR).join(entry.name)).collect()
}

async fn stats(node: &Node) -> veena_broker::message::PartitionStats {
    let mut stats = node.broker.describe(&tenant(), &name("orders"), None).await.expect("known");
    stats.pop().flatten().expect("open")
}

async fn filled(disk: &MemDisk) -> Node {
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, 1));
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for n in 0..60 {
        assert!(node.produce("orders", None, &format!("{n:04}{}", "x".repeat(4_000))).await);
        // Each in a commit of its own.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(segments(disk).len() > 3, "there are sealed segments");
    node
}

#[tokio::test(start_paused = true)]
async fn the_scrubber_tells_how_far_a_partition_was_checked() {
    let disk = MemDisk::new();
    let node = filled(&disk).await;
    assert_eq!(stats(&node).await.verified_up_to, None, "nothing was checked yet");
    tokio::time::sleep(Duration::from_secs(700)).await;
    let first = stats(&node).await;
    let last_base = segments(&disk).pop().expect("a segment");
    let last_base: u64 = last_base.file_stem().and_then(|stem| stem.to_str()).expect("a name").parse().expect("a number");
    assert_eq!(first.verified_up_to.map(|offset| offset.0), Some(last_base), "all that is sealed");
    tokio::time::sleep(Duration::from_millis(SCRUB_PASS_MS / 2)).await;
    assert_eq!(stats(&node).await.verified_at_ms, first.verified_at_ms, "at most once a day");
    tokio::time::sleep(Duration::from_millis(SCRUB_PASS_MS)).await;
    assert!(stats(&node).await.verified_at_ms > first.verified_at_ms, "again the next day");
    assert_eq!(node.broker.metrics().damage_found.get(), 0);
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_in_a_sealed_segment_is_found_and_told_once() {
    let disk = MemDisk::new();
    let node = filled(&disk).await;
    let path = segments(&disk)[1].clone();
    disk.flip_bit(&path, 8 * 5_000).expect("flipped");
    tokio::time::sleep(Duration::from_secs(700)).await;
    assert_eq!(node.broker.metrics().damage_found.get(), 1);
    let base: u64 = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").parse().expect("a number");
    assert_eq!(stats(&node).await.verified_up_to.map(|offset| offset.0), Some(base), "only what lies below the damage counts");
    tokio::time::sleep(Duration::from_millis(3 * SCRUB_PASS_MS)).await;
    assert_eq!(node.broker.metrics().damage_found.get(), 1, "told once");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn quarantine_is_bounded_and_the_oldest_go_first() {
    let disk = MemDisk::new();
    let now = 1_700_000_000_000_u64;
    let entry = |ms: u64| PathBuf::from(format!("/data/quarantine/{ms:013}-topic-default-{ms}"));
    let names = [now - 10, now - 3, now - 2, now - 1];
    for ms in names {
        let dir = entry(ms).join("p00000");
        disk.create_dir_all(&dir).expect("created");
        let file = disk.open(&dir.join("bytes"), OpenMode::CreateNew).expect("created");
        write_all_at(file.as_ref(), &[1; 1000], 0).expect("written");
    }
    disk.create_dir_all(Path::new("/data/quarantine/kept by hand")).expect("created");
    let catalog = FakeCatalog::new();
    let mut config = small_config();
    config.quarantine_bytes_max = 2_500;
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let left: Vec<bool> = names.iter().map(|ms| disk.exists(&entry(*ms)).expect("asked")).collect();
    assert_eq!(left, [false, false, true, true], "the oldest went until the rest fits");
    assert!(disk.exists(Path::new("/data/quarantine/kept by hand")).expect("asked"), "what is not ours stays");
    tokio::time::sleep(Duration::from_secs(2 * 3_600)).await;
    assert!(!disk.exists(&entry(now - 1)).expect("asked"), "after its grace time everything goes");
    node.broker.stop().await;
}
