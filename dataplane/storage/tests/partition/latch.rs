//! What happens after a failed sync, a failed write, a frame that does not read back.

use std::io::ErrorKind;

use veena_contract::{Effect, Offset};
use veena_storage::disk::mem::{Fault, FaultKind, Op};
use veena_storage::partition::{AppendError, Marks, ReadError};

use super::support::*;

fn fault(op: Op, path_contains: &str, kind: FaultKind) -> Fault {
    Fault { op, path_contains: path_contains.into(), after: 0, times: 1, kind }
}

#[test]
fn a_failed_sync_latches_the_log_and_reads_go_on() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 100)]);
    let appended = log.log.append(&[section(1, 4, 1, 100)], 2_000, &Marks::new).expect("appends");
    log.disk.inject(fault(Op::Sync, ".log", FaultKind::Eio));
    assert!(log.log.sync(appended).is_err());
    assert!(log.log.is_latched());
    let refused = log.log.append(&[section(1, 4, 1, 100)], 2_000, &Marks::new).err().expect("latched");
    assert!(matches!(refused, AppendError::Latched) && refused.effect() == Effect::None);
    check_records(&log.log.reader(), &log.records);
}

#[test]
fn the_tail_past_the_last_good_sync_is_not_trusted_when_the_log_is_opened_again() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 100)]);
    let appended = log.log.append(&[section(1, 4, 1, 5_000)], 2_000, &Marks::new).expect("appends");
    log.disk.inject(fault(Op::Sync, ".log", FaultKind::Eio));
    assert!(log.log.sync(appended).is_err());
    // The disk says yes to the next sync, and has nothing of it.
    let opened = log.reopen_warm();
    log.check(&opened);
    log.commit(&[section(1, 4, 1, 60), section(2, 1, 2, 10)]);
    log.disk.crash_power(&mut || 0);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn frames_past_the_last_good_sync_that_did_reach_the_device_move_into_a_new_segment() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 100)]);
    let tail = [section(1, 4, 2, 100), advance(2, 8)];
    let appended = log.log.append(&tail, 2_000, &Marks::new).expect("appends");
    let synced = log.log.sync(appended).expect("syncs");
    drop(synced);
    assert!(log.log.append(&[], 0, &Marks::new).is_err());
    // The owner gave up between sync and publish: nobody knows whether the pages can be trusted.
    let opened = log.reopen_warm();
    log.note(&tail);
    log.check(&opened);
    assert_eq!(segments(&log.disk).len(), 2);
    log.commit(&[section(1, 6, 1, 10)]);
    log.disk.crash_power(&mut || 0);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_tail_at_the_start_of_a_segment_is_written_anew_under_the_same_name() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[advance(3, 5)]);
    let tail = [section(1, 1, 2, 100)];
    let appended = log.log.append(&tail, 2_000, &Marks::new).expect("appends");
    drop(log.log.sync(appended).expect("syncs"));
    assert!(log.log.append(&[], 0, &Marks::new).is_err());
    let opened = log.reopen_warm();
    log.note(&tail);
    log.check(&opened);
    assert_eq!(segments(&log.disk).len(), 1);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_crash_at_any_step_of_writing_the_tail_anew_loses_nothing_published() {
    for nth in 0..20 {
        for seed in 0..8 {
            let dice = Dice::new(seed);
            let mut log = Modelled::new(config(64 * 1024));
            log.commit(&[section(1, 1, 3, 100)]);
            let tail = [section(1, 4, 2, 100)];
            let appended = log.log.append(&tail, 2_000, &Marks::new).expect("appends");
            drop(log.log.sync(appended).expect("syncs"));
            log.log.append(&[], 0, &Marks::new).err().expect("latched");
            log.disk.cut_power_at(nth);
            drop(open(&log.disk, log.config, &log.cache));
            log.disk.crash_power_in_write(&mut || dice.roll());
            let opened = log.reopen();
            log.note(&tail);
            log.check(&opened);
            log.commit(&[section(1, 6, 1, 100)]);
            let opened = log.reopen();
            log.check(&opened);
        }
    }
}

#[test]
fn a_failed_write_that_left_bytes_latches_the_log() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 100)]);
    log.disk.inject(fault(Op::Write, ".log", FaultKind::ErrorAfter(50)));
    let error = log.try_commit(&[section(1, 4, 1, 100)]).expect_err("the write failed");
    assert!(matches!(error, AppendError::Io(_)) && error.effect() == Effect::Possible);
    assert!(log.log.is_latched());
    let opened = log.reopen_warm();
    log.check(&opened);
    log.commit(&[section(1, 4, 1, 100)]);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_full_disk_before_the_first_byte_is_no_latch() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 100)]);
    log.disk.inject(fault(Op::Write, ".log", FaultKind::Error(ErrorKind::StorageFull)));
    let error = log.try_commit(&[section(1, 4, 1, 100)]).expect_err("the disk is full");
    assert!(matches!(error, AppendError::NoSpace) && error.effect() == Effect::None);
    log.commit(&[section(1, 4, 1, 100)]);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn short_writes_are_gone_on_with() {
    let mut log = Modelled::new(config(64 * 1024));
    for bytes in [1, 7, 71, 72, 73, 200] {
        log.disk.inject(Fault { op: Op::Write, path_contains: ".log".into(), after: 0, times: 3, kind: FaultKind::ShortWrite(bytes) });
        let sequence = log.records.len() as u64 + 1;
        log.commit(&[section(1, sequence, 2, 300)]);
    }
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_frame_that_does_not_read_back_is_never_published() {
    for body_len in [100, 300_000] {
        let mut log = Modelled::new(config(64 * 1024 * 1024));
        log.commit(&[section(1, 1, 3, 100)]);
        let at = frames(&log.disk, &segments(&log.disk)[0]).iter().map(|(position, len)| position + len).max().expect("has frames");
        for byte in [0, 5, 20, 70, 80, body_len as u64 - 1] {
            let appended = log.log.append(&[section(1, 4, 1, body_len)], 2_000, &Marks::new).expect("appends");
            let synced = log.log.sync(appended).expect("syncs");
            log.disk.flip_bit(&segments(&log.disk)[0], (at + byte) * 8 + 3).expect("flips");
            assert!(log.log.verify(synced).is_err(), "byte {byte}");
            assert!(log.log.is_latched());
            assert!(matches!(log.log.reader().read(Offset(3)), Err(ReadError::NotYet)));
            let opened = log.reopen_warm();
            log.check(&opened);
        }
        log.commit(&[section(1, 4, 1, 100)]);
    }
}

#[test]
fn an_append_that_is_dropped_on_its_way_latches_the_log() {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 3, 100)]);
    drop(log.log.append(&[section(1, 4, 1, 100)], 2_000, &Marks::new).expect("appends"));
    assert!(matches!(log.log.append(&[section(1, 5, 1, 100)], 2_000, &Marks::new), Err(AppendError::Latched)));
    check_records(&log.log.reader(), &log.records);
}

#[test]
fn a_failed_sync_while_a_segment_is_started_latches_the_log() {
    for (op, name) in [(Op::Sync, ".log"), (Op::Sync, ".streams"), (Op::Sync, ".log.new"), (Op::SyncDir, "")] {
        let mut log = Modelled::new(config(2_000));
        log.commit(&[section(1, 1, 3, 500)]);
        log.disk.inject(fault(op, name, FaultKind::Eio));
        assert!(matches!(log.try_commit(&[section(1, 4, 1, 500)]), Err(AppendError::Io(_))), "{op:?} {name}");
        assert!(log.log.is_latched());
        let opened = log.reopen_warm();
        log.check(&opened);
        log.commit(&[section(1, 4, 1, 500)]);
        log.disk.crash_power(&mut || 0);
        let opened = log.reopen();
        log.check(&opened);
    }
}

#[test]
fn a_segment_that_cannot_be_started_now_is_started_later() {
    for op in [Op::Create, Op::Rename] {
        let mut log = Modelled::new(config(2_000));
        log.commit(&[section(1, 1, 3, 500)]);
        log.disk.inject(fault(op, ".log.new", FaultKind::Error(ErrorKind::Other)));
        assert!(log.try_commit(&[section(1, 4, 1, 500)]).is_err());
        assert!(!log.log.is_latched());
        log.commit(&[section(1, 4, 1, 500)]);
        assert_eq!(segments(&log.disk).len(), 2);
        let opened = log.reopen();
        log.check(&opened);
    }
}
