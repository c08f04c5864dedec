//! `veena log` on the files of a node: what is damaged is named, a clean directory is clean, a running node is left alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;
use veena_contract::{Entropy, Offset, StreamId, WalSeq};
use veena_loadtest_checker::How;
use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::node::free_addr;
use veena_storage::disk::real::RealDisk;
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::partition::{Codec, FrameCache, Marks, NewRecord, Origin, PartitionConfig, PartitionLog, Section, StreamKey};
use veena_storage::wal::parked::ParkedWriter;
use veena_storage::wal::{Destination, RecordKind, Wal, WalConfig, WalEntry, WalRecord};

use crate::support::{BIN, STOP_DEADLINE, consume_exactly, create_narrow, produce_all, scratch, start};

struct Counting(std::sync::atomic::AtomicU64);

impl Entropy for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9, std::sync::atomic::Ordering::Relaxed)
    }
}

fn entropy() -> Counting {
    Counting(std::sync::atomic::AtomicU64::new(7))
}

/// Which of the records in the WAL goes elsewhere than first accepted.
const MOVED: u8 = 11;

/// Files as a node leaves them, with segments so small that there are several.
fn lay_out(data: &Path) -> PathBuf {
    let disk = Arc::new(RealDisk);
    let partition = data.join("topics/default/1/p00000");
    std::fs::create_dir_all(&partition).expect("created");
    let config = WalConfig { segment_bytes: 8192, rotate_bytes_min: 6000, spare_max: 2, ..WalConfig::default() };
    let (wal, _) = Wal::open(disk.clone(), &data.join("ingress"), config, &entropy()).expect("opens");
    wal.start_by_hand(Arc::new(|_| {}));
    for number in 0..12_u8 {
        let destination = Destination { group: 1, partition: 0 };
        let kind = if number == MOVED { RecordKind::Moved } else { RecordKind::Accept };
        let entry = WalEntry { kind, destination, body: vec![number; 1000].into() };
        let mut staged = wal.stage([entry].into_iter().collect()).expect("staged");
        wal.flush_now();
        staged.try_outcome().expect("flushed").expect("synced");
    }
    wal.close();
    let (mut journal, _) = Journal::open(disk.clone(), &data.join("settle"), JournalConfig::default()).expect("opens");
    for key in 0..4_u8 {
        journal.append(&[(1, &[key], Some(b"settled"))]).expect("appended");
        journal.sync().expect("synced");
    }
    let config = PartitionConfig { segment_bytes_max: 1000, segment_age_ms_max: 0, codec: Codec::None };
    let (mut log, _) =
        PartitionLog::open(disk, &partition, config, Arc::new(FrameCache::new(1 << 20)), &entropy(), Offset(0)).expect("opens");
    for sequence in 1..9_u64 {
        let record = NewRecord { sequence, id: None, key: None, body: vec![7; 300].into() };
        let key = StreamKey { stream: StreamId(9), source: 0 };
        let section = Section { key, origin: Origin::default(), is_tracked: false, last: sequence, records: vec![record] };
        let appended = log.append(&[section], 1_000 + sequence, &Marks::new).expect("appended");
        let synced = log.sync(appended).expect("synced");
        let verified = log.verify(synced).expect("verified");
        log.publish(verified);
    }
    partition
}

/// Every file of this extension below `dir`.
fn files_below(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("listed").map(|entry| entry.expect("read").path()) {
        if entry.is_dir() {
            found.extend(files_below(&entry, extension));
        } else if entry.extension().is_some_and(|found| found == extension) {
            found.push(entry);
        }
    }
    found.sort();
    found
}

fn veena(words: &[&str], dir: &Path) -> Output {
    Command::new(BIN).arg("log").args(words).arg(dir).output().expect("the command runs")
}

fn lines(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The first file of this kind with something behind it, by what the tool lists.
fn file_of(data: &Path, kind: &str) -> PathBuf {
    let listed = lines(&veena(&["inspect", "--json"], data));
    let names = listed.iter().filter(|line| line["kind"] == kind).filter_map(|line| line["file"].as_str());
    data.join(names.collect::<Vec<_>>().first().expect("there is one"))
}

#[test]
fn records_that_go_elsewhere_than_first_accepted_are_counted_apart() {
    let dir = scratch();
    lay_out(dir.path());
    let listed = lines(&veena(&["inspect", "--json"], dir.path()));
    let moved: Vec<_> = listed.iter().filter_map(|line| line["rerouted"].as_u64().zip(line["kind"].as_str())).collect();
    assert_eq!(moved, [(1, "wal")]);
    let table = veena(&["inspect"], dir.path());
    assert_eq!(String::from_utf8_lossy(&table.stdout).matches(", 1 rerouted").count(), 1);
}

fn flip(path: &Path, wanted: &[u8]) -> u64 {
    let mut bytes = std::fs::read(path).expect("readable");
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).expect("it is there") + 1;
    bytes[at] ^= 4;
    std::fs::write(path, bytes).expect("written");
    u64::try_from(at).expect("small")
}

#[test]
fn a_flipped_bit_is_named_by_file_and_place_whichever_log_it_is_in() {
    let cases: [(&str, &[u8]); 3] = [("partition", &[7; 300]), ("wal", &[1; 1000]), ("settle", b"settled")];
    for (kind, wanted) in cases {
        let dir = scratch();
        lay_out(dir.path());
        let clean = veena(&["verify", "--json"], dir.path());
        assert!(clean.status.success(), "{clean:?}");
        assert_eq!(lines(&clean).last().expect("a summary")["damaged"], 0);
        let path = file_of(dir.path(), kind);
        let at = flip(&path, wanted);
        let found = veena(&["verify", "--json"], dir.path());
        assert_eq!(found.status.code(), Some(1), "{kind}: {found:?}");
        let lines = lines(&found);
        let damage: Vec<_> = lines.iter().filter(|line| line["damaged"].is_string()).collect();
        assert_eq!(damage.len(), 1, "{kind}: {lines:?}");
        assert_eq!(damage[0]["damaged"].as_str(), path.to_str());
        let range = damage[0]["at"].as_u64().expect("a place")..damage[0]["end"].as_u64().expect("a place");
        assert!(range.contains(&at), "{kind}: {range:?} does not hold {at}");
        assert!(damage[0]["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
        let unit = if kind == "wal" { "sequences" } else { "offsets" };
        assert_eq!(damage[0][unit].is_object(), kind != "settle", "{damage:?}");
    }
}

#[test]
fn repair_says_what_it_would_do_and_does_it_only_when_told() {
    let dir = scratch();
    let partition = lay_out(dir.path());
    let index = partition.join(format!("{:020}.idx", 0));
    let whole = std::fs::read(&index).expect("a sealed segment has an index");
    std::fs::write(&index, b"x").expect("damaged");
    let log = file_of(dir.path(), "partition");
    flip(&log, &[7; 300]);
    let before = std::fs::read(&log).expect("readable");

    let dry = veena(&["repair"], dir.path());
    let text = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(dry.status.success() && text.contains("would make again") && text.contains("would keep a copy of"), "{text}");
    assert_eq!(std::fs::read(&index).expect("readable"), b"x");
    assert!(!dir.path().join("quarantine").exists());

    let done = veena(&["repair", "--apply"], dir.path());
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && text.contains("1 range(s) stay damaged"), "{text}");
    assert_ne!(std::fs::read(&index).expect("readable"), b"x");
    assert_eq!(std::fs::read(&index).expect("readable").len(), whole.len(), "the index is made from what is left");
    assert_eq!(std::fs::read(&log).expect("readable"), before, "no record is cut");
    assert!(dir.path().join("quarantine").read_dir().expect("listed").count() == 1);
}

#[test]
fn a_directory_that_is_not_a_nodes_is_refused() {
    let dir = scratch();
    assert_eq!(veena(&["verify"], dir.path()).status.code(), Some(2));
    assert_eq!(veena(&["verify"], &dir.path().join("nowhere")).status.code(), Some(2));
}

#[tokio::test]
async fn the_files_of_a_running_node_are_left_alone_and_those_of_a_stopped_one_are_clean() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let data = node.config().data_dir.clone();
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    produce_all(&mut client, "orders", &["one".to_owned(), "two".to_owned()]).await;
    consume_exactly(&mut client, "orders", 2).await;
    for words in [&["verify"][..], &["inspect"], &["repair", "--apply"]] {
        let refused = veena(words, &data);
        assert_eq!(refused.status.code(), Some(1), "{words:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("in use"), "{refused:?}");
    }
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    let clean = veena(&["verify"], &data);
    assert!(clean.status.success(), "{clean:?}");
}

#[tokio::test]
async fn a_flipped_bit_in_the_last_frame_of_a_log_is_named_and_without_the_journal_it_is_said_that_it_cannot_be() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let data = node.config().data_dir.clone();
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    produce_all(&mut client, "orders", &["one".to_owned(), "the last message".to_owned()]).await;
    consume_exactly(&mut client, "orders", 2).await;
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    let log = files_below(&data.join("topics"), "log").pop().expect("a log");
    let at = flip(&log, b"the last message");

    let partition = log.parent().expect("a directory");
    for dir in [&data, partition] {
        let found = veena(&["verify", "--json"], dir);
        assert_eq!(found.status.code(), Some(1), "{found:?}");
        let lines = lines(&found);
        assert_eq!(lines.len(), 2, "one range and the summary: {lines:?}");
        assert_eq!(lines[0]["damaged"].as_str(), log.to_str());
        let range = lines[0]["at"].as_u64().expect("a place")..lines[0]["end"].as_u64().expect("a place");
        assert!(range.contains(&at), "{range:?} does not hold {at}");
        assert_eq!(lines[1]["ends_known"], true);
    }
    let alone = dir.path().join("p00000");
    std::fs::create_dir(&alone).expect("created");
    std::fs::copy(&log, alone.join(log.file_name().expect("a name"))).expect("copied");
    let told = veena(&["verify"], &alone);
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success() && text.contains("no settle journal"), "{text}");
    assert_eq!(lines(&veena(&["verify", "--json"], &alone)).last().expect("a summary")["ends_known"], false);
}

#[tokio::test]
async fn a_wal_without_its_newest_segments_stops_the_start_by_name_and_repair_makes_it_start_and_repeat_nothing() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let data = node.config().data_dir.clone();
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 1_000).await;
    produce_all(&mut client, "orders", &["one".to_owned(), "two".to_owned()]).await;
    let mut first = consume_exactly(&mut client, "orders", 2).await;
    let handle = first.remove(0).handle.expect("a handle");
    assert_eq!(client.settle("orders", &handle, How::Ack).await.expect("an answer").status, 204);
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    for segment in files_below(&data.join("ingress"), "wal") {
        std::fs::remove_file(segment).expect("removed");
    }

    let config = node.config().clone();
    let status = config.run_to_end(free_addr().expect("a free port"), STOP_DEADLINE).await.expect("it ends by itself");
    let checkpoint = data.join("ingress/checkpoint");
    let log = std::fs::read_to_string(&config.log).expect("a log");
    assert!(!status.success() && log.contains(checkpoint.to_str().expect("text")) && log.contains("veena log repair"), "{log}");
    let found = veena(&["verify", "--json"], &data);
    assert_eq!((found.status.code(), lines(&found)[0]["damaged"].as_str()), (Some(1), checkpoint.to_str()), "{found:?}");

    let dry = veena(&["repair"], &data);
    let text = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(dry.status.success() && text.contains("would set aside") && text.contains("accepted and not dispatched"), "{text}");
    assert!(checkpoint.exists() && !data.join("quarantine").read_dir().expect("listed").any(|_| true), "nothing is done yet");
    let done = veena(&["repair", "--apply"], &data);
    assert!(done.status.success(), "{done:?}");
    assert!(data.join("quarantine").read_dir().expect("listed").any(|entry| {
        let entry = entry.expect("read").path();
        entry.to_string_lossy().ends_with("-ingress") && entry.join("checkpoint").exists()
    }));

    let node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    produce_all(&mut client, "orders", &["three".to_owned()]).await;
    let texts: Vec<_> = consume_exactly(&mut client, "orders", 2).await.into_iter().map(|message| message.payload).collect();
    assert_eq!(texts, [b"two".to_vec(), b"three".to_vec()], "what was acked stays so, what was dispatched is there once");
    assert_eq!(client.describe("orders").await.expect("numbers")[0].high_watermark, 3);
}

#[test]
fn what_a_lost_wal_had_parked_is_named_by_repair_and_begins_the_new_one() {
    let dir = scratch();
    let data = dir.path();
    lay_out(data);
    let disk = Arc::new(RealDisk);
    let config = WalConfig { segment_bytes: 8192, rotate_bytes_min: 6000, spare_max: 2, ..WalConfig::default() };
    let (wal, opened) = Wal::open(disk.clone(), &data.join("ingress"), config, &entropy()).expect("opens");
    let parked_dir = data.join("parked");
    std::fs::create_dir(&parked_dir).expect("created");
    let destination = Destination { group: 1, partition: 0 };
    let files: Vec<PathBuf> = (1..3)
        .map(|number| {
            let mut writer = ParkedWriter::begin(disk.clone(), &parked_dir, opened.wal_id, number, destination).expect("begun");
            for seq in [2 * number, 2 * number + 1].map(WalSeq) {
                let body = vec![9; 500].into();
                writer.add(&WalRecord { seq, stream: StreamId(5), kind: RecordKind::Accept, destination, body }, 1).expect("added");
            }
            writer.finish().expect("finished").path
        })
        .collect();
    wal.checkpoint(opened.end).expect("moved");
    wal.close();
    for segment in files_below(&data.join("ingress"), "wal") {
        std::fs::remove_file(segment).expect("removed");
    }
    // The head of the second one.
    let mut bytes = std::fs::read(&files[1]).expect("readable");
    bytes[20] ^= 4;
    std::fs::remove_file(&files[1]).and_then(|()| std::fs::write(&files[1], bytes)).expect("written");

    let dry = String::from_utf8(veena(&["repair"], data).stdout).expect("text");
    for told in [format!("would carry over {}: 2 record(s)", files[0].display()), format!("would leave {}", files[1].display())] {
        assert!(dry.contains(&told), "{told}:\n{dry}");
    }
    assert!(files.iter().all(|file| file.exists()), "nothing is done yet");
    let done = veena(&["repair", "--apply"], data);
    assert!(done.status.success() && String::from_utf8_lossy(&done.stdout).contains("carry over"), "{done:?}");
    assert_eq!(files.iter().map(|file| file.exists()).collect::<Vec<_>>(), [false, true]);
    let aside =
        data.join("quarantine").read_dir().expect("listed").map(|entry| entry.expect("read").file_name().into_string().expect("text"));
    let aside: Vec<String> = aside.filter(|name| name.ends_with("-ingress")).collect();
    assert!(aside.len() == 1 && aside[0].starts_with("kept-"), "no clean-up takes the log that a file may still need: {aside:?}");
    let held: Vec<u64> = lines(&veena(&["inspect", "--json"], data))
        .into_iter()
        .filter(|line| line["kind"] == "wal")
        .map(|line| line["records"].as_u64().expect("a number"))
        .collect();
    assert_eq!(held, [2], "the new log begins with them");
    let (wal, opened) = Wal::open(disk, &data.join("ingress"), WalConfig::default(), &entropy()).expect("opens");
    let backlog = wal.read_backlog(opened.checkpoint, opened.end, 1 << 20).expect("read");
    assert!(backlog.records.iter().all(|record| record.destination == destination && record.body == vec![9; 500]), "{backlog:?}");
    assert_eq!((backlog.records.len(), backlog.gaps.len()), (2, 0));
    wal.close();
    std::fs::remove_dir_all(data.join("ingress")).expect("removed");
    let dry = String::from_utf8(veena(&["repair"], data).stdout).expect("text");
    assert!(dry.contains(&format!("would leave {}", files[1].display())), "without any log too: {dry}");
}
