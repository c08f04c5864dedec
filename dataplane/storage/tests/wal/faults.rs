use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use veena_contract::{Effect, WalSeq};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::io::Io;
use veena_storage::wal::{AppendError, StageError, Staged, Wal};

use super::life::wait_until;
use super::{DIR, config, entries, rig, segments};
use crate::support::Seeded;

fn fault(op: Op, kind: FaultKind) -> Fault {
    Fault { op, path_contains: "/data/wal".to_owned(), after: 0, times: 1, kind }
}

#[test]
fn a_failed_sync_latches_the_log_for_good() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["before"]).expect("durable");
    disk.inject(fault(Op::Sync, FaultKind::Eio));
    let mut first = log.wal.stage(entries(&["lost 1"])).expect("staged");
    let mut second = log.wal.stage(entries(&["lost 2"])).expect("staged");
    log.wal.flush_now();
    for staged in [&mut first, &mut second] {
        assert_eq!(staged.try_outcome(), Some(Err(AppendError::Latched)));
    }
    assert_eq!(AppendError::Latched.effect(), Effect::Possible);
    let syncs = disk.syncs();
    assert_eq!(log.wal.stage(entries(&["after"])).err(), Some(StageError::Latched));
    log.wal.flush_now();
    assert_eq!(disk.syncs(), syncs, "the sync is not tried again");
    let status = log.wal.status();
    assert!(status.latched.is_some_and(|reason| reason.contains(".spare") || reason.contains(".wal")));
    assert_eq!((status.durable_end, status.staged_bytes), (WalSeq(1), 0));
    assert_eq!(log.told.lock().len(), 1);
    log.wal.close();
    // the cache still shows what the device never got; an open does not believe it
    disk.crash_kill();
    assert_eq!(rig(&disk.reopen(), 2).bodies(), ["before"]);
}

#[test]
fn records_staged_while_the_sync_failed_are_refused_too() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["before"]).expect("durable");
    disk.inject(fault(Op::Sync, FaultKind::Eio));
    let mut staged: Vec<_> = (0..6).map(|_| log.wal.stage(entries(&[&"x".repeat(3000)])).expect("staged")).collect();
    log.wal.flush_now();
    let outcomes: Vec<_> = staged.iter_mut().map(Staged::try_outcome).collect();
    let in_flight = outcomes.iter().take_while(|outcome| **outcome == Some(Err(AppendError::Latched))).count();
    assert!((1..6).contains(&in_flight), "the group that was written is in doubt");
    for outcome in &outcomes[in_flight..] {
        assert_eq!(*outcome, Some(Err(AppendError::Refused)), "nothing of the others was written");
    }
    assert_eq!((AppendError::Latched.effect(), AppendError::Refused.effect()), (Effect::Possible, Effect::None));
    assert_eq!(log.wal.status().staged_bytes, 0);
}

#[test]
fn a_writer_that_panics_latches_the_log_and_answers_everybody() {
    let disk = MemDisk::new();
    let (wal, _) = Wal::open(Arc::new(disk.clone()), Path::new(DIR), config(), &Seeded::new(1)).expect("opened");
    wal.start(
        &Io::threads(1),
        Arc::new(|records| assert!(records.iter().all(|record| &*record.body != b"poison"), "this record makes the writer panic")),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let append = |body: &str| runtime.block_on(wal.stage(entries(&[body])).expect("staged"));
    append("before").expect("durable");
    assert_eq!(append("poison"), Err(AppendError::Latched));
    wait_until("the latch", || wal.status().latched.as_deref() == Some("the writer panicked"));
    assert_eq!(wal.stage(entries(&["after"])).err(), Some(StageError::Latched));
    assert_eq!(wal.status().staged_bytes, 0);
    wal.close();
    assert_eq!(rig(&disk, 2).bodies(), ["before", "poison"], "what was synced is found by the next life");
}

#[test]
fn a_preparing_thread_that_panics_latches_the_log_and_nobody_waits_for_it() {
    let disk = MemDisk::new();
    let (wal, _) = Wal::open(Arc::new(disk.clone()), Path::new(DIR), config(), &Seeded::new(1)).expect("opened");
    // The first thing it does is to ask for the room on the disk.
    disk.inject(fault(Op::List, FaultKind::Panic));
    wal.start(&Io::threads(1), Arc::new(|_| ()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    // The segments that were ready are used up; who comes behind them is answered.
    while let Ok(staged) = wal.stage(entries(&[&"x".repeat(3000)])) {
        let _ = runtime.block_on(staged);
    }
    wait_until("the latch", || wal.status().latched.is_some_and(|reason| reason == "the thread that prepares segments panicked"));
    assert_eq!(wal.status().staged_bytes, 0);
    wal.close();
}

#[test]
fn a_failed_write_that_left_bytes_latches_the_log() {
    for left in [0, 1, 50, 100] {
        let disk = MemDisk::new();
        let log = rig(&disk, 1);
        log.append(&["before"]).expect("durable");
        disk.inject(fault(Op::Write, FaultKind::ErrorAfter(left)));
        assert_eq!(log.append(&["lost"]), Err(AppendError::Latched));
        assert_eq!(log.wal.stage(entries(&["after"])).err(), Some(StageError::Latched));
        log.wal.close();
        let again = rig(&disk, 2);
        assert_eq!(again.bodies()[..1], ["before"], "{left} bytes");
        again.append(&["next"]).expect("a restart ends the latch");
    }
}

#[test]
fn short_writes_are_continued() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["a"]).expect("durable");
    for bytes in [1, 7, 72, 100] {
        disk.inject(fault(Op::Write, FaultKind::ShortWrite(bytes)));
        log.append(&["a body of some length", "and another"]).expect("durable");
    }
    log.wal.close();
    let again = rig(&disk, 2);
    assert_eq!(again.bodies().len(), 9);
    assert!(again.opened.damage.is_empty());
}

#[test]
fn a_full_disk_refuses_without_a_latch_and_recovers_alone() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let body = "x".repeat(3000);
    log.append(&[&body]).expect("durable");
    disk.set_capacity(8192);
    for _ in 0..3 {
        assert_eq!(log.append(&[&body]), Err(AppendError::NoSpace));
        assert_eq!(AppendError::NoSpace.effect(), Effect::None);
    }
    assert_eq!(log.wal.status().latched, None);
    log.append(&["what fits the segment still goes in"]).expect("durable");
    disk.set_capacity(u64::MAX);
    assert_eq!(log.append(&[&body]).expect("durable").first, WalSeq(2));
    log.wal.close();
    let again = rig(&disk, 2);
    assert_eq!(again.bodies().len(), 3);
    assert!(again.opened.damage.is_empty() && again.backlog().1.is_empty());
}

#[test]
fn a_segment_that_cannot_be_made_refuses_without_a_latch_whatever_the_reason() {
    for (op, kind) in [
        (Op::Create, FaultKind::Error(ErrorKind::StorageFull)),
        (Op::Create, FaultKind::Eio),
        (Op::Write, FaultKind::ErrorAfter(100)),
        (Op::Write, FaultKind::Error(ErrorKind::StorageFull)),
        (Op::Sync, FaultKind::Eio),
        (Op::Rename, FaultKind::Eio),
        (Op::Open, FaultKind::Eio),
    ] {
        let disk = MemDisk::new();
        let log = rig(&disk, 1);
        let body = "x".repeat(3000);
        log.append(&[&body]).expect("durable");
        disk.inject(fault(op, kind));
        assert_eq!(log.append(&[&body]), Err(AppendError::NoSpace), "{op:?} {kind:?}");
        assert_eq!(log.wal.status().latched, None, "{op:?} {kind:?}");
        log.append(&[&body]).expect("the next attempt");
        log.wal.close();
        assert_eq!(rig(&disk, 2).bodies().len(), 2, "{op:?} {kind:?}");
    }
}

#[test]
fn a_new_segment_whose_name_cannot_be_synced_latches_the_log() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let body = "x".repeat(3000);
    log.append(&[&body]).expect("durable");
    disk.inject(fault(Op::SyncDir, FaultKind::Eio));
    assert_eq!(log.append(&[&body]), Err(AppendError::Refused));
    assert!(log.wal.status().latched.is_some());
}

#[test]
fn a_write_refused_for_want_of_room_leaves_nothing_that_counts_later() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    log.append(&["before"]).expect("durable");
    disk.inject(fault(Op::Write, FaultKind::ShortWrite(200)));
    disk.inject(fault(Op::Write, FaultKind::Error(ErrorKind::StorageFull)));
    // the first write takes 200 bytes, which hold a whole record; the second finds no room
    assert_eq!(log.append(&["refused", "refused", &"r".repeat(300)]), Err(AppendError::NoSpace));
    log.append(&["x"]).expect("durable, in a new segment");
    assert_eq!(segments(&disk).len(), 2);
    log.wal.close();
    let again = rig(&disk, 2);
    assert_eq!(again.bodies(), ["before", "x"]);
    assert!(again.opened.damage.is_empty() && again.backlog().1.is_empty());
}

#[test]
fn a_failed_checkpoint_is_told_recycles_nothing_and_may_be_repeated() {
    for op in [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDir] {
        let disk = MemDisk::new();
        let log = rig(&disk, 1);
        let body = "x".repeat(3000);
        for _ in 0..4 {
            log.append(&[&body]).expect("durable");
        }
        let before = segments(&disk);
        disk.inject(fault(op, FaultKind::Eio));
        log.wal.checkpoint(WalSeq(3)).expect_err("fails");
        assert_eq!(segments(&disk), before, "{op:?}");
        log.wal.checkpoint(WalSeq(3)).expect("moved");
        assert_eq!(segments(&disk).len(), 1, "{op:?}");
        assert_eq!(log.wal.status().latched, None, "a cell is not the log");
    }
}

#[test]
fn an_unreadable_segment_fails_the_read_and_not_the_open() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    for _ in 0..4 {
        log.append(&[&"x".repeat(3000)]).expect("durable");
    }
    log.wal.close();
    let log = rig(&disk, 2);
    let path = segments(&disk)[0].display().to_string();
    disk.inject(Fault { op: Op::Read, path_contains: path.clone(), after: 1, times: 1, kind: FaultKind::Eio });
    let error = log.wal.read_backlog(WalSeq(0), WalSeq(4), 100).expect_err("fails");
    assert!(error.to_string().contains(&path), "{error}");
    assert_eq!(log.bodies().len(), 4, "a repeat reads it");
}
