//! The last frames have nothing behind them that proves they were promised: whoever opens the log tells. What was promised and is not
//! there is a hole and is reported, none of its bytes is cut, none of its offsets is given again.

use std::path::Path;
use std::sync::Arc;

use veena_contract::Offset;
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode};
use veena_storage::partition::{
    Damage, FrameCache, LogReader, Marks, OpenError, PartitionLog, PartitionOpened, ReadError, inspect, verify_sealed,
};

use super::support::*;

/// One segment of three commits of three records; the marks as of the first two, and the last frame's place.
fn three_commits() -> (Modelled, Marks, u64) {
    let mut log = Modelled::new(config(64 * 1024));
    log.commit(&[section(1, 1, 2, 100), section(2, 1, 1, 30)]);
    log.commit(&[section(1, 3, 3, 50)]);
    let marks = log.marks.clone();
    log.commit(&[section(1, 6, 2, 40), section(2, 2, 1, 20)]);
    let path = segments(&log.disk)[0].clone();
    let (position, _) = frames(&log.disk, &path)[2];
    (log, marks, position)
}

fn open_promised(disk: &MemDisk, cache: &Arc<FrameCache>, seed: u64, promised: u64) -> Result<(PartitionLog, PartitionOpened), OpenError> {
    let (disk, config) = (Arc::new(disk.clone()), config(64 * 1024));
    PartitionLog::open(disk, &dir(), config, Arc::clone(cache), &Dice::new(seed), Offset(promised))
}

fn reopened(log: &mut Modelled, promised: u64) -> PartitionOpened {
    log.cache = cache();
    log.disk = log.disk.reopen();
    let (opened_log, opened) = open_promised(&log.disk, &log.cache, 7, promised).expect("opens");
    log.log = opened_log;
    opened
}

fn next_readable(reader: &LogReader, offset: u64) -> Offset {
    match reader.read(Offset(offset)) {
        Err(ReadError::Unreadable { next }) => next,
        other => panic!("offset {offset}: {other:?}"),
    }
}

fn range(damage: &Damage) -> (&Path, u64, u64, u64) {
    (&damage.path, damage.at, damage.first.get(), damage.next.get())
}

/// Six records can be read, three are a hole; the log goes on at nine and stays so, told of the promise or not.
fn check_hole(log: &mut Modelled, marks: &Marks) {
    let reader = log.log.reader();
    assert_eq!((log.log.log_end(), reader.high_watermark()), (Offset(9), Offset(9)));
    for offset in 0..6 {
        assert_eq!(reader.read(Offset(offset)).expect("intact").body, log.records[usize::try_from(offset).expect("small")].body);
    }
    for offset in 6..9 {
        assert_eq!(next_readable(&reader, offset), Offset(9));
    }
    let again = section(1, 100, 2, 10);
    let visible = commit(&mut log.log, std::slice::from_ref(&again), 9_000, marks).expect("commits");
    assert_eq!(visible.first, Offset(9), "no offset is given twice");
    let mut after = marks.clone();
    mark(&mut after, &[again]);
    for promised in [0, 9, 11] {
        let opened = reopened(log, promised);
        assert_eq!((opened.damage, opened.marks), (Vec::new(), after.clone()), "told once");
        assert_eq!(log.log.log_end(), Offset(11));
        let reader = log.log.reader();
        assert_eq!(next_readable(&reader, 6), Offset(9));
        assert!(reader.read(Offset(5)).is_ok() && reader.read(Offset(9)).is_ok() && reader.read(Offset(10)).is_ok());
    }
}

#[test]
fn a_damaged_last_frame_that_was_promised_is_reported_and_kept_as_a_hole() {
    let (log, _, position) = three_commits();
    let path = segments(&log.disk)[0].clone();
    let len = frames(&log.disk, &path)[2].1;
    for byte in position..position + len {
        let (mut log, marks, _) = three_commits();
        log.disk.flip_bit(&path, byte * 8 + byte % 8).expect("flips");
        let before = bytes_of(&log.disk, &path);
        let opened = reopened(&mut log, 9);
        assert_eq!(opened.damage.len(), 1, "byte {byte}");
        assert_eq!(range(&opened.damage[0]), (path.as_path(), position, 6, 9), "byte {byte}");
        assert_eq!(opened.marks, marks, "the streams stand where the intact frames leave them");
        assert_eq!(bytes_of(&log.disk, &path), before, "nothing is cut");
        check_hole(&mut log, &marks);
        assert_eq!(bytes_of(&log.disk, &path), before, "nothing is cut");
        let told = verify_sealed(&log.disk, &path).expect("reads").damage;
        assert_eq!((told.len(), told[0].at), (1, position));
        assert_eq!(inspect(&log.disk, &dir(), Offset(0)).expect("reads").damage.len(), 1);
    }
}

#[test]
fn the_index_of_a_segment_that_ends_in_a_hole_can_be_made_again() {
    let (mut log, _, position) = three_commits();
    log.disk.flip_bit(&segments(&log.disk)[0], (position + 80) * 8).expect("flips");
    reopened(&mut log, 9);
    names(&log.disk, ".idx").iter().for_each(|path| log.disk.remove_file(path).expect("removes"));
    reopened(&mut log, 9);
    assert_eq!(next_readable(&log.log.reader(), 6), Offset(9));
    assert_eq!(names(&log.disk, ".idx").len(), 1);
    assert_eq!(reopened(&mut log, 9).damage, Vec::new(), "the hole is not taken for a missing segment");
}

#[test]
fn a_log_that_is_shorter_than_promised_is_reported_and_goes_on_behind_the_promise() {
    let (_, _, position) = three_commits();
    for len in [position, position + 1, position + 72, position + 100] {
        let (mut log, marks, _) = three_commits();
        let path = segments(&log.disk)[0].clone();
        log.disk.truncate(&path, len).expect("cut");
        let before = bytes_of(&log.disk, &path);
        let opened = reopened(&mut log, 9);
        assert_eq!(opened.damage.len(), 1, "length {len}");
        assert_eq!(range(&opened.damage[0]), (path.as_path(), position, 6, 9), "length {len}");
        assert_eq!(bytes_of(&log.disk, &path), before);
        check_hole(&mut log, &marks);
    }
}

#[test]
fn a_last_segment_that_holds_nothing_any_more_is_a_hole_up_to_the_promise() {
    for len in [0, 10, 64] {
        let (mut log, _, _) = three_commits();
        log.disk.truncate(&segments(&log.disk)[0], len).expect("cut");
        let opened = reopened(&mut log, 9);
        let last = opened.damage.last().expect("reported");
        assert_eq!((last.first, last.next), (Offset(0), log.log.log_end()), "length {len}");
        assert!(log.log.log_end() >= Offset(9), "length {len}");
        let next = next_readable(&log.log.reader(), 0);
        assert_eq!(next, log.log.log_end(), "length {len}");
        let visible = commit(&mut log.log, &[section(1, 100, 1, 10)], 9_000, &Marks::new()).expect("commits");
        assert_eq!(visible.first, next);
    }
}

#[test]
fn a_missing_last_segment_is_a_hole_up_to_the_promise() {
    let mut log = Modelled::new(config(500));
    for round in 0..4 {
        log.commit(&[section(1, round * 2 + 1, 2, 100)]);
    }
    let names = segments(&log.disk);
    assert!(names.len() > 1);
    log.disk.remove_file(&names[names.len() - 1]).expect("removes");
    let opened = reopened(&mut log, 8);
    assert_eq!(opened.damage.len(), 1);
    let first = opened.damage[0].first;
    assert_eq!((opened.damage[0].reason, opened.damage[0].next), ("promised frames are missing", Offset(8)));
    assert_eq!(next_readable(&log.log.reader(), first.get()), Offset(8));
    assert!(log.log.reader().read(Offset(first.get() - 1)).is_ok());
    assert_eq!(log.log.log_end(), Offset(8));
    assert_eq!(reopened(&mut log, 8).damage, Vec::new());
}

#[test]
fn a_log_that_is_gone_is_made_anew_behind_the_promise() {
    let (mut log, _, _) = three_commits();
    let former = log.log.log_id();
    log.disk.remove_dir_all(&dir()).expect("removes");
    log.disk = log.disk.reopen();
    let (opened_log, opened) = open_promised(&log.disk, &cache(), 8, 9).expect("opens");
    assert!(opened.is_new && opened_log.log_id() != former);
    assert_eq!((opened.damage.len(), opened.damage[0].first, opened.damage[0].next), (1, Offset(0), Offset(9)));
    assert_eq!((opened_log.log_end(), opened_log.reader().oldest()), (Offset(9), Offset(9)));
    drop(opened_log);
    assert_eq!(reopened(&mut log, 9).damage, Vec::new(), "told once");
    assert_eq!(log.log.log_end(), Offset(9));
}

#[test]
fn what_was_not_promised_is_still_the_torn_tail() {
    for promised in 0..=6 {
        let (mut log, marks, position) = three_commits();
        let path = segments(&log.disk)[0].clone();
        log.disk.flip_bit(&path, (position + 80) * 8).expect("flips");
        let opened = reopened(&mut log, promised);
        assert_eq!((opened.damage, opened.marks), (Vec::new(), marks), "promised {promised}");
        assert_eq!(log.log.log_end(), Offset(6), "promised {promised}");
        let len = log.disk.open(&path, OpenMode::Read).expect("opens").len().expect("has a length");
        assert_eq!(len, position, "promised {promised}");
    }
}

#[test]
fn a_promised_frame_with_an_unproven_one_behind_it_is_a_hole_in_the_middle() {
    let mut log = Modelled::new(config(64 * 1024 * 1024));
    log.commit(&[section(1, 1, 2, 100)]);
    // One append of several frames: none of them proves that another one was synced.
    log.commit(&[section(1, 3, 3, veena_contract::limits::FRAME_BYTES_MAX / 2)]);
    let path = segments(&log.disk)[0].clone();
    let all = frames(&log.disk, &path);
    assert!(all.len() >= 3, "{all:?}");
    log.disk.flip_bit(&path, (all[1].0 + 80) * 8).expect("flips");
    let opened = reopened(&mut log, 5);
    assert_eq!(opened.damage.len(), 1);
    assert_eq!((opened.damage[0].at, log.log.log_end()), (all[1].0, Offset(5)));
    assert!(log.log.reader().read(Offset(4)).is_ok());
    assert_eq!(segments(&log.disk), [path], "frames behind it are there: no new segment is needed");
}

#[test]
fn a_crash_at_any_step_of_going_on_behind_the_hole_changes_nothing_else() {
    for nth in 0..14 {
        for seed in 0..8 {
            let dice = Dice::new(seed);
            let (mut log, marks, position) = three_commits();
            let path = segments(&log.disk)[0].clone();
            log.disk.flip_bit(&path, (position + 80) * 8).expect("flips");
            let before = bytes_of(&log.disk, &path);
            log.disk.cut_power_at(nth);
            drop(open_promised(&log.disk, &cache(), 7, 9));
            log.disk.crash_power_in_write(&mut || dice.roll());
            reopened(&mut log, 9);
            assert_eq!(bytes_of(&log.disk, &path), before);
            check_hole(&mut log, &marks);
        }
    }
}

#[test]
fn a_promised_frame_is_not_cut_after_a_failed_sync_either() {
    let (mut log, marks, position) = three_commits();
    let path = segments(&log.disk)[0].clone();
    let appended = log.log.append(&[section(1, 8, 1, 50)], 5_000, &Marks::new).expect("appends");
    log.disk.inject(veena_storage::disk::mem::Fault {
        op: veena_storage::disk::mem::Op::Sync,
        path_contains: ".log".into(),
        after: 0,
        times: 1,
        kind: veena_storage::disk::mem::FaultKind::Eio,
    });
    assert!(log.log.sync(appended).is_err());
    log.disk.flip_bit(&path, (position + 80) * 8).expect("flips");
    // Within the same process, which knows that the last sync failed; nothing is in the cache.
    log.disk = log.disk.reopen();
    let (opened_log, opened) = open_promised(&log.disk, &log.cache, 7, 9).expect("opens");
    log.log = opened_log;
    assert_eq!(opened.damage.iter().map(|damage| damage.next).max(), Some(Offset(9)));
    assert_eq!(opened.marks, marks);
    log.cache = cache();
    let opened = reopened(&mut log, 9);
    assert_eq!(opened.marks, marks);
    check_hole(&mut log, &marks);
}
