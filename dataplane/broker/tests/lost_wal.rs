//! A WAL whose newest segments are gone: it is refused by name, set aside by the tools, and what was dispatched from it is there once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_broker::OpenError;
use veena_broker::message::NewMessage;
use veena_contract::{Offset, PartitionIndex, StreamId, WalSeq};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::offline::carry::{self, Left, ParkedOfGone};
use veena_storage::offline::{self, Survey};
use veena_storage::wal::parked::ParkedWriter;
use veena_storage::wal::{Destination, RecordKind, WalOpenError, WalRecord};

use crate::support::{FakeCatalog, Node, Seeded, name, replay_all, small_config, tenant, topic};

const INGRESS: &str = "/data/ingress";
const PARKED: &str = "/data/parked";

/// Removes files of the WAL by what their names end in.
fn remove(disk: &MemDisk, ending: &str) {
    let dir = Path::new(INGRESS);
    let names = disk.list(dir).expect("listed").into_iter().map(|entry| entry.name).filter(|name| name.ends_with(ending));
    names.for_each(|name| disk.remove_file(&dir.join(name)).expect("removed"));
}

/// As `veena log repair --apply` does.
fn repair(disk: &MemDisk) {
    let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let found = offline::find(disk, Path::new("/data")).expect("ours");
    let survey = offline::survey(&dyn_disk, &found, &|_| Offset(0), &mut |_| {}).expect("read");
    assert!(survey.lost_end.is_some(), "{survey:?}");
    offline::set_wal_aside(disk, Path::new(INGRESS), Path::new("/data/quarantine"), 17, false).expect("set aside");
}

#[tokio::test(start_paused = true)]
async fn after_its_wal_was_set_aside_a_node_takes_new_messages_and_repeats_none() {
    // Without the list of streams nothing is left that tells how many lives the old log had.
    for is_list_gone in [false, true] {
        let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
        catalog.put(topic("orders", 1, 1));
        let mut expected = Vec::new();
        for life in 1..4 {
            let node = Node::start(Arc::new(disk.reopen()), &catalog, life).await;
            for n in 0..3 {
                expected.push(format!("{life}-{n}"));
                assert!(node.produce("orders", None, &expected[expected.len() - 1]).await);
            }
            assert_eq!(node.drain("orders").await.len(), 3);
            assert!(node.broker.stop().await);
        }
        remove(&disk, ".wal");
        if is_list_gone {
            remove(&disk, "streams");
        }
        let refused = Node::try_start(Arc::new(disk.reopen()), &catalog, 4, small_config()).await.err().expect("refused");
        assert!(matches!(refused, OpenError::Wal(WalOpenError::CheckpointBeyondEnd { .. })), "{refused}");

        repair(&disk);
        let node = Node::start(Arc::new(disk.reopen()), &catalog, 5).await;
        assert!(node.produce("orders", None, "new").await);
        assert_eq!(node.drain("orders").await, BTreeMap::from([("new".to_owned(), 1)]));
        expected.push("new".to_owned());
        let there: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, text)| text).collect();
        assert_eq!(there, expected, "each is in the log once");
        assert_eq!(node.broker.metrics().streams_forked.get(), 0);
        assert!(node.broker.stop().await);
    }
}

/// A file of one record of partition 1.
fn write_parked(disk: &Arc<dyn Disk>, wal_id: u64, number: u64) -> PathBuf {
    let destination = Destination { group: 1, partition: 1 };
    let mut writer = ParkedWriter::begin(Arc::clone(disk), Path::new(PARKED), wal_id, number, destination).expect("begun");
    let (kind, body) = (RecordKind::Accept, Bytes::from_static(b"again"));
    writer.add(&WalRecord { seq: WalSeq(3), stream: StreamId(5), kind, destination, body }, 1).expect("added");
    writer.finish().expect("finished").path
}

#[tokio::test(start_paused = true)]
async fn a_new_wal_that_is_not_put_in_place_keeps_no_room() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    disk.create_dir_all(Path::new(PARKED)).expect("created");
    let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    write_parked(&dyn_disk, 7, 0);
    disk.create_dir_all(Path::new("/data/topics")).expect("created");
    let found = offline::find(&disk, Path::new("/data")).expect("ours");
    let gone = carry::parked_of_gone_wal(&disk, &found, &Survey::default()).expect("listed");
    assert_eq!(gone.files.len(), 1, "{gone:?}");
    let made = Path::new("/data/ingress.new");
    for op in [Op::Create, Op::Write, Op::Sync] {
        let kind = FaultKind::Error(std::io::ErrorKind::StorageFull);
        disk.inject(Fault { op, path_contains: "/ingress.new/".into(), after: 1, times: u64::MAX, kind });
        carry::make_wal_of(&dyn_disk, Path::new(INGRESS), &gone.files, &*Seeded::new(8)).expect_err("no room");
        assert!(!disk.exists(made).expect("asked"), "{op:?}");
        disk.clear_faults();
    }
    carry::make_wal_of(&dyn_disk, Path::new(INGRESS), &gone.files, &*Seeded::new(8)).expect("made");
    let node = Node::start(Arc::new(disk.clone()), &catalog, 2).await;
    assert!(!disk.exists(made).expect("asked"), "a start removes it");
    assert!(node.broker.stop().await);
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_wal_had_parked_and_not_begun_to_send_is_carried_over_and_sent_once_and_in_order() {
    let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
    catalog.put(topic("orders", 1, 2));
    let mut config = small_config();
    config.undispatched_bytes_max = 20 * 1024;
    let path_contains = "0000000000000001/p00000".to_owned();
    disk.inject(Fault { op: Op::Create, path_contains, after: 0, times: u64::MAX, kind: FaultKind::Eio });
    let node = Node::start_with(Arc::new(disk.clone()), &catalog, 1, config).await;
    let send = async |partition, payload: &str| {
        let payload = Bytes::from(payload.to_owned());
        let message =
            NewMessage { key: None, partition: Some(PartitionIndex(partition)), headers: Vec::new(), idempotency_key: None, payload };
        node.broker.produce(&tenant(), &name("orders"), message).await.expect("accepted");
    };
    let mut sent = Vec::new();
    for n in 0..30 {
        sent.push(format!("{n:02}-{}", "x".repeat(1_000)));
        send(0, &sent[n]).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    send(1, "dispatched").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    disk.crash_kill();
    node.tasks.token().cancel();
    let disk = disk.reopen();
    disk.clear_faults();
    remove(&disk, ".wal");

    let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    // A repair that ended early has left it: a later log has sent its records.
    let stranger = write_parked(&dyn_disk, 7, 0);
    let (wal, quarantine) = (Path::new(INGRESS), Path::new("/data/quarantine"));
    let find = || offline::find(&disk, Path::new("/data")).expect("ours");
    let survey = offline::survey(&dyn_disk, &find(), &|_| Offset(0), &mut |_| {}).expect("read");
    assert!(survey.lost_end.is_some(), "{survey:?}");
    let gone = carry::parked_of_gone_wal(&disk, &find(), &survey).expect("listed");
    assert_eq!(gone.left, [(stranger.clone(), Left::OtherWal)]);
    let files = &gone.files;
    let parked: u64 = files.iter().map(|file| file.records).sum();
    assert!(files.len() > 1 && parked > 20, "{files:?}");
    let is_there = Survey { lost_end: None, ..survey };
    assert_eq!(carry::parked_of_gone_wal(&disk, &find(), &is_there).expect("listed"), ParkedOfGone::default());
    // The body of the first record of the second file.
    disk.flip_bit(&files[1].path, 372 * 8).expect("flipped");
    let damaged = usize::try_from(files[0].records).expect("small");
    // Once in vain: the next attempt begins anew.
    carry::make_wal_of(&dyn_disk, wal, files, &*Seeded::new(8)).expect("made");
    carry::make_wal_of(&dyn_disk, wal, files, &*Seeded::new(9)).expect("made");
    assert!(carry::put_in_place(&disk, wal, files, quarantine, 17).is_err(), "the old one is there");
    offline::set_wal_aside(&disk, wal, quarantine, 17, false).expect("set aside");
    let again = carry::parked_of_gone_wal(&disk, &find(), &Survey::default()).expect("listed");
    assert_eq!(again, gone, "after a crash here they are found again");
    carry::put_in_place(&disk, wal, files, quarantine, 17).expect("put in place");
    disk.crash_power(&mut || 0);
    let disk = disk.reopen();

    let node = Node::start(Arc::new(disk.clone()), &catalog, 2).await;
    assert_eq!(node.broker.metrics().damage_found.get(), 1, "one file of another log is left");
    let message = NewMessage {
        key: None,
        partition: Some(PartitionIndex(0)),
        headers: Vec::new(),
        idempotency_key: None,
        payload: Bytes::from_static(b"new"),
    };
    node.broker.produce(&tenant(), &name("orders"), message).await.expect("accepted");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let found: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, text)| text).collect();
    let mut expected = sent[..usize::try_from(parked).expect("small")].to_vec();
    expected.remove(damaged);
    expected.push("new".to_owned());
    assert!(found == expected, "{} of {}, once and in order", found.len(), expected.len());
    let other: Vec<String> = replay_all(&node, "orders", 1).await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(other, ["dispatched"], "nothing that was dispatched comes again");
    assert_eq!((node.broker.metrics().streams_forked.get(), node.broker.metrics().stream_gaps.get()), (0, 1), "what is damaged is a gap");
    assert!(node.broker.stop().await);
}
