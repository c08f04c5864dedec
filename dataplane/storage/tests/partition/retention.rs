//! What retention removes, and what it never does.

use veena_contract::Offset;
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, Op};
use veena_storage::partition::{PartitionConfig, ReadError};

use super::support::*;

/// Ten segments with one record each, 10 ms apart, the first at 1,010 ms.
fn ten_segments() -> Modelled {
    let mut log = Modelled::new(config(600));
    for round in 0..10 {
        log.commit(&[section(1, round + 1, 1, 500), advance(2, round)]);
    }
    assert_eq!(segments(&log.disk).len(), 10);
    log
}

#[test]
fn old_segments_go_whole_and_in_order() {
    let mut log = ten_segments();
    let retained = log.log.retain(1_045 + 1_000, 1_000, 0).expect("retains");
    assert_eq!((retained.segments, retained.records, retained.oldest), (4, 4, Offset(4)));
    assert!(retained.bytes > 4 * 500);
    assert!(matches!(log.log.reader().read(Offset(3)), Err(ReadError::BelowOldest { oldest: Offset(4) })));
    assert_eq!(log.log.reader().stats().oldest_segment_ms, Some(1_050));
    let left = log.disk.list(&dir()).expect("lists");
    assert!(left.iter().all(|entry| entry.name.as_str() >= "00000000000000000004"), "side files go with their segment");
    let opened = log.reopen();
    assert_eq!(log.log.reader().oldest(), Offset(4));
    log.check(&opened);
}

#[test]
fn the_oldest_go_while_the_rest_holds_enough_bytes() {
    let mut log = ten_segments();
    let one = log.log.reader().stats().bytes / 10;
    let retained = log.log.retain(0, 0, one * 3).expect("retains");
    assert_eq!((retained.segments, retained.oldest), (7, Offset(7)));
    assert!(log.log.reader().stats().bytes >= one * 3);
    assert_eq!(log.log.retain(0, 0, one * 3).expect("retains").segments, 0);
}

#[test]
fn an_idempotency_key_outlives_its_record() {
    let mut log = Modelled::new(config(600));
    for round in 0..10 {
        let section = section(1, round + 1, 1, 500);
        log.commit(&[if round % 3 == 0 { keyed(section) } else { section }]);
    }
    let retained = log.log.retain(100_000, 1_000, 0).expect("retains");
    assert_eq!(retained.oldest, Offset(10), "all of it");
    let opened = log.reopen();
    log.check(&opened);
    assert_eq!(log.keys.len(), 4);
    log.log.forget_keys(1_040);
    log.keys.drain(..2);
    log.check_keys();
    // The next segment begins with what is remembered by then.
    for round in 0..3 {
        log.commit(&[section(1, round + 11, 1, 500)]);
    }
    log.log.retain(u64::MAX, 1_000, 0).expect("retains");
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_stream_table_that_is_lost_is_made_again_with_its_idempotency_keys() {
    let mut log = Modelled::new(config(600));
    for round in 0..4 {
        log.commit(&[keyed(section(1, round + 1, 1, 500))]);
    }
    let table = names(&log.disk, ".streams").pop().expect("has one");
    log.disk.remove_file(&table).expect("removed");
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn without_a_bound_nothing_goes() {
    let mut log = ten_segments();
    assert_eq!(log.log.retain(u64::MAX, 0, 0).expect("retains").segments, 0);
}

#[test]
fn an_active_segment_whose_records_are_all_too_old_is_sealed_and_goes() {
    let mut log = ten_segments();
    let retained = log.log.retain(100_000, 1_000, 0).expect("retains");
    assert_eq!((retained.segments, retained.oldest), (10, Offset(10)));
    assert_eq!(log.log.log_end(), Offset(10));
    let opened = log.reopen();
    log.check(&opened);
    assert_eq!(log.log.last_commit_ms(), 1_100, "time goes on from where it stood");
    log.commit(&[section(1, 11, 1, 500)]);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn an_active_segment_older_than_segments_may_get_is_sealed_and_stays() {
    let mut log = Modelled::new(PartitionConfig { segment_age_ms_max: 5_000, ..config(1024 * 1024) });
    log.commit(&[section(1, 1, 3, 100)]);
    assert_eq!(log.log.retain(7_000, 1_000_000, 0).expect("retains").segments, 0);
    assert_eq!(segments(&log.disk).len(), 2);
    assert_eq!(log.log.retain(14_000, 1_000_000, 0).expect("retains").segments, 0);
    assert_eq!(segments(&log.disk).len(), 2, "an empty segment is not sealed");
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn retention_works_without_index_files() {
    let mut log = ten_segments();
    for path in names(&log.disk, ".idx") {
        log.disk.remove_file(&path).expect("removes");
    }
    log.reopen();
    assert_eq!(log.log.retain(1_045 + 1_000, 1_000, 0).expect("retains").segments, 4);
    let opened = log.reopen();
    log.check(&opened);
}

#[test]
fn a_power_cut_at_any_step_of_retention_leaves_no_gap() {
    for nth in 0..24 {
        for seed in 0..6 {
            let dice = Dice::new(seed);
            let mut log = ten_segments();
            log.disk.cut_power_at(nth);
            let _ = log.log.retain(1_065 + 1_000, 1_000, 0);
            log.disk.crash_power_in_write(&mut || dice.roll());
            let opened = log.reopen();
            log.check(&opened);
            assert!(log.log.reader().oldest() <= Offset(6));
        }
    }
}

#[test]
fn a_failed_directory_sync_stops_retention_and_latches_the_log() {
    let mut log = ten_segments();
    log.disk.inject(Fault { op: Op::SyncDir, path_contains: String::new(), after: 0, times: 1, kind: FaultKind::Eio });
    assert!(log.log.retain(1_045 + 1_000, 1_000, 0).is_err());
    assert!(log.log.is_latched());
    let opened = log.reopen_warm();
    log.check(&opened);
}
