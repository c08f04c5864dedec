//! Files that were damaged, cut, emptied, put back or removed while the node was down: it starts, serves what is intact, gives nothing
//! false out, and goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use veena_broker::consume::frontier;
use veena_broker::fanout::position;
use veena_contract::{Entropy, Offset, TopicId};
use veena_storage::cell::{self, CellKind};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode, read_full_at, write_all_at};
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::partition::recover;
use veena_storage::wal::replay;

use crate::support::{FakeCatalog, Node, Seeded, link, replay_all, small_config, topic};

const PARTITION: &str = "/data/topics/default/0000000000000001/p00000";

/// The files of a disk.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn files_of(disk: &MemDisk) -> Files {
    let mut files = Files::new();
    let mut left = vec![PathBuf::from("/data")];
    while let Some(dir) = left.pop() {
        for entry in disk.list(&dir).expect("listed") {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                left.push(path);
                continue;
            }
            let file = disk.open(&path, OpenMode::Read).expect("opens");
            let mut bytes = vec![0; usize::try_from(entry.len).expect("small")];
            assert_eq!(read_full_at(file.as_ref(), &mut bytes, 0).expect("read"), bytes.len());
            files.insert(path, bytes);
        }
    }
    files
}

fn disk_with(files: &Files) -> MemDisk {
    let disk = MemDisk::new();
    for (path, bytes) in files {
        let dir = path.parent().expect("files lie in directories");
        disk.create_dir_all(dir).expect("created");
        let file = disk.open(path, OpenMode::CreateNew).expect("created");
        write_all_at(file.as_ref(), bytes, 0).expect("written");
        file.sync_data().expect("synced");
        for dir in dir.ancestors() {
            disk.sync_dir(dir).expect("synced");
        }
    }
    disk
}

fn orders() -> Arc<FakeCatalog> {
    let catalog = FakeCatalog::new();
    catalog.put(topic("orders", 1, 1));
    catalog
}

async fn start(files: &Files, seed: u64) -> Node {
    Node::start(Arc::new(disk_with(files)), &orders(), 1_000 + seed).await
}

fn payload(n: usize) -> String {
    format!("{n:04}-{}", "x".repeat(4_000 + n))
}

/// What a clean stop left: the files, the files as they were half-way, the payloads by offset, and how many of the first are acked.
struct Base {
    files: Files,
    earlier: Files,
    payloads: Vec<String>,
    acked: usize,
}

/// Sixty messages in several segments, the first twenty acked.
async fn base() -> Base {
    let disk = MemDisk::new();
    let catalog = orders();
    let node = Node::start(Arc::new(disk.clone()), &catalog, 1).await;
    for n in 0..30 {
        assert!(node.produce("orders", None, &payload(n)).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ack_first(&node, 10).await;
    node.broker.stop().await;
    let disk = disk.reopen();
    let earlier = files_of(&disk);
    let node = Node::start(Arc::new(disk.clone()), &catalog, 2).await;
    for n in 30..60 {
        assert!(node.produce("orders", None, &payload(n)).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ack_first(&node, 10).await;
    let payloads: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads.len(), 60);
    node.broker.stop().await;
    Base { files: files_of(&disk.reopen()), earlier, payloads, acked: 20 }
}

async fn ack_first(node: &Node, count: usize) {
    let mut left = count;
    while left > 0 {
        let batch = node.consume_many("orders", left, 5_000).await;
        assert!(!batch.is_empty());
        left -= batch.len();
        assert!(batch.iter().all(|delivery| node.ack("orders", delivery)));
    }
}

fn names(files: &Files, dir: &str, suffix: &str) -> Vec<PathBuf> {
    files.keys().filter(|path| path.starts_with(dir) && path.to_string_lossy().ends_with(suffix)).cloned().collect()
}

/// Which offsets the frames of a segment hold, with the place of each frame.
fn frames(bytes: &[u8]) -> Vec<(std::ops::Range<u64>, std::ops::Range<u64>)> {
    let (_, scan) = recover::scan(bytes).expect("known").expect("has a header");
    let place = |frame: &recover::ScannedFrame| frame.position..frame.position + frame.header.frame_len();
    scan.frames.iter().map(|frame| (place(frame), frame.header.base.0..frame.header.end().0)).collect()
}

/// Drains, and says which unacked offsets did not come. What comes was sent; a new message is accepted and comes too.
async fn missing(node: &Node, base: &Base, what: &str) -> BTreeSet<u64> {
    assert!(node.produce("orders", None, "new").await, "{what}");
    let seen = node.drain("orders").await;
    assert_eq!(seen.get("new"), Some(&1), "{what}: new messages flow");
    for text in seen.keys().filter(|text| *text != "new") {
        assert!(base.payloads.contains(text), "{what}: never sent");
    }
    let lost = base.payloads.iter().enumerate().skip(base.acked).filter(|(_, text)| !seen.contains_key(*text));
    lost.map(|(offset, _)| offset as u64).collect()
}

fn noticed(node: &Node) -> u64 {
    let metrics = node.broker.metrics();
    metrics.damage_found.get() + metrics.messages_corrupt_skipped.get()
}

#[tokio::test(start_paused = true)]
async fn one_flipped_bit_in_a_sealed_segment_costs_at_most_its_own_frame() {
    let base = base().await;
    let segments = names(&base.files, PARTITION, ".log");
    assert!(segments.len() > 3, "{segments:?}");
    let random = Seeded::new(5);
    let mut costs = 0;
    for round in 0..60 {
        let path = &segments[usize::try_from(random.next_u64()).expect("64 bits") % (segments.len() - 1)];
        let whole = &base.files[path];
        let frames = frames(whole);
        // Half of the rounds hit headers, where a flip could cost most.
        let byte = if round % 2 == 0 {
            usize::try_from(random.next_u64()).expect("64 bits") % whole.len()
        } else {
            let frame = usize::try_from(random.next_u64()).expect("64 bits") % frames.len();
            usize::try_from(frames[frame].0.start + random.next_u64() % 72).expect("small")
        };
        let mut files = base.files.clone();
        files.get_mut(path).expect("there")[byte] ^= 1 << (random.next_u64() % 8);
        let node = start(&files, round).await;
        let what = format!("{} byte {byte}", path.display());
        let lost = missing(&node, &base, &what).await;
        let hit = frames.iter().find(|(place, _)| place.contains(&(byte as u64))).map_or(0..0, |(_, offsets)| offsets.clone());
        assert!(lost.iter().all(|offset| hit.contains(offset)), "{what}: lost {lost:?}, hit {hit:?}");
        if !lost.is_empty() {
            costs += 1;
            assert!(noticed(&node) > 0, "{what}: it is counted");
        }
        node.broker.stop().await;
    }
    assert!(costs > 10, "flips cost something: {costs}");
}

#[tokio::test(start_paused = true)]
async fn a_zeroed_frame_header_is_not_the_end_of_a_partition() {
    let base = base().await;
    for (which, path) in names(&base.files, PARTITION, ".log").iter().enumerate() {
        let frames = frames(&base.files[path]);
        if frames.len() < 3 {
            continue;
        }
        let (place, offsets) = frames[frames.len() / 2].clone();
        let mut files = base.files.clone();
        let at = usize::try_from(place.start).expect("small");
        files.get_mut(path).expect("there")[at..at + 72].fill(0);
        let disk = disk_with(&files);
        let node = Node::start(Arc::new(disk.clone()), &orders(), 50).await;
        let lost = missing(&node, &base, &format!("segment {which}")).await;
        let unacked: BTreeSet<u64> = offsets.filter(|offset| *offset >= base.acked as u64).collect();
        assert_eq!(lost, unacked, "segment {which}");
        node.broker.stop().await;
        // The new message stands behind all others: no offset is given twice, in this life and the next.
        let node = Node::start(Arc::new(disk.reopen()), &orders(), 51).await;
        let stats = node.broker.describe(&crate::support::tenant(), &crate::support::name("orders"), None).await.expect("known");
        assert_eq!(stats[0].as_ref().expect("open").log_end, Offset(61), "segment {which}");
        node.broker.stop().await;
    }
}

/// Messages that are accepted and committed nowhere: only the WAL has them.
async fn only_in_wal(count: usize) -> (Files, Vec<String>) {
    let disk = MemDisk::new();
    let node = Node::start(Arc::new(disk.clone()), &orders(), 1).await;
    let (path_contains, kind) = ("/p00000".to_owned(), FaultKind::Eio);
    disk.inject(Fault { op: Op::Create, path_contains, after: 0, times: u64::MAX, kind });
    let payloads: Vec<String> = (0..count).map(|n| format!("{n:04}-{}", "y".repeat(20 + n))).collect();
    for payload in &payloads {
        assert!(node.produce("orders", None, payload).await);
    }
    disk.crash_kill();
    node.tasks.token().cancel();
    disk.clear_faults();
    (files_of(&disk.reopen()), payloads)
}

/// The segment of the WAL that has records, and the place of each.
fn wal_records(files: &Files) -> (PathBuf, Vec<std::ops::Range<u64>>) {
    let found = names(files, "/data/ingress", ".wal").into_iter().find_map(|path| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let generation = u64::from_str_radix(stem, 16).expect("a number");
        let records = replay::scan_segment(&files[&path], generation).records;
        (!records.is_empty()).then(|| (path, records.iter().map(|record| record.at..record.end).collect()))
    });
    found.expect("the WAL has records")
}

async fn drained(node: &Node, what: &str) -> BTreeMap<String, usize> {
    assert!(node.produce("orders", None, "new").await, "{what}");
    let mut seen = node.drain("orders").await;
    assert_eq!(seen.remove("new"), Some(1), "{what}: new messages flow");
    assert!(seen.values().all(|count| *count == 1), "{what}: nothing comes twice");
    seen
}

#[tokio::test(start_paused = true)]
async fn a_zeroed_record_header_is_not_the_end_of_the_wal() {
    let (files, payloads) = only_in_wal(10).await;
    let (path, places) = wal_records(&files);
    assert_eq!(places.len(), payloads.len());
    for (hit, place) in places[..places.len() - 1].iter().enumerate() {
        let mut damaged = files.clone();
        let at = usize::try_from(place.start).expect("small");
        damaged.get_mut(&path).expect("there")[at..at + 72].fill(0);
        let node = start(&damaged, 60).await;
        let seen = drained(&node, &format!("record {hit}")).await;
        let expected: BTreeSet<&String> = payloads.iter().enumerate().filter(|(n, _)| *n != hit).map(|(_, text)| text).collect();
        assert_eq!(seen.keys().collect::<BTreeSet<_>>(), expected, "record {hit}");
        assert!(noticed(&node) > 0, "record {hit}: it is counted");
        node.broker.stop().await;
    }
}

#[derive(Clone, Copy, Debug)]
enum Hurt {
    Empty,
    OneByte,
    Garbage,
    Deleted,
    Earlier,
}

fn hurt(base: &Base, files: &mut Files, path: &Path, how: Hurt) -> bool {
    let bytes = match how {
        Hurt::Empty => Vec::new(),
        Hurt::OneByte => base.files[path][..1].to_vec(),
        Hurt::Garbage => base.files[path].iter().map(|byte| byte ^ 0x5a).collect(),
        Hurt::Deleted => return files.remove(path).is_some(),
        Hurt::Earlier => match base.earlier.get(path) {
            Some(earlier) => earlier.clone(),
            None => return false,
        },
    };
    files.insert(path.to_owned(), bytes);
    true
}

#[tokio::test(start_paused = true)]
async fn no_small_file_that_is_hurt_keeps_the_node_from_starting_or_loses_a_message() {
    let base = base().await;
    let mut small = vec!["/data/ingress/id".into(), "/data/ingress/checkpoint".into(), "/data/ingress/streams".into()];
    for (dir, suffix) in [(PARTITION, ".idx"), (PARTITION, ".streams"), ("/data/settle", ".journal")] {
        small.extend(names(&base.files, dir, suffix));
    }
    assert!(small.len() > 10 && small.iter().all(|path| base.files.contains_key(path)), "{small:?}");
    let hows = [Hurt::Empty, Hurt::OneByte, Hurt::Garbage, Hurt::Deleted, Hurt::Earlier];
    let mut cases: Vec<(Vec<&PathBuf>, Hurt)> = small.iter().flat_map(|path| hows.map(|how| (vec![path], how))).collect();
    for (at, one) in small.iter().enumerate() {
        for other in &small[at + 1..] {
            cases.push((vec![one, other], if at % 2 == 0 { Hurt::Deleted } else { Hurt::Garbage }));
        }
    }
    let mut tried = 0;
    for (seed, (paths, how)) in cases.into_iter().enumerate() {
        let mut files = base.files.clone();
        let are_hurt = paths.iter().filter(|path| hurt(&base, &mut files, path, how)).count();
        if are_hurt < paths.len() {
            continue;
        }
        tried += 1;
        let what = format!("{how:?} {paths:?}");
        let disk = disk_with(&files);
        disk.create_dir_all(Path::new("/data/settle")).expect("created");
        let node = Node::try_start(Arc::new(disk), &orders(), 100 + seed as u64, small_config()).await;
        let node = node.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(node.produce("orders", None, "new").await, "{what}");
        let seen = node.drain("orders").await;
        assert_eq!(seen.get("new"), Some(&1), "{what}: new messages flow");
        for (offset, text) in base.payloads.iter().enumerate() {
            let times = seen.get(text).copied().unwrap_or(0);
            let is_settle_hurt = paths.iter().any(|path| path.starts_with("/data/settle"));
            let is_right = if offset >= base.acked { times == 1 } else { times == 0 || is_settle_hurt };
            assert!(is_right, "{what}: offset {offset} came {times} times");
        }
        let mut stored: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, payload)| payload).collect();
        assert_eq!(stored.pop().as_deref(), Some("new"), "{what}");
        assert_eq!(stored, base.payloads, "{what}: nothing is appended twice, nothing is gone");
        node.broker.stop().await;
    }
    println!("{tried} cases");
    assert!(tried > 100, "{tried} cases");
}

#[tokio::test(start_paused = true)]
async fn a_wal_cut_at_any_byte_keeps_every_whole_record() {
    let (files, payloads) = only_in_wal(8).await;
    let (path, places) = wal_records(&files);
    let from = places[places.len() - 3].start;
    let end = places[places.len() - 1].end;
    for len in from..=end {
        let mut cut = files.clone();
        cut.get_mut(&path).expect("there").truncate(usize::try_from(len).expect("small"));
        let node = start(&cut, len).await;
        let seen = drained(&node, &format!("{len} bytes")).await;
        // Padding behind a body belongs to its record.
        let whole = places.iter().filter(|place| place.end <= len).count();
        assert_eq!(seen.keys().collect::<Vec<_>>(), payloads[..whole].iter().collect::<Vec<_>>(), "{len} bytes");
        node.broker.stop().await;
    }
    for length in [0_u32, 1, 0x7fff_ffff, 0xffff_ffff] {
        let mut wrong = files.clone();
        let at = usize::try_from(places[places.len() - 1].start).expect("small") + 12;
        wrong.get_mut(&path).expect("there")[at..at + 4].copy_from_slice(&length.to_be_bytes());
        let node = start(&wrong, u64::from(length)).await;
        let seen = drained(&node, &format!("length {length}")).await;
        assert_eq!(seen.len(), payloads.len() - 1, "length {length}");
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_cut_at_any_byte_keeps_every_whole_frame() {
    let disk = MemDisk::new();
    let node = Node::start(Arc::new(disk.clone()), &orders(), 1).await;
    let payloads: Vec<String> = (0..8).map(|n| format!("short {n}")).collect();
    for payload in &payloads {
        assert!(node.produce("orders", None, payload).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    node.broker.stop().await;
    let files = files_of(&disk.reopen());
    let path = names(&files, PARTITION, ".log").pop().expect("a segment");
    let frames = frames(&files[&path]);
    assert_eq!(frames.len(), payloads.len(), "one frame each");
    let from = frames[frames.len() - 3].0.start;
    for len in from..=frames[frames.len() - 1].0.end {
        let mut cut = files.clone();
        cut.get_mut(&path).expect("there").truncate(usize::try_from(len).expect("small"));
        let node = start(&cut, len).await;
        let seen = drained(&node, &format!("{len} bytes")).await;
        let whole = frames.iter().filter(|(place, _)| place.end <= len).count();
        assert_eq!(seen.keys().collect::<Vec<_>>(), payloads[..whole].iter().collect::<Vec<_>>(), "{len} bytes");
        node.broker.stop().await;
    }
    for (field, length) in [20, 24].into_iter().flat_map(|field| [0_u32, 1, 0x7fff_ffff, 0xffff_ffff].map(|length| (field, length))) {
        let mut wrong = files.clone();
        let at = usize::try_from(frames[frames.len() - 1].0.start).expect("small") + field;
        wrong.get_mut(&path).expect("there")[at..at + 4].copy_from_slice(&length.to_be_bytes());
        let node = start(&wrong, u64::from(length)).await;
        let seen = drained(&node, &format!("length {length}")).await;
        assert_eq!(seen.len(), payloads.len() - 1, "length {length}");
        node.broker.stop().await;
    }
}

/// Changes what the settle journal says, as a node that had gone on and lost its logs since would have left it.
fn rewrite_settle(disk: &MemDisk, kind: u8, change: &dyn Fn(&[u8]) -> Vec<u8>) -> usize {
    let (mut journal, entries) = Journal::open(Arc::new(disk.clone()), Path::new("/data/settle"), JournalConfig::default()).expect("opens");
    let changed: Vec<(Vec<u8>, Vec<u8>)> =
        entries.iter().filter(|((found, _), _)| *found == kind).map(|((_, key), value)| (key.clone(), change(value))).collect();
    for (key, value) in &changed {
        journal.append(&[(kind, key, Some(value))]).expect("appended");
    }
    journal.sync().expect("synced");
    changed.len()
}

#[tokio::test(start_paused = true)]
async fn a_frontier_beyond_the_end_is_clamped_and_one_that_is_behind_only_repeats() {
    let base = base().await;
    for shift in [-16_i64, -3, -1, 41, 57, 1_000, i64::MAX / 2] {
        let disk = disk_with(&base.files);
        let changed = rewrite_settle(&disk, 1, &|value| {
            let mut state = frontier::decode(value).expect("a settle state");
            state.frontier = state.frontier.saturating_add_signed(shift);
            state.ahead = vec![(state.frontier + 1, state.frontier + 3)];
            frontier::encode(&state).to_vec()
        });
        assert_eq!(changed, 1);
        let node = Node::start(Arc::new(disk), &orders(), 70).await;
        assert!(node.produce("orders", None, "new").await);
        let seen = node.drain("orders").await;
        assert_eq!(seen.get("new"), Some(&1), "{shift}: new messages are delivered at once");
        if shift < 0 {
            let first = base.acked - usize::try_from(-shift).expect("small");
            let expected = base.payloads.len() - first - 2 + 1;
            assert_eq!(seen.len(), expected, "{shift}: all from the frontier on but the two that are settled ahead of it");
        } else {
            assert_eq!(seen.len(), 1, "{shift}: all that is left counts as settled");
        }
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cursor_beyond_the_end_goes_on_with_new_records_and_one_that_is_behind_repeats_nothing() {
    let catalog = || {
        let (mut parent, mut child) = (topic("orders", 1, 1), topic("child", 2, 1));
        link(&mut parent, &mut child, 0, vec![Offset(0)]);
        let catalog = FakeCatalog::new();
        catalog.put(parent);
        catalog.put(child);
        catalog
    };
    let disk = MemDisk::new();
    let node = Node::start(Arc::new(disk.clone()), &catalog(), 1).await;
    for n in 0..20 {
        assert!(node.produce("orders", None, &format!("{n:02}")).await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(replay_all(&node, "child", 0).await.len(), 20);
    node.broker.stop().await;
    let files = files_of(&disk.reopen());
    let mut complaints = Vec::new();
    for shift in (-16_i64..=16).chain([1_000, i64::MAX / 2]) {
        let disk = disk_with(&files);
        let changed = rewrite_settle(&disk, 2, &|value| {
            let mut found = position::decode(value).expect("a position");
            found.next = Offset(found.next.0.saturating_add_signed(shift));
            for confirmed in found.confirmed.values_mut() {
                *confirmed = confirmed.saturating_add_signed(shift);
            }
            position::encode(&found).to_vec()
        });
        assert_eq!(changed, 1);
        let node = Node::start(Arc::new(disk), &catalog(), 80).await;
        assert!(node.produce("orders", None, "new").await);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let copies: Vec<String> = replay_all(&node, "child", 0).await.into_iter().map(|(_, payload)| payload).collect();
        let expected: Vec<String> = (0..20).map(|n| format!("{n:02}")).chain(["new".to_owned()]).collect();
        if copies != expected {
            complaints.push(format!("{shift}: {} copies, the last is {:?}", copies.len(), copies.last()));
        }
        node.broker.stop().await;
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_between_records_repeats_nothing_and_one_beyond_the_end_is_refused_by_name() {
    let base = base().await;
    let path = Path::new("/data/ingress/checkpoint");
    let kept = cell::decode(&base.files[path], CellKind::WAL_CHECKPOINT).expect("a checkpoint").to_vec();
    let number = |at: usize| u64::from_be_bytes(kept[at..at + 8].try_into().expect("eight bytes"));
    for shift in (-16_i64..=16).chain([1_000_000]) {
        let disk = disk_with(&base.files);
        let mut value = kept.clone();
        value[..8].copy_from_slice(&number(0).saturating_add_signed(shift).to_be_bytes());
        // What is durable was never below what is dispatched.
        value[8..16].copy_from_slice(&number(8).saturating_add_signed(shift.max(0)).to_be_bytes());
        cell::write(&disk, path, CellKind::WAL_CHECKPOINT, &value).expect("written");
        let started = Node::try_start(Arc::new(disk), &orders(), 90, small_config()).await;
        let node = match started {
            Ok(node) => node,
            Err(error) => {
                assert!(shift > 0 && error.to_string().contains("/data/ingress/checkpoint"), "{shift}: {error}");
                continue;
            }
        };
        assert!(shift <= 0, "{shift}: a checkpoint beyond the end means that the log has lost data");
        assert_eq!(missing(&node, &base, "checkpoint").await, BTreeSet::new(), "{shift}");
        assert_eq!(replay_all(&node, "orders", 0).await.len(), 61, "{shift}: nothing is appended twice");
        node.broker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_segment_costs_what_it_held_and_no_more() {
    let base = base().await;
    let segments = names(&base.files, PARTITION, ".log");
    for path in &segments[1..segments.len() - 1] {
        let mut files = base.files.clone();
        let held: BTreeSet<u64> = frames(&files[path]).into_iter().flat_map(|(_, offsets)| offsets).collect();
        files.remove(path);
        let disk = disk_with(&files);
        let node = Node::start(Arc::new(disk.clone()), &orders(), 95).await;
        let lost = missing(&node, &base, &path.display().to_string()).await;
        assert_eq!(lost, held.into_iter().filter(|offset| *offset >= base.acked as u64).collect(), "{}", path.display());
        assert!(noticed(&node) > 0 || lost.is_empty(), "it is counted");
        let before = disk.list(Path::new(PARTITION)).expect("listed").len();
        node.broker.stop().await;
        for life in 0..3 {
            let node = Node::start(Arc::new(disk.reopen()), &orders(), 96 + life).await;
            assert_eq!(node.drain("orders").await, BTreeMap::new());
            node.broker.stop().await;
        }
        assert_eq!(disk.list(Path::new(PARTITION)).expect("listed").len(), before, "no start makes more files");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_wal_segment_costs_what_it_held_and_no_more() {
    let disk = MemDisk::new();
    let node = Node::start(Arc::new(disk.clone()), &orders(), 1).await;
    disk.inject(Fault { op: Op::Create, path_contains: "/p00000".into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    let payloads: Vec<String> = (0..200).map(payload).collect();
    for payload in &payloads {
        assert!(node.produce("orders", None, payload).await);
    }
    disk.crash_kill();
    node.tasks.token().cancel();
    disk.clear_faults();
    let files = files_of(&disk.reopen());
    let segments = names(&files, "/data/ingress", ".wal");
    assert!(segments.len() > 3, "{segments:?}");
    let mut without = files.clone();
    without.remove(&segments[1]);
    let node = start(&without, 98).await;
    let seen = drained(&node, "a WAL segment is missing").await;
    let lost: Vec<usize> = (0..200).filter(|n| !seen.contains_key(&payloads[*n])).collect();
    assert!(!lost.is_empty() && lost.len() < 80, "{lost:?}");
    assert!(lost.windows(2).all(|pair| pair[1] == pair[0] + 1), "one stretch: {lost:?}");
    assert!(noticed(&node) > 0, "it is counted");
    node.broker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn foreign_files_are_neither_read_nor_removed() {
    let base = base().await;
    let mut files = base.files.clone();
    let mut foreign = Vec::new();
    for dir in ["/data", "/data/ingress", "/data/settle", "/data/topics", "/data/topics/default", PARTITION, "/data/quarantine"] {
        for name in ["segment.tmp", "segment.bad", "lost+found/x", "00000000000000000000.log~", "#journal#"] {
            foreign.push(Path::new(dir).join(name));
        }
    }
    // Directories with the names of segments.
    foreign.push(Path::new(PARTITION).join("00000000000000000007.log/x"));
    foreign.push(PathBuf::from("/data/ingress/00000000000000ff.wal/x"));
    foreign.push(PathBuf::from("/data/settle/settle-00000000000000ff.journal/x"));
    for path in &foreign {
        files.insert(path.clone(), b"not ours".to_vec());
    }
    let disk = disk_with(&files);
    for life in 0..2 {
        let node = Node::try_start(Arc::new(disk.reopen()), &orders(), 110 + life, small_config()).await.expect("starts");
        if life == 0 {
            assert_eq!(missing(&node, &base, "foreign files").await, BTreeSet::new());
            assert_eq!(replay_all(&node, "orders", 0).await.len(), 61);
        }
        tokio::time::sleep(Duration::from_secs(300)).await;
        node.broker.stop().await;
    }
    for path in foreign {
        // A directory in the way of a segment is moved aside, with what it holds.
        let aside = path.parent().map(|dir| dir.with_extension("log.foreign")).expect("files lie in directories");
        let exists = |path: &Path| disk.reopen().exists(path).expect("asked");
        assert!(exists(&path) || exists(&aside.join("x")), "{} is gone", path.display());
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_is_created_where_something_lies_already() {
    for name in ["p00000/left over", "p00000/00000000000000000000.log/x", "left over"] {
        let disk = MemDisk::new();
        let path = Path::new("/data/topics/default").join(TopicId(1).to_string()).join(name);
        disk.create_dir_all(path.parent().expect("a directory")).expect("created");
        disk.open(&path, OpenMode::CreateNew).expect("created");
        let node = Node::start(Arc::new(disk.clone()), &orders(), 120).await;
        assert!(node.produce("orders", None, "one").await);
        assert_eq!(node.drain("orders").await, BTreeMap::from([("one".to_owned(), 1)]), "{name}");
        let is_moved = files_of(&disk).keys().any(|path| path.to_string_lossy().contains("foreign"));
        assert!(is_moved || disk.exists(&path).expect("asked"), "{name}: it is kept");
        node.broker.stop().await;
    }
}
