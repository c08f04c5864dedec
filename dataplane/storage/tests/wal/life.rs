use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use veena_contract::WalSeq;
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{MemDisk, Op};
use veena_storage::disk::real::RealDisk;
use veena_storage::io::Io;
use veena_storage::wal::{StageError, Wal, WalConfig, WalOpenError, WalRecord, inspect};

use super::{DIR, config, entries, entry, file_bytes, rig, segments, streams_of, text, try_rig};
use crate::support::Seeded;

#[test]
fn records_get_consecutive_sequences_and_are_told_before_their_tickets_complete() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let mut first = log.wal.stage(entries(&["a", "b"])).expect("staged");
    let mut second = log.wal.stage(entries(&["c"])).expect("staged");
    assert_eq!(first.try_outcome(), None);
    assert!(log.told.lock().is_empty());
    log.wal.flush_now();
    let first = first.try_outcome().expect("flushed").expect("durable");
    let second = second.try_outcome().expect("flushed").expect("durable");
    assert_eq!((first.stream, first.first, first.count), (log.opened.stream, WalSeq(0), 2));
    assert_eq!((second.first, second.count), (WalSeq(2), 1));
    assert_eq!(log.told.lock().iter().map(text).collect::<Vec<_>>(), ["a", "b", "c"]);
    let status = log.wal.status();
    assert_eq!((status.syncs, status.records, status.durable_end, status.staged_bytes), (1, 3, WalSeq(3), 0));
}

#[test]
fn each_open_appends_under_a_stream_of_its_own() {
    let disk = MemDisk::new();
    let first = rig(&disk, 1);
    first.append(&["a", "b"]).expect("durable");
    first.wal.close();
    let second = rig(&disk, 2);
    assert_eq!(second.opened.wal_id, first.opened.wal_id);
    assert!(second.opened.ordinal > first.opened.ordinal);
    assert_eq!((second.opened.checkpoint, second.opened.end), (WalSeq(0), WalSeq(2)));
    second.append(&["c"]).expect("durable");
    second.wal.close();
    rig(&disk, 3).wal.close();
    let last = rig(&disk, 4);
    assert_eq!(last.bodies(), ["a", "b", "c"]);
    let (records, gaps) = last.backlog();
    assert_eq!(streams_of(&records), [first.opened.stream, second.opened.stream]);
    assert!(gaps.is_empty() && last.opened.damage.is_empty());
    let spans: Vec<_> = last.opened.streams.iter().map(|entry| (entry.stream, entry.first.0, entry.end.0)).collect();
    assert_eq!(spans, [(first.opened.stream, 0, 2), (second.opened.stream, 2, 3)]);
    assert_eq!(segments(&disk).len(), 1, "a clean tail is written on");
}

#[test]
fn a_directory_has_one_user_at_a_time() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    assert!(matches!(try_rig(&disk, 2), Err(WalOpenError::Locked { .. })));
    log.wal.close();
    rig(&disk, 3).wal.close();
    let dir = tempfile::tempdir().expect("temporary directory");
    let open = |seed| Wal::open(Arc::new(RealDisk), &dir.path().join("wal"), config(), &Seeded::new(seed));
    let held = open(1).expect("opened");
    assert!(matches!(open(2), Err(WalOpenError::Locked { .. })));
    drop(held);
    open(3).expect("the lock went with its holder");
}

#[test]
fn what_is_over_a_bound_is_refused_whole() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let refused = |bodies: &[&str]| log.wal.stage(entries(bodies)).err();
    assert_eq!(refused(&[]), Some(StageError::TooLarge));
    assert_eq!(refused(&[&"x".repeat(5000)]), Some(StageError::TooLarge), "a call never spans segments");
    let mut staged = 0;
    while log.wal.stage(entries(&[&"x".repeat(3000)])).is_ok() {
        staged += 1;
    }
    assert_eq!(refused(&[&"x".repeat(3000)]), Some(StageError::Full));
    assert_eq!(staged, config().staged_bytes_max / 3072);
    log.wal.flush_now();
    assert_eq!(log.wal.status().staged_bytes, 0);
    assert_eq!(log.told.lock().len(), staged);
    log.append(&["room again"]).expect("durable");
    log.wal.close();
    assert_eq!(refused(&["late"]), Some(StageError::Closed));
}

#[test]
fn live_bytes_are_bounded_until_the_checkpoint_moves() {
    let disk = MemDisk::new();
    let small = WalConfig { undispatched_bytes_max: 40_000, ..config() };
    let (wal, _) = Wal::open(Arc::new(disk), Path::new(DIR), small, &Seeded::new(1)).expect("opened");
    wal.start_by_hand(Arc::new(|_| ()));
    let body = "x".repeat(1000);
    let mut count = 0;
    while let Ok(mut staged) = wal.stage(entries(&[&body])) {
        wal.flush_now();
        staged.try_outcome().expect("flushed").expect("durable");
        count += 1;
        assert!(count < 100, "never full");
    }
    assert_eq!(wal.stage(entries(&[&body])).err(), Some(StageError::Full));
    wal.checkpoint(WalSeq(count)).expect("moved");
    wal.stage(entries(&[&body])).map(drop).expect("room again");
}

#[test]
fn recycled_segments_never_yield_old_records() {
    let disk = MemDisk::new();
    let mut log = rig(&disk, 1);
    let mut next = 0_u64;
    for round in 0..12 {
        let mut bodies = Vec::new();
        for _ in 0..7 {
            let body = format!("{next}:{}", "y".repeat(700));
            log.append(&[&body]).expect("durable");
            bodies.push(body);
            next += 1;
        }
        log.wal.close();
        log = rig(&disk, 100 + round);
        assert_eq!(log.bodies(), bodies, "round {round}");
        assert!(log.opened.damage.is_empty());
        log.wal.checkpoint(WalSeq(next)).expect("moved");
    }
    let status = log.wal.status();
    assert!(status.segments <= 2 && status.spare <= config().spare_max, "{status:?}");
}

#[test]
fn a_dispatched_active_segment_is_closed_and_then_recycled() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let body = "z".repeat(2200);
    log.append(&[&body]).expect("durable");
    let first = segments(&disk);
    assert_eq!(first.len(), 1);
    log.wal.checkpoint(WalSeq(1)).expect("moved");
    log.append(&["next"]).expect("durable");
    assert_eq!(segments(&disk).len(), 2, "it held enough to be closed");
    log.wal.checkpoint(WalSeq(2)).expect("moved");
    assert_eq!(segments(&disk).len(), 1);
    assert_ne!(segments(&disk), first);
    assert_eq!(log.wal.status().spare, 1);
}

#[test]
fn the_checkpoint_never_goes_back_or_beyond_what_is_durable() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["a", "b", "c"]).expect("durable");
    assert!(log.wal.checkpoint(WalSeq(4)).is_err());
    log.wal.checkpoint(WalSeq(2)).expect("moved");
    log.wal.checkpoint(WalSeq(1)).expect("ignored");
    log.wal.close();
    let log = rig(&disk, 2);
    assert_eq!(log.opened.checkpoint, WalSeq(2));
    assert_eq!(log.bodies(), ["c"]);
}

#[test]
fn an_open_reads_no_more_of_a_sealed_segment_than_its_header() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    for index in 0..40 {
        log.append(&[&format!("{index}:{}", "s".repeat(900))]).expect("durable");
    }
    log.wal.close();
    let all = segments(&disk);
    assert!(all.len() > 8);
    disk.record_ops(true);
    let log = rig(&disk, 2);
    let ops = disk.take_ops();
    disk.record_ops(false);
    for sealed in &all[..all.len() - 1] {
        let reads = ops.iter().filter(|record| record.op == Op::Read && record.path == *sealed).count();
        assert!(reads <= 2, "{}: its length and its header, {reads} reads", sealed.display());
        assert!(!ops.iter().any(|record| record.op == Op::Sync && record.path == *sealed));
    }
    assert_eq!(log.bodies().len(), 40);
}

#[test]
fn inspection_reports_every_segment_of_a_log_in_use() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    for index in 0..10 {
        log.append(&[&format!("{index}:{}", "s".repeat(900))]).expect("durable");
    }
    let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let reports = inspect(&dyn_disk, Path::new(DIR)).expect("inspected");
    assert_eq!(reports.iter().map(|report| report.records).sum::<u64>(), 10);
    assert!(reports.iter().all(|report| report.damage.is_empty() && report.header.is_ok()));
    let path = reports[1].path.clone();
    let at = 4096 + 20;
    disk.flip_bit(&path, at * 8).expect("flipped");
    let reports = inspect(&dyn_disk, Path::new(DIR)).expect("inspected");
    assert_eq!(reports[1].damage.first().map(|(from, _)| *from), Some(4096));
    drop(log);
}

#[test]
fn foreign_files_are_left_alone() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["a"]).expect("durable");
    log.wal.close();
    let names = ["segment.tmp", "0000000000000001.wal.bad", "lost+found", "00000000000000ff.WAL", "1.wal", "0000000000000001.wal~"];
    for name in names {
        disk.open(&Path::new(DIR).join(name), veena_storage::disk::OpenMode::CreateNew).expect("created");
    }
    disk.create_dir_all(&Path::new(DIR).join("00000000000000aa.wal")).expect("created");
    let other = MemDisk::new();
    let stranger = rig(&other, 77);
    stranger.append(&["stranger"]).expect("durable");
    let bytes = file_bytes(&other, &segments(&other)[0]);
    let path = Path::new(DIR).join("0000000000000009.wal");
    disk.open(&path, veena_storage::disk::OpenMode::CreateNew).expect("created");
    super::overwrite(&disk, &path, &bytes, 0);
    // a segment's generation is in its header: under another name even its own log does not take it
    let log = rig(&disk, 2);
    assert_eq!(log.bodies(), ["a"]);
    log.append(&["b"]).expect("durable");
    for name in names {
        assert!(disk.exists(&Path::new(DIR).join(name)).expect("asked"), "{name}");
    }
}

/// Waits for a condition that other threads bring about.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2_000_000 {
        if holds() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("never: {what}");
}

#[test]
fn with_threads_appends_of_many_callers_share_syncs_and_survive() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("wal");
    let big = WalConfig { segment_bytes: 256 * 1024, ..config() };
    let told: Arc<Mutex<Vec<WalRecord>>> = Arc::default();
    {
        let (wal, _) = Wal::open(Arc::new(RealDisk), &path, big, &Seeded::new(1)).expect("opened");
        let sink = Arc::clone(&told);
        wal.start(&Io::threads(4), Arc::new(move |records| sink.lock().extend(records)));
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let wal = wal.clone();
                std::thread::spawn(move || {
                    for index in 0..100 {
                        let body = format!("{caller}/{index}/{}", "x".repeat(500));
                        let mut staged = wal.stage([entry(body)].into_iter().collect()).expect("staged");
                        wait_until("durable", || staged.try_outcome().is_some_and(|outcome| outcome.is_ok()));
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().expect("no panic");
        }
        let status = wal.status();
        assert_eq!((status.records, status.latched), (800, None));
        wal.close();
    }
    let told = told.lock();
    assert!(told.iter().enumerate().all(|(index, record)| record.seq == WalSeq(index as u64)), "told in order");
    let (wal, opened) = Wal::open(Arc::new(RealDisk), &path, big, &Seeded::new(2)).expect("opened");
    let mut records = Vec::new();
    let mut next = opened.checkpoint;
    while next < opened.end {
        let step = wal.read_backlog(next, opened.end, 10_000).expect("read");
        records.extend(step.records);
        next = step.next;
    }
    assert_eq!(records, *told);
}

#[tokio::test]
async fn inline_a_task_writes_and_awaited_tickets_complete() {
    let disk = MemDisk::new();
    let (wal, _) = Wal::open(Arc::new(disk.clone()), Path::new(DIR), config(), &Seeded::new(1)).expect("opened");
    wal.start(&Io::inline(), Arc::new(|_| ()));
    for index in 0..20 {
        let first = wal.stage(entries(&[&format!("{index}:{}", "x".repeat(600))])).expect("staged");
        let second = wal.stage(entries(&["second"])).expect("staged");
        assert_eq!(first.await.expect("durable").first, WalSeq(index * 2));
        assert_eq!(second.await.expect("durable").first, WalSeq(index * 2 + 1));
    }
    drop(wal.stage(entries(&["nobody waits for this one"])).expect("staged"));
    wal.close();
    assert_eq!(rig(&disk, 2).bodies().last().map(String::as_str), Some("nobody waits for this one"));
}

#[test]
fn a_log_that_was_dropped_without_close_writes_what_was_staged() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let open = |seed| Wal::open(Arc::new(RealDisk), dir.path(), config(), &Seeded::new(seed));
    let (wal, _) = open(1).expect("opened");
    wal.start(&Io::threads(1), Arc::new(|_| ()));
    let mut staged = wal.stage(entries(&["a"])).expect("staged");
    drop(wal);
    let mut outcome = None;
    wait_until("written", || {
        outcome = staged.try_outcome();
        outcome.is_some()
    });
    outcome.expect("there").expect("durable");
    wait_until("unlocked", || open(2).is_ok_and(|(_, opened)| opened.end == WalSeq(1)));
}
